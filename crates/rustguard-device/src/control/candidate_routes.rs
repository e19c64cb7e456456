//! Whether a candidate of a peer's lies in the tunnel itself, by the kernel's routes: those that a routing engine has learned, or that somebody
//! has set by hand, are in no configuration. A path there would be one through the tunnel that it is to replace.

use super::own_addresses::Ports;
use crate::kernel::{SourceLookup, Way};
use futures_util::future::join_all;
use rustguard_core::{node::PeerId, paths::Candidates};
use rustguard_tun::Endpoint;
use std::time::Instant;
use tokio::sync::mpsc;

/// Lists that may wait. A list that finds no place is dropped: its sender repeats it.
const QUEUE: usize = 64;
/// The pause after each list is so many times what it took, so that lists take at most a fifth of the time.
const REST: u32 = 4;

/// A peer's message, as it came or without candidates in the tunnel.
pub(super) type Checked = (PeerId, Box<Candidates>);

/// Asks the kernel, list by list.
pub(super) struct CandidateRoutes {
    /// The index of the tunnel's interface.
    interface: u32,
    questions: Option<mpsc::Sender<(Ports, Checked)>>,
    answers: mpsc::Sender<Checked>,
}

impl CandidateRoutes {
    pub(super) fn new(interface: u32, answers: mpsc::Sender<Checked>) -> Self {
        Self { interface, questions: None, answers }
    }

    /// Checks a message. The answer comes by the channel for it.
    pub(super) fn check(&mut self, ports: Ports, message: Checked) {
        let questions = self.questions.get_or_insert_with(|| {
            let (sender, receiver) = mpsc::channel(QUEUE);
            tokio::spawn(answer(self.interface, receiver, self.answers.clone()));
            sender
        });
        // Where the queue is full, the peer repeats it.
        let _ = questions.try_send((ports, message));
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
            let ways = message.list.iter().map(|to| lookup.way(Endpoint::new(to.address), ports.mark, ports.listen));
            let mut ways = join_all(ways).await.into_iter();
            message.list.retain(|_| {
                let way = ways.next();
                !matches!(way, Some(Way::By(exit)) if exit.interface == interface)
            });
        }
        // Control is gone only while the device shuts down.
        if answers.send((peer, message)).await.is_err() {
            return;
        }
        tokio::time::sleep(started.elapsed() * REST).await;
    }
}
