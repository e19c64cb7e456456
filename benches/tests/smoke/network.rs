use crate::filled;
use clap::Parser as _;
use rustguard_benches::network::{self, Options};

#[test]
fn a_quick_round_fills_every_row() {
    rustguard_tests::scenario(|lab| {
        let table = network::run(lab, &Options::try_parse_from(["network", "--quick"])?)?;
        let rows = ["memory, MB", "idle: CPU, % of a core", "a member has another name: CPU, ms"];
        filled(&table, 1, rows.map(|row| format!("20 members: {row}")).iter().map(String::as_str))
    });
}
