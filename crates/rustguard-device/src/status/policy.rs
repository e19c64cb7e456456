//! The state of a policy, and the packets that it has refused.

use rustguard_crypto::x25519::PublicKey;
use std::{net::IpAddr, time::Duration};

/// The policy of a device: see [`policy`](crate::policy).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PolicyStatus {
    /// The number of rules.
    pub rules: usize,
    /// The number of known connections, including some that have ended.
    pub connections: usize,
    /// The most connections that can be known.
    pub capacity: usize,
    /// The number of packets that were refused since the start.
    pub refused: u64,
    /// The last refused packets, latest first: at most 16, and at most 8 of one peer.
    pub refusals: Vec<Refusal>,
}

/// Packets of a peer that a policy has refused.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Refusal {
    /// When the last one came, as the time since the Unix epoch.
    pub at: Duration,
    /// The peer.
    pub peer: PublicKey,
    /// The source.
    pub from: IpAddr,
    /// The destination.
    pub to: IpAddr,
    /// The protocol by its number in the IP header; 0 if it is not known.
    pub protocol: u8,
    /// The destination port, if it is known and the protocol has one.
    pub port: Option<u16>,
    /// The number of these packets.
    pub packets: u64,
    /// The reason in one word: `not-allowed`, or the defect of the packet.
    pub reason: &'static str,
}
