//! Names travel with the routes to the nodes that they name.
use rand::{SeedableRng, rngs::StdRng};
use rustguard_babel::{
    Config, RouterId,
    params::{NAME_HOLD, NAMES_EVERY, UPDATE_INTERVAL},
};
use rustguard_sim::{Link, Sim, key, random_graph, seeds};
use std::{collections::BTreeMap, time::Duration};

const SECOND: Duration = Duration::from_secs(1);

fn named(node: usize, name: &str) -> Config {
    Config::new(key(node)).name(name.parse().ok())
}

/// The names that a node knows of all other running nodes.
fn called(sim: &Sim, node: usize) -> BTreeMap<usize, Option<String>> {
    let engine = sim.nodes[node].engine.as_ref().expect("it runs");
    let names: BTreeMap<RouterId, String> = engine.names().map(|(id, name)| (id, name.as_str().to_owned())).collect();
    let others = sim.nodes.iter().enumerate().filter_map(|(other, node)| Some((other, node.engine.as_ref()?)));
    others.map(|(other, engine)| (other, names.get(&engine.router_id()).cloned())).collect()
}

fn all_know_all(sim: &Sim, what: &str) {
    for node in 0..sim.nodes.len() {
        for (other, name) in called(sim, node) {
            assert_eq!(name, Some(format!("node-{other}")), "{what}: what {node} calls {other}");
        }
    }
}

fn meshed(n: usize, seed: u64) -> Sim {
    let edges = random_graph(n, 3, &mut StdRng::seed_from_u64(seed));
    let mut sim = Sim::new(n, &edges, seed);
    sim.strict = false;
    for node in 0..n {
        sim.start_with(node, named(node, &format!("node-{node}")));
    }
    sim
}

#[test]
fn names_are_there_as_soon_as_routes() {
    for seed in seeds(1, 6) {
        let mut sim = meshed(20, seed);
        for link in sim.links.values_mut().filter(|_| seed.is_multiple_of(2)) {
            *link = Link::bad();
        }
        sim.run(SECOND * 10);
        all_know_all(&sim, &format!("seed {seed}"));
        // One node is new, and one is gone.
        sim.start_with(3, named(3, "node-3"));
        sim.run(SECOND * 5);
        all_know_all(&sim, &format!("seed {seed}: 3 is new"));
        let id = sim.nodes[5].engine.as_ref().expect("it runs").router_id();
        sim.stop(5);
        sim.run(NAME_HOLD + SECOND * 120);
        for (at, node) in sim.nodes.iter().enumerate() {
            let knows = node.engine.as_ref().is_some_and(|engine| engine.names().any(|(other, _)| other == id));
            assert!(!knows, "seed {seed}: {at} remembers who is gone");
        }
    }
}

/// A new name under the same router-id, which changes no route, and nodes without a name.
#[test]
fn a_new_name_arrives_with_the_full_updates() {
    for seed in seeds(1, 3) {
        let mut sim = Sim::new(4, &[(0, 1), (1, 2), (2, 3)], seed);
        sim.strict = false;
        let start = |name| {
            let start = rustguard_babel::Start::Stored(vec![1, 2, 3, 4]);
            named(0, name).start(start)
        };
        sim.start_with(0, start("before"));
        sim.run(SECOND * 20);
        assert_eq!(called(&sim, 3), [(0, Some("before".to_owned())), (1, None), (2, None), (3, None)].into());
        sim.start_with(0, start("after"));
        sim.run(UPDATE_INTERVAL * u32::from(NAMES_EVERY) * 3);
        assert_eq!(called(&sim, 3)[&0].as_deref(), Some("after"), "seed {seed}");
    }
}
