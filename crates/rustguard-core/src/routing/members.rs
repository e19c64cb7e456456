//! Prefixes that several peers have: allowed IPs as in WireGuard, but they may overlap.
//!
//! A prefix that only one peer has belongs to this peer, as with [`StaticRoutes`](super::StaticRoutes). A prefix that
//! several peers have is *held* by one of them at a time, but all of them may present sources from it: answers may come
//! from any of them.
//!
//! | File | What is in it |
//! | `carrier.rs` | one peer: whether it answers, how far it is, and the questions to it |
//! | `carrier.rs` | one peer: whether it answers, how far it is, what it is asked |
mod carrier;
#[cfg(test)]
mod tests;

use super::{
    Action, AllowedIpsMeaning, Announcement, Event, NextHops, Report, Route, RoutingEngine, Signal, SourceRule,
};
use crate::{peer::PeerId, time::Instant};
use alloc::{
    collections::{BTreeMap, BTreeSet, btree_map::Entry},
    vec::Vec,
};
use carrier::{Carrier, Rank};
use core::time::Duration;
use ipnet::{IpNet, Ipv4Net};

/// There is traffic if the last of it is no older than this. A nearer peer gets a prefix only in a pause of the
/// traffic, so that flows stay where they are.
const QUIET: Duration = Duration::from_secs(10);
/// The interval of comparing the peers of a prefix while there is traffic.
const COMPARE: Duration = Duration::from_secs(30);
/// How many of a prefix's other peers are asked at a time: the best ones, and in the last place each of the rest in
/// turn.
const COMPARED: usize = 8;
/// A choice that was made without measurements is made again once, at most this long after the first traffic.
const SETTLE: Duration = Duration::from_secs(1);
/// If a deadline is missed by this much, the machine was asleep.
const SUSPENDED: Duration = Duration::from_secs(2);
/// How many peers are handled in one call; the rest are due at once.
const SLICE: usize = 64;

/// Several peers may have a prefix. The one with the shortest round trip gets its packets. When it fails, the next one
/// takes over, within a second of the first packet that the failed one does not answer.
///
/// A peer is only asked whether it is alive while there is traffic for a shared prefix ([`Action::Watch`],
/// [`Action::Ask`]); without traffic, the engine waits for nothing. Flows stay with a peer as long as it answers: a
/// nearer one takes over in a pause of the traffic, and only if it is nearer by more than measurements vary. A peer
/// that has failed has to be available for a while before it is preferred again.
#[derive(Clone, Debug, Default)]
pub struct Members {
    /// The prefixes of each peer. One set for all peers: most have one or two prefixes, and share none.
    nets: BTreeSet<(PeerId, IpNet)>,
    /// State of the peers that share a prefix, or have shared one.
    carriers: BTreeMap<PeerId, Carrier>,
    prefixes: BTreeMap<IpNet, Prefix>,
    schedule: BTreeSet<(Instant, PeerId)>,
    now: Instant,
    /// Counts comparisons, so that the low-ranked peers are asked in turn.
    turn: usize,
}

/// A prefix, and the peers that have it.
#[derive(Clone, Debug)]
struct Prefix {
    /// The peers that share it. Empty if only one peer has it.
    ranking: BTreeSet<(Rank, PeerId)>,
    holder: PeerId,
    /// When the holder got it.
    since: Instant,
    /// The holder was chosen by measurements.
    settled: bool,
}

impl RoutingEngine for Members {
    fn handle(&mut self, event: Event<'_>, now: Instant, out: &mut Vec<Action>) {
        let late = self.deadline().is_some_and(|deadline| now.since(deadline) >= SUSPENDED);
        self.now = self.now.max(now);
        if late {
            self.slept();
        }
        match event {
            Event::Peer { peer, config } => {
                self.set(peer, config.allowed_ips.iter().map(IpNet::trunc).collect(), out);
            }
            Event::PeerRemoved { peer } => {
                self.set(peer, BTreeSet::new(), out);
                if let Some(at) = self.carriers.remove(&peer).and_then(|carrier| carrier.scheduled) {
                    self.schedule.remove(&(at, peer));
                }
            }
            Event::Signal { peer, signal } => self.signal(peer, signal, out),
            Event::Packet { .. }
            | Event::Announce { .. }
            | Event::Withdraw { .. }
            | Event::Pools { .. }
            | Event::Time => {}
        }
        self.tick(out);
    }

