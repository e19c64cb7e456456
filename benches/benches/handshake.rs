//! Handshakes per second on one core, from the first datagram to the answer.
//!
//! ```text
//! cargo bench -p rustguard-benches --bench handshake
//! ```

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use rand::{SeedableRng as _, rngs::StdRng};
use rustguard_core::{
    node::{Action, Node, PeerConfig, PeerId},
    time::{Instant, Now},
};
use rustguard_crypto::x25519::StaticSecret;
use std::{
    hint::black_box,
    net::{Ipv4Addr, SocketAddr},
    time::Duration,
};

/// Two nodes that know each other, a clock and randomness.
struct Pair {
    initiator: Node,
    responder: Node,
    millis: u64,
    rng: StdRng,
}

impl Pair {
    fn new() -> Self {
        let mut rng = StdRng::seed_from_u64(1);
        let keys = [1, 2].map(|n| StaticSecret::from_bytes([n; 32]));
        let [initiator, responder] = [0, 1].map(|own: usize| {
            let mut node = Node::new(Instant::from_nanos(0), &mut rng);
            node.set_private_key(Some(keys[own].clone()), &mut Vec::new());
            let public_key = keys[1 - own].public_key();
            node.add_peer(PeerConfig::new(public_key)).expect("a new peer");
            node
        });
        Self { initiator, responder, millis: 1_000, rng }
    }

    /// Time passes between handshakes, so that neither side assumes a flood.
    fn now(&mut self) -> Now {
        self.millis += 100;
        let unix = Duration::from_millis(self.millis);
        Now { instant: Instant::from_nanos(self.millis * 1_000_000), unix }
    }

    fn initiation(&mut self) -> Vec<u8> {
        let (now, mut out) = (self.now(), Vec::new());
        self.initiator.handshake_now(PeerId(0), now, &mut self.rng, &mut out);
        sent(out)
    }

    /// The responder's work: MAC, load, three Diffie-Hellmans, the session, the response.
    fn respond(&mut self, initiation: &[u8]) -> Vec<u8> {
        let (now, mut out) = (self.now(), Vec::new());
        let from = SocketAddr::from((Ipv4Addr::LOCALHOST, 1));
        self.responder.handle(from, initiation, now, &mut self.rng, &mut out).expect("an honest initiation");
        sent(out)
    }

    fn finish(&mut self, response: &[u8]) {
        let (now, mut out) = (self.now(), Vec::new());
        let from = SocketAddr::from((Ipv4Addr::LOCALHOST, 2));
        self.initiator.handle(from, response, now, &mut self.rng, &mut out).expect("an honest response");
    }
}

fn sent(actions: Vec<Action>) -> Vec<u8> {
    let datagram = actions.into_iter().find_map(|action| match action {
        Action::Send { datagram, .. } => Some(datagram),
        _ => None,
    });
    datagram.expect("something was sent")
}

fn handshakes(c: &mut Criterion) {
    let mut group = c.benchmark_group("handshake");
    group.throughput(Throughput::Elements(1));
    group.bench_function("initiate", |b| {
        let mut pair = Pair::new();
        b.iter(|| black_box(pair.initiation()));
    });
    group.bench_function("respond", |b| {
        let pair = std::cell::RefCell::new(Pair::new());
        let make = || pair.borrow_mut().initiation();
        b.iter_batched(make, |initiation| black_box(pair.borrow_mut().respond(&initiation)), BatchSize::PerIteration);
    });
    group.bench_function("both", |b| {
        let mut pair = Pair::new();
        b.iter(|| {
            let initiation = pair.initiation();
            let response = pair.respond(&initiation);
            pair.finish(&response);
        });
    });
    group.finish();
}

criterion_group!(benches, handshakes);
criterion_main!(benches);
