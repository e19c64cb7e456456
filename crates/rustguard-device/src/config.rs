//! The configuration of a device. Embedders, the control socket and configuration files all use one type, [`Update`].

use crate::key::{PresharedKey, to_base64};
use ipnet::IpNet;
use rustguard_core::{
    host_port::HostPort,
    paths::{PathPolicy, TransportAddress},
    routing::Role,
};
use rustguard_crypto::x25519::{PublicKey, StaticSecret};
use std::{fmt, net::SocketAddr, time::Duration};

/// The change of an [`Update`] to a setting that may be absent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Change<T> {
    /// The setting stays as it is.
    #[default]
    Keep,
    /// The setting becomes this value.
    Set(T),
    /// The setting is removed.
    Remove,
}

impl<T> Change<T> {
    /// [`Set`](Self::Set) if there is a value, otherwise [`Remove`](Self::Remove).
    pub fn set_or_remove(value: Option<T>) -> Self {
        value.map_or(Self::Remove, Self::Set)
    }

    /// Whether the setting stays as it is.
    pub fn is_keep(&self) -> bool {
        matches!(self, Self::Keep)
    }

    /// The value to set; `None` for [`Keep`](Self::Keep) and [`Remove`](Self::Remove).
    pub fn into_value(self) -> Option<T> {
        match self {
            Self::Set(value) => Some(value),
            Self::Keep | Self::Remove => None,
        }
    }
}

/// A value is [set](Change::Set).
impl<T> From<T> for Change<T> {
    fn from(value: T) -> Self {
        Self::Set(value)
    }
}

/// The most [public endpoints](Update::public_endpoints) that are told to peers.
pub const MAX_PUBLIC_ENDPOINTS: usize = 3;

/// A change to a running device.
///
/// The port and the mark are applied first, because only they can be refused. If one is refused, peers and keys do not
/// change.
///
/// ```
/// # use rustguard_device::{PeerUpdate, Update};
/// # let key = rustguard_crypto::x25519::PublicKey([1; 32]);
/// let update = Update::new().listen_port(51820).peer(PeerUpdate::remove(key));
/// ```
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Update {
    /// The private key. A device without a private key neither sends nor answers.
    pub private_key: Change<StaticSecret>,
    /// A second private key: while a device changes its key, some peers know it by this one.
    pub second_private_key: Change<SecondKey>,
    /// The UDP port; 0 lets the system choose one. `None` keeps the present port.
    pub listen_port: Option<u16>,
    /// The firewall mark (SO_MARK) of all datagrams that the device sends; 0 stands for no mark. `None` keeps the
    /// present mark.
    pub fwmark: Option<u32>,
    /// Whether all peers are removed before [`peers`](Self::peers) is applied. They lose their sessions and counters.
    pub replace_peers: bool,
    /// The prefixes that a routing engine announces as this host's own, in place of those set before. `None` keeps
    /// them.
    pub announce: Option<Vec<IpNet>>,
    /// The networks in which peers have their addresses, in place of those set before: see [`Role::Server`]. `None`
    /// keeps them.
    pub pools: Option<Vec<IpNet>>,
    /// Whether the device forwards sealed datagrams between its peers: see
    /// [`Builder::forward`](crate::Builder::forward). `None` keeps the present setting.
    pub forward: Option<bool>,
    /// Endpoints of this node in addition to the addresses that it finds itself, such as an address and a port that a
    /// router forwards by a manual rule. Peers to which [direct paths](PeerUpdate::direct) are looked for are told the
    /// first [`MAX_PUBLIC_ENDPOINTS`] addresses. `None` keeps those set before.
    pub public_endpoints: Option<Vec<EndpointSpec>>,
    /// Whether the router of this network is asked to forward the UDP port (PCP, NAT-PMP, UPnP) while direct paths to
    /// a peer are looked for. The default is yes in a program with the feature `port-mapping`. `None` keeps the
    /// setting.
    pub port_mapping: Option<bool>,
    /// Changes to peers. They are applied in this order.
    pub peers: Vec<PeerUpdate>,
}

