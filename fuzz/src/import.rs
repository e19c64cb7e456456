//! Files of servers to be imported.

/// Any bytes are a server or a reason why not: of wg-quick, of wg-easy, or of nobody. The same bytes are the same
/// server, and its settings are some that a server starts with.
pub fn import(input: &[u8]) {
    rustguard_serve::fuzz::import(input);
}
