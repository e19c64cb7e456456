//! wg-quick's configuration files. The parser reports every mistake with its position, and `SaveConfig` writes the
//! files again.
//!
//! [`parse`] does not stop at the first mistake. It returns the configuration if there is no error. It always returns
//! every [`Diagnostic`], each with the span of the text that it concerns. It accepts the syntax of wg-quick(8) and
//! wg(8), and RustGuard's own keys. It also reads the name of a peer, in a comment that wg and wg-quick skip:
//!
//! ```text
//! # Name = laptop
//! [Peer]
//! PublicKey = …
//! ```

mod diagnostic;
mod edit;
mod file;
pub(crate) mod keys;
mod load;
mod parse;
mod path;
mod peer_names;
mod piece;
mod spelling;
mod system_names;
#[cfg(test)]
mod tests;
mod text;
mod value;
mod words;
mod write;

pub use crate::host::Table;
use crate::{NameServer, gateway::Gateway};
pub use diagnostic::{Diagnostic, Severity, Span};
pub use edit::{EditError, edit, strip};
pub use file::{File, SaveError};
use ipnet::IpNet;
pub use load::{FileError, load};
pub use parse::{is_configuration, parse, redact};
pub use path::{DIRECTORIES, NameError, Placement, placement, readable_by_others, resolve_name, writable_by_others};
use rustguard_core::{paths::PathPolicy, routing::Role};
use rustguard_crypto::x25519::{PublicKey, StaticSecret};
pub use rustguard_device::kernel::Redistribute;
use rustguard_device::{
    AllowedIpChange, Change, EndpointSpec, PathSpec, PeerStatus, PeerUpdate, PresharedKey, Secrets, SourceCheck,
    Status, Update, key::to_base64,
};
use std::{collections::HashMap, fmt, net::IpAddr, time::Duration};
pub use text::{NotText, decode};
pub use words::{WordContext, parse_words};
pub use write::{to_text, write, write_with_comment};

/// The keys of `[Interface]`, in the spelling of wg(8) and wg-quick(8).
pub fn interface_keys() -> Vec<&'static str> {
    keys::names::<Interface>()
}

/// The keys of `[Peer]`.
pub fn peer_keys() -> Vec<&'static str> {
    keys::names::<Peer>()
}

/// A configuration file. It contains the private key and needs the same protection.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Config {
    /// The `[Interface]` section, or several: wg-quick merges them.
    pub interface: Interface,
    /// The `[Peer]` sections, in the order of the file.
    pub peers: Vec<Peer>,
    /// Prefixes for which the host gets one route each, instead of one for each allowed IP within. They come from a
    /// network, and never from a file.
    pub pools: Vec<IpNet>,
}

