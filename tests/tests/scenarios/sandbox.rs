//! The rights that a running tunnel has given up, as `/proc` shows them.
//! `crates/rustguard-cli/src/process/sandbox/tests.rs` tests the effect, inside a process that has given up the same.
use anyhow::{Context, Result, ensure};
use rustguard_tests::{
    Conf, Lab, Node, PeerConf, Process, eventually, network, rustguard, scenario_of_rustguard, spawn_until_ready,
};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg,
    sockopt::{Timeout, set_socket_passcred, set_socket_timeout},
};
use std::{
    fs::{self, File},
    io::IoSliceMut,
    mem::MaybeUninit,
    os::unix::{net::UnixDatagram, process::ExitStatusExt as _},
    path::Path,
    time::Duration,
};

const SOON: Duration = Duration::from_secs(20);
/// CAP_NET_BIND_SERVICE, CAP_NET_ADMIN and CAP_IPC_LOCK (capabilities(7)).
const KEPT: u64 = 1 << 10 | 1 << 12 | 1 << 14;

fn ours<F: FnOnce(&Lab) -> Result<()>>(body: F) {
    scenario_of_rustguard("what a tunnel's process gives up", body);
}

/// A tunnel whose peer does not exist, with additional lines.
fn conf(lines: &[&str]) -> Result<String> {
    let mut conf = Conf::new("wga")?;
    conf.addresses = vec!["10.9.0.1/24".to_owned()];
    conf.peers.push(PeerConf::new(&Conf::new("wgb")?.keys.public, "10.9.0.2/32"));
    conf.lines = lines.iter().map(|line| (*line).to_owned()).collect();
    Ok(conf.wg_quick())
}

fn up(lab: &Lab, node: &Node, lines: &[&str]) -> Result<Process> {
    let file = lab.file("wga.conf", &conf(lines)?)?;
    spawn_until_ready(lab, node, "wga", node.rustguard()?.arg("up").arg(file))
}

/// A field of `status` in /proc.
fn value(status: &str, name: &str) -> Result<String> {
    let mut lines = status.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    Ok(lines.next().with_context(|| format!("no {name}"))?.trim().to_owned())
}

/// Checks that each thread of a process is confined, or that none is.
fn confined(process: u32, expected: bool) -> Result<()> {
    for thread in fs::read_dir(format!("/proc/{process}/task"))? {
        let status = fs::read_to_string(thread?.path().join("status"))?;
        let name = value(&status, "Name")?;
        let filtered = (value(&status, "NoNewPrivs")?, value(&status, "Seccomp")?) == ("1".to_owned(), "2".to_owned());
        ensure!(filtered == expected, "{name}: {status}");
        for set in ["CapEff", "CapPrm", "CapInh", "CapBnd", "CapAmb"].iter().filter(|_| expected) {
            let capabilities = u64::from_str_radix(&value(&status, set)?, 16)?;
            ensure!(capabilities & !KEPT == 0, "{name} has {set} {capabilities:x}");
        }
    }
    Ok(())
}

#[test]
fn a_tunnel_gives_up_what_it_does_not_need() {
    ours(|lab| {
        let node = lab.node("a")?;
        let mut up = up(lab, &node, &[])?;
        confined(up.id(), true)?;
        let helper = helper(up.id())?;
        confined(helper, false)?;
        ends_without_traces(&mut up, helper)
    });
}

