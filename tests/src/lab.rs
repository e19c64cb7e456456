//! Network namespaces ("nodes"), the links between them, and commands in them.
use crate::{
    isolate,
    process::{Ended, Process},
    programs,
};
use anyhow::{Context, Result, ensure};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::{
    fs,
    io::Write,
    net::{ToSocketAddrs, UdpSocket},
    os::{fd::AsFd, unix::fs::PermissionsExt},
    panic::resume_unwind,
    path::{Path, PathBuf},
    process::Command,
    thread,
    time::{Duration, Instant},
};
use tempfile::TempDir;

/// The laboratory of one scenario: a folder for its files, and the functions that create nodes and links.
pub struct Lab {
    /// The scenario's name, as libtest prints it.
    name: String,
    scratch: TempDir,
}

impl Lab {
    pub(crate) fn new(name: &str) -> Result<Self> {
        isolate::private_run()?;
        // The folder is in `/run`, because that disappears with the mount namespace, however this process ends.
        let scratch = tempfile::Builder::new().prefix("rustguard-lab-").tempdir_in("/run")?;
        // Scenarios that run a program as `nobody` need access to the folder.
        fs::set_permissions(scratch.path(), fs::Permissions::from_mode(0o755))?;
        isolate::private_files(scratch.path())?;
        Ok(Self { name: name.to_owned(), scratch })
    }

    /// A path in the scenario's own folder.
    pub fn path(&self, name: &str) -> PathBuf {
        self.scratch.path().join(name)
    }

    /// Writes a file that only its owner may read, because it may contain keys. Returns its path.
    pub fn file(&self, name: &str, text: &str) -> Result<PathBuf> {
        let (path, new) = (self.path(name), self.path(&format!("{name}.new")));
        fs::write(&new, text)?;
        fs::set_permissions(&new, fs::Permissions::from_mode(0o600))?;
        // A program that reads it at the same time gets either the old text or the new one.
        fs::rename(&new, &path)?;
        Ok(path)
    }

    /// Adds a line to the scenario's `/etc/hosts`.
    pub fn host(&self, address: &str, name: &str) -> Result<()> {
        // The file is written in place, because it is bind-mounted.
        let mut file = fs::File::options().append(true).open("/etc/hosts")?;
        Ok(writeln!(file, "{address} {name}")?)
    }

    /// Writes a shell script as a stand-in for a program of the system. Returns its folder, which the scenario puts in
    /// front of `PATH`.
    pub fn stand_in(&self, name: &str, script: &str) -> Result<PathBuf> {
        let folder = self.path("stand-ins");
        fs::create_dir_all(&folder)?;
        let path = folder.join(name);
        fs::write(&path, format!("#!/bin/sh\n{script}\n"))?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
        Ok(folder)
    }

    /// Reports that this scenario or a part of it is left out. The line reaches the terminal even if the test passes.
    pub fn skip(&self, reason: &str) {
        println!("\nSKIPPED {}: {reason}", self.name);
    }

    /// Whether RustGuard is the subject. If not, reports that `what` is skipped.
    pub fn is_about_rustguard(&self, what: &str) -> bool {
        let rustguard = programs::subject() == programs::Subject::RustGuard;
        if !rustguard {
            self.skip(&format!("{what}: wireguard-go is the subject"));
        }
        rustguard
    }

    /// Ends this scenario with the error [`crate::Missing`] if a program that only it uses is not installed.
    pub fn needs(&self, program: &str, package: &str) -> Result<()> {
        Ok(programs::in_path(&[(program, package)])?)
    }

