//! Connection tracking: a bounded table of connections. It has no clock, and its randomness comes from the hash keys.
//!
//! *Bounds.* A table consists of shards, each with a lock and a maximum number of entries. A keyed hash of both ends of
//! a flow chooses the shard, so an attacker cannot fill a chosen shard. Memory grows with the entries.
//!
//! *Eviction.* A full shard evicts an entry for each new one. The host may use half of the shard. Among peers, the peer
//! with the most entries loses one: the owner of the new entry itself, if no other peer has more. So a peer with less
//! than an equal share loses nothing to others, and a peer that begins flows without end evicts its own. Of eight
//! random entries of that owner, the least important is evicted: first of an ended flow, then of an unanswered one.
//! Refused flows are evicted last. An eviction takes a few steps, with any number of peers.
//!
//! *The owner of a TCP connection.* Only the host's SYN makes a connection of the host. With any other segment, the
//! host may answer on a connection that a peer has begun, and that the rules refuse. [`Conntrack::take_over`] adds
//! earlier connections of the host.
//!
//! *The owner of another flow.* An ICMP query begins a flow. A UDP packet does not tell whether it begins a flow or
//! belongs to an earlier one that is missing here, because the table is new or has evicted it. A dynamic port is the
//! port of the side that begins. Protocols with two equal ports, such as NTP and IKE, let both sides begin. A packet of
//! the host with another source port may be a service's answer. If the rules allow the flow that it would answer, a
//! peer owns the flow, and later rules may refuse it. If the rules refuse that flow, the flow is refused, but only
//! where a flow may be missing: in a new table, and towards an address whose flow was evicted, each for the lifetime of
//! a UDP flow. After that time, the host owns it.
//!
//! *Time.* The timeouts are the same as in Linux (`nf_conntrack_*_timeout*` in
//! Documentation/networking/nf_conntrack-sysctl.rst), with fewer states: sequence numbers are not tracked.

mod owners;

use super::before::{Running, Stage};
use owners::{HOST, Owners};
use parking_lot::Mutex;
use rustguard_core::{
    dissect::{Role, Tuple},
    node::PeerId,
    time::Instant,
};
use std::{
    collections::HashMap,
    hash::{BuildHasher, BuildHasherDefault, Hasher, RandomState},
    ops::RangeInclusive,
    time::Duration,
};

/// More than there are workers, so that two workers seldom need one shard at the same time.
const SHARDS: usize = 64;
/// Random entries among which the one to evict is chosen.
const SAMPLE: usize = 8;
/// For each new entry, this many entries are checked for expiry.
const SWEEP: usize = 2;
/// An evicted flow may continue for this time: the lifetime of a UDP flow.
const FORGOTTEN: Duration = Duration::from_secs(120);
/// A shard notes evictions by a hash of the peer's address, so that a flood of one address does not affect most other
/// addresses.
const FORGOTTEN_PLACES: usize = 64;
/// Dynamic ports begin here (RFC 6335, section 6). This is for systems behind this host, which may also choose lower
/// ports.
const DYNAMIC: u16 = 49_152;

const ICMP: u8 = 1;
const TCP: u8 = 6;
const UDP: u8 = 17;
const ICMPV6: u8 = 58;
const UDP_LITE: u8 = 136;

/// The connections of one device.
pub(crate) struct Conntrack<S = RandomState> {
    shards: Box<[Mutex<Shard>]>,
    hasher: S,
    /// The dynamic ports of this host's kernel.
    chosen: RangeInclusive<u16>,
}

/// The owner of flows that an unknown peer may have begun. They do not use the host's share.
const SOMEBODY: PeerId = PeerId(u32::MAX);

/// The time and the rules by which a packet is judged.
pub(crate) struct Asked<'a> {
    pub(crate) now: Instant,
    /// Each set of rules has its own number.
    pub(crate) generation: u32,
    /// Whether the rules allow a flow, in the direction in which it began.
    pub(crate) allows: &'a dyn Fn(&Tuple) -> bool,
}

/// One connection.
struct Entry {
    /// In the direction in which it began.
    tuple: Tuple,
    hash: u64,
    /// The time of its last packet, with an error of up to a second.
    seen: Instant,
    /// The owner's number, and the index of this entry among the owner's places.
    owner: u32,
    slot: u32,
    /// The rules that have judged the connection.
    generation: u32,
    state: State,
}

