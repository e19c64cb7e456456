//! The route table (RFC 8966 §3.2.6): for each prefix, the announcements of neighbours, the selected route, and this
//! node's announcement.
use crate::{
    params::{METRIC_CLIENT_IDLE, METRIC_CLIENT_PRESENT, METRIC_JUMP, METRIC_SMOOTHING, SEQNO_PACE},
    wire::types::{Announcement, INFINITY, RouterId, Seqno},
};
use core::time::Duration;
use ipnet::IpNet;
use rustguard_core::{node::PeerId, routing::NextHops, time::Instant};
use std::collections::{BTreeMap, BTreeSet};

/// A neighbour's announcement for a prefix.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Route {
    pub(crate) router_id: RouterId,
    pub(crate) seqno: Seqno,
    /// As announced; infinite when the route is retracted or expired.
    pub(crate) metric: u16,
    /// When it was announced or retracted last.
    pub(crate) at: Instant,
    /// The announced time from one update to the next.
    pub(crate) interval: Duration,
    /// When the metric becomes infinite; if it is infinite, when the route and its permission are removed.
    pub(crate) expires: Instant,
    /// When to ask for an update, so that the route does not expire because updates were lost.
    pub(crate) refresh_at: Option<Instant>,
    pub(crate) smoothed: SmoothedMetric,
}

impl Route {
    pub(crate) fn is_finite(&self) -> bool {
        self.metric != INFINITY
    }

    /// The neighbour's announcement. Its metric starts at the neighbour.
    pub(crate) fn announcement(&self) -> Announcement {
        Announcement { router_id: self.router_id, seqno: self.seqno, metric: self.metric }
    }

    /// Ends the route. The neighbour may send from the prefix for one more interval, so that packets on their way are
    /// accepted.
    fn retract(&mut self, now: Instant) {
        if self.is_finite() {
            self.metric = INFINITY;
            self.refresh_at = None;
            self.expires = now + self.interval;
        }
    }
}

/// A metric over time, an exponential average (RFC 8966 A.3), in 256ths.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SmoothedMetric {
    average: u64,
    metric: u16,
    at: Instant,
}

impl SmoothedMetric {
    pub(crate) fn new(metric: u16, now: Instant) -> Self {
        Self { average: u64::from(metric) << 8, metric, at: now }
    }

    /// Sets the metric from now on. The value until now moves the average.
    pub(crate) fn set(&mut self, metric: u16, now: Instant) {
        // An announcement may come before the link is known to work in both directions. The infinite metric would
        // influence the average for half a minute. The same applies to clients that come or become silent.
        if self.metric == INFINITY || self.metric.abs_diff(metric) >= METRIC_JUMP {
            *self = Self::new(metric, now);
            return;
        }
        let elapsed = u64::try_from(now.since(self.at).as_millis()).unwrap_or(u64::MAX / 2).min(1 << 30);
        let constant = u64::try_from(METRIC_SMOOTHING.as_millis()).expect("seconds");
        let target = u64::from(self.metric) << 8;
        self.average = (self.average * constant + target * elapsed) / (constant + elapsed);
        (self.metric, self.at) = (metric, now);
    }

    pub(crate) fn average(&self) -> u64 {
        self.average
    }
}

/// The selected route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Selected {
    /// This node originates the prefix.
    Local,
    /// To a neighbour.
    Via(PeerId),
}

/// A retraction that not all neighbours have acknowledged (§3.5.4).
#[derive(Clone, Debug)]
pub(crate) struct Hold {
    pub(crate) number: u64,
    pub(crate) owed: BTreeSet<PeerId>,
    pub(crate) until: Instant,
}

/// Another gateway that announces a client of this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rival {
    pub(crate) router_id: RouterId,
    /// Whether the client has just come there.
    pub(crate) is_new: bool,
}

impl Rival {
    /// Whether the client may have moved since this was the nearest rival.
    pub(crate) fn is_news_after(self, before: Option<Self>) -> bool {
        before.is_none_or(|before| self.router_id != before.router_id || self.is_new && !before.is_new)
    }
}

/// The outcome of a request for a newer sequence number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Raise {
    /// The number in use is new enough.
    NotNeeded,
    /// The number rose a moment ago, and the answer is still on its way.
    TooSoon,
    /// It rose by one.
    Raised {
        /// The number in use now.
        to: Seqno,
        /// Whether it is the requested number. If not, the neighbour remembers numbers that this run never announced.
        is_enough: bool,
    },
}

/// Everything about one prefix.
#[derive(Clone, Debug, Default)]
pub(crate) struct Entry {
    pub(crate) routes: BTreeMap<PeerId, Route>,
    /// The metric, if the host announces the prefix.
    pub(crate) host: Option<u16>,
    /// The client that has the prefix.
    pub(crate) client: Option<PeerId>,
    /// The sequence number of this node's announcements. Each prefix has its own, because a new number makes other
    /// nodes' backup routes to the prefix unfeasible for a while. This should not affect other prefixes.
    pub(crate) seqno: Seqno,
    /// When it last rose on request.
    pub(crate) raised: Option<Instant>,
    pub(crate) selected: Option<Selected>,
    /// The announcement of this node.
    pub(crate) announced: Option<Announcement>,
    /// The metric that an update was last triggered for.
    pub(crate) told_metric: u16,
    pub(crate) installed: Option<NextHops>,
    pub(crate) hold: Option<Hold>,
    /// Another gateway that announces that it hears the client.
    pub(crate) rival: Option<Rival>,
    wake: Option<Instant>,
}

