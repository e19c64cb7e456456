//! The embedder's own protocol, as the workers know it: which texts are of it, and where they go.

use super::{Shared, peer::PeerShared};
use crate::{drops::DropReason, texts::Text};
use rustguard_core::{limit::Rate, time::Instant};
use tokio::sync::mpsc;

/// Texts of one peer: more are dropped, so that a peer can neither fill the queue for long nor keep the embedder busy.
const OF_ONE: Rate = Rate { interval: std::time::Duration::from_micros(250), burst: 1_000 };

/// A protocol that an embedder speaks inside the sessions.
pub(crate) struct OwnProtocol {
    recognises: fn(&[u8]) -> bool,
    queue: mpsc::Sender<Text>,
}

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
        let place = || self.queue.try_reserve().ok().filter(|_| from.texts.lock().take(OF_ONE, now));
        match place() {
            Some(place) => place.send(Text::new(from.public_key(), text)),
            None => shared.dropped(from, DropReason::TextLimit, 1),
        }
    }
}
