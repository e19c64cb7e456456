//! Clients without Babel, and the gateways that hear them.
use ipnet::{IpNet, Ipv4Net};
use rand::{SeedableRng, rngs::StdRng};
use rustguard_babel::{
    Config, Start,
    params::{CLIENT_SILENCE, METRIC_CLIENT_SILENT},
};
use rustguard_core::{
    node::PeerId,
    routing::{Event, PeerRoutes, Role, Signal},
};
use rustguard_sim::{Sim, key, random_graph, seeds};
use std::{net::Ipv4Addr, time::Duration};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
/// The client's number as a peer of its gateways. It is not a node of the mesh.
const CLIENT: PeerId = PeerId(1_000);
/// A node between the two gateways, which are the first and the last node. It is nearer to the first.
const FAR: usize = 1;
const GATEWAYS: [usize; 2] = [0, 3];

const CLIENT_PREFIX: IpNet = IpNet::V4(Ipv4Net::new_assert(Ipv4Addr::new(10, 200, 0, 50), 32));

/// 0 – 1 – 2 – 3, with the client's key on both ends.
fn line(seed: u64) -> Sim {
    let mut sim = Sim::new(4, &[(0, 1), (1, 2), (2, 3)], seed);
    // The same prefix from two origins: each has its own feasibility distances (RFC 8966 §2.7).
    sim.strict = false;
    for gateway in GATEWAYS {
        knows(&mut sim, gateway);
    }
    sim.run(SECOND * 4);
    sim
}

fn knows(sim: &mut Sim, gateway: usize) {
    let config = PeerRoutes { allowed_ips: vec![CLIENT_PREFIX], role: Role::Client };
    sim.tell(gateway, Event::Peer { peer: CLIENT, config: &config });
}

fn hears(sim: &mut Sim, gateway: usize) {
    let data = Some(sim.local(gateway));
    sim.tell(gateway, Event::Signal { peer: CLIENT, signal: Signal::Heard { data } });
}

/// The client sends data five times a second to these gateways.
fn talks(sim: &mut Sim, gateways: &[usize], time: Duration) {
    for _ in 0..time.as_millis() / 200 {
        for &gateway in gateways {
            hears(sim, gateway);
        }
        sim.run(MS * 200);
    }
}

/// The gateway that a node's packets for the client arrive at, and the node's metric.
fn served_by(sim: &Sim, from: usize) -> Option<(usize, u16)> {
    let mut at = from;
    let route = |node: usize| {
        let engine = sim.nodes[node].engine.as_ref()?;
        engine.routes().find(|route| route.prefix == CLIENT_PREFIX)?.selected
    };
    let metric = route(from)?.metric;
    for _ in 0..sim.nodes.len() {
        match sim.nodes[at].fib.get(&CLIENT_PREFIX)?.members().first()?.peer {
            CLIENT => return Some((at, metric)),
            next => at = usize::try_from(next.0).expect("a node"),
        }
    }
    None
}

#[test]
fn a_silent_client_is_a_last_resort_until_it_is_heard_again() {
    for seed in seeds(1, 10) {
        let mut sim = line(seed);
        let (_, metric) = served_by(&sim, FAR).expect("a last resort, although never heard");
        assert!(metric >= METRIC_CLIENT_SILENT, "seed {seed}: never heard, {metric}");

        talks(&mut sim, &[3], SECOND);
        let (at, metric) = served_by(&sim, FAR).expect("heard");
        assert!(at == 3 && metric < METRIC_CLIENT_SILENT, "seed {seed}: heard at 3, but {metric} at {at}");
        // No node treats the client as present or as unreachable.
        let told = sim.now;
        sim.run(CLIENT_SILENCE - MS * 500);
        assert!(
            served_by(&sim, FAR).is_some_and(|(at, metric)| at == 3 && metric < METRIC_CLIENT_SILENT),
            "seed {seed}: too soon"
        );
        while served_by(&sim, FAR).expect("a last resort").1 < METRIC_CLIENT_SILENT {
            sim.run(MS * 10);
            assert!(sim.now - told < 200_000_000_000, "seed {seed}: never held");
        }
        let (at, _) = served_by(&sim, FAR).expect("a last resort");
        assert_eq!(at, 3, "seed {seed}: who heard it last is the last resort");
        sim.run(SECOND * 300);
        assert_eq!(served_by(&sim, FAR).map(|(at, _)| at), Some(3), "seed {seed}: a last resort has no end");

        // The client's first packet is enough, at its last gateway and at the other one.
        for gateway in [3, 0] {
            hears(&mut sim, gateway);
            let heard = sim.now;
            while served_by(&sim, FAR).is_none_or(|(at, metric)| at != gateway || metric >= METRIC_CLIENT_SILENT) {
                sim.run(MS);
                let late = Duration::from_nanos(sim.now - heard);
                assert!(late < SECOND, "seed {seed}: {late:?} after {gateway} has heard it");
            }
            sim.run(CLIENT_SILENCE + SECOND);
        }
        assert_eq!(served_by(&sim, FAR).map(|(at, _)| at), Some(0), "seed {seed}");
    }
}

