//! `rustguard down`: ends what `up` started, wherever it runs.

use anyhow::{Context as _, Result, bail};
use rustguard_quick::{clean_up, conf, left_behind, run_file};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
    process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal},
};

/// How long hooks and clean-up of the other process may take, in seconds.
const PATIENCE: i64 = 60;

/// Ends the tunnel and waits until it has cleaned up.
pub(crate) fn run(target: &str) -> Result<()> {
    // A bare interface has no configuration file; it goes by its name.
    let interface = match conf::resolve_name(target) {
        Ok((_, interface)) => interface,
        Err(_) if run_file::running(target).is_some() || left_behind(target) => target.to_owned(),
        Err(error) => return Err(error.into()),
    };
    let Some(number) = run_file::running(&interface) else {
        return clean_up_after(&interface);
    };
    let pid = Pid::from_raw(number).context("the run file names no process")?;
    // The run file is locked by the process that wrote it: this pid is no other's.
    let process = match pidfd_open(pid, PidfdFlags::empty()) {
        Ok(process) => process,
        Err(Errno::SRCH) => return clean_up_after(&interface),
        Err(error) => return Err(error).with_context(|| format!("cannot reach process {number}")),
    };
    match pidfd_send_signal(&process, Signal::TERM) {
        Ok(()) | Err(Errno::SRCH) => {}
        Err(Errno::PERM) => bail!("{interface} belongs to another user: run as root, or with sudo"),
        Err(error) => return Err(error).with_context(|| format!("cannot signal process {number}")),
    }
    let timeout = Timespec { tv_sec: PATIENCE, tv_nsec: 0 };
    if poll(&mut [PollFd::new(&process, PollFlags::IN)], Some(&timeout))? == 0 {
        bail!("process {number} has not ended within {PATIENCE} s; perhaps a hook hangs (see the log of the process)");
    }
    Ok(())
}

/// Nobody runs it: perhaps somebody was killed and left something.
fn clean_up_after(interface: &str) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        if !clean_up(interface).await? {
            bail!("{interface} is not up; `rustguard show` lists the interfaces that are");
        }
        tracing::warn!("{interface} was not ended properly; the changes that remained are undone");
        Ok(())
    })
}
