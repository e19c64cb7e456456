//! A ledger that is one of several on the log of a network ([`rustguard_store`]).
//!
//! Each server has a replica. [`Replica::decide`] makes a decision from what all servers have decided before, and
//! returns when the log has it. [`Replica::follow`] reads the decisions of the others. `rustguard serve` does not use
//! replicas yet.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use rustguard_core::time::Now;
//! use rustguard_crypto::{random, x25519::PublicKey};
//! use rustguard_enroll::{lease::{PresharedKey, Terms}, ledger::{Grant, Ledger, Policy, Request}, pool::Pools};
//! use rustguard_enroll::store::MemoryStore;
//! use rustguard_serve::replica::Replica;
//! use rustguard_store::{NetworkLog, key::StoreKey, memory::MemoryLog, network::Position};
//! use std::sync::Arc;
//!
//! # let now = || Now { instant: rustguard_core::time::Instant::from_nanos(0), unix: std::time::Duration::from_secs(1_800_000_000) };
//! let (store, key) = (MemoryLog::default(), StoreKey::generate()?);
//! let mut servers = Vec::new();
//! for name in ["a", "b"] {
//!     let pools = Pools::new(&["10.0.0.0/24".parse()?])?;
//!     let ledger = Ledger::open(MemoryStore::default(), pools, Policy::default(), now())?;
//!     let log = NetworkLog::new(Arc::new(store.clone()), key.clone(), Position::START);
//!     servers.push(Replica::open(ledger, log, name, now).await?);
//! }
//! let request = |peer: u8| Request::new(PublicKey([peer; 32]), PresharedKey::from_bytes(&[peer; 32]), Grant::Admin(Terms::default()));
//! let first = servers[0].decide(now, |ledger, now| ledger.admit(request(1), now)).await??;
//! // The other server has not read that yet, loses the race, and decides again.
//! let second = servers[1].decide(now, |ledger, now| ledger.admit(request(2), now)).await??;
//! assert_ne!(first.lease.v4, second.lease.v4);
//! # Ok(()) }
//! ```
use crate::store::{self, format};
use rustguard_core::time::Now;
use rustguard_crypto::{random, x25519::PublicKey};
use rustguard_enroll::{
    ledger::Ledger,
    store::{Change, LeaseStore, StoreError},
};
use rustguard_store::{
    LogError, NetworkLog,
    network::{Position, Read},
};
use std::{
    collections::BTreeSet,
    fmt,
    time::{Duration, Instant},
};
use zeroize::Zeroizing;

/// How long a decision is made again and again because other servers were faster.
const PATIENCE: Duration = Duration::from_secs(10);
/// A record that comes so soon after the one before it was read was decided just now.
const LIVE: Duration = Duration::from_secs(60);
/// Others are known to decide for so long after their last record.
const OTHERS: Duration = Duration::from_secs(3600);
/// How often a record is sent again at once when the answer was lost.
const SENT_AGAIN: u32 = 2;
/// A snapshot takes the place of older records after so many.
const SNAPSHOT: u64 = 1_000;
/// The longest name of a server, in bytes.
pub const MAX_SERVER: usize = 63;
/// Version, time, length of the name.
const HEADER: usize = 4 + 8 + 1;

/// Why a replica could not follow or decide.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReplicaError {
    /// The log could not be read or written.
    #[error(transparent)]
    Log(#[from] LogError),
    /// A newer version of the program made a record.
    #[error(
        "record {revision} in {log} has version {found}, and this program knows version {known}; use a newer program"
    )]
    Version {
        /// The store and the log in it.
        log: String,
        /// The revision of the record.
        revision: u64,
        /// Its version.
        found: u32,
        /// The newest version that this program knows.
        known: u32,
    },
    /// A record was sealed with the key, and says nothing that this program understands.
    #[error("record {revision} in {log} cannot be read, although a server of this network made it")]
    Record {
        /// The store and the log in it.
        log: String,
        /// The revision of the record.
        revision: u64,
    },
    /// Others were faster each time.
    #[error("other servers were faster for {} seconds; try again", PATIENCE.as_secs())]
    Overtaken,
}

