//! The documents that all servers on a log share: settings, policy, secrets, names, and who is a server.

use super::{
    Service,
    commands::{Result, text},
};
use crate::{
    clock::now,
    documents::{self, name_document, named, place_document, server_document},
    policy::{policy_path, policy_text},
    seat::{POLICY_TAKEN, SeatError, keep_policy, write_secrets},
    settings::Settings,
};
use rustguard_crypto::{random, x25519::PublicKey};
use rustguard_device::{SecondKey, Update, key};
use rustguard_enroll::store::{Change, LeaseStore};
use std::collections::BTreeSet;
use zeroize::Zeroizing;

/// The policy in the state folder, before another one was taken.
pub(super) struct PolicyBefore {
    policy: Option<Zeroizing<Vec<u8>>>,
    taken: Option<Zeroizing<Vec<u8>>>,
}

impl<S: LeaseStore> Service<S> {
    /// Tells the other servers of this one's settings and policy, if they are new.
    pub(super) async fn share_documents(&mut self) -> Result<()> {
        if self.shared.is_none() {
            return Ok(());
        }
        let policy = self.policy.as_deref().map(policy_text).transpose().map_err(text)?.flatten();
        let settings = Zeroizing::new(self.settings.shared().to_json());
        let shared = self.decided(|service| {
            if let Some(shared) = &mut service.shared {
                shared.link.stage(documents::SETTINGS, Some(settings.clone()));
                shared.link.stage(documents::POLICY, policy.clone());
            }
        });
        shared.await.map_err(|why| {
            format!("this server has it, but the other servers do not: {why}. Run it again when the store answers")
        })
    }

    /// Takes the policy from the administrator's file, if that has changed since it was taken last. Servers on a store
    /// keep the policy of all in the state folder. Returns the text from before, for
    /// [`put_policy_back`](Self::put_policy_back).
    pub(super) fn take_policy(&mut self) -> Result<Option<PolicyBefore>> {
        if self.shared.is_none() {
            return Ok(None);
        }
        let Some(new) = policy_text(&policy_path(&self.interface)).map_err(text)? else { return Ok(None) };
        let taken = self.folder.read(POLICY_TAKEN).map_err(text)?;
        if taken.as_ref() == Some(&new) {
            return Ok(None);
        }
        let before = self.folder.read(documents::POLICY).map_err(text)?;
        self.folder.replace(documents::POLICY, &new).map_err(text)?;
        self.folder.replace(POLICY_TAKEN, &new).map_err(text)?;
        Ok(Some(PolicyBefore { policy: before, taken }))
    }

    /// The policy that was taken is refused.
    pub(super) fn put_policy_back(&self, before: PolicyBefore) {
        for (name, text) in [(documents::POLICY, before.policy), (POLICY_TAKEN, before.taken)] {
            let put = match text {
                Some(text) => self.folder.replace(name, &text),
                None => self.folder.remove(name),
            };
            if let Err(error) = put {
                tracing::error!("{error}");
            }
        }
    }

    /// Completes a decision before it is sent: the names that result from it, and other secrets if a server is removed.
    pub(super) fn complete(&mut self) {
        let (Some(shared), Some(network)) = (&mut self.shared, &self.network) else { return };
        let staged = self.server.staged();
        if !staged.iter().any(|change| matches!(change, Change::Lease(_) | Change::LeaseGone(_))) {
            return;
        }
        let names = network.other_names(self.server.ledger());
        let log = shared.link.documents();
        let gone: Vec<_> = named(log).filter(|(key, _)| !names.contains_key(key)).map(|(key, _)| key).collect();
        for (key, name) in names {
            shared.link.stage(&name_document(&key), Some(Zeroizing::new(name.as_str().as_bytes().to_vec())));
        }
        gone.iter().for_each(|key| shared.link.stage(&name_document(key), None));
        let gone = staged.iter().filter_map(|change| match change {
            Change::LeaseGone(key) if self.server.ledger().lease(key).is_none() => Some(*key),
            _ => None,
        });
        let gone: Vec<_> = gone.collect();
        gone.iter().for_each(|key| shared.link.stage(&place_document(key), None));
        // A server that has another key.
        let (rekeyed, gone): (Vec<_>, Vec<_>) =
            gone.into_iter().partition(|key| self.server.ledger().formerly(key).is_some());
        for before in rekeyed {
            let name = shared.link.documents().get(&server_document(&before)).cloned();
            if let (Some(name), Some(lease)) = (name, self.server.ledger().formerly(&before)) {
                shared.link.stage(&server_document(&lease.public_key), Some(name));
                shared.link.stage(&server_document(&before), None);
            }
        }
        let gone = gone.iter().map(server_document);
        let gone: Vec<_> = gone.filter(|name| shared.link.documents().contains_key(name)).collect();
        for name in &gone {
            shared.link.stage(name, None);
        }
        // It knows the preshared keys of all pairs.
        if !gone.is_empty()
            && let Ok(secret) = random::bytes::<32>()
        {
            let text = format!("{}\n", *key::to_base64(&secret));
            shared.link.stage(documents::PAIR_SECRET, Some(Zeroizing::new(text.into_bytes())));
        }
    }

