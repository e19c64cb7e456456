//! PreUp, PostUp, PreDown, PostDown.

use crate::error::HookError;
use std::{io, os::fd::AsFd as _, process::Stdio};
use tokio::process::Command;

/// Where the standard output of hooks goes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum HookOutput {
    /// To that of this process, as under wg-quick.
    #[default]
    Inherit,
    /// To the standard error of this process: for a program whose standard output has another use.
    Stderr,
}

/// Runs hooks in order with `%i` replaced, as wg-quick does; the first that fails ends it.
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

/// wg-quick's hooks are bash; where there is none, the system's shell has to do.
fn shell(script: &str, output: HookOutput) -> io::Result<Command> {
    let shell = if std::path::Path::new("/bin/bash").exists() { "/bin/bash" } else { "/bin/sh" };
    let mut command = Command::new(shell);
    // A hook must not outlive this process when it is told to end while the hook runs.
    command.arg("-c").arg(script).stdin(Stdio::null()).kill_on_drop(true);
    if output == HookOutput::Stderr {
        command.stdout(Stdio::from(io::stderr().as_fd().try_clone_to_owned()?));
    }
    Ok(command)
}
