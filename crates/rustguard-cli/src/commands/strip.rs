//! `rustguard strip`: the part of a configuration file that `wg setconf` reads, like `wg-quick strip`.

use super::check::{self, Reported};
use anyhow::Result;
use rustguard_quick::conf;
use std::io::{self, Write as _};

/// Prints the file.
pub(crate) fn run(target: &str) -> Result<()> {
    let (path, _) = conf::resolve_name(target)?;
    let (_, file) = check::load(&path)?;
    // `load` has reported the errors already.
    let text = conf::strip(file.text()).map_err(|_| Reported)?;
    Ok(io::stdout().lock().write_all(text.as_bytes())?)
}