/// Files that the starting shell has open are neither kept nor passed on, and a lock of `flock` ends with its command.
#[test]
fn files_of_whoever_starts_it_are_closed() {
    ours(|lab| {
        let node = lab.node("a")?;
        let secret = lab.file("secret", "7")?;
        let file = lab.file("wga.conf", &conf(&[])?)?;
        let (program, secret, file) = (rustguard()?, secret.display(), file.display());
        let program = program.display();
        let script = format!("exec 7<{secret}; exec {program} up {file}");
        let mut up = spawn_until_ready(lab, &node, "wga", node.command("sh").args(["-c", &script]))?;
        let helper = helper(up.id())?;
        for process in [up.id(), helper] {
            for open in fs::read_dir(format!("/proc/{process}/fd"))? {
                let open = fs::read_link(open?.path()).unwrap_or_default();
                ensure!(open.as_os_str() != &*secret.to_string(), "{process} has it open");
            }
        }
        ends_without_traces(&mut up, helper)?;
        let detached = node.sh(&format!("flock {secret} {program} up --detach {file}; flock -n {secret} echo free"))?;
        ensure!(detached.contains("free"), "the lock is held: {detached}");
        node.sh(&format!("{program} down {file}"))?;
        Ok(())
    });
}

#[test]
fn a_bare_interface_gives_up_the_same() {
    ours(|lab| {
        let node = lab.node("a")?;
        let mut bare = node.command(rustguard()?);
        let bare = spawn_until_ready(lab, &node, "wgq", bare.args(["-f", "wgq"]))?;
        confined(bare.id(), true)
    });
}

/// With such a socket, the process could send to every local service that listens for datagrams, whatever address the
/// socket was made for.
#[test]
fn no_open_socket_sends_datagrams_to_services() {
    ours(|lab| {
        let node = lab.node("a")?;
        let up = up(lab, &node, &["Routing = babel"])?;
        let mut bare = node.command(rustguard()?);
        let bare = spawn_until_ready(lab, &node, "wgq", bare.args(["-f", "wgq"]))?;
        for process in [&up, &bare] {
            let sockets = process.datagram_sockets()?;
            ensure!(sockets.is_empty(), "{sockets:?}");
        }
        Ok(())
    });
}

/// A service manager that checks the sender of notifications, as systemd does.
struct Manager(UnixDatagram);

impl Manager {
    fn new(lab: &Lab) -> Result<Self> {
        let socket = UnixDatagram::bind(lab.path("systemd"))?;
        set_socket_passcred(&socket, true)?;
        Ok(Self(socket))
    }

    /// The next notification, and the process that sent it. `None` if there is none within this time.
    fn next(&self, within: Duration) -> Result<Option<(String, u32)>> {
        set_socket_timeout(&self.0, Timeout::Recv, Some(within))?;
        let (mut text, mut from) = ([0; 4096], None);
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmCredentials(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let received = match recvmsg(&self.0, &mut [IoSliceMut::new(&mut text)], &mut control, RecvFlags::empty()) {
            Err(rustix::io::Errno::AGAIN) => return Ok(None),
            received => received?.bytes,
        };
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmCredentials(credentials) = message {
                from = Some(credentials.pid.as_raw_nonzero().get().cast_unsigned());
            }
        }
        Ok(Some((String::from_utf8_lossy(&text[..received]).into_owned(), from.context("no credentials")?)))
    }

    /// Checks that the next notification has these lines and this sender. Watchdog messages in between are ignored.
    fn hears(&self, words: &[&str], from: u32) -> Result<()> {
        loop {
            let (text, process) = self.next(SOON)?.context("systemd is told nothing")?;
            ensure!(process == from, "{text} is from {process}, not from {from}");
            let lines: Vec<_> = text.lines().collect();
            if words != ["WATCHDOG=1"] && lines == ["WATCHDOG=1"] {
                continue;
            }
            ensure!(
                lines.len() == words.len() && lines.iter().zip(words).all(|(line, word)| line.starts_with(word)),
                "{text}"
            );
            return Ok(());
        }
    }
}

