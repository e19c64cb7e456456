use crate::filled;
use clap::Parser as _;
use rustguard_benches::{
    policy::{self, Options, ROWS},
    tunnel::agent,
};

#[test]
fn a_quick_round_fills_every_row() {
    if agent::ran_as_agent() {
        return;
    }
    rustguard_tests::scenario(|lab| {
        let table = policy::run(lab, &Options::try_parse_from(["policy", "--quick"])?)?;
        filled(&table, 1, ROWS)
    });
}
