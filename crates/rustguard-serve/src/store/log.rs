//! Snapshot and journals. The order of writes ensures that a power cut at any moment loses no acknowledged commit.
//!
//! A commit appends one record to the newest journal and syncs it. When the journals have grown long, the next commit
//! starts a new journal and a new snapshot. The snapshot is written in slices, one with each commit, so that no single
//! commit pays for all of it. After the last slice was synced, the file is renamed over the old snapshot, and the
//! journals before the new one are removed. Until then the old snapshot and all journals are valid.
//!
//! A snapshot thus holds each lease as it was at some moment during the writing, not all leases at the same moment.
//! That is sufficient: later changes are in the new journal. A change holds the new value, so applying it twice is
//! harmless. When the snapshot is put in place, it holds only committed changes.
use super::{
    FileStoreError,
    files::Files,
    format::{self, Fault, JOURNAL_HEADER, Snapshot},
    walk::Walk,
};
use rustguard_enroll::store::{Change, State};
use std::io;
use zeroize::Zeroizing;

const SNAPSHOT: &str = "snapshot";
const SNAPSHOT_NEW: &str = "snapshot.new";
const JOURNAL_NEW: &str = "journal.new";
const JOURNAL: &str = "journal-";

/// No snapshot is made while the journals are shorter than this, in bytes.
const MIN_JOURNALS: u64 = 1 << 20;
/// The journals may reach this fraction of the snapshot's length. More frequent snapshots would be wasteful, and
/// removing much longer journals takes long.
const SHARE: u64 = 4;
/// The number of leases and other entries of a snapshot that are written with one commit: about 130 kB.
const SLICE: usize = 1_000;

/// The log and its files.
#[derive(Debug)]
pub(super) struct Log<F> {
    files: F,
    /// The generations of the snapshot and of the newest journal.
    oldest: u64,
    newest: u64,
    /// Length of the newest journal and of all journals, in bytes.
    journal_len: u64,
    journals_len: u64,
    /// The length of the journals, in bytes, that triggers a snapshot.
    bound: u64,
    min_journals: u64,
    slice: usize,
    next_serial: u64,
    image: Option<Image>,
    /// The newest journal has an earlier version of the format. Nothing is appended to it.
    outdated: bool,
    broken: bool,
}

/// A snapshot that is being written.
#[derive(Debug)]
struct Image {
    generation: u64,
    walk: Walk,
    /// The numbers of records and bytes written.
    parts: u64,
    len: u64,
    /// The serial of the first commit in the journal that follows it.
    next_serial: u64,
    /// The length of the journals that it replaces.
    covers: u64,
}

impl<F: Files> Log<F> {
    /// A log in these files.
    pub(super) fn new(files: F) -> Self {
        Self::with_sizes(files, MIN_JOURNALS, SLICE)
    }

    /// With sizes that are small enough for tests to see several snapshots.
    pub(super) fn with_sizes(files: F, min_journals: u64, slice: usize) -> Self {
        Self {
            files,
            oldest: 0,
            newest: 0,
            journal_len: 0,
            journals_len: 0,
            bound: min_journals,
            min_journals,
            slice,
            next_serial: 0,
            image: None,
            outdated: false,
            broken: false,
        }
    }

    /// Starts the journal after the newest one. Its name becomes visible only after its header is on disk.
    fn begin_journal(&mut self, generation: u64) -> Result<(), FileStoreError> {
        let write = self
            .files
            .create(JOURNAL_NEW)
            .and_then(|()| self.files.append(JOURNAL_NEW, &format::journal_header(generation)))
            .and_then(|()| self.files.sync(JOURNAL_NEW));
        write.map_err(|error| self.io("write", JOURNAL_NEW, error))?;
        let name = journal(generation);
        // From here on the new journal may exist after a power cut. Records appended to the old one would then be out
        // of order.
        self.broken = true;
        let rename = self.files.rename(JOURNAL_NEW, &name).and_then(|()| self.files.sync_folder());
        rename.map_err(|error| self.io("create", &name, error))?;
        (self.broken, self.outdated) = (false, false);
        self.newest = generation;
        self.journal_len = JOURNAL_HEADER as u64;
        self.journals_len += self.journal_len;
        Ok(())
    }

