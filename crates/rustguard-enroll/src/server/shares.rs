//! Protocol B: the first message of a joiner with a code or passphrase. It costs the sender one guess of the window.
use super::{
    Server,
    session::{SHARE_TIME, Session, Stage, Via},
    window::SHARES,
};
use crate::{
    action::Action,
    limits::Source,
    pake,
    store::LeaseStore,
    wire::{self, Cookie, Share},
};
use rand_core::CryptoRng;
use rustguard_core::time::Now;
use rustguard_crypto::hash;
use std::net::SocketAddr;

impl<S: LeaseStore> Server<S> {
    /// Handles a share of protocol B. Senders get no answer without an open window, or if they do not name the window.
    pub(super) fn handle_share(
        &mut self,
        from: SocketAddr,
        datagram: &[u8],
        share: &Share<'_>,
        now: Now,
        rng: &mut impl CryptoRng,
        actions: &mut Vec<Action>,
    ) {
        let Some(window) = self.window.as_mut().filter(|window| now.instant < window.until) else { return };
        if !window.checker.mac1_is_valid(datagram) {
            return;
        }
        if !window.checker.mac2_is_valid(&self.cookies, from, datagram, now.instant) {
            let index = wire::cookie_index(share.id);
            self.cookies.refresh(now.instant, rng);
            let reply = window.checker.reply(&self.cookies, from, index, datagram, rng);
            actions.push(Action::Send { to: from, bytes: Cookie::from_core(reply) });
            return;
        }
        let first = hash::hash(&[wire::without_macs(datagram)]);
        if let Some(answer) = self.sessions.answer(&first, now.instant) {
            actions.push(Action::Send { to: from, bytes: answer.to_vec() });
            return;
        }
        let source = Source::of(from.ip());
        if window.attempts_left == 0
            || self.sessions.is_full()
            || self.sessions.guesses_from(source, now.instant)
            || !self.shares.take(SHARES, now.instant)
        {
            return;
        }

        let index = self.sessions.fresh_index(rng);
        let Ok((keys, receiver, answer)) = pake::reply(&window.secret, share, datagram, &index, rng) else { return };
        // The guess counts now: with our share, the sender can test it even if it never sends a proof.
        window.attempts_left -= 1;
        let commitment = *share.commitment;
        let via = Via::Window { serial: window.serial, source, commitment, approve: window.approve };
        actions.push(Action::Send { to: from, bytes: answer.clone() });
        let session = Session {
            receiver,
            server: self.own_keys.present().public_key,
            first,
            answer,
            keys,
            via,
            joiner: None,
            stage: Stage::Shared,
            welcome: None,
            welcomes: 0,
            claim_keys: None,
            until: now.instant + SHARE_TIME,
        };
        self.sessions.insert(index, session);
    }
}
