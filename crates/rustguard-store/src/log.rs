//! The operations that a store offers.

use crate::LogError;
use futures_util::future::BoxFuture;
use std::{fmt, time::Duration};

/// The largest entry, in bytes. etcd takes requests of 1.5 MiB.
pub const MAX_ENTRY: usize = 512 << 10;
/// The largest part of a snapshot, in bytes.
pub const MAX_PART: usize = 256 << 10;
/// The largest number of parts of a snapshot, which makes 256 MiB.
pub const MAX_PARTS: usize = 1024;
/// [`Log::read`] returns no further entries after this many bytes.
pub const PAGE: usize = 1 << 20;

/// The log of one network in a store.
///
/// A log is a sequence of entries. The first one has the revision 1, and each other one has the revision after that of
/// the entry before it. An entry never changes. Snapshots take the place of the oldest entries: a snapshot of revision
/// `n` says what entries 1 to `n` result in.
///
/// The store cannot read entries and snapshots: [`NetworkLog`](crate::NetworkLog) seals both.
///
/// # Implementing it
/// [`conformance`](crate::conformance::check) checks an implementation. Each future may be dropped at any time. The
/// request then was carried out, or will be, or will not be. Any number of handles, in any number of processes, may use
/// one log at the same time.
pub trait Log: fmt::Debug + Send + Sync {
    /// The store and the log in it, for messages. It contains no secret.
    fn name(&self) -> String;

    /// Appends an entry of at most [`MAX_ENTRY`] bytes, if `after` is the revision of the last entry. Returns whether
    /// it was appended. The entry is durable on return.
    ///
    /// # Errors
    /// An [unknown](LogError::is_unknown) outcome leaves open whether the entry was appended, and even whether it will
    /// be. Appending the same entry again with the same `after` is safe: at most one of the two is appended. With
    /// every other error, the entry was not appended.
    fn append<'a>(&'a self, after: u64, entry: &'a [u8]) -> BoxFuture<'a, Result<bool, LogError>>;

    /// Reads the entries after this revision, in their order: all of them, or as many as fit [`PAGE`], and at least
    /// one if there are any. It sees every entry that was appended before the call, by any handle.
    ///
    /// # Errors
    /// See [`LogError`].
    fn read(&self, after: u64) -> BoxFuture<'_, Result<Page, LogError>>;

    /// Reads the newest snapshot.
    ///
    /// # Errors
    /// See [`LogError`].
    fn snapshot(&self) -> BoxFuture<'_, Result<Option<Snapshot>, LogError>>;

    /// Stores a snapshot and removes the one before it, together with the entries which that one covers. Without an
    /// older snapshot, no entry is removed. So a handle that is a little behind can still read entry by entry. If the
    /// store has a snapshot of this revision or a greater one, nothing happens.
    ///
    /// # Errors
    /// See [`LogError`]. The log then has this snapshot or the one before it, whole.
    fn store_snapshot<'a>(&'a self, snapshot: &'a Snapshot) -> BoxFuture<'a, Result<(), LogError>>;

    /// Waits until the log may have grown since the last call. It may return too early, and it returns after a second
    /// or two in any case, so that nothing is missed where a store's messages get lost. One task at a time may wait on
    /// a handle.
    ///
    /// A store that sends no messages is asked twice a second.
    fn wait(&self) -> BoxFuture<'_, ()> {
        Box::pin(tokio::time::sleep(Duration::from_millis(500)))
    }
}

impl<L: Log + ?Sized> Log for Box<L> {
    fn name(&self) -> String {
        (**self).name()
    }

    fn append<'a>(&'a self, after: u64, entry: &'a [u8]) -> BoxFuture<'a, Result<bool, LogError>> {
        (**self).append(after, entry)
    }

    fn read(&self, after: u64) -> BoxFuture<'_, Result<Page, LogError>> {
        (**self).read(after)
    }

    fn snapshot(&self) -> BoxFuture<'_, Result<Option<Snapshot>, LogError>> {
        (**self).snapshot()
    }

    fn store_snapshot<'a>(&'a self, snapshot: &'a Snapshot) -> BoxFuture<'a, Result<(), LogError>> {
        (**self).store_snapshot(snapshot)
    }

    fn wait(&self) -> BoxFuture<'_, ()> {
        (**self).wait()
    }
}

/// The result of [`Log::read`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Page {
    /// The entries after the given revision; none if that is the last one, or greater than the last one.
    Entries {
        /// The entries, in the order of their revisions.
        entries: Vec<Vec<u8>>,
        /// The revision of the last entry of the log, 0 if there is none. It may be greater than that of the last
        /// entry returned.
        last: u64,
    },
    /// The next entry was removed: a snapshot covers it.
    Removed,
}

/// The result of all entries up to a revision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// The revision of the last entry that the snapshot covers. It is greater than 0.
    pub revision: u64,
    /// The contents, in 1 to [`MAX_PARTS`] parts of at most [`MAX_PART`] bytes each.
    pub parts: Vec<Vec<u8>>,
}

/// The first entries that fit a page.
pub(crate) fn page(entries: impl Iterator<Item = Vec<u8>>) -> Vec<Vec<u8>> {
    let mut len = 0;
    let mut page = Vec::new();
    for entry in entries {
        len += entry.len();
        if len > PAGE && !page.is_empty() {
            break;
        }
        page.push(entry);
    }
    page
}

/// Whether a store takes an entry.
pub(crate) fn check_entry(entry: &[u8]) -> Result<(), LogError> {
    if entry.len() > MAX_ENTRY {
        return Err(LogError::TooLarge { what: "a record", len: entry.len(), limit: MAX_ENTRY });
    }
    Ok(())
}

/// Whether a store takes a snapshot.
pub(crate) fn check_snapshot(snapshot: &Snapshot) -> Result<(), LogError> {
    let largest = snapshot.parts.iter().map(Vec::len).max().unwrap_or_default();
    if snapshot.parts.len() > MAX_PARTS || largest > MAX_PART {
        let len = snapshot.parts.iter().map(Vec::len).sum();
        return Err(LogError::TooLarge { what: "a snapshot", len, limit: MAX_PARTS * MAX_PART });
    }
    Ok(())
}
