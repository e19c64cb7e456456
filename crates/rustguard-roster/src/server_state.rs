//! The transferable state of a network's server, for its standbys: any text, cut into pieces, and a signed head.
//!
//! ```text
//! head     u64 number of the newest roster, u64 when it was made (milliseconds since 1970),
//!          the digest of the list of pieces, the network's signature of "rustguard roster v1 state head" and all that
//! list     for each piece: its digest, u32 how long it is
//! ```
//!
//! If the text changes in one place, most pieces stay the same, because their boundaries depend on the content around
//! them (FastCDC): a change among 10,000 machines costs some hundred kilobytes instead of megabytes.

use crate::{
    digest::{self, Digest},
    key::{NetworkKey, NetworkSecret, SIGNATURE},
};
use fastcdc::v2020::FastCDC;
use rustguard_crypto::hash::HASH_LEN;
use std::{collections::BTreeMap, fmt, ops::Range, sync::Arc};
use zeroize::Zeroizing;

const LABEL: &[u8] = b"rustguard roster v1 state head";
/// The smallest piece, the usual one, and the largest, in bytes.
const PIECE: [usize; 3] = [4 << 10, 16 << 10, 64 << 10];
/// The largest piece, in bytes.
pub(crate) const MAX_PIECE: usize = PIECE[2];
/// The largest state, in bytes.
pub const MAX_STATE: usize = 256 << 20;
/// The longest list of pieces, in bytes: the list for a state of [`MAX_STATE`] in pieces of the smallest size.
pub(crate) const MAX_LIST: usize = (MAX_STATE / PIECE[0] + 1) * ENTRY;
const ENTRY: usize = HASH_LEN + 4;
/// The length of a head, in bytes.
pub(crate) const HEAD: usize = 16 + HASH_LEN + SIGNATURE;

/// The signed part of a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StateHead {
    pub(crate) number: u64,
    pub(crate) made: u64,
    pub(crate) list: Digest,
    signature: [u8; SIGNATURE],
}

impl StateHead {
    fn signed(secret: &NetworkSecret, number: u64, made: u64, list: Digest) -> Self {
        let head = Self { number, made, list, signature: [0; SIGNATURE] };
        Self { signature: secret.sign(&head.signed_text()), ..head }
    }

    fn signed_text(&self) -> Vec<u8> {
        [LABEL, &self.number.to_le_bytes(), &self.made.to_le_bytes(), &self.list].concat()
    }

    pub(crate) fn to_bytes(self) -> [u8; HEAD] {
        let mut bytes = [0; HEAD];
        let parts: [&[u8]; 4] = [&self.number.to_le_bytes(), &self.made.to_le_bytes(), &self.list, &self.signature];
        bytes.copy_from_slice(&parts.concat());
        bytes
    }

    /// Reads a head without verifying its signature: use [`is_of`](Self::is_of).
    pub(crate) fn read(bytes: &[u8; HEAD]) -> Self {
        let (number, rest) = bytes.split_first_chunk().expect("a head is longer");
        let (made, rest) = rest.split_first_chunk().expect("a head is longer");
        let (list, rest) = rest.split_first_chunk().expect("a head is longer");
        let signature = *rest.first_chunk().expect("a head is longer");
        Self { number: u64::from_le_bytes(*number), made: u64::from_le_bytes(*made), list: *list, signature }
    }

    /// Whether this network's key has signed it.
    pub(crate) fn is_of(&self, network: &NetworkKey) -> bool {
        network.has_signed(&self.signed_text(), &self.signature)
    }

    /// The key by which states are ordered.
    pub(crate) fn order(&self) -> (u64, u64) {
        (self.number, self.made)
    }
}

/// The state of a server, with the pieces that it consists of.
#[derive(Clone)]
pub struct ServerState {
    pub(crate) head: StateHead,
    pub(crate) list: Arc<[u8]>,
    text: Arc<Zeroizing<Vec<u8>>>,
    pieces: Arc<BTreeMap<Digest, Range<usize>>>,
}

impl ServerState {
    /// Signs a text of at most [`MAX_STATE`] bytes. `number` is the number of the newest roster, `made` the time in
    /// milliseconds since 1970.
    pub fn new(secret: &NetworkSecret, number: u64, made: u64, text: Zeroizing<Vec<u8>>) -> Self {
        let [smallest, usual, largest] = PIECE;
        let mut list = Vec::new();
        for piece in FastCDC::new(&text, smallest, usual, largest) {
            list.extend_from_slice(&digest::of_state(&text[piece.offset..piece.offset + piece.length]));
            list.extend_from_slice(&(piece.length as u32).to_le_bytes());
        }
        let head = StateHead::signed(secret, number, made, digest::of_state(&list));
        Self::assembled(head, list, text).expect("the list is of this text")
    }

    /// A state whose head and pieces were verified. `None` if the list does not have the length of the text.
    pub(crate) fn assembled(head: StateHead, list: Vec<u8>, text: Zeroizing<Vec<u8>>) -> Option<Self> {
        let mut at = 0;
        let mut pieces = BTreeMap::new();
        for (digest, len) in entries(&list)? {
            pieces.entry(digest).or_insert(at..at + len);
            at += len;
        }
        (at == text.len()).then(|| Self { head, list: list.into(), text: Arc::new(text), pieces: Arc::new(pieces) })
    }

    /// The text.
    pub fn text(&self) -> &[u8] {
        &self.text
    }

