//! The handle on a running device, and how its threads are started.

use crate::{
    binder::Binder,
    config::{Update, UpdateError},
    control::{self, Command, DeviceEnd},
    error::{CloseReason, StartError},
    event::{Event, Events},
    foreign::Datagram,
    interface::Interface,
    secrets::Secrets,
    settings::Settings,
    status::{RoutingStatus, Status},
};
use rustguard_tun::TunQueue;
use std::{sync::Arc, thread::JoinHandle};
use tokio::sync::{Notify, broadcast, mpsc, oneshot, watch};

/// A running tunnel. Dropping it stops the threads, closes the sockets and erases every key.
///
/// The methods are futures that any executor can run; the device itself runs on threads of its own.
pub struct Device {
    handle: DeviceHandle,
    events: broadcast::Sender<Event>,
    closed: watch::Receiver<Option<CloseReason>>,
    stop: Arc<Notify>,
    interface: Option<Interface>,
    control: Option<JoinHandle<()>>,
}

impl Device {
    /// Starts the threads. `queues` are the TUN queues of each worker.
    pub(crate) fn launch<T: TunQueue, B: Binder>(
        mut settings: Settings,
        queues: Vec<Vec<T>>,
        binder: B,
        interface: Option<Interface>,
    ) -> Result<Self, StartError> {
        if interface.is_none() {
            settings.relay = settings.relay.without_interface();
        }
        let (DeviceEnd { commands, events, closed, stop }, control) = control::device_channels();
        let control = control::spawn(settings, interface.clone(), control, queues, binder)?;
        Ok(Self { handle: DeviceHandle { commands }, events, closed, stop, interface, control: Some(control) })
    }

    /// Changes the configuration of the running device.
    ///
    /// # Errors
    /// See [`UpdateError`].
    pub async fn update(&self, update: Update) -> Result<(), UpdateError> {
        self.handle.update(update).await
    }

    /// The state now, without secrets; `None` once the device has ended.
    pub async fn status(&self) -> Option<Status> {
        self.handle.status().await
    }

    /// The private key and the preshared keys; `None` once the device has ended.
    pub async fn secrets(&self) -> Option<Secrets> {
        self.handle.secrets().await
    }

    /// As [`DeviceHandle::handshake_now`].
    pub async fn handshake_now(&self) {
        self.handle.handshake_now().await;
    }

    /// What happens from now on.
    pub fn events(&self) -> Events {
        Events::new(self.events.subscribe())
    }

    /// Waits until the device has ended, and says why.
    pub async fn closed(&self) -> CloseReason {
        let mut closed = self.closed.clone();
        let reason = closed.wait_for(Option::is_some).await;
        reason.ok().and_then(|reason| reason.clone()).unwrap_or(CloseReason::Shutdown)
    }

    /// The kernel interface; `None` over a transport of the embedder's own.
    pub fn interface(&self) -> Option<&Interface> {
        self.interface.as_ref()
    }

    /// A second way to ask and configure, which does not keep the device alive (the UAPI server has one).
    pub fn handle(&self) -> DeviceHandle {
        self.handle.clone()
    }

    /// Stops everything and waits for it: afterwards the interface, the sockets and the keys are gone.
    pub async fn shutdown(mut self) {
        let _ = self.handle.commands.send(Command::Shutdown).await;
        self.closed().await;
        self.join();
    }

    fn join(&mut self) {
        if let Some(control) = self.control.take() {
            // A panic there was printed by the panic hook.
            let _ = control.join();
        }
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        if self.control.is_some() {
            // Never blocks, and cannot be lost to a full queue.
            self.stop.notify_one();
            self.join();
        }
    }
}

/// Asks and configures a device without keeping it alive.
#[derive(Clone)]
pub struct DeviceHandle {
    commands: mpsc::Sender<Command>,
}

impl DeviceHandle {
    /// As [`Device::update`].
    ///
    /// # Errors
    /// See [`UpdateError`].
    pub async fn update(&self, update: Update) -> Result<(), UpdateError> {
        let (answer, answered) = oneshot::channel();
        self.commands.send(Command::Update(update, answer)).await.map_err(|_| UpdateError::Closed)?;
        answered.await.map_err(|_| UpdateError::Closed)?
    }

    /// Starts a handshake with every peer whose endpoint is known: the network has changed under the tunnel.
    pub async fn handshake_now(&self) {
        let _ = self.commands.send(Command::HandshakeNow).await;
    }

    /// Sends a datagram of another protocol from the tunnel's port: see [`Builder::datagrams`]. Like any datagram, it may be
    /// lost.
    pub async fn send(&self, datagram: Datagram) {
        // A device that has ended sends nothing any more.
        let _ = self.commands.send(Command::Send(datagram)).await;
    }

    /// What the routing engine tells; `None` once the device has ended.
    pub async fn routing(&self) -> Option<RoutingStatus> {
        let (answer, answered) = oneshot::channel();
        self.commands.send(Command::Routing(answer)).await.ok()?;
        answered.await.ok()
    }

    /// As [`Device::status`].
    pub async fn status(&self) -> Option<Status> {
        let (answer, answered) = oneshot::channel();
        self.commands.send(Command::Status(answer)).await.ok()?;
        answered.await.ok()
    }

    /// As [`Device::secrets`].
    pub async fn secrets(&self) -> Option<Secrets> {
        self.status_with_secrets().await.map(|(_, secrets)| secrets)
    }

    /// The state and the secrets of one moment: for configurations that are saved.
    pub async fn status_with_secrets(&self) -> Option<(Status, Secrets)> {
        let (answer, answered) = oneshot::channel();
        self.commands.send(Command::StatusWithSecrets(answer)).await.ok()?;
        answered.await.ok()
    }
}

#[cfg(test)]
mod tests;
