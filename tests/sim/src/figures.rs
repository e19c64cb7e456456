//! Measurements of routing. Each figure is one experiment.
use crate::{ItemKind, Sim, nanos, random_graph};
use ipnet::IpNet;
use rand::{SeedableRng as _, rngs::StdRng};
use rustguard_core::routing::Event;
use std::{net::Ipv4Addr, time::Duration};

const MS: Duration = Duration::from_millis(1);

/// A mesh whose links all carry traffic.
pub fn busy(n: usize, edges: &[(usize, usize)], seed: u64) -> Sim {
    let mut sim = Sim::new(n, edges, seed);
    sim.push(MS, ItemKind::Traffic);
    sim
}

/// Bytes a second of a stable idle link whose ends announce this many prefixes together. Measured inside the tunnel
/// over 15 minutes, both directions together, IPv6 and UDP headers included.
///
/// # Panics
/// If a prefix does not arrive within a minute.
pub fn idle_bytes(prefixes: usize, seed: u64) -> u64 {
    const TIME: u64 = 900;
    let mut sim = Sim::new(2, &[(0, 1)], seed);
    for i in 2..prefixes {
        let net = Ipv4Addr::new(10, 100 + (i / 256) as u8, (i % 256) as u8, 0);
        sim.tell(i % 2, Event::Announce { prefix: IpNet::new(net.into(), 24).expect("a prefix"), metric: 0 });
    }
    sim.run(Duration::from_secs(60));
    assert_eq!(sim.nodes[0].fib.len() + sim.nodes[1].fib.len(), prefixes);
    let bytes = |sim: &Sim| sim.links.values().map(|link| link.bytes).sum::<u64>();
    let before = bytes(&sim);
    sim.run(Duration::from_secs(TIME));
    (bytes(&sim) - before) / TIME
}

/// How long both ends of a busy link take to notice that it carries nothing any more.
///
/// # Panics
/// If that is more than ten seconds.
pub fn silent_loss(seed: u64) -> Duration {
    let mut sim = busy(2, &[(0, 1)], seed);
    sim.run(Duration::from_secs(5) + MS * (seed as u32 * 37 % 400));
    sim.set_link(0, 1, false);
    let start = sim.now;
    while sim.nodes.iter().enumerate().any(|(i, node)| node.costs[&(1 - i)].is_some()) {
        sim.run(MS);
        assert!(sim.now - start < nanos(Duration::from_secs(10)), "seed {seed}");
    }
    Duration::from_nanos(sim.now - start)
}

/// How often one of the ends of a busy link that loses 1 % declares it dead in this time.
pub fn false_alarms(time: Duration, seed: u64) -> u64 {
    let mut sim = busy(2, &[(0, 1)], seed);
    sim.run(Duration::from_secs(5));
    for link in sim.links.values_mut() {
        link.loss = 10;
    }
    let before = sim.downs;
    sim.run(time);
    sim.downs - before
}

/// How long it takes a busy diamond to reconnect after one link went silent, in both directions or in one: one result
/// for each of the four cases that affect one path.
///
/// # Panics
/// If that is more than five seconds.
pub fn diamond(one_way: bool, seed: u64) -> [Duration; 4] {
    [(0, 1), (1, 3), (1, 0), (3, 1)].map(|(a, b)| {
        let mut sim = busy(4, &[(0, 1), (1, 3), (0, 2), (2, 3)], seed);
        sim.run(Duration::from_secs(5) + MS * (seed as u32 * 41 % 400));
        sim.set_direction(a, b, false);
        if !one_way {
            sim.set_direction(b, a, false);
        }
        sim.must_converge(Duration::from_secs(5))
    })
}

/// How long a mesh of these nodes takes from the start until all nodes reach each other.
///
/// # Panics
/// If that is more than 20 seconds.
pub fn cold_start(n: usize, edges: &[(usize, usize)], seed: u64) -> Duration {
    Sim::new(n, edges, seed).must_converge(Duration::from_secs(20))
}

/// How long a busy random mesh of 50 nodes with five links each takes until all remaining pairs reach each other, after
/// one node stopped without a retraction.
///
/// # Panics
/// If that is more than ten seconds.
pub fn silent_failure(seed: u64) -> Duration {
    let edges = random_graph(50, 5, &mut StdRng::seed_from_u64(seed));
    let mut sim = busy(50, &edges, seed);
    sim.run(Duration::from_secs(8));
    sim.stop(seed as usize * 7 % 50);
    sim.must_converge(Duration::from_secs(10))
}
