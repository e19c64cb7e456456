//! The time from a tunnel's readiness to its end: the notifications to systemd and to a parent process, and the signals
//! that end the tunnel.

use super::detach;
use anyhow::{Result, anyhow};
use rustguard_device::{CloseReason, Device};
use rustguard_quick::helper::{self, Notification};
use std::fs::File;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// The events that interrupt a running tunnel.
pub(crate) enum Wakeup {
    /// The tunnel has to end.
    End,
    /// The tunnel reads its file again, because of a SIGHUP that does not come from a closed terminal.
    Reload,
}

/// Reports that the tunnel is ready.
pub(crate) fn ready(interface: &str) {
    tracing::info!("{interface} is up");
    notify(Notification::Ready);
    detach::ready();
}

/// Waits for a signal or the end of the interface.
pub(crate) async fn wait(interface: &str, device: &Device, signals: &mut Signals) -> Result<Wakeup> {
    let ended = tokio::select! {
        reason = device.closed() => match reason {
            // wg-quick and users end a tunnel by deleting its interface, so this is no failure.
            CloseReason::Shutdown | CloseReason::InterfaceDeleted => {
                tracing::info!("{interface}: {reason}");
                Ok(Wakeup::End)
            }
            reason => Err(anyhow!("{interface}: {reason}")),
        },
        said = signals.recv() => match said {
            Said::Reload => return Ok(Wakeup::Reload),
            Said::End(name) => {
                tracing::info!("{interface}: ended by {name}");
                Ok(Wakeup::End)
            }
        }
    };
    notify(Notification::Stopping);
    ended
}

/// Tells systemd that the settings are being read. [`reloaded`] has to follow.
pub(crate) fn reloading() {
    notify(Notification::Reloading);
}

/// Tells systemd that the settings were read, successfully or not.
pub(crate) fn reloaded() {
    notify(Notification::Ready);
}

/// Notifies systemd, if systemd asked for it.
pub(crate) fn notify(notification: Notification) {
    if let Err(error) = helper::notify(notification) {
        tracing::debug!("systemd is not told: {error}");
    }
}

/// The signals to a tunnel.
pub(crate) struct Signals {
    interrupt: Signal,
    terminate: Signal,
    /// `None` under nohup(1).
    hangup: Option<Signal>,
    /// Whether the process was started on a terminal. The end of a terminal also sends SIGHUP.
    terminal: bool,
}

/// The meaning of a signal.
pub(crate) enum Said {
    /// Its name, for the log.
    End(&'static str),
    Reload,
}

impl Signals {
    pub(crate) fn new() -> Result<Self> {
        let hangup = if is_hangup_ignored() { None } else { Some(signal(SignalKind::hangup())?) };
        let (interrupt, terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
        Ok(Self { interrupt, terminate, hangup, terminal: has_terminal() })
    }

    /// Waits for a signal.
    pub(crate) async fn recv(&mut self) -> Said {
        let hangup = async {
            match &mut self.hangup {
                Some(hangup) => hangup.recv().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = self.interrupt.recv() => Said::End("SIGINT"),
            _ = self.terminate.recv() => Said::End("SIGTERM"),
            _ = hangup => if self.terminal && !has_terminal() {
                Said::End("SIGHUP: the terminal was closed")
            } else {
                Said::Reload
            }
        }
    }

    /// Waits for a signal that ends the tunnel, and returns its name.
    pub(crate) async fn end(&mut self) -> &'static str {
        loop {
            if let Said::End(name) = self.recv().await {
                return name;
            }
        }
    }
}

/// Whether the process has a controlling terminal. When the terminal is closed, the kernel removes the controlling
/// terminal (tty_hangup).
fn has_terminal() -> bool {
    File::open("/dev/tty").is_ok()
}

/// Whether the process was started with SIGHUP ignored. A handler would change that.
fn is_hangup_ignored() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    // Signal 1 is the lowest bit.
    ignored.is_some_and(|mask| mask & 1 != 0)
}
