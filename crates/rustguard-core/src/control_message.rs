//! Control messages: the messages between RustGuards inside a session. This is the registry of their kinds.
//!
//! A control message is the text of a transport message, like a packet, but its first byte is no IP version: stock
//! peers, and RustGuards that do not know its kind or version, drop it without an answer. The session authenticates it
//! and rules out replays. It never reaches a host.
//!
//! ```text
//! byte
//!  0     the kind
//!  1     "RG"
//!  3     the version
//!  4     what the kind has
//! ```
//!
//! The module of each kind has the details. Numbers are little-endian, as everywhere in WireGuard. `docs/messages.md`
//! says which side sends each message, when and how often.

use crate::bytes::put;

/// The kinds of control messages, with their first bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Kind {
    /// Asks whether a path works. See [`Probe`](crate::paths::Probe).
    ProbeRequest = 1,
    /// The path works.
    ProbeReply = 2,
    /// Asks whether a text of this length arrives. Also a ping. See [`path_mtu`](crate::path_mtu).
    PathMtuRequest = 3,
    /// The text has arrived.
    PathMtuReply = 4,
    /// A WireGuard message that goes through a relay: see [`forward`](crate::forward).
    Forwarded = 5,
    /// Where the sender may be reached: see [`Candidates`](crate::paths::Candidates).
    Candidates = 6,
    /// About the member list of a network: see the crate `rustguard-roster`.
    Roster = 7,
    /// The sender would like to send parities: see [`fec::Message`](crate::fec::Message).
    ParityOffer = 8,
    /// The receiver of the offer agrees.
    ParityAccept = 9,
    /// Asks whether the receiver knows lanes. See [`lanes::Message`](crate::lanes::Message).
    LanesQuestion = 10,
    /// The receiver knows lanes.
    LanesAnswer = 11,
    /// Asks whether this lane arrives.
    LaneRequest = 12,
    /// The lane has arrived.
    LaneReply = 13,
}

impl Kind {
    /// All kinds, in the order of their bytes.
    pub const ALL: [Self; 13] = [
        Self::ProbeRequest,
        Self::ProbeReply,
        Self::PathMtuRequest,
        Self::PathMtuReply,
        Self::Forwarded,
        Self::Candidates,
        Self::Roster,
        Self::ParityOffer,
        Self::ParityAccept,
        Self::LanesQuestion,
        Self::LanesAnswer,
        Self::LaneRequest,
        Self::LaneReply,
    ];

    /// The kind of a text, by its first bytes. `None` for a text that is no control message, or has an unknown version.
    #[inline]
    pub fn of(text: &[u8]) -> Option<Self> {
        Header::parse(text).map(|header| header.kind)
    }

    /// The newest known version. All older versions are known too.
    pub const fn newest_version(self) -> u8 {
        match self {
            Self::ProbeRequest | Self::ProbeReply => 2,
            _ => 1,
        }
    }
}

/// The beginning of each control message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The kind.
    pub kind: Kind,
    /// The version, from 1 on.
    pub version: u8,
}

impl Header {
    /// For a message of this kind in its first version.
    pub const fn new(kind: Kind) -> Self {
        Self { kind, version: 1 }
    }

    /// Reads the beginning of a text. `None` for a text that is no control message, or has an unknown version.
    ///
    /// Workers call this for each packet: its first byte decides.
    #[inline]
    pub fn parse(text: &[u8]) -> Option<Self> {
        const LAST: u8 = Kind::ALL.len() as u8;
        let [kind @ 1..=LAST, b'R', b'G', version, ..] = *text else { return None };
        let kind = Kind::ALL[usize::from(kind - 1)];
        (1..=kind.newest_version()).contains(&version).then_some(Self { kind, version })
    }

    /// The bytes.
    pub const fn to_bytes(self) -> [u8; 4] {
        [self.kind as u8, b'R', b'G', self.version]
    }

    /// Writes it at the beginning of a text.
    pub(crate) fn put(self, text: &mut [u8]) {
        put(text, 0, &self.to_bytes());
    }
}

