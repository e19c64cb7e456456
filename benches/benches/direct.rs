//! Paths through a relay that forwards sealed packets, or decrypts them. See `rustguard_benches::direct`.
//!
//! ```text
//! cargo bench -p rustguard-benches --bench direct
//! cargo bench -p rustguard-benches --bench direct -- --help
//! ```

use clap::Parser as _;
use rustguard_benches::direct::{self, Options};

fn main() -> anyhow::Result<()> {
    let options = Options::parse();
    rustguard_tests::isolated(rustguard_benches::programs, |lab| {
        println!("{}", direct::run(lab, &options)?);
        Ok(())
    })
}
