//! PreUp, PostUp, PreDown, PostDown.

use crate::error::HookError;
use std::{io, os::fd::AsFd as _, process::Stdio};
use tokio::process::Command;

/// The destination of the hooks' standard output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum HookOutput {
    /// The standard output of this process, as under wg-quick.
    #[default]
    Inherit,
    /// The standard error of this process: for a program that uses its standard output for something else.
    Stderr,
}

/// Runs hooks in order, with `%i` replaced as in wg-quick. The first failure ends the run.
pub(crate) async fn run(
    key: &'static str,
    hooks: &[String],
    interface: &str,
    output: HookOutput,
) -> Result<(), HookError> {
    for hook in hooks {
        let hook = hook.replace("%i", interface);
        tracing::info!("[#] {hook}");
        let status = match shell(&hook, output) {
            Ok(mut command) => command.status().await,
            Err(error) => Err(error),
        };
        match status {
            Ok(status) if status.success() => {}
            Ok(status) => return Err(HookError::Failed { key, hook, status }),
            Err(source) => return Err(HookError::NotRun { key, hook, source }),
        }
    }
    Ok(())
}

/// wg-quick runs hooks with bash. Without bash, the system's shell runs them.
fn shell(script: &str, output: HookOutput) -> io::Result<Command> {
    let shell = if std::path::Path::new("/bin/bash").exists() { "/bin/bash" } else { "/bin/sh" };
    let mut command = Command::new(shell);
    // If this process is stopped while a hook runs, the hook must not outlive it.
    command.arg("-c").arg(script).stdin(Stdio::null()).kill_on_drop(true);
    if output == HookOutput::Stderr {
        command.stdout(Stdio::from(io::stderr().as_fd().try_clone_to_owned()?));
    }
    Ok(command)
}
