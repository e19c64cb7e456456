//! Networks of a `rustguard serve` and of machines that can join it with `rustguard join`.
use crate::{Lab, Node, Process, Subject, process::Ended, subject, tunnel::spawn_until_ready};
use anyhow::{Context, Result, ensure};
use serde_json::Value;
use std::{
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

/// The limit for a join. It suffices on a busy machine.
const JOINED: Duration = Duration::from_secs(30);

/// A scenario with a server and machines around it. It is skipped if wireguard-go is the subject, because only
/// RustGuard has enrolment.
pub fn network(lab: &Lab, machines: u8, body: impl FnOnce(&Network) -> Result<()>) -> Result<()> {
    if subject() == Subject::WireguardGo {
        lab.skip("enrolment is RustGuard's own: wireguard-go is the subject");
        return Ok(());
    }
    body(&Network::new(lab, machines)?)
}

/// A server, and machines that each have their own link to it. Machine `n` (1, 2, …) has the addresses 10.n.0.2 and
/// fd0n::2. The server has 10.n.0.1 and fd0n::1 on that link.
pub struct Network {
    /// The node on which `serve` runs, with the interface `rgs`.
    pub server: Node,
    /// The machines. Machine `n` is `machines[n - 1]`, and its interface is `rgN`.
    pub machines: Vec<Node>,
}

/// A running `rustguard serve`.
pub struct Served {
    node: Node,
    process: Process,
    /// The words of the printed `join` command without `rustguard`; empty if no invite was made, because the one of an
    /// earlier start is still unused.
    pub join: Vec<String>,
}

impl Network {
    /// Creates the nodes and their links. The name `vpn.lab` is the server's address on the first link.
    pub fn new(lab: &Lab, machines: u8) -> Result<Self> {
        let server = lab.node("server")?;
        let machines = (1..=machines).map(|n| {
            let node = lab.node(&format!("m{n}"))?;
            lab.link((&server, &format!("to{n}")), (&node, "uplink"))?;
            server.sh(&format!("ip addr add 10.{n}.0.1/24 dev to{n}; ip addr add fd0{n}::1/64 dev to{n} nodad"))?;
            node.sh(&format!("ip addr add 10.{n}.0.2/24 dev uplink; ip addr add fd0{n}::2/64 dev uplink nodad"))?;
            // The machines reach all addresses of the server by these default routes.
            node.sh(&format!("ip route add default via 10.{n}.0.1; ip -6 route add default via fd0{n}::1"))?;
            Ok(node)
        });
        let machines = machines.collect::<Result<_>>()?;
        server.sh("ip route add default via 10.1.0.2 dev to1")?;
        lab.host("10.1.0.1", "vpn.lab")?;
        Ok(Self { server, machines })
    }

    /// Starts `rustguard serve -i rgs` with these arguments, and waits until it is ready.
    pub fn serve(&self, lab: &Lab, arguments: &[&str]) -> Result<Served> {
        let mut command = self.server.rustguard()?;
        command.args(["serve", "-i", "rgs"]).args(arguments);
        if std::env::var_os("RUSTGUARD_STAR").is_some() && !arguments.iter().any(|it| it.starts_with("--star")) {
            command.arg("--star");
        }
        self.serve_by(lab, &mut command)
    }

    /// Like [`serve`](Self::serve), with a given command.
    pub fn serve_by(&self, lab: &Lab, command: &mut Command) -> Result<Served> {
        let log = lab.path("serve.log");
        if log.exists() {
            std::fs::remove_file(&log)?;
        }
        let process = spawn_until_ready(lab, &self.server, "serve", command)?;
        let log = process.log();
        let line = log.lines().map(str::trim).find(|line| line.starts_with("rustguard join"));
        let join = line.unwrap_or_default().split_whitespace().skip(1).map(str::to_owned).collect();
        Ok(Served { node: self.server.clone(), process, join })
    }

    /// Starts `rustguard serve -i rgN` on machine `n`, which has the state of a server, and waits until it is ready.
    pub fn serve_on(&self, lab: &Lab, n: u8, arguments: &[&str]) -> Result<Process> {
        let (node, interface) = (&self.machines[usize::from(n) - 1], format!("rg{n}"));
        let mut command = node.rustguard()?;
        command.args(["serve", "-i", &interface]).args(arguments);
        spawn_until_ready(lab, node, &format!("serve-{interface}"), &mut command)
    }

    /// Runs `rustguard ARGUMENTS -i rgs` on the server. Returns its standard output.
    pub fn ask(&self, arguments: &[&str]) -> Result<String> {
        let ended = self.try_ask(arguments)?;
        ensure!(ended.success(), "{arguments:?}: {ended}");
        Ok(ended.stdout)
    }

    /// Like [`ask`](Self::ask), but the command may fail.
    pub fn try_ask(&self, arguments: &[&str]) -> Result<Ended> {
        self.server.end_of(self.server.rustguard()?.args(arguments).args(["-i", "rgs"]))
    }

    /// The output of `rustguard status --json`.
    pub fn status(&self) -> Result<Value> {
        Ok(serde_json::from_str(&self.ask(&["status", "--json"])?)?)
    }

    /// Creates an invite. Returns its token.
    pub fn invite(&self, arguments: &[&str]) -> Result<String> {
        let arguments: Vec<_> = ["invite", "new", "--json", "--another"].iter().chain(arguments).copied().collect();
        let invite: Value = serde_json::from_str(&self.ask(&arguments)?)?;
        Ok(invite["token"].as_str().context("a token")?.to_owned())
    }

    /// Opens the window. Returns its code.
    pub fn open(&self, arguments: &[&str]) -> Result<String> {
        let arguments: Vec<_> = ["open", "--json"].iter().chain(arguments).copied().collect();
        let opened: Value = serde_json::from_str(&self.ask(&arguments)?)?;
        Ok(opened["code"].as_str().context("a code")?.to_owned())
    }

    /// The lines of the audit log.
    pub fn audit(&self) -> Result<Vec<Value>> {
        let text = std::fs::read_to_string("/var/lib/rustguard/rgs/audit.jsonl")?;
        text.lines().map(|line| Ok(serde_json::from_str(line)?)).collect()
    }

    /// Checks that the audit log has exactly this number of lines about `event`. Returns the last of them.
    pub fn audited(&self, event: &str, lines: usize) -> Result<Value> {
        let mut about = self.audit()?;
        about.retain(|line| line["event"] == event);
        ensure!(about.len() == lines, "{} lines about {event}, not {lines}: {about:?}", about.len());
        about.pop().context("no line")
    }

    /// Checks that machine `n` reaches all addresses of the server inside the tunnel.
    pub fn reaches_server(&self, n: u8) -> Result<()> {
        let node = &self.machines[usize::from(n) - 1];
        self.server_addresses()?.iter().try_for_each(|address| node.reaches(address, 10))
    }

    /// The command `rustguard join` for machine `n` with these arguments. It is not started.
    pub fn join_command(&self, n: u8, arguments: &[&str]) -> Result<Command> {
        let mut command = self.machines[usize::from(n) - 1].rustguard()?;
        command.arg("join").args(arguments).args(["-i", &format!("rg{n}")]).env("RUSTGUARD_LOG", "debug");
        Ok(command)
    }

    /// Joins with machine `n` and waits until the tunnel is up.
    pub fn join(&self, lab: &Lab, n: u8, arguments: &[&str]) -> Result<Process> {
        let mut command = self.join_command(n, arguments)?;
        spawn_until_ready(lab, &self.machines[usize::from(n) - 1], &format!("rg{n}"), &mut command)
    }

    /// Joins with machine `n` without bringing the tunnel up. The command may fail.
    pub fn try_join(&self, n: u8, arguments: &[&str]) -> Result<Ended> {
        self.machines[usize::from(n) - 1].end_of(self.join_command(n, arguments)?.arg("--no-up"))
    }

    /// Starts `rustguard up rgN`, and waits until it is ready.
    pub fn up(&self, lab: &Lab, n: u8) -> Result<Process> {
        let node = &self.machines[usize::from(n) - 1];
        let mut command = node.rustguard()?;
        command.args(["up", &format!("rg{n}")]);
        spawn_until_ready(lab, node, &format!("rg{n}"), &mut command)
    }

    /// The addresses that machine `n` was given, IPv4 first.
    pub fn addresses(&self, n: u8) -> Result<Vec<String>> {
        let text = std::fs::read_to_string(format!("/etc/rustguard/rg{n}.conf"))?;
        let lines = text.lines().filter_map(|line| line.strip_prefix("Address = "));
        let addresses = lines.flat_map(|line| line.split(", "));
        Ok(addresses.filter_map(|address| address.split('/').next()).map(str::to_owned).collect())
    }

    /// The server's addresses inside the tunnel, IPv4 first.
    pub fn server_addresses(&self) -> Result<Vec<String>> {
        let status = self.status()?;
        let pools = status["pools"].as_array().context("pools")?;
        Ok(pools.iter().filter_map(|pool| pool["address"].as_str()).map(str::to_owned).collect())
    }
}

impl Served {
    /// The arguments of the printed `join` command.
    pub fn join_arguments(&self) -> Vec<&str> {
        self.join.iter().skip(1).map(String::as_str).collect()
    }

    /// The process.
    pub fn process(&mut self) -> &mut Process {
        &mut self.process
    }

    /// Ends the server properly, with SIGTERM.
    pub fn stop(mut self) -> Result<()> {
        let ended = self.process.stop("TERM")?;
        ensure!(ended.success(), "serve should end with status 0: {ended}");
        ensure!(!Path::new("/run/rustguard/rgs.ctl").exists(), "the control socket is still there");
        let left = self.node.run(&["ip", "-br", "link"])?;
        ensure!(!left.contains("rgs"), "the interface is still there: {left}");
        Ok(())
    }

    /// Ends the server with SIGKILL, like a crash.
    pub fn crash(mut self) -> Result<()> {
        self.process.stop("KILL").map(drop)
    }
}

/// Waits for the end of a `join` that fails or ends by itself.
pub fn joined(process: &mut Process) -> Result<Ended> {
    process.ended(JOINED)
}

/// The log of `serve` so far.
pub fn served_log(lab: &Lab) -> Result<String> {
    Ok(std::fs::read_to_string(lab.path("serve.log"))?)
}

/// All files in a folder and in its subfolders.
pub fn files_in(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() { found.extend(files_in(&path)?) } else { found.push(path) }
    }
    Ok(found)
}
