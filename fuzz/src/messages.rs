//! Handshake messages, cookie replies and packet heads.
use crate::steps::Steps;
use rand::{SeedableRng, rngs::StdRng};
use rustguard_core::{
    node::{Action, Event, Node, PeerConfig, PeerId},
    packet::IpHead,
    time::{Instant, Now},
    wire::Kind,
};
use rustguard_crypto::{
    hash::{hash, mac},
    x25519::{PublicKey, StaticSecret},
};
use std::{net::SocketAddr, time::Duration};

const INITIATION_LEN: usize = 148;
const RESPONSE_LEN: usize = 92;

/// Reads the input as steps: raw datagrams, datagrams with a valid MAC1, genuine initiations with one byte changed, and
/// the passing of time. After any input, two honest nodes can complete a handshake.
pub fn messages(input: &[u8]) {
    // The first checks of a datagram get the whole input.
    let _ = Kind::of(input);
    if let Some(head) = IpHead::parse(input) {
        assert!(head.len <= input.len(), "an IP packet longer than its bytes");
    }
    let mut lab = Lab::new();
    let mut steps = Steps(input);
    while let Some(step) = steps.byte() {
        match step % 5 {
            0 => lab.deliver(steps.bytes()),
            1 => {
                let mut datagram = steps.bytes().to_vec();
                lab.sign(&mut datagram);
                lab.deliver(&datagram);
            }
            2 => {
                let (position, change) = (usize::from(steps.byte().unwrap_or(0)), steps.byte().unwrap_or(0));
                for mut datagram in lab.genuine() {
                    if let Some(byte) = datagram.get_mut(position) {
                        *byte ^= change;
                    }
                    if change & 1 == 0 {
                        lab.sign(&mut datagram);
                    }
                    lab.deliver(&datagram);
                }
            }
            3 => lab.handshake(),
            _ => lab.pass(Duration::from_millis(u64::from(steps.byte().unwrap_or(0)) * 100)),
        }
    }
    lab.must_complete();
}

/// A node under attack, its honest peer, and the clock.
struct Lab {
    now: Now,
    rng: StdRng,
    victim: Node,
    peer: Node,
    victim_key: PublicKey,
    peer_id: PeerId,
    completed: u32,
}

impl Lab {
    fn new() -> Self {
        let mut rng = StdRng::seed_from_u64(1);
        let now = Now { instant: Instant::from_nanos(1 << 40), unix: Duration::from_secs(1_700_000_000) };
        let (victim_secret, peer_secret) = (StaticSecret::from_bytes([1; 32]), StaticSecret::from_bytes([2; 32]));
        let (victim_key, peer_key) = (victim_secret.public_key(), peer_secret.public_key());
        let mut victim = Node::new(now.instant, &mut rng);
        let mut peer = Node::new(now.instant, &mut rng);
        victim.set_private_key(Some(victim_secret), &mut Vec::new());
        peer.set_private_key(Some(peer_secret), &mut Vec::new());
        victim.add_peer(PeerConfig::new(peer_key)).expect("the peer's key is not the victim's own, and is new");
        let peer_id =
            peer.add_peer(PeerConfig::new(victim_key)).expect("the victim's key is not the peer's own, and is new");
        Self { now, rng, victim, peer, victim_key, peer_id, completed: 0 }
    }

    /// Gives a datagram to the victim, and its answers to the peer.
    fn deliver(&mut self, datagram: &[u8]) {
        let mut actions = Vec::new();
        // The node should refuse most of these datagrams.
        let _ = self.victim.handle(address(1), datagram, self.now, &mut self.rng, &mut actions);
        for answer in datagrams(actions, &mut 0) {
            let mut actions = Vec::new();
            let _ = self.peer.handle(address(2), &answer, self.now, &mut self.rng, &mut actions);
            datagrams(actions, &mut self.completed);
        }
    }

    /// A fresh initiation of the honest peer.
    fn genuine(&mut self) -> Vec<Vec<u8>> {
        let mut actions = Vec::new();
        self.peer.handshake_now(self.peer_id, self.now, &mut self.rng, &mut actions);
        datagrams(actions, &mut self.completed)
    }

    fn handshake(&mut self) {
        for datagram in self.genuine() {
            self.deliver(&datagram);
        }
    }

    /// Sets a valid MAC1. This takes only the victim's public key (whitepaper 5.4.4).
    fn sign(&self, datagram: &mut [u8]) {
        if let INITIATION_LEN | RESPONSE_LEN = datagram.len() {
            let end = datagram.len() - 32;
            let key = hash(&[b"mac1----", &self.victim_key.0]);
            let mac1 = mac(&key, &[&datagram[..end]]);
            datagram[end..end + 16].copy_from_slice(&mac1);
        }
    }

    fn pass(&mut self, time: Duration) {
        self.now = Now { instant: self.now.instant + time, unix: self.now.unix + time };
        let mut actions = Vec::new();
        self.victim.tick(self.now, &mut self.rng, &mut actions);
        datagrams(actions, &mut 0);
        let mut actions = Vec::new();
        self.peer.tick(self.now, &mut self.rng, &mut actions);
        datagrams(actions, &mut self.completed);
    }

    /// Checks that a handshake completes. After ten quiet seconds no rate limit applies any more. One retry answers a
    /// cookie.
    fn must_complete(&mut self) {
        self.pass(Duration::from_secs(10));
        self.completed = 0;
        for _ in 0..3 {
            self.handshake();
            if self.completed > 0 {
                return;
            }
            self.pass(Duration::from_secs(6));
        }
        panic!("the honest peer gets no session any more");
    }
}

fn address(host: u8) -> SocketAddr {
    SocketAddr::from(([192, 0, 2, host], 51_820))
}

/// Returns the datagrams to send, and counts completed handshakes.
fn datagrams(actions: Vec<Action>, completed: &mut u32) -> Vec<Vec<u8>> {
    let mut datagrams = Vec::new();
    for action in actions {
        match action {
            Action::Send { datagram, .. } | Action::Reply { datagram } => datagrams.push(datagram),
            Action::Event(Event::HandshakeComplete { .. }) => *completed += 1,
            _ => {}
        }
    }
    datagrams
}