/// The state of a connection. The least important comes first: see Eviction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum State {
    /// Reset.
    Over,
    /// There is no answer yet.
    New,
    /// One side has finished, or both.
    Closing,
    Answered,
    /// The side that began has sent again after the answer.
    Established,
    /// New rules refuse it. As long as the entry exists, the host's packets cannot make it a flow of the host.
    Refused,
}

impl State {
    /// The state of a flow that begins with such a packet.
    fn of(role: Role) -> Self {
        if role == Role::Finishes { Self::Closing } else { Self::New }
    }
}

impl Entry {
    fn is_over(&self, now: Instant) -> bool {
        let seconds = match (self.tuple.protocol, self.state) {
            // TCP repeats segments after 120 seconds at most.
            (_, State::Refused) => 300,
            (TCP, State::Over) => 10,
            (TCP, State::New | State::Closing) => 120,
            (TCP, State::Answered) => 60,
            (TCP, State::Established) => 432_000,
            (UDP | UDP_LITE, State::Established) => 120,
            (UDP | UDP_LITE | ICMP | ICMPV6, _) => 30,
            _ => 600,
        };
        now.since(self.seen) >= Duration::from_secs(seconds)
    }

    /// Judges the flow again if the rules have changed. Flows of the host are not judged.
    fn judge(&mut self, asked: &Asked<'_>) {
        if self.generation != asked.generation {
            self.generation = asked.generation;
            if self.owner != HOST {
                match ((asked.allows)(&self.tuple), self.state) {
                    (false, _) => self.state = State::Refused,
                    (true, State::Refused) => self.state = State::New,
                    (true, _) => {}
                }
            }
        }
    }

    /// Notes a packet. `began`: it comes from the side that began.
    fn advance(&mut self, role: Role, began: bool, now: Instant) {
        self.seen = now;
        self.state = match (role, self.state) {
            (_, State::Refused) => State::Refused,
            (Role::Resets, _) => State::Over,
            (Role::Finishes, _) => State::Closing,
            // The ports are used again.
            (Role::Opens, State::Over | State::Closing) => State::New,
            (_, State::New) if !began => State::Answered,
            (_, State::Answered) if began => State::Established,
            // The other side did not accept the reset.
            (_, State::Over) => State::Closing,
            (_, state) => state,
        };
    }
}

impl Conntrack {
    /// An empty table. The host chooses ports from `chosen`.
    pub(crate) fn new(capacity: usize, now: Instant, chosen: RangeInclusive<u16>) -> Self {
        Self::with_hasher(capacity, now, chosen, RandomState::new())
    }
}

impl<S: BuildHasher> Conntrack<S> {
    fn with_hasher(capacity: usize, now: Instant, chosen: RangeInclusive<u16>, hasher: S) -> Self {
        let shards = SHARDS.min(capacity.max(1));
        let shard = |n: usize| Mutex::new(Shard::new(capacity / shards, now, hasher.hash_one(n)));
        Self { shards: (0..shards).map(shard).collect(), hasher, chosen }
    }

    /// Notes a packet of a peer. Returns whether it may pass.
    pub(crate) fn received(&self, peer: PeerId, tuple: &Tuple, role: Role, asked: &Asked<'_>) -> bool {
        let (mut shard, hash) = self.shard(tuple);
        let Some((entry, began)) = shard.find(hash, tuple, asked.now) else {
            let allowed = (asked.allows)(tuple);
            if allowed && !matches!(role, Role::Answers | Role::Alone | Role::Resets) {
                shard.make(hash, tuple, State::of(role), Some(peer), asked);
            }
            return allowed;
        };
        entry.judge(asked);
        // Both sides of a TCP connection may begin it at the same time (RFC 9293, section 3.5).
        let crossing = entry.state == State::New && tuple.protocol == TCP;
        if role == Role::Opens && !began && !crossing {
            // This is no answer: it begins another flow with the same ports.
            let allowed = (asked.allows)(tuple);
            if allowed {
                shard.remove(hash);
                shard.make(hash, tuple, State::of(role), Some(peer), asked);
            }
            return allowed;
        }
        entry.advance(role, began, asked.now);
        entry.state != State::Refused
    }

