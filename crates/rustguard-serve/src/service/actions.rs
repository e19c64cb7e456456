//! Carries out the actions of enrolment.

use super::Service;
use crate::{clock::now, peer::to_update, socket::Caller};
use rustguard_device::{Datagram, PeerUpdate, Update, key};
use rustguard_enroll::{
    action::Action,
    audit::{AuditRecord, Reason},
    store::LeaseStore,
};
use rustguard_tun::Endpoint;

impl<S: LeaseStore> Service<S> {
    /// Carries out all actions. The device gets its peers before the answers are sent. The datagrams `caused_by` or
    /// the caller caused the actions.
    pub(super) async fn carry_out(&mut self, caused_by: &[Datagram], caller: Option<&Caller>) {
        let followed = self.take_followed();
        if self.actions.is_empty() && followed.is_empty() {
            return;
        }
        let (mut peers, mut answers, mut members_changed) = (Vec::new(), Vec::new(), false);
        for action in followed.into_iter().chain(self.actions.drain(..)) {
            match action {
                Action::SetPeer(peer) => {
                    self.farewell.cancel(&peer.public_key);
                    peers.extend(match &self.shared {
                        Some(shared) => shared.update(peer),
                        None => Some(to_update(peer)),
                    });
                }
                Action::RekeyPeer { before, after } => {
                    peers.push(PeerUpdate::new(before).update_only().new_public_key(after));
                }
                Action::RemovePeer(key) if self.network.as_ref().is_some_and(|network| network.tells(&key)) => {
                    self.farewell.begin(key, now().instant);
                    peers.push(PeerUpdate::new(key).update_only().replace_allowed_ips([]));
                }
                Action::RemovePeer(key) => peers.push(PeerUpdate::remove(key)),
                // A star has no roster.
                Action::MembersChanged => members_changed = true,
                Action::Send { to, bytes } => {
                    // The answer's source must be the address to which the request was sent. A client behind a strict
                    // firewall receives no other answers.
                    let from = caused_by.iter().rev().find(|datagram| datagram.endpoint.remote == to);
                    let endpoint = from.map_or(Endpoint::new(to), |datagram| datagram.endpoint);
                    answers.push(Datagram::new(endpoint, bytes));
                }
                Action::Audit(record) => {
                    let mut record = record;
                    match caller.filter(|_| record.server.is_none()) {
                        // No user of this machine gave the command.
                        Some(Caller { session: Some(session), .. }) => record.by = Some(session.clone()),
                        Some(Caller { uid, .. }) => record.uid = Some(*uid),
                        None => {}
                    }
                    if record.server.is_none() {
                        self.counters.count(&record);
                    }
                    tracing::info!(target: "rustguard_serve::audit", "{}", describe(&record));
                    if let Err(error) = self.audit.write(&record) {
                        tracing::error!("the audit log cannot be written: {error}");
                    }
                }
            }
        }
        if members_changed {
            self.changed();
        }
        if !peers.is_empty()
            && let Err(error) = self.device.update(Update::new().peers(peers)).await
        {
            // The device is stopping. A joiner that waits for an answer will ask the next server.
            tracing::debug!("peers were not updated: {error}");
            return;
        }
        for answer in answers {
            self.device.send(answer).await;
        }
    }
}

/// Describes the record for the readable log.
fn describe(record: &AuditRecord) -> String {
    let word = |value: serde_json::Result<String>| value.unwrap_or_default().replace(['"', '-'], " ").trim().to_owned();
    let mut text = word(serde_json::to_string(&record.event));
    let addresses = list(&record.addresses);
    let who = record.name.clone().or_else(|| record.public_key.map(|key| key::to_base64(&key.0).to_string()));
    let remedy = |reason| match reason {
        Reason::PoolExhausted => ": remove peers (`rustguard peer rm`), or serve a larger pool that contains this one",
        _ => "",
    };
    let why = record.reason.map(|reason| word(serde_json::to_string(&reason)) + remedy(reason));
    let parts = [
        who.map(|who| format!(": {who}")),
        (!addresses.is_empty()).then(|| format!(" with {addresses}")),
        (!record.prefixes.is_empty()).then(|| format!(", prefixes {}", list(&record.prefixes))),
        (!record.tags.is_empty()).then(|| format!(", tags {}", list(&record.tags))),
        record.source.map(|source| format!(" from {source}")),
        record.token.as_ref().map(|token| format!(", invite {token}")),
        why.map(|why| format!(" ({why})")),
        (record.count > 1).then(|| format!(", {} times", record.count)),
        record.by.as_ref().map(|by| format!(" by {by}")),
        record.server.as_ref().map(|server| format!(", at the server {server}")),
    ];
    text.extend(parts.into_iter().flatten());
    text
}

fn list<T: ToString>(values: &[T]) -> String {
    values.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}
