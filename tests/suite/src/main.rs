//! `cargo suite`: all tests of the workspace, with their waiting times in parallel.
//!
//! `cargo test` runs one test binary after the other, with as many tests at a time as there are processors. Most of our
//! tests wait: for a timer of a protocol, for a process, for a packet that must not come. So this program runs
//!
//! - each scenario as a process of its own, many at a time, and the binaries whose tests have real deadlines;
//! - beside them, on the remaining processor time, the binaries that only compute;
//! - at the end, one at a time, the scenarios that load the machine and would disturb the others.
//!
//! It also knows a third outcome, which libtest does not have: a test that says `SKIPPED` has not passed. Skipped tests
//! are counted, and named in the last line. With `CI=true`, a missing program makes tests fail instead.
#![forbid(unsafe_code)]

mod binaries;
mod outcome;
mod schedule;

use binaries::Binaries;
use outcome::Summary;
use schedule::{Busy, Jobs};
use std::{env, num::NonZero, process::ExitCode, thread, time::Instant};

const USAGE: &str = "\
Runs the tests of the workspace. Without FILTER, all of them.

    cargo suite [OPTIONS] [FILTER…]

FILTER is a part of a test's name, as this program prints it: `scenarios::join::`, `babel`, `docs`.

    --repeat N        the whole selection N times; ends after the first round with a failure
    --busy N          beside N loops that only take processor time
    --jobs N          so many scenarios at a time (6 for each processor)
    --profile NAME    the profile of the build (dev)
    --long            also what takes minutes: sets RUSTGUARD_LONG=1
    --list            names the tests, and runs none
";

struct Options {
    filters: Vec<String>,
    repeat: u32,
    busy: usize,
    jobs: usize,
    profile: String,
    long: bool,
    list: bool,
}

impl Options {
    fn parse(arguments: impl Iterator<Item = String>) -> Result<Self, String> {
        let processors = thread::available_parallelism().map_or(1, NonZero::get);
        let mut options = Self {
            filters: Vec::new(),
            repeat: 1,
            busy: 0,
            jobs: processors * 6,
            profile: "dev".to_owned(),
            long: false,
            list: false,
        };
        let mut arguments = arguments.peekable();
        while let Some(argument) = arguments.next() {
            let mut value = || arguments.next().ok_or_else(|| format!("{argument} takes a value"));
            let number =
                |value: String| value.parse::<u32>().map_err(|_| format!("{argument} takes a number, not \"{value}\""));
            match argument.as_str() {
                "--repeat" => options.repeat = number(value()?)?,
                "--busy" => options.busy = number(value()?)? as usize,
                "--jobs" => options.jobs = number(value()?)?.max(1) as usize,
                "--profile" => options.profile = value()?,
                "--long" => options.long = true,
                "--list" => options.list = true,
                "-h" | "--help" => return Err(String::new()),
                _ if argument.starts_with('-') => return Err(format!("unknown option {argument}")),
                _ => options.filters.push(argument),
            }
        }
        Ok(options)
    }
}

fn main() -> ExitCode {
    let options = match Options::parse(env::args().skip(1)) {
        Ok(options) => options,
        Err(mistake) if mistake.is_empty() => {
            print!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        Err(mistake) => return refuse(&format!("{mistake}\n\n{USAGE}")),
    };
    match run(&options) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => refuse(&error),
    }
}

fn refuse(message: &str) -> ExitCode {
    println!("suite: {}", message.trim_end());
    ExitCode::from(2)
}

/// Whether all tests that were run have passed.
fn run(options: &Options) -> Result<bool, String> {
    let started = Instant::now();
    let only_scenarios =
        !options.filters.is_empty() && options.filters.iter().all(|filter| filter.starts_with("scenarios::"));
    let binaries = Binaries::build(&options.profile, only_scenarios)?;
    println!("built in {} s", started.elapsed().as_secs());
    let jobs = Jobs::of(&binaries, &options.filters)?;
    if jobs.is_empty() {
        return Err(format!("no test has a name with {:?} in it: cargo suite --list", options.filters));
    }
    if options.list {
        jobs.names().for_each(|name| println!("{name}"));
        return Ok(true);
    }
    let _busy = Busy::start(options.busy);
    for round in 1..=options.repeat {
        let started = Instant::now();
        let outcomes = schedule::run(&jobs, &binaries, options.jobs, options.long);
        if options.repeat > 1 {
            println!("round {round} of {}, {} s:", options.repeat, started.elapsed().as_secs());
        }
        let summary = Summary::of(&outcomes);
        print!("{summary}");
        if !summary.passed() {
            return Ok(false);
        }
    }
    Ok(true)
}
