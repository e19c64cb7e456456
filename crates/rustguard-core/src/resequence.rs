//! Restores the order of packets that a link has reordered: packets are held until those before them have arrived.
//!
//! TCP and QUIC take a packet that later ones overtake for a lost one, and send slower. The counters of a session tell
//! the order in which the peer has sent. A packet that arrives too early is therefore held, if the link has reordered
//! its flow in the last seconds. It is released when all packets before it have arrived, or when the first missing one
//! is so late that it is probably lost. This wait is measured from the packets themselves; it is at most [`LONGEST`].
//!
//! The caller stores the packets. Here they are values of any type `T`.
//!
//! The peer controls its counters. Gaps that it makes on purpose delay only its own packets, and no step is longer than
//! [`GAP`] counters, apart from the release of held packets.

mod flows;
mod lateness;

use crate::time::Instant;
use alloc::{boxed::Box, vec::Vec};
use core::{mem, time::Duration};
use flows::Flows;
pub use lateness::LONGEST;
use lateness::Lateness;

/// The number of counters, up to the greatest one, whose state is known.
const WINDOW: u64 = 2_048;
/// How many counters may be missing at once before a later one. More were not overtaken: the peer was cut off, or has
/// started over.
pub const GAP: u64 = 512;

/// The state of a counter.
#[derive(Debug)]
enum Slot<T> {
    /// It has not arrived. A later one arrived at this moment.
    Missing(Instant),
    /// It has arrived, and is not held.
    Gone,
    /// It is held, and belongs to this flow.
    Held(T, u8),
}

/// The order of one session's packets.
#[derive(Debug)]
pub struct Resequencer<T> {
    /// Counters below have no slot.
    floor: u64,
    /// Counters below are no longer waited for.
    base: u64,
    /// One more than the greatest counter so far.
    next: u64,
    /// Counter `c` is in slot `c % WINDOW`.
    slots: Box<[Slot<T>]>,
    /// Slots with a packet.
    held: usize,
    /// Packets that need not wait any longer, in order, with their flows.
    ready: Vec<(T, u8)>,
    flows: Flows,
    lateness: Lateness,
    /// When a flow was last found out of order. Initially, when this began to watch.
    useful: Instant,
}

impl<T> Resequencer<T> {
    /// Begins to watch a session in which `first` comes next.
    pub fn new(first: u64, now: Instant) -> Self {
        Self {
            floor: first,
            base: first,
            next: first,
            slots: (0..WINDOW).map(|_| Slot::Gone).collect(),
            held: 0,
            ready: Vec::new(),
            flows: Flows::default(),
            lateness: Lateness::default(),
            useful: now,
        }
    }

    /// The peer begins another session, in which `first` comes next. Nothing waits for packets of the session before.
    pub fn restart(&mut self, first: u64) {
        self.go_on_from(first);
        self.flows.restart();
    }

    /// Notes a packet that is not passed to `take`.
    pub fn passed(&mut self, counter: u64, now: Instant) {
        self.arrived(counter, now);
        self.advance(now);
    }

    /// Takes a packet of a flow, which is known by its hash. Returns whether the packet is to be delivered at once.
    /// Otherwise `store` has put it where it can wait, and [`release`](Self::release) returns it later. If there is no
    /// room, `store` returns nothing. A copy, which the replay window normally refuses earlier, changes nothing here.
    ///
    /// Packets that are `short` wait only behind others of their flow. Flows of short packets alone are
    /// acknowledgements, speech, games: for these, order matters less than time.
    pub fn take(
        &mut self,
        counter: u64,
        flow: u32,
        short: bool,
        now: Instant,
        store: impl FnOnce() -> Option<T>,
    ) -> bool {
        let Some(late) = self.arrived(counter, now) else { return true };
        let place = flow.to_be_bytes()[0];
        let flow = self.flows.get(place);
        if !short && flow.is_overtaken_by(counter, now) {
            self.useful = now;
            self.lateness.late(late);
        }
        let disordered = flow.is_disordered(now);
        if disordered {
            self.lateness.count();
        }
        let waits = if counter > self.base {
            flow.held > 0 || disordered && !self.lateness.hold().is_zero()
        } else {
            // Nothing is missing, but earlier packets may not have been released yet.
            flow.held > 0 && !self.ready.is_empty()
        };
        let stored = if waits { store() } else { None };
        let at_once = stored.is_none();
        if let Some(packet) = stored {
            flow.held += 1;
            if counter > self.base {
                self.held += 1;
                self.slots[slot(counter)] = Slot::Held(packet, place);
            } else {
                self.ready.push((packet, place));
            }
        }
        self.advance(now);
        at_once
    }

