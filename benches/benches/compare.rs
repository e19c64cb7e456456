//! A network of two members and a server, by RustGuard and by other programs. See `rustguard_benches::compare`.
//!
//! ```text
//! cargo bench -p rustguard-benches --bench compare
//! cargo bench -p rustguard-benches --bench compare -- --into $PWD/docs/compare.md
//! cargo bench -p rustguard-benches --bench compare -- --help
//! ```

use clap::Parser as _;
use rustguard_benches::{
    compare::{self, Options},
    tunnel::agent,
};

fn main() -> anyhow::Result<()> {
    if agent::ran_as_agent() {
        return Ok(());
    }
    let options = Options::parse();
    rustguard_tests::isolated(rustguard_benches::programs, |lab| {
        let table = compare::run(lab, &options)?;
        println!("{table}");
        if let Some(path) = &options.into {
            std::fs::write(path, rustguard_benches::inserted(&std::fs::read_to_string(path)?, &table)?)?;
        }
        Ok(())
    })
}
