//! Pings: requests of [`Device::ping`](crate::Device::ping) that wait for a session, or for the peer's answer.
//!
//! A ping is the short request of the path MTU checks, with a random number from a range of its own. It travels by the
//! way in use, as data does, and counts as data: a ping keeps paths and sessions in use. Probes of paths are
//! unsuitable: they carry configuration, and change the paths by which the other end sends.
//!
//! Waiting pings are bounded in number and in time, and a peer's answers do not add to them. Only the embedder and the
//! owner of the control socket can ask. Even they must not make this node flood a peer, which answers at most 200
//! probes a second.

use super::{Control, timer::now, transmit::Payload};
use crate::{
    ping::{PingError, Pong},
    status::Way,
    way,
};
use rustguard_core::{
    limit::{Bucket, Rate},
    node::PeerId,
    path_mtu::{Message, Probe},
    time::Instant,
};
use rustguard_crypto::x25519::PublicKey;
use std::time::Duration;
use tokio::sync::oneshot;

/// The number of pings that may wait at a time.
const UNDER_WAY: usize = 64;
/// The rate of requests to all peers together: half of the probes that one peer takes, and half of the burst
/// (`PROBES`), so that the peer still hears other probes.
const REQUESTS: Rate = Rate { interval: Duration::from_millis(10), burst: 32 };

/// The pings that wait.
#[derive(Default)]
pub(super) struct Pings {
    waiting: Vec<Ping>,
    sent: Bucket,
}

/// A ping that waits.
pub(super) struct Ping {
    pub(super) peer: PeerId,
    probe: Probe,
    /// When the request left, and by which way; `None` while there is no session.
    asked: Option<(Instant, Way)>,
    /// When it stops waiting.
    until: Instant,
    answer: oneshot::Sender<Result<Pong, PingError>>,
}

impl Pings {
    /// When the next ping has waited long enough.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.waiting.iter().map(|ping| ping.until).min()
    }

    /// Ends the pings that have waited long enough.
    pub(super) fn expire(&mut self, now: Instant) {
        self.end(|ping| ping.until <= now && ping.asked.is_some(), PingError::NoAnswer);
        self.end(|ping| ping.until <= now, PingError::NoSession);
    }

    /// Ends the pings that `which` selects, with an error.
    pub(super) fn end(&mut self, which: impl Fn(&Ping) -> bool, error: PingError) {
        for ping in self.waiting.extract_if(.., |ping| which(ping)) {
            // The caller may no longer wait.
            let _ = ping.answer.send(Err(error));
        }
    }

    /// Takes out the ping that this answers.
    fn answered(&mut self, peer: PeerId, probe: Probe) -> Option<Ping> {
        let asked = |ping: &Ping| ping.peer == peer && ping.probe == probe && ping.asked.is_some();
        self.waiting.iter().position(asked).map(|index| self.waiting.swap_remove(index))
    }

    /// Whether there is room for one more.
    fn admits(&mut self, now: Instant) -> bool {
        if self.waiting.len() >= UNDER_WAY {
            self.waiting.retain(|ping| !ping.answer.is_closed());
        }
        self.waiting.len() < UNDER_WAY && self.sent.take(REQUESTS, now)
    }
}

impl Control {
    /// Asks a peer for an answer.
    pub(super) fn ping(
        &mut self,
        key: &PublicKey,
        timeout: Duration,
        answer: oneshot::Sender<Result<Pong, PingError>>,
    ) {
        match self.admit_ping(key) {
            Ok(peer) => {
                let (probe, until) = (Probe::ping(rand::random()), now().instant + timeout);
                self.pings.waiting.push(Ping { peer, probe, asked: None, until, answer });
                if self.sealer(peer).is_some_and(|sealer| sealer.usable(now().instant)) {
                    self.send_pings(peer);
                } else {
                    self.node.handshake_wanted(peer, now(), &mut rand::rng(), &mut self.actions);
                }
            }
            // The caller may no longer wait.
            Err(error) => drop(answer.send(Err(error))),
        }
    }

    /// The peer to ask, if it may be asked.
    fn admit_ping(&mut self, key: &PublicKey) -> Result<PeerId, PingError> {
        let peer = self.node.peer_by_key(key).ok_or(PingError::UnknownPeer)?;
        if self.sockets.are_closed() {
            return Err(PingError::Down);
        }
        self.shown_way_to(peer).ok_or(PingError::NoEndpoint)?;
        if self.pings.admits(now().instant) { Ok(peer) } else { Err(PingError::TooMany) }
    }

