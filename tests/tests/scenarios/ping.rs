//! `rustguard ping`: peers that answer, peers that run another program, and unknown peers.
use anyhow::{Context, Result, ensure};
use rustguard_tests::{
    BOTH, Ended, INSIDE_B, Lab, Loss, Node, Outside, Pair, Program, Tunnel, Twice, eventually, scenario_of_rustguard,
};
use serde_json::Value;
use std::{
    fs,
    process::{Command, Stdio},
    time::Duration,
};

fn ours<F: FnOnce(&Lab) -> Result<()>>(body: F) {
    scenario_of_rustguard("ping", body);
}

/// Two nodes. `a` names its peer `office`; `b` runs the given program.
struct Lines {
    pair: Pair,
    a: Tunnel,
    b: Tunnel,
}

impl Lines {
    fn start(lab: &Lab, b: Program) -> Result<Self> {
        let mut pair = Pair::new(lab, Outside::V4)?;
        pair.conf_a.peers[0].lines = vec!["# Name = office".to_owned()];
        let (a, b) = pair.start(lab, Program::Subject, b)?;
        Ok(Self { pair, a, b })
    }
}

/// `ping`, by the interface of `a` unless the arguments name another. All nodes of a scenario share one `/run`, so
/// every node sees all tunnels.
fn ping(node: &Node, arguments: &str) -> Result<Ended> {
    let interface = if arguments.contains("-i ") { &[][..] } else { &["-i", "wga"] };
    node.end_of(node.rustguard()?.arg("ping").args(arguments.split_whitespace()).args(interface))
}

/// `ping office` without an end.
fn keeps_asking(node: &Node) -> Result<Command> {
    let mut command = node.rustguard()?;
    command.args(["ping", "office", "-i", "wga", "--interval", "100ms"]);
    Ok(command)
}

fn ended_with(ended: &Ended, status: i32) -> Result<()> {
    ensure!(ended.status.code() == Some(status), "should end with status {status}: {ended}");
    ended.says(&[])
}

/// The objects of `--json`, one in a line.
fn objects(ended: &Ended) -> Result<Vec<Value>> {
    ended.stdout.lines().map(|line| serde_json::from_str(line).with_context(|| ended.to_string())).collect()
}

#[test]
fn a_peer_answers_and_each_answer_says_its_way() {
    ours(|lab| {
        let Lines { pair, .. } = &Lines::start(lab, Program::Subject)?;
        // The peer's firewall inside the tunnel does not matter: its host handles none of these packets.
        pair.b.drop("input", "iifname wgb")?;
        for peer in ["office", &pair.conf_b.keys.public] {
            let ended = ping(&pair.a, &format!("{peer} -c 3 --interval 100ms"))?;
            ended_with(&ended, 0)?;
            let lines: Vec<_> = ended.stdout.lines().collect();
            ensure!(lines.len() == 5, "three answers, a blank line, a summary: {ended}");
            for line in &lines[..3] {
                ensure!(line.starts_with("office: ") && line.ends_with(" ms, direct 10.2.0.2:51802"), "{line}");
            }
            ensure!(lines[4].starts_with("3 requests, 3 answers; round trip: least "), "{ended}");
        }
        // The other side has learned this side's address.
        let ended = ping(&pair.b, &format!("{} -c 1 -i wgb", pair.conf_a.keys.public))?;
        ensure!(ended.stdout.contains("direct 10.1.0.2:51801"), "{ended}");
        // The path is already direct.
        let ended = ping(&pair.a, "office --until-direct --timeout 20")?;
        ended_with(&ended, 0)?;
        ensure!(ended.stdout.contains("\n1 request, 1 answer;"), "{ended}");
        Ok(())
    });
}

#[test]
fn programs_get_an_object_in_each_line() {
    ours(|lab| {
        let Lines { pair, .. } = &Lines::start(lab, Program::Subject)?;
        let ended = ping(&pair.a, "office -c 2 --interval 100ms --json")?;
        ended_with(&ended, 0)?;
        let objects = objects(&ended)?;
        ensure!(objects.len() == 2, "{ended}");
        for (object, sequence) in objects.iter().zip(1..) {
            ensure!(object["sequence"] == sequence && object["peer"] == "office", "{object}");
            ensure!(object["public_key"] == *pair.conf_b.keys.public, "{object}");
            ensure!(object["way"] == "direct" && object["endpoint"] == "10.2.0.2:51802", "{object}");
            ensure!(object["direct"] == true && object["through"].is_null() && object["echo"].is_null(), "{object}");
            ensure!(object["round_trip_us"].as_u64().is_some_and(|us| us > 0) && object["error"].is_null(), "{object}");
        }
        Ok(())
    });
}

