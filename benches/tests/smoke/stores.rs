use crate::filled;
use clap::Parser as _;
use rustguard_benches::stores::{self, Options, ROWS};

#[test]
fn a_quick_round_fills_every_row() {
    let table = stores::run(&Options::try_parse_from(["stores", "--quick"]).unwrap());
    match table {
        Ok(table) => filled(&table, 1, ROWS).unwrap(),
        Err(error) if error.to_string().contains("apt install") => rustguard_skip::missing(&error.to_string()),
        Err(error) => panic!("{error:?}"),
    }
}