impl Entry {
    /// The neighbour that is the selected next hop.
    pub(crate) fn via(&self) -> Option<PeerId> {
        match self.selected {
            Some(Selected::Via(peer)) => Some(peer),
            Some(Selected::Local) | None => None,
        }
    }

    /// The nearest gateway that announces that it hears the client.
    pub(crate) fn nearest_rival(&self) -> Option<Rival> {
        let live = self.routes.values().filter(|route| route.metric < METRIC_CLIENT_IDLE);
        let rival = live.min_by_key(|route| route.metric)?;
        // A gateway that has heard the client for longer announces at least this metric.
        Some(Rival { router_id: rival.router_id, is_new: rival.metric < METRIC_CLIENT_PRESENT })
    }

    /// Raises the sequence number by one, however high the requested number is (§3.8.1.2).
    pub(crate) fn raise(&mut self, wanted: Seqno, now: Instant) -> Raise {
        // The neighbour remembers one less than it asks for, and accepts newer numbers than the remembered one. Of two
        // numbers half the circle apart, neither is newer.
        let remembered = wanted.plus(u16::MAX);
        if self.seqno.newer_than(remembered) {
            return Raise::NotNeeded;
        }
        if self.raised.is_some_and(|raised| now.since(raised) < SEQNO_PACE) {
            return Raise::TooSoon;
        }
        self.raised = Some(now);
        let before = self.seqno;
        self.seqno = before.plus(1);
        Raise::Raised { to: self.seqno, is_enough: remembered == before }
    }

    /// Whether this node originates the prefix.
    pub(crate) fn is_own(&self) -> bool {
        self.host.is_some() || self.client.is_some()
    }

    fn is_empty(&self) -> bool {
        !self.is_own()
            && self.routes.is_empty()
            && self.selected.is_none()
            && self.hold.is_none()
            && self.installed.is_none()
    }
}

/// All prefixes, and when each has to be looked at. Their routes change only through [`Table::learn`],
/// [`Table::retract`] and [`Table::forget`], so that the routes of one neighbour are found without examining others.
#[derive(Debug, Default)]
pub(crate) struct Table {
    pub(crate) entries: BTreeMap<IpNet, Entry>,
    wakes: BTreeSet<(Instant, IpNet)>,
    learned: BTreeMap<PeerId, Learned>,
}

/// The prefixes of one neighbour: with a finite route, or with an ended route whose permission has not ended yet.
#[derive(Debug, Default)]
struct Learned {
    finite: BTreeSet<IpNet>,
    ended: BTreeSet<IpNet>,
}

impl Table {
    /// Takes a finite route of a neighbour. Returns the route that it replaces.
    pub(crate) fn learn(&mut self, prefix: IpNet, peer: PeerId, route: Route) -> Option<Route> {
        let learned = self.learned.entry(peer).or_default();
        learned.finite.insert(prefix);
        learned.ended.remove(&prefix);
        self.entries.entry(prefix).or_default().routes.insert(peer, route)
    }

    /// Ends a route. False if the neighbour has no finite route to the prefix.
    pub(crate) fn retract(&mut self, prefix: IpNet, peer: PeerId, now: Instant) -> bool {
        let Some(learned) = self.learned.get_mut(&peer) else { return false };
        if !learned.finite.remove(&prefix) {
            return false;
        }
        learned.ended.insert(prefix);
        if let Some(route) = self.entries.get_mut(&prefix).and_then(|entry| entry.routes.get_mut(&peer)) {
            route.retract(now);
        }
        true
    }

    /// Removes a route. False if there is none.
    pub(crate) fn forget(&mut self, prefix: IpNet, peer: PeerId) -> bool {
        if let Some(learned) = self.learned.get_mut(&peer) {
            learned.finite.remove(&prefix);
            learned.ended.remove(&prefix);
            if learned.finite.is_empty() && learned.ended.is_empty() {
                self.learned.remove(&peer);
            }
        }
        self.entries.get_mut(&prefix).is_some_and(|entry| entry.routes.remove(&peer).is_some())
    }

