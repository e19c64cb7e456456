//! What is relayed from peer to peer: that which the kernel would route back into the interface.
//!
//! A worker relays only what the kernel, asked for that very source and destination, would forward to another peer anyway:
//! routes, rules, local addresses and the forwarding switches keep their meaning. Until the answer is there the kernel
//! forwards the packets itself. Every change of any of these empties the table.

use super::Control;
use crate::{
    binder::Binder,
    host::{RouteChanges, RouteLookup},
    shared::{ROUTE_QUEUE, RouteQuestion},
};
use std::collections::HashSet;
use tokio::sync::mpsc;

/// Pairs of addresses that are remembered. A peer can make the table as large as it likes by asking for many, so it has an
/// end: a megabyte or two, and a hundred peers that all talk to each other.
const ROUTED_MAX: usize = 16_384;

/// Asks the kernel, and keeps its answers only as long as they hold.
pub(super) struct Routing {
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

impl Routing {
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

impl<B: Binder> Control<B> {
    /// A worker has a packet for another peer.
    pub(super) fn ask_route(&mut self, question: RouteQuestion) {
        let routing = &mut self.routing;
        // What finds no room is asked by one of the next packets: routes that flap must not pile up tasks.
        if routing.asked >= ROUTE_QUEUE
            || routing.pending.contains(&question)
            || self.shared.routed.pin().contains_key(&question)
        {
            return;
        }
        let Some(kernel) = routing.kernel() else { return };
        let returns = kernel.lookup.returns(question.source, question.destination);
        let (generation, answers) = (routing.generation, routing.answers.clone());
        routing.pending.insert(question);
        routing.asked += 1;
        tokio::spawn(async move {
            let answer = RouteAnswer { generation, question, returns: returns.await };
            // Control is gone only while the device shuts down.
            let _ = answers.send(answer).await;
        });
    }

    pub(super) fn route_answered(&mut self, answer: &RouteAnswer) {
        self.routing.asked -= 1;
        if answer.generation != self.routing.generation {
            return;
        }
        self.routing.pending.remove(&answer.question);
        let routed = self.shared.routed.pin();
        if routed.len() >= ROUTED_MAX {
            routed.clear();
        }
        if answer.returns {
            let RouteQuestion { source, destination } = answer.question;
            tracing::debug!(
                "packets from {source} for {destination} go from peer to peer without the host's netfilter"
            );
        }
        routed.insert(answer.question, answer.returns);
    }

    pub(super) fn routes_changed(&mut self) {
        self.routing.generation += 1;
        self.routing.pending.clear();
        self.shared.routed.pin().clear();
    }
}
