//! What the server wants done. The embedder carries it out, in order.
use crate::{audit::AuditRecord, lease::Lease};
use ipnet::IpNet;
use rustguard_crypto::x25519::PublicKey;
use std::{fmt, net::SocketAddr};
use zeroize::Zeroizing;

/// A task for the program that runs the server. All state that an action relies on is durable when the action comes out. The enum
/// is exhaustive on purpose: a program that ignores an action is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// A datagram for the tunnel's own UDP socket.
    Send {
        /// The destination.
        to: SocketAddr,
        /// At most [`wire::MAX_DATAGRAM`](crate::wire::MAX_DATAGRAM) bytes.
        bytes: Vec<u8>,
    },
    /// Add a WireGuard peer, or change the one with this public key; its sessions go on if the preshared key is the same.
    SetPeer(PeerConfig),
    /// Remove a WireGuard peer, its sessions at once.
    RemovePeer(PublicKey),
    /// A line for the audit log.
    Audit(AuditRecord),
}

/// A peer as the device must have it.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct PeerConfig {
    /// Its WireGuard public key.
    pub public_key: PublicKey,
    /// The preshared key of this peer alone.
    pub preshared_key: Zeroizing<[u8; 32]>,
    /// The addresses of its lease, as /32 and /128 prefixes.
    pub allowed_ips: Vec<IpNet>,
    /// What it is called.
    pub name: Option<String>,
}

impl PeerConfig {
    /// The peer of a lease.
    pub(crate) fn of_lease(lease: &Lease) -> Self {
        Self {
            public_key: lease.public_key,
            preshared_key: Zeroizing::new(*lease.preshared_key.as_bytes()),
            allowed_ips: lease.addresses().map(Into::into).collect(),
            name: lease.name.clone(),
        }
    }
}

impl fmt::Debug for PeerConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PeerConfig")
            .field("public_key", &self.public_key)
            .field("allowed_ips", &self.allowed_ips)
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}
