//! WireGuard's four messages, checked once when they arrive (whitepaper §5.4).
//!
//! [`Message::parse`] checks type, reserved bytes and length; the views it returns cannot fail afterwards. The builders
//! leave the two MACs of a handshake message zero: [`cookie::Maker`](crate::cookie::Maker) fills them in.
use crate::bytes::{field, put};

/// Bytes of a handshake initiation.
pub const INITIATION_LEN: usize = 148;
/// Bytes of a handshake response.
pub const RESPONSE_LEN: usize = 92;
/// Bytes of a cookie reply.
pub const COOKIE_REPLY_LEN: usize = 64;
/// Bytes of the shortest transport message, a keepalive: only header and tag.
pub const DATA_MIN_LEN: usize = 32;
/// Bytes of MAC1 and MAC2 together, at the end of an initiation and of a response.
pub const MACS_LEN: usize = 32;

/// Bytes of a public key under an AEAD.
pub const SEALED_KEY_LEN: usize = 48;
/// Bytes of a TAI64N timestamp.
pub const TIMESTAMP_LEN: usize = 12;

const TYPE_INITIATION: u32 = 1;
const TYPE_RESPONSE: u32 = 2;
const TYPE_COOKIE_REPLY: u32 = 3;
const TYPE_DATA: u32 = 4;

/// The kind of a datagram, by type and length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Handshake initiation, 148 bytes.
    Initiation,
    /// Handshake response, 92 bytes.
    Response,
    /// Cookie reply, 64 bytes.
    CookieReply,
    /// Transport data, 32 bytes or more; the text's length need not be a multiple of 16.
    Data {
        /// The receiver's index.
        receiver: u32,
        /// The counter.
        counter: u64,
    },
}

impl Kind {
    /// Classifies; `None` for unknown types, wrong lengths, nonzero reserved bytes.
    pub fn of(datagram: &[u8]) -> Option<Self> {
        Message::parse(datagram).map(|message| match message {
            Message::Initiation(_) => Self::Initiation,
            Message::Response(_) => Self::Response,
            Message::CookieReply(_) => Self::CookieReply,
            Message::Data { receiver, counter } => Self::Data { receiver, counter },
        })
    }
}

/// A datagram of the right form. Nothing in it is authenticated yet.
#[derive(Clone, Copy, Debug)]
pub enum Message<'d> {
    /// Handshake initiation.
    Initiation(Initiation<'d>),
    /// Handshake response.
    Response(Response<'d>),
    /// Cookie reply.
    CookieReply(CookieReply<'d>),
    /// Transport data: the header's fields; the text and its tag are the rest.
    Data {
        /// The receiver's index.
        receiver: u32,
        /// The counter.
        counter: u64,
    },
}

impl<'d> Message<'d> {
    /// Checks the form; `None` for unknown types, wrong lengths, nonzero reserved bytes.
    pub fn parse(datagram: &'d [u8]) -> Option<Self> {
        // The type is one byte and three reserved zeros: one little-endian word checks both.
        match u32::from_le_bytes(*datagram.first_chunk()?) {
            TYPE_INITIATION => datagram.try_into().ok().map(|bytes| Self::Initiation(Initiation(bytes))),
            TYPE_RESPONSE => datagram.try_into().ok().map(|bytes| Self::Response(Response(bytes))),
            TYPE_COOKIE_REPLY => datagram.try_into().ok().map(|bytes| Self::CookieReply(CookieReply(bytes))),
            TYPE_DATA if datagram.len() >= DATA_MIN_LEN => Some(Self::Data {
                receiver: u32::from_le_bytes(*field(datagram, 4)),
                counter: u64::from_le_bytes(*field(datagram, 8)),
            }),
            _ => None,
        }
    }
}

/// A handshake initiation: `type 4 | sender 4 | ephemeral 32 | static 48 | timestamp 28 | mac1 16 | mac2 16`.
#[derive(Clone, Copy, Debug)]
pub struct Initiation<'d>(&'d [u8; INITIATION_LEN]);

impl<'d> Initiation<'d> {
    const SENDER: usize = 4;
    const EPHEMERAL: usize = 8;
    const STATIC: usize = 40;
    const TIMESTAMP: usize = 88;
    const TIMESTAMP_TAG: usize = 100;

    /// The index by which the initiator wants to be addressed.
    pub fn sender(&self) -> u32 {
        u32::from_le_bytes(*field(self.0, Self::SENDER))
    }

    /// The ephemeral public key.
    pub fn ephemeral(&self) -> &'d [u8; 32] {
        field(self.0, Self::EPHEMERAL)
    }

    /// The sealed static public key with its tag.
    pub fn static_key(&self) -> &'d [u8; SEALED_KEY_LEN] {
        field(self.0, Self::STATIC)
    }

    /// The sealed timestamp.
    pub fn timestamp(&self) -> &'d [u8; TIMESTAMP_LEN] {
        field(self.0, Self::TIMESTAMP)
    }

    /// The tag of the timestamp.
    pub fn timestamp_tag(&self) -> &'d [u8; 16] {
        field(self.0, Self::TIMESTAMP_TAG)
    }

    /// Assembles an initiation, without its MACs.
    pub fn build(
        sender: u32,
        ephemeral: &[u8; 32],
        static_key: &[u8; SEALED_KEY_LEN],
        timestamp: &[u8; TIMESTAMP_LEN],
        timestamp_tag: &[u8; 16],
    ) -> [u8; INITIATION_LEN] {
        let mut message = [0; INITIATION_LEN];
        put(&mut message, 0, &TYPE_INITIATION.to_le_bytes());
        put(&mut message, Self::SENDER, &sender.to_le_bytes());
        put(&mut message, Self::EPHEMERAL, ephemeral);
        put(&mut message, Self::STATIC, static_key);
        put(&mut message, Self::TIMESTAMP, timestamp);
        put(&mut message, Self::TIMESTAMP_TAG, timestamp_tag);
        message
    }
}

