//! Seqno requests that wait for their answer (RFC 8966 §3.2.7, §3.8.2): who wants what, what was forwarded, when to repeat.
use crate::{
    build,
    params::{MAX_REQUESTERS, MAX_REQUESTS, REQUEST, REQUEST_COPIES, REQUEST_DUPLICATE, REQUEST_MAX},
    types::{RouterId, Seqno},
};
use ipnet::IpNet;
use rustguard_core::{node::PeerId, time::Instant};
use std::collections::{BTreeMap, BTreeSet};

/// What is awaited for one source.
#[derive(Clone, Debug)]
struct Pending {
    seqno: Seqno,
    /// Neighbours that asked.
    requesters: BTreeSet<PeerId>,
    /// This node wants it itself; how often it asked, and when it asks again.
    own: Option<(u8, Instant)>,
    /// When a request last left.
    sent: Instant,
}

impl Pending {
    fn deadline(&self) -> Instant {
        self.own.map_or(self.sent + REQUEST_MAX, |(_, at)| at)
    }
}

/// All of them. A bounded table: when it is full, requests are not remembered, and whoever needs one repeats it.
#[derive(Debug, Default)]
pub(crate) struct Requests {
    table: BTreeMap<(IpNet, RouterId), Pending>,
    /// Nothing is due before this. What was due first may be gone since: then there is one look too many.
    look_at: Option<Instant>,
}

/// An own request that is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Due {
    pub(crate) prefix: IpNet,
    pub(crate) router_id: RouterId,
    pub(crate) seqno: Seqno,
    /// Sent as often as a request that is not necessary may be.
    pub(crate) tired: bool,
}

