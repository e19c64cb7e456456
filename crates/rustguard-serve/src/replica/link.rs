//! The connection of a server to the log, without the ledger: it does one request at a time, and its caller applies
//! what came of it.
//!
//! A request runs while [`Link::io`] is polled, which borrows nothing but the link. So a server goes on with its other
//! work while the store takes its time. [`Link::advance`] then applies the answer, and begins the next request if one
//! is needed to reach the goal.

use super::{
    Followed, LIVE, OTHERS, ReplicaError, SENT_AGAIN, SNAPSHOT,
    decides::Decides,
    record::{self, DocumentChanges, Documents},
};
use crate::store::format;
use futures_util::future::BoxFuture;
use rustguard_core::time::Now;
use rustguard_crypto::random;
use rustguard_enroll::store::{Change, State, StoreError};
use rustguard_store::{
    Log, LogError, NetworkLog,
    network::{Position, Read},
};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};
use zeroize::Zeroizing;

/// How often a record in doubt is sent again before the attempt to find out ends.
const SETTLED_AGAIN: u32 = 3;

/// The goal of the present request.
enum Goal {
    None,
    /// The staged decision is in the log.
    Decide {
        sent: Instant,
        again: u32,
    },
    /// It is known whether the decision in doubt is in the log.
    Settle {
        again: u32,
    },
    /// Everything in the log was read.
    Follow,
    /// A snapshot is stored.
    Snapshot,
}

/// A goal that was reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reached {
    /// The log has the decision.
    Accepted,
    /// Records of other servers came first. They were applied, and the decision was taken back: decide again.
    Overtaken,
    /// The end of the log was reached, and nothing is in doubt that was to be settled.
    Followed,
    /// A snapshot was stored, or could not be.
    Stored,
}

/// The answer to a request.
pub(crate) struct Done {
    log: NetworkLog,
    answer: Answer,
}

enum Answer {
    Appended(Result<bool, LogError>),
    Read(Result<Read, LogError>),
    Stored(Result<(), LogError>),
}

/// See the module's page.
pub(crate) struct Link {
    /// `None` while a request has it.
    idle: Option<NetworkLog>,
    request: Option<BoxFuture<'static, Done>>,
    log: Arc<dyn Log>,
    /// How far the log was read.
    revision: u64,
    goal: Goal,
    server: String,
    /// Whether the staged changes and documents were sent, and their fate is unknown.
    is_held: bool,
    documents: Documents,
    staged: DocumentChanges,
    /// A document was not staged because a decision is in doubt.
    has_refused: bool,
    /// The position up to which the server's own store has all records.
    kept: Position,
    /// The first error of that store.
    copy_error: Option<StoreError>,
    /// A record that could not be applied. Nothing may be decided without it.
    unreadable: Option<(u64, Option<u32>)>,
    /// When the log had no more records.
    read_at: Option<Instant>,
    /// When a record of another server was read last.
    others: Option<Instant>,
    /// When this server appended last, and how long that took.
    own: Option<(Instant, Duration)>,
    followed: Followed,
    has_lost_sight: bool,
    snapshot_is_due: bool,
}

impl Link {
    /// `documents`: those that the log has at its position. `server` has at most [`MAX_SERVER`](super::MAX_SERVER)
    /// bytes.
    pub(crate) fn new(log: NetworkLog, server: String, documents: Documents) -> Self {
        Self {
            kept: log.position(),
            revision: log.position().revision,
            log: Arc::clone(log.log()),
            idle: Some(log),
            request: None,
            goal: Goal::None,
            server,
            is_held: false,
            documents,
            staged: DocumentChanges::new(),
            has_refused: false,
            copy_error: None,
            unreadable: None,
            read_at: None,
            others: None,
            own: None,
            followed: Followed::default(),
            has_lost_sight: false,
            snapshot_is_due: false,
        }
    }

    /// The store.
    pub(crate) fn log(&self) -> &Arc<dyn Log> {
        &self.log
    }

    /// Whether no request is on its way.
    pub(crate) fn is_free(&self) -> bool {
        self.request.is_none()
    }

    /// Whether it is unknown what became of a decision.
    pub(crate) fn is_in_doubt(&self) -> bool {
        self.is_held && matches!(self.goal, Goal::None | Goal::Follow | Goal::Settle { .. })
    }

    /// Whether the end of the log was reached since the start.
    pub(crate) fn has_read(&self) -> bool {
        self.read_at.is_some()
    }

    /// The revision of the last record that was read or appended.
    pub(crate) fn revision(&self) -> u64 {
        self.revision
    }

    /// See [`Replica::position`](super::Replica::position).
    pub(crate) fn position(&self) -> Position {
        self.kept
    }

