//! Backups of a server.

/// Any bytes are a backup or a reason why not, also with the right hash behind them. What is read is written and read
/// again with the same members, and can take its own place.
pub fn backup(input: &[u8]) {
    rustguard_serve::fuzz::backup(input);
}
