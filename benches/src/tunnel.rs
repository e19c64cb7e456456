//! Whole tunnels between network namespaces, as users would run them, compared with wireguard-go if it is installed.
//!
//! ```text
//!    a  10.1.0.1 ── 10.1.0.2  b  10.2.0.1 ── 10.2.0.2  c
//!       fd01::1  ── fd01::2      fd02::1  ── fd02::2
//!    inside: 10.9.0.1, fd09::1    10.9.0.2, fd09::2    10.9.0.3, fd09::3
//! ```
//!
//! Each round measures each implementation in turn. `b` is started first, and then `a`, whose time to the first echo
//! reply is measured. Most figures are measured from `a` to `b`. At the end `c` is started, and `b` forwards the
//! traffic from `a` to `c`. [`agent`]s, which are processes of this program inside the namespaces, generate the
//! traffic.

pub mod agent;
pub(crate) mod daemon;
mod report;

use crate::RUSTGUARD;
use agent::Agent;
use anyhow::{Context as _, Result, ensure};
use clap::Parser;
use daemon::{Daemon, Implementation};
pub use report::ROWS;
use rustguard_tests::{Conf, Keypair, Lab, Node, PeerConf};
use std::{
    io::{self, Write as _},
    net::IpAddr,
    path::PathBuf,
    time::Duration,
};

/// The path of wireguard-go, for the process inside the namespaces.
const WIREGUARD_GO: &str = "RUSTGUARD_WIREGUARD_GO";

/// Measures a tunnel between network namespaces on this machine, and prints a table: RustGuard, and wireguard-go where
/// it is installed (in PATH or Go's bin folder, or named by RUSTGUARD_WIREGUARD_GO). Changes nothing on the machine.
#[derive(Clone, Debug, Parser)]
#[command(name = "tunnel")]
pub struct Options {
    /// How often everything is measured. The table has the medians
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..))]
    pub rounds: u16,
    /// Use IPv6, inside the tunnel and outside
    #[arg(long)]
    pub ipv6: bool,
    /// Run RustGuard without TUN offloads, as on kernels that refuse them
    #[arg(long)]
    pub no_offload: bool,
    /// One short round, whose figures mean little
    #[arg(long)]
    pub quick: bool,
    /// Added by `cargo bench`
    #[arg(long, hide = true)]
    pub bench: bool,
}

/// The paths of the programs, as environment for the process inside the namespaces. RustGuard is built if necessary.
/// wireguard-go is left out if it is not installed.
///
/// # Errors
/// If RustGuard does not build, or if the variable names a wireguard-go that does not exist.
pub fn programs() -> Result<Vec<(&'static str, PathBuf)>> {
    let mut programs = crate::programs()?;
    match rustguard_tests::wireguard_go() {
        Ok(program) => programs.push((WIREGUARD_GO, program)),
        Err(missing) if std::env::var_os(WIREGUARD_GO).is_some() => return Err(missing),
        Err(missing) => writeln!(io::stderr(), "Not compared: {missing:#}")?,
    }
    Ok(programs)
}

/// The figures of one round of one implementation.
#[derive(Clone, Debug, Default)]
pub struct Round {
    tcp_mbps: f64,
    tcp_cpu_s_per_gb: f64,
    offered_kpps: f64,
    flood_kpps: f64,
    flood_cpu_us: f64,
    paced_lost_percent: f64,
    paced_cpu_us: f64,
    ping_p50_us: f64,
    ping_p99_us: f64,
    loaded_ping_p99_ms: f64,
    rss_mb: f64,
    first_ping_ms: f64,
    relay_mbps: f64,
    relay_cpu_s_per_gb: f64,
}

/// The durations of the parts of a round.
struct Pace {
    tcp: Duration,
    udp: Duration,
    pings: u32,
    loaded_pings: u32,
}

const FULL: Pace = Pace { tcp: Duration::from_secs(4), udp: Duration::from_secs(2), pings: 2_000, loaded_pings: 600 };
const QUICK: Pace =
    Pace { tcp: Duration::from_millis(300), udp: Duration::from_millis(200), pings: 50, loaded_pings: 20 };

/// UDP payload of the flood, in bytes.
const FLOOD_SIZE: usize = 64;
/// UDP payload and rate of the paced stream, in bytes and datagrams a second: 350 Mbit/s.
const PACED_SIZE: usize = 1_200;
const PACED_RATE: u64 = 350_000_000 / 8 / PACED_SIZE as u64;

