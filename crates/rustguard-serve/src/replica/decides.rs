//! The part of a server that the log changes: its ledger, or all of its enrolment.

use rustguard_core::time::Now;
use rustguard_crypto::x25519::PublicKey;
use rustguard_enroll::{
    audit::AuditRecord,
    ledger::Ledger,
    server::Server,
    store::{Change, LeaseStore, State, StoreError},
};
use std::collections::BTreeSet;

/// See the module's page.
pub(crate) trait Decides {
    fn state(&self) -> &State;
    fn staged(&self) -> &[Change];
    fn hold(&mut self);
    fn accept(&mut self) -> Result<(), StoreError>;
    fn revert(&mut self, now: Now);
    fn apply(
        &mut self,
        changes: Vec<Change>,
        decided: Option<u64>,
        now: Now,
    ) -> (BTreeSet<PublicKey>, Result<(), StoreError>);
    /// The lines of the audit log about what another server has decided, before it is applied. Only a running server
    /// has such a log.
    fn audit_of(&mut self, _: &[Change], _at: u64, _server: &str, _: Now) -> Vec<AuditRecord> {
        Vec::new()
    }
}

macro_rules! decides {
    ($($type:ident: $state:expr, $audit:expr;)*) => {$(
        impl<S: LeaseStore> Decides for $type<S> {
            fn state(&self) -> &State {
                let state: fn(&Self) -> &State = $state;
                state(self)
            }

            fn staged(&self) -> &[Change] {
                self.staged()
            }

            fn hold(&mut self) {
                self.hold();
            }

            fn accept(&mut self) -> Result<(), StoreError> {
                self.accept()
            }

            fn revert(&mut self, now: Now) {
                self.revert(now);
            }

            fn apply(
                &mut self,
                changes: Vec<Change>,
                decided: Option<u64>,
                now: Now,
            ) -> (BTreeSet<PublicKey>, Result<(), StoreError>) {
                self.apply(changes, decided, now)
            }

            fn audit_of(&mut self, changes: &[Change], at: u64, server: &str, now: Now) -> Vec<AuditRecord> {
                let audit: fn(&mut Self, &[Change], u64, &str, Now) -> Vec<AuditRecord> = $audit;
                audit(self, changes, at, server, now)
            }
        }
    )*};
}

decides! {
    Ledger: Self::state, |_, _, _, _, _| Vec::new();
    Server: |server| server.ledger().state(), Self::audit_of;
}
