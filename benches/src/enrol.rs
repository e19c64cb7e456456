//! Enrolment: its cost for the server, and the time that a machine waits, also during a flood.
//!
//! | File | Measures |
//! |---|---|
//! | `exchange` | the time that the server takes, with both sides in one thread and without a network |
//! | `state` | a ledger as large as a /16, and its files |
//! | `joins` | `rustguard serve` and `rustguard join` in network namespaces |
//!
//! Durable files are written beside this program, on a real disk, because the laboratory's own files are in memory.

mod exchange;
mod joins;
mod state;

use crate::figures::{self, Figures};
use anyhow::{Context as _, Result};
use clap::Parser;
use rustguard_tests::Lab;
use std::io::{self, Write as _};
use tempfile::TempDir;

/// Measures enrolment on this machine, and prints a table: the server alone, a ledger of 60,000 leases, and machines
/// that join through network namespaces. Changes nothing on the machine.
#[derive(Clone, Debug, Parser)]
#[command(name = "enrol")]
pub struct Options {
    /// How often a machine joins for each figure
    #[arg(long, default_value_t = 15, value_parser = clap::value_parser!(u16).range(1..))]
    pub rounds: u16,
    /// A short run with few leases, whose figures mean little
    #[arg(long)]
    pub quick: bool,
    /// Added by `cargo bench`
    #[arg(long, hide = true)]
    pub bench: bool,
}

/// The rows: the name of the figure, and its target if there is one.
pub const ROWS: [(&str, &str); 32] = [
    ("by invite, in memory: enrolments a second on one core", ""),
    ("by code, in memory: enrolments a second on one core", ""),
    ("by invite, on the disk: enrolments a second", ""),
    ("by code, on the disk: enrolments a second", ""),
    ("one BLAKE2s MAC over an initiation, ns", ""),
    ("garbage, wrong MAC1, ns", "one MAC"),
    ("stranger, valid MAC1, no such invite, ns", ""),
    ("stranger beyond the allowance, gets a cookie, ns", ""),
    ("memory, bytes a lease", ""),
    ("start with these leases, ms", ""),
    ("admission on the disk, median, ms", "20"),
    ("admission on the disk, 99th percentile, ms", "20"),
    ("admission on the disk, longest, ms", "20"),
    ("`join` by invite to first ping, ms", "100"),
    ("`join` by code to first ping, ms", "150"),
    ("`up` afterwards to first ping, ms", ""),
    ("garbage, 100 kpps: arrived, kpps", ""),
    ("garbage, 100 kpps: CPU of `serve` per datagram, µs", ""),
    ("garbage, 100 kpps: lost before the server saw them, %", ""),
    ("garbage, 100 kpps: `join` by invite to first ping, ms", ""),
    ("strangers, 100 kpps: arrived, kpps", ""),
    ("strangers, 100 kpps: CPU of `serve` per datagram, µs", ""),
    ("strangers, 100 kpps: lost before the server saw them, %", ""),
    ("strangers, 100 kpps: `join` by invite to first ping, ms", ""),
    ("250 strangers, 100 kpps: arrived, kpps", ""),
    ("250 strangers, 100 kpps: CPU of `serve` per datagram, µs", ""),
    ("250 strangers, 100 kpps: lost before the server saw them, %", ""),
    ("250 strangers, 100 kpps: `join` by invite to first ping, ms", ""),
    ("250 strangers, line rate: arrived, kpps", ""),
    ("250 strangers, line rate: CPU of `serve` per datagram, µs", ""),
    ("250 strangers, line rate: lost before the server saw them, %", ""),
    ("250 strangers, line rate: `join` by invite to first ping, ms", ""),
];

/// The size of the measurement.
struct Pace {
    rounds: u16,
    samples: usize,
    enrolments: usize,
    durable_enrolments: usize,
    datagrams: u32,
    leases: u32,
    admissions: u32,
    /// Overrides the rate of every flood, in datagrams per second.
    rate: Option<u64>,
}

/// Measures inside the laboratory. Returns the table, and the description of the machine.
///
/// # Errors
/// If something does not start, or a machine cannot join.
pub fn run(lab: &Lab, options: &Options) -> Result<String> {
    let pace = if options.quick {
        Pace {
            rounds: 1,
            samples: 1,
            enrolments: 10,
            durable_enrolments: 5,
            datagrams: 200,
            leases: 2_000,
            admissions: 40,
            // At the rates of the rows, a busy debug build loses 98 of 100 datagrams before it sees them, and a machine
            // needs up to half a minute to get through.
            rate: Some(2_000),
        }
    } else {
        Pace {
            rounds: options.rounds,
            samples: 7,
            enrolments: 500,
            durable_enrolments: 100,
            datagrams: 20_000,
            leases: 60_000,
            admissions: 400,
            rate: None,
        }
    };
    let mut figures = Figures::default();
    // Memory is measured first, while the process is small, because the figure is the growth of the process.
    let leases = state::memory(&pace, &mut figures)?;
    let disk = disk()?;
    say("the server alone")?;
    exchange::measure(&pace, disk.path(), &mut figures)?;
    say("a large ledger")?;
    state::on_disk(&pace, &leases, disk.path(), &mut figures)?;
    drop(leases);
    say("machines that join")?;
    joins::measure(lab, &pace, disk.path(), &mut figures)?;
    table(&figures, &pace)
}

/// A folder beside this program, which is probably on a real disk.
fn disk() -> Result<TempDir> {
    let program = std::env::current_exe()?;
    let folder = program.parent().context("a program is in a folder")?;
    Ok(tempfile::Builder::new().prefix("enrol-").tempdir_in(folder)?)
}

fn say(what: &str) -> io::Result<()> {
    writeln!(io::stderr(), "measuring: {what}")
}

/// The table, and the description of the machine.
fn table(figures: &Figures, pace: &Pace) -> Result<String> {
    let mut text = format!(
        "{}; {} leases; medians (lowest–highest); `join` {} times each\n\n",
        figures::machine(),
        pace.leases,
        pace.rounds
    );
    text += &figures.table("target, below", &ROWS)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_without_a_figure_is_a_mistake() {
        let pace = Pace {
            rounds: 1,
            samples: 1,
            enrolments: 1,
            durable_enrolments: 1,
            datagrams: 1,
            leases: 1,
            admissions: 1,
            rate: None,
        };
        let mut figures = Figures::default();
        for (name, _) in ROWS {
            assert!(table(&figures, &pace).unwrap_err().to_string().contains(name));
            figures.add(name, [3.0, 1.0, 2.0]);
        }
        let table = table(&figures, &pace).unwrap();
        assert!(table.contains("| `join` by invite to first ping, ms | **2.00** (1.00–3.00) | 100 |"), "{table}");
    }
}
