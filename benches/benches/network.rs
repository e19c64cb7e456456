//! The cost of a network for each of its members. See `rustguard_benches::network`.
//!
//! ```text
//! cargo bench -p rustguard-benches --bench network
//! cargo bench -p rustguard-benches --bench network -- --idle 250
//! ```

use clap::Parser as _;
use rustguard_benches::network::{self, Options};

fn main() -> anyhow::Result<()> {
    let options = Options::parse();
    rustguard_tests::isolated(rustguard_benches::programs, |lab| {
        println!("{}", network::run(lab, &options)?);
        Ok(())
    })
}
