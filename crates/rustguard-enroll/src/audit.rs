//! The audit trail: one record for each change of the membership, and for each attempt.
//!
//! Each command of an administrator, each use of an invite, and each machine that stays makes one record. Events that
//! others can cause at will are counted and combined into one record with a count ([`COUNT_FIRST`]): refusals with the
//! same reason, rejoins of one peer, and admissions beyond the uses of an invite. Such admissions are possible because
//! a use comes back if no handshake confirms the lease. A flood of messages therefore cannot fill the disk, and it
//! cannot push older records out of a log of limited size.
pub(crate) mod decided;

use crate::lease::{Lease, Origin, TokenId};
use base64ct::{Base64, Encoding as _};
use core::time::Duration;
use ipnet::IpNet;
use rustguard_core::time::{Instant, Now};
use rustguard_crypto::x25519::PublicKey;
use serde::{Serialize, Serializer};
use std::{
    collections::{BTreeMap, VecDeque},
    net::{IpAddr, SocketAddr},
};

/// Events that are counted together make their first record after this time.
pub const COUNT_FIRST: Duration = Duration::from_secs(10);
/// The longest time between records while the events continue: about 300 lines a day of each kind.
pub const COUNT_LAST: Duration = Duration::from_secs(5 * 60);
/// The number of consecutive admissions that have a line each, besides those within the uses of an invite. Further
/// admissions within ten seconds are counted.
const ADMISSIONS_AT_ONCE: u32 = 64;
/// The number of pairs of event and invite whose lines are counted. A further pair replaces the oldest. The holder of
/// an invite cannot make others, so it cannot displace the count of its own.
const INVITES_APART: usize = 1_024;
/// The number of peers whose rejoins or announcements are counted separately. The events of all other peers are counted
/// together.
const PEERS_APART: usize = 64;

/// An event as a line of the audit log. Fields that do not apply are left out of the serialised form.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct AuditRecord {
    /// Seconds since the Unix epoch.
    pub time: u64,
    /// The kind of event.
    pub event: AuditEvent,
    /// The reason of a refusal, a removal or a closed window.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<Reason>,
    /// The source of the datagram. A record that counts several refusals has the source of the last one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<SocketAddr>,
    /// The user that gave the command. The program that reads the control socket fills it in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
    /// The user who gave the command in the status page, or for whom a login link was made. The program that serves
    /// the page fills it in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    /// The server that decided, if it is another one of several on the same store. Its audit log has the line as well,
    /// with the user and the reason.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server: Option<String>,
    /// The invite; in hexadecimal when it is serialised.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "as_hexadecimal")]
    pub token: Option<TokenId>,
    /// The peer; in base64, as `wg show` writes it, when it is serialised.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "as_base64")]
    pub public_key: Option<PublicKey>,
    /// The peer's name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The addresses of the lease.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<IpAddr>,
    /// The prefixes behind the peer that the event is about.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub prefixes: Vec<IpNet>,
    /// The tags that the event is about.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<String>,
    /// The number of occurrences, if there was more than one.
    #[serde(skip_serializing_if = "is_one")]
    pub count: u32,
}

