//! Adoption of the newest list of members, after the state was lost.
use super::{Server, error::ServerError};
use crate::{
    action::{Action, PeerConfig, members_changed},
    audit::{AuditEvent, AuditRecord, Reason},
    ledger::{Adoption, List},
    store::LeaseStore,
};
use rustguard_core::time::Now;
use rustguard_crypto::x25519::PublicKey;
use std::net::IpAddr;

impl<S: LeaseStore> Server<S> {
    /// The changes that [`adopt`](Self::adopt) would make.
    ///
    /// # Errors
    /// [`ServerError::OwnKey`], [`ServerError::Adoption`].
    pub fn adoption(&self, list: &List, now: Now) -> Result<Adoption, ServerError> {
        let mut keys = list.machines.iter().flat_map(|machine| [Some(machine.public_key), machine.old_key]).flatten();
        if keys.any(|key| self.own_keys.contains(&key)) {
            return Err(ServerError::OwnKey);
        }
        Ok(self.ledger.adoption(list, now)?)
    }

    /// Reserves the addresses in a list that is not decided upon yet
    /// ([`Ledger::set_listed`](crate::ledger::Ledger::set_listed)).
    pub fn set_listed(&mut self, listed: impl IntoIterator<Item = (IpAddr, PublicKey)>) {
        self.ledger.set_listed(listed);
    }

    /// Changes the leases to agree with a list of members ([`Ledger::adopt`](crate::ledger::Ledger::adopt)).
    ///
    /// # Errors
    /// [`ServerError::OwnKey`], [`ServerError::Adoption`]. Nothing has changed.
    pub fn adopt(&mut self, list: &List, now: Now, actions: &mut Vec<Action>) -> Result<Adoption, ServerError> {
        self.adoption(list, now)?;
        let adoption = self.ledger.adopt(list, now)?;
        let mut audit = |event, lease| {
            actions.push(Action::Audit(AuditRecord::of_lease(event, lease, now).reason(Reason::Listed)));
        };
        adoption.gone.iter().for_each(|lease| audit(AuditEvent::Removed, lease));
        adoption.came.iter().for_each(|lease| audit(AuditEvent::PeerAdded, lease));
        let rekeyed = || adoption.changed.iter().filter(|(before, after)| before.public_key != after.public_key);
        rekeyed().for_each(|(_, lease)| audit(AuditEvent::KeyRotated, lease));
        actions.push(Action::Audit(AuditRecord::new(AuditEvent::ListAdopted, now)));
        for lease in &adoption.gone {
            self.announcements.forget(&lease.public_key);
            // As after a removal: an exchange in progress admits nobody, and no answer is repeated.
            let is_of = |key| key == lease.public_key;
            self.sessions.retain(|session| session.joiner.as_ref().is_none_or(|joiner| !is_of(joiner.public_key)));
            actions.push(Action::RemovePeer(lease.public_key));
        }
        // Sessions continue under the new key, so the device gets the new key before all else.
        for (before, after) in rekeyed() {
            self.announcements.renamed(&before.public_key, &after.public_key);
            actions.push(Action::RekeyPeer { before: before.public_key, after: after.public_key });
        }
        let leases = adoption.changed.iter().map(|(_, after)| after).chain(&adoption.came);
        actions.extend(leases.map(|lease| Action::SetPeer(PeerConfig::of_lease(lease))));
        members_changed(actions);
        Ok(adoption)
    }
}
