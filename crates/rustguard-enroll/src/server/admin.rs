//! An administrator's commands.
use super::{
    Server,
    error::ServerError,
    options::{InviteOptions, MAX_WINDOW, NewPeer, OpenOptions, Opened, WindowStatus},
    session::{Stage, Via},
    window::{MAX_ATTEMPTS, Window},
};
use crate::{
    action::{Action, PeerConfig, members_changed},
    audit::{AuditEvent, AuditRecord, Reason},
    lease::{Lease, NewInvite, Origin, PresharedKey, TokenId},
    ledger::{Grant, LedgerError, Request},
    pake::{self, WindowSecret},
    store::LeaseStore,
    token::{Code, Invite},
};
use core::time::Duration;
use ipnet::IpNet;
use rand_core::CryptoRng;
use rustguard_core::{
    cookie::{self, Checker},
    time::Now,
};
use rustguard_crypto::x25519::PublicKey;
use zeroize::Zeroizing;

/// Windows.
impl<S: LeaseStore> Server<S> {
    /// Opens a window. A server has one window at a time. Its secret is kept in memory only.
    ///
    /// # Errors
    /// [`ServerError::WindowDuration`], [`ServerError::WindowOpen`].
    pub fn open(
        &mut self,
        options: OpenOptions,
        now: Now,
        rng: &mut impl CryptoRng,
        actions: &mut Vec<Action>,
    ) -> Result<Opened, ServerError> {
        let OpenOptions { duration, passphrase, approve } = options;
        if !(Duration::from_secs(1)..=MAX_WINDOW).contains(&duration) {
            return Err(ServerError::WindowDuration);
        }
        self.settle(now, actions);
        if self.window.is_some() {
            return Err(ServerError::WindowOpen);
        }
        let (secret, code) = match passphrase {
            Some(passphrase) => (WindowSecret::Passphrase(passphrase), None),
            None => {
                let code = Code::generate(rng);
                (WindowSecret::Code(code.clone()), Some(code))
            }
        };
        let until = now.instant + duration;
        // Cookies in shares that were recorded in another window become invalid.
        self.cookies = cookie::Secret::new(now.instant, rng);
        self.windows += 1;
        self.window = Some(Window {
            serial: self.windows,
            checker: Checker::new(&pake::LABELS, &secret.mac_key()),
            secret,
            until,
            approve,
            attempts_left: MAX_ATTEMPTS,
            joined: 0,
            asked: 0,
        });
        self.ledger.window_opened();
        self.ledger_window = true;
        actions.push(Action::Audit(AuditRecord::new(AuditEvent::WindowOpened, now)));
        Ok(Opened { code, until })
    }

    /// Closes the window and refuses the joiners that wait for approval. Returns false if no window is open and no
    /// joiner waits.
    pub fn close(&mut self, now: Now, actions: &mut Vec<Action>) -> bool {
        self.settle(now, actions);
        let waited = self.turn_away(|_, _| true, now.instant);
        let open = self.window.is_some();
        if open {
            self.close_window(Reason::Command, now, actions);
        }
        // All exchanges of the window end. A grant that was sent can still be repeated.
        self.sessions.retain(|session| {
            matches!(session.via, Via::Invite { .. }) || matches!(session.stage, Stage::Granted(..) | Stage::Refused)
        });
        self.settle(now, actions);
        open || waited
    }

    /// The open window.
    pub fn window(&self) -> Option<WindowStatus> {
        self.window.as_ref().map(Window::status)
    }

    pub(super) fn close_window(&mut self, reason: Reason, now: Now, actions: &mut Vec<Action>) {
        let Some(window) = self.window.take() else { return };
        // Guesses end with the window, so that a closed window is silent.
        self.sessions.retain(|session| !session.is_guess_of(window.serial));
        actions.push(Action::Audit(AuditRecord::new(AuditEvent::WindowClosed, now).reason(reason)));
    }
}

