//! Protocol A: the first message of an invite's holder. The checks are ordered by cost: form, MAC1, repetition of an
//! answered message, rate limit or cookie, and only then a scalar multiplication.
use super::{
    Server,
    session::{MAX_PER_INVITE, SESSION_TIME, Session, Stage, Via},
};
use crate::{
    action::Action,
    audit::Reason,
    invite,
    limits::Admit,
    payload::Joiner,
    store::LeaseStore,
    token::token_id,
    wire::{self, Cookie, Initiation},
};
use rand_core::CryptoRng;
use rustguard_core::time::Now;
use rustguard_crypto::hash;
use std::net::SocketAddr;

impl<S: LeaseStore> Server<S> {
    /// Protocol A. A sender without a valid invite gets no answer.
    pub(super) fn handle_initiation(
        &mut self,
        from: SocketAddr,
        datagram: &[u8],
        initiation: &Initiation<'_>,
        now: Now,
        rng: &mut impl CryptoRng,
        actions: &mut Vec<Action>,
    ) {
        let Some(own) = self.own_keys.addressee(datagram) else { return };
        let server = own.public_key;
        // The answer goes to the source of the message. It is no longer than the message, and only the original sender
        // can use it.
        let first = hash::hash(&[wire::without_macs(datagram)]);
        if let Some(answer) = self.sessions.answer(&first, now.instant) {
            actions.push(Action::Send { to: from, bytes: answer.to_vec() });
            return;
        }
        let proven = own.checker.mac2_is_valid(&self.cookies, from, datagram, now.instant);
        match self.door.knock(from.ip(), proven, now.instant) {
            Admit::No => return,
            Admit::WithCookie => {
                let index = wire::cookie_index(&initiation.sender);
                self.cookies.refresh(now.instant, rng);
                let reply = own.checker.reply(&self.cookies, from, index, datagram, rng);
                actions.push(Action::Send { to: from, bytes: Cookie::from_core(reply) });
                return;
            }
            Admit::Yes => {}
        }

        let Ok(claimed) = invite::read(&own.secret, initiation) else { return };
        let id = token_id(claimed.peer());
        if let Some(reason) = self.refusal_of_invite(&id, claimed.peer(), now) {
            self.refuse_silently(reason, from, Some(id), None, now, actions);
            return;
        }
        // From here on the sender claims a valid invite. `verify` proves that the sender holds it.
        let own = self.own_keys.of(&server);
        let Ok((received, text)) = invite::verify(claimed, &own.secret, initiation) else { return };
        let joiner = Joiner::from_initiation(&text);
        let joiner = joiner.filter(|(_, joiner, _)| !self.own_keys.contains(&joiner.public_key));
        let Some((timestamp, joiner, proof)) = joiner else {
            self.refuse_silently(Reason::Malformed, from, Some(id), None, now, actions);
            return;
        };
        // An invite may have several holders, and each can name another's public key. Only a joiner that has proved its
        // private key is therefore treated as the owner of that key.
        let proven = invite::proves_key(&own.secret, initiation, &joiner.public_key, proof);
        if self.is_used_by_others(&id, proven.then_some(&joiner.public_key)) {
            self.refuse_silently(Reason::UsedToken, from, Some(id), Some(&joiner.public_key), now, actions);
            return;
        }
        // There is one session for each machine. An initiation older than the answered one is a replay and must not end
        // the session.
        if proven {
            match self.sessions.of_machine(&id, &joiner.public_key, now.instant) {
                Some((_, last)) if timestamp <= last => return,
                Some((index, _)) => drop(self.sessions.remove(&index)),
                None => {}
            }
        }
        if self.sessions.is_full() || self.sessions.count_of_invite(&id, now.instant) >= MAX_PER_INVITE {
            return;
        }

        let index = self.sessions.fresh_index(rng);
        let settings = &self.own_keys.of(&server).settings;
        let answer = invite::respond(received, datagram, &initiation.sender, &index, settings, rng);
        let Ok((keys, answer)) = answer else { return };
        actions.push(Action::Send { to: from, bytes: answer.clone() });
        let session = Session {
            receiver: initiation.sender,
            server,
            first,
            answer,
            keys,
            via: Via::Invite { id, proven: proven.then_some(timestamp) },
            joiner: Some(joiner),
            stage: Stage::Welcomed,
            welcome: None,
            welcomes: 0,
            claim_keys: None,
            until: now.instant + SESSION_TIME,
        };
        self.sessions.insert(index, session);
    }
}
