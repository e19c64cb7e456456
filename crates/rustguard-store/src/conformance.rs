//! The tests that every log must pass, also one of your own.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() {
//! use rustguard_store::{LogError, conformance, memory::MemoryLog};
//! use std::{collections::HashMap, sync::Mutex};
//!
//! // Opens the log with this name in the store, which is empty when the tests begin.
//! let store: Mutex<HashMap<String, MemoryLog>> = Mutex::default();
//! let open = async |name: &str| -> Result<MemoryLog, LogError> {
//!     Ok(store.lock().unwrap().entry(name.to_owned()).or_default().clone())
//! };
//! conformance::check(open).await.unwrap();
//! # }
//! ```

use crate::{
    LogError,
    key::StoreKey,
    log::{Log, MAX_ENTRY, MAX_PART, PAGE, Page, Snapshot},
    network::{NetworkLog, Position, Read},
};
use futures_util::future::join_all;
use std::{collections::BTreeMap, fmt, sync::Arc, time::Duration};
use tokio::time::timeout;

/// The number of handles that append at the same time, and of entries that each appends.
const WRITERS: usize = 5;
const EACH: usize = 20;
/// A log that makes no progress within this time has failed.
const PATIENCE: Duration = Duration::from_secs(120);

/// A rule that a log does not keep.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation(String);

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Violation {}

impl From<LogError> for Violation {
    fn from(error: LogError) -> Self {
        Self(format!("unexpected error: {error}"))
    }
}

impl From<String> for Violation {
    fn from(error: String) -> Self {
        Self(error)
    }
}

macro_rules! ensure {
    ($condition:expr, $($text:tt)+) => {
        if !$condition {
            return Err(Violation(format!($($text)+)));
        }
    };
}

/// Checks a store. `open` opens the log with a name, and makes it if there is none. It is called several times with
/// each name, for handles that are independent of each other. The store has none of these logs before.
///
/// # Errors
/// The first [`Violation`] that was found.
pub async fn check<L: Log + 'static, E: ToString>(open: impl AsyncFn(&str) -> Result<L, E>) -> Result<(), Violation> {
    let open = async |name: &str| {
        let log = open(name).await.map_err(|error| Violation(format!("{name}: {}", error.to_string())))?;
        Ok::<Box<dyn Log>, Violation>(Box::new(log))
    };
    let tests = async {
        sequence(&*open("conformance").await?, &*open("conformance").await?).await?;
        neighbours(&*open("conformance").await?, &*open("conformance-2").await?).await?;
        pages(&*open("conformance-pages").await?).await?;
        limits(&*open("conformance-limits").await?).await?;
        let mut writers = Vec::new();
        for _ in 0..WRITERS {
            writers.push(open("conformance-race").await?);
        }
        race(&writers).await?;
        dropped(&*open("conformance-dropped").await?).await?;
        snapshots(&*open("conformance-snapshots").await?, &*open("conformance-snapshots").await?).await?;
        waiting(&*open("conformance-waiting").await?, &*open("conformance-waiting").await?).await?;
        sealed(open("conformance-sealed").await?, open("conformance-sealed").await?).await
    };
    timeout(PATIENCE, tests).await.map_err(|_| Violation("the log makes no progress".to_owned()))?
}

/// The entries after a revision, page by page.
async fn rest(log: &dyn Log, mut after: u64) -> Result<Vec<Vec<u8>>, Violation> {
    let mut all = Vec::new();
    loop {
        match log.read(after).await? {
            Page::Entries { entries, last } => {
                ensure!(
                    !entries.is_empty() || last <= after,
                    "entry {} is missing, and the last one is {last}",
                    after + 1
                );
                if entries.is_empty() {
                    return Ok(all);
                }
                after += entries.len() as u64;
                ensure!(after <= last, "{after} entries, and the last one is {last}");
                all.extend(entries);
            }
            Page::Removed => return Err(Violation(format!("entry {} was removed", after + 1))),
        }
    }
}

async fn sequence(log: &dyn Log, other: &dyn Log) -> Result<(), Violation> {
    let empty = Page::Entries { entries: Vec::new(), last: 0 };
    let found = log.read(0).await?;
    ensure!(found == empty, "a new log is not empty: {found:?}");
    ensure!(!log.append(1, b"too early").await?, "an entry was appended after one that does not exist");
    for (after, entry) in [(0, &b"first"[..]), (1, b""), (2, b"\0third\xff")] {
        ensure!(log.append(after, entry).await?, "entry {} was not appended", after + 1);
        for stale in 0..=after {
            ensure!(!other.append(stale, b"stale").await?, "appended after {stale}, and the last was {}", after + 1);
        }
        ensure!(!other.append(after + 2, b"too early").await?, "an entry was appended after one that does not exist");
        ensure!(!other.append(u64::MAX, b"too early").await?, "an entry was appended after revision 2^64 - 1");
    }
    let found = rest(other, 0).await?;
    ensure!(found == [&b"first"[..], b"", b"\0third\xff"], "other entries than those that were appended: {found:?}");
    for after in [3, 4, 1 << 40, u64::MAX] {
        let found = other.read(after).await?;
        let end = Page::Entries { entries: Vec::new(), last: 3 };
        ensure!(found == end, "something comes after revision {after}: {found:?}");
    }
    Ok(())
}