/// Invites.
impl<S: LeaseStore> Server<S> {
    /// Makes an invite. The server keeps only the public half of its key, so a lost text cannot be shown again.
    ///
    /// # Errors
    /// [`ServerError::Star`], [`ServerError::Token`], [`ServerError::Ledger`].
    pub fn new_invite(
        &mut self,
        options: InviteOptions,
        now: Now,
        rng: &mut impl CryptoRng,
        actions: &mut Vec<Action>,
    ) -> Result<Invite, ServerError> {
        let InviteOptions { uses, expires, terms, endpoints } = options;
        if terms.server.is_server() && self.network.is_none() {
            return Err(ServerError::Star);
        }
        let invite = Invite::generate(*self.public_key(), endpoints, rng)?;
        let id = invite.id();
        let new = NewInvite { id, public_key: invite.public_key(), lifetime: expires, uses, terms };
        self.ledger.add_invite(new, now)?;
        actions.push(Action::Audit(AuditRecord::new(AuditEvent::InviteMade, now).token(Some(id))));
        Ok(invite)
    }

    /// Revokes an invite. Peers that joined by it stay.
    ///
    /// # Errors
    /// [`ServerError::Ledger`].
    pub fn revoke_invite(&mut self, id: &TokenId, now: Now, actions: &mut Vec<Action>) -> Result<(), ServerError> {
        self.ledger.revoke_invite(id, now)?;
        actions.push(Action::Audit(AuditRecord::new(AuditEvent::InviteRevoked, now).token(Some(*id))));
        Ok(())
    }
}

/// Peers.
impl<S: LeaseStore> Server<S> {
    /// Adds a peer by hand, for the configuration of a stock WireGuard app. The lease has its addresses and preshared
    /// key.
    ///
    /// # Errors
    /// [`ServerError::OwnKey`], [`ServerError::Refused`].
    pub fn add_peer(
        &mut self,
        public_key: PublicKey,
        peer: NewPeer,
        now: Now,
        rng: &mut impl CryptoRng,
        actions: &mut Vec<Action>,
    ) -> Result<Lease, ServerError> {
        // A roster with one key twice is invalid.
        if self.own_keys.contains(&public_key) {
            return Err(ServerError::OwnKey);
        }
        let NewPeer { name, terms, within } = peer;
        let mut preshared_key = Zeroizing::new([0; 32]);
        rng.fill_bytes(&mut *preshared_key);
        let request = Request {
            public_key,
            name,
            preshared_key: PresharedKey::from_bytes(&preshared_key),
            ephemeral: terms.ephemeral,
            member: false,
            grant: match within {
                Some(within) => Grant::Guest(terms, within),
                None => Grant::Admin(terms),
            },
        };
        let admission = self.ledger.admit(request, now)?;
        if admission.changed {
            actions.push(Action::SetPeer(PeerConfig::of_lease(&admission.lease)));
            members_changed(actions);
        }
        actions.push(Action::Audit(AuditRecord::of_lease(AuditEvent::PeerAdded, &admission.lease, now)));
        Ok(admission.lease)
    }

    /// Withdraws the grant that admitted a peer: revokes its invite, or closes the window. Other peers that it admitted
    /// stay.
    ///
    /// # Errors
    /// [`ServerError::Ledger`].
    pub fn withdraw_grant(&mut self, peer: &PublicKey, now: Now, actions: &mut Vec<Action>) -> Result<(), ServerError> {
        let lease = self.ledger.lease(peer).ok_or(LedgerError::UnknownPeer(*peer))?;
        match lease.origin {
            // The record of the invite may have been deleted already.
            Origin::Invite(id) if self.ledger.invite(&id).is_some() => self.revoke_invite(&id, now, actions)?,
            Origin::Window => {
                self.close(now, actions);
            }
            Origin::Invite(_) | Origin::Admin => {}
        }
        Ok(())
    }

    /// Removes a peer and returns its former lease. Only newer grants admit its key again. A machine with a new key is
    /// another peer. To keep it out, withdraw the grant as well: [`Server::withdraw_grant`].
    ///
    /// # Errors
    /// [`ServerError::Ledger`].
    pub fn remove_peer(&mut self, peer: &PublicKey, now: Now, actions: &mut Vec<Action>) -> Result<Lease, ServerError> {
        self.put_out(peer, Reason::Command, now, actions)
    }

    /// Removes a member that has left, as [`remove_peer`](Self::remove_peer) does.
    ///
    /// # Errors
    /// [`ServerError::Ledger`].
    pub fn left(&mut self, peer: &PublicKey, now: Now, actions: &mut Vec<Action>) -> Result<Lease, ServerError> {
        self.put_out(peer, Reason::Left, now, actions)
    }

