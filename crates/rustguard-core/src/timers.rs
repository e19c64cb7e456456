//! The constants of WireGuard's timers (whitepaper §6.1), and the queue of what is due when.
use crate::{node::PeerId, time::Instant};
use alloc::collections::BTreeSet;
use core::time::Duration;

/// Messages after which a new handshake is due.
pub const REKEY_AFTER_MESSAGES: u64 = 1 << 60;
/// Messages after which a session must not be used: 2^64 − 2^13 − 1. No counter is as great as this.
pub const REJECT_AFTER_MESSAGES: u64 = u64::MAX - (1 << 13);
/// Age at which the initiator of a session starts the next handshake when it sends.
pub const REKEY_AFTER_TIME: Duration = Duration::from_secs(120);
/// Age at which a session must not be used.
pub const REJECT_AFTER_TIME: Duration = Duration::from_secs(180);
/// How long to try a handshake.
pub const REKEY_ATTEMPT_TIME: Duration = Duration::from_secs(90);
/// From one initiation to the next.
pub const REKEY_TIMEOUT: Duration = Duration::from_secs(5);
/// Greatest random delay, in milliseconds, added to [`REKEY_TIMEOUT`] lest two peers keep initiating at the same time.
pub const REKEY_TIMEOUT_JITTER_MS: u64 = 333;
/// Silence after received data that is broken by a keepalive.
pub const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(10);
/// Silence after sent data that is taken for a dead session.
pub const NEW_HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(15);
/// Age of a session, received on, at which a handshake is overdue:
/// Reject-After-Time − Keepalive-Timeout − Rekey-Timeout.
pub const REKEY_ON_RECEIVE_AFTER_TIME: Duration = Duration::from_secs(165);
/// Time without a new handshake after which all keys of a peer are erased.
pub const ERASE_AFTER_TIME: Duration = Duration::from_secs(3 * 180);

/// What a peer can wait for. Each is armed at most once per peer.
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

/// All deadlines in their order. Setting, clearing and taking one is logarithmic in their number, and an idle peer has none.
#[derive(Debug, Default)]
pub(crate) struct Timers(BTreeSet<(Instant, PeerId, Timer)>);

impl Timers {
    /// Sets a timer, instead of any earlier setting of it.
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

    /// Clears all timers of a peer that goes away.
    pub(crate) fn forget(&mut self, peer: PeerId, armed: &mut Armed) {
        for timer in [Timer::Look, Timer::Handshake, Timer::Keepalive, Timer::Erase] {
            self.disarm(peer, armed, timer);
        }
    }

    /// The next deadline.
    pub(crate) fn next(&self) -> Option<Instant> {
        self.0.first().map(|&(at, ..)| at)
    }

    /// How many are due.
    pub(crate) fn due(&self, now: Instant) -> usize {
        self.0.iter().take_while(|(at, ..)| *at <= now).count()
    }

    /// What is due first; the caller clears it or sets it again.
    pub(crate) fn first(&self) -> Option<(PeerId, Timer)> {
        self.0.first().map(|&(_, peer, timer)| (peer, timer))
    }
}
