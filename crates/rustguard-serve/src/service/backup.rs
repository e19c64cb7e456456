//! Backs up the running server, and restores a backup in its place. The server does not open files that others name:
//! the command that asks writes and reads the backup itself, with the rights of its user.

use super::{
    Service,
    commands::{Result, text},
};
use crate::{
    backup::{Backup, RESTORE},
    clock::now,
    request::Answer,
};
use base64ct::{Base64, Encoding as _};
use rustguard_enroll::{
    action::Action,
    audit::{AuditEvent, AuditRecord},
    store::LeaseStore,
};
use std::path::Path;
use zeroize::Zeroizing;

impl<S: LeaseStore> Service<S> {
    /// Returns everything that a new machine needs to become this server.
    pub(super) fn back_up(&mut self) -> Result<Answer> {
        let backup = self.present(self.policy.as_deref())?;
        let bytes = backup.to_bytes().map_err(text)?;
        self.actions.push(Action::Audit(AuditRecord::new(AuditEvent::BackedUp, now())));
        Ok(Answer::Backup { file: Zeroizing::new(Base64::encode_string(&bytes)).into() })
    }

    /// Ends the service if the backup in the state folder can take the place of the state.
    pub(super) fn restore(&mut self, consent: bool) -> Result<Answer> {
        if self.shared.is_some() {
            return Err("this server shares a store with others, which a backup does not replace; stop it, move its state folder aside, and restore the backup then: the machine then serves by itself".to_owned());
        }
        let bytes = self.folder.read_secret(RESTORE).map_err(text)?;
        let bytes = bytes.ok_or("there is no backup in the state folder; run: rustguard serve restore FILE")?;
        self.folder.remove(RESTORE).map_err(text)?;
        let backup = Backup::from_bytes(&bytes).map_err(text)?;
        // The present policy does not matter, because the backup's policy replaces it.
        let present = self.present(None)?;
        backup.check_same(&present, self.folder.as_path()).map_err(text)?;
        let losses = backup.losses(self.server.ledger().state());
        let restarts = consent || losses.is_empty();
        if restarts {
            tracing::info!("{}: starting again with a backup", self.interface);
            self.restored = Some(backup);
        }
        Ok(Answer::Restore { restarts, losses })
    }

    fn present(&self, policy: Option<&Path>) -> Result<Backup> {
        let state = self.server.ledger().state().clone();
        Backup::of_state(&self.interface, &self.folder, policy, state).map_err(text)
    }
}
