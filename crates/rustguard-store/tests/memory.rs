//! The log in memory, the checker of logs with logs that break the rules, and what a network's log notices.

use futures_util::future::{BoxFuture, ready};
use rustguard_store::{
    Log, LogError, NetworkLog, conformance,
    key::StoreKey,
    log::{Page, Snapshot},
    memory::MemoryLog,
    network::{Position, Read},
};
use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
};

/// The fault of a broken store.
#[derive(Clone, Copy, Debug)]
enum Fault {
    /// It appends without comparing.
    NoCompare,
    /// It says that it has appended, and has not.
    LostAppend,
    /// It appends twice.
    DoubleAppend,
    /// It does not see the last entry.
    StaleRead,
    /// All logs are one.
    OneLog,
}

#[derive(Debug)]
struct Broken {
    log: MemoryLog,
    fault: Option<Fault>,
    /// Faults come in one of three calls, as they do where they are hard to find.
    calls: AtomicU64,
}

impl Broken {
    fn strikes(&self) -> bool {
        self.calls.fetch_add(1, Ordering::Relaxed) % 3 == 2
    }

    async fn last(&self) -> u64 {
        let mut after = 0;
        loop {
            match self.log.read(after).await {
                Ok(Page::Entries { last, .. }) => return last,
                _ => after += 1,
            }
        }
    }
}

impl Log for Broken {
    fn name(&self) -> String {
        "a broken log".to_owned()
    }

    fn append<'a>(&'a self, after: u64, entry: &'a [u8]) -> BoxFuture<'a, Result<bool, LogError>> {
        Box::pin(async move {
            // Another handle may come in between.
            tokio::task::yield_now().await;
            match self.fault {
                Some(Fault::NoCompare) if self.strikes() => self.log.append(self.last().await, entry).await,
                Some(Fault::LostAppend) if self.last().await == after && self.strikes() => Ok(true),
                Some(Fault::DoubleAppend) if self.strikes() => {
                    let appended = self.log.append(after, entry).await?;
                    if appended {
                        self.log.append(after + 1, entry).await?;
                    }
                    Ok(appended)
                }
                _ => self.log.append(after, entry).await,
            }
        })
    }

    fn read(&self, after: u64) -> BoxFuture<'_, Result<Page, LogError>> {
        Box::pin(async move {
            let mut page = self.log.read(after).await?;
            if let (Some(Fault::StaleRead), Page::Entries { entries, last }) = (self.fault, &mut page)
                && *last > after
                && self.strikes()
            {
                entries.pop();
                *last -= 1;
            }
            Ok(page)
        })
    }

    fn snapshot(&self) -> BoxFuture<'_, Result<Option<Snapshot>, LogError>> {
        self.log.snapshot()
    }

    fn store_snapshot<'a>(&'a self, snapshot: &'a Snapshot) -> BoxFuture<'a, Result<(), LogError>> {
        self.log.store_snapshot(snapshot)
    }

    fn wait(&self) -> BoxFuture<'_, ()> {
        self.log.wait()
    }
}

async fn check(fault: Option<Fault>) -> Result<(), conformance::Violation> {
    let logs: Mutex<HashMap<String, MemoryLog>> = Mutex::default();
    conformance::check(async |name: &str| -> Result<Broken, String> {
        let name = if matches!(fault, Some(Fault::OneLog)) { "one" } else { name };
        let log = logs.lock().unwrap().entry(name.to_owned()).or_default().clone();
        Ok(Broken { log, fault, calls: AtomicU64::new(0) })
    })
    .await
}

#[tokio::test]
async fn the_log_in_memory_conforms() {
    check(None).await.unwrap();
}

#[tokio::test]
async fn a_store_that_breaks_a_rule_is_found() {
    for fault in [Fault::NoCompare, Fault::LostAppend, Fault::DoubleAppend, Fault::StaleRead, Fault::OneLog] {
        let violation = check(Some(fault)).await.expect_err(&format!("{fault:?} was not found"));
        println!("{fault:?}: {violation}");
    }
}

/// The fate of an append and its answer.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Answer {
    /// The request is carried out, and the answer arrives.
    Arrives,
    /// The request is carried out, and the answer is lost.
    IsLost,
    /// The request is lost.
    NoRequest,
    /// The store refuses it.
    Refusal,
}

/// A store behind a bad connection.
#[derive(Debug)]
struct Unreliable(MemoryLog, Mutex<Answer>);

impl Unreliable {
    fn new(log: &MemoryLog) -> Arc<Self> {
        Arc::new(Self(log.clone(), Mutex::new(Answer::Arrives)))
    }

    fn answers(&self, answer: Answer) {
        *self.1.lock().unwrap() = answer;
    }
}

