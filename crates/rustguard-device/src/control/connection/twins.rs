//! Whether two machines have the same key, as copies of a disk do. WireGuard takes them for one machine that moves, and
//! the packets for one of them go to the other.
//!
//! The peer of both machines hears one key from two places in turn. Each of the two machines loses its session as soon
//! as the other one begins a session: it gets no answer for Keepalive-Timeout + Rekey-Timeout, and begins another
//! session long before Rekey-After-Time.

use rustguard_core::time::Instant;
use std::{net::SocketAddr, time::Duration};

/// The number of remembered places.
const PLACES: usize = 4;
/// The problem is reported after so many returns in a row to a place that the peer had left, or so many sessions in a
/// row that ended early. A laptop that moves between two networks returns only now and then.
const ENOUGH: u32 = 5;
/// Two such events with this time or more between them are not in one row.
const SOON: Duration = Duration::from_secs(60);
/// The problem is over when the last event is this old: one of the two machines was switched off.
const OVER: Duration = Duration::from_secs(150);

/// The evidence about one peer.
#[derive(Debug, Default)]
pub(in crate::control) struct Twins {
    /// Boxed, and made when the peer is first heard.
    places: Option<Box<Places>>,
    sessions: Row,
}

/// Where a peer was heard, the latest first.
#[derive(Debug, Default)]
struct Places {
    known: [Option<SocketAddr>; PLACES],
    returns: Row,
}

/// Events that follow one another quickly.
#[derive(Clone, Copy, Debug, Default)]
struct Row {
    count: u32,
    began: Instant,
    last: Option<Instant>,
}

impl Twins {
    /// An authenticated message of the peer came from there. Returns true if it is to be reported that two machines
    /// have the peer's key.
    pub(in crate::control) fn heard(&mut self, from: SocketAddr, now: Instant) -> bool {
        let Places { known, returns } = &mut **self.places.get_or_insert_default();
        if known[0] == Some(from) {
            return false;
        }
        let before = known.iter().position(|place| *place == Some(from));
        known[..=before.unwrap_or(PLACES - 1)].rotate_right(1);
        known[0] = Some(from);
        before.is_some() && returns.add(now)
    }

    /// A handshake that we began is complete. Returns true if it is to be reported that another machine has our key.
    pub(in crate::control) fn session_begins(&mut self, now: Instant) -> bool {
        self.sessions.add(now)
    }

    /// The two places where the peer's key is used in turn, and since when.
    pub(in crate::control) fn places(&self, now: Instant) -> Option<([SocketAddr; 2], Instant)> {
        let Places { known, returns } = self.places.as_deref()?;
        let since = returns.since(now)?;
        Some(([known[0]?, known[1]?], since))
    }

    /// Since when our sessions end early.
    pub(in crate::control) fn sessions_end_early(&self, now: Instant) -> Option<Instant> {
        self.sessions.since(now)
    }
}

impl Row {
    /// Returns true for the event with which the count reaches `ENOUGH`.
    fn add(&mut self, now: Instant) -> bool {
        if self.last.is_none_or(|last| now.since(last) >= SOON) {
            (self.count, self.began) = (0, now);
        }
        self.last = Some(now);
        self.count = self.count.saturating_add(1);
        self.count == ENOUGH
    }

    fn since(&self, now: Instant) -> Option<Instant> {
        let recent = self.last.is_some_and(|last| now.since(last) < OVER);
        (recent && self.count >= ENOUGH).then_some(self.began)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Instant {
        Instant::from_nanos(1_000_000_000_000) + Duration::from_secs(seconds)
    }

    fn place(n: u8) -> SocketAddr {
        SocketAddr::from(([192, 0, 2, n], 51_820))
    }

    #[test]
    fn a_key_at_two_places_in_turn_is_told_once_until_one_is_silent() {
        let mut twins = Twins::default();
        let told: Vec<_> = (0..20).map(|n| twins.heard(place(1 + n % 2), at(u64::from(n)))).collect();
        assert_eq!(told.iter().filter(|told| **told).count(), 1, "{told:?}");
        assert_eq!(told.iter().position(|told| *told), Some(6), "two places, and five returns");
        let (mut places, since) = twins.places(at(20)).unwrap();
        places.sort();
        assert_eq!((places, since), ([place(1), place(2)], at(2)));
        assert!(!twins.heard(place(2), at(100)) && twins.places(at(160)).is_some());
        assert!(twins.places(at(200)).is_none(), "over");
    }

    #[test]
    fn three_machines_are_two_and_more() {
        let mut twins = Twins::default();
        assert!((0..12).any(|n| twins.heard(place(n % 3), at(u64::from(n)))));
    }

    #[test]
    fn who_moves_is_one_machine() {
        let mut roams = Twins::default();
        // To new places, as behind a NAT that forgets; and home and back every few minutes.
        assert!((0..200).all(|n| !roams.heard(place(n), at(u64::from(n)))));
        let mut commutes = Twins::default();
        assert!((0..200).all(|n| !commutes.heard(place(n % 2), at(u64::from(n) * 61))));
        let mut stays = Twins::default();
        assert!((0..200).all(|n| !stays.heard(place(1), at(n))));
    }

    #[test]
    fn sessions_that_are_renewed_in_time_are_no_sign() {
        let mut twins = Twins::default();
        assert!((0..50).all(|n| !twins.session_begins(at(n * 120))));
        let told: Vec<_> = (0..10).map(|n| twins.session_begins(at(10_000 + n * 30))).collect();
        assert_eq!(told.iter().position(|told| *told), Some(4), "{told:?}");
        assert!(twins.sessions_end_early(at(10_300)).is_some() && twins.sessions_end_early(at(10_500)).is_none());
    }
}
