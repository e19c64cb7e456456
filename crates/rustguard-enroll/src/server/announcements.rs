//! What members say about the networks behind them and about their keys, and further servers about where they are
//! reached. It is the member's word: the administrator decides what comes of it.
//!
//! A change costs a commit, and a roster for every member. So one that changes its mind all the time is heard less and
//! less often, and all of them together have an allowance. Who is not heard says it again.
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

/// The pause after a member's first change, and the longest. Each is twice as long as the one before.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(5 * 60);
/// A member that changed nothing for so long is heard at once again.
const QUIET: Duration = Duration::from_secs(10 * 60);
/// Changes of all members: 20 a second, and 200 at once.
const IN_TOTAL: Rate = Rate { interval: Duration::from_millis(50), burst: 200 };

/// When members changed what they announce, or what they are.
#[derive(Debug, Default)]
pub(super) struct Announcements {
    /// The members that changed it within [`QUIET`]. There are no more than leases.
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
    /// Whether a change of this member is taken now. If so, it counts.
    fn take(&mut self, member: &PublicKey, now: Instant) -> bool {
        if self.swept.is_none_or(|at| now.since(at) >= QUIET) {
            self.recent.retain(|_, pace| now.since(pace.last) < QUIET);
            self.swept = Some(now);
        }
        let before = self.recent.get(member).filter(|pace| now.since(pace.last) < QUIET);
        // What a server says about its prefixes and its endpoints comes in one statement, and is one change.
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
    /// Whether a machine that joins becomes a member, and not a client. One that has a lease may join again with
    /// another version of the program. All others hear of it, so a machine that goes back and forth stays what it
    /// was for a while.
    pub(super) fn becomes_member(&mut self, joiner: &Joiner, now: Now) -> bool {
        let wanted = joiner.member && self.network.is_some();
        let is_member = self.ledger.lease(&joiner.public_key).map_or(wanted, |lease| lease.member);
        if is_member != wanted && !self.announcements.take(&joiner.public_key, now.instant) {
            return is_member;
        }
        wanted
    }

    /// Takes note of the prefixes that a member says are behind it, inside its session. They are all that it announces:
    /// others that it announced before are gone. Special addresses and parts of the pools are left out.
    ///
    /// Returns whether this is durable. If not, the member has to say it again: it changes its mind too often, or the
    /// store failed.
    pub fn announced(&mut self, member: &PublicKey, prefixes: &[IpNet], now: Now, actions: &mut Vec<Action>) -> bool {
        let Some(before) = self.ledger.lease(member).filter(|lease| lease.member) else {
            // It was removed, or has become a client, and nothing is to be stored.
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

    /// Takes note of where a further server says that it is reached, inside its session. Only one that the
    /// administrator has admitted as a server is heard, because all members call there.
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

    /// A member wants another key, inside its session, and has proved that it has the private key. Its lease stays as
    /// it is.
    ///
    /// Returns whether this is durable, as [`announced`](Self::announced) does. False as well for a key that it cannot
    /// have.
    pub fn rotated(&mut self, member: &PublicKey, to: &PublicKey, now: Now, actions: &mut Vec<Action>) -> bool {
        if self.ledger.lease(member).is_none_or(|lease| !lease.member) || member == to {
            return true;
        }
        if self.own_keys.contains(to) || !self.announcements.take(member, now.instant) {
            return false;
        }
        if let Err(error) = self.ledger.rotate(member, *to, now) {
            let reason = match error {
                LedgerError::KeyTaken(_) => Reason::KeyTaken,
                _ => Reason::StoreFailed,
            };
            let record = AuditRecord::new(AuditEvent::Refused, now).reason(reason).peer(member);
            actions.extend(self.tally.note(record, now.instant).map(Action::Audit));
            return false;
        }
        self.announcements.renamed(member, to);
        if let Some(lease) = self.ledger.lease(to) {
            actions.push(Action::RekeyPeer { before: *member, after: *to });
            members_changed(actions);
            let record = AuditRecord::of_lease(AuditEvent::KeyRotated, lease, now);
            actions.extend(self.tally.note(record, now.instant).map(Action::Audit));
        }
        true
    }
}
