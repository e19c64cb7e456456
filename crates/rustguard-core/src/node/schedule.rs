//! The timers of a node: keepalives, dead sessions, erasure of keys.
use super::{Action, Event, Node, PeerId, retire, retry::jitter, timers::Timer};
use crate::{
    constants::{KEEPALIVE_TIMEOUT, NEW_HANDSHAKE_TIMEOUT},
    time::{Instant, Now},
};
use alloc::vec::Vec;
use rand_core::CryptoRng;

impl Node {
    /// Runs one timer. It is then set to a later time, or cleared.
    pub(super) fn run_timer(
        &mut self,
        id: PeerId,
        timer: Timer,
        now: Now,
        rng: &mut impl CryptoRng,
        out: &mut Vec<Action>,
    ) {
        if let Some(peer) = self.peers.get_mut(&id) {
            self.timers.disarm(id, &mut peer.armed, timer);
        }
        match timer {
            Timer::Look => self.look(id, now, rng, out),
            Timer::Handshake => self.retry_handshake(id, now, rng, out),
            Timer::Keepalive => self.persistent_keepalive(id, now, rng, out),
            Timer::Erase => self.erase(id, out),
        }
    }

    /// The stamps say that an answer is owed or awaited: neither can be due before the shorter of the two times.
    pub(super) fn schedule_look(&mut self, id: PeerId, now: Instant) {
        if let Some(peer) = self.peers.get_mut(&id)
            && peer.armed[Timer::Look as usize].is_none()
        {
            self.timers.arm(id, &mut peer.armed, Timer::Look, now + KEEPALIVE_TIMEOUT);
        }
    }

    /// Passive keepalive and dead sessions (whitepaper §6.5).
    fn look(&mut self, id: PeerId, now: Now, rng: &mut impl CryptoRng, out: &mut Vec<Action>) {
        let Some(peer) = self.peers.get(&id) else { return };
        let due = |since: Option<Instant>, wait| since.is_some_and(|since| now.instant.since(since) >= wait);
        if due(peer.activity.owed_since(), KEEPALIVE_TIMEOUT) {
            peer.activity.settle_owed();
            if peer.usable_sealer(now.instant).is_some() {
                out.push(Action::Keepalive { peer: id });
            }
        }
        if due(peer.activity.awaited_since(), NEW_HANDSHAKE_TIMEOUT) {
            peer.activity.settle_awaited();
            self.begin_handshake(id, now, rng, out);
        }

        let Some(peer) = self.peers.get_mut(&id) else { return };
        let owed = peer.activity.owed_since().map(|since| since + KEEPALIVE_TIMEOUT);
        let awaited = peer.activity.awaited_since().map(|since| since + NEW_HANDSHAKE_TIMEOUT + jitter(rng));
        match [owed, awaited].into_iter().flatten().min() {
            // If an answer begins to be owed meanwhile, that must be noticed in time as well.
            Some(next) => {
                self.timers.arm(id, &mut peer.armed, Timer::Look, next.min(now.instant + KEEPALIVE_TIMEOUT));
            }
            None if peer.activity.end_look() => {}
            None => self.schedule_look(id, now.instant),
        }
    }

    /// Sends a keepalive if nothing passed for the interval. Traffic only writes its stamp: it never touches the timer.
    fn persistent_keepalive(&mut self, id: PeerId, now: Now, rng: &mut impl CryptoRng, out: &mut Vec<Action>) {
        let Some(peer) = self.peers.get_mut(&id).filter(|_| !self.stopped) else { return };
        let Some(interval) = peer.keepalive_interval() else { return };
        match peer.activity.last_traversal().map(|last| last + interval).filter(|&quiet| quiet > now.instant) {
            Some(quiet) => self.timers.arm(id, &mut peer.armed, Timer::Keepalive, quiet),
            None => self.send_keepalive(id, now, rng, out),
        }
    }

    /// Sends a persistent keepalive, or starts a handshake that sends one when it completes, and sets the timer for the
    /// next.
    pub(super) fn send_keepalive(&mut self, id: PeerId, now: Now, rng: &mut impl CryptoRng, out: &mut Vec<Action>) {
        let Some(peer) = self.peers.get_mut(&id) else { return };
        let Some(interval) = peer.keepalive_interval() else { return };
        self.timers.arm(id, &mut peer.armed, Timer::Keepalive, now.instant + interval);
        if peer.usable_sealer(now.instant).is_some() {
            out.push(Action::Keepalive { peer: id });
        } else {
            self.begin_handshake(id, now, rng, out);
        }
    }

    /// A handshake is complete, no matter which side began it: the peer can be reached.
    pub(super) fn link_is_usable(&mut self, id: PeerId, now: Instant) {
        let Some(peer) = self.peers.get_mut(&id).filter(|peer| !peer.started) else { return };
        peer.started = true;
        if let Some(interval) = peer.keepalive_interval() {
            self.timers.arm(id, &mut peer.armed, Timer::Keepalive, now + interval);
        }
    }

    /// Erases all keys: the last handshake is so long ago that no key can be of use.
    fn erase(&mut self, id: PeerId, out: &mut Vec<Action>) {
        let Some(peer) = self.peers.get_mut(&id) else { return };
        out.push(Action::SetSealer { peer: id, sealer: None });
        retire(&mut self.indices, peer.keypairs.take_all(), out);
        out.push(Action::Event(Event::SessionExpired { peer: id }));
    }
}
