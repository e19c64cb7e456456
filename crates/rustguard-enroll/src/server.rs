//! The server: decides which machines may join, by invite, code or passphrase.
//!
//! [`Server`] uses no sockets and no clock. Its inputs are datagrams, moments and commands. Its outputs are
//! [`Action`]s, which the embedder carries out in order. Everything that an answer promises is durable before the
//! answer is returned.
//!
//! | File | Contents |
//! |---|---|
//! | `initiations`, `shares` | first messages of unknown senders: invites, and codes or passphrases |
//! | `refused_invites` | the check for invites that admit nobody (any more) |
//! | `proofs`, `approvals` | the proof of a code or passphrase; joiners that wait for an administrator |
//! | `claims` | the last message, which results in a lease |
//! | `admin` | commands |
//! | `adoption` | adoption of a list of members |
//! | `announcements` | members' statements about the networks behind them |
//! | `shared` | the server as one of several on a log |
//! | `own_keys` | the server's keys: two during a key change |
//! | `session`, `window` | short-lived state, kept for seconds or minutes |
mod admin;
mod adoption;
mod announcements;
mod approvals;
mod claims;
mod error;
mod initiations;
mod options;
mod own_keys;
mod proofs;
mod refused_invites;
mod session;
mod shared;
mod shares;
#[cfg(test)]
mod tests;
mod window;

use crate::{
    action::{Action, PeerConfig, members_changed},
    audit::{AuditEvent, AuditRecord, Reason, Tally},
    kem::Kem,
    lease::{Lease, TokenId},
    ledger::Ledger,
    limits::{Bucket, Door},
    store::LeaseStore,
    wire::{Index, Message},
};
pub use crate::{
    approval::ApprovalCode,
    config::{ConfigError, ServerConfig},
};
use announcements::Announcements;
pub use approvals::MAX_WAITING;
use core::{fmt, time::Duration};
pub use error::ServerError;
pub use options::{
    DEFAULT_INVITE, DEFAULT_WINDOW, InviteOptions, MAX_WINDOW, NewPeer, OpenOptions, Opened, PendingApproval,
    WindowStatus,
};
use own_keys::OwnKeys;
use rand_core::CryptoRng;
use rustguard_core::{
    cookie::Secret,
    time::{Instant, Now},
};
use rustguard_crypto::x25519::{PublicKey, StaticSecret};
use session::Sessions;
use std::{collections::BTreeSet, net::SocketAddr};
use window::Window;
pub use window::{MAX_ASKING, MAX_ATTEMPTS};

/// The delay before expiry is tried again after a failure of the store.
const RETRY_STORE: Duration = Duration::from_secs(5);

/// Enrols machines.
pub struct Server<S> {
    own_keys: OwnKeys,
    /// The settings for joiners.
    config: ServerConfig,
    ledger: Ledger<S>,
    cookies: Secret,
    door: Door,
    shares: Bucket,
    sessions: Sessions,
    /// The sessions that were granted by decisions that are not in the log yet ([`Server::share`]).
    undecided: BTreeSet<Index>,
    kem: Kem,
    /// The network's public key, for joiners that can be members; `None`: the server makes a star.
    network: Option<[u8; 32]>,
    window: Option<Window>,
    /// The number of windows opened so far.
    windows: u64,
    /// Whether the ledger still admits peers by a window. Joiners that proved its secret in time may finish after it
    /// has closed.
    ledger_window: bool,
    tally: Tally,
    announcements: Announcements,
    /// When expiry is tried again after a failure.
    retry: Option<Instant>,
}

impl<S: LeaseStore> Server<S> {
    /// A server without an open window. `identity` is the WireGuard key of the tunnel. The embedder stores it apart
    /// from the store: neither of the two alone permits enrolment.
    ///
    /// # Errors
    /// [`ServerError::Config`].
    pub fn new(
        identity: StaticSecret,
        ledger: Ledger<S>,
        config: &ServerConfig,
        now: Now,
        rng: &mut impl CryptoRng,
    ) -> Result<Self, ServerError> {
        Ok(Self {
            own_keys: OwnKeys::new(identity, None, config)?,
            config: config.clone(),
            cookies: Secret::new(now.instant, rng),
            ledger,
            door: Door::default(),
            shares: Bucket::default(),
            sessions: Sessions::default(),
            undecided: BTreeSet::new(),
            kem: Kem::default(),
            network: None,
            window: None,
            windows: 0,
            ledger_window: false,
            tally: Tally::default(),
            announcements: Announcements::default(),
            retry: None,
        })
    }

