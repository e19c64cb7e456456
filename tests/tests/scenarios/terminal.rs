//! The output for people, files, programs and the journal.
use anyhow::{Context, Result, ensure};
use rustguard_tests::{Conf, Lab, Node, Outside, Pair, Up, eventually, scenario_of_rustguard};
use serde_json::Value;
use std::{path::PathBuf, process::Command, time::Duration};

const SOON: Duration = Duration::from_secs(20);

/// A node, and the file of a tunnel without peers.
fn tunnel(lab: &Lab) -> Result<(Node, PathBuf)> {
    let node = lab.node("a")?;
    let mut conf = Conf::new("wga")?;
    conf.addresses = vec!["10.9.0.1/24".to_owned()];
    // A line that causes a warning at the start.
    conf.lines = vec!["PostUp =".to_owned(), "PostUp = echo a hook".to_owned()];
    let file = lab.file("wga.conf", &conf.wg_quick())?;
    Ok((node, file))
}

/// Whether a line begins with a timestamp.
fn has_time(line: &str) -> bool {
    line.starts_with("20") && line.as_bytes().get(10) == Some(&b'T')
}

#[test]
fn a_person_reads_sentences() {
    scenario_of_rustguard("messages on a terminal", |lab| {
        let (node, file) = tunnel(lab)?;
        let mut up = node.spawn_on_terminal("up", node.rustguard()?.arg("up").arg(&file))?;
        let log = || std::fs::read_to_string(lab.path("up.log")).unwrap_or_default();
        up.until("the tunnel", SOON, || Ok(log().contains("wga is up")))?;
        let ended = up.stop("INT")?;
        ensure!(ended.success(), "{ended}");
        let lines: Vec<_> = ended.stderr.lines().map(str::trim_end).collect();
        ensure!(lines.contains(&"wga is up") && lines.contains(&"a hook"), "{ended}");
        ensure!(!lines.iter().any(|line| has_time(line) || line.contains("INFO")), "{ended}");
        // The diagnostics are coloured.
        ensure!(ended.stderr.contains("\u{1b}["), "{ended}");
        // With -q and without colours: only the warning remains.
        let mut command = node.rustguard()?;
        command.args(["up", "-q"]).arg(&file).env("NO_COLOR", "1");
        let mut quiet = node.spawn_on_terminal("quiet", &mut command)?;
        quiet.until("the tunnel", SOON, || node.is_up("wga"))?;
        let ended = quiet.stop("TERM")?;
        ensure!(ended.success() && !ended.stderr.contains('\u{1b}'), "{ended}");
        ensure!(ended.stderr.contains("warning") && !ended.stderr.contains("is up"), "{ended}");
        Ok(())
    });
}

#[test]
fn what_happens_in_the_background_is_said_in_sentences_too() {
    scenario_of_rustguard("messages on a terminal", |lab| {
        let (node, file) = tunnel(lab)?;
        let mut up = node.spawn_on_terminal("up", node.rustguard()?.args(["up", "--detach"]).arg(&file))?;
        let ended = up.ended(SOON)?;
        ensure!(ended.success(), "{ended}");
        ensure!(ended.stderr.lines().any(|line| line.trim_end() == "wga is up"), "{ended}");
        ensure!(ended.stderr.contains("a hook") && !ended.stderr.lines().any(has_time), "{ended}");
        // The log file has timestamps.
        let log = node.run(&["cat", "/run/rustguard/wga.log"])?;
        ensure!(log.lines().any(|line| has_time(line) && line.ends_with(" INFO wga is up")), "{log}");
        node.end_of(node.rustguard()?.arg("down").arg(&file))?;
        Ok(())
    });
}

