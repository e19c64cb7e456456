//! Paths through a relay: the cost of forwarding sealed datagrams, compared with decrypting and sealing them again, and
//! the time that a tunnel is silent when it loses a path.
//!
//! Two members, the relays, and the routers between them are namespaces of this machine, which runs all of it. The
//! ratios compare both kinds of relay in the same run.

use crate::{
    figures::{self, Figures},
    iperf3::{self, Length},
};
use anyhow::{Context as _, Result};
use clap::Parser;
use rustguard_tests::{Ip, Lab, Nat, Relayed, Running, Speaker};
use std::io::{self, Write as _};

/// Measures paths through a relay on this machine, and prints a table. Changes nothing on the machine.
#[derive(Clone, Debug, Parser)]
#[command(name = "direct")]
pub struct Options {
    /// How often everything is measured
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..))]
    pub rounds: u16,
    /// How long streams run, in seconds
    #[arg(long, default_value_t = 4)]
    pub seconds: u32,
    /// One short round, whose figures mean little
    #[arg(long)]
    pub quick: bool,
    /// Added by `cargo bench`
    #[arg(long, hide = true)]
    pub bench: bool,
}

/// The rows: the name of the figure, and its target if there is one.
pub const ROWS: [(&str, &str); 10] = [
    ("four TCP streams, decrypted by the relay, Mbit/s", ""),
    ("four TCP streams, sealed through the relay, Mbit/s", ""),
    ("sealed : decrypted", "≥ 0.6"),
    ("the relay's CPU, decrypted, s/GB", ""),
    ("the relay's CPU, sealed, s/GB", ""),
    ("the relay's CPU per byte, sealed : decrypted", "≤ 1.1"),
    ("four TCP streams, direct by hand, Mbit/s", ""),
    ("direct way that was found : by hand", "≥ 0.97"),
    ("longest gap, the direct way blocked, ms", "≤ 500"),
    ("longest gap, one of two relays killed, ms", "≤ 1000"),
];

/// The size of the measurement.
struct Pace {
    rounds: u16,
    streams: Length,
    /// After a gap, so many echo requests must be answered, in case there is another gap.
    after: usize,
}

