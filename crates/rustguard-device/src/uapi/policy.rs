//! A policy and what it has refused, in the form of the socket and of `show --json`.

use crate::{
    key::to_base64,
    status::{PolicyStatus, Refusal},
};
use serde::{Deserialize, Serialize};
use std::net::IpAddr;

/// The policy of a device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PolicyView {
    /// How many rules it has.
    pub rules: usize,
    /// How many connections are known.
    pub connections: usize,
    /// How many can be known.
    pub capacity: usize,
    /// How many packets were refused since the start.
    pub refused: u64,
    /// What was refused last, the latest first. Over the socket, each has a line of its own.
    #[serde(default, skip_deserializing)]
    pub refusals: Vec<RefusalView>,
}

/// Packets of a peer that the policy has refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefusalView {
    /// When the last came, in seconds since the Unix epoch.
    pub at: u64,
    /// The public key of the peer.
    pub peer: String,
    /// The source.
    pub from: IpAddr,
    /// The destination.
    pub to: IpAddr,
    /// The protocol by its number in the IP header; 0 where it is not known.
    pub protocol: u8,
    /// The destination port; `null` where there is none.
    pub port: Option<u16>,
    /// How many there were.
    pub packets: u64,
    /// Why, in a word: `not-allowed`, or what is wrong with the packet.
    pub reason: String,
}

impl From<&PolicyStatus> for PolicyView {
    fn from(status: &PolicyStatus) -> Self {
        let &PolicyStatus { rules, connections, capacity, refused, .. } = status;
        Self { rules, connections, capacity, refused, refusals: Vec::new() }
    }
}

impl RefusalView {
    /// What was said, as a policy would write it where it can: `tcp/22`, `icmp`.
    pub fn traffic(&self) -> String {
        match (self.protocol, self.port) {
            (1 | 58, _) => "icmp".to_owned(),
            (6, Some(port)) => format!("tcp/{port}"),
            (17, Some(port)) => format!("udp/{port}"),
            // A fragment behind the first.
            (6, None) => "tcp".to_owned(),
            (17, None) => "udp".to_owned(),
            (0, _) => "unknown protocol".to_owned(),
            (protocol, Some(port)) => format!("proto/{protocol} port {port}"),
            (protocol, None) => format!("proto/{protocol}"),
        }
    }

    /// Why it was refused, in words for people.
    pub fn why(&self) -> &str {
        match &*self.reason {
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
}

impl From<&Refusal> for RefusalView {
    fn from(refusal: &Refusal) -> Self {
        let Refusal { at, peer, from, to, protocol, port, packets, reason } = refusal;
        Self {
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
