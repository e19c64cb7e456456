//! The benchmark of routing still runs to its end and fills its table. The test does not check the figures.

use clap::Parser as _;
use rustguard_benches::routing::{self, Options, ROWS};

#[test]
fn a_quick_run_fills_every_row() {
    let options = Options::try_parse_from(["routing", "--quick"]).expect("an option");
    let table = routing::run(&options).expect("a table");
    println!("{table}");
    for (name, goal) in ROWS {
        let row = table.lines().find(|line| line.starts_with(&format!("| {name} |"))).expect(name);
        assert!(row.contains("| **") && row.ends_with(&format!("| {goal} |")), "{row}");
    }
}
