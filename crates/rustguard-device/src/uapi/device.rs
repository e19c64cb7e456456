//! The state of a device in one form, which the socket returns to `get=rustguard-status` and `show --json` prints.
//! Numbers are JSON numbers, missing values are `null` or left out, and times are Unix times.

use super::{
    connection::{ConnectionView, ProblemView, UnresolvedView},
    form,
    path::{NotDirectView, ParityView, PathMtuView, PathView, PathWord},
    policy::PolicyView,
};
use crate::status::{DropCount, PeerStatus, RelayStatus, Status};
use ipnet::IpNet;
use rustguard_crypto::x25519::PublicKey;
use serde::{Deserialize, Serialize};
use std::{net::IpAddr, time::Duration};
use zeroize::Zeroizing;

/// The version of the form. It grows when a field changes its meaning or is removed. Readers ignore unknown fields.
pub const STATUS_VERSION: u32 = 1;

/// A device.
#[derive(Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct DeviceView {
    /// [`STATUS_VERSION`]; 0 if another program than RustGuard has answered.
    pub version: u32,
    /// The public key; `null` if the device has no private key.
    #[serde(with = "form::optional_key")]
    pub public_key: Option<PublicKey>,
    /// The private key, if a program has read it (by `get=1`) and shows it. It is never read from this form.
    #[serde(serialize_with = "form::secret", skip_deserializing, skip_serializing_if = "Option::is_none")]
    pub private_key: Option<Zeroizing<[u8; 32]>>,
    /// The UDP port.
    pub listen_port: u16,
    /// All UDP ports, if there are several.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub listen_ports: Vec<u16>,
    /// The addresses at which the device listens. Without this field it listens at all of them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub listen_addresses: Vec<IpAddr>,
    /// The firewall mark; `null` for none.
    #[serde(with = "form::or_null")]
    pub fwmark: u32,
    /// Whether RustGuard relays packets from peer to peer: `on`, `off`, `isolated`, `rules` (netfilter has rules for
    /// forwarded packets), or `unknown`. `null` from other implementations.
    pub relay: Option<String>,
    /// The rules, for `rules`.
    pub relay_rules: Option<String>,
    /// The number of packets relayed from peer to peer.
    pub relayed: u64,
    /// The number of sealed datagrams that were forwarded from peer to peer. Missing if forwarding is off.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub forwarded: Option<u64>,
    /// The number of accepted packets with a source that the sending router does not announce.
    pub unannounced: u64,
    /// The policy that the device enforces, and the packets that it has refused. Missing without a policy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy: Option<PolicyView>,
    /// The number of dropped packets, by reason, with and without a known peer.
    #[serde(rename = "dropped", with = "form::counts")]
    pub drops: Vec<(String, u64)>,
    /// The embedder's counters. RustGuard's own program has counters of enrolment.
    #[serde(rename = "enrolment", with = "form::counts", skip_serializing_if = "Vec::is_empty")]
    pub counters: Vec<(String, u64)>,
    /// The peers, in the order in which they were added.
    pub peers: Vec<PeerView>,
}

/// A peer of a device.
#[derive(Clone, Serialize, Deserialize)]
#[serde(default)]
pub struct PeerView {
    /// The peer's name, if it has one.
    pub name: Option<String>,
    /// Its public key.
    #[serde(with = "form::key")]
    pub public_key: PublicKey,
    /// Whether there is a preshared key.
    pub has_preshared_key: bool,
    /// The preshared key, under the same conditions as the private key.
    #[serde(serialize_with = "form::secret", skip_deserializing, skip_serializing_if = "Option::is_none")]
    pub preshared_key: Option<Zeroizing<[u8; 32]>>,
    /// Its address and port, as text from the device: an address may have a zone with a name, which the standard
    /// library's type cannot hold.
    pub endpoint: Option<String>,
    /// The public key of the relay through which the peer is reached.
    #[serde(with = "form::optional_key", skip_serializing_if = "Option::is_none")]
    pub through: Option<PublicKey>,
    /// The name of the endpoint, while it has no address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unresolved: Option<UnresolvedView>,
    /// `direct`, `through` or `transport`; `null` while the peer's address is unknown.
    pub way: Option<String>,
    /// Why the peer is not reached directly. Missing if it is, or if direct ways are not looked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub not_direct: Option<NotDirectView>,
    /// The round trip of the way in use, in microseconds. Missing if this side does not probe it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub round_trip_us: Option<u64>,
    /// The paths, if the peer has several.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub paths: Vec<PathView>,
    /// Whether the peer can be reached; `null` if the implementation does not report it.
    pub connection: Option<ConnectionView>,
    /// The problem of the connection, with the likely cause.
    pub problem: Option<ProblemView>,
    /// The peer's allowed IPs.
    pub allowed_ips: Vec<IpNet>,
    /// When the last handshake completed, as the time since the Unix epoch; zero, and `null` in JSON, for never.
    #[serde(rename = "latest_handshake", with = "form::seconds_or_null")]
    pub last_handshake: Duration,
    /// Bytes received in UDP payloads.
    pub rx_bytes: u64,
    /// Bytes sent in UDP payloads.
    pub tx_bytes: u64,
    /// The interval of persistent keepalives in seconds; zero, and `null` in JSON, for off.
    #[serde(with = "form::or_null")]
    pub persistent_keepalive: u16,
    /// The longest packet that reaches the peer. Missing while that is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path_mtu: Option<PathMtuView>,
    /// The parities that are sent and accepted. Missing if none are configured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parity: Option<ParityView>,
    /// The number of lanes by which several threads send to the peer. Missing while all datagrams leave from one port.
    #[serde(skip_serializing_if = "form::is_zero")]
    pub lanes: u8,
    /// The number of dropped packets from and to the peer, by reason. The counters of the device include these.
    #[serde(rename = "dropped", with = "form::counts")]
    pub drops: Vec<(String, u64)>,
}

