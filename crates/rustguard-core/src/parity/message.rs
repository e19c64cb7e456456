//! How the two ends agree: parities are sent in a session only after the receiver has accepted them.

use crate::bytes::{field, put};

const LEN: usize = 16;
const OFFER: u8 = 8;
const ACCEPT: u8 = 9;
const MAGIC: [u8; 3] = [b'R', b'G', 1];

/// A message about parities, inside the session.
///
/// Each direction is agreed upon by itself. Like probes, these are texts of transport messages that are no IP packets: stock peers and
/// older RustGuards drop them without an answer, and get no parities then.
///
/// ```text
/// byte
///  0     8: an offer; 9: it is accepted
///  1     "RG", then the version, 1
///  4     u32: the index by which the receiver of the parities knows the session
///  8     0
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message {
    /// The sender would like to send parities in the session with this index.
    Offer(u32),
    /// It may: from now on, they are understood in this session.
    Accept(u32),
}

impl Message {
    /// Whether the text of a transport message is about parities, going by its first bytes.
    pub fn is_one(text: &[u8]) -> bool {
        matches!(text, [OFFER | ACCEPT, magic @ ..] if magic.starts_with(&MAGIC))
    }

    /// Reads a text; `None` for others.
    pub fn parse(text: &[u8]) -> Option<Self> {
        let text: &[u8; LEN] = text.try_into().ok().filter(|text: &&[u8; LEN]| Self::is_one(&text[..]))?;
        let index = u32::from_le_bytes(*field(text, 4));
        Some(if text[0] == OFFER { Self::Offer(index) } else { Self::Accept(index) })
    }

    /// The text.
    pub fn to_bytes(self) -> [u8; LEN] {
        let (kind, index) = match self {
            Self::Offer(index) => (OFFER, index),
            Self::Accept(index) => (ACCEPT, index),
        };
        let mut text = [0; LEN];
        text[0] = kind;
        put(&mut text, 1, &MAGIC);
        put(&mut text, 4, &index.to_le_bytes());
        text
    }
}