#[test]
fn a_peer_of_another_program_gets_echo_requests_and_the_output_says_so() {
    ours(|lab| {
        let Lines { pair, b, .. } = &Lines::start(lab, Program::Reference)?;
        let ended = ping(&pair.a, "office -c 5 --interval 100ms")?;
        ended_with(&ended, 0)?;
        let notes = ended.stdout.matches("these are echo requests to 10.9.0.2").count();
        ensure!(notes == 1, "said once: {ended}");
        ensure!(ended.stdout.matches(" ms, direct 10.2.0.2:51802").count() == 5, "{ended}");
        let ended = ping(&pair.a, "office -c 1 --json")?;
        ensure!(objects(&ended)?[0]["echo"] == INSIDE_B[0], "{ended}");
        // The peer's host does not answer echo requests any more.
        pair.b.drop("input", "icmp type echo-request")?;
        let ended = ping(&pair.a, "office -c 1 -W 1.5")?;
        ended_with(&ended, 1)?;
        ensure!(ended.stdout.contains("office: no answer\n"), "{ended}");
        ensure!(ended.stdout.contains("`rustguard doctor wga` looks for the cause"), "{ended}");
        // Without an address of the peer, an echo request has no destination.
        let key = &pair.conf_b.keys.public;
        pair.a.sh(&format!("wg set wga peer {key} allowed-ips 10.9.0.0/24"))?;
        let ended = ping(&pair.a, "office -c 1 -W 200ms --json")?;
        ended_with(&ended, 1)?;
        ensure!(objects(&ended)?[0]["error"]["kind"] == "no-answer", "{ended}");
        ensure!(b.dump()?.peer(&pair.conf_a.keys.public)?.latest_handshake > 0, "the session lives");
        Ok(())
    });
}

#[test]
fn a_peer_out_of_reach_has_no_answer() {
    ours(|lab| {
        let mut pair = Pair::new(lab, Outside::V4)?;
        pair.conf_a.peers[0].lines = vec!["# Name = office".to_owned()];
        pair.router.drop("forward", "udp dport 51802")?;
        let _a = Tunnel::start(lab, &pair.a, Program::Subject, &pair.conf_a)?;
        let ended = ping(&pair.a, "office -c 2 -W 200ms --interval 100ms --json")?;
        ended_with(&ended, 1)?;
        for object in objects(&ended)? {
            ensure!(object["error"]["kind"] == "no-session" && object["round_trip_us"].is_null(), "{object}");
        }
        let ended = ping(&pair.a, "office --until-direct --timeout 500ms")?;
        ended_with(&ended, 1)?;
        // The request was still unanswered when the time was over.
        ensure!(ended.stdout.contains("1 request, 0 answers\noffice was not reached"), "{ended}");
        // The peer's address is unknown.
        let key = &pair.conf_b.keys.public;
        pair.a.sh(&format!("wg set wga peer {key} remove; wg set wga peer {key} allowed-ips 10.9.0.2/32"))?;
        let ended = ping(&pair.a, &format!("{key} -c 1 --json"))?;
        ended_with(&ended, 1)?;
        ensure!(objects(&ended)?[0]["error"]["kind"] == "no-endpoint", "{ended}");
        pair.a.sh("ip link set wga down")?;
        let ended = ping(&pair.a, &format!("{key} -c 1"))?;
        ended_with(&ended, 1)?;
        ensure!(ended.stdout.contains("no answer: the interface is down"), "{ended}");
        Ok(())
    });
}

