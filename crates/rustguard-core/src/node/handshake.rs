//! What handshake messages do to a node: admission, the two sides of the handshake, cookie replies, confirmation.
use super::{Action, Dropped, Event, Identity, Node, PeerId, retire};
use crate::{
    cookie::{self, Standing},
    load::Admit,
    noise::{self, Claimed, Refused, ResponseFields},
    peer::{Attempt, Keypair, Pending, Stale},
    session::{self, Role},
    sync::Arc,
    tai64n::Timestamp,
    time::{Instant, Now},
    timers::{ERASE_AFTER_TIME, REKEY_ATTEMPT_TIME, REKEY_TIMEOUT, REKEY_TIMEOUT_JITTER_MS, Timer},
    wire::{CookieReply, Initiation, Message, Response},
};
use alloc::{boxed::Box, collections::BTreeMap, vec::Vec};
use core::{net::SocketAddr, time::Duration};
use rand_core::CryptoRng;
use rustguard_crypto::x25519::{PublicKey, StaticSecret};
use zeroize::Zeroizing;

/// Initiations for which nothing waits, to one peer. Thousands of absent peers must not cost Diffie-Hellman operations for long.
const GREETINGS: u32 = 3;

impl Node {
    pub(super) fn handle_message(
        &mut self,
        from: SocketAddr,
        datagram: &[u8],
        standing: Option<Standing>,
        now: Now,
        rng: &mut impl CryptoRng,
        out: &mut Vec<Action>,
    ) -> Result<(), Dropped> {
        if self.stopped {
            return Err(Dropped::Stopped);
        }
        let message = Message::parse(datagram).ok_or(Dropped::Malformed)?;
        match message {
            Message::Initiation(message) => {
                let proven = self.is_proven(from, datagram, standing, now.instant)?;
                self.admit(from, datagram, proven, message.sender(), now.instant, rng, out)?;
                self.handle_initiation(&message, now, rng, out)
            }
            Message::Response(message) => {
                let proven = self.is_proven(from, datagram, standing, now.instant)?;
                let peer = self.awaiting(message.receiver()).ok_or(Dropped::UnknownIndex)?;
                self.admit(from, datagram, proven, message.sender(), now.instant, rng, out)?;
                self.handle_response(peer, &message, now, out)
            }
            Message::CookieReply(message) => self.handle_cookie_reply(&message, now.instant),
            Message::Data { .. } => Err(Dropped::Malformed),
        }
    }

    /// Starts a handshake unless one is under way; waits with the first initiation until Rekey-Timeout after the last
    /// message we sent, as the kernel does: the peer may be about to confirm the session of our response.
    pub(super) fn begin_handshake(&mut self, id: PeerId, now: Now, rng: &mut impl CryptoRng, out: &mut Vec<Action>) {
        let Some(peer) = self.peers.get_mut(&id).filter(|_| !self.stopped) else { return };
        match &mut peer.attempt {
            None => peer.attempt = Some(Attempt::new(now.instant)),
            Some(attempt) if attempt.greeting => {
                (attempt.since, attempt.greeting) = (now.instant, false);
                if attempt.tries > 0 {
                    // An initiation is on its way, and the next one has its time.
                    return;
                }
            }
            Some(_) => return,
        }
        match peer.handshake_sent.map(|sent| sent + REKEY_TIMEOUT).filter(|&earliest| earliest > now.instant) {
            Some(earliest) => self.timers.arm(id, &mut peer.armed, Timer::Handshake, earliest),
            None => self.initiate(id, now, rng, out),
        }
    }

    /// Sets the time of a first initiation for which nothing waits.
    pub(super) fn begin_greeting(&mut self, id: PeerId, at: Instant) {
        let Some(peer) = self.peers.get_mut(&id).filter(|_| !self.stopped) else { return };
        if peer.attempt.is_none() && peer.usable_sealer(at).is_none() {
            peer.attempt = Some(Attempt::greeting(at));
            self.timers.arm(id, &mut peer.armed, Timer::Handshake, at);
        }
    }

    /// Starts a handshake at once, as if none had been tried.
    pub(super) fn restart_handshake(&mut self, id: PeerId, now: Now, rng: &mut impl CryptoRng, out: &mut Vec<Action>) {
        let Some(peer) = self.peers.get_mut(&id).filter(|_| !self.stopped) else { return };
        peer.attempt = Some(Attempt::new(now.instant));
        self.initiate(id, now, rng, out);
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
    /// Without a private key, or with a peer whose key is of low order, there is nothing to send; the attempt goes on and
    /// ends like one that is not answered.
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

        let Some(Identity { secret, .. }) = &self.identity else { return };
        let mut timestamp = peer.next_timestamp(now.unix).0;
        let peer_key = peer.config.public_key;
        let Some(static_static) = peer.static_static(secret) else { return };
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
        peer.pending = Some(Box::new(Pending { index, initiated }));

        let mut message = Initiation::build(index, &fields.ephemeral.0, &fields.static_key, &timestamp, &fields.tag);
        peer.maker.sign(&mut message, now.instant);
        peer.handshake_sent = Some(now.instant);
        peer.activity.sent(now.instant);
        if let Some(attempt) = &mut peer.attempt {
            attempt.first_sent.get_or_insert(now.instant);
        }
        out.push(Action::Send { peer: id, datagram: message.to_vec(), attempt: tries });
    }