    /// A peer has completed a handshake here. The roster says at which server a client is.
    pub(super) async fn note_place(&mut self, peer: &PublicKey) {
        let Some(shared) = &self.shared else { return };
        let is_client = self.server.ledger().lease(peer).is_some_and(|lease| !lease.member && !lease.is_server());
        let (name, documents) = (place_document(peer), shared.link.documents());
        let own = Zeroizing::new(key::to_base64(&self.identity.public_key().0).as_bytes().to_vec());
        if !is_client || documents.get(&name) == Some(&own) || documents.len() >= documents::MAX_DOCUMENTS {
            return;
        }
        // After an error, the next handshake says it again.
        let noted = self.decided(|service| {
            if let Some(shared) = &mut service.shared {
                shared.link.stage(&name, Some(own.clone()));
            }
        });
        if noted.await.is_ok() {
            self.changed();
        }
    }

    /// Uses the documents that were changed, before a roster is made of them.
    pub(super) async fn use_documents(&mut self) {
        let Some(shared) = &mut self.shared else { return };
        let changed = std::mem::take(&mut shared.changed);
        if changed.is_empty() {
            return;
        }
        let own = server_document(&self.identity.public_key());
        if !shared.link.documents().contains_key(&own)
            && let Err(why) = self.follow_own_key().await
        {
            tracing::error!("{}: the next key of this server cannot be used: {why}", self.interface);
        }
        let Some(shared) = &mut self.shared else { return };
        let log = shared.link.documents();
        let has = |name: &str| changed.contains(name);
        let mut reloads = false;
        let of_servers = changed.iter().any(|name| name.starts_with(documents::SERVER));
        if !log.contains_key(&server_document(&self.identity.public_key())) {
            let (store, folder) = (shared.link.log().name(), self.folder.as_path().to_owned());
            shared.removed = Some(SeatError::Removed { store, folder });
            return;
        }
        let mut failed = None;
        if has(documents::PAIR_SECRET) {
            failed = write_secrets(&self.folder, log).err().map(text);
        }
        let policy = self.folder.read(documents::POLICY).ok().flatten();
        if has(documents::POLICY) && policy.as_ref() != log.get(documents::POLICY) {
            failed = keep_policy(&self.folder, log).err().map(text).or(failed);
            reloads = true;
        }
        if has(documents::SETTINGS) {
            let of_all = log.get(documents::SETTINGS).ok_or_else(|| "they are gone".to_owned());
            match of_all.and_then(|of_all| Settings::from_json(of_all)) {
                Ok(of_all) => {
                    let settings = self.settings.clone().with_shared(&of_all);
                    if settings != self.settings {
                        failed = settings.store(&self.folder).err().map(text).or(failed);
                        reloads = true;
                    }
                }
                Err(why) => failed = Some(why),
            }
        }
        if has(documents::PAIR_SECRET) || of_servers {
            self.set_session_keys().await;
        }
        if reloads && failed.is_none() {
            failed = self.reload(false, false).await.err();
        }
        if let Some(why) = failed {
            let interface = &self.interface;
            tracing::error!("{interface}: a change of another server cannot be used here: {why}");
        }
        self.changed();
    }

    /// Gives the device the key that all servers answer, and the preshared keys of all peers.
    pub(super) async fn set_session_keys(&mut self) {
        let Some(shared) = &self.shared else { return };
        let gateway = (shared.gateway.public_key() != self.identity.public_key()).then(|| shared.gateway.clone());
        let peers: Vec<_> = self.server.peers().filter_map(|peer| shared.update(peer)).collect();
        let second = rustguard_device::Change::set_or_remove(gateway.map(|key| SecondKey::new(key).only_answers()));
        // Only a device that has ended refuses this.
        let _ = self.device.update(Update::new().second_private_key(second).peers(peers)).await;
    }

    /// Keeps the lease of this server as its settings say: its endpoint, and the networks behind it.
    pub(super) async fn settle_own_lease(&mut self) {
        if self.shared.is_none() {
            return;
        }
        let own = self.identity.public_key();
        let endpoint = self.settings.reached_at();
        let routes: BTreeSet<_> = self.settings.routes.iter().map(ipnet::IpNet::trunc).collect();
        let settled = self.decided(|service| {
            let Some(lease) = service.server.ledger().lease(&own) else { return Ok(()) };
            let admitted: BTreeSet<_> = lease.admitted.iter().copied().collect();
            let (new, gone): (Vec<_>, Vec<_>) =
                (routes.difference(&admitted).copied().collect(), admitted.difference(&routes).copied().collect());
            if let Some(endpoint) = &endpoint {
                service.server.reached_at(&own, std::slice::from_ref(endpoint), now(), &mut service.actions);
            }
            if !new.is_empty() {
                service.server.allow_prefixes(&own, &new, true, now(), &mut service.actions)?;
                service.server.announced(
                    &own,
                    &routes.iter().copied().collect::<Vec<_>>(),
                    now(),
                    &mut service.actions,
                );
            }
            if !gone.is_empty() {
                service.server.deny_prefixes(&own, &gone, now(), &mut service.actions)?;
            }
            Ok::<_, rustguard_enroll::server::ServerError>(())
        });
        if let Ok(Err(error)) = settled.await {
            tracing::warn!("{}: the other servers are not told where this one is: {error}", self.interface);
        }
        self.carry_out(&[], None).await;
    }
}
