//! Restores the order of packets from a link that reorders: packets that arrive too early wait here before they go to
//! the host, for a few milliseconds at most, and only packets of flows that the link has put out of order.
//! [`Resequencer`] decides which packets wait, and how long.
//!
//! A link on which no packet overtakes another costs one comparison per run of packets. A peer is watched after a few
//! runs with overtaken packets, until none of its flows was out of order for a few seconds. Overtaking between
//! different flows is no reason to hold packets: a peer with several workers or several paths always causes it, as do
//! the packets of its control thread.
//!
//! One worker gets all packets of a session and lane as long as they come from one address. Otherwise each worker
//! misses the packets that other workers get, considers them lost, and soon stops waiting.

use super::lanes::Lanes;
use rustguard_core::{flow, node::PeerId, resequence::Resequencer, time::Instant};
use rustguard_tun::Span;
use std::{io, time::Duration};

/// A peer is watched after this many runs with overtaken packets within `SUSPECTED`.
const RUNS: u32 = 8;
const SUSPECTED: Duration = Duration::from_secs(1);
/// Peers that are suspected, watched or resting at the same time. Each watched peer takes 60 KiB.
const PEERS: usize = 16;
/// A peer whose flows stayed in order while it was watched is not watched again for this time.
const REST: Duration = Duration::from_secs(10);
/// Shorter packets are mostly acknowledgements, voice or games.
const SHORT: usize = 256;
/// Bytes for each packet that waits. Longer packets do not wait.
const PLACE: usize = 2_048;
/// Packets that wait at the same time: 8 ms of 1.5 Gbit/s.
const PLACES: usize = 1_024;
/// Waiting packets of one peer.
const PLACES_OF_A_PEER: usize = PLACES / 2;
/// This many places are allocated at once.
const GROWTH: usize = 32;

/// The waiting packets of a worker.
pub(super) struct Resequence {
    peers: Vec<Peer>,
    store: Store,
    /// The packets that are being released.
    released: Vec<Span>,
}

/// A peer with overtaken packets.
struct Peer {
    /// The peer, and the lane of its session: each lane has its own order.
    id: (PeerId, u8),
    session: u32,
    state: State,
}

enum State {
    /// The number of runs with overtaken packets, and when the count ends.
    Suspected(u32, Instant),
    Watched(Box<Resequencer<Span>>),
    /// The peer is not watched until this time.
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
    /// Finds the watch on a peer and lane, for the packets of a run. `overtaken`: a later packet of the session has
    /// overtaken one of them. `first` is the lowest counter.
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

    /// Notes a packet of a watched peer that does not go to the host.
    pub(super) fn passed(&mut self, watched: usize, counter: u64, now: Instant) {
        if let State::Watched(resequencer) = &mut self.peers[watched].state {
            resequencer.passed(counter, now);
        }
    }

    /// Takes a packet of a watched peer for the host. Returns whether the packet is to be delivered at once; otherwise
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

    /// The next time at which to [`release`](Self::release) packets, if no other packets arrive before.
    pub(super) fn deadline(&self) -> Option<Instant> {
        let deadline = |peer: &Peer| match &peer.state {
            State::Watched(resequencer) => resequencer.deadline(),
            State::Suspected(..) | State::Resting(_) => None,
        };
        self.peers.iter().filter_map(deadline).min()
    }

    /// Writes the packets that need not wait any longer. Returns how many packets the host refused.
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
    /// Copies a packet if there is room.
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