/// The kind of event in an [`AuditRecord`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum AuditEvent {
    /// A machine got a lease.
    Admitted,
    /// A machine that already has a lease got the same lease again.
    Rejoined,
    /// The machine completed a WireGuard handshake: its lease is no longer pending.
    Confirmed,
    /// A machine was refused.
    Refused,
    /// A joiner waits for approval.
    ApprovalWanted,
    /// A waiting joiner was approved.
    Approved,
    /// A waiting joiner was refused by an administrator.
    ApprovalRefused,
    /// A peer was removed, or its lease ran out.
    Removed,
    /// A peer got another name.
    Renamed,
    /// A peer was added by hand.
    PeerAdded,
    /// Prefixes behind a peer were admitted.
    PrefixesAllowed,
    /// Prefixes behind a peer are no longer admitted.
    PrefixesDenied,
    /// A member announces other prefixes.
    Announced,
    /// A member, or this server, has changed its key. The record has the new one.
    KeyRotated,
    /// The policy of the network has changed, by a reload or at a start.
    PolicyChanged,
    /// The newest list of members was adopted: the lines before name the machines that came, went, or have another key.
    ListAdopted,
    /// A peer got tags.
    Tagged,
    /// A peer lost tags.
    Untagged,
    /// A window was opened.
    WindowOpened,
    /// A window closed.
    WindowClosed,
    /// An invite was made.
    InviteMade,
    /// An invite was revoked.
    InviteRevoked,
    /// A backup was made: all keys of the server are in it.
    BackedUp,
    /// The state was replaced by the state of a backup.
    Restored,
    /// This machine, a standby, has taken the place of the former server.
    TakenOver,
    /// A login link for the status page was made.
    WebLinkMade,
    /// A user has logged in to the status page with such a link.
    WebLogin,
    /// A user has logged out of the status page.
    WebLogout,
    /// A used login link was tried again. [`by`](AuditRecord::by) has the session that the link began. Recorded once
    /// for each link.
    WebLinkReused,
    /// All sessions and links of the status page were ended.
    WebSessionsEnded,
}

/// The reason of a refusal, a removal or a closed window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Reason {
    /// The token is not one of this server's.
    UnknownToken,
    /// The invite's time is over.
    ExpiredToken,
    /// The invite was used by other machines.
    UsedToken,
    /// The invite was revoked.
    RevokedToken,
    /// The peer was removed, and its grant is not newer than the removal.
    RemovedPeer,
    /// A wrong code or passphrase.
    WrongSecret,
    /// A message with a valid token that violates the protocol.
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
    /// The window's number of guesses is used up.
    Attempts,
    /// An administrator's command.
    Command,
    /// The lease was never confirmed by a WireGuard handshake.
    NeverConfirmed,
    /// An ephemeral peer was silent for too long.
    Silent,
    /// The machine has left the network.
    Left,
    /// Another peer has or had the new key of a member.
    KeyTaken,
    /// The newest list of members, which was adopted, requires it.
    Listed,
}

impl AuditRecord {
    /// A record of an event, with no other field set.
    pub fn new(event: AuditEvent, now: Now) -> Self {
        Self {
            time: now.unix.as_secs(),
            event,
            reason: None,
            source: None,
            uid: None,
            by: None,
            server: None,
            token: None,
            public_key: None,
            name: None,
            addresses: Vec::new(),
            prefixes: Vec::new(),
            tags: Vec::new(),
            count: 1,
        }
    }

    /// A record about a lease, with the invite that admitted its peer.
    pub(crate) fn of_lease(event: AuditEvent, lease: &Lease, now: Now) -> Self {
        let token = if let Origin::Invite(id) = lease.origin { Some(id) } else { None };
        let record = Self::new(event, now).peer(&lease.public_key).name(lease.name.as_deref()).token(token);
        record.addresses(lease.addresses())
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
        self.token = token;
        self
    }

