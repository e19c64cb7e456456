//! Seqno requests that wait for their answer (RFC 8966 §3.2.7, §3.8.2): the requesting nodes, the forwarded requests,
//! and the times of repetition.
use crate::{
    params::{
        MAX_REQUESTERS, MAX_REQUESTS, MAX_REQUESTS_OF_PEER, REQUEST_COPIES, REQUEST_DUPLICATE, REQUEST_RETRY,
        REQUEST_RETRY_MAX,
    },
    table::source::Sources,
    wire::types::{Announcement, RouterId, Seqno},
};
use ipnet::IpNet;
use rustguard_core::{node::PeerId, time::Instant};
use std::collections::{BTreeMap, BTreeSet};

/// The sequence number that is awaited for one source.
#[derive(Clone, Debug)]
struct PendingRequest {
    seqno: Seqno,
    /// Neighbours that asked.
    requesters: BTreeSet<PeerId>,
    /// If this node wants it: how often it asked, and when it asks again.
    own: Option<(u8, Instant)>,
    /// When a request was last sent.
    sent: Instant,
}

impl PendingRequest {
    fn deadline(&self) -> Instant {
        self.own.map_or(self.sent + REQUEST_RETRY_MAX, |(_, at)| at)
    }
}

/// A source.
type SourceKey = (IpNet, RouterId);

/// All pending requests. The table is bounded: when it is full, or a neighbour has used its share, further requests are
/// not remembered. The node that needs one repeats it.
#[derive(Debug, Default)]
pub(crate) struct Requests {
    table: BTreeMap<SourceKey, PendingRequest>,
    /// When each request is looked at next.
    order: BTreeSet<(Instant, SourceKey)>,
    /// The requests of each neighbour.
    asked: BTreeMap<PeerId, BTreeSet<SourceKey>>,
}

/// A request for this sequence number or a newer one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SeqnoRequest {
    pub(crate) prefix: IpNet,
    pub(crate) router_id: RouterId,
    pub(crate) seqno: Seqno,
}

/// A request of this node that is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DueRequest {
    pub(crate) request: SeqnoRequest,
    /// Whether it was sent as often as is permitted for a request that is useful, but not needed.
    pub(crate) exhausted: bool,
}

impl Requests {
    /// Records that this node wants routes of this origin to become feasible, which requires a newer sequence number
    /// than the remembered one. `None` if it asked for it already, or cannot remember another request.
    pub(crate) fn want_newer(
        &mut self,
        prefix: IpNet,
        router_id: RouterId,
        sources: &Sources,
        now: Instant,
    ) -> Option<SeqnoRequest> {
        let seqno = sources.get(prefix, router_id)?.seqno.plus(1);
        self.want(prefix, router_id, seqno, now).then_some(SeqnoRequest { prefix, router_id, seqno })
    }

    /// Records that this node wants at least this sequence number. False if it asked for it already, or cannot remember
    /// another request.
    fn want(&mut self, prefix: IpNet, router_id: RouterId, seqno: Seqno, now: Instant) -> bool {
        let (key, full) = ((prefix, router_id), self.table.len() >= MAX_REQUESTS);
        let own = Some((1, now + REQUEST_RETRY));
        match self.table.get(&key) {
            Some(pending) if pending.own.is_some() && !seqno.newer_than(pending.seqno) => return false,
            None if full => return false,
            Some(_) => self.change(key, |pending| {
                let newer = seqno.newer_than(pending.seqno);
                pending.seqno = if newer { seqno } else { pending.seqno };
                (pending.own, pending.sent) = (own, now);
            }),
            None => self.insert(key, PendingRequest { seqno, requesters: BTreeSet::new(), own, sent: now }),
        }
        true
    }

    /// Records a neighbour's request. True if the request should be forwarded; false if the same request was forwarded
    /// within [`REQUEST_DUPLICATE`].
    pub(crate) fn forward(&mut self, wanted: SeqnoRequest, from: PeerId, now: Instant) -> bool {
        let SeqnoRequest { prefix, router_id, seqno } = wanted;
        let key = (prefix, router_id);
        let asked = self.asked.get(&from);
        let has_its_share = asked.is_some_and(|asked| asked.len() >= MAX_REQUESTS_OF_PEER && !asked.contains(&key));
        let Some(pending) = self.table.get(&key) else {
            if has_its_share || self.table.len() >= MAX_REQUESTS {
                return false;
            }
            self.insert(key, PendingRequest { seqno, requesters: BTreeSet::from([from]), own: None, sent: now });
            self.asked.entry(from).or_default().insert(key);
            return true;
        };
        let redundant = !seqno.newer_than(pending.seqno) && now.since(pending.sent) < REQUEST_DUPLICATE;
        let remembered = pending.requesters.len() < MAX_REQUESTERS && !has_its_share;
        self.change(key, |pending| {
            if remembered {
                pending.requesters.insert(from);
            }
            if !redundant {
                pending.sent = now;
                if seqno.newer_than(pending.seqno) {
                    pending.seqno = seqno;
                }
            }
        });
        if remembered {
            self.asked.entry(from).or_default().insert(key);
        }
        !redundant
    }