    fn deadline(&self) -> Option<Instant> {
        self.schedule.first().map(|(at, _)| *at)
    }

    fn allowed_ips(&self) -> AllowedIpsMeaning {
        AllowedIpsMeaning::Addresses
    }

    fn report(&self) -> Report {
        let routes = self.prefixes.iter().map(|(&net, prefix)| {
            let alone = prefix.ranking.is_empty().then_some((prefix.holder, true));
            let sharing = prefix.ranking.iter().map(|&(rank, peer)| (peer, !rank.is_dead()));
            let learned = alone.into_iter().chain(sharing).map(|(peer, feasible)| {
                let mut announcement = Announcement::new(peer, 0, feasible);
                announcement.round_trip = self.carriers.get(&peer).and_then(Carrier::round_trip);
                announcement
            });
            let mut route = Route::new(net);
            route.metric = Some(0);
            route.hops = NextHops::single(prefix.holder);
            route.since = Some(prefix.since);
            route.learned = learned.collect();
            route
        });
        Report { engine: Some("members"), routes: routes.collect(), ..Report::default() }
    }
}

/// The configuration.
impl Members {
    /// Whether a peer has this prefix.
    pub(super) fn has(&self, prefix: &IpNet) -> bool {
        self.prefixes.contains_key(prefix)
    }

    fn set(&mut self, peer: PeerId, after: BTreeSet<IpNet>, out: &mut Vec<Action>) {
        let from = (peer, IpNet::V4(Ipv4Net::default()));
        let before = self.nets.range(from..).take_while(|(other, _)| *other == peer).map(|(_, net)| *net);
        let before: BTreeSet<IpNet> = before.collect();
        for &net in before.difference(&after) {
            self.nets.remove(&(peer, net));
            self.leave(peer, net, out);
        }
        for &net in after.difference(&before) {
            self.nets.insert((peer, net));
            self.join(peer, net, out);
        }
        self.reschedule(peer);
    }

    fn join(&mut self, peer: PeerId, net: IpNet, out: &mut Vec<Action>) {
        let rank = self.rank(peer);
        let rank_of_holder = self.prefixes.get(&net).map(|prefix| self.rank(prefix.holder));
        out.push(Action::Permit { peer, prefix: net, rule: SourceRule::Longest });
        match self.prefixes.entry(net) {
            Entry::Vacant(entry) => {
                entry.insert(Prefix { ranking: BTreeSet::new(), holder: peer, since: self.now, settled: false });
                out.push(Action::Install { prefix: net, hops: NextHops::single(peer) });
            }
            Entry::Occupied(entry) => {
                let prefix = entry.into_mut();
                let (holder, was_shared) = (prefix.holder, !prefix.ranking.is_empty());
                if let Some(rank) = rank_of_holder.filter(|_| !was_shared) {
                    prefix.ranking.insert((rank, holder));
                }
                prefix.ranking.insert((rank, peer));
                for peer in [holder, peer] {
                    self.carriers.entry(peer).or_default().shared.insert(net);
                }
                if !was_shared {
                    self.hold(holder, out);
                }
            }
        }
    }

