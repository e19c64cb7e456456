//! Runs the two programs that are needed because no other interface exists: `nft` and `resolvconf`.

use super::error::HostError;
use std::{
    io,
    path::{Path, PathBuf},
    process::Stdio,
};
use tokio::{io::AsyncWriteExt, process::Command};

/// The folders of administration programs, which a service's PATH may not contain.
const SYSTEM_PATHS: [&str; 2] = ["/usr/sbin", "/sbin"];

/// Finds the program with this name in PATH or in the system folders.
pub(super) fn find_program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(SYSTEM_PATHS.into_iter().map(PathBuf::from))
        .map(|directory| directory.join(name))
        .find(|program| program.is_file())
}

/// Runs a program until it ends, with `input` on its standard input.
pub(super) async fn run(program: &Path, arguments: &[&str], input: &str) -> Result<(), HostError> {
    let failed = |reason: String| {
        let mut command = program.display().to_string();
        for argument in arguments {
            command.push(' ');
            command.push_str(argument);
        }
        HostError::Command { command, reason }
    };
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .map_err(|error| failed(error.to_string()))?;
    if let Some(mut stdin) = child.stdin.take() {
        match stdin.write_all(input.as_bytes()).await {
            // A program that does not read all of its input reports the reason by its exit status.
            Err(error) if error.kind() != io::ErrorKind::BrokenPipe => return Err(failed(error.to_string())),
            _ => {}
        }
    }
    let output = child.wait_with_output().await.map_err(|error| failed(error.to_string()))?;
    if output.status.success() {
        return Ok(());
    }
    let message = String::from_utf8_lossy(&output.stderr);
    Err(failed(match message.trim() {
        "" => output.status.to_string(),
        message => message.to_owned(),
    }))
}
