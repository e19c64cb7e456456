//! A neighbour: whether it is heard, whether it hears this node, and what the link costs (RFC 8966 §3.2.4, §3.4, A.2).
pub(crate) mod hello;
pub(crate) mod neighbours;
pub(crate) mod outbox;
pub(crate) mod rtt;

use crate::{
    jitter::Jitter,
    neighbour::{
        hello::{History, Restarted},
        outbox::Outbox,
        rtt::RoundTrip,
    },
    params::{
        COST_MAX, COST_PACE, DUMP_PACE, HELLO_BUSY, HELLO_IDLE, LINK_BUSY, NAMES_EVERY, PROBE_PACE, PROBES,
        UPDATE_INTERVAL, URGENT_DELAY, from_centis, hold,
    },
    wire::types::{INFINITY, Seqno},
};
use core::{net::Ipv6Addr, time::Duration};
use ipnet::IpNet;
use rustguard_core::time::Instant;

/// A peer that is a router. It is a neighbour as soon as a Hello of it was received; before that, it is only sent
/// Hellos.
#[derive(Debug)]
pub(crate) struct Neighbour {
    /// Its allowed IPs: the prefixes that it may announce.
    pub(crate) allowed: Vec<IpNet>,
    /// The link-local address that it sends from.
    pub(crate) address: Option<Ipv6Addr>,
    multicast: History,
    unicast: History,
    /// The rxcost in its last IHU, and how long the IHU holds.
    txcost: u16,
    txcost_until: Instant,
    pub(crate) rtt: RoundTrip,
    /// Whether its packets are authenticated, so that it drops ours (RFC 8967).
    pub(crate) wants_macs: bool,
    /// Whether the direction from the neighbour to this node works.
    receives: bool,
    cost: u16,
    /// A finite cost does not change before `cost_until`. At `cost_due` it is computed again, if it would have
    /// changed.
    cost_until: Instant,
    cost_due: Option<Instant>,
    /// When an authentic packet last came from it.
    heard: Option<Instant>,
    probe: Option<Probe>,
    busy_until: Instant,
    /// Its entries in the route table.
    pub(crate) routes: usize,
    /// The time to send it all updates with acknowledgment, because it is new or asks, and the earliest time for the
    /// next such dump.
    dump_at: Option<Instant>,
    dump_after: Option<Instant>,
    /// When the next periodic update is due.
    update_at: Option<Instant>,
    /// How many periodic updates were sent since the last one with all names.
    updates: u8,
    pub(crate) out: Outbox,
}

/// Acknowledgment requests to a silent neighbour.
#[derive(Clone, Copy, Debug)]
struct Probe {
    left: u8,
    at: Instant,
    /// Whether the link is given up without an answer, because data is not answered either.
    decides: bool,
}

/// The result of [`Neighbour::assess`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LinkChange {
    /// The cost of the link, if it changed.
    pub(crate) cost: Option<u16>,
    /// Whether no Hello came for so long that everything is forgotten.
    pub(crate) forgotten: bool,
}

impl Neighbour {
    pub(crate) fn new(allowed: Vec<IpNet>, first_seqno: Seqno, now: Instant) -> Self {
        Self {
            allowed,
            address: None,
            multicast: History::default(),
            unicast: History::default(),
            txcost: INFINITY,
            txcost_until: now,
            rtt: RoundTrip::default(),
            wants_macs: false,
            receives: false,
            cost: INFINITY,
            cost_until: now,
            cost_due: None,
            heard: None,
            probe: None,
            busy_until: now + LINK_BUSY,
            routes: 0,
            dump_at: None,
            dump_after: None,
            update_at: None,
            updates: 0,
            out: Outbox::new(first_seqno, now),
        }
    }

    /// Whether Hellos of it came recently.
    pub(crate) fn is_acquired(&self) -> bool {
        !self.multicast.is_empty() || !self.unicast.is_empty()
    }

    /// Cost of the link, infinite when it does not work both ways.
    pub(crate) fn cost(&self) -> u16 {
        self.cost
    }

