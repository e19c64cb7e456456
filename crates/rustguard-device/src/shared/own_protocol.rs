//! The embedder's own protocol, for the workers: which texts belong to it, and where they go.

use super::{Shared, peer::PeerShared};
use crate::{drops::DropReason, texts::Text};
use rustguard_core::{
    control_message::{Kind, is_foreign},
    limit::Rate,
    time::Instant,
};
use tokio::sync::mpsc;

/// The rate of one peer's texts. More are dropped, so that a peer can neither fill the queue for long nor keep the
/// embedder busy.
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

    /// Whether the text belongs to this protocol. Texts that a device handles itself never do.
    pub(crate) fn recognises(&self, text: &[u8]) -> bool {
        (is_foreign(text) || Kind::of(text) == Some(Kind::Roster)) && (self.recognises)(text)
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

#[cfg(test)]
mod tests {
    use super::*;
    use rustguard_core::control_message::Header;

    #[test]
    fn no_text_that_a_device_takes_is_an_embedders_even_if_that_says_so() {
        let own = OwnProtocol::new(|_| true, mpsc::channel(1).0);
        for kind in Kind::ALL {
            for version in 0..=u8::MAX {
                let text = Header { kind, version }.to_bytes();
                assert_eq!(own.recognises(&text), text == *b"\x07RG\x01", "{text:?}");
            }
        }
        for text in [&b"\x1fRG\x01 of a later version"[..], &[0x45; 20], &[0x60; 40], &[]] {
            assert!(!own.recognises(text), "{text:?}");
        }
        for text in [&b"\x07ours"[..], b"\x80RG\x01", b"\xff", b"\x20RG\x01"] {
            assert!(own.recognises(text), "{text:?}");
        }
        assert!(!OwnProtocol::new(|_| false, mpsc::channel(1).0).recognises(b"\x80"));
    }
}
