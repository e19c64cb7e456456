//! A member's reports to servers: its statement about itself, repeated until they acknowledge it.

use crate::statement::{Statement, StatementDigest};
use rustguard_core::time::Instant;
use rustguard_crypto::x25519::PublicKey;
use std::{collections::BTreeMap, time::Duration};

/// The pause after the first message. Each pause is twice as long as the one before.
const AGAIN: Duration = Duration::from_millis(250);
/// The most messages in one session: servers of an earlier version, and servers that do not issue the roster, do not
/// answer.
const TRIES: u8 = 7;
/// An acknowledged statement is reported again in a session that begins this much later: the server may have been
/// replaced by another machine with the same key and an older ledger.
const REPEAT: Duration = Duration::from_secs(3_600);

/// A member's side.
#[derive(Default)]
pub(crate) struct Reports {
    statement: Option<(Statement, StatementDigest)>,
    servers: BTreeMap<[u8; 32], Server>,
}

#[derive(Default)]
struct Server {
    /// The statement that it has, and since when.
    has: Option<(StatementDigest, Instant)>,
    tries: u8,
    next: Option<Instant>,
}

impl Reports {
    /// Sets what is reported. Returns whether it is new.
    pub(crate) fn set(&mut self, statement: Statement) -> bool {
        let digest = statement.digest();
        let before = self.statement.replace((statement, digest));
        before.is_none_or(|(_, before)| before != digest)
    }

    /// A server is connected. It gets a report, unless it is known to have it.
    pub(crate) fn begin(&mut self, server: &PublicKey, now: Instant) {
        let Some((_, digest)) = &self.statement else { return };
        let entry = self.servers.entry(server.0).or_default();
        let has = entry.has.is_some_and(|(has, since)| has == *digest && now.since(since) < REPEAT);
        (entry.tries, entry.next) = (0, (!has).then_some(now));
    }

    /// Whether the server got a report before, or is getting one.
    pub(crate) fn knows(&self, server: &PublicKey) -> bool {
        self.servers.contains_key(&server.0)
    }

    /// A server is no longer connected.
    pub(crate) fn end(&mut self, server: &PublicKey) {
        if let Some(server) = self.servers.get_mut(&server.0) {
            server.next = None;
        }
    }

    /// The key of a server has changed.
    pub(crate) fn renamed(&mut self, before: &PublicKey, server: &PublicKey) {
        if let Some(state) = self.servers.remove(&before.0) {
            self.servers.insert(server.0, state);
        }
    }

    /// Forgets members that are no longer servers.
    pub(crate) fn keep(&mut self, is_server: impl Fn(&PublicKey) -> bool) {
        self.servers.retain(|key, _| is_server(&PublicKey(*key)));
    }

    /// A server acknowledges the statement that it has.
    pub(crate) fn acknowledged(&mut self, server: &PublicKey, digest: StatementDigest, now: Instant) {
        let ours = self.statement.as_ref().is_some_and(|(_, ours)| *ours == digest);
        if let Some(server) = self.servers.get_mut(&server.0).filter(|_| ours) {
            (server.has, server.next) = (Some((digest, now)), None);
        }
    }

    /// Whether a server has acknowledged the last statement.
    pub(crate) fn is_acknowledged(&self) -> bool {
        let ours = self.statement.as_ref().map(|(_, digest)| *digest);
        self.servers.values().any(|server| server.has.is_some_and(|(has, _)| Some(has) == ours))
    }

    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.servers.values().filter_map(|server| server.next).min()
    }

    /// The servers that get a report now, and the report.
    pub(crate) fn due(&mut self, now: Instant) -> Option<(Vec<PublicKey>, &Statement)> {
        let mut due = Vec::new();
        for (key, server) in &mut self.servers {
            if server.next.is_some_and(|at| at <= now) {
                due.push(PublicKey(*key));
                server.tries += 1;
                server.next = (server.tries < TRIES).then(|| now + AGAIN * (1 << (server.tries - 1)));
            }
        }
        let (statement, _) = self.statement.as_ref()?;
        (!due.is_empty()).then_some((due, statement))
    }
}
