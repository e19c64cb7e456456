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
        if let Some(table) = paths::run(lab, &options)? {
            println!("{table}");
        }
        Ok(())
    })
}