/// With root's rights, a tunnel's privileged helper sends notifications in the tunnel's name, as `NotifyAccess=main`
/// requires. In a unit's sandbox it does not have this right, so the unit has `NotifyAccess=all`.
#[test]
fn systemd_is_told_by_the_privileged_helper() {
    ours(|lab| {
        let node = lab.node("a")?;
        let manager = Manager::new(lab)?;
        let told = lab.path("told");
        let hook = format!("PostUp = echo \"$NOTIFY_SOCKET$WATCHDOG_USEC.\" > {}", told.display());
        let file = lab.file("wga.conf", &conf(&[&hook])?)?;
        for rights in ["-none", "-sys_admin"] {
            let mut command = node.command("setpriv");
            command.args(["--bounding-set", rights, "--inh-caps", rights].iter().filter(|_| rights != "-none"));
            command.arg(rustguard()?).arg("up").arg(&file);
            command.env("NOTIFY_SOCKET", lab.path("systemd")).env("WATCHDOG_USEC", "60000000");
            let mut up = node.spawn("wga", &mut command)?;
            let (first, from) = manager.next(SOON)?.context("systemd is told nothing")?;
            ensure!(first == "READY=1\n", "{first}");
            confined(up.id(), true)?;
            let helper = helper(up.id())?;
            ensure!(from == if rights == "-none" { up.id() } else { helper }, "from {from}, with {rights}");
            ensure!(fs::read_to_string(&told)? == ".\n", "a hook would speak for the unit");
            manager.hears(&["WATCHDOG=1"], from)?;
            up.signal("HUP")?;
            manager.hears(&["RELOADING=1", "MONOTONIC_USEC="], from)?;
            manager.hears(&["READY=1"], from)?;
            ends_without_traces(&mut up, helper)?;
            manager.hears(&["STOPPING=1"], from)?;
        }
        Ok(())
    });
}

/// The privileged helper still runs, but sends no watchdog messages for a tunnel that hangs.
#[test]
fn a_tunnel_that_hangs_is_not_alive_for_systemd() {
    ours(|lab| {
        let node = lab.node("a")?;
        let manager = Manager::new(lab)?;
        let file = lab.file("wga.conf", &conf(&[])?)?;
        let mut command = node.rustguard()?;
        command.arg("up").arg(&file).env("NOTIFY_SOCKET", lab.path("systemd")).env("WATCHDOG_USEC", "60000000");
        let mut up = node.spawn("wga", &mut command)?;
        let id = up.id();
        manager.hears(&["READY=1"], id)?;
        manager.hears(&["WATCHDOG=1"], id)?;
        up.signal("STOP")?;
        // Messages from before the stop may still arrive.
        while manager.next(Duration::from_millis(500))?.is_some() {}
        let told = manager.next(Duration::from_secs(3))?;
        ensure!(told.is_none(), "{told:?}");
        up.signal("CONT")?;
        manager.hears(&["WATCHDOG=1"], id)?;
        ensure!(up.stop("TERM")?.success());
        Ok(())
    });
}

/// The child of a tunnel that keeps the rights from its start.
fn helper(tunnel: u32) -> Result<u32> {
    let children = fs::read_to_string(format!("/proc/{tunnel}/task/{tunnel}/children"))?;
    let children: Vec<u32> = children.split_whitespace().map(str::parse).collect::<Result<_, _>>()?;
    ensure!(children.len() == 1, "{children:?}");
    Ok(children[0])
}

fn ends_without_traces(up: &mut Process, helper: u32) -> Result<()> {
    let ended = up.stop("TERM")?;
    ensure!(ended.success(), "{ended}");
    ensure!(!Path::new("/run/rustguard/wga.pid").exists() && !Path::new("/run/rustguard/wga.json").exists());
    ensure!(!Path::new("/run/rustguard-hooks/wga").exists() && !Path::new("/run/rustguard/wga.session").exists());
    ensure!(!is_alive(helper), "the privileged helper is still there");
    Ok(())
}

fn is_alive(process: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    stat.rsplit(") ").next().is_some_and(|state| !state.is_empty() && !state.starts_with('Z'))
}

