//! The handle on a running device, and the start of its threads.

use crate::{
    binder::Binder,
    config::{Update, UpdateError},
    control::{self, Command, DeviceEnd, Doing},
    error::{CloseReason, Closed, StartError},
    event::{Event, Events},
    foreign::Datagram,
    interface::Interface,
    ping::{LONGEST, PingError, Pong},
    policy::{Policy, seat::Seat},
    secrets::Secrets,
    settings::Settings,
    status::{PeerStatus, RoutingStatus, Status},
    texts::Text,
};
use rustguard_crypto::x25519::PublicKey;
use rustguard_tun::TunQueue;
use std::{sync::Arc, thread::JoinHandle, time::Duration};
use tokio::sync::{Notify, broadcast, mpsc, oneshot, watch};

/// A running tunnel. Dropping it stops the threads, closes the sockets and erases every key.
///
/// Any executor can run the futures of the methods. The device itself runs on its own threads.
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
    pub(crate) fn launch(
        mut settings: Settings,
        queues: Vec<Vec<Box<dyn TunQueue>>>,
        binder: Box<dyn Binder>,
        interface: Option<Interface>,
    ) -> Result<Self, StartError> {
        if interface.is_none() {
            settings.relay = settings.relay.without_interface();
        }
        let policy = Arc::clone(&settings.policy);
        let (DeviceEnd { commands, events, closed, stop, doing }, control) = control::device_channels();
        let control = control::spawn(settings, interface.clone(), control, queues, binder)?;
        let handle = DeviceHandle { commands, policy, doing };
        Ok(Self { handle, events, closed, stop, interface, control: Some(control) })
    }

    /// Changes the configuration of the running device.
    ///
    /// # Errors
    /// See [`UpdateError`].
    pub async fn update(&self, update: Update) -> Result<(), UpdateError> {
        self.handle.update(update).await
    }

    /// The same as [`DeviceHandle::set_policy`].
    pub fn set_policy(&self, policy: Option<Policy>) {
        self.handle.set_policy(policy);
    }

    /// The current state, without secrets.
    ///
    /// # Errors
    /// The device has ended.
    pub async fn status(&self) -> Result<Status, Closed> {
        self.handle.status().await
    }

    /// The state of one peer; `None` if the device has no peer with this key. This costs less than the whole state if
    /// there are many peers.
    ///
    /// # Errors
    /// The device has ended.
    pub async fn peer(&self, public_key: &PublicKey) -> Result<Option<PeerStatus>, Closed> {
        self.handle.peer(public_key).await
    }

    /// The private key and the preshared keys.
    ///
    /// # Errors
    /// The device has ended.
    pub async fn secrets(&self) -> Result<Secrets, Closed> {
        self.handle.secrets().await
    }

    /// The same as [`DeviceHandle::handshake_now`].
    pub async fn handshake_now(&self) {
        self.handle.handshake_now().await;
    }

    /// The same as [`DeviceHandle::network_changed`].
    pub async fn network_changed(&self) {
        self.handle.network_changed().await;
    }

    /// The same as [`DeviceHandle::ping`].
    ///
    /// # Errors
    /// See [`PingError`].
    pub async fn ping(&self, peer: &PublicKey, timeout: Duration) -> Result<Pong, PingError> {
        self.handle.ping(peer, timeout).await
    }

    /// The events from now on.
    pub fn events(&self) -> Events {
        Events::new(self.events.subscribe())
    }

    /// Waits until the device has ended. Returns the reason.
    pub async fn closed(&self) -> CloseReason {
        let mut closed = self.closed.clone();
        let reason = closed.wait_for(Option::is_some).await;
        reason.ok().and_then(|reason| reason.clone()).unwrap_or(CloseReason::Shutdown)
    }

    /// The kernel interface; `None` over the embedder's own transports.
    pub fn interface(&self) -> Option<&Interface> {
        self.interface.as_ref()
    }

    /// A second handle, for queries and changes. It does not keep the device alive. The UAPI server uses one.
    pub fn handle(&self) -> DeviceHandle {
        self.handle.clone()
    }

    /// Stops the device and waits for its end. Afterwards the interface, the sockets and the keys no longer exist.
    pub async fn shutdown(mut self) {
        let _ = self.handle.commands.send(Command::Shutdown).await;
        self.closed().await;
        self.join();
    }

    fn join(&mut self) {
        if let Some(control) = self.control.take() {
            // The panic hook has printed a panic of that thread.
            let _ = control.join();
        }
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        if self.control.is_some() {
            // This never blocks, and a full queue cannot lose it.
            self.stop.notify_one();
            self.join();
        }
    }
}

/// A handle for queries and changes, which does not keep the device alive.
#[derive(Clone)]
pub struct DeviceHandle {
    commands: mpsc::Sender<Command>,
    policy: Arc<Seat>,
    doing: Arc<Doing>,
}

impl DeviceHandle {
    /// The same as [`Device::update`].
    ///
    /// # Errors
    /// See [`UpdateError`].
    pub async fn update(&self, update: Update) -> Result<(), UpdateError> {
        self.ask(|answer| Command::Update(Box::new(update), answer)).await.unwrap_or(Err(UpdateError::Closed))
    }