/// A ledger that is one of several on a log.
pub struct Replica<S> {
    ledger: Ledger<S>,
    log: NetworkLog,
    server: String,
    /// The position up to which the ledger's own store has all records.
    kept: Position,
    /// The first error of that store.
    copy_error: Option<StoreError>,
    /// A record that this replica could not apply. It must not decide without it.
    unreadable: Option<(u64, Option<u32>)>,
    /// When the log had no more records.
    read_at: Option<Instant>,
    /// When a record of another server was read last.
    others: Option<Instant>,
    /// When this server appended last, and how long that took.
    own: Option<(Instant, Duration)>,
}

/// The result of [`Replica::follow`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Followed {
    /// The peers whose leases other servers have made, changed or ended.
    pub peers: BTreeSet<PublicKey>,
    /// Whether the decision of this replica that was in doubt is in the log after all.
    pub own: bool,
    /// Whether a snapshot came in place of the records that would say what became of the decision in doubt.
    pub has_lost_sight: bool,
}

impl<S: LeaseStore> Replica<S> {
    /// Makes a replica of a ledger, whose store has what the log says up to the log's position, or more. Reads the rest
    /// of the log. `server` is the name of this server in its records, of up to [`MAX_SERVER`] bytes.
    ///
    /// # Errors
    /// See [`ReplicaError`]. [`LogError::RolledBack`] and [`LogError::Forked`] say that the store is an older one.
    pub async fn open(
        mut ledger: Ledger<S>,
        log: NetworkLog,
        server: &str,
        now: impl Fn() -> Now,
    ) -> Result<Self, ReplicaError> {
        log.check().await?;
        ledger.share(now());
        let end = server.floor_char_boundary(MAX_SERVER);
        let kept = log.position();
        let mut replica = Self {
            ledger,
            log,
            server: server[..end].to_owned(),
            kept,
            copy_error: None,
            unreadable: None,
            read_at: None,
            others: None,
            own: None,
        };
        replica.follow(now).await?;
        Ok(replica)
    }

    /// The ledger. Decisions that are in doubt are in it.
    pub fn ledger(&self) -> &Ledger<S> {
        &self.ledger
    }

    /// The ledger, for calls that decide nothing: the note of a handshake of an active lease, the opening and closing
    /// of a window. A decision that is made in this way is taken back by the next call of [`decide`](Self::decide),
    /// and refused while another one is in doubt.
    pub fn ledger_mut(&mut self) -> &mut Ledger<S> {
        &mut self.ledger
    }

    /// Ends the replica, and gives its ledger back.
    pub fn into_ledger(self) -> Ledger<S> {
        self.ledger
    }

    /// The position up to which the ledger's own store has all records. Keep it outside the store of the log, and give
    /// it to the next [`NetworkLog::new`].
    pub fn position(&self) -> Position {
        self.kept
    }

    /// The error with which the ledger's own store began to lack records. The decisions count all the same. The next
    /// start reads them again.
    pub fn copy_error(&self) -> Option<&StoreError> {
        self.copy_error.as_ref()
    }

    /// Waits until there may be something to follow, at most a second or two.
    pub async fn wait(&self) {
        self.log.log().wait().await;
    }