    /// The number of the newest roster at the time it was made.
    pub fn number(&self) -> u64 {
        self.head.number
    }

    /// When it was made, in milliseconds since 1970.
    pub fn made(&self) -> u64 {
        self.head.made
    }

    /// The form in which it is stored on the disk.
    pub fn to_bytes(&self) -> Zeroizing<Vec<u8>> {
        let mut bytes = Zeroizing::new(Vec::with_capacity(HEAD + 4 + self.list.len() + self.text.len()));
        bytes.extend_from_slice(&self.head.to_bytes());
        bytes.extend_from_slice(&(self.list.len() as u32).to_le_bytes());
        bytes.extend_from_slice(&self.list);
        bytes.extend_from_slice(&self.text);
        bytes
    }

    /// Reads the bytes that [`to_bytes`](Self::to_bytes) has written. `None` if this network's key has not signed
    /// exactly these.
    pub fn from_bytes(bytes: &[u8], network: &NetworkKey) -> Option<Self> {
        let (head, rest) = bytes.split_first_chunk::<HEAD>()?;
        let (len, rest) = rest.split_first_chunk()?;
        let (list, text) = rest.split_at_checked(usize::try_from(u32::from_le_bytes(*len)).ok()?)?;
        let head = StateHead::read(head);
        if !head.is_of(network) || digest::of_state(list) != head.list {
            return None;
        }
        let mut rest = text;
        for (digest, len) in entries(list)? {
            let (piece, behind) = rest.split_at_checked(len)?;
            if digest::of_state(piece) != digest {
                return None;
            }
            rest = behind;
        }
        Self::assembled(head, list.to_vec(), Zeroizing::new(text.to_vec()))
    }

    /// The bytes of a piece, or of the list.
    pub(crate) fn piece(&self, digest: &Digest) -> Option<&[u8]> {
        if *digest == self.head.list {
            return Some(&self.list);
        }
        self.pieces.get(digest).map(|place| &self.text[place.clone()])
    }
}

impl fmt::Debug for ServerState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerState").field("head", &self.head).finish_non_exhaustive()
    }
}

/// The digests and the lengths in a list. `None` if it is malformed, or of a text that is too long.
pub(crate) fn entries(list: &[u8]) -> Option<impl Iterator<Item = (Digest, usize)>> {
    let (entries, []) = list.as_chunks::<ENTRY>() else { return None };
    let read = |entry: &[u8; ENTRY]| {
        let (digest, len) = entry.split_first_chunk().expect("an entry is longer");
        (*digest, u32::from_le_bytes(*len.first_chunk().expect("an entry is longer")) as usize)
    };
    let mut total = 0;
    let is_sound = entries.iter().map(read).all(|(_, len)| {
        total += len;
        len <= MAX_PIECE && total <= MAX_STATE
    });
    is_sound.then(move || entries.iter().map(read))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};

    fn state(text: &[u8]) -> ServerState {
        ServerState::new(&NetworkSecret::from_bytes(&[9; 32]), 7, 1_000, Zeroizing::new(text.to_vec()))
    }

    #[test]
    fn what_is_stored_is_read_and_nothing_else_is() {
        let network = NetworkSecret::from_bytes(&[9; 32]).public_key();
        let text: Vec<u8> = StdRng::seed_from_u64(1).random_iter().take(200_000).collect();
        for text in [&text[..], &text[..100], &[0; 300_000], &[]] {
            let bytes = state(text).to_bytes();
            let read = ServerState::from_bytes(&bytes, &network).unwrap();
            assert_eq!((read.text(), read.number(), read.made()), (text, 7, 1_000));
            for at in [0, 8, 20, HEAD - 1, HEAD, HEAD + 5, bytes.len() - 1] {
                let mut broken = bytes.to_vec();
                if at < broken.len() {
                    broken[at] ^= 1;
                    assert!(ServerState::from_bytes(&broken, &network).is_none(), "byte {at} of {}", text.len());
                }
            }
            assert!(ServerState::from_bytes(&bytes[..bytes.len() - 1], &network).is_none());
        }
        let other = NetworkSecret::from_bytes(&[8; 32]).public_key();
        assert!(ServerState::from_bytes(&state(&text).to_bytes(), &other).is_none());
    }

    #[test]
    fn a_change_in_one_place_leaves_most_pieces_as_they_were() {
        let text: Vec<u8> = StdRng::seed_from_u64(2).random_iter().take(2_000_000).collect();
        let before = state(&text);
        let inserted = [&text[..700_000], b"a new machine", &text[700_000..]].concat();
        let after = state(&inserted);
        let new: usize = entries(&after.list)
            .unwrap()
            .filter(|(digest, _)| before.piece(digest).is_none())
            .map(|(_, len)| len)
            .sum();
        assert!(new <= 3 * MAX_PIECE, "{new} bytes are new");
    }

    #[test]
    fn a_list_of_too_much_is_none() {
        let entry = |len: u32| [&[1; HASH_LEN][..], &len.to_le_bytes()].concat();
        assert!(entries(&entry(MAX_PIECE as u32)).is_some());
        assert!(entries(&entry(MAX_PIECE as u32 + 1)).is_none());
        assert!(entries(&entry(5)[1..]).is_none());
        assert!(entries(&entry(MAX_PIECE as u32).repeat(MAX_STATE / MAX_PIECE)).is_some());
        assert!(entries(&entry(MAX_PIECE as u32).repeat(MAX_STATE / MAX_PIECE + 1)).is_none());
    }
}
