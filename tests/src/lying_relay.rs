//! A relay with a real key that lies: it has sessions with both members, receives the texts that they send each other,
//! and can forward anything instead.
use crate::{HostilePeer, Traffic};
use anyhow::{Context as _, Result, anyhow};
use rustguard_core::node::PeerId;
use std::{
    sync::mpsc::{self, Receiver, Sender, TryRecvError},
    thread::{self, JoinHandle},
    time::Duration,
};

/// The time that the relay waits for a datagram before it checks for orders.
const TURN: Duration = Duration::from_millis(2);
/// The first byte of a forwarded datagram.
const FORWARDED: u8 = 5;
/// The maximum of texts that are stored for later use.
const KEPT: usize = 200;

/// A text that a member sent to the relay.
#[derive(Clone, Debug)]
pub struct Overheard {
    /// The member, 0 or 1.
    pub from: usize,
    /// The text.
    pub text: Vec<u8>,
}

/// The receiving member, and the text.
pub type Said = (usize, Vec<u8>);

/// Handles an incoming text: returns the texts to send instead, each with the receiving member.
pub type Passing = Box<dyn FnMut(Overheard) -> Vec<Said> + Send>;

enum Order {
    Pass(Passing),
    Say(Vec<Said>),
    Overheard(Sender<Vec<Overheard>>),
    Traffic(Sender<[Traffic; 2]>),
}

/// The relay, on its own thread. It forwards texts unchanged until it gets another order.
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

    /// From now on, forwards texts by this function.
    pub fn passes(&self, passing: Passing) -> Result<()> {
        self.order(Order::Pass(passing))
    }

    /// From now on, forwards texts unchanged.
    pub fn is_honest(&self) -> Result<()> {
        self.passes(honest())
    }

    /// Sends these texts now, each to a member.
    pub fn says(&self, texts: Vec<Said>) -> Result<()> {
        self.order(Order::Say(texts))
    }

    /// The first texts that arrived for forwarding.
    pub fn overheard(&self) -> Result<Vec<Overheard>> {
        let (sender, receiver) = mpsc::channel();
        self.order(Order::Overheard(sender))?;
        receiver.recv().context("the relay has ended")
    }

    /// The traffic with each member so far.
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

/// Forwards each text to the other member.
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
        // Other texts are probes for the relay itself.
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
        // Before the member's own handshake, there is no session to send in.
        if peer.is_connected(members[to]) {
            peer.send(members[to], &text)?;
        }
    }
    Ok(())
}