/// The `[Interface]` section.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Interface {
    /// `PrivateKey`. [`parse`] requires it, unless a hook sets a key.
    pub private_key: Option<StaticSecret>,
    /// `ListenPort`. Without it the system chooses a port.
    pub listen_port: Option<u16>,
    /// Further ports of `ListenPort`. Several ports are RustGuard's own extension.
    pub more_listen_ports: Vec<u16>,
    /// `ListenAddress`: the addresses of this host at which the tunnel listens, at most one of each IP version.
    /// Without it the tunnel listens at all addresses. RustGuard's own key.
    pub listen_addresses: Vec<IpAddr>,
    /// `FwMark`: the mark of the encrypted packets. 0 (`off`) means no mark.
    pub fwmark: Option<u32>,
    /// `Address`, with host bits.
    pub addresses: Vec<IpNet>,
    /// The name servers in `DNS`.
    pub dns: Vec<NameServer>,
    /// The search domains in `DNS`, and with their `~` the domains that limit the names for which the servers are
    /// asked.
    pub dns_search: Vec<String>,
    /// `MTU`, in bytes.
    pub mtu: Option<u16>,
    /// `Table`.
    pub table: Table,
    /// `PreUp` commands.
    pub pre_up: Vec<String>,
    /// `PostUp` commands.
    pub post_up: Vec<String>,
    /// `PreDown` commands.
    pub pre_down: Vec<String>,
    /// `PostDown` commands.
    pub post_down: Vec<String>,
    /// `Routing`: the protocol that decides where packets go. This key and the next six are RustGuard's own.
    pub routing: Routing,
    /// `Announce`: prefixes that this node announces besides its addresses. A member of a network announces them to
    /// the network.
    pub announce: Vec<IpNet>,
    /// `Redistribute`: routes of the kernel that this node also announces.
    pub redistribute: Vec<Redistribute>,
    /// `Pin`: prefixes that only one router may announce.
    pub pins: Vec<Pin>,
    /// `SourceCheck`: whether a router's packet is accepted if the router has not announced its source address.
    pub source_check: SourceCheck,
    /// `NodeName`: the name that other nodes see.
    pub node_name: NodeName,
    /// `Forward`: whether this node passes sealed datagrams on between its peers. `None` means no. RustGuard's own
    /// key, as the next five.
    pub forward: Option<bool>,
    /// `Standby`: whether this further server keeps the state of the server that admits machines, so that it can take
    /// its place. `None` means no.
    pub standby: Option<bool>,
    /// `PublicEndpoint`: endpoints of this node from outside, for peers with direct paths; at most
    /// [`MAX_PUBLIC_ENDPOINTS`](rustguard_device::MAX_PUBLIC_ENDPOINTS).
    pub public_endpoints: Vec<EndpointSpec>,
    /// `PortMapping`: whether the router may be asked to pass the UDP port on. `None` means yes.
    pub port_mapping: Option<bool>,
    /// `Nat`: packets from the tunnel to the networks of `Announce` get an address of this machine, and this machine
    /// forwards. `None` means no.
    pub nat: Option<bool>,
    /// `HandshakeOnUp`: whether a handshake starts at once with each peer that has an endpoint. `None` means yes, but
    /// no for a member of a network.
    pub handshake_on_up: Option<bool>,
    /// `Network`: the key of the network that this machine is a member of. Its peers then come from the network's
    /// roster as well. RustGuard's own key, as the next one.
    pub network: Option<NetworkKey>,
    /// `Accept`: the settings that the network may make on this machine.
    pub accept: Accept,
    /// `SaveConfig`: write the device's state back to the file when the tunnel stops.
    pub save_config: bool,
}

/// The value of `Routing`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Routing {
    /// Packets go to the peer with the longest matching allowed IP, as in WireGuard.
    #[default]
    Static,
    /// As [`Static`](Self::Static), but several peers may have the same prefix. The peer with the shortest round trip
    /// gets its packets.
    Members,
    /// Babel (RFC 8966) finds the routes. The allowed IPs limit the addresses of each peer.
    Babel,
}

/// The value of `Accept`: the settings that a network may make on this machine beyond its peers and their addresses.
/// Everything is off by default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Accept {
    /// `dns`: its name servers may answer for every name. Name servers for their own domains are accepted without it.
    pub dns: bool,
    /// `default-route`: a member may carry all traffic of this machine.
    pub default_route: bool,
    /// `routes`: prefixes behind members are accepted if they overlap no network of this machine.
    pub routes: bool,
    /// Prefixes behind members that are accepted even if they overlap a network of this machine.
    pub prefixes: Vec<IpNet>,
}

impl fmt::Display for Routing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Static => "static",
            Self::Members => "members",
            Self::Babel => "babel",
        })
    }
}

impl Routing {
    /// The routing of a member of a network, if the file does not set it. Several members may announce the same prefix.
    /// A member that forwards is a server of the network, and servers exchange by Babel which members they reach.
    pub const fn of_member(forwards: bool) -> Self {
        if forwards { Self::Babel } else { Self::Members }
    }

    /// Whether several peers may have the same prefix.
    pub const fn shares_prefixes(self) -> bool {
        matches!(self, Self::Members | Self::Babel)
    }

    /// Whether a protocol learns the routes. Without one, allowed IPs are the routes.
    pub const fn learns(self) -> bool {
        matches!(self, Self::Babel)
    }
}

/// The value of `NodeName`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum NodeName {
    /// The first label of the host's name, if it is a valid node name.
    #[default]
    Host,
    /// No name.
    Off,
    /// This name.
    Is(String),
}

/// The value of `Network`: the key that signs the list of a network's members. Its text is base64, like WireGuard's
/// keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NetworkKey(pub [u8; 32]);