    /// See [`Replica::copy_error`](super::Replica::copy_error).
    pub(crate) fn copy_error(&self) -> Option<&StoreError> {
        self.copy_error.as_ref()
    }

    /// Whether everything that was read could be applied. Nothing may be decided otherwise.
    ///
    /// # Errors
    /// [`ReplicaError::Version`], [`ReplicaError::Record`].
    pub(crate) fn check(&self) -> Result<(), ReplicaError> {
        self.unreadable.map_or(Ok(()), |unreadable| Err(self.error(unreadable)))
    }

    /// The documents, without those that are staged.
    pub(crate) fn documents(&self) -> &Documents {
        &self.documents
    }

    /// Stages another text of a document, or its removal. It is part of the next decision. While a decision is in doubt
    /// it is refused: it would count as part of that one.
    pub(crate) fn stage(&mut self, name: &str, text: Option<Zeroizing<Vec<u8>>>) {
        if self.documents.get(name) == text.as_ref() {
            return;
        }
        if self.is_held {
            self.has_refused = true;
        } else {
            self.staged.insert(name.to_owned(), text);
        }
    }

    /// Takes documents back that were staged while nothing can be decided. Returns whether there were any.
    pub(crate) fn drop_staged(&mut self) -> bool {
        let has_refused = std::mem::take(&mut self.has_refused);
        let staged = if self.is_held { DocumentChanges::new() } else { std::mem::take(&mut self.staged) };
        has_refused || !staged.is_empty()
    }

    /// Whether there is something to append.
    pub(crate) fn has_staged(&self, ledger: &dyn Decides) -> bool {
        !self.staged.is_empty() || !ledger.staged().is_empty()
    }

    /// The decisions of others since the last call.
    pub(crate) fn take_followed(&mut self) -> Followed {
        std::mem::take(&mut self.followed)
    }

    /// The pause before the next decision, for a server that decides one thing after the other. A server that
    /// was overtaken has to read before it can append again, so without a gap it would be overtaken each time.
    pub(crate) fn gap(&self) -> Option<Duration> {
        let has_others = self.others.is_some_and(|at| at.elapsed() < OTHERS);
        let (_, took) = self.own.filter(|(at, took)| has_others && at.elapsed() < *took)?;
        // Without random bytes, all wait for the same time, which is better than not at all.
        let random = random::bytes::<2>().map_or(u16::MAX, |bytes| u16::from_le_bytes(*bytes));
        Some(took * 2 * u32::from(random) / u32::from(u16::MAX))
    }

    /// Sends the staged decision.
    ///
    /// # Panics
    /// Panics if a request is on its way, or a decision in doubt.
    pub(crate) fn decide(&mut self, ledger: &mut dyn Decides, now: Now) {
        assert!(!self.is_held, "the decision before this one is in doubt");
        self.followed.own = false;
        let text = record::encode(&self.server, now.unix.as_secs(), &self.staged, ledger.staged());
        ledger.hold();
        self.is_held = true;
        self.goal = Goal::Decide { sent: Instant::now(), again: 0 };
        self.request(|mut log| async move { Done { answer: Answer::Appended(log.append(&text).await), log } });
    }

    /// Reads to the end of the log.
    ///
    /// # Panics
    /// Panics if a request is on its way.
    pub(crate) fn follow(&mut self) {
        self.goal = Goal::Follow;
        self.read();
    }

    /// Finds out what became of a decision that is in doubt: first by reading, which a full store permits as well.
    /// Takes back what was staged and not sent.
    ///
    /// # Panics
    /// Panics if a request is on its way.
    pub(crate) fn settle(&mut self) {
        self.goal = Goal::Settle { again: 0 };
        self.read();
    }

    /// Stores a snapshot, if one is due. Returns whether it does so.
    ///
    /// # Panics
    /// Panics if a request is on its way.
    pub(crate) fn snapshot(&mut self, state: &State) -> bool {
        if !std::mem::take(&mut self.snapshot_is_due) {
            return false;
        }
        let text = record::encode_snapshot(&self.documents, state);
        self.goal = Goal::Snapshot;
        self.request(|log| async move {
            let answer = match text {
                Ok(text) => log.store_snapshot(&text).await,
                Err(len) => Err(LogError::TooLarge { what: "a snapshot", len, limit: usize::MAX }),
            };
            Done { log, answer: Answer::Stored(answer) }
        });
        true
    }

    /// Waits for the answer to the request that is on its way, for ever if there is none. The future may be dropped.
    pub(crate) async fn io(&mut self) -> Done {
        match &mut self.request {
            Some(request) => {
                let done = request.await;
                self.request = None;
                done
            }
            None => std::future::pending().await,
        }
    }

