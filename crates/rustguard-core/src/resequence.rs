//! Packets that a link has put into another order: they are held until those before them have come.
//!
//! TCP and QUIC take a packet that later ones overtake for a lost one, and send slower. The counters of a session tell
//! the order in which the peer has sent. A packet that comes too early is therefore held, if its flow is one that the
//! link has put out of order in the last seconds. It is given out when all packets before it have arrived, or when the
//! first missing one is so late that it is probably lost. How long that is, the packets themselves tell; it is at most
//! [`LONGEST`].
//!
//! Packets lie where the caller has put them. Here they are values of any type `T`.
//!
//! The peer decides about its counters. Gaps that it leaves on purpose delay only its own packets, and no step is
//! longer than [`GAP`] counters, unless packets that are held come out.

mod flows;
mod lateness;

use crate::time::Instant;
use alloc::{boxed::Box, vec::Vec};
use core::{mem, time::Duration};
use flows::Flows;
pub use lateness::LONGEST;
use lateness::Lateness;

/// Counters whose fate is known: those up to the greatest one.
const WINDOW: u64 = 2_048;
/// Counters that may be missing at once before a later one. More are not packets that were overtaken: the peer was cut
/// off, or has begun anew.
pub const GAP: u64 = 512;

/// What became of a counter.
#[derive(Debug)]
enum Slot<T> {
    /// It has not come. A later one came at this moment.
    Missing(Instant),
    /// It has come, and is not here.
    Gone,
    /// It is held, and belongs to this flow.
    Held(T, u8),
}

/// The order of one session's packets.
#[derive(Debug)]
pub struct Resequencer<T> {
    /// No counter below has a slot.
    floor: u64,
    /// Nothing below is waited for.
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
    /// When a flow was last found out of order. At first, when this began to watch.
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

    /// Another session of the peer's begins, in which `first` comes next. Nothing waits for packets of the one before.
    pub fn restart(&mut self, first: u64) {
        self.go_on_from(first);
        self.flows.restart();
    }

    /// Notes a packet that does not go through here.
    pub fn passed(&mut self, counter: u64, now: Instant) {
        self.arrived(counter, now);
        self.advance(now);
    }

    /// Takes a packet of a flow, which is known by its hash. Returns whether it is to be delivered at once; otherwise
    /// `store` has put it where it can wait, and [`release`](Self::release) gives it out. Without room, `store`
    /// returns nothing. A copy, which the replay window refuses before, changes nothing here.
    ///
    /// Packets that are `short` wait only behind others of their flow. Alone they are acknowledgements, speech, games:
    /// for these, order matters less than time.
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
            // Nothing is waited for, but what comes out before it may still be here.
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

    /// Gives out what need not wait any longer, in order.
    pub fn release(&mut self, now: Instant, mut out: impl FnMut(T)) {
        self.advance(now);
        for (packet, flow) in self.ready.drain(..) {
            self.flows.get(flow).held -= 1;
            out(packet);
        }
    }

    /// When [`release`](Self::release) has something if nothing comes before.
    pub fn deadline(&self) -> Option<Instant> {
        if !self.ready.is_empty() {
            return Some(Instant::default());
        }
        match self.slots[slot(self.base)] {
            Slot::Missing(since) if self.held > 0 => Some(since + self.lateness.hold()),
            _ => None,
        }
    }

    /// The packets that are held.
    pub fn held(&self) -> usize {
        self.held + self.ready.len()
    }

    /// How long a packet is waited for, from when the first later one came.
    pub fn hold(&self) -> Duration {
        self.lateness.hold()
    }

    /// Whether nothing is held, and no flow was out of order for as long as that is remembered.
    pub fn is_idle(&self, now: Instant) -> bool {
        self.held() == 0 && now.since(self.useful) > flows::REMEMBERED
    }

    /// Marks a counter. Returns how late it is after the first that overtook it, as far as that is known; nothing where
    /// it has come before.
    fn arrived(&mut self, counter: u64, now: Instant) -> Option<Duration> {
        if counter < self.next {
            if counter < self.floor {
                return Some(Duration::MAX);
            }
            if self.next - counter > WINDOW {
                // It has no slot any more. It was given up before it lost that, and would count as lost and as late.
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

    /// Forgets all counters, and goes on from this one.
    fn go_on_from(&mut self, counter: u64) {
        while self.held > 0 {
            self.pass();
        }
        (self.floor, self.base, self.next) = (counter, counter, counter);
    }

    /// Goes on while nothing is missing, or what is missing was waited for.
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

    /// Waits for the lowest counter no longer.
    fn pass(&mut self) {
        let slot = &mut self.slots[slot(self.base)];
        match slot {
            // It stays, in case that it comes.
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
