//! The requests of a device to its control thread, and the channels between the two.

use super::round::Doing;
use crate::{
    config::{Update, UpdateError},
    error::CloseReason,
    event::Event,
    foreign::Datagram,
    ping::{PingError, Pong},
    secrets::Secrets,
    status::{PeerStatus, RoutingStatus, Status},
    texts::Text,
};
use rustguard_crypto::x25519::PublicKey;
use std::{sync::Arc, time::Duration};
use tokio::sync::{Notify, broadcast, mpsc, oneshot, watch};

/// The number of commands that may wait.
const COMMAND_QUEUE: usize = 64;
/// The number of events that a slow listener may lag behind before it loses the oldest.
const EVENT_QUEUE: usize = 1024;

/// A request. Its answer, if there is one, comes through the channel in it.
pub(crate) enum Command {
    Update(Box<Update>, oneshot::Sender<Result<(), UpdateError>>),
    Status(oneshot::Sender<Status>),
    /// The status of the peer with this key, if there is one.
    Peer(PublicKey, oneshot::Sender<Option<PeerStatus>>),
    /// Whether the interface is up.
    IsUp(oneshot::Sender<bool>),
    /// The status with the secrets of the same moment.
    StatusWithSecrets(oneshot::Sender<(Status, Secrets)>),
    Routing(oneshot::Sender<RoutingStatus>),
    /// Asks this peer for an answer, and waits at most this long.
    Ping(PublicKey, Duration, oneshot::Sender<Result<Pong, PingError>>),
    HandshakeNow,
    NetworkChanged,
    Send(Datagram),
    /// Sends a text to a peer in its session.
    Say(Text),
    Shutdown,
}

/// The device's end.
pub(crate) struct DeviceEnd {
    pub(crate) commands: mpsc::Sender<Command>,
    pub(crate) events: broadcast::Sender<Event>,
    /// Why control ended, once it has.
    pub(crate) closed: watch::Receiver<Option<CloseReason>>,
    /// Ends control. Never blocks, and is not lost if the queue of commands is full.
    pub(crate) stop: Arc<Notify>,
    pub(crate) doing: Arc<Doing>,
}

/// Control's end.
pub(crate) struct ControlEnd {
    pub(super) commands: mpsc::Receiver<Command>,
    pub(super) events: broadcast::Sender<Event>,
    pub(super) closed: watch::Sender<Option<CloseReason>>,
    pub(super) stop: Arc<Notify>,
    pub(super) doing: Arc<Doing>,
}

/// Makes both ends.
pub(crate) fn channels() -> (DeviceEnd, ControlEnd) {
    let (commands, commands_in) = mpsc::channel(COMMAND_QUEUE);
    let (events, _) = broadcast::channel(EVENT_QUEUE);
    let (closed_out, closed) = watch::channel(None);
    let stop = Arc::new(Notify::new());
    let doing = Arc::new(Doing::default());
    (
        DeviceEnd { commands, events: events.clone(), closed, stop: Arc::clone(&stop), doing: Arc::clone(&doing) },
        ControlEnd { commands: commands_in, events, closed: closed_out, stop, doing },
    )
}
