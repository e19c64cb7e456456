//! Each benchmark still runs to its end and fills its table. Figures are not checked. The tests are one binary, because
//! ten take ten times as long to link. `cargo suite smoke` runs them side by side.
mod compare;
mod direct;
mod enrol;
mod links;
mod network;
mod paths;
mod policy;
mod rootless;
mod routing;
mod stores;
mod tunnel;

use anyhow::{Result, ensure};

/// Prints the table, and checks that each of these rows has this number of figures.
fn filled<'n>(table: &str, figures: usize, names: impl IntoIterator<Item = &'n str>) -> Result<()> {
    println!("{table}");
    for name in names {
        let row = table.lines().find(|line| line.starts_with(&format!("| {name} |")));
        ensure!(row.is_some_and(|row| row.matches("| **").count() == figures), "the row of {name}: {row:?}");
    }
    Ok(())
}