    /// Checks the MACs, unless that was done already. True: the source address is proven.
    fn is_proven(
        &self,
        from: SocketAddr,
        datagram: &[u8],
        judged: Option<Standing>,
        now: Instant,
    ) -> Result<bool, Dropped> {
        let screen = self.screen().ok_or(Dropped::NoIdentity)?;
        match judged.unwrap_or_else(|| screen.judge(from, datagram, now)) {
            Standing::Invalid => Err(Dropped::Mac1),
            Standing::Unproven => Ok(false),
            Standing::Proven => Ok(true),
        }
    }

    /// Under load, asks for a cookie instead of going on.
    #[expect(clippy::too_many_arguments, reason = "a message, what is known of it, and where the reply goes")]
    fn admit(
        &mut self,
        from: SocketAddr,
        datagram: &[u8],
        proven: bool,
        sender: u32,
        now: Instant,
        rng: &mut impl CryptoRng,
        out: &mut Vec<Action>,
    ) -> Result<(), Dropped> {
        match self.load.knock(from.ip(), proven, now) {
            Admit::Yes => return Ok(()),
            Admit::No => return Err(Dropped::RateLimited),
            Admit::WithCookie => {}
        }
        if self.cookie_secret.expired(now) {
            self.cookie_secret = Arc::new(cookie::Secret::new(now, rng));
            out.push(Action::SetScreen(self.screen()));
        }
        let Identity { checker, .. } = self.identity.as_ref().ok_or(Dropped::NoIdentity)?;
        let reply = checker.reply(&self.cookie_secret, from, sender, datagram, rng);
        out.push(Action::Reply { datagram: reply.to_vec() });
        Err(Dropped::CookieSent)
    }

    fn handle_initiation(
        &mut self,
        message: &Initiation<'_>,
        now: Now,
        rng: &mut impl CryptoRng,
        out: &mut Vec<Action>,
    ) -> Result<(), Dropped> {
        let Identity { secret, .. } = self.identity.as_ref().ok_or(Dropped::NoIdentity)?;
        let ephemeral = PublicKey(*message.ephemeral());
        let claimed = Claimed::read(&noise::WIREGUARD, secret, &ephemeral, message.static_key())?;
        let id = self.by_key.get(claimed.peer()).copied().ok_or(Dropped::UnknownPeer)?;
        let peer = self.peers.get_mut(&id).ok_or(Dropped::UnknownPeer)?;
        let static_static = peer.static_static(secret).ok_or(Dropped::Forged)?;
        let mut timestamp = *message.timestamp();
        let received = claimed.verify(static_static, &mut timestamp, message.timestamp_tag())?;
        // Authentic from here on, if not a replay.
        peer.note_initiation(Timestamp(timestamp), now.instant)?;

        let psk = Zeroizing::new(peer.config.preshared_key);
        let (fields, keys) = received.respond(&psk, fresh_ephemeral(rng), &mut [])?;
        let index = fresh_index(&mut self.indices, id, rng);
        let mut response = Response::build(index, message.sender(), &fields.ephemeral.0, &fields.tag);
        peer.maker.sign(&mut response, now.instant);
        peer.handshake_sent = Some(now.instant);
        peer.activity.received(now.instant);
        peer.activity.sent(now.instant);

        out.push(Action::Endpoint { peer: id });
        self.install(id, &keys, Role::Responder, index, message.sender(), now.instant, out);
        out.push(Action::Send { peer: id, datagram: response.to_vec(), attempt: 0 });
        Ok(())
    }

    fn handle_response(
        &mut self,
        id: PeerId,
        message: &Response<'_>,
        now: Now,
        out: &mut Vec<Action>,
    ) -> Result<(), Dropped> {
        let Identity { secret, .. } = self.identity.as_ref().ok_or(Dropped::NoIdentity)?;
        let peer = self.peers.get_mut(&id).ok_or(Dropped::UnknownIndex)?;
        let pending = peer.pending.as_ref().ok_or(Dropped::UnknownIndex)?;
        let fields = ResponseFields { ephemeral: PublicKey(*message.ephemeral()), tag: *message.tag() };
        let answer = pending.initiated.verify(secret, &peer.config.preshared_key, &fields, &mut [])?;
        // Authentic from here on: the handshake is over, its index goes on as the session's.
        let pending = peer.pending.take().ok_or(Dropped::UnknownIndex)?;
        let index = pending.index;
        let keys = pending.initiated.finish(answer);
        let first_sent = peer.attempt.as_ref().and_then(|attempt| attempt.first_sent);
        peer.activity.received(now.instant);
        peer.last_handshake = Some(now.unix);
        self.end_attempt(id);

        out.push(Action::Endpoint { peer: id });
        self.install(id, &keys, Role::Initiator, index, message.sender(), now.instant, out);
        let took = first_sent.map(|sent| now.instant.since(sent));
        out.push(Action::Event(Event::HandshakeComplete { peer: id, took }));
        Ok(())
    }