#[test]
fn programs_read_json() {
    scenario_of_rustguard("messages as JSON", |lab| {
        let (node, file) = tunnel(lab)?;
        let mut command = node.rustguard()?;
        command.args(["up", "-v", "--log-format", "json"]).arg(&file);
        let mut up = node.spawn("up", &mut command)?;
        let log = || std::fs::read_to_string(lab.path("up.log")).unwrap_or_default();
        up.until("the tunnel", SOON, || Ok(log().contains("wga is up")))?;
        let text = up.stop("TERM")?.stderr;
        let lines: Vec<Value> =
            text.lines().filter(|&line| line != "a hook").map(serde_json::from_str).collect::<Result<_, _>>()?;
        for line in &lines {
            ensure!(line["interface"] == "wga" && line["time"].as_str().is_some_and(has_time), "{line}");
            ensure!(line["message"].is_string() && line["target"].is_string(), "{line}");
        }
        let level = |word: &str| lines.iter().filter(|line| line["level"] == word).count();
        ensure!(level("info") > 0 && level("debug") > 0, "{text}");
        let warning = lines.iter().find(|line| line["level"] == "warn").context("the file's warning")?;
        ensure!(
            warning["line"].is_u64() && warning["file"].as_str().is_some_and(|at| at.ends_with("wga.conf")),
            "{text}"
        );
        // The reason for a failure is JSON as well.
        let mut command = node.rustguard()?;
        let ended = node.end_of(command.args(["up", "./none.conf"]).env("RUSTGUARD_LOG_FORMAT", "json"))?;
        let last: Value = serde_json::from_str(&ended.stderr)?;
        ensure!(last["level"] == "error" && last["message"].as_str().is_some_and(|text| text.contains("none.conf")));
        Ok(())
    });
}

