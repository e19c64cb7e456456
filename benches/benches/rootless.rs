//! A tunnel without root beside one with an interface. See `rustguard_benches::rootless`.
//!
//! ```text
//! cargo bench -p rustguard-benches --bench rootless
//! cargo bench -p rustguard-benches --bench rootless -- --help
//! ```

use clap::Parser as _;
use rustguard_benches::rootless::{self, Options};

fn main() -> anyhow::Result<()> {
    let options = Options::parse();
    rustguard_tests::isolated(rustguard_benches::programs, |lab| {
        println!("{}", rootless::run(lab, &options)?);
        Ok(())
    })
}
