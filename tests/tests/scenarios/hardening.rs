//! The data that a local user can read from a running program, and the harm that the program could do to its host: the
//! process itself, and in a sandbox like the units' sandbox.
//!
//! The reading process has the program's own user and no capability that the program lacks: the kernel refuses other
//! users in any case.
use anyhow::{Context, Result, ensure};
use rustguard_tests::{
    Conf, Lab, Network, Node, PeerConf, Process, eventually, rustguard, scenario, scenario_of_rustguard,
    spawn_until_ready,
};
use std::{fs, path::Path, process::Command, time::Duration};

const SOON: Duration = Duration::from_secs(15);

/// Without the capabilities that open the memory of any process: CAP_SYS_PTRACE, and for reading CAP_PERFMON and
/// CAP_SYS_ADMIN (the kernel's may_access_mm).
const NO_PTRACE: [&str; 4] =
    ["--bounding-set", "-sys_ptrace,-sys_admin,-perfmon", "--inh-caps", "-sys_ptrace,-sys_admin,-perfmon"];
/// As in a unit: only the capability that a tunnel needs.
const NET_ADMIN: [&str; 4] = ["--bounding-set", "-all,+net_admin", "--inh-caps", "-all,+net_admin"];

/// The program with fewer capabilities than root.
fn with(node: &Node, capabilities: [&str; 4]) -> Result<Command> {
    let mut command = node.command("setpriv");
    command.args(capabilities).arg(rustguard()?);
    Ok(command)
}

/// Whether a process of the same user can open this file of another process.
fn opens(node: &Node, process: u32, file: &str) -> Result<bool> {
    let path = format!("/proc/{process}/{file}");
    let mut command = node.command("setpriv");
    command.args(NO_PTRACE).args(["sh", "-c", &format!(": < {path}")]);
    ensure!(Path::new(&path).exists(), "process {process} has ended");
    Ok(node.end_of(&mut command)?.success())
}

/// Checks that memory and environment are closed, and that no core is dumped.
fn closed(node: &Node, process: u32) -> Result<()> {
    // Applies from the program's first moments on. Before that, the process is another program (ip, setpriv, sh).
    let ours = rustguard()?;
    let name = ours.file_name().and_then(|name| name.to_str()).context("a program's name")?;
    eventually("its memory is closed", SOON, || {
        // The kernel keeps 15 bytes of the name.
        let program = fs::read_to_string(format!("/proc/{process}/comm"))?;
        Ok(name.starts_with(program.trim()) && !opens(node, process, "mem")?)
    })?;
    ensure!(!opens(node, process, "environ")?, "the environment can be read");
    ensure!(!opens(node, process, "maps")?, "addresses can be read");
    let limits = fs::read_to_string(format!("/proc/{process}/limits"))?;
    let core = limits.lines().find_map(|line| line.strip_prefix("Max core file size")).context("no such limit")?;
    ensure!(core.split_whitespace().next() == Some("0"), "core files: {core}");
    Ok(())
}

/// Kilobytes of locked memory, which cannot be swapped out.
fn locked(process: u32) -> Result<u64> {
    let status = fs::read_to_string(format!("/proc/{process}/status"))?;
    let value = status.lines().find_map(|line| line.strip_prefix("VmLck:")).context("no VmLck")?;
    Ok(value.trim().trim_end_matches(" kB").parse()?)
}

/// Checks that a process started as root has locked its memory. Root of a user namespace may not lock memory.
fn locked_where_allowed(process: u32) -> Result<()> {
    let map = fs::read_to_string("/proc/self/uid_map")?;
    let machines_root = map.split_whitespace().eq(["0", "0", "4294967295"]);
    ensure!(!machines_root || locked(process)? > 0, "its memory could be swapped out");
    Ok(())
}

fn ours<F: FnOnce(&Lab) -> Result<()>>(body: F) {
    scenario_of_rustguard("what becomes of RustGuard's own process", body);
}

/// A tunnel whose peer does not exist.
fn conf(allowed_ips: &str) -> Result<Conf> {
    let mut conf = Conf::new("wga")?;
    conf.addresses = vec!["10.9.0.1/24".to_owned()];
    conf.peers.push(PeerConf::new(&Conf::new("wgb")?.keys.public, allowed_ips));
    Ok(conf)
}