    /// The rxcost to announce in an IHU: the nominal cost if the neighbour is heard.
    pub(crate) fn rxcost(&self) -> u16 {
        if self.receives { crate::params::COST } else { INFINITY }
    }

    pub(crate) fn hello_interval(&self, now: Instant) -> Duration {
        if now < self.busy_until { HELLO_BUSY } else { HELLO_IDLE }
    }

    /// A Hello came. True when it is the first.
    pub(crate) fn hello(
        &mut self,
        unicast: bool,
        seqno: Seqno,
        interval: u16,
        now: Instant,
    ) -> Result<bool, Restarted> {
        let first = !self.is_acquired();
        let history = if unicast { &mut self.unicast } else { &mut self.multicast };
        history.received(seqno, interval, now)?;
        Ok(first)
    }

    /// An IHU about this node came. A cost of zero would make loops free of cost (§3.4.3: strictly positive).
    pub(crate) fn ihu(&mut self, rxcost: u16, interval: u16, now: Instant) {
        self.txcost = rxcost.max(1);
        self.txcost_until = now + hold(from_centis(interval));
    }

    /// An authentic packet came.
    pub(crate) fn heard(&mut self, now: Instant) {
        self.heard = Some(now);
        self.probe = None;
    }

    /// The link carries data: Hellos become frequent.
    pub(crate) fn carried(&mut self, now: Instant) {
        if self.hello_interval(now) == HELLO_IDLE {
            self.out.hello_now(now);
        }
        self.busy_until = now + LINK_BUSY;
    }

    /// Data is not answered: probe the neighbour, and give the link up without an answer.
    pub(crate) fn unanswered(&mut self, now: Instant) {
        if self.receives && !self.probe.is_some_and(|probe| probe.decides) {
            self.probe = Some(Probe { left: PROBES, at: now, decides: true });
        }
    }

    /// WireGuard cannot reach it.
    pub(crate) fn handshake_failed(&mut self, now: Instant) {
        if self.heard.is_none_or(|heard| now.since(heard) > HELLO_BUSY * 3) {
            (self.multicast, self.unicast) = Default::default();
        }
    }

    /// Counts missed Hellos and computes the cost again. The caller handles the change.
    pub(crate) fn assess(&mut self, now: Instant) -> LinkChange {
        let missed = self.multicast.count_missed(now) + self.unicast.count_missed(now);
        if missed > 0 && self.receives && self.probe.is_none() {
            self.probe = Some(Probe { left: PROBES, at: now, decides: false });
        }
        if let Some(Probe { left: 0, at, decides: true }) = self.probe
            && at <= now
        {
            (self.multicast, self.unicast) = Default::default();
        }
        let interval = self.multicast.interval().max(self.unicast.interval());
        // At 1 % loss, two of three Hellos are lost fifty times a day at this pace. A neighbour that answers probes or
        // sends data is alive: only silence takes a link down. The first probe leaves after one and a half
        // intervals, and may be lost as well; the second has time to be answered.
        let silence = interval * 3 / 2 + PROBE_PACE * 3 / 2;
        let alive = self.is_acquired() && self.heard.is_some_and(|heard| now.since(heard) <= silence);
        let receives = self.multicast.is_good() || self.unicast.is_good() || (self.receives && alive);
        let cost = self.cost_now(receives, now);
        let (heard_changed, cost_changed) = (receives != self.receives, cost != self.cost);
        let came_up = self.cost == INFINITY && cost != INFINITY;
        if cost_changed {
            self.cost_until = now + COST_PACE;
        }
        (self.receives, self.cost) = (receives, cost);
        if cost == INFINITY {
            self.cost_due = None;
        }
        if !receives {
            self.probe = None;
        }
        if heard_changed {
            // The neighbour should learn this at once, above all if it is not heard any more.
            self.out.hello_now(now);
        }
        if came_up {
            self.out.request_everything(now + URGENT_DELAY);
            self.dump_at(now);
        }
        let forgotten = !self.is_acquired() && self.address.is_some();
        if forgotten {
            self.forget(now);
        }
        LinkChange { cost: cost_changed.then_some(cost), forgotten }
    }