impl Log for Unreliable {
    fn name(&self) -> String {
        "a log far away".to_owned()
    }

    fn append<'a>(&'a self, after: u64, entry: &'a [u8]) -> BoxFuture<'a, Result<bool, LogError>> {
        Box::pin(async move {
            let unavailable = LogError::Unavailable { store: self.name(), cause: "the cable is cut".to_owned() };
            let answer = *self.1.lock().unwrap();
            match answer {
                Answer::Arrives => self.0.append(after, entry).await,
                Answer::IsLost => {
                    self.0.append(after, entry).await?;
                    Err(unavailable)
                }
                Answer::NoRequest => Err(unavailable),
                Answer::Refusal => Err(LogError::Refused {
                    store: self.name(),
                    cause: "database space exceeded".to_owned(),
                    remedy: "make room".to_owned(),
                }),
            }
        })
    }

    fn read(&self, after: u64) -> BoxFuture<'_, Result<Page, LogError>> {
        self.0.read(after)
    }

    fn snapshot(&self) -> BoxFuture<'_, Result<Option<Snapshot>, LogError>> {
        self.0.snapshot()
    }

    fn store_snapshot<'a>(&'a self, snapshot: &'a Snapshot) -> BoxFuture<'a, Result<(), LogError>> {
        self.0.store_snapshot(snapshot)
    }

    fn wait(&self) -> BoxFuture<'_, ()> {
        Box::pin(ready(()))
    }
}

fn key() -> StoreKey {
    StoreKey::from_bytes(&[3; 32])
}

fn opened(log: &MemoryLog, position: Position) -> NetworkLog {
    NetworkLog::new(Arc::new(log.clone()), key(), position)
}

/// The texts of the records that follow, and which of them are the handle's own.
async fn texts(log: &mut NetworkLog) -> Result<Vec<(String, bool)>, LogError> {
    match log.read().await? {
        Read::Records(records) => Ok(records
            .into_iter()
            .map(|record| (String::from_utf8(record.text.to_vec()).unwrap(), record.is_own))
            .collect()),
        Read::Snapshot { .. } => panic!("a snapshot"),
    }
}

#[tokio::test]
async fn an_append_whose_answer_is_lost_happened_once_or_not_at_all() {
    for (answer, competes, is_there) in
        [(Answer::IsLost, false, true), (Answer::NoRequest, false, true), (Answer::NoRequest, true, false)]
    {
        let memory = MemoryLog::default();
        let far = Unreliable::new(&memory);
        let mut log = NetworkLog::new(Arc::clone(&far) as _, key(), Position::START);
        far.answers(answer);
        let error = log.append(b"mine").await.unwrap_err();
        assert!(error.is_unknown() && log.is_in_doubt(), "{error}");
        assert!(error.to_string().contains("the cable is cut"));
        let mut other = opened(&memory, Position::START);
        if competes {
            assert!(other.append(b"theirs").await.unwrap());
        }
        far.answers(Answer::Arrives);
        let is_appended = log.append_again().await.unwrap();
        let read = texts(&mut log).await.unwrap();
        let own = (String::from("mine"), true);
        match (answer, competes) {
            // The first attempt had succeeded: the store refuses the second one, and reading tells whose record it is.
            (Answer::IsLost, _) => assert_eq!((is_appended, read), (false, vec![own])),
            (_, false) => assert_eq!((is_appended, read), (true, vec![])),
            (_, true) => assert_eq!((is_appended, read), (false, vec![("theirs".to_owned(), false)])),
        }
        assert!(!log.is_in_doubt());
        let mut reader = opened(&memory, Position::START);
        let all = texts(&mut reader).await.unwrap();
        assert_eq!(all.iter().filter(|(text, _)| text == "mine").count(), usize::from(is_there), "{all:?}");
        assert_eq!(log.position(), reader.position());
        assert!(log.append(b"next").await.unwrap());
    }
}

#[tokio::test]
async fn a_record_that_is_refused_is_not_in_doubt() {
    let memory = MemoryLog::default();
    let far = Unreliable::new(&memory);
    let mut log = NetworkLog::new(Arc::clone(&far) as _, key(), Position::START);
    far.answers(Answer::Refusal);
    let error = log.append(b"mine").await.unwrap_err();
    assert_eq!(error.to_string(), "a log far away refuses the request: database space exceeded; make room");
    assert!(!log.is_in_doubt());
    let too_large = log.append(&vec![0; rustguard_store::network::MAX_RECORD + 1]).await.unwrap_err();
    assert!(matches!(too_large, LogError::TooLarge { .. }) && !log.is_in_doubt());
    far.answers(Answer::Arrives);
    assert!(log.append(&vec![0; rustguard_store::network::MAX_RECORD]).await.unwrap());
}

