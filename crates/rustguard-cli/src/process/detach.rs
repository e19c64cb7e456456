//! Going into the background. The process runs its own program as a child in a new session, and waits until the child
//! is ready.

use super::log;
use crate::inherited;
use anyhow::{Context as _, Result, bail};
use rustguard_quick::{HookOutput, RunFileError, run_file};
use std::{
    ffi::OsString,
    fs::OpenOptions,
    io::{BufRead as _, BufReader, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::Path,
    process::{Command, Stdio},
};

/// The line that the child writes to standard output when it is ready.
const READY: &str = "ready";

/// Whether this process is the child, which calls [`ready`] instead of going into the background again.
pub(crate) fn is_child() -> bool {
    inherited::is_detached()
}

/// The output of hooks. In the child they use standard error, because standard output carries the message [`READY`],
/// and no process reads it afterwards.
pub(crate) fn hook_output() -> HookOutput {
    if is_child() { HookOutput::Stderr } else { HookOutput::Inherit }
}

/// The standard input of a process in the background.
#[derive(Clone, Copy)]
pub(crate) enum Input<'a> {
    None,
    Token(&'a str),
    StoreKey(&'a str),
}

/// Starts this program with `arguments` in the background. Returns when the child is ready. If the child fails, this
/// process prints the child's messages and ends with its status. The child stays in this process's folder, where hooks
/// look for relative paths, as hooks of a tunnel in the foreground do.
///
/// The `input` goes through a pipe, where neither `ps` nor the child's own children can see it.
pub(crate) fn spawn(interface: &str, arguments: &[OsString], input: Input<'_>) -> Result<()> {
    // The child checks this too, but the parent has to check it before it opens the log, which belongs to a running
    // tunnel.
    run_file::check_free(interface)?;
    let log = run_file::create_path(interface, "log")?;
    let not_writable = |source| RunFileError::NotWritable { path: log.clone(), source };
    // A tunnel that did not end properly leaves its log behind. The messages of the new start should be in one file.
    if std::fs::metadata(&log).is_ok_and(|before| before.len() > log::LOG_MAX / 2) {
        std::fs::rename(&log, log::older(&log)).map_err(not_writable)?;
    }
    let stderr = OpenOptions::new().create(true).append(true).mode(0o600).open(&log).map_err(not_writable)?;
    let before = stderr.metadata()?.len();
    let mut child = Command::new(std::env::current_exe()?)
        .args(arguments)
        .env(
            inherited::DETACHED,
            if matches!(input, Input::Token(_)) { inherited::WITH_TOKEN } else { inherited::ALONE },
        )
        .stdin(if matches!(input, Input::None) { Stdio::null() } else { Stdio::piped() })
        .stdout(Stdio::piped())
        .stderr(stderr)
        .spawn()
        .context("cannot start the background process")?;
    if let (Input::Token(secret) | Input::StoreKey(secret), Some(mut stdin)) = (input, child.stdin.take()) {
        // If the child ends before it reads the secret, its log has the reason.
        let _ = stdin.write_all(secret.as_bytes());
    }
    let stdout = child.stdout.take().context("the child has no standard output")?;
    let mut said = String::new();
    let waiting = log::wait_for(&format!("starting {interface}"));
    BufReader::new(stdout).read_line(&mut said)?;
    drop(waiting);
    let text = std::fs::read(&log).unwrap_or_default();
    let news = String::from_utf8_lossy(text.get(usize::try_from(before)?..).unwrap_or_default()).into_owned();
    // The user who started it sees the child's messages so far: warnings, or the reason of the failure.
    log::pass_on(&news);
    if said.trim_end() == READY {
        return Ok(());
    }
    let status = child.wait()?;
    // The log of an earlier tunnel, which was killed, stays. The log of a tunnel that another process has started at
    // the same time stays too.
    if before == 0 && run_file::running(interface).is_none() {
        remove(&log);
    }
    if news.trim().is_empty() {
        let log = log.display();
        bail!(
            "the background process ended before it was ready ({status}), and {log} has no reason: is the disk full?"
        );
    }
    // The child's messages have the reason already.
    log::finish(None);
    std::process::exit(status.code().unwrap_or(1));
}

/// In the child, leaves the terminal's session. Has to be called first.
pub(crate) fn enter() {
    if is_child() {
        // setsid(2) fails only for the leader of a process group, and a new child is not one.
        let _ = rustix::process::setsid();
    }
}

/// In the child, reports to the parent that the tunnel is ready. The parent then ends.
pub(crate) fn ready() {
    if is_child() {
        // The log is written completely first, because the parent shows it.
        log::settle();
        // The parent may have ended already.
        let _ = writeln!(std::io::stdout(), "{READY}");
    }
}

/// In the child, removes the log after a proper end.
pub(crate) fn leave(interface: &str) {
    if is_child()
        && let Ok(log) = run_file::create_path(interface, "log")
    {
        remove(&log);
    }
}

fn remove(log: &Path) {
    let _ = std::fs::remove_file(log);
    let _ = std::fs::remove_file(log::older(log));
}
