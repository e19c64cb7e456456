//! The errors of the folder and its files.
use rustguard_enroll::store::StoreError;
use std::{io, path::PathBuf};

/// Why the state could not be read or stored.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FileStoreError {
    /// The operating system refused.
    #[error("cannot {action} {path}: {source}", path = path.display())]
    Io {
        /// The operation.
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// Other users can enter the folder, which contains preshared keys.
    #[error("other users can enter {path} (mode {mode:o}), which holds keys; run: chmod 700 {path}", path = path.display())]
    Exposed {
        /// The folder.
        path: PathBuf,
        /// Its permissions.
        mode: u32,
    },
    /// The folder belongs to another user, who could change its contents.
    #[error("{path} belongs to user {owner}, but this program runs as user {us}; run: chown -R {us} {path}", path = path.display())]
    Owner {
        /// The folder.
        path: PathBuf,
        /// The owner's user id.
        owner: u32,
        /// The user id of this process.
        us: u32,
    },
    /// Another process uses the folder.
    #[error("{path} is in use by {by}; stop that first, or use another folder", path = path.display())]
    Locked {
        /// The folder.
        path: PathBuf,
        /// The process that uses it, if it is known.
        by: String,
    },
    /// The contents of a file are not those that were written.
    #[error(
        "{path} is damaged at byte {offset}: {cause}; nothing was changed. Restore its folder from a backup, or move the \
         folder aside to start with nobody in the network: every peer then has to join again", path = path.display()
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The position in bytes.
        offset: u64,
        /// The problem at this position.
        cause: &'static str,
    },
    /// This program does not know the version of a file.
    #[error("{path} has version {found}, and this program knows version {known}; run the program that wrote it, or a newer one", path = path.display())]
    Version {
        /// The file.
        path: PathBuf,
        /// The file's version.
        found: u32,
        /// The version that this program knows.
        known: u32,
    },
    /// A file is missing, and other files depend on it.
    #[error(
        "{path} is missing, but other files depend on it; nothing was changed. Restore its folder from a backup, or move the \
         folder aside to start with nobody in the network: every peer then has to join again", path = path.display()
    )]
    Missing {
        /// The file.
        path: PathBuf,
    },
    /// A write failed, and undoing it failed too. The contents of the disk are not known.
    #[error("an earlier write to {path} failed and could not be undone; nothing can be stored until a restart", path = path.display())]
    Broken {
        /// The folder.
        path: PathBuf,
    },
    /// A commit is larger than a record can hold.
    #[error("a commit of {0} bytes is too large")]
    TooLarge(usize),
}

impl From<FileStoreError> for StoreError {
    fn from(error: FileStoreError) -> Self {
        Self::new(error)
    }
}
