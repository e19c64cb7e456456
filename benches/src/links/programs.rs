//! The programs whose tunnels are measured, between two nodes.

use super::emulator::OUTSIDE;
use crate::{
    compare::program::{find, version},
    tunnel::daemon::{configured_by_wg, rustguard},
};
use anyhow::{Context as _, Result, ensure};
use rustguard_tests::{Conf, Lab, Node, PeerConf, Process, wireguard_go};
use std::{
    fs,
    io::Write as _,
    net::{IpAddr, Ipv4Addr},
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

/// The addresses of the nodes inside the tunnel.
const INSIDE: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 9, 0, 1), Ipv4Addr::new(10, 9, 0, 2)];
const NAMES: [&str; 2] = ["a", "b"];
/// The limit for a start. It suffices on a busy machine.
const READY: Duration = Duration::from_secs(20);
/// The ports of tinc and Nebula.
const TINC: u16 = 655;
const NEBULA: u16 = 4_242;

/// The options with which boringtun and gotatun stay in the foreground, keep their rights, and log only errors.
const IN_FOREGROUND: &[&str] = &["-f", "-v", "error", "--disable-drop-privileges"];

/// A column of the table.
pub(super) struct Program {
    /// Its name in the table, and for `--program`.
    pub(super) name: String,
    pub(super) version: String,
    kind: Kind,
}

enum Kind {
    Link,
    /// With parities, if a ratio is given.
    RustGuard(PathBuf, Option<u8>),
    /// A program that makes the interface named in its last argument, and is configured by `wg`.
    Wg(PathBuf, &'static [&'static str]),
    Tinc(PathBuf),
    Nebula(PathBuf),
}

/// All programs: the link without a tunnel, RustGuard, other builds of RustGuard, RustGuard with parities, and the
/// other programs that are installed. Also returns the missing ones, and how to get them.
pub(super) fn all(
    ours: PathBuf,
    also: &[(String, PathBuf)],
    parity: Option<u8>,
) -> Result<(Vec<Program>, Vec<String>)> {
    let mut programs = vec![Program { name: "link".to_owned(), version: String::new(), kind: Kind::Link }];
    let with_parity = parity.map(|size| (("parity".to_owned(), ours.clone()), Some(size)));
    let ours = ("RustGuard".to_owned(), ours);
    let without = std::iter::once(&ours).chain(also).map(|program| (program.clone(), None));
    for ((name, path), parity) in without.chain(with_parity) {
        let version = version(&path, "--version").with_context(|| format!("start {}", path.display()))?;
        programs.push(Program { name, version, kind: Kind::RustGuard(path, parity) });
    }
    let gotatun = find("gotatun-cli").or_else(|_| find("gotatun"));
    let others = [
        ("wireguard-go", wireguard_go(), "--version", "go install golang.zx2c4.com/wireguard@latest"),
        ("boringtun", find("boringtun-cli"), "--version", "cargo install boringtun-cli"),
        ("gotatun", gotatun, "--version", "cargo install gotatun-cli"),
        ("tinc", find("tincd"), "--version", "apt-get install tinc"),
        ("nebula", find("nebula"), "-version", "docs/compare.md says how"),
    ];
    let mut missing = Vec::new();
    for (name, path, argument, how) in others {
        let Ok(path) = path else {
            missing.push(format!("{name} ({how})"));
            continue;
        };
        let version = version(&path, argument)?;
        let kind = match name {
            "wireguard-go" => Kind::Wg(path, &["-f"]),
            "tinc" => Kind::Tinc(path),
            "nebula" => Kind::Nebula(path),
            _ => Kind::Wg(path, IN_FOREGROUND),
        };
        programs.push(Program { name: name.to_owned(), version, kind });
    }
    Ok((programs, missing))
}

/// A program on both nodes. Dropping it kills both daemons.
pub(super) struct Running<'p> {
    program: &'p Program,
    confs: [Conf; 2],
    folder: PathBuf,
    daemons: Vec<Process>,
}

impl Program {
    /// The heading of its column.
    pub(super) fn heading(&self) -> String {
        format!("{} {}", self.name, self.version).trim_end().to_owned()
    }

    /// Whether it is the link alone.
    pub(super) fn is_link(&self) -> bool {
        matches!(self.kind, Kind::Link)
    }

    /// Starts it on both nodes, with new keys. The tunnel may not carry packets yet.
    pub(super) fn start<'p>(&'p self, lab: &Lab, nodes: [&Node; 2]) -> Result<Running<'p>> {
        let folder = lab.path("program");
        if folder.exists() {
            fs::remove_dir_all(&folder)?;
        }
        fs::create_dir(&folder)?;
        match &self.kind {
            Kind::Tinc(program) => tinc(program, &folder)?,
            Kind::Nebula(_) => nebula(&folder)?,
            Kind::Link | Kind::RustGuard(..) | Kind::Wg(..) => {}
        }
        let mut running = Running { program: self, confs: confs()?, folder, daemons: Vec::new() };
        if !self.is_link() {
            running.daemons = [0, 1].map(|n| running.daemon(lab, nodes, n)).into_iter().collect::<Result<_>>()?;
        }
        Ok(running)
    }
}