    pub(crate) fn peer(mut self, public_key: &PublicKey) -> Self {
        self.public_key = Some(*public_key);
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

    pub(crate) fn prefixes(mut self, prefixes: &[IpNet]) -> Self {
        self.prefixes = prefixes.iter().map(IpNet::trunc).collect();
        self
    }

    pub(crate) fn tags(mut self, tags: &[String]) -> Self {
        self.tags = tags.to_vec();
        self
    }
}

#[expect(clippy::ref_option, reason = "serde's interface")]
fn as_hexadecimal<S: Serializer>(token: &Option<TokenId>, serializer: S) -> Result<S::Ok, S::Error> {
    token.map(|id| id.to_string()).serialize(serializer)
}

#[expect(clippy::ref_option, reason = "serde's interface")]
fn as_base64<S: Serializer>(key: &Option<PublicKey>, serializer: S) -> Result<S::Ok, S::Error> {
    key.map(|key| Base64::encode_string(&key.0)).serialize(serializer)
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's interface")]
fn is_one(count: &u32) -> bool {
    *count == 1
}

/// Combines events that strangers can cause at will. The first records of a kind are returned at once. Later ones are
/// combined into one record with a count, after [`COUNT_FIRST`] at first. The interval doubles while the events
/// continue, up to [`COUNT_LAST`].
#[derive(Debug, Default)]
pub(crate) struct Tally {
    // One entry for each kind and some for single peers. Both numbers are bounded.
    kinds: BTreeMap<Kind, Quiet>,
    peers: usize,
    /// The number of lines for each pair of event and invite.
    invites: VecDeque<((AuditEvent, TokenId), u32)>,
}

/// Events with the same key are counted together: the event, its reason and, for some events, the peer.
type Kind = (AuditEvent, Option<Reason>, Option<PublicKey>);

#[derive(Debug)]
struct Quiet {
    until: Instant,
    pause: Duration,
    /// The number of records returned at once.
    told: u32,
    /// The last record that was held back, with the number of records held back.
    untold: Option<AuditRecord>,
}

impl Quiet {
    /// Whether the events have stopped. A kind that was already counted must be silent for longer. Otherwise short
    /// pauses would reset the count each time.
    fn is_over(&self, now: Instant) -> bool {
        let silence = if self.pause > COUNT_FIRST { COUNT_LAST } else { Duration::ZERO };
        self.untold.is_none() && now >= self.until + silence
    }
}

/// The number of records of this kind that are returned at once. `None` if only an administrator or a confirmed lease
/// causes such a record.
fn at_once(record: &AuditRecord) -> Option<u32> {
    match (record.event, record.reason) {
        (AuditEvent::Refused | AuditEvent::Rejoined | AuditEvent::Announced, _) => Some(1),
        (AuditEvent::KeyRotated, _) => Some(ADMISSIONS_AT_ONCE),
        // When a pending lease lapses, its invite gets the use back, so a holder can repeat this without end.
        (AuditEvent::Admitted, _) | (AuditEvent::Removed, Some(Reason::NeverConfirmed | Reason::Left)) => {
            Some(ADMISSIONS_AT_ONCE)
        }
        _ => None,
    }
}

impl Tally {
    /// Counts a record about a machine of an invite. The first `uses` records of an event and invite have a line each.
    pub(crate) fn note_of_invite(&mut self, record: AuditRecord, uses: u32, now: Instant) -> Option<AuditRecord> {
        let Some(id) = record.token else { return self.note(record, now) };
        let key = (record.event, id);
        let at = self.invites.iter().position(|(known, _)| *known == key).unwrap_or_else(|| {
            self.invites.truncate(INVITES_APART - 1);
            self.invites.push_front((key, 0));
            0
        });
        let told = &mut self.invites[at].1;
        if *told >= uses {
            return self.note(record, now);
        }
        *told += 1;
        Some(record)
    }

    /// Counts a record. Returns it if it is to be logged now.
    pub(crate) fn note(&mut self, record: AuditRecord, now: Instant) -> Option<AuditRecord> {
        let Some(at_once) = at_once(&record) else { return Some(record) };
        let apart = matches!(record.event, AuditEvent::Rejoined | AuditEvent::Announced);
        let peer = if apart { record.public_key } else { None };
        let mut kind = (record.event, record.reason, peer);
        if kind.2.is_some() && !self.kinds.contains_key(&kind) {
            if self.peers >= PEERS_APART {
                self.forget(now);
            }
            if self.peers >= PEERS_APART {
                kind.2 = None;
            } else {
                self.peers += 1;
            }
        }
        let fresh = || Quiet { until: now + COUNT_FIRST, pause: COUNT_FIRST, told: 0, untold: None };
        let quiet = self.kinds.entry(kind).or_insert_with(fresh);
        if quiet.is_over(now) {
            *quiet = fresh();
        }
        if quiet.untold.is_none() && quiet.told < at_once {
            quiet.told += 1;
            return Some(record);
        }
        let count = quiet.untold.as_ref().map_or(0, |untold| untold.count).saturating_add(1);
        quiet.untold = Some(AuditRecord { count, ..record });
        None
    }

    /// The combined records that are due.
    pub(crate) fn due(&mut self, now: Instant) -> Vec<AuditRecord> {
        let mut due = Vec::new();
        for quiet in self.kinds.values_mut().filter(|quiet| now >= quiet.until) {
            let Some(untold) = quiet.untold.take() else { continue };
            due.push(untold);
            // The events continue, so the next ones are counted too, over a longer interval.
            quiet.told = u32::MAX;
            quiet.pause = (quiet.pause * 2).min(COUNT_LAST);
            quiet.until = now + quiet.pause;
        }
        self.forget(now);
        due
    }

    /// All records that were held back, whether they are due or not.
    pub(crate) fn rest(&mut self) -> Vec<AuditRecord> {
        self.kinds.values_mut().filter_map(|quiet| quiet.untold.take()).collect()
    }

    /// The time at which [`Tally::due`] has records to return.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.kinds.values().filter(|quiet| quiet.untold.is_some()).map(|quiet| quiet.until).min()
    }

    /// Forgets the kinds that have stopped.
    fn forget(&mut self, now: Instant) {
        self.kinds.retain(|_, quiet| !quiet.is_over(now));
        self.peers = self.kinds.keys().filter(|(_, _, peer)| peer.is_some()).count();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(event: AuditEvent, reason: Option<Reason>, time: u64) -> AuditRecord {
        let now = Now { instant: Instant::from_nanos(0), unix: Duration::from_secs(time) };
        AuditRecord { reason, ..AuditRecord::new(event, now) }
    }

    fn refusal(reason: Reason, time: u64) -> AuditRecord {
        record(AuditEvent::Refused, Some(reason), time)
    }

    #[test]
    fn a_line_of_the_log_has_the_key_in_base64_and_the_token_in_hexadecimal() {
        let line = record(AuditEvent::Admitted, None, 7).peer(&PublicKey([1; 32])).token(Some(TokenId([0xab; 8])));
        assert_eq!(
            serde_json::to_string(&line).expect("plain data"),
            r#"{"time":7,"event":"admitted","token":"abababababababab","public_key":"AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE="}"#
        );
    }

    #[test]
    fn a_thousand_refusals_are_two_lines() {
        let mut tally = Tally::default();
        let at = Instant::from_nanos(7);
        assert_eq!(tally.note(refusal(Reason::UsedToken, 0), at).map(|record| record.count), Some(1));
        for time in 1..1000 {
            assert_eq!(tally.note(refusal(Reason::UsedToken, time), at), None);
        }
        assert!(tally.note(refusal(Reason::WrongSecret, 5), at).is_some(), "another reason is another matter");
        assert_eq!(tally.due(at + Duration::from_secs(9)), []);
        assert_eq!(tally.deadline(), Some(at + COUNT_FIRST));
        let told = tally.due(at + COUNT_FIRST);
        assert_eq!(told.iter().map(|record| (record.count, record.time)).collect::<Vec<_>>(), [(999, 999)]);
        assert_eq!(tally.deadline(), None);
        assert_eq!(tally.rest(), []);
        // It stays counted for a while, and is then forgotten.
        assert!(tally.note(refusal(Reason::UsedToken, 0), at + COUNT_FIRST).is_none());
        assert_eq!(tally.due(at + COUNT_FIRST * 2), []);
        assert_eq!(tally.due(at + COUNT_FIRST * 3).len(), 1);
        let after = at + COUNT_FIRST * 7 + COUNT_LAST;
        assert!(tally.due(after).is_empty());
        assert!(tally.kinds.is_empty());
        assert!(tally.note(refusal(Reason::UsedToken, 0), after).is_some(), "it begins anew");
    }

    #[test]
    fn what_goes_on_for_a_day_is_a_line_in_five_minutes() {
        let mut tally = Tally::default();
        let (mut lines, mut counted) = (0, 0);
        let mut tell = |record: AuditRecord| {
            lines += 1;
            counted += record.count;
        };
        for second in 0..86_400 {
            let now = Instant::from_nanos(0) + Duration::from_secs(second);
            tally.due(now).into_iter().for_each(&mut tell);
            for _ in 0..10 {
                tally.note(refusal(Reason::UsedToken, second), now).into_iter().for_each(&mut tell);
            }
        }
        tally.rest().into_iter().for_each(&mut tell);
        assert_eq!(counted, 864_000, "all of them are counted");
        assert!((288..300).contains(&lines), "{lines}");
    }

    #[test]
    fn peers_are_told_apart_up_to_a_number_and_counted_together_beyond_it() {
        let mut tally = Tally::default();
        let at = Instant::from_nanos(7);
        let rejoined = |n: u32| {
            let mut key = PublicKey([0; 32]);
            key.0[..4].copy_from_slice(&n.to_be_bytes());
            AuditRecord { public_key: Some(key), ..record(AuditEvent::Rejoined, None, 0) }
        };
        let told = (0..1000).filter_map(|n| tally.note(rejoined(n), at)).count();
        assert_eq!(told, PEERS_APART + 1);
        assert_eq!(tally.note(rejoined(3), at), None);
        assert_eq!(tally.kinds.len(), PEERS_APART + 1);
        let counts: Vec<_> = tally.due(at + COUNT_FIRST).iter().map(|record| record.count).collect();
        assert_eq!(counts, [1000 - PEERS_APART as u32 - 1, 1]);
        // Entries that have been silent make room.
        assert!(tally.note(rejoined(2000), at + COUNT_FIRST * 100).is_some());
        tally.due(at + COUNT_FIRST * 100);
        assert_eq!(tally.kinds.len(), 1);
    }

    #[test]
    fn what_administrators_do_is_told_each_time() {
        let mut tally = Tally::default();
        let at = Instant::from_nanos(7);
        for (event, reason) in [
            (AuditEvent::Removed, Some(Reason::Command)),
            (AuditEvent::PeerAdded, None),
            (AuditEvent::Confirmed, None),
            (AuditEvent::InviteMade, None),
        ] {
            assert!((0..1000).all(|time| tally.note(record(event, reason, time), at).is_some()), "{event:?}");
        }
        for (event, reason) in [(AuditEvent::Admitted, None), (AuditEvent::Removed, Some(Reason::NeverConfirmed))] {
            let told = (0..1000).filter(|&time| tally.note(record(event, reason, time), at).is_some()).count();
            assert_eq!(told, ADMISSIONS_AT_ONCE as usize, "{event:?}");
        }
    }

    #[test]
    fn each_use_of_an_invite_is_told_once_and_the_rest_is_counted() {
        let mut tally = Tally::default();
        let at = Instant::from_nanos(7);
        for event in [AuditEvent::Admitted, AuditEvent::Removed] {
            let of = |invite: u16| {
                let [high, low] = invite.to_be_bytes();
                let reason = (event == AuditEvent::Removed).then_some(Reason::NeverConfirmed);
                record(event, reason, 0).token(Some(TokenId([high, low, 0, 0, 0, 0, 0, 0])))
            };
            let mut told =
                |invite, times: u32| (0..times).filter(|_| tally.note_of_invite(of(invite), 250, at).is_some()).count();
            assert_eq!(told(0, 250), 250, "{event:?}");
            assert_eq!(told(0, 1_000), ADMISSIONS_AT_ONCE as usize, "uses that came back: {event:?}");
            assert_eq!((told(1, 250), told(0, 1_000)), (250, 0), "{event:?}");
            // The count of an invite is forgotten only after a thousand others.
            assert_eq!((2..1_000).map(|invite| told(invite, 1)).sum::<usize>(), 998, "{event:?}");
            assert_eq!(told(0, 1_000), 0, "{event:?}");
        }
        assert_eq!(tally.invites.len(), INVITES_APART);
    }
}