/// Measures inside the laboratory. Returns the table, and the description of the machine.
///
/// # Errors
/// If something does not start, or no packets pass through a tunnel.
pub fn run(lab: &Lab, options: &Options) -> Result<String> {
    let net = Net::new(lab, options.ipv6)?;
    let mut results: Vec<(Implementation, Vec<Round>)> = vec![(
        Implementation::RustGuard {
            program: std::env::var_os(RUSTGUARD).context("RUSTGUARD_BIN is not set")?.into(),
            offload: !options.no_offload,
        },
        Vec::new(),
    )];
    if let Some(program) = std::env::var_os(WIREGUARD_GO) {
        results.push((Implementation::WireguardGo { program: program.into() }, Vec::new()));
    }
    let (pace, rounds) = if options.quick { (&QUICK, 1) } else { (&FULL, options.rounds) };
    for n in 1..=rounds {
        for (implementation, measured) in &mut results {
            let name = implementation.name();
            writeln!(io::stderr(), "round {n} of {rounds}: {name}")?;
            measured.push(net.round(lab, implementation, pace).with_context(|| format!("round {n} of {name}"))?);
        }
    }
    report::table(&results, options)
}

/// The three nodes and their configurations.
struct Net {
    a: Node,
    b: Node,
    c: Node,
    confs: [Conf; 3],
    /// The addresses of `b` and `c` inside the tunnel.
    to_b: IpAddr,
    to_c: IpAddr,
}

impl Net {
    fn new(lab: &Lab, ipv6: bool) -> Result<Self> {
        let (a, b, c) = (lab.node("a")?, lab.node("b")?, lab.node("c")?);
        for (n, left, right) in [(1, &a, &b), (2, &b, &c)] {
            let (l, r) = (format!("left{n}"), format!("right{n}"));
            lab.link((left, &l), (right, &r))?;
            for (host, node, interface) in [(1, left, &l), (2, right, &r)] {
                node.sh(&format!(
                    "ip addr add 10.{n}.0.{host}/24 dev {interface}; ip addr add fd0{n}::{host}/64 dev {interface} nodad"
                ))?;
            }
        }
        for node in [&a, &b, &c] {
            // With this range, the agents' pings need no raw socket, and get only their own replies.
            node.sh("sysctl -qw net.ipv4.ping_group_range='0 0'")?;
        }
        b.sh("sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1")?;
        let inside = |host: u8| -> IpAddr {
            if ipv6 { [0xfd09, 0, 0, 0, 0, 0, 0, host.into()].into() } else { [10, 9, 0, host].into() }
        };
        Ok(Self { a, b, c, confs: confs(ipv6)?, to_b: inside(2), to_c: inside(3) })
    }

    fn round(&self, lab: &Lab, implementation: &Implementation, pace: &Pace) -> Result<Round> {
        let [conf_a, conf_b, conf_c] = &self.confs;
        let mut round = Round::default();
        let mut daemons = vec![Daemon::start(lab, &self.b, implementation, conf_b)?];
        let first_ping = Agent::first_ping(&self.a, self.to_b)?;
        let spawned = agent::unix_time();
        daemons.push(Daemon::start(lab, &self.a, implementation, conf_a)?);
        round.first_ping_ms = first_ping.result()?.saturating_sub(spawned).as_secs_f64() * 1e3;

        let ping = Agent::ping(&self.a, self.to_b, pace.pings, Duration::from_millis(1))?.result()?;
        (round.ping_p50_us, round.ping_p99_us) = (micros(ping.p50), micros(ping.p99));

        let (bytes, mbps, cpu) = self.tcp((&self.b, self.to_b), pace.tcp, &daemons, || Ok(()))?;
        (round.tcp_mbps, round.tcp_cpu_s_per_gb) = (mbps, cpu * 1e9 / bytes);

        let mut loaded = None;
        self.tcp((&self.b, self.to_b), pace.tcp, &daemons, || {
            loaded = Some(Agent::ping(&self.a, self.to_b, pace.loaded_pings, Duration::from_millis(5))?);
            Ok(())
        })?;
        let loaded = loaded.context("a ping under load")?.result()?;
        round.loaded_ping_p99_ms = micros(loaded.p99) / 1e3;

        let (sent, received, time, cpu) = self.udp(FLOOD_SIZE, None, pace.udp, &daemons)?;
        ensure!(sent > 0 && received > 0.0, "nothing of the flood arrived");
        // The sent rate is reported too, because a slow sender would hide the losses of a tunnel.
        round.offered_kpps = sent as f64 / pace.udp.as_secs_f64() / 1e3;
        (round.flood_kpps, round.flood_cpu_us) = (received / time / 1e3, cpu * 1e6 / received);
        let (sent, received, _, cpu) = self.udp(PACED_SIZE, Some(PACED_RATE), pace.udp, &daemons)?;
        ensure!(sent > 0 && received > 0.0, "nothing of the paced stream arrived");
        round.paced_lost_percent = 100.0 * (1.0 - received / sent as f64).max(0.0);
        round.paced_cpu_us = cpu * 1e6 / received;
        for daemon in &daemons {
            round.rss_mb = round.rss_mb.max(daemon.peak_rss_mb()?);
        }

        daemons.push(Daemon::start(lab, &self.c, implementation, conf_c)?);
        Agent::first_ping(&self.a, self.to_c)?.result()?;
        let (bytes, mbps, cpu) = self.tcp((&self.c, self.to_c), pace.tcp, &daemons, || Ok(()))?;
        (round.relay_mbps, round.relay_cpu_s_per_gb) = (mbps, cpu * 1e9 / bytes);
        daemons.into_iter().try_for_each(Daemon::stop)?;
        Ok(round)
    }