    /// Sets what peers may send to this device: see [`policy`](crate::policy). `None` removes the policy. The change
    /// applies to packets that are read after the return.
    ///
    /// Connections that a peer began under another policy are judged again at their next packet. Connections that the
    /// new policy does not allow end there, for both sides. Connections that this host began go on.
    pub fn set_policy(&self, policy: Option<Policy>) {
        self.policy.set(policy);
    }

    /// Starts a handshake with every peer whose endpoint is known, whether or not the peer is in use. After a change of
    /// the network, [`network_changed`](Self::network_changed) is better.
    pub async fn handshake_now(&self) {
        let _ = self.commands.send(Command::HandshakeNow).await;
    }

    /// The network under the tunnel has changed, or the machine was suspended. Every peer with which anything authentic
    /// was exchanged in the last three minutes, or that we try to reach, learns our new address by a keepalive; a
    /// handshake shows whether the peer can be reached. Each peer is told once a second at most. A device with an
    /// interface of the kernel notices changes by itself.
    pub async fn network_changed(&self) {
        let _ = self.commands.send(Command::NetworkChanged).await;
    }

    /// Sends a datagram of another protocol from the tunnel's port: see
    /// [`Builder::datagrams`](crate::Builder::datagrams). It may be lost, like any datagram.
    pub async fn send(&self, datagram: Datagram) {
        // A device that has ended sends nothing.
        let _ = self.commands.send(Command::Send(datagram)).await;
    }

    /// Sends a text of the embedder's protocol inside the session with a peer: see
    /// [`Builder::texts`](crate::Builder::texts). Without a session, a handshake comes first. The text may be lost,
    /// like any packet. A text that the protocol does not recognise, or that may not be the embedder's, is dropped and
    /// counted (`not_ip`).
    pub async fn say(&self, text: Text) {
        // A device that has ended sends nothing.
        let _ = self.commands.send(Command::Say(text)).await;
    }

    /// Asks a peer's RustGuard for an answer inside the session, and returns how long the answer takes and by which way
    /// it comes. Without a session, a handshake comes first. Waits for at most `timeout`, and never for more than ten
    /// seconds. A ping counts as data: it keeps a session and its paths in use, and reaches no host behind the peer.
    ///
    /// The request and the answer each have 16 bytes inside the session. Stock WireGuard drops such a request, as it
    /// drops every text that is no IP packet. Dropping the future ends the ping.
    ///
    /// # Errors
    /// See [`PingError`].
    pub async fn ping(&self, peer: &PublicKey, timeout: Duration) -> Result<Pong, PingError> {
        let timeout = timeout.min(LONGEST);
        self.ask(|answer| Command::Ping(*peer, timeout, answer)).await.unwrap_or(Err(PingError::Closed))
    }

    /// The state of the routing engine.
    ///
    /// # Errors
    /// The device has ended.
    pub async fn routing(&self) -> Result<RoutingStatus, Closed> {
        self.ask(Command::Routing).await
    }

    /// The same as [`Device::status`].
    ///
    /// # Errors
    /// The device has ended.
    pub async fn status(&self) -> Result<Status, Closed> {
        self.ask(Command::Status).await
    }

    /// The same as [`Device::peer`].
    ///
    /// # Errors
    /// The device has ended.
    pub async fn peer(&self, public_key: &PublicKey) -> Result<Option<PeerStatus>, Closed> {
        self.ask(|answer| Command::Peer(*public_key, answer)).await
    }

    /// Whether the tunnel works, as [`Status::up`] says. Costs less than the whole state.
    ///
    /// # Errors
    /// The device has ended.
    pub async fn is_up(&self) -> Result<bool, Closed> {
        self.ask(Command::IsUp).await
    }

    /// The work that control is doing, in words; `None` while it waits. Each piece of work takes only a moment, unless
    /// control hangs: a watchdog asks this if [`is_up`](Self::is_up) has no answer.
    pub fn doing(&self) -> Option<&'static str> {
        self.doing.words()
    }

    /// The same as [`Device::secrets`].
    ///
    /// # Errors
    /// The device has ended.
    pub async fn secrets(&self) -> Result<Secrets, Closed> {
        self.status_with_secrets().await.map(|(_, secrets)| secrets)
    }

    /// The state and the secrets at the same moment, for saving the configuration.
    ///
    /// # Errors
    /// The device has ended.
    pub async fn status_with_secrets(&self) -> Result<(Status, Secrets), Closed> {
        self.ask(Command::StatusWithSecrets).await
    }

    /// Sends a command, and waits for its answer.
    async fn ask<T>(&self, command: impl FnOnce(oneshot::Sender<T>) -> Command) -> Result<T, Closed> {
        let (answer, answered) = oneshot::channel();
        self.commands.send(command(answer)).await.map_err(|_| Closed)?;
        answered.await.map_err(|_| Closed)
    }
}

#[cfg(test)]
mod tests;