#[tokio::test]
async fn whoever_writes_the_store_makes_no_records() {
    let memory = MemoryLog::default();
    let mut log = opened(&memory, Position::START);
    for n in 0..4_u8 {
        assert!(log.append(&[n; 40]).await.unwrap());
    }
    let Page::Entries { entries, .. } = memory.read(0).await.unwrap() else { panic!() };
    let plain = entries.iter().any(|entry| entry.windows(8).any(|window| window == [2; 8]));
    assert!(!plain, "the store does not see what records say");
    // The entries as a store without the key could arrange them.
    let arranged = async |order: &[Vec<u8>], key: StoreKey| {
        let store = MemoryLog::default();
        for (after, entry) in order.iter().enumerate() {
            assert!(store.append(after as u64, entry).await.unwrap());
        }
        let mut log = NetworkLog::new(Arc::new(store), key, Position::START);
        let read = log.read().await;
        assert!(read.is_ok() || log.position() == Position::START, "nothing of it is believed");
        read
    };
    let [first, second, third, fourth] = entries.try_into().unwrap();
    let whole = [first.clone(), second.clone(), third.clone(), fourth.clone()];
    assert!(arranged(&whole, key()).await.is_ok());
    for wrong in [
        vec![second.clone()],
        vec![first.clone(), third.clone()],
        vec![first.clone(), first.clone()],
        vec![first.clone(), second.clone(), fourth],
        vec![first.clone(), b"made up".to_vec()],
        vec![Vec::new()],
    ] {
        let error = arranged(&wrong, key()).await.unwrap_err();
        assert!(matches!(error, LogError::Forged { .. }), "{error}");
    }
    for at in 0..second.len() {
        let mut changed = second.clone();
        changed[at] ^= 1;
        assert!(arranged(&[first.clone(), changed], key()).await.is_err(), "byte {at}");
    }
    let error = arranged(&whole, StoreKey::from_bytes(&[4; 32])).await.unwrap_err();
    assert!(error.to_string().contains("record 1 in the log in memory was not made with this store key"), "{error}");
}

#[tokio::test]
async fn a_store_that_was_set_back_is_noticed() {
    let memory = MemoryLog::default();
    let mut log = opened(&memory, Position::START);
    assert!(log.append(b"one").await.unwrap());
    let old = memory.backup();
    assert!(log.append(b"two").await.unwrap());
    let kept = Position::from_bytes(&log.position().to_bytes()).unwrap();
    assert_eq!(kept, log.position());
    assert_eq!(Position::from_bytes(&kept.to_bytes()[1..]), None);
    opened(&memory, kept).check().await.unwrap();
    opened(&memory, Position::START).check().await.unwrap();

    // From the start of a server on, and while it runs.
    let error = opened(&old, kept).check().await.unwrap_err();
    assert_eq!(error, LogError::RolledBack { store: old.name(), seen: 2, last: 1 });
    assert!(error.to_string().contains("ends at record 1, and this server has seen record 2"), "{error}");
    assert_eq!(opened(&old, kept).read().await.unwrap_err(), error);
    // Another server, without a position, has gone on with it.
    let mut new = opened(&old, Position::START);
    texts(&mut new).await.unwrap();
    assert!(new.append(b"another two").await.unwrap());
    let error = opened(&old, kept).check().await.unwrap_err();
    assert_eq!(error, LogError::Forked { store: old.name(), revision: 2 });
    assert!(new.append(b"three").await.unwrap());
    let error = opened(&old, kept).read().await.unwrap_err();
    assert!(
        matches!(error, LogError::Forged { .. }),
        "the next record is bound to other records than this server has read: {error}"
    );
}