    /// Reads what others have decided. The future may be dropped.
    ///
    /// # Errors
    /// See [`ReplicaError`]. After [`Version`](ReplicaError::Version) and [`Record`](ReplicaError::Record), the replica
    /// lacks a decision, and returns the same error to all calls.
    pub async fn follow(&mut self, now: impl Fn() -> Now) -> Result<Followed, ReplicaError> {
        let mut followed = Followed::default();
        loop {
            if let Some(unreadable) = self.unreadable {
                return Err(self.error(unreadable));
            }
            match self.log.read().await? {
                Read::Records(records) if records.is_empty() => {
                    self.read_at = Some(Instant::now());
                    return Ok(followed);
                }
                Read::Records(records) => {
                    for record in records {
                        if record.is_own && !self.ledger.staged().is_empty() {
                            followed.own = true;
                            let kept = self.ledger.accept();
                            self.copied(kept);
                            continue;
                        }
                        self.ledger.revert(now());
                        let read = match read_record(&record.text) {
                            Ok(read) => read,
                            Err(version) => {
                                self.unreadable = Some((record.revision, version));
                                break;
                            }
                        };
                        if read.server != self.server.as_bytes() {
                            self.others = Some(Instant::now());
                        }
                        let is_live = self.read_at.is_some_and(|at| at.elapsed() < LIVE);
                        self.apply(read.changes, is_live.then_some(read.decided), now(), &mut followed);
                    }
                }
                Read::Snapshot { revision, text, has_lost_sight } => {
                    self.ledger.revert(now());
                    followed.has_lost_sight |= has_lost_sight;
                    match store::from_snapshot(&text) {
                        Some(state) => {
                            let changes = self.ledger.state().changes_to(&state);
                            self.apply(changes, None, now(), &mut followed);
                        }
                        None => self.unreadable = Some((revision, None)),
                    }
                }
            }
            if self.unreadable.is_some() {
                continue;
            }
            if self.copy_error.is_none() {
                self.kept = self.log.position();
            }
        }
    }

    /// Makes a decision, and returns its result when the log has it. `decision` decides from the ledger, with the
    /// methods of [`Ledger`]. It is called again if another server was faster. An error of `decision` decides
    /// nothing.
    ///
    /// The future may be dropped. The decision then is in doubt, and the next call finds out. After each thousandth
    /// record, the call that appended it also stores a snapshot.
    ///
    /// # Errors
    /// See [`ReplicaError`]. With an [unknown](LogError::is_unknown) outcome the decision is in doubt: it is in the
    /// log, or will be, or was not made. With other errors it was not made.
    pub async fn decide<T, E>(
        &mut self,
        now: impl Fn() -> Now,
        mut decision: impl FnMut(&mut Ledger<S>, Now) -> Result<T, E>,
    ) -> Result<Result<T, E>, ReplicaError> {
        self.settle(&now).await?;
        self.let_others_pass(&now).await?;
        let began = Instant::now();
        while began.elapsed() < PATIENCE {
            let decided = decision(&mut self.ledger, now());
            if decided.is_err() {
                self.ledger.revert(now());
                return Ok(decided);
            }
            if self.ledger.staged().is_empty() {
                return Ok(decided);
            }
            let text = self.record(now());
            self.ledger.hold();
            let sent = Instant::now();
            let mut appended = self.log.append(&text).await;
            for _ in 0..SENT_AGAIN {
                if matches!(&appended, Err(error) if error.is_unknown()) {
                    appended = self.log.append_again().await;
                }
            }
            match appended {
                Ok(true) => {
                    self.own = Some((Instant::now(), sent.elapsed()));
                    self.appended().await;
                    return Ok(decided);
                }
                // Another record is there, or this one, by an attempt whose answer was lost.
                Ok(false) => {
                    let followed = self.follow(&now).await?;
                    if followed.own {
                        return Ok(decided);
                    }
                    self.ledger.revert(now());
                    if followed.has_lost_sight {
                        return Err(self.in_doubt("a snapshot has taken the place of the record").into());
                    }
                }
                // A later attempt may be refused although an earlier one has arrived.
                Err(error) if self.log.is_in_doubt() && !error.is_unknown() => return Err(self.in_doubt(error).into()),
                Err(error) => {
                    if !self.log.is_in_doubt() {
                        self.ledger.revert(now());
                    }
                    return Err(error.into());
                }
            }
        }
        Err(ReplicaError::Overtaken)
    }

    /// Waits a little if this server decides one thing after the other. A server that was overtaken has to read before
    /// it can append again, so without a gap it would be overtaken each time.
    async fn let_others_pass(&mut self, now: impl Fn() -> Now) -> Result<(), ReplicaError> {
        let has_others = self.others.is_some_and(|at| at.elapsed() < OTHERS);
        let Some((_, took)) = self.own.filter(|(at, took)| has_others && at.elapsed() < *took) else { return Ok(()) };
        // Without random bytes, all wait for the same time, which is better than not at all.
        let random = random::bytes::<2>().map_or(u16::MAX, |bytes| u16::from_le_bytes(*bytes));
        tokio::time::sleep(took * 2 * u32::from(random) / u32::from(u16::MAX)).await;
        self.follow(now).await.map(drop)
    }