    /// The prefixes that a neighbour announces.
    pub(crate) fn finite_of(&self, peer: PeerId) -> impl Iterator<Item = IpNet> + '_ {
        self.learned.get(&peer).into_iter().flat_map(|learned| learned.finite.iter().copied())
    }

    /// The prefixes that a neighbour announces, or announced until a moment ago.
    pub(crate) fn of(&self, peer: PeerId) -> Vec<IpNet> {
        let ended = self.learned.get(&peer).into_iter().flat_map(|learned| learned.ended.iter().copied());
        self.finite_of(peer).chain(ended).collect()
    }

    /// Sets the time at which a prefix is handled next. Removes its entry if nothing is known about the prefix.
    pub(crate) fn wake(&mut self, prefix: IpNet, at: Option<Instant>) {
        let Some(entry) = self.entries.get_mut(&prefix) else { return };
        if entry.wake != at || entry.is_empty() {
            if let Some(before) = entry.wake.take() {
                self.wakes.remove(&(before, prefix));
            }
            if entry.is_empty() {
                self.entries.remove(&prefix);
            } else if let Some(at) = at {
                entry.wake = Some(at);
                self.wakes.insert((at, prefix));
            }
        }
    }

    /// A prefix that is due.
    pub(crate) fn due(&mut self, now: Instant) -> Option<IpNet> {
        let &(at, prefix) = self.wakes.first().filter(|(at, _)| *at <= now)?;
        self.wakes.remove(&(at, prefix));
        if let Some(entry) = self.entries.get_mut(&prefix) {
            entry.wake = None;
        }
        Some(prefix)
    }

    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.wakes.first().map(|&(at, _)| at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Instant {
        Instant::from_nanos(1 << 40) + Duration::from_millis(ms)
    }

    #[test]
    fn the_average_follows_slowly() {
        let mut smoothed = SmoothedMetric::new(100, at(0));
        smoothed.set(1_000, at(10));
        assert_eq!(smoothed.average() >> 8, 100, "nothing yet");
        smoothed.set(1_000, at(4_010));
        assert_eq!(smoothed.average() >> 8, 550);
        smoothed.set(1_000, at(1 << 40));
        assert_eq!(smoothed.average() >> 8, 999);
        let mut unreachable = SmoothedMetric::new(INFINITY, at(0));
        unreachable.set(100, at(10));
        assert_eq!(unreachable.average() >> 8, 100);
    }

    #[test]
    fn a_link_that_did_not_work_leaves_no_trace_in_the_average() {
        let mut smoothed = SmoothedMetric::new(INFINITY, at(0));
        smoothed.set(96, at(100));
        assert_eq!(smoothed.average() >> 8, 96);
        smoothed.set(INFINITY, at(1_000));
        smoothed.set(200, at(2_000));
        assert_eq!(smoothed.average() >> 8, 200);
    }

    #[test]
    fn the_prefixes_of_a_neighbour_equal_a_look_at_all_routes() {
        let (mut table, mut random) = (Table::default(), crate::jitter::Jitter(3));
        let metric = |finite| if finite { 100 } else { INFINITY };
        for _ in 0..3_000 {
            let prefix = IpNet::new([10, (random.next() % 20) as u8, 0, 0].into(), 16).expect("a prefix");
            let peer = PeerId((random.next() % 3) as u32);
            let has = |table: &Table| table.entries.get(&prefix).and_then(|entry| entry.routes.get(&peer)).copied();
            let before = has(&table);
            match random.next() % 3 {
                0 => {
                    let route = Route {
                        router_id: RouterId::new([1; 8]).expect("a router-id"),
                        seqno: Seqno(1),
                        metric: metric(true),
                        at: at(0),
                        interval: Duration::ZERO,
                        expires: at(0),
                        refresh_at: None,
                        smoothed: SmoothedMetric::default(),
                    };
                    assert_eq!(table.learn(prefix, peer, route).is_some(), before.is_some());
                }
                1 => assert_eq!(table.retract(prefix, peer, at(1)), before.is_some_and(|route| route.is_finite())),
                _ => assert_eq!(table.forget(prefix, peer), before.is_some()),
            }
            for peer in (0..3).map(PeerId) {
                let routes = |finite_only: bool| -> BTreeSet<IpNet> {
                    let has = |entry: &Entry| entry.routes.get(&peer).is_some_and(|it| it.is_finite() || !finite_only);
                    table.entries.iter().filter(|(_, entry)| has(entry)).map(|(&prefix, _)| prefix).collect()
                };
                assert_eq!(table.finite_of(peer).collect::<BTreeSet<_>>(), routes(true));
                let of = table.of(peer);
                assert_eq!((of.len(), of.into_iter().collect::<BTreeSet<_>>()), (routes(false).len(), routes(false)));
            }
        }
    }

    #[test]
    fn each_prefix_wakes_once_and_empty_ones_go() {
        let prefix: IpNet = "10.0.0.0/8".parse().expect("a prefix");
        let mut table = Table::default();
        table.wake(prefix, Some(at(1)));
        assert_eq!(table.deadline(), None, "not in the table");
        table.entries.entry(prefix).or_default().host = Some(0);
        table.wake(prefix, Some(at(5)));
        table.wake(prefix, Some(at(3)));
        assert_eq!((table.deadline(), table.wakes.len(), table.due(at(2))), (Some(at(3)), 1, None));
        assert_eq!((table.due(at(3)), table.due(at(9))), (Some(prefix), None));
        table.wake(prefix, Some(at(5)));
        table.entries.get_mut(&prefix).expect("in the table").host = None;
        table.wake(prefix, Some(at(5)));
        assert!(table.entries.is_empty() && table.wakes.is_empty());
    }
}
