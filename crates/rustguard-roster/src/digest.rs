//! The hashes of a roster's parts, by which others ask for them.

use rustguard_crypto::hash::{HASH_LEN, hash};

const OF_SHARD: &[u8] = b"rustguard roster v1 shard";
const OF_SHEET: &[u8] = b"rustguard roster v1 sheet";
const OF_STATE: &[u8] = b"rustguard roster v1 state";
const OF_SETTINGS: &[u8] = b"rustguard roster v1 settings";

/// A hash of a part of the roster.
pub(crate) type Digest = [u8; HASH_LEN];

/// The digest of a shard's bytes.
pub(crate) fn of_shard(shard: &[u8]) -> Digest {
    hash(&[OF_SHARD, shard])
}

/// The digest of the settings' bytes.
pub(crate) fn of_settings(settings: &[u8]) -> Digest {
    hash(&[OF_SETTINGS, settings])
}

/// The digest of a sheet: the part of the network's policy that a member enforces.
pub(crate) fn of_sheet(sheet: &[u8]) -> Digest {
    hash(&[OF_SHEET, sheet])
}

/// The digest of a piece of a server's state, or of the list of its pieces.
pub(crate) fn of_state(piece: &[u8]) -> Digest {
    hash(&[OF_STATE, piece])
}