/// `rustguard up` with these capabilities.
fn up(lab: &Lab, node: &Node, conf: &Conf, capabilities: [&str; 4]) -> Result<Process> {
    let file = lab.file("wga.conf", &conf.wg_quick())?;
    spawn_until_ready(lab, node, "wga", with(node, capabilities)?.arg("up").arg(file))
}

/// Proof that the other tests could fail: the same attempts succeed against another program.
#[test]
fn another_program_is_open() {
    scenario(|lab| {
        let node = lab.node("a")?;
        let mut command = node.command("setpriv");
        let other = node.spawn("sleep", command.args(NO_PTRACE).args(["sleep", "60"]))?;
        for file in ["mem", "environ", "maps"] {
            eventually(file, SOON, || opens(&node, other.id(), file))?;
        }
        Ok(())
    });
}

#[test]
fn a_tunnel_is_closed_to_its_own_user() {
    ours(|lab| {
        let node = lab.node("a")?;
        let up = up(lab, &node, &conf("10.9.0.2/32")?, NO_PTRACE)?;
        closed(&node, up.id())?;
        locked_where_allowed(up.id())?;
        let mut bare = with(&node, NO_PTRACE)?;
        let bare = spawn_until_ready(lab, &node, "wgq", bare.args(["-f", "wgq"]))?;
        closed(&node, bare.id())?;
        locked_where_allowed(bare.id())
    });
}

#[test]
fn whoever_serves_or_joins_is_closed_to_its_own_user() {
    ours(|lab| {
        let network = Network::new(lab, 1)?;
        let mut serve = with(&network.server, NO_PTRACE)?;
        let mut served = network.serve_by(lab, serve.args(["serve", "-i", "rgs"]))?;
        closed(&network.server, served.process().id())?;
        locked_where_allowed(served.process().id())?;
        // The server does not answer, so the program keeps running.
        let machine = &network.machines[0];
        let token = network.invite(&[])?;
        let mut join = with(machine, NO_PTRACE)?;
        join.args(["join", "10.1.0.99", "--token", &token, "--timeout", "60"]);
        let join = machine.spawn("join", &mut join)?;
        closed(machine, join.id())
    });
}

/// Its standard input stays open during the test. `genkey` and `genpsk` use the same code, but end too soon to be
/// examined.
#[test]
fn a_key_on_its_way_through_pubkey_is_closed() {
    ours(|lab| {
        let node = lab.node("a")?;
        let input = lab.path("input");
        node.sh(&format!("mkfifo {}", input.display()))?;
        // Read and write, because opening a FIFO only for reading would wait for a writer.
        let script = format!("exec {} pubkey <> {}", rustguard()?.display(), input.display());
        let mut command = node.command("setpriv");
        let pubkey = node.spawn("pubkey", command.args(NO_PTRACE).args(["sh", "-c", &script]))?;
        closed(&node, pubkey.id())
    });
}

/// With a limit smaller than the program, and without the capabilities to exceed it.
#[test]
fn a_limit_for_locked_memory_is_no_obstacle() {
    ours(|lab| {
        let node = lab.node("a")?;
        let file = lab.file("wga.conf", &conf("10.9.0.2/32")?.wg_quick())?;
        let mut command = node.command("prlimit");
        command.args(["--memlock=65536:65536", "setpriv"]).args(NET_ADMIN).arg(rustguard()?).arg("up").arg(file);
        let up = spawn_until_ready(lab, &node, "wga", command.env("RUSTGUARD_LOG", "debug"))?;
        ensure!(locked(up.id())? == 0);
        ensure!(up.log().contains("cannot lock memory"), "{}", up.log());
        closed(&node, up.id())
    });
}

/// A hook is a separate program with its own settings for core files.
#[test]
fn hooks_may_have_core_files() {
    ours(|lab| {
        let node = lab.node("a")?;
        let mut conf = conf("10.9.0.2/32")?;
        let told = lab.path("told");
        conf.lines = vec![format!("PostUp = ulimit -c $(ulimit -H -c); ulimit -c > {}", told.display())];
        let before = node.sh("ulimit -H -c")?;
        let _up = up(lab, &node, &conf, NO_PTRACE)?;
        ensure!(fs::read_to_string(&told)? == before, "the hook could not raise its limit again");
        Ok(())
    });
}

/// The lines of a unit.
fn service(unit: &str) -> Result<Vec<String>> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/rustguard-cli/system").join(unit);
    let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    Ok(text.lines().map(str::to_owned).collect())
}

const UNITS: [&str; 2] = ["rustguard@.service", "rustguard-serve@.service"];