impl fmt::Display for NetworkKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&to_base64(&self.0))
    }
}

/// A `Pin`: announcements of this prefix, and of all prefixes within it, are accepted only from the router with this
/// key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Pin {
    /// The prefix.
    pub prefix: IpNet,
    /// The router's public key.
    pub key: PublicKey,
}

/// A `[Peer]` section.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Peer {
    /// The name in the comment, if there is one.
    pub name: Option<String>,
    /// `PublicKey`.
    pub public_key: PublicKey,
    /// `PresharedKey`. All zeros in a file become `None`, because WireGuard treats them as no key.
    pub preshared_key: Option<PresharedKey>,
    /// `Endpoint`. Several endpoints, and their options, are RustGuard's own.
    pub endpoints: Vec<PathSpec>,
    /// `AllowedIPs`, without host bits.
    pub allowed_ips: Vec<IpNet>,
    /// `PersistentKeepalive`, in whole seconds; `None` is `off`.
    pub persistent_keepalive: Option<Duration>,
    /// `Direct`: whether direct paths to the peer are searched for. `None`: only if it has an endpoint through a peer.
    /// RustGuard's own key.
    pub direct: Option<bool>,
    /// `Parity`: bytes of data for one byte of parity, from 2 to 20; `None` is `off`. RustGuard's own key.
    pub parity: Option<u8>,
    /// `Role`: the peer's role in Babel. RustGuard's own key.
    pub role: Option<Role>,
}

impl Config {
    /// This machine as a gateway: the networks of `Announce`, and the known addresses of the machines that reach them,
    /// which are the allowed IPs of the peers without default routes. `None` without such a network.
    pub fn gateway(&self) -> Option<Gateway> {
        let Interface { addresses, announce, .. } = &self.interface;
        let theirs = self.peers.iter().flat_map(|peer| &peer.allowed_ips).filter(|net| net.prefix_len() > 0);
        let all: Vec<_> = addresses.iter().chain(theirs).map(IpNet::trunc).collect();
        (!announce.is_empty()).then(|| Gateway { pools: IpNet::aggregate(&all), networks: announce.clone() })
    }

    /// A configuration with these two parts.
    pub fn new(interface: Interface, peers: Vec<Peer>) -> Self {
        Self { interface, peers, pools: Vec::new() }
    }

    /// The configuration of a running device, as far as the device knows it.
    pub fn of_device(status: &Status, secrets: &Secrets) -> Self {
        let mut config = Self::default();
        config.interface.private_key = secrets.private_key().cloned();
        config.interface.listen_port = Some(status.listen_port);
        config.interface.more_listen_ports.clone_from(&status.more_listen_ports);
        config.interface.fwmark = (status.fwmark != 0).then_some(status.fwmark);
        config.interface.forward = Some(status.forward);
        config.peers = status.peers.iter().map(|peer| Peer::of_device(peer, secrets)).collect();
        config
    }

    /// This configuration, updated from the [running device](Self::of_device): keys, port, mark and peers come from the
    /// device. Names, addresses, DNS, MTU, table and hooks stay, because the device does not know them. An endpoint's
    /// host name stays too, because the user wrote the name and not the address that it resolved to. Several endpoints
    /// also stay. The peers of a member of a network stay as they are, because the device's peers come from the roster.
    #[must_use]
    pub fn with_device(&self, device: Self) -> Self {
        let before: HashMap<_, _> = self.peers.iter().map(|peer| (peer.public_key, peer)).collect();
        let mut config = self.clone();
        config.interface.private_key = device.interface.private_key;
        config.interface.listen_port = device.interface.listen_port;
        config.interface.more_listen_ports = device.interface.more_listen_ports;
        config.interface.fwmark = device.interface.fwmark;
        // A missing line says the same as `off`.
        if device.interface.forward.is_some_and(|forward| forward != self.interface.forward.unwrap_or(false)) {
            config.interface.forward = device.interface.forward;
        }
        if self.interface.network.is_some() {
            return config;
        }
        let peers = device.peers.into_iter();
        config.peers = peers
            .map(|peer| match before.get(&peer.public_key) {
                Some(before) => before.with_device(peer),
                None => peer,
            })
            .collect();
        config
    }

