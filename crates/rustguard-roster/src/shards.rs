//! The members, split into shards: a change of one member changes one shard.

use crate::member::Member;
use rustguard_crypto::{hash::hash, x25519::PublicKey};

/// The largest number of bits that choose a shard: a roster has at most 256.
pub(crate) const MAX_BITS: u8 = 8;
/// The maximum average number of members in a shard, as long as there are fewer than the maximum number of shards.
const MEAN: usize = 8;

const OF_KEY: &[u8] = b"rustguard roster v1 shard of a member";

/// The number of bits that choose the shard, with this number of members.
pub(crate) fn bits(members: usize) -> u8 {
    (0..MAX_BITS).find(|bits| members <= MEAN << bits).unwrap_or(MAX_BITS)
}

/// The shard of the member with this key.
pub(crate) fn shard_of(key: &PublicKey, bits: u8) -> usize {
    usize::from(hash(&[OF_KEY, &key.0])[0]) >> (MAX_BITS - bits)
}

/// The bytes of all shards. The members come in the order of their keys.
pub(crate) fn split<'m>(members: impl Iterator<Item = &'m Member>, bits: u8) -> Vec<Vec<u8>> {
    let mut shards = vec![Vec::new(); 1 << bits];
    for member in members {
        member.write(&mut shards[shard_of(&member.public_key, bits)]);
    }
    shards
}

/// The members of a shard. `None` if it is not what [`split`] produces.
pub(crate) fn members(mut shard: &[u8], index: usize, bits: u8) -> Option<Vec<Member>> {
    let mut members: Vec<Member> = Vec::new();
    while !shard.is_empty() {
        let member = Member::read(&mut shard)?;
        let follows = members.last().is_none_or(|last| last.public_key.0 < member.public_key.0);
        members.push(Some(member).filter(|member| follows && shard_of(&member.public_key, bits) == index)?);
    }
    Some(members)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shards_grow_in_number_and_not_in_size() {
        let shards = [0, 8, 9, 100, 1_000, 2_048, 10_000].map(|members| 1 << bits(members));
        assert_eq!(shards, [1, 1, 2, 16, 128, 256, 256]);
    }

    #[test]
    fn shards_are_split_in_two_where_there_are_more() {
        for byte in 0..=255 {
            let key = PublicKey([byte; 32]);
            for bits in 0..MAX_BITS {
                assert_eq!(shard_of(&key, bits), shard_of(&key, bits + 1) / 2);
            }
        }
    }
}
