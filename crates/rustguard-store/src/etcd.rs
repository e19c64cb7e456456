//! The log in etcd (3.4 or newer).
//!
//! | Key, after the prefix | Value |
//! |---|---|
//! | `format` | the number of this format, 1 |
//! | `last` | the revision of the last entry |
//! | `log/REVISION` | an entry; the revision has 20 digits, so that the order of the keys is that of the entries |
//! | `snapshot` | `REVISION ID PARTS` of the newest snapshot |
//! | `parts/REVISION-ID/PART` | a part of a snapshot; the ID is random, so that two servers do not mix their parts |
//!
//! An append is a transaction: if `last` is as expected, then put `last` and the entry. Reads are linearizable, which
//! is etcd's default.

mod api;

use crate::{
    LogError,
    address::StoreAddress,
    error::{PATIENCE, with_causes},
    log::{Log, MAX_PART, MAX_PARTS, Page, Snapshot, check_entry, check_snapshot, page},
    tls,
};
use api::{Access, Client, Compare, Op, Range, Txn};
use futures_util::future::BoxFuture;
use rustguard_crypto::random;
use std::{
    error::Error as _,
    fmt,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};
use tokio::{sync::Notify, task::JoinHandle, time::timeout};
use tonic::{Code, Status};

const FORMAT: u32 = 1;
/// The pause after a failure of the watch.
const RETRY: Duration = Duration::from_millis(500);
/// [`Log::wait`] returns after this time.
const POLL: Duration = Duration::from_secs(2);
/// The entries, and the parts of a snapshot, that are asked for at a time.
const ENTRIES: i64 = 128;
const PARTS: i64 = 16;
/// How often a snapshot is read again because a newer one took its place meanwhile.
const ATTEMPTS: usize = 5;

/// The log of one network in etcd.
pub struct EtcdLog {
    shared: Arc<Shared>,
    watch: JoinHandle<()>,
}

struct Shared {
    address: StoreAddress,
    access: Access,
    /// The host that is asked, by its number.
    host: AtomicUsize,
    client: Mutex<Option<Client>>,
    grown: Notify,
}

type Result<T> = std::result::Result<T, LogError>;

impl EtcdLog {
    /// Opens the log at an address, and makes it if there is nothing. Call it on a tokio runtime.
    ///
    /// # Errors
    /// See [`LogError`].
    pub async fn open(address: &StoreAddress) -> Result<Self> {
        let tls = match address.tls {
            true => {
                let identity = tls::identity(address)?;
                let identity = identity.as_ref().map(|(certificate, key)| (&**certificate, &***key));
                Some(Access::tls(tls::authorities(address)?.as_deref(), identity))
            }
            false => None,
        };
        let user = match &address.user {
            Some(user) => {
                let Some(password) = tls::password(address)? else {
                    let remedy = format!("write ?password-file=FILE, or set {}", crate::address::PASSWORD_VARIABLE);
                    let cause = format!("no password for the user {user}");
                    return Err(LogError::refused(&address.to_string(), cause, remedy));
                };
                Some((user.clone(), password))
            }
            None => None,
        };
        let shared = Arc::new(Shared {
            address: address.clone(),
            access: Access { tls, user },
            host: AtomicUsize::new(0),
            client: Mutex::new(None),
            grown: Notify::new(),
        });
        shared.open().await?;
        let watch = tokio::spawn(Arc::clone(&shared).watch());
        Ok(Self { shared, watch })
    }
}

impl Drop for EtcdLog {
    fn drop(&mut self) {
        self.watch.abort();
    }
}

impl fmt::Debug for EtcdLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("EtcdLog").field(&self.shared.name()).finish()
    }
}

impl Log for EtcdLog {
    fn name(&self) -> String {
        self.shared.name()
    }

    fn append<'a>(&'a self, after: u64, entry: &'a [u8]) -> BoxFuture<'a, Result<bool>> {
        Box::pin(self.shared.append(after, entry))
    }

