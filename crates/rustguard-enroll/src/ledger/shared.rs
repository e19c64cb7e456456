//! The ledgers of several servers, on one log.
//!
//! A decision counts once the log has it. [`Ledger::share`] makes a ledger one of several. From then on, the methods
//! that decide only *stage* their changes: these apply in this ledger, and are not durable. The caller appends
//! [`staged`](Ledger::staged) to the log, and tells nobody of the decision before it is there. Then:
//!
//! - The log has them: [`accept`](Ledger::accept).
//! - Records of other servers came first: [`revert`](Ledger::revert), [`apply`](Ledger::apply) each of these records,
//!   and decide again.
//!
//! So each decision is made from the state that all records before it result in, and the rules of one ledger hold for
//! all of them together: no address has two leases, no invite admits more than it may, no key comes back by a grant
//! from before its removal. The store keeps a copy of the state, with which a server starts. It may lack the newest
//! records: they are applied again from the log, also those that it has.
//!
//! # Differences from a single server
//! - A lease that another server has made is pending for twice the time here. Its own server knows first whether the
//!   machine came.
//! - A removal leaves a tombstone even without an invite or a window here, because another server may have a window. It
//!   is kept for a day at least: longer than any window, whatever the clocks.
//! - Each server trusts its own wall clock, and not the greatest time of all. While the clocks of two servers differ by
//!   more than [`MAX_SKEW`], no lease ends for want of handshakes: one of them would end leases that the other one has
//!   just renewed.
use super::{Clock, Ledger};
use crate::{
    lease::UnixSeconds,
    store::{Change, LeaseStore, State, StoreError, Tombstone, Undo},
};
use core::time::Duration;
use rustguard_core::time::{Instant, Now};
use rustguard_crypto::x25519::PublicKey;
use std::collections::{BTreeMap, BTreeSet};

/// By how much the clocks of two servers may differ.
pub const MAX_SKEW: Duration = Duration::from_secs(5 * 60);
/// How long no lease ends after clocks differed: servers that are up append something in this time.
const AFTER_SKEW: Duration = Duration::from_secs(3600);
/// How long tombstones are kept for the windows of other servers.
const WINDOWS: Duration = Duration::from_secs(24 * 3600);

/// The additional state of a ledger on a shared log.
#[derive(Debug, Default)]
pub(super) struct Shared {
    staged: Vec<Change>,
    /// The records that the staged changes have replaced, in their order, and noted handshakes that were forgotten
    /// with a lease.
    undo: Vec<(Undo, Option<UnixSeconds>)>,
    /// Whether a record with what is staged is on its way.
    is_held: bool,
    /// Why nothing can be decided.
    refusal: Option<String>,
    /// Until when no lease ends because of the clocks.
    skew_until: Option<Instant>,
}

impl Shared {
    pub(super) fn stage(
        &mut self,
        changes: &[Change],
        state: &State,
        seen: &BTreeMap<PublicKey, UnixSeconds>,
    ) -> Result<(), StoreError> {
        if let Some(refusal) = &self.refusal {
            return Err(StoreError::new(refusal.clone()));
        }
        if self.is_held {
            return Err(StoreError::new("it is not known yet whether the store has the last decision"));
        }
        // Of two changes of one record in a commit, both are taken back to the record before the commit.
        for change in changes {
            let noted = change.peer().and_then(|key| seen.get(&key).copied());
            self.undo.push((state.before(change), noted));
        }
        self.staged.extend_from_slice(changes);
        Ok(())
    }
}

impl<S: LeaseStore> Ledger<S> {
    /// Makes this ledger one of several on a shared log (see the module's page). Call it once, after opening.
    pub fn share(&mut self, now: Now) {
        self.shared = Some(Shared::default());
        self.clock = Clock::new(0, now);
    }

    /// Whether this ledger is one of several.
    pub fn is_shared(&self) -> bool {
        self.shared.is_some()
    }

    /// Stages the present time alone: a record that says that nothing else has changed.
    ///
    /// # Errors
    /// See [`set_refusal`](Self::set_refusal) and [`hold`](Self::hold).
    pub fn touch(&mut self, now: Now) -> Result<(), StoreError> {
        self.commit(Vec::new(), now)
    }

