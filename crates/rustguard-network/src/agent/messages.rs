//! A member's reports about its network: in the log, and for `status`.

use super::{Agent, standby};
use crate::{
    merge,
    policy::{Enforced, enforced},
    report::{Report, Standing, listed},
};
use rustguard_crypto::x25519::PublicKey;
use rustguard_roster::{
    member::Role,
    roster::{Changes, Roster},
};
use std::collections::BTreeSet;

/// The most refusals that are logged at once. `status` has all.
const LOGGED: usize = 16;

impl Agent {
    /// The roster contains this machine. Its name there may differ from the one that it asked for.
    pub(super) fn is_member(&mut self, roster: &Roster) {
        let own_name = roster.holder(&self.own_key()).map(|member| member.name.to_string());
        let before = std::mem::replace(&mut self.standing, Standing::Member);
        let Some(own_name) = own_name else { return };
        if before != Standing::Member {
            let (name, count) = (&roster.settings().name, roster.members().len());
            tracing::info!("{}: member of the network {name} as {own_name}; it has {count} members", self.interface);
        } else if self.report.own_name.as_ref().is_some_and(|before| *before != own_name) {
            tracing::info!("{}: this machine is called {own_name} in the network from now on", self.interface);
        }
    }

    /// The administrator and the owner have to agree that this machine is a server.
    pub(super) fn compare_role(&mut self, roster: &Roster) {
        let Some(role) = roster.holder(&self.own_key()).map(|member| member.role) else { return };
        let (interface, forwards) = (&self.interface, merge::forwards(&self.base));
        if self.said.replace((role, forwards)) == Some((role, forwards)) {
            return;
        }
        match (role, forwards) {
            (Role::Server, true) => tracing::info!("{interface}: this machine is a server of the network"),
            (Role::Server, false) => tracing::warn!(
                "{interface}: the network has this machine as a server, and its file does not: `Forward = on`, `ListenPort` and \
                 `PublicEndpoint` make it one, after `rustguard down {interface}` and `up`"
            ),
            (_, true) => tracing::warn!(
                "{interface}: this machine offers to be a server of the network, which has it as a member: an invite for a server \
                 (`rustguard invite new --server`) admits it"
            ),
            (_, false) => {}
        }
    }

    /// Takes the policy for this machine from the newest roster. Returns whether it has changed. A roster without this
    /// machine changes nothing.
    pub(super) fn follow_policy(&mut self) -> bool {
        let now = self.roster().and_then(|roster| enforced(roster, &self.own_key()));
        let Some(now) = now.filter(|now| *now != self.enforced) else { return false };
        let interface = &self.interface;
        match &now {
            Enforced::Everything => {
                tracing::info!("{interface}: the network has no policy any more: everybody may talk to this machine");
            }
            Enforced::Rules(rules) => {
                tracing::info!(
                    "{interface}: {} rules of the network's policy say what may come to this machine",
                    rules.len()
                );
            }
            Enforced::Nothing => tracing::warn!(
                "{interface}: the network has a policy that this version cannot read: nothing may come to this machine until it has a \
                 newer version"
            ),
        }
        self.enforced = now;
        true
    }

    /// Logs which members came and went.
    pub(super) fn tell(&self, before: &Roster, roster: &Roster, changes: &Changes) {
        let interface = &self.interface;
        let is_new = |key: &&PublicKey| {
            let old_key = roster.member(key).and_then(|member| member.old_key);
            old_key.is_none_or(|old_key| before.member(&old_key).is_none())
        };
        let (added, rekeyed): (Vec<_>, Vec<_>) = changes.added.iter().partition(is_new);
        let said = [
            ("is new in the network", roster, &added),
            ("has another key in the network", roster, &rekeyed),
            ("has other settings in the network", roster, &changes.changed),
            ("belongs to the network no more", before, &changes.removed),
        ];
        let own: Vec<_> = roster.holder(&self.own_key()).into_iter().flat_map(|member| member.keys()).collect();
        for (what, roster, keys) in said {
            let others: Vec<_> = keys.iter().filter(|key| !own.contains(key)).collect();
            let named = others.iter().filter_map(|key| roster.member(key)).take(LOGGED);
            named.for_each(|member| tracing::info!("{interface}: {} {what}", member.name));
            if others.len() > LOGGED {
                let left = others.len() - LOGGED;
                tracing::info!("{interface}: {left} more; `rustguard status {interface}` has all members");
            }
        }
    }

    /// Logs each refusal once, until it no longer applies.
    pub(super) fn take_refused(&mut self, refused: Vec<String>) {
        let refused: BTreeSet<_> = refused.into_iter().collect();
        let new: Vec<_> = refused.difference(&self.refused).collect();
        new.iter().take(LOGGED).for_each(|why| tracing::warn!("{}: not taken: {why}", self.interface));
        if new.len() > LOGGED {
            let left = new.len() - LOGGED;
            tracing::warn!("{0}: not taken: {left} more; `rustguard status {0}` has all", self.interface);
        }
        self.refused = refused;
    }

    /// Logs once what the host refused.
    pub(super) fn leave_out(&mut self, why: String) {
        if self.left_out.as_ref() != Some(&why) {
            tracing::warn!("{}: not taken: {why}", self.interface);
        }
        self.left_out = Some(why);
    }

    /// Writes the report about the network for `status` ([`Report`]). [`follow`](Agent::follow) does this. After a file
    /// of [`set_file`](Agent::set_file) was adopted or refused, the caller has to.
    pub fn write_report(&self) {
        let refused = self.refused.iter().chain(&self.left_out).cloned().collect();
        let mut report = Report {
            standing: self.standing,
            key: self.network.to_string(),
            standby: standby::is_wanted(&self.base),
            server_state: self.kept.map(|made| made / 1_000),
            refused,
            ..self.report.clone()
        };
        // The list grows with the network, so it is not kept in memory.
        if self.standing == Standing::Member {
            report.list = self.applied.as_ref().map(|roster| listed(roster)).unwrap_or_default();
        }
        if let Err(error) = report.write(&self.interface) {
            tracing::debug!("{}: the report for `status`: {error}", self.interface);
        }
    }
}
