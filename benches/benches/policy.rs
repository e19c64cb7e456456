//! The cost of a policy for the members of a network. See `rustguard_benches::policy`.
//!
//! ```text
//! cargo bench -p rustguard-benches --bench policy
//! cargo bench -p rustguard-benches --bench policy -- --help
//! ```

use clap::Parser as _;
use rustguard_benches::{
    policy::{self, Options},
    tunnel::agent,
};

fn main() -> anyhow::Result<()> {
    if agent::ran_as_agent() {
        return Ok(());
    }
    let options = Options::parse();
    rustguard_tests::isolated(rustguard_benches::programs, |lab| {
        println!("{}", policy::run(lab, &options)?);
        Ok(())
    })
}