    /// Creates a network namespace, and brings its loopback interface up.
    pub fn node(&self, name: &str) -> Result<Node> {
        run(Command::new("ip").args(["netns", "add", name]))?;
        let node = Node { name: name.to_owned(), scratch: self.scratch.path().to_owned() };
        // Duplicate address detection would make addresses unusable for a second and delay routes. Without promotion,
        // removing the first address of a network would remove the second as well.
        node.sh("ip link set lo up
                 sysctl -qw net.ipv6.conf.all.accept_dad=0 net.ipv6.conf.default.accept_dad=0
                 sysctl -qw net.ipv4.conf.all.promote_secondaries=1")?;
        Ok(node)
    }

    /// Connects two nodes with a veth pair that has the given interface names, and brings it up.
    pub fn link(&self, a: (&Node, &str), b: (&Node, &str)) -> Result<()> {
        run(Command::new("ip")
            .args(["link", "add", a.1, "netns", &a.0.name, "type", "veth", "peer", "name", b.1, "netns", &b.0.name]))?;
        for (node, interface) in [a, b] {
            node.run(&["ip", "link", "set", interface, "up"])?;
        }
        Ok(())
    }

    /// Prints the logs of this scenario's daemons after a failure.
    pub(crate) fn print_logs(&self) {
        let Ok(entries) = fs::read_dir(self.scratch.path()) else { return };
        let mut logs: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
        logs.retain(|path| path.extension().is_some_and(|extension| extension == "log"));
        logs.sort();
        for log in logs {
            println!("---- {}", log.file_name().unwrap_or_default().display());
            println!("{}", fs::read_to_string(&log).unwrap_or_default());
        }
    }
}

/// A network namespace.
#[derive(Clone, Debug)]
pub struct Node {
    name: String,
    scratch: PathBuf,
}

impl Node {
    /// A command that runs in the namespace. `ip netns exec` replaces itself by the program, so the process id is the
    /// program's.
    pub fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.name]).arg(program);
        command
    }

    /// Runs a program to its end. Returns its standard output, or an error with all output if the program fails.
    pub fn run(&self, argv: &[&str]) -> Result<String> {
        let (program, rest) = argv.split_first().context("no program")?;
        // All scenarios together do this tens of thousands of times, so a second process is avoided if possible.
        if self.needs_mounts(argv) {
            run(self.command(program).args(rest))
        } else {
            self.inside(|| run(Command::new(program).args(rest)))
        }
    }

    /// Whether a command could need the additional work of `ip netns exec`: its own `/sys`, the files of `/etc/netns`,
    /// and mounts that end with the command.
    fn needs_mounts(&self, argv: &[&str]) -> bool {
        let touches = |word: &&str| ["/sys/", "/etc", "mount"].iter().any(|part| word.contains(part));
        argv.iter().any(touches) || Path::new("/etc/netns").join(&self.name).exists()
    }

    /// Runs a shell script that stops at the first failure. Returns its standard output.
    pub fn sh(&self, script: &str) -> Result<String> {
        self.run(&["sh", "-ec", script])
    }

    /// Runs a command made by [`Node::command`] to its end. The command may fail.
    pub fn end_of(&self, command: &mut Command) -> Result<Ended> {
        Ended::of(command)
    }

    /// Starts a program in the background. Its output goes to `NAME.log` in the scenario's folder.
    pub fn spawn(&self, name: &str, command: &mut Command) -> Result<Process> {
        Process::spawn(command, &self.scratch.join(format!("{name}.log")))
    }

    /// Empties the log of programs that [`Node::spawn`] started under this name.
    pub(crate) fn clear_log(&self, name: &str) -> Result<()> {
        Ok(fs::write(self.scratch.join(format!("{name}.log")), "")?)
    }

    /// Like [`Node::spawn`], on a terminal of 80 columns.
    pub fn spawn_on_terminal(&self, name: &str, command: &mut Command) -> Result<Process> {
        Process::spawn_on_terminal(command, &self.scratch.join(format!("{name}.log")))
    }

    /// Starts an iperf3 that serves one client, and waits until it listens.
    pub fn iperf3(&self) -> Result<Process> {
        programs::in_path(&[("iperf3", "iperf3")])?;
        let mut server = self.spawn("iperf3", self.command("iperf3").args(["-s", "-1", "--forceflush"]))?;
        server.until("iperf3 listens", Duration::from_secs(30), || {
            Ok(self.sh("ss -Htln sport = 5201")?.contains("5201"))
        })?;
        Ok(server)
    }

    /// Sends an echo request each second until one is answered. Fails after `tries`. A tunnel without a complete
    /// handshake may lose the first one. With one try, nothing may be lost, however late the answer is.
    pub fn reaches(&self, address: &str, tries: u32) -> Result<()> {
        let mut last = String::new();
        let patience = if tries == 1 { "10" } else { "1" };
        for _ in 0..tries {
            let began = Instant::now();
            match self.run(&["ping", "-n", "-c", "1", "-W", patience, address]) {
                Ok(_) => return Ok(()),
                Err(error) => last = format!("{error:#}"),
            }
            // "Unreachable" comes at once, so without this pause all tries would be used up.
            thread::sleep(Duration::from_secs(1).saturating_sub(began.elapsed()));
        }
        anyhow::bail!("{} does not reach {address} in {tries} tries: {last}", self.name)
    }

    /// Whether an echo request is answered within a second.
    pub fn answers(&self, address: &str) -> bool {
        self.run(&["ping", "-n", "-c", "1", "-W", "1", address]).is_ok()
    }

    /// Starts sixty echo requests in three seconds, and waits until ten are answered. A scenario can then disturb this
    /// traffic.
    pub fn keeps_pinging(&self, address: &str) -> Result<Process> {
        let mut ping =
            self.spawn("ping", self.command("ping").args(["-n", "-c", "60", "-i", "0.05", "-W", "1", address]))?;
        let log = self.scratch.join("ping.log");
        ping.until("ten answers", Duration::from_secs(10), || {
            Ok(fs::read_to_string(&log)?.contains("icmp_seq=10 ttl"))
        })?;
        Ok(ping)
    }

    /// Checks that `address` does not answer. Sends two echo requests, 300 ms apart, and waits for a second.
    pub fn does_not_reach(&self, address: &str) -> Result<()> {
        let answered = self.run(&["ping", "-n", "-c", "2", "-i", "0.3", "-W", "1", address]).is_ok();
        ensure!(!answered, "{} reaches {address} and should not", self.name);
        Ok(())
    }

    /// Checks that `address` does not answer echo requests from `source`, as [`does_not_reach`](Self::does_not_reach)
    /// does.
    pub fn does_not_reach_from(&self, source: &str, address: &str) -> Result<()> {
        let ping = ["ping", "-n", "-c", "2", "-i", "0.3", "-W", "1", "-I", source, address];
        ensure!(self.run(&ping).is_err(), "{} reaches {address} from {source} and should not", self.name);
        Ok(())
    }

    /// The state that a tunnel could leave behind on this node (interfaces, addresses, rules, routes, nftables) and in
    /// the scenario's `/run` and `/etc/resolv.conf`, as text for comparisons.
    pub fn traces(&self) -> Result<String> {
        self.sh(
            "ip -br addr; ip rule; ip -6 rule; ip route show table all; ip -6 route show table all; nft list ruleset
                 for folder in /run/wireguard /run/rustguard; do
                     if [ -d $folder ]; then find $folder -not -type d; fi
                 done
                 cat /etc/resolv.conf",
        )
    }

    /// The number of packets of a named nftables counter (see [`Node::count`]).
    pub fn counted(&self, name: &str) -> Result<u64> {
        self.counter(name, "packets")
    }

    /// The number of bytes of a named nftables counter, IP headers included.
    pub fn counted_bytes(&self, name: &str) -> Result<u64> {
        self.counter(name, "bytes")
    }

    fn counter(&self, name: &str, unit: &str) -> Result<u64> {
        let text = self.run(&["nft", "-j", "list", "counter", "inet", "lab", name])?;
        let json: serde_json::Value = serde_json::from_str(&text)?;
        let number = json.pointer(&format!("/nftables/1/counter/{unit}"));
        number.and_then(serde_json::Value::as_u64).context("a counter of nft")
    }

    /// Counts packets that match `rule` with nftables at `hook` (`input`, `output`, `forward`).
    pub fn count(&self, name: &str, hook: &str, rule: &str) -> Result<()> {
        self.sh(&format!(
            "nft add table inet lab
             nft add counter inet lab {name}
             nft add chain inet lab {hook} '{{ type filter hook {hook} priority 0; }}'
             nft add rule inet lab {hook} '{rule} counter name {name}'"
        ))?;
        Ok(())
    }

    /// The number of packets of both IP versions that the node's kernel has forwarded. It does not come from a
    /// netfilter counter at the forward hook, because such a rule would end RustGuard's relay.
    pub fn forwarded(&self) -> Result<u64> {
        let text = self.sh(
            "awk '/^Ip: [0-9]/ { print $7 }' /proc/net/snmp; awk '/^Ip6OutForwDatagrams/ { print $2 }' /proc/net/snmp6",
        )?;
        text.split_whitespace().map(|number| Ok(number.parse::<u64>()?)).sum()
    }

    /// Drops packets that match `rule` at `hook`.
    pub fn drop(&self, hook: &str, rule: &str) -> Result<()> {
        self.sh(&format!(
            "nft add table inet lab
             nft add chain inet lab {hook} '{{ type filter hook {hook} priority 0; }}'
             nft add rule inet lab {hook} '{rule} drop'"
        ))?;
        Ok(())
    }

    /// The interface in the output of `rustguard show INTERFACE --json`.
    pub fn shown(&self, interface: &str) -> Result<serde_json::Value> {
        let program = programs::rustguard()?;
        let ended = self.inside(|| Ended::of(Command::new(program).args(["show", interface, "--json"])))?;
        let shown: serde_json::Value = serde_json::from_str(&ended.stdout).with_context(|| ended.to_string())?;
        Ok(shown[0].clone())
    }

    /// Gives the node its own `/etc/resolv.conf`, for commands that start after this.
    pub fn name_servers(&self, addresses: &[&str]) -> Result<()> {
        // `ip netns exec` mounts it over the scenario's file.
        let folder = Path::new("/etc/netns").join(&self.name);
        fs::create_dir_all(&folder)?;
        let lines: String = addresses.iter().map(|address| format!("nameserver {address}\n")).collect();
        Ok(fs::write(folder.join("resolv.conf"), lines + "options timeout:1 attempts:1\n")?)
    }

    /// The resolver's result for a name or an address: addresses, or a name. Empty if it is unknown.
    pub fn resolved(&self, name_or_address: &str) -> Result<Vec<String>> {
        let is_address = name_or_address.parse::<std::net::IpAddr>().is_ok();
        let database = if is_address { "hosts" } else { "ahosts" };
        let ended = self.end_of(self.command("getent").args([database, name_or_address]))?;
        // `ahosts` prints an address for each type of socket; `hosts` prints the requested address and its names.
        let field = |line: &str| line.split_whitespace().nth(usize::from(is_address)).map(str::to_owned);
        let mut known: Vec<String> = ended.stdout.lines().filter_map(field).collect();
        known.sort();
        known.dedup();
        Ok(known)
    }

    /// Runs a function on a thread inside the namespace. Sockets that it creates stay there.
    pub fn inside<T: Send>(&self, body: impl FnOnce() -> Result<T> + Send) -> Result<T> {
        let namespace = fs::File::open(Path::new("/run/netns").join(&self.name))?;
        thread::scope(|scope| {
            let thread = scope.spawn(|| {
                move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?;
                body()
            });
            thread.join().unwrap_or_else(|panic| resume_unwind(panic))
        })
    }

    /// A UDP socket in the namespace. Waiting for a datagram fails after ten seconds.
    pub fn udp(&self, at: impl ToSocketAddrs + Send) -> Result<UdpSocket> {
        let socket = self.inside(|| Ok(UdpSocket::bind(at)?))?;
        socket.set_read_timeout(Some(Duration::from_secs(10)))?;
        Ok(socket)
    }

    /// A command that runs the program under test in the namespace.
    pub fn rustguard(&self) -> Result<Command> {
        Ok(self.command(programs::rustguard()?))
    }
}

/// Runs a command to its end. Returns its standard output, or an error with all output.
pub(crate) fn run(command: &mut Command) -> Result<String> {
    let ended = Ended::of(command)?;
    ensure!(ended.success(), "{command:?}: {ended}");
    Ok(ended.stdout)
}

/// Whether a file exists at this path. A socket without a listener counts.
pub(crate) fn exists(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok()
}