/// The effects of a move of the client.
#[derive(Default)]
struct Move {
    /// When all nodes used the new gateway for good.
    arrived: Option<Duration>,
    /// The longest time of a loop.
    loops: Duration,
}

/// The client sends data five times a second to one gateway, for two seconds.
fn moves_to(sim: &mut Sim, gateway: usize) -> Move {
    let mut seen = Move::default();
    let mut looping = None;
    for ms in 0..2_000_u64 {
        if ms % 200 == 0 {
            hears(sim, gateway);
        }
        sim.run(MS);
        looping = sim.has_loop(CLIENT_PREFIX).then(|| looping.unwrap_or(ms));
        seen.loops = seen.loops.max(looping.map_or(Duration::ZERO, |since| Duration::from_millis(ms + 1 - since)));
        let all = (0..sim.nodes.len()).all(|node| served_by(sim, node).is_some_and(|(at, _)| at == gateway));
        seen.arrived = if all { seen.arrived.or(Some(Duration::from_millis(ms + 1))) } else { None };
    }
    seen
}

/// The client leaves one gateway for another without notice. Its first packet there is enough for any distance between
/// the gateways.
#[test]
fn traffic_follows_within_a_second_and_loops_end() {
    let mut worst = Move { arrived: Some(Duration::ZERO), ..Move::default() };
    for seed in seeds(1, 3) {
        for hops in [3, 4, 6, 10] {
            let line: Vec<_> = (1..=hops).map(|node| (node - 1, node)).collect();
            let ring: Vec<_> = line.iter().copied().chain([(0, hops)]).collect();
            let random = random_graph(hops + 1, 3, &mut StdRng::seed_from_u64(seed));
            for edges in [line, ring, random] {
                let mut sim = Sim::new(hops + 1, &edges, seed);
                sim.strict = false;
                for gateway in [0, hops] {
                    knows(&mut sim, gateway);
                }
                sim.run(SECOND * 15);
                // There and back; and back before any node knew.
                for (to, before, limit) in [(0, 10_000, 1_000), (hops, 1_000, 1_000), (0, 200, 2_000)] {
                    let last = if to == 0 { hops } else { 0 };
                    if limit > 1_000 {
                        talks(&mut sim, &[to], SECOND * 10);
                    }
                    talks(&mut sim, &[last], MS * before);
                    let seen = moves_to(&mut sim, to);
                    let arrived = seen.arrived.unwrap_or_else(|| panic!("seed {seed}: to {to}, never: {edges:?}"));
                    if limit == 1_000 {
                        worst = Move { arrived: worst.arrived.max(seen.arrived), loops: worst.loops.max(seen.loops) };
                    }
                    assert!(arrived < MS * limit, "seed {seed}: to {to}, everybody after {arrived:?}: {edges:?}");
                    assert!(seen.loops < MS * 100, "seed {seed}: to {to}, a loop of {:?}: {edges:?}", seen.loops);
                }
            }
        }
    }
    println!("all nodes after {:?} at most, the longest loop {:?}", worst.arrived, worst.loops);
}

