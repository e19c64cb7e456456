//! The log: a reader that does not read, and a file of limited size.
use anyhow::{Result, ensure};
use rustguard_tests::{Lab, Node, Outside, Pair, Program, Tunnel, eventually, rustguard, scenario_of_rustguard};
use std::{fmt::Write as _, fs::File, time::Duration};

const SOON: Duration = Duration::from_secs(20);

/// A `wg set` that adds so many peers, and one that removes them. With RUSTGUARD_LOG=debug, each peer adds a line to
/// the log.
fn noise(interface: &str, peers: u32) -> [String; 2] {
    let mut texts = [format!("wg set {interface}"), format!("wg set {interface}")];
    for n in 0..peers {
        // 32 bytes in base64.
        let key = format!("{n:0>42}A=");
        // Writing to a String cannot fail.
        let _ = write!(texts[0], " peer {key}");
        let _ = write!(texts[1], " peer {key} remove");
    }
    texts
}

/// Runs one of the texts of [`noise`] in `node`.
fn make(lab: &Lab, node: &Node, noise: &str) -> Result<()> {
    let script = lab.file("noise.sh", noise)?;
    node.run(&["timeout", "20", "sh", &script.display().to_string()])?;
    Ok(())
}

/// Standard error is a pipe that nobody reads: the tunnel still carries packets, accepts configuration, and ends.
#[test]
fn a_log_that_nobody_reads_stops_nothing() {
    scenario_of_rustguard("log", |lab| {
        let pair = Pair::new(lab, Outside::V4)?;
        let _b = Tunnel::start(lab, &pair.b, Program::Reference, &pair.conf_b)?;
        let conf = lab.file("wga.conf", &pair.conf_a.wg_quick())?;
        let pipe = lab.path("pipe");
        pair.a.run(&["mkfifo", &pipe.display().to_string()])?;
        // Opened for reading and writing, so that the pipe always has a reader.
        let _reader = File::options().read(true).write(true).open(&pipe)?;
        let mut command = pair.a.command("sh");
        // The program's path is the last argument of `ip netns exec NODE`.
        command.args(["-c", "exec \"$0\" up \"$1\" 2>\"$2\""]).args(pair.a.rustguard()?.get_args().last());
        command.arg(&conf).arg(&pipe).env("RUSTGUARD_LOG", "debug");
        let mut up = pair.a.spawn("up", &mut command)?;
        up.until("the tunnel", SOON, || pair.a.is_up("wga"))?;
        // Several times the 64 KiB that a pipe holds.
        for text in noise("wga", 1_500) {
            make(lab, &pair.a, &text)?;
        }
        pair.a.reaches("10.9.0.2", 20)?;
        let ended = up.stop("TERM")?;
        ensure!(ended.success(), "{ended}");
        Ok(())
    });
}

/// The log of a detached tunnel stays below two files of 1 MiB, is unreadable for others, and is removed when the
/// tunnel ends.
#[test]
fn the_log_of_a_detached_tunnel_is_bounded() {
    scenario_of_rustguard("log", |lab| {
        let pair = Pair::new(lab, Outside::V4)?;
        let conf = lab.file("wga.conf", &pair.conf_a.wg_quick())?;
        let mut up = pair.a.rustguard()?;
        let ended = pair.a.end_of(up.args(["up", "--detach"]).arg(&conf).env("RUSTGUARD_LOG", "debug"))?;
        ensure!(ended.success(), "{ended}");
        ended.says(&["wga is up"])?;
        let log = "/run/rustguard/wga.log";
        let old = "/run/rustguard/wga.log.old";
        let noise = noise("wga", 1_500);
        eventually("the log is put aside", SOON * 3, || {
            for text in &noise {
                make(lab, &pair.a, text)?;
            }
            Ok(pair.a.run(&["test", "-e", old]).is_ok())
        })?;
        for file in [log, old] {
            let text = pair.a.run(&["stat", "-c", "%a %s", file])?;
            let (mode, size) = text.trim().split_once(' ').unwrap_or_default();
            ensure!(mode == "600" && size.parse::<u64>()? <= 1 << 20, "{file}: {text}");
        }
        // A second start is refused, and leaves the log of the first alone.
        let mut again = pair.a.rustguard()?;
        let ended = pair.a.end_of(again.args(["up", "--detach"]).arg(&conf))?;
        ensure!(!ended.success(), "{ended}");
        ended.says(&["wga is up already"])?;
        for file in [log, old] {
            pair.a.run(&["test", "-e", file])?;
        }
        pair.a.end_of(pair.a.rustguard()?.args(["down"]).arg(&conf))?;
        eventually("the tunnel has ended", SOON, || Ok(pair.a.run(&["test", "-e", log]).is_err()))?;
        ensure!(pair.a.run(&["test", "-e", old]).is_err(), "the older file is left");
        Ok(())
    });
}

/// If the background process cannot log why it fails, the foreground process says where to look.
#[test]
fn a_full_disk_is_thought_of_where_the_log_has_no_reason() {
    scenario_of_rustguard("log", |lab| {
        let pair = Pair::new(lab, Outside::V4)?;
        let conf = lab.file("wga.conf", &pair.conf_a.wg_quick())?;
        let full = "mkdir -p /run/rustguard; mount -t tmpfs -o size=4k,mode=755 tmpfs /run/rustguard; head -c 4096 /dev/zero > /run/rustguard/full";
        let mut command = pair.a.command("sh");
        command.args(["-c", &format!("{full}; exec \"$0\" up --detach \"$1\"")]).arg(rustguard()?).arg(&conf);
        pair.a.end_of(&mut command)?.refused(&["before it was ready", "/run/rustguard/wga.log", "disk full"])
    });
}
