//! A tunnel without root beside one with an interface of the kernel: `rustguard up --rootless` and its forwarded ports.
//!
//! The same two nodes, the same other end (`rustguard up`), one after the other in each round.

use crate::{
    figures::{self, Figures, resident},
    iperf3::{self, Length},
};
use anyhow::{Context as _, Result, ensure};
use clap::Parser;
use rustguard_tests::{INSIDE_B, Lab, Outside, Pair, Process, Program, Tunnel};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::{
    fs,
    io::{self, Read as _, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
    thread,
    time::{Duration, Instant},
};

/// Measures a tunnel without root on this machine, and prints a table. Changes nothing on the machine.
#[derive(Clone, Debug, Parser)]
#[command(name = "rootless")]
pub struct Options {
    /// How often everything is measured
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..))]
    pub rounds: u16,
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

/// The rows: the name of the figure, and its target if there is one.
pub const ROWS: [(&str, &str); 11] = [
    ("TCP to the other end, an interface, Mbit/s", ""),
    ("TCP to the other end, rootless, Mbit/s", ""),
    ("rootless : interface", ""),
    ("TCP from the other end, an interface, Mbit/s", ""),
    ("TCP from the other end, rootless, Mbit/s", ""),
    ("rootless : interface, from the other end", ""),
    ("a byte and its answer, an interface, µs", ""),
    ("a byte and its answer, rootless, µs", ""),
    ("added by rootless, µs", "150"),
    ("a new connection with its first byte, rootless, ms", "2"),
    ("open connections, memory of the process, MB", "64"),
];

/// The port of the echo of bytes.
const ECHO: u16 = 7;
/// The port of iperf3.
const STREAMS: u16 = 5201;

/// Measures inside the laboratory. Returns the table and the description of the machine.
///
/// # Errors
/// If something does not start.
pub fn run(lab: &Lab, options: &Options) -> Result<String> {
    let (rounds, length, bytes, connections) = match options.quick {
        true => (1, Length::Quick, 20, 20),
        false => (options.rounds, Length::Seconds(options.seconds), 2_000, 1_000),
    };
    // Both ends of each connection are in this process.
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit })?;
    let pair = Pair::new(lab, Outside::V4)?;
    let _b = Tunnel::start(lab, &pair.b, Program::Subject, &pair.conf_b)?;
    let listener = pair.b.inside(|| Ok(TcpListener::bind((INSIDE_B[0], ECHO))?))?;
    thread::spawn(move || echo(&listener));
    let mut rows = vec![Vec::new(); ROWS.len()];
    for round in 1..=rounds {
        writeln!(io::stderr(), "round {round}")?;
        let [there, back, answer] = {
            let a = Tunnel::start(lab, &pair.a, Program::Subject, &pair.conf_a)?;
            pair.a.reaches(INSIDE_B[0], 10)?;
            let to: SocketAddr = format!("{}:{ECHO}", INSIDE_B[0]).parse()?;
            let figures = [
                streams(&pair, INSIDE_B[0], length, false)?,
                streams(&pair, INSIDE_B[0], length, true)?,
                trip(&pair, to, bytes)?,
            ];
            a.crash()?;
            figures
        };
        let mut process = start(lab, &pair)?;
        let to: SocketAddr = format!("127.0.0.1:{ECHO}").parse()?;
        let rootless = [
            streams(&pair, "127.0.0.1", length, false)?,
            streams(&pair, "127.0.0.1", length, true)?,
            trip(&pair, to, bytes)?,
        ];
        let connected: Vec<_> = (0..20).map(|_| connection(&pair, to)).collect::<Result<_>>()?;
        let held = (0..connections).map(|_| connection(&pair, to)).collect::<Result<Vec<_>>>()?;
        let memory = resident(&process.id().to_string())? as f64 / 1e6;
        ensure!(held.len() == connections, "not all are open");
        process.stop("TERM")?;
        let mut times: Vec<_> = connected.iter().map(|(_, time)| time.as_secs_f64() * 1e3).collect();
        times.sort_by(f64::total_cmp);
        let values = [
            there,
            rootless[0],
            rootless[0] / there,
            back,
            rootless[1],
            rootless[1] / back,
            answer,
            rootless[2],
            rootless[2] - answer,
            times[times.len() / 2],
            memory,
        ];
        for (row, value) in rows.iter_mut().zip(values) {
            row.push(value);
        }
    }
    let mut figures = Figures::default();
    for ((name, _), values) in ROWS.iter().zip(rows) {
        figures.add(*name, values);
    }
    Ok(format!("{}\n{connections} open connections; {}", figures.table("target", &ROWS)?, figures::machine()))
}

/// Starts side `a` without root, with ports that lead to the other end.
fn start(lab: &Lab, pair: &Pair) -> Result<Process> {
    let file = lab.file("rootless.conf", &pair.conf_a.wg_quick())?;
    let log = lab.path("rootless.log");
    if log.exists() {
        fs::remove_file(&log)?;
    }
    let mut command = pair.a.rustguard()?;
    command.args(["up", "--rootless"]);
    for port in [ECHO, STREAMS] {
        command.args(["--forward", &format!("{port}={}:{port}", INSIDE_B[0])]);
    }
    let mut process = pair.a.spawn("rootless", command.arg(file))?;
    process
        .until("it is ready", Duration::from_secs(30), || Ok(fs::read_to_string(&log)?.contains(":5201 leads to")))?;
    Ok(process)
}

fn streams(pair: &Pair, address: &str, length: Length, back: bool) -> Result<f64> {
    Ok(iperf3::streams([&pair.a, &pair.b], address, 1, length, back)?.mbps)
}

/// Answers each byte with itself.
fn echo(listener: &TcpListener) {
    for mut stream in listener.incoming().flatten() {
        thread::spawn(move || {
            let _ = stream.set_nodelay(true);
            let mut byte = [0];
            while stream.read_exact(&mut byte).and_then(|()| stream.write_all(&byte)).is_ok() {}
        });
    }
}

/// A connection that has carried a byte, and how long that took.
fn connection(pair: &Pair, to: SocketAddr) -> Result<(TcpStream, Duration)> {
    pair.a.inside(|| {
        let began = Instant::now();
        let mut stream = TcpStream::connect(to)?;
        stream.set_nodelay(true)?;
        stream.write_all(b"x")?;
        stream.read_exact(&mut [0]).context("no answer")?;
        Ok((stream, began.elapsed()))
    })
}

/// The median time of a byte and its answer, in microseconds.
fn trip(pair: &Pair, to: SocketAddr, count: usize) -> Result<f64> {
    let (mut stream, _) = connection(pair, to)?;
    let mut times = Vec::new();
    for _ in 0..count {
        let began = Instant::now();
        stream.write_all(b"x")?;
        stream.read_exact(&mut [0])?;
        times.push(began.elapsed());
    }
    times.sort_unstable();
    Ok(times[times.len() / 2].as_secs_f64() * 1e6)
}
