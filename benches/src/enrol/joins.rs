//! Machines that join: `rustguard serve` on one node, `rustguard join` on another node, and a third node that floods.
//!
//! A time begins with the start of the program and ends with the first echo reply from the server's address inside the
//! tunnel. An echo request is sent every millisecond. The targets are for builds of the bench profile. A test's build
//! is slower.

use super::{Figures, Pace};
use crate::{
    figures::cpu_seconds,
    tunnel::agent::{Agent, unix_time},
};
use anyhow::{Context as _, Result, ensure};
use rustguard_tests::{Flood, Lab, Network, Node, Process, Served, garbage, spawn_until_ready, stranger};
use std::{
    fs,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::Path,
    process::Command,
    thread,
    time::{Duration, Instant},
};

/// The server's address inside the tunnel.
const INSIDE: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 150, 0, 1));
/// The address of the server for the third machine.
const FLOODED: ([u8; 4], u16) = ([10, 2, 0, 1], 51_820);
/// Datagrams of a flood per second.
const RATE: u64 = 100_000;
/// The first source address of a flood from many addresses, and their number.
const SOURCES: ([u8; 4], u32) = ([10, 2, 1, 0], 250);
/// The time from the start of a flood to the first join. In this time the flood uses up the initial burst of every rate
/// limit.
const SETTLE: Duration = Duration::from_millis(1_500);
/// The duration of a flood. It is longer than any measurement, and the benchmark ends the flood.
const LONG: Duration = Duration::from_secs(300);

/// The CPU time that `serve` has used, and the datagrams that were sent to it.
struct Load {
    at: Instant,
    cpu: f64,
    arrived: u64,
    lost: u64,
}

struct Bench<'l> {
    lab: &'l Lab,
    network: Network,
    served: Served,
}

pub(super) fn measure(lab: &Lab, pace: &Pace, disk: &Path, figures: &mut Figures) -> Result<()> {
    let mut bench = Bench::new(lab, disk)?;
    let rounds = 0..pace.rounds;
    let (mut by_invite, mut by_code, mut up) = (Vec::new(), Vec::new(), Vec::new());
    for _ in rounds.clone() {
        by_invite.push(bench.by_invite()?);
        let mut command = bench.network.machines[0].rustguard()?;
        up.push(bench.to_first_ping(command.args(["up", "rg1"]))?);
        let code = bench.network.open(&["60"])?;
        by_code.push(bench.join(&code)?);
        bench.network.ask(&["close"])?;
    }
    figures.add("`join` by invite to first ping, ms", by_invite);
    figures.add("`join` by code to first ping, ms", by_code);
    figures.add("`up` afterwards to first ping, ms", up);

    let token = bench.network.invite(&[])?;
    for (name, datagram, sources, rate) in [
        ("garbage, 100 kpps", garbage(&token)?, None, Some(RATE)),
        ("strangers, 100 kpps", stranger(&token)?, None, Some(RATE)),
        ("250 strangers, 100 kpps", stranger(&token)?, Some((SOURCES.0.into(), SOURCES.1)), Some(RATE)),
        ("250 strangers, line rate", stranger(&token)?, Some((SOURCES.0.into(), SOURCES.1)), None),
    ] {
        let flood =
            Flood { rate: pace.rate.or(rate), sources, ..Flood::new(SocketAddr::from(FLOODED), LONG, datagram) };
        let flood = Agent::flood(&bench.network.machines[1], &flood)?;
        thread::sleep(if pace.rounds > 1 { SETTLE } else { Duration::ZERO });
        let before = bench.load()?;
        let joins = rounds.clone().map(|_| bench.by_invite()).collect::<Result<Vec<_>>>().context(name)?;
        let after = bench.load()?;
        drop(flood);
        let (seconds, arrived) = ((after.at - before.at).as_secs_f64(), (after.arrived - before.arrived) as f64);
        figures.add(format!("{name}: arrived, kpps"), [arrived / seconds / 1e3]);
        let cpu = (after.cpu - before.cpu) * 1e6 / arrived;
        figures.add(format!("{name}: CPU of `serve` per datagram, µs"), [cpu]);
        let lost = 100.0 * (after.lost - before.lost) as f64 / arrived;
        figures.add(format!("{name}: lost before the server saw them, %"), [lost]);
        figures.add(format!("{name}: `join` by invite to first ping, ms"), joins);
    }
    bench.served.stop()
}