/// With systemd's real journal.
#[test]
fn the_journal_gets_priorities_and_fields() {
    scenario_of_rustguard("messages in the journal", |lab| {
        lab.needs("systemd-cat", "systemd")?;
        let (node, file) = tunnel(lab)?;
        // The kernel's messages belong to the machine, not to the scenario.
        node.sh("mkdir -p /run/systemd/journal /run/log/journal
                 printf '[Journal]\\nReadKMsg=no\\n' >/etc/systemd/journald.conf")?;
        // `ip netns exec` would hide the cgroups, which the journal needs.
        let mut daemon = node.spawn("journald", &mut Command::new("/usr/lib/systemd/systemd-journald"))?;
        daemon.until("the journal", SOON, || Ok(node.run(&["test", "-S", "/run/systemd/journal/stdout"]).is_ok()))?;
        let journal = |field: &str| -> Result<Vec<Value>> {
            let text = node.run(&["journalctl", "-D", "/run/log/journal", "-o", "json", "--no-pager", field])?;
            text.lines().map(|line| Ok(serde_json::from_str(line)?)).collect()
        };
        // systemd-cat connects standard error to the journal. systemd itself also sets JOURNAL_STREAM for its services.
        let script = "export JOURNAL_STREAM=$(stat -L -c %d:%i /proc/self/fd/2); exec \"$0\" up \"$1\"";
        let mut command = node.command("systemd-cat");
        command.args(["sh", "-c", script]).args(node.rustguard()?.get_args().last()).arg(&file);
        let mut up = node.spawn("up", &mut command)?;
        let mut entries = Vec::new();
        eventually("the message in the journal", SOON, || {
            // journalctl fails while there is no journal.
            entries = journal("INTERFACE=wga").unwrap_or_default();
            Ok(entries.iter().any(|entry| entry["MESSAGE"] == "wga is up"))
        })?;
        let sockets = up.datagram_sockets()?;
        ensure!(sockets.is_empty(), "the journal's socket reaches other services: {sockets:?}");
        ensure!(up.stop("TERM")?.success());
        let with =
            |text: &str| entries.iter().find(|entry| entry["MESSAGE"].as_str().is_some_and(|m| m.contains(text)));
        let told = with("wga is up").context("the message")?;
        ensure!(told["PRIORITY"] == "5" && told["_TRANSPORT"] == "journal", "{told}");
        ensure!(told["SYSLOG_IDENTIFIER"] == "rustguard", "{told}");
        let warning = with("PostUp").context("the file's warning")?;
        ensure!(warning["PRIORITY"] == "4" && warning["LINE"].is_string(), "{warning}");
        Ok(())
    });
}

/// A sandbox may hide the journal's socket. Then the lines on standard error carry the priorities.
#[test]
fn without_the_journals_socket_the_lines_have_priorities() {
    scenario_of_rustguard("messages in the journal", |lab| {
        let (node, file) = tunnel(lab)?;
        let log = lab.file("journal", "")?;
        let script = "export JOURNAL_STREAM=$(stat -c %d:%i \"$2\"); exec \"$0\" up \"$1\" 2>>\"$2\"";
        let mut command = node.command("sh");
        command.args(["-c", script]).args(node.rustguard()?.get_args().last()).arg(&file).arg(&log);
        let mut up = node.spawn("up", &mut command)?;
        up.until("the tunnel", SOON, || Ok(std::fs::read_to_string(&log)?.contains("<5>wga is up\n")))?;
        ensure!(up.stop("TERM")?.success());
        let text = std::fs::read_to_string(&log)?;
        ensure!(text.lines().any(|line| line.starts_with("<4>")), "{text}");
        Ok(())
    });
}

#[test]
fn a_wrong_level_is_wrong_usage() {
    scenario_of_rustguard("RUSTGUARD_LOG", |lab| {
        let (node, file) = tunnel(lab)?;
        for arguments in [&["up"][..], &["check"], &["show"]] {
            let mut command = node.rustguard()?;
            let ended = node.end_of(command.args(arguments).arg(&file).env("RUSTGUARD_LOG", "verbose"))?;
            ensure!(ended.status.code() == Some(2), "{ended}");
            ended.says(&["RUSTGUARD_LOG is `verbose`", "debug", "rustguard_device"])?;
        }
        let ended = node.end_of(node.rustguard()?.args(["up", "-q", "-v"]).arg(&file))?;
        ensure!(ended.status.code() == Some(2), "{ended}");
        Ok(())
    });
}

#[test]
fn the_only_tunnel_needs_no_name() {
    scenario_of_rustguard("commands without a name", |lab| {
        let (node, file) = tunnel(lab)?;
        let down = || -> Result<_> { node.end_of(node.rustguard()?.arg("down")) };
        down()?.refused(&["no tunnel is up", "rustguard up"])?;
        let other = lab.file("wgb.conf", &Conf::new("wgb")?.wg_quick())?;
        for file in [&file, &other] {
            let ended = node.end_of(node.rustguard()?.args(["up", "-d"]).arg(file))?;
            ensure!(ended.success(), "{ended}");
        }
        down()?.refused(&["wga, wgb"])?;
        node.end_of(node.rustguard()?.arg("status"))?.refused(&["wga, wgb"])?;
        let ended = node.end_of(node.rustguard()?.args(["status", "wgb"]))?;
        ensure!(ended.success() && ended.stdout.contains("interface: wgb\n"), "{ended}");
        let mut nobody = node.command("setpriv");
        nobody.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).args(node.rustguard()?.get_args().last());
        node.end_of(nobody.arg("status"))?.refused(&["root"])?;
        node.end_of(node.rustguard()?.args(["show", "wgc"]))?.refused(&["wga, wgb"])?;
        let ended = node.end_of(node.rustguard()?.arg("down").arg(&other))?;
        ensure!(ended.success(), "{ended}");
        let ended = down()?;
        ensure!(ended.success(), "{ended}");
        down()?.refused(&["no tunnel is up"])?;
        // The name of a server is found the same way.
        let mut serve = node.rustguard()?;
        let ended = node.end_of(serve.args(["serve", "-d", "-i", "wgs", "--pool", "10.150.0.0/24"]))?;
        ensure!(ended.success(), "{ended}");
        let status = node.end_of(node.rustguard()?.args(["status", "--json"]))?;
        ensure!(status.success() && status.stdout.contains("\"wgs\""), "{status}");
        let ended = down()?;
        ensure!(ended.success(), "{ended}");
        node.end_of(node.rustguard()?.arg("status"))?.refused(&["nobody serves", "rustguard serve"])
    });
}

/// `rustguard show | head -1`.
#[test]
fn a_reader_that_leaves_is_no_noise() {
    scenario_of_rustguard("output to a closed pipe", |lab| {
        let (node, file) = tunnel(lab)?;
        let ended = node.end_of(node.rustguard()?.args(["up", "-d"]).arg(&file))?;
        ensure!(ended.success(), "{ended}");
        for arguments in ["show", "show --json", "show wga dump", "--help", "doctor", "check /etc/passwd --json", "man"]
        {
            let (reader, writer) = std::io::pipe()?;
            drop(reader);
            let ended = node.end_of(node.rustguard()?.args(arguments.split(' ')).stdout(writer))?;
            ensure!(ended.stderr.is_empty(), "{arguments}: {ended}");
        }
        node.end_of(node.rustguard()?.arg("down"))?;
        Ok(())
    });
}

