//! Routing: what meshes do, what a speaker and the table of routes cost. See `rustguard_benches::routing`.
//!
//! ```text
//! cargo bench -p rustguard-benches --bench routing
//! cargo bench -p rustguard-benches --bench routing -- --help
//! ```

use clap::Parser as _;
use rustguard_benches::routing::{self, Options};

fn main() -> anyhow::Result<()> {
    println!("{}", routing::run(&Options::parse())?);
    Ok(())
}
