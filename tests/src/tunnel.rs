//! Tunnels as users run them: a configuration file, and a program that runs it.
use crate::{
    Lab, Node,
    lab::exists,
    process::{Ended, Process},
    programs::{self, Program, Subject, subject, wireguard_go},
    wg::{Dump, Keypair},
};
use anyhow::{Context, Result, bail, ensure};
use std::{
    ffi::OsString,
    fmt::Write as _,
    os::unix::net::{UnixDatagram, UnixStream},
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

/// The limit for a start. It suffices on a busy machine.
const READY: Duration = Duration::from_secs(20);

/// The content of a configuration file.
#[derive(Clone, Debug)]
pub struct Conf {
    /// The name of the interface and of the file.
    pub interface: String,
    /// The keys of the interface.
    pub keys: Keypair,
    /// The UDP port. `None` means any port.
    pub listen_port: Option<u16>,
    /// The addresses inside the tunnel, with prefix length.
    pub addresses: Vec<String>,
    /// More lines of `[Interface]`, which only wg-quick understands.
    pub lines: Vec<String>,
    /// The peers.
    pub peers: Vec<PeerConf>,
}

/// A `[Peer]` section.
#[derive(Clone, Debug)]
pub struct PeerConf {
    /// Its public key.
    pub public_key: String,
    /// The preshared key.
    pub preshared_key: Option<String>,
    /// The endpoint.
    pub endpoint: Option<String>,
    /// Its allowed IPs, separated by commas.
    pub allowed_ips: String,
    /// Persistent keepalive in seconds.
    pub persistent_keepalive: Option<u16>,
    /// More lines, which only `rustguard up` understands. Stock `wg` does not get them.
    pub lines: Vec<String>,
}

impl Conf {
    /// An interface without addresses and peers, on any port.
    pub fn new(interface: &str) -> Result<Self> {
        Ok(Self {
            interface: interface.to_owned(),
            keys: Keypair::generate()?,
            listen_port: None,
            addresses: Vec::new(),
            lines: Vec::new(),
            peers: Vec::new(),
        })
    }

    /// The file as `up` and wg-quick read it.
    pub fn wg_quick(&self) -> String {
        let mut lines: Vec<String> = self.addresses.iter().map(|address| format!("Address = {address}")).collect();
        lines.extend(self.lines.iter().cloned());
        self.render(&lines, true)
    }

    /// The file as `wg setconf` reads it.
    pub fn wg(&self) -> String {
        self.render(&[], false)
    }

    fn render(&self, lines: &[String], peer_lines: bool) -> String {
        let mut text = format!("[Interface]\nPrivateKey = {}\n", self.keys.private);
        let port = self.listen_port.map(|port| format!("ListenPort = {port}"));
        for line in port.iter().chain(lines) {
            text.push_str(line);
            text.push('\n');
        }
        for peer in &self.peers {
            text.push_str(&peer.section());
            for line in peer.lines.iter().filter(|_| peer_lines) {
                text.push_str(line);
                text.push('\n');
            }
        }
        text
    }
}

impl PeerConf {
    /// A peer without endpoint.
    pub fn new(public_key: &str, allowed_ips: &str) -> Self {
        Self {
            public_key: public_key.to_owned(),
            preshared_key: None,
            endpoint: None,
            allowed_ips: allowed_ips.to_owned(),
            persistent_keepalive: None,
            lines: Vec::new(),
        }
    }

    /// The `[Peer]` section.
    pub fn section(&self) -> String {
        let mut text = format!("\n[Peer]\nPublicKey = {}\nAllowedIPs = {}\n", self.public_key, self.allowed_ips);
        for (key, value) in [
            ("PresharedKey", self.preshared_key.clone()),
            ("Endpoint", self.endpoint.clone()),
            ("PersistentKeepalive", self.persistent_keepalive.map(|seconds| seconds.to_string())),
        ] {
            if let Some(value) = value {
                // Writing to a String cannot fail.
                let _ = writeln!(text, "{key} = {value}");
            }
        }
        text
    }
}

/// A running interface of the given program. The subject is started with `rustguard up`. The reference is configured
/// with `wg setconf` and `ip`.
#[derive(Debug)]
pub struct Tunnel {
    node: Node,
    interface: String,
    process: Process,
}

impl Tunnel {
    /// Starts the tunnel, and waits until it is ready.
    pub fn start(lab: &Lab, node: &Node, program: Program, conf: &Conf) -> Result<Self> {
        let process = if program == Program::Subject && subject() == Subject::RustGuard {
            let file = lab.file(&format!("{}.conf", conf.interface), &conf.wg_quick())?;
            foreground(lab, node, &file, &[])?
        } else {
            by_hand(lab, node, conf)?
        };
        Ok(Self { node: node.clone(), interface: conf.interface.clone(), process })
    }

    /// The interface's name.
    pub fn interface(&self) -> &str {
        &self.interface
    }

    /// `wg show INTERFACE dump`.
    pub fn dump(&self) -> Result<Dump> {
        Dump::parse(&self.node.run(&["wg", "show", &self.interface, "dump"])?)
    }

    /// Runs `wg set INTERFACE …`. Blanks separate the arguments.
    pub fn set(&self, arguments: &str) -> Result<()> {
        self.node.sh(&format!("wg set {} {arguments}", self.interface)).map(drop)
    }

    /// Ends the program with SIGKILL, like a crash.
    pub fn crash(mut self) -> Result<()> {
        self.process.stop("KILL").map(drop)
    }

    /// Its process.
    pub fn process(&mut self) -> &mut Process {
        &mut self.process
    }
}

/// Starts wireguard-go in the foreground, and does the work of wg-quick.
fn by_hand(lab: &Lab, node: &Node, conf: &Conf) -> Result<Process> {
    let name = &conf.interface;
    let mut daemon = node.command(wireguard_go()?);
    daemon.args(["-f", name]).env("LOG_LEVEL", "verbose");
    let mut process = node.spawn(name, &mut daemon)?;
    let socket = PathBuf::from(format!("/run/wireguard/{name}.sock"));
    process.until("its control socket", READY, || Ok(exists(&socket) && UnixStream::connect(&socket).is_ok()))?;
    let file = lab.file(&format!("{name}.wg.conf"), &conf.wg())?;
    node.run(&["wg", "setconf", name, &file.display().to_string()])?;
    for address in &conf.addresses {
        node.run(&["ip", "address", "add", address, "dev", name])?;
    }
    node.run(&["ip", "link", "set", name, "mtu", "1420", "up"])?;
    for allowed_ip in conf.peers.iter().flat_map(|peer| peer.allowed_ips.split(',')) {
        let allowed_ip = allowed_ip.trim();
        let family = if allowed_ip.contains(':') { "-6" } else { "-4" };
        node.run(&["ip", family, "route", "replace", allowed_ip, "dev", name])?;
    }
    Ok(process)
}

/// Starts `rustguard up FILE` in the foreground, and waits until it sends READY=1 (sd_notify(3)). No side effect is
/// polled, because none of them is certain to be the last one.
fn foreground(lab: &Lab, node: &Node, file: &Path, environment: &[(&str, OsString)]) -> Result<Process> {
    let mut command = node.rustguard()?;
    command.arg("up").arg(file).env("RUSTGUARD_LOG", "debug");
    command.envs(environment.iter().map(|(name, value)| (name, value)));
    spawn_until_ready(lab, node, &stem(file)?, &mut command)
}

/// Starts a program in the background, and waits until it sends READY=1 (sd_notify(3)).
pub fn spawn_until_ready(lab: &Lab, node: &Node, name: &str, command: &mut Command) -> Result<Process> {
    let socket = lab.path(&format!("{name}.notify"));
    if exists(&socket) {
        std::fs::remove_file(&socket)?;
    }
    let notifications = UnixDatagram::bind(&socket)?;
    notifications.set_nonblocking(true)?;
    let mut process = node.spawn(name, command.env("NOTIFY_SOCKET", &socket))?;
    process.until("READY=1", READY, || {
        let mut message = [0; 4096];
        match notifications.recv(&mut message) {
            Ok(len) => Ok(String::from_utf8_lossy(&message[..len]).lines().any(|line| line == "READY=1")),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => Ok(false),
            Err(error) => Err(error.into()),
        }
    })?;
    Ok(process)
}

/// An interface that is brought up from a file with all the work of wg-quick: by `rustguard up`, or by the reference,
/// which is wg-quick with wireguard-go.
pub struct Up {
    node: Node,
    file: PathBuf,
    process: Option<Process>,
}

impl Up {
    /// Brings the interface up, and waits until it is ready.
    pub fn start(lab: &Lab, node: &Node, conf: &Conf) -> Result<Self> {
        Self::start_with(lab, node, conf, &[])
    }

    /// Like [`Up::start`], with environment variables.
    pub fn start_with(lab: &Lab, node: &Node, conf: &Conf, environment: &[(&str, OsString)]) -> Result<Self> {
        let file = lab.file(&format!("{}.conf", conf.interface), &conf.wg_quick())?;
        let process = match subject() {
            Subject::RustGuard => Some(foreground(lab, node, &file, environment)?),
            Subject::WireguardGo => {
                let mut command = stock_wg_quick(node, wireguard_go()?, "up", &file);
                let ended = Ended::of(command.envs(environment.iter().map(|(name, value)| (name, value))))?;
                ensure!(ended.success(), "wg-quick up: {ended}");
                None
            }
        };
        Ok(Self { node: node.clone(), file, process })
    }

    /// Takes the interface down, with SIGTERM or with `wg-quick down`.
    pub fn down(self) -> Result<()> {
        self.down_with(&[])
    }

    /// Like [`Up::down`], with environment variables for `wg-quick down`. A running process keeps the variables of its
    /// start.
    pub fn down_with(self, environment: &[(&str, OsString)]) -> Result<()> {
        let ended = match self.process {
            Some(mut process) => process.stop("TERM")?,
            None => {
                let mut command = stock_wg_quick(&self.node, wireguard_go()?, "down", &self.file);
                Ended::of(command.envs(environment.iter().map(|(name, value)| (name, value))))?
            }
        };
        ensure!(ended.success(), "should come down with status 0: {ended}");
        Ok(())
    }

    /// Its log so far; empty if wg-quick has left no process.
    pub fn log(&self) -> String {
        self.process.as_ref().map(Process::log).unwrap_or_default()
    }

    /// The foreground process. An error for the reference, which has none.
    pub fn process(&mut self) -> Result<&mut Process> {
        self.process.as_mut().context("wg-quick leaves no process that could be waited for")
    }

    /// `wg show INTERFACE dump`.
    pub fn dump(&self) -> Result<Dump> {
        Dump::parse(&self.node.run(&["wg", "show", &stem(&self.file)?, "dump"])?)
    }
}

/// Stock wg-quick with `implementation` as its userspace implementation.
pub(crate) fn stock_wg_quick(node: &Node, implementation: PathBuf, verb: &str, file: &Path) -> Command {
    let mut command = node.command("wg-quick");
    command.arg(verb).arg(file).env("WG_QUICK_USERSPACE_IMPLEMENTATION", implementation);
    command
}

impl Node {
    /// Whether `rustguard up` has finished its start, including hooks, and answers reloads. Before that, a signal ends
    /// it with an error. The interface and its control socket exist earlier.
    pub fn is_up(&self, interface: &str) -> Result<bool> {
        Ok(self.end_of(self.rustguard()?.args(["reload", "--dry-run", interface]))?.success())
    }

    /// Stock wg-quick with the subject as its userspace implementation.
    pub fn wg_quick(&self, verb: &str, file: &Path) -> Result<Ended> {
        let implementation = match subject() {
            Subject::RustGuard => programs::rustguard()?,
            Subject::WireguardGo => wireguard_go()?,
        };
        Ended::of(&mut stock_wg_quick(self, implementation, verb, file))
    }

    /// A client without RustGuard: stock wg-quick and wireguard-go.
    pub fn stock_client(&self, verb: &str, file: &Path) -> Result<()> {
        let ended = Ended::of(&mut stock_wg_quick(self, wireguard_go()?, verb, file))?;
        ensure!(ended.success(), "wg-quick {verb}: {ended}");
        Ok(())
    }
}

/// The name of the interface, from the name of the file.
fn stem(file: &Path) -> Result<String> {
    match file.file_stem() {
        Some(stem) => Ok(stem.to_string_lossy().into_owned()),
        None => bail!("{}: no file name", file.display()),
    }
}
