//! The log of a network: records that are sealed, chained and counted.
//!
//! # Format
//! A record is sealed with XChaCha20-Poly1305: one byte 1, 24 random bytes of nonce, the text, 16 bytes of tag. The
//! associated data are the byte, the revision (8 bytes, big-endian) and the chain before the record (32 bytes). The
//! chain begins as 32 bytes of zero. After each record it is the BLAKE2s of the chain before it and of the BLAKE2s of
//! the entry. So a record opens at its place only, and after the records only that its server had read.
//!
//! A snapshot is sealed part by part with another key. The associated data of a part are one byte 2, the revision, the
//! number of the part and the number of parts (4 bytes each), and 16 random bytes of the snapshot, with which each part
//! begins. The text begins with the position: the chain, and the hash of the last entry.
//!
//! # Trust
//! A writer of the store can withhold and destroy records. It cannot make, change or reorder them, because it lacks the
//! key.
//! A server keeps its [`Position`], and so it notices a store that ends before it or that goes on differently. A server
//! that is new to the network has no position, and believes the store.

use crate::{
    LogError,
    key::StoreKey,
    log::{Log, MAX_PART, Page, Snapshot},
};
use core::fmt;
use rustguard_crypto::{
    aead::{TAG_LEN, XNONCE_LEN, xopen, xseal},
    hash,
    random::{self, Unavailable},
};
use std::sync::Arc;
use zeroize::Zeroizing;

/// The first byte of a record, and of a part of a snapshot.
const RECORD: u8 = 1;
const PART: u8 = 2;
/// The random bytes of a snapshot.
const ID_LEN: usize = 16;
/// The bytes of a record besides its text.
const OVERHEAD: usize = 1 + XNONCE_LEN + TAG_LEN;
/// The bytes of a part of a snapshot besides its text.
const PART_OVERHEAD: usize = 1 + ID_LEN + XNONCE_LEN + TAG_LEN;
/// The largest text of a record, in bytes.
pub const MAX_RECORD: usize = crate::log::MAX_ENTRY - OVERHEAD;

/// How far a server has read a log, and what it has read. It is no secret.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Position {
    /// The revision of the last record that was read, 0 if there is none.
    pub revision: u64,
    /// The chain after that record.
    chain: [u8; hash::HASH_LEN],
    /// The hash of the last entry.
    entry: [u8; hash::HASH_LEN],
}

/// The bytes of a position.
const POSITION_LEN: usize = 8 + 2 * hash::HASH_LEN;

impl Position {
    /// Before the first record.
    pub const START: Self = Self { revision: 0, chain: [0; hash::HASH_LEN], entry: [0; hash::HASH_LEN] };

    fn after(&self, entry: &[u8]) -> Self {
        let entry = hash::hash(&[entry]);
        Self { revision: self.revision + 1, chain: hash::hash(&[&self.chain, &entry]), entry }
    }

    /// The position in 72 bytes, to be kept where the store cannot reach it.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; POSITION_LEN] {
        let mut bytes = [0; POSITION_LEN];
        bytes[..8].copy_from_slice(&self.revision.to_be_bytes());
        bytes[8..40].copy_from_slice(&self.chain);
        bytes[40..].copy_from_slice(&self.entry);
        bytes
    }

    /// Reads what [`to_bytes`](Self::to_bytes) made.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (revision, rest) = bytes.split_first_chunk()?;
        let (chain, rest) = rest.split_first_chunk()?;
        let entry = rest.try_into().ok()?;
        Some(Self { revision: u64::from_be_bytes(*revision), chain: *chain, entry })
    }
}

impl fmt::Debug for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Position({})", self.revision)
    }
}

/// A record that was read.
#[derive(Clone, PartialEq, Eq)]
pub struct Record {
    /// Its revision.
    pub revision: u64,
    /// Its text.
    pub text: Zeroizing<Vec<u8>>,
    /// Whether this handle has appended it, or tried to.
    pub is_own: bool,
}

impl fmt::Debug for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { revision, text, is_own } = self;
        write!(f, "Record({revision}, {} bytes, own: {is_own})", text.len())
    }
}

/// The result of [`NetworkLog::read`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Read {
    /// The next records. None: the log has no more.
    Records(Vec<Record>),
    /// The log was cut: this snapshot is the state now, in place of everything that was read before.
    Snapshot {
        /// The revision of the last record that the snapshot covers.
        revision: u64,
        /// Its contents.
        text: Zeroizing<Vec<u8>>,
        /// A record was in doubt: the snapshot covers it, or it was never appended. The log does not tell any more.
        has_lost_sight: bool,
    },
}

/// The log of a network in a store.
///
/// [`read`](Self::read) is called until it returns no more records. [`append`](Self::append) then adds one, if no other
/// server was faster.
pub struct NetworkLog {
    log: Arc<dyn Log>,
    key: StoreKey,
    position: Position,
    /// The entry that was sent last and may be in the log, or may yet come into it.
    in_doubt: Option<Vec<u8>>,
}

