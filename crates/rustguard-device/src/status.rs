//! A device's state at one moment, for `show`, the UAPI and embedders.

use crate::drops::DropReason;
use ipnet::IpNet;
use rustguard_crypto::x25519::{PublicKey, StaticSecret};
use std::{net::SocketAddr, time::Duration};
use zeroize::Zeroizing;

/// Everything about a device. Holds the private key: handle it as such.
pub struct Status {
    /// The private key, if one is set.
    pub private_key: Option<StaticSecret>,
    /// Its public half.
    pub public_key: Option<PublicKey>,
    /// The UDP port.
    pub listen_port: u16,
    /// The firewall mark, 0 for none.
    pub fwmark: u32,
    /// The peers, in the order they were added.
    pub peers: Vec<PeerStatus>,
    /// Packets that went from peer to peer without the host: see [`Relay`](crate::Relay).
    pub relayed: u64,
    /// What was dropped, by reason; reasons that never happened are left out.
    pub drops: Vec<(DropReason, u64)>,
    /// The embedder's own: see [`Builder::counters`](crate::Builder::counters).
    pub counters: Vec<(&'static str, u64)>,
}

/// Everything about a peer.
pub struct PeerStatus {
    /// Its name, if it has one.
    pub name: Option<String>,
    /// Its public key.
    pub public_key: PublicKey,
    /// The preshared key; all zeros means none.
    pub preshared_key: Zeroizing<[u8; 32]>,
    /// Where it is, as far as known.
    pub endpoint: Option<SocketAddr>,
    /// Persistent keepalive.
    pub persistent_keepalive: Option<Duration>,
    /// When the last handshake completed, since the Unix epoch.
    pub last_handshake: Option<Duration>,
    /// Bytes received: transport and handshake messages.
    pub rx_bytes: u64,
    /// Bytes sent: transport and handshake messages.
    pub tx_bytes: u64,
    /// Its allowed IPs.
    pub allowed_ips: Vec<IpNet>,
}