    /// Changes the settings that joiners receive from now on.
    ///
    /// # Errors
    /// [`ServerError::Config`]. The settings are then those from before.
    pub fn set_config(&mut self, config: &ServerConfig) -> Result<(), ServerError> {
        self.own_keys.set_config(config)?;
        self.config = config.clone();
        Ok(())
    }

    /// Makes `present` the server's key: new invites name it, and joiners with a code receive it. Invites that name
    /// `before` still work; `None` ends that. The embedder has stored both keys.
    ///
    /// # Errors
    /// [`ServerError::Config`]. Nothing has changed then. Settings that were accepted before cause no error.
    pub fn set_keys(&mut self, present: StaticSecret, before: Option<StaticSecret>) -> Result<(), ServerError> {
        self.own_keys = OwnKeys::new(present, before, &self.config)?;
        Ok(())
    }

    /// Uses this implementation of ML-KEM instead of the default one.
    #[must_use]
    pub fn with_kem(self, kem: Kem) -> Self {
        Self { kem, ..self }
    }

    /// Gives joiners that can be members this public key of the network (Ed25519). Without one, or with a key of zeros,
    /// the server makes a star.
    #[must_use]
    pub fn with_network(self, key: impl Into<Option<[u8; 32]>>) -> Self {
        Self { network: key.into().filter(|key| *key != [0; 32]), ..self }
    }

    /// Handles a datagram for which [`is_enrolment`](crate::wire::is_enrolment) holds. It ignores all others.
    ///
    /// An unauthenticated datagram changes no durable state, gets no answer longer than itself, and ends no exchange of
    /// another sender.
    pub fn handle(
        &mut self,
        from: SocketAddr,
        datagram: &[u8],
        now: Now,
        rng: &mut impl CryptoRng,
        actions: &mut Vec<Action>,
    ) {
        match Message::parse(datagram) {
            Some(Message::Initiation(message)) => {
                self.handle_initiation(from, datagram, &message, now, rng, actions);
            }
            Some(Message::Share(message)) => self.handle_share(from, datagram, &message, now, rng, actions),
            Some(Message::Proof(message)) => self.handle_proof(from, datagram, &message, now, actions),
            Some(Message::Claim(message)) => self.handle_claim(from, datagram, &message, now, rng, actions),
            // These messages are sent by servers only.
            Some(
                Message::Response(_)
                | Message::Cookie(_)
                | Message::ShareReply(_)
                | Message::Welcome(_)
                | Message::Grant(_),
            )
            | None => return,
        }
        self.settle_window(now, actions);
    }

    /// Takes note of a completed WireGuard handshake: the peer's lease is confirmed and renewed.
    pub fn handshake_completed(&mut self, peer: &PublicKey, now: Now, actions: &mut Vec<Action>) {
        match self.ledger.confirm(peer, now) {
            Ok(true) => {
                let lease = self.ledger.lease(peer);
                actions
                    .extend(lease.map(|lease| Action::Audit(AuditRecord::of_lease(AuditEvent::Confirmed, lease, now))));
            }
            Ok(false) | Err(crate::ledger::LedgerError::UnknownPeer(_)) => {}
            Err(_) => {
                let record = AuditRecord::new(AuditEvent::Refused, now).reason(Reason::StoreFailed).peer(peer);
                actions.extend(self.tally.note(record, now.instant).map(Action::Audit));
            }
        }
    }

    /// Does everything that is due. Call it at [`Server::deadline`]. Extra calls are harmless.
    pub fn tick(&mut self, now: Now, actions: &mut Vec<Action>) {
        self.settle(now, actions);
        if self.retry.is_none_or(|retry| now.instant >= retry) {
            self.retry = None;
            let old_keys = self.ledger.old_keys();
            match self.ledger.expire(now) {
                Ok(ended) => {
                    if !ended.is_empty() || self.ledger.old_keys() != old_keys {
                        members_changed(actions);
                    }
                    for lease in ended {
                        self.announcements.forget(&lease.public_key);
                        actions.push(Action::RemovePeer(lease.public_key));
                        let record = AuditRecord::of_lease(AuditEvent::Removed, &lease, now).reason(why_ended(&lease));
                        actions.extend(self.note_of_invite(record, now).map(Action::Audit));
                    }
                }
                Err(_) => {
                    self.retry = Some(now.instant + RETRY_STORE);
                    let record = AuditRecord::new(AuditEvent::Refused, now).reason(Reason::StoreFailed);
                    actions.extend(self.tally.note(record, now.instant).map(Action::Audit));
                }
            }
        }
        actions.extend(self.tally.due(now.instant).into_iter().map(Action::Audit));
    }

