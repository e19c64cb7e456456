//! A network of two members and a server, by RustGuard and by other programs. See `rustguard_benches::compare`.
//!
//! ```text
//! cargo bench -p rustguard-benches --bench compare
//! cargo bench -p rustguard-benches --bench compare -- --into $PWD/docs/compare.md
//! cargo bench -p rustguard-benches --bench compare -- --help
//! ```

use clap::Parser as _;
use rustguard_benches::{
    Document,
    compare::{self, Options},
    tunnel::agent,
};

fn main() -> anyhow::Result<()> {
    if agent::ran_as_agent() {
        return Ok(());
    }
    let options = Options::parse();
    let document = options.into.as_deref().map(Document::new).transpose()?;
    rustguard_tests::isolated(rustguard_benches::programs, |lab| {
        let table = compare::run(lab, &options)?;
        println!("{table}");
        document.map_or(Ok(()), |document| document.put(&table))
    })
}