    /// Notes a packet of the host, which makes a connection if there is none.
    pub(crate) fn sent(&self, tuple: &Tuple, role: Role, asked: &Asked<'_>) {
        let (mut shard, hash) = self.shard(tuple);
        let Some((entry, began)) = shard.find(hash, tuple, asked.now) else {
            let begins = match tuple.protocol {
                TCP => role == Role::Opens,
                _ => !matches!(role, Role::Answers | Role::Alone | Role::Resets),
            };
            if !begins {
                return;
            }
            let theirs = tuple.reversed();
            if self.is_of_whoever_begins(tuple, role) {
                shard.make(hash, tuple, State::of(role), None, asked);
            } else if (asked.allows)(&theirs) {
                shard.make(hash, &theirs, State::Answered, Some(SOMEBODY), asked);
            } else if asked.now < *shard.forgotten(&theirs) {
                shard.make(hash, &theirs, State::Refused, Some(SOMEBODY), asked);
            } else {
                shard.make(hash, tuple, State::of(role), None, asked);
            }
            return;
        };
        entry.judge(asked);
        let crossing = entry.state == State::New && tuple.protocol == TCP;
        if role == Role::Opens && !crossing && (!began || entry.state == State::Refused) {
            shard.remove(hash);
            shard.make(hash, tuple, State::of(role), None, asked);
        } else {
            entry.advance(role, began, asked.now);
        }
    }

    /// Whether such a packet comes from the side that began its flow, as far as the packet tells.
    fn is_of_whoever_begins(&self, tuple: &Tuple, role: Role) -> bool {
        let [source, destination] = tuple.ports;
        let by_port = self.chosen.contains(&source) || source >= DYNAMIC || source == destination;
        role == Role::Opens || by_port && source != 0
    }

    /// Adds connections that the host began before there was a table. Known connections do not change.
    pub(super) fn take_over(&self, running: impl IntoIterator<Item = Running>, asked: &Asked<'_>) {
        for Running { tuple, stage } in running {
            let (mut shard, hash) = self.shard(&tuple);
            if shard.find(hash, &tuple, asked.now).is_none() {
                let state = match stage {
                    Stage::Opening => State::New,
                    Stage::Open => State::Established,
                    Stage::Closing => State::Closing,
                };
                shard.make(hash, &tuple, state, None, asked);
            }
        }
    }

    /// Whether an ICMP error about a packet of this flow may pass.
    pub(crate) fn knows(&self, tuple: &Tuple, asked: &Asked<'_>) -> bool {
        let (mut shard, hash) = self.shard(tuple);
        shard.find(hash, tuple, asked.now).is_some_and(|(entry, _)| {
            entry.judge(asked);
            entry.state != State::Refused
        })
    }

    /// The number of connections, including some that have ended.
    pub(crate) fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().entries.len()).sum()
    }

    fn shard(&self, tuple: &Tuple) -> (parking_lot::MutexGuard<'_, Shard>, u64) {
        let [from, to] = [0, 1].map(|end| (tuple.ends[end], tuple.ports[end]));
        let (low, high) = if from <= to { (from, to) } else { (to, from) };
        let hash = self.hasher.hash_one((low.0, high.0, low.1, high.1, tuple.protocol, tuple.v6));
        // The index inside a shard uses the lower bits.
        (self.shards[((hash >> 32) as usize) % self.shards.len()].lock(), hash)
    }
}

/// A part of the table.
struct Shard {
    capacity: usize,
    entries: Vec<Entry>,
    /// Hash → place. If two flows have the same hash of 64 bits, the later one replaces the earlier one.
    index: HashMap<u64, u32, BuildHasherDefault<Hashed>>,
    owners: Owners,
    random: u64,
    /// The next entry to check for expiry.
    sweep: usize,
    /// Until when missing flows may continue, by a hash of the peer's address.
    forgotten: [Instant; FORGOTTEN_PLACES],
}

impl Shard {
    fn new(capacity: usize, now: Instant, seed: u64) -> Self {
        Self {
            // Flows from before the table.
            forgotten: [now + FORGOTTEN; FORGOTTEN_PLACES],
            capacity: capacity.max(1),
            entries: Vec::new(),
            index: HashMap::default(),
            owners: Owners::default(),
            // Xorshift stays at 0.
            random: seed | 1,
            sweep: 0,
        }
    }

