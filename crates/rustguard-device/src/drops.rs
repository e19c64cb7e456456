//! The reasons why packets were dropped. Each reason has one relaxed counter. A packet that passes never touches these
//! counters.

use std::sync::{
    OnceLock,
    atomic::{AtomicU64, Ordering},
};

macro_rules! reasons {
    ($($(#[$doc:meta])* $variant:ident => $name:literal,)*) => {
        /// The reason why a packet was dropped.
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
    /// A datagram that is not a message of a known protocol: unknown type, wrong length, nonzero reserved bytes.
    Malformed => "malformed",
    /// An empty datagram. A RustGuard that gets no answer sends one to find out whether the port is open.
    Empty => "empty",
    /// A transport message whose receiver index belongs to no session.
    UnknownIndex => "unknown_index",
    /// A transport message of a session that is older than Reject-After-Time.
    SessionExpired => "session_expired",
    /// A transport message that failed authentication.
    Forged => "forged",
    /// An authentic transport message whose counter was seen before.
    Replayed => "replayed",
    /// An authentic transport message whose counter is below the replay window of 8,192 counters, so it may be a copy.
    /// At 300,000 packets a second, a packet that came 30 ms later than others over a slower way is outside it.
    Late => "late",
    /// An authentic message whose payload is not an IP packet.
    NotIp => "not_ip",
    /// A packet whose source address is outside the peer's allowed IPs, unless it is [`Multicast`](Self::Multicast).
    SourceNotAllowed => "source_not_allowed",
    /// A peer's multicast or broadcast from a source outside its allowed IPs. Healthy peers send some when a default
    /// route leads through the tunnel: multicast listener reports and router solicitations from a link-local address.
    Multicast => "multicast",
    /// A packet whose source address is within the allowed IPs of a router, but was not announced by it to the routing
    /// engine ([`SourceCheck`](crate::SourceCheck)).
    SourceNotAnnounced => "source_not_announced",
    /// A unicast packet from the host to an address that no peer has, or a packet for which a filter named a peer that
    /// does not exist. The host's multicast and broadcast that no peer gets is not counted: every host sends some to
    /// every interface.
    NoRoute => "no_route",
    /// One of the tunnel's own datagrams that came back from the TUN: a route of the host to a peer's endpoint leads
    /// through the tunnel. If it were sent again, it would come back endlessly.
    RoutingLoop => "routing_loop",
    /// A packet from one peer to another while [`Relay::Isolate`](crate::Relay::Isolate) is set.
    Isolated => "isolated",
    /// A packet that the embedder's filter dropped ([`Builder::filter`](crate::Builder::filter)).
    Filtered => "filtered",
    /// A peer's packet that the policy refused ([`policy`](crate::policy)).
    Policy => "policy",
    /// A probe of a path beyond a peer's rate limit, or a probe that arrived while the control thread was busy with
    /// other probes.
    ProbeLimit => "probe_limit",
    /// A text of the embedder's protocol beyond a peer's rate limit, or that arrived while the embedder's queue was
    /// full.
    TextLimit => "text_limit",
    /// A forwarded datagram of another version, or that is too short, or with nonzero reserved bytes in its header.
    ForwardMalformed => "forward_malformed",
    /// A datagram to forward, while this device does not forward ([`Builder::forward`](crate::Builder::forward)).
    ForwardOff => "forward_off",
    /// A forwarded datagram whose sender may not send for the peer that the header names, or whose header names no peer
    /// of this device.
    ForwardSender => "forward_sender",
    /// A datagram to forward to an unknown peer.
    ForwardUnknown => "forward_unknown",
    /// A datagram that too many relays have forwarded: their routes form a loop.
    ForwardLoop => "forward_loop",
    /// A datagram to forward to a peer to which there is no way, or a datagram for a peer whose relay is itself reached
    /// through a peer.
    ForwardNoWay => "forward_no_way",
    /// A forwarded datagram inside a forwarded one.
    ForwardNested => "forward_nested",
    /// A packet for a peer whose endpoint is not known.
    NoEndpoint => "no_endpoint",
    /// A packet that waited for a handshake. The oldest is dropped when more than 128 packets of a peer wait, or fewer
    /// if 16 MiB wait for all peers together.
    StagingFull => "staging_full",
    /// A packet that waited in vain for a session: the handshake was given up, the peer was removed, or the interface
    /// was set down.
    NoSession => "no_session",
    /// A handshake message that found the control thread's queue full.
    HandshakeQueueFull => "handshake_queue_full",
    /// A datagram of another protocol on the tunnel's port ([`Builder::datagrams`](crate::Builder::datagrams)) that
    /// arrived while the embedder's queue was full.
    DatagramQueueFull => "datagram_queue_full",
    /// A packet for the routing engine that found the control thread's queue full.
    EngineQueueFull => "engine_queue_full",
    /// A packet for the routing engine beyond the rate limit of one peer.
    EngineLimit => "engine_limit",
    /// A packet for the routing engine that is longer than the interface's MTU.
    EngineTooLong => "engine_too_long",
    /// A packet for the routing engine from a [client](rustguard_core::routing::Role::Client), which does not take part
    /// in the protocol.
    EngineNotARouter => "engine_not_a_router",
    /// A handshake message that failed a check. The log tells which one.
    HandshakeRefused => "handshake_refused",
    /// A handshake message under load that was answered with a cookie reply, or exceeded the rate limit.
    UnderLoad => "under_load",
    /// A datagram that the kernel refused after all workarounds.
    SendFailed => "send_failed",
    /// A packet that the host did not accept: the interface is down, or the packet is malformed.
    HostRefused => "host_refused",
}

/// One counter per [`DropReason`]. The counters have their own cache lines, so that a flood of dropped packets does not
/// slow down readers of neighbouring data.
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

/// The drops of one peer. The counters exist from its first drop on: most of 10,000 peers never have one.
#[derive(Debug, Default)]
pub(crate) struct PeerDrops(OnceLock<Box<Drops>>);

impl PeerDrops {
    /// Counts `n` packets.
    pub(crate) fn count(&self, reason: DropReason, n: usize) {
        if n > 0 {
            self.0.get_or_init(Box::default).count(reason, n);
        }
    }

    /// All counters that are not zero.
    pub(crate) fn snapshot(&self) -> Vec<(DropReason, u64)> {
        self.0.get().map(|drops| drops.snapshot()).unwrap_or_default()
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

    #[test]
    fn a_peer_without_drops_has_no_counters() {
        let drops = PeerDrops::default();
        drops.count(DropReason::Forged, 0);
        assert!(drops.0.get().is_none() && drops.snapshot().is_empty());
        drops.count(DropReason::Forged, 2);
        assert_eq!(drops.snapshot(), [(DropReason::Forged, 2)]);
    }
}
