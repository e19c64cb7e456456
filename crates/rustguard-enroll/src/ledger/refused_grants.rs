//! The grants that are refused: invites that are unknown, revoked, expired or used, closed windows, and grants older
//! than the removal of the peer.
use super::{Ledger, error::Refusal, request::Grant};
use crate::lease::{Origin, Terms, UnixSeconds};
use rustguard_crypto::x25519::PublicKey;

impl<S> Ledger<S> {
    /// Checks whether the grant admits this key, and returns its terms.
    pub(super) fn permitted(
        &self,
        key: &PublicKey,
        grant: Grant,
        time: UnixSeconds,
    ) -> Result<(Origin, Terms), Refusal> {
        let removed = |since: u64| self.state.removed.get(key).is_some_and(|tombstone| tombstone.serial >= since);
        match grant {
            Grant::Admin(terms) | Grant::Guest(terms, _) => Ok((Origin::Admin, terms)),
            Grant::Window => match self.window {
                None => Err(Refusal::Closed),
                Some(opened) if removed(opened) => Err(Refusal::Removed),
                Some(_) => Ok((Origin::Window, Terms::default())),
            },
            Grant::Invite(id) => {
                let invite = self.state.invites.get(&id).ok_or(Refusal::Unknown(id))?;
                let came_by_it = self.state.leases.get(key).is_some_and(|lease| lease.origin == Origin::Invite(id));
                if invite.revoked.is_some() {
                    Err(Refusal::Revoked(id))
                } else if invite.expires.is_some_and(|expires| expires <= time) {
                    Err(Refusal::Expired(id))
                } else if removed(invite.serial) {
                    Err(Refusal::Removed)
                } else if invite.uses_left == 0 && !came_by_it {
                    Err(Refusal::Used(id))
                } else {
                    Ok((Origin::Invite(id), invite.terms.clone()))
                }
            }
        }
    }
}
