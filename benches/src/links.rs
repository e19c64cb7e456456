//! Tunnels over links that delay, lose and reorder, with typical traffic.
//!
//! | File | What is in it |
//! |---|---|
//! | `profile` | the links |
//! | `direction` | what happens to packets, with a clock and random numbers from outside |
//! | `emulator` | the link between two network namespaces |
//! | `programs` | RustGuard and the others, and how they are started |
//! | `tests` | what is measured |
//! | `report` | the tables |
//!
//! The traffic is made by the programs in `benches/traffic`, a workspace of its own, which is built when the benchmark
//! starts. In each round, each program has each link in turn.

mod direction;
mod emulator;
mod profile;
mod programs;
mod report;
mod tests;

use crate::{RUSTGUARD, echoes::Echoes, figures};
use anyhow::{Context as _, Result, ensure};
use clap::{Parser, ValueEnum};
use emulator::Emulator;
pub use profile::Profile;
use programs::Program;
use report::Column;
use rustguard_tests::{Lab, Node};
use std::{
    env, fs,
    io::{self, Write as _},
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};
pub use tests::Test;
use tests::{FULL, Place, QUICK};

/// The environment variable that gives the process inside the namespaces the path of the program of benches/traffic.
const TRAFFIC: &str = "RUSTGUARD_TRAFFIC";
/// The limit for a new tunnel to carry something.
const REACHED: Duration = Duration::from_secs(30);

/// Measures tunnels over emulated links between two network namespaces on this machine, and prints tables: the link
/// alone, RustGuard, and those of wireguard-go, boringtun, gotatun, tinc and Nebula that are installed. Changes nothing
/// on the machine.
#[derive(Clone, Debug, Parser)]
#[command(name = "links")]
pub struct Options {
    /// How often everything is measured. The tables have the medians
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..))]
    pub rounds: u16,
    /// One short round, whose figures mean little
    #[arg(long)]
    pub quick: bool,
    /// Only these links. `lossy` and `lossier` are measured only if they are named
    #[arg(long, value_delimiter = ',')]
    pub profile: Vec<Profile>,
    /// Only these tests
    #[arg(long, value_delimiter = ',')]
    pub only: Vec<Test>,
    /// Only these programs: link, RustGuard, wireguard-go, boringtun, gotatun, tinc, nebula, or a NAME of --also
    #[arg(long, value_delimiter = ',')]
    pub program: Vec<String>,
    /// Also another build of RustGuard, as NAME=PROGRAM
    #[arg(long, value_parser = named)]
    pub also: Vec<(String, PathBuf)>,
    /// Also RustGuard with one byte of parity for this many bytes of data, as the program `parity`
    #[arg(long)]
    pub parity: Option<u8>,
    /// Lose and delay super-packets as a whole, as an emulator on the sending machine does. Otherwise each packet is
    /// lost or delayed by itself, as on a real link
    #[arg(long)]
    pub super_packets: bool,
    /// The seed of the links' random numbers, as printed by an earlier run
    #[arg(long)]
    pub seed: Option<u32>,
    /// Also write the tables into this document, in place of the old ones: docs/links.md
    #[arg(long)]
    pub into: Option<PathBuf>,
    /// Added by `cargo bench`
    #[arg(long, hide = true)]
    pub bench: bool,
}

fn named(text: &str) -> Result<(String, PathBuf), String> {
    let (name, path) = text.split_once('=').ok_or("NAME=PROGRAM")?;
    let path = fs::canonicalize(path).map_err(|error| format!("{path}: {error}"))?;
    Ok((name.to_owned(), path))
}

/// The paths of RustGuard and of the traffic program, as environment variables for the process inside the namespaces.
/// Both are built if necessary.
///
/// # Errors
/// If one of them does not build.
pub fn programs() -> Result<Vec<(&'static str, PathBuf)>> {
    let mut programs = crate::programs()?;
    programs.push((TRAFFIC, traffic(&["--release"])?));
    Ok(programs)
}

/// Builds benches/traffic with these options of cargo, and returns the path of the program. An existing build is used
/// again, and needs no network.
///
/// # Errors
/// If it does not build.
pub fn traffic(options: &[&str]) -> Result<PathBuf> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let target = here.parent().context("the workspace's folder")?.join("target/traffic");
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(["build", "--locked", "--manifest-path"]).arg(here.join("traffic/Cargo.toml"));
    command.args(options).arg("--target-dir").arg(&target);
    // Cargo's variables for this package would be wrong for the other one.
    for (name, _) in env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("CARGO_PKG_")) {
        command.env_remove(name);
    }
    let built = command.env_remove("CARGO_MANIFEST_DIR").env_remove("CARGO_TARGET_DIR").status()?;
    ensure!(built.success(), "benches/traffic does not build");
    Ok(target.join(if options.contains(&"--release") { "release" } else { "debug" }).join("traffic"))
}

/// Measures inside the laboratory. Returns the description of the machine and the tables.
///
/// # Errors
/// If a link cannot be made, or an option names something unknown. A failed test is printed to standard error, and
/// counted in the table.
pub fn run(lab: &Lab, options: &Options) -> Result<String> {
    let rustguard = PathBuf::from(env::var_os(RUSTGUARD).with_context(|| format!("{RUSTGUARD} is not set"))?);
    let traffic = PathBuf::from(env::var_os(TRAFFIC).with_context(|| format!("{TRAFFIC} is not set"))?);
    run_with(lab, options, rustguard, &traffic)
}

