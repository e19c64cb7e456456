//! The queue of the deadlines of all peers.
use crate::{peer::PeerId, time::Instant};
use alloc::collections::BTreeSet;

/// The timers of a peer. Each is armed at most once per peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Timer {
    /// Look at the stamps of [`Activity`](crate::activity::Activity).
    Look,
    /// Send the next initiation, or give up.
    Handshake,
    /// Persistent keepalive.
    Keepalive,
    /// Erase all keys.
    Erase,
}

/// The deadlines of one peer, by [`Timer`].
pub(crate) type Armed = [Option<Instant>; 4];

/// All deadlines in their order. Setting, clearing and taking one is logarithmic in their number, and an idle peer has
/// none.
#[derive(Debug, Default)]
pub(crate) struct Timers(BTreeSet<(Instant, PeerId, Timer)>);

impl Timers {
    /// Sets a timer, replacing its earlier setting.
    pub(crate) fn arm(&mut self, peer: PeerId, armed: &mut Armed, timer: Timer, at: Instant) {
        self.disarm(peer, armed, timer);
        armed[timer as usize] = Some(at);
        self.0.insert((at, peer, timer));
    }

    /// Clears a timer.
    pub(crate) fn disarm(&mut self, peer: PeerId, armed: &mut Armed, timer: Timer) {
        if let Some(at) = armed[timer as usize].take() {
            self.0.remove(&(at, peer, timer));
        }
    }

    /// Clears all timers of a peer that is removed.
    pub(crate) fn forget(&mut self, peer: PeerId, armed: &mut Armed) {
        for timer in [Timer::Look, Timer::Handshake, Timer::Keepalive, Timer::Erase] {
            self.disarm(peer, armed, timer);
        }
    }

    /// The next deadline.
    pub(crate) fn next(&self) -> Option<Instant> {
        self.0.first().map(|&(at, ..)| at)
    }

    /// How many are due, counted up to `limit`.
    pub(crate) fn due(&self, now: Instant, limit: usize) -> usize {
        self.0.iter().take(limit).take_while(|(at, ..)| *at <= now).count()
    }

    /// The first timer that is due; the caller clears it or sets it again.
    pub(crate) fn first(&self) -> Option<(PeerId, Timer)> {
        self.0.first().map(|&(_, peer, timer)| (peer, timer))
    }
}
