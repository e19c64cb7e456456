//! The server as one of several on a log. See [`Ledger::share`](crate::ledger::Ledger::share).
//!
//! The caller handles some inputs, and appends [`Server::staged`] to the log. It carries the actions of these inputs
//! out when the log has the record, and not at all if it has not.
use super::{Server, session::Stage};
use crate::{
    audit::{AuditEvent, AuditRecord, decided::decided},
    lease::UnixSeconds,
    store::{Change, LeaseStore, StoreError},
};
use rustguard_core::time::Now;
use rustguard_crypto::x25519::PublicKey;
use std::collections::BTreeSet;

impl<S: LeaseStore> Server<S> {
    /// Makes this server one of several ([`Ledger::share`](crate::ledger::Ledger::share)).
    pub fn share(&mut self, now: Now) {
        self.ledger.share(now);
    }

    /// Stages the present time alone ([`Ledger::touch`](crate::ledger::Ledger::touch)).
    ///
    /// # Errors
    /// If nothing can be decided now.
    pub fn touch(&mut self, now: Now) -> Result<(), StoreError> {
        self.ledger.touch(now)
    }

    /// The changes that are not in the log yet ([`Ledger::staged`](crate::ledger::Ledger::staged)).
    pub fn staged(&self) -> &[Change] {
        self.ledger.staged()
    }

    /// A record with the staged changes is on its way ([`Ledger::hold`](crate::ledger::Ledger::hold)).
    pub fn hold(&mut self) {
        self.ledger.hold();
    }

    /// Nothing can be decided, or again ([`Ledger::set_refusal`](crate::ledger::Ledger::set_refusal)).
    pub fn set_refusal(&mut self, why: Option<String>) {
        self.ledger.set_refusal(why);
    }

    /// The log has the staged changes ([`Ledger::accept`](crate::ledger::Ledger::accept)). Joiners that repeat their
    /// claims get the answers.
    ///
    /// # Errors
    /// If the store could not keep its copy of them. The decision counts all the same.
    pub fn accept(&mut self) -> Result<(), StoreError> {
        self.undecided.clear();
        self.ledger.accept()
    }

    /// Takes the staged changes back ([`Ledger::revert`](crate::ledger::Ledger::revert)). Joiners that repeat their
    /// claims get new decisions.
    pub fn revert(&mut self, now: Now) {
        for index in std::mem::take(&mut self.undecided) {
            if let Some(session) = self.sessions.get(&index, now.instant) {
                session.stage = Stage::Welcomed;
            }
        }
        self.ledger.revert(now);
    }

    /// Applies a record of another server ([`Ledger::apply`](crate::ledger::Ledger::apply)).
    ///
    /// # Panics
    /// Panics if changes are staged.
    pub fn apply(
        &mut self,
        changes: Vec<Change>,
        decided: Option<UnixSeconds>,
        now: Now,
    ) -> (BTreeSet<PublicKey>, Result<(), StoreError>) {
        let (peers, kept) = self.ledger.apply(changes, decided, now);
        for gone in peers.iter().filter(|key| self.ledger.lease(key).is_none()) {
            self.announcements.forget(gone);
            // As after a removal here: an exchange in progress admits nobody, and no answer is repeated.
            self.sessions.retain(|session| session.joiner.as_ref().is_none_or(|joiner| joiner.public_key != *gone));
        }
        (peers, kept)
    }

    /// The lines of the audit log about changes that another server decided at a time by its clock. They are not
    /// applied yet. As with decisions here, those that others can cause at will are counted.
    pub fn audit_of(&mut self, changes: &[Change], at: UnixSeconds, server: &str, now: Now) -> Vec<AuditRecord> {
        let records = decided(self.ledger.state(), changes, at, server);
        let noted = records.into_iter().filter_map(|record| match record.event {
            AuditEvent::Admitted => self.note_of_invite(record, now),
            _ => self.tally.note(record, now.instant),
        });
        noted.collect()
    }
}
