//! Server files for `serve import`.

/// Any bytes are either a server's file (of wg-quick or wg-easy) or refused. The same bytes always give the same
/// server, and a server can start with its settings.
pub fn import(input: &[u8]) {
    rustguard_serve::fuzz::import(input);
}
