//! Keys that members change.
use super::{Ledger, error::LedgerError};
use crate::{
    lease::{Lease, OldKey, UnixSeconds},
    store::{Change, LeaseStore},
};
use core::time::Duration;
use rustguard_core::time::Now;
use rustguard_crypto::x25519::PublicKey;

/// How long others may still know a member by its old key.
pub const OLD_KEY_TIME: Duration = Duration::from_secs(24 * 3600);

impl<S: LeaseStore> Ledger<S> {
    /// Gives a lease another key: everything else stays. The old key is kept for [`OLD_KEY_TIME`], so that nobody else
    /// gets a lease with it, and members can tell that both keys are of one machine.
    ///
    /// # Errors
    /// [`LedgerError::KeyTaken`] if another peer has or had the key, even if that peer was removed.
    pub fn rotate(&mut self, key: &PublicKey, to: PublicKey, now: Now) -> Result<(), LedgerError> {
        let time = self.time(now);
        let lease = self.state.leases.get(key).ok_or(LedgerError::UnknownPeer(*key))?;
        let is_former = self.state.removed.contains_key(&to) || self.state.released.contains_key(&to);
        if self.state.leases.contains_key(&to) || self.index.had_key(&to).is_some() || is_former {
            return Err(LedgerError::KeyTaken(to));
        }
        let old_key = OldKey { public_key: *key, until: time.saturating_add(OLD_KEY_TIME.as_secs()) };
        let last_handshake = self.seen.get(key).copied().or(lease.last_handshake);
        let lease = Lease { public_key: to, old_key: Some(old_key), last_handshake, ..lease.clone() };
        // One commit: a power cut leaves the lease with one of the two keys.
        Ok(self.commit(vec![Change::LeaseGone(*key), Change::Lease(lease)], now)?)
    }

    /// The lease that had this key before, while the old key is kept.
    pub fn formerly(&self, key: &PublicKey) -> Option<&Lease> {
        self.state.leases.get(&self.index.had_key(key)?)
    }

    /// How many old keys are kept.
    pub(crate) fn old_keys(&self) -> usize {
        self.index.old_keys()
    }

    /// The leases whose old keys are no longer kept, without them.
    pub(super) fn without_old_keys(&self, time: UnixSeconds) -> impl Iterator<Item = Change> {
        let due = self.index.old_keys_due(time).filter_map(|key| self.state.leases.get(&key));
        due.map(|lease| Change::Lease(Lease { old_key: None, ..lease.clone() }))
    }
}
