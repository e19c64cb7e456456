//! The benchmark of a policy still runs to its end and fills its table. The test does not check the figures.

use anyhow::ensure;
use clap::Parser as _;
use rustguard_benches::{
    policy::{self, Options, ROWS},
    tunnel::agent,
};

#[test]
fn a_short_run_fills_every_row() {
    if agent::ran_as_agent() {
        return;
    }
    rustguard_tests::scenario(|lab| {
        let table = policy::run(lab, &Options::try_parse_from(["policy", "--rounds", "1", "--seconds", "1"])?)?;
        println!("{table}");
        for name in ROWS {
            let row = table.lines().find(|line| line.starts_with(&format!("| {name} |")));
            ensure!(row.is_some_and(|row| row.contains("| **")), "the row of {name}: {row:?}");
        }
        Ok(())
    });
}
