//! Typed configuration: what a device is told, by an embedder, the UAPI or a configuration file, all through one [`Update`].

use ipnet::IpNet;
use rustguard_core::{paths::PathPolicy, routing::Role};
use rustguard_crypto::x25519::{PublicKey, StaticSecret};
use std::{fmt, net::SocketAddr, time::Duration};
use zeroize::Zeroizing;

/// A change to a running device, applied as a whole: either all of it or, when it is refused, nothing but what the
/// error says.
#[derive(Clone, Default)]
pub struct Update {
    /// Sets (`Some(Some(_))`) or removes (`Some(None)`) the private key.
    pub private_key: Option<Option<StaticSecret>>,
    /// The UDP port; 0 lets the system choose.
    pub listen_port: Option<u16>,
    /// The firewall mark on everything sent (SO_MARK); 0 for none.
    pub fwmark: Option<u32>,
    /// Remove every peer that this update does not list.
    pub replace_peers: bool,
    /// The prefixes that a routing engine is to announce as this host's own, instead of those before.
    pub announce: Option<Vec<IpNet>>,
    /// Changes to peers, in order.
    pub peers: Vec<PeerUpdate>,
}

/// A change to one peer. A peer that does not exist is added.
#[derive(Clone)]
pub struct PeerUpdate {
    /// Whose.
    pub public_key: PublicKey,
    /// Remove it.
    pub remove: bool,
    /// Change it only if it exists.
    pub update_only: bool,
    /// The name it goes by in `show`, logs and events.
    pub name: Option<String>,
    /// The preshared key; all zeros removes it.
    pub preshared_key: Option<Zeroizing<[u8; 32]>>,
    /// Where it is, instead of what was said before; empty: as before. At most [`MAX_ENDPOINTS`](crate::MAX_ENDPOINTS).
    pub endpoints: Vec<PathSpec>,
    /// Persistent keepalive; `Some(None)` turns it off.
    pub persistent_keepalive: Option<Option<Duration>>,
    /// Take all allowed IPs away first.
    pub replace_allowed_ips: bool,
    /// Allowed IPs to give or take, in order.
    pub allowed_ips: Vec<AllowedIp>,
    /// What the peer is to a routing engine; a router where it is never said.
    pub role: Option<Role>,
}

/// One allowed IP to give or take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AllowedIp {
    /// The prefix; host bits are ignored.
    pub net: IpNet,
    /// Take it from the peer instead of giving it.
    pub remove: bool,
}

/// What becomes of a packet from a router whose source lies within the router's allowed IPs, but that it has not announced to
/// the routing engine. Without an engine, and for clients, allowed IPs are exact in any mode; in any mode they are the limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SourceCheck {
    /// It is dropped, and counted as [`SourceNotAnnounced`](crate::DropReason::SourceNotAnnounced).
    #[default]
    Enforce,
    /// It passes, counted in [`Status::unannounced`](crate::Status::unannounced) and logged every half a minute at most: to find
    /// out what `Enforce` would drop.
    Log,
    /// It passes: for networks whose ways there and back differ so much that announcements do not tell.
    Off,
}

/// Where a peer is: an address, or a name that is resolved, and resolved again when handshakes fail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EndpointSpec {
    /// An address.
    Address(SocketAddr),
    /// A host name and a port.
    Name(String, u16),
}

impl PeerUpdate {
    /// A peer with this key, nothing else said.
    pub fn new(public_key: PublicKey) -> Self {
        Self {
            public_key,
            remove: false,
            update_only: false,
            name: None,
            preshared_key: None,
            endpoints: Vec::new(),
            persistent_keepalive: None,
            replace_allowed_ips: false,
            allowed_ips: Vec::new(),
            role: None,
        }
    }

    /// Names it.
    #[must_use]
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Says where it is; said again, where it is as well: see [`PathSpec`].
    #[must_use]
    pub fn endpoint(mut self, endpoint: impl Into<PathSpec>) -> Self {
        self.endpoints.push(endpoint.into());
        self
    }

    /// Gives it a prefix.
    #[must_use]
    pub fn allowed_ip(mut self, net: impl Into<IpNet>) -> Self {
        self.allowed_ips.push(AllowedIp { net: net.into(), remove: false });
        self
    }

    /// Says what it is to a routing engine.
    #[must_use]
    pub fn role(mut self, role: Role) -> Self {
        self.role = Some(role);
        self
    }

    /// Sets the preshared key.
    #[must_use]
    pub fn preshared_key(mut self, key: [u8; 32]) -> Self {
        self.preshared_key = Some(Zeroizing::new(key));
        self
    }

    /// Turns persistent keepalive on.
    #[must_use]
    pub fn persistent_keepalive(mut self, interval: Duration) -> Self {
        self.persistent_keepalive = Some(Some(interval));
        self
    }
}

/// An endpoint of a peer, and what it is for where there are several. Several are probed: see
/// [`rustguard_core::paths`] and docs/routing.md.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathSpec {
    /// Where.
    pub endpoint: EndpointSpec,
    /// The interface by which datagrams leave; by default the kernel's routes decide.
    pub via: Option<String>,
    /// What for.
    pub policy: PathPolicy,
}

impl<T: Into<EndpointSpec>> From<T> for PathSpec {
    fn from(endpoint: T) -> Self {
        Self { endpoint: endpoint.into(), via: None, policy: PathPolicy::Best }
    }
}

impl fmt::Display for PathSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.endpoint.fmt(f)?;
        if let Some(via) = &self.via {
            write!(f, " via {via}")?;
        }
        match self.policy {
            PathPolicy::Best => Ok(()),
            PathPolicy::Weighted(weight) => write!(f, " weight {weight}"),
            PathPolicy::Pinned => f.write_str(" pinned"),
        }
    }
}

impl From<SocketAddr> for EndpointSpec {
    fn from(address: SocketAddr) -> Self {
        Self::Address(address)
    }
}

impl fmt::Display for EndpointSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(address) => address.fmt(f),
            Self::Name(host, port) => write!(f, "{host}:{port}"),
        }
    }
}

/// Why an [`Update`] was refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum UpdateError {
    /// The new port could not be bound; the old one stays.
    #[error("cannot listen on UDP port {port}: {cause}")]
    Port {
        /// Which.
        port: u16,
        /// Why.
        cause: std::io::Error,
    },
    /// The mark could not be set.
    #[error("cannot set the firewall mark {mark:#x}: {cause}; it needs CAP_NET_ADMIN")]
    Fwmark {
        /// Which.
        mark: u32,
        /// Why.
        cause: std::io::Error,
    },
    /// The device is shutting down.
    #[error("the device is shutting down")]
    Closed,
}
