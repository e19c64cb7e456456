//! The commands that need the running device.

use anyhow::{Result, bail};

/// `up`.
pub(crate) fn up(target: &str, _detach: bool) -> Result<()> {
    let (path, _) = rustguard_device::conf::resolve_name(target)?;
    crate::check::load(&path)?;
    bail!("up {target}: not in this build")
}

/// `down`.
pub(crate) fn down(target: &str) -> Result<()> {
    bail!("down {target}: not in this build")
}

/// `demo`.
pub(crate) fn demo() -> Result<()> {
    bail!("demo: not in this build")
}

/// `rustguard INTERFACE`.
pub(crate) fn daemon(interface: &str, _foreground: bool) -> Result<()> {
    bail!("{interface}: not in this build")
}
