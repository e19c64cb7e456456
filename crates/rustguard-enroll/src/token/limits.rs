//! How long tokens and their parts may be.

/// Bytes of the longest endpoint in an invite: a DNS name of 253, a colon, a port would be 259, but a length is one byte.
pub const MAX_ENDPOINT: usize = 255;
/// Bytes of the shortest passphrase. Short is bearable: a guess costs one of five attempts of a window.
pub const MIN_PASSPHRASE: usize = 6;
/// Characters of a passphrase that is not worth a warning: see [`Passphrase::is_short`].
pub const ADVISED_PASSPHRASE: usize = 10;
/// Bytes of the longest passphrase.
pub const MAX_PASSPHRASE: usize = 128;
