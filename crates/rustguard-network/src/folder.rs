//! The state folder of an interface.
//!
//! ```text
//! /var/lib/rustguard/rg0/         0700
//!     key                         0600  the WireGuard private key, base64 as `wg genkey` writes it
//!     key-next                    0600  while a member changes its key: the next one
//!     key-before                  0600  the previous key of a member, for a day
//!     routing                     0600  the state of a routing protocol for its next start
//! on a standby:
//!     server-state                0600  the server's last state, with which a machine can act as the server
//! on a server:
//!     settings.json               0600  pools, port, … of `serve`
//!     leases/                     0700  rustguard-enroll's store
//!     endpoints.json              0600  the endpoints of the peers that were connected
//!     audit.jsonl                 0600  admissions, refusals, removals
//!     replaced                    0600  another machine has taken the place of this server
//! ```
//!
//! A private key that cannot be read is never replaced by a new one, because a new key would disconnect every peer that
//! knows the old one.

use atomic_write_file::{AtomicWriteFile, unix::OpenOptionsExt as _};
use rustguard_crypto::x25519::StaticSecret;
use rustguard_device::{
    interface::{InterfaceNameError, STATE_DIR, check_name},
    key,
};
use std::{
    fs::{self, DirBuilder},
    io::{self, Write as _},
    os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};
use zeroize::Zeroizing;

/// The file of the private key.
pub(crate) const KEY: &str = "key";

/// A state folder that exists and that other users cannot enter.
#[derive(Clone, Debug)]
pub struct Folder(PathBuf);

/// Why the state folder cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FolderError {
    /// Not an interface name.
    #[error(transparent)]
    Name(#[from] InterfaceNameError),
    /// The operating system refused.
    #[error("cannot {doing} {}: {cause}{}", .path.display(), hint(.cause))]
    Io {
        /// The operation that failed.
        doing: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// Why it failed.
        cause: io::Error,
    },
    /// There is no private key yet, and making one failed.
    #[error("cannot make a private key: {0}")]
    Random(rustguard_crypto::random::Unavailable),
    /// Other users could read or change it.
    #[error("{} is open to others (mode {mode:o}): chmod {} {}", .path.display(), if *.folder { "700" } else { "600" }, .path.display())]
    Exposed {
        /// The file or folder.
        path: PathBuf,
        /// Its mode.
        mode: u32,
        /// Whether it is a folder.
        folder: bool,
    },
    /// It belongs to another user, who could replace all of it.
    #[error("{} belongs to user {owner}, but this program runs as user {user}: chown -R {user} {}", .path.display(), .path.display())]
    Owner {
        /// The folder.
        path: PathBuf,
        /// Its owner.
        owner: u32,
        /// The user of this process.
        user: u32,
    },
    /// The contents of a file are not valid.
    #[error("{} is damaged ({why}); restore it from a backup, or, to start over, move the folder away: every machine then has to join again", .path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The problem.
        why: String,
    },
}

fn hint(cause: &io::Error) -> &'static str {
    match cause.kind() {
        io::ErrorKind::PermissionDenied => "; run as root, or with sudo",
        _ => "",
    }
}

impl Folder {
    /// Opens the folder of `interface` in [`STATE_DIR`], and makes it if it does not exist.
    ///
    /// # Errors
    /// See [`FolderError`].
    pub fn open(interface: &str) -> Result<Self, FolderError> {
        check_name(interface)?;
        Self::open_at(&Path::new(STATE_DIR).join(interface))
    }

    /// The folder of `interface`; `None` if it does not exist.
    ///
    /// # Errors
    /// See [`FolderError`].
    pub fn find(interface: &str) -> Result<Option<Self>, FolderError> {
        check_name(interface)?;
        let path = Path::new(STATE_DIR).join(interface);
        if path.is_dir() { Self::open_at(&path).map(Some) } else { Ok(None) }
    }

    /// Like [`open`](Self::open), with any path.
    ///
    /// # Errors
    /// See [`FolderError`].
    pub fn open_at(path: &Path) -> Result<Self, FolderError> {
        let made = DirBuilder::new().recursive(true).mode(0o700).create(path);
        made.map_err(failed("make the state folder", path))?;
        let metadata = fs::metadata(path).map_err(failed("look at", path))?;
        let (owner, user) = (metadata.uid(), rustix::process::geteuid().as_raw());
        if owner != user {
            return Err(FolderError::Owner { path: path.to_owned(), owner, user });
        }
        let mode = metadata.mode() & 0o777;
        if mode & 0o077 != 0 {
            return Err(FolderError::Exposed { path: path.to_owned(), mode, folder: true });
        }
        Ok(Self(path.to_owned()))
    }

    /// The path of the folder.
    pub fn as_path(&self) -> &Path {
        &self.0
    }

    /// The path of a file or folder in it.
    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// The private key. If there is none, it is generated, and stored on disk before this returns.
    ///
    /// # Errors
    /// See [`FolderError`]. An existing key that cannot be read is not replaced.
    pub fn private_key(&self) -> Result<StaticSecret, FolderError> {
        match self.stored_key(KEY)? {
            Some(key) => Ok(key),
            None => {
                let key = StaticSecret::generate().map_err(FolderError::Random)?;
                self.store_key(KEY, &key)?;
                Ok(key)
            }
        }
    }