    /// The entry of a flow, and whether the packet comes from the side that began it.
    fn find(&mut self, hash: u64, tuple: &Tuple, now: Instant) -> Option<(&mut Entry, bool)> {
        let at = *self.index.get(&hash)? as usize;
        let entry = &self.entries[at];
        let began = entry.tuple == *tuple;
        if (!began && entry.tuple != tuple.reversed()) || entry.is_over(now) {
            self.remove(hash);
            return None;
        }
        Some((&mut self.entries[at], began))
    }

    fn make(&mut self, hash: u64, tuple: &Tuple, state: State, owner: Option<PeerId>, asked: &Asked<'_>) {
        self.sweep(asked.now);
        if self.entries.len() >= self.capacity {
            let victim = self.victim(owner, asked.now);
            self.evict(victim, asked.now);
        }
        let place = self.entries.len() as u32;
        let (owner, slot) = self.owners.add(owner, place);
        self.index.insert(hash, place);
        let (seen, generation) = (asked.now, asked.generation);
        self.entries.push(Entry { tuple: *tuple, hash, seen, owner, slot, generation, state });
    }

    fn evict(&mut self, victim: usize, now: Instant) {
        let entry = &self.entries[victim];
        let (tuple, hash) = (entry.tuple, entry.hash);
        // A TCP segment and an ICMP query show whether they begin a flow.
        if entry.owner != HOST && !entry.is_over(now) && !matches!(tuple.protocol, TCP | ICMP | ICMPV6) {
            *self.forgotten(&tuple) = now + FORGOTTEN;
        }
        self.remove(hash);
    }

    /// Until when missing flows that this address began may continue.
    fn forgotten(&mut self, theirs: &Tuple) -> &mut Instant {
        let end = theirs.ends[0];
        let mixed = (end as u64 ^ (end >> 64) as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        &mut self.forgotten[(mixed >> 58) as usize % FORGOTTEN_PLACES]
    }

    fn remove(&mut self, hash: u64) {
        let Some(at) = self.index.remove(&hash) else { return };
        let entry = self.entries.swap_remove(at as usize);
        if let Some(moved) = self.entries.get(at as usize) {
            self.index.insert(moved.hash, at);
            self.owners.moved(moved.owner, moved.slot, at);
        }
        if let Some(other) = self.owners.remove(entry.owner, entry.slot) {
            self.entries[other as usize].slot = entry.slot;
        }
    }

    /// Removes ended connections, a few entries at a time.
    fn sweep(&mut self, now: Instant) {
        for _ in 0..SWEEP.min(self.entries.len()) {
            self.sweep = (self.sweep + 1) % self.entries.len();
            let entry = &self.entries[self.sweep];
            if entry.is_over(now) {
                let hash = entry.hash;
                self.remove(hash);
                if self.entries.is_empty() {
                    return;
                }
            }
        }
    }

    /// The entry to evict for a new one of `owner`.
    fn victim(&mut self, owner: Option<PeerId>, now: Instant) -> usize {
        let places = |number| self.owners.places(number).len();
        let (half, largest) = (self.entries.len() / 2, self.owners.largest().unwrap_or(HOST));
        let own = owner.map_or(Some(HOST), |peer| self.owners.known(peer)).filter(|&own| places(own) > 0);
        let gives = match own {
            Some(HOST) if places(HOST) >= half => HOST,
            _ if owner.is_some() && places(HOST) > half => HOST,
            Some(own) if own != HOST && places(own) >= places(largest) => own,
            _ => largest,
        };
        let count = places(gives);
        let sample: [u64; SAMPLE] = std::array::from_fn(|_| self.random());
        let places = self.owners.places(gives);
        let chosen = sample.map(|random| places[random as usize % count] as usize);
        let matters = |&at: &usize| (!self.entries[at].is_over(now), self.entries[at].state, self.entries[at].seen);
        chosen.into_iter().min_by_key(matters).unwrap_or(0)
    }

    /// Xorshift (Marsaglia 2003).
    fn random(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random
    }
}

/// Returns its input: the keys are already keyed hashes.
#[derive(Default)]
struct Hashed(u64);

impl Hasher for Hashed {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        debug_assert!(bytes.is_empty(), "only keyed hashes are looked up");
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }
}

#[cfg(test)]
mod tests;
