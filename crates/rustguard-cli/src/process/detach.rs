//! Going into the background: the same command again as a child of its own session, waited for until it is ready.

use super::{inherited, log};
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

/// What the child says when it is ready.
const READY: &str = "ready";

/// Whether this process is the child, which calls [`ready`] instead of going into the background again.
pub(crate) fn is_child() -> bool {
    inherited::is_detached()
}

/// Where hooks print: standard output is how the child says that it is ready, and nobody reads it afterwards.
pub(crate) fn hook_output() -> HookOutput {
    if is_child() { HookOutput::Stderr } else { HookOutput::Inherit }
}

/// Starts this program with `arguments` in the background. Returns when it is ready, or fails with what it said. A `token` goes
/// through a pipe, where neither `ps` nor the child's own children see it.
pub(crate) fn spawn(interface: &str, arguments: &[OsString], token: Option<&str>) -> Result<()> {
    // Here, and not by the child alone: the log is that of the tunnel which is up.
    run_file::check_free(interface)?;
    let log = run_file::create_path(interface, "log")?;
    let not_writable = |source| RunFileError::NotWritable { path: log.clone(), source };
    // Of a tunnel that did not end properly. What the new one says while it starts should be in one file.
    if std::fs::metadata(&log).is_ok_and(|before| before.len() > log::LOG_MAX / 2) {
        std::fs::rename(&log, log::older(&log)).map_err(not_writable)?;
    }
    let stderr = OpenOptions::new().create(true).append(true).mode(0o600).open(&log).map_err(not_writable)?;
    let before = stderr.metadata()?.len();
    let mut child = Command::new(std::env::current_exe()?)
        .args(arguments)
        .env(inherited::DETACHED, if token.is_some() { inherited::WITH_TOKEN } else { inherited::ALONE })
        .current_dir("/")
        .stdin(if token.is_some() { Stdio::piped() } else { Stdio::null() })
        .stdout(Stdio::piped())
        .stderr(stderr)
        .spawn()
        .context("cannot start the background process")?;
    if let (Some(token), Some(mut stdin)) = (token, child.stdin.take()) {
        // A child that ends before it has read this says why.
        let _ = stdin.write_all(token.as_bytes());
    }
    let stdout = child.stdout.take().context("the child has no standard output")?;
    let mut said = String::new();
    BufReader::new(stdout).read_line(&mut said)?;
    let text = std::fs::read(&log).unwrap_or_default();
    let news = String::from_utf8_lossy(text.get(usize::try_from(before)?..).unwrap_or_default()).into_owned();
    // What it had to say so far is for the one who started it: warnings, or the reason of the failure.
    std::io::stderr().write_all(news.as_bytes())?;
    if said.trim_end() == READY {
        return Ok(());
    }
    let status = child.wait()?;
    remove(&log);
    if news.trim().is_empty() {
        bail!("the background process ended before it was ready: {status}");
    }
    // It has explained itself.
    log::finish(None);
    std::process::exit(status.code().unwrap_or(1));
}

/// In the child: leaves the terminal's session. To be called first.
pub(crate) fn enter() {
    if is_child() {
        // Fails only for a process group leader, which a child that was just started is not.
        let _ = rustix::process::setsid();
    }
}

/// In the child: tells the parent, who then returns.
pub(crate) fn ready() {
    if is_child() {
        // The parent shows what was logged so far.
        log::finish(None);
        // A parent that has gone away does not want to know.
        let _ = writeln!(std::io::stdout(), "{READY}");
    }
}

/// In the child, at a proper end: nobody needs the log any more.
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