    /// Runs one stream from `a`. Returns the received bytes, Mbit/s, and the daemons' CPU seconds. `meanwhile` is
    /// called while the stream runs.
    fn tcp(
        &self,
        to: (&Node, IpAddr),
        time: Duration,
        daemons: &[Daemon],
        meanwhile: impl FnOnce() -> Result<()>,
    ) -> Result<(f64, f64, f64)> {
        let sink = Agent::tcp_sink(to.0, to.1)?;
        let before = cpu(daemons)?;
        let source = Agent::tcp_source(&self.a, to.1, time)?;
        meanwhile()?;
        source.result()?;
        let (bytes, took) = sink.result()?;
        let cpu = cpu(daemons)? - before;
        ensure!(bytes > 0, "nothing arrived over TCP");
        let bytes = bytes as f64;
        Ok((bytes, bytes * 8.0 / 1e6 / took.as_secs_f64(), cpu))
    }

    /// Sends datagrams from `a` to `b`. Returns how many were sent and received, the seconds from the first to the
    /// last, and the daemons' CPU seconds.
    fn udp(&self, size: usize, rate: Option<u64>, time: Duration, daemons: &[Daemon]) -> Result<(u64, f64, f64, f64)> {
        let sink = Agent::udp_sink(&self.b, self.to_b)?;
        let before = cpu(daemons)?;
        let sent = Agent::udp_source(&self.a, self.to_b, size, rate, time)?.result()?;
        let (received, took) = sink.result()?;
        Ok((sent, received as f64, took.as_secs_f64(), cpu(daemons)? - before))
    }
}

/// `a` and `c` have only the peer `b`, which is their route to all addresses inside. `b` learns their endpoints.
fn confs(ipv6: bool) -> Result<[Conf; 3]> {
    let conf = |interface: &str, host: u8| -> Result<Conf> {
        let mut conf = Conf::new(interface)?;
        conf.addresses = vec![format!("10.9.0.{host}/32"), format!("fd09::{host}/128")];
        Ok(conf)
    };
    let (mut a, mut b, mut c) = (conf("wga", 1)?, conf("wgb", 2)?, conf("wgc", 3)?);
    b.listen_port = Some(51_820);
    for (n, conf) in [(1, &mut a), (2, &mut c)] {
        let host = if n == 1 { 2 } else { 1 };
        let mut peer = PeerConf::new(&b.keys.public, "10.9.0.0/24, fd09::/64");
        peer.endpoint = Some(if ipv6 { format!("[fd0{n}::{host}]:51820") } else { format!("10.{n}.0.{host}:51820") });
        // No other node knows the endpoint of `c`, so `c` has to begin the handshake.
        peer.persistent_keepalive = Some(25).filter(|_| n == 2);
        conf.peers.push(peer);
    }
    for (host, Keypair { public, .. }) in [(1, &a.keys), (3, &c.keys)] {
        b.peers.push(PeerConf::new(public, &format!("10.9.0.{host}/32, fd09::{host}/128")));
    }
    Ok([a, b, c])
}

fn cpu(daemons: &[Daemon]) -> Result<f64> {
    daemons.iter().map(Daemon::cpu_seconds).sum()
}

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}
