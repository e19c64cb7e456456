//! The paths of a peer that has several, for the workers: the locators from which its packets are expected, and the
//! path of each flow.

use crate::way::{Way, endpoint};
use rustguard_core::{
    flow,
    packet::IpHead,
    paths::{Choice, Flows, Locator, MAX_SHARES, Share},
    time::Instant,
};
use rustguard_tun::Endpoint;
use std::sync::Arc;

/// The choice that [`Paths`](rustguard_core::paths::Paths) has made. It is replaced as a whole, but the table of flows
/// is kept.
pub(crate) struct PathSet {
    known: Vec<Locator>,
    pinned: bool,
    shares: Vec<Share>,
    ends: [Option<Endpoint>; MAX_SHARES],
    /// The table of flows, if flows are spread.
    flows: Option<Arc<Flows>>,
}

impl PathSet {
    /// Returns `None` if the peer has a single endpoint that follows its packets.
    pub(crate) fn new(choice: &Choice, flows: Option<&Arc<Flows>>) -> Option<Self> {
        if choice.known.is_empty() && choice.spread.is_empty() && !choice.pinned {
            return None;
        }
        let mut ends = [None; MAX_SHARES];
        for (share, locator) in &choice.spread {
            ends[usize::from(share.path)] = locator.address().map(|at| endpoint(*at));
        }
        Some(Self {
            known: choice.known.clone(),
            pinned: choice.pinned,
            shares: choice.spread.iter().map(|(share, _)| *share).collect(),
            ends,
            flows: flows.cloned(),
        })
    }

    /// Whether a packet that came by this way does not change the way to the peer.
    pub(crate) fn expects(&self, from: &Way) -> bool {
        let from = from.locator();
        self.pinned || self.known.iter().any(|known| known.covers(&from))
    }

    /// The endpoints that flows are spread over.
    pub(crate) fn ends(&self) -> impl Iterator<Item = &Endpoint> {
        self.ends.iter().flatten()
    }

    /// Whether flows are spread over paths.
    pub(crate) fn spreads(&self) -> bool {
        !self.shares.is_empty()
    }

    /// The endpoint for this packet, by its flow. Text that is not an IP packet belongs to flow 0.
    pub(crate) fn endpoint(&self, text: &[u8], now: Instant) -> Option<Endpoint> {
        let flow = IpHead::parse(text).map_or(0, |head| flow::hash(text, &head));
        self.ends[usize::from(self.flows.as_ref()?.path(flow, &self.shares, now)?)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_chosen_is_no_more_than_a_peer() {
        assert!(PathSet::new(&Choice::default(), None).is_none());
        let pinned = PathSet::new(&Choice { pinned: true, ..Choice::default() }, None).unwrap();
        assert!(pinned.expects(&Endpoint::new("[::1]:1".parse().unwrap()).into()));
        assert!(!pinned.spreads());
    }
}
