//! WireGuard's four messages, checked once where they enter.

/// What a datagram is, by type and length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Handshake initiation, 148 bytes.
    Initiation,
    /// Handshake response, 92 bytes.
    Response,
    /// Cookie reply, 64 bytes.
    CookieReply,
    /// Transport data, 32 bytes or more, text a multiple of 16 not required.
    Data {
        /// The receiver's index.
        receiver: u32,
        /// The counter.
        counter: u64,
    },
}

impl Kind {
    /// Classifies; `None` for unknown types, wrong lengths, nonzero reserved bytes.
    pub fn of(_datagram: &[u8]) -> Option<Self> {
        todo!()
    }
}
