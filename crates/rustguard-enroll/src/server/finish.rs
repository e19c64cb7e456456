//! Messages of a session: the proof of a code, and the claim that ends in a lease.
use super::{
    Server,
    options::ApprovalCode,
    session::{APPROVAL_TIME, SESSION_TIME, Session, Stage, Via},
    window::MAX_ASKING,
};
use crate::{
    action::{Action, PeerConfig},
    audit::{AuditEvent, AuditRecord, Reason},
    client::JoinError,
    kem,
    lease::{Lease, Origin, PresharedKey, TokenId},
    ledger::{Admission, Grant as Ground, Refusal, Request},
    limits::Source,
    payload::{GrantText, Joiner, Verdict, short_greeting},
    schedule::{self, commitment, open, seal},
    store::LeaseStore,
    wire::{self, Claim, GRANT, Index, Proof, WELCOME},
};
use core::time::Duration;
use rand_core::CryptoRng;
use rustguard_core::time::Now;
use rustguard_crypto::hash;
use std::net::SocketAddr;
use zeroize::Zeroizing;

/// Joiners that may wait for approval at a time.
pub const MAX_WAITING: usize = 16;

impl<S: LeaseStore> Server<S> {
    /// The joiner proves that it knows the secret. Only now does the server prove anything itself.
    pub(super) fn handle_proof(
        &mut self,
        from: SocketAddr,
        datagram: &[u8],
        proof: &Proof<'_>,
        now: Now,
        actions: &mut Vec<Action>,
    ) {
        if self.sessions.get(&proof.session, now.instant).is_none() {
            return;
        }
        let waiting = self.pending_approvals();
        let Some(session) = self.sessions.get(&proof.session, now.instant) else { return };
        let hash = hash::hash(&[datagram]);
        if let Some((answered, welcome)) = &session.welcome {
            if *answered == hash {
                actions.push(Action::Send { to: from, bytes: welcome.clone() });
                if let Stage::Waiting { from: last, .. } = &mut session.stage {
                    *last = from;
                }
            }
            return;
        }
        let Via::Window { serial, source, commitment: committed, approve } = session.via.clone() else { return };
        let header = &datagram[..datagram.len() - proof.text.len() - proof.tag.len()];
        let Some(text) = open(session.keys.to_server(), 0, header, proof.text, proof.tag) else {
            // A wrong guess is over at once. From elsewhere it may be somebody who wants it to be.
            if Source::of(from.ip()) == source {
                self.sessions.remove(&proof.session);
                self.refuse_silently(Reason::WrongSecret, from, None, None, now, actions);
            }
            return;
        };
        let joiner = Joiner::from_proof(&text)
            .filter(|joiner| joiner.public_key != self.public_key && commitment(&text) == committed);
        let Some(joiner) = joiner else {
            self.sessions.remove(&proof.session);
            self.refuse_silently(Reason::Malformed, from, None, None, now, actions);
            return;
        };
        // It knew the secret: no guess. A proof that comes when its window has closed is the last one of it.
        let mut asked = MAX_ASKING;
        if let Some(window) = self.window.as_mut().filter(|window| window.serial == serial) {
            window.attempts_left += 1;
            window.joined = window.joined.saturating_add(1);
            asked = window.asked;
            window.asked = window.asked.saturating_add(1);
        }

        let mut record = AuditRecord::new(AuditEvent::ApprovalWanted, now).source(from);
        record = record.peer(&joiner.public_key).name(joiner.name.as_deref());
        session.joiner = Some(joiner);
        session.until = now.instant + SESSION_TIME;
        let code = session.keys.approval_code(&text);
        if !approve {
            session.stage = Stage::Welcomed;
            welcome(session, hash, &self.settings);
        } else if asked >= MAX_ASKING || waiting.len() >= MAX_WAITING || waiting.iter().any(|other| other.code == code)
        {
            // Two with the same digits could not be told apart; the second one tries again, with others.
            session.stage = Stage::Refused;
            welcome(session, hash, &short_greeting(Verdict::Refused(JoinError::QueueFull)));
            record.event = AuditEvent::Refused;
            actions.extend(self.tally.note(record.reason(Reason::QueueFull), now.instant).map(Action::Audit));
        } else {
            session.stage = Stage::Waiting { code, from };
            session.until = now.instant + APPROVAL_TIME;
            welcome(session, hash, &short_greeting(Verdict::Wait));
            actions.push(Action::Audit(record));
        }
        let bytes = session.welcome.as_ref().map(|(_, bytes)| bytes.clone());
        actions.extend(bytes.map(|bytes| Action::Send { to: from, bytes }));
    }

