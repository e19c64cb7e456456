//! Reads the text of a policy, and puts that of a backup into its file.

use super::{PolicyError, read_policy, read_policy_text};
use atomic_write_file::{AtomicWriteFile, unix::OpenOptionsExt as _};
use rustguard_quick::free_name;
use std::{
    fs::{self, DirBuilder},
    io::{self, Write as _},
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
};
use zeroize::Zeroizing;

/// The end of the new name of the previous file.
const BEFORE: &str = "before-restore";

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
pub(crate) fn policy_text(path: &Path) -> Result<Option<Zeroizing<Vec<u8>>>, PolicyError> {
    read_policy(path)?;
    Ok(read_policy_text(path)?.map(|text| Zeroizing::new(text.into_bytes())))
}

/// Puts the text of a policy into its file. `None` if the file has it already.
pub(crate) fn put_policy_text(path: &Path, text: &[u8]) -> Result<Option<PutPolicy>, PolicyError> {
    let path = path.to_owned();
    let failed = |doing: &'static str, path: &Path| {
        let path = path.to_owned();
        move |cause| PolicyError::Put { doing, path, cause }
    };
    let (before, mode) = match fs::metadata(&path) {
        Ok(present) => {
            let is_same = present.len() == text.len() as u64 && fs::read(&path).map_err(failed("read", &path))? == text;
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
    /// See [`PolicyError`].
    pub fn undo(&self) -> Result<(), PolicyError> {
        let undone = match &self.before {
            Some(before) => fs::rename(before, &self.path),
            None => fs::remove_file(&self.path),
        };
        undone.map_err(|cause| PolicyError::Put { doing: "put back", path: self.path.clone(), cause })
    }
}