/// A handshake response: `type 4 | sender 4 | receiver 4 | ephemeral 32 | nothing 16 | mac1 16 | mac2 16`.
#[derive(Clone, Copy, Debug)]
pub struct Response<'d>(&'d [u8; RESPONSE_LEN]);

impl<'d> Response<'d> {
    const SENDER: usize = 4;
    const RECEIVER: usize = 8;
    const EPHEMERAL: usize = 12;
    const TAG: usize = 44;

    /// The index by which the responder wants to be addressed.
    pub fn sender(&self) -> u32 {
        u32::from_le_bytes(*field(self.0, Self::SENDER))
    }

    /// The index of the handshake that this answers.
    pub fn receiver(&self) -> u32 {
        u32::from_le_bytes(*field(self.0, Self::RECEIVER))
    }

    /// The ephemeral public key.
    pub fn ephemeral(&self) -> &'d [u8; 32] {
        field(self.0, Self::EPHEMERAL)
    }

    /// The tag of the empty payload.
    pub fn tag(&self) -> &'d [u8; 16] {
        field(self.0, Self::TAG)
    }

    /// Assembles a response, without its MACs.
    pub fn build(sender: u32, receiver: u32, ephemeral: &[u8; 32], tag: &[u8; 16]) -> [u8; RESPONSE_LEN] {
        let mut message = [0; RESPONSE_LEN];
        put(&mut message, 0, &TYPE_RESPONSE.to_le_bytes());
        put(&mut message, Self::SENDER, &sender.to_le_bytes());
        put(&mut message, Self::RECEIVER, &receiver.to_le_bytes());
        put(&mut message, Self::EPHEMERAL, ephemeral);
        put(&mut message, Self::TAG, tag);
        message
    }
}

/// A cookie reply: `type 4 | receiver 4 | nonce 24 | cookie 16 | tag 16`.
#[derive(Clone, Copy, Debug)]
pub struct CookieReply<'d>(&'d [u8; COOKIE_REPLY_LEN]);

impl<'d> CookieReply<'d> {
    const RECEIVER: usize = 4;
    const NONCE: usize = 8;
    const COOKIE: usize = 32;
    const TAG: usize = 48;

    /// The sender index of the message that this answers.
    pub fn receiver(&self) -> u32 {
        u32::from_le_bytes(*field(self.0, Self::RECEIVER))
    }

