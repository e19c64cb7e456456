//! A policy and the packets that it has refused, in the form of the socket and of `show --json`.

use crate::{
    key::to_base64,
    status::{PolicyStatus, Refusal},
};
use serde::{Deserialize, Serialize};
use std::net::IpAddr;

/// The policy of a device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PolicyView {
    /// The number of rules.
    pub rules: usize,
    /// The number of known connections.
    pub connections: usize,
    /// The most connections that can be known.
    pub capacity: usize,
    /// The number of packets that were refused since the start.
    pub refused: u64,
    /// The last refused packets, latest first.
    #[serde(default)]
    pub refusals: Vec<RefusalView>,
}

/// Packets of a peer that the policy has refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefusalView {
    /// The name of the peer, if it has one.
    #[serde(default)]
    pub name: Option<String>,
    /// The traffic, in the notation of a policy if possible: `tcp/22`, `icmp`.
    #[serde(default)]
    pub traffic: String,
    /// The reason, in words for people.
    #[serde(default)]
    pub why: String,
    /// When the last packet came, in seconds since the Unix epoch.
    pub at: u64,
    /// The public key of the peer.
    pub peer: String,
    /// The source.
    pub from: IpAddr,
    /// The destination.
    pub to: IpAddr,
    /// The protocol by its number in the IP header; 0 if it is not known.
    pub protocol: u8,
    /// The destination port; `null` if there is none.
    pub port: Option<u16>,
    /// The number of these packets.
    pub packets: u64,
    /// The reason in one word: `not-allowed`, or the defect of the packet.
    pub reason: String,
}

impl From<&PolicyStatus> for PolicyView {
    fn from(status: &PolicyStatus) -> Self {
        let &PolicyStatus { rules, connections, capacity, refused, ref refusals } = status;
        Self { rules, connections, capacity, refused, refusals: refusals.iter().map(RefusalView::from).collect() }
    }
}

fn traffic(protocol: u8, port: Option<u16>) -> String {
    match (protocol, port) {
        (1 | 58, _) => "icmp".to_owned(),
        (6, Some(port)) => format!("tcp/{port}"),
        (17, Some(port)) => format!("udp/{port}"),
        // A later fragment.
        (6, None) => "tcp".to_owned(),
        (17, None) => "udp".to_owned(),
        (0, _) => "unknown protocol".to_owned(),
        (protocol, Some(port)) => format!("proto/{protocol} port {port}"),
        (protocol, None) => format!("proto/{protocol}"),
    }
}

fn why(reason: &str) -> &str {
    match reason {
        "not-allowed" => "no line allows it",
        "fragment" => "a fragment without its first one",
        "unknown-flow" => "an ICMP error about no known connection",
        "malformed" => "a malformed header",
        "malformed-fragment" => "a malformed fragment",
        "source-route" => "a source route or a redirect",
        "malformed-error" => "a malformed ICMP error",
        other => other,
    }
}

impl From<&Refusal> for RefusalView {
    fn from(refusal: &Refusal) -> Self {
        let Refusal { at, peer, from, to, protocol, port, packets, reason } = refusal;
        Self {
            name: None,
            traffic: traffic(*protocol, *port),
            why: why(reason).to_owned(),
            at: at.as_secs(),
            peer: to_base64(&peer.0).to_string(),
            from: *from,
            to: *to,
            protocol: *protocol,
            port: *port,
            packets: *packets,
            reason: (*reason).to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn traffic_is_written_as_a_policy_writes_it() {
        let written = [
            (1, None),
            (58, None),
            (6, Some(22)),
            (6, None),
            (17, Some(53)),
            (17, None),
            (0, None),
            (47, None),
            (132, Some(9)),
        ];
        let expected =
            ["icmp", "icmp", "tcp/22", "tcp", "udp/53", "udp", "unknown protocol", "proto/47", "proto/132 port 9"];
        assert_eq!(written.map(|(protocol, port)| traffic(protocol, port)), expected);
        assert_eq!((why("not-allowed"), why("of-a-later-version")), ("no line allows it", "of-a-later-version"));
    }
}