impl Update {
    /// An update that changes nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets or removes the private key.
    #[must_use]
    pub fn private_key(mut self, key: impl Into<Change<StaticSecret>>) -> Self {
        self.private_key = key.into();
        self
    }

    /// Sets or removes the second private key.
    #[must_use]
    pub fn second_private_key(mut self, key: impl Into<Change<SecondKey>>) -> Self {
        self.second_private_key = key.into();
        self
    }

    /// Sets the UDP port; 0 lets the system choose one.
    #[must_use]
    pub fn listen_port(mut self, port: u16) -> Self {
        self.listen_port = Some(port);
        self
    }

    /// Sets the firewall mark (SO_MARK); 0 removes it.
    #[must_use]
    pub fn fwmark(mut self, mark: u32) -> Self {
        self.fwmark = Some(mark);
        self
    }

    /// Removes all peers before the peers of this update are applied.
    #[must_use]
    pub fn replace_peers(mut self) -> Self {
        self.replace_peers = true;
        self
    }

    /// Sets the prefixes that a routing engine announces as this host's own.
    #[must_use]
    pub fn announce(mut self, prefixes: impl IntoIterator<Item = IpNet>) -> Self {
        self.announce = Some(prefixes.into_iter().collect());
        self
    }

    /// Sets the networks in which peers have their addresses: see [`Role::Server`].
    #[must_use]
    pub fn pools(mut self, prefixes: impl IntoIterator<Item = IpNet>) -> Self {
        self.pools = Some(prefixes.into_iter().collect());
        self
    }

    /// Sets whether the device forwards sealed datagrams between its peers: see
    /// [`Builder::forward`](crate::Builder::forward).
    #[must_use]
    pub fn forward(mut self, forward: bool) -> Self {
        self.forward = Some(forward);
        self
    }

    /// Sets endpoints of this node in addition to the addresses that it finds itself.
    #[must_use]
    pub fn public_endpoints(mut self, endpoints: impl IntoIterator<Item = EndpointSpec>) -> Self {
        self.public_endpoints = Some(endpoints.into_iter().collect());
        self
    }

    /// Sets whether the router of this network is asked to forward the UDP port.
    #[must_use]
    pub fn port_mapping(mut self, on: bool) -> Self {
        self.port_mapping = Some(on);
        self
    }

    /// Adds a change to one peer.
    #[must_use]
    pub fn peer(mut self, peer: PeerUpdate) -> Self {
        self.peers.push(peer);
        self
    }

    /// Adds changes to several peers.
    #[must_use]
    pub fn peers(mut self, peers: impl IntoIterator<Item = PeerUpdate>) -> Self {
        self.peers.extend(peers);
        self
    }
}

/// A second private key of a device. Handshakes with it are answered, and attempts of the device use the first and the
/// second key alternately, unless the second [only answers](Self::only_answers). Forwarded datagrams for either key are
/// accepted.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SecondKey {
    /// The key.
    pub private_key: StaticSecret,
    /// The preshared keys of handshakes with it, by peer, if they differ from the preshared keys with the first key.
    pub preshared_keys: Vec<(PublicKey, PresharedKey)>,
    /// Whether attempts of the device use it too.
    pub initiates: bool,
}

impl SecondKey {
    /// A second key with the preshared keys of the first.
    pub fn new(private_key: StaticSecret) -> Self {
        Self { private_key, preshared_keys: Vec::new(), initiates: true }
    }

    /// Handshakes with it are answered and not begun, because other devices have this key as well.
    #[must_use]
    pub fn only_answers(self) -> Self {
        Self { initiates: false, ..self }
    }

    /// Sets [`preshared_keys`](Self::preshared_keys).
    #[must_use]
    pub fn preshared_keys(self, keys: impl IntoIterator<Item = (PublicKey, PresharedKey)>) -> Self {
        Self { preshared_keys: keys.into_iter().collect(), ..self }
    }
}

