//! wg-quick's configuration files: read with every mistake reported at its place, and written again for `SaveConfig`.
//!
//! [`parse`] never stops at the first mistake. It returns the configuration when there is no error, and in any case every
//! [`Diagnostic`], each with the span of the text it is about. What is accepted is what wg-quick(8) and wg(8) accept, and
//! on top of it a name for a peer, in a comment that both of them skip:
//!
//! ```text
//! # Name = laptop
//! [Peer]
//! PublicKey = …
//! ```

mod diagnostic;
mod parse;
mod path;
#[cfg(test)]
mod tests;
mod value;
mod write;

pub use crate::host::Table;
pub use diagnostic::{Diagnostic, Severity, Span};
use ipnet::IpNet;
pub use parse::{parse, redact};
pub use path::{NameError, readable_by_others, resolve_name, writable_by_others};
use rustguard_core::{paths::PathPolicy, routing::Role};
use rustguard_crypto::x25519::{PublicKey, StaticSecret};
pub use rustguard_device::kernel::Redistribute;
use rustguard_device::{
    Change, EndpointSpec, PathSpec, PeerStatus, PeerUpdate, PresharedKey, Secrets, SourceCheck, Status,
};
use std::{net::IpAddr, time::Duration};
pub use write::{to_text, write, write_with_comment};

/// A configuration file. Holds the private key: handle it as such.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Config {
    /// The `[Interface]` section, or sections: wg-quick merges them.
    pub interface: Interface,
    /// The `[Peer]` sections, in the order of the file.
    pub peers: Vec<Peer>,
}

/// What `[Interface]` says.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Interface {
    /// `PrivateKey`. [`parse`] insists on it, unless a hook sets one.
    pub private_key: Option<StaticSecret>,
    /// `ListenPort`; without it the system chooses.
    pub listen_port: Option<u16>,
    /// `FwMark`: the mark of the encrypted packets; 0 (`off`) for none.
    pub fwmark: Option<u32>,
    /// `Address`, host bits included.
    pub addresses: Vec<IpNet>,
    /// The addresses among `DNS`.
    pub dns: Vec<IpAddr>,
    /// The search domains among `DNS`.
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
    /// `Routing`: what decides where packets go. This key and the next six are RustGuard's own.
    pub routing: Routing,
    /// `Announce`: prefixes that this node announces besides its addresses.
    pub announce: Vec<IpNet>,
    /// `Redistribute`: the kernel's routes that are announced as well.
    pub redistribute: Vec<Redistribute>,
    /// `Pin`: prefixes that only one router may announce.
    pub pins: Vec<Pin>,
    /// `SourceCheck`: whether a router's packet passes when the router has not announced its source address.
    pub source_check: SourceCheck,
    /// `NodeName`: the name that other nodes see.
    pub node_name: NodeName,
    /// `HandshakeOnUp`: whether a handshake begins at once with each peer that has an endpoint; `None` is yes.
    pub handshake_on_up: Option<bool>,
    /// `SaveConfig`: write the state of the device back into the file on the way down.
    pub save_config: bool,
}

/// What `Routing` says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Routing {
    /// Packets go to the peer with the longest matching allowed IP, as in WireGuard.
    #[default]
    Static,
    /// Babel (RFC 8966) finds the routes; the allowed IPs bound what a peer may carry.
    Babel,
}

/// What `NodeName` says.
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

/// A `Pin`: announcements of this prefix, and of all prefixes within it, are accepted only from the router with this key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Pin {
    /// The prefix.
    pub prefix: IpNet,
    /// The router's public key.
    pub key: PublicKey,
}

/// What one `[Peer]` says.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Peer {
    /// The name in the comment, if there is one.
    pub name: Option<String>,
    /// `PublicKey`.
    pub public_key: PublicKey,
    /// `PresharedKey`; all zeros in a file is `None` here, as WireGuard takes it.
    pub preshared_key: Option<PresharedKey>,
    /// `Endpoint`. More than one is RustGuard's own, and so is what they are for.
    pub endpoints: Vec<PathSpec>,
    /// `AllowedIPs`, without host bits.
    pub allowed_ips: Vec<IpNet>,
    /// `PersistentKeepalive`, in whole seconds; `None` is `off`.
    pub persistent_keepalive: Option<Duration>,
    /// `Role`: what the peer is to Babel. RustGuard's own key.
    pub role: Option<Role>,
}

impl Config {
    /// A configuration of these two parts.
    pub fn new(interface: Interface, peers: Vec<Peer>) -> Self {
        Self { interface, peers }
    }

    /// This configuration with what has become of it: keys, port, mark and peers are those of the running device.
    /// Names, addresses, DNS, MTU, table and hooks are not the device's business and stay, and so do an endpoint's host
    /// name, which is what the file's owner meant by the address it resolved to, and several endpoints.
    #[must_use]
    pub fn with_status(&self, status: &Status, secrets: &Secrets) -> Self {
        let mut config = self.clone();
        config.interface.private_key = secrets.private_key().cloned();
        config.interface.listen_port = Some(status.listen_port);
        config.interface.fwmark = (status.fwmark != 0).then_some(status.fwmark);
        config.peers = status.peers.iter().map(|peer| self.peer_with_status(peer, secrets)).collect();
        config
    }

    fn peer_with_status(&self, status: &PeerStatus, secrets: &Secrets) -> Peer {
        let before = self.peers.iter().find(|peer| peer.public_key == status.public_key);
        // One plain address is where the peer was when the file was written: it may have moved.
        let plain = |peer: &Peer| match &peer.endpoints[..] {
            [] => true,
            [one] => {
                matches!(one.endpoint, EndpointSpec::Address(_)) && one.via.is_none() && one.policy == PathPolicy::Best
            }
            _ => false,
        };
        Peer {
            name: status.name.clone().or_else(|| before?.name.clone()),
            public_key: status.public_key,
            preshared_key: secrets.preshared_key(&status.public_key).cloned(),
            endpoints: match before {
                Some(before) if !plain(before) => before.endpoints.clone(),
                _ => status.endpoint.map(PathSpec::from).into_iter().collect(),
            },
            allowed_ips: status.allowed_ips.clone(),
            persistent_keepalive: status.persistent_keepalive,
            role: before.and_then(|before| before.role),
        }
    }
}

impl Pin {
    /// Only the router with this public key may announce the prefix and all within it.
    pub fn new(prefix: IpNet, key: PublicKey) -> Self {
        Self { prefix, key }
    }
}

impl Peer {
    /// A peer with this key, nothing else said. The fields add the rest.
    pub fn new(public_key: PublicKey) -> Self {
        Self {
            name: None,
            public_key,
            preshared_key: None,
            endpoints: Vec::new(),
            allowed_ips: Vec::new(),
            persistent_keepalive: None,
            role: None,
        }
    }

    /// The change that makes a device's peer what this section says, whatever it was before.
    pub fn to_update(&self) -> PeerUpdate {
        // A file without a key or an interval means a peer without it.
        let mut update = PeerUpdate::new(self.public_key)
            .preshared_key(Change::set_or_remove(self.preshared_key.clone()))
            .endpoints(self.endpoints.iter().cloned())
            .persistent_keepalive(Change::set_or_remove(self.persistent_keepalive))
            .replace_allowed_ips(self.allowed_ips.iter().copied());
        update.name.clone_from(&self.name);
        update.role = self.role;
        update
    }
}
