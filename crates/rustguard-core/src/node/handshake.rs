//! The handling of handshake messages: admission, the two sides of the handshake, cookie replies, confirmation.
use super::{
    Action, Dropped, Event, Identity, Node, PeerId, Unconfirmed, fresh_ephemeral, fresh_index, keypairs::Keypair,
    peer::Stale, retire, timers::Timer,
};
use crate::{
    constants::{ERASE_AFTER_TIME, KEEPALIVE_TIMEOUT, REJECT_AFTER_TIME, REKEY_TIMEOUT},
    cookie::{self, Origin, Standing},
    limit::Admit,
    noise::{self, Claimed, Refused, ResponseFields},
    session::{self, Side},
    sync::Arc,
    tai64n::Timestamp,
    time::{Instant, Now},
    wire::{CookieReply, Initiation, Message, Response},
};
use alloc::vec::Vec;
use core::time::Duration;
use rand_core::CryptoRng;
use rustguard_crypto::x25519::PublicKey;
use zeroize::Zeroizing;

/// A peer that was heard within this time has a session. Persistent keepalives come every 25 seconds.
const HEARD: Duration = Duration::from_secs(30);

impl Node {
    pub(super) fn handle_message(
        &mut self,
        from: Origin,
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
                let is_second = self.is_for_second(datagram);
                self.handle_initiation(&message, is_second, now, rng, out)
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

    /// Checks the MACs, unless that was done already. True: the source address is proven.
    fn is_proven(
        &self,
        from: Origin,
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

    /// Under load, answers with a cookie instead.
    #[expect(clippy::too_many_arguments, reason = "a message, what is known of it, and where the reply goes")]
    fn admit(
        &mut self,
        from: Origin,
        datagram: &[u8],
        proven: bool,
        sender: u32,
        now: Instant,
        rng: &mut impl CryptoRng,
        out: &mut Vec<Action>,
    ) -> Result<(), Dropped> {
        match self.load.knock(from, proven, now) {
            Admit::Yes => return Ok(()),
            Admit::No => return Err(Dropped::RateLimited),
            Admit::WithCookie => {}
        }
        if self.cookie_secret.expired(now) {
            self.cookie_secret = Arc::new(cookie::Secret::new(now, rng));
            out.push(Action::SetScreen(self.screen()));
        }
        let Identity { checker, .. } = self.addressee(self.is_for_second(datagram)).ok_or(Dropped::NoIdentity)?;
        let reply = checker.reply(&self.cookie_secret, from, sender, datagram, rng);
        out.push(Action::Reply { datagram: reply.to_vec() });
        Err(Dropped::CookieSent)
    }

    /// Whether a message with a valid MAC1 is for the second key.
    fn is_for_second(&self, datagram: &[u8]) -> bool {
        self.second.as_ref().is_some_and(|second| second.identity.checker.mac1_is_valid(datagram))
    }

    /// The first key, or the second.
    fn addressee(&self, is_second: bool) -> Option<&Identity> {
        match &self.second {
            Some(second) if is_second => Some(&second.identity),
            _ => self.identity.as_ref(),
        }
    }

    fn handle_initiation(
        &mut self,
        message: &Initiation<'_>,
        is_second: bool,
        now: Now,
        rng: &mut impl CryptoRng,
        out: &mut Vec<Action>,
    ) -> Result<(), Dropped> {
        let first = self.identity.as_ref().ok_or(Dropped::NoIdentity)?;
        let second = self.second.as_ref().filter(|_| is_second);
        let Identity { secret, .. } = second.map_or(first, |second| &second.identity);
        let ephemeral = PublicKey(*message.ephemeral());
        let claimed = Claimed::read(&noise::WIREGUARD, secret, &ephemeral, message.static_key())?;
        let id = self.by_key.get(claimed.peer()).copied().ok_or(Dropped::UnknownPeer)?;
        let peer = self.peers.get_mut(&id).ok_or(Dropped::UnknownPeer)?;
        let mut timestamp = *message.timestamp();
        let received = if second.is_some() {
            let static_static = secret.diffie_hellman(claimed.peer()).map_err(|_| Dropped::Forged)?;
            claimed.verify(&static_static, &mut timestamp, message.timestamp_tag())?
        } else {
            let static_static = peer.static_static(secret).ok_or(Dropped::Forged)?;
            claimed.verify(static_static, &mut timestamp, message.timestamp_tag())?
        };
        let by_first = second.and_then(|second| second.by_first.get(&id));
        // Of several nodes that answer the second key, the peer has a session with this one already. It would arrive at
        // the peer that it knows as another node.
        let is_other = second.is_some_and(|second| !second.initiates)
            && peer.activity.heard_at().is_some_and(|at| now.instant.since(at) < HEARD);
        let guard = if is_other { REJECT_AFTER_TIME } else { REKEY_TIMEOUT };
        if by_first.is_some_and(|at| now.instant.since(*at) < guard) {
            return Err(Dropped::OtherKey);
        }
        // Authentic from here on, unless it is a replay.
        if let Err(stale) = peer.note_initiation(Timestamp(timestamp), now.instant) {
            if let Stale::Replayed { behind: Some(by) } = stale {
                out.push(Action::Event(Event::ClockBehind { peer: id, by }));
                // The peer cannot reach us until its clock has caught up. We can reach it where it was last heard: a
                // replay of its initiations gains nothing.
                if peer.activity.heard_at().is_none_or(|at| now.instant.since(at) >= KEEPALIVE_TIMEOUT) {
                    self.call(id, now.instant);
                }
            }
            return Err(stale.into());
        }

        // The peer knows this node by its own key from now on. In a session with the other key it would send what is
        // for another node that has that key.
        if !is_second && self.second.as_ref().is_some_and(|second| second.by_second.contains(&id)) {
            retire(&mut self.indices, peer.keypairs.take_all(), out);
            out.push(Action::SetSealer { peer: id, sealer: None });
        }
        let psk = second.and_then(|second| second.preshared_keys.get(&id));
        let psk = psk.cloned().unwrap_or_else(|| Zeroizing::new(peer.config.preshared_key));
        let (fields, keys) = received.respond(&psk, fresh_ephemeral(rng), &mut [])?;
        let index = fresh_index(&mut self.indices, id, rng);
        let mut response = Response::build(index, message.sender(), &fields.ephemeral.0, &fields.tag);
        peer.maker.sign(&mut response, now.instant);
        peer.handshake_sent = Some(now.instant);
        peer.unconfirmed = Some(Unconfirmed::after(peer.unconfirmed, now.instant));
        peer.activity.received(now.instant);
        peer.activity.sent(now.instant);

        out.push(Action::Endpoint { peer: id });
        self.install(id, &keys, Side::Responder, index, message.sender(), now.instant, out);
        out.push(Action::Send { peer: id, datagram: response.to_vec(), attempt: 0 });
        self.note_key(id, is_second, now.instant);
        Ok(())
    }

    /// Notes an authentic handshake with the first or the second key.
    fn note_key(&mut self, peer: PeerId, is_second: bool, now: Instant) {
        let Some(second) = &mut self.second else { return };
        if !is_second {
            second.by_first.insert(peer, now);
            second.by_second.remove(&peer);
        } else if !second.initiates {
            second.by_second.insert(peer);
        }
    }

    fn handle_response(
        &mut self,
        id: PeerId,
        message: &Response<'_>,
        now: Now,
        out: &mut Vec<Action>,
    ) -> Result<(), Dropped> {
        let first = self.identity.as_ref().ok_or(Dropped::NoIdentity)?;
        let peer = self.peers.get_mut(&id).ok_or(Dropped::UnknownIndex)?;
        let pending = peer.pending.as_ref().ok_or(Dropped::UnknownIndex)?;
        let second = self.second.as_ref().filter(|_| pending.is_second);
        let Identity { secret, .. } = second.map_or(first, |second| &second.identity);
        let psk = second.and_then(|second| second.preshared_keys.get(&id));
        let psk = psk.map_or(&peer.config.preshared_key, |psk| psk);
        let fields = ResponseFields { ephemeral: PublicKey(*message.ephemeral()), tag: *message.tag() };
        let answer = match pending.initiated.verify(secret, psk, &fields, &mut []) {
            Ok(answer) => answer,
            Err(refused) => {
                if let Some(attempt) = &mut peer.attempt {
                    attempt.refused = attempt.refused.saturating_add(1);
                }
                return Err(refused.into());
            }
        };
        // Authentic from here on: the handshake is over, and its index becomes the session's.
        let pending = peer.pending.take().ok_or(Dropped::UnknownIndex)?;
        let index = pending.index;
        let (keys, is_second) = (pending.initiated.finish(answer), pending.is_second);
        let first_sent = peer.attempt.as_ref().and_then(|attempt| attempt.first_sent);
        peer.activity.answer_received(now.instant);
        peer.last_handshake = Some(now.unix);
        peer.unconfirmed = None;
        self.end_attempt(id);

        out.push(Action::Endpoint { peer: id });
        self.install(id, &keys, Side::Initiator, index, message.sender(), now.instant, out);
        let took = first_sent.map(|sent| now.instant.since(sent));
        out.push(Action::Event(Event::HandshakeComplete { peer: id, took }));
        self.note_key(id, is_second, now.instant);
        Ok(())
    }

    /// Keeps the cookie for the next message. The reply itself causes no message, and never moves an endpoint.
    fn handle_cookie_reply(&mut self, message: &CookieReply<'_>, now: Instant) -> Result<(), Dropped> {
        let id = self.indices.get(&message.receiver()).ok_or(Dropped::UnknownIndex)?;
        let peer = self.peers.get_mut(id).ok_or(Dropped::UnknownIndex)?;
        if !peer.maker.accept(message, now) {
            return Err(Dropped::Forged);
        }
        if let Some(attempt) = &mut peer.attempt {
            attempt.cookies = attempt.cookies.saturating_add(1);
        }
        Ok(())
    }

    /// The peer used the session of our response: it becomes the current one, and our own handshake is no longer
    /// needed.
    pub(super) fn confirm_session(&mut self, index: u32, now: Now, out: &mut Vec<Action>) {
        let Some(&id) = self.indices.get(&index) else { return };
        let Some(peer) = self.peers.get_mut(&id).filter(|peer| peer.keypairs.awaits(index)) else { return };
        let retired = peer.keypairs.confirm();
        peer.last_handshake = Some(now.unix);
        peer.unconfirmed = None;
        let sealer = peer.keypairs.sealer().map(Arc::clone);
        self.end_attempt(id);
        out.push(Action::SetSealer { peer: id, sealer });
        retire(&mut self.indices, retired, out);
        out.push(Action::Flush { peer: id, or_keepalive: false });
        out.push(Action::Event(Event::HandshakeComplete { peer: id, took: None }));
    }

    /// The static key in an initiation, if the sender also has the private key to it.
    pub(super) fn initiator_of(&self, datagram: &[u8]) -> Option<PublicKey> {
        let Identity { secret, .. } = self.addressee(self.is_for_second(datagram))?;
        let Some(Message::Initiation(message)) = Message::parse(datagram) else { return None };
        let claimed =
            Claimed::read(&noise::WIREGUARD, secret, &PublicKey(*message.ephemeral()), message.static_key()).ok()?;
        let peer = *claimed.peer();
        let static_static = secret.diffie_hellman(&peer).ok()?;
        claimed.verify(&static_static, &mut message.timestamp().clone(), message.timestamp_tag()).ok()?;
        Some(peer)
    }

    /// The peer whose handshake waits for an answer to `index`.
    fn awaiting(&self, index: u32) -> Option<PeerId> {
        let id = self.indices.get(&index)?;
        let pending = self.peers.get(id)?.pending.as_ref()?;
        (pending.index == index).then_some(*id)
    }

    /// Puts a new session into its slot. The opener comes first: from then on packets of the session may arrive.
    #[expect(clippy::too_many_arguments, reason = "what a session is made of, from the one place it is made in")]
    fn install(
        &mut self,
        id: PeerId,
        keys: &noise::SessionKeys,
        side: Side,
        local: u32,
        remote: u32,
        now: Instant,
        out: &mut Vec<Action>,
    ) {
        let Some(peer) = self.peers.get_mut(&id) else { return };
        let (sealer, opener) = session::establish(keys, side, local, remote, now);
        let sealer = Arc::new(sealer);
        let keypair = Keypair { index: local, sealer: Arc::clone(&sealer) };
        self.indices.insert(local, id);
        let next = (side == Side::Responder).then(|| Arc::clone(&sealer));
        out.push(Action::AddOpener { peer: id, opener: Arc::new(opener), next });
        match side {
            Side::Initiator => {
                let retired = peer.keypairs.install_initiated(keypair);
                out.push(Action::SetSealer { peer: id, sealer: Some(sealer) });
                retire(&mut self.indices, retired.into_iter().flatten(), out);
                out.push(Action::Flush { peer: id, or_keepalive: true });
            }
            Side::Responder => {
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
            Stale::Replayed { .. } => Self::Replayed,
            Stale::Flood => Self::Flood,
        }
    }
}