    /// Lets in who shows `code`. False if nobody does.
    pub(super) fn approve_session(&mut self, code: ApprovalCode, now: Now, actions: &mut Vec<Action>) -> bool {
        let waits = |session: &&mut Session| {
            matches!(session.stage, Stage::Waiting { code: other, .. } if other == code) && now.instant < session.until
        };
        let Some(session) = self.sessions.iter_mut().find(waits) else { return false };
        let Some((hash, _)) = session.welcome else { return false };
        let mut record = AuditRecord::new(AuditEvent::Approved, now);
        if let (Some(joiner), Stage::Waiting { from, .. }) = (&session.joiner, &session.stage) {
            record = record.peer(&joiner.public_key).name(joiner.name.as_deref()).source(*from);
        }
        session.stage = Stage::Welcomed;
        // It asks every second or two, and has to hear this before it can go on.
        session.until = now.instant + SESSION_TIME * 2;
        welcome(session, hash, &self.settings);
        actions.push(Action::Audit(record));
        true
    }

    /// The joiner claims its lease, which takes its WireGuard key and sends its ML-KEM key.
    pub(super) fn handle_claim(
        &mut self,
        from: SocketAddr,
        datagram: &[u8],
        claim: &Claim<'_>,
        now: Now,
        rng: &mut impl CryptoRng,
        actions: &mut Vec<Action>,
    ) {
        let Some(session) = self.sessions.get(&claim.session, now.instant) else { return };
        let hash = hash::hash(&[datagram]);
        if let Stage::Granted(answered, grant) = &session.stage {
            if *answered == hash {
                actions.push(Action::Send { to: from, bytes: grant.clone() });
            }
            return;
        }
        let (Stage::Welcomed, Some(joiner)) = (&session.stage, session.joiner.clone()) else { return };
        let (token, ground) = match &session.via {
            Via::Invite { id, .. } => (Some(*id), Ground::Invite(*id)),
            Via::Window { .. } => (None, Ground::Window),
        };
        if session.claim_keys.is_none() {
            session.claim_keys = session.keys.claim(&self.identity, &joiner.public_key).ok();
        }
        // None for a key of low order, which proves nothing.
        let opened = session.claim_keys.as_ref().and_then(|keys| {
            let header = &datagram[..datagram.len() - claim.text.len() - claim.tag.len()];
            let text = open(keys.key(), 0, header, claim.text, claim.tag)?;
            let key = <&[u8; kem::KEY_LEN]>::try_from(&text[..]).ok()?;
            let (ciphertext, shared) = kem::encapsulate(key, rng).ok()?;
            Some((keys.grant(datagram, &ciphertext, &shared), ciphertext))
        });
        let Some((keys, ciphertext)) = opened else {
            self.refuse_silently(Reason::NoProof, from, token, Some(&joiner.public_key), now, actions);
            return;
        };
        let receiver = session.receiver;

        // Durable when it returns, with the key that the answer lets the joiner use.
        let request = Request {
            public_key: joiner.public_key,
            name: joiner.name.clone(),
            preshared_key: PresharedKey::from_bytes(&keys.preshared_key),
            ephemeral: joiner.ephemeral,
            grant: ground,
        };
        let text = match self.ledger.admit(request, now) {
            Ok(admission) => self.admitted(&admission, from, token, now, actions),
            Err(refusal) => self.refused(&refusal, &joiner, from, token, now, actions),
        };
        let grant = grant_message(&receiver, &ciphertext, &keys, &text);
        if let Some(session) = self.sessions.get(&claim.session, now.instant) {
            session.stage = Stage::Granted(hash, grant.clone());
            session.until = now.instant + SESSION_TIME;
        }
        actions.push(Action::Send { to: from, bytes: grant });
    }