    fn leave(&mut self, peer: PeerId, net: IpNet, out: &mut Vec<Action>) {
        let rank = self.rank(peer);
        out.push(Action::Forbid { peer, prefix: net });
        let Some(prefix) = self.prefixes.get_mut(&net) else { return };
        if prefix.ranking.is_empty() {
            self.prefixes.remove(&net);
            out.push(Action::Remove { prefix: net });
            return;
        }
        prefix.ranking.remove(&(rank, peer));
        let Some(&(_, best)) = prefix.ranking.first() else { return };
        if prefix.holder == peer {
            self.give(net, best, out);
        }
        if let Some(carrier) = self.carriers.get_mut(&peer) {
            carrier.shared.remove(&net);
        }
        if let Some(prefix) = self.prefixes.get_mut(&net).filter(|prefix| prefix.ranking.len() == 1) {
            // Only one peer has the prefix now.
            prefix.ranking = BTreeSet::new();
            if let Some(carrier) = self.carriers.get_mut(&best) {
                carrier.shared.remove(&net);
            }
            self.let_go(best, out);
        }
    }

    /// The peer holds one more shared prefix.
    fn hold(&mut self, peer: PeerId, out: &mut Vec<Action>) {
        let Some(carrier) = self.carriers.get_mut(&peer) else { return };
        carrier.held += 1;
        if carrier.held == 1 {
            out.push(Action::Watch { peer, on: true });
        }
    }

    /// The peer holds one shared prefix less.
    fn let_go(&mut self, peer: PeerId, out: &mut Vec<Action>) {
        let Some(carrier) = self.carriers.get_mut(&peer) else { return };
        carrier.held = carrier.held.saturating_sub(1);
        if carrier.held == 0 {
            (carrier.busy_until, carrier.busy_since, carrier.compare) = (None, None, None);
            out.push(Action::Watch { peer, on: false });
            self.reschedule(peer);
        }
    }

    /// From now on, the packets for a shared prefix go to this peer.
    fn give(&mut self, net: IpNet, to: PeerId, out: &mut Vec<Action>) {
        let Some(prefix) = self.prefixes.get_mut(&net) else { return };
        let from = core::mem::replace(&mut prefix.holder, to);
        prefix.since = self.now;
        let traffic = self.carriers.get(&from).map(|carrier| (carrier.busy_until, carrier.busy_since, carrier.compare));
        self.hold(to, out);
        if let (Some((until, since, compare)), Some(carrier)) = (traffic, self.carriers.get_mut(&to)) {
            carrier.busy_until = carrier.busy_until.max(until);
            carrier.busy_since = carrier.busy_since.or(since);
            carrier.compare = carrier.compare.or(compare);
        }
        self.let_go(from, out);
        self.reschedule(to);
        out.push(Action::Install { prefix: net, hops: NextHops::single(to) });
    }
}

/// Signals.
impl Members {
    fn signal(&mut self, peer: PeerId, signal: Signal, out: &mut Vec<Action>) {
        // Signals of peers that share no prefix have no effect.
        if self.carriers.get(&peer).is_none_or(|carrier| carrier.shared.is_empty()) {
            return;
        }
        match signal {
            Signal::Heard { data } => {
                self.heard(peer);
                if data.is_some() {
                    self.traffic(peer);
                }
            }
            Signal::HandshakeComplete => self.heard(peer),
            Signal::RoundTrip(took) => {
                self.with(peer, |carrier, _| carrier.measured(took));
                self.heard(peer);
                self.settle(peer, out);
            }
            Signal::Carried => self.traffic(peer),
            Signal::Unanswered | Signal::SessionWanted | Signal::HandshakeFailed => {
                self.traffic(peer);
                if self.carriers.get(&peer).is_some_and(|carrier| carrier.held > 0) {
                    self.suspect(peer);
                }
            }
            Signal::Relayed(_) => {}
        }
    }

    fn heard(&mut self, peer: PeerId) {
        self.with(peer, Carrier::heard);
        let shared = self.carriers.get(&peer).map(|carrier| carrier.shared.iter());
        let silent: BTreeSet<PeerId> = shared
            .into_iter()
            .flatten()
            .filter_map(|net| self.prefixes.get(net).map(|prefix| prefix.holder))
            .filter(|holder| *holder != peer && self.carriers.get(holder).is_some_and(|it| it.asked_since().is_some()))
            .collect();
        for holder in silent {
            self.with(holder, Carrier::other_heard);
        }
    }

