//! The benchmark of networks still runs to its end and fills its table. The test does not check the figures.

use anyhow::ensure;
use clap::Parser as _;
use rustguard_benches::network::{self, Options};

#[test]
fn a_quick_run_fills_every_row() {
    rustguard_tests::scenario(|lab| {
        let table = network::run(lab, &Options::try_parse_from(["network", "--quick", "--idle", "1"])?)?;
        println!("{table}");
        for row in ["memory, MB", "idle: CPU, % of a core", "a member has another name: CPU, ms"] {
            let name = format!("| 20 members: {row} | **");
            ensure!(table.lines().any(|line| line.starts_with(&name)), "{name}: {table}");
        }
        Ok(())
    });
}