    /// Finds out what became of a decision that is in doubt.
    async fn settle(&mut self, now: impl Fn() -> Now) -> Result<(), ReplicaError> {
        // First by reading, which a full store permits as well.
        if self.log.is_in_doubt() {
            self.follow(&now).await?;
        }
        if self.log.is_in_doubt() {
            if self.log.append_again().await? {
                self.appended().await;
            } else {
                self.follow(&now).await?;
            }
        }
        self.ledger.revert(now());
        Ok(())
    }

    /// The log has what is staged.
    async fn appended(&mut self) {
        let kept = self.ledger.accept();
        self.copied(kept);
        if self.copy_error.is_none() {
            self.kept = self.log.position();
        }
        if self.log.position().revision.is_multiple_of(SNAPSHOT) {
            let stored = match store::to_snapshot(self.ledger.state()) {
                Ok(text) => self.log.store_snapshot(&text).await,
                Err(len) => Err(LogError::TooLarge { what: "a snapshot", len, limit: usize::MAX }),
            };
            if let Err(error) = stored {
                tracing::warn!("no snapshot is stored, so the log gets longer: {error}");
            }
        }
    }

    fn apply(&mut self, changes: Vec<Change>, decided: Option<u64>, now: Now, followed: &mut Followed) {
        let (peers, kept) = self.ledger.apply(changes, decided, now);
        followed.peers.extend(peers);
        self.copied(kept);
    }

    fn copied(&mut self, kept: Result<(), StoreError>) {
        // Told once: with a full disk, each decision fails here.
        if let (Err(error), None) = (kept, &self.copy_error) {
            tracing::error!("the copy of the leases on this machine lacks the newest: {error}");
            self.copy_error = Some(error);
        }
    }

    /// The staged changes as a record: the version of the changes (4 bytes, little-endian), the time (8), the length of
    /// the server's name and the name, the changes.
    fn record(&self, now: Now) -> Zeroizing<Vec<u8>> {
        let name = self.server.as_bytes();
        let mut text = format::encode(HEADER + name.len(), self.ledger.staged());
        text[..4].copy_from_slice(&format::VERSION.to_le_bytes());
        text[4..12].copy_from_slice(&now.unix.as_secs().to_le_bytes());
        text[12] = u8::try_from(name.len()).unwrap_or(u8::MAX);
        text[HEADER..HEADER + name.len()].copy_from_slice(name);
        text
    }

    /// The error about a record that could not be applied, with its version if that is a newer one.
    fn error(&self, (revision, version): (u64, Option<u32>)) -> ReplicaError {
        let log = self.log.log().name();
        match version {
            Some(found) => ReplicaError::Version { log, revision, found, known: format::VERSION },
            None => ReplicaError::Record { log, revision },
        }
    }

    /// The error of a decision that was sent and of which nothing is known.
    fn in_doubt(&self, cause: impl ToString) -> LogError {
        LogError::Unavailable { store: self.log.log().name(), cause: cause.to_string() }
    }
}

/// A record of the log.
struct Record<'a> {
    /// When it was decided, by the clock of its server.
    decided: u64,
    server: &'a [u8],
    changes: Vec<Change>,
}

/// Reads a record. The error is its version, if that is a newer one.
fn read_record(text: &[u8]) -> Result<Record<'_>, Option<u32>> {
    let (version, rest) = text.split_first_chunk().ok_or(None)?;
    let version = u32::from_le_bytes(*version);
    if !(1..=format::VERSION).contains(&version) {
        return Err((version > 0).then_some(version));
    }
    let (decided, rest) = rest.split_first_chunk().ok_or(None)?;
    let (len, rest) = rest.split_first().ok_or(None)?;
    let (server, changes) = rest.split_at_checked(usize::from(*len)).ok_or(None)?;
    let changes = format::decode(version, changes).ok_or(None)?;
    Ok(Record { decided: u64::from_le_bytes(*decided), server, changes })
}

impl<S> fmt::Debug for Replica<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Replica").field("server", &self.server).field("log", &self.log).finish_non_exhaustive()
    }
}