/// Hooks that write their name and their rights into a file.
fn hooks(lab: &Lab) -> (Vec<String>, impl Fn() -> Result<Vec<String>>) {
    let record = lab.path("hooks.txt");
    let line = |key: &str| {
        format!(
            "{key} = echo {key} $(grep -E 'NoNewPrivs|Seccomp:' /proc/self/status | tr -dc 0-9) >> {}",
            record.display()
        )
    };
    let lines = ["PreUp", "PostUp", "PreDown", "PostDown"].map(line).to_vec();
    let wrote = move || {
        let text = fs::read_to_string(&record).unwrap_or_default();
        fs::write(&record, "")?;
        Ok(text.lines().map(str::to_owned).collect())
    };
    (lines, wrote)
}

/// Hooks, name servers, default routes and their guard, address translation, and `SaveConfig`: the helper does each
/// with full rights.
#[test]
fn a_tunnel_with_programs_gives_up_the_same() {
    ours(|lab| {
        lab.needs("nft", "nftables")?;
        let node = lab.node("a")?;
        let told = lab.path("resolvconf.txt");
        let stand_in = lab.stand_in("resolvconf", &format!("echo \"$*\" >> {0}; cat >> {0}", told.display()))?;
        let path = format!("{}:{}", stand_in.display(), std::env::var("PATH")?);
        let (mut lines, wrote) = hooks(lab);
        lines.extend(["DNS = 10.9.0.53", "SaveConfig = true", "Announce = 10.8.0.0/24", "Nat = on"].map(str::to_owned));
        let lines: Vec<_> = lines.iter().map(String::as_str).collect();
        let text = conf(&lines)?.replace("10.9.0.2/32", "10.9.0.2/32, 0.0.0.0/0");
        let file = lab.file("wga.conf", &text)?;
        let forwards = || node.run(&["cat", "/proc/sys/net/ipv4/ip_forward"]);
        let before = forwards()?;
        let mut command = node.rustguard()?;
        command.arg("up").arg(&file).env("PATH", &path);
        let mut up = spawn_until_ready(lab, &node, "wga", &mut command)?;
        confined(up.id(), true)?;
        let helper = helper(up.id())?;
        ensure!(wrote()? == ["PreUp 00", "PostUp 00"], "without no_new_privs and seccomp, in this order");
        let servers = fs::read_to_string(&told)?;
        ensure!(servers.contains("-a wga -m 0 -x") && servers.contains("nameserver 10.9.0.53"), "{servers}");
        let rules = node.run(&["nft", "list", "ruleset"])?;
        ensure!(rules.contains("rustguard-wga") && rules.contains("rustguard_nat-wga"), "{rules}");
        ensure!(forwards()?.trim() == "1");
        node.run(&["wg", "set", "wga", "peer", &Conf::new("wgc")?.keys.public, "allowed-ips", "10.9.0.3/32"])?;
        ends_without_traces(&mut up, helper)?;
        ensure!(wrote()? == ["PreDown 00", "PostDown 00"]);
        ensure!(fs::read_to_string(&told)?.contains("-d wga -f"));
        ensure!(!node.run(&["nft", "list", "ruleset"])?.contains("wga") && forwards()? == before);
        let saved = fs::read_to_string(&file)?;
        ensure!(saved.contains("10.9.0.3/32") && saved.contains("PostUp = echo PostUp"), "{saved}");
        Ok(())
    });
}

/// A tunnel whose file needs no programs gets hooks, a default route and name servers while it runs.
#[test]
fn a_reload_adds_what_takes_programs() {
    ours(|lab| {
        lab.needs("nft", "nftables")?;
        let node = lab.node("a")?;
        let mut up = up(lab, &node, &[])?;
        let helper = helper(up.id())?;
        let (lines, wrote) = hooks(lab);
        let lines: Vec<_> = lines.iter().map(String::as_str).collect();
        let text = conf(&lines)?.replace("10.9.0.2/32", "10.9.0.2/32, 0.0.0.0/0");
        fs::write(lab.path("wga.conf"), text)?;
        let reloaded = node.end_of(node.rustguard()?.args(["reload", "wga"]))?;
        ensure!(reloaded.success(), "{reloaded}");
        ensure!(node.run(&["nft", "list", "ruleset"])?.contains("rustguard-wga"));
        ensure!(wrote()?.is_empty(), "a reload runs no hook");
        confined(up.id(), true)?;
        ends_without_traces(&mut up, helper)?;
        ensure!(wrote()? == ["PreDown 00", "PostDown 00"]);
        Ok(())
    });
}

