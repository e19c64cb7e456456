//! What can go wrong with the folder and its files.
use rustguard_enroll::store::StoreError;
use std::{io, path::PathBuf};

/// Why the state could not be read or kept.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FileStoreError {
    /// The operating system refused.
    #[error("cannot {action} {path}: {source}", path = path.display())]
    Io {
        /// The operation.
        action: &'static str,
        /// With which file or folder.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// Others may look into the folder, which has preshared keys in it.
    #[error("other users can enter {path} (mode {mode:o}), which holds keys; run: chmod 700 {path}", path = path.display())]
    Exposed {
        /// The folder.
        path: PathBuf,
        /// Its permissions.
        mode: u32,
    },
    /// The folder belongs to another user, who could change its contents.
    #[error("{path} belongs to user {owner} and not to user {us}, who runs this; run: chown -R {us} {path}", path = path.display())]
    Owner {
        /// The folder.
        path: PathBuf,
        /// The owner's user id.
        owner: u32,
        /// The user id of this process.
        us: u32,
    },
    /// Another process has the folder.
    #[error("{path} is in use by {by}; stop that first, or use another folder", path = path.display())]
    Locked {
        /// The folder.
        path: PathBuf,
        /// The process that uses it, if it is known.
        by: String,
    },
    /// A file does not hold what was written.
    #[error(
        "{path} is damaged at byte {offset}: {cause}; nothing was changed. Restore its folder from a backup, or move the \
         folder aside to start with nobody in the network: every peer then has to join again", path = path.display()
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Where.
        offset: u64,
        /// What is wrong there.
        cause: &'static str,
    },
    /// A file is of a version that is not known here.
    #[error("{path} has version {found}, and this program knows version {known}; run the program that wrote it, or a newer one", path = path.display())]
    Version {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: u32,
        /// Ours.
        known: u32,
    },
    /// A file is missing, and others that need it are there.
    #[error(
        "{path} is missing, and others that need it are there; nothing was changed. Restore its folder from a backup, or move the \
         folder aside to start with nobody in the network: every peer then has to join again", path = path.display()
    )]
    Missing {
        /// The file.
        path: PathBuf,
    },
    /// A write failed, and undoing it failed too: the contents of the disk are unknown.
    #[error("an earlier write to {path} failed and could not be undone; nothing can be kept until a restart", path = path.display())]
    Broken {
        /// The folder.
        path: PathBuf,
    },
    /// More was to be committed at once than a record can hold.
    #[error("a commit of {0} bytes is too large")]
    TooLarge(usize),
}

impl From<FileStoreError> for StoreError {
    fn from(error: FileStoreError) -> Self {
        Self::new(error)
    }
}
