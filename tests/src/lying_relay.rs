//! A relay with a real key that lies: it has sessions with both members, gets what they send to each other, and passes
//! on whatever it likes.
use crate::{HostilePeer, Traffic};
use anyhow::{Context as _, Result, anyhow};
use rustguard_core::node::PeerId;
use std::{
    sync::mpsc::{self, Receiver, Sender, TryRecvError},
    thread::{self, JoinHandle},
    time::Duration,
};

/// How long the relay waits for a datagram before it looks for orders.
const TURN: Duration = Duration::from_millis(2);
/// The first byte of a forwarded datagram.
const FORWARDED: u8 = 5;
/// Texts that are kept for lies.
const KEPT: usize = 200;

/// A text that a member sent to the relay.
#[derive(Clone, Debug)]
pub struct Overheard {
    /// The member, 0 or 1.
    pub from: usize,
    /// The text.
    pub text: Vec<u8>,
}

/// The member that a text goes to, and the text.
pub type Said = (usize, Vec<u8>);

/// What the relay does with a text that comes in: what it sends instead, and to which member.
pub type Passing = Box<dyn FnMut(Overheard) -> Vec<Said> + Send>;

enum Order {
    Pass(Passing),
    Say(Vec<Said>),
    Overheard(Sender<Vec<Overheard>>),
    Traffic(Sender<[Traffic; 2]>),
}

/// The relay, on a thread of its own. It passes texts on honestly until it is told otherwise.
pub struct LyingRelay {
    orders: Option<Sender<Order>>,
    thread: Option<JoinHandle<Result<()>>>,
}

impl LyingRelay {
    /// Starts the relay for two members.
    pub fn start(peer: impl FnOnce() -> Result<(HostilePeer, [PeerId; 2])> + Send + 'static) -> Self {
        let (orders, receiver) = mpsc::channel();
        let thread = thread::spawn(move || {
            let (peer, members) = peer()?;
            run(peer, members, &receiver)
        });
        Self { orders: Some(orders), thread: Some(thread) }
    }

    /// From now on, texts are passed on by this function.
    pub fn passes(&self, passing: Passing) -> Result<()> {
        self.order(Order::Pass(passing))
    }

    /// From now on, texts are passed on as they are.
    pub fn is_honest(&self) -> Result<()> {
        self.passes(honest())
    }

    /// Sends these texts now, each to a member.
    pub fn says(&self, texts: Vec<Said>) -> Result<()> {
        self.order(Order::Say(texts))
    }

    /// The first texts that came in to be forwarded.
    pub fn overheard(&self) -> Result<Vec<Overheard>> {
        let (sender, receiver) = mpsc::channel();
        self.order(Order::Overheard(sender))?;
        receiver.recv().context("the relay has ended")
    }

    /// What was exchanged with each member so far.
    pub fn traffic(&self) -> Result<[Traffic; 2]> {
        let (sender, receiver) = mpsc::channel();
        self.order(Order::Traffic(sender))?;
        receiver.recv().context("the relay has ended")
    }

    /// Ends the relay.
    pub fn end(mut self) -> Result<()> {
        self.orders = None;
        let thread = self.thread.take().context("it ends once")?;
        thread.join().map_err(|_| anyhow!("the relay panicked"))?
    }

    fn order(&self, order: Order) -> Result<()> {
        let orders = self.orders.as_ref().context("the relay has ended")?;
        orders.send(order).map_err(|_| anyhow!("the relay has ended"))
    }
}

/// Passes on what comes in, to the other member.
fn honest() -> Passing {
    Box::new(|Overheard { from, text }| vec![(1 - from, text)])
}

fn run(mut peer: HostilePeer, members: [PeerId; 2], orders: &Receiver<Order>) -> Result<()> {
    let (mut passing, mut overheard) = (honest(), Vec::new());
    loop {
        match orders.try_recv() {
            Ok(Order::Pass(other)) => passing = other,
            Ok(Order::Say(texts)) => say(&mut peer, members, texts)?,
            Ok(Order::Overheard(sender)) => drop(sender.send(overheard.clone())),
            Ok(Order::Traffic(sender)) => drop(sender.send(members.map(|member| peer.traffic(member)))),
            Err(TryRecvError::Empty) => {}
            Err(TryRecvError::Disconnected) => return Ok(()),
        }
        let Some((from, text)) = peer.receive(TURN)? else { continue };
        let Some(from) = members.iter().position(|member| *member == from) else { continue };
        // Others are for the relay itself: probes.
        if text.first() != Some(&FORWARDED) {
            continue;
        }
        let text = Overheard { from, text };
        if overheard.len() < KEPT {
            overheard.push(text.clone());
        }
        say(&mut peer, members, passing(text))?;
    }
}

fn say(peer: &mut HostilePeer, members: [PeerId; 2], texts: Vec<Said>) -> Result<()> {
    for (to, text) in texts {
        // Before the member's own handshake there is no session to lie in.
        if peer.is_connected(members[to]) {
            peer.send(members[to], &text)?;
        }
    }
    Ok(())
}