    /// Keeps the cookie for the next message: the reply alone sends nothing, and never moves an endpoint.
    fn handle_cookie_reply(&mut self, message: &CookieReply<'_>, now: Instant) -> Result<(), Dropped> {
        let id = self.indices.get(&message.receiver()).ok_or(Dropped::UnknownIndex)?;
        let peer = self.peers.get_mut(id).ok_or(Dropped::UnknownIndex)?;
        if peer.maker.accept(message, now) { Ok(()) } else { Err(Dropped::Forged) }
    }

    /// The peer used the session of our response: it becomes the current one, and a handshake of ours is needless.
    pub(super) fn confirm_session(&mut self, index: u32, now: Now, out: &mut Vec<Action>) {
        let Some(&id) = self.indices.get(&index) else { return };
        let Some(peer) = self.peers.get_mut(&id).filter(|peer| peer.keypairs.awaits(index)) else { return };
        let retired = peer.keypairs.confirm();
        peer.last_handshake = Some(now.unix);
        let sealer = peer.keypairs.sealer().map(Arc::clone);
        self.end_attempt(id);
        out.push(Action::SetSealer { peer: id, sealer });
        retire(&mut self.indices, retired, out);
        out.push(Action::Flush { peer: id, or_keepalive: false });
        out.push(Action::Event(Event::HandshakeComplete { peer: id, took: None }));
    }

    /// The peer whose handshake waits for an answer to `index`.
    fn awaiting(&self, index: u32) -> Option<PeerId> {
        let id = self.indices.get(&index)?;
        let pending = self.peers.get(id)?.pending.as_ref()?;
        (pending.index == index).then_some(*id)
    }

    /// Ends an attempt, with or without success.
    fn end_attempt(&mut self, id: PeerId) {
        let Some(peer) = self.peers.get_mut(&id) else { return };
        peer.attempt = None;
        self.timers.disarm(id, &mut peer.armed, Timer::Handshake);
        if let Some(pending) = peer.pending.take() {
            self.indices.remove(&pending.index);
        }
    }

    /// Puts a new session into its slot. The opener comes first: from then on packets of the session may arrive.
    #[expect(clippy::too_many_arguments, reason = "what a session is made of, from the one place it is made in")]
    fn install(
        &mut self,
        id: PeerId,
        keys: &noise::SessionKeys,
        role: Role,
        local: u32,
        remote: u32,
        now: Instant,
        out: &mut Vec<Action>,
    ) {
        let Some(peer) = self.peers.get_mut(&id) else { return };
        let (sealer, opener) = session::establish(keys, role, local, remote, now);
        let sealer = Arc::new(sealer);
        let keypair = Keypair { index: local, sealer: Arc::clone(&sealer) };
        self.indices.insert(local, id);
        out.push(Action::AddOpener { peer: id, opener: Arc::new(opener) });
        match role {
            Role::Initiator => {
                let retired = peer.keypairs.install_initiated(keypair);
                out.push(Action::SetSealer { peer: id, sealer: Some(sealer) });
                retire(&mut self.indices, retired.into_iter().flatten(), out);
                out.push(Action::Flush { peer: id, or_keepalive: true });
            }
            Role::Responder => {
                let retired = peer.keypairs.install_responded(keypair);
                retire(&mut self.indices, retired.into_iter().flatten(), out);
            }
        }
        self.timers.arm(id, &mut peer.armed, Timer::Erase, now + ERASE_AFTER_TIME);
        self.link_is_usable(id, now);
    }
}

impl From<Refused> for Dropped {
    fn from(_: Refused) -> Self {
        Self::Forged
    }
}

impl From<Stale> for Dropped {
    fn from(stale: Stale) -> Self {
        match stale {
            Stale::Replayed => Self::Replayed,
            Stale::Flood => Self::Flood,
        }
    }
}

fn fresh_ephemeral(rng: &mut impl CryptoRng) -> StaticSecret {
    let mut bytes = Zeroizing::new([0; 32]);
    rng.fill_bytes(&mut *bytes);
    StaticSecret::from_bytes(*bytes)
}

/// Takes a random index that nothing else has.
fn fresh_index(indices: &mut BTreeMap<u32, PeerId>, peer: PeerId, rng: &mut impl CryptoRng) -> u32 {
    loop {
        let index = rng.next_u32();
        if let alloc::collections::btree_map::Entry::Vacant(entry) = indices.entry(index) {
            entry.insert(peer);
            return index;
        }
    }
}

/// A random delay of up to [`REKEY_TIMEOUT_JITTER_MS`].
pub(super) fn jitter(rng: &mut impl CryptoRng) -> Duration {
    Duration::from_millis(rng.next_u64() % (REKEY_TIMEOUT_JITTER_MS + 1))
}