    /// The request of neighbours that this announcement of a neighbour answers.
    pub(crate) fn awaited(&self, prefix: IpNet, announced: Announcement) -> Option<SeqnoRequest> {
        let router_id = announced.router_id;
        let pending = self.table.get(&(prefix, router_id))?;
        let answers = !pending.seqno.newer_than(announced.seqno) && !pending.requesters.is_empty();
        answers.then_some(SeqnoRequest { prefix, router_id, seqno: pending.seqno })
    }

    /// Ends requests that this announcement answers. Returns the neighbours that waited for it. Another origin is an
    /// answer too (§3.8.1.2).
    pub(crate) fn answered(&mut self, prefix: IpNet, announced: Announcement) -> BTreeSet<PeerId> {
        let answered = self.of(prefix).filter(|(router_id, pending)| {
            *router_id != announced.router_id || !pending.seqno.newer_than(announced.seqno)
        });
        let answered: Vec<RouterId> = answered.map(|(router_id, _)| router_id).collect();
        let pending = answered.into_iter().filter_map(|router_id| self.remove((prefix, router_id)));
        pending.flat_map(|pending| pending.requesters).collect()
    }

    /// Ends all requests for the prefix, because no neighbour has a route to it.
    pub(crate) fn give_up(&mut self, prefix: IpNet) {
        let all: Vec<RouterId> = self.of(prefix).map(|(router_id, _)| router_id).collect();
        for router_id in all {
            self.remove((prefix, router_id));
        }
    }

    /// The next own request that is due. It then counts as sent. Forwarded requests are forgotten when they are due:
    /// the nodes that made them repeat them.
    pub(crate) fn due(&mut self, now: Instant) -> Option<DueRequest> {
        while let Some(&(_, key)) = self.order.first().filter(|(at, _)| *at <= now) {
            let &PendingRequest { seqno, own, .. } = self.table.get(&key)?;
            let Some((copies, _)) = own else {
                self.remove(key);
                continue;
            };
            let again = now + (REQUEST_RETRY * (1 << u32::from(copies).min(10))).min(REQUEST_RETRY_MAX);
            self.change(key, |pending| (pending.own, pending.sent) = (Some((copies.saturating_add(1), again)), now));
            let (prefix, router_id) = key;
            let request = SeqnoRequest { prefix, router_id, seqno };
            return Some(DueRequest { request, exhausted: copies >= REQUEST_COPIES });
        }
        None
    }

    /// This node does not need a newer number of this source any more.
    pub(crate) fn unwant(&mut self, prefix: IpNet, router_id: RouterId) {
        let key = (prefix, router_id);
        match self.table.get(&key) {
            Some(pending) if pending.requesters.is_empty() => drop(self.remove(key)),
            Some(_) => self.change(key, |pending| pending.own = None),
            None => {}
        }
    }

