//! Several endpoints of one peer: the gain of a second link, and the cost of the loss of a link.
//!
//! Two nodes have two links between them (veth). tbf limits each link to the same rate in both directions. Both ends
//! run RustGuard. The ratios compare one link with both links in the same run.

use crate::{
    figures::{self, Figures},
    iperf3::{self, Length},
};
use anyhow::Result;
use clap::Parser;
use rustguard_tests::{BOTH, Gaps, INSIDE_B, LINKS, Lab, Loss, Program, Twice};
use std::{
    io::{self, Write as _},
    path::PathBuf,
};

/// Measures several endpoints of one peer on this machine, and prints a table. Changes nothing on the machine.
#[derive(Clone, Debug, Parser)]
#[command(name = "paths")]
pub struct Options {
    /// How often everything is measured
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..))]
    pub rounds: u16,
    /// The rate of a link, in Mbit/s
    #[arg(long, default_value_t = 100)]
    pub rate: u32,
    /// How long streams run, in seconds
    #[arg(long, default_value_t = 5)]
    pub seconds: u32,
    /// One short round, whose figures mean little
    #[arg(long)]
    pub quick: bool,
    /// Added by `cargo bench`
    #[arg(long, hide = true)]
    pub bench: bool,
}

/// The paths of RustGuard and wireguard-go, as environment for the process inside the namespaces. RustGuard is built if
/// necessary.
///
/// # Errors
/// If one of them is missing.
pub fn programs() -> Result<Vec<(&'static str, PathBuf)>> {
    let mut programs = crate::programs()?;
    programs.push(("RUSTGUARD_WIREGUARD_GO", rustguard_tests::wireguard_go()?));
    Ok(programs)
}

/// The rows: the name of the figure, and its target if there is one.
pub const ROWS: [(&str, &str); 9] = [
    ("four TCP streams, one link, Mbit/s", ""),
    ("four TCP streams, both links, Mbit/s", ""),
    ("both links : one link", "1.8"),
    ("both links : one link, the other direction", "1.8"),
    ("longest gap, a link lost both ways, ms", "1000"),
    ("longest gap, lost on the way there, ms", "1000"),
    ("longest gap, lost on the way back, ms", "1000"),
    ("longest gap, a stock peer (wireguard-go), ms", ""),
    ("bytes of probes a second, two links in use, sent", ""),
];

/// The size of the measurement.
struct Pace {
    rounds: u16,
    streams: Length,
    /// Echo requests while probes are counted.
    pings: u16,
    /// After a gap, so many echo requests must be answered, in case there is another gap.
    after: usize,
}

/// Measures inside the laboratory. Returns the table and the description of the machine, or `None` if the kernel cannot
/// limit links.
///
/// # Errors
/// If something does not start.
pub fn run(lab: &Lab, options: &Options) -> Result<Option<String>> {
    let pace = if options.quick {
        Pace { rounds: 1, streams: Length::Quick, pings: 5, after: 2 }
    } else {
        Pace { rounds: options.rounds, streams: Length::Seconds(options.seconds), pings: 25, after: 10 }
    };
    let mut figures = Figures::default();
    let mut rows = vec![Vec::new(); ROWS.len()];
    let network = Twice::new(lab, "10.1.0.2:51820 weight 1, 10.2.0.2:51820 weight 1")?;
    if !network.limit(lab, options.rate)? {
        return Ok(None);
    }
    {
        let _tunnels = network.start(lab, Program::Subject)?;
        for round in 1..=pace.rounds {
            say(&format!("streams, round {round}"))?;
            network.cut("two", Loss::Both)?;
            network.until("two", "does not answer", |path| path["state"] == "down")?;
            let alone = [streams(&network, pace.streams, false)?, streams(&network, pace.streams, true)?];
            network.mend()?;
            for link in LINKS {
                network.until(link, "takes flows", |path| path["weight"] == 1)?;
            }
            let both = [streams(&network, pace.streams, false)?, streams(&network, pace.streams, true)?];
            for (row, value) in [alone[0], both[0], both[0] / alone[0], both[1] / alone[1]].into_iter().enumerate() {
                rows[row].push(value);
            }
        }
        rows[8].push(probes(&network, pace.pings)?);
    }
    for (row, loss) in [(4, Loss::Both), (5, Loss::There), (6, Loss::Back)] {
        say(&format!("a link lost: {loss:?}"))?;
        let network = another(&network, BOTH);
        let _tunnels = network.start(lab, Program::Subject)?;
        for _ in 0..pace.rounds {
            network.until_up()?;
            let mut traffic = Gaps::start(&network.a, "traffic", INSIDE_B[0])?;
            let link = if network.paths()?[0]["active"] == true { "one" } else { "two" };
            network.cut(link, loss)?;
            network.until(link, "is left", |path| path["active"] == false)?;
            traffic.goes_on(pace.after)?;
            rows[row].push(traffic.longest().as_secs_f64() * 1e3);
            network.mend()?;
        }
    }
    say("a stock peer")?;
    for _ in 0..pace.rounds {
        // Each round has new tunnels, because handshakes that only look for a path are five seconds apart.
        let network = another(&network, BOTH);
        let _tunnels = network.start(lab, Program::Reference)?;
        let mut traffic = Gaps::start(&network.a, "traffic", INSIDE_B[0])?;
        // Wait until the peer is known to answer no probes.
        traffic.goes_on(40)?;
        let link =
            if network.a.run(&["wg", "show", "wga", "endpoints"])?.contains("10.1.0.2:") { "one" } else { "two" };
        network.cut(link, Loss::Both)?;
        traffic.goes_on(pace.after)?;
        rows[7].push(traffic.longest().as_secs_f64() * 1e3);
        network.mend()?;
    }
    for ((name, _), values) in ROWS.iter().zip(rows) {
        figures.add(*name, values);
    }
    let mut text = format!(
        "{}; links of {} Mbit/s; medians (lowest–highest) of {}; gaps by echo requests every 50 ms\n\n",
        figures::machine(),
        options.rate,
        pace.rounds
    );
    text += &figures.table("target", &ROWS)?;
    Ok(Some(text))
}

/// The same nodes, with other endpoints.
fn another(network: &Twice, endpoints: &str) -> Twice {
    let mut conf_a = network.conf_a.clone();
    conf_a.peers[0].endpoint = Some(endpoints.to_owned());
    Twice { a: network.a.clone(), b: network.b.clone(), conf_a, conf_b: network.conf_b.clone() }
}

/// Runs four streams. Returns the received rate in Mbit/s.
fn streams(network: &Twice, length: Length, back: bool) -> Result<f64> {
    Ok(iperf3::streams([&network.a, &network.b], INSIDE_B[0], 4, length, back)?.mbps)
}

/// The bytes per second of the probes that `a` sends during this number of pings, one every 200 ms. UDP and IPv4
/// headers are included.
fn probes(network: &Twice, pings: u16) -> Result<f64> {
    // A probe has 32 or 48 bytes of text by its version, and so 64 or 80 bytes of UDP payload. No other datagram has
    // these lengths.
    network.a.count("probes", "output", "udp dport 51820 udp length { 72, 88 }")?;
    network.a.sh(&format!("ping -q -n -i 0.2 -c {pings} {}", INSIDE_B[0]))?;
    Ok(network.a.counted_bytes("probes")? as f64 / (0.2 * f64::from(pings)))
}

fn say(what: &str) -> io::Result<()> {
    writeln!(io::stderr(), "measuring: {what}")
}
