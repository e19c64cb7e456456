//! The invites that are refused at their holder's first message: unknown, revoked, expired and used ones. The ledger
//! makes the final decision when the lease is claimed ([`Ledger::admit`](crate::ledger::Ledger::admit)).
use super::Server;
use crate::{
    audit::Reason,
    lease::{InviteRecord, Origin, TokenId},
    store::LeaseStore,
};
use rustguard_core::time::Now;
use rustguard_crypto::x25519::PublicKey;

impl<S: LeaseStore> Server<S> {
    /// Why an invite admits nobody; `None` if it is valid. Another function checks whether it is used up:
    /// [`is_used_by_others`](Self::is_used_by_others).
    pub(super) fn refusal_of_invite(&mut self, id: &TokenId, public_key: &PublicKey, now: Now) -> Option<Reason> {
        let time = self.ledger.time(now);
        match self.ledger.invite(id) {
            Some(InviteRecord { revoked: Some(_), .. }) => Some(Reason::RevokedToken),
            Some(InviteRecord { expires: Some(expires), .. }) if time >= *expires => Some(Reason::ExpiredToken),
            Some(record) if record.public_key == *public_key => None,
            _ => Some(Reason::UnknownToken),
        }
    }

    /// Whether an invite has no use left, and this joiner did not take one of the uses. `joiner` is the key that it has
    /// proved, if any. A machine that came by the invite may repeat its join, because an answer can get lost.
    pub(super) fn is_used_by_others(&self, id: &TokenId, joiner: Option<&PublicKey>) -> bool {
        let used_up = self.ledger.invite(id).is_none_or(|record| record.uses_left == 0);
        let lease = joiner.and_then(|joiner| self.ledger.lease(joiner));
        used_up && lease.is_none_or(|lease| lease.origin != Origin::Invite(*id))
    }
}
