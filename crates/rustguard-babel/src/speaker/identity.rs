//! This node's router-id and sequence numbers: how they rise, and how this node reacts if another node knows newer
//! numbers than this run has announced.
//!
//! Other nodes remember the newest sequence number of a router-id for [`SOURCE_GC`], and refuse older ones (RFC 8966
//! §3.5.1). A node that starts from an old state (a restored backup, a cloned disk) is behind the remembered numbers.
//! The same happens to a node whose router-id is also used by another node, or forged by a hostile router. The node
//! learns of this in two ways: an update under its own router-id with a number that it never used, or a request for a
//! number that no node needs after hearing only this run.
//!
//! Neither the update nor the request is authentic, so their effect is bounded: one leap of the numbers in
//! [`SOURCE_GC`], short enough that others can still tell old numbers from new ones, and a new router-id at intervals
//! that grow.
use super::Babel;
use crate::{
    config::Start,
    jitter::Jitter,
    params::{RENUMBER_PACE, SEQNO_LEAP, SOURCE_GC, URGENT_DELAY},
    wire::types::{Announcement, RouterId, Seqno},
};
use core::time::Duration;
use ipnet::IpNet;
use rustguard_core::time::Instant;
use rustguard_crypto::x25519::PublicKey;

/// How far the stored sequence number is ahead of the one in use. The state is stored again after so many steps.
pub(super) const STORED_AHEAD: u16 = 256;

/// The router-id and the sequence numbers of this node's announcements.
#[derive(Debug)]
pub(super) struct Identity {
    key: PublicKey,
    /// The part of the router-id that does not come from the key.
    number: u16,
    router_id: RouterId,
    /// The lowest sequence number that was announced under this router-id in this run.
    first: Seqno,
    /// The highest sequence number of all own prefixes. New prefixes start with it.
    newest: Seqno,
    /// The sequence number in the stored state; a restart begins after it. `None`: nothing is stored.
    stored: Option<Seqno>,
    /// Whether the state has to be stored again.
    store_due: bool,
    /// When the router-id was last drawn again.
    changed: Option<RouterIdChange>,
    /// When the numbers last leaped beyond what another node announced.
    leaped: Option<Instant>,
}

/// When the router-id was last drawn again, and how long it is kept at least.
#[derive(Clone, Copy, Debug)]
struct RouterIdChange {
    at: Instant,
    pace: Duration,
}

impl Identity {
    pub(super) fn new(key: PublicKey, start: &Start, jitter: &mut Jitter) -> Self {
        let [random, ..] = jitter.next().to_be_bytes().map(u16::from);
        let (number, seqno) = match start {
            Start::Stored(bytes) if let &[a, b, high, low] = bytes.as_slice() => {
                (u16::from_be_bytes([a, b]), Seqno(u16::from_be_bytes([high, low])).plus(1))
            }
            // This includes stored bytes that are not a state of this program.
            _ => (jitter.number(), Seqno(random)),
        };
        let stores = *start != Start::Random;
        Self {
            key,
            number,
            router_id: RouterId::numbered(&key, number),
            first: seqno,
            newest: seqno,
            stored: stores.then_some(seqno.plus(STORED_AHEAD)),
            store_due: stores,
            changed: None,
            leaped: None,
        }
    }

    pub(super) fn router_id(&self) -> RouterId {
        self.router_id
    }

    /// The highest sequence number of all own prefixes.
    pub(super) fn newest(&self) -> Seqno {
        self.newest
    }

    /// The announcement of this node as the origin of a prefix.
    pub(super) fn announcement(&self, seqno: Seqno, metric: u16) -> Announcement {
        Announcement { router_id: self.router_id, seqno, metric }
    }

    /// Records a sequence number in use. A restart has to begin after it.
    pub(super) fn note_used(&mut self, seqno: Seqno) {
        if seqno.newer_than(self.newest) {
            self.newest = seqno;
        }
        if self.stored.is_some_and(|stored| !stored.newer_than(self.newest)) {
            self.stored = Some(self.newest.plus(STORED_AHEAD));
            self.store_due = true;
        }
    }