    fn admitted(
        &mut self,
        admission: &Admission,
        from: SocketAddr,
        token: Option<TokenId>,
        now: Now,
        actions: &mut Vec<Action>,
    ) -> GrantText {
        let lease = &admission.lease;
        // A lease that was there already has its peer, whose sessions go on.
        if admission.fresh {
            actions.push(Action::SetPeer(peer_config(lease)));
        }
        let event = if admission.fresh { AuditEvent::Admitted } else { AuditEvent::Rejoined };
        let record = about(event, lease, now).source(from).token(token);
        actions.extend(self.tally.note(record, now.instant).map(Action::Audit));
        GrantText {
            verdict: Verdict::Accepted,
            ephemeral: lease.ephemeral,
            v4: lease.v4,
            v6: lease.v6,
            expires: lease.expires,
            preshared_key: Zeroizing::new(*lease.preshared_key.as_bytes()),
        }
    }

    fn refused(
        &mut self,
        refusal: &Refusal,
        joiner: &Joiner,
        from: SocketAddr,
        token: Option<TokenId>,
        now: Now,
        actions: &mut Vec<Action>,
    ) -> GrantText {
        let time = self.ledger.time(now);
        let (reason, error) = match refusal {
            Refusal::Exhausted { next_free, .. } => {
                let wait = next_free.map(|free| Duration::from_secs(free.saturating_sub(time)));
                (Reason::PoolExhausted, JoinError::PoolExhausted(wait))
            }
            Refusal::Full(_) => (Reason::PoolExhausted, JoinError::PoolExhausted(None)),
            // The last two are refused when the invite is made.
            Refusal::AddressTaken { .. }
            | Refusal::AddressUnusable(_)
            | Refusal::TwoAddresses(..)
            | Refusal::Tag(_) => (Reason::AddressTaken, JoinError::AddressTaken),
            Refusal::Removed => (Reason::RemovedPeer, JoinError::Removed),
            Refusal::Used(_) => (Reason::UsedToken, JoinError::TokenSpent),
            Refusal::Expired(_) => (Reason::ExpiredToken, JoinError::TokenSpent),
            Refusal::Revoked(_) => (Reason::RevokedToken, JoinError::TokenSpent),
            Refusal::Unknown(_) => (Reason::UnknownToken, JoinError::TokenSpent),
            Refusal::Closed => (Reason::Time, JoinError::TokenSpent),
            Refusal::Store(_) => (Reason::StoreFailed, JoinError::ServerFailed),
        };
        self.refuse_silently(reason, from, token, Some(&joiner.public_key), now, actions);
        GrantText::refused(error)
    }
}

/// Answers the proof with this hash from now on.
pub(super) fn welcome(session: &mut Session, proof: [u8; 32], greeting: &[u8]) {
    let counter = session.welcomes;
    session.welcomes += 1;
    let mut message = wire::build(WELCOME, &[&session.receiver, &counter.to_le_bytes()]);
    seal(session.keys.to_client(), counter, &mut message, greeting);
    session.welcome = Some((proof, message));
}

/// The peer of a lease.
pub(super) fn peer_config(lease: &Lease) -> PeerConfig {
    PeerConfig {
        public_key: lease.public_key,
        preshared_key: Zeroizing::new(*lease.preshared_key.as_bytes()),
        allowed_ips: lease.addresses().map(Into::into).collect(),
        name: lease.name.clone(),
    }
}

/// A record that says which lease it is about, and by which invite it came.
pub(super) fn about(event: AuditEvent, lease: &Lease, now: Now) -> AuditRecord {
    let token = if let Origin::Invite(id) = lease.origin { Some(id) } else { None };
    let record = AuditRecord::new(event, now).peer(&lease.public_key).name(lease.name.as_deref()).token(token);
    record.addresses(lease.addresses())
}

fn grant_message(
    receiver: &Index,
    ciphertext: &[u8; kem::CIPHERTEXT_LEN],
    keys: &schedule::GrantKeys,
    text: &GrantText,
) -> Vec<u8> {
    let mut message = wire::build(GRANT, &[receiver, ciphertext]);
    seal(&keys.grant, 0, &mut message, &*text.write());
    message
}
