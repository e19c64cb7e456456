//! Joiners that wait until an administrator has compared their digits.
use super::{
    Server,
    error::ServerError,
    options::PendingApproval,
    session::{SESSION_TIME, Session, Stage},
};
use crate::{
    action::Action,
    approval::ApprovalCode,
    audit::{AuditEvent, AuditRecord},
    join_error::JoinError,
    payload::{Decision, short_greeting},
    store::LeaseStore,
};
use rustguard_core::time::{Instant, Now};

/// The largest number of joiners that may wait for approval at a time.
pub const MAX_WAITING: usize = 16;

impl<S: LeaseStore> Server<S> {
    /// The joiners that wait for approval.
    pub fn pending_approvals(&self) -> Vec<PendingApproval> {
        let waiting = self.sessions.iter().filter_map(|session| {
            let (Stage::Waiting { code, from }, Some(joiner)) = (&session.stage, &session.joiner) else { return None };
            Some(PendingApproval {
                code: *code,
                name: joiner.name.clone(),
                public_key: joiner.public_key,
                source: *from,
                until: session.until,
            })
        });
        waiting.collect()
    }

    /// Admits the joiner that shows this code.
    ///
    /// # Errors
    /// [`ServerError::NobodyWaits`].
    pub fn approve(&mut self, code: ApprovalCode, now: Now, actions: &mut Vec<Action>) -> Result<(), ServerError> {
        let waits = |session: &&mut Session| {
            matches!(session.stage, Stage::Waiting { code: other, .. } if other == code) && now.instant < session.until
        };
        let Some(session) = self.sessions.iter_mut().find(waits) else { return Err(ServerError::NobodyWaits(code)) };
        let Some((hash, _)) = session.welcome else { return Err(ServerError::NobodyWaits(code)) };
        let mut record = AuditRecord::new(AuditEvent::Approved, now);
        if let (Some(joiner), Stage::Waiting { from, .. }) = (&session.joiner, &session.stage) {
            record = record.peer(&joiner.public_key).name(joiner.name.as_deref()).source(*from);
        }
        session.stage = Stage::Welcomed;
        // The joiner asks every second or two, and must receive the approval before it can continue.
        session.until = now.instant + SESSION_TIME * 2;
        session.answer_proof(hash, &self.own_keys.of(&session.server).settings);
        actions.push(Action::Audit(record));
        Ok(())
    }

    /// Refuses the joiner that shows this code. It is told so, and may ask again while the window is open. Returns its
    /// name, if it gave one.
    ///
    /// # Errors
    /// [`ServerError::NobodyWaits`].
    pub fn refuse(
        &mut self,
        code: ApprovalCode,
        now: Now,
        actions: &mut Vec<Action>,
    ) -> Result<Option<String>, ServerError> {
        let joiner =
            self.pending_approvals().into_iter().find(|waiting| waiting.code == code && now.instant < waiting.until);
        let joiner = joiner.ok_or(ServerError::NobodyWaits(code))?;
        self.turn_away(|other, _| other == code, now.instant);
        let record = AuditRecord::new(AuditEvent::ApprovalRefused, now).peer(&joiner.public_key);
        actions.push(Action::Audit(record.name(joiner.name.as_deref()).source(joiner.source)));
        Ok(joiner.name)
    }

    /// Refuses the waiting joiners whose code and time limit `whom` selects. They are told in the answer to their next
    /// question, a second or two later. Returns whether there were any.
    pub(super) fn turn_away(&mut self, whom: impl Fn(ApprovalCode, Instant) -> bool, now: Instant) -> bool {
        let mut any = false;
        for session in self.sessions.iter_mut() {
            if let Stage::Waiting { code, .. } = session.stage
                && whom(code, session.until)
            {
                session.stage = Stage::Refused;
                session.until = now + SESSION_TIME;
                if let Some((proof, _)) = session.welcome {
                    session.answer_proof(proof, &short_greeting(Decision::Refused(JoinError::NotApproved)));
                }
                any = true;
            }
        }
        any
    }
}