    /// Sends the requests that waited for a session with this peer, if there is one.
    pub(super) fn send_pings(&mut self, peer: PeerId) {
        while let Some(index) = self.pings.waiting.iter().position(|ping| ping.peer == peer && ping.asked.is_none()) {
            let instant = now().instant;
            let Some(sealer) = self.sealer(peer).filter(|sealer| sealer.usable(instant)) else { return };
            let Some(way) = self.shown_way_to(peer) else { return };
            let ping = &mut self.pings.waiting[index];
            ping.asked = Some((instant, way));
            let request = Message::Request(ping.probe).to_bytes();
            self.seal_and_send(peer, &sealer, &request, Payload::Ping);
            self.paths_asked(peer);
        }
    }

    /// A peer has answered. An answer without a waiting ping is dropped.
    pub(super) fn pong(&mut self, peer: PeerId, from: way::Way, probe: Probe) {
        let Some(way) = self.shown_way(from) else { return };
        let Some(Ping { asked: Some((sent, asked)), answer, .. }) = self.pings.answered(peer, probe) else { return };
        let pong = Pong { round_trip: now().instant.since(sent), asked, way };
        // The caller may no longer wait.
        let _ = answer.send(Ok(pong));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: Instant = Instant::from_nanos(1_000_000_000);
    const ASKED: Option<(Instant, Way)> = Some((AT, Way::Relayed(PublicKey([7; 32]))));

    fn ping(
        peer: u32,
        number: u32,
        asked: Option<(Instant, Way)>,
    ) -> (Ping, oneshot::Receiver<Result<Pong, PingError>>) {
        let (answer, answered) = oneshot::channel();
        let until = AT + Duration::from_secs(number.into());
        (Ping { peer: PeerId(peer), probe: Probe::ping(number), asked, until, answer }, answered)
    }

    #[test]
    fn only_the_peer_that_was_asked_can_answer_what_it_was_asked_and_once() {
        let mut pings = Pings::default();
        let ((first, _first), (second, _second)) = (ping(1, 5, ASKED), ping(2, 6, None));
        pings.waiting.extend([first, second]);
        for (peer, number) in [(1, 6), (2, 5), (2, 6), (3, 5)] {
            assert!(pings.answered(PeerId(peer), Probe::ping(number)).is_none(), "{peer} {number}");
        }
        let longer = Probe { len: 17, ..Probe::ping(5) };
        assert!(pings.answered(PeerId(1), longer).is_none());
        assert!(pings.answered(PeerId(1), Probe::ping(5)).is_some());
        assert!(pings.answered(PeerId(1), Probe::ping(5)).is_none(), "a second time");
        assert_eq!(pings.waiting.len(), 1);
    }

    #[test]
    fn a_ping_that_was_not_sent_ends_with_another_error_than_one_without_an_answer() {
        let mut pings = Pings::default();
        let ((sent, mut of_sent), (unsent, mut of_unsent), (later, _later)) =
            (ping(1, 1, ASKED), ping(1, 2, None), ping(1, 3, None));
        pings.waiting.extend([later, sent, unsent]);
        assert_eq!(pings.deadline(), Some(AT + Duration::from_secs(1)));
        pings.expire(AT + Duration::from_secs(2));
        assert_eq!(of_sent.try_recv().unwrap(), Err(PingError::NoAnswer));
        assert_eq!(of_unsent.try_recv().unwrap(), Err(PingError::NoSession));
        assert_eq!(pings.waiting.len(), 1);
    }

    #[test]
    fn those_that_wait_are_bounded_and_callers_who_left_make_room() {
        let mut pings = Pings::default();
        let mut callers = Vec::new();
        for number in 0..64 {
            // Slower than the rate limit.
            assert!(pings.admits(AT + Duration::from_secs(number.into())), "{number}");
            let (ping, caller) = ping(1, number, ASKED);
            pings.waiting.push(ping);
            callers.push(caller);
        }
        let later = AT + Duration::from_secs(100);
        assert!(!pings.admits(later));
        callers.truncate(60);
        assert!(pings.admits(later));
        assert_eq!(pings.waiting.len(), 60);
    }

    #[test]
    fn requests_are_bounded_in_rate() {
        let mut pings = Pings::default();
        let admitted = |pings: &mut Pings, at| (0..1_000).filter(|_| pings.admits(at)).count();
        assert_eq!(admitted(&mut pings, AT), 32);
        assert_eq!(admitted(&mut pings, AT + Duration::from_millis(100)), 10);
    }
}