/// Whether a text may belong to a protocol other than RustGuard's. IP packets have first bytes from 0x40 to 0x6f.
/// RustGuard's own messages, including later versions, have one from 1 to 31 and then "RG".
pub const fn is_foreign(text: &[u8]) -> bool {
    !matches!(text, [] | [0x40..=0x6f, ..] | [1..=31, b'R', b'G', ..])
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use crate::{
        fec, forward, lanes, path_mtu,
        paths::{Candidates, Probe},
    };
    use alloc::vec::Vec;
    use proptest::prelude::*;

    /// One message of each kind and version, except the roster's. Programs of different versions exchange these bytes:
    /// they never change.
    const VECTORS: [(Kind, &[u8]); 14] = [
        (
            Kind::ProbeRequest,
            b"\x01RG\x01\x03\x01\x0a\x01\x00\x02\x00\x01\x00\x00\x00\x00\xc8\x00\x00\x00\x08\x07\x06\x05\x04\x03\x02\x01\
              \x0e\x0d\x0c\x0b",
        ),
        (
            Kind::ProbeReply,
            b"\x02RG\x01\x03\x02\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\xc8\x00\x00\x00\x08\x07\x06\x05\x04\x03\x02\x01\
              \x04\x03\x02\x01",
        ),
        (
            Kind::ProbeRequest,
            b"\x01RG\x02\x1f\x01\x00\x00\x00\x02\x00\x01\x00\x00\x00\x00\xc8\x00\x00\x00\x08\x07\x06\x05\x04\x03\x02\x01\
              \x0e\x0d\x0c\x0b\x0a\x00\x00\x80\x18\x17\x16\x15\x14\x13\x12\x11\x00\x00\x00\x00",
        ),
        (
            Kind::ProbeReply,
            b"\x02RG\x02\x1f\x00\x02\x01\x18\x17\x16\x15\x14\x13\x12\x11\x00\x00\x00\x00\x08\x07\x06\x05\x04\x03\x02\x01\
              \x04\x03\x02\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\xff\xff\xc0\x00\x02\x01",
        ),
        (Kind::PathMtuRequest, b"\x03RG\x01\x04\x03\x02\x01\x12\x00\x00\x00\x00\x00\x00\x00\x00\x00"),
        (Kind::PathMtuReply, b"\x04RG\x01\x04\x03\x02\x01\x8c\x05\x00\x00\x00\x00\x00\x00"),
        (
            Kind::Forwarded,
            b"\x05RG\x01\x08\x00\x00\x00\x01\x02\x03\x04\x05\x06\x07\x08\x11\x12\x13\x14\x15\x16\x17\x18\
              \x04\x00\x00\x00\x01\x02\x03\x04\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\
              \x00\x00\x00\x00\x00\x00\x00\x00",
        ),
        (
            Kind::Candidates,
            b"\x06RG\x01\x06\x01\x00\x00\x01\x02\x03\x04\x07\x00\x00\x00\
              \x20\x01\x0d\xb8\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x01\x6c\xca\x02\x00",
        ),
        (Kind::ParityOffer, b"\x08RG\x01\x01\x02\x03\x04\x00\x00\x00\x00\x00\x00\x00\x00"),
        (Kind::ParityAccept, b"\x09RG\x01\x01\x02\x03\x04\x00\x00\x00\x00\x00\x00\x00\x00"),
        (Kind::LanesQuestion, b"\x0aRG\x01\x01\x02\x03\x04\x00\x00\x00\x00\x00\x00\x00\x00"),
        (Kind::LanesAnswer, b"\x0bRG\x01\x01\x02\x03\x04\x03\x00\x00\x00\x00\x00\x00\x00"),
        (Kind::LaneRequest, b"\x0cRG\x01\x01\x02\x03\x04\x08\x00\x00\x00\x05\x06\x07\x08"),
        (Kind::LaneReply, b"\x0dRG\x01\x01\x02\x03\x04\x08\x00\x00\x00\x05\x06\x07\x08"),
    ];

    /// The result of each module that reads a text: its kinds, and the message, written again.
    fn readings(text: &[u8]) -> Vec<(&'static [Kind], Vec<u8>)> {
        let probe = Probe::parse(text).map(|read| (&Kind::ALL[..2], read.to_bytes()));
        let path_mtu = path_mtu::Message::parse(text).map(|read| (&Kind::ALL[2..4], read.to_bytes()));
        let forwarded = forward::Header::parse(text)
            .map(|read| (&Kind::ALL[4..5], [&read.to_bytes()[..], &text[forward::HEADER_LEN..]].concat()));
        let candidates = Candidates::parse(text).map(|read| (&Kind::ALL[5..6], read.to_bytes()));
        let parity = fec::Message::parse(text).map(|read| (&Kind::ALL[7..9], read.to_bytes().to_vec()));
        let lanes = lanes::Message::parse(text).map(|read| (&Kind::ALL[9..], read.to_bytes().to_vec()));
        [probe, path_mtu, forwarded, candidates, parity, lanes].into_iter().flatten().collect()
    }

    #[test]
    fn the_bytes_of_each_kind_are_those_of_all_versions_and_one_module_reads_them() {
        for (kind, text) in VECTORS {
            let readings = readings(text);
            assert_eq!(readings.len(), 1, "{kind:?}");
            assert!(readings[0].0.contains(&kind), "{kind:?}");
            assert_eq!(readings[0].1, text, "{kind:?}");
            assert_eq!(Kind::of(text), Some(kind));
            assert!(!is_foreign(text));
        }
        let without = Kind::ALL.into_iter().filter(|kind| VECTORS.iter().all(|(other, _)| other != kind));
        assert_eq!(without.collect::<Vec<_>>(), [Kind::Roster]);
    }

    #[test]
    fn each_kind_has_a_byte_of_its_own_from_1_on() {
        for (byte, kind) in (1..).zip(Kind::ALL) {
            for version in 0..=u8::MAX {
                let header = Header { kind, version };
                let known = (1..=kind.newest_version()).contains(&version);
                assert_eq!(header.to_bytes(), [byte, b'R', b'G', version]);
                assert_eq!(Header::parse(&header.to_bytes()), known.then_some(header));
            }
        }
        for (at, byte) in [(0, 0), (0, 14), (0, 0x45), (1, b'r'), (2, b'r')] {
            let mut other = Header::new(Kind::ProbeRequest).to_bytes();
            other[at] = byte;
            assert_eq!(Kind::of(&other), None, "byte {at} is {byte}");
        }
        assert_eq!(Kind::of(&Header::new(Kind::LaneReply).to_bytes()[..3]), None);
    }

    #[test]
    fn what_is_foreign_is_neither_a_packet_nor_a_message_of_a_later_version() {
        for first in 0..=u8::MAX {
            let packet = (0x40..0x70).contains(&first);
            assert_eq!(is_foreign(&[first, b'R', b'G', 200]), !packet && (first == 0 || first > 31), "{first}");
            assert_eq!(is_foreign(&[first, b'R', b'H', 1]), !packet);
            assert_eq!(is_foreign(&[first]), !packet);
        }
        assert!(!is_foreign(&[]), "a keepalive");
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_by_the_module_of_their_kind_or_by_none(
            (kind, version) in (0_u8..16, 0_u8..4), honest: bool, mut text in proptest::collection::vec(any::<u8>(), 0..400)
        ) {
            if honest && let Some(start) = text.first_chunk_mut() {
                *start = [kind, b'R', b'G', version];
            }
            for (kinds, written) in readings(&text) {
                let kind = Kind::of(&text).expect("no module reads a text without a kind");
                prop_assert!(kinds.contains(&kind) && !is_foreign(&text));
                prop_assert_eq!(Kind::of(&written), Some(kind));
            }
        }
    }
}
