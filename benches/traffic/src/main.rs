//! Traffic for the benchmark `links`: one process is one end of one kind of traffic.
//!
//! | Command | What it does | Numbers of its result |
//! |---|---|---|
//! | `tcp-receive ADDRESS NANOSECONDS` | accepts streams, counts what arrives in this time from the first byte on | bytes, nanoseconds |
//! | `tcp-send ADDRESS CONGESTION STREAMS` | writes streams until it is ended | – |
//! | `quic-receive ADDRESS NANOSECONDS` | the same with one stream of QUIC; `ready` is followed by its certificate | bytes, nanoseconds |
//! | `quic-send ADDRESS CERTIFICATE` | writes a stream until it is ended | – |
//! | `http-serve ADDRESS` | serves files | – |
//! | `http-get ADDRESS FILES` | gets so many files | nanoseconds |
//! | `video-receive ADDRESS FRAMES` | counts frames that are whole before their deadline | frames in time |
//! | `video-send ADDRESS FRAMES` | sends so many frames | frames |
//! | `ping ADDRESS COUNT NANOSECONDS` | sends an echo request each so many nanoseconds | median, 99th percentile (nanoseconds), answered |
//!
//! It tells the benchmark its state in lines that begin with `agent`: `agent ready`, then `agent result NUMBERS`, or
//! `agent failed: CAUSE`.
#![forbid(unsafe_code)]

#[cfg(feature = "http")]
mod http;
mod ping;
#[cfg(feature = "quic")]
mod quic;
mod tcp;
mod video;

use anyhow::{Context as _, Result, bail};
use std::{
    env,
    io::{self, Write as _},
    net::SocketAddr,
    process,
    sync::atomic::{AtomicU64, Ordering},
    thread,
    time::{Duration, Instant, SystemTime},
};

/// The port of all kinds of traffic.
const PORT: u16 = 5_201;
/// Bytes per write, and read.
const CHUNK: usize = 128 << 10;
/// After this time a process ends by itself.
const PATIENCE: Duration = Duration::from_secs(120);

fn main() {
    thread::spawn(|| {
        thread::sleep(PATIENCE);
        say("gave up");
        process::exit(1);
    });
    let arguments: Vec<String> = env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match run(&arguments) {
        Ok(numbers) => {
            let numbers: Vec<_> = numbers.iter().map(u64::to_string).collect();
            say(&format!("result {}", numbers.join(" ")));
        }
        Err(error) => {
            say(&format!("failed: {error:#}"));
            process::exit(1);
        }
    }
}

fn run(arguments: &[&str]) -> Result<Vec<u64>> {
    let (job, address, rest) = match arguments {
        [job, address, rest @ ..] => (*job, address.parse().context("an address")?, rest),
        _ => bail!("JOB ADDRESS …"),
    };
    let at = SocketAddr::new(address, PORT);
    let time = |nanos: &str| Ok::<_, anyhow::Error>(Duration::from_nanos(nanos.parse()?));
    match (job, rest) {
        ("tcp-receive", [nanos]) => tcp::receive(at, time(nanos)?),
        ("tcp-send", [congestion, streams]) => tcp::send(at, congestion, streams.parse()?),
        #[cfg(feature = "quic")]
        ("quic-receive", [nanos]) => quic::receive(at, time(nanos)?),
        #[cfg(feature = "quic")]
        ("quic-send", [certificate]) => quic::send(at, certificate),
        #[cfg(feature = "http")]
        ("http-serve", []) => http::serve(at),
        #[cfg(feature = "http")]
        ("http-get", [files]) => http::get(at, files.parse()?),
        ("video-receive", [frames]) => video::receive(at, frames.parse()?),
        ("video-send", [frames]) => video::send(at, frames.parse()?),
        ("ping", [count, nanos]) => ping::ping(address, count.parse()?, time(nanos)?),
        _ => bail!("{job}: no such job, or built without it"),
    }
}

/// Prints a line for the benchmark.
fn say(line: &str) {
    // An error means that the benchmark has ended.
    let _ = writeln!(io::stdout(), "agent {line}");
}

/// Bytes that several threads receive.
#[derive(Debug, Default)]
struct Counter(AtomicU64);

impl Counter {
    fn add(&self, bytes: usize) {
        self.0.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Waits for the first byte, and then for `time`. Returns the bytes of this time, and its exact length.
    fn over(&self, time: Duration) -> Vec<u64> {
        while self.0.load(Ordering::Relaxed) == 0 {
            thread::sleep(Duration::from_micros(200));
        }
        let begun = Instant::now();
        thread::sleep(time);
        vec![self.0.load(Ordering::Relaxed), nanos(begun.elapsed())]
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// The time since 1970, which two processes can compare.
fn unix_time() -> Duration {
    SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default()
}
