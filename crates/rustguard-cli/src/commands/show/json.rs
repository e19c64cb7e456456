//! The state of interfaces for programs. Numbers are JSON numbers, missing values are `null`, and times are Unix times.

use super::{Device, Peer, to_base64};
use crate::output::way;
use rustguard_device::uapi::{
    ConnectionView, NotDirectView, ParityView, PathMtuView, PathView, PathWord, PolicyView, ProblemView, RefusalView,
    UnresolvedView,
};
use serde::Serialize;
use std::{
    collections::BTreeMap,
    io::{self, Write},
    net::IpAddr,
};
use zeroize::Zeroizing;

#[derive(Serialize)]
pub(in crate::commands) struct JsonDevice<'a> {
    interface: &'a str,
    public_key: Option<Zeroizing<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    private_key: Option<Zeroizing<String>>,
    listen_port: u16,
    /// All ports, where there are several.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    listen_ports: Vec<u16>,
    /// The addresses at which the device listens. Without this field it listens at all of them.
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    listen_addresses: &'a [IpAddr],
    fwmark: Option<u32>,
    /// Whether RustGuard relays packets from peer to peer: `on`, `off`, `isolated`, `rules` (netfilter has rules for
    /// forwarded packets), or `unknown`.
    relay: Option<&'a str>,
    /// The rules, for `rules`.
    relay_rules: Option<&'a str>,
    /// The number of relayed packets.
    relayed: u64,
    /// The number of sealed datagrams that were forwarded from peer to peer. Missing where forwarding is off.
    #[serde(skip_serializing_if = "Option::is_none")]
    forwarded: Option<u64>,
    /// The number of accepted packets with a source that the sending router does not announce.
    unannounced: u64,
    /// The policy that this interface enforces, and what it has refused. Missing without one.
    #[serde(skip_serializing_if = "Option::is_none")]
    policy: Option<JsonPolicy<'a>>,
    /// The number of dropped packets, by reason: those whose peer is known, and the others.
    dropped: BTreeMap<&'a str, u64>,
    /// The counters of enrolment.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    enrolment: BTreeMap<&'a str, u64>,
    peers: Vec<JsonPeer<'a>>,
}

/// A policy, and what it has refused, with the same labels as for people.
#[derive(Serialize)]
struct JsonPolicy<'a> {
    rules: usize,
    connections: usize,
    capacity: usize,
    refused: u64,
    refusals: Vec<JsonRefusal<'a>>,
}

#[derive(Serialize)]
struct JsonRefusal<'a> {
    /// The name of the peer.
    name: Option<&'a str>,
    /// The protocol and the port, as a policy writes them.
    traffic: String,
    /// The reason, in words.
    why: &'a str,
    #[serde(flatten)]
    refusal: &'a RefusalView,
}

#[derive(Serialize)]
struct JsonPeer<'a> {
    name: Option<&'a str>,
    public_key: Zeroizing<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    preshared_key: Option<Zeroizing<String>>,
    endpoint: Option<&'a str>,
    /// The public key of the relay through which the peer is reached.
    #[serde(skip_serializing_if = "Option::is_none")]
    through: Option<Zeroizing<String>>,
    /// The name of the endpoint, while it has no address.
    #[serde(skip_serializing_if = "Option::is_none")]
    unresolved: Option<&'a UnresolvedView>,
    /// `direct`, `through` or `transport`; `null` while nobody knows where the peer is.
    way: Option<&'static str>,
    /// Why the peer is not reached directly. Missing where it is, and where direct ways are not looked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    not_direct: Option<&'a NotDirectView>,
    /// The round trip of the way in use, in microseconds. Missing where this side does not probe it.
    #[serde(skip_serializing_if = "Option::is_none")]
    round_trip_us: Option<u64>,
    /// The paths, if the peer has several.
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    paths: &'a [PathView],
    /// Whether the peer can be talked to; `null` if the implementation does not report it.
    connection: Option<&'a ConnectionView>,
    /// What is wrong with the connection, and the likely cause.
    problem: Option<&'a ProblemView>,
    allowed_ips: Vec<String>,
    latest_handshake: Option<u64>,
    rx_bytes: u64,
    tx_bytes: u64,
    /// In seconds.
    persistent_keepalive: Option<u16>,
    /// The longest packet that reaches the peer. Missing while that is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    path_mtu: Option<PathMtuView>,
    /// The parities that are sent and taken. Missing where none are configured.
    #[serde(skip_serializing_if = "Option::is_none")]
    parity: Option<ParityView>,
    /// The lanes by which several threads send to the peer. Missing while all that is sent leaves by one port.
    #[serde(skip_serializing_if = "Option::is_none")]
    lanes: Option<u8>,
    /// The number of dropped packets from and to the peer, by reason. The counters of the device include these.
    dropped: BTreeMap<&'a str, u64>,
}

