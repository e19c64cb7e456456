//! Feasibility distances (RFC 8966 §3.2.5, §3.5.1, §3.7.3), which keep routes free of loops.
use crate::{
    params::{SOURCE_GC, SWEEP_PART},
    wire::types::{Announcement, INFINITY, RouterId, Seqno},
};
use core::{ops::Bound, time::Duration};
use ipnet::IpNet;
use rustguard_core::{node::PeerId, time::Instant};
use std::collections::BTreeMap;

/// The best distance that this node ever announced for a source, until it is forgotten.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Source {
    pub(crate) seqno: Seqno,
    pub(crate) metric: u16,
    expires: Instant,
    /// The neighbour from which it was learned; `None`: this node is the origin.
    via: Option<PeerId>,
}

impl Source {
    /// Whether a finite distance is nearer or more recent than this one.
    pub(crate) fn permits(&self, announced: Announcement) -> bool {
        let Announcement { seqno, metric, .. } = announced;
        seqno.newer_than(self.seqno) || seqno == self.seqno && metric < self.metric
    }
}

/// All sources, by prefix and origin.
#[derive(Debug, Default)]
pub(crate) struct Sources {
    table: BTreeMap<(IpNet, RouterId), Source>,
    brought_in: BTreeMap<PeerId, usize>,
    /// The last source that the current sweep has looked at.
    swept: Option<(IpNet, RouterId)>,
}

impl Sources {
    pub(crate) fn get(&self, prefix: IpNet, router_id: RouterId) -> Option<Source> {
        self.table.get(&(prefix, router_id)).copied()
    }

    /// Whether a route with this distance cannot lead back here, because it is nearer or more recent than all
    /// announcements of this node. A retraction is always feasible.
    pub(crate) fn feasible(&self, prefix: IpNet, announced: Announcement) -> bool {
        announced.metric == INFINITY
            || self.get(prefix, announced.router_id).is_none_or(|source| source.permits(announced))
    }

    /// The number of remembered sources that were learned from `via`.
    pub(crate) fn count(&self, via: PeerId) -> usize {
        self.brought_in.get(&via).copied().unwrap_or(0)
    }

    /// Records a distance that will be announced. It must not be announced before this call.
    pub(crate) fn announced(&mut self, prefix: IpNet, announcement: Announcement, via: Option<PeerId>, now: Instant) {
        let Announcement { router_id, seqno, metric } = announcement;
        let source = self.table.entry((prefix, router_id)).or_insert_with(|| {
            if let Some(via) = via {
                *self.brought_in.entry(via).or_default() += 1;
            }
            Source { seqno, metric, expires: now, via }
        });
        if seqno.newer_than(source.seqno) {
            (source.seqno, source.metric) = (seqno, metric);
        } else if seqno == source.seqno {
            source.metric = source.metric.min(metric);
        }
        source.expires = now + SOURCE_GC;
    }

    /// Ignores the time for which this node was suspended, because others may remember its announcements for longer.
    pub(crate) fn postpone(&mut self, by: Duration) {
        for source in self.table.values_mut() {
            source.expires = source.expires + by;
        }
    }

