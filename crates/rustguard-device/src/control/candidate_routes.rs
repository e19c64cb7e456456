//! Whether a peer's candidate lies in the tunnel itself, by the kernel's routes. Routes that a routing engine has
//! learned, or that somebody has set by hand, are in no configuration. A path to such a candidate would lead through
//! the tunnel that it is to replace.

use super::own_addresses::Ports;
use crate::kernel::{Egress, SourceLookup};
use futures_util::future::join_all;
use rustguard_core::{node::PeerId, paths::Candidates};
use rustguard_tun::Endpoint;
use std::{collections::VecDeque, time::Instant};
use tokio::sync::mpsc;

/// The pause after each list is this many times the duration of its check, so that checks take at most a fifth of the
/// time.
const REST: u32 = 4;

/// A peer's message, as it came or without the candidates in the tunnel.
pub(super) type Checked = (PeerId, Box<Candidates>);

/// Asks the kernel about one list at a time. Only the newest list of each peer waits: a peer that sends many lists does
/// not keep other peers from their turns.
pub(super) struct CandidateRoutes {
    /// The index of the tunnel's interface.
    interface: u32,
    waiting: VecDeque<(Ports, Checked)>,
    /// Takes one list, and the next one when the first is answered.
    questions: Option<mpsc::Sender<(Ports, Checked)>>,
    answers: mpsc::Sender<Checked>,
}

impl CandidateRoutes {
    pub(super) fn new(interface: u32, answers: mpsc::Sender<Checked>) -> Self {
        Self { interface, waiting: VecDeque::new(), questions: None, answers }
    }

    /// Checks a message. The answer comes through the channel `answers`.
    pub(super) fn check(&mut self, ports: Ports, message: Checked) {
        match self.waiting.iter_mut().find(|(_, (peer, _))| *peer == message.0) {
            Some(older) => *older = (ports, message),
            None => self.waiting.push_back((ports, message)),
        }
        self.hand_over();
    }

    /// Hands over the next message, if there is room: called after each answer.
    pub(super) fn hand_over(&mut self) {
        let questions = self.questions.get_or_insert_with(|| {
            let (sender, receiver) = mpsc::channel(1);
            tokio::spawn(answer(self.interface, receiver, self.answers.clone()));
            sender
        });
        if let Ok(place) = questions.try_reserve()
            && let Some(message) = self.waiting.pop_front()
        {
            place.send(message);
        }
    }
}

async fn answer(interface: u32, mut questions: mpsc::Receiver<(Ports, Checked)>, answers: mpsc::Sender<Checked>) {
    let lookup = SourceLookup::open();
    if let Err(error) = &lookup {
        tracing::warn!("the addresses of peers are not compared with the kernel's routes: {error}");
    }
    while let Some((ports, (peer, mut message))) = questions.recv().await {
        let started = Instant::now();
        if let Ok(lookup) = &lookup {
            let ways = message.list.iter().map(|to| lookup.egress(Endpoint::new(to.address), ports.mark, ports.listen));
            let mut ways = join_all(ways).await.into_iter();
            message.list.retain(|_| {
                let way = ways.next();
                !matches!(way, Some(Egress::By(exit)) if exit.interface == interface)
            });
        }
        // Control is gone only while the device shuts down.
        if answers.send((peer, message)).await.is_err() {
            return;
        }
        tokio::time::sleep(started.elapsed() * REST).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustguard_core::paths::{Candidate, CandidateKind};

    fn message(peer: u32, generation: u32) -> Checked {
        let candidate = Candidate { address: "192.0.2.1:1".parse().unwrap(), kind: CandidateKind::Interface };
        (PeerId(peer), Box::new(Candidates { generation, list: vec![candidate], ..Candidates::default() }))
    }

    #[tokio::test]
    async fn a_peer_that_sends_list_after_list_leaves_the_others_their_turns() {
        let (answers, mut answered) = mpsc::channel(1);
        let mut routes = CandidateRoutes::new(0, answers);
        let ports = Ports { listen: 1, mark: 0 };
        for generation in 1..=1_000 {
            routes.check(ports, message(1, generation));
        }
        routes.check(ports, message(2, 1));
        routes.check(ports, message(1, 1_001));
        let mut got = Vec::new();
        for _ in 0..3 {
            let (peer, message) = answered.recv().await.expect("the task runs");
            got.push((peer.0, message.generation));
            routes.hand_over();
        }
        assert_eq!(got, [(1, 1), (1, 1_001), (2, 1)]);
    }
}
