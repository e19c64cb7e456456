//! PreUp, PostUp, PreDown, PostDown.

use crate::process::detach;
use anyhow::{Context as _, Result, bail};
use std::{os::fd::AsFd as _, process::Stdio};
use tokio::process::Command;

/// Runs hooks in order with `%i` replaced, as wg-quick does; the first that fails ends it.
pub(crate) async fn run(key: &str, hooks: &[String], interface: &str) -> Result<()> {
    for hook in hooks {
        let hook = hook.replace("%i", interface);
        tracing::info!("[#] {hook}");
        let status = shell(&hook)?.status().await.with_context(|| format!("{key} hook `{hook}` cannot be run"))?;
        if !status.success() {
            bail!("{key} hook `{hook}` failed: {status}");
        }
    }
    Ok(())
}

/// wg-quick's hooks are bash; where there is none, the system's shell has to do.
fn shell(script: &str) -> Result<Command> {
    let shell = if std::path::Path::new("/bin/bash").exists() { "/bin/bash" } else { "/bin/sh" };
    let mut command = Command::new(shell);
    // A hook must not outlive us when we are told to end while it runs.
    command.arg("-c").arg(script).stdin(Stdio::null()).kill_on_drop(true);
    if detach::is_child() {
        // Standard output is how the child says that it is ready, and nobody reads it afterwards.
        command.stdout(Stdio::from(std::io::stderr().as_fd().try_clone_to_owned()?));
    }
    Ok(command)
}
