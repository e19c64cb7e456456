use crate::filled;
use clap::Parser as _;
use rustguard_benches::direct::{self, Options, ROWS};

#[test]
fn a_quick_round_fills_every_row() {
    rustguard_tests::scenario_of_rustguard("ways through a peer", |lab| {
        let table = direct::run(lab, &Options::try_parse_from(["direct", "--quick"])?)?;
        filled(&table, 1, ROWS.map(|(name, _)| name))
    });
}
