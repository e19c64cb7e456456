//! The figures to reach, measured in simulated time: `cargo test -p rustguard-babel --test mesh figures -- --nocapture`.
use crate::sim::{ItemKind, Sim, prefix, random_graph, seeds};
use ipnet::IpNet;
use rand::{SeedableRng, rngs::StdRng};
use rustguard_core::routing::Event;
use std::{net::Ipv4Addr, time::Duration};

const MS: Duration = Duration::from_millis(1);

fn busy(n: usize, edges: &[(usize, usize)], seed: u64) -> Sim {
    let mut sim = Sim::new(n, edges, seed);
    sim.push(MS, ItemKind::Traffic);
    sim
}

fn report(what: &str, measured: impl std::fmt::Debug) {
    println!("{what:<60} {measured:?}");
}

/// Inside of the tunnel, both directions, IPv6 and UDP headers included.
#[test]
fn bytes_of_a_stable_idle_link() {
    for (prefixes, limit) in [(10, 60), (100, 150), (1_000, 700)] {
        let mut sim = Sim::new(2, &[(0, 1)], 1);
        for i in 2..prefixes {
            let net =
                IpNet::new(Ipv4Addr::new(10, 100 + (i / 256) as u8, (i % 256) as u8, 0).into(), 24).expect("a prefix");
            sim.tell(i % 2, Event::Announce { prefix: net, metric: 0 });
        }
        sim.run(Duration::from_secs(60));
        assert_eq!(sim.nodes[0].fib.len() + sim.nodes[1].fib.len(), prefixes);
        let before: u64 = sim.links.values().map(|link| link.bytes).sum();
        sim.run(Duration::from_secs(900));
        let rate = (sim.links.values().map(|link| link.bytes).sum::<u64>() - before) / 900;
        report(&format!("bytes/s of a stable link, {prefixes} prefixes"), rate);
        assert!(rate <= limit, "{rate} bytes/s");
    }
}

/// The worst case for compression: each prefix from another origin, announced in both directions.
#[test]
fn bytes_of_a_link_in_the_middle() {
    // Two hundred origins that both ends reach by third parties; the link between them carries all of them both ways.
    let n = 202;
    let edges: Vec<_> = (2..n).flat_map(|leaf| [(0, leaf), (1, leaf)]).chain([(0, 1)]).collect();
    let mut sim = Sim::new(n, &edges, 1);
    sim.run(Duration::from_secs(60));
    let bytes = |sim: &Sim| sim.links[&(0, 1)].bytes + sim.links[&(1, 0)].bytes;
    let before = bytes(&sim);
    sim.run(Duration::from_secs(270));
    let rate = (bytes(&sim) - before) / 270;
    report("bytes/s, 200 prefixes of 200 origins, announced both ways", rate);
    assert!(rate <= 190, "{rate} bytes/s");
}

#[test]
fn silent_loss_is_detected_within_a_second() {
    let mut worst = Duration::ZERO;
    for seed in seeds(1, 50) {
        let mut sim = busy(2, &[(0, 1)], seed);
        sim.run(Duration::from_secs(5) + MS * (seed as u32 * 37 % 400));
        sim.set_link(0, 1, false);
        let start = sim.now;
        while sim.nodes.iter().enumerate().any(|(i, node)| node.costs[&(1 - i)].is_some()) {
            sim.run(MS);
            assert!(sim.now - start < 1_000_000_000, "seed {seed}");
        }
        worst = worst.max(Duration::from_nanos(sim.now - start));
    }
    report("silent loss detected, worst of 50", worst);
}

#[test]
fn no_false_alarm_in_a_day_at_one_percent_of_loss() {
    let mut sim = busy(2, &[(0, 1)], crate::sim::seed(1));
    sim.run(Duration::from_secs(5));
    for link in sim.links.values_mut() {
        link.loss = 10;
    }
    sim.run(Duration::from_secs(86_400));
    report("false alarms of both ends in a day at 1 % loss", sim.downs);
    assert!(sim.downs <= 1, "{}", sim.downs);
}

