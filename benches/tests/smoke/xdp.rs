use anyhow::ensure;
use clap::Parser as _;
use rustguard_benches::xdp::{self, Options, WAYS};

#[test]
fn a_quick_round_fills_every_row() {
    let program = xdp::program().expect("benches/xdp compiles");
    rustguard_tests::scenario_of_rustguard("xdp", |lab| {
        let options = Options::try_parse_from(["xdp", "--quick"])?;
        let Some(tables) = xdp::run_with(lab, &options, &program)? else {
            lab.skip("AF_XDP: the system forbids BPF. Run as root");
            return Ok(());
        };
        println!("{tables}");
        for way in WAYS {
            let rows = tables.lines().filter(|line| line.starts_with(&format!("| {}", way.name)));
            let figures: Vec<_> = rows.map(|row| row.matches("| **").count()).collect();
            ensure!(figures == [4, 4], "the rows of {}: {figures:?}", way.name);
        }
        Ok(())
    });
}