/// A change to one peer. A peer that does not exist yet is added, unless [`update_only`](Self::update_only) is set.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct PeerUpdate {
    /// The peer's public key, which identifies it.
    pub public_key: PublicKey,
    /// The new public key of the peer. Its sessions stay, the next handshake uses the new key, and handshakes with the
    /// old key are not answered any more. Ignored if another peer or the device itself has that key.
    pub new_public_key: Option<PublicKey>,
    /// Whether the peer is removed. Everything else in the update is then ignored.
    pub remove: bool,
    /// Whether the update is ignored if the peer does not exist.
    pub update_only: bool,
    /// The peer's name in `show`, in the log and in [`PeerStatus`](crate::PeerStatus). `None` keeps the present name,
    /// and an empty text removes it.
    pub name: Option<String>,
    /// The preshared key. A key of 32 zero bytes means none, as in WireGuard.
    pub preshared_key: Change<PresharedKey>,
    /// The preshared key of handshakes with the device's [second private key](Update::second_private_key). `None`
    /// keeps the present one.
    pub second_preshared_key: Option<PresharedKey>,
    /// The peer's endpoints, in place of those set before; at most [`MAX_ENDPOINTS`](crate::MAX_ENDPOINTS). An empty
    /// list keeps the present ones, unless [`replace_endpoints`](Self::replace_endpoints) is set.
    pub endpoints: Vec<PathSpec>,
    /// Whether an empty list of [`endpoints`](Self::endpoints) removes those set before. The peer is then still
    /// reached at its last address, until packets come from another one.
    pub replace_endpoints: bool,
    /// The interval of persistent keepalives, in whole seconds from 1 to 65,535.
    pub persistent_keepalive: Change<Duration>,
    /// Whether the peer loses all its allowed IPs before [`allowed_ips`](Self::allowed_ips) is applied.
    pub replace_allowed_ips: bool,
    /// Changes to the allowed IPs. They are applied in this order.
    pub allowed_ips: Vec<AllowedIpChange>,
    /// Whether direct paths to the peer are looked for. `None` keeps the present setting. Without one they are looked
    /// for if an endpoint of the peer leads [through a peer](EndpointSpec::Peer).
    pub direct: Option<bool>,
    /// Whether parities are sent to the peer, and accepted from it. Lost packets are rebuilt from parities. The value
    /// is the number of data bytes for one byte of parity, from 2 to 20; the nearest of these replaces other values.
    /// The peer must be a RustGuard with the same setting: see [`rustguard_core::fec`].
    pub parity: Change<u8>,
    /// The peer's role towards a routing engine. `None` keeps the present role; a new peer is a router.
    pub role: Option<Role>,
}

/// A change to a peer's allowed IPs. Host bits of the prefix are ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AllowedIpChange {
    /// The peer gets the prefix. Without a routing engine, another peer that has the same prefix loses it.
    Add(IpNet),
    /// The peer loses the prefix. Nothing happens if it does not have it.
    Remove(IpNet),
}

/// How a router's packet is treated if the router has not announced its source address to the routing engine.
///
/// This is about sources within the router's allowed IPs. Sources outside of them are dropped in every mode. Without a
/// routing engine, and for clients, there are no announcements, and the allowed IPs alone decide.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum SourceCheck {
    /// The packet is dropped, and counted as [`SourceNotAnnounced`](crate::DropReason::SourceNotAnnounced).
    #[default]
    Enforce,
    /// The packet passes. It is counted in [`Status::unannounced`](crate::Status::unannounced), and logged at most once
    /// in 30 seconds. This mode shows what [`Enforce`](Self::Enforce) would drop.
    Log,
    /// The packet passes. This mode is for networks with asymmetric routes, where announcements do not cover all
    /// sources.
    Off,
}

impl SourceCheck {
    /// The mode's name in configuration files and on the command line: `enforce`, `log` or `off`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Enforce => "enforce",
            Self::Log => "log",
            Self::Off => "off",
        }
    }
}

