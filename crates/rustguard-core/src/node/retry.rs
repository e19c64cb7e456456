//! When a handshake is begun, sent again, and given up (whitepaper, section 6.4).
use super::{Action, Event, Identity, Node, PeerId, fresh_ephemeral, fresh_index, timers::Timer};
use crate::{
    constants::{REKEY_ATTEMPT_TIME, REKEY_TIMEOUT, REKEY_TIMEOUT_JITTER_MS},
    noise::{self, Initiated},
    time::{Instant, Now},
    wire::Initiation,
};
use alloc::{boxed::Box, vec::Vec};
use core::time::Duration;
use rand_core::CryptoRng;

/// Initiations of one peer that are closer together than this are dropped: fifty a second are allowed.
pub(crate) const MIN_INITIATION_INTERVAL: Duration = Duration::from_millis(20);
/// The number of initiations of a greeting, for which no packet waits. Thousands of absent peers must not cost
/// Diffie-Hellman operations for long.
const GREETINGS: u32 = 3;

/// An attempt at a handshake: initiations, until one is answered or the last has been given up.
pub(crate) struct Attempt {
    pub(crate) since: Instant,
    pub(crate) first_sent: Option<Instant>,
    /// Initiations made so far.
    pub(crate) tries: u32,
    /// No packet waits for it: it is given up early and without an event. As soon as a handshake is wanted, it becomes
    /// a normal attempt.
    pub(crate) greeting: bool,
    /// Responses to it that could not be opened.
    pub(crate) refused: u32,
    /// Cookie replies to it.
    pub(crate) cookies: u32,
}

impl Attempt {
    pub(crate) fn new(since: Instant) -> Self {
        Self { since, first_sent: None, tries: 0, greeting: false, refused: 0, cookies: 0 }
    }

    pub(crate) fn status(&self) -> AttemptStatus {
        AttemptStatus {
            first_sent: self.first_sent,
            tries: self.tries,
            wanted: !self.greeting,
            refused: self.refused,
            cookies: self.cookies,
        }
    }

    pub(crate) fn greeting(since: Instant) -> Self {
        Self { greeting: true, ..Self::new(since) }
    }
}

/// An attempt at a handshake, as callers see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct AttemptStatus {
    /// When the first initiation was sent; `None`: it has not been sent yet.
    pub first_sent: Option<Instant>,
    /// Initiations made so far.
    pub tries: u32,
    /// Whether something waits for the session. Otherwise the attempt is a [greeting](Node::greet).
    pub wanted: bool,
    /// Responses that could not be opened, although they have our index, which only our initiation contains, and a
    /// valid MAC1. A responder that could read the initiation has the right private key, so the preshared keys of the
    /// two sides differ.
    pub refused: u32,
    /// Cookies that the peer sent instead of a response: it is reachable, and under load.
    pub cookies: u32,
}

pub(crate) struct Pending {
    pub(crate) index: u32,
    pub(crate) initiated: Initiated,
    /// It is made with the second key.
    pub(crate) is_second: bool,
}

impl Node {
    /// Starts a handshake unless one is under way. The first initiation waits until Rekey-Timeout after the last
    /// message that we sent, as in the kernel: the peer may be about to confirm the session of our response.
    pub(super) fn begin_handshake(&mut self, id: PeerId, now: Now, rng: &mut impl CryptoRng, out: &mut Vec<Action>) {
        let Some(peer) = self.peers.get_mut(&id).filter(|_| !self.stopped) else { return };
        let attempt = peer.attempt.get_or_insert_with(|| Attempt::new(now.instant));
        if attempt.greeting {
            (attempt.since, attempt.greeting) = (now.instant, false);
        }
        if attempt.tries > 0 {
            // An initiation is in flight, and the next one is scheduled.
            return;
        }
        attempt.since = attempt.since.min(now.instant);
        match peer.handshake_sent.map(|sent| sent + REKEY_TIMEOUT).filter(|&earliest| earliest > now.instant) {
            Some(earliest) => {
                // An attempt of `handshake_at` may have an earlier time, because it does not wait for Rekey-Timeout.
                let at = peer.armed[Timer::Handshake as usize].map_or(earliest, |armed| armed.min(earliest));
                self.timers.arm(id, &mut peer.armed, Timer::Handshake, at);
            }
            None => self.initiate(id, now, rng, out),
        }
    }

    /// Sets the time of the first initiation of a greeting.
    pub(super) fn begin_greeting(&mut self, id: PeerId, at: Instant) {
        let Some(peer) = self.peers.get_mut(&id) else { return };
        if self.stopped {
            peer.resumes = true;
        } else if peer.attempt.is_none() && peer.usable_sealer(at).is_none() {
            peer.attempt = Some(Attempt::greeting(at));
            self.timers.arm(id, &mut peer.armed, Timer::Handshake, at);
        }
    }

    /// Schedules a greeting, even if there is a session, because the peer has lost it.
    pub(super) fn call(&mut self, id: PeerId, now: Instant) {
        let Some(peer) = self.peers.get_mut(&id).filter(|peer| !self.stopped && peer.attempt.is_none()) else { return };
        peer.attempt = Some(Attempt::greeting(now));
        self.timers.arm(id, &mut peer.armed, Timer::Handshake, now);
    }

