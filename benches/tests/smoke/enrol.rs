use crate::filled;
use clap::Parser as _;
use rustguard_benches::{
    enrol::{self, Options, ROWS},
    tunnel::agent,
};

#[test]
fn a_quick_round_fills_every_row() {
    if agent::ran_as_agent() {
        return;
    }
    rustguard_tests::scenario(|lab| {
        let table = enrol::run(lab, &Options::try_parse_from(["enrol", "--quick"])?)?;
        filled(&table, 1, ROWS.map(|(name, _)| name))
    });
}
