//! Enrolment: its cost for the server, and the time that a machine waits. See `rustguard_benches::enrol`.
//!
//! ```text
//! cargo bench -p rustguard-benches --bench enrol
//! cargo bench -p rustguard-benches --bench enrol -- --help
//! ```

use clap::Parser as _;
use rustguard_benches::{
    enrol::{self, Options},
    tunnel::agent,
};

fn main() -> anyhow::Result<()> {
    if agent::ran_as_agent() {
        return Ok(());
    }
    let options = Options::parse();
    rustguard_tests::isolated(rustguard_benches::programs, |lab| {
        println!("{}", enrol::run(lab, &options)?);
        Ok(())
    })
}
