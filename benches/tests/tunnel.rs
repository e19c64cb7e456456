//! The benchmark of whole tunnels still runs to its end and fills its table. The test does not check the figures.

use anyhow::ensure;
use clap::Parser as _;
use rustguard_benches::tunnel::{self, Options, ROWS, agent};

#[test]
fn a_quick_round_fills_every_row() {
    if agent::ran_as_agent() {
        return;
    }
    rustguard_tests::scenario(|lab| {
        let table = tunnel::run(lab, &Options::try_parse_from(["tunnel", "--quick"])?)?;
        println!("{table}");
        ensure!(table.contains("| RustGuard | wireguard-go | ratio |"), "the scenario has both programs");
        for (name, _) in ROWS {
            let row = table.lines().find(|line| line.starts_with(&format!("| {name} |")));
            ensure!(row.is_some_and(|row| row.split(" | ").count() == 4), "the row of {name}: {row:?}");
        }
        Ok(())
    });
}
