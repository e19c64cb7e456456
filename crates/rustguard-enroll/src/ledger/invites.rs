//! Making, revoking and finding invites.
use super::{Ledger, error::LedgerError};
use crate::{
    lease::{InviteRecord, MAX_SERVERS, MAX_USES, NewInvite, TokenId, UnixSeconds},
    store::{Change, LeaseStore},
};
use rustguard_core::time::Now;

impl<S: LeaseStore> Ledger<S> {
    /// Makes an invite. Its fixed addresses must be free, or in quarantine, both now and when it is used.
    pub fn add_invite(&mut self, invite: NewInvite, now: Now) -> Result<&InviteRecord, LedgerError> {
        let time = self.time(now);
        let NewInvite { id, public_key, lifetime, uses, terms } = invite;
        if self.state.invites.contains_key(&id) {
            return Err(LedgerError::InviteExists(id));
        }
        if !(1..=MAX_USES).contains(&uses) || (uses > 1 && (terms.server.is_server() || !terms.addresses.is_empty())) {
            return Err(LedgerError::Uses(uses));
        }
        self.check_terms(&terms, None).map_err(LedgerError::Terms)?;
        if terms.server.is_server() && self.servers(time) >= MAX_SERVERS {
            return Err(LedgerError::Servers);
        }
        let serial = self.state.serial;
        let record = InviteRecord {
            id,
            public_key,
            serial,
            created: time,
            expires: lifetime.map(|lifetime| time.saturating_add(lifetime.as_secs())),
            uses,
            uses_left: uses,
            last_used: None,
            revoked: None,
            terms,
        };
        self.commit(vec![Change::Serial(serial + 1), Change::Invite(record)], now)?;
        Ok(&self.state.invites[&id])
    }

    /// Revokes an invite. Peers that it admitted stay.
    pub fn revoke_invite(&mut self, id: &TokenId, now: Now) -> Result<(), LedgerError> {
        let time = self.time(now);
        let invite = self.state.invites.get(id).ok_or(LedgerError::UnknownInvite(*id))?;
        if invite.revoked.is_some() {
            return Ok(());
        }
        let revoked = InviteRecord { revoked: Some(time), ..invite.clone() };
        Ok(self.commit(vec![Change::Invite(revoked)], now)?)
    }

    /// All invites, by id, including those that admit nobody any more.
    pub fn invites(&self) -> impl ExactSizeIterator<Item = &InviteRecord> {
        self.state.invites.values()
    }

    /// The serial number of the next invite. Earlier invites have smaller numbers.
    pub fn next_serial(&self) -> u64 {
        self.state.serial
    }

    /// The number of further servers, plus the invites that can still admit one. A lapsed lease gives the use of its
    /// invite back.
    fn servers(&self, time: UnixSeconds) -> usize {
        let can_admit = |invite: &&InviteRecord| {
            let valid = invite.revoked.is_none() && invite.expires.is_none_or(|expires| expires > time);
            invite.terms.server.is_server() && valid && invite.uses_left > 0
        };
        let leases = self.state.leases.values().filter(|lease| lease.server.is_server());
        leases.count() + self.state.invites.values().filter(can_admit).count()
    }

    /// The invite with this id.
    pub fn invite(&self, id: &TokenId) -> Option<&InviteRecord> {
        self.state.invites.get(id)
    }
}
