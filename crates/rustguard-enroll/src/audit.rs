//! The audit trail: one record for everything that changes who may be on the network, and for who tried.
//!
//! What an administrator does makes one record each. What a stranger can bring about at will does not: refusals of one
//! reason within [`REFUSALS_EVERY`] become one record with a count, so that nobody fills a disk by knocking.
use crate::lease::TokenId;
use base64ct::{Base64, Encoding as _};
use core::time::Duration;
use rustguard_core::time::{Instant, Now};
use rustguard_crypto::x25519::PublicKey;
use serde::Serialize;
use std::{
    collections::BTreeMap,
    net::{IpAddr, SocketAddr},
};

/// Refusals of one reason make one record in this time.
pub const REFUSALS_EVERY: Duration = Duration::from_secs(10);

/// What happened, as a line of the audit log. Fields that do not apply are left out of the serialised form.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct AuditRecord {
    /// Seconds since the Unix epoch.
    pub time: u64,
    /// What happened.
    pub event: AuditEvent,
    /// Why, for refusals, removals and closed windows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<Reason>,
    /// Where the datagram came from. Of refusals that were counted together, the last one's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<SocketAddr>,
    /// The user who gave the command; whoever reads the control socket fills it in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
    /// The invite, in hexadecimal.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token: Option<String>,
    /// The peer, in base64 as `wg show` writes it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub public_key: Option<String>,
    /// The peer's name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The addresses of the lease.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<IpAddr>,
    /// How often it happened, where that is more than once.
    #[serde(skip_serializing_if = "is_one")]
    pub count: u32,
}

/// What an [`AuditRecord`] is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum AuditEvent {
    /// A machine got a lease.
    Admitted,
    /// A machine that had a lease got it once more.
    Rejoined,
    /// The machine completed a WireGuard handshake: its lease is no longer pending.
    Confirmed,
    /// A machine was refused.
    Refused,
    /// A joiner waits for approval.
    ApprovalWanted,
    /// A waiting joiner was approved.
    Approved,
    /// A peer was removed, or its lease ran out.
    Removed,
    /// A peer got another name.
    Renamed,
    /// A peer was added by hand.
    PeerAdded,
    /// A window was opened.
    WindowOpened,
    /// A window closed.
    WindowClosed,
    /// An invite was made.
    InviteMade,
    /// An invite was revoked.
    InviteRevoked,
}

/// Why something was refused, removed or closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reason {
    /// The token is none of this server's.
    UnknownToken,
    /// The invite's time is over.
    ExpiredToken,
    /// The invite was used by other machines.
    UsedToken,
    /// The invite was revoked.
    RevokedToken,
    /// The machine was removed, and comes with nothing newer than that.
    RemovedPeer,
    /// A code or passphrase that does not prove itself.
    WrongSecret,
    /// A message of a valid token that breaks the protocol.
    Malformed,
    /// A joiner could not prove that it has the private key of its public key.
    NoProof,
    /// No address is free.
    PoolExhausted,
    /// The address of the invite cannot be given.
    AddressTaken,
    /// The state could not be written.
    StoreFailed,
    /// More waiting joiners than the queue takes.
    QueueFull,
    /// A time limit.
    Time,
    /// As many guesses as a window allows.
    Attempts,
    /// An administrator's command.
    Command,
    /// The lease was never confirmed by a WireGuard handshake.
    NeverConfirmed,
    /// An ephemeral peer was silent for too long.
    Silent,
}

impl AuditRecord {
    /// A record of an event, with nothing else in it.
    pub fn new(event: AuditEvent, now: Now) -> Self {
        Self {
            time: now.unix.as_secs(),
            event,
            reason: None,
            source: None,
            uid: None,
            token: None,
            public_key: None,
            name: None,
            addresses: Vec::new(),
            count: 1,
        }
    }

    pub(crate) fn reason(mut self, reason: Reason) -> Self {
        self.reason = Some(reason);
        self
    }

    pub(crate) fn source(mut self, source: SocketAddr) -> Self {
        self.source = Some(source);
        self
    }

