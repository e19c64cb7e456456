//! The measurements over each link.

use super::{emulator::Emulator, programs::Running};
use crate::{echoes::Echoes, tunnel::agent::Agent};
use anyhow::{Context as _, Result};
use clap::ValueEnum;
use rustguard_tests::{Lab, Node};
use std::{
    path::Path,
    thread,
    time::{Duration, Instant},
};

/// The kinds of traffic, and the disturbances.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Test {
    /// One TCP stream with CUBIC.
    Cubic,
    /// One TCP stream with BBR.
    Bbr,
    /// Ten TCP streams with CUBIC.
    Streams,
    /// One stream of QUIC (quinn).
    Quic,
    /// 300 files of 1 to 32 KiB over HTTP/1.1, with six connections.
    Http,
    /// A video of 4 Mbit/s, whose frames must arrive within 50 ms.
    Video,
    /// 100 echo requests a second.
    Ping,
    /// The daemon of the other node is killed with SIGKILL, and started again at once.
    Restart,
    /// The link loses everything for three seconds.
    Outage,
}

/// The durations of the tests.
pub(super) struct Pace {
    stream: Duration,
    files: u32,
    frames: u32,
    pings: u32,
    outage: Duration,
    /// The time in which the load of the machine is measured.
    pub(super) load: Duration,
}

pub(super) const FULL: Pace = Pace {
    stream: Duration::from_secs(5),
    files: 300,
    frames: 150,
    pings: 500,
    outage: Duration::from_secs(3),
    load: Duration::from_secs(1),
};
pub(super) const QUICK: Pace = Pace {
    stream: Duration::from_millis(200),
    files: 300,
    frames: 5,
    pings: 10,
    outage: Duration::from_secs(3),
    load: Duration::from_millis(100),
};

/// The time from one echo request to the next.
const PING: Duration = Duration::from_millis(10);
const STREAMS: usize = 10;
/// The limit for the end of silence. WireGuard notices after 15 s that a peer has forgotten a session.
const PATIENCE: Duration = Duration::from_secs(40);
/// Echo requests for this time show that the tunnel worked before the disturbance.
const WELL: Duration = Duration::from_millis(500);

impl Test {
    /// The rows of its figures.
    pub fn rows(self) -> &'static [&'static str] {
        match self {
            Self::Cubic => &["TCP CUBIC, Mbit/s"],
            Self::Bbr => &["TCP BBR, Mbit/s"],
            Self::Streams => &["ten streams of TCP CUBIC, Mbit/s"],
            Self::Quic => &["QUIC, Mbit/s"],
            Self::Http => &["300 small files over HTTP, s"],
            Self::Video => &["video of 4 Mbit/s, frames late or lost, %"],
            Self::Ping => &["ping, median, ms", "ping, 99th percentile, ms", "ping, lost, %"],
            Self::Restart => &["daemon killed and started again, silence, ms"],
            Self::Outage => &["link lost for 3 s, silence after its return, ms"],
        }
    }

    /// Whether it can measure a link without a tunnel.
    pub(super) fn is_for_links(self) -> bool {
        self != Self::Restart
    }
}

/// A process of benches/traffic, whose result is a list of numbers.
type Traffic = Agent<Vec<u64>>;

/// Where tests run.
pub(super) struct Place<'a> {
    pub(super) lab: &'a Lab,
    pub(super) nodes: [&'a Node; 2],
    pub(super) emulator: &'a Emulator,
    /// The program of benches/traffic.
    pub(super) traffic: &'a Path,
    pub(super) pace: &'a Pace,
}