impl NetworkLog {
    /// The log, read up to `position`, which this server has kept from before, or [`Position::START`].
    pub fn new(log: Arc<dyn Log>, key: StoreKey, position: Position) -> Self {
        Self { log, key, position, in_doubt: None }
    }

    /// How far the log was read.
    #[must_use]
    pub fn position(&self) -> Position {
        self.position
    }

    /// The store.
    #[must_use]
    pub fn log(&self) -> &Arc<dyn Log> {
        &self.log
    }

    /// Whether the fate of the record that was appended last is unknown. Reading or
    /// [`append_again`](Self::append_again) finds out.
    #[must_use]
    pub fn is_in_doubt(&self) -> bool {
        self.in_doubt.is_some()
    }

    /// Whether the store is still the one that this server knows: its log has the record at the position. Call it once,
    /// before anything else.
    ///
    /// # Errors
    /// [`LogError::RolledBack`], [`LogError::Forked`], and those of the store.
    pub async fn check(&self) -> Result<(), LogError> {
        let Position { revision, entry, .. } = self.position;
        let Some(before) = revision.checked_sub(1) else { return Ok(()) };
        match self.log.read(before).await? {
            // A snapshot covers it, and that one was made with the key.
            Page::Removed => Ok(()),
            Page::Entries { last, .. } if last < revision => {
                Err(LogError::RolledBack { store: self.log.name(), seen: revision, last })
            }
            Page::Entries { entries, .. } => match entries.first() {
                Some(found) if hash::hash(&[found]) == entry => Ok(()),
                _ => Err(LogError::Forked { store: self.log.name(), revision }),
            },
        }
    }

    /// Reads what follows. It may be called at any time, and its future dropped.
    ///
    /// # Errors
    /// [`LogError::RolledBack`], [`LogError::Forged`], and those of the store. The position then is as before.
    pub async fn read(&mut self) -> Result<Read, LogError> {
        let (entries, last) = match self.log.read(self.position.revision).await? {
            Page::Removed => return self.read_snapshot().await,
            Page::Entries { entries, last } => (entries, last),
        };
        let seen = self.position.revision;
        if last < seen {
            return Err(LogError::RolledBack { store: self.log.name(), seen, last });
        }
        let mut position = self.position;
        let mut records = Vec::with_capacity(entries.len());
        let mut is_decided = false;
        for entry in entries {
            let revision = position.revision + 1;
            let text = self
                .open(&entry, &position)
                .ok_or_else(|| LogError::Forged { store: self.log.name(), what: format!("record {revision}") })?;
            let is_own = self.in_doubt.as_ref() == Some(&entry);
            records.push(Record { revision, text, is_own });
            position = position.after(&entry);
            // The doubt concerns the revision after the position: this entry, or another one in its place.
            is_decided = true;
        }
        if is_decided {
            self.in_doubt = None;
        }
        self.position = position;
        Ok(Read::Records(records))
    }

    async fn read_snapshot(&mut self) -> Result<Read, LogError> {
        let store = || self.log.name();
        let missing = || {
            let cause = format!("record {} is missing, and no snapshot covers it", self.position.revision + 1);
            LogError::Damaged { store: store(), cause }
        };
        let snapshot = self.log.snapshot().await?.ok_or_else(missing)?;
        let revision = snapshot.revision;
        if revision <= self.position.revision {
            return Err(missing());
        }
        let text = open_snapshot(&self.key, &snapshot).and_then(|text| {
            let position = Position::from_bytes(text.get(..POSITION_LEN)?)?;
            (position.revision == revision).then(|| (position, Zeroizing::new(text[POSITION_LEN..].to_vec())))
        });
        let (position, text) =
            text.ok_or_else(|| LogError::Forged { store: store(), what: format!("snapshot {revision}") })?;
        self.position = position;
        let has_lost_sight = self.in_doubt.take().is_some();
        Ok(Read::Snapshot { revision, text, has_lost_sight })
    }

    /// Appends a record if no other one follows the position. Returns whether it was appended. If not, other records
    /// follow: read them, decide again, and append again.
    ///
    /// # Errors
    /// With an [unknown](LogError::is_unknown) outcome, the record [is in doubt](Self::is_in_doubt). With all others it
    /// was not appended. They are those of the store, and [`LogError::TooLarge`] for more than [`MAX_RECORD`]
    /// bytes.
    ///
    /// # Panics
    /// Panics if the record before this one is still in doubt, or the operating system has no random bytes.
    pub async fn append(&mut self, text: &[u8]) -> Result<bool, LogError> {
        assert!(self.in_doubt.is_none(), "the record before this one is in doubt");
        if text.len() > MAX_RECORD {
            return Err(LogError::TooLarge { what: "a record", len: text.len(), limit: MAX_RECORD });
        }
        self.in_doubt =
            Some(seal(self.key.records(), &record_header(&self.position), RECORD, &[], text).expect(RANDOM));
        let appended = self.append_again().await;
        if matches!(&appended, Err(error) if !error.is_unknown()) {
            self.in_doubt = None;
        }
        appended
    }

