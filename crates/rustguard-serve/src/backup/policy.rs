//! The policy in a backup. Its file is not in the state folder, and only the administrator writes it.

use super::{Backup, BackupError, POLICY, restore::BEFORE};
use crate::policy::{PolicyError, policy_path, read_policy, read_policy_text};
use atomic_write_file::{AtomicWriteFile, unix::OpenOptionsExt as _};
use rustguard_device::interface::check_name;
use rustguard_network::{FolderError, policy::directory};
use rustguard_policy::{diagnostic::Severity, policy::Policy};
use rustguard_quick::free_name;
use std::{
    fs::{self, DirBuilder},
    io::{self, Write as _},
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
};
use zeroize::Zeroizing;

/// A policy that was put into its place.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct PutPolicy {
    /// Its file.
    pub path: PathBuf,
    /// A copy of the previous file; `None` if there was none.
    pub before: Option<PathBuf>,
}

/// The text of a policy. A policy with mistakes is refused, because no server would start with it.
pub(crate) fn text(path: &Path) -> Result<Option<Zeroizing<Vec<u8>>>, PolicyError> {
    read_policy(path)?;
    Ok(read_policy_text(path)?.map(|text| Zeroizing::new(text.into_bytes())))
}

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
            Some(text) => put_text(&path, Some(text)),
            None => Ok(None),
        }
    }
}

/// Puts the text of a policy into its file, or moves the file aside if there is none.
pub(crate) fn put_text(path: &Path, text: Option<&Zeroizing<Vec<u8>>>) -> Result<Option<PutPolicy>, BackupError> {
    let path = path.to_owned();
    let failed = |doing: &'static str, path: &Path| {
        let path = path.to_owned();
        move |cause| BackupError::Io { doing, path, cause }
    };
    let Some(text) = text else {
        let before = free_name(&path, BEFORE);
        return match fs::rename(&path, &before) {
            Ok(()) => Ok(Some(PutPolicy { path, before: Some(before) })),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(failed("move aside", &path)(error)),
        };
    };
    let (before, mode) = match fs::metadata(&path) {
        Ok(present) => {
            let is_same =
                present.len() == text.len() as u64 && fs::read(&path).map_err(failed("read", &path))? == **text;
            if is_same {
                return Ok(None);
            }
            let before = free_name(&path, BEFORE);
            fs::copy(&path, &before).map_err(failed("copy", &path))?;
            // Others may not write the file: a server would refuse the policy.
            (Some(before), present.permissions().mode() & 0o644)
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => (None, 0o600),
        Err(error) => return Err(failed("look at", &path)(error)),
    };
    let write = || {
        if let Some(folder) = path.parent() {
            DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        }
        let mut file = AtomicWriteFile::options().mode(mode).preserve_mode(false).open(&path)?;
        file.write_all(text)?;
        file.commit()
    };
    if let Err(error) = write() {
        let _ = before.as_ref().map(fs::remove_file);
        return Err(failed("write", &path)(error));
    }
    Ok(Some(PutPolicy { path, before }))
}

impl PutPolicy {
    /// Puts the previous file back, if the backup was not restored.
    ///
    /// # Errors
    /// See [`BackupError`].
    pub fn undo(&self) -> Result<(), BackupError> {
        let undone = match &self.before {
            Some(before) => fs::rename(before, &self.path),
            None => fs::remove_file(&self.path),
        };
        undone.map_err(|cause| BackupError::Io { doing: "put back", path: self.path.clone(), cause })
    }
}
