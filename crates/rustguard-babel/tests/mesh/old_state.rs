//! A node that restarts from an old state, or whose router-id is forged.
use rand::{SeedableRng, rngs::StdRng};
use rustguard_babel::{
    Config, RouterId, Start,
    params::SOURCE_GC,
    wire::{ip, types::link_local},
};
use rustguard_core::{node::PeerId, routing::Event};
use rustguard_sim::{Sim, key, prefix, random_graph, seeds};
use std::{collections::BTreeSet, time::Duration};

const SECOND: Duration = Duration::from_secs(1);
const NODE: usize = 2;

/// A stored state: two bytes of the router-id, and a sequence number.
fn state(seqno: u16) -> Vec<u8> {
    [[0x12, 0x34], seqno.to_be_bytes()].concat()
}

fn restart(sim: &mut Sim, state: Vec<u8>) {
    sim.start_with(NODE, Config::new(key(NODE)).start(Start::Stored(state)));
}

fn settled(seed: u64, first: u16) -> Sim {
    let edges = random_graph(8, 3, &mut StdRng::seed_from_u64(seed));
    let mut sim = Sim::new(8, &edges, seed);
    // A node that forgot what it announced can make a loop until its neighbours notice (RFC 8966 §2.7).
    sim.strict = false;
    restart(&mut sim, state(first));
    sim.run(SECOND * 20);
    assert_eq!(sim.lost_pairs(), 0, "seed {seed}: {}", sim.describe_lost());
    sim
}

/// A backup of any age is restored: up to half the circle of numbers, and at the distance where neither number is
/// newer.
#[test]
fn an_old_state_put_back_costs_no_more_than_a_restart() {
    let mut longest = [Duration::ZERO; 2];
    for seed in seeds(1, 12) {
        for behind in [1, 2, 255, 300, 5_000, 0x5fff, 0x6fff, 0x7ffe, 0x7fff, 0x8000, 0x8001, 0xf000] {
            // The next run, and the run after the backup was restored.
            for (kind, state) in [state(1), state(0_u16.wrapping_sub(behind))].into_iter().enumerate() {
                let mut sim = settled(seed, 0);
                restart(&mut sim, state);
                sim.run(SECOND / 100);
                let took = sim.converge(SECOND * 2);
                let took = took.unwrap_or_else(|| panic!("seed {seed}, {behind} behind: {}", sim.describe_lost()));
                longest[kind] = longest[kind].max(took);
                assert_eq!(sim.loops_now(), 0, "seed {seed}, {behind} behind");
            }
        }
    }
    println!("all pairs after {:?} at most; from the newest state, after {:?}", longest[1], longest[0]);
    assert!(longest[1] < longest[0] + SECOND, "{longest:?}");
}

/// The state that is stored after such a start is up to date.
#[test]
fn the_start_after_that_is_an_ordinary_one() {
    for seed in seeds(1, 6) {
        let mut sim = settled(seed, 9_000);
        restart(&mut sim, state(3_000));
        sim.run(SECOND * 5);
        let kept = sim.nodes[NODE].kept.clone().expect("a state is kept");
        let id = sim.nodes[NODE].engine.as_ref().expect("it runs").router_id();
        restart(&mut sim, kept);
        sim.must_converge(SECOND * 2);
        sim.run(SECOND * 5);
        assert_eq!(sim.nodes[NODE].engine.as_ref().expect("it runs").router_id(), id, "seed {seed}: drawn again");
    }
}

/// A router makes a node believe that other nodes know newer numbers of it: by an update, a request, or both, each
/// second for an hour.
#[test]
fn forged_numbers_cost_little_and_break_no_route() {
    for seed in seeds(1, 3) {
        let mut sim = settled(seed, 9_000);
        let (_, hostile) = *sim.links.range((NODE, 0)..).next().expect("a neighbour").0;
        let mut drawn = BTreeSet::new();
        for second in 0..3_600_u32 {
            let engine = sim.nodes[NODE].engine.as_ref().expect("it runs");
            let (id, route) = (engine.router_id(), engine.routes().find(|route| route.prefix == prefix(NODE)));
            let seqno = route.and_then(|route| route.selected).expect("its own prefix").seqno;
            drawn.insert(id);
            let ahead = [1, 300, 0x6000, 0x7fff][second as usize % 4];
            let packet = forged(hostile, id, seqno.0.wrapping_add(ahead));
            sim.tell(NODE, Event::Packet { peer: PeerId(u32::try_from(hostile).expect("small")), packet: &packet });
            sim.run(SECOND);
            assert_eq!(sim.lost_pairs(), 0, "seed {seed}, after {second} s: {}", sim.describe_lost());
        }
        let allowed = 4 + 3_600 / SOURCE_GC.as_secs() as usize;
        println!("seed {seed}: {} router-ids in an hour", drawn.len());
        assert!(drawn.len() > 1 && drawn.len() <= 1 + allowed, "seed {seed}: {} router-ids", drawn.len());
    }
}

/// An update and a request under this router-id.
fn forged(from: usize, id: RouterId, seqno: u16) -> Vec<u8> {
    let [.., a, b, _] = match prefix(NODE) {
        ipnet::IpNet::V4(net) => net.addr().octets(),
        ipnet::IpNet::V6(_) => unreachable!("an IPv4 prefix"),
    };
    let seqno = seqno.to_be_bytes();
    let mut body = Vec::new();
    // Router-Id; an update of 10.a.b.0/24 that comes every 90 s, at metric 0, v4-via-v6; a request for the same.
    body.extend([6, 10, 0, 0]);
    body.extend(id.bytes());
    body.extend([8, 13, 4, 0x80, 24, 0, 35, 40, seqno[0], seqno[1], 0, 0, 10, a, b]);
    body.extend([10, 17, 1, 24, seqno[0], seqno[1], 64, 0]);
    body.extend(id.bytes());
    body.extend([10, a, b]);
    let len = u16::try_from(body.len()).expect("short").to_be_bytes();
    let packet = [&[42, 2, len[0], len[1]], &*body].concat();
    ip::wrap(link_local(&key(from)), ip::MULTICAST, &packet)
}
