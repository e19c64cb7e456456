//! The messages by which the two ends agree: parities are sent in a session only after the receiver has accepted them.

use crate::{
    bytes::{field, put},
    control_message::{Header, Kind},
};

const LEN: usize = 16;

/// A message about parities, inside the session.
///
/// Each direction is agreed upon separately. These are [control messages](crate::control_message): stock peers and
/// older RustGuards do not answer, and then get no parities.
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
    /// The offer is accepted: from now on, parities are understood in this session.
    Accept(u32),
}

impl Message {
    /// Reads a text; `None` for others.
    pub fn parse(text: &[u8]) -> Option<Self> {
        let text: &[u8; LEN] = text.try_into().ok()?;
        let index = u32::from_le_bytes(*field(text, 4));
        match Kind::of(text)? {
            Kind::ParityOffer => Some(Self::Offer(index)),
            Kind::ParityAccept => Some(Self::Accept(index)),
            _ => None,
        }
    }

    /// The text.
    pub fn to_bytes(self) -> [u8; LEN] {
        let (kind, index) = match self {
            Self::Offer(index) => (Kind::ParityOffer, index),
            Self::Accept(index) => (Kind::ParityAccept, index),
        };
        let mut text = [0; LEN];
        Header::new(kind).put(&mut text);
        put(&mut text, 4, &index.to_le_bytes());
        text
    }
}