impl Running<'_> {
    /// The address of the second node for programs on the first.
    pub(super) fn inside(&self) -> IpAddr {
        if self.program.is_link() { OUTSIDE[1].into() } else { INSIDE[1].into() }
    }

    /// Kills the daemon of the second node, so that it cannot tell its peer.
    pub(super) fn kill(&mut self) -> Result<()> {
        self.daemons[1].stop("KILL").map(drop)
    }

    /// Starts it again, from the same files.
    pub(super) fn restart(&mut self, lab: &Lab, nodes: [&Node; 2]) -> Result<()> {
        self.daemons[1] = self.daemon(lab, nodes, 1)?;
        Ok(())
    }

    /// Starts the daemon of one node, and waits until its interface exists.
    fn daemon(&self, lab: &Lab, nodes: [&Node; 2], n: usize) -> Result<Process> {
        let (node, name, conf) = (nodes[n], NAMES[n], &self.confs[n]);
        let mut command = match &self.program.kind {
            Kind::Link => anyhow::bail!("a link has no daemon"),
            Kind::RustGuard(program, None) => return rustguard(lab, node, program, true, conf),
            Kind::RustGuard(program, Some(size)) => {
                let mut conf = conf.clone();
                conf.peers[0].lines.push(format!("Parity = {size}"));
                return rustguard(lab, node, program, true, &conf);
            }
            Kind::Wg(program, arguments) => {
                let mut command = node.command(program);
                // wireguard-go reads the variable.
                command.args(*arguments).arg(&conf.interface).env("LOG_LEVEL", "error");
                return configured_by_wg(lab, node, &mut command, conf);
            }
            Kind::Tinc(program) => {
                let mut command = node.command(program);
                command.arg("-c").arg(self.folder.join(name)).args(["-D", "--pidfile"]);
                command.arg(self.folder.join(format!("{name}.pid")));
                command
            }
            Kind::Nebula(program) => {
                let mut command = node.command(program);
                command.arg("-config").arg(self.folder.join(format!("{name}.yml")));
                command
            }
        };
        let mut process = node.spawn(&format!("{}-{name}", self.program.name), &mut command)?;
        process.until("the interface is there", READY, || {
            Ok(node.sh("ip -4 -o addr")?.contains(&format!("inet {}/", INSIDE[n])))
        })?;
        Ok(process)
    }
}

/// Each side has the other's endpoint.
fn confs() -> Result<[Conf; 2]> {
    let (mut a, mut b) = (Conf::new("wga")?, Conf::new("wgb")?);
    let keys = [a.keys.public.clone(), b.keys.public.clone()];
    for (n, conf) in [&mut a, &mut b].into_iter().enumerate() {
        let other = 1 - n;
        conf.addresses = vec![format!("{}/24", INSIDE[n])];
        conf.listen_port = Some(51_820);
        let mut peer = PeerConf::new(&keys[other], &format!("{}/32", INSIDE[other]));
        peer.endpoint = Some(format!("{}:51820", OUTSIDE[other]));
        conf.peers.push(peer);
    }
    Ok([a, b])
}

/// A folder of tinc for each node, with tinc's defaults and the other node.
fn tinc(program: &Path, folder: &Path) -> Result<()> {
    for n in [0, 1] {
        let (own, name, other) = (folder.join(NAMES[n]), NAMES[n], NAMES[1 - n]);
        fs::create_dir_all(own.join("hosts"))?;
        fs::write(
            own.join("tinc.conf"),
            format!("Name = {name}\nAddressFamily = ipv4\nInterface = tinc0\nConnectTo = {other}\n"),
        )?;
        let host = format!("Address = {} {TINC}\nSubnet = {}/32\n", OUTSIDE[n], INSIDE[n]);
        fs::write(own.join("hosts").join(name), host)?;
        let up = own.join("tinc-up");
        fs::write(&up, format!("#!/bin/sh\nip link set $INTERFACE up\nip addr add {}/24 dev $INTERFACE\n", INSIDE[n]))?;
        fs::set_permissions(&up, fs::Permissions::from_mode(0o755))?;
        // It asks for the files of the keys, and accepts an empty line for the default.
        let mut keys = Command::new(program);
        keys.arg("-c").arg(&own).arg("-K").stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut keys = keys.spawn()?;
        keys.stdin.take().context("a pipe to tincd")?.write_all(b"\n\n")?;
        let ended = keys.wait_with_output()?;
        ensure!(ended.status.success(), "tincd -K: {}", String::from_utf8_lossy(&ended.stderr));
    }
    for n in [0, 1] {
        let host = |at: usize| folder.join(NAMES[at]).join("hosts").join(NAMES[n]);
        fs::copy(host(n), host(1 - n))?;
    }
    Ok(())
}

/// Certificates and configurations of Nebula, with the settings that its example recommends. Each node knows the
/// other's address, and no lighthouse is needed.
fn nebula(folder: &Path) -> Result<()> {
    let cert = |arguments: &[&str]| -> Result<()> {
        let ended = Command::new(find("nebula-cert")?).args(arguments).current_dir(folder).output()?;
        ensure!(ended.status.success(), "nebula-cert {arguments:?}: {}", String::from_utf8_lossy(&ended.stderr));
        Ok(())
    };
    cert(&["ca", "-name", "lab"])?;
    for n in [0, 1] {
        let (name, path, other) = (NAMES[n], folder.display(), 1 - n);
        cert(&["sign", "-name", name, "-networks", &format!("{}/24", INSIDE[n])])?;
        fs::write(
            folder.join(format!("{name}.yml")),
            format!(
                "pki: {{ ca: {path}/ca.crt, cert: {path}/{name}.crt, key: {path}/{name}.key }}
static_host_map: {{ '{}': ['{}:{NEBULA}'] }}
lighthouse: {{ am_lighthouse: false }}
listen: {{ host: 0.0.0.0, port: {NEBULA}, read_buffer: 10485760, write_buffer: 10485760 }}
punchy: {{ punch: true, respond: true }}
tun: {{ dev: nebula1 }}
logging: {{ level: warning, format: text }}
firewall:
  outbound: [{{ port: any, proto: any, host: any }}]
  inbound: [{{ port: any, proto: any, host: any }}]
",
                INSIDE[other], OUTSIDE[other],
            ),
        )?;
    }
    Ok(())
}
