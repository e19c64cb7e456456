//! Expiry of pending leases, of leases that were not renewed, of quarantines, of records of invites and of tombstones.
use super::Ledger;
use crate::{
    lease::{InviteRecord, Lease, Origin, TokenId, UnixSeconds},
    ledger::error::LedgerError,
    store::{Change, LeaseStore, Tombstone},
};
use rustguard_core::time::{Instant, Now};
use std::collections::{BTreeMap, BTreeSet};

/// A record of a shared log has half a megabyte at most, so a server ends only so many of each kind at a time there.
const MOST: usize = 1_000;

impl<S: LeaseStore> Ledger<S> {
    /// The time at which [`expire`](Self::expire) is due.
    pub fn deadline(&self) -> Option<Instant> {
        let at = |time: Option<UnixSeconds>| time.map(|time| self.clock.instant_of(time));
        let may_end = self.skew_until().map_or(self.grace_until, |until| until.max(self.grace_until));
        let expiry = at(self.index.next_expiry()).map(|expiry| expiry.max(may_end));
        let (quarantine, ended) = (at(self.index.next_quarantine()), at(self.index.next_ended()));
        let old_key = at(self.index.next_old_key());
        [self.index.next_pending(), expiry, quarantine, ended, old_key, self.flush_at].into_iter().flatten().min()
    }

    /// Ends everything that is due, in one commit. Returns the leases that ended: pending ones without a handshake, and
    /// active ones that were not renewed. On a shared log, some may be left for the next call, which is due at once.
    pub fn expire(&mut self, now: Now) -> Result<Vec<Lease>, LedgerError> {
        let time = self.time(now);
        let most = if self.shared.is_some() { MOST } else { usize::MAX };
        // These changes come first, because later changes of the same lease are newer.
        let mut changes: Vec<_> = self.without_old_keys(time).take(most).collect();
        let mut gone = BTreeMap::new();

        let mut invites: BTreeMap<TokenId, InviteRecord> = BTreeMap::new();
        for lease in self.index.pending_due(now.instant).filter_map(|key| self.state.leases.get(&key)).take(most) {
            if let Origin::Invite(id) = lease.origin
                && let Some(kept) = self.state.invites.get(&id)
            {
                let invite = invites.entry(id).or_insert_with(|| kept.clone());
                invite.uses_left = invite.uses_left.saturating_add(1).min(invite.uses);
            }
            changes.push(Change::LeaseGone(lease.public_key));
            gone.insert(lease.public_key, lease.clone());
        }
        changes.extend(invites.into_values().map(Change::Invite));
        // Quarantines come before leases, because leases that end start a new quarantine.
        changes.extend(self.index.quarantine_due(time).take(most).map(Change::ReleasedGone));

        let may_end = now.instant >= self.grace_until && !self.has_skew(now.instant);
        let ending = may_end && self.index.next_expiry().is_some_and(|next| next <= time);
        let flushing = ending || self.flush_at.is_some_and(|at| at <= now.instant);
        let flushed: Vec<_> = self.seen.keys().take(if flushing { most } else { 0 }).copied().collect();
        changes.extend(flushed.iter().filter_map(|key| {
            let (lease, &last_handshake) = (self.state.leases.get(key)?, self.seen.get(key)?);
            let expires = self.expires(lease, last_handshake);
            Some(Change::Renewed { public_key: *key, last_handshake, expires })
        }));
        if ending {
            let room = self.policy.max_leases.saturating_sub(self.state.released.len());
            let mut oldest = self.index.quarantines();
            let mut released = 0;
            for lease in self.index.expiry_due(time).filter_map(|key| self.state.leases.get(&key)) {
                let key = lease.public_key;
                let renewed = self.seen.get(&key).and_then(|&seen| self.expires(lease, seen));
                if gone.contains_key(&key) || renewed.is_some_and(|expires| expires > time) {
                    continue;
                }
                if released == most {
                    break;
                }
                released += 1;
                if released > room
                    && let Some((_, oldest)) = oldest.find(|(_, key)| !gone.contains_key(key))
                {
                    changes.push(Change::ReleasedGone(oldest));
                }
                changes.push(Change::LeaseGone(key));
                changes.push(Change::Released(self.released(lease, time)));
                gone.insert(key, lease.clone());
            }
        }

        let ended: BTreeSet<_> = self.index.ended_due(time).take(most).collect();
        changes.extend(ended.iter().copied().map(Change::InviteGone));
        let sweeping = self.sweep || !ended.is_empty();
        if sweeping {
            let oldest = self.oldest_grant(&ended);
            let needless = |tombstone: &&Tombstone| {
                oldest.is_none_or(|oldest| tombstone.serial < oldest) && self.outlasts_windows(tombstone, time)
            };
            let swept = self.state.removed.values().filter(needless).take(most);
            changes.extend(swept.map(|tombstone| Change::RemovedGone(tombstone.public_key)));
        }

        if !changes.is_empty() {
            self.commit(changes, now)?;
        }
        for key in &flushed {
            self.seen.remove(key);
        }
        if flushing {
            self.flush_at = (!self.seen.is_empty()).then_some(now.instant);
        }
        // On a shared log, removals that are kept for the windows of other servers are looked at again.
        self.sweep &= !sweeping || (self.shared.is_some() && !self.state.removed.is_empty());
        Ok(gone.into_values().collect())
    }
}