    fn read(&self, after: u64) -> BoxFuture<'_, Result<Page>> {
        Box::pin(self.shared.read(after))
    }

    fn snapshot(&self) -> BoxFuture<'_, Result<Option<Snapshot>>> {
        Box::pin(self.shared.snapshot())
    }

    fn store_snapshot<'a>(&'a self, snapshot: &'a Snapshot) -> BoxFuture<'a, Result<()>> {
        Box::pin(self.shared.store_snapshot(snapshot))
    }

    fn wait(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {
            // A notification that comes before this call is kept for it.
            let _ = timeout(POLL, self.shared.grown.notified()).await;
        })
    }
}

impl Shared {
    fn name(&self) -> String {
        self.address.to_string()
    }

    fn key(&self, name: &str) -> Vec<u8> {
        format!("{}/{name}", self.address.place).into_bytes()
    }

    /// The first key after all that begin with a name, which does not end with a byte 255.
    fn key_after(&self, name: &str) -> Vec<u8> {
        let mut key = self.key(name);
        if let Some(last) = key.last_mut() {
            *last += 1;
        }
        key
    }

    fn entry(&self, revision: u64) -> Vec<u8> {
        self.key(&format!("log/{revision:020}"))
    }

    /// The beginning of the keys of the parts of a snapshot.
    fn parts(&self, revision: u64, id: &str) -> String {
        format!("parts/{revision:020}-{id}")
    }

    /// Carries out a request. After a failure, the next request goes to another host: this one may be down, or cut off
    /// from the others.
    async fn request<T, F>(&self, run: impl FnOnce(Client) -> F) -> Result<T>
    where
        F: Future<Output = std::result::Result<T, Status>>,
    {
        let error = match timeout(PATIENCE, async { run(self.client().await?).await }).await {
            Ok(Ok(value)) => return Ok(value),
            Ok(Err(status)) => {
                // A token ends after some minutes. The next client logs in again.
                if status.message().contains("invalid auth token") {
                    self.forget_client();
                    LogError::unavailable(&self.name(), status.message())
                } else {
                    self.error(&status)
                }
            }
            Err(_) => LogError::late(&self.name(), PATIENCE),
        };
        if error.is_unknown() {
            self.forget_client();
            self.host.fetch_add(1, Ordering::Relaxed);
        }
        Err(error)
    }

