//! Routing: the behaviour of meshes, and the cost of a speaker and of the table of routes. See
//! `rustguard_benches::routing`.
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
