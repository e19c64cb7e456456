//! Why a machine cannot be a server on a store.

use crate::{
    network::key_before::KeyBeforeError, policy::PolicyError, replica::ReplicaError, settings::SettingsError,
    store::FileStoreError,
};
use rustguard_enroll::{
    ledger::{LedgerError, Refusal},
    store::StoreError,
};
use rustguard_network::FolderError;
use std::path::PathBuf;

/// Why a machine cannot be a server on a store. Each message names the thing, the cause and the remedy.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SeatError {
    /// The file with the store key cannot be used.
    #[error("the store key {path} cannot be used: {why}")]
    KeyFile {
        /// The file.
        path: PathBuf,
        /// The cause.
        why: String,
    },
    /// The store has a network, and this machine has no key for it.
    #[error(
        "{store} has a network, and this machine has no key for it; copy the file store-key from the state folder of a server \
         there (/var/lib/rustguard/NAME), and give it: --store-key FILE"
    )]
    NoKey {
        /// The store and the log in it.
        store: String,
    },
    /// The given store key is not the one of the state folder.
    #[error("--store-key has another key than {path}, with which this server was started before; leave it out")]
    OtherKey {
        /// The store key of the folder.
        path: PathBuf,
    },
    /// The store has a network, and the state folder another one.
    #[error(
        "{store} has a network, and {folder} has one of its own. To be a server of the network in the store: move {folder} \
         aside. To keep the own one: give an empty place in the store"
    )]
    OtherNetwork {
        /// The store and the log in it.
        store: String,
        /// The state folder.
        folder: PathBuf,
    },
    /// The store is empty, and the state folder is not.
    #[error(
        "{store} is empty, and this machine serves a network of its own (joined machines: {machines}); to put that network into \
         the store, add --adopt"
    )]
    Adopt {
        /// The store and the log in it.
        store: String,
        /// The number of machines.
        machines: usize,
    },
    /// A server began to put its state into the store, and has not finished.
    #[error(
        "another server began to put its network into {store}, and has not finished; start that one again, or give an empty \
         place in the store"
    )]
    Unfinished {
        /// The store and the log in it.
        store: String,
    },
    /// This server was removed from the network.
    #[error(
        "this server was removed from the network in {store}; to be a server of it again, move {folder} aside and start with \
         --store and --store-key"
    )]
    Removed {
        /// The store and the log in it.
        store: String,
        /// The state folder.
        folder: PathBuf,
    },
    /// The network is a star.
    #[error("a star has one server: serve on a store without --star and --isolate")]
    Star,
    /// The server's key was changed a short time ago.
    #[error(
        "the key of this server was changed less than 30 days ago, and the one before is answered still; put the network into a \
         store after that"
    )]
    KeyBefore,
    /// The lease of this server is missing.
    #[error("this server has no lease in its own network; try again")]
    NoLease,
    /// A document of the network is missing or cannot be read.
    #[error(
        "the document {name} of the network in the store cannot be read: {why}; use a newer program, or restore the store"
    )]
    Document {
        /// The name of the document.
        name: &'static str,
        /// The cause.
        why: String,
    },
    /// The log cannot be read or written.
    #[error(transparent)]
    Replica(#[from] ReplicaError),
    /// The state folder cannot be used.
    #[error(transparent)]
    Folder(#[from] FolderError),
    /// The leases in the state folder cannot be used.
    #[error(transparent)]
    Files(#[from] FileStoreError),
    /// The leases in the state folder cannot be read or written.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The state folder could not keep a copy of the log.
    #[error("the state folder cannot keep what the store has: {0}; free some space, or look at the disk")]
    Copy(String),
    /// The settings cannot be used.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// The leases do not fit the settings.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    /// This server gets no lease.
    #[error("this server gets no lease: {0}")]
    Refused(#[from] Refusal),
    /// The server's previous key cannot be read.
    #[error(transparent)]
    KeyBeforeFile(#[from] KeyBeforeError),
    /// The policy cannot be used.
    #[error(transparent)]
    Policy(#[from] PolicyError),
}
