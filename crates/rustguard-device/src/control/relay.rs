//! The relay policy: which packets the workers may pass from peer to peer at this moment.
//!
//! With [`Relay::Auto`], a worker relays only what the kernel would forward to another peer anyway. The kernel is asked
//! for each pair of source and destination, so that routes, rules, local addresses and the forwarding switches keep
//! their meaning ([`RouteCache`]). Until the answer is there, the kernel forwards the packets itself.
//!
//! In every mode, nothing is relayed while netfilter has rules that a forwarded packet would meet ([`RelayGate`]):
//! relayed packets do not pass netfilter.

mod gate;
pub(super) mod route_cache;

use crate::{
    interface::Interface,
    kernel::{ForwardRules, local_addresses},
    relay::{Relay, RelayRule},
    settings::Settings,
    shared::{Shared, to_control::RouteQuestion},
    status::RelayStatus,
};
use gate::RelayGate;
use route_cache::{RouteAnswer, RouteCache, remember};
use std::{net::IpAddr, sync::Arc};
use tokio::sync::mpsc;

/// The setting, and what the kernel has said about it.
pub(super) struct RelayPolicy {
    /// The rule that workers would apply with the gate open.
    rule: RelayRule,
    /// The rule follows the host's addresses.
    follows_addresses: bool,
    gate: RelayGate,
    routes: RouteCache,
    /// The channel for the host's addresses, after they were listed.
    addresses: mpsc::Sender<Vec<IpAddr>>,
}

/// The channels for the kernel's answers.
pub(super) struct RelayAnswers {
    pub(super) addresses: mpsc::Sender<Vec<IpAddr>>,
    pub(super) routes: mpsc::Sender<RouteAnswer>,
    pub(super) rules: mpsc::Sender<ForwardRules>,
}

impl RelayPolicy {
    pub(super) fn new(settings: &Settings, interface: Option<&Interface>, answers: RelayAnswers) -> Self {
        let relay = &settings.relay;
        let gate = match interface {
            Some(interface) if !settings.relay_unfiltered => RelayGate::new(relay, interface, answers.rules),
            _ => RelayGate::always_open(),
        };
        Self {
            rule: relay.clone().into(),
            follows_addresses: *relay == Relay::ByEngine,
            gate,
            routes: RouteCache::new(interface.map(|interface| interface.index), answers.routes),
            addresses: answers.addresses,
        }
    }

    /// The rule that the workers are to apply now.
    pub(super) fn rule(&self) -> RelayRule {
        match &self.rule {
            RelayRule::Always { .. } if !self.gate.is_open() => RelayRule::Never,
            // While the gate is closed, no answer about routes permits anything.
            rule => rule.clone(),
        }
    }

    pub(super) fn status(&self) -> RelayStatus {
        match (&self.rule, &self.gate.rules) {
            (RelayRule::Isolate, _) => RelayStatus::Isolated,
            (RelayRule::Never, _) if !self.follows_addresses => RelayStatus::Off,
            (_, ForwardRules::None) => RelayStatus::On,
            (_, ForwardRules::Unknown) => RelayStatus::Unknown,
            (_, ForwardRules::Seen(what)) => RelayStatus::Rules(what.clone()),
        }
    }

    /// Takes netfilter's rules. Returns whether they have changed, so that the relay rule may differ.
    pub(super) fn set_netfilter_rules(&mut self, rules: ForwardRules, shared: &Shared) -> bool {
        if self.gate.rules == rules {
            return false;
        }
        match &rules {
            ForwardRules::Seen(what) => tracing::warn!(
                "packets from peer to peer go through the host, so that {what} sees them: where the host does not forward \
                 (net.ipv4.ip_forward, net.ipv6.conf.all.forwarding), peers do not reach each other; `--relay unfiltered` \
                 relays them past all rules"
            ),
            ForwardRules::None => {
                tracing::debug!("no rules of netfilter for what the host forwards: packets are relayed");
            }
            ForwardRules::Unknown => {}
        }
        self.gate.rules = rules;
        self.routes_changed(shared);
        true
    }

    /// Lists the host's addresses if the rule follows them. The answer comes through the channel `addresses`.
    pub(super) fn list_addresses(&self) {
        if self.follows_addresses {
            let answer = self.addresses.clone();
            tokio::spawn(async move {
                match local_addresses().await {
                    // Control is gone only while the device shuts down.
                    Ok(addresses) => drop(answer.send(addresses).await),
                    Err(error) => tracing::warn!("what is relayed does not follow the host's addresses: {error}"),
                }
            });
        }
    }

    /// Takes the host's addresses: packets for them stay here. Returns whether the rule follows them.
    pub(super) fn set_addresses(&mut self, local: Vec<IpAddr>) -> bool {
        if self.follows_addresses {
            self.rule = RelayRule::Always { local: Arc::new(local.into_iter().collect()) };
        }
        self.follows_addresses
    }

    /// A worker has a packet for another peer, and no answer for its addresses.
    pub(super) fn ask(&mut self, question: RouteQuestion, shared: &Shared) {
        if !self.routes.is_new(&question, shared) {
            return;
        }
        self.gate.follow();
        if self.gate.is_open() {
            self.routes.ask(question);
        } else {
            // Remembered until the gate opens, so that the worker does not ask for each packet.
            remember(question, false, shared);
        }
    }

    /// Takes the kernel's answer.
    pub(super) fn answered(&mut self, answer: &RouteAnswer, shared: &Shared) {
        self.routes.answered(answer, shared);
    }

    /// Waits for a change of the kernel's routes.
    pub(super) async fn wait_for_route_change(&mut self) {
        self.routes.changed().await;
    }

    /// The kernel's answers may have changed.
    pub(super) fn routes_changed(&mut self, shared: &Shared) {
        self.routes.clear(shared);
    }
}
