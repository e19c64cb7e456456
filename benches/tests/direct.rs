//! The benchmark of ways through a relay still runs to its end and fills its table. The test does not check the figures.

use anyhow::ensure;
use clap::Parser as _;
use rustguard_benches::direct::{self, Options, ROWS};

#[test]
fn a_short_run_fills_every_row() {
    rustguard_tests::scenario_of_rustguard("ways through a peer", |lab| {
        let options = Options::try_parse_from(["direct", "--rounds", "1", "--seconds", "1"])?;
        let table = direct::run(lab, &options)?;
        println!("{table}");
        for (name, _) in ROWS {
            let row = table.lines().find(|line| line.starts_with(&format!("| {name} |")));
            ensure!(row.is_some_and(|row| row.contains("| **")), "the row of {name}: {row:?}");
        }
        Ok(())
    });
}
