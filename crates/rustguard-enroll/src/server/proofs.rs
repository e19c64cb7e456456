//! The proof of a code or passphrase, and the welcome that answers it.
use super::{
    Server,
    approvals::MAX_WAITING,
    session::{APPROVAL_TIME, SESSION_TIME, Stage, Via},
    window::MAX_ASKING,
};
use crate::{
    action::Action,
    audit::{AuditEvent, AuditRecord, Reason},
    join_error::JoinError,
    limits::Source,
    payload::{Decision, Joiner, short_greeting},
    schedule::{commitment, open},
    store::LeaseStore,
    wire::Proof,
};
use rustguard_core::time::Now;
use rustguard_crypto::hash;
use std::net::SocketAddr;

impl<S: LeaseStore> Server<S> {
    /// Handles the joiner's proof that it knows the secret. The server proves nothing before this.
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
            // A wrong proof ends the session at once. A proof from another source does not, because it may be forged to
            // end the session.
            if Source::of(from.ip()) == source {
                self.sessions.remove(&proof.session);
                self.refuse_silently(Reason::WrongSecret, from, None, None, now, actions);
            }
            return;
        };
        let joiner = Joiner::from_proof(&text)
            .filter(|joiner| !self.own_keys.contains(&joiner.public_key) && commitment(&text) == committed);
        let Some(joiner) = joiner else {
            self.sessions.remove(&proof.session);
            self.refuse_silently(Reason::Malformed, from, None, None, now, actions);
            return;
        };
        // The joiner knew the secret, so its guess is given back. A proof may still arrive after its window has closed.
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
            let own = self.own_keys.of(&session.server);
            session.answer_proof(hash, &own.settings);
        } else if asked >= MAX_ASKING || waiting.len() >= MAX_WAITING || waiting.iter().any(|other| other.code == code)
        {
            // Two joiners with the same digits cannot be distinguished. The second one tries again and gets other
            // digits.
            session.stage = Stage::Refused;
            session.answer_proof(hash, &short_greeting(Decision::Refused(JoinError::QueueFull)));
            record.event = AuditEvent::Refused;
            actions.extend(self.tally.note(record.reason(Reason::QueueFull), now.instant).map(Action::Audit));
        } else {
            session.stage = Stage::Waiting { code, from };
            session.until = now.instant + APPROVAL_TIME;
            session.answer_proof(hash, &short_greeting(Decision::Wait));
            actions.push(Action::Audit(record));
        }
        let bytes = session.welcome.as_ref().map(|(_, bytes)| bytes.clone());
        actions.extend(bytes.map(|bytes| Action::Send { to: from, bytes }));
    }
}
