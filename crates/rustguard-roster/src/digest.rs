//! The hashes of a roster's parts, by which others ask for them.

use rustguard_crypto::hash::{HASH_LEN, hash};

const OF_SHARD: &[u8] = b"rustguard roster v1 shard";
const OF_SHEET: &[u8] = b"rustguard roster v1 sheet";
const OF_STATE: &[u8] = b"rustguard roster v1 state";
const OF_SETTINGS: &[u8] = b"rustguard roster v1 settings";

/// A hash of a part of the roster.
pub(crate) type Digest = [u8; HASH_LEN];

/// That of a shard's bytes.
pub(crate) fn of_shard(shard: &[u8]) -> Digest {
    hash(&[OF_SHARD, shard])
}

/// That of the settings' bytes.
pub(crate) fn of_settings(settings: &[u8]) -> Digest {
    hash(&[OF_SETTINGS, settings])
}

/// That of a sheet: what a member enforces of the network's policy.
pub(crate) fn of_sheet(sheet: &[u8]) -> Digest {
    hash(&[OF_SHEET, sheet])
}

/// That of a piece of a server's state, or of the list of its pieces.
pub(crate) fn of_state(piece: &[u8]) -> Digest {
    hash(&[OF_STATE, piece])
}