impl<'l> Bench<'l> {
    /// Builds the network, and starts the server with its state on the disk.
    fn new(lab: &'l Lab, disk: &Path) -> Result<Self> {
        let network = Network::new(lab, 2)?;
        let (state, disk) = (Path::new("/var/lib/rustguard"), disk.join("state"));
        fs::create_dir_all(&disk)?;
        fs::create_dir_all(state)?;
        let bound = Command::new("mount").arg("--bind").arg(&disk).arg(state).status()?;
        ensure!(bound.success(), "{} cannot be bound to {}", disk.display(), state.display());
        let (server, [machine, flooder]) = (&network.server, &*network.machines) else { anyhow::bail!("two machines") };
        // With this range, the agents' pings need no raw socket. Without default routes, only the tunnel leads to the
        // server's address inside.
        machine.sh("sysctl -qw net.ipv4.ping_group_range='0 0'; ip route del default; ip -6 route del default")?;
        flooder.sh("ip route add local 10.2.1.0/24 dev lo")?;
        server.sh("ip route add 10.2.1.0/24 via 10.2.0.2")?;
        let mut command = server.rustguard()?;
        command.args(["serve", "-i", "rgs", "--pool", "10.150.0.0/16"]).env("RUSTGUARD_LOG", "error");
        let served = network.serve_by(lab, &mut command)?;
        Ok(Self { lab, network, served })
    }

    fn by_invite(&self) -> Result<f64> {
        self.join(&self.network.invite(&[])?)
    }

    /// Joins with a new machine. Returns milliseconds.
    fn join(&self, token: &str) -> Result<f64> {
        for file in ["/var/lib/rustguard/rg1/key", "/etc/rustguard/rg1.conf"] {
            if Path::new(file).exists() {
                fs::remove_file(file)?;
            }
        }
        self.to_first_ping(&mut self.network.join_command(1, &["10.1.0.1", "--token", token])?)
    }

    /// Measures the time from the start of the program to the first answer, in milliseconds, and ends the program.
    fn to_first_ping(&self, command: &mut Command) -> Result<f64> {
        let machine = &self.network.machines[0];
        let ping = Agent::first_ping(machine, INSIDE)?;
        let started = unix_time();
        let mut process = self.start(machine, command)?;
        let took = ping.result()?.saturating_sub(started);
        process.stop("TERM")?;
        Ok(took.as_secs_f64() * 1e3)
    }

    fn start(&self, machine: &Node, command: &mut Command) -> Result<Process> {
        // A machine that gets no answer says so.
        spawn_until_ready(self.lab, machine, "rg1", command.env("RUSTGUARD_LOG", "warn"))
    }

    fn load(&mut self) -> Result<Load> {
        let server = &self.network.server;
        let arrived = server.run(&["cat", "/sys/class/net/to2/statistics/rx_packets"])?.trim().parse()?;
        let text = server.run(&["nstat", "-asz", "UdpRcvbufErrors"])?;
        let line = text.lines().find_map(|line| line.strip_prefix("UdpRcvbufErrors")).context("a line of nstat")?;
        let full: u64 = line.split_whitespace().next().context("a number of nstat")?.parse()?;
        let shown = server.end_of(server.rustguard()?.args(["show", "rgs", "--json"]))?;
        let shown: serde_json::Value = serde_json::from_str(&shown.stdout)?;
        let queue = shown[0]["dropped"]["datagram_queue_full"].as_u64().unwrap_or(0);
        let id = self.served.process().id();
        let cpu = cpu_seconds(id)?;
        Ok(Load { at: Instant::now(), cpu, arrived, lost: full + queue })
    }
}
