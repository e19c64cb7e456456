//! Backups of a server.

/// Any bytes are either a backup or refused, also with the right hash behind them. A backup that is written and read
/// again has the same members, and can replace itself.
pub fn backup(input: &[u8]) {
    rustguard_serve::fuzz::backup(input);
}