    fn put_out(
        &mut self,
        peer: &PublicKey,
        reason: Reason,
        now: Now,
        actions: &mut Vec<Action>,
    ) -> Result<Lease, ServerError> {
        let lease = self.ledger.remove(peer, now)?;
        self.announcements.forget(peer);
        // The tombstone would refuse an exchange in progress. The answer to a finished exchange must not be repeated.
        self.sessions.retain(|session| session.joiner.as_ref().is_none_or(|joiner| joiner.public_key != *peer));
        actions.push(Action::RemovePeer(*peer));
        members_changed(actions);
        let record = AuditRecord::of_lease(AuditEvent::Removed, &lease, now).reason(reason);
        match reason {
            // Machines may join and leave repeatedly with one invite.
            Reason::Left => actions.extend(self.note_of_invite(record, now).map(Action::Audit)),
            _ => actions.push(Action::Audit(record)),
        }
        Ok(lease)
    }

    /// Renames a peer.
    ///
    /// # Errors
    /// [`ServerError::Ledger`].
    pub fn rename_peer(
        &mut self,
        peer: &PublicKey,
        name: &str,
        now: Now,
        actions: &mut Vec<Action>,
    ) -> Result<(), ServerError> {
        self.ledger.rename(peer, name, now)?;
        self.peer_changed(peer, AuditEvent::Renamed, (&[], &[]), now, actions);
        Ok(())
    }

    /// Admits prefixes behind a peer ([`Ledger::allow`](crate::ledger::Ledger::allow)).
    ///
    /// # Errors
    /// [`ServerError::Ledger`].
    pub fn allow_prefixes(
        &mut self,
        peer: &PublicKey,
        prefixes: &[IpNet],
        default_route: bool,
        now: Now,
        actions: &mut Vec<Action>,
    ) -> Result<(), ServerError> {
        if self.ledger.allow(peer, prefixes, default_route, now)? {
            self.peer_changed(peer, AuditEvent::PrefixesAllowed, (prefixes, &[]), now, actions);
        }
        Ok(())
    }

    /// Takes prefixes back that were admitted.
    ///
    /// # Errors
    /// [`ServerError::Ledger`].
    pub fn deny_prefixes(
        &mut self,
        peer: &PublicKey,
        prefixes: &[IpNet],
        now: Now,
        actions: &mut Vec<Action>,
    ) -> Result<(), ServerError> {
        if self.ledger.deny(peer, prefixes, now)? {
            self.peer_changed(peer, AuditEvent::PrefixesDenied, (prefixes, &[]), now, actions);
        }
        Ok(())
    }

    /// Gives a peer tags.
    ///
    /// # Errors
    /// [`ServerError::Ledger`].
    pub fn tag_peer(
        &mut self,
        peer: &PublicKey,
        tags: &[String],
        now: Now,
        actions: &mut Vec<Action>,
    ) -> Result<(), ServerError> {
        if self.ledger.tag(peer, tags, now)? {
            self.peer_changed(peer, AuditEvent::Tagged, (&[], tags), now, actions);
        }
        Ok(())
    }

    /// Takes tags from a peer.
    ///
    /// # Errors
    /// [`ServerError::Ledger`].
    pub fn untag_peer(
        &mut self,
        peer: &PublicKey,
        tags: &[String],
        now: Now,
        actions: &mut Vec<Action>,
    ) -> Result<(), ServerError> {
        if self.ledger.untag(peer, tags, now)? {
            self.peer_changed(peer, AuditEvent::Untagged, (&[], tags), now, actions);
        }
        Ok(())
    }

    /// Passes a change of a peer to the device, the roster and the audit log, which records the affected prefixes or
    /// tags.
    fn peer_changed(
        &mut self,
        peer: &PublicKey,
        event: AuditEvent,
        (prefixes, tags): (&[IpNet], &[String]),
        now: Now,
        actions: &mut Vec<Action>,
    ) {
        let Some(lease) = self.ledger.lease(peer) else { return };
        actions.push(Action::SetPeer(PeerConfig::of_lease(lease)));
        members_changed(actions);
        let record = AuditRecord::of_lease(event, lease, now).prefixes(prefixes).tags(tags);
        actions.push(Action::Audit(record));
    }
}
