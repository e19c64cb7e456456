//! Statements of members: the networks behind them, their keys, and the endpoints of further servers. The
//! administrator's decisions limit their effect.
//!
//! Each change costs a commit, and a roster for every member. Therefore the changes of one member are accepted at
//! growing intervals, and a rate limit applies to all members together. A member whose change was not accepted repeats
//! it.
use super::Server;
use crate::{
    action::{Action, PeerConfig, members_changed},
    audit::{AuditEvent, AuditRecord, Reason},
    lease::MAX_ENDPOINTS,
    ledger::LedgerError,
    limits::{Bucket, Rate},
    payload::Joiner,
    store::LeaseStore,
};
use core::time::Duration;
use ipnet::IpNet;
use rustguard_core::{
    host_port::HostPort,
    time::{Instant, Now},
};
use rustguard_crypto::x25519::PublicKey;
use std::collections::BTreeMap;

/// The pause after a member's first change, and the longest pause. Each pause is twice as long as the one before.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(5 * 60);
/// After this time without a change, a member's next change is accepted at once.
const QUIET: Duration = Duration::from_secs(10 * 60);
/// Changes of all members: 20 a second, and 200 at once.
const IN_TOTAL: Rate = Rate { interval: Duration::from_millis(50), burst: 200 };

/// The recent changes of members: announcements, keys, and the role of member or client.
#[derive(Debug, Default)]
pub(super) struct Announcements {
    /// The members with a change within [`QUIET`], at most as many as there are leases.
    recent: BTreeMap<PublicKey, Pace>,
    total: Bucket,
    swept: Option<Instant>,
}

#[derive(Clone, Copy, Debug)]
struct Pace {
    last: Instant,
    pause: Duration,
}

impl Announcements {
    /// Whether a change of this member is accepted now. If so, it is counted.
    fn take(&mut self, member: &PublicKey, now: Instant) -> bool {
        if self.swept.is_none_or(|at| now.since(at) >= QUIET) {
            self.recent.retain(|_, pace| now.since(pace.last) < QUIET);
            self.swept = Some(now);
        }
        let before = self.recent.get(member).filter(|pace| now.since(pace.last) < QUIET);
        // A server's prefixes and endpoints come in one statement, which counts as one change.
        if before.is_some_and(|pace| pace.last == now) {
            return true;
        }
        if before.is_some_and(|pace| now < pace.last + pace.pause) || !self.total.take(IN_TOTAL, now) {
            return false;
        }
        let pause = before.map_or(FIRST_PAUSE, |pace| (pace.pause * 2).min(LONGEST_PAUSE));
        self.recent.insert(*member, Pace { last: now, pause });
        true
    }

    /// The member has another key. Its pace stays: each change of the key is one of its changes.
    pub(super) fn renamed(&mut self, member: &PublicKey, to: &PublicKey) {
        if let Some(pace) = self.recent.remove(member) {
            self.recent.insert(*to, pace);
        }
    }

    pub(super) fn forget(&mut self, member: &PublicKey) {
        self.recent.remove(member);
    }
}

impl<S: LeaseStore> Server<S> {
    /// Whether a machine that joins becomes a member, and not a client. A machine that has a lease may join again with
    /// another version of the program. All members are informed of the change, so a machine that changes too often
    /// keeps its role for a while.
    pub(super) fn becomes_member(&mut self, joiner: &Joiner, now: Now) -> bool {
        let wanted = joiner.member && self.network.is_some();
        let is_member = self.ledger.lease(&joiner.public_key).map_or(wanted, |lease| lease.member);
        if is_member != wanted && !self.announcements.take(&joiner.public_key, now.instant) {
            return is_member;
        }
        wanted
    }

