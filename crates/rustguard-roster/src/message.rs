//! The messages that transfer a roster from one member to another.
//!
//! Each is a [control message](rustguard_core::control_message). The session identifies the sender.
//!
//! ```text
//! byte
//!  0     7
//!  1     "RG", then the version, 1
//!  4     what it is: 1 have, 2 get, 3 part, 4 want keys, 5 keys, 6 tell, 7 told, 8 want secret,
//!        9 secret, 10 state, 11 get state, 12 state piece, 13 state stored
//!  5     have: 1 if the parts that the receiver lacks follow unasked; three zeros otherwise
//!  8     the version of the roster that it is about: u64 number, 8 bytes digest
//! have: nothing more
//! get:
//! 24     u16: the part: a shard, or 256 and the number of a sheet, or 65535 the head, or 65534 the settings
//! 26     two zeros
//! 28     u32: the first byte of the part that is wanted
//! part:
//! 24     as in the request, and then
//! 32     u32: how long the whole part is
//! 36     the bytes from there on, at most 1,100
//! want keys:
//! 24     u8: how many, 1 to 27, and three zeros
//! 28     the first 8 bytes of each member's key
//! keys:
//! 24     u8: how many, and three zeros
//! 28     16 bytes: the name of the pair secret that they are derived from
//! 44     for each: the first 8 bytes of the member's key, then the preshared key of 32 bytes, or zeros for no member
//! tell:
//! 24     the sender's statement about itself, to a server: a record of at most 1,100 bytes
//! told:
//! 24     the first 8 bytes of the digest of what the server has stored
//! want secret: nothing more
//! secret:
//! 24     32 bytes: the pair secret
//! state:
//! 24     the head of the issuing server's state (see `server_state.rs`)
//! get state:
//! 24     32 bytes: the digest of a piece of a state, or of the list of pieces
//! 56     u32: the first byte of it that is wanted
//! state piece:
//! 24     as in the request, and then
//! 60     u32: how long the whole piece is
//! 64     the bytes from there on, at most 1,072
//! state stored:
//! 24     the first two fields of the head of the state that is on the sender's disk
//! ```
//!
//! Numbers are little-endian.

use crate::{
    digest::Digest,
    head::Version,
    pair::SecretId,
    server_state::StateHead,
    statement::{Statement, StatementDigest},
};
use rustguard_core::control_message::{Header, Kind};
use rustguard_crypto::x25519::PublicKey;
use zeroize::Zeroizing;

/// The most bytes of a part in one message. With this limit, the message fits into the smallest MTU of IPv6 on every
/// path.
pub(crate) const CHUNK: usize = 1100;
/// The most bytes of a piece of a state in one message. Such a message is as long as one with [`CHUNK`] bytes of a
/// part.
pub(crate) const STATE_CHUNK: usize = CHUNK - 28;
/// The most keys in one message.
pub(crate) const MAX_KEYS: usize = 27;

const HEAD: usize = 24;

const HAVE: u8 = 1;
const GET: u8 = 2;
const PART: u8 = 3;
const WANT_KEYS: u8 = 4;
const KEYS: u8 = 5;
const REPORT: u8 = 6;
const ACKNOWLEDGE: u8 = 7;
const WANT_SECRET: u8 = 8;
const SECRET: u8 = 9;
const STATE: u8 = 10;
const GET_STATE: u8 = 11;
const STATE_PIECE: u8 = 12;
const STATE_STORED: u8 = 13;
/// Bytes before the keys of [`KEYS`].
const KEYS_HEAD: usize = 20;

/// A part of a roster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Part {
    Head,
    Settings,
    Shard(u8),
    /// A sheet of the policy, by its number.
    Sheet(u16),
}

/// The number of the first sheet, and the one after the last.
const FIRST_SHEET: u16 = 0x100;
const BEHIND_SHEETS: u16 = 0xfff0;

impl Part {
    fn number(self) -> u16 {
        match self {
            Self::Head => 0xffff,
            Self::Settings => 0xfffe,
            Self::Shard(index) => u16::from(index),
            Self::Sheet(number) => FIRST_SHEET.saturating_add(number),
        }
    }