    /// The destinations of the host's routes into the tunnel: the pools, and the allowed IPs outside of them.
    pub fn routes(&self) -> Vec<IpNet> {
        let outside = |net: &&IpNet| !self.pools.iter().any(|pool| pool.contains(&net.trunc()));
        let allowed = self.peers.iter().flat_map(|peer| &peer.allowed_ips);
        self.pools.iter().chain(allowed.filter(outside)).copied().collect()
    }

    /// Whether handshakes begin at once with all peers that have an endpoint. A network may have thousands of peers,
    /// and most of them have no traffic.
    pub(crate) fn greets(&self) -> bool {
        self.interface.handshake_on_up.unwrap_or(self.interface.network.is_none())
    }

    /// Whether datagrams to a peer may travel through another peer: an endpoint says so, or direct paths are searched
    /// for. The tunnel then needs a smaller [MTU](crate::host::mtu_for_path).
    pub fn leads_through_peers(&self) -> bool {
        self.peers.iter().any(|peer| peer.direct == Some(true) || peer.leads_through_peers())
    }

    /// Whether peers may have default routes of IPv4 and of IPv6.
    pub(crate) fn defaults(&self) -> [bool; 2] {
        let nets = || self.peers.iter().flat_map(|peer| &peer.allowed_ips).filter(|net| net.prefix_len() == 0);
        [nets().any(|net| matches!(net, IpNet::V4(_))), nets().any(|net| matches!(net, IpNet::V6(_)))]
    }

    /// Whether a peer may have a default route.
    pub(crate) fn has_default(&self) -> bool {
        self.defaults().contains(&true)
    }

    /// Applies a change that is meant for a running device.
    pub fn apply(&mut self, update: &Update) {
        match &update.private_key {
            Change::Keep => {}
            Change::Set(key) => self.interface.private_key = Some(key.clone()),
            Change::Remove => self.interface.private_key = None,
        }
        if update.listen_port.is_some_and(|port| self.interface.listen_port != Some(port)) {
            self.interface.listen_port = update.listen_port;
            self.interface.more_listen_ports.clear();
        }
        self.interface.fwmark = match update.fwmark {
            Some(mark) => Some(mark).filter(|mark| *mark != 0),
            None => self.interface.fwmark,
        };
        if let Some(announce) = &update.announce {
            self.interface.announce.clone_from(announce);
        }
        if update.forward.is_some() {
            self.interface.forward = update.forward;
        }
        if let Some(endpoints) = &update.public_endpoints {
            self.interface.public_endpoints.clone_from(endpoints);
        }
        if update.port_mapping.is_some() {
            self.interface.port_mapping = update.port_mapping;
        }
        if update.replace_peers {
            self.peers.clear();
        }
        for change in &update.peers {
            self.apply_peer(change);
        }
    }

    fn apply_peer(&mut self, change: &PeerUpdate) {
        let at = self.peers.iter().position(|peer| peer.public_key == change.public_key);
        if change.remove {
            at.map(|at| self.peers.remove(at));
            return;
        }
        let at = match at {
            None if change.update_only => return,
            None => {
                self.peers.push(Peer::new(change.public_key));
                self.peers.len() - 1
            }
            Some(at) => at,
        };
        let peer = &mut self.peers[at];
        if change.replace_allowed_ips {
            peer.allowed_ips.clear();
        }
        if change.name.is_some() {
            peer.name.clone_from(&change.name);
        }
        if change.role.is_some() {
            peer.role = change.role;
        }
        if change.direct.is_some() {
            peer.direct = change.direct;
        }
        match change.parity {
            Change::Keep => {}
            Change::Set(size) => peer.parity = Some(size),
            Change::Remove => peer.parity = None,
        }
        if !change.endpoints.is_empty() {
            peer.endpoints.clone_from(&change.endpoints);
        }
        match &change.preshared_key {
            Change::Keep => {}
            Change::Set(key) => peer.preshared_key = Some(key.clone()).filter(|key| !key.is_zero()),
            Change::Remove => peer.preshared_key = None,
        }
        match change.persistent_keepalive {
            Change::Keep => {}
            Change::Set(interval) => peer.persistent_keepalive = Some(interval),
            Change::Remove => peer.persistent_keepalive = None,
        }
        for change in &change.allowed_ips {
            let (AllowedIpChange::Add(net) | AllowedIpChange::Remove(net)) = change else { continue };
            let net = net.trunc();
            let added = matches!(change, AllowedIpChange::Add(_));
            // Without a routing engine, a prefix has one peer.
            let others = added && !self.interface.routing.shares_prefixes();
            for (index, peer) in self.peers.iter_mut().enumerate() {
                if index == at || others {
                    peer.allowed_ips.retain(|other| *other != net);
                }
            }
            if added {
                self.peers[at].allowed_ips.push(net);
            }
        }
    }
}

