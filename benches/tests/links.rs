//! The benchmark of links still runs to its end and fills its table. The test does not check the figures. Of the traffic, it builds
//! what needs neither QUIC nor HTTP.

use anyhow::ensure;
use clap::Parser as _;
use rustguard_benches::links::{self, Options, Test};

#[test]
fn a_quick_round_fills_every_row() {
    // Outside of the namespaces, which have no network to fetch anything from.
    let traffic = links::traffic(&["--no-default-features"]).expect("benches/traffic builds");
    rustguard_tests::scenario_of_rustguard("links", |lab| {
        let arguments =
            ["links", "--quick", "--profile", "none", "--program", "link,RustGuard", "--only", "cubic,video,ping"];
        let table =
            links::run_with(lab, &Options::try_parse_from(arguments)?, rustguard_tests::rustguard()?, &traffic)?;
        println!("{table}");
        for row in [Test::Cubic, Test::Video, Test::Ping].iter().flat_map(|test| test.rows()) {
            let line = table.lines().find(|line| line.starts_with(&format!("| {row} |")));
            ensure!(line.is_some_and(|line| line.matches("| **").count() == 2), "the row of {row}: {line:?}");
        }
        Ok(())
    });
}
