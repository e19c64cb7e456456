//! An embedder's own protocol inside the sessions: texts that are no IP packets, and the queue in which those that arrive wait.

use crate::{
    drops::DropReason,
    shared::{Shared, peer::PeerShared},
};
use rustguard_core::{
    limit::{Bucket, Rate},
    time::Instant,
};
use rustguard_crypto::x25519::PublicKey;
use tokio::sync::mpsc;
use zeroize::Zeroizing;

/// Texts of one peer: more are dropped, so that a peer can neither fill the queue for long nor keep the embedder busy.
const OF_ONE: Rate = Rate { interval: std::time::Duration::from_micros(250), burst: 1_000 };

/// A text of the embedder's own protocol, as it travels inside the session with a peer. It may hold secrets, and is wiped on drop.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Text {
    /// The peer that it is from, or for.
    pub peer: PublicKey,
    /// The text. Up to 15 zeros may follow what was sent: transport messages are padded (WireGuard paper, section 5.4.6).
    pub bytes: Zeroizing<Box<[u8]>>,
}

impl Text {
    /// A text for this peer.
    pub fn new(peer: PublicKey, bytes: impl Into<Box<[u8]>>) -> Self {
        Self { peer, bytes: Zeroizing::new(bytes.into()) }
    }
}

/// The texts that have arrived: see [`Builder::texts`](crate::Builder::texts).
#[derive(Debug)]
pub struct Texts(mpsc::Receiver<Text>);

impl Texts {
    pub(crate) fn new(receiver: mpsc::Receiver<Text>) -> Self {
        Self(receiver)
    }

    /// Waits for the next text; `None` once the device has ended. Dropping the future loses no text.
    pub async fn recv(&mut self) -> Option<Text> {
        self.0.recv().await
    }
}

/// A protocol that an embedder speaks inside the sessions.
pub(crate) struct OwnProtocol {
    recognises: fn(&[u8]) -> bool,
    queue: mpsc::Sender<Text>,
}

/// What one peer may say.
#[derive(Default)]
pub(crate) struct Share(parking_lot::Mutex<Bucket>);

impl OwnProtocol {
    pub(crate) fn new(recognises: fn(&[u8]) -> bool, queue: mpsc::Sender<Text>) -> Self {
        Self { recognises, queue }
    }

    /// Whether the text belongs to this protocol.
    pub(crate) fn recognises(&self, text: &[u8]) -> bool {
        (self.recognises)(text)
    }

    /// Copies a text of this protocol into its queue.
    #[cold]
    pub(crate) fn take(&self, from: &PeerShared, text: &[u8], now: Instant, shared: &Shared) {
        let place = || self.queue.try_reserve().ok().filter(|_| from.texts.0.lock().take(OF_ONE, now));
        match place() {
            Some(place) => place.send(Text::new(from.public_key(), text)),
            None => shared.dropped(from, DropReason::TextLimit, 1),
        }
    }
}
