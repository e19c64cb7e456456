//! Fair turns for control's kinds of work: in each round, every kind that waits gets a limited number of turns.
//!
//! Within a round, the order is that of `Wakers::next` in [`run`](super::run). The order alone would not be fair: a
//! kind of work that somebody causes without end would stop all later kinds. A router's packets, or a peer that moves
//! all the time, would stop handshakes; a flood of handshakes would stop routing.

use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

/// A kind of work, in the order within a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Notice,
    Probe,
    Time,
    Handshake,
    /// A worker asks for a handshake.
    HandshakeRequest,
    Command,
    /// A packet for the routing engine.
    Engine,
    /// Changes of the host: addresses, routes, names, links.
    Host,
    /// Questions to the kernel about single routes, and its answers.
    Route,
}

impl Kind {
    const ALL: [Self; 9] = [
        Self::Notice,
        Self::Probe,
        Self::Time,
        Self::Handshake,
        Self::HandshakeRequest,
        Self::Command,
        Self::Engine,
        Self::Host,
        Self::Route,
    ];

    /// Turns in a round. Notices and probes are read before the timer, as many as one peer may cause at once, so that
    /// an answer that waits does not count as late. A handshake takes up to 0.1 ms. The engine takes as long for a
    /// packet or a slice of its decision.
    const fn share(self) -> u8 {
        match self {
            Self::Notice | Self::Probe => 64,
            Self::Handshake | Self::HandshakeRequest | Self::Route => 16,
            Self::Command | Self::Engine | Self::Host => 4,
            Self::Time => 1,
        }
    }
}

/// The work that control is doing, so that others can see which work hangs.
#[derive(Debug, Default)]
pub(crate) struct Doing(AtomicU8);

impl Doing {
    pub(super) fn set(&self, kind: Option<Kind>) {
        self.0.store(kind.map_or(0, |kind| kind as u8 + 1), Relaxed);
    }

    /// In words; `None` while control waits.
    pub(crate) fn words(&self) -> Option<&'static str> {
        Some(match Kind::ALL.get(usize::from(self.0.load(Relaxed).checked_sub(1)?))? {
            Kind::Notice => "what a worker has seen",
            Kind::Probe => "a peer's probe",
            Kind::Time => "what is due",
            Kind::Handshake => "a handshake message",
            Kind::HandshakeRequest => "a worker's request for a handshake",
            Kind::Command => "a command",
            Kind::Engine => "a packet of the routing engine",
            Kind::Host => "a change of the host",
            Kind::Route => "a route of the kernel",
        })
    }
}

/// The turns that are left in the round.
#[derive(Debug)]
pub(super) struct Round([u8; Kind::ALL.len()]);

impl Round {
    pub(super) fn new() -> Self {
        Self(Kind::ALL.map(Kind::share))
    }

    /// Whether this kind has a turn left.
    pub(super) fn has(&self, kind: Kind) -> bool {
        self.0[kind as usize] > 0
    }

    /// This kind had a turn.
    pub(super) fn took(&mut self, kind: Kind) {
        self.0[kind as usize] -= 1;
    }

    /// Whether a kind has had all its turns. If no other kind waits then, a new round begins.
    pub(super) fn is_spent(&self) -> bool {
        self.0.contains(&0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_control_does_has_words() {
        let doing = Doing::default();
        assert_eq!(doing.words(), None);
        let words = Kind::ALL.map(|kind| {
            doing.set(Some(kind));
            doing.words().expect("it does something")
        });
        assert_eq!(words.iter().collect::<std::collections::HashSet<_>>().len(), words.len(), "{words:?}");
        doing.set(None);
        assert_eq!(doing.words(), None);
    }

    #[test]
    fn who_waits_has_a_turn_in_every_round() {
        // All kinds have work without end.
        let (mut round, mut done, mut rounds) = (Round::new(), [0_u32; Kind::ALL.len()], 1);
        for _ in 0..10_000 {
            match Kind::ALL.into_iter().find(|&kind| round.has(kind)) {
                Some(kind) => {
                    round.took(kind);
                    done[kind as usize] += 1;
                }
                None => {
                    assert!(round.is_spent());
                    round = Round::new();
                    rounds += 1;
                }
            }
        }
        for kind in Kind::ALL {
            let share = u32::from(kind.share());
            let done = done[kind as usize];
            assert!((share * (rounds - 1)..=share * rounds).contains(&done), "{kind:?}: {done} in {rounds} rounds");
        }
    }
}