/// The server does not answer, because there is no route to it.
#[test]
fn a_person_who_waits_sees_for_what() {
    scenario_of_rustguard("progress on a terminal", |lab| {
        let node = lab.node("a")?;
        let join = |options: &[&str]| -> Result<_> {
            let mut command = node.rustguard()?;
            command.args(["join", "192.0.2.1", "--timeout", "2s"]).args(options).env("RUSTGUARD_TOKEN", "a passphrase");
            Ok(command)
        };
        let waits = "waiting for an answer from 192.0.2.1:51820";
        let ended = node.spawn_on_terminal("join", &mut join(&[])?)?.ended(SOON)?;
        // The line is overwritten, and removed at the end.
        ensure!(ended.stderr.contains(&format!("\r{waits}…\u{1b}[K")), "{ended}");
        ensure!(ended.stderr.contains("\u{1b}[K\r\u{1b}[K"), "{ended}");
        let last = ended.stderr.trim_end().rsplit('\r').next().unwrap_or_default();
        ensure!(last.contains("has not joined within 2 seconds") && !last.contains("…"), "{ended}");
        for options in [&["-q"][..], &["-qq"]] {
            let ended = node.spawn_on_terminal(&format!("join{}", options[0]), &mut join(options)?)?.ended(SOON)?;
            ensure!(!ended.stderr.contains("waiting"), "{ended}");
        }
        // Without a terminal, or on one that cannot overwrite lines, one line is printed.
        let ended = node.end_of(&mut join(&[])?)?;
        ensure!(ended.stderr.matches(waits).count() == 1 && !ended.stderr.contains('\r'), "{ended}");
        Ok(())
    });
}

/// At first, the router between the two forwards nothing.
#[test]
fn a_person_who_brings_a_tunnel_up_sees_who_has_not_answered() {
    scenario_of_rustguard("progress on a terminal", |lab| {
        let mut pair = Pair::new(lab, Outside::V4)?;
        pair.conf_a.peers[0].lines = vec!["# Name = office".to_owned()];
        pair.conf_a.lines = vec!["PostUp = echo a hook".to_owned(), "PreDown = echo another".to_owned()];
        pair.router.sh("sysctl -qw net.ipv4.ip_forward=0")?;
        let _b = Up::start(lab, &pair.b, &pair.conf_b)?;
        let file = lab.file("wga.conf", &pair.conf_a.wg_quick())?;
        let start = |name: &str, options: &[&str]| {
            pair.a.spawn_on_terminal(name, pair.a.rustguard()?.arg("up").args(options).arg(&file))
        };
        let waits = "\rwaiting for the first handshake with office…\u{1b}[K";
        let mut up = start("up", &[])?;
        let log = || std::fs::read_to_string(lab.path("up.log")).unwrap_or_default();
        up.until("the line", SOON, || Ok(log().contains(waits)))?;
        pair.router.sh("sysctl -qw net.ipv4.ip_forward=1")?;
        up.until("the handshake", SOON, || Ok(log().contains("office: handshake complete")))?;
        let ended = up.stop("INT")?;
        ensure!(ended.success(), "{ended}");
        let (before, after) = ended.stderr.split_once("handshake complete").context("a handshake")?;
        ensure!(before.find("a hook") < before.find("is up") && before.find("is up") < before.find(waits), "{ended}");
        // Each message may draw the line once more until the log's thread hears that waiting is over.
        ensure!(after.rfind("waiting") < after.rfind("\r\u{1b}[K") || !after.contains("waiting"), "{ended}");
        // The hook's output is on its own line. Another thread writes the log's line about the hook, before or after
        // it.
        ensure!(after.lines().any(|line| line.trim_end() == "another"), "{ended}");

        let mut quiet = start("quiet", &["-q"])?;
        quiet.until("the tunnel", SOON, || pair.a.is_up("wga"))?;
        pair.a.reaches("10.9.0.2", 10)?;
        let ended = quiet.stop("INT")?;
        ensure!(!ended.stderr.contains("waiting"), "{ended}");
        Ok(())
    });
}
