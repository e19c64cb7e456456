//! What is relayed from peer to peer: that which the kernel would route back into the interface.
//!
//! A worker relays only what the kernel, asked for that very source and destination, would forward to another peer anyway:
//! routes, rules, local addresses and the forwarding switches keep their meaning. Until the answer is there the kernel
//! forwards the packets itself. Every change of any of these empties the table.
//!
//! In every mode, nothing is relayed while netfilter has rules that a forwarded packet would meet ([`RelayGate`]): they would not see it.

use super::Control;
use crate::{
    binder::Binder,
    interface::Interface,
    kernel::{ForwardRules, RouteChanges, RouteLookup, RulesWatch},
    relay::{Relay, RelayRule},
    shared::to_control::{ROUTE_QUEUE, RouteQuestion},
    status::RelayStatus,
};
use std::collections::HashSet;
use tokio::sync::mpsc;

/// Pairs of addresses that are remembered. A peer can make the table as large as it likes by asking for many, so it has an
/// end: a megabyte or two, and a hundred peers that all talk to each other.
const ANSWERS_MAX: usize = 16_384;

/// Asks the kernel, and keeps its answers only as long as they hold.
pub(super) struct RouteCache {
    /// `None` until the first question: most devices never have one.
    kernel: Option<Kernel>,
    /// The interface; without one there are no routes to ask for.
    index: Option<u32>,
    /// Counts changes of the routes: an answer to an older question is worth nothing.
    generation: u64,
    pending: HashSet<RouteQuestion>,
    /// Questions the kernel has not answered, those of older generations included.
    asked: usize,
    answers: mpsc::Sender<RouteAnswer>,
}

struct Kernel {
    lookup: RouteLookup,
    changes: RouteChanges,
}

/// What the kernel said.
pub(super) struct RouteAnswer {
    generation: u64,
    question: RouteQuestion,
    returns: bool,
}

impl RouteCache {
    pub(super) fn new(index: Option<u32>, answers: mpsc::Sender<RouteAnswer>) -> Self {
        Self { kernel: None, index, generation: 0, pending: HashSet::new(), asked: 0, answers }
    }

    /// Waits for a change of the kernel's routes; for ever, where nobody asked for any.
    pub(super) async fn changed(&mut self) {
        let change = match &mut self.kernel {
            Some(kernel) => kernel.changes.next().await,
            None => std::future::pending().await,
        };
        if change.is_none() {
            // The subscription ended; the next question makes a new one.
            self.kernel = None;
        }
    }

    /// Opens what is needed for questions.
    fn kernel(&mut self) -> Option<&Kernel> {
        if self.kernel.is_none() {
            // Subscribed first: a change between a question and its answer must not be missed.
            let index = self.index?;
            let opened = RouteChanges::subscribe()
                .and_then(|changes| Ok(Kernel { changes, lookup: RouteLookup::open(index)? }))
                .inspect_err(|error| tracing::warn!("packets between peers take the way through the host: {error}"));
            match opened {
                Ok(kernel) => self.kernel = Some(kernel),
                // It would fail the next time as well.
                Err(_) => self.index = None,
            }
        }
        self.kernel.as_ref()
    }
}

/// Whether netfilter lets anything be relayed.
pub(super) struct RelayGate {
    watch: Option<RulesWatch>,
    rules: ForwardRules,
    /// Legacy iptables is followed as well, which takes a look every second.
    following: bool,
}

impl RelayGate {
    /// For a device with an interface. What is relayed as the kernel routes it, is not before somebody has packets for
    /// somebody else: an idle device is not woken for that.
    pub(super) fn new(relay: &Relay, interface: &Interface, found: mpsc::Sender<ForwardRules>) -> Self {
        if matches!(relay, Relay::Off | Relay::Isolate) {
            return Self::unguarded();
        }
        let watch = RulesWatch::start(interface.name.clone(), found);
        let following = *relay != Relay::Auto;
        if following {
            watch.ask();
        }
        Self { watch: Some(watch), rules: ForwardRules::Unknown, following }
    }

