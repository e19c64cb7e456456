//! Candidates: the addresses where a node may be reached, as two RustGuards tell each other inside the tunnel.
use super::probe::{address, octets};
use crate::{
    bytes::{field, put},
    control_message::{Header, Kind},
};
use alloc::{vec, vec::Vec};
use core::net::SocketAddr;

/// The most candidates of one node.
pub const MAX_CANDIDATES: usize = 16;

const HEAD: usize = 16;
const ENTRY: usize = 20;

const ANSWER: u8 = 1;
const LOOK: u8 = 2;
const MAPS_PER_DESTINATION: u8 = 4;

/// How a node came to know that it may be reached at an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum CandidateKind {
    /// It is an address of one of its interfaces.
    Interface,
    /// Another node has seen it there.
    Seen,
    /// Its router has mapped it there on request (PCP, NAT-PMP, UPnP).
    Mapped,
    /// Its administrator says so.
    Configured,
}

/// An address where a node may be reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Candidate {
    /// The address.
    pub address: SocketAddr,
    /// How the node knows it.
    pub kind: CandidateKind,
}

/// A message with the sender's candidates, or the answer to one.
///
/// It is a [control message](crate::control_message). With 16 candidates it has 336 bytes. It is repeated until the
/// answer comes; the answer has 16 bytes.
///
/// ```text
/// byte
///  0     6
///  1     "RG", then the version, 1
///  4     1: this is the answer to a message; 2: the receiver is to look now, the sender does, too; 4: the sender's NAT maps
///        ports per destination
///  5     the number of candidates, 0 to 16; an answer has none
///  6     0
///  8     u32: the generation of the sender's candidates; another list has another one; 0: it has none
/// 12     u32: the generation of the receiver's candidates that the sender has; 0: none
/// 16     the candidates, the best first, 20 bytes each: the IPv6 or IPv4-mapped address, u16: the port,
///        the kind (0: interface, 1: seen, 2: mapped, 3: configured), 0
/// ```
///
/// The receiver ignores candidates of unknown kinds, unspecified addresses and port 0.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Candidates {
    /// The generation of this list.
    pub generation: u32,
    /// The generation of the receiver's list that the sender has; 0: none.
    pub known: u32,
    /// It is an answer, and has no list.
    pub answer: bool,
    /// The sender probes now, and the receiver is to do the same: only then do NATs on both sides open.
    pub look: bool,
    /// The sender's NAT maps ports per destination: several observers saw several ports.
    pub maps_per_destination: bool,
    /// The candidates, the best first.
    pub list: Vec<Candidate>,
}

impl Candidates {
    /// Reads a message. `None` for other texts, and for one that is shorter than its header says.
    pub fn parse(text: &[u8]) -> Option<Self> {
        let head = text.first_chunk::<HEAD>().filter(|head| Kind::of(&head[..]) == Some(Kind::Candidates))?;
        let (flags, count) = (head[4], usize::from(head[5]));
        let entries = text[HEAD..].get(..count * ENTRY).filter(|_| count <= MAX_CANDIDATES)?;
        Some(Self {
            generation: u32::from_le_bytes(*field(head, 8)),
            known: u32::from_le_bytes(*field(head, 12)),
            answer: flags & ANSWER != 0,
            look: flags & LOOK != 0,
            maps_per_destination: flags & MAPS_PER_DESTINATION != 0,
            list: entries.as_chunks::<ENTRY>().0.iter().filter_map(Candidate::parse).collect(),
        })
    }

    /// The text. Candidates after the sixteenth are left out.
    pub fn to_bytes(&self) -> Vec<u8> {
        let list = &self.list[..self.list.len().min(MAX_CANDIDATES)];
        let mut text = vec![0; HEAD + list.len() * ENTRY];
        Header::new(Kind::Candidates).put(&mut text);
        let flags = [(self.answer, ANSWER), (self.look, LOOK), (self.maps_per_destination, MAPS_PER_DESTINATION)];
        text[4] = flags.into_iter().filter(|(set, _)| *set).fold(0, |flags, (_, flag)| flags | flag);
        text[5] = list.len() as u8;
        put(&mut text, 8, &self.generation.to_le_bytes());
        put(&mut text, 12, &self.known.to_le_bytes());
        for (candidate, entry) in list.iter().zip(text[HEAD..].as_chunks_mut::<ENTRY>().0) {
            put(entry, 0, &octets(candidate.address));
            put(entry, 16, &candidate.address.port().to_le_bytes());
            entry[18] = candidate.kind.number();
        }
        text
    }
}

