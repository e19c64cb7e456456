//! Decisions on a store that several servers share. See `rustguard_benches::stores`.
//!
//! ```text
//! cargo bench -p rustguard-benches --bench stores
//! cargo bench -p rustguard-benches --bench stores -- --help
//! ```

use clap::Parser as _;
use rustguard_benches::stores::{self, Options};

fn main() -> anyhow::Result<()> {
    println!("{}", stores::run(&Options::parse())?);
    Ok(())
}