/// The units' directives for the sandbox that the next scenario builds by hand.
#[test]
fn the_units_protect_tunables() {
    for unit in UNITS {
        let lines = service(unit).unwrap();
        let writable: Vec<&str> = lines
            .iter()
            .filter_map(|line| line.strip_prefix("ReadWritePaths="))
            .flat_map(str::split_whitespace)
            .filter(|path| path.contains("/proc") || path.contains("/sys"))
            .collect();
        assert_eq!(writable, ["/proc/sys/net"], "{unit}");
        for line in [
            "CapabilityBoundingSet=CAP_NET_ADMIN CAP_NET_BIND_SERVICE",
            "LimitMEMLOCK=infinity",
            "NoNewPrivileges=yes",
            "ProtectKernelTunables=yes",
            "ProtectSystem=strict",
            "RestrictNamespaces=yes",
        ] {
            assert!(lines.iter().any(|it| it == line), "{unit}: {line}");
        }
    }
}

/// systemd's own check of the units, if systemd is installed; it need not run.
#[test]
fn systemd_reads_the_units() {
    scenario(|lab| {
        lab.needs("systemd-analyze", "systemd")?;
        // The programs that the units name must exist at these paths.
        let root = lab.path("root");
        let units = root.join("etc/systemd/system");
        for folder in [&units, &root.join("usr/bin")] {
            fs::create_dir_all(folder)?;
        }
        for unit in UNITS {
            fs::write(units.join(unit), service(unit)?.join("\n"))?;
        }
        lab.stand_in("program", "")?;
        fs::create_dir_all(root.join("etc/rustguard"))?;
        for program in ["usr/bin/rustguard", "etc/rustguard/wg0.up", "etc/rustguard/wg0.down"] {
            fs::copy(lab.path("stand-ins/program"), root.join(program))?;
        }
        let hooks = "rustguard-hooks@.service";
        fs::write(units.join(hooks), service(hooks)?.join("\n"))?;
        let root = format!("--root={}", root.display());
        for instance in ["rustguard@wg0.service", "rustguard-serve@rg0.service", "rustguard-hooks@wg0.service"] {
            let mut verify = Command::new("systemd-analyze");
            verify.args(["verify", "--man=no", "--recursive-errors=no", &root, instance]);
            let told = rustguard_tests::Ended::of(&mut verify)?;
            ensure!(told.success() && told.stderr.trim().is_empty(), "{instance}: {told}");
        }
        Ok(())
    });
}

/// The units' sandbox: only CAP_NET_ADMIN, and `/proc/sys` read-only except for `net`. A default route through the
/// tunnel needs a network tunable; uid 0 inside must not reach any other tunable.
#[test]
fn a_tunnel_works_in_the_units_sandbox() {
    ours(|lab| {
        // In this scenario's own mount namespace.
        let mount = |arguments: &[&str]| -> Result<()> {
            let told = rustguard_tests::Ended::of(Command::new("mount").args(arguments))?;
            ensure!(told.success(), "{told}");
            Ok(())
        };
        mount(&["--bind", "/proc/sys", "/proc/sys"])?;
        mount(&["--bind", "/proc/sys/net", "/proc/sys/net"])?;
        let node = lab.node("a")?;
        node.sh("sysctl -qw net.ipv4.conf.all.src_valid_mark=0")?;
        mount(&["-o", "remount,ro,bind", "/proc/sys"])?;

        let up = up(lab, &node, &conf("0.0.0.0/0, ::/0")?, NET_ADMIN)?;
        let mark = node.sh("cat /proc/sys/net/ipv4/conf/all/src_valid_mark")?;
        ensure!(mark.trim() == "1", "the tunable of the network was not set");
        ensure!(node.sh("ip rule")?.contains("suppress_prefixlength 0"), "default routes are policy routes");
        // The file is opened but not written, because it belongs to the whole machine.
        let write = |path: &str| -> Result<bool> {
            let mut command = node.command("setpriv");
            command.args(NET_ADMIN).args(["sh", "-c", &format!(": >> {path}")]);
            Ok(node.end_of(&mut command)?.success())
        };
        ensure!(!write("/proc/sys/kernel/core_pattern")?, "whoever takes the process over has the machine");
        ensure!(!write("/proc/sys/kernel/modprobe")?, "whoever takes the process over has the machine");
        ensure!(write("/proc/sys/net/ipv4/conf/all/src_valid_mark")?, "the sandbox is not that of the units");
        closed(&node, up.id())
    });
}
