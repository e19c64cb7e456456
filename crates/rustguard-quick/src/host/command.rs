//! Runs the programs that are needed because no other interface exists: `nft`, or iptables in its place, and
//! `resolvconf`.

use super::error::HostError;
use crate::program::Program;
use std::{
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    process::{ChildStderr, Command},
};

/// The folders of administration programs, which a service's PATH may not contain.
const SYSTEM_PATHS: [&str; 2] = ["/usr/sbin", "/sbin"];

/// Finds the program with this name in PATH, `/usr/sbin` or `/sbin`.
pub fn find_program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(SYSTEM_PATHS.into_iter().map(PathBuf::from))
        .map(|directory| directory.join(name))
        .find(|program| program.is_file())
}

/// The time for one program. Both take milliseconds, but scripts of resolvconf may restart a service.
const LIMIT: Duration = Duration::from_secs(30);

/// The time for a program that only reads, and the most bytes that it may print: the rules of a large firewall.
const LOOK: Duration = Duration::from_secs(5);
const LONGEST: u64 = 16 << 20;

/// The most bytes of a program's standard error that are kept. The rest is read and thrown away.
const KEPT: usize = 4096;

/// The time for the remaining message of a program that has ended.
const LEFT_OVER: Duration = Duration::from_millis(200);

/// Runs a program until it ends, with `input` on its standard input.
pub(super) async fn run(program: &Path, arguments: &[&str], input: &str) -> Result<(), HostError> {
    run_within(LIMIT, program, arguments, input).await
}

/// Runs a program that only reads, until it ends. Returns its standard output; `None` if it fails, takes too long or
/// prints too much.
pub(super) async fn output(program: &Path, arguments: &[&str]) -> Option<String> {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut program = Program::start(&mut command).ok()?;
    let stdout = program.child().stdout.take()?;
    let text = tokio::spawn(async move {
        let mut text = String::new();
        stdout.take(LONGEST).read_to_string(&mut text).await.map(|_| text)
    });
    let status = program.wait(LOOK).await.ok()??;
    if status.success() { text.await.ok()?.ok() } else { None }
}

async fn run_within(limit: Duration, program: &Path, arguments: &[&str], input: &str) -> Result<(), HostError> {
    let failed = |reason: String| {
        let mut command = program.display().to_string();
        for argument in arguments {
            command.push(' ');
            command.push_str(argument);
        }
        HostError::Command { command, reason }
    };
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut program = Program::start(&mut command).map_err(|error| failed(error.to_string()))?;
    if let Some(mut stdin) = program.child().stdin.take() {
        let input = input.to_owned();
        // A program that does not read all of its input reports the reason by its exit status.
        tokio::spawn(async move { stdin.write_all(input.as_bytes()).await });
    }
    let message = program.child().stderr.take().map(|stderr| tokio::spawn(beginning(stderr)));
    let reason = match program.wait(limit).await {
        Ok(Some(status)) if status.success() => return Ok(()),
        Ok(Some(status)) => status.to_string(),
        Ok(None) => format!("not ended in {} s, and killed", limit.as_secs()),
        Err(error) => error.to_string(),
    };
    // A daemon that the program has left behind may keep its standard error open.
    let message = match message {
        Some(message) => tokio::time::timeout(LEFT_OVER, message).await.ok().and_then(Result::ok).unwrap_or_default(),
        None => Vec::new(),
    };
    Err(failed(match String::from_utf8_lossy(&message).trim() {
        "" => reason,
        message => message.to_owned(),
    }))
}

/// The first [`KEPT`] bytes of a stream. It is read to its end, because a program must not wait for a reader.
async fn beginning(mut stream: ChildStderr) -> Vec<u8> {
    let mut kept = Vec::new();
    let mut buffer = [0; 1024];
    while let Ok(len @ 1..) = stream.read(&mut buffer).await {
        let room = KEPT.saturating_sub(kept.len());
        kept.extend_from_slice(&buffer[..len.min(room)]);
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn sh(limit: Duration, script: &str) -> Result<(), String> {
        let result = run_within(limit, Path::new("/bin/sh"), &["-c", script], "input").await;
        result.map_err(|error| error.to_string())
    }

    #[tokio::test]
    async fn a_program_is_limited_in_time_and_in_words() {
        let long = Duration::from_secs(60);
        assert_eq!(sh(long, "read x; test $x = input").await, Ok(()));
        assert_eq!(sh(long, "exit 0 < /dev/null").await, Ok(()), "not all programs read");
        assert!(sh(long, "echo because >&2; exit 3").await.unwrap_err().contains("because"));
        assert!(sh(long, "exit 3").await.unwrap_err().contains("exit status: 3"));
        // More than a pipe holds.
        let error = sh(long, "head -c 300000 /dev/zero | tr '\\0' x >&2; exit 1").await.unwrap_err();
        assert!(error.len() < KEPT + 200 && error.contains("xxx"), "{} bytes", error.len());
        let error = sh(Duration::from_millis(200), "trap '' TERM; sleep 100").await.unwrap_err();
        assert!(error.contains("killed"), "{error}");
    }
}
