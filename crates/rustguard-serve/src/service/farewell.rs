//! Removed members, until they have been told of their removal.
//!
//! A member learns of its own removal from the next roster, inside its session. Therefore the session stays for a
//! moment, without allowed IPs: it carries no packets in either direction. Otherwise the machine would try to connect
//! for ever, and its user would not know why the server does not answer.

use rustguard_core::time::Instant;
use rustguard_crypto::x25519::PublicKey;
use std::{collections::VecDeque, time::Duration};

/// The time in which the next roster is issued, announced and fetched.
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
