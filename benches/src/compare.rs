//! A network of two members behind NATs and a server, by RustGuard and by comparable programs.
//!
//! ```text
//!    home    192.168.1.11 ── router ──┐
//!                                     ├── core ── server 198.51.100.1
//!    office  192.168.1.11 ── router ──┘
//! ```
//!
//! Both routers use NAT, keep ports, and let in only answers. While times are measured, each of the three nodes sends
//! with a delay of `DELAY`: a direct round trip takes twice that, one through the server four times. The round trip of
//! an echo request therefore shows its path, whatever the program reports. Throughput is measured without delay;
//! counters of the core show that the bytes took the measured path.
//!
//! Each round measures each program in turn, without earlier state.

mod nebula;
pub(crate) mod program;
mod report;
mod rustguard;
mod tailscale;

use crate::{
    echoes::Echoes,
    figures,
    iperf3::{self, Length},
    tunnel::agent::Agent,
};
use anyhow::{Context as _, Result, ensure};
use clap::Parser;
use program::{Network, Program, Who};
pub use report::ROWS;
use rustguard_tests::{Host, Internet, Ip, Lab, Nat, Node, Site, eventually};
use std::{
    io::{self, Write as _},
    net::IpAddr,
    path::PathBuf,
    thread,
    time::{Duration, Instant},
};

/// The delay of packets from a site or the server.
const DELAY: Duration = Duration::from_millis(20);
/// A round trip below this is direct: halfway between twice and four times [`DELAY`].
const DIRECT: Duration = Duration::from_millis(60);
/// The limit for a member to reach another one.
const REACHED: Duration = Duration::from_secs(90);
/// The limit for a path to become direct.
const BECAME_DIRECT: Duration = Duration::from_secs(30);

/// The durations of the parts of a round.
struct Pace {
    /// The time for the programs' initial work, before they count as idle.
    settled: Duration,
    streams: Length,
    pings: u32,
    /// The time in which the load of the machine is measured.
    load: Duration,
}

/// Measures networks of two members behind NATs and a server on this machine: RustGuard, and Tailscale and Nebula if
/// they are installed. Prints a table. Changes nothing on the machine. Needs root.
#[derive(Clone, Debug, Parser)]
#[command(name = "compare")]
pub struct Options {
    /// How often everything is measured. The table has the medians
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..))]
    pub rounds: u16,
    /// How long streams run, in seconds
    #[arg(long, default_value_t = 3)]
    pub seconds: u32,
    /// Only these programs, which must then be installed
    #[arg(long, value_delimiter = ',')]
    pub only: Vec<Program>,
    /// Also write the table into this document, in place of the old one: docs/compare.md
    #[arg(long)]
    pub into: Option<PathBuf>,
    /// One short round, whose figures mean little
    #[arg(long)]
    pub quick: bool,
    /// Added by `cargo bench`
    #[arg(long, hide = true)]
    pub bench: bool,
}

/// The figures of one round of one program. `None` if something did not happen within its limit.
#[derive(Clone, Debug, Default)]
pub struct Round {
    joined_ms: Option<f64>,
    direct_ms: Option<f64>,
    ping_us: Option<f64>,
    direct: Streams,
    silence_ms: Option<f64>,
    relayed: Streams,
    restarted_ms: Option<f64>,
    moved_ms: Option<f64>,
    member_idle_mb: Option<f64>,
    member_mb: Option<f64>,
    server_idle_mb: Option<f64>,
    server_mb: Option<f64>,
}

/// The figures of TCP streams from one member to the other.
#[derive(Clone, Debug, Default)]
struct Streams {
    one_mbps: Option<f64>,
    four_mbps: Option<f64>,
    /// CPU seconds of all three nodes for a GB, with four streams.
    cpu: Option<f64>,
}

