//! Tunnels over links that delay, lose and reorder. See `rustguard_benches::links`.
//!
//! ```text
//! cargo bench -p rustguard-benches --bench links
//! cargo bench -p rustguard-benches --bench links -- --profile mild --only quic,ping --also before=$PWD/rustguard-before
//! cargo bench -p rustguard-benches --bench links -- --help
//! ```

use clap::Parser as _;
use rustguard_benches::links::{self, Options};

fn main() -> anyhow::Result<()> {
    let options = Options::parse();
    rustguard_tests::isolated(links::programs, |lab| {
        let tables = links::run(lab, &options)?;
        println!("{tables}");
        if let Some(path) = &options.into {
            std::fs::write(path, rustguard_benches::inserted(&std::fs::read_to_string(path)?, &tables)?)?;
        }
        Ok(())
    })
}