/// The state of a device, without secrets.
impl From<&Status> for DeviceView {
    fn from(status: &Status) -> Self {
        let mut policy = status.policy.as_ref().map(PolicyView::from);
        let views = policy.iter_mut().flat_map(|policy| &mut policy.refusals);
        for (view, refusal) in views.zip(status.policy.iter().flat_map(|policy| &policy.refusals)) {
            let named = status.peers.iter().find(|peer| peer.public_key == refusal.peer);
            view.name = named.and_then(|peer| peer.name.clone());
        }
        Self {
            version: STATUS_VERSION,
            public_key: status.public_key,
            private_key: None,
            listen_port: status.listen_port,
            listen_ports: match &*status.more_listen_ports {
                [] => Vec::new(),
                more => std::iter::once(status.listen_port).chain(more.iter().copied()).collect(),
            },
            listen_addresses: status.listen_addresses.clone(),
            fwmark: status.fwmark,
            relay: Some(status.relaying.word().to_owned()),
            relay_rules: match &status.relaying {
                RelayStatus::Rules(rules) => Some(rules.clone()),
                _ => None,
            },
            relayed: status.relayed,
            forwarded: status.forward.then_some(status.forwarded),
            unannounced: status.unannounced,
            policy,
            drops: counts(&status.drops),
            counters: status.counters.iter().map(|counter| (counter.name.to_owned(), counter.value)).collect(),
            peers: status.peers.iter().map(PeerView::from).collect(),
        }
    }
}

impl DeviceView {
    /// All UDP ports.
    pub fn all_listen_ports(&self) -> impl Iterator<Item = u16> {
        let others = self.listen_ports.iter().copied().filter(|port| *port != self.listen_port);
        std::iter::once(self.listen_port).chain(others)
    }

    /// Whether RustGuard has answered, not another implementation.
    pub fn is_rustguard(&self) -> bool {
        self.version > 0
    }

    /// Removes the secret keys, which only the owner may see.
    pub fn without_secrets(mut self) -> Self {
        self.private_key = None;
        self.peers.iter_mut().for_each(|peer| peer.preshared_key = None);
        self
    }
}

impl PeerView {
    /// A peer with a public key and nothing else.
    pub fn new(public_key: PublicKey) -> Self {
        Self {
            name: None,
            public_key,
            has_preshared_key: false,
            preshared_key: None,
            endpoint: None,
            through: None,
            unresolved: None,
            way: None,
            not_direct: None,
            round_trip_us: None,
            paths: Vec::new(),
            connection: None,
            problem: None,
            allowed_ips: Vec::new(),
            last_handshake: Duration::ZERO,
            rx_bytes: 0,
            tx_bytes: 0,
            persistent_keepalive: 0,
            path_mtu: None,
            parity: None,
            lanes: 0,
            drops: Vec::new(),
        }
    }
}

/// The state of a peer, without its preshared key.
impl From<&PeerStatus> for PeerView {
    fn from(peer: &PeerStatus) -> Self {
        let paths: Vec<_> = peer.paths.iter().map(PathView::from).collect();
        let keepalive = peer.persistent_keepalive.map_or(0, |interval| interval.as_secs());
        Self {
            name: peer.name.clone(),
            public_key: peer.public_key,
            has_preshared_key: peer.has_preshared_key,
            preshared_key: None,
            endpoint: peer.endpoint.map(|endpoint| endpoint.to_string()),
            through: peer.through,
            unresolved: peer.unresolved.as_ref().map(UnresolvedView::from),
            way: peer.way().map(|way| way.word().to_owned()),
            not_direct: peer.not_direct.map(NotDirectView::from),
            round_trip_us: paths
                .iter()
                .find(|path| path.active && path.state == PathWord::Up)
                .and_then(|path| path.round_trip_us),
            paths,
            connection: Some(ConnectionView::from(&peer.connection)),
            problem: peer.problem.as_ref().map(ProblemView::from),
            allowed_ips: peer.allowed_ips.clone(),
            last_handshake: peer.last_handshake.unwrap_or_default(),
            rx_bytes: peer.rx_bytes,
            tx_bytes: peer.tx_bytes,
            persistent_keepalive: u16::try_from(keepalive).unwrap_or(u16::MAX),
            path_mtu: peer.path_mtu.as_ref().map(PathMtuView::from),
            parity: peer.parity.as_ref().map(ParityView::from),
            lanes: peer.lanes,
            drops: counts(&peer.drops),
        }
    }
}

/// A peer without a key, as the initial value for a reader.
impl Default for PeerView {
    fn default() -> Self {
        Self::new(PublicKey([0; 32]))
    }
}

fn counts(drops: &[DropCount]) -> Vec<(String, u64)> {
    drops.iter().map(|drop| (drop.reason.name().to_owned(), drop.packets)).collect()
}
