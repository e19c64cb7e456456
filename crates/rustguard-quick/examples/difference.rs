//! Prints the changes that a reload would make: `cargo run -p rustguard-quick --example difference -- old.conf
//! new.conf`.
use rustguard_quick::{conf, reload::Difference};
use std::{error::Error, path::Path};

fn main() -> Result<(), Box<dyn Error>> {
    let files: Vec<_> = std::env::args().skip(1).collect();
    let [old, new] = &files[..] else { return Err("the paths of two configuration files, please".into()) };
    let ((old, _), (new, _)) = (conf::load(Path::new(old))?, conf::load(Path::new(new))?);
    let difference = Difference::between(&old, &new);
    difference.lines().iter().for_each(|line| println!("{line}"));
    for needed in difference.needs_restart(&old, &new) {
        println!("needs a restart: {needed}");
    }
    Ok(())
}