/// Two logs in one store, of which one has a name that begins with the name of the other one.
async fn neighbours(log: &dyn Log, other: &dyn Log) -> Result<(), Violation> {
    let found = rest(other, 0).await?;
    ensure!(found.is_empty(), "a log has the entries of another one: {found:?}");
    ensure!(other.append(0, b"another log").await?, "the first entry of a second log was not appended");
    ensure!(rest(log, 0).await?.len() == 3, "a log has the entries of another one");
    Ok(())
}

async fn pages(log: &dyn Log) -> Result<(), Violation> {
    let entry = |n: usize| vec![u8::try_from(n % 251).unwrap_or_default(); if n < 8 { MAX_ENTRY / 2 } else { n }];
    for n in 0..300_usize {
        ensure!(log.append(n as u64, &entry(n)).await?, "entry {} was not appended", n + 1);
    }
    let Page::Entries { entries, last } = log.read(0).await? else {
        return Err(Violation("the first entry was removed".to_owned()));
    };
    let len: usize = entries.iter().map(Vec::len).sum();
    ensure!(last == 300, "the last entry is {last}, not 300");
    ensure!(len <= PAGE.max(entries.first().map_or(0, Vec::len)), "a page has {len} bytes");
    let found = rest(log, 0).await?;
    ensure!(found.len() == 300, "{} of 300 entries", found.len());
    for (n, found) in found.iter().enumerate() {
        ensure!(*found == entry(n), "entry {} is another one", n + 1);
    }
    Ok(())
}

async fn limits(log: &dyn Log) -> Result<(), Violation> {
    ensure!(log.append(0, &vec![7; MAX_ENTRY]).await?, "an entry of {MAX_ENTRY} bytes was not appended");
    ensure!(
        matches!(log.append(1, &vec![7; MAX_ENTRY + 1]).await, Err(error) if !error.is_unknown()),
        "an entry of {} bytes was not refused",
        MAX_ENTRY + 1
    );
    let found = rest(log, 0).await?;
    ensure!(found.len() == 1 && found[0].len() == MAX_ENTRY, "the largest entry was not read");
    Ok(())
}