    /// Starts a snapshot, and the journal that follows it.
    fn begin_snapshot(&mut self) -> Result<(), FileStoreError> {
        let (generation, next_serial, covers) = (self.newest + 1, self.next_serial, self.journals_len);
        self.begin_journal(generation)?;
        self.image = Some(Image { generation, walk: Walk::default(), parts: 0, len: 0, next_serial, covers });
        Ok(())
    }

    /// Continues without a snapshot after starting or writing it failed. The old snapshot and the journals still hold
    /// everything. Another one is tried when the journals have grown further.
    fn without_snapshot(&mut self, error: FileStoreError) -> Result<(), FileStoreError> {
        self.image = None;
        self.bound = self.journals_len + self.min_journals;
        if self.broken { Err(error) } else { Ok(()) }
    }

    /// Writes the next slice of the snapshot.
    fn continue_snapshot(&mut self, state: &State) {
        let Some(mut image) = self.image.take() else { return };
        match self.write_slice(&mut image, state) {
            Ok(false) => self.image = Some(image),
            Ok(true) => {
                for generation in self.oldest..image.generation {
                    // The next start removes files that stay.
                    let _ = self.files.remove(&journal(generation));
                }
                self.oldest = image.generation;
                self.journals_len -= image.covers;
                self.bound = self.min_journals.max(image.len / SHARE);
            }
            Err(_) => self.bound = self.journals_len + self.min_journals,
        }
    }

    /// Returns true when the snapshot is in place.
    fn write_slice(&mut self, image: &mut Image, state: &State) -> io::Result<bool> {
        if image.parts == 0 {
            let header = format::snapshot_header(image.generation, image.next_serial);
            self.files.create(SNAPSHOT_NEW)?;
            self.files.append(SNAPSHOT_NEW, &header)?;
        }
        let changes = image.walk.step(state, self.slice);
        let part = format::record(image.parts, &changes).map_err(|_| io::ErrorKind::FileTooLarge)?;
        self.files.append(SNAPSHOT_NEW, &part)?;
        self.files.sync(SNAPSHOT_NEW)?;
        image.parts += 1;
        image.len += part.len() as u64;
        // A part without changes marks the end.
        if !changes.is_empty() {
            return Ok(false);
        }
        self.files.rename(SNAPSHOT_NEW, SNAPSHOT)?;
        self.files.sync_folder()?;
        Ok(true)
    }

    fn append(&mut self, record: &[u8]) -> Result<(), FileStoreError> {
        let name = journal(self.newest);
        let Err(error) = self.files.append(&name, record).and_then(|()| self.files.sync(&name)) else {
            self.journal_len += record.len() as u64;
            self.journals_len += record.len() as u64;
            self.next_serial += 1;
            return Ok(());
        };
        // A record that was not acknowledged must not precede later ones.
        let undone = self.files.truncate(&name, self.journal_len).and_then(|()| self.files.sync(&name));
        self.broken = undone.is_err();
        Err(self.io("write", &name, error))
    }

    fn io(&self, action: &'static str, name: &str, source: io::Error) -> FileStoreError {
        FileStoreError::Io { action, path: self.files.path(name), source }
    }

    fn read(&mut self, name: &str) -> Result<Zeroizing<Vec<u8>>, FileStoreError> {
        self.files.read(name).map_err(|error| self.io("read", name, error))
    }

    fn fault(&self, name: &str, fault: Fault) -> FileStoreError {
        let path = self.files.path(name);
        match fault {
            Fault::Damaged(offset, cause) => FileStoreError::Damaged { path, offset: offset as u64, cause },
            Fault::Version(found) => FileStoreError::Version { path, found, known: format::VERSION },
        }
    }
}