/// A peer's endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum EndpointSpec {
    /// An address and a UDP port, or an address at a transport of the embedder's own ([`TransportAddress`]).
    Address(SocketAddr),
    /// A host name and a UDP port. The name is resolved at once, and again when handshakes fail. A link-local address
    /// with the name of its interface, such as `fe80::1%eth0`, counts as a name: the interface may have another
    /// index later.
    Name(String, u16),
    /// A way through the peer with this public key, the relay, which forwards the datagrams of this peer's sessions and
    /// cannot read them. The relay needs [`Builder::forward`](crate::Builder::forward) and an address of its own,
    /// and both this device and the peer must be its peers. It may be added after this endpoint, and removed:
    /// meanwhile the endpoint leads nowhere.
    Peer(PublicKey),
}

impl PeerUpdate {
    /// An update that adds a peer with this key, or changes nothing if the peer exists.
    pub fn new(public_key: PublicKey) -> Self {
        Self {
            public_key,
            new_public_key: None,
            remove: false,
            update_only: false,
            name: None,
            preshared_key: Change::Keep,
            second_preshared_key: None,
            endpoints: Vec::new(),
            replace_endpoints: false,
            persistent_keepalive: Change::Keep,
            replace_allowed_ips: false,
            allowed_ips: Vec::new(),
            direct: None,
            parity: Change::Keep,
            role: None,
        }
    }

    /// An update that removes the peer, with its sessions and allowed IPs.
    pub fn remove(public_key: PublicKey) -> Self {
        Self { remove: true, ..Self::new(public_key) }
    }

    /// Ignores the update if the peer does not exist, instead of adding the peer.
    #[must_use]
    pub fn update_only(mut self) -> Self {
        self.update_only = true;
        self
    }

    /// Gives a peer that exists another public key.
    #[must_use]
    pub fn new_public_key(mut self, key: PublicKey) -> Self {
        self.new_public_key = Some(key);
        self
    }

    /// Sets the name in `show`, in the log and in [`PeerStatus`](crate::PeerStatus).
    #[must_use]
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Adds an endpoint. A peer with several endpoints has several paths: see [`PathSpec`].
    #[must_use]
    pub fn endpoint(mut self, endpoint: impl Into<PathSpec>) -> Self {
        self.endpoints.push(endpoint.into());
        self
    }

    /// Adds endpoints.
    #[must_use]
    pub fn endpoints(mut self, endpoints: impl IntoIterator<Item = PathSpec>) -> Self {
        self.endpoints.extend(endpoints);
        self
    }

    /// Sets the endpoints, in place of those set before, also if there are none.
    #[must_use]
    pub fn replace_endpoints(mut self, endpoints: impl IntoIterator<Item = PathSpec>) -> Self {
        self.replace_endpoints = true;
        self.endpoints = endpoints.into_iter().collect();
        self
    }

    /// Adds an allowed IP.
    #[must_use]
    pub fn allowed_ip(mut self, net: impl Into<IpNet>) -> Self {
        self.allowed_ips.push(AllowedIpChange::Add(net.into()));
        self
    }

    /// Removes an allowed IP.
    #[must_use]
    pub fn without_allowed_ip(mut self, net: impl Into<IpNet>) -> Self {
        self.allowed_ips.push(AllowedIpChange::Remove(net.into()));
        self
    }

    /// Sets the allowed IPs, in place of all that the peer has.
    #[must_use]
    pub fn replace_allowed_ips(mut self, nets: impl IntoIterator<Item = IpNet>) -> Self {
        self.replace_allowed_ips = true;
        self.allowed_ips = nets.into_iter().map(AllowedIpChange::Add).collect();
        self
    }

    /// Sets whether direct paths to the peer are looked for.
    #[must_use]
    pub fn direct(mut self, direct: bool) -> Self {
        self.direct = Some(direct);
        self
    }

    /// Sets whether parities are sent to the peer, and accepted from it: see [`parity`](Self::parity).
    #[must_use]
    pub fn parity(mut self, size: impl Into<Change<u8>>) -> Self {
        self.parity = size.into();
        self
    }

    /// Sets the role towards a routing engine.
    #[must_use]
    pub fn role(mut self, role: Role) -> Self {
        self.role = Some(role);
        self
    }