    /// Forgets the requests of this neighbour, unless another node waits for the same. Returns how many it had made.
    pub(crate) fn forget_peer(&mut self, peer: PeerId) -> usize {
        let asked = self.asked.remove(&peer).unwrap_or_default();
        for &key in &asked {
            let Some(pending) = self.table.get_mut(&key) else { continue };
            pending.requesters.remove(&peer);
            if pending.requesters.is_empty() && pending.own.is_none() {
                self.remove(key);
            }
        }
        asked.len()
    }

    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.order.first().map(|&(at, _)| at)
    }

    fn of(&self, prefix: IpNet) -> impl Iterator<Item = (RouterId, &PendingRequest)> {
        let range = (prefix, RouterId::MIN)..=(prefix, RouterId::MAX);
        self.table.range(range).map(|(&(_, router_id), pending)| (router_id, pending))
    }

    fn insert(&mut self, key: SourceKey, pending: PendingRequest) {
        self.order.insert((pending.deadline(), key));
        self.table.insert(key, pending);
    }

    fn change(&mut self, key: SourceKey, change: impl FnOnce(&mut PendingRequest)) {
        let Some(pending) = self.table.get_mut(&key) else { return };
        let before = pending.deadline();
        change(pending);
        let after = pending.deadline();
        if before != after {
            self.order.remove(&(before, key));
            self.order.insert((after, key));
        }
    }

    fn remove(&mut self, key: SourceKey) -> Option<PendingRequest> {
        let pending = self.table.remove(&key)?;
        self.order.remove(&(pending.deadline(), key));
        for peer in &pending.requesters {
            if let Some(asked) = self.asked.get_mut(peer) {
                asked.remove(&key);
                if asked.is_empty() {
                    self.asked.remove(peer);
                }
            }
        }
        Some(pending)
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

    fn request(prefix: IpNet, router_id: RouterId, seqno: u16) -> SeqnoRequest {
        SeqnoRequest { prefix, router_id, seqno: Seqno(seqno) }
    }

    fn announced(router_id: RouterId, seqno: u16) -> Announcement {
        Announcement { router_id, seqno: Seqno(seqno), metric: 100 }
    }

    /// A neighbour that restarts must not leave its requests behind, because they would fill the shared table.
    #[test]
    fn a_neighbour_that_starts_again_and_again_has_its_share() {
        let (mut requests, _, id, _) = setup();
        let net = |n: usize| IpNet::new([10, 0, (n / 256) as u8, n as u8].into(), 32).expect("a prefix");
        for n in 0..2 * MAX_REQUESTS {
            requests.forward(request(net(n % 65_536), id, 5), PeerId(1), at(0));
            if n % 100 == 99 {
                requests.forget_peer(PeerId(1));
            }
        }
        assert!(requests.table.len() <= MAX_REQUESTS_OF_PEER, "{} are left", requests.table.len());
        assert_eq!(requests.order.len(), requests.table.len());
        assert!(requests.want(net(1), id, Seqno(6), at(0)), "there is room for what this node needs");
        requests.forward(request(net(1), id, 6), PeerId(1), at(0));
        requests.forward(request(net(2), id, 6), PeerId(1), at(0));
        requests.forward(request(net(2), id, 6), PeerId(2), at(0));
        requests.forget_peer(PeerId(1));
        let left: Vec<IpNet> = requests.table.keys().map(|&(prefix, _)| prefix).collect();
        assert_eq!(left, [net(1), net(2)], "what this node wants, or another waits for, stays");
    }

    /// RFC 8966 §3.8.1.2.
    #[test]
    fn the_same_request_is_forwarded_once_and_all_that_asked_are_answered() {
        let (mut requests, prefix, id, other) = setup();
        assert!(requests.forward(request(prefix, id, 65_535), PeerId(1), at(0)));
        assert!(!requests.forward(request(prefix, id, 65_535), PeerId(2), at(10)), "redundant");
        assert!(!requests.forward(request(prefix, id, 65_534), PeerId(3), at(10)), "older");
        assert!(requests.forward(request(prefix, id, 0), PeerId(3), at(20)), "newer");
        assert!(requests.forward(request(prefix, id, 0), PeerId(1), at(330)), "repeated by who made it");
        assert!(requests.forward(request(prefix, other, 9), PeerId(1), at(330)), "another origin");
        let (mut requests, ..) = setup();
        requests.forward(request(prefix, id, 5), PeerId(1), at(0));
        requests.forward(request(prefix, id, 5), PeerId(2), at(0));
        assert!(requests.answered(prefix, announced(id, 4)).is_empty());
        assert_eq!(requests.awaited(prefix, announced(id, 4)), None);
        assert_eq!(requests.awaited(prefix, announced(id, 6)), Some(request(prefix, id, 5)));
        assert_eq!(requests.answered(prefix, announced(id, 5)), BTreeSet::from([PeerId(1), PeerId(2)]));
        requests.forward(request(prefix, id, 5), PeerId(1), at(0));
        assert_eq!(
            requests.answered(prefix, announced(other, 0)),
            BTreeSet::from([PeerId(1)]),
            "another origin is an answer"
        );
        assert_eq!(requests.table.len(), 0);
    }

    /// RFC 8966 §3.8.2.1.
    #[test]
    fn own_requests_are_repeated_at_growing_intervals() {
        let (mut requests, prefix, id, _) = setup();
        assert!(requests.want(prefix, id, Seqno(5), at(0)) && !requests.want(prefix, id, Seqno(5), at(0)));
        assert!(requests.want(prefix, id, Seqno(6), at(0)), "more is wanted");
        let mut sent = Vec::new();
        while let Some(deadline) = requests.deadline().filter(|&deadline| deadline < at(60_000)) {
            while let Some(due) = requests.due(deadline) {
                assert_eq!((due.request.seqno, due.exhausted), (Seqno(6), sent.len() >= 3));
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
        requests.forward(request(prefix, id, 5), PeerId(1), at(0));
        assert_eq!(requests.deadline(), Some(at(16_000)));
        assert!(requests.due(at(16_000)).is_none() && requests.table.is_empty() && requests.asked.is_empty());
        for i in 0..10_000_u32 {
            let prefix = IpNet::new(std::net::Ipv4Addr::from(i).into(), 32).expect("a host");
            requests.forward(request(prefix, id, 5), PeerId(1), at(0));
            if i + 1 == MAX_REQUESTS_OF_PEER as u32 * 2 {
                assert_eq!(requests.table.len(), MAX_REQUESTS_OF_PEER, "what one neighbour may ask for");
                assert!(requests.want(prefix, id, Seqno(5), at(0)), "there is room for others");
            }
        }
        for i in 0..10_000_u32 {
            let prefix = IpNet::new(std::net::Ipv4Addr::from(i).into(), 32).expect("a host");
            requests.want(prefix, id, Seqno(5), at(0));
        }
        assert_eq!((requests.table.len(), requests.order.len()), (MAX_REQUESTS, MAX_REQUESTS));
        for peer in 0..1_000 {
            requests.forward(
                request(IpNet::new(std::net::Ipv4Addr::from(0).into(), 32).expect("a host"), id, 5),
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