    /// Applies an answer. Returns what came of the goal, unless that takes a further request, which has begun then.
    pub(crate) fn advance(
        &mut self,
        done: Done,
        ledger: &mut dyn Decides,
        now: Now,
    ) -> Option<Result<Reached, ReplicaError>> {
        self.revision = done.log.position().revision;
        self.idle = Some(done.log);
        let reached = match done.answer {
            Answer::Appended(appended) => self.appended(appended, ledger, now),
            Answer::Read(Ok(read)) => self.took_in(read, ledger, now),
            // The record was found before the rest could not be read.
            Answer::Read(Err(_)) if matches!(self.goal, Goal::Decide { .. }) && self.followed.own => {
                self.followed.own = false;
                Some(Ok(Reached::Accepted))
            }
            Answer::Read(Err(error)) => Some(Err(error.into())),
            Answer::Stored(stored) => {
                if let Err(error) = stored {
                    tracing::warn!("no snapshot is stored, so the log gets longer: {error}");
                }
                Some(Ok(Reached::Stored))
            }
        };
        if reached.is_some() {
            self.goal = Goal::None;
        }
        reached
    }

    fn request<F: Future<Output = Done> + Send + 'static>(&mut self, run: impl FnOnce(NetworkLog) -> F) {
        let log = self.idle.take().expect("no other request is on its way");
        self.request = Some(Box::pin(run(log)));
    }

    fn read(&mut self) {
        self.request(|mut log| async move { Done { answer: Answer::Read(log.read().await), log } });
    }

    fn append_again(&mut self) {
        self.request(|mut log| async move { Done { answer: Answer::Appended(log.append_again().await), log } });
    }

    /// Whether the log does not know what became of the record that was sent last.
    fn log_is_in_doubt(&self) -> bool {
        self.idle.as_ref().is_some_and(NetworkLog::is_in_doubt)
    }

    fn appended(
        &mut self,
        appended: Result<bool, LogError>,
        ledger: &mut dyn Decides,
        now: Now,
    ) -> Option<Result<Reached, ReplicaError>> {
        match (appended, &mut self.goal) {
            (Ok(true), Goal::Decide { sent, .. }) => {
                self.own = Some((Instant::now(), sent.elapsed()));
                self.accept(ledger);
                Some(Ok(Reached::Accepted))
            }
            (Ok(true), _) => {
                self.accept(ledger);
                self.followed.own = true;
                Some(Ok(Reached::Followed))
            }
            // Another record is there, or this one, by an attempt whose answer was lost.
            (Ok(false), _) => {
                self.read();
                None
            }
            (Err(error), Goal::Decide { again, .. }) if error.is_unknown() && *again < SENT_AGAIN => {
                *again += 1;
                self.append_again();
                None
            }
            (Err(error), Goal::Decide { .. }) => {
                if !self.log_is_in_doubt() {
                    self.revert(ledger, now);
                    return Some(Err(error.into()));
                }
                // A later attempt may be refused although an earlier one has arrived.
                let error = if error.is_unknown() { error } else { self.in_doubt(error) };
                Some(Err(error.into()))
            }
            (Err(error), _) => Some(Err(error.into())),
        }
    }

    /// Takes in what was read, and reads on until the end.
    fn took_in(&mut self, read: Read, ledger: &mut dyn Decides, now: Now) -> Option<Result<Reached, ReplicaError>> {
        if let Err(error) = self.check() {
            return Some(Err(error));
        }
        match read {
            Read::Records(records) if records.is_empty() => return self.at_the_end(ledger, now),
            Read::Records(records) => {
                for record in records {
                    if record.is_own && self.is_held {
                        self.followed.own = true;
                        self.accept(ledger);
                        continue;
                    }
                    self.revert(ledger, now);
                    match record::decode(&record.text) {
                        Ok(read) => {
                            // At first, it may be one of this server from before.
                            if self.read_at.is_some() || read.server != self.server.as_bytes() {
                                self.others = Some(Instant::now());
                                let server = String::from_utf8_lossy(read.server);
                                self.followed.audit.extend(ledger.audit_of(&read.changes, read.decided, &server, now));
                            }
                            let is_live = self.read_at.is_some_and(|at| at.elapsed() < LIVE);
                            self.take_documents(read.documents);
                            self.apply(read.changes, is_live.then_some(read.decided), ledger, now);
                        }
                        Err(version) => {
                            self.unreadable = Some((record.revision, version));
                            break;
                        }
                    }
                }
            }
            Read::Snapshot { revision, text, has_lost_sight } => {
                self.revert(ledger, now);
                self.has_lost_sight |= has_lost_sight;
                match record::decode_snapshot(&text) {
                    Some((documents, state)) => {
                        let gone = self.documents.keys().filter(|name| !documents.contains_key(*name));
                        let gone: Vec<_> = gone.map(|name| (name.clone(), None)).collect();
                        self.take_documents(documents.into_iter().map(|(name, text)| (name, Some(text))).chain(gone));
                        let changes = ledger.state().changes_to(&state);
                        self.apply(changes, None, ledger, now);
                    }
                    None => self.unreadable = Some((revision, None)),
                }
            }
        }
        if let Err(error) = self.check() {
            return Some(Err(error));
        }
        self.keep_position();
        self.read();
        None
    }

    /// The log has no more records.
    fn at_the_end(&mut self, ledger: &mut dyn Decides, now: Now) -> Option<Result<Reached, ReplicaError>> {
        self.read_at = Some(Instant::now());
        let has_lost_sight = std::mem::take(&mut self.has_lost_sight);
        match &mut self.goal {
            Goal::Decide { .. } if std::mem::take(&mut self.followed.own) => Some(Ok(Reached::Accepted)),
            Goal::Decide { .. } if has_lost_sight => {
                self.revert(ledger, now);
                Some(Err(self.in_doubt("a snapshot has taken the place of the record").into()))
            }
            Goal::Decide { .. } => {
                self.revert(ledger, now);
                Some(Ok(Reached::Overtaken))
            }
            Goal::Settle { again } => {
                *again += 1;
                let again = *again;
                if !self.log_is_in_doubt() {
                    self.revert(ledger, now);
                    return Some(Ok(Reached::Followed));
                }
                if again > SETTLED_AGAIN {
                    return Some(Err(self.in_doubt("it refuses the record, and has no other one in its place").into()));
                }
                self.append_again();
                None
            }
            Goal::None | Goal::Follow | Goal::Snapshot => {
                self.followed.has_lost_sight = has_lost_sight;
                Some(Ok(Reached::Followed))
            }
        }
    }

    /// The log has what is staged.
    fn accept(&mut self, ledger: &mut dyn Decides) {
        self.is_held = false;
        let kept = ledger.accept();
        self.copied(kept);
        let staged = std::mem::take(&mut self.staged);
        self.followed.documents.extend(staged.keys().cloned());
        self.put(staged);
        self.keep_position();
        if let Some(log) = &self.idle {
            self.snapshot_is_due |= log.position().revision.is_multiple_of(SNAPSHOT);
        }
    }

    /// Takes back what is staged.
    fn revert(&mut self, ledger: &mut dyn Decides, now: Now) {
        self.is_held = false;
        self.staged.clear();
        ledger.revert(now);
    }

    fn take_documents(&mut self, changes: impl IntoIterator<Item = (String, Option<Zeroizing<Vec<u8>>>)>) {
        let changed = changes.into_iter().filter(|(name, text)| self.documents.get(name) != text.as_ref());
        let changed: DocumentChanges = changed.collect();
        self.followed.documents.extend(changed.keys().cloned());
        self.put(changed);
    }

    fn put(&mut self, changes: DocumentChanges) {
        for (name, text) in changes {
            match text {
                Some(text) => self.documents.insert(name, text),
                None => self.documents.remove(&name),
            };
        }
    }

    fn apply(&mut self, changes: Vec<Change>, decided: Option<u64>, ledger: &mut dyn Decides, now: Now) {
        let (peers, kept) = ledger.apply(changes, decided, now);
        self.followed.peers.extend(peers);
        self.copied(kept);
    }

    fn copied(&mut self, kept: Result<(), StoreError>) {
        // Told once: with a full disk, each decision fails here.
        if let (Err(error), None) = (kept, &self.copy_error) {
            tracing::error!("the copy of the leases on this machine lacks the newest: {error}");
            self.copy_error = Some(error);
        }
    }

    fn keep_position(&mut self) {
        if let (Some(log), None) = (&self.idle, &self.copy_error) {
            self.kept = log.position();
        }
    }

    /// The error about a record that could not be applied, with its version if that is a newer one.
    fn error(&self, (revision, version): (u64, Option<u32>)) -> ReplicaError {
        let log = self.log.name();
        match version {
            Some(found) => ReplicaError::Version { log, revision, found, known: format::VERSION },
            None => ReplicaError::Record { log, revision },
        }
    }

    /// The error of a decision that was sent and of which nothing is known.
    fn in_doubt(&self, cause: impl ToString) -> LogError {
        LogError::Unavailable { store: self.log.name(), cause: cause.to_string() }
    }
}
