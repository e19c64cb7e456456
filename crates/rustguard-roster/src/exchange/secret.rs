//! How the secret of which the keys of pairs are made comes from the server that issues to the others.

use super::{Exchange, OF_ONE, Output};
use crate::{
    member::Role,
    message::Body,
    pair::{PairSecret, SecretId},
};
use rustguard_core::time::Instant;
use rustguard_crypto::x25519::PublicKey;
use std::time::Duration;
use zeroize::Zeroizing;

/// What a server does beyond what all members do.
pub(super) enum Server {
    /// It issues the rosters, has made the pair secret, and tells it to other servers.
    Issuing,
    /// It has this key, and gets the pair secret from the issuing server. When it asks again, and how often it has.
    Further { own: PublicKey, asks_at: Option<Instant>, asked: u32 },
}

impl Exchange {
    /// The pair secret that the roster names.
    pub(super) fn current_secret(&self) -> Option<SecretId> {
        self.roster.as_ref()?.settings().pair_secret
    }

    /// Whether this is a further server, and does not have the pair secret that the roster names.
    fn lacks_secret(&self) -> bool {
        let Some(Server::Further { own, .. }) = &self.server else { return false };
        self.own_is_server(own)
            && self
                .current_secret()
                .is_some_and(|current| self.pair_secret.as_ref().map(PairSecret::id) != Some(current))
    }

    /// Whether the roster has this machine as a server, by its present key or by the one before.
    fn own_is_server(&self, own: &PublicKey) -> bool {
        let member = self.roster.as_ref().and_then(|roster| roster.holder(own));
        member.is_some_and(|member| member.role == Role::Server)
    }

    /// This machine has another key.
    pub fn set_own_key(&mut self, key: PublicKey) {
        if let Some(Server::Further { own, .. }) = &mut self.server {
            *own = key;
        }
        self.own = self.own.map(|_| key);
    }

    /// A further server that is none any more forgets the secret.
    pub(super) fn check_role(&mut self) {
        if let Some(Server::Further { own, .. }) = &self.server
            && !self.own_is_server(own)
            && self.pair_secret.take().is_some()
        {
            self.outputs.push_back(Output::PairSecret(None));
        }
    }

    /// Another server is there, or another roster: the pause between questions begins anew.
    pub(super) fn ask_secret_now(&mut self, now: Instant) {
        let lacks = self.lacks_secret();
        if let Some(Server::Further { asks_at, asked, .. }) = &mut self.server {
            (*asks_at, *asked) = (lacks.then_some(now), 0);
            self.ask_secret(now);
        }
    }

    /// Asks the servers that are connected for the pair secret. Which of them issues the rosters is not known, and only
    /// that one answers.
    pub(super) fn ask_secret(&mut self, now: Instant) {
        let Some(Server::Further { own, asks_at, asked }) = &mut self.server else { return };
        if asks_at.is_none_or(|at| at > now) {
            return;
        }
        let own = *own;
        *asks_at = Some(now + Duration::from_secs(1 << (*asked).min(6)));
        *asked += 1;
        let others = self.peers.keys().map(|key| PublicKey(*key)).filter(|key| *key != own);
        let servers: Vec<_> = others.filter(|key| self.is_server(key)).collect();
        if servers.is_empty() || !self.lacks_secret() {
            // Somebody who connects, or another roster, begins it again.
            if let Some(Server::Further { asks_at, .. }) = &mut self.server {
                *asks_at = None;
            }
            return;
        }
        servers.iter().for_each(|server| self.send(server, Body::WantSecret));
    }

    /// Tells the pair secret to a server.
    pub(super) fn answer_secret(&mut self, from: &PublicKey, now: Instant) {
        let (Some(Server::Issuing), Some(secret)) = (&self.server, &self.pair_secret) else { return };
        // No other server would believe it before the roster names it.
        if !self.is_server(from) || self.current_secret() != Some(secret.id()) {
            return;
        }
        let bytes = Zeroizing::new(*secret.as_bytes());
        let Some(peer) = self.peers.get_mut(&from.0) else { return };
        if peer.answers.take(OF_ONE, now) {
            self.send(from, Body::Secret(bytes));
        }
    }

    /// Takes the pair secret that a server tells, if it is the one that the roster names.
    pub(super) fn take_secret(&mut self, from: &PublicKey, bytes: &[u8; 32]) {
        if !self.lacks_secret() || !self.is_server(from) {
            return;
        }
        let secret = PairSecret::from_bytes(bytes);
        if Some(secret.id()) != self.current_secret() {
            return;
        }
        if let Some(Server::Further { asks_at, asked, .. }) = &mut self.server {
            (*asks_at, *asked) = (None, 0);
        }
        self.outputs.push_back(Output::PairSecret(Some(secret.clone())));
        self.pair_secret = Some(secret);
    }
}
