//! Between a link that reorders and the host: packets that came too early wait here, for a few milliseconds at most,
//! and only of flows that the link has put out of order. [`Resequencer`] decides which, and how long.
//!
//! A link on which no packet overtakes another costs one comparison per run of packets. A peer is watched from its
//! first few runs with overtaken packets on, until none of its flows was out of order for a few seconds. Overtaken
//! packets of other flows are no reason to hold any: a peer that has several workers, or several paths, sends such
//! without end, and control's packets race the workers'.
//!
//! All packets of a session and lane come to one worker as long as they come from one address. Otherwise each worker
//! misses those of the others, takes them for lost, and soon waits for none.

use super::lanes::Lanes;
use rustguard_core::{flow, node::PeerId, resequence::Resequencer, time::Instant};
use rustguard_tun::Span;
use std::{io, time::Duration};

/// So many runs with overtaken packets, within this time, make a peer one to watch.
const RUNS: u32 = 8;
const SUSPECTED: Duration = Duration::from_secs(1);
/// Peers that are suspected, watched or rest at a time. Each that is watched takes 60 KiB.
const PEERS: usize = 16;
/// After a peer was watched, and as long as no flow was out of order, it is not watched.
const REST: Duration = Duration::from_secs(10);
/// Shorter packets are acknowledgements, speech, games.
const SHORT: usize = 256;
/// Bytes for each packet that waits. Longer packets do not.
const PLACE: usize = 2_048;
/// Packets that wait at a time: 8 ms of 1.5 Gbit/s.
const PLACES: usize = 1_024;
/// Of them, those of one peer.
const PLACES_OF_A_PEER: usize = PLACES / 2;
/// So many places are made at a time.
const GROWTH: usize = 32;

/// What a worker holds.
pub(super) struct Resequence {
    peers: Vec<Peer>,
    store: Store,
    /// What is being released.
    released: Vec<Span>,
}

/// A peer on whose packets there is something to know.
struct Peer {
    /// The peer, and the lane of its session: each has an order of its own.
    id: (PeerId, u8),
    session: u32,
    state: State,
}

enum State {
    /// It has had so many runs with overtaken packets. The count ends at this moment.
    Suspected(u32, Instant),
    Watched(Box<Resequencer<Span>>),
    /// It is not watched until then.
    Resting(Instant),
}

/// The memory of packets that wait.
#[derive(Default)]
struct Store {
    slab: Vec<u8>,
    free: Vec<usize>,
}

impl Default for Resequence {
    fn default() -> Self {
        Self { peers: Vec::with_capacity(PEERS), store: Store::default(), released: Vec::new() }
    }
}

impl Resequence {
    /// Finds what watches a peer and lane, before the packets of a run go through it. `overtaken` tells that a later
    /// packet of the session came before one of them, `first` is the lowest counter.
    #[inline]
    pub(super) fn watched(
        &mut self,
        peer: (PeerId, u8),
        session: u32,
        overtaken: bool,
        first: impl FnOnce() -> Option<u64>,
        now: Instant,
    ) -> Option<usize> {
        if self.peers.is_empty() && !overtaken { None } else { self.watch(peer, session, overtaken, first()?, now) }
    }

    fn watch(&mut self, id: (PeerId, u8), session: u32, overtaken: bool, first: u64, now: Instant) -> Option<usize> {
        let known = self.peers.iter().position(|peer| peer.id == id);
        let Some(n) = known else {
            if overtaken && self.peers.len() < PEERS {
                self.peers.push(Peer { id, session, state: State::Suspected(1, now + SUSPECTED) });
            }
            return None;
        };
        let peer = &mut self.peers[n];
        match &mut peer.state {
            State::Watched(resequencer) => {
                if peer.session != session {
                    peer.session = session;
                    resequencer.restart(first);
                }
                return Some(n);
            }
            State::Suspected(runs, _) if overtaken => {
                *runs += 1;
                if *runs == RUNS {
                    (peer.session, peer.state) = (session, State::Watched(Box::new(Resequencer::new(first, now))));
                    return Some(n);
                }
            }
            State::Suspected(..) | State::Resting(_) => {}
        }
        None
    }

    /// Notes a packet that does not go to the host, of a peer that is watched.
    pub(super) fn passed(&mut self, watched: usize, counter: u64, now: Instant) {
        if let State::Watched(resequencer) = &mut self.peers[watched].state {
            resequencer.passed(counter, now);
        }
    }

    /// Takes a packet for the host, of a peer that is watched. Returns whether it is to be delivered at once; otherwise
    /// it was copied.
    pub(super) fn take(&mut self, watched: usize, counter: u64, packet: &[u8], now: Instant) -> bool {
        let State::Watched(resequencer) = &mut self.peers[watched].state else { return true };
        let Some(flow) = flow::symmetric_hash(packet) else {
            resequencer.passed(counter, now);
            return true;
        };
        let has_room = resequencer.held() < PLACES_OF_A_PEER;
        let store = || if has_room { self.store.put(packet) } else { None };
        resequencer.take(counter, flow, packet.len() < SHORT, now, store)
    }

    /// When there is something to [`release`](Self::release) if nothing comes before.
    pub(super) fn deadline(&self) -> Option<Instant> {
        let deadline = |peer: &Peer| match &peer.state {
            State::Watched(resequencer) => resequencer.deadline(),
            State::Suspected(..) | State::Resting(_) => None,
        };
        self.peers.iter().filter_map(deadline).min()
    }

    /// Writes what need not wait any longer. Returns how many packets the host refused.
    ///
    /// # Errors
    /// As [`TunQueue::write`].
    pub(super) fn release(&mut self, lanes: &mut Lanes, now: Instant) -> io::Result<usize> {
        if self.peers.is_empty() {
            return Ok(0);
        }
        self.peers.retain_mut(|peer| match &mut peer.state {
            State::Watched(resequencer) => {
                resequencer.release(now, |packet| self.released.push(packet));
                if resequencer.is_idle(now) {
                    peer.state = State::Resting(now + REST);
                }
                true
            }
            State::Suspected(_, end) | State::Resting(end) => now < *end,
        });
        for &packet in &self.released {
            lanes.deliver(&self.store.slab, packet);
        }
        let refused = lanes.flush(&mut self.store.slab);
        self.store.free.extend(self.released.drain(..).map(|packet| packet.offset));
        refused
    }
}

impl Store {
    /// Copies a packet, where there is room for it.
    fn put(&mut self, packet: &[u8]) -> Option<Span> {
        if packet.len() > PLACE {
            return None;
        }
        if self.free.is_empty() && self.slab.len() < PLACES * PLACE {
            let made = self.slab.len();
            self.slab.resize(made + GROWTH * PLACE, 0);
            self.free.extend((made..self.slab.len()).step_by(PLACE));
        }
        let offset = self.free.pop()?;
        self.slab[offset..offset + packet.len()].copy_from_slice(packet);
        Some(Span { offset, len: packet.len() })
    }
}

#[cfg(test)]
mod tests;