    /// The nonce of XChaCha20-Poly1305.
    pub fn nonce(&self) -> &'d [u8; 24] {
        field(self.0, Self::NONCE)
    }

    /// The sealed cookie.
    pub fn cookie(&self) -> &'d [u8; 16] {
        field(self.0, Self::COOKIE)
    }

    /// The tag of the cookie.
    pub fn tag(&self) -> &'d [u8; 16] {
        field(self.0, Self::TAG)
    }

    /// Assembles a cookie reply.
    pub fn build(receiver: u32, nonce: &[u8; 24], cookie: &[u8; 16], tag: &[u8; 16]) -> [u8; COOKIE_REPLY_LEN] {
        let mut message = [0; COOKIE_REPLY_LEN];
        put(&mut message, 0, &TYPE_COOKIE_REPLY.to_le_bytes());
        put(&mut message, Self::RECEIVER, &receiver.to_le_bytes());
        put(&mut message, Self::NONCE, nonce);
        put(&mut message, Self::COOKIE, cookie);
        put(&mut message, Self::TAG, tag);
        message
    }
}

/// The header of a transport message.
pub(crate) fn data_header(receiver: u32, counter: u64) -> [u8; 16] {
    let mut header = [0; 16];
    put(&mut header, 0, &TYPE_DATA.to_le_bytes());
    put(&mut header, 4, &receiver.to_le_bytes());
    put(&mut header, 8, &counter.to_le_bytes());
    header
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::{vec, vec::Vec};
    use proptest::prelude::*;

    #[test]
    fn fields_come_back_from_where_they_were_put() {
        let message = Initiation::build(0x0403_0201, &[5; 32], &[6; 48], &[7; 12], &[8; 16]);
        let Some(Message::Initiation(view)) = Message::parse(&message) else { panic!("an initiation") };
        assert_eq!(view.sender(), 0x0403_0201);
        assert_eq!((view.ephemeral(), view.static_key()), (&[5; 32], &[6; 48]));
        assert_eq!((view.timestamp(), view.timestamp_tag()), (&[7; 12], &[8; 16]));
        assert_eq!(message[..8], [1, 0, 0, 0, 1, 2, 3, 4]);
        assert_eq!(message[116..], [0; 32]);

        let message = Response::build(1, 2, &[3; 32], &[4; 16]);
        let Some(Message::Response(view)) = Message::parse(&message) else { panic!("a response") };
        assert_eq!((view.sender(), view.receiver(), view.ephemeral(), view.tag()), (1, 2, &[3; 32], &[4; 16]));

        let message = CookieReply::build(1, &[2; 24], &[3; 16], &[4; 16]);
        let Some(Message::CookieReply(view)) = Message::parse(&message) else { panic!("a cookie reply") };
        assert_eq!((view.receiver(), view.nonce(), view.cookie(), view.tag()), (1, &[2; 24], &[3; 16], &[4; 16]));
    }

    #[test]
    fn wrong_lengths_reserved_bytes_and_types_are_nothing() {
        for (kind, len) in [(1, INITIATION_LEN), (2, RESPONSE_LEN), (3, COOKIE_REPLY_LEN), (4, DATA_MIN_LEN)] {
            let mut datagram = vec![0; len];
            datagram[0] = kind;
            assert!(Kind::of(&datagram).is_some());
            assert_eq!(Kind::of(&datagram[..len - 1]), None);
            for reserved in 1..4 {
                datagram[reserved] = 1;
                assert_eq!(Kind::of(&datagram), None, "reserved byte {reserved} of type {kind}");
                datagram[reserved] = 0;
            }
            datagram.push(0);
            assert_eq!(Kind::of(&datagram).is_some(), kind == 4, "one byte longer, type {kind}");
        }
        for kind in (0..=255).filter(|kind| !(1..=4).contains(kind)) {
            for len in [32, 64, 92, 148] {
                let mut datagram = vec![0; len];
                datagram[0] = kind;
                assert_eq!(Kind::of(&datagram), None);
            }
        }
    }

    #[test]
    fn every_length_is_classified() {
        for kind in 0..6 {
            let datagram: Vec<u8> = core::iter::once(kind).chain(core::iter::repeat_n(0, 65_534)).collect();
            for len in 0..=65_535 {
                let expected = match (kind, len) {
                    (1, 148) | (2, 92) | (3, 64) => true,
                    (4, len) => len >= 32,
                    _ => false,
                };
                assert_eq!(Kind::of(&datagram[..len]).is_some(), expected, "type {kind}, {len} bytes");
            }
        }
    }

    proptest! {
        #[test]
        fn no_bytes_panic(datagram in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = Kind::of(&datagram);
        }
    }
}