    pub(crate) fn token(mut self, token: Option<TokenId>) -> Self {
        self.token = token.map(|id| id.to_string());
        self
    }

    pub(crate) fn peer(mut self, public_key: &PublicKey) -> Self {
        self.public_key = Some(Base64::encode_string(&public_key.0));
        self
    }

    pub(crate) fn name(mut self, name: Option<&str>) -> Self {
        self.name = name.map(str::to_owned);
        self
    }

    pub(crate) fn addresses(mut self, addresses: impl IntoIterator<Item = IpAddr>) -> Self {
        self.addresses = addresses.into_iter().collect();
        self
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's interface")]
fn is_one(count: &u32) -> bool {
    *count == 1
}

/// Counts refusals together: the first of a reason is told at once, the others when [`REFUSALS_EVERY`] is over.
#[derive(Debug, Default)]
pub(crate) struct Refusals {
    // One entry per reason: bounded by their number.
    quiet: BTreeMap<Reason, Quiet>,
}

#[derive(Debug)]
struct Quiet {
    until: Instant,
    /// The last one not told, with how many there were.
    untold: Option<AuditRecord>,
}

impl Refusals {
    /// Takes note of a refusal; returns the record if it is to be told now.
    pub(crate) fn note(&mut self, record: AuditRecord, now: Instant) -> Option<AuditRecord> {
        let reason = record.reason?;
        let quiet = self.quiet.entry(reason).or_insert(Quiet { until: now, untold: None });
        if now >= quiet.until && quiet.untold.is_none() {
            quiet.until = now + REFUSALS_EVERY;
            return Some(record);
        }
        let count = quiet.untold.as_ref().map_or(0, |untold| untold.count).saturating_add(1);
        quiet.untold = Some(AuditRecord { count, ..record });
        None
    }

    /// The records whose time has come.
    pub(crate) fn due(&mut self, now: Instant) -> Vec<AuditRecord> {
        let mut due = Vec::new();
        self.quiet.retain(|_, quiet| {
            if now < quiet.until {
                return true;
            }
            let untold = quiet.untold.take();
            let told = untold.is_some();
            due.extend(untold);
            quiet.until = now + REFUSALS_EVERY;
            told
        });
        due
    }

    /// When [`Refusals::due`] has something to tell.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.quiet.values().filter(|quiet| quiet.untold.is_some()).map(|quiet| quiet.until).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(reason: Reason, time: u64) -> AuditRecord {
        let now = Now { instant: Instant::from_nanos(0), unix: Duration::from_secs(time) };
        AuditRecord::new(AuditEvent::Refused, now).reason(reason)
    }

    #[test]
    fn a_thousand_refusals_are_two_lines() {
        let mut refusals = Refusals::default();
        let at = Instant::from_nanos(7);
        assert_eq!(refusals.note(refusal(Reason::UsedToken, 0), at).map(|record| record.count), Some(1));
        for time in 1..1000 {
            assert_eq!(refusals.note(refusal(Reason::UsedToken, time), at), None);
        }
        assert!(refusals.note(refusal(Reason::WrongSecret, 5), at).is_some(), "another reason is another matter");
        assert_eq!(refusals.due(at + Duration::from_secs(9)), []);
        assert_eq!(refusals.deadline(), Some(at + REFUSALS_EVERY));
        let told = refusals.due(at + REFUSALS_EVERY);
        assert_eq!(told.iter().map(|record| (record.count, record.time)).collect::<Vec<_>>(), [(999, 999)]);
        assert_eq!(refusals.deadline(), None);
        // Still quiet for a while, then forgotten.
        assert!(refusals.note(refusal(Reason::UsedToken, 0), at + REFUSALS_EVERY).is_none());
        assert_eq!(refusals.due(at + REFUSALS_EVERY * 2).len(), 1);
        assert!(refusals.due(at + REFUSALS_EVERY * 3).is_empty());
        assert!(refusals.quiet.is_empty());
    }
}
