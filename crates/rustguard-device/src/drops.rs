//! Why packets were dropped: one relaxed counter per reason, never touched by a packet that passes.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! reasons {
    ($($(#[$doc:meta])* $variant:ident => $name:literal,)*) => {
        /// Why a packet went nowhere.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum DropReason { $($(#[$doc])* $variant,)* }

        impl DropReason {
            /// Every reason, in the order of the counters.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// The reason's name in `show`, JSON and metrics.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }
        }
    };
}

reasons! {
    /// A datagram that is no message of a known protocol: unknown type, wrong length, nonzero reserved bytes.
    Malformed => "malformed",
    /// A transport message for a receiver index that no session has.
    UnknownIndex => "unknown_index",
    /// A transport message of a session past Reject-After-Time.
    SessionExpired => "session_expired",
    /// A transport message that failed authentication.
    Forged => "forged",
    /// A transport message whose counter was seen before, or lies behind the replay window.
    Replayed => "replayed",
    /// An authentic message whose payload is no IP packet.
    NotIp => "not_ip",
    /// An inner source address outside the peer's allowed IPs.
    SourceNotAllowed => "source_not_allowed",
    /// A source within the allowed IPs of a router that has not announced it to the routing engine
    /// ([`SourceCheck`](crate::SourceCheck)).
    SourceNotAnnounced => "source_not_announced",
    /// A unicast packet from the host for an address that no peer has, or a packet for a peer that a filter named and that does not
    /// exist.
    NoRoute => "no_route",
    /// One of the tunnel's own datagrams that came back from the TUN: a route of the host leads to a peer's endpoint through the
    /// tunnel. Sent on, it would come back for ever.
    RoutingLoop => "routing_loop",
    /// A packet of one peer for another, where [`Relay::Isolate`](crate::Relay::Isolate) keeps them apart.
    Isolated => "isolated",
    /// A packet that the embedder's filter dropped ([`Builder::filter`](crate::Builder::filter)).
    Filtered => "filtered",
    /// A probe of a path beyond the rate that a peer may send, or while the control thread was busy with probes of others.
    ProbeLimit => "probe_limit",
    /// A packet for a peer whose endpoint is not known.
    NoEndpoint => "no_endpoint",
    /// The oldest of more than 128 packets waiting for a handshake, or of fewer where 16 MiB wait for all peers together; all
    /// of them when the handshake was given up or the peer removed.
    StagingFull => "staging_full",
    /// A handshake message that found the control thread's queue full.
    HandshakeQueueFull => "handshake_queue_full",
    /// A datagram of another protocol on the tunnel's port ([`Builder::datagrams`](crate::Builder::datagrams)) that came faster
    /// than it was taken.
    DatagramQueueFull => "datagram_queue_full",
    /// A packet for the routing engine that found the control thread's queue full.
    EngineQueueFull => "engine_queue_full",
    /// A packet for the routing engine beyond what one peer may send to it in a while.
    EngineLimit => "engine_limit",
    /// A packet for the routing engine that is longer than the interface's MTU.
    EngineTooLong => "engine_too_long",
    /// A packet for the routing engine from a [client](rustguard_core::routing::Role::Client), which does not take part in the protocol.
    EngineNotARouter => "engine_not_a_router",
    /// A handshake message that was not acceptable: see the log for which check it failed.
    HandshakeRefused => "handshake_refused",
    /// A handshake message answered with a cookie reply, or over the rate limit, under load.
    UnderLoad => "under_load",
    /// The kernel did not take a datagram after every remedy.
    SendFailed => "send_failed",
    /// The host did not take a packet: the interface is down, or it is malformed.
    HostRefused => "host_refused",
}

/// One counter per [`DropReason`]. On cache lines of its own: a flood of what is dropped must not slow down those who read
/// what lies beside.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct Drops([AtomicU64; DropReason::ALL.len()]);

impl Default for Drops {
    fn default() -> Self {
        Self(std::array::from_fn(|_| AtomicU64::new(0)))
    }
}

impl Drops {
    /// Counts `n` packets.
    pub(crate) fn count(&self, reason: DropReason, n: usize) {
        if n > 0 {
            self.0[reason as usize].fetch_add(n as u64, Ordering::Relaxed);
        }
    }

    /// All counters that are not zero.
    pub(crate) fn snapshot(&self) -> Vec<(DropReason, u64)> {
        DropReason::ALL
            .iter()
            .map(|&reason| (reason, self.0[reason as usize].load(Ordering::Relaxed)))
            .filter(|&(_, n)| n > 0)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_by_reason_and_shows_only_what_happened() {
        let drops = Drops::default();
        drops.count(DropReason::Forged, 3);
        drops.count(DropReason::NoRoute, 0);
        assert_eq!(drops.snapshot(), [(DropReason::Forged, 3)]);
    }
}