/// The next `down` runs the pending hooks of a killed tunnel and undoes its changes. The privileged helper ends with
/// the tunnel.
#[test]
fn a_killed_tunnel_leaves_no_process_and_what_it_owes() {
    ours(|lab| {
        lab.needs("nft", "nftables")?;
        let node = lab.node("a")?;
        let (lines, wrote) = hooks(lab);
        let lines: Vec<_> = lines.iter().map(String::as_str).collect();
        let text = conf(&lines)?.replace("10.9.0.2/32", "10.9.0.2/32, 0.0.0.0/0");
        let file = lab.file("wga.conf", &text)?;
        let mut up = spawn_until_ready(lab, &node, "wga", node.rustguard()?.arg("up").arg(file))?;
        let helper = helper(up.id())?;
        wrote()?;
        up.stop("KILL")?;
        eventually("the end of the privileged helper", Duration::from_secs(20), || Ok(!is_alive(helper)))?;
        ensure!(wrote()?.is_empty());
        // The tunnel may write this file, but not the record of pending hooks.
        fs::write("/run/rustguard/wga.session", r#"{"file":{"path":"/forged","digest":""}}"#)?;
        let down = node.end_of(node.rustguard()?.args(["down", "wga"]))?;
        ensure!(down.success(), "{down}");
        ensure!(wrote()? == ["PreDown 00", "PostDown 00"], "{down}");
        ensure!(!node.run(&["nft", "list", "ruleset"])?.contains("wga"));
        ensure!(!Path::new("/run/rustguard/wga.json").exists() && !Path::new("/run/rustguard-hooks/wga").exists());
        Ok(())
    });
}

/// Ctrl-C and systemd's SIGTERM reach all processes. The helper waits for its tunnel, which still has hooks to run.
#[test]
fn the_privileged_helper_outlives_the_signals_for_its_tunnel() {
    ours(|lab| {
        let node = lab.node("a")?;
        let (lines, wrote) = hooks(lab);
        let lines: Vec<_> = lines.iter().map(String::as_str).collect();
        for signal in ["INT", "TERM", "HUP"] {
            let mut up = up(lab, &node, &lines)?;
            let helper = helper(up.id())?;
            node.sh(&format!("kill -{signal} {helper}"))?;
            ends_without_traces(&mut up, helper)?;
            ensure!(wrote()?.len() == 4, "after SIG{signal}");
        }
        // Without the helper, the tunnel continues, reports what it cannot do, and leaves that to the next `down`.
        let mut up = up(lab, &node, &lines)?;
        let helper = helper(up.id())?;
        node.sh(&format!("kill -KILL {helper}"))?;
        ensure!(node.run(&["wg", "show", "wga"])?.contains("peer"), "the tunnel is gone");
        let ended = up.stop("TERM")?;
        ensure!(format!("{ended}{}", up.log()).contains("has ended"), "{ended}");
        Ok(())
    });
}

/// A server with address translation, and a machine that joined it in the same process that runs its tunnel.
#[test]
fn a_server_and_a_joined_machine_give_up_the_same() {
    ours(|lab| {
        network(lab, 1, |network| {
            lab.needs("nft", "nftables")?;
            network.server.sh("ip addr add 192.168.50.1/24 dev lo")?;
            let mut served = network.serve(lab, &["--nat", "--route", "192.168.50.0/24"])?;
            confined(served.process().id(), true)?;
            ensure!(network.server.run(&["nft", "list", "ruleset"])?.contains("rustguard_nat-rgs"));
            let arguments: Vec<String> = served.join_arguments().iter().map(ToString::to_string).collect();
            let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
            let mut joined = network.join(lab, 1, &arguments)?;
            confined(joined.id(), true)?;
            network.reaches_server(1)?;
            let ended = joined.stop("TERM")?;
            ensure!(ended.success(), "{ended}");
            served.stop()?;
            ensure!(!network.server.run(&["nft", "list", "ruleset"])?.contains("rgs"));
            Ok(())
        })
    });
}

/// A killed tunnel has a pending hook. The next tunnel, which has no hooks and may start no program, lets it run first.
#[test]
fn what_a_killed_tunnel_owes_is_done_before() {
    ours(|lab| {
        let node = lab.node("a")?;
        let told = lab.path("told");
        up(lab, &node, &[&format!("PostDown = echo done > {}", told.display())])?.stop("KILL")?;
        let up = up(lab, &node, &[])?;
        ensure!(fs::read_to_string(&told)? == "done\n");
        confined(up.id(), true)
    });
}

/// An attacker who controls a confined process can write its records. The next process must not run commands or set
/// tunables from them.
#[test]
fn a_forged_record_has_nothing_run() {
    ours(|lab| {
        let node = lab.node("a")?;
        let told = lab.path("told");
        up(lab, &node, &[])?.stop("KILL")?;
        let namespace = node.sh("readlink /proc/self/ns/net")?;
        let hook = format!("touch {}", told.display());
        let hooks = serde_json::json!({ "pre_down": [hook], "post_down": [], "namespace": namespace.trim() });
        fs::write("/run/rustguard/wga.session", serde_json::json!({ "file": null, "hooks": hooks }).to_string())?;
        let sysctl = serde_json::json!({ "name": told.display().to_string(), "before": "x", "set": "y" });
        let record = serde_json::json!({
            "interface": "wga", "index": 1, "namespace": namespace.trim(), "steps": [{ "sysctl": sysctl }],
        });
        fs::write("/run/rustguard/wga.json", record.to_string())?;
        let down = node.end_of(node.rustguard()?.args(["down", "wga"]))?;
        down.refused(&["no tunnel makes", "/run/rustguard/wga.json"])?;
        fs::remove_file("/run/rustguard/wga.json")?;
        let down = node.end_of(node.rustguard()?.args(["down", "wga"]))?;
        ensure!(!told.exists(), "a forged record was believed: {down}");
        Ok(())
    });
}

/// An attacker who controls a confined process can write any number into a run file. `down` ends only the process that
/// the kernel names as the owner of the lock, or none.
#[test]
fn a_forged_run_file_ends_no_other_process() {
    ours(|lab| {
        let node = lab.node("a")?;
        let file = Path::new("/run/rustguard/wga.pid");
        let mut other = node.spawn("other", node.command("sleep").arg("1000"))?;
        let forge = || fs::write(file, other.id().to_string());
        let down = || node.end_of(node.rustguard()?.args(["down", "wga"]));
        // The file of a running tunnel.
        let mut up = up(lab, &node, &[])?;
        forge()?;
        let ended = down()?;
        ensure!(ended.success(), "{ended}");
        ensure!(up.ended(Duration::from_secs(10))?.success(), "the tunnel still runs");
        // The file of a tunnel that does not run: this process locks it as a tunnel would. The kernel does not confirm
        // the number in it.
        forge()?;
        let forged = File::open(file)?;
        forged.lock()?;
        down()?.refused(&["wga", "no tunnel", "fuser -v /run/rustguard/wga.pid"])?;
        drop(forged);
        // The file of a killed tunnel.
        down()?;
        let signals = other.stop("KILL")?;
        ensure!(signals.status.signal() == Some(9), "`down` has signalled another process: {signals}");
        Ok(())
    });
}