/// Measures inside the laboratory. Returns the description of the machine and the table.
///
/// # Errors
/// If something does not start, or no packets pass.
pub fn run(lab: &Lab, options: &Options) -> Result<String> {
    let mut place = Place::new(lab)?;
    let mut results: Vec<(Program, String, Vec<Round>)> = Vec::new();
    let all = <Program as clap::ValueEnum>::value_variants();
    for program in if options.only.is_empty() { all } else { &options.only } {
        match program.missing() {
            None => results.push((*program, program.version()?, Vec::new())),
            Some(how) => {
                ensure!(options.only.is_empty(), "{program:?} is not installed: {how}");
                writeln!(io::stderr(), "Not compared: {program:?} ({how})")?;
            }
        }
    }
    let (rounds, pace) = if options.quick {
        let short = Duration::from_millis(100);
        (1, Pace { settled: short, streams: Length::Quick, pings: 50, load: short })
    } else {
        let settled = Duration::from_secs(2);
        let streams = Length::Seconds(options.seconds);
        (options.rounds, Pace { settled, streams, pings: 500, load: Duration::from_secs(1) })
    };
    let mut loads = Vec::new();
    for n in 1..=rounds {
        for (program, _, measured) in &mut results {
            writeln!(io::stderr(), "round {n} of {rounds}: {}", program.heading())?;
            loads.push(figures::busy(pace.load)?);
            let round = place.round(lab, *program, &pace);
            measured.push(round.with_context(|| format!("round {n} of {}", program.heading()))?);
        }
    }
    report::table(&results, &mut loads)
}

/// The network for all measurements.
struct Place {
    internet: Internet,
    server: Host,
    /// `home` and `office`.
    sites: [Site; 2],
}

impl Place {
    fn new(lab: &Lab) -> Result<Self> {
        let mut internet = Internet::new(lab)?;
        let server = internet.host(lab, "server", Ip::V4)?;
        let home = internet.site(lab, "home", Nat::PortKept, Ip::V4, 1)?;
        let office = internet.site(lab, "office", Nat::PortKept, Ip::V4, 1)?;
        for name in ["server", "home", "office"] {
            internet.delay(name, DELAY)?;
        }
        internet.count("home", "office")?;
        internet.count("server", "office")?;
        let place = Self { internet, server, sites: [home, office] };
        for who in [Who::Home, Who::Office] {
            // With this range, echo requests need no raw socket, and get only their own replies.
            place.node(who).sh("sysctl -qw net.ipv4.ping_group_range='0 0'")?;
        }
        Ok(place)
    }

    fn node(&self, who: Who) -> &Node {
        &self.sites[who as usize].members[0]
    }

    /// The address of a member inside the tunnel, as soon as it has one.
    fn inside(&self, network: &dyn Network, who: Who) -> Result<IpAddr> {
        let (node, mut address) = (self.node(who), None);
        eventually("a member has an address", REACHED, || {
            let shown = node.sh(&format!("ip -4 -o addr show dev {} || true", network.interface(who)))?;
            let mut words = shown.split_whitespace().skip_while(|word| *word != "inet").skip(1);
            address = words.next().and_then(|address| address.split('/').next()?.parse().ok());
            Ok(address.is_some())
        })?;
        address.context("an address")
    }

