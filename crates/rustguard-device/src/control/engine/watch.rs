//! The peers whose signals an engine wants while there is traffic with them, and the engine's questions to peers.
//!
//! A peer without traffic costs nothing: its counters are read from a worker's report of data on, until there was no
//! data for [`RECENT`].

use super::{super::Control, sample::Sample};
use crate::control::{timer::now, transmit::Payload};
use rustguard_core::{
    node::PeerId,
    path_mtu::{Message, Probe},
    routing::{Event as EngineEvent, Signal},
    time::Instant,
};
use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

/// How often the counters of a watched peer are read.
const INTERVAL: Duration = Duration::from_millis(100);
/// How long the counters are read after the last traffic. It is longer than the timers of
/// [`Activity`](rustguard_core::activity::Activity): until these have ended, workers report no new data.
const RECENT: Duration = Duration::from_secs(30);
/// The engine is told of data that has had no answer for this time.
const UNANSWERED: Duration = Duration::from_millis(250);
/// The number of questions to one peer whose answers are accepted. Older ones are forgotten.
const ASKED: usize = 8;

/// The watched peers.
#[derive(Default)]
pub(in crate::control) struct Watching {
    peers: BTreeMap<PeerId, Watched>,
    /// When the counters are read next; `None` until there is traffic.
    pub(super) next: Option<Instant>,
    /// The questions without an answer, with the time: the oldest first.
    asked: BTreeMap<PeerId, VecDeque<(Probe, Instant)>>,
    /// The engine has watched a peer: it is told of handshakes and waiting packets too.
    pub(super) ever: bool,
}

#[derive(Default)]
struct Watched {
    sample: Sample,
    /// Its counters are read until then; `None`: there is no traffic.
    until: Option<Instant>,
}

impl Watching {
    pub(super) fn set(&mut self, peer: PeerId, on: bool, now: Instant) {
        if on {
            self.ever = true;
            self.peers.entry(peer).or_default();
            // There may be traffic already.
            self.active(peer, now);
        } else {
            self.peers.remove(&peer);
        }
    }

    /// There may be traffic with the peer.
    pub(super) fn active(&mut self, peer: PeerId, now: Instant) {
        if let Some(watched) = self.peers.get_mut(&peer) {
            watched.until = Some(now + RECENT);
            self.next.get_or_insert(now + INTERVAL);
        }
    }

    pub(super) fn forget(&mut self, peer: PeerId) {
        self.peers.remove(&peer);
        self.asked.remove(&peer);
    }

    fn asks(&mut self, peer: PeerId, probe: Probe, now: Instant) {
        let asked = self.asked.entry(peer).or_default();
        if asked.len() == ASKED {
            asked.pop_front();
        }
        asked.push_back((probe, now));
    }

    /// How long the answer to one of the engine's questions took.
    fn answered(&mut self, peer: PeerId, probe: Probe, now: Instant) -> Option<Duration> {
        let asked = self.asked.get_mut(&peer)?;
        let at = asked.iter().position(|(known, _)| *known == probe)?;
        // The questions before it count as lost.
        let (_, sent) = asked.drain(..=at).next_back()?;
        if asked.is_empty() {
            self.asked.remove(&peer);
        }
        Some(now.since(sent))
    }
}

impl Control {
    /// Reads the counters of the watched peers with traffic, and tells the engine.
    pub(super) fn watch(&mut self, now: Instant) {
        let Self { engine_host, peers, .. } = self;
        let watching = &mut engine_host.watching;
        let (mut told, mut busy) = (Vec::new(), false);
        for (&peer, watched) in &mut watching.peers {
            let (Some(until), Some(entry)) = (watched.until, peers.get(&peer)) else { continue };
            let signals = watched.sample.look_closely(&entry.shared, entry.overhead_tx, UNANSWERED, now);
            let traffic = |signal: &Signal| !matches!(signal, Signal::Heard { data: None });
            if signals.iter().flatten().any(traffic) {
                watched.until = Some(now + RECENT);
            } else if until <= now {
                watched.until = None;
                continue;
            }
            busy = true;
            told.extend(signals.into_iter().flatten().map(|signal| (peer, signal)));
        }
        watching.next = busy.then_some(now + INTERVAL);
        for (peer, signal) in told {
            self.tell_engine(EngineEvent::Signal { peer, signal });
        }
    }

    /// Asks a peer whether it is there, or begins a handshake with it.
    pub(super) fn ask_for_engine(&mut self, peer: PeerId) {
        let instant = now().instant;
        let Some(entry) = self.peers.get(&peer) else { return };
        let Some(sealer) = self.sealer(peer).filter(|sealer| sealer.usable(instant)) else {
            if entry.way().is_some() {
                self.node.handshake_wanted(peer, now(), &mut rand::rng(), &mut self.actions);
            }
            return;
        };
        let probe = Probe::ping(rand::random());
        self.engine_host.watching.asks(peer, probe, instant);
        self.seal_and_send(peer, &sealer, &Message::Request(probe).to_bytes(), Payload::Engine);
        // A direct way is worth a search: the engine wants the round trip to this peer.
        self.paths_asked(peer);
    }

    /// A peer has answered a ping. Returns whether it was the engine's.
    pub(in crate::control) fn engine_answered(&mut self, peer: PeerId, probe: Probe) -> bool {
        let took = self.engine_host.watching.answered(peer, probe, now().instant);
        if let Some(took) = took {
            self.tell_engine(EngineEvent::Signal { peer, signal: Signal::RoundTrip(took) });
            self.publish_routes();
        }
        took.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: PeerId = PeerId(1);
    const B: PeerId = PeerId(2);

    fn at(ms: u64) -> Instant {
        Instant::from_nanos(1 << 40) + Duration::from_millis(ms)
    }

    #[test]
    fn only_who_was_asked_can_answer_what_it_was_asked_and_once() {
        let mut watching = Watching::default();
        watching.asks(A, Probe::ping(5), at(0));
        watching.asks(A, Probe::ping(6), at(10));
        watching.asks(B, Probe::ping(7), at(0));
        assert_eq!(watching.answered(A, Probe::ping(7), at(20)), None);
        assert_eq!(watching.answered(A, Probe::ping(6), at(20)), Some(Duration::from_millis(10)));
        assert_eq!(watching.answered(A, Probe::ping(6), at(20)), None, "a second time");
        assert_eq!(watching.answered(A, Probe::ping(5), at(20)), None, "older than one that was answered");
        assert_eq!(watching.asked.len(), 1, "answered questions are forgotten");
    }

    #[test]
    fn what_nobody_answers_is_bounded() {
        let mut watching = Watching::default();
        for number in 0..100 {
            watching.asks(A, Probe::ping(number), at(number.into()));
        }
        assert_eq!(watching.asked[&A].len(), ASKED);
        watching.forget(A);
        assert!(watching.asked.is_empty());
    }

    #[test]
    fn nothing_is_read_of_peers_without_traffic_or_that_are_not_watched() {
        let mut watching = Watching::default();
        watching.active(A, at(0));
        assert_eq!(watching.next, None, "not watched");
        watching.set(A, true, at(0));
        assert_eq!(watching.next, Some(at(0) + INTERVAL));
        (watching.next, watching.peers.get_mut(&A).unwrap().until) = (None, None);
        watching.active(B, at(0));
        assert_eq!(watching.next, None);
        watching.active(A, at(5));
        assert_eq!(watching.next, Some(at(5) + INTERVAL));
    }
}
