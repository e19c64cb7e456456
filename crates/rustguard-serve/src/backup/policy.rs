//! The policy in a backup. Its file is not in the state folder, and only the administrator writes it.

use super::{Backup, BackupError, POLICY};
use crate::policy::{PutPolicy, policy_path, put_policy_text};
use rustguard_device::interface::check_name;
use rustguard_network::{FolderError, policy::directory};
use rustguard_policy::{diagnostic::Severity, policy::Policy};
use std::path::PathBuf;

impl Backup {
    /// Whether a server starts with the policy.
    pub(super) fn check_policy(&self) -> Result<(), BackupError> {
        let Some(text) = self.files.get(POLICY) else { return Ok(()) };
        let text = std::str::from_utf8(text).map_err(|_| BackupError::Damaged("its policy is no text"))?;
        let (policy, mut diagnostics) = Policy::parse(text);
        if let Some(policy) = policy {
            let machines = self.roster().map(|roster| directory(&roster)).unwrap_or_default();
            diagnostics = policy.check(&machines);
        }
        let mut errors = diagnostics.into_iter().filter(|diagnostic| diagnostic.severity == Severity::Error);
        errors.next().map_or(Ok(()), |first| Err(BackupError::Policy(Box::new(first))))
    }

    /// Puts the policy into the file of this interface. `None` if the backup has no policy, or the file already
    /// contains it. Call this before [`restore`](Self::restore), so that no server starts without the policy.
    ///
    /// # Errors
    /// See [`BackupError`]. After an error the file is as before.
    pub fn put_policy(&self, interface: &str) -> Result<Option<PutPolicy>, BackupError> {
        check_name(interface).map_err(FolderError::from)?;
        self.put_policy_at(policy_path(interface))
    }

    pub(super) fn put_policy_at(&self, path: PathBuf) -> Result<Option<PutPolicy>, BackupError> {
        match self.files.get(POLICY) {
            Some(text) => Ok(put_policy_text(&path, text)?),
            None => Ok(None),
        }
    }
}