    /// One round of one program, without earlier state.
    fn round(&mut self, lab: &Lab, program: Program, pace: &Pace) -> Result<Round> {
        let mut network = program.network(lab)?;
        let network = &mut *network;
        let mut round = Round::default();
        let server = network.serve(lab, &self.server)?;
        let office = network.join(lab, self.node(Who::Office), Who::Office)?;
        let to_office = self.inside(network, Who::Office)?;
        thread::sleep(pace.settled);

        let echoes = Echoes::start(self.node(Who::Home), to_office)?;
        let begun = Instant::now();
        let mut home = network.join(lab, self.node(Who::Home), Who::Home)?;
        let first = echoes.first(begun, REACHED).context("after the join")?;
        round.joined_ms = Some(millis(first.answered - begun));
        let direct = echoes.steady(begun, DIRECT, BECAME_DIRECT);
        round.direct_ms = direct.map(|direct| millis(direct.answered - first.answered));
        drop(echoes);

        let to_home = self.inside(network, Who::Home)?;
        let echoes = Echoes::start(self.node(Who::Office), to_home)?;
        echoes.first(Instant::now(), REACHED).context("before the restart")?;
        home.stop("KILL")?;
        let begun = Instant::now();
        home = network.restart(lab, self.node(Who::Home), Who::Home)?;
        let answer = echoes.first(begun, REACHED).context("after the restart")?;
        round.restarted_ms = Some(millis(answer.answered - begun));
        drop(echoes);

        let echoes = Echoes::start(self.node(Who::Home), to_office)?;
        direct_again(&echoes);
        self.internet.move_site(&mut self.sites[Who::Home as usize])?;
        let begun = Instant::now();
        let answer = echoes.first(begun, REACHED).context("after the change of the address")?;
        round.moved_ms = Some(millis(answer.answered - begun));

        let is_direct = direct_again(&echoes);
        drop(echoes);
        self.internet.suspend_delays(true)?;
        thread::sleep(pace.settled);
        let daemons = [server.id(), home.id(), office.id()];
        (round.member_idle_mb, round.server_idle_mb) = (Some(resident_mb(home.id())?), Some(resident_mb(server.id())?));
        if is_direct {
            let ping = Agent::ping(self.node(Who::Home), to_office, pace.pings, Duration::from_millis(1))?.result()?;
            round.ping_us = Some(ping.p50.as_secs_f64() * 1e6);
            round.direct = self.streams(to_office, pace.streams, &daemons, ("home", "office"))?;
        }

        let echoes = Echoes::start(self.node(Who::Home), to_office)?;
        echoes.first(Instant::now(), REACHED).context("before the direct path is blocked")?;
        self.internet.block("home", "office")?;
        let begun = Instant::now();
        let answer = echoes.first(begun, REACHED).context("after the direct path was blocked")?;
        round.silence_ms = Some(millis(answer.answered - begun)).filter(|_| is_direct);
        drop(echoes);
        round.relayed = self.streams(to_office, pace.streams, &daemons, ("server", "office"))?;
        (round.member_mb, round.server_mb) = (Some(resident_mb(home.id())?), Some(resident_mb(server.id())?));

        drop((home, office, server));
        self.internet.unblock("home", "office")?;
        self.internet.suspend_delays(false)?;
        self.sites.iter().try_for_each(Site::forget)?;
        Ok(round)
    }

    /// Runs one stream, and then four.
    fn streams(&self, to: IpAddr, length: Length, daemons: &[u32], way: (&str, &str)) -> Result<Streams> {
        let mut streams = Streams::default();
        for (parallel, mbps) in [(1, &mut streams.one_mbps), (4, &mut streams.four_mbps)] {
            let begun = Instant::now();
            let (received, used) = loop {
                let (before, counted) = (cpu(daemons)?, self.internet.counted(way.0, way.1)?);
                let nodes = [self.node(Who::Home), self.node(Who::Office)];
                let received = iperf3::streams(nodes, &to.to_string(), parallel, length, false)?;
                let (used, counted) = (cpu(daemons)? - before, self.internet.counted(way.0, way.1)? - counted);
                // At least nine tenths must take the measured path. On a busy machine, a program may lose it for a
                // moment.
                if counted as f64 > 0.9 * received.bytes {
                    break (received, used);
                }
                let other = format!("{counted} of {} bytes went from {} to {}", received.bytes, way.0, way.1);
                ensure!(begun.elapsed() < BECAME_DIRECT, "{other}");
                writeln!(io::stderr(), "measured again: {other}")?;
            };
            *mbps = Some(received.mbps);
            streams.cpu = Some(used * 1e9 / received.bytes);
        }
        Ok(streams)
    }
}

/// Waits until the path is direct. Returns whether it is.
fn direct_again(echoes: &Echoes) -> bool {
    echoes.steady(Instant::now(), DIRECT, BECAME_DIRECT).is_some()
}

fn cpu(daemons: &[u32]) -> Result<f64> {
    daemons.iter().map(|id| figures::cpu_seconds(*id)).sum()
}

/// The resident memory of a process, in MB.
fn resident_mb(id: u32) -> Result<f64> {
    Ok(figures::resident(&id.to_string())? as f64 / 1e6)
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
