use crate::filled;
use clap::Parser as _;
use rustguard_benches::rootless::{self, Options, ROWS};

#[test]
fn a_quick_round_fills_every_row() {
    rustguard_tests::scenario(|lab| {
        lab.needs("iperf3", "iperf3")?;
        let table = rootless::run(lab, &Options::try_parse_from(["rootless", "--quick"])?)?;
        filled(&table, 1, ROWS.map(|(name, _)| name))
    });
}