    /// There is traffic with the peer.
    fn traffic(&mut self, peer: PeerId) {
        let now = self.now;
        self.with(peer, |carrier, _| {
            if carrier.held == 0 {
                return;
            }
            if !carrier.is_busy(now) {
                (carrier.busy_since, carrier.compare) = (Some(now), Some(now));
            }
            carrier.busy_until = Some(now + QUIET);
        });
    }

    /// Packets to the holder have no answer: the holder is asked, and so are the next peers.
    fn suspect(&mut self, peer: PeerId) {
        let Some(carrier) = self.carriers.get(&peer) else { return };
        if carrier.asked_since().is_none() {
            self.with(peer, Carrier::ask);
            self.compare(peer);
        }
    }

    /// Asks the other peers that have the prefixes of this holder.
    fn compare(&mut self, holder: PeerId) {
        let Some(carrier) = self.carriers.get(&holder) else { return };
        let mut others = BTreeSet::new();
        for net in &carrier.shared {
            let Some(prefix) = self.prefixes.get(net).filter(|prefix| prefix.holder == holder) else { continue };
            let best = prefix.ranking.iter().map(|(_, peer)| *peer).filter(|peer| *peer != holder);
            let (many, rest) = (COMPARED - 1, prefix.ranking.len().saturating_sub(COMPARED));
            others.extend(best.clone().take(many));
            if rest > 0 {
                others.extend(best.clone().nth(many + self.turn % rest));
            } else {
                others.extend(best.clone().nth(many));
            }
        }
        self.turn = self.turn.wrapping_add(1);
        for peer in others {
            self.with(peer, Carrier::ask);
        }
    }

    /// A round trip is known: a choice that was made without it may be made again.
    fn settle(&mut self, peer: PeerId, out: &mut Vec<Action>) {
        let shared = self.carriers.get(&peer).map(|carrier| carrier.shared.clone()).unwrap_or_default();
        for net in shared {
            let Some(prefix) = self.prefixes.get_mut(&net).filter(|prefix| !prefix.settled) else { continue };
            let Some(holder) = self.carriers.get(&prefix.holder) else { continue };
            let begins = holder.busy_since.is_some_and(|since| self.now.since(since) < SETTLE);
            if !begins {
                prefix.settled = holder.busy_since.is_some();
            } else if holder.round_trip().is_some() {
                self.prefer(net, out);
            }
        }
    }

    /// Gives a prefix to a peer that is much better than the holder, if there is one.
    fn prefer(&mut self, net: IpNet, out: &mut Vec<Action>) {
        let Some(prefix) = self.prefixes.get(&net) else { return };
        let Some(&(rank, best)) = prefix.ranking.first() else { return };
        if best != prefix.holder && rank.is_much_better_than(self.rank(prefix.holder)) {
            self.give(net, best, out);
        }
    }
}

/// Due work.
impl Members {
    fn tick(&mut self, out: &mut Vec<Action>) {
        for _ in 0..SLICE {
            let Some(&(at, peer)) = self.schedule.first().filter(|(at, _)| *at <= self.now) else { break };
            self.schedule.remove(&(at, peer));
            if let Some(carrier) = self.carriers.get_mut(&peer) {
                carrier.scheduled = None;
                self.due(peer, out);
                self.reschedule(peer);
            }
        }
    }

    fn due(&mut self, peer: PeerId, out: &mut Vec<Action>) {
        let now = self.now;
        self.with(peer, Carrier::end_doubt);
        let Some(carrier) = self.carriers.get_mut(&peer) else { return };
        if carrier.busy_until.take_if(|until| *until <= now).is_some() {
            (carrier.busy_since, carrier.compare) = (None, None);
            self.quiet(peer, out);
        }
        let Some(carrier) = self.carriers.get_mut(&peer) else { return };
        if carrier.compare.take_if(|at| *at <= now).is_some() {
            carrier.compare = Some(now + COMPARE);
            self.with(peer, Carrier::ask);
            self.compare(peer);
        }
        if self.carriers.get(&peer).is_some_and(|carrier| carrier.is_lost(now)) {
            self.take_over(peer, out);
        }
        if !self.is_wanted(peer) {
            self.with(peer, |carrier, _| carrier.stop_asking());
        }
        let Some(carrier) = self.carriers.get_mut(&peer) else { return };
        if carrier.take_question(now) {
            out.push(Action::Ask { peer });
            if carrier.held == 0 && carrier.is_silent(now) {
                self.with(peer, |carrier, now| carrier.died(false, now));
            }
        }
    }

