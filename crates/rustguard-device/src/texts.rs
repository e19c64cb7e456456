//! An embedder's own protocol inside the sessions: texts that are not IP packets, and the queue of received texts.

use rustguard_crypto::x25519::PublicKey;
use tokio::sync::mpsc;
use zeroize::Zeroizing;

/// A text of the embedder's own protocol inside the session with a peer. It may contain secrets, and is wiped on drop.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Text {
    /// The peer that sent the text, or gets it.
    pub peer: PublicKey,
    /// The text. Up to 15 zero bytes may follow the sent text: transport messages are padded (WireGuard paper, section
    /// 5.4.6).
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