/// Several handles append at the same time. Each entry that was said to be appended is there, once, at its place.
async fn race(writers: &[Box<dyn Log>]) -> Result<(), Violation> {
    let append = async |number: usize, log: &dyn Log| -> Result<BTreeMap<u64, Vec<u8>>, Violation> {
        let (mut appended, mut last) = (BTreeMap::new(), 0);
        while appended.len() < EACH {
            let entry = format!("{number}: {}", appended.len()).into_bytes();
            match log.append(last, &entry).await {
                Ok(true) => {
                    last += 1;
                    appended.insert(last, entry);
                }
                Ok(false) => {
                    let Page::Entries { last: now, .. } = log.read(last).await? else {
                        return Err(Violation(format!("entry {} was removed", last + 1)));
                    };
                    ensure!(now > last, "the entry after {last} was not appended, although {now} is the last one");
                    last = now;
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(appended)
    };
    let all = join_all(writers.iter().enumerate().map(|(number, log)| append(number, &**log))).await;
    let mut expected = BTreeMap::new();
    for appended in all {
        for (revision, entry) in appended? {
            let other = expected.insert(revision, entry);
            ensure!(other.is_none(), "two handles appended entry {revision}");
        }
    }
    let found = rest(&*writers[0], 0).await?;
    ensure!(found.len() == expected.len(), "{} entries, and {} were appended", found.len(), expected.len());
    for (found, (revision, entry)) in found.iter().zip(&expected) {
        ensure!(found == entry, "entry {revision} is another one than the one that was appended");
    }
    Ok(())
}

/// A request whose future is dropped was carried out or not, and the log goes on.
async fn dropped(log: &dyn Log) -> Result<(), Violation> {
    let mut appended = 0;
    for n in 0..30_u32 {
        let entry = format!("dropped {n}").into_bytes();
        // From no time at all to some milliseconds.
        let _ = timeout(Duration::from_micros(u64::from(n) * 150), log.append(appended, &entry)).await;
        // A request that is still on its way may arrive after the next one: that one then is not appended.
        let marker = format!("marker {n}").into_bytes();
        loop {
            appended += rest(log, appended).await?.len() as u64;
            match log.append(appended, &marker).await {
                Ok(true) => break,
                Ok(false) => {}
                Err(error) if error.is_unknown() => {}
                Err(error) => return Err(error.into()),
            }
        }
        appended += 1;
    }
    let found = rest(log, 0).await?;
    for n in 0..30 {
        let count = |text: String| found.iter().filter(|entry| **entry == text.as_bytes()).count();
        ensure!(count(format!("dropped {n}")) <= 1, "an entry that was appended once is there twice");
        ensure!(count(format!("marker {n}")) == 1, "marker {n} is not there once");
    }
    Ok(())
}

async fn snapshots(log: &dyn Log, other: &dyn Log) -> Result<(), Violation> {
    let none = log.snapshot().await?;
    ensure!(none.is_none(), "a new log has a snapshot");
    for n in 0..10_u64 {
        ensure!(log.append(n, format!("entry {}", n + 1).as_bytes()).await?, "entry {} was not appended", n + 1);
    }
    let make = |revision: u64, parts: &[usize]| Snapshot {
        revision,
        parts: parts.iter().map(|&len| vec![u8::try_from(revision).unwrap_or_default(); len]).collect(),
    };
    let (first, second) = (make(4, &[MAX_PART, 10, MAX_PART, 1]), make(8, &[3]));
    log.store_snapshot(&first).await?;
    ensure!(other.snapshot().await?.as_ref() == Some(&first), "the snapshot is another one than the one stored");
    ensure!(rest(other, 0).await?.len() == 10, "the first snapshot removed entries");
    for old in [make(3, &[1]), make(4, &[2, 2])] {
        other.store_snapshot(&old).await?;
        ensure!(log.snapshot().await?.as_ref() == Some(&first), "an older snapshot took the place of a newer one");
    }
    other.store_snapshot(&second).await?;
    ensure!(log.snapshot().await?.as_ref() == Some(&second), "the second snapshot is not there");
    for after in 0..4 {
        let found = log.read(after).await?;
        ensure!(found == Page::Removed, "entry {} was not removed: {found:?}", after + 1);
    }
    let found = rest(log, 4).await?;
    ensure!(
        found.len() == 6 && found[0] == b"entry 5",
        "other entries are left than those that the older snapshot did not cover"
    );
    ensure!(other.append(10, b"entry 11").await?, "nothing can be appended after a snapshot");
    ensure!(rest(log, 10).await? == [b"entry 11"], "the entry after a snapshot is not there");
    // Of several servers that make one at the same time, one succeeds, whole.
    let all: Vec<_> = (0..4).map(|n| make(11, &[n + 1, n + 1])).collect();
    let (a, b) = (async { (log.store_snapshot(&all[0]).await, log.store_snapshot(&all[1]).await) }, async {
        (other.store_snapshot(&all[2]).await, other.store_snapshot(&all[3]).await)
    });
    let (a, b) = futures_util::future::join(a, b).await;
    for stored in [a.0, a.1, b.0, b.1] {
        stored?;
    }
    let found = log.snapshot().await?;
    ensure!(all.iter().any(|made| Some(made) == found.as_ref()), "a mixture of snapshots");
    Ok(())
}

/// A waiting handle learns of an entry by a notification, or by asking again.
async fn waiting(log: &dyn Log, other: &dyn Log) -> Result<(), Violation> {
    for n in 0..3 {
        let heard = async {
            loop {
                if let Page::Entries { last, .. } = log.read(n).await?
                    && last > n
                {
                    return Ok::<_, Violation>(());
                }
                log.wait().await;
            }
        };
        let append = async { Ok::<_, Violation>(other.append(n, b"heard").await?) };
        let (heard, appended) = futures_util::future::join(heard, append).await;
        heard?;
        ensure!(appended?, "entry {} was not appended", n + 1);
    }
    Ok(())
}

/// The log with sealed records, on two handles.
async fn sealed(log: Box<dyn Log>, other: Box<dyn Log>) -> Result<(), Violation> {
    let key = StoreKey::from_bytes(&[9; 32]);
    let mut a = NetworkLog::new(Arc::from(log), key.clone(), Position::START);
    let mut b = NetworkLog::new(Arc::from(other), key.clone(), Position::START);
    ensure!(a.append(b"by a").await?, "the first record was not appended");
    ensure!(!b.append(b"by b").await?, "a record was appended by somebody who has not read the last one");
    let Read::Records(records) = b.read().await? else { return Err(Violation("a snapshot".to_owned())) };
    ensure!(records.len() == 1 && *records[0].text == b"by a" && !records[0].is_own, "{records:?}");
    ensure!(b.append(b"by b").await?, "a record was not appended");
    let Read::Records(records) = a.read().await? else { return Err(Violation("a snapshot".to_owned())) };
    ensure!(records.len() == 1 && *records[0].text == b"by b", "{records:?}");
    a.store_snapshot(b"a and b").await?;
    ensure!(a.append(b"third").await?, "a record was not appended");
    a.store_snapshot(b"three").await?;
    let mut new = NetworkLog::new(Arc::clone(a.log()), key, Position::START);
    let Read::Snapshot { revision, text, .. } = new.read().await? else {
        return Err(Violation("a new server reads no snapshot".to_owned()));
    };
    ensure!(revision == 3 && *text == b"three", "snapshot {revision} of {} bytes", text.len());
    ensure!(new.read().await? == Read::Records(Vec::new()), "something follows the snapshot");
    b.check().await?;
    Ok(())
}