    /// Releases the packets that need not wait any longer, in order.
    pub fn release(&mut self, now: Instant, mut out: impl FnMut(T)) {
        self.advance(now);
        for (packet, flow) in self.ready.drain(..) {
            self.flows.get(flow).held -= 1;
            out(packet);
        }
    }

    /// When [`release`](Self::release) has something if no packet arrives earlier.
    pub fn deadline(&self) -> Option<Instant> {
        if !self.ready.is_empty() {
            return Some(Instant::default());
        }
        match self.slots[slot(self.base)] {
            Slot::Missing(since) if self.held > 0 => Some(since + self.lateness.hold()),
            _ => None,
        }
    }

    /// The number of packets that are held.
    pub fn held(&self) -> usize {
        self.held + self.ready.len()
    }

    /// How long a packet is waited for, counted from the arrival of the first later one.
    pub fn hold(&self) -> Duration {
        self.lateness.hold()
    }

    /// Whether nothing is held, and no flow was out of order in the time for which that is remembered.
    pub fn is_idle(&self, now: Instant) -> bool {
        self.held() == 0 && now.since(self.useful) > flows::REMEMBERED
    }

    /// Marks a counter. Returns how late it is after the first that overtook it, as far as that is known; `None` if it
    /// has arrived before.
    fn arrived(&mut self, counter: u64, now: Instant) -> Option<Duration> {
        if counter < self.next {
            if counter < self.floor {
                return Some(Duration::MAX);
            }
            if self.next - counter > WINDOW {
                // It has no slot any more. It was given up before it lost its slot, and would count both as lost and as
                // late.
                self.lateness.not_lost();
                return Some(Duration::MAX);
            }
            let slot = &mut self.slots[slot(counter)];
            let Slot::Missing(since) = *slot else { return None };
            *slot = Slot::Gone;
            if counter < self.base {
                self.lateness.not_lost();
            }
            return Some(now.since(since));
        }
        if counter - self.next > GAP {
            self.go_on_from(counter);
        }
        while self.base + WINDOW <= counter {
            self.pass();
        }
        for missing in self.next..counter {
            self.slots[slot(missing)] = Slot::Missing(now);
        }
        self.slots[slot(counter)] = Slot::Gone;
        self.next = counter + 1;
        Some(Duration::ZERO)
    }

    /// Forgets all counters, and continues from this one.
    fn go_on_from(&mut self, counter: u64) {
        while self.held > 0 {
            self.pass();
        }
        (self.floor, self.base, self.next) = (counter, counter, counter);
    }

    /// Advances until a packet is missing that must still be waited for.
    fn advance(&mut self, now: Instant) {
        while self.base < self.next {
            if let Slot::Missing(since) = self.slots[slot(self.base)]
                && now.since(since) < self.lateness.hold()
            {
                return;
            }
            self.pass();
        }
    }

    /// Stops waiting for the lowest counter.
    fn pass(&mut self) {
        let slot = &mut self.slots[slot(self.base)];
        match slot {
            // The slot stays missing, in case the packet still arrives.
            Slot::Missing(_) => self.lateness.lost(),
            Slot::Gone => {}
            Slot::Held(..) => {
                if let Slot::Held(packet, flow) = mem::replace(slot, Slot::Gone) {
                    self.held -= 1;
                    self.ready.push((packet, flow));
                }
            }
        }
        self.base += 1;
    }
}

fn slot(counter: u64) -> usize {
    (counter % WINDOW) as usize
}

#[cfg(test)]
mod tests;
