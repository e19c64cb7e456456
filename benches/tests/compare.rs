//! The comparison with other programs still runs to its end and fills its table. The test does not check the figures, and
//! runs RustGuard alone: it is about the benchmark.

use anyhow::ensure;
use clap::Parser as _;
use rustguard_benches::{
    compare::{self, Options, ROWS},
    tunnel::agent,
};

#[test]
fn a_quick_round_fills_every_row() {
    if agent::ran_as_agent() {
        return;
    }
    rustguard_tests::scenario_of_rustguard("networks", |lab| {
        let table = compare::run(lab, &Options::try_parse_from(["compare", "--quick", "--only", "rustguard"])?)?;
        println!("{table}");
        for (name, _) in ROWS {
            let row = table.lines().find(|line| line.starts_with(&format!("| {name} |")));
            ensure!(row.is_some_and(|row| row.contains("| **")), "the row of {name}: {row:?}");
        }
        Ok(())
    });
}
