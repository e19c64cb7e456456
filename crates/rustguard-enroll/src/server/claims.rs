//! The claim, the last message of both protocols. It results in a lease, or in a refusal with its reason.
use super::{
    Server,
    session::{SESSION_TIME, Stage, Via},
};
use crate::{
    action::{Action, PeerConfig, members_changed},
    audit::{AuditEvent, AuditRecord, Reason},
    join_error::JoinError,
    kem,
    lease::{PresharedKey, TokenId},
    ledger::{Admission, Grant as Ground, Refusal, Request},
    payload::{Decision, GrantText, Joiner},
    schedule::{self, open, seal},
    store::LeaseStore,
    wire::{self, Claim, GRANT, Index},
};
use core::time::Duration;
use rand_core::CryptoRng;
use rustguard_core::time::Now;
use rustguard_crypto::hash;
use std::net::SocketAddr;
use zeroize::Zeroizing;

impl<S: LeaseStore> Server<S> {
    /// Handles a claim, which proves the joiner's WireGuard key and contains its ML-KEM key.
    pub(super) fn handle_claim(
        &mut self,
        from: SocketAddr,
        datagram: &[u8],
        claim: &Claim<'_>,
        now: Now,
        rng: &mut impl CryptoRng,
        actions: &mut Vec<Action>,
    ) {
        let chosen = self.kem;
        let Some(session) = self.sessions.get(&claim.session, now.instant) else { return };
        let hash = hash::hash(&[datagram]);
        if let Stage::Granted(answered, grant) = &session.stage {
            if *answered == hash && !self.undecided.contains(&claim.session) {
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
            let own = self.own_keys.of(&session.server);
            session.claim_keys = session.keys.claim(&own.secret, &joiner.public_key).ok();
        }
        // The result is `None` for a key of low order, which proves nothing.
        let opened = session.claim_keys.as_ref().and_then(|keys| {
            let header = &datagram[..datagram.len() - claim.text.len() - claim.tag.len()];
            let text = open(keys.key(), 0, header, claim.text, claim.tag)?;
            let key = <&[u8; kem::KEY_LEN]>::try_from(&text[..]).ok()?;
            let (ciphertext, shared) = chosen.encapsulate(key, rng).ok()?;
            Some((keys.grant(datagram, &ciphertext, &shared), ciphertext))
        });
        let Some((keys, ciphertext)) = opened else {
            self.refuse_silently(Reason::NoProof, from, token, Some(&joiner.public_key), now, actions);
            return;
        };
        let receiver = session.receiver;

        // The lease is durable on return, with the preshared key that the answer gives the joiner.
        let request = Request {
            public_key: joiner.public_key,
            name: joiner.name.clone(),
            preshared_key: PresharedKey::from_bytes(&keys.preshared_key),
            ephemeral: joiner.ephemeral,
            member: self.becomes_member(&joiner, now),
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
        if !self.ledger.staged().is_empty() {
            self.undecided.insert(claim.session);
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
        // The device already has the peer of an existing lease, so its sessions continue.
        if admission.changed {
            actions.push(Action::SetPeer(PeerConfig::of_lease(lease)));
            members_changed(actions);
        }
        let event = if admission.fresh { AuditEvent::Admitted } else { AuditEvent::Rejoined };
        let record = AuditRecord::of_lease(event, lease, now).source(from).token(token);
        let record =
            if admission.fresh { self.note_of_invite(record, now) } else { self.tally.note(record, now.instant) };
        actions.extend(record.map(Action::Audit));
        GrantText {
            decision: Decision::Accepted,
            ephemeral: lease.ephemeral,
            v4: lease.v4,
            v6: lease.v6,
            expires: lease.expires,
            preshared_key: Zeroizing::new(*lease.preshared_key.as_bytes()),
            network: self.network.filter(|_| lease.member),
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
            // The last five are already refused when the invite is made.
            Refusal::AddressTaken { .. }
            | Refusal::AddressUnusable(_)
            | Refusal::TwoAddresses(..)
            | Refusal::Tag(_)
            | Refusal::Tags(_)
            | Refusal::Prefix(_) => (Reason::AddressTaken, JoinError::AddressTaken),
            Refusal::Removed | Refusal::OldKey(_) => (Reason::RemovedPeer, JoinError::Removed),
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
