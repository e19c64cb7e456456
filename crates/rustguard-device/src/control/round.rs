//! Fair turns for control's kinds of work: in each round, every kind that waits gets a limited number of turns.
//!
//! Within a round, the order is that of `Wakers::next` in [`run`](super::run). The order alone would not be fair: a kind of work that
//! somebody causes without end would stop all later kinds. A router's packets, or a peer that moves all the time, would stop
//! handshakes; a flood of handshakes would stop routing.

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

    /// Turns in a round. Notices and probes are read before the timer, as many as one peer may cause at once, so that an answer that
    /// waits does not count as late. A handshake takes up to 0.1 ms, and so does the engine for a packet or a slice of its decision.
    const fn share(self) -> u8 {
        match self {
            Self::Notice | Self::Probe => 64,
            Self::Handshake | Self::HandshakeRequest | Self::Route => 16,
            Self::Command | Self::Engine | Self::Host => 4,
            Self::Time => 1,
        }
    }
}

/// What is left of the round.
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
