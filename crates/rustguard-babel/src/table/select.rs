//! Route selection (RFC 8966 §3.6) with hysteresis (A.3), and the set of next hops beside the selected one.
use crate::{
    params::{METRIC_CLIENT_IDLE, METRIC_CLIENT_PRESENT, METRIC_CLIENT_SILENT},
    table::{
        route::{Entry, Selected},
        source::{Source, Sources},
    },
    wire::types::{Announcement, INFINITY, RouterId, add},
};
use ipnet::IpNet;
use rustguard_core::{
    node::PeerId,
    routing::{MAX_WEIGHT, NextHop, NextHops},
    time::Instant,
};

/// A feasible route with a finite metric.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    peer: PeerId,
    route: Announcement,
    average: u64,
}

/// The input of selection besides the entry.
pub(crate) struct Selector<'a, C: Fn(PeerId) -> u16> {
    pub(crate) prefix: IpNet,
    /// The cost of the link to a neighbour.
    pub(crate) cost: C,
    pub(crate) sources: &'a Sources,
    /// How many sources a neighbour may bring in.
    pub(crate) max_sources: usize,
    pub(crate) now: Instant,
}

/// The outcome of selection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Choice {
    pub(crate) next: Selected,
    /// The announcement of this node.
    pub(crate) route: Announcement,
    /// Whether another route looks better, and will be selected if it stays better.
    pub(crate) reselect: bool,
}

