//! What a policy has refused.

use rustguard_crypto::x25519::PublicKey;
use std::{net::IpAddr, time::Duration};

/// The policy of a device: see [`policy`](crate::policy).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PolicyStatus {
    /// How many rules it has.
    pub rules: usize,
    /// How many connections are known. Some may be over.
    pub connections: usize,
    /// How many connections can be known.
    pub capacity: usize,
    /// How many packets were refused since the start.
    pub refused: u64,
    /// The packets that were refused last, the latest first: at most 16, of which at most 8 are of one peer.
    pub refusals: Vec<Refusal>,
}

/// Packets of a peer that a policy has refused.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Refusal {
    /// When the last of them came, as the time since the Unix epoch.
    pub at: Duration,
    /// The peer.
    pub peer: PublicKey,
    /// The source.
    pub from: IpAddr,
    /// The destination.
    pub to: IpAddr,
    /// The protocol by its number in the IP header; 0 where it is not known.
    pub protocol: u8,
    /// The destination port, where it is known and the protocol has one.
    pub port: Option<u16>,
    /// How many there were.
    pub packets: u64,
    /// Why: `not-allowed`, or what is wrong with the packet in a word.
    pub reason: &'static str,
}
