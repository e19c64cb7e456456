//! Two links between two nodes. See `rustguard_benches::paths`.
//!
//! ```text
//! cargo bench -p rustguard-benches --bench paths
//! cargo bench -p rustguard-benches --bench paths -- --help
//! ```

use clap::Parser as _;
use rustguard_benches::paths::{self, Options};

fn main() -> anyhow::Result<()> {
    let options = Options::parse();
    rustguard_tests::isolated(paths::programs, |lab| {
        println!("{}", paths::run(lab, &options)?);
        Ok(())
    })
}