    /// Sets [`second_preshared_key`](Self::second_preshared_key).
    #[must_use]
    pub fn second_preshared_key(mut self, key: PresharedKey) -> Self {
        self.second_preshared_key = Some(key);
        self
    }

    /// Sets or removes the preshared key.
    #[must_use]
    pub fn preshared_key(mut self, key: impl Into<Change<PresharedKey>>) -> Self {
        self.preshared_key = key.into();
        self
    }

    /// Sets or removes the interval of persistent keepalives.
    #[must_use]
    pub fn persistent_keepalive(mut self, interval: impl Into<Change<Duration>>) -> Self {
        self.persistent_keepalive = interval.into();
        self
    }
}

/// One of a peer's endpoints, and how it is used if the peer has several.
///
/// Several endpoints are probed, and the peer is reached by those that answer: see [`rustguard_core::paths`] and
/// docs/routing.md.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PathSpec {
    /// The endpoint.
    pub endpoint: EndpointSpec,
    /// The name of the interface by which datagrams to this endpoint leave. `None` leaves that to the kernel's routes.
    pub via: Option<String>,
    /// How the path is used beside the others.
    pub policy: PathPolicy,
}

impl PathSpec {
    /// Whether `other` is the same path, perhaps with another policy.
    pub(crate) fn is_same_path(&self, other: &Self) -> bool {
        self.endpoint == other.endpoint && self.via == other.via
    }

    /// Sets the interface by which datagrams to this endpoint leave.
    #[must_use]
    pub fn via(mut self, interface: impl Into<String>) -> Self {
        self.via = Some(interface.into());
        self
    }

    /// Sets how the path is used beside the others; [`PathPolicy::Best`] by default.
    #[must_use]
    pub fn policy(mut self, policy: PathPolicy) -> Self {
        self.policy = policy;
        self
    }
}

impl<T: Into<EndpointSpec>> From<T> for PathSpec {
    fn from(endpoint: T) -> Self {
        Self { endpoint: endpoint.into(), via: None, policy: PathPolicy::Best }
    }
}

/// In the form of configuration files: `192.0.2.1:51820 via eth0 weight 2`.
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
            PathPolicy::Fallback => f.write_str(" fallback"),
        }
    }
}

impl From<SocketAddr> for EndpointSpec {
    fn from(address: SocketAddr) -> Self {
        Self::Address(address)
    }
}

/// An address at a transport of the embedder's own.
impl From<TransportAddress> for EndpointSpec {
    fn from(address: TransportAddress) -> Self {
        Self::Address(address.into())
    }
}

impl From<HostPort> for EndpointSpec {
    fn from(at: HostPort) -> Self {
        at.socket_addr().map_or_else(|| Self::Name(at.host().to_string(), at.port()), Self::Address)
    }
}

/// In the form of configuration files: `192.0.2.1:51820`, `vpn.example.org:51820`, or `via-peer` and a public key.
impl fmt::Display for EndpointSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(address) => address.fmt(f),
            Self::Name(host, port) if host.contains(':') => write!(f, "[{host}]:{port}"),
            Self::Name(host, port) => write!(f, "{host}:{port}"),
            Self::Peer(key) => write!(f, "via-peer {}", *to_base64(&key.0)),
        }
    }
}

/// Why an [`Update`] was refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum UpdateError {
    /// The new port could not be bound. The old one stays open.
    #[error("cannot listen on UDP port {port}: {cause}")]
    #[non_exhaustive]
    Port {
        /// The port.
        port: u16,
        /// The system's error.
        cause: std::io::Error,
    },
    /// The mark could not be set.
    #[error("cannot set the firewall mark {mark:#x}: {cause}; it needs CAP_NET_ADMIN")]
    #[non_exhaustive]
    Fwmark {
        /// The mark.
        mark: u32,
        /// The system's error.
        cause: std::io::Error,
    },
    /// The device has ended, or is ending.
    #[error("the device is shutting down")]
    Closed,
}