    /// Nothing is in the way.
    pub(super) fn unguarded() -> Self {
        Self { watch: None, rules: ForwardRules::None, following: false }
    }

    fn is_open(&self) -> bool {
        self.rules == ForwardRules::None
    }

    /// From now on legacy iptables is followed too, and nothing is relayed before it was looked at.
    fn follow(&mut self) {
        if let Some(watch) = &self.watch
            && !std::mem::replace(&mut self.following, true)
        {
            self.rules = ForwardRules::Unknown;
            watch.ask();
        }
    }
}

impl<B: Binder> Control<B> {
    /// What may be relayed now, for the workers.
    pub(super) fn relay_rule(&self) -> RelayRule {
        match &self.relay_rule {
            RelayRule::Always { .. } if !self.gate.is_open() => RelayRule::Never,
            // The answers about routes are none while the gate is closed.
            rule => rule.clone(),
        }
    }

    /// For people.
    pub(super) fn relay_status(&self) -> RelayStatus {
        match (&self.relay_rule, &self.gate.rules) {
            (RelayRule::Isolate, _) => RelayStatus::Isolated,
            (RelayRule::Never, _) if !self.follows_addresses => RelayStatus::Off,
            (_, ForwardRules::None) => RelayStatus::On,
            (_, ForwardRules::Unknown) => RelayStatus::Unknown,
            (_, ForwardRules::Seen(what)) => RelayStatus::Rules(what.clone()),
        }
    }

    /// What netfilter has.
    pub(super) fn rules_are(&mut self, rules: ForwardRules) {
        if self.gate.rules == rules {
            return;
        }
        match &rules {
            ForwardRules::Seen(what) => tracing::warn!(
                "packets from peer to peer go through the host, for {what} to see them: where the host does not forward \
                 (net.ipv4.ip_forward, net.ipv6.conf.all.forwarding), peers do not reach each other; `--relay unfiltered` \
                 relays them past all rules"
            ),
            ForwardRules::None => {
                tracing::debug!("no rules of netfilter for what the host forwards: packets are relayed");
            }
            ForwardRules::Unknown => {}
        }
        self.gate.rules = rules;
        self.routes_changed();
        self.publish();
    }

    /// A worker has a packet for another peer.
    pub(super) fn ask_route(&mut self, question: RouteQuestion) {
        let cache = &mut self.route_cache;
        // What finds no room is asked by one of the next packets: routes that flap must not pile up tasks.
        if cache.asked >= ROUTE_QUEUE
            || cache.pending.contains(&question)
            || self.shared.kernel_answers.pin().contains_key(&question)
        {
            return;
        }
        self.gate.follow();
        if !self.gate.is_open() {
            // Remembered until it opens: the worker need not ask for each packet.
            return self.remember(question, false);
        }
        let Some(kernel) = cache.kernel() else { return };
        let returns = kernel.lookup.returns(question.source, question.destination);
        let (generation, answers) = (cache.generation, cache.answers.clone());
        cache.pending.insert(question);
        cache.asked += 1;
        tokio::spawn(async move {
            let answer = RouteAnswer { generation, question, returns: returns.await };
            // Control is gone only while the device shuts down.
            let _ = answers.send(answer).await;
        });
    }

    pub(super) fn route_answered(&mut self, answer: &RouteAnswer) {
        self.route_cache.asked -= 1;
        if answer.generation != self.route_cache.generation {
            return;
        }
        self.route_cache.pending.remove(&answer.question);
        if answer.returns {
            let RouteQuestion { source, destination } = answer.question;
            tracing::debug!(
                "packets from {source} for {destination} go from peer to peer without the host's netfilter"
            );
        }
        self.remember(answer.question, answer.returns);
    }

    fn remember(&self, question: RouteQuestion, returns: bool) {
        let answers = self.shared.kernel_answers.pin();
        if answers.len() >= ANSWERS_MAX {
            answers.clear();
        }
        answers.insert(question, returns);
    }

    pub(super) fn routes_changed(&mut self) {
        self.route_cache.generation += 1;
        self.route_cache.pending.clear();
        self.shared.kernel_answers.pin().clear();
    }
}
