//! How the secret from which the keys of pairs are derived gets from the issuing server to the other servers.

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

/// The additional role of a server.
pub(super) enum Server {
    /// It issues the rosters, has made the pair secret, and sends it to other servers.
    Issuing,
    /// It has the key `own`, and gets the pair secret from the issuing server. It asks again at `asks_at`, and has
    /// asked `asked` times.
    Further { own: PublicKey, asks_at: Option<Instant>, asked: u32 },
}

impl Exchange {
    /// The pair secret that the roster names.
    pub(super) fn current_secret(&self) -> Option<SecretId> {
        self.roster.as_ref()?.settings().pair_secret
    }

    /// Whether this is a further server that lacks the pair secret that the roster names.
    fn lacks_secret(&self) -> bool {
        let Some(Server::Further { own, .. }) = &self.server else { return false };
        self.own_is_server(own)
            && self
                .current_secret()
                .is_some_and(|current| self.pair_secret.as_ref().map(PairSecret::id) != Some(current))
    }

    /// Whether this machine is a server in the roster, by its present key or by its previous one.
    fn own_is_server(&self, own: &PublicKey) -> bool {
        let member = self.roster.as_ref().and_then(|roster| roster.holder(own));
        member.is_some_and(|member| member.role == Role::Server)
    }

    /// Changes the key of this machine.
    pub fn set_own_key(&mut self, key: PublicKey) {
        if let Some(Server::Further { own, .. }) = &mut self.server {
            *own = key;
        }
        self.own = self.own.map(|_| key);
    }

    /// A further server that has lost this role deletes the secret.
    pub(super) fn check_role(&mut self) {
        if let Some(Server::Further { own, .. }) = &self.server
            && !self.own_is_server(own)
            && self.pair_secret.take().is_some()
        {
            self.outputs.push_back(Output::PairSecret(None));
        }
    }

    /// Another server has connected, or there is another roster: the interval between requests starts again at its
    /// minimum.
    pub(super) fn ask_secret_now(&mut self, now: Instant) {
        let lacks = self.lacks_secret();
        if let Some(Server::Further { asks_at, asked, .. }) = &mut self.server {
            (*asks_at, *asked) = (lacks.then_some(now), 0);
            self.ask_secret(now);
        }
    }

    /// Asks all connected servers for the pair secret. It is unknown which of them issues the rosters, and only the
    /// issuing one answers.
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
            // A server that connects, or another roster, restarts it.
            if let Some(Server::Further { asks_at, .. }) = &mut self.server {
                *asks_at = None;
            }
            return;
        }
        servers.iter().for_each(|server| self.send(server, Body::WantSecret));
    }

    /// Sends the pair secret to a server.
    pub(super) fn answer_secret(&mut self, from: &PublicKey, now: Instant) {
        let (Some(Server::Issuing), Some(secret)) = (&self.server, &self.pair_secret) else { return };
        // No other server would accept it before the roster names it.
        if !self.is_server(from) || self.current_secret() != Some(secret.id()) {
            return;
        }
        let bytes = Zeroizing::new(*secret.as_bytes());
        let Some(peer) = self.peers.get_mut(&from.0) else { return };
        if peer.answers.take(OF_ONE, now) {
            self.send(from, Body::Secret(bytes));
        }
    }

    /// Takes the pair secret that a server sends, if the roster names this secret.
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