    /// Whether there is traffic to a prefix that this peer has.
    fn is_wanted(&self, peer: PeerId) -> bool {
        let Some(carrier) = self.carriers.get(&peer) else { return false };
        let holder = |net| self.prefixes.get(net).and_then(|prefix| self.carriers.get(&prefix.holder));
        carrier.shared.iter().filter_map(holder).any(|holder| holder.is_busy(self.now))
    }

    /// The traffic has paused: prefixes of this holder may move to nearer peers.
    fn quiet(&mut self, peer: PeerId, out: &mut Vec<Action>) {
        for net in self.held(peer) {
            if let Some(prefix) = self.prefixes.get_mut(&net) {
                prefix.settled = true;
            }
            self.prefer(net, out);
        }
    }

    /// The peer is lost: its prefixes go to others, if one was heard since it was asked.
    fn take_over(&mut self, peer: PeerId, out: &mut Vec<Action>) {
        let Some(since) = self.carriers.get(&peer).and_then(Carrier::asked_since) else { return };
        self.with(peer, |carrier, now| carrier.died(true, now));
        for net in self.held(peer) {
            let Some(prefix) = self.prefixes.get_mut(&net) else { continue };
            prefix.settled = true;
            let heard = |peer: &PeerId| self.carriers.get(peer).and_then(|it| it.heard).is_some_and(|at| at >= since);
            let alive = prefix.ranking.iter().take(COMPARED + 1).take_while(|(rank, _)| rank.is_alive());
            if let Some(next) = alive.map(|(_, peer)| *peer).find(heard) {
                self.give(net, next, out);
            }
        }
        self.with(peer, |carrier, _| carrier.stays());
    }

    fn held(&self, peer: PeerId) -> Vec<IpNet> {
        let shared = self.carriers.get(&peer).map(|carrier| carrier.shared.iter());
        let holds = |net: &&IpNet| self.prefixes.get(*net).is_some_and(|prefix| prefix.holder == peer);
        shared.into_iter().flatten().filter(holds).copied().collect()
    }

    fn slept(&mut self) {
        let asked: Vec<PeerId> = self.schedule.iter().map(|(_, peer)| *peer).collect();
        for peer in asked {
            self.with(peer, Carrier::slept);
        }
    }
}

/// Keeping the tables consistent.
impl Members {
    fn rank(&self, peer: PeerId) -> Rank {
        // The rank in the rankings: it changes in `with` only.
        self.carriers.get(&peer).map_or_else(|| Carrier::default().rank(), Carrier::rank)
    }

    /// Changes a peer, and updates its place in rankings and schedule.
    fn with(&mut self, peer: PeerId, change: impl FnOnce(&mut Carrier, Instant)) {
        let Some(carrier) = self.carriers.get_mut(&peer) else { return };
        let before = carrier.rank();
        change(carrier, self.now);
        let after = carrier.rank();
        if before != after {
            for net in &carrier.shared {
                if let Some(prefix) = self.prefixes.get_mut(net) {
                    prefix.ranking.remove(&(before, peer));
                    prefix.ranking.insert((after, peer));
                }
            }
        }
        self.reschedule(peer);
    }

    fn reschedule(&mut self, peer: PeerId) {
        let Some(carrier) = self.carriers.get_mut(&peer) else { return };
        let deadline = carrier.deadline();
        if deadline != carrier.scheduled {
            if let Some(at) = core::mem::replace(&mut carrier.scheduled, deadline) {
                self.schedule.remove(&(at, peer));
            }
            self.schedule.extend(deadline.map(|at| (at, peer)));
        }
    }
}
