//! The benchmark of several paths still runs to its end and fills its table. The test does not check the figures.

use anyhow::ensure;
use clap::Parser as _;
use rustguard_benches::paths::{self, Options, ROWS};

#[test]
fn a_short_run_fills_every_row() {
    rustguard_tests::scenario(|lab| {
        if !lab.has("iperf3", "iperf3")? {
            return Ok(());
        }
        let options = Options::try_parse_from(["paths", "--rounds", "1", "--seconds", "1"])?;
        let Some(table) = paths::run(lab, &options)? else { return Ok(()) };
        println!("{table}");
        for (name, _) in ROWS {
            let row = table.lines().find(|line| line.starts_with(&format!("| {name} |")));
            ensure!(row.is_some_and(|row| row.contains("| **")), "the row of {name}: {row:?}");
        }
        Ok(())
    });
}
