//! Control's state of a peer for which parities are configured.

/// The parities that are offered to a peer.
pub(in crate::control) struct Parities {
    /// Bytes of data for one byte of parity.
    pub(in crate::control) size: u8,
    /// Not yet accepted.
    pub(in crate::control) offer: Option<Offer>,
}

/// Parities in one session.
pub(in crate::control) struct Offer {
    /// The index by which the peer knows the session.
    pub(in crate::control) index: u32,
    /// How often they were offered.
    pub(in crate::control) tries: u8,
}
