//! UDP sockets beside AF_XDP. See `rustguard_benches::xdp`.
//!
//! ```text
//! cargo bench -p rustguard-benches --bench xdp          (as root)
//! cargo bench -p rustguard-benches --bench xdp -- --help
//! ```

use clap::Parser as _;
use rustguard_benches::xdp::{self, Options};

fn main() -> anyhow::Result<()> {
    let options = Options::parse();
    rustguard_tests::isolated(xdp::programs, |lab| {
        println!("{}", xdp::run(lab, &options)?);
        Ok(())
    })
}
