//! The choice of the member from which a newer roster is fetched.

use super::{Exchange, Output};
use crate::{
    fetch::{Fetch, Parts},
    head::Version,
    message::{Body, Message},
    trust::Rank,
};
use rustguard_core::time::Instant;
use rustguard_crypto::x25519::PublicKey;
use std::{cmp::Reverse, time::Duration};

/// How long a member that has not answered is not asked.
pub(super) const PAUSE: Duration = Duration::from_secs(3);
/// How long a member that has answered falsely is not asked.
pub(super) const DISTRUST: Duration = Duration::from_secs(60);

impl Exchange {
    fn rank(&self, peer: &PublicKey) -> Rank {
        self.trust.rank(peer, self.is_server(peer))
    }

    /// Whether this member is to be asked in place of the present one: it has failed less often, or is a server. A
    /// roster that is proven to exist is not given up for an older one.
    pub(super) fn is_better(&self, other: &PublicKey, version: Version, fetch: &Fetch, now: Instant) -> bool {
        self.is_newer(version)
            && self.trust.paused_until(other) <= now
            && self.rank(other) < self.rank(&fetch.from)
            && (!fetch.is_proven() || version >= fetch.version)
    }

    /// Begins to fetch a newer roster than the one here, from the member with the best rank. Among equals, the one with
    /// the newest roster is asked.
    pub(super) fn begin_fetch(&mut self, now: Instant, parts: Parts) {
        let newer = self.newer.iter().filter_map(|key| Some((PublicKey(*key), self.peers.get(key)?.has?)));
        let asked = newer.filter(|(key, _)| self.trust.paused_until(key) <= now);
        let first = asked.min_by_key(|(key, version)| (self.rank(key), Reverse(*version)));
        if let Some((from, version)) = first {
            let since = self.trust.asked(&from, now);
            let follows = self.peers.get(&from.0).is_some_and(|peer| peer.sends == Some(version));
            self.fetch = Some(Fetch::new(self.network, self.own, from, version, parts, follows, since, now));
            self.ask(now);
        }
    }

    /// Whether another member has the roster that is being fetched, or a newer one.
    pub(super) fn another_has(&self, fetch: &Fetch) -> bool {
        let has = |key: &[u8; 32]| self.peers.get(key).is_some_and(|peer| peer.has >= Some(fetch.version));
        self.newer.iter().any(|key| *key != fetch.from.0 && has(key))
    }

    /// Asks for what is missing.
    pub(super) fn ask(&mut self, now: Instant) {
        while let Some(fetch) = &mut self.fetch
            && let Some((part, offset)) = fetch.next_request(now)
        {
            let (to, version) = (fetch.from, fetch.version);
            let text = Message { version, body: Body::Get { part, offset } }.to_bytes();
            self.outputs.push_back(Output::Send { to, text });
        }
    }

    /// The member that was asked has not answered, or has answered falsely. Another one is asked.
    pub(super) fn distrust(&mut self, time: Duration, now: Instant) {
        if let Some(fetch) = &self.fetch {
            self.trust.failed(&fetch.from, now + time);
        }
        self.fetch_again(now);
    }

    pub(super) fn fetch_again(&mut self, now: Instant) {
        let parts = self.fetch.take().map_or_else(Parts::default, Fetch::into_parts);
        self.begin_fetch(now, parts);
    }
}