/// Prints an array of interfaces. Without `secrets`, private and preshared keys are left out.
pub(super) fn print(out: &mut impl Write, devices: &[(String, Device)], secrets: bool) -> io::Result<()> {
    let devices: Vec<_> = devices.iter().map(|(name, device)| self::device(name, device, secrets)).collect();
    serde_json::to_writer_pretty(&mut *out, &devices)?;
    writeln!(out)
}

/// An interface. Without `secrets`, private and preshared keys are left out.
pub(in crate::commands) fn device<'a>(interface: &'a str, device: &'a Device, secrets: bool) -> JsonDevice<'a> {
    let shown = |key: &Option<Zeroizing<[u8; 32]>>| key.as_ref().filter(|_| secrets).map(|key| to_base64(key));
    let peers = device.peers.iter().map(|peer| JsonPeer {
        name: peer.name.as_deref(),
        public_key: to_base64(&peer.public_key.0),
        preshared_key: shown(&peer.preshared_key),
        endpoint: peer.endpoint.as_deref(),
        through: peer.through.map(|relay| to_base64(&relay.0)),
        unresolved: peer.unresolved.as_ref(),
        way: match (&peer.through, peer.endpoint.as_deref()) {
            (Some(_), _) => Some("through"),
            (None, Some(endpoint)) if way::transport(endpoint).is_some() => Some("transport"),
            (None, endpoint) => endpoint.map(|_| "direct"),
        },
        not_direct: peer.not_direct.as_ref(),
        round_trip_us: peer
            .paths
            .iter()
            .find(|path| path.active && path.state == PathWord::Up)
            .and_then(|path| path.round_trip_us),
        paths: &peer.paths,
        connection: peer.connection.as_ref(),
        problem: peer.problem.as_ref(),
        allowed_ips: peer.allowed_ips.iter().map(ToString::to_string).collect(),
        latest_handshake: Some(peer.last_handshake.as_secs()).filter(|&seconds| seconds > 0),
        rx_bytes: peer.rx_bytes,
        tx_bytes: peer.tx_bytes,
        persistent_keepalive: Some(peer.persistent_keepalive).filter(|&seconds| seconds > 0),
        path_mtu: peer.path_mtu,
        parity: peer.parity,
        lanes: Some(peer.lanes).filter(|&lanes| lanes > 0),
        dropped: by_reason(&peer.drops),
    });
    JsonDevice {
        interface,
        public_key: device.public_key().map(|key| to_base64(&key.0)),
        private_key: shown(&device.private_key),
        listen_port: device.listen_port,
        listen_ports: if device.more_listen_ports.is_empty() { Vec::new() } else { device.listen_ports().collect() },
        listen_addresses: &device.listen_addresses,
        fwmark: Some(device.fwmark).filter(|&mark| mark > 0),
        relay: device.relay.as_deref(),
        relay_rules: device.relay_rules.as_deref(),
        relayed: device.relayed,
        forwarded: device.forwarded,
        unannounced: device.unannounced,
        policy: device.policy.as_ref().map(|policy| self::policy(policy, &device.peers)),
        dropped: by_reason(&device.drops),
        enrolment: device.counters.iter().map(|(name, count)| (name.as_str(), *count)).collect(),
        peers: peers.collect(),
    }
}

fn policy<'a>(policy: &'a PolicyView, peers: &'a [Peer]) -> JsonPolicy<'a> {
    let &PolicyView { rules, connections, capacity, refused, .. } = policy;
    let refusal = |refusal: &'a RefusalView| JsonRefusal {
        name: way::named(&refusal.peer, peers),
        traffic: refusal.traffic(),
        why: refusal.why(),
        refusal,
    };
    JsonPolicy { rules, connections, capacity, refused, refusals: policy.refusals.iter().map(refusal).collect() }
}

fn by_reason(drops: &[(String, u64)]) -> BTreeMap<&str, u64> {
    drops.iter().map(|(reason, count)| (reason.as_str(), *count)).collect()
}