impl<C: Fn(PeerId) -> u16> Selector<'_, C> {
    /// Selects a route. `local` is the announcement of this node as the origin. The sequence number does not count
    /// (§3.6): a newer route is not a better one.
    pub(crate) fn choose(&self, entry: &mut Entry, local: Option<Announcement>) -> Option<Choice> {
        for (&peer, route) in &mut entry.routes {
            if route.is_finite() {
                route.smoothed.set(add((self.cost)(peer), route.metric), self.now);
            }
        }
        let candidates = self.candidates(entry);
        let nearest = |candidate: &&Candidate| (candidate.route.metric, candidate.peer);
        let current = candidates.iter().find(|candidate| entry.via() == Some(candidate.peer));
        let better =
            |candidate: &&Candidate| current.is_none_or(|current| candidate.route.metric < current.route.metric);
        let chosen = candidates
            .iter()
            .filter(better)
            .filter(|candidate| current.is_none_or(|current| candidate.average < current.average))
            .min_by_key(nearest)
            .or(current);
        match (chosen, local) {
            (Some(chosen), local) if local.is_none_or(|local| chosen.route.metric < local.metric) => Some(Choice {
                next: Selected::Via(chosen.peer),
                route: chosen.route,
                reselect: candidates.iter().any(|candidate| candidate.route.metric < chosen.route.metric),
            }),
            (_, Some(local)) => Some(Choice { next: Selected::Local, route: local, reselect: false }),
            (_, None) => None,
        }
    }

    /// The next hops of the selected route. Neighbours with a feasible route to the same origin that is only slightly
    /// longer share the flows, weighted by its length. The next best neighbour is the backup. Each of these neighbours
    /// is nearer to the origin than any distance that this node announced, so no mixture of them can make a loop. This
    /// holds for one origin only.
    ///
    /// The distance that will be announced must be recorded in the sources before.
    pub(crate) fn hops(&self, entry: &Entry, peer: PeerId, route: Announcement) -> NextHops {
        let mut candidates = self.candidates(entry);
        candidates.retain(|candidate| candidate.route.router_id == route.router_id);
        candidates.sort_by_key(|candidate| (candidate.peer != peer, candidate.route.metric, candidate.peer));
        let was_member =
            |peer| entry.installed.as_ref().is_some_and(|hops| hops.members().iter().any(|member| member.peer == peer));
        // The part of the metric that stands for a client's presence is no distance.
        let presence = [METRIC_CLIENT_SILENT, METRIC_CLIENT_IDLE, METRIC_CLIENT_PRESENT]
            .into_iter()
            .find(|&presence| route.metric >= presence)
            .unwrap_or(0);
        let way = |route: Announcement| route.metric.saturating_sub(presence);
        // A present next hop has a wider bound: with one common bound, next hops at the bound would come and go.
        let within = |candidate: &Candidate| {
            let margin = if was_member(candidate.peer) { way(route) / 4 } else { way(route) / 8 };
            candidate.route.metric <= route.metric.saturating_add(margin.max(16))
        };
        let weight = |candidate: &Candidate| {
            let (own, best) = (u32::from(way(candidate.route).max(1)), u32::from(way(route)));
            let share = (u32::from(MAX_WEIGHT) * best + own / 2) / own;
            u8::try_from(share.min(MAX_WEIGHT.into())).expect("a weight")
        };
        let members = candidates.iter().filter(|candidate| within(candidate));
        let members: Vec<NextHop> =
            members.map(|candidate| NextHop { peer: candidate.peer, weight: weight(candidate) }).collect();
        let backup = candidates.iter().find(|candidate| !within(candidate)).map(|candidate| candidate.peer);
        NextHops::new(members, backup)
    }

    /// Whether a route may be used.
    pub(crate) fn is_feasible(&self, peer: PeerId, route: Announcement) -> bool {
        self.is_feasible_beyond(self.sources.get(self.prefix, route.router_id), peer, route)
    }

    fn is_feasible_beyond(&self, source: Option<Source>, peer: PeerId, route: Announcement) -> bool {
        // A neighbour that invents origins fills only its own share of the source table.
        source.map_or_else(|| self.sources.count(peer) < self.max_sources, |source| source.permits(route))
    }

    fn candidates(&self, entry: &Entry) -> Vec<Candidate> {
        let mut candidates = Vec::with_capacity(entry.routes.len());
        // Most prefixes have one origin, however many routes lead to it.
        let mut last: Option<(RouterId, Option<Source>)> = None;
        for (&peer, route) in &entry.routes {
            let metric = add((self.cost)(peer), route.metric);
            if metric == INFINITY {
                continue;
            }
            let (_, source) = *last
                .filter(|(router_id, _)| *router_id == route.router_id)
                .get_or_insert_with(|| (route.router_id, self.sources.get(self.prefix, route.router_id)));
            last = Some((route.router_id, source));
            if self.is_feasible_beyond(source, peer, route.announcement()) {
                candidates.push(Candidate {
                    peer,
                    route: Announcement { metric, ..route.announcement() },
                    average: route.smoothed.average(),
                });
            }
        }
        candidates
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        table::route::{Route, SmoothedMetric},
        wire::types::Seqno,
    };
    use core::time::Duration;

    const COST: u16 = 100;

    fn at(ms: u64) -> Instant {
        Instant::from_nanos(1 << 40) + Duration::from_millis(ms)
    }

    fn prefix() -> IpNet {
        "10.0.0.0/8".parse().expect("a prefix")
    }

    fn id(byte: u8) -> RouterId {
        RouterId::new([byte; 8]).expect("a router-id")
    }

    /// The announcement of origin `byte` with its first number.
    fn of(byte: u8, metric: u16) -> Announcement {
        Announcement { router_id: id(byte), seqno: Seqno(1), metric }
    }

    #[derive(Default)]
    struct Case {
        entry: Entry,
        sources: Sources,
    }

    impl Case {
        fn route(mut self, peer: u32, origin: u8, seqno: u16, metric: u16) -> Self {
            let smoothed = SmoothedMetric::new(metric.saturating_add(COST), at(0));
            let (seqno, interval) = (Seqno(seqno), Duration::from_secs(1));
            let route = Route {
                router_id: id(origin),
                seqno,
                metric,
                at: at(0),
                interval,
                expires: at(0),
                refresh_at: None,
                smoothed,
            };
            self.entry.routes.insert(PeerId(peer), route);
            self
        }

        fn selector(&self, ms: u64) -> Selector<'_, impl Fn(PeerId) -> u16> {
            Selector { prefix: prefix(), cost: |_| COST, sources: &self.sources, max_sources: 4, now: at(ms) }
        }

        fn choose(&mut self, ms: u64, local: Option<u16>) -> Option<(Selected, u16)> {
            let mut entry = core::mem::take(&mut self.entry);
            let local = local.map(|metric| Announcement { router_id: id(99), seqno: Seqno(0), metric });
            let choice = self.selector(ms).choose(&mut entry, local);
            self.entry = entry;
            self.entry.selected = choice.map(|choice| choice.next);
            choice.map(|choice| (choice.next, choice.route.metric))
        }

        fn hops(&self, peer: u32) -> (Vec<(u32, u8)>, Option<u32>) {
            let chosen = self.entry.routes[&PeerId(peer)];
            let route = Announcement { metric: chosen.metric + COST, ..chosen.announcement() };
            let hops = self.selector(0).hops(&self.entry, PeerId(peer), route);
            (
                hops.members().iter().map(|member| (member.peer.0, member.weight)).collect(),
                hops.backup().map(|peer| peer.0),
            )
        }
    }

    #[test]
    fn the_nearest_feasible_route_is_selected() {
        let mut case = Case::default().route(1, 7, 1, 300).route(2, 7, 1, 200).route(3, 7, 1, INFINITY);
        assert_eq!(case.choose(0, None), Some((Selected::Via(PeerId(2)), 300)));
        case.sources.announced(prefix(), of(7, 200), None, at(0));
        assert_eq!(case.choose(0, None), None, "neither is nearer than what was announced");
        assert_eq!(Case::default().choose(0, None), None);
    }

    /// RFC 8966 §3.5.2.
    #[test]
    fn metrics_grow_strictly_and_end_at_infinity() {
        assert_eq!(
            Case::default().route(1, 7, 1, INFINITY - 101).choose(0, None),
            Some((Selected::Via(PeerId(1)), INFINITY - 1))
        );
        assert_eq!(Case::default().route(1, 7, 1, INFINITY - 100).choose(0, None), None);
        assert_eq!(Case::default().route(1, 7, 1, 0).choose(0, None), Some((Selected::Via(PeerId(1)), COST)));
    }

    /// RFC 8966 §3.6.
    #[test]
    fn a_newer_seqno_is_no_reason_to_select_a_route() {
        let mut case = Case::default().route(1, 7, 5, 200);
        case.choose(0, None);
        let mut case = case.route(2, 7, 6, 201);
        assert_eq!(case.choose(60_000, None), Some((Selected::Via(PeerId(1)), 300)));
        assert_eq!(Case::default().route(1, 7, 5, 200).route(2, 7, 6, 201).choose(0, None).expect("two routes").1, 300);
    }

    #[test]
    fn a_better_route_has_to_be_better_for_a_while() {
        let mut case = Case::default().route(1, 7, 1, 200).route(2, 7, 1, 250);
        assert_eq!(case.choose(0, None), Some((Selected::Via(PeerId(1)), 300)));
        case.entry.routes.get_mut(&PeerId(1)).expect("a route").metric = 290;
        assert_eq!(case.choose(10, None), Some((Selected::Via(PeerId(1)), 390)));
        assert_eq!(case.choose(500, None), Some((Selected::Via(PeerId(1)), 390)));
        assert!(case.selector(500).choose(&mut case.entry.clone(), None).expect("two routes").reselect);
        assert_eq!(case.choose(9_000, None), Some((Selected::Via(PeerId(2)), 350)));
        let mut swinging = Case::default().route(1, 7, 1, 200).route(2, 7, 1, 203);
        swinging.choose(0, None);
        for step in 1..200_u16 {
            swinging.entry.routes.get_mut(&PeerId(1)).expect("a route").metric = if step % 2 == 0 { 190 } else { 210 };
            assert_eq!(swinging.choose(u64::from(step) * 300, None).expect("two routes").0, Selected::Via(PeerId(1)));
        }
    }

    #[test]
    fn the_own_announcement_wins_unless_it_is_farther() {
        let mut case = Case::default().route(1, 7, 1, 200);
        assert_eq!(case.choose(0, Some(300)), Some((Selected::Local, 300)));
        assert_eq!(case.choose(0, Some(301)), Some((Selected::Via(PeerId(1)), 300)));
        assert_eq!(Case::default().choose(0, Some(0)), Some((Selected::Local, 0)));
    }

    #[test]
    fn flows_are_shared_among_hardly_longer_routes_to_one_origin() {
        let mut case = Case::default()
            .route(1, 7, 1, 300)
            .route(2, 7, 1, 300)
            .route(3, 7, 1, 345)
            .route(4, 7, 1, 380)
            .route(5, 7, 1, 360);
        case = case.route(6, 8, 1, 300);
        assert_eq!(case.hops(1), (vec![(1, 8), (2, 8), (3, 7)], Some(5)));
        case.entry.installed = Some(NextHops::new([4, 5].map(|peer| NextHop { peer: PeerId(peer), weight: 1 }), None));
        assert_eq!(case.hops(1).0, [(1, 8), (2, 8), (3, 7), (5, 7), (4, 7)], "members stay for longer");
        // The announced distance limits the possible next hops: 300 + 100 is announced.
        case.sources.announced(prefix(), of(7, 340), None, at(0));
        assert_eq!(case.hops(1), (vec![(1, 8), (2, 8)], None));
    }

    #[test]
    fn invented_origins_fill_the_share_of_their_neighbour() {
        let mut case = Case::default().route(1, 50, 1, 100);
        for origin in 1..=4 {
            case.sources.announced(prefix(), of(origin, 340), Some(PeerId(1)), at(0));
        }
        assert_eq!(case.choose(0, None), None);
        let mut case = case.route(2, 50, 1, 100);
        assert_eq!(case.choose(0, None), Some((Selected::Via(PeerId(2)), 200)));
        assert_eq!(case.route(1, 4, 2, 50).choose(0, None), Some((Selected::Via(PeerId(1)), 150)), "a known one");
    }
}