#[test]
fn mistakes_are_named_and_have_a_status_of_their_own() {
    ours(|lab| {
        let node = lab.node("lonely")?;
        let ended = node.end_of(node.rustguard()?.args(["ping", "office"]))?;
        ended_with(&ended, 2)?;
        ended.says(&["no tunnel is up", "rustguard up"])?;
        let Lines { pair, .. } = &Lines::start(lab, Program::Subject)?;
        for (arguments, words) in [
            ("home", &["home", "wga", "its peers are office"][..]),
            ("office -i wg9", &["wg9", "up: wga"]),
            ("office -i ../x", &["name"]),
            ("10.9.0.2 -i wga", &["trace"]),
            ("office -c 0", &["0"]),
            ("office --interval 1ms", &["100ms"]),
            ("office -W 11", &["10s"]),
            ("office --timeout soon", &["soon"]),
        ] {
            let ended = ping(&pair.a, arguments)?;
            ended_with(&ended, 2).context(arguments)?;
            ended.says(words)?;
        }
        let mut nobody = pair.a.command("setpriv");
        nobody.args(["--reuid=65534", "--regid=65534", "--clear-groups", "--"]);
        nobody.arg(pair.a.rustguard()?.get_args().last().context("the program")?);
        let ended = pair.a.end_of(nobody.args(["ping", "office", "-i", "wga"]))?;
        ended_with(&ended, 2)?;
        ended.says(&["as root"])
    });
}

/// Two links to one peer; the link in use is cut.
#[test]
fn an_answer_says_by_which_of_several_addresses_it_came_and_so_do_show_and_status() {
    ours(|lab| {
        let mut network = Twice::new(lab, BOTH)?;
        network.conf_a.peers[0].lines.push("# Name = office".to_owned());
        let _tunnels = network.start(lab, Program::Subject)?;
        network.until_up()?;
        let way = || -> Result<String> {
            let ended = ping(&network.a, "office -c 1 --json -W 500ms")?;
            Ok(objects(&ended)?[0]["endpoint"].as_str().unwrap_or_default().to_owned())
        };
        let first = way()?;
        let peer = network.a.shown("wga")?["peers"][0].clone();
        ensure!(peer["way"] == "direct" && peer["endpoint"] == *first, "{first}: {peer}");
        ensure!(peer["round_trip_us"].as_u64().is_some_and(|us| us > 0), "{peer}");
        let page = network.a.end_of(network.a.rustguard()?.args(["show", "wga"]))?;
        ensure!(page.stdout.contains(&format!("  way: direct {first}, ")), "{page}");
        let page = network.a.end_of(network.a.rustguard()?.args(["status", "wga"]))?;
        ensure!(page.stdout.contains("RTT") && page.stdout.contains(&format!("direct {first}")), "{page}");
        network.cut(if first == "10.1.0.2:51820" { "one" } else { "two" }, Loss::Both)?;
        eventually("an answer by the other link", Duration::from_secs(30), || {
            let now = way()?;
            Ok(!now.is_empty() && now != first)
        })
    });
}

#[test]
fn an_interrupt_ends_it_with_the_summary() {
    ours(|lab| {
        let Lines { pair, .. } = &Lines::start(lab, Program::Subject)?;
        let mut running = pair.a.spawn("ping", &mut keeps_asking(&pair.a)?)?;
        let log = lab.path("ping.log");
        running.until("two answers", Duration::from_secs(20), || {
            Ok(fs::read_to_string(&log)?.matches("direct 10.2.0.2:51802").count() >= 2)
        })?;
        let ended = running.stop("INT")?;
        ensure!(ended.status.code() == Some(0), "{ended}");
        let last = ended.stderr.lines().last().unwrap_or_default();
        ensure!(last.contains(" requests, ") && last.contains("round trip: least "), "{ended}");
        Ok(())
    });
}

#[test]
fn the_end_of_the_tunnel_and_a_closed_pipe_end_it() {
    ours(|lab| {
        let Lines { pair, mut a, b: _b } = Lines::start(lab, Program::Subject)?;
        let (reader, writer) = std::io::pipe()?;
        drop(reader);
        let mut command = keeps_asking(&pair.a)?;
        let ended = command.stdout(writer).stderr(Stdio::piped()).spawn()?.wait_with_output()?;
        ensure!(ended.stderr.is_empty() && !ended.status.success(), "{ended:?}");
        let mut running = pair.a.spawn("ping", &mut keeps_asking(&pair.a)?)?;
        let log = lab.path("ping.log");
        running.until("an answer", Duration::from_secs(20), || Ok(fs::read_to_string(&log)?.contains("direct")))?;
        a.process().stop("TERM")?;
        let ended = running.ended(Duration::from_secs(20))?;
        ensure!(ended.status.code() == Some(2) && ended.stderr.contains("wga has ended"), "{ended}");
        Ok(())
    });
}
