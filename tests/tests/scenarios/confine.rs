//! What a running tunnel has given up: `/proc` says it. What that means is tried in `crates/rustguard-cli/src/process/confine/tests.rs`,
//! inside of a process that has given up the same.
use anyhow::{Context, Result, ensure};
use rustguard_tests::{Conf, Lab, Node, PeerConf, Process, rustguard, scenario_of_rustguard, spawn_until_ready};
use std::{
    fs::{self, File},
    os::unix::process::ExitStatusExt as _,
    path::Path,
    time::Duration,
};

/// CAP_NET_BIND_SERVICE, CAP_NET_ADMIN and CAP_IPC_LOCK (capabilities(7)).
const KEPT: u64 = 1 << 10 | 1 << 12 | 1 << 14;

fn ours<F: FnOnce(&Lab) -> Result<()>>(body: F) {
    scenario_of_rustguard("what a tunnel's process gives up", body);
}

/// A tunnel to nobody, with further lines.
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

/// A line of `status` in /proc.
fn value(status: &str, name: &str) -> Result<String> {
    let mut lines = status.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    Ok(lines.next().with_context(|| format!("no {name}"))?.trim().to_owned())
}

/// That each thread of a process is confined, or that none is.
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
        // Its file is read again, and what would take a program is refused before anything changes.
        let file = lab.path("wga.conf");
        let reload = || node.end_of(node.rustguard()?.args(["reload", "wga"]));
        fs::write(&file, conf(&["MTU = 1300"])?)?;
        ensure!(reload()?.success(), "{}", reload()?);
        for line in ["PostUp = true", "PostDown = true", "DNS = 10.9.0.1", "SaveConfig = true"] {
            fs::write(&file, conf(&["MTU = 1300", line])?)?;
            let setting = line.split(' ').next().unwrap_or_default();
            reload()?.refused(&["need a restart", setting, "given up", "rustguard up wga"])?;
        }
        let ended = up.stop("TERM")?;
        ensure!(ended.success(), "{ended}");
        ensure!(!Path::new("/run/rustguard/wga.pid").exists() && !Path::new("/run/rustguard/wga.json").exists());
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

#[test]
fn a_tunnel_with_hooks_keeps_what_they_take() {
    ours(|lab| {
        let node = lab.node("a")?;
        let up = up(lab, &node, &["PostDown = true"])?;
        confined(up.id(), false)
    });
}

/// A killed tunnel owes a hook. The next one, which has none and may start no program, has it run first.
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

/// Whoever has taken a confined process over can write its records. They have nothing run and no tunable set by the next one.
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

/// Whoever has taken a confined process over can write any number into a run file. `down` ends the process that the kernel names, or none.
#[test]
fn a_forged_run_file_ends_no_other_process() {
    ours(|lab| {
        let node = lab.node("a")?;
        let file = Path::new("/run/rustguard/wga.pid");
        let mut other = node.spawn("other", node.command("sleep").arg("1000"))?;
        let forge = || fs::write(file, other.id().to_string());
        let down = || node.end_of(node.rustguard()?.args(["down", "wga"]));
        // Of a tunnel that runs.
        let mut up = up(lab, &node, &[])?;
        forge()?;
        let ended = down()?;
        ensure!(ended.success(), "{ended}");
        ensure!(up.ended(Duration::from_secs(10))?.success(), "the tunnel still runs");
        // Of one that does not: this process locks the file as a tunnel would. It has no number there that the kernel vouches for.
        forge()?;
        let forged = File::open(file)?;
        forged.lock()?;
        down()?.refused(&["wga", "no tunnel", "fuser -v /run/rustguard/wga.pid"])?;
        drop(forged);
        // Of a killed one.
        down()?;
        let signals = other.stop("KILL")?;
        ensure!(signals.status.signal() == Some(9), "`down` has signalled another process: {signals}");
        Ok(())
    });
}
