//! The own router-id and sequence numbers: what raises them, and what happens when somebody knows newer ones than this run has given out.
//!
//! Others remember the newest number of a router-id for [`SOURCE_GC`], and believe nothing older (RFC 8966 §3.5.1). A node that
//! starts from an old state (a restored backup, a cloned disk) is behind what they remember. So is one whose router-id another
//! node uses too, or that a hostile router speaks for. It learns of that in two ways: an update under its own router-id with a
//! number that it never used, or a request for a number that nobody can want who only heard this run.
//!
//! Neither is authentic. Therefore what they can cause is bounded: one leap of the numbers in [`SOURCE_GC`], by less than others need to
//! keep the order of old and new apart, and a new router-id at intervals that grow.
use super::{Babel, CEILING};
use crate::{
    params::{RENUMBER_PACE, SEQNO_LEAP, SEQNO_PACE, SOURCE_GC, URGENT_DELAY},
    wire::types::{RouterId, Seqno},
};
use core::time::Duration;
use ipnet::IpNet;
use rustguard_core::time::Instant;

/// When the router-id was last drawn again, and how long it is kept at least.
#[derive(Clone, Copy, Debug)]
pub(super) struct RouterIdChange {
    at: Instant,
    pace: Duration,
}

impl Babel {
    /// A neighbour asks for this number of a prefix that this node announces under its own router-id (§3.8.1.2).
    pub(super) fn raise(&mut self, prefix: IpNet, wanted: Seqno) {
        let now = self.now;
        let Some(entry) = self.table.entries.get_mut(&prefix) else { return };
        // What the neighbour remembers is one less, and it takes what is newer than that. Of two numbers that are half the circle
        // apart, neither is.
        let remembered = wanted.plus(u16::MAX);
        if entry.seqno.newer_than(remembered) {
            return;
        }
        // Whoever asks more often than answers travel gets the same answer.
        if entry.raised.is_some_and(|raised| now.since(raised) < SEQNO_PACE) {
            self.counters.requests_dropped += 1;
            return;
        }
        entry.raised = Some(now);
        let before = entry.seqno;
        // By one and no more, whatever is asked for (§3.8.1.2).
        entry.seqno = before.plus(1);
        let seqno = entry.seqno;
        self.used(seqno);
        self.stale.insert(prefix);
        if remembered != before {
            // One step is not enough, and this run never said what the neighbour remembers.
            self.renumber();
        }
    }

    /// A neighbour announces a prefix under this node's router-id.
    pub(super) fn echoed(&mut self, prefix: IpNet, seqno: Seqno) {
        if let Some(entry) = self.table.entries.get(&prefix).filter(|entry| entry.is_own()) {
            if seqno.newer_than(entry.seqno) {
                self.overtake(seqno);
            }
            return;
        }
        // What is not this node's any more is remembered for longer than anybody believes it.
        let unsaid = match self.sources.get(prefix, self.router_id) {
            Some(said) => seqno.newer_than(said.seqno),
            // What an earlier run announced is below that.
            None => !self.first.newer_than(seqno),
        };
        if unsaid {
            // There is no number to take for what this node does not announce.
            self.renumber();
        }
    }

    /// Goes beyond a number that somebody has for a prefix of this node. Once: if it happens again, another node goes on under the
    /// same router-id, or somebody makes it look so, and there would be no end.
    fn overtake(&mut self, seqno: Seqno) {
        let ahead = seqno.ahead_of(self.seqno);
        let rested = self.leaped.is_none_or(|at| self.now.since(at) >= SOURCE_GC);
        if ahead.unsigned_abs() > SEQNO_LEAP || !rested {
            return self.renumber();
        }
        self.leaped = Some(self.now);
        let newest = if ahead > 0 { seqno } else { self.seqno };
        // Others may know a little more about other prefixes: as much as an earlier run may have given out beyond what it kept.
        let next = newest.plus(CEILING);
        self.used(next);
        for (&prefix, entry) in self.table.entries.iter_mut().filter(|(_, entry)| entry.is_own()) {
            entry.seqno = next;
            self.stale.insert(prefix);
            // A new number is no urgent news by itself. Here it is: until it comes, nobody believes this node.
            for neighbour in self.neighbours.iter_mut().map(|(_, neighbour)| neighbour).filter(|it| it.is_acquired()) {
                neighbour.out.urgent(prefix, self.now + URGENT_DELAY);
            }
        }
    }

    /// Becomes somebody new to all others, who believe it at once. Everything is announced anew, and every node on the way remembers
    /// the old sources for [`SOURCE_GC`]: not as often as somebody may like.
    fn renumber(&mut self) {
        let since = self.renumbered.map(|last| (self.now.since(last.at), last.pace));
        if since.is_some_and(|(since, pace)| since < pace) {
            return;
        }
        let again = since.filter(|&(since, _)| since < SOURCE_GC * 2);
        let pace = again.map_or(RENUMBER_PACE, |(_, pace)| (pace * 4).min(SOURCE_GC));
        self.renumbered = Some(RouterIdChange { at: self.now, pace });
        self.number = self.jitter.number();
        self.router_id = RouterId::numbered(&self.key, self.number);
        self.first = self.seqno;
        self.keep_due = self.ceiling.is_some();
        let own = self.table.entries.iter().filter(|(_, entry)| entry.is_own());
        self.stale.extend(own.map(|(&prefix, _)| prefix));
    }
}