    /// The state to store, if it changed. [`Identity::new`] reads it.
    pub(super) fn take_state(&mut self) -> Option<Vec<u8>> {
        let due = core::mem::take(&mut self.store_due);
        let stored = self.stored.filter(|_| due)?;
        Some([self.number.to_be_bytes(), stored.0.to_be_bytes()].concat())
    }

    /// Whether only an earlier run can have announced this number under this router-id.
    fn is_of_earlier_run(&self, seqno: Seqno) -> bool {
        self.first.newer_than(seqno)
    }

    /// Takes numbers beyond a number that another node announced, and returns the next to use. `None` if that number is
    /// too far ahead, or if the last leap was a short time ago: then another node uses the same router-id, or forges
    /// it, and the leaps would never end.
    fn leap(&mut self, announced: Seqno, now: Instant) -> Option<Seqno> {
        let ahead = announced.ahead_of(self.newest);
        let rested = self.leaped.is_none_or(|at| now.since(at) >= SOURCE_GC);
        if ahead.unsigned_abs() > SEQNO_LEAP || !rested {
            return None;
        }
        self.leaped = Some(now);
        let newest = if ahead > 0 { announced } else { self.newest };
        // Other nodes may remember slightly higher numbers for other prefixes: those that an earlier run used beyond
        // the stored number.
        let next = newest.plus(STORED_AHEAD);
        self.note_used(next);
        Some(next)
    }

    /// Draws another router-id, unless the last change was too recent.
    fn change_router_id(&mut self, jitter: &mut Jitter, now: Instant) -> bool {
        let since = self.changed.map(|last| (now.since(last.at), last.pace));
        if since.is_some_and(|(since, pace)| since < pace) {
            return false;
        }
        let again = since.filter(|&(since, _)| since < SOURCE_GC * 2);
        let pace = again.map_or(RENUMBER_PACE, |(_, pace)| (pace * 4).min(SOURCE_GC));
        self.changed = Some(RouterIdChange { at: now, pace });
        self.number = jitter.number();
        self.router_id = RouterId::numbered(&self.key, self.number);
        self.first = self.newest;
        self.store_due = self.stored.is_some();
        true
    }
}

impl Babel {
    /// A neighbour announces a prefix under this node's router-id.
    pub(super) fn own_router_id_heard(&mut self, prefix: IpNet, seqno: Seqno) {
        if let Some(entry) = self.table.entries.get(&prefix).filter(|entry| entry.is_own()) {
            if seqno.newer_than(entry.seqno) {
                match self.identity.leap(seqno, self.now) {
                    Some(next) => self.announce_from(next),
                    None => self.change_router_id(),
                }
            }
            return;
        }
        // This node remembers a prefix that it no longer originates for longer than all other nodes do.
        let never_announced = match self.sources.get(prefix, self.identity.router_id()) {
            Some(source) => seqno.newer_than(source.seqno),
            None => !self.identity.is_of_earlier_run(seqno),
        };
        if never_announced {
            // This node does not announce the prefix, so no sequence number can help.
            self.change_router_id();
        }
    }

    /// Gives all own prefixes this sequence number.
    fn announce_from(&mut self, seqno: Seqno) {
        for (&prefix, entry) in self.table.entries.iter_mut().filter(|(_, entry)| entry.is_own()) {
            entry.seqno = seqno;
            self.stale.insert(prefix);
            // A new number alone is usually not urgent. This one is, because until it arrives, no node believes this
            // node.
            for neighbour in self.neighbours.iter_mut().map(|(_, neighbour)| neighbour).filter(|it| it.is_acquired()) {
                neighbour.out.urgent(prefix, self.now + URGENT_DELAY);
            }
        }
    }

    /// Becomes a new node for all others, which believe it at once. Everything is announced again, and every node on
    /// the way remembers the old sources for [`SOURCE_GC`]. So the rate of changes that others can cause is limited.
    pub(super) fn change_router_id(&mut self) {
        if self.identity.change_router_id(&mut self.jitter, self.now) {
            let own = self.table.entries.iter().filter(|(_, entry)| entry.is_own());
            self.stale.extend(own.map(|(&prefix, _)| prefix));
        }
    }
}
