//! Why a backup is not made, or not restored.

use crate::{
    network::key_before::KeyBeforeError, policy::PolicyError, prepare::PrepareError, settings::SettingsError,
    store::FileStoreError,
};
use rustguard_crypto::x25519::PublicKey;
use rustguard_enroll::{ledger::LedgerError, store::StoreError};
use rustguard_network::FolderError;
use rustguard_policy::diagnostic::Diagnostic;
use std::{io, path::PathBuf};

/// Why a backup cannot be made or used. Nothing has changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BackupError {
    /// The interface is not served.
    #[error(
        "{0} is not served by this machine: there is nothing to back up. The server of a network is the machine that runs `rustguard serve`"
    )]
    NoServer(String),
    /// The machine has stored no state of a server.
    #[error(
        "{0} has nothing of the state of its server here: a standby has it (`rustguard invite new --standby` on the server, and `rustguard join \
         --endpoint … --standby` here, before the server is gone). Otherwise a backup does: rustguard serve restore FILE"
    )]
    NoStandby(String),
    /// The file is something else.
    #[error("it is no backup of `rustguard serve backup`. If it is encrypted or packed, undo that first")]
    Foreign,
    /// A newer program has made it.
    #[error(
        "it has version {found}, and this program knows version {known}: install the newer program that has made it"
    )]
    Version {
        /// The version of the file.
        found: u32,
        /// The version that is known.
        known: u32,
    },
    /// The file is not complete, or was changed.
    #[error("it is damaged ({0}); take another copy, or an older backup")]
    Damaged(&'static str),
    /// The state is too large.
    #[error(
        "the state of this server has {0} bytes, which is more than a backup takes; copy its folder while it does not run"
    )]
    TooLarge(usize),
    /// The machine serves another network.
    #[error(
        "{} has another server, with the key {present}; the backup is of the one with {backup}. Put it into another interface \
         (--interface), or move that folder away", path.display()
    )]
    Other {
        /// The folder.
        path: PathBuf,
        /// The key of the present server.
        present: PublicKey,
        /// The key of the server in the backup.
        backup: PublicKey,
    },
    /// The machine is a member.
    #[error(
        "{} is the folder of a member, and not of a server; put the backup into another interface (--interface), or leave that network first", .0.display()
    )]
    Member(PathBuf),
    /// The backup is older than the present state.
    #[error("{0}")]
    Consent(super::Losses),
    /// The folder cannot be used.
    #[error(transparent)]
    Folder(#[from] FolderError),
    /// The store cannot be used.
    #[error(transparent)]
    FileStore(#[from] FileStoreError),
    /// The store failed.
    #[error(transparent)]
    Store(StoreError),
    /// The members and the settings do not fit.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    /// The settings cannot be used.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// The policy that is to be backed up cannot be used.
    #[error(transparent)]
    PolicyFile(#[from] PolicyError),
    /// The policy of the backup has a mistake, or one of its tests fails for the machines of the backup.
    #[error("no server takes the policy in it, because of {0}")]
    Policy(Box<Diagnostic>),
    /// The previous key cannot be read.
    #[error(transparent)]
    KeyBefore(#[from] KeyBeforeError),
    /// No server would start with it.
    #[error(transparent)]
    Prepare(#[from] PrepareError),
    /// The operating system refused.
    #[error("cannot {doing} {}: {cause}", path.display())]
    Io {
        /// The operation that failed.
        doing: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The cause.
        cause: io::Error,
    },
}
