//! Routing: meshes in simulated time, the cost of a speaker, and the cost of the device's table.
//!
//! | File | Measures |
//! |---|---|
//! | `clients` | the cost of an event of a passive client for its gateway |
//! | `speaker` | one Babel speaker among 200 neighbours: time and memory |
//! | `table` | changes of the table of routes, and lookups in it |
//!
//! The simulated meshes are in `rustguard_sim::figures`, which the tests of `rustguard-babel` use too.

mod clients;
mod speaker;
mod table;

use crate::figures::{self, Figures};
use anyhow::Result;
use clap::Parser;
use rand::{SeedableRng as _, rngs::StdRng};
use rustguard_sim::{figures as mesh, random_graph};
use std::{
    io::{self, Write as _},
    time::Duration,
};

/// Measures routing on this machine, and prints a table: meshes in simulated time, one Babel speaker with many
/// neighbours, and the table of routes. Changes nothing on the machine.
#[derive(Clone, Debug, Parser)]
#[command(name = "routing")]
pub struct Options {
    /// How often figures in real time are measured. Meshes are simulated with ten times as many seeds
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u16).range(2..))]
    pub rounds: u16,
    /// A short run with few seeds, neighbours and prefixes, whose figures mean little
    #[arg(long)]
    pub quick: bool,
    /// Added by `cargo bench`
    #[arg(long, hide = true)]
    pub bench: bool,
}

/// The rows of the table, with their goals. The first ones are simulated, and the same on every machine.
pub const ROWS: [(&str, &str); 34] = [
    ("silent loss seen, ms", "1000"),
    ("false alarms a day at 1 % loss", "1"),
    ("diamond whole again, lost both ways, ms", "1200"),
    ("diamond whole again, lost one way, ms", "1500"),
    ("stable idle link, 10 prefixes, bytes/s", "60"),
    ("stable idle link, 100 prefixes, bytes/s", "150"),
    ("stable idle link, 1,000 prefixes, bytes/s", "700"),
    ("100 nodes start, all pairs, ms", "5000"),
    ("50 nodes, one fails silently, all pairs again, ms", "3000"),
    ("speaker, 2 ways: start, ms of a core", ""),
    ("speaker, 2 ways: start, longest call, ms", ""),
    ("speaker, 2 ways: busy, ms of a core a second", ""),
    ("speaker, 2 ways: idle, ms of a core a second", ""),
    ("speaker, 2 ways: one lost and back, ms of a core", ""),
    ("speaker, 2 ways: one lost and back, longest call, ms", ""),
    ("speaker, 2 ways: memory, MB", ""),
    ("speaker, 20 ways: start, ms of a core", ""),
    ("speaker, 20 ways: start, longest call, ms", ""),
    ("speaker, 20 ways: busy, ms of a core a second", ""),
    ("speaker, 20 ways: idle, ms of a core a second", ""),
    ("speaker, 20 ways: one lost and back, ms of a core", ""),
    ("speaker, 20 ways: one lost and back, longest call, ms", ""),
    ("speaker, 20 ways: memory, MB", ""),
    ("one client of 1,000 is heard, µs", "5"),
    ("one client of 10,000 is heard, µs", "5"),
    ("table of 1,000: a route changes, µs", ""),
    ("table of 1,000: a permission changes, µs", ""),
    ("table of 10,000: a route changes, µs", ""),
    ("table of 10,000: a permission changes, µs", ""),
    ("lookup, allowed IPs of 1,000, ns", ""),
    ("lookup, one next hop of 1,000, ns", ""),
    ("lookup, two next hops of 1,000, ns", ""),
    ("lookup, eight next hops of 1,000, ns", ""),
    ("lookup, eight next hops, one unusable, ns", ""),
];

const DAY: Duration = Duration::from_secs(86_400);

/// The size of the measurement.
struct Pace {
    rounds: usize,
    seeds: u64,
    /// The simulated time for false alarms, and the number of repetitions.
    alarms: (Duration, u64),
    nodes: usize,
    neighbours: usize,
    prefixes: usize,
    /// The time for which the idle speaker is measured.
    alone: Duration,
    lookups: usize,
}

/// Measures. Returns the table, and the description of the machine.
///
/// # Errors
/// If the machine cannot be described, or a row is missing.
pub fn run(options: &Options) -> Result<String> {
    let rounds = usize::from(options.rounds);
    let pace = if options.quick {
        let alone = Duration::from_secs(5);
        let alarms = (DAY / 24, 1);
        Pace { rounds: 2, seeds: 1, alarms, nodes: 10, neighbours: 10, prefixes: 50, alone, lookups: 1_000 }
    } else {
        Pace {
            rounds,
            seeds: u64::from(options.rounds) * 10,
            alarms: (DAY, u64::from(options.rounds) * 4),
            nodes: 100,
            neighbours: 200,
            prefixes: 1_000,
            // Longer than the interval of full updates.
            alone: Duration::from_secs(100),
            lookups: 1_000_000,
        }
    };
    let mut figures = Figures::default();
    say("the table")?;
    table::measure(&pace, &mut figures)?;
    say("clients")?;
    clients::measure(&pace, &mut figures);
    let mut kept = Vec::new();
    for (ways, carriers) in [("2 ways", 2), ("20 ways", 20.min(pace.neighbours))] {
        say(&format!("a speaker, {ways}"))?;
        kept.push(speaker::measure(&pace, ways, carriers, &mut figures)?);
    }
    drop(kept);
    say("meshes")?;
    meshes(&pace, &mut figures);
    let mut text = format!(
        "{}; medians (lowest–highest); {} seeds, {} rounds; the speaker has {} neighbours and {} prefixes\n\n",
        figures::machine(),
        pace.seeds,
        pace.rounds,
        pace.neighbours,
        pace.prefixes
    );
    text += &figures.table("goal, at most", &ROWS)?;
    Ok(text)
}

/// The simulated rows.
fn meshes(pace: &Pace, figures: &mut Figures) {
    let seeds = || 1..=pace.seeds;
    let millis = |time: Duration| time.as_secs_f64() * 1e3;
    figures.add("silent loss seen, ms", seeds().map(mesh::silent_loss).map(millis));
    let (time, times) = pace.alarms;
    let alarms: u64 = (1..=times).map(|seed| mesh::false_alarms(time, seed)).sum();
    let days = time.as_secs_f64() / DAY.as_secs_f64() * times as f64;
    figures.add("false alarms a day at 1 % loss", [alarms as f64 / days]);
    for (which, one_way) in [("lost both ways", false), ("lost one way", true)] {
        let took = seeds().flat_map(|seed| mesh::diamond(one_way, seed)).map(millis);
        figures.add(format!("diamond whole again, {which}, ms"), took);
    }
    for (number, prefixes) in [("10", 10), ("100", 100), ("1,000", 1_000)] {
        let bytes = (1..=pace.rounds as u64).map(|seed| mesh::idle_bytes(prefixes, seed) as f64);
        figures.add(format!("stable idle link, {number} prefixes, bytes/s"), bytes);
    }
    let starts = (1..=pace.rounds as u64).map(|seed| {
        let edges = random_graph(pace.nodes, 4, &mut StdRng::seed_from_u64(seed));
        millis(mesh::cold_start(pace.nodes, &edges, seed))
    });
    figures.add("100 nodes start, all pairs, ms", starts);
    figures.add("50 nodes, one fails silently, all pairs again, ms", seeds().map(mesh::silent_failure).map(millis));
}

fn say(what: &str) -> io::Result<()> {
    writeln!(io::stderr(), "measuring: {what}")
}
