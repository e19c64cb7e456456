//! The store in a folder.
use super::{FileStoreError, files::Disk, log::Log};
use rustguard_enroll::store::{Change, LeaseStore, State, StoreError};
use std::path::Path;

/// Keeps the state in a folder: a snapshot, and a journal of the commits since the snapshot.
///
/// The folder is made if it does not exist, with mode 0700. A folder that other users can enter, or that another
/// process uses, is refused. Its files:
///
/// - `snapshot`: the state at some moment. It is replaced by renaming, so it is always complete.
/// - `journal-N`: the commits since, each written and synced before it is acknowledged. Snapshot N is continued by
///   journal N, journal N + 1 and so on. Each new snapshot starts a new journal.
/// - `lock`: locked while a process uses the folder.
///
/// An incomplete commit at the end of the last journal was never acknowledged, and is ignored. Any other deviation from
/// the written data is an error on [`load`](LeaseStore::load), which then changes nothing. Two cases look like a
/// shorter history and cannot be detected: damage of the very last record after it was acknowledged, and deletion of
/// the newest of several journals. To make a backup, copy the folder while no process uses it.
#[derive(Debug)]
pub struct FileStore(Log<Disk>);

impl FileStore {
    /// Opens and locks the folder.
    ///
    /// # Errors
    /// See [`FileStoreError`].
    pub fn open(folder: &Path) -> Result<Self, FileStoreError> {
        Ok(Self(Log::new(Disk::open(folder)?)))
    }
}

impl LeaseStore for FileStore {
    fn load(&mut self) -> Result<Option<State>, StoreError> {
        Ok(self.0.load()?)
    }

    fn commit(&mut self, changes: &[Change], before: &State) -> Result<(), StoreError> {
        Ok(self.0.commit(changes, before)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        fs::{self, Permissions},
        os::unix::fs::PermissionsExt,
    };

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn the_folder_and_its_files_are_the_owners_alone() {
        let parent = tempfile::tempdir().unwrap();
        let folder = parent.path().join("a/b");
        let mut store = FileStore::open(&folder).unwrap();
        assert_eq!(store.load().unwrap(), None);
        store.commit(&[Change::Serial(3)], &State::default()).unwrap();
        assert_eq!(mode(&folder), 0o700);
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            assert_eq!(mode(&path), 0o600, "{}", path.display());
        }
        drop(store);
        for exposed in [0o750, 0o701, 0o777] {
            fs::set_permissions(&folder, Permissions::from_mode(exposed)).unwrap();
            let error = FileStore::open(&folder).unwrap_err();
            assert!(error.to_string().ends_with(&format!("run: chmod 700 {}", folder.display())), "{error}");
        }
        fs::set_permissions(&folder, Permissions::from_mode(0o700)).unwrap();
        assert_eq!(FileStore::open(&folder).unwrap().load().unwrap().unwrap().serial, 3);
    }

    #[test]
    fn a_second_user_is_told_who_the_first_is() {
        let parent = tempfile::tempdir().unwrap();
        let folder = parent.path().join("state");
        let first = FileStore::open(&folder).unwrap();
        let error = FileStore::open(&folder).unwrap_err();
        let expected = format!("in use by process {};", std::process::id());
        assert!(error.to_string().contains(&expected), "{error}");
        drop(first);
        FileStore::open(&folder).unwrap();
    }

    #[test]
    fn damage_is_named_with_its_remedy_and_the_file_is_left_alone() {
        let parent = tempfile::tempdir().unwrap();
        let folder = parent.path().join("state");
        let mut store = FileStore::open(&folder).unwrap();
        store.load().unwrap();
        for serial in 1..4 {
            store.commit(&[Change::Serial(serial)], &State::default()).unwrap();
        }
        drop(store);
        let journal = folder.join("journal-0");
        let mut bytes = fs::read(&journal).unwrap();
        bytes[30] ^= 1;
        fs::write(&journal, &bytes).unwrap();
        let error = FileStore::open(&folder).unwrap().load().unwrap_err().to_string();
        assert!(error.contains("journal-0 is damaged at byte 24: a record is broken"), "{error}");
        assert!(error.contains("Restore its folder from a backup, or move the folder aside"), "{error}");
        assert_eq!(fs::read(&journal).unwrap(), bytes);
    }

    #[test]
    fn what_is_no_folder_is_an_error_with_its_name() {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::set_permissions(file.path(), Permissions::from_mode(0o600)).unwrap();
        let error = FileStore::open(file.path()).unwrap_err().to_string();
        assert!(error.contains(&file.path().display().to_string()), "{error}");
    }
}