    /// Forgets sources that were not announced for [`SOURCE_GC`], in one part of the table. True if that was the last
    /// part.
    pub(crate) fn sweep(&mut self, now: Instant) -> bool {
        let from = self.swept.map_or(Bound::Unbounded, Bound::Excluded);
        let part = self.table.range((from, Bound::Unbounded)).take(SWEEP_PART);
        let (mut last, mut looked, mut old) = (None, 0, Vec::new());
        for (&key, source) in part {
            (last, looked) = (Some(key), looked + 1);
            if source.expires <= now {
                old.push((key, source.via));
            }
        }
        for (key, via) in old {
            self.table.remove(&key);
            if let Some(via) = via
                && let Some(count) = self.brought_in.get_mut(&via)
            {
                *count -= 1;
                if *count == 0 {
                    self.brought_in.remove(&via);
                }
            }
        }
        let is_last = looked < SWEEP_PART;
        self.swept = last.filter(|_| !is_last);
        is_last
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: Instant = Instant::from_nanos(1 << 40);

    fn of(router_id: RouterId, seqno: u16, metric: u16) -> Announcement {
        Announcement { router_id, seqno: Seqno(seqno), metric }
    }

    fn setup() -> (Sources, IpNet, RouterId) {
        let id = RouterId::new([1; 8]).expect("a router-id");
        (Sources::default(), "10.0.0.0/8".parse().expect("a prefix"), id)
    }

    /// RFC 8966 §3.5.1.
    #[test]
    fn a_route_is_feasible_if_it_is_nearer_or_newer() {
        let (mut sources, prefix, id) = setup();
        assert!(sources.feasible(prefix, of(id, 7, 60_000)), "nothing was announced");
        sources.announced(prefix, of(id, 65_535, 200), None, AT);
        for (seqno, metric, feasible) in
            [(65_535, 199, true), (65_535, 200, false), (65_535, 201, false), (65_534, 0, false), (0, 65_000, true)]
        {
            assert_eq!(sources.feasible(prefix, of(id, seqno, metric)), feasible, "({seqno}, {metric})");
        }
        assert!(sources.feasible(prefix, of(id, 5, INFINITY)) && sources.feasible(prefix, of(id, 60_000, INFINITY)));
        let other = RouterId::new([2; 8]).expect("a router-id");
        assert!(sources.feasible(prefix, of(other, 1, 60_000)), "another source");
        assert!(sources.feasible("10.0.0.0/9".parse().expect("a prefix"), of(id, 1, 60_000)), "another source");
    }

    /// RFC 8966 §3.7.3.
    #[test]
    fn the_feasibility_distance_only_improves() {
        let (mut sources, prefix, id) = setup();
        let mut announce = |seqno, metric| {
            sources.announced(prefix, of(id, seqno, metric), None, AT);
            let source = sources.get(prefix, id).expect("just announced");
            (source.seqno.0, source.metric)
        };
        assert_eq!(announce(10, 300), (10, 300));
        assert_eq!(announce(10, 200), (10, 200));
        assert_eq!(announce(10, 400), (10, 200));
        assert_eq!(announce(9, 100), (10, 200));
        assert_eq!(announce(11, 900), (11, 900));
    }

    /// RFC 8966 §3.7.3.
    #[test]
    fn sources_are_forgotten_some_time_after_the_last_announcement() {
        let (mut sources, prefix, id) = setup();
        let peer = PeerId(4);
        sources.announced(prefix, of(id, 1, 200), Some(peer), AT);
        sources.announced(prefix, of(id, 1, 500), Some(peer), AT + SOURCE_GC / 2);
        sources.sweep(AT + SOURCE_GC);
        assert_eq!((sources.table.len(), sources.count(peer)), (1, 1));
        sources.sweep(AT + SOURCE_GC * 3 / 2);
        assert_eq!((sources.table.len(), sources.count(peer)), (0, 0));
        // A large table is swept in parts, none of which is left out.
        let many = u32::try_from(SWEEP_PART * 2 + 10).expect("a small number");
        for n in 0..many {
            let prefix = IpNet::new(core::net::Ipv4Addr::from(n).into(), 32).expect("a host");
            sources.announced(prefix, of(id, 1, 200), Some(peer), AT + SOURCE_GC * (n % 2));
        }
        let parts = [1, 2, 3].map(|_| (sources.sweep(AT + SOURCE_GC), sources.table.len()));
        assert_eq!(parts, [(false, SWEEP_PART * 3 / 2 + 10), (false, SWEEP_PART + 10), (true, SWEEP_PART + 5)]);
        assert_eq!(sources.count(peer), SWEEP_PART + 5);
    }
}
