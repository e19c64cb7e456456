//! The tasks that the server hands to its embedder. The embedder carries them out in order.
use crate::{audit::AuditRecord, lease::Lease};
use ipnet::IpNet;
use rustguard_core::{host_port::HostPort, routing::Role};
use rustguard_crypto::x25519::PublicKey;
use std::{fmt, net::SocketAddr};
use zeroize::Zeroizing;

/// A task for the program that runs the server. All state that an action relies on is durable before the action is
/// returned. The enum is exhaustive on purpose: a program must not ignore an action.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// A datagram for the tunnel's own UDP socket.
    Send {
        /// The destination.
        to: SocketAddr,
        /// At most [`wire::MAX_DATAGRAM`](crate::wire::MAX_DATAGRAM) bytes.
        bytes: Vec<u8>,
    },
    /// Add a WireGuard peer, or change the one with this public key. The peer's sessions continue if the preshared key
    /// is unchanged.
    SetPeer(PeerConfig),
    /// A WireGuard peer has another public key. Its sessions continue.
    RekeyPeer {
        /// The previous public key.
        before: PublicKey,
        /// The new public key.
        after: PublicKey,
    },
    /// Remove a WireGuard peer and end its sessions at once.
    RemovePeer(PublicKey),
    /// The contents of the network's roster may have changed: a machine came, left, or has another name, key, tag,
    /// prefix, endpoint or role. A list of actions has this at most once.
    MembersChanged,
    /// A line for the audit log.
    Audit(AuditRecord),
}

/// Notes that members have changed.
pub(crate) fn members_changed(actions: &mut Vec<Action>) {
    if !actions.contains(&Action::MembersChanged) {
        actions.push(Action::MembersChanged);
    }
}

/// The configuration of a peer on the device.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct PeerConfig {
    /// Its WireGuard public key.
    pub public_key: PublicKey,
    /// The preshared key, which only this peer uses.
    pub preshared_key: Zeroizing<[u8; 32]>,
    /// The addresses of its lease, as /32 and /128 prefixes, and the prefixes behind it ([`Lease::prefixes`]).
    pub allowed_ips: Vec<IpNet>,
    /// The peer's name.
    pub name: Option<String>,
    /// Its role: a stock client, a member of the network, or a further server of it.
    pub role: Role,
    /// The endpoints of a further server. For other peers this is empty, because they connect first.
    pub endpoints: Vec<HostPort>,
}

impl PeerConfig {
    /// The peer of a lease.
    pub(crate) fn of_lease(lease: &Lease) -> Self {
        Self {
            public_key: lease.public_key,
            preshared_key: Zeroizing::new(*lease.preshared_key.as_bytes()),
            allowed_ips: lease.addresses().map(Into::into).chain(lease.prefixes()).collect(),
            name: lease.name.clone(),
            role: match (lease.member, lease.is_server()) {
                (_, true) => Role::Server,
                (true, false) => Role::Member,
                (false, false) => Role::Client,
            },
            endpoints: if lease.is_server() { lease.endpoints.clone() } else { Vec::new() },
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