#[tokio::test]
async fn a_server_that_was_off_for_long_reads_the_snapshot() {
    let memory = MemoryLog::default();
    let mut log = opened(&memory, Position::START);
    let mut late = opened(&memory, Position::START);
    for n in 0..10_u8 {
        assert!(log.append(&[n]).await.unwrap());
        if n % 3 == 2 {
            log.store_snapshot(&vec![n; usize::from(n) * 100_000]).await.unwrap();
        }
    }
    let Read::Snapshot { revision, text, has_lost_sight } = late.read().await.unwrap() else { panic!("records") };
    assert_eq!((revision, text.len(), text[0], has_lost_sight), (9, 800_000, 8, false));
    assert_eq!(texts(&mut late).await.unwrap(), [("\u{9}".to_owned(), false)]);
    assert_eq!(late.position(), log.position());
    late.check().await.unwrap();
    // Its position is covered by a snapshot: nothing can be said against the store.
    let early = Position::from_bytes(&{
        let mut bytes = log.position().to_bytes();
        bytes[..8].copy_from_slice(&2_u64.to_be_bytes());
        bytes
    });
    opened(&memory, early.unwrap()).check().await.unwrap();

    // A snapshot whose parts a store has changed, mixed or cut.
    let made = memory.snapshot().await.unwrap().unwrap();
    let mut swapped = made.parts.clone();
    swapped.swap(1, 2);
    let mut flipped = made.parts.clone();
    flipped[2][1000] ^= 1;
    let cut = made.parts[..made.parts.len() - 1].to_vec();
    for parts in [swapped, flipped, cut, vec![], vec![vec![]]] {
        let store = memory.backup();
        assert!(store.append(10, b"x").await.unwrap());
        store.store_snapshot(&Snapshot { revision: 11, parts }).await.unwrap();
        let mut new = opened(&store, Position::START);
        let error = new.read().await.unwrap_err();
        assert_eq!(error, LogError::Forged { store: store.name(), what: "snapshot 11".to_owned() });
    }
    // Of the right key, and under another revision than its own.
    let store = memory.backup();
    assert!(store.append(10, b"x").await.unwrap());
    store.store_snapshot(&Snapshot { revision: 11, ..made }).await.unwrap();
    assert!(matches!(opened(&store, Position::START).read().await, Err(LogError::Forged { .. })));
}

/// A log whose next entry somebody has removed.
#[derive(Debug)]
struct Gap(MemoryLog);

impl Log for Gap {
    fn name(&self) -> String {
        "a log with a gap".to_owned()
    }

    fn append<'a>(&'a self, after: u64, entry: &'a [u8]) -> BoxFuture<'a, Result<bool, LogError>> {
        self.0.append(after, entry)
    }

    fn read(&self, _: u64) -> BoxFuture<'_, Result<Page, LogError>> {
        Box::pin(ready(Ok(Page::Removed)))
    }

    fn snapshot(&self) -> BoxFuture<'_, Result<Option<Snapshot>, LogError>> {
        self.0.snapshot()
    }

    fn store_snapshot<'a>(&'a self, snapshot: &'a Snapshot) -> BoxFuture<'a, Result<(), LogError>> {
        self.0.store_snapshot(snapshot)
    }
}

#[tokio::test]
async fn a_gap_behind_the_snapshot_is_damage_and_no_endless_loop() {
    let memory = MemoryLog::default();
    let mut log = opened(&memory, Position::START);
    for n in 0..3_u8 {
        assert!(log.append(&[n]).await.unwrap());
    }
    let missing = |revision| LogError::Damaged {
        store: "a log with a gap".to_owned(),
        cause: format!("record {revision} is missing, and no snapshot covers it"),
    };
    let mut reader = NetworkLog::new(Arc::new(Gap(memory.clone())), key(), Position::START);
    assert_eq!(reader.read().await.unwrap_err(), missing(1));
    log.store_snapshot(b"three").await.unwrap();
    assert!(matches!(reader.read().await.unwrap(), Read::Snapshot { revision: 3, .. }));
    assert_eq!(reader.read().await.unwrap_err(), missing(4));
}

#[tokio::test]
async fn a_refusal_says_nothing_of_an_earlier_attempt() {
    let memory = MemoryLog::default();
    let far = Unreliable::new(&memory);
    let mut log = NetworkLog::new(Arc::clone(&far) as _, key(), Position::START);
    far.answers(Answer::IsLost);
    assert!(log.append(b"mine").await.unwrap_err().is_unknown());
    far.answers(Answer::Refusal);
    assert!(!log.append_again().await.unwrap_err().is_unknown());
    assert!(log.is_in_doubt());
    assert_eq!(texts(&mut log).await.unwrap(), [("mine".to_owned(), true)]);
    assert!(!log.is_in_doubt());
}

#[tokio::test]
async fn a_doubt_that_a_snapshot_covers_is_told() {
    let memory = MemoryLog::default();
    let far = Unreliable::new(&memory);
    let mut log = NetworkLog::new(Arc::clone(&far) as _, key(), Position::START);
    far.answers(Answer::IsLost);
    assert!(log.append(b"mine").await.unwrap_err().is_unknown());
    let mut other = opened(&memory, Position::START);
    texts(&mut other).await.unwrap();
    other.store_snapshot(b"one").await.unwrap();
    assert!(other.append(b"two").await.unwrap());
    other.store_snapshot(b"two").await.unwrap();
    let Read::Snapshot { revision, has_lost_sight, .. } = log.read().await.unwrap() else { panic!("records") };
    assert_eq!((revision, has_lost_sight, log.is_in_doubt()), (2, true, false));
}
