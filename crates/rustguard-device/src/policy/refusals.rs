//! The reasons for refusals, and the last refused packets, to be shown.

use parking_lot::Mutex;
use rustguard_core::{dissect::Bad, node::PeerId, packet::IpHead, time::Instant};
use std::{collections::VecDeque, net::IpAddr};

/// The reason why a packet is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    /// No rule allows the flow.
    NotAllowed,
    /// A later fragment of a packet whose first fragment has not passed, or not yet.
    Fragment,
    /// An ICMP error about an unknown flow.
    UnknownFlow,
    /// It is malformed, or made to deceive a filter.
    Bad(Bad),
}

impl Reason {
    /// A word for programs. [`RefusalView::why`](crate::uapi::RefusalView::why) is the text for people.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::NotAllowed => "not-allowed",
            Self::Fragment => "fragment",
            Self::UnknownFlow => "unknown-flow",
            Self::Bad(Bad::Header) => "malformed",
            Self::Bad(Bad::Fragment) => "malformed-fragment",
            Self::Bad(Bad::SourceRoute) => "source-route",
            Self::Bad(Bad::Error) => "malformed-error",
        }
    }
}

/// A refused packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Refused {
    pub(crate) reason: Reason,
    pub(crate) protocol: u8,
    pub(crate) port: Option<u16>,
}

/// Refusals that are kept.
const KEPT: usize = 16;
/// Refusals of one peer that are kept: a peer that scans ports displaces no more refusals of others than this.
const OF_A_PEER: usize = 8;

/// The last refusals. Locked for each refused packet, and for each query.
#[derive(Default)]
pub(crate) struct Refusals(Mutex<VecDeque<Refusal>>);

/// Packets that were refused for one reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) peer: PeerId,
    pub(crate) from: IpAddr,
    pub(crate) to: IpAddr,
    pub(crate) refused: Refused,
    pub(crate) packets: u64,
    /// The time of the last one.
    pub(crate) at: Instant,
}

impl Refusals {
    pub(crate) fn note(&self, peer: PeerId, head: &IpHead, refused: Refused, now: Instant) {
        let mut kept = self.0.lock();
        let (from, to) = (head.source, head.destination);
        let same = |it: &Refusal| it.peer == peer && it.from == from && it.to == to && it.refused == refused;
        let packets = match kept.iter().position(same) {
            Some(at) => kept.remove(at).map_or(0, |known| known.packets),
            None => {
                let of_the_peer = kept.iter().filter(|it| it.peer == peer).count();
                if of_the_peer >= OF_A_PEER
                    && let Some(oldest) = kept.iter().position(|it| it.peer == peer)
                {
                    kept.remove(oldest);
                } else if kept.len() >= KEPT {
                    kept.pop_front();
                }
                0
            }
        };
        kept.push_back(Refusal { peer, from, to, refused, packets: packets + 1, at: now });
    }

    /// The refusals, latest first.
    pub(crate) fn snapshot(&self) -> Vec<Refusal> {
        self.0.lock().iter().rev().copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn note(refusals: &Refusals, peer: u32, port: u16) {
        let head = IpHead { source: [10, 0, 0, 1].into(), destination: [10, 0, 0, 2].into(), len: 40 };
        let refused = Refused { reason: Reason::NotAllowed, protocol: 6, port: Some(port) };
        refusals.note(PeerId(peer), &head, refused, Instant::from_nanos(port.into()));
    }

    #[test]
    fn the_last_of_each_peer_are_kept_and_the_same_are_counted() {
        let refusals = Refusals::default();
        for port in [22, 80, 22] {
            note(&refusals, 1, port);
        }
        let seen: Vec<_> = refusals.snapshot().iter().map(|it| (it.refused.port, it.packets)).collect();
        assert_eq!(seen, [(Some(22), 2), (Some(80), 1)]);
        for port in 100..1_000 {
            note(&refusals, 2, port);
        }
        let seen = refusals.snapshot();
        assert_eq!(seen.iter().filter(|it| it.peer == PeerId(1)).count(), 2, "a scan does not push them out");
        assert_eq!(seen.iter().filter(|it| it.peer == PeerId(2)).count(), OF_A_PEER);
        for peer in 3..100 {
            note(&refusals, peer, 1);
        }
        assert_eq!(refusals.snapshot().len(), KEPT);
    }
}