    fn from_number(number: u16) -> Option<Self> {
        match number {
            0xffff => Some(Self::Head),
            0xfffe => Some(Self::Settings),
            FIRST_SHEET..BEHIND_SHEETS => Some(Self::Sheet(number - FIRST_SHEET)),
            index => u8::try_from(index).ok().map(Self::Shard),
        }
    }
}

/// The first bytes of a member's public key, which identify it in messages.
pub(crate) type KeyName = [u8; 8];

/// The name of a key.
pub(crate) fn key_name(key: &PublicKey) -> KeyName {
    *key.0.first_chunk().expect("a key has 32 bytes")
}

/// A message. Its version is the version of the roster that the sender has or asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Message<'t> {
    pub(crate) version: Version,
    pub(crate) body: Body<'t>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Body<'t> {
    /// The sender has this roster. It is sent when a session begins, when there is a new roster, and as the answer to a
    /// request for another one. `follows`: the parts that the receiver lacks come unasked.
    Have { follows: bool },
    /// The sender asks for bytes of a part.
    Get { part: Part, offset: u32 },
    /// Bytes of a part.
    Part { part: Part, offset: u32, total: u32, bytes: &'t [u8] },
    /// A member asks a server for preshared keys of its pairs.
    WantKeys(Vec<KeyName>),
    /// A server answers.
    Keys { of: SecretId, keys: Vec<(KeyName, Zeroizing<[u8; 32]>)> },
    /// A member's statement about itself.
    Report(Statement),
    /// A server has stored the report.
    Acknowledge(StatementDigest),
    /// A server asks the issuing one for the secret from which the keys of pairs are derived.
    WantSecret,
    /// The issuing server answers.
    Secret(Zeroizing<[u8; 32]>),
    /// The issuing server tells a standby of its state.
    State(Box<StateHead>),
    /// The standby asks for bytes of a piece.
    GetState { piece: Digest, offset: u32 },
    /// The issuing server answers.
    StatePiece { piece: Digest, offset: u32, total: u32, bytes: &'t [u8] },
    /// The standby has this state on its disk: the number and the time of its head.
    StateStored { number: u64, made: u64 },
}

impl<'t> Message<'t> {
    pub(crate) fn to_bytes(&self) -> Zeroizing<Vec<u8>> {
        let mut text = Zeroizing::new(Vec::with_capacity(HEAD + 12 + CHUNK));
        text.extend_from_slice(&Header::new(Kind::Roster).to_bytes());
        let kind = match &self.body {
            Body::Have { .. } => HAVE,
            Body::Get { .. } => GET,
            Body::Part { .. } => PART,
            Body::WantKeys(_) => WANT_KEYS,
            Body::Report(_) => REPORT,
            Body::Acknowledge(_) => ACKNOWLEDGE,
            Body::Keys { .. } => KEYS,
            Body::WantSecret => WANT_SECRET,
            Body::Secret(_) => SECRET,
            Body::State(_) => STATE,
            Body::GetState { .. } => GET_STATE,
            Body::StatePiece { .. } => STATE_PIECE,
            Body::StateStored { .. } => STATE_STORED,
        };
        text.extend_from_slice(&[kind, u8::from(matches!(self.body, Body::Have { follows: true })), 0, 0]);
        text.extend_from_slice(&self.version.number.to_le_bytes());
        text.extend_from_slice(&self.version.digest);
        let put_place = |text: &mut Vec<u8>, part: Part, offset: u32| {
            text.extend_from_slice(&part.number().to_le_bytes());
            text.extend_from_slice(&[0; 2]);
            text.extend_from_slice(&offset.to_le_bytes());
        };
        match &self.body {
            Body::Have { .. } | Body::WantSecret => {}
            Body::Secret(secret) => text.extend_from_slice(&secret[..]),
            Body::Get { part, offset } => put_place(&mut text, *part, *offset),
            Body::Part { part, offset, total, bytes } => {
                put_place(&mut text, *part, *offset);
                text.extend_from_slice(&total.to_le_bytes());
                text.extend_from_slice(&bytes[..bytes.len().min(CHUNK)]);
            }
            Body::WantKeys(names) => {
                let names = &names[..names.len().min(MAX_KEYS)];
                text.extend_from_slice(&[names.len() as u8, 0, 0, 0]);
                text.extend_from_slice(names.as_flattened());
            }
            Body::Keys { of, keys } => {
                let keys = &keys[..keys.len().min(MAX_KEYS)];
                text.extend_from_slice(&[keys.len() as u8, 0, 0, 0]);
                text.extend_from_slice(of.as_bytes());
                for (name, secret) in keys {
                    text.extend_from_slice(name);
                    text.extend_from_slice(&secret[..]);
                }
            }
            Body::Report(statement) => text.extend_from_slice(&statement.to_bytes()),
            Body::Acknowledge(digest) => text.extend_from_slice(digest),
            Body::State(head) => text.extend_from_slice(&head.to_bytes()),
            Body::GetState { piece, offset } => {
                text.extend_from_slice(piece);
                text.extend_from_slice(&offset.to_le_bytes());
            }
            Body::StatePiece { piece, offset, total, bytes } => {
                text.extend_from_slice(piece);
                text.extend_from_slice(&offset.to_le_bytes());
                text.extend_from_slice(&total.to_le_bytes());
                text.extend_from_slice(&bytes[..bytes.len().min(STATE_CHUNK)]);
            }
            Body::StateStored { number, made } => {
                text.extend_from_slice(&number.to_le_bytes());
                text.extend_from_slice(&made.to_le_bytes());
            }
        }
        text
    }

    /// Reads a message. Zeros may follow, because transport messages are padded. `None` for other texts, and for a
    /// message that is cut off.
    pub(crate) fn parse(text: &'t [u8]) -> Option<Self> {
        if Kind::of(text) != Some(Kind::Roster) {
            return None;
        }
        let (head, rest) = text.split_first_chunk::<HEAD>()?;
        let number = u64::from_le_bytes(*head[8..].first_chunk()?);
        let version = Version { number, digest: *head[16..].first_chunk()? };
        let place = || {
            let part = Part::from_number(u16::from_le_bytes(*rest.first_chunk()?))?;
            Some((part, u32::from_le_bytes(*rest.get(4..)?.first_chunk()?)))
        };
        let piece = || Some((*rest.first_chunk()?, u32::from_le_bytes(*rest.get(32..)?.first_chunk()?)));
        let u64_at = |at: usize| Some(u64::from_le_bytes(*rest.get(at..)?.first_chunk()?));
        let names = |behind: usize, each: usize| {
            let count = usize::from(*rest.first()?);
            rest.get(behind..)?.get(..count * each).filter(|_| (1..=MAX_KEYS).contains(&count))
        };
        let body = match head[4] {
            HAVE => Body::Have { follows: head[5] & 1 != 0 },
            GET => {
                let (part, offset) = place()?;
                Body::Get { part, offset }
            }
            PART => {
                let (part, offset) = place()?;
                let total = u32::from_le_bytes(*rest.get(8..)?.first_chunk()?);
                // A part ends where it says; the rest is padding.
                let left = usize::try_from(total.checked_sub(offset)?).ok()?.min(CHUNK);
                Body::Part { part, offset, total, bytes: rest.get(12..)?.get(..left)? }
            }
            WANT_KEYS => Body::WantKeys(names(4, 8)?.as_chunks().0.to_vec()),
            KEYS => {
                let of = SecretId::from_bytes(*rest.get(4..)?.first_chunk()?);
                let keys = names(KEYS_HEAD, 40)?.as_chunks::<40>().0;
                let read = |key: &[u8; 40]| {
                    let (name, secret) = (*key.first_chunk().expect("40 bytes"), *key.last_chunk().expect("40 bytes"));
                    (name, Zeroizing::new(secret))
                };
                Body::Keys { of, keys: keys.iter().map(read).collect() }
            }
            REPORT => Body::Report(Statement::read(rest)?),
            ACKNOWLEDGE => Body::Acknowledge(*rest.first_chunk()?),
            WANT_SECRET => Body::WantSecret,
            SECRET => Body::Secret(Zeroizing::new(*rest.first_chunk()?)),
            STATE => Body::State(Box::new(StateHead::read(rest.first_chunk()?))),
            GET_STATE => {
                let (piece, offset) = piece()?;
                Body::GetState { piece, offset }
            }
            STATE_PIECE => {
                let (piece, offset) = piece()?;
                let total = u32::from_le_bytes(*rest.get(36..)?.first_chunk()?);
                let left = usize::try_from(total.checked_sub(offset)?).ok()?.min(STATE_CHUNK);
                Body::StatePiece { piece, offset, total, bytes: rest.get(40..)?.get(..left)? }
            }
            STATE_STORED => Body::StateStored { number: u64_at(0)?, made: u64_at(8)? },
            _ => return None,
        };
        Some(Self { version, body })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server_state;

    fn messages() -> Vec<Message<'static>> {
        let secret = Zeroizing::new([5; 32]);
        let bodies = [
            Body::Have { follows: false },
            Body::Have { follows: true },
            Body::Get { part: Part::Head, offset: 2200 },
            Body::Get { part: Part::Shard(255), offset: 0 },
            Body::Part { part: Part::Settings, offset: 1100, total: 1103, bytes: b"end" },
            Body::Part { part: Part::Shard(0), offset: 0, total: 0, bytes: b"" },
            Body::Get { part: Part::Sheet(0), offset: 1100 },
            Body::Part { part: Part::Sheet(16_383), offset: 0, total: 3, bytes: b"end" },
            Body::Part { part: Part::Shard(7), offset: 0, total: 70_000, bytes: &[1; CHUNK] },
            Body::WantKeys(vec![[1; 8]; MAX_KEYS]),
            Body::State(Box::new(StateHead::read(&[5; server_state::HEAD]))),
            Body::GetState { piece: [6; 32], offset: STATE_CHUNK as u32 },
            Body::StatePiece { piece: [6; 32], offset: 0, total: 70_000, bytes: &[1; STATE_CHUNK] },
            Body::StatePiece { piece: [6; 32], offset: 1072, total: 1075, bytes: b"end" },
            Body::StateStored { number: 1 << 41, made: 1_800_000_000_000 },
            Body::Report(Statement::default()),
            Body::Report(Statement::new((0..55).map(|n| format!("fd{n:02x}::/64").parse().unwrap()))),
            Body::Acknowledge([4; 8]),
            Body::Keys { of: SecretId::from_bytes([6; 16]), keys: vec![([1; 8], secret.clone()); MAX_KEYS] },
            Body::WantSecret,
            Body::Secret(secret),
        ];
        bodies.map(|body| Message { version: Version { number: 9, digest: [3; 8] }, body }).into()
    }

    #[test]
    fn what_is_written_is_read_with_padding_and_never_when_cut_off() {
        for message in messages() {
            let mut text = message.to_bytes();
            for len in 0..text.len() {
                assert_eq!(Message::parse(&text[..len]), None, "{len} bytes of {message:?}");
            }
            for _ in 0..16 {
                assert_eq!(Message::parse(&text).as_ref(), Some(&message));
                text.push(0);
            }
        }
    }

    /// 1,280 bytes, less the two layers of a path through a server: 80 bytes of IPv6, UDP and a message, and 24 and 32
    /// bytes of the other layer.
    #[test]
    fn messages_fit_into_the_smallest_mtu_on_every_way() {
        assert!(messages().iter().all(|message| message.to_bytes().len().next_multiple_of(16) <= 1280 - 80 - 24 - 32));
    }

    #[test]
    fn other_texts_are_no_messages() {
        assert!(messages().iter().all(|message| Kind::of(&message.to_bytes()) == Some(Kind::Roster)));
        let text = messages()[0].to_bytes();
        let vector = b"\x07RG\x01\x01\0\0\0\x09\0\0\0\0\0\0\0\x03\x03\x03\x03\x03\x03\x03\x03";
        assert_eq!(text[..], vector[..], "it is on the wire between versions");
        for (at, byte) in [(0, 6), (1, b'r'), (3, 2), (4, 0), (4, 14)] {
            let mut other = text.to_vec();
            other[at] = byte;
            assert_eq!(Message::parse(&other), None, "byte {at} is {byte}");
        }
    }
}
