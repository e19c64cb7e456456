//! Tags of peers.
use super::{
    Ledger,
    error::{LedgerError, Peer, Refusal},
};
use crate::{
    lease::{Lease, MAX_TAGS, clean_name},
    store::{Change, LeaseStore},
};
use rustguard_core::time::Now;
use rustguard_crypto::x25519::PublicKey;

impl<S: LeaseStore> Ledger<S> {
    /// Gives a peer more tags. Returns false if it has all of them already.
    pub fn tag(&mut self, key: &PublicKey, tags: &[String], now: Now) -> Result<bool, LedgerError> {
        let lease = self.state.leases.get(key).ok_or(LedgerError::UnknownPeer(*key))?;
        let mut all = lease.tags.clone();
        for tag in tags {
            if !all.contains(tag) {
                all.push(tag.clone());
            }
        }
        check_tags(&all).map_err(LedgerError::Terms)?;
        self.set_tags(key, all, now)
    }

    /// Takes tags from a peer.
    pub fn untag(&mut self, key: &PublicKey, tags: &[String], now: Now) -> Result<bool, LedgerError> {
        let lease = self.state.leases.get(key).ok_or(LedgerError::UnknownPeer(*key))?;
        if let Some(tag) = tags.iter().find(|tag| !lease.tags.contains(tag)) {
            return Err(LedgerError::NotTagged(Peer::of_lease(lease), tag.clone()));
        }
        let left = lease.tags.iter().filter(|tag| !tags.contains(tag)).cloned().collect();
        self.set_tags(key, left, now)
    }

    fn set_tags(&mut self, key: &PublicKey, tags: Vec<String>, now: Now) -> Result<bool, LedgerError> {
        self.change(key, now, |lease| Lease { tags, ..lease })
    }

    /// Changes a lease, in one commit. Returns false, without a commit, if it is as it was.
    pub(super) fn change(
        &mut self,
        key: &PublicKey,
        now: Now,
        change: impl FnOnce(Lease) -> Lease,
    ) -> Result<bool, LedgerError> {
        let before = self.state.leases.get(key).ok_or(LedgerError::UnknownPeer(*key))?;
        let after = change(before.clone());
        let changed = after != *before;
        if changed {
            self.commit(vec![Change::Lease(after)], now)?;
        }
        Ok(changed)
    }
}

/// Whether a peer can have these tags.
pub(super) fn check_tags(tags: &[String]) -> Result<(), Refusal> {
    if let Some(tag) = tags.iter().find(|tag| clean_name(tag).as_ref() != Some(*tag)) {
        return Err(Refusal::Tag(tag.clone()));
    }
    if tags.len() > MAX_TAGS { Err(Refusal::Tags(tags.len())) } else { Ok(()) }
}
