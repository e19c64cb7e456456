//! The statements of members about themselves: repeated to servers until they have stored them, and accepted on the
//! issuing server.

use super::{Exchange, Output};
use crate::{member::Role, message::Body, statement::Statement};
use rustguard_core::{limit::Rate, time::Instant};
use rustguard_crypto::x25519::PublicKey;
use std::time::Duration;

/// How many statements are accepted from one member, and from all of them. Each new statement is written to the disk.
const STATEMENTS_OF_ONE: Rate = Rate { interval: Duration::from_secs(10), burst: 8 };
const STATEMENTS_OF_ALL: Rate = Rate { interval: Duration::from_millis(50), burst: 1_000 };

impl Exchange {
    /// Sets this member's statement about itself. It is repeated to servers until they have stored it. A statement that
    /// does not [fit](Statement::check) is not sent.
    pub fn state(&mut self, statement: Statement, now: Instant) {
        if statement.check().is_ok() && self.reports.set(statement) {
            self.tell_servers(false, now);
        }
    }

    /// Whether a server has stored this member's last statement about itself.
    pub fn is_stated(&self) -> bool {
        self.reports.is_acknowledged()
    }

    /// The statement of a member is stored: the member gets an acknowledgement.
    pub fn stored(&mut self, member: &PublicKey, statement: &Statement) {
        let digest = statement.digest();
        if let Some(peer) = self.peers.get_mut(&member.0) {
            peer.stored = Some(digest);
            self.send(member, Body::Acknowledge(digest));
        }
    }

    /// Begins to send the statement to the connected servers: to all of them, or only to new ones.
    pub(super) fn tell_servers(&mut self, only_new: bool, now: Instant) {
        let servers: Vec<_> = self.peers.keys().map(|key| PublicKey(*key)).filter(|key| self.is_server(key)).collect();
        for server in servers {
            if !only_new || !self.reports.knows(&server) {
                self.reports.begin(&server, now);
            }
        }
        self.state_now(now);
    }

    /// Sends the statement to the servers for which it is due.
    pub(super) fn state_now(&mut self, now: Instant) {
        let Some((servers, statement)) = self.reports.due(now) else { return };
        let body = Body::Report(statement.clone());
        for server in servers {
            self.send(&server, body.clone());
        }
    }

    /// Takes a member's statement about itself.
    pub(super) fn take_statement(&mut self, from: &PublicKey, statement: Statement, now: Instant) {
        let member = self.roster.as_ref().and_then(|roster| roster.member(from).map(|member| member.role));
        let is_member = member.is_some_and(|role| !matches!(role, Role::Client(_)));
        let Some(peer) = self.peers.get_mut(&from.0).filter(|_| self.takes_statements && is_member) else { return };
        if !peer.statements.take(STATEMENTS_OF_ONE, now) || !self.statements.take(STATEMENTS_OF_ALL, now) {
            return;
        }
        let digest = statement.digest();
        if peer.stored == Some(digest) {
            // Only the answer was lost.
            self.send(from, Body::Acknowledge(digest));
        } else {
            self.outputs.push_back(Output::Statement { from: *from, statement });
        }
    }
}
