//! Links that come up late, that die while they are idle, or whose round trip varies.
use rustguard_core::{
    node::PeerId,
    routing::{Event, Signal},
};
use rustguard_sim::{ItemKind, Sim, prefix};
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn an_interface_that_comes_up_late_is_found() {
    let mut sim = Sim::new(3, &[(0, 1), (1, 2)], 1);
    sim.set_link(0, 1, false);
    sim.run(SECOND * 120);
    assert_eq!(sim.lost_pairs(), 0, "what is not connected is not claimed to be");
    sim.set_link(0, 1, true);
    assert!(sim.converge(SECOND * 5).is_some(), "one idle Hello is enough: {}", sim.describe_lost());
}

/// Hellos are 4 s apart here. WireGuard notices the failure sooner.
#[test]
fn an_idle_link_that_died_is_noticed_by_its_first_traffic() {
    let mut sim = Sim::new(2, &[(0, 1)], 1);
    sim.run(SECOND * 61);
    sim.set_link(0, 1, false);
    sim.run(SECOND / 2);
    sim.tell(0, Event::Signal { peer: PeerId(1), signal: Signal::Unanswered });
    sim.run(SECOND / 2);
    assert_eq!(sim.nodes[0].costs[&1], None);
    assert!(sim.nodes[0].fib.get(&prefix(1)).is_none_or(|hops| hops.is_unreachable()));
}

#[test]
fn varying_round_trips_with_a_common_mean_change_no_route() {
    let mut sim = Sim::new(4, &[(0, 1), (1, 3), (0, 2), (2, 3)], 1);
    sim.push(SECOND / 10, ItemKind::Traffic);
    for link in sim.links.values_mut() {
        link.delay = Duration::from_millis(20);
    }
    sim.run(SECOND * 30);
    let mut before = sim.nodes[0].fib[&prefix(3)].members()[0];
    let mut moves = 0;
    for step in 0..300_u64 {
        for (from, to) in [(0, 1), (2, 0)] {
            let swing = 20 + (step / 7 + from as u64) % 2 * 3;
            sim.links.get_mut(&(from, to)).expect("a link").delay = Duration::from_millis(swing);
        }
        sim.run(SECOND);
        let now = sim.nodes[0].fib[&prefix(3)].members()[0];
        moves += u32::from(now.peer != before.peer);
        before = now;
    }
    assert!(moves <= 1, "{moves} times in five minutes");
    assert_eq!(sim.lost_pairs(), 0);
}