    /// Appends the record in doubt again, which does no harm. Returns whether it is in the log. It is false as well
    /// where no record is in doubt.
    ///
    /// # Errors
    /// Those of the store. The record stays in doubt, whatever the error: an earlier attempt may have succeeded.
    pub async fn append_again(&mut self) -> Result<bool, LogError> {
        // The field keeps the entry until the answer is here: the future may be dropped meanwhile.
        let Some(entry) = self.in_doubt.clone() else { return Ok(false) };
        match self.log.append(self.position.revision, &entry).await {
            Ok(true) => {
                self.in_doubt = None;
                self.position = self.position.after(&entry);
                Ok(true)
            }
            // Another record is there, or this one: the first attempt succeeded, and its answer was lost.
            other => other,
        }
    }

    /// Stores a snapshot of the state at the position.
    ///
    /// # Errors
    /// Those of the store, and [`LogError::TooLarge`].
    ///
    /// # Panics
    /// Panics at the start of a log, or if the operating system has no random bytes.
    pub async fn store_snapshot(&self, text: &[u8]) -> Result<(), LogError> {
        assert!(self.position.revision > 0, "there is nothing to take a snapshot of");
        let parts = seal_snapshot(&self.key, &self.position, text).expect(RANDOM);
        self.log.store_snapshot(&Snapshot { revision: self.position.revision, parts }).await
    }

    fn open(&self, entry: &[u8], before: &Position) -> Option<Zeroizing<Vec<u8>>> {
        open(self.key.records(), &record_header(before), RECORD, 0, entry)
    }
}

impl fmt::Debug for NetworkLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NetworkLog").field("log", &self.log.name()).field("position", &self.position).finish()
    }
}

const RANDOM: &str = "the operating system has random bytes";

/// The associated data of a record: its revision, and the chain before it.
fn record_header(before: &Position) -> Vec<u8> {
    [&[RECORD][..], &(before.revision + 1).to_be_bytes(), &before.chain].concat()
}

/// The associated data of a part of a snapshot.
fn part_header(revision: u64, part: usize, parts: usize, id: &[u8]) -> Vec<u8> {
    let number = |n: usize| u32::try_from(n).unwrap_or(u32::MAX).to_be_bytes();
    [&[PART][..], &revision.to_be_bytes(), &number(part), &number(parts), id].concat()
}

/// Seals a text: the kind, `clear`, the nonce, the sealed text, the tag.
fn seal(key: &[u8; 32], header: &[u8], kind: u8, clear: &[u8], text: &[u8]) -> Result<Vec<u8>, Unavailable> {
    let nonce = random::bytes::<XNONCE_LEN>()?;
    let mut sealed = Vec::with_capacity(PART_OVERHEAD + text.len());
    sealed.push(kind);
    sealed.extend_from_slice(clear);
    sealed.extend_from_slice(&*nonce);
    let start = sealed.len();
    sealed.extend_from_slice(text);
    let tag = xseal(key, &nonce, header, &mut sealed[start..]);
    sealed.extend_from_slice(&tag);
    Ok(sealed)
}

/// Opens what [`seal`] made, with `clear` bytes before the nonce.
fn open(key: &[u8; 32], header: &[u8], kind: u8, clear: usize, sealed: &[u8]) -> Option<Zeroizing<Vec<u8>>> {
    let rest = sealed.strip_prefix(&[kind])?.get(clear..)?;
    let (nonce, rest) = rest.split_first_chunk::<XNONCE_LEN>()?;
    let (text, tag) = rest.split_last_chunk::<TAG_LEN>()?;
    let mut text = Zeroizing::new(text.to_vec());
    xopen(key, nonce, header, &mut text, tag).ok()?;
    Some(text)
}

fn seal_snapshot(key: &StoreKey, position: &Position, text: &[u8]) -> Result<Vec<Vec<u8>>, Unavailable> {
    let id = random::bytes::<ID_LEN>()?;
    let whole = Zeroizing::new([&position.to_bytes()[..], text].concat());
    let chunks: Vec<_> = whole.chunks(MAX_PART - PART_OVERHEAD).collect();
    let parts = chunks.iter().enumerate().map(|(part, chunk)| {
        let header = part_header(position.revision, part, chunks.len(), &*id);
        seal(key.snapshots(), &header, PART, &*id, chunk)
    });
    parts.collect()
}

/// The position and the contents.
fn open_snapshot(key: &StoreKey, snapshot: &Snapshot) -> Option<Zeroizing<Vec<u8>>> {
    let id = snapshot.parts.first()?.get(1..=ID_LEN)?;
    // The capacity is enough, because a vector that grows leaves copies of secrets behind.
    let mut whole = Zeroizing::new(Vec::with_capacity(snapshot.parts.iter().map(Vec::len).sum()));
    for (part, sealed) in snapshot.parts.iter().enumerate() {
        let header = part_header(snapshot.revision, part, snapshot.parts.len(), id);
        whole.extend_from_slice(&open(key.snapshots(), &header, PART, ID_LEN, sealed)?);
    }
    Some(whole)
}