    /// The changes that are not in the log yet.
    pub fn staged(&self) -> &[Change] {
        self.shared.as_ref().map_or(&[], |shared| &shared.staged)
    }

    /// A record with the staged changes is on its way. Until they are accepted or taken back, nothing else is decided:
    /// that would be in no record.
    pub fn hold(&mut self) {
        if let Some(shared) = &mut self.shared {
            shared.is_held = true;
        }
    }

    /// From now on, decisions fail with this error, because the log cannot be reached. `None`: they are possible again.
    pub fn set_refusal(&mut self, why: Option<String>) {
        if let Some(shared) = &mut self.shared {
            shared.refusal = why;
        }
    }

    /// The log has the staged changes.
    ///
    /// # Errors
    /// If the store could not keep its copy of them. The decision counts all the same. The next start has to read the
    /// log from before these changes.
    pub fn accept(&mut self) -> Result<(), StoreError> {
        let Some(shared) = &mut self.shared else { return Ok(()) };
        shared.undo.clear();
        shared.is_held = false;
        let staged = std::mem::take(&mut shared.staged);
        if staged.is_empty() { Ok(()) } else { self.store.commit(&staged, &self.state) }
    }

    /// Takes the staged changes back: other records came first.
    pub fn revert(&mut self, now: Now) {
        let Some(shared) = &mut self.shared else { return };
        shared.staged.clear();
        shared.is_held = false;
        let pending_until = now.instant + self.policy.pending;
        for (undo, noted) in std::mem::take(&mut shared.undo).into_iter().rev() {
            let (peer, invite) = (undo.peer(), undo.invite());
            self.indexed(peer, invite, pending_until, |state| state.back(undo));
            if let Some((key, noted)) = peer.zip(noted) {
                self.seen.entry(key).or_insert(noted);
                self.flush_at.get_or_insert(now.instant);
            }
        }
        self.commits += 1;
    }

    /// Applies a record of another server, or one of this server from before its start. `decided` is the time of its
    /// server's clock, if it was decided just now. Returns the peers whose leases are new, other ones or gone, and
    /// whether the store could keep its copy of the changes, as [`accept`](Self::accept) does.
    ///
    /// # Panics
    /// Panics if changes are staged.
    pub fn apply(
        &mut self,
        changes: Vec<Change>,
        decided: Option<UnixSeconds>,
        now: Now,
    ) -> (BTreeSet<PublicKey>, Result<(), StoreError>) {
        assert!(self.staged().is_empty(), "staged changes are accepted or taken back first");
        let own = self.time(now);
        if let Some(shared) = &mut self.shared
            && decided.is_some_and(|decided| decided.abs_diff(own) > MAX_SKEW.as_secs())
        {
            shared.skew_until = Some(now.instant + AFTER_SKEW);
        }
        let leases = |change: &Change| match change {
            Change::Lease(lease) => Some(lease.public_key),
            Change::LeaseGone(key) => Some(*key),
            // Nothing that the device knows.
            _ => None,
        };
        let peers = changes.iter().filter_map(leases).collect();
        let kept = changes.clone();
        self.sweep |= changes.iter().any(|change| matches!(change, Change::Removed(_)));
        self.enter(changes, now.instant + self.policy.pending * 2);
        // After the state, because the log has the last word. Changes are new values, so a store that writes the state
        // with them already in it, and then them, has the same.
        let kept = self.store.commit(&kept, &self.state);
        (peers, kept)
    }

    /// Whether the clock of another server differs from the one here, as far as is known.
    pub fn has_skew(&self, now: Instant) -> bool {
        self.skew_until().is_some_and(|until| now < until)
    }

    /// Until when no lease ends because of the clocks.
    pub(super) fn skew_until(&self) -> Option<Instant> {
        self.shared.as_ref()?.skew_until
    }

    /// Whether a removal is older than any window of another server.
    pub(super) fn outlasts_windows(&self, tombstone: &Tombstone, time: UnixSeconds) -> bool {
        self.shared.is_none() || tombstone.removed.saturating_add(WINDOWS.as_secs()) <= time
    }
}
