//! Length limits of tokens and their parts.

/// The longest endpoint in an invite, in bytes. A DNS name of 253 bytes with a colon and a port would have 259, but the
/// length field is one byte.
pub const MAX_ENDPOINT: usize = 255;
/// The shortest passphrase, in bytes. This length suffices because a window permits only five guesses.
pub const MIN_PASSPHRASE: usize = 6;
/// The number of characters from which a passphrase causes no warning (see
/// [`Passphrase::is_short`](super::Passphrase::is_short)).
pub const ADVISED_PASSPHRASE: usize = 10;
/// The longest passphrase, in bytes.
pub const MAX_PASSPHRASE: usize = 128;
