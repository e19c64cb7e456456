//! Tunnels over links that delay, lose and reorder. See `rustguard_benches::links`.
//!
//! ```text
//! cargo bench -p rustguard-benches --bench links
//! cargo bench -p rustguard-benches --bench links -- --profile mild --only quic,ping --also before=$PWD/rustguard-before
//! cargo bench -p rustguard-benches --bench links -- --help
//! ```

use clap::Parser as _;
use rustguard_benches::{
    Document,
    links::{self, Options},
};

fn main() -> anyhow::Result<()> {
    let options = Options::parse();
    let document = options.into.as_deref().map(Document::new).transpose()?;
    rustguard_tests::isolated(links::programs, |lab| {
        let tables = links::run(lab, &options)?;
        println!("{tables}");
        document.map_or(Ok(()), |document| document.put(&tables))
    })
}