impl Interface {
    /// The public key of the private one.
    pub(crate) fn public_key(&self) -> Option<PublicKey> {
        self.private_key.as_ref().map(StaticSecret::public_key)
    }
}

impl Pin {
    /// Only the router with this public key may announce the prefix and all prefixes within it.
    pub fn new(prefix: IpNet, key: PublicKey) -> Self {
        Self { prefix, key }
    }
}

impl Accept {
    /// The entries, as they are written in a file.
    pub fn words(&self) -> impl Iterator<Item = String> {
        let words = [(self.dns, "dns"), (self.default_route, "default-route"), (self.routes, "routes")];
        let words = words.into_iter().filter(|(on, _)| *on).map(|(_, word)| word.to_owned());
        words.chain(self.prefixes.iter().map(ToString::to_string))
    }
}

impl Peer {
    /// A peer with this key and no other settings. Set the fields to add more.
    pub fn new(public_key: PublicKey) -> Self {
        Self {
            name: None,
            public_key,
            preshared_key: None,
            endpoints: Vec::new(),
            allowed_ips: Vec::new(),
            persistent_keepalive: None,
            direct: None,
            parity: None,
            role: None,
        }
    }

    fn of_device(status: &PeerStatus, secrets: &Secrets) -> Self {
        Self {
            name: status.name.clone(),
            preshared_key: secrets.preshared_key(&status.public_key).cloned(),
            endpoints: status.endpoint.map(PathSpec::from).into_iter().collect(),
            allowed_ips: status.allowed_ips.clone(),
            persistent_keepalive: status.persistent_keepalive,
            parity: status.parity.map(|parity| parity.size),
            ..Self::new(status.public_key)
        }
    }

    /// Whether an endpoint leads through a peer.
    pub fn leads_through_peers(&self) -> bool {
        self.endpoints.iter().any(|path| matches!(path.endpoint, EndpointSpec::Peer(_)))
    }

    /// Whether direct paths are searched for. Without `Direct`, the endpoints decide.
    pub(crate) fn looks_for_direct_paths(&self) -> bool {
        self.direct.unwrap_or_else(|| self.leads_through_peers())
    }

    /// See [`Config::with_device`].
    fn with_device(&self, device: Self) -> Self {
        // One plain address is the peer's endpoint when the file was written. The peer may have moved since.
        let plain = match &self.endpoints[..] {
            [] => true,
            [one] => {
                matches!(one.endpoint, EndpointSpec::Address(_)) && one.via.is_none() && one.policy == PathPolicy::Best
            }
            _ => false,
        };
        Self {
            name: device.name.or_else(|| self.name.clone()),
            endpoints: if plain { device.endpoints } else { self.endpoints.clone() },
            direct: self.direct,
            role: self.role,
            ..device
        }
    }

    /// The update that gives the device's peer exactly these settings, and replaces all earlier ones.
    pub fn to_update(&self) -> PeerUpdate {
        // A missing key or interval in the file removes it from the peer.
        let mut update = PeerUpdate::new(self.public_key)
            .preshared_key(Change::set_or_remove(self.preshared_key.clone()))
            .endpoints(self.endpoints.iter().cloned())
            .persistent_keepalive(Change::set_or_remove(self.persistent_keepalive))
            .parity(Change::set_or_remove(self.parity))
            .replace_allowed_ips(self.allowed_ips.iter().copied());
        update.name.clone_from(&self.name);
        update.role = self.role;
        update.direct = self.direct;
        update
    }
}
