//! The documents that all servers on a log share: settings, policy, secrets, names, and who is a server.

use super::{
    Service,
    commands::{Result, text},
};
use crate::{
    backup::{policy_text, put_policy_text},
    clock::now,
    seat::{SeatError, document, server_document, write_secrets},
    settings::Settings,
};
use rustguard_crypto::random;
use rustguard_device::{SecondKey, Update, key};
use rustguard_enroll::store::{Change, LeaseStore};
use std::collections::BTreeSet;
use zeroize::Zeroizing;

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
                shared.link.stage(document::SETTINGS, Some(settings.clone()));
                shared.link.stage(document::POLICY, policy.clone());
            }
        });
        shared.await.map_err(|why| format!("this server has it, but the other servers do not: {why}"))
    }

    /// Completes a decision before it is sent: the names that result from it, and other secrets if a server is removed.
    pub(super) fn complete(&mut self) {
        let (Some(shared), Some(network)) = (&mut self.shared, &self.network) else { return };
        let staged = self.server.staged();
        if !staged.iter().any(|change| matches!(change, Change::Lease(_) | Change::LeaseGone(_))) {
            return;
        }
        if let Some(names) = network.names_document(self.server.ledger()) {
            shared.link.stage(document::NAMES, Some(names));
        }
        let gone = staged.iter().filter_map(|change| match change {
            Change::LeaseGone(key) if self.server.ledger().lease(key).is_none() => Some(server_document(key)),
            _ => None,
        });
        let gone: Vec<_> = gone.filter(|name| shared.link.documents().contains_key(name)).collect();
        for name in &gone {
            shared.link.stage(name, None);
        }
        // It knows the preshared keys of all pairs.
        if !gone.is_empty()
            && let Ok(secret) = random::bytes::<32>()
        {
            let text = format!("{}\n", *key::to_base64(&secret));
            shared.link.stage(document::PAIR_SECRET, Some(Zeroizing::new(text.into_bytes())));
        }
    }

    /// Uses the documents that others have changed.
    pub(super) async fn use_documents(&mut self, changed: &BTreeSet<String>) {
        let Some(shared) = &mut self.shared else { return };
        let documents = shared.link.documents();
        let has = |name: &str| changed.contains(name);
        let of_servers = changed.iter().any(|name| name.starts_with(document::SERVER));
        if !documents.contains_key(&server_document(&self.identity.public_key())) {
            let (store, folder) = (shared.link.log().name(), self.folder.as_path().to_owned());
            shared.removed = Some(SeatError::Removed { store, folder });
            return;
        }
        let mut failed = None;
        if has(document::PAIR_SECRET) {
            failed = write_secrets(&self.folder, documents).err().map(text);
        }
        if has(document::POLICY)
            && let Some(path) = self.policy.clone()
        {
            failed = put_policy_text(&path, documents.get(document::POLICY)).err().map(text).or(failed);
        }
        if has(document::SETTINGS) {
            let settings = documents.get(document::SETTINGS).map(|text| Settings::from_json(text));
            failed = match settings {
                Some(Ok(of_all)) => {
                    self.settings.clone().with_shared(&of_all).store(&self.folder).err().map(text).or(failed)
                }
                Some(Err(why)) => Some(why),
                None => Some("they are gone".to_owned()),
            };
        }
        if has(document::PAIR_SECRET) || of_servers {
            shared.refresh_keys(self.identity.public_key());
            self.set_session_keys().await;
        }
        if (has(document::SETTINGS) || has(document::POLICY)) && failed.is_none() {
            failed = self.reload(false, false).await.err();
        }
        if let Some(why) = failed {
            let interface = &self.interface;
            tracing::error!("{interface}: what another server has changed cannot be used here: {why}");
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
