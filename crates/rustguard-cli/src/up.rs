//! `rustguard up`: a tunnel from a configuration file, in the foreground or detached.

use crate::{
    cli::{DataPath, Relay},
    detach,
    session::Session,
};
use anyhow::{Context as _, Result, bail};
use rustguard_device::{CloseReason, Device, conf};
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Brings a tunnel up and keeps it until told otherwise.
pub(crate) fn run(target: &str, detached: bool, data_path: &DataPath) -> Result<()> {
    let (path, interface) = conf::resolve_name(target)?;
    if detached && !detach::is_child() {
        // Absolute, but not canonical: the interface has its name from the link, not from what it points to.
        let path = std::path::absolute(&path).with_context(|| format!("cannot open {}", path.display()))?;
        let path = path.to_str().context("the path is not UTF-8")?;
        let mut arguments = vec!["up".to_owned(), "--detach".to_owned(), path.to_owned()];
        arguments.extend(data_path.arguments());
        return detach::spawn(&interface, &arguments);
    }
    detach::enter();
    let config = crate::check::load(&path)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut signals = Signals::new()?;
        let mut session = Session::claim(interface.clone(), path, config).await?;
        let started = tokio::select! {
            started = session.start(data_path.apply(Device::builder()), data_path.relay != Relay::Off) => started,
            name = signals.recv() => Err(anyhow::anyhow!("ended by {name} before the tunnel was up")),
        };
        let result = match (started, session.device()) {
            (Ok(()), Some(device)) => run_until_ended(&interface, device, &mut signals).await,
            (started, _) => started,
        };
        session.stop().await;
        if result.is_ok() {
            detach::leave(&interface);
        }
        result
    })
}

/// Ready: waits until something ends the tunnel.
pub(crate) async fn run_until_ended(interface: &str, device: &Device, signals: &mut Signals) -> Result<()> {
    tracing::info!("{interface} is up");
    notify(&[sd_notify::NotifyState::Ready]);
    detach::ready();
    let ended = tokio::select! {
        reason = device.closed() => match reason {
            // Deleting the interface is how wg-quick, and people, end a tunnel: not a failure.
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

/// Tells systemd, where it asked.
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

    /// Waits for one, and names it.
    pub(crate) async fn recv(&mut self) -> &'static str {
        tokio::select! {
            _ = self.interrupt.recv() => "SIGINT",
            _ = self.terminate.recv() => "SIGTERM",
        }
    }
}