    fn forget_client(&self) {
        *self.client.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Carries out a request that changes nothing: each host is asked before it fails, and a single one twice.
    async fn ask<T, F>(&self, run: impl Fn(Client) -> F) -> Result<T>
    where
        F: Future<Output = std::result::Result<T, Status>>,
    {
        let mut result = self.request(&run).await;
        for _ in 1..self.address.hosts.len().max(2) {
            match &result {
                Err(error) if error.is_unknown() => result = self.request(&run).await,
                _ => break,
            }
        }
        result
    }

    /// The client of the host whose turn it is. A connection is made when it is needed.
    async fn client(&self) -> std::result::Result<Client, Status> {
        if let Some(client) = &*self.client.lock().unwrap_or_else(PoisonError::into_inner) {
            return Ok(client.clone());
        }
        let hosts = &self.address.hosts;
        let (host, port) = &hosts[self.host.load(Ordering::Relaxed) % hosts.len()];
        let host = if host.contains(':') { format!("[{host}]") } else { host.clone() };
        let scheme = if self.address.tls { "https" } else { "http" };
        let client = Client::connect(format!("{scheme}://{host}:{port}"), &self.access).await?;
        *self.client.lock().unwrap_or_else(PoisonError::into_inner) = Some(client.clone());
        Ok(client)
    }

    fn error(&self, status: &Status) -> LogError {
        let store = &self.name();
        let cause = status.message();
        match status.code() {
            Code::ResourceExhausted if cause.contains("space exceeded") => LogError::Full {
                store: store.clone(),
                cause: cause.to_owned(),
                remedy: "compact and defragment etcd or raise its quota, then `etcdctl alarm disarm`".to_owned(),
            },
            Code::PermissionDenied => {
                let place = &self.address.place;
                let remedy = format!(
                    "give the user the right: `etcdctl role grant-permission ROLE readwrite --prefix=true {place}/`"
                );
                LogError::refused(store, cause, remedy)
            }
            Code::InvalidArgument if cause.contains("user name is empty") => {
                let remedy = "write the user into the address, etcd://USER@HOST, and the password into a file";
                LogError::refused(store, cause, remedy)
            }
            Code::InvalidArgument if cause.contains("authentication failed") => {
                LogError::refused(store, cause, "check the user and the password")
            }
            Code::ResourceExhausted
            | Code::InvalidArgument
            | Code::Unauthenticated
            | Code::FailedPrecondition
            | Code::OutOfRange
            | Code::Unimplemented => LogError::refused(store, cause, ""),
            _ => LogError::unavailable(store, cause_of(status)),
        }
    }

    /// Whether the place has a log of this format. If it is empty, a log is made.
    async fn open(&self) -> Result<()> {
        let format = self.key("format");
        let any = Range { key: self.key(""), end: self.key_after(""), limit: 1, keys_only: true };
        let find = Txn { when: Vec::new(), then: vec![Op::get(one(format.clone())), Op::get(any)] };
        let mut found = self.ask(|client| client.txn(find.clone())).await?.found();
        let mut first = || found.next()?.into_iter().next().map(|kv| (text(&kv.key), text(&kv.value)));
        let (known, any) = (first(), first());
        match (known, any) {
            (Some((_, found)), _) if found == FORMAT.to_string() => Ok(()),
            (Some((_, found)), _) => Err(LogError::Version { store: self.name(), found, known: FORMAT }),
            (None, Some((key, _))) => Err(LogError::Foreign { store: self.name(), example: format!("the key {key}") }),
            (None, None) => {
                // Another server may make it at the same time, which is the same.
                let make = Txn {
                    when: vec![Compare::changed_by(format.clone(), 0)],
                    then: vec![Op::put(format, FORMAT.to_string()), Op::put(self.key("last"), "0")],
                };
                self.request(|client| client.txn(make)).await.map(drop)
            }
        }
    }

    async fn append(&self, after: u64, entry: &[u8]) -> Result<bool> {
        check_entry(entry)?;
        let Some(revision) = after.checked_add(1) else { return Ok(false) };
        let last = self.key("last");
        let append = Txn {
            when: vec![Compare::value(last.clone(), after.to_string())],
            then: vec![Op::put(last, revision.to_string()), Op::put(self.entry(revision), entry)],
        };
        Ok(self.request(|client| client.txn(append)).await?.succeeded)
    }

    async fn read(&self, after: u64) -> Result<Page> {
        let from = after.saturating_add(1);
        let entries = Range { key: self.entry(from), end: self.key("log/:"), limit: ENTRIES, keys_only: false };
        let read = Txn { when: Vec::new(), then: vec![Op::get(one(self.key("last"))), Op::get(entries)] };
        let mut answers = self.ask(|client| client.txn(read.clone())).await?.found();
        let (Some(last), Some(found)) = (answers.next(), answers.next()) else {
            return Err(self.damaged("an answer without what was asked for"));
        };
        let last = last.first().and_then(|kv| text(&kv.value).parse().ok());
        let last: u64 = last.ok_or_else(|| self.damaged("the key `last` is missing, or has no number"))?;
        if last <= after {
            return Ok(Page::Entries { entries: Vec::new(), last });
        }
        if found.first().is_none_or(|first| first.key != self.entry(from)) {
            return Ok(Page::Removed);
        }
        for (kv, revision) in found.iter().zip(from..) {
            if kv.key != self.entry(revision) {
                return Err(self.damaged(&format!("entry {revision} is missing")));
            }
        }
        Ok(Page::Entries { entries: page(found.into_iter().map(|kv| kv.value)), last })
    }

    /// The revision, ID and number of parts of the newest snapshot, and what a transaction compares with.
    async fn newest(&self) -> Result<(Option<(u64, String, usize)>, i64)> {
        let key = self.key("snapshot");
        let found = self.ask(|client| client.range(one(key.clone()))).await?;
        let Some(kv) = found.first() else { return Ok((None, 0)) };
        let value = text(&kv.value);
        let mut words = value.split(' ');
        let newest = (|| {
            let revision = words.next()?.parse().ok()?;
            let (id, parts) = (words.next()?.to_owned(), words.next()?.parse().ok()?);
            (parts <= MAX_PARTS).then_some((revision, id, parts))
        })();
        match newest {
            Some(newest) => Ok((Some(newest), kv.mod_revision)),
            None => Err(self.damaged("the key `snapshot` names no snapshot")),
        }
    }

    async fn snapshot(&self) -> Result<Option<Snapshot>> {
        for _ in 0..ATTEMPTS {
            let (Some((revision, id, count)), _) = self.newest().await? else { return Ok(None) };
            let prefix = self.parts(revision, &id);
            let end = self.key(&format!("{prefix}/:"));
            let mut parts = Vec::new();
            while parts.len() < count {
                let key = self.key(&format!("{prefix}/{:04}", parts.len()));
                let range = Range { key, end: end.clone(), limit: PARTS, keys_only: false };
                let found = self.ask(|client| client.range(range.clone())).await?;
                if found.is_empty() {
                    break;
                }
                if found.iter().any(|kv| kv.value.len() > MAX_PART) {
                    return Err(self.damaged("a part of the snapshot is too large"));
                }
                parts.extend(found.into_iter().map(|kv| kv.value));
            }
            if parts.len() == count {
                return Ok(Some(Snapshot { revision, parts }));
            }
            // A newer snapshot took its place meanwhile.
        }
        Err(self.damaged("parts of the snapshot are missing"))
    }

    async fn store_snapshot(&self, snapshot: &Snapshot) -> Result<()> {
        check_snapshot(snapshot)?;
        let Snapshot { revision, parts } = snapshot;
        let id = random::bytes::<8>().map_err(|error| LogError::refused(&self.name(), error, ""))?;
        let id = format!("{:016x}", u64::from_be_bytes(*id));
        let (newest, _) = self.newest().await?;
        if newest.is_some_and(|(newest, ..)| newest >= *revision) {
            return Ok(());
        }
        let prefix = self.parts(*revision, &id);
        for (number, part) in parts.iter().enumerate() {
            let (key, part) = (self.key(&format!("{prefix}/{number:04}")), part.clone());
            self.request(|client| client.put(key, part)).await?;
        }
        for _ in 0..ATTEMPTS {
            let (before, version) = self.newest().await?;
            if before.as_ref().is_some_and(|(before, ..)| before >= revision) {
                // Another server was faster. Its transaction, or the next one, removes our parts.
                return Ok(());
            }
            let covered = before.map_or(0, |(before, ..)| before);
            let (start, end) = (self.key("parts/"), self.key(&format!("parts/{:020}", revision + 1)));
            // `0` is the character after `/`.
            let (own, after_own) = (self.key(&format!("{prefix}/")), self.key(&format!("{prefix}0")));
            let replace = Txn {
                when: vec![Compare::changed_by(self.key("snapshot"), version)],
                then: vec![
                    Op::put(self.key("snapshot"), format!("{revision} {id} {}", parts.len())),
                    Op::delete(self.entry(0), self.entry(covered + 1)),
                    // The parts of older snapshots, also of those that nobody finished.
                    Op::delete(start, own),
                    Op::delete(after_own, end),
                ],
            };
            let done = self.request(|client| client.txn(replace)).await?;
            if done.succeeded {
                return Ok(());
            }
        }
        Err(LogError::unavailable(&self.name(), "other servers store snapshots all the time"))
    }

    fn damaged(&self, cause: &str) -> LogError {
        LogError::Damaged { store: self.name(), cause: cause.to_owned() }
    }

    /// Waits for changes of the key `last`, for as long as the handle lives.
    async fn watch(self: Arc<Self>) {
        loop {
            if let Err(error) = self.follow().await {
                tracing::debug!("{}: the watch ended: {}", self.name(), cause_of(&error));
            }
            // Something may have come in between.
            self.grown.notify_one();
            tokio::time::sleep(RETRY).await;
        }
    }

    async fn follow(&self) -> std::result::Result<(), Status> {
        let mut stream = self.client().await?.watch(self.key("last")).await?;
        while let Some(message) = stream.message().await? {
            self.grown.notify_one();
            if message.canceled {
                break;
            }
        }
        Ok(())
    }
}

/// The message of a status with its causes. Without them, the status of a failed connection only says that it failed.
fn cause_of(status: &Status) -> String {
    let causes = status.source().map(with_causes).filter(|causes| *causes != status.message());
    [Some(status.message().to_owned()), causes].into_iter().flatten().collect::<Vec<_>>().join(": ")
}

/// One key.
fn one(key: Vec<u8>) -> Range {
    Range { key, ..Range::default() }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