    /// Reports the counted events that are not in the audit log yet. Call it before the server stops.
    pub fn stop(&mut self, actions: &mut Vec<Action>) {
        actions.extend(self.tally.rest().into_iter().map(Action::Audit));
    }

    /// The time at which [`Server::tick`] is due.
    pub fn deadline(&self) -> Option<Instant> {
        let ledger = self.ledger.deadline().map(|at| self.retry.map_or(at, |retry| at.max(retry)));
        let window = self.window.as_ref().map(|window| window.until);
        [ledger, window, self.sessions.deadline(), self.tally.deadline()].into_iter().flatten().min()
    }

    /// The peers to install on the device when it starts.
    pub fn peers(&self) -> impl Iterator<Item = PeerConfig> {
        self.ledger.leases().map(PeerConfig::of_lease)
    }

    /// The peer with this key.
    pub fn peer(&self, key: &PublicKey) -> Option<PeerConfig> {
        self.ledger.lease(key).map(PeerConfig::of_lease)
    }

    /// Invites and leases, for `status` and lists.
    pub fn ledger(&self) -> &Ledger<S> {
        &self.ledger
    }

    /// Ends the server and gives the ledger back.
    pub fn into_ledger(self) -> Ledger<S> {
        self.ledger
    }

    /// The server's public key, which invites and welcomes contain.
    pub fn public_key(&self) -> &PublicKey {
        &self.own_keys.present().public_key
    }

    /// Ends sessions and windows whose time is over.
    fn settle(&mut self, now: Now, actions: &mut Vec<Action>) {
        // Joiners that waited too long are told so before their sessions end.
        self.turn_away(|_, until| now.instant >= until, now.instant);
        self.sessions.retain(|session| now.instant < session.until);
        self.settle_window(now, actions);
    }

    fn settle_window(&mut self, now: Now, actions: &mut Vec<Action>) {
        if let Some(window) = &self.window {
            let serial = window.serial;
            if now.instant >= window.until {
                self.close_window(Reason::Time, now, actions);
            } else if window.attempts_left == 0
                && !self.sessions.iter().any(|session| session.is_guess_of(serial) && now.instant < session.until)
            {
                self.close_window(Reason::Attempts, now, actions);
            }
        }
        if self.ledger_window && self.window.is_none() && !self.sessions.iter().any(session::Session::needs_window) {
            self.ledger_window = false;
            self.ledger.window_closed();
        }
    }

    /// The record about a machine of an invite, if it is to be logged now: each use of the invite gets one line, and
    /// further records are counted.
    fn note_of_invite(&mut self, record: AuditRecord, now: Now) -> Option<AuditRecord> {
        let invite = record.token.and_then(|id| self.ledger.invite(&id));
        self.tally.note_of_invite(record, invite.map_or(0, |invite| invite.uses), now.instant)
    }

    /// Records a refusal. It sends no answer.
    fn refuse_silently(
        &mut self,
        reason: Reason,
        from: SocketAddr,
        token: Option<TokenId>,
        joiner: Option<&PublicKey>,
        now: Now,
        actions: &mut Vec<Action>,
    ) {
        let mut record = AuditRecord::new(AuditEvent::Refused, now).reason(reason).source(from).token(token);
        if let Some(joiner) = joiner {
            record = record.peer(joiner);
        }
        actions.extend(self.tally.note(record, now.instant).map(Action::Audit));
    }
}

impl<S> fmt::Debug for Server<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").field("public_key", &self.own_keys.present().public_key).finish_non_exhaustive()
    }
}

/// Why a lease ended without a command.
fn why_ended(lease: &Lease) -> Reason {
    if lease.is_pending() {
        Reason::NeverConfirmed
    } else if lease.ephemeral {
        Reason::Silent
    } else {
        Reason::Time
    }
}
