use crate::filled;
use clap::Parser as _;
use rustguard_benches::routing::{self, Options, ROWS};

#[test]
fn a_quick_round_fills_every_row() {
    let table = routing::run(&Options::try_parse_from(["routing", "--quick"]).expect("an option")).expect("a table");
    filled(&table, 1, ROWS.map(|(name, _)| name)).expect("each row has a figure");
    for (name, goal) in ROWS {
        let row = table.lines().find(|line| line.starts_with(&format!("| {name} |"))).expect(name);
        assert!(row.ends_with(&format!("| {goal} |")), "{row}");
    }
}
