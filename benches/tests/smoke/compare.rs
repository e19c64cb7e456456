use crate::filled;
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
        filled(&table, 1, ROWS.map(|(name, _)| name))
    });
}
