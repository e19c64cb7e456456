//! Figures that have to be reached, measured in simulated time: `cargo test -p rustguard-babel --test mesh figures --
//! --nocapture`.
use ipnet::IpNet;
use rand::{SeedableRng, rngs::StdRng};
use rustguard_core::routing::Event;
use rustguard_sim::{
    Sim,
    figures::{self, busy},
    prefix, random_graph, seed, seeds,
};
use std::{net::Ipv4Addr, time::Duration};

const MS: Duration = Duration::from_millis(1);

fn report(what: &str, measured: impl std::fmt::Debug) {
    println!("{what:<60} {measured:?}");
}

#[test]
fn bytes_of_a_stable_idle_link() {
    for (prefixes, limit) in [(10, 60), (100, 150), (1_000, 700)] {
        let rate = figures::idle_bytes(prefixes, 1);
        report(&format!("bytes/s of a stable link, {prefixes} prefixes"), rate);
        assert!(rate <= limit, "{rate} bytes/s");
    }
}

/// The worst case for compression: each prefix from another origin, announced in both directions.
#[test]
fn bytes_of_a_link_in_the_middle() {
    // Both ends reach two hundred origins through other nodes. The link between them carries updates of all of them in
    // both directions.
    let n = 202;
    let edges: Vec<_> = (2..n).flat_map(|leaf| [(0, leaf), (1, leaf)]).chain([(0, 1)]).collect();
    let mut sim = Sim::new(n, &edges, 1);
    sim.run(Duration::from_secs(60));
    let bytes = |sim: &Sim| sim.links[&(0, 1)].bytes + sim.links[&(1, 0)].bytes;
    let before = bytes(&sim);
    sim.run(Duration::from_secs(90));
    let rate = (bytes(&sim) - before) / 90;
    report("bytes/s, 200 prefixes of 200 origins, announced both ways", rate);
    assert!(rate <= 190, "{rate} bytes/s");
}

#[test]
fn silent_loss_is_detected_within_a_second() {
    let worst = seeds(1, 50).map(figures::silent_loss).max().expect("a seed");
    report("silent loss detected, worst of 50", worst);
    assert!(worst < MS * 1_000, "{worst:?}");
}

/// A day, or with `RUSTGUARD_ROUNDS=10` ten: one day says little about events that happen once a day.
#[test]
fn a_day_at_one_percent_of_loss_has_no_false_alarm() {
    let days = seeds(1, 1).collect::<Vec<_>>();
    let alarms: u64 = days.iter().map(|&seed| figures::false_alarms(Duration::from_secs(86_400), seed)).sum();
    report(&format!("false alarms of both ends in {} days at 1 % loss", days.len()), alarms);
    assert!(alarms <= days.len().div_ceil(2) as u64, "{alarms}");
}

#[test]
fn a_diamond_reroutes() {
    for (one_way, limit) in [(false, 1_200), (true, 1_500)] {
        let worst = seeds(1, 30).flat_map(|seed| figures::diamond(one_way, seed)).max().expect("a seed");
        report(
            if one_way { "diamond reroute, one way lost, worst" } else { "diamond reroute, both ways lost, worst" },
            worst,
        );
        assert!(worst < MS * limit, "{worst:?}");
    }
}

#[test]
fn a_hundred_nodes_start_within_five_seconds() {
    let line: Vec<_> = (1..100).map(|i| (i - 1, i)).collect();
    let random = |seed| random_graph(100, 4, &mut StdRng::seed_from_u64(seed));
    let meshes = seeds(1, 2).map(|seed| (random(seed), seed)).chain([(line, 1)]);
    for (edges, seed) in meshes {
        let took = figures::cold_start(100, &edges, seed);
        report("cold start of 100 nodes; the last in a line", took);
        assert!(took < MS * 5_000, "seed {seed}: {took:?}");
    }
}

#[test]
fn fifty_nodes_survive_a_silent_failure_within_three_seconds() {
    let worst = seeds(1, 10).map(figures::silent_failure).max().expect("a seed");
    report("50 nodes, one fails silently, all pairs again, worst of 10", worst);
    assert!(worst < MS * 3_000, "{worst:?}");
}

#[test]
fn two_hundred_nodes_starve_for_less_than_five_seconds() {
    for seed in seeds(1, 1) {
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
    let mut sim = busy(4, &[(0, 1), (1, 2), (2, 3), (3, 0)], seed(1));
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