    /// Takes note of the prefixes that a member says are behind it, inside its session. They replace its earlier
    /// announcement. Special addresses and parts of the pools are left out.
    ///
    /// Returns whether this is durable. If not, the member has to repeat it: it changes its announcement too often, or
    /// the store failed.
    pub fn announced(&mut self, member: &PublicKey, prefixes: &[IpNet], now: Now, actions: &mut Vec<Action>) -> bool {
        let Some(before) = self.ledger.lease(member).filter(|lease| lease.member) else {
            // It was removed or has become a client, so there is nothing to store.
            return true;
        };
        let (heard, left_out) = self.ledger.heard(before, prefixes);
        if heard == before.announced {
            return true;
        }
        if !self.announcements.take(member, now.instant) {
            return false;
        }
        let led: Vec<_> = before.prefixes().collect();
        match self.ledger.announce(member, heard, now) {
            Ok(_) => {}
            Err(LedgerError::UnknownPeer(_)) => return true,
            Err(_) => {
                let record = AuditRecord::new(AuditEvent::Refused, now).reason(Reason::StoreFailed).peer(member);
                actions.extend(self.tally.note(record, now.instant).map(Action::Audit));
                return false;
            }
        }
        let Some(lease) = self.ledger.lease(member) else { return true };
        if !lease.prefixes().eq(led) {
            actions.push(Action::SetPeer(PeerConfig::of_lease(lease)));
            members_changed(actions);
        }
        let record = AuditRecord::of_lease(AuditEvent::Announced, lease, now).prefixes(&lease.announced);
        let full = left_out.then(|| AuditRecord::of_lease(AuditEvent::Refused, lease, now).reason(Reason::QueueFull));
        for record in [Some(record), full].into_iter().flatten() {
            actions.extend(self.tally.note(record, now.instant).map(Action::Audit));
        }
        true
    }

    /// Takes note of the endpoints that a further server reports inside its session. Only a server that the
    /// administrator has admitted may report them, because all members connect there.
    ///
    /// Returns whether this is durable, as [`announced`](Self::announced) does.
    pub fn reached_at(
        &mut self,
        member: &PublicKey,
        endpoints: &[HostPort],
        now: Now,
        actions: &mut Vec<Action>,
    ) -> bool {
        let endpoints = &endpoints[..endpoints.len().min(MAX_ENDPOINTS)];
        let known = self.ledger.lease(member).filter(|lease| lease.is_server());
        if known.is_none_or(|lease| lease.endpoints == endpoints) {
            return true;
        }
        if !self.announcements.take(member, now.instant) {
            return false;
        }
        if self.ledger.reached_at(member, endpoints.to_vec(), now).is_err() {
            let record = AuditRecord::new(AuditEvent::Refused, now).reason(Reason::StoreFailed).peer(member);
            actions.extend(self.tally.note(record, now.instant).map(Action::Audit));
            return false;
        }
        if let Some(lease) = self.ledger.lease(member) {
            actions.push(Action::SetPeer(PeerConfig::of_lease(lease)));
            members_changed(actions);
        }
        true
    }

    /// Changes a member's key. The member asked for this inside its session, and has proved that it has the private
    /// key. The rest of its lease stays.
    ///
    /// Returns whether this is durable, as [`announced`](Self::announced) does. It also returns false for a key that
    /// the member cannot have.
    pub fn rotated(&mut self, member: &PublicKey, to: &PublicKey, now: Now, actions: &mut Vec<Action>) -> bool {
        if self.ledger.lease(member).is_none_or(|lease| !lease.member) || member == to {
            return true;
        }
        if self.own_keys.contains(to) || !self.announcements.take(member, now.instant) {
            return false;
        }
        if let Err(error) = self.rotate(member, to, now, actions) {
            let reason = match error {
                LedgerError::KeyTaken(_) => Reason::KeyTaken,
                _ => Reason::StoreFailed,
            };
            let record = AuditRecord::new(AuditEvent::Refused, now).reason(reason).peer(member);
            actions.extend(self.tally.note(record, now.instant).map(Action::Audit));
            return false;
        }
        true
    }

    /// Changes the key of a lease by an administrator's command: that of one of several servers, which each have one.
    ///
    /// # Errors
    /// See [`Ledger::rotate`](crate::ledger::Ledger::rotate).
    pub fn rotate(
        &mut self,
        member: &PublicKey,
        to: &PublicKey,
        now: Now,
        actions: &mut Vec<Action>,
    ) -> Result<(), LedgerError> {
        self.ledger.rotate(member, *to, now)?;
        self.announcements.renamed(member, to);
        if let Some(lease) = self.ledger.lease(to) {
            actions.push(Action::RekeyPeer { before: *member, after: *to });
            members_changed(actions);
            let record = AuditRecord::of_lease(AuditEvent::KeyRotated, lease, now);
            actions.extend(self.tally.note(record, now.instant).map(Action::Audit));
        }
        Ok(())
    }
}
