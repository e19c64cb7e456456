//! The time from a tunnel's readiness to its end: the notifications to systemd and to a parent process, and the signals
//! that end the tunnel.

use super::detach;
use anyhow::{Result, bail};
use rustguard_device::{CloseReason, Device};
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Reports that the tunnel is ready, and waits until something ends it.
pub(crate) async fn run_until_ended(interface: &str, device: &Device, signals: &mut Signals) -> Result<()> {
    tracing::info!("{interface} is up");
    notify(&[sd_notify::NotifyState::Ready]);
    detach::ready();
    let ended = tokio::select! {
        reason = device.closed() => match reason {
            // wg-quick and users end a tunnel by deleting its interface, so this is no failure.
            CloseReason::Shutdown | CloseReason::InterfaceDeleted => {
                tracing::info!("{interface}: {reason}");
                Ok(())
            }
            reason => bail!("{interface}: {reason}"),
        },
        name = signals.recv() => {
            tracing::info!("{interface}: ended by {name}");
            Ok(())
        }
    };
    notify(&[sd_notify::NotifyState::Stopping]);
    ended
}

/// Notifies systemd, if systemd asked for it.
pub(crate) fn notify(states: &[sd_notify::NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::debug!("sd_notify: {error}");
    }
}

/// The signals that end a tunnel.
pub(crate) struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    pub(crate) fn new() -> Result<Self> {
        Ok(Self { interrupt: signal(SignalKind::interrupt())?, terminate: signal(SignalKind::terminate())? })
    }

    /// Waits for a signal, and returns its name.
    pub(crate) async fn recv(&mut self) -> &'static str {
        tokio::select! {
            _ = self.interrupt.recv() => "SIGINT",
            _ = self.terminate.recv() => "SIGTERM",
        }
    }
}
