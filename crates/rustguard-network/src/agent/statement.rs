//! This machine's statement about itself to the servers of its network.

use super::{Agent, Running};
use crate::merge;
use rustguard_quick::conf::Config;
use rustguard_roster::{
    member::Role,
    statement::{NewKey, Statement},
};
use std::collections::BTreeSet;

impl Agent {
    /// This machine's statement about itself.
    pub(super) fn statement(&self) -> Statement {
        let own_key = self.own_key();
        let next = self.identity.next().map(|next| {
            // It is unknown which of the servers issues the roster. This machine joined at the one in the file.
            let of_roster = self.roster().into_iter().flat_map(|roster| roster.members());
            let of_roster = of_roster.filter(|member| member.role == Role::Server).map(|member| member.public_key);
            let servers: BTreeSet<_> = of_roster.chain(self.base.peers.iter().map(|peer| peer.public_key)).collect();
            NewKey::new(next, &self.network, &own_key, servers)
        });
        statement(&self.base).with_new_key(next).with_program(env!("CARGO_PKG_VERSION"))
    }

    /// Sends the servers the present statement of this machine.
    pub(super) fn state_anew(&mut self) {
        let statement = self.statement();
        if let Running::On(driver, _) = &mut self.running {
            driver.state(statement);
        }
    }
}

/// The prefixes and endpoints that the file offers to the other members.
fn statement(base: &Config) -> Statement {
    let offered = Statement::new(base.interface.announce.iter().copied());
    if !merge::forwards(base) {
        return offered;
    }
    let endpoints = base.interface.public_endpoints.iter().filter_map(|endpoint| endpoint.to_string().parse().ok());
    offered.with_endpoints(endpoints)
}