    /// The cost of the link by the present state (§3.4.3).
    fn cost_now(&mut self, receives: bool, now: Instant) -> u16 {
        if !receives || self.txcost == INFINITY || now >= self.txcost_until {
            return INFINITY;
        }
        // A peer may announce a higher rxcost than this node would. The addition for the round trip stays within the
        // bound.
        let sum = self.txcost.saturating_add(self.rtt.penalty()).min(COST_MAX.max(self.txcost));
        // Small changes are not worth an update to all neighbours.
        let settled = self.cost != INFINITY && sum.abs_diff(self.cost) < (self.cost / 8).max(16);
        let too_soon = self.cost != INFINITY && now < self.cost_until;
        self.cost_due = Some(self.cost_until).filter(|_| too_soon && !settled);
        if settled || too_soon { self.cost } else { sum }
    }

    /// Whether a probe is due.
    pub(crate) fn probe_due(&mut self, now: Instant) -> bool {
        match &mut self.probe {
            Some(probe) if probe.at <= now && probe.left > 0 => {
                probe.left -= 1;
                probe.at = now + PROBE_PACE;
                true
            }
            // The last probe was not answered in time.
            Some(probe) if probe.at <= now => {
                self.probe = None;
                false
            }
            _ => false,
        }
    }

    /// Schedules a dump of all updates for this time, or earlier if one was due before.
    pub(crate) fn dump_at(&mut self, at: Instant) {
        self.dump_at = Some(self.dump_at.map_or(at, |earlier| earlier.min(at)));
    }

    /// The earliest time of the next dump.
    pub(crate) fn dump_after(&self) -> Option<Instant> {
        self.dump_after
    }

    /// Whether a dump is due. It also replaces the periodic update.
    pub(crate) fn dump_due(&mut self, now: Instant, jitter: &mut Jitter) -> bool {
        let due = self.dump_at.is_some_and(|at| at <= now);
        if due {
            self.dump_at = None;
            self.dump_after = Some(now + DUMP_PACE);
            self.update_at = Some(now + jitter.shorten(UPDATE_INTERVAL, 10));
        }
        due
    }

    /// Whether the periodic update is due.
    pub(crate) fn update_due(&mut self, now: Instant, jitter: &mut Jitter) -> bool {
        let due = self.update_at.is_some_and(|at| at <= now);
        if due {
            self.update_at = Some(now + jitter.shorten(UPDATE_INTERVAL, 10));
            self.updates = (self.updates + 1) % NAMES_EVERY;
            self.out.names = self.updates == 0;
        }
        due
    }

    /// Forgets everything that it sent. Its configuration and the schedule of Hellos stay.
    pub(crate) fn forget(&mut self, now: Instant) {
        let allowed = core::mem::take(&mut self.allowed);
        let mut fresh = Self::new(allowed, Seqno(0), now);
        (fresh.busy_until, fresh.routes, fresh.heard) = (self.busy_until, self.routes, self.heard);
        fresh.out = self.out.fresh();
        *self = fresh;
    }