impl Requests {
    /// This node wants at least this sequence number. False when it has asked for it already, or cannot remember.
    pub(crate) fn want(&mut self, prefix: IpNet, router_id: RouterId, seqno: Seqno, now: Instant) -> bool {
        let full = self.table.len() >= MAX_REQUESTS;
        match self.table.get_mut(&(prefix, router_id)) {
            Some(pending) if pending.own.is_some() && !seqno.newer_than(pending.seqno) => false,
            Some(pending) => {
                let newer = seqno.newer_than(pending.seqno);
                pending.seqno = if newer { seqno } else { pending.seqno };
                (pending.own, pending.sent) = (Some((1, now + REQUEST)), now);
                self.look_by(now + REQUEST);
                true
            }
            None if full => false,
            None => {
                let own = Some((1, now + REQUEST));
                self.look_by(now + REQUEST);
                self.table.insert((prefix, router_id), Pending { seqno, requesters: BTreeSet::new(), own, sent: now });
                true
            }
        }
    }
    /// A neighbour asks for it. True when the request should be forwarded: not if the same was, a moment ago.
    pub(crate) fn forward(
        &mut self,
        prefix: IpNet,
        router_id: RouterId,
        seqno: Seqno,
        from: PeerId,
        now: Instant,
    ) -> bool {
        let full = self.table.len() >= MAX_REQUESTS;
        let pending = match self.table.get_mut(&(prefix, router_id)) {
            Some(pending) => pending,
            None if full => return false,
            None => {
                let requesters = BTreeSet::from([from]);
                self.table.insert((prefix, router_id), Pending { seqno, requesters, own: None, sent: now });
                self.look_by(now + REQUEST_MAX);
                return true;
            }
        };
        if pending.requesters.len() < MAX_REQUESTERS {
            pending.requesters.insert(from);
        }
        let redundant = !seqno.newer_than(pending.seqno) && now.since(pending.sent) < REQUEST_DUPLICATE;
        if !redundant {
            pending.sent = now;
            if seqno.newer_than(pending.seqno) {
                pending.seqno = seqno;
            }
        }
        !redundant
    }
    /// Whether a route with this sequence number would be an answer that somebody waits for.
    pub(crate) fn awaited(&self, prefix: IpNet, router_id: RouterId, seqno: Seqno) -> Option<Seqno> {
        let pending = self.table.get(&(prefix, router_id))?;
        (!pending.seqno.newer_than(seqno) && !pending.requesters.is_empty()).then_some(pending.seqno)
    }
    /// This is announced for the prefix now: who waited for that. Another origin is an answer too (§3.8.1.2).
    pub(crate) fn answered(&mut self, prefix: IpNet, announced: build::Route) -> BTreeSet<PeerId> {
        let mut requesters = BTreeSet::new();
        self.retain(prefix, |router_id, pending| {
            let waits = router_id == announced.router_id && pending.seqno.newer_than(announced.seqno);
            if !waits {
                requesters.append(&mut pending.requesters);
            }
            waits
        });
        requesters
    }
    /// Nothing is to be had for the prefix: nobody needs to ask any more.
    pub(crate) fn give_up(&mut self, prefix: IpNet) {
        self.retain(prefix, |_, _| false);
    }
    /// Own requests that are to be repeated, with how the next repetition is counted. Forwarded ones are repeated by who
    /// made them, and forgotten here.
    pub(crate) fn due(&mut self, now: Instant) -> Vec<Due> {
        let mut due = Vec::new();
        self.table.retain(|&(prefix, router_id), pending| match &mut pending.own {
            Some((copies, at)) => {
                if *at <= now {
                    due.push(Due { prefix, router_id, seqno: pending.seqno, tired: *copies >= REQUEST_COPIES });
                    *at = now + (REQUEST * (1 << u32::from(*copies).min(10))).min(REQUEST_MAX);
                    *copies = copies.saturating_add(1);
                    pending.sent = now;
                }
                true
            }
            None => now.since(pending.sent) < REQUEST_MAX,
        });
        self.look_at = self.table.values().map(Pending::deadline).min();
        due
    }
    /// The own interest in this source ends.
    pub(crate) fn unwant(&mut self, prefix: IpNet, router_id: RouterId) {
        if let Some(pending) = self.table.get_mut(&(prefix, router_id)) {
            pending.own = None;
            if pending.requesters.is_empty() {
                self.table.remove(&(prefix, router_id));
                self.rest_if_empty();
            }
        }
    }
    pub(crate) fn forget_peer(&mut self, peer: PeerId) {
        for pending in self.table.values_mut() {
            pending.requesters.remove(&peer);
        }
    }
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.look_at
    }

    /// Nothing is left to look at.
    fn rest_if_empty(&mut self) {
        if self.table.is_empty() {
            self.look_at = None;
        }
    }
    fn look_by(&mut self, at: Instant) {
        self.look_at = Some(self.look_at.map_or(at, |earlier| earlier.min(at)));
    }

    fn retain(&mut self, prefix: IpNet, mut keep: impl FnMut(RouterId, &mut Pending) -> bool) {
        let range = (prefix, RouterId::MIN)..=(prefix, RouterId::MAX);
        let gone: Vec<RouterId> = self
            .table
            .range_mut(range)
            .filter_map(|(&(_, router_id), pending)| (!keep(router_id, pending)).then_some(router_id))
            .collect();
        for router_id in gone {
            self.table.remove(&(prefix, router_id));
        }
        self.rest_if_empty();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::time::Duration;

    fn at(ms: u64) -> Instant {
        Instant::from_nanos(1 << 40) + Duration::from_millis(ms)
    }
    fn setup() -> (Requests, IpNet, RouterId, RouterId) {
        let id = |byte| RouterId::new([byte; 8]).expect("a router-id");
        (Requests::default(), "10.0.0.0/8".parse().expect("a prefix"), id(1), id(2))
    }
    fn announced(router_id: RouterId, seqno: u16) -> build::Route {
        build::Route { router_id, seqno: Seqno(seqno), metric: 100 }
    }

    #[test]
    fn c23_the_same_request_is_forwarded_once_and_all_who_asked_are_answered() {
        let (mut requests, prefix, id, other) = setup();
        assert!(requests.forward(prefix, id, Seqno(65_535), PeerId(1), at(0)));
        assert!(!requests.forward(prefix, id, Seqno(65_535), PeerId(2), at(10)), "redundant");
        assert!(!requests.forward(prefix, id, Seqno(65_534), PeerId(3), at(10)), "older");
        assert!(requests.forward(prefix, id, Seqno(0), PeerId(3), at(20)), "newer");
        assert!(requests.forward(prefix, id, Seqno(0), PeerId(1), at(330)), "repeated by who made it");
        assert!(requests.forward(prefix, other, Seqno(9), PeerId(1), at(330)), "another origin");
        let (mut requests, ..) = setup();
        requests.forward(prefix, id, Seqno(5), PeerId(1), at(0));
        requests.forward(prefix, id, Seqno(5), PeerId(2), at(0));
        assert!(requests.answered(prefix, announced(id, 4)).is_empty());
        assert_eq!(requests.awaited(prefix, id, Seqno(4)), None);
        assert_eq!(requests.awaited(prefix, id, Seqno(6)), Some(Seqno(5)));
        assert_eq!(requests.answered(prefix, announced(id, 5)), BTreeSet::from([PeerId(1), PeerId(2)]));
        requests.forward(prefix, id, Seqno(5), PeerId(1), at(0));
        assert_eq!(
            requests.answered(prefix, announced(other, 0)),
            BTreeSet::from([PeerId(1)]),
            "another origin is an answer"
        );
        assert_eq!(requests.table.len(), 0);
    }

    #[test]
    fn c24_own_requests_are_repeated_ever_more_rarely() {
        let (mut requests, prefix, id, _) = setup();
        assert!(requests.want(prefix, id, Seqno(5), at(0)) && !requests.want(prefix, id, Seqno(5), at(0)));
        assert!(requests.want(prefix, id, Seqno(6), at(0)), "more is wanted");
        let mut sent = Vec::new();
        while let Some(deadline) = requests.deadline().filter(|&deadline| deadline < at(60_000)) {
            for due in requests.due(deadline) {
                assert_eq!((due.seqno, due.tired), (Seqno(6), sent.len() >= 3));
                sent.push(deadline.since(at(0)).as_millis());
            }
        }
        assert_eq!(sent, [500, 1_500, 3_500, 7_500, 15_500, 31_500, 47_500]);
        requests.unwant(prefix, id);
        assert_eq!(requests.deadline(), None);
    }

    #[test]
    fn forwarded_requests_are_forgotten_and_the_table_is_bounded() {
        let (mut requests, prefix, id, _) = setup();
        requests.forward(prefix, id, Seqno(5), PeerId(1), at(0));
        assert_eq!(requests.deadline(), Some(at(16_000)));
        assert!(requests.due(at(16_000)).is_empty() && requests.table.is_empty());
        for i in 0..10_000_u32 {
            let prefix = IpNet::new(std::net::Ipv4Addr::from(i).into(), 32).expect("a host");
            requests.forward(prefix, id, Seqno(5), PeerId(1), at(0));
            requests.want(prefix, id, Seqno(5), at(0));
        }
        assert_eq!(requests.table.len(), MAX_REQUESTS);
        for peer in 0..1_000 {
            requests.forward(
                IpNet::new(std::net::Ipv4Addr::from(0).into(), 32).expect("a host"),
                id,
                Seqno(5),
                PeerId(peer),
                at(0),
            );
        }
        let first = IpNet::new(std::net::Ipv4Addr::from(0).into(), 32).expect("a host");
        requests.forget_peer(PeerId(1));
        let waiting = requests.answered(first, announced(id, 5));
        assert!(waiting.len() == MAX_REQUESTERS - 1 && !waiting.contains(&PeerId(1)));
    }
}
