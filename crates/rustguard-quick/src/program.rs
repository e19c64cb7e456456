//! Other programs: hooks, `nft`, `resolvconf`. Each has a process group of its own, which is ended at its time limit,
//! or with this process unless this process is killed.
//!
//! A program that has ended may have left other processes behind on purpose (`PostUp = daemon &`). They live on, as
//! under wg-quick.

use crate::helper::notify;
use rustix::process::{Pid, Signal, kill_process_group};
use std::{
    io,
    process::ExitStatus,
    time::{Duration, Instant},
};
use tokio::process::{Child, Command};

/// The time that programs have to end after SIGTERM, before SIGKILL.
const GRACE: Duration = Duration::from_secs(2);

/// A program that runs. Dropping it ends the program and all processes that it has started.
pub(crate) struct Program {
    child: Child,
    group: Option<Pid>,
}

impl Program {
    pub(crate) fn start(command: &mut Command) -> io::Result<Self> {
        // A daemon that a hook starts could otherwise notify systemd in the name of the tunnel's unit.
        for variable in [notify::SOCKET, "WATCHDOG_PID", "WATCHDOG_USEC"] {
            command.env_remove(variable);
        }
        let child = command.process_group(0).spawn()?;
        let group = child.id().and_then(|id| Pid::from_raw(id.cast_signed()));
        Ok(Self { child, group })
    }

    /// The child process, for its pipes.
    pub(crate) fn child(&mut self) -> &mut Child {
        &mut self.child
    }

    /// Waits for the end of the program. After `limit`, ends its process group and returns `None`.
    pub(crate) async fn wait(&mut self, limit: Duration) -> io::Result<Option<ExitStatus>> {
        if let Ok(status) = tokio::time::timeout(limit, self.child.wait()).await {
            self.group = None;
            return status.map(Some);
        }
        self.signal(Signal::TERM);
        let _ = tokio::time::timeout(GRACE, self.child.wait()).await;
        // This also kills the rest of the group, even if the program itself has ended.
        self.signal(Signal::KILL);
        self.child.wait().await?;
        self.group = None;
        Ok(None)
    }

    fn signal(&self, signal: Signal) {
        if let Some(group) = self.group {
            // A group that has ended needs no signal.
            let _ = kill_process_group(group, signal);
        }
    }
}

impl Drop for Program {
    /// Blocks until the program has ended, because nothing of the set-up may be undone while the program still makes
    /// changes.
    fn drop(&mut self) {
        if self.group.is_none() {
            return;
        }
        self.signal(Signal::TERM);
        let until = Instant::now() + GRACE;
        while matches!(self.child.try_wait(), Ok(None)) && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(10));
        }
        self.signal(Signal::KILL);
        // A killed process ends soon. Tokio reaps it if the runtime lives on.
        let _ = self.child.try_wait();
    }
}