#[test]
fn a_diamond_reroutes() {
    for (one_way, limit) in [(false, 1_200), (true, 1_500)] {
        let mut worst = Duration::ZERO;
        for seed in seeds(1, 30) {
            for (a, b) in [(0, 1), (1, 3), (1, 0), (3, 1)] {
                let mut sim = busy(4, &[(0, 1), (1, 3), (0, 2), (2, 3)], seed);
                sim.run(Duration::from_secs(5) + MS * (seed as u32 * 41 % 400));
                sim.set_direction(a, b, false);
                if !one_way {
                    sim.set_direction(b, a, false);
                }
                let took = sim.converge(Duration::from_secs(5)).expect("there is another way");
                worst = worst.max(took);
            }
        }
        report(
            if one_way { "diamond reroute, one way lost, worst" } else { "diamond reroute, both ways lost, worst" },
            worst,
        );
        assert!(worst < MS * limit, "{worst:?}");
    }
}

#[test]
fn a_hundred_nodes_start_within_five_seconds() {
    for seed in seeds(1, 2) {
        let edges = random_graph(100, 4, &mut StdRng::seed_from_u64(seed));
        let mut sim = Sim::new(100, &edges, seed);
        let took = sim.converge(Duration::from_secs(5)).unwrap_or_else(|| panic!("lost: {}", sim.describe_lost()));
        report("cold start of 100 nodes", took);
    }
    let line: Vec<_> = (1..100).map(|i| (i - 1, i)).collect();
    let mut sim = Sim::new(100, &line, 1);
    let took = sim.converge(Duration::from_secs(5)).unwrap_or_else(|| panic!("lost: {}", sim.describe_lost()));
    report("cold start of 100 nodes in a line", took);
}

#[test]
fn fifty_nodes_survive_a_silent_failure_within_three_seconds() {
    let mut worst = Duration::ZERO;
    for seed in seeds(1, 10) {
        let edges = random_graph(50, 5, &mut StdRng::seed_from_u64(seed));
        let mut sim = busy(50, &edges, seed);
        sim.run(Duration::from_secs(8));
        sim.stop(seed as usize * 7 % 50);
        let took = sim.converge(Duration::from_secs(3)).unwrap_or_else(|| panic!("lost: {}", sim.describe_lost()));
        worst = worst.max(took);
    }
    report("50 nodes, one fails silently, all pairs again, worst of 10", worst);
}

#[test]
fn two_hundred_nodes_starve_for_less_than_five_seconds() {
    for seed in seeds(1, 2) {
        let edges = random_graph(200, 4, &mut StdRng::seed_from_u64(seed));
        let mut sim = busy(200, &edges, seed);
        sim.run(Duration::from_secs(6));
        assert_eq!(sim.lost_pairs(), 0, "seed {seed}: {}", sim.describe_lost());
        // A tenth of the links at once: many nodes lose all feasible routes.
        for &(a, b) in edges.iter().step_by(10) {
            sim.set_link(a, b, false);
        }
        let took =
            sim.converge(Duration::from_secs(5)).unwrap_or_else(|| panic!("seed {seed}: {}", sim.describe_lost()));
        report("200 nodes, 40 links fail at once, all pairs again", took);
    }
}

#[test]
fn a_thousand_prefixes_are_retracted_everywhere() {
    let mut sim = busy(4, &[(0, 1), (1, 2), (2, 3), (3, 0)], crate::sim::seed(1));
    for link in sim.links.values_mut() {
        link.loss = 20;
    }
    let nets: Vec<IpNet> = (0..1_000_u32)
        .map(|i| IpNet::new(Ipv4Addr::from(0x0a80_0000 + (i << 8)).into(), 24).expect("a prefix"))
        .collect();
    for &prefix in &nets {
        sim.tell(0, Event::Announce { prefix, metric: 0 });
    }
    sim.run(Duration::from_secs(5));
    assert!(nets.iter().all(|net| (1..4).all(|node| sim.nodes[node].fib.contains_key(net))));
    for &prefix in &nets {
        sim.tell(0, Event::Withdraw { prefix });
    }
    sim.run(Duration::from_secs(5));
    for node in 0..4 {
        let left = nets.iter().filter(|net| sim.nodes[node].fib.contains_key(net)).count();
        assert_eq!(left, 0, "node {node}: routes, or holds that nobody released");
    }
    assert!(sim.nodes[2].fib.contains_key(&prefix(0)));
}
