//! A configuration file and its text, for changes that lose nothing.

use super::{Config, EditError, edit, text::decode};
use atomic_write_file::AtomicWriteFile;
use rustguard_crypto::{hash::hash, x25519::PublicKey};
use rustguard_device::key;
use std::{
    fmt,
    io::{self, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
};
use zeroize::Zeroizing;

/// A configuration file as it was read. Its text contains secrets, and `Debug` does not show it.
pub struct File {
    path: PathBuf,
    text: Zeroizing<String>,
}

/// Why a file was not replaced.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SaveError {
    /// It cannot be read, written or renamed.
    #[error("cannot save {}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// Its contents have changed since they were read.
    #[error("{} was changed by another program meanwhile, and is left as it is; try again", .0.display())]
    Changed(PathBuf),
    /// The new configuration does not fit into the file.
    #[error("cannot save {}", path.display())]
    Edit {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: EditError,
    },
}

impl File {
    /// A file with the text that was read from it.
    pub fn new(path: impl Into<PathBuf>, text: Zeroizing<String>) -> Self {
        Self { path: path.into(), text }
    }

    /// Reads a file.
    ///
    /// # Errors
    /// It cannot be read, or is no text.
    pub fn read(path: impl Into<PathBuf>) -> io::Result<Self> {
        let path = path.into();
        let text = std::fs::read(&path).map(Zeroizing::new)?;
        Ok(Self { path, text: decode(&text)? })
    }

    /// The path that was read.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The text when it was read.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// A hash of the text, in hexadecimal digits, which tells texts apart.
    pub fn digest(&self) -> String {
        hash(&[self.text.as_bytes()]).iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// [Edits](edit) the file, so that it has this configuration, and [replaces](Self::replace) it.
    ///
    /// # Errors
    /// See [`SaveError`].
    pub fn save(&mut self, config: &Config) -> Result<(), SaveError> {
        let text = edit(&self.text, config).map_err(|source| SaveError::Edit { path: self.path.clone(), source })?;
        self.replace(text)
    }

    /// Writes other public keys of peers, each the old and the new one, wherever the file names them: as `PublicKey`,
    /// as the relay of another peer, or in a comment. Everything else stays as its user has written it.
    ///
    /// # Errors
    /// See [`SaveError`]. The file is then unchanged.
    pub fn rename_peers(&mut self, keys: &[(PublicKey, PublicKey)]) -> Result<(), SaveError> {
        let mut text = self.text.clone();
        for (before, after) in keys {
            let [before, after] = [before, after].map(|key| key::to_base64(&key.0));
            text = text.replace(&**before, &after).into();
        }
        self.replace(text)
    }

    /// Replaces the file atomically: readers see the old text or the new one, also after a power cut. Mode and owner
    /// stay, a symbolic link stays a link to the replaced file. An unchanged text is not written.
    ///
    /// # Errors
    /// See [`SaveError`]. The file is then unchanged.
    pub fn replace(&mut self, text: Zeroizing<String>) -> Result<(), SaveError> {
        let failed = |source| SaveError::Io { path: self.path.clone(), source };
        let target = self.path.canonicalize().map_err(failed)?;
        let mut new = beside(&target).map_err(failed)?;
        new.write_all(text.as_bytes()).map_err(failed)?;
        let now = std::fs::read(&target).map(Zeroizing::new).map_err(failed)?;
        if *now != self.text.as_bytes() {
            return Err(SaveError::Changed(self.path.clone()));
        }
        if text != self.text {
            new.commit().map_err(failed)?;
            self.text = text;
        }
        Ok(())
    }
}

/// Opens the file that will take the place of `target`. It gets the mode and the owner of `target` at once. Until then,
/// no other user may open it.
fn beside(target: &Path) -> io::Result<AtomicWriteFile> {
    AtomicWriteFile::options().mode(0o600).open(target)
}

impl fmt::Debug for File {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("File").field("path", &self.path).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};

    #[test]
    fn a_file_is_replaced_with_its_mode_and_through_a_link() {
        let folder = tempfile::tempdir().unwrap();
        let (path, link) = (folder.path().join("real"), folder.path().join("wg0.conf"));
        std::fs::write(&path, "one").unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).unwrap();
        std::os::unix::fs::symlink("real", &link).unwrap();
        let before = std::fs::metadata(&path).unwrap();
        let mut file = File::read(&link).unwrap();
        file.replace("two".to_owned().into()).unwrap();
        let after = std::fs::metadata(&path).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "two");
        assert!(link.is_symlink() && before.ino() != after.ino(), "renamed over, not rewritten");
        assert_eq!((after.mode(), after.uid(), after.gid()), (before.mode(), before.uid(), before.gid()));
        // The same text is not written.
        file.replace("two".to_owned().into()).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().ino(), after.ino());
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2, "no temporary file is left");
    }

    #[test]
    fn no_other_user_can_open_the_new_file_before_it_has_its_mode() {
        let folder = tempfile::tempdir().unwrap();
        // Without an existing file, the new file keeps its initial mode.
        let new = beside(&folder.path().join("wg0.conf")).unwrap();
        assert_eq!(new.as_file().metadata().unwrap().mode() & 0o777, 0o600);
    }

    /// The keys are replaced as text, so that comments, the order of lines and everything else that the parser does not
    /// keep stay.
    #[test]
    fn peers_with_other_keys_are_renamed_wherever_the_file_names_them() {
        let keys = |bytes: [u8; 4]| bytes.map(|byte| key::to_base64(&[byte; 32]).to_string());
        let text = |server: &str, [_, _, other, psk]: &[String; 4]| {
            format!(
                "[Interface]\n# mine\nMTU=1360\n\n[Peer]  # the hub, {server}\nPresharedKey = {psk}\nPublicKey={server}\n\n\
                 [Peer]\nPublicKey = {other}\nEndpoint = via-peer {server}\n"
            )
        };
        let keys = keys([1, 2, 3, 4]);
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("wg0.conf");
        std::fs::write(&path, text(&keys[0], &keys)).unwrap();
        let mut file = File::read(&path).unwrap();
        let ([old, new], absent) = ([1, 2].map(|byte| PublicKey([byte; 32])), PublicKey([9; 32]));
        file.rename_peers(&[(old, new), (absent, old)]).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), text(&keys[1], &keys));
        assert_eq!(file.text(), text(&keys[1], &keys));
        std::fs::write(&path, "theirs").unwrap();
        assert!(matches!(file.rename_peers(&[(new, old)]), Err(SaveError::Changed(_))));
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "theirs");
    }

    #[test]
    fn changes_of_others_are_not_overwritten() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("wg0.conf");
        std::fs::write(&path, "one").unwrap();
        let mut file = File::read(&path).unwrap();
        std::fs::write(&path, "theirs").unwrap();
        assert!(matches!(file.replace("two".to_owned().into()), Err(SaveError::Changed(_))));
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "theirs");
        assert!(!format!("{file:?}").contains("one"));
        assert_ne!(file.digest(), File::read(&path).unwrap().digest());
    }
}
