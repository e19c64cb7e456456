//! The default store: a folder of its own.
use std::path::Path;

use super::files::Disk;
use super::log::Log;
use super::{Change, LeaseStore, State, StoreError};

/// Keeps the state in a folder: a snapshot, and a journal of what happened since.
///
/// The folder is made if need be, with mode 0700; one that others can enter is refused, and one that another process uses.
/// Its files:
///
/// - `snapshot`: the state at some moment. It is replaced by renaming, whole or not at all.
/// - `journal-N`: the commits since, each written and synced before it is acknowledged. Snapshot number N is continued by
///   journal N, journal N + 1 and so on: a new one is begun together with the next snapshot.
/// - `lock`: locked while a process uses the folder.
///
/// A commit that was cut off at the end of the last journal was never acknowledged, and is left out. Everything else that
/// is not as written is an error on [`load`](LeaseStore::load), and changes nothing. (One case looks like a commit cut
/// off and is taken for it: the last record, acknowledged, was damaged later.) To make a backup, copy the folder
/// while nothing uses it.
#[derive(Debug)]
pub struct FileStore(Log<Disk>);

impl FileStore {
    /// Opens and locks the folder.
    pub fn open(folder: &Path) -> Result<Self, StoreError> {
        Ok(Self(Log::new(Disk::open(folder)?)))
    }
}

impl LeaseStore for FileStore {
    fn load(&mut self) -> Result<Option<State>, StoreError> {
        self.0.load()
    }

    fn commit(&mut self, changes: &[Change], before: &State) -> Result<(), StoreError> {
        self.0.commit(changes, before)
    }
}