    pub(crate) fn deadline(&self) -> Instant {
        let until = Some(self.txcost_until).filter(|_| self.cost != INFINITY);
        let probe = self.probe.map(|probe| probe.at);
        let others =
            [self.multicast.due(), self.unicast.due(), probe, until, self.cost_due, self.dump_at, self.update_at];
        let out = self.out.deadline(self.is_acquired());
        others.into_iter().flatten().fold(out, Instant::min)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::params::COST;

    fn at(ms: u64) -> Instant {
        Instant::from_nanos(1 << 40) + Duration::from_millis(ms)
    }

    /// A neighbour that has sent two Hellos and an IHU by the time 300.
    fn up() -> Neighbour {
        let mut neighbour = Neighbour::new(Vec::new(), Seqno(0), at(0));
        for (seqno, ms) in [(1, 0), (2, 300)] {
            neighbour.heard(at(ms));
            neighbour.hello(false, Seqno(seqno), 30, at(ms)).expect("in order");
        }
        neighbour.ihu(COST, 90, at(300));
        let change = neighbour.assess(at(300));
        assert_eq!(change, LinkChange { cost: Some(COST), forgotten: false });
        assert_eq!((neighbour.cost(), neighbour.rxcost()), (COST, COST));
        neighbour
    }

    /// RFC 8966 §3.4.3.
    #[test]
    fn a_link_has_no_cost_until_both_directions_work() {
        let mut neighbour = Neighbour::new(Vec::new(), Seqno(0), at(0));
        neighbour.hello(false, Seqno(1), 30, at(0)).expect("in order");
        neighbour.ihu(96, 90, at(0));
        assert!(neighbour.assess(at(0)).cost.is_none(), "one Hello of three");
        neighbour.hello(false, Seqno(2), 30, at(0)).expect("in order");
        assert!(neighbour.assess(at(0)).cost.is_some());
        neighbour.ihu(INFINITY, 90, at(10));
        assert!(neighbour.assess(at(10)).cost.is_some() && neighbour.cost() == INFINITY, "it does not hear us");
        assert_eq!(neighbour.rxcost(), COST, "but is heard");
    }

    /// Two of three Hellos are lost, and the first probe too. At 1 % loss this happens once a day; it must not take the
    /// link down.
    #[test]
    fn a_link_waits_for_the_second_probe_but_not_for_the_third() {
        for answered in [true, false] {
            let mut neighbour = up();
            neighbour.assess(at(750));
            neighbour.heard(at(900));
            neighbour.hello(false, Seqno(4), 30, at(900)).expect("in order");
            assert!(neighbour.assess(at(900)).cost.is_none());
            assert!(neighbour.assess(at(1_350)).cost.is_none() && neighbour.probe_due(at(1_350)), "the first");
            assert!(neighbour.assess(at(1_440)).cost.is_none(), "something else happens meanwhile");
            assert!(neighbour.assess(at(1_500)).cost.is_none() && neighbour.probe_due(at(1_500)), "the second");
            if answered {
                neighbour.heard(at(1_520));
            }
            assert_eq!(neighbour.assess(at(1_580)).cost.is_some(), !answered);
        }
    }

    /// RFC 8966 §3.4.1.
    #[test]
    fn unicast_hellos_alone_are_enough() {
        let mut neighbour = Neighbour::new(Vec::new(), Seqno(0), at(0));
        for seqno in [65_535, 0] {
            neighbour.hello(true, Seqno(seqno), 30, at(0)).expect("in order");
        }
        neighbour.ihu(96, 90, at(0));
        assert!(neighbour.assess(at(0)).cost == Some(COST));
    }

    /// RFC 8966 §3.4.2.
    #[test]
    fn the_txcost_holds_three_and_a_half_intervals_and_is_positive() {
        let mut neighbour = up();
        let mut seqno = 2;
        let mut hello = |neighbour: &mut Neighbour, ms: u64| {
            seqno += 1;
            neighbour.heard(at(ms));
            neighbour.hello(false, Seqno(seqno), 30, at(ms)).expect("in order");
            neighbour.assess(at(ms));
        };
        for step in 2..=11 {
            hello(&mut neighbour, step * 300);
            assert_eq!(neighbour.cost(), COST);
        }
        assert!(neighbour.deadline() <= at(3_450));
        hello(&mut neighbour, 3_450);
        assert_eq!((neighbour.cost(), neighbour.rxcost()), (INFINITY, COST));
        neighbour.ihu(0, 90, at(3_500));
        neighbour.assess(at(3_500));
        assert_eq!(neighbour.cost(), 1);
    }

    #[test]
    fn silence_is_noticed_within_a_second() {
        let mut neighbour = up();
        assert_eq!(neighbour.assess(at(750)), LinkChange { cost: None, forgotten: false });
        assert!(neighbour.probe_due(at(750)), "a Hello was missed");
        let change = neighbour.assess(at(1_050));
        assert!(change.cost == Some(INFINITY) && neighbour.rxcost() == INFINITY, "750 ms after the last sign of life");
    }

    #[test]
    fn lost_hellos_alone_do_not_take_a_link_down() {
        let mut neighbour = up();
        neighbour.assess(at(750));
        neighbour.heard(at(800));
        assert!(neighbour.assess(at(1_050)).cost.is_none(), "a probe was answered");
        assert!(neighbour.assess(at(1_500)).cost.is_some(), "and nothing came after it");
    }

    #[test]
    fn unanswered_data_takes_it_down_unless_a_probe_is_answered() {
        let mut neighbour = up();
        neighbour.hello(false, Seqno(3), 400, at(300)).expect("in order");
        neighbour.unanswered(at(1_000));
        for ms in [1_000, 1_150, 1_300] {
            assert!(
                neighbour.assess(at(ms)).cost.is_none() && neighbour.probe_due(at(ms)) && !neighbour.probe_due(at(ms))
            );
        }
        assert!(neighbour.assess(at(1_449)).cost.is_none());
        assert!(neighbour.assess(at(1_450)).cost.is_some() && !neighbour.is_acquired());

        let mut neighbour = up();
        neighbour.hello(false, Seqno(3), 400, at(300)).expect("in order");
        neighbour.unanswered(at(1_000));
        neighbour.heard(at(1_200));
        assert!(neighbour.assess(at(1_500)).cost.is_none() && !neighbour.probe_due(at(1_500)));
    }

    #[test]
    fn a_failed_handshake_takes_it_down_unless_it_was_just_heard() {
        let mut neighbour = up();
        neighbour.handshake_failed(at(400));
        assert!(neighbour.is_acquired());
        neighbour.handshake_failed(at(5_000));
        assert!(neighbour.assess(at(5_000)).cost.is_some() && !neighbour.is_acquired());
    }

    #[test]
    fn the_cost_follows_the_round_trip_in_steps_and_within_its_bound() {
        let mut neighbour = up();
        let mut cost = |rtt_ms: u64, ms| {
            for _ in 0..50 {
                neighbour.rtt.sample(Duration::from_millis(rtt_ms));
            }
            neighbour.assess(at(ms));
            neighbour.cost()
        };
        assert_eq!(cost(3, 500), COST, "8 more are not worth it");
        let long = cost(100, 500);
        assert!((860..=COST + 784).contains(&long), "{long}");
        assert_eq!(cost(102, 700), long, "nor are 4 of 880");
        assert_eq!(cost(5_000, 700), COST_MAX);
    }

    #[test]
    fn a_claim_beyond_the_bound_is_taken_as_it_is() {
        let mut neighbour = up();
        neighbour.rtt.sample(Duration::from_secs(1));
        neighbour.ihu(5_000, 90, at(500));
        neighbour.assess(at(500));
        assert_eq!(neighbour.cost(), 5_000);
    }

    /// A neighbour that announces another cost in each packet must not cause decisions about all its prefixes each
    /// time.
    #[test]
    fn the_cost_changes_as_often_as_is_worth_deciding() {
        let mut neighbour = up();
        let mut changes = 0;
        for ms in 301..=702 {
            neighbour.ihu(if ms % 2 == 0 { 100 } else { 3_000 }, 90, at(ms));
            changes += u32::from(neighbour.assess(at(ms)).cost.is_some());
        }
        assert_eq!((changes, neighbour.cost()), (2, 100), "at 501 and 702 ms");
        neighbour.hello(false, Seqno(3), 400, at(702)).expect("in order");
        neighbour.ihu(3_000, 400, at(703));
        assert!(neighbour.assess(at(703)).cost.is_none() && neighbour.cost_due == Some(at(902)));
        assert!(neighbour.deadline() <= at(902) && neighbour.assess(at(902)).cost.is_some(), "it is not forgotten");
        neighbour.ihu(INFINITY, 90, at(903));
        assert!(neighbour.assess(at(903)).cost.is_some(), "a link that does not work is known at once");
    }
}
