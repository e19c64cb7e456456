//! The log in memory, for tests and simulations.

use crate::{
    LogError,
    log::{Log, Page, Snapshot, check_entry, check_snapshot, page},
};
use futures_util::future::{BoxFuture, ready};
use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::sync::Notify;

/// A log in memory. Clones are handles to the same log.
#[derive(Clone, Debug, Default)]
pub struct MemoryLog {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    contents: Mutex<Contents>,
    grown: Notify,
}

/// The contents of a log.
#[derive(Clone, Debug, Default)]
struct Contents {
    /// The revision before the first entry here.
    removed: u64,
    entries: Vec<Vec<u8>>,
    snapshot: Option<Snapshot>,
}

impl Contents {
    fn last(&self) -> u64 {
        self.removed + self.entries.len() as u64
    }
}

impl MemoryLog {
    fn contents(&self) -> MutexGuard<'_, Contents> {
        self.shared.contents.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Copies what the log contains now, like a backup of the store.
    #[must_use]
    pub fn backup(&self) -> Self {
        let contents = Mutex::new(self.contents().clone());
        Self { shared: Arc::new(Shared { contents, grown: Notify::new() }) }
    }
}

impl Log for MemoryLog {
    fn name(&self) -> String {
        "the log in memory".to_owned()
    }

    fn append<'a>(&'a self, after: u64, entry: &'a [u8]) -> BoxFuture<'a, Result<bool, LogError>> {
        let append = || {
            check_entry(entry)?;
            let mut contents = self.contents();
            let is_last = contents.last() == after;
            if is_last {
                contents.entries.push(entry.to_vec());
                // All handles wait here, and each must see it.
                self.shared.grown.notify_waiters();
            }
            Ok(is_last)
        };
        Box::pin(ready(append()))
    }

    fn read(&self, after: u64) -> BoxFuture<'_, Result<Page, LogError>> {
        let contents = self.contents();
        let last = contents.last();
        let page = match after.checked_sub(contents.removed) {
            None => Page::Removed,
            Some(skipped) => {
                let skipped = usize::try_from(skipped).unwrap_or(usize::MAX).min(contents.entries.len());
                Page::Entries { entries: page(contents.entries[skipped..].iter().cloned()), last }
            }
        };
        Box::pin(ready(Ok(page)))
    }

    fn snapshot(&self) -> BoxFuture<'_, Result<Option<Snapshot>, LogError>> {
        Box::pin(ready(Ok(self.contents().snapshot.clone())))
    }

    fn store_snapshot<'a>(&'a self, snapshot: &'a Snapshot) -> BoxFuture<'a, Result<(), LogError>> {
        let store = || {
            check_snapshot(snapshot)?;
            let mut contents = self.contents();
            let before = contents.snapshot.as_ref().map_or(0, |before| before.revision);
            if before < snapshot.revision {
                let covered = usize::try_from(before.saturating_sub(contents.removed)).unwrap_or(usize::MAX);
                let covered = covered.min(contents.entries.len());
                contents.entries.drain(..covered);
                contents.removed += covered as u64;
                contents.snapshot = Some(snapshot.clone());
            }
            Ok(())
        };
        Box::pin(ready(store()))
    }

    fn wait(&self) -> BoxFuture<'_, ()> {
        // An append between the caller's last reading and this call is not seen. The caller reads again soon.
        Box::pin(async {
            let _ = tokio::time::timeout(Duration::from_millis(200), self.shared.grown.notified()).await;
        })
    }
}
