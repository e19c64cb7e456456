use crate::filled;
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
        ensure!(table.contains("| RustGuard | wireguard-go | ratio |"), "the scenario has both programs: {table}");
        filled(&table, 2, ROWS.map(|(name, _)| name))?;
        for (name, _) in ROWS {
            let row = table.lines().find(|line| line.starts_with(&format!("| {name} |")));
            ensure!(row.is_some_and(|row| row.split(" | ").count() == 4), "the row of {name} has no ratio: {row:?}");
        }
        Ok(())
    });
}
