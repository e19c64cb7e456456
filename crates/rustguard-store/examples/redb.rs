//! A store of one's own: the log in a file, in redb.
//!
//!     cargo run -p rustguard-store --example redb FILE
//!
//! One process has the file open. So this log is for one server, as the folder of `rustguard serve` is, and for tests.
//! The example checks its log, and fails if it breaks a rule.

use futures_util::future::{BoxFuture, ready};
use redb::{Database, ReadableDatabase, ReadableTable, TableDefinition};
use rustguard_store::{
    Log, LogError, conformance,
    log::{MAX_ENTRY, PAGE, Page, Snapshot},
};
use std::{env, error::Error, path::Path, sync::Arc};

/// The entries of all logs, by the name of the log and the revision.
const ENTRIES: TableDefinition<'_, (&str, u64), &[u8]> = TableDefinition::new("entries");
/// The last revision of each log, the revision before its first entry, and that of its snapshot.
const HEADS: TableDefinition<'_, &str, (u64, u64, u64)> = TableDefinition::new("heads");
/// The parts of snapshots.
const PARTS: TableDefinition<'_, (&str, u64), &[u8]> = TableDefinition::new("parts");

#[derive(Debug)]
struct RedbLog {
    database: Arc<Database>,
    name: String,
}

impl RedbLog {
    fn open(database: &Arc<Database>, name: &str) -> Result<Self, redb::Error> {
        let make = database.begin_write()?;
        make.open_table(ENTRIES)?;
        make.open_table(HEADS)?;
        make.open_table(PARTS)?;
        make.commit()?;
        Ok(Self { database: Arc::clone(database), name: name.to_owned() })
    }

    fn try_append(&self, after: u64, entry: &[u8]) -> Result<bool, redb::Error> {
        // redb has one write transaction at a time: the compared revision stays so until the commit, which is durable.
        let write = self.database.begin_write()?;
        {
            let mut heads = write.open_table(HEADS)?;
            let (last, removed, snapshot) = heads.get(&*self.name)?.map(|head| head.value()).unwrap_or_default();
            if last != after {
                return Ok(false);
            }
            heads.insert(&*self.name, (last + 1, removed, snapshot))?;
            write.open_table(ENTRIES)?.insert((&*self.name, last + 1), entry)?;
        }
        write.commit()?;
        Ok(true)
    }

    fn try_read(&self, after: u64) -> Result<Page, redb::Error> {
        let read = self.database.begin_read()?;
        let head = read.open_table(HEADS)?.get(&*self.name)?.map(|head| head.value());
        let (last, removed, _) = head.unwrap_or_default();
        if after < removed {
            return Ok(Page::Removed);
        }
        let (mut entries, mut len) = (Vec::new(), 0);
        let next = after.saturating_add(1);
        for entry in read.open_table(ENTRIES)?.range((&*self.name, next)..=(&*self.name, u64::MAX))? {
            let entry = entry?.1.value().to_vec();
            len += entry.len();
            if len > PAGE && !entries.is_empty() {
                break;
            }
            entries.push(entry);
        }
        Ok(Page::Entries { entries, last })
    }

    fn try_snapshot(&self) -> Result<Option<Snapshot>, redb::Error> {
        let read = self.database.begin_read()?;
        let head = read.open_table(HEADS)?.get(&*self.name)?.map(|head| head.value());
        let Some((_, _, revision)) = head.filter(|head| head.2 > 0) else { return Ok(None) };
        let table = read.open_table(PARTS)?;
        let parts = table.range((&*self.name, 0)..=(&*self.name, u64::MAX))?;
        let parts: Result<_, redb::StorageError> = parts.map(|part| Ok(part?.1.value().to_vec())).collect();
        Ok(Some(Snapshot { revision, parts: parts? }))
    }

    fn try_store_snapshot(&self, snapshot: &Snapshot) -> Result<(), redb::Error> {
        let write = self.database.begin_write()?;
        {
            let mut heads = write.open_table(HEADS)?;
            let (last, _, before) = heads.get(&*self.name)?.map(|head| head.value()).unwrap_or_default();
            if before >= snapshot.revision {
                return Ok(());
            }
            heads.insert(&*self.name, (last, before, snapshot.revision))?;
            let (mut entries, mut parts) = (write.open_table(ENTRIES)?, write.open_table(PARTS)?);
            entries.retain_in((&*self.name, 0)..=(&*self.name, before), |_, _| false)?;
            parts.retain_in((&*self.name, 0)..=(&*self.name, u64::MAX), |_, _| false)?;
            for (part, number) in snapshot.parts.iter().zip(0..) {
                parts.insert((&*self.name, number), &**part)?;
            }
        }
        Ok(write.commit()?)
    }

    fn error(&self, error: &redb::Error) -> LogError {
        LogError::Unavailable { store: self.name(), cause: error.to_string() }
    }
}

impl Log for RedbLog {
    fn name(&self) -> String {
        format!("the log {}", self.name)
    }

    fn append<'a>(&'a self, after: u64, entry: &'a [u8]) -> BoxFuture<'a, Result<bool, LogError>> {
        let appended = match entry.len() {
            len if len > MAX_ENTRY => Err(LogError::TooLarge { what: "a record", len, limit: MAX_ENTRY }),
            _ => self.try_append(after, entry).map_err(|error| self.error(&error)),
        };
        Box::pin(ready(appended))
    }

    fn read(&self, after: u64) -> BoxFuture<'_, Result<Page, LogError>> {
        Box::pin(ready(self.try_read(after).map_err(|error| self.error(&error))))
    }

    fn snapshot(&self) -> BoxFuture<'_, Result<Option<Snapshot>, LogError>> {
        Box::pin(ready(self.try_snapshot().map_err(|error| self.error(&error))))
    }

    fn store_snapshot<'a>(&'a self, snapshot: &'a Snapshot) -> BoxFuture<'a, Result<(), LogError>> {
        Box::pin(ready(self.try_store_snapshot(snapshot).map_err(|error| self.error(&error))))
    }
}

/// Checks the logs in a new file.
pub(crate) async fn check(file: &Path) -> Result<(), Box<dyn Error>> {
    let database = Arc::new(Database::create(file)?);
    Ok(conformance::check(async |name: &str| RedbLog::open(&database, name)).await?)
}

#[allow(dead_code, reason = "the test of the example calls `check`")]
#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let file = env::args_os().nth(1).ok_or("which file? cargo run -p rustguard-store --example redb FILE")?;
    check(Path::new(&file)).await?;
    println!("the log in redb conforms");
    Ok(())
}