    /// Starts a handshake at once, as if none had been tried.
    pub(super) fn restart_handshake(&mut self, id: PeerId, now: Now, rng: &mut impl CryptoRng, out: &mut Vec<Action>) {
        let Some(peer) = self.peers.get_mut(&id).filter(|_| !self.stopped) else { return };
        peer.attempt = Some(Attempt::new(now.instant));
        self.initiate(id, now, rng, out);
    }

    /// Sets the time of a handshake that begins as if none had been tried.
    pub(super) fn restart_handshake_at(&mut self, id: PeerId, at: Instant) {
        let Some(peer) = self.peers.get_mut(&id).filter(|_| !self.stopped) else { return };
        // The previous initiation may still be answered. One that follows too fast would be dropped, and then no answer
        // to the first would be accepted.
        let at = peer.handshake_sent.map_or(at, |sent| at.max(sent + MIN_INITIATION_INTERVAL * 2));
        peer.attempt = Some(Attempt::new(at));
        let at = peer.armed[Timer::Handshake as usize].map_or(at, |armed| armed.min(at));
        self.timers.arm(id, &mut peer.armed, Timer::Handshake, at);
    }

    /// The handshake timer of `id`: the next initiation, or the end of the attempt.
    pub(super) fn retry_handshake(&mut self, id: PeerId, now: Now, rng: &mut impl CryptoRng, out: &mut Vec<Action>) {
        let Some(peer) = self.peers.get_mut(&id) else { return };
        match &peer.attempt {
            Some(attempt) if attempt.greeting => {
                // The other side may have been faster: it has Rekey-Timeout to confirm the session of our response.
                let earliest = peer.handshake_sent.filter(|_| attempt.tries == 0).map(|sent| sent + REKEY_TIMEOUT);
                if let Some(earliest) = earliest.filter(|&earliest| earliest > now.instant) {
                    self.timers.arm(id, &mut peer.armed, Timer::Handshake, earliest);
                } else if attempt.tries >= GREETINGS {
                    self.end_attempt(id);
                } else {
                    self.initiate(id, now, rng, out);
                }
            }
            Some(attempt) if now.instant.since(attempt.since) < REKEY_ATTEMPT_TIME => {
                self.initiate(id, now, rng, out);
            }
            _ => {
                self.end_attempt(id);
                out.push(Action::DropStaged { peer: id });
                out.push(Action::Event(Event::HandshakeFailed { peer: id }));
            }
        }
    }

    /// Sends one initiation of an attempt and sets the timer for the next.
    ///
    /// Without a private key, or with a peer whose key is of low order, there is nothing to send; the attempt continues
    /// and ends like an unanswered one.
    fn initiate(&mut self, id: PeerId, now: Now, rng: &mut impl CryptoRng, out: &mut Vec<Action>) {
        let Some(peer) = self.peers.get_mut(&id) else { return };
        let Some(attempt) = &mut peer.attempt else { return };
        let retry = (now.instant + REKEY_TIMEOUT + jitter(rng)).min(attempt.since + REKEY_ATTEMPT_TIME);
        self.timers.arm(id, &mut peer.armed, Timer::Handshake, retry);
        let tries = attempt.tries;
        attempt.tries += 1;
        if let Some(old) = peer.pending.take() {
            self.indices.remove(&old.index);
        }

        let Some(first) = &self.identity else { return };
        // Alternating: it is not known which of the two keys the peer knows.
        let second = self.second.as_ref().filter(|second| second.initiates && tries % 2 == 1);
        let Identity { secret, .. } = second.map_or(first, |second| &second.identity);
        let mut timestamp = peer.next_timestamp(now.unix).0;
        let peer_key = peer.config.public_key;
        let of_second;
        let static_static = if second.is_some() {
            let Ok(shared) = secret.diffie_hellman(&peer_key) else { return };
            of_second = shared;
            &of_second
        } else {
            let Some(shared) = peer.static_static(secret) else { return };
            shared
        };
        let own_key = secret.public_key();
        let made = noise::initiate(
            &noise::WIREGUARD,
            &own_key,
            &peer_key,
            static_static,
            fresh_ephemeral(rng),
            &mut timestamp,
        );
        let Ok((initiated, fields)) = made else { return };
        let index = fresh_index(&mut self.indices, id, rng);
        peer.pending = Some(Box::new(Pending { index, initiated, is_second: second.is_some() }));

        let mut message = Initiation::build(index, &fields.ephemeral.0, &fields.static_key, &timestamp, &fields.tag);
        peer.maker.sign(&mut message, now.instant);
        peer.handshake_sent = Some(now.instant);
        peer.activity.sent(now.instant);
        if let Some(attempt) = &mut peer.attempt {
            attempt.first_sent.get_or_insert(now.instant);
        }
        out.push(Action::Send { peer: id, datagram: message.to_vec(), attempt: tries });
    }

    /// Ends an attempt, with or without success.
    pub(super) fn end_attempt(&mut self, id: PeerId) {
        let Some(peer) = self.peers.get_mut(&id) else { return };
        peer.attempt = None;
        self.timers.disarm(id, &mut peer.armed, Timer::Handshake);
        if let Some(pending) = peer.pending.take() {
            self.indices.remove(&pending.index);
        }
    }
}

/// A random delay of up to [`REKEY_TIMEOUT_JITTER_MS`].
pub(super) fn jitter(rng: &mut impl CryptoRng) -> Duration {
    Duration::from_millis(rng.next_u64() % (REKEY_TIMEOUT_JITTER_MS + 1))
}