/// Two gateways that hear the same client do not exchange updates about it.
#[test]
fn two_gateways_that_hear_a_client_agree() {
    for seed in seeds(1, 5) {
        let mut sim = line(seed);
        talks(&mut sim, &[0], SECOND * 10);
        talks(&mut sim, &GATEWAYS, SECOND * 20);
        let (updates, before) = (sim.packets, sim.now);
        for _ in 0..30 {
            talks(&mut sim, &GATEWAYS, SECOND * 2);
            for (node, gateway) in [(0, 0), (1, 0), (2, 3), (3, 3)] {
                let at = served_by(&sim, node);
                assert_eq!(at.map(|(at, _)| at), Some(gateway), "seed {seed}: {node}");
            }
        }
        // Hellos with IHUs on three idle links, and a full update at intervals.
        let packets = (sim.packets - updates) * 1_000_000_000 / (sim.now - before);
        assert!(packets <= 3, "seed {seed}: {packets} packets a second");
    }
}

/// The gateway that last heard the client may fail too. Then a gateway that never heard the client is the last resort.
#[test]
fn a_last_resort_outlives_the_gateway_that_held_it() {
    for seed in seeds(1, 10) {
        let mut sim = line(seed);
        talks(&mut sim, &[3], SECOND);
        sim.run(CLIENT_SILENCE + SECOND);
        sim.stop(3);
        sim.run(SECOND * 20);
        let (at, metric) = served_by(&sim, FAR).expect("a last resort");
        assert!(at == 0 && metric >= METRIC_CLIENT_SILENT, "seed {seed}: {metric} at {at}");
    }
}

/// A client that talks to both gateways is anycast: each node uses the nearer one. The loss of one costs as much as the
/// loss of a router.
#[test]
fn a_client_of_two_gateways_is_reached_by_the_nearer_and_when_that_is_lost_by_the_other() {
    for seed in seeds(1, 10) {
        let mut sim = line(seed);
        talks(&mut sim, &GATEWAYS, SECOND * 5);
        for (node, gateway) in [(0, 0), (1, 0), (2, 3), (3, 3)] {
            let served = served_by(&sim, node);
            assert!(
                served.is_some_and(|(at, metric)| at == gateway && metric < METRIC_CLIENT_SILENT),
                "seed {seed}: {node} has {served:?}"
            );
        }
        sim.stop(0);
        let lost = sim.now;
        while served_by(&sim, FAR).is_none_or(|(at, metric)| at != 3 || metric >= METRIC_CLIENT_SILENT) {
            talks(&mut sim, &[3], MS * 200);
            let late = Duration::from_nanos(sim.now - lost);
            // The link to the lost gateway is idle: Hellos are 4 s apart.
            assert!(late < SECOND * 15, "seed {seed}: {late:?}");
        }
        sim.start(0);
        knows(&mut sim, 0);
        talks(&mut sim, &GATEWAYS, SECOND * 10);
        assert!(served_by(&sim, FAR).is_some_and(|(at, _)| at == 0), "seed {seed}: back, and nearer");
    }
}

/// Two gateways have one private key, and one is a copy of the other with its stored state. Both are reachable, and so
/// is the client of one of them.
#[test]
fn gateways_with_one_key_and_one_stored_state_become_distinct() {
    for seed in seeds(1, 20) {
        let mut sim = line(seed);
        for gateway in GATEWAYS {
            let start = Start::Stored(vec![1, 2, 3, 4]);
            sim.start_with(gateway, Config::new(key(0)).start(start));
            knows(&mut sim, gateway);
        }
        let same = |sim: &Sim| {
            let [one, other] = GATEWAYS.map(|node| sim.nodes[node].engine.as_ref().expect("it runs").router_id());
            assert!(one.is_of_same_key(other));
            one == other
        };
        assert!(same(&sim), "not what this is about");
        let started = sim.now;
        while same(&sim) {
            sim.run(MS * 10);
            assert!(sim.now - started < 2_000_000_000, "seed {seed}: nobody has noticed");
        }
        sim.must_converge(SECOND * 5);
        println!("seed {seed}: told apart and all pairs after {:?}", Duration::from_nanos(sim.now - started));
        for gateway in GATEWAYS {
            talks(&mut sim, &[gateway], SECOND * 2);
            let at = served_by(&sim, FAR);
            assert!(at.is_some_and(|(at, _)| at == gateway), "seed {seed}: heard at {gateway}, but {at:?} has it");
        }
    }
}
