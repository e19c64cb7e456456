//! `rustguard down`: ends a tunnel that `up` started, also in another session.

use crate::{one, process::runtime, uapi};
use anyhow::{Context as _, Result, bail};
use rustguard_device::interface;
use rustguard_quick::{clean_up, conf, left_behind, run_file};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
    process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal},
};
use std::time::Duration;

/// The time in seconds after which the process is asked whether it still answers. A process that hangs does not end by
/// SIGTERM.
const SOON: i64 = 4;
/// The time for its answer.
const PATIENCE: Duration = Duration::from_secs(4);
/// The time in seconds after which the user is told the reason for the wait.
const LONG: i64 = 60;
/// The time in seconds after which the process counts as stuck: PreDown and PostDown may take five minutes each.
const GIVE_UP: i64 = 900;

/// Ends the tunnel and waits until it has cleaned up.
pub(crate) fn run(target: Option<&str>) -> Result<()> {
    let target = &*one::tunnel_to_end(target)?;
    let interface = match conf::resolve_name(target) {
        Ok((_, interface)) => interface,
        // A `serve` and a bare interface have no configuration file. Their name alone identifies them.
        Err(conf::NameError::NotFound { name, .. }) => name,
        Err(error) => return Err(error).with_context(|| format!("{target} is not up")),
    };
    if one::is_hidden(&interface) {
        bail!(not_permitted(&interface));
    }
    let Some(runner) = run_file::running(&interface) else {
        return clean_up_after(&interface);
    };
    let Some(number) = runner.process else { bail!(not_seen(&interface)) };
    let pid = Pid::from_raw(number).context("the kernel names no process")?;
    let process = match pidfd_open(pid, PidfdFlags::empty()) {
        Ok(process) => process,
        Err(Errno::SRCH) => return clean_up_after(&interface),
        Err(error) => return Err(error).with_context(|| format!("cannot reach process {number}")),
    };
    // The tunnel may have ended, and another process may have its number by now. The process that still holds the lock
    // is the tunnel.
    if run_file::running(&interface) != Some(runner) {
        return clean_up_after(&interface);
    }
    match pidfd_send_signal(&process, Signal::TERM) {
        Ok(()) | Err(Errno::SRCH) => {}
        Err(Errno::PERM) => bail!(not_permitted(&interface)),
        Err(error) => return Err(error).with_context(|| format!("cannot signal process {number}")),
    }
    let ended = |seconds: i64| {
        let timeout = Timespec { tv_sec: seconds, tv_nsec: 0 };
        poll(&mut [PollFd::new(&process, PollFlags::IN)], Some(&timeout)).map(|ready| ready > 0)
    };
    if ended(SOON)? {
        return Ok(());
    }
    if uapi::hangs(&interface, PATIENCE) && !ended(0)? {
        tracing::warn!(
            "process {number} answers nobody, and has not heard SIGTERM: it is killed, and this command cleans up after it"
        );
        match pidfd_send_signal(&process, Signal::KILL) {
            Ok(()) | Err(Errno::SRCH) => {}
            Err(error) => return Err(error).with_context(|| format!("cannot kill process {number}")),
        }
        ended(LONG)?;
        return clean_up_after(&interface);
    }
    if ended(LONG - SOON)? {
        return Ok(());
    }
    tracing::warn!(
        "process {number} has not ended in {LONG} s; a hook may take five minutes, and its log says which one runs"
    );
    if ended(GIVE_UP - LONG)? {
        return Ok(());
    }
    bail!(
        "process {number} has not ended in {GIVE_UP} s, and may be stuck: kill -KILL {number}; rustguard down {interface}"
    )
}

fn not_up(name: &str) -> String {
    format!("{name} is not up; `rustguard show` lists the interfaces that are")
}

fn not_permitted(name: &str) -> String {
    format!("cannot end {name}: it belongs to another user; run as root, or with sudo")
}

/// Some process holds the run file, and the kernel does not tell which. The number in the file cannot be trusted: a
/// compromised process may have written the folder.
fn not_seen(name: &str) -> String {
    let file = interface::run_file(name, "pid");
    let file = file.display();
    format!(
        "cannot tell which process runs {name}: {file} is locked by one that is no tunnel, or in another container; \
         `fuser -v {file}` names it"
    )
}

/// No process runs the tunnel. A process that was killed may have left changes to the host, which are undone here.
fn clean_up_after(interface: &str) -> Result<()> {
    // Without a file of the tunnel, there is nothing to undo, and nothing that other users cannot see.
    if !left_behind(interface) && !interface::run_file(interface, "pid").exists() {
        bail!(not_up(interface));
    }
    let runtime = runtime()?;
    runtime.block_on(async {
        if !clean_up(interface).await? {
            bail!(not_up(interface));
        }
        tracing::warn!("{interface} was not ended properly; the changes that remained are undone");
        Ok(())
    })
}