impl Candidate {
    fn parse(entry: &[u8; ENTRY]) -> Option<Self> {
        let kind = match entry[18] {
            0 => CandidateKind::Interface,
            1 => CandidateKind::Seen,
            2 => CandidateKind::Mapped,
            3 => CandidateKind::Configured,
            _ => return None,
        };
        Some(Self { address: address(field(entry, 0), *field(entry, 16))?, kind })
    }
}

impl CandidateKind {
    fn number(self) -> u8 {
        match self {
            Self::Interface => 0,
            Self::Seen => 1,
            Self::Mapped => 2,
            Self::Configured => 3,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(count: u16) -> Candidates {
        let kinds = [CandidateKind::Interface, CandidateKind::Seen, CandidateKind::Mapped, CandidateKind::Configured];
        let candidate = |n: u16| Candidate {
            address: if n.is_multiple_of(2) {
                ([192, 0, 2, n as u8], 1_000 + n).into()
            } else {
                ([0x2001, 0xdb8, n, 0, 0, 0, 0, 1], n).into()
            },
            kind: kinds[usize::from(n) % 4],
        };
        let list = (0..count).map(candidate).collect();
        Candidates { generation: 0x0403_0201, known: 7, look: true, list, ..Candidates::default() }
    }

    #[test]
    fn the_layout_is_the_documented_one() {
        let text = Candidates { maps_per_destination: true, ..message(2) }.to_bytes();
        let mut expected = vec![6, b'R', b'G', 1, 6, 2, 0, 0, 1, 2, 3, 4, 7, 0, 0, 0];
        expected.extend([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 192, 0, 2, 0, 0xe8, 3, 0, 0]);
        expected.extend([0x20, 1, 0xd, 0xb8, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 0, 1, 0]);
        assert_eq!(text, expected);
        let answer = Candidates { answer: true, known: 1, ..Candidates::default() }.to_bytes();
        assert_eq!(answer, [6, b'R', b'G', 1, 1, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0]);
    }

    #[test]
    fn what_was_written_is_read_and_padding_ignored() {
        for count in 0..=16 {
            let message = message(count);
            let mut text = message.to_bytes();
            text.resize(text.len().next_multiple_of(16), 0);
            assert!(text.len() <= 336);
            assert_eq!(Candidates::parse(&text), Some(message));
        }
        let more = message(40);
        assert_eq!(Candidates::parse(&more.to_bytes()).map(|read| read.list.len()), Some(MAX_CANDIDATES));
    }

    #[test]
    fn what_is_cut_short_or_of_another_kind_is_no_message() {
        let good = message(3).to_bytes();
        for len in 0..good.len() {
            assert_eq!(Candidates::parse(&good[..len]), None, "{len} bytes");
        }
        for (at, byte) in [(0, 5), (0, 0x45), (1, 0), (3, 2), (5, 17), (5, 255)] {
            let mut bad = good.clone();
            bad[at] = byte;
            bad.resize(6_000, 0);
            assert_eq!(Candidates::parse(&bad), None, "byte {at} is {byte}");
        }
    }

    #[test]
    fn locators_that_are_none_are_left_out() {
        let mut text = message(4).to_bytes();
        // An unknown kind, port 0, and the unspecified address in both forms.
        text[HEAD + 18] = 4;
        put(&mut text, HEAD + ENTRY + 16, &[0, 0]);
        put(&mut text, HEAD + 2 * ENTRY, &[0; 16]);
        put(&mut text, HEAD + 3 * ENTRY, &[0; 16]);
        put(&mut text, HEAD + 3 * ENTRY + 10, &[255; 2]);
        assert_eq!(Candidates::parse(&text).map(|read| read.list), Some(vec![]));
    }
}
