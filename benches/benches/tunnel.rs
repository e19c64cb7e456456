//! Whole tunnels on this machine, compared with wireguard-go. See `rustguard_benches::tunnel`.
//!
//! ```text
//! cargo bench -p rustguard-benches --bench tunnel
//! cargo bench -p rustguard-benches --bench tunnel -- --help
//! ```

use clap::Parser as _;
use rustguard_benches::tunnel::{self, Options, agent};

fn main() -> anyhow::Result<()> {
    if agent::ran_as_agent() {
        return Ok(());
    }
    let options = Options::parse();
    rustguard_tests::isolated(tunnel::programs, |lab| {
        println!("{}", tunnel::run(lab, &options)?);
        Ok(())
    })
}
