//! The kernel's answers to the question whether it would route a packet back into the interface.
//!
//! The answers are in [`Shared::kernel_answers`], where the workers read them. Each change of the kernel's routes
//! empties them.

use crate::{
    kernel::{RouteChanges, RouteLookup},
    shared::{
        Shared,
        to_control::{ROUTE_QUEUE, RouteQuestion},
    },
};
use std::collections::HashSet;
use tokio::sync::mpsc;

/// The number of pairs of addresses that are remembered: a megabyte or two, enough for a hundred peers that all talk to
/// each other. Without a limit, a peer could fill the memory with questions.
const ANSWERS_MAX: usize = 16_384;

/// Asks the kernel, and keeps its answers only while they are valid.
pub(super) struct RouteCache {
    /// `None` until the first question: most devices never have one.
    kernel: Option<Kernel>,
    /// The interface; without one there are no routes to ask for.
    index: Option<u32>,
    /// Counts changes of the routes. An answer to a question from before a change is dropped.
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

/// The kernel's answer.
pub(in crate::control) struct RouteAnswer {
    generation: u64,
    question: RouteQuestion,
    /// It would route the packet back into the interface.
    returns: bool,
}

impl RouteCache {
    pub(super) fn new(index: Option<u32>, answers: mpsc::Sender<RouteAnswer>) -> Self {
        Self { kernel: None, index, generation: 0, pending: HashSet::new(), asked: 0, answers }
    }

    /// Waits for a change of the kernel's routes; for ever, if no question was asked yet.
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

    /// Whether the question is to be asked: it was not asked yet, and there is room. A question without room is asked
    /// again by one of the next packets, so flapping routes do not pile up tasks.
    pub(super) fn is_new(&self, question: &RouteQuestion, shared: &Shared) -> bool {
        self.asked < ROUTE_QUEUE
            && !self.pending.contains(question)
            && !shared.kernel_answers.pin().contains_key(question)
    }

    /// Asks the kernel in a task of its own.
    pub(super) fn ask(&mut self, question: RouteQuestion) {
        let Some(kernel) = self.kernel() else { return };
        let returns = kernel.lookup.returns(question.source, question.destination);
        let (generation, answers) = (self.generation, self.answers.clone());
        self.pending.insert(question);
        self.asked += 1;
        tokio::spawn(async move {
            let answer = RouteAnswer { generation, question, returns: returns.await };
            // Control is gone only while the device shuts down.
            let _ = answers.send(answer).await;
        });
    }

    /// Takes an answer.
    pub(super) fn answered(&mut self, answer: &RouteAnswer, shared: &Shared) {
        self.asked -= 1;
        if answer.generation != self.generation {
            return;
        }
        self.pending.remove(&answer.question);
        if answer.returns {
            let RouteQuestion { source, destination } = answer.question;
            tracing::debug!(
                "packets from {source} for {destination} go from peer to peer without the host's netfilter"
            );
        }
        remember(answer.question, answer.returns, shared);
    }

    /// Forgets all answers, and those that are still to come.
    pub(super) fn clear(&mut self, shared: &Shared) {
        self.generation += 1;
        self.pending.clear();
        shared.kernel_answers.pin().clear();
    }

    /// Opens the sockets for questions, if they are not open.
    fn kernel(&mut self) -> Option<&Kernel> {
        if self.kernel.is_none() {
            // Subscribed first: a change between a question and its answer must not be missed.
            let index = self.index?;
            let opened = RouteChanges::subscribe()
                .and_then(|changes| Ok(Kernel { changes, lookup: RouteLookup::open(index)? }))
                .inspect_err(|error| tracing::warn!("packets between peers go through the host: {error}"));
            match opened {
                Ok(kernel) => self.kernel = Some(kernel),
                // It would fail the next time as well.
                Err(_) => self.index = None,
            }
        }
        self.kernel.as_ref()
    }
}

/// Gives the workers an answer.
pub(super) fn remember(question: RouteQuestion, returns: bool, shared: &Shared) {
    let answers = shared.kernel_answers.pin();
    if answers.len() >= ANSWERS_MAX {
        answers.clear();
    }
    answers.insert(question, returns);
}
