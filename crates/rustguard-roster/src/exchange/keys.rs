//! How a member gets the preshared keys of its pairs from the servers.

use super::{Exchange, Output, parts::OF_ONE};
use crate::{
    head::Version,
    member::Role,
    message::{Body, KeyName, MAX_KEYS, key_name},
    pair::{PairSecret, SecretId},
    roster::Roster,
};
use rustguard_core::{preshared_key::PresharedKey, time::Instant};
use rustguard_crypto::x25519::PublicKey;
use std::{collections::BTreeMap, sync::Arc, time::Duration};
use zeroize::Zeroizing;

/// The most keys that are kept before they are wanted.
const MOST_EARLY: usize = 4 * MAX_KEYS;

/// Keys that nobody has asked for yet: a server sends them behind a roster, before the embedder has seen that roster.
pub(super) struct EarlyKeys {
    from: PublicKey,
    of: SecretId,
    keys: BTreeMap<KeyName, PresharedKey>,
}

impl Exchange {
    /// Takes the missing keys that have arrived early. The other early keys are forgotten.
    pub(super) fn take_early_keys(&mut self) {
        let Some(EarlyKeys { from, of, mut keys }) = self.early_keys.take() else { return };
        if !self.is_server(&from) || self.current_secret().is_some_and(|current| current != of) {
            return;
        }
        let outputs = &mut self.outputs;
        self.without_key.retain(|member| {
            let member = PublicKey(*member);
            let Some(key) = keys.remove(&key_name(&member)) else { return true };
            outputs.push_back(Output::PresharedKey { member, of, key });
            false
        });
    }

    /// Keeps a key until it is wanted.
    fn keep_early(&mut self, from: &PublicKey, of: SecretId, name: KeyName, key: PresharedKey) {
        if self.early_keys.as_ref().is_none_or(|early| (early.from, early.of) != (*from, of)) {
            self.early_keys = Some(EarlyKeys { from: *from, of, keys: BTreeMap::new() });
        }
        if let Some(early) = self.early_keys.as_mut().filter(|early| early.keys.len() < MOST_EARLY) {
            early.keys.insert(name, key);
        }
    }

    /// Asks a server for some of the keys that are missing.
    pub(super) fn ask_keys(&mut self, now: Instant) {
        if self.without_key.is_empty() || self.asked_keys.is_some() {
            return;
        }
        let servers: Vec<_> = self.peers.keys().map(|key| PublicKey(*key)).filter(|key| self.is_server(key)).collect();
        // Servers that have this roster are preferred: others may not know a new member yet. But a server that does not
        // answer, or answers falsely, must not block the others, so they are asked in turn.
        let own = Some(self.version());
        let is_current = |key: &&PublicKey| self.peers.get(&key.0).is_some_and(|peer| peer.has >= own);
        let mut among: Vec<_> = servers.iter().filter(|_| self.unanswered == 0).filter(is_current).copied().collect();
        if among.is_empty() {
            among = servers;
        }
        let Some(&server) = among.get(self.turn % among.len().max(1)) else { return };
        self.turn = self.turn.wrapping_add(1);
        let names: Vec<_> = self.without_key.iter().take(MAX_KEYS).map(|key| key_name(&PublicKey(*key))).collect();
        self.asked_keys = Some(now + Duration::from_secs(1 << self.unanswered.min(6)));
        self.unanswered = self.unanswered.wrapping_add(1);
        self.send(&server, Body::WantKeys(names));
    }

    /// Answers a member that asks for the keys of its own pairs.
    pub(super) fn answer_keys(&mut self, from: &PublicKey, names: &[KeyName], now: Instant) {
        let is_member =
            |roster: &Arc<Roster>| roster.member(from).is_some_and(|member| !matches!(member.role, Role::Client(_)));
        if self.roster.as_ref().is_some_and(is_member)
            && self.present_secret().is_some()
            && self.may_answer(from, |peer, _| peer.take_many(names.len() as u32, OF_ONE, now), now)
        {
            self.send_keys(from, names);
        }
    }

    /// Sends a member these keys of its own pairs, if the secret that they are derived from is here.
    pub(super) fn send_keys(&mut self, to: &PublicKey, names: &[KeyName]) {
        let (Some(secret), Some(roster)) = (self.present_secret(), &self.roster) else { return };
        let key_of = |name: &KeyName| {
            let other = roster.named(name).filter(|other| other != to);
            let key = other.map(|other| Zeroizing::new(*secret.preshared_key(to, &other).as_bytes()));
            (*name, key.unwrap_or_default())
        };
        let (of, keys) = (secret.id(), names.iter().map(key_of).collect());
        self.send(to, Body::Keys { of, keys });
    }

    /// The pair secret, unless the roster names a different one.
    fn present_secret(&self) -> Option<&PairSecret> {
        let present = self.current_secret();
        self.pair_secret.as_ref().filter(|secret| present.is_none_or(|present| present == secret.id()))
    }

    /// Takes the keys that a server with this roster sends, unless they are derived from a different secret than the
    /// one that the roster here names.
    pub(super) fn take_keys(
        &mut self,
        from: &PublicKey,
        version: Version,
        of: SecretId,
        keys: Vec<(KeyName, Zeroizing<[u8; 32]>)>,
        now: Instant,
    ) {
        // Without a roster, no server is known yet. Keys that arrive then are kept, and are useless if the sender is no
        // server.
        let is_early = self.roster.is_none();
        if !(is_early || self.is_server(from)) || self.current_secret().is_some_and(|current| current != of) {
            return;
        }
        let before = self.without_key.len();
        for (name, key) in keys {
            let mut first = [0; 32];
            first[..8].copy_from_slice(&name);
            let wanted = self.without_key.range(first..).next().copied();
            let key = PresharedKey::from_bytes(&key);
            let wanted = wanted.filter(|member| !is_early && key_name(&PublicKey(*member)) == name);
            let Some(member) = wanted else {
                if version >= self.version() && !key.is_zero() {
                    self.keep_early(from, of, name, key);
                }
                continue;
            };
            // A server that does not know the member sends zeros. If its roster is older, it may know the member soon,
            // and another server may know it now.
            if key.is_zero() && version < self.version() {
                continue;
            }
            self.without_key.remove(&member);
            // Otherwise it is asked for again when there is another roster.
            if !key.is_zero() {
                self.outputs.push_back(Output::PresharedKey { member: PublicKey(member), of, key });
            }
        }
        // Keys that were not requested do not trigger another request.
        if self.without_key.len() < before {
            (self.asked_keys, self.unanswered) = (None, 0);
            self.ask_keys(now);
        }
    }
}
