use crate::filled;
use clap::Parser as _;
use rustguard_benches::links::{self, Options, Test};

/// Builds the traffic program without QUIC and HTTP.
#[test]
fn a_quick_round_fills_every_row() {
    // Built outside the namespaces, which have no network for downloads.
    let traffic = links::traffic(&["--no-default-features"]).expect("benches/traffic builds");
    rustguard_tests::scenario_of_rustguard("links", |lab| {
        let arguments =
            ["links", "--quick", "--profile", "none", "--program", "link,RustGuard", "--only", "cubic,video,ping"];
        let table =
            links::run_with(lab, &Options::try_parse_from(arguments)?, rustguard_tests::rustguard()?, &traffic)?;
        filled(&table, 2, [Test::Cubic, Test::Video, Test::Ping].iter().flat_map(|test| test.rows()).copied())
    });
}
