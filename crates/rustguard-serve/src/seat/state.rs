//! The state of a log, without the rules of a ledger.

use crate::replica::decides::Decides;
use rustguard_core::time::Now;
use rustguard_crypto::x25519::PublicKey;
use rustguard_enroll::store::{Change, LeaseStore, State, StoreError};
use std::collections::BTreeSet;

/// A store and its contents.
pub(super) struct Copy<S> {
    store: S,
    state: State,
    staged: Vec<Change>,
}

impl<S: LeaseStore> Copy<S> {
    pub(super) fn open(mut store: S) -> Result<Self, StoreError> {
        let state = store.load()?.unwrap_or_default();
        Ok(Self { store, state, staged: Vec::new() })
    }

    pub(super) fn machines(&self) -> usize {
        self.state.leases.len()
    }

    /// The next decision.
    pub(super) fn stage(&mut self, changes: Vec<Change>) {
        self.staged = changes;
    }

    /// Makes this the state of another one.
    pub(super) fn replace(&mut self, other: &Copy<impl LeaseStore>) -> Result<(), StoreError> {
        self.put(self.state.changes_to(&other.state))
    }

    fn put(&mut self, changes: Vec<Change>) -> Result<(), StoreError> {
        let stored = if changes.is_empty() { Ok(()) } else { self.store.commit(&changes, &self.state) };
        changes.into_iter().for_each(|change| self.state.apply(change));
        stored
    }
}

impl<S: LeaseStore> Decides for Copy<S> {
    fn state(&self) -> &State {
        &self.state
    }

    fn staged(&self) -> &[Change] {
        &self.staged
    }

    fn hold(&mut self) {}

    fn accept(&mut self) -> Result<(), StoreError> {
        let staged = std::mem::take(&mut self.staged);
        self.put(staged)
    }

    fn revert(&mut self, _: Now) {
        self.staged.clear();
    }

    fn apply(&mut self, changes: Vec<Change>, _: Option<u64>, _: Now) -> (BTreeSet<PublicKey>, Result<(), StoreError>) {
        (BTreeSet::new(), self.put(changes))
    }
}
