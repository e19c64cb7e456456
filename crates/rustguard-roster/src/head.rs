//! The head of a roster: its number and the digests of its parts, signed.

use crate::{
    digest::Digest,
    key::{NetworkKey, NetworkSecret, SIGNATURE},
    shards::MAX_BITS,
};
use std::fmt;

const MAGIC: [u8; 4] = *b"RGR\x01";
const LABEL: &[u8] = b"rustguard roster v1 head";
/// Bytes before the digests of the shards.
const FIXED: usize = 4 + 32 + 8 + 8 + 4 + 4 + 32;
/// The longest head, in bytes.
pub(crate) const MAX_HEAD: usize = FIXED + (32 << MAX_BITS) + SIGNATURE;

/// The position of a roster in the order of all rosters of its network. It only grows.
///
/// Two servers may issue the same number at the same time. Then the greater digest wins everywhere, and the server that
/// lost issues a new roster with its change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version {
    /// The number.
    pub number: u64,
    /// The first bytes of the hash of the signed head.
    pub digest: [u8; 8],
}

/// The number of bits that count the rosters of one term.
const COUNT_BITS: u32 = 40;

impl Version {
    /// How often another machine has taken over from the issuing one. This count is the upper 24 bits of the number: a
    /// replaced server may still issue rosters before it learns of its replacement, but the rosters of the new server
    /// are always newer.
    pub fn term(&self) -> u64 {
        self.number >> COUNT_BITS
    }
}

/// This number in the next term: greater than all numbers of the present term.
pub fn next_term(number: u64) -> u64 {
    number.saturating_add(1 << COUNT_BITS)
}

/// The number of a roster for people: `12`, or `1.12` after the issuing machine was replaced once.
pub fn shown_number(number: u64) -> String {
    let (term, count) = (number >> COUNT_BITS, number & ((1 << COUNT_BITS) - 1));
    if term == 0 { count.to_string() } else { format!("{term}.{count}") }
}

/// The head of a roster.
///
/// ```text
/// byte
///   0    "RGR", then the version of the format, 1
///   4    the network's key
///  36    u64: the number
///  44    u64: when it was issued, in seconds since 1970
///  52    u32: how many members there are
///  56    the number of bits that choose a member's shard, 0 to 8; three zeros
///  60    the digest of the settings
///  92    the digest of each shard
///        the signature of all that
/// ```
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) network: NetworkKey,
    pub(crate) number: u64,
    pub(crate) issued: u64,
    pub(crate) members: u32,
    pub(crate) bits: u8,
    pub(crate) settings: Digest,
    pub(crate) shards: Vec<Digest>,
    pub(crate) signature: [u8; SIGNATURE],
}

impl Head {
    /// Signs the head.
    pub(crate) fn signed(self, secret: &NetworkSecret) -> Self {
        let signature = secret.sign(&self.signed_text());
        Self { signature, ..self }
    }

    fn signed_text(&self) -> Vec<u8> {
        let mut text = LABEL.to_vec();
        self.put_fields(&mut text);
        text
    }

    fn put_fields(&self, to: &mut Vec<u8>) {
        to.extend_from_slice(&MAGIC);
        to.extend_from_slice(&self.network.0);
        to.extend_from_slice(&self.number.to_le_bytes());
        to.extend_from_slice(&self.issued.to_le_bytes());
        to.extend_from_slice(&self.members.to_le_bytes());
        to.extend_from_slice(&[self.bits, 0, 0, 0]);
        to.extend_from_slice(&self.settings);
        to.extend_from_slice(self.shards.as_flattened());
    }

    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let mut text = Vec::with_capacity(FIXED + self.shards.len() * 32 + SIGNATURE);
        self.put_fields(&mut text);
        text.extend_from_slice(&self.signature);
        text
    }

    /// Reads a head, if this network's key has signed it.
    pub(crate) fn read(text: &[u8], network: &NetworkKey) -> Option<Self> {
        let (fixed, rest) = text.split_first_chunk::<FIXED>()?;
        let (shards, signature) = rest.split_last_chunk::<SIGNATURE>()?;
        let mut at = 0;
        let mut take = |len| {
            at += len;
            &fixed[at - len..at]
        };
        if take(4) != MAGIC || take(32) != network.0 {
            return None;
        }
        let number = u64::from_le_bytes(take(8).try_into().ok()?);
        let issued = u64::from_le_bytes(take(8).try_into().ok()?);
        let members = u32::from_le_bytes(take(4).try_into().ok()?);
        let [bits, 0, 0, 0] = *<&[u8; 4]>::try_from(take(4)).ok()? else { return None };
        let settings = take(32).try_into().ok()?;
        let (shards, []) = shards.as_chunks() else { return None };
        let head = Self {
            network: *network,
            number,
            issued,
            members,
            bits,
            settings,
            shards: Some(shards).filter(|shards| bits <= MAX_BITS && shards.len() == 1 << bits)?.to_vec(),
            signature: *signature,
        };
        network.has_signed(&head.signed_text(), signature).then_some(head)
    }

    pub(crate) fn version(&self) -> Version {
        let hash = rustguard_crypto::hash::hash(&[LABEL, &self.signed_text()]);
        Version { number: self.number, digest: *hash.first_chunk().expect("a hash has 32 bytes") }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&shown_number(self.number))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_of_the_next_term_is_greater_than_all_of_this_one() {
        let last = (1 << COUNT_BITS) - 1;
        let version = |number| Version { number, digest: [0; 8] };
        for number in [0, 12, last] {
            assert_eq!((version(number).term(), version(next_term(number)).term()), (0, 1));
            assert!(next_term(number) > last);
        }
        assert_eq!(version(next_term(11) + 1).to_string(), "1.12");
        assert_eq!(shown_number(last), last.to_string());
        assert_eq!(shown_number(next_term(next_term(5))), "2.5");
    }
}