/// Measures inside the laboratory. Returns the description of the machine and the table.
///
/// # Errors
/// If something does not start, or no packets pass.
pub fn run(lab: &Lab, options: &Options) -> Result<String> {
    let pace = if options.quick {
        Pace { rounds: 1, streams: Length::Quick, after: 2 }
    } else {
        Pace { rounds: options.rounds, streams: Length::Seconds(options.seconds), after: 10 }
    };
    let mut rows = vec![Vec::new(); ROWS.len()];
    let mut network = Relayed::new(lab, [(Nat::PortKept, Ip::V4), (Nat::None, Ip::V4)], 2)?;
    // A relay that decrypts works as a router for the inner packets.
    network.relays[0].1.node.sh("sysctl -qw net.ipv4.ip_forward=1")?;
    let (sealed, decrypted) = (network.members.clone(), only_the_relay(&network.members));
    let direct = format!("{}:51819", network.sites[1].inside_v4(1));
    for round in 1..=pace.rounds {
        say(&format!("streams, round {round} of {}", pace.rounds))?;
        network.members = decrypted.clone();
        let plain = streams(lab, &network, pace.streams)?;
        network.members = sealed.clone();
        for member in &mut network.members {
            member.conf.peers[0].endpoint = Some("via-peer relay1".to_owned());
        }
        let relayed = streams(lab, &network, pace.streams)?;
        network.look_for_direct_ways();
        let found = streams(lab, &network, pace.streams)?;
        network.members = sealed.clone();
        network.members[0].conf.peers[0].endpoint = Some(direct.clone());
        network.members[1].conf.peers[0].endpoint = None;
        for member in &mut network.members {
            // The default for a tunnel with a path through a peer.
            member.conf.lines.push("MTU = 1360".to_owned());
        }
        let by_hand = streams(lab, &network, pace.streams)?;
        let values = [
            plain.mbps,
            relayed.mbps,
            relayed.mbps / plain.mbps,
            plain.cpu,
            relayed.cpu,
            relayed.cpu / plain.cpu,
            by_hand.mbps,
            found.mbps / by_hand.mbps,
        ];
        for (row, value) in rows.iter_mut().zip(values) {
            row.push(value);
        }
    }
    say("the direct way is blocked")?;
    network.members[0].conf.peers[0].endpoint = Some(format!("{direct}, via-peer relay1"));
    let running = network.start(lab)?;
    for _ in 0..pace.rounds {
        network.until_by(None)?;
        network.until_ways(2)?;
        let mut traffic = network.traffic()?;
        network.internet.block("home", "office")?;
        network.until_by(Some(0))?;
        traffic.goes_on(pace.after)?;
        rows[8].push(traffic.longest().as_secs_f64() * 1e3);
        network.internet.unblock("home", "office")?;
    }
    drop(running);
    say("a relay is killed")?;
    network.members = sealed;
    let mut running = network.start(lab)?;
    for _ in 0..pace.rounds {
        network.until_ways(2)?;
        let first = network.used_relay()?;
        let mut traffic = network.traffic()?;
        running.relays[first].take().context("the relay runs")?.crash()?;
        network.until_by(Some(1 - first))?;
        traffic.goes_on(pace.after)?;
        rows[9].push(traffic.longest().as_secs_f64() * 1e3);
        running.relays[first] = Some(network.relays[first].1.start(lab)?);
    }
    let mut figures = Figures::default();
    for ((name, _), values) in ROWS.iter().zip(rows) {
        figures.add(*name, values);
    }
    let mut text = format!(
        "{}; medians (lowest–highest) of {}; gaps by echo requests every 50 ms\n\n",
        figures::machine(),
        pace.rounds
    );
    text += &figures.table("target", &ROWS)?;
    Ok(text)
}

/// The results of four streams.
struct Achieved {
    mbps: f64,
    /// CPU seconds of the first relay for a GB.
    cpu: f64,
}

/// The members without each other as peers: the relay decrypts the packets between them.
fn only_the_relay(members: &[Speaker; 2]) -> [Speaker; 2] {
    let mut members = members.clone();
    for member in &mut members {
        let mut relay = member.conf.peers.swap_remove(1);
        relay.allowed_ips = "10.9.0.0/16".to_owned();
        member.conf.peers = vec![relay];
    }
    members
}

/// Starts everything, runs four streams from `a` to `b`, and ends everything.
fn streams(lab: &Lab, network: &Relayed, length: Length) -> Result<Achieved> {
    let mut running = start(lab, network)?;
    if network.looks_for_direct_ways() {
        network.until_by(None)?;
    }
    let [a, b] = &network.members;
    let relay = running.relays[0].as_mut().context("the relay runs")?.process().id();
    let before = figures::cpu_seconds(relay)?;
    let received = iperf3::streams([&a.node, &b.node], &b.inside, 4, length, false)?;
    let seconds = figures::cpu_seconds(relay)? - before;
    Ok(Achieved { mbps: received.mbps, cpu: seconds * 1e9 / received.bytes })
}

/// Starts everything, and waits until `a` reaches `b`. With a manual endpoint, only `a` knows the other's address. `b`
/// must therefore start first: a lost initiation is repeated only after five seconds.
fn start(lab: &Lab, network: &Relayed) -> Result<Running> {
    let relays = network.relays.iter().map(|(_, relay)| relay.start(lab).map(Some)).collect::<Result<_>>()?;
    let [a, b] = &network.members;
    let b_runs = b.start(lab)?;
    let running = Running { members: [a.start(lab)?, b_runs], relays };
    a.node.reaches(&b.inside, 20)?;
    Ok(running)
}

fn say(what: &str) -> io::Result<()> {
    writeln!(io::stderr(), "measuring: {what}")
}