    /// Replaces the private key. The new one is durable on return.
    ///
    /// # Errors
    /// See [`FolderError`]. The present one stays then.
    pub fn replace_private_key(&self, key: &StaticSecret) -> Result<(), FolderError> {
        self.store_key(KEY, key)
    }

    /// The private key in a file; `None` if there is none.
    pub(crate) fn stored_key(&self, name: &str) -> Result<Option<StaticSecret>, FolderError> {
        let Some(text) = self.read_secret(name)? else { return Ok(None) };
        let damaged = |why: String| FolderError::Damaged { path: self.path(name), why };
        let text = std::str::from_utf8(&text).map_err(|why| damaged(why.to_string()))?;
        let key = key::from_base64(text.trim_end()).map_err(|why| damaged(why.to_string()))?;
        Ok(Some(StaticSecret::from_bytes(*key)))
    }

    /// Stores a private key, as `wg genkey` writes it. It is durable on return.
    pub(crate) fn store_key(&self, name: &str, key: &StaticSecret) -> Result<(), FolderError> {
        let text = key::to_base64(&Zeroizing::new(key.to_bytes()));
        self.replace(name, Zeroizing::new(format!("{}\n", *text)).as_bytes())
    }

    /// The contents of a file; `None` if there is none.
    ///
    /// # Errors
    /// See [`FolderError`].
    pub fn read(&self, name: &str) -> Result<Option<Zeroizing<Vec<u8>>>, FolderError> {
        let path = self.path(name);
        match fs::read(&path) {
            Ok(text) => Ok(Some(Zeroizing::new(text))),
            Err(cause) if cause.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(cause) => Err(failed("read", &path)(cause)),
        }
    }

    /// The same for a file with secrets, which is refused if others can read it.
    ///
    /// # Errors
    /// See [`FolderError`].
    pub fn read_secret(&self, name: &str) -> Result<Option<Zeroizing<Vec<u8>>>, FolderError> {
        let text = self.read(name)?;
        if text.is_some() {
            self.check_mode(&self.path(name))?;
        }
        Ok(text)
    }

    /// Replaces a file atomically: readers see the old contents or the new contents. The file is durable on return.
    ///
    /// # Errors
    /// See [`FolderError`]. The old contents are still there.
    pub fn replace(&self, name: &str, text: &[u8]) -> Result<(), FolderError> {
        let path = self.path(name);
        let written =
            AtomicWriteFile::options().mode(0o600).preserve_mode(false).preserve_owner(false).open(&path).and_then(
                |mut file| {
                    file.write_all(text)?;
                    // This syncs the file and, after renaming it, the folder.
                    file.commit()
                },
            );
        written.map_err(failed("write", &path))
    }

    /// Removes a file. It is no error if there is none.
    ///
    /// # Errors
    /// See [`FolderError`].
    pub fn remove(&self, name: &str) -> Result<(), FolderError> {
        let path = self.path(name);
        match fs::remove_file(&path) {
            Err(cause) if cause.kind() != io::ErrorKind::NotFound => Err(failed("remove", &path)(cause)),
            _ => Ok(()),
        }
    }

    fn check_mode(&self, path: &Path) -> Result<(), FolderError> {
        let mode = fs::metadata(path).map_err(failed("look at", path))?.mode() & 0o777;
        if mode & 0o077 == 0 {
            Ok(())
        } else {
            Err(FolderError::Exposed { path: path.to_owned(), mode, folder: false })
        }
    }
}

fn failed(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> FolderError {
    let path = path.to_owned();
    move |cause| FolderError::Io { doing, path, cause }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn the_key_is_made_once_and_never_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let folder = Folder::open_at(&dir.path().join("rg0")).unwrap();
        let key = folder.private_key().unwrap();
        assert_eq!(folder.private_key().unwrap().to_bytes(), key.to_bytes());
        let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o777;
        assert_eq!((mode(&folder.path("key")), mode(folder.as_path())), (0o600, 0o700));

        fs::write(folder.path("key"), "no key\n").unwrap();
        let error = folder.private_key().unwrap_err().to_string();
        assert!(error.contains("damaged") && error.contains("backup"), "{error}");
        assert_eq!(fs::read_to_string(folder.path("key")).unwrap(), "no key\n");
    }

    #[test]
    fn what_others_can_read_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("rg0");
        let folder = Folder::open_at(&path).unwrap();
        folder.private_key().unwrap();
        fs::set_permissions(folder.path("key"), fs::Permissions::from_mode(0o640)).unwrap();
        assert!(folder.private_key().unwrap_err().to_string().contains("chmod 600"));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o750)).unwrap();
        assert!(Folder::open_at(&path).unwrap_err().to_string().contains("chmod 700"));
    }

    #[test]
    fn names_are_checked() {
        assert!(Folder::open("../etc").is_err());
        assert!(Folder::find("a/b").is_err());
    }
}