impl<F: Files> Log<F> {
    /// Reads the state, as [`LeaseStore::load`](rustguard_enroll::store::LeaseStore::load) does.
    pub(super) fn load(&mut self) -> Result<Option<State>, FileStoreError> {
        let names = self.files.list().map_err(|source| {
            let path = self.files.folder();
            FileStoreError::Io { action: "list", path, source }
        })?;
        let has_snapshot = names.iter().any(|name| name == SNAPSHOT);
        let snapshot = if has_snapshot {
            let bytes = self.read(SNAPSHOT)?;
            format::read_snapshot(&bytes).map_err(|fault| self.fault(SNAPSHOT, fault))?
        } else {
            Snapshot { generation: 0, next_serial: 0, state: State::default() }
        };
        let Snapshot { generation: oldest, next_serial, mut state } = snapshot;
        (self.oldest, self.newest, self.next_serial) = (oldest, oldest, next_serial);
        let newest = names.iter().filter_map(|name| name.strip_prefix(JOURNAL)?.parse().ok()).max();
        let newest = match newest {
            None if !has_snapshot => {
                self.begin_journal(0)?;
                return Ok(None);
            }
            newest => newest.unwrap_or(oldest).max(oldest),
        };
        for generation in oldest..=newest {
            let name = journal(generation);
            if !names.contains(&name) {
                let missing = if has_snapshot || generation > 0 { &name } else { SNAPSHOT };
                return Err(FileStoreError::Missing { path: self.files.path(missing) });
            }
            let bytes = self.read(&name)?;
            let tail = format::read_journal(&bytes, generation, self.next_serial, &mut state)
                .map_err(|fault| self.fault(&name, fault))?;
            if tail.end < bytes.len() {
                if generation < newest {
                    let fault = Fault::Damaged(tail.end, "a record is broken, and a later journal follows");
                    return Err(self.fault(&name, fault));
                }
                let cut = self.files.truncate(&name, tail.end as u64).and_then(|()| self.files.sync(&name));
                cut.map_err(|error| self.io("write", &name, error))?;
            }
            self.newest = generation;
            self.outdated = tail.version != format::VERSION;
            self.next_serial = tail.next_serial;
            self.journal_len = tail.end as u64;
            self.journals_len += self.journal_len;
        }
        for name in &names {
            let old = name.strip_prefix(JOURNAL).and_then(|n| n.parse::<u64>().ok()).is_some_and(|n| n < oldest);
            if old || name == SNAPSHOT_NEW || name == JOURNAL_NEW {
                // A file that stays is harmless. The next start tries again.
                let _ = self.files.remove(name);
            }
        }
        // Nothing waits for an answer during the start.
        if self.journals_len > self.bound {
            self.begin_snapshot().or_else(|error| self.without_snapshot(error))?;
            while self.image.is_some() {
                self.continue_snapshot(&state);
            }
        }
        Ok((has_snapshot || self.next_serial > 0).then_some(state))
    }

    /// Makes changes durable, as [`LeaseStore::commit`](rustguard_enroll::store::LeaseStore::commit) does.
    pub(super) fn commit(&mut self, changes: &[Change], before: &State) -> Result<(), FileStoreError> {
        if self.broken {
            return Err(FileStoreError::Broken { path: self.files.folder() });
        }
        let record = format::record(self.next_serial, changes).map_err(FileStoreError::TooLarge)?;
        if self.image.is_none() && self.journals_len > self.bound {
            self.begin_snapshot().or_else(|error| self.without_snapshot(error))?;
        }
        // The new journal begins with the first change, not at the start. Until then, the previous version of the
        // program can read the folder.
        if self.outdated {
            self.begin_journal(self.newest + 1)?;
        }
        // All commits before this one are on disk.
        self.append(&record)?;
        self.continue_snapshot(before);
        Ok(())
    }
}

fn journal(generation: u64) -> String {
    format!("{JOURNAL}{generation}")
}
