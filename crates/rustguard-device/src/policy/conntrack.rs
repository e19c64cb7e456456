//! Connection tracking: the connections that packets belong to. A bounded table, without clock and randomness of its
//! own.
//!
//! *Bounds.* A table is made of shards, each with a lock and so many entries at most. A keyed hash of both ends of a
//! flow chooses the shard, so nobody can aim at one. Memory grows with the entries.
//!
//! *Eviction.* A full shard gives up an entry for each new one. The host has half of it where it needs so much. Of
//! peers, the one that has most gives it up: the owner of the new entry itself, if nobody has more. So nobody with less
//! than an equal share loses anything to others, and a peer that begins flows without end pushes out its own. Of eight
//! entries of that owner, chosen at random, the one goes that matters least: of a flow that is over, then of one that
//! nobody has answered. What is refused goes last. All of it takes a few steps, however many peers there are.
//!
//! *Whose a TCP connection is.* Only a SYN of the host's makes one of its own. With any other segment, the host may
//! answer on a connection that a peer has begun, and that the rules refuse. [`Conntrack::take_over`] is for those that
//! ran before.
//!
//! *Whose another flow is.* A query of ICMP begins one. A packet of UDP does not say whether it begins a flow, or goes
//! on with one that the table does not know, because the table is new or has evicted it. A port from which systems
//! choose by themselves is that of the side that begins. Two equal ports are those of protocols in which both sides
//! begin, such as NTP and IKE. A packet of the host's with another source port may be an answer, as those of a service
//! are. If the rules allow what it would be the answer to, the flow counts as a peer's, which later rules may refuse.
//! If the rules refuse it, so is the flow, but only where one may be missing: in a new table, and towards an address of
//! which a flow was evicted, both for the time of a UDP flow. After that time, it is the host's.
//!
//! *Time.* The limits are those of conntrack (`nf_conntrack_*_timeout*` in Linux's
//! Documentation/networking/nf_conntrack-sysctl.rst), with fewer states: sequence numbers are not followed.

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

/// More than there are workers, so that two seldom want one at the same time.
const SHARDS: usize = 64;
/// Entries among which one is chosen that has to go.
const SAMPLE: usize = 8;
/// Entries that each new one looks at, whether they are over.
const SWEEP: usize = 2;
/// So long after a flow was evicted it may go on: the time of a UDP flow.
const FORGOTTEN: Duration = Duration::from_secs(120);
/// A shard remembers by a part of the peer's address that a flow was evicted, so that a flood of one address leaves
/// most others alone.
const FORGOTTEN_PLACES: usize = 64;
/// From here on, systems choose the ports of the side that begins (RFC 6335, section 6): those behind this host, which
/// may choose from more.
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
    /// The ports from which the kernel of this host chooses.
    chosen: RangeInclusive<u16>,
}

/// The owner of flows that a peer may have begun: it is not known which, and the host's share is not for them.
const SOMEBODY: PeerId = PeerId(u32::MAX);

/// What a packet is judged by.
pub(crate) struct Asked<'a> {
    pub(crate) now: Instant,
    /// Another number stands for other rules.
    pub(crate) generation: u32,
    /// Whether the rules allow a flow, in the direction in which it began.
    pub(crate) allows: &'a dyn Fn(&Tuple) -> bool,
}

/// One connection.
struct Entry {
    /// As it began.
    tuple: Tuple,
    hash: u64,
    /// When a packet of it came last, within the second.
    seen: Instant,
    /// The peer that it came from, or the host; and where among its places this one is.
    owner: u32,
    slot: u32,
    /// The rules that have judged it.
    generation: u32,
    state: State,
}

/// How far a connection is. In the order in which they matter when one has to go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum State {
    /// Reset.
    Over,
    /// Nobody has answered.
    New,
    /// One side has finished, or both.
    Closing,
    Answered,
    /// The side that began has spoken again after the answer.
    Established,
    /// New rules refuse it. While it is here, the host's packets cannot make it one that the host began.
    Refused,
}

impl State {
    /// Of a flow that begins with such a packet.
    fn of(role: Role) -> Self {
        if role == Role::Finishes { Self::Closing } else { Self::New }
    }
}

impl Entry {
    fn is_over(&self, now: Instant) -> bool {
        let seconds = match (self.tuple.protocol, self.state) {
            // Packets of a TCP connection are repeated after 120 seconds at most.
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

    /// Judges it again where the rules are others. Flows of the host are not judged.
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

    /// Notes a packet, of the side that began or of the other.
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
            // It was no reset that the other side believed.
            (_, State::Over) => State::Closing,
            (_, state) => state,
        };
    }
}

impl Conntrack {
    /// An empty one. The host chooses ports from `chosen`.
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

    /// A packet of a peer's. Returns whether it may pass.
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
            // No answer: it begins another flow with the same ports.
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

    /// A packet of the host's, which makes a connection where there is none.
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

    /// Whether such a packet comes from whoever has begun its flow, by what it says itself.
    fn is_of_whoever_begins(&self, tuple: &Tuple, role: Role) -> bool {
        let [source, destination] = tuple.ports;
        let by_port = self.chosen.contains(&source) || source >= DYNAMIC || source == destination;
        role == Role::Opens || by_port && source != 0
    }

    /// Makes connections that the host has begun before there was a table. Those that are known already stay as they
    /// are.
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

    /// How many connections there are. Some may be over.
    pub(crate) fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().entries.len()).sum()
    }

    fn shard(&self, tuple: &Tuple) -> (parking_lot::MutexGuard<'_, Shard>, u64) {
        let [from, to] = [0, 1].map(|end| (tuple.ends[end], tuple.ports[end]));
        let (low, high) = if from <= to { (from, to) } else { (to, from) };
        let hash = self.hasher.hash_one((low.0, high.0, low.1, high.1, tuple.protocol, tuple.v6));
        // The index of a shard goes by the lower bits.
        (self.shards[((hash >> 32) as usize) % self.shards.len()].lock(), hash)
    }
}

/// A part of the table.
struct Shard {
    capacity: usize,
    entries: Vec<Entry>,
    /// Hash → place. That two flows have one hash of 64 bits is left out of account: the later one takes the place.
    index: HashMap<u64, u32, BuildHasherDefault<Hashed>>,
    owners: Owners,
    random: u64,
    /// What is swept next.
    sweep: usize,
    /// Until when flows may go on that are not here, by a part of the address of the peer.
    forgotten: [Instant; FORGOTTEN_PLACES],
}

impl Shard {
    fn new(capacity: usize, now: Instant, seed: u64) -> Self {
        Self {
            // Those of before the table.
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
        // A segment of TCP and a query say by themselves whether they begin something.
        if entry.owner != HOST && !entry.is_over(now) && !matches!(tuple.protocol, TCP | ICMP | ICMPV6) {
            *self.forgotten(&tuple) = now + FORGOTTEN;
        }
        self.remove(hash);
    }

    /// Until when flows that this peer's end has begun may go on although they are not here.
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

    /// Removes what is over, a few entries at a time.
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

    /// The entry that goes for one of `owner`'s.
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

/// What is hashed already, by a keyed hash.
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