impl Place<'_> {
    /// The figures of a test, one for each of its rows.
    ///
    /// # Errors
    /// If nothing passes.
    pub(super) fn measure(&self, test: Test, running: &mut Running<'_>) -> Result<Vec<f64>> {
        let pace = self.pace;
        match test {
            Test::Cubic => self.tcp(running, "cubic", 1),
            Test::Bbr => self.tcp(running, "bbr", 1),
            Test::Streams => self.tcp(running, "cubic", STREAMS),
            Test::Quic => self.quic(running),
            Test::Http => {
                let (_server, client) = self.pair(running, ("http-serve", &[]), ("http-get", &[pace.files.into()]))?;
                Ok(vec![client.result()?.first().context("a time")?.to_owned() as f64 / 1e9])
            }
            Test::Video => {
                let frames = u64::from(pace.frames);
                let (sink, _source) = self.pair(running, ("video-receive", &[frames]), ("video-send", &[frames]))?;
                let whole = *sink.result()?.first().context("a number of frames")?;
                Ok(vec![100.0 * (1.0 - whole as f64 / frames as f64)])
            }
            Test::Ping => {
                let arguments = [pace.pings.into(), nanos(PING)];
                let ping = self.agent(0, "ping", running, &words(&arguments))?.result()?;
                let &[p50, p99, answered] = ping.as_slice() else { anyhow::bail!("three numbers: {ping:?}") };
                let lost = 100.0 * (1.0 - answered as f64 / f64::from(pace.pings));
                Ok(vec![p50 as f64 / 1e6, p99 as f64 / 1e6, lost])
            }
            Test::Restart => self.silence(running, |running| {
                running.kill()?;
                let killed = Instant::now();
                running.restart(self.lab, self.nodes)?;
                Ok(killed)
            }),
            Test::Outage => self.silence(running, |_| {
                self.emulator.cut(true);
                thread::sleep(pace.outage);
                self.emulator.cut(false);
                Ok(Instant::now())
            }),
        }
    }

    fn tcp(&self, running: &Running<'_>, congestion: &str, streams: usize) -> Result<Vec<f64>> {
        let sink = self.agent(1, "tcp-receive", running, &words(&[nanos(self.pace.stream)]))?;
        let _source = self.agent(0, "tcp-send", running, &[congestion.to_owned(), streams.to_string()])?;
        mbps(&sink.result()?)
    }

    fn quic(&self, running: &Running<'_>) -> Result<Vec<f64>> {
        let sink = self.agent(1, "quic-receive", running, &words(&[nanos(self.pace.stream)]))?;
        let certificate = sink.greeting().to_owned();
        let _source = self.agent(0, "quic-send", running, &[certificate])?;
        mbps(&sink.result()?)
    }

    /// A process on the second node, and then one on the first that talks to it.
    fn pair(&self, running: &Running<'_>, there: (&str, &[u64]), here: (&str, &[u64])) -> Result<(Traffic, Traffic)> {
        let there = self.agent(1, there.0, running, &words(there.1))?;
        Ok((there, self.agent(0, here.0, running, &words(here.1))?))
    }

    /// Starts a process of benches/traffic.
    fn agent(&self, node: usize, job: &str, running: &Running<'_>, rest: &[String]) -> Result<Traffic> {
        let mut command = self.nodes[node].command(self.traffic);
        Traffic::of(command.arg(job).arg(running.inside().to_string()).args(rest), job)
    }

    /// Disturbs the tunnel. Returns the time from the moment that `disturb` returns to the first answer to an echo
    /// request that was sent after it.
    fn silence<'p>(
        &self,
        running: &mut Running<'p>,
        disturb: impl FnOnce(&mut Running<'p>) -> Result<Instant>,
    ) -> Result<Vec<f64>> {
        let echoes = Echoes::start(self.nodes[0], running.inside())?;
        echoes.first(Instant::now(), PATIENCE).context("before the disturbance")?;
        thread::sleep(WELL);
        let since = disturb(running)?;
        let answer = echoes.first(since, PATIENCE)?;
        Ok(vec![(answer.answered - since).as_secs_f64() * 1e3])
    }
}

/// Mbit/s from bytes and nanoseconds.
fn mbps(numbers: &[u64]) -> Result<Vec<f64>> {
    let &[bytes, nanos] = numbers else { anyhow::bail!("bytes and a time: {numbers:?}") };
    Ok(vec![bytes as f64 * 8e3 / nanos as f64])
}

fn words(numbers: &[u64]) -> Vec<String> {
    numbers.iter().map(u64::to_string).collect()
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