/// Like [`run`], with these programs of RustGuard and of benches/traffic.
///
/// # Errors
/// Like [`run`].
pub fn run_with(lab: &Lab, options: &Options, rustguard: PathBuf, traffic: &Path) -> Result<String> {
    let (a, b) = (lab.node("a")?, lab.node("b")?);
    let nodes = [&a, &b];
    for node in nodes {
        // With this range, echo requests need no raw socket, and get only their own replies.
        node.sh("sysctl -qw net.ipv4.ping_group_range='0 0'")?;
    }
    let emulator = Emulator::new(nodes, options.super_packets)?;
    if !emulator.has_real_time() {
        say("The emulator waits for processors: without root, there is no real-time priority.")?;
    }
    let programs = chosen(rustguard, options)?;
    let tests = available(&a, options)?;
    let profiles = if options.profile.is_empty() { &Profile::USUAL[..] } else { &options.profile };
    let rounds = if options.quick { 1 } else { options.rounds };
    let seed = options.seed.unwrap_or_else(rand::random);
    say(&format!("The seed is {seed}."))?;

    let place = Place { lab, nodes, emulator: &emulator, traffic, pace: if options.quick { &QUICK } else { &FULL } };
    let empty = || programs.iter().map(|program| column(program, &tests)).collect();
    let mut results: Vec<(Profile, Vec<Column>)> = profiles.iter().map(|profile| (*profile, empty())).collect();
    let mut loads = Vec::new();
    for n in 1..=rounds {
        for (profile, columns) in &mut results {
            for (program, column) in programs.iter().zip(columns) {
                loads.push(figures::busy(place.pace.load)?);
                let of = format!("round {n} of {rounds}, {profile:?}, {}", program.name);
                say(&of)?;
                // All programs have the same random numbers in a round.
                let seed = u64::from(seed) << 16 | u64::from(n);
                place.round(program, *profile, seed, column, &of)?;
            }
        }
    }
    let crossed = emulator.crossed();
    let crowded_out: u64 = crossed.directions.iter().map(|counts| counts.crowded_out).sum();
    if crowded_out + crossed.refused > 0 {
        say(&format!("The link had no room for {crowded_out} packets, and the nodes refused {}.", crossed.refused))?;
    }
    let headings: Vec<_> = programs.iter().map(Program::heading).collect();
    let heading = report::heading(rounds, seed.into(), options.super_packets, options.quick, &mut loads);
    Ok(heading + &report::tables(&headings, &results, &tests))
}

/// A column without figures. A link has no daemon, so it has no restart test.
fn column(program: &Program, tests: &[Test]) -> Column {
    let tests = tests.iter().filter(|test| !program.is_link() || test.is_for_links());
    tests.map(|test| (*test, Vec::new())).collect()
}

impl Place<'_> {
    /// Starts a program on a link, and adds the figures of each test to its column.
    fn round(&self, program: &Program, profile: Profile, seed: u64, column: &mut Column, of: &str) -> Result<()> {
        self.emulator.set(profile.impairment(), seed);
        let started = program.start(self.lab, self.nodes).and_then(|running| {
            let echoes = Echoes::start(self.nodes[0], running.inside())?;
            echoes.first(Instant::now(), REACHED)?;
            Ok(running)
        });
        let mut running = match started {
            Ok(running) => running,
            Err(error) => {
                say(&format!("{of}: does not start: {error:#}"))?;
                column.iter_mut().for_each(|(_, rounds)| rounds.push(None));
                return Ok(());
            }
        };
        for (test, rounds) in column {
            self.emulator.set(profile.impairment(), seed);
            let values = self.measure(*test, &mut running);
            if let Err(error) = &values {
                say(&format!("{of}: {test:?}: {error:#}"))?;
            }
            rounds.push(values.ok());
        }
        Ok(())
    }
}

/// The programs that the options select. Prints the missing ones.
fn chosen(rustguard: PathBuf, options: &Options) -> Result<Vec<Program>> {
    let (mut programs, missing) = programs::all(rustguard, &options.also, options.parity)?;
    let is = |name: &str, program: &Program| program.name.eq_ignore_ascii_case(name);
    for name in &options.program {
        ensure!(
            programs.iter().any(|program| is(name, program)),
            "--program {name}: there is no such program, or it is not installed"
        );
    }
    if options.program.is_empty() {
        for missing in missing {
            say(&format!("Not measured: {missing}"))?;
        }
    } else {
        programs.retain(|program| options.program.iter().any(|name| is(name, program)));
    }
    Ok(programs)
}

/// The tests that the options select, without BBR if the kernel does not have it.
fn available(node: &Node, options: &Options) -> Result<Vec<Test>> {
    let mut tests = if options.only.is_empty() { Test::value_variants() } else { &options.only }.to_vec();
    let has_bbr = node.inside(|| {
        // This loads the module if there is one.
        let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None)?;
        Ok(socket.set_tcp_congestion(b"bbr").is_ok())
    })?;
    if tests.contains(&Test::Bbr) && !has_bbr {
        say("Not measured: BBR, which this kernel does not have (modprobe tcp_bbr)")?;
        tests.retain(|test| *test != Test::Bbr);
    }
    Ok(tests)
}

fn say(line: &str) -> Result<()> {
    Ok(writeln!(io::stderr(), "{line}")?)
}
