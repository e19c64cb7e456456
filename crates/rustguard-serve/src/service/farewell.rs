//! Members that were removed, for as long as it takes to tell them so.
//!
//! A member hears of its own removal by the next roster, inside its session. So the session stays for a moment, without
//! an address: no packet comes out of it and none goes in. Otherwise the machine would call the server for ever, and
//! its user would not know why nobody answers.

use rustguard_core::time::Instant;
use rustguard_crypto::x25519::PublicKey;
use std::{collections::VecDeque, time::Duration};

/// The time for the next roster to be issued, told and fetched.
const TIME: Duration = Duration::from_secs(3);

/// The removed members that are still peers, in the order in which they end.
#[derive(Debug, Default)]
pub(super) struct Farewell(VecDeque<(Instant, PublicKey)>);

impl Farewell {
    pub(super) fn begin(&mut self, member: PublicKey, now: Instant) {
        self.cancel(&member);
        self.0.push_back((now + TIME, member));
    }

    /// The machine is a peer again.
    pub(super) fn cancel(&mut self, member: &PublicKey) {
        self.0.retain(|(_, other)| other != member);
    }

    pub(super) fn deadline(&self) -> Option<Instant> {
        self.0.front().map(|(at, _)| *at)
    }

    /// Takes out a member whose time is over.
    pub(super) fn over(&mut self, now: Instant) -> Option<PublicKey> {
        self.0.pop_front_if(|(at, _)| *at <= now).map(|(_, member)| member)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_that_comes_back_stays() {
        let mut farewell = Farewell::default();
        let [one, other] = [1, 2].map(|byte| PublicKey([byte; 32]));
        let at = |seconds| Instant::from_nanos(0) + Duration::from_secs(seconds);
        farewell.begin(one, at(0));
        farewell.begin(other, at(1));
        farewell.cancel(&one);
        assert_eq!((farewell.deadline(), farewell.over(at(3))), (Some(at(4)), None));
        assert_eq!((farewell.over(at(4)), farewell.deadline()), (Some(other), None));
    }
}
