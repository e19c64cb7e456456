//! A ledger that is one of several on the log of a network ([`rustguard_store`]).
//!
//! Each server has a replica. [`Replica::decide`] makes a decision from what all servers have decided before, and
//! returns when the log has it. [`Replica::follow`] reads the decisions of the others.
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
pub(crate) mod decides;
pub(crate) mod link;
mod record;

use link::{Link, Reached};
pub use record::Documents;
pub(crate) use record::{documents_from_bytes, documents_to_bytes};
use rustguard_core::time::Now;
use rustguard_crypto::x25519::PublicKey;
use rustguard_enroll::{
    audit::AuditRecord,
    ledger::Ledger,
    store::{LeaseStore, StoreError},
};
use rustguard_store::{LogError, NetworkLog, network::Position};
use std::{
    collections::BTreeSet,
    fmt,
    time::{Duration, Instant},
};

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
    link: Link,
}

/// The result of [`Replica::follow`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Followed {
    /// The peers whose leases other servers have made, changed or ended.
    pub peers: BTreeSet<PublicKey>,
    /// What other servers have decided, for the audit log of a server.
    pub(crate) audit: Vec<AuditRecord>,
    /// The documents that were changed.
    pub documents: BTreeSet<String>,
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
        let link = Link::new(log, server[..end].to_owned(), Documents::new());
        let mut replica = Self { ledger, link };
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
        self.link.position()
    }

    /// The error with which the ledger's own store began to lack records. The decisions count all the same. The next
    /// start reads them again.
    pub fn copy_error(&self) -> Option<&StoreError> {
        self.link.copy_error()
    }

    /// Waits until there may be something to follow, at most a second or two.
    pub async fn wait(&self) {
        self.link.log().wait().await;
    }

    /// Reads what others have decided. The future may be dropped.
    ///
    /// # Errors
    /// See [`ReplicaError`]. After [`Version`](ReplicaError::Version) and [`Record`](ReplicaError::Record), the replica
    /// lacks a decision, and returns the same error to all calls.
    pub async fn follow(&mut self, now: impl Fn() -> Now) -> Result<Followed, ReplicaError> {
        self.finish(&now).await;
        self.link.follow();
        self.reach(now).await?;
        Ok(self.link.take_followed())
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
        self.finish(&now).await;
        self.link.check()?;
        if self.link.is_in_doubt() {
            self.link.settle();
            self.reach(&now).await?;
        }
        self.ledger.revert(now());
        if let Some(gap) = self.link.gap() {
            tokio::time::sleep(gap).await;
            self.link.follow();
            self.reach(&now).await?;
        }
        let began = Instant::now();
        while began.elapsed() < PATIENCE {
            let decided = decision(&mut self.ledger, now());
            if decided.is_err() {
                self.ledger.revert(now());
                return Ok(decided);
            }
            if !self.link.has_staged(&self.ledger) {
                return Ok(decided);
            }
            self.link.decide(&mut self.ledger, now());
            if self.reach(&now).await? == Reached::Accepted {
                if self.link.snapshot(self.ledger.state()) {
                    self.reach(&now).await?;
                }
                return Ok(decided);
            }
        }
        Err(ReplicaError::Overtaken)
    }

    /// Ends a request of a call whose future was dropped. Its result is known to the link.
    async fn finish(&mut self, now: impl Fn() -> Now) {
        if !self.link.is_free() {
            let _ = self.reach(now).await;
        }
    }

    async fn reach(&mut self, now: impl Fn() -> Now) -> Result<Reached, ReplicaError> {
        loop {
            let done = self.link.io().await;
            if let Some(reached) = self.link.advance(done, &mut self.ledger, now()) {
                return reached;
            }
        }
    }
}

impl<S> fmt::Debug for Replica<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Replica").field("log", self.link.log()).finish_non_exhaustive()
    }
}
