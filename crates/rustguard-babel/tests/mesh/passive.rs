//! A client that moves while only others talk: it says nothing but what WireGuard makes it say.
use ipnet::IpNet;
use rustguard_core::{
    node::PeerId,
    routing::{Event, PeerRoutes, Role, Signal},
};
use rustguard_sim::{Sim, seeds};
use std::time::Duration;

const MS: Duration = Duration::from_millis(1);
/// The client, as its gateways know it: no node of the mesh.
const CLIENT: PeerId = PeerId(1_000);
/// Milliseconds from one packet towards the client to the next, and from one look of a gateway at its counters to the next.
const PACKETS: u64 = 10;
const LOOKS: u64 = 200;
/// Keepalive-Timeout of WireGuard: who got data and has sent nothing for so long sends an empty packet.
const KEEPALIVE: u64 = 10_000;

fn client() -> IpNet {
    "10.200.0.50/32".parse().expect("a prefix")
}

/// How the client behaves, and how busy the gateways are.
#[derive(Clone, Copy, Debug)]
struct Case {
    /// It answers each packet.
    answers: bool,
    /// Both gateways are its peers, and it accepts data from one of them. Otherwise it has only the one that it talks to.
    keeps_both: bool,
    /// The gateways' looks at their counters come so late, in milliseconds.
    late: u64,
}

/// A mesh with a client, and somebody who talks to that without pause.
struct World {
    sim: Sim,
    case: Case,
    /// The node that talks.
    from: usize,
    gateways: [usize; 2],
    /// The one that the client accepts data from, by its place among the gateways.
    at: usize,
    /// What each gateway has got from the client: anything, and the time of the last data.
    got: [Option<Option<u64>>; 2],
    /// What it is going to see of that, and when.
    seen: Vec<(u64, usize, Option<u64>)>,
    /// When the client owes each gateway a keepalive.
    owes: [Option<u64>; 2],
    /// When each gateway looks at its counters.
    phase: [u64; 2],
    now: u64,
    /// For how long nothing has arrived, and for how long at most.
    gap: u64,
    longest: u64,
}

impl World {
    fn new(sim: Sim, case: Case, from: usize, gateways: [usize; 2], seed: u64) -> Self {
        let phase = [seed * 31 % LOOKS, seed * 87 % LOOKS];
        let (got, seen, owes) = ([None; 2], Vec::new(), [None; 2]);
        Self { sim, case, from, gateways, at: 0, got, seen, owes, phase, now: 0, gap: 0, longest: 0 }
    }

    /// The gateway that a packet for the client comes to.
    fn arrives(&self) -> Option<usize> {
        let mut at = self.from;
        for _ in 0..self.sim.nodes.len() {
            match self.sim.nodes[at].fib.get(&client())?.members().first()?.peer {
                CLIENT => return self.gateways.iter().position(|&gateway| gateway == at),
                next => at = usize::try_from(next.0).expect("a node"),
            }
        }
        None
    }

    fn moves_to(&mut self, gateway: usize) {
        self.at = gateway;
        if !self.case.keeps_both {
            self.owes[1 - gateway] = None;
        }
        // A new session, and the keepalive that confirms it.
        self.sim.tell(self.gateways[gateway], Event::Signal { peer: CLIENT, signal: Signal::HandshakeComplete });
        self.got[gateway].get_or_insert(None);
    }

    fn run(&mut self, ms: u64) {
        for _ in 0..ms {
            self.step();
        }
    }

    fn step(&mut self) {
        for gateway in 0..2 {
            if self.owes[gateway].is_some_and(|at| at <= self.now) {
                self.owes[gateway] = None;
                self.got[gateway].get_or_insert(None);
            }
            if (self.now + self.phase[gateway]).is_multiple_of(LOOKS)
                && let Some(data) = self.got[gateway].take()
            {
                self.seen.push((self.now + self.case.late, gateway, data));
            }
        }
        let (due, later) = self.seen.iter().copied().partition(|&(at, ..)| at <= self.now);
        self.seen = later;
        let due: Vec<(u64, usize, Option<u64>)> = due;
        for (_, gateway, data) in due {
            let node = self.gateways[gateway];
            let ago = |at: u64| self.sim.local(node).as_nanos() - (self.now - at) * 1_000_000;
            let data = data.map(|at| rustguard_core::time::Instant::from_nanos(ago(at)));
            self.sim.tell(node, Event::Signal { peer: CLIENT, signal: Signal::Heard { data } });
        }
        if self.now.is_multiple_of(PACKETS) {
            self.packet();
        }
        self.sim.run(MS);
        self.now += 1;
    }

    /// Somebody sends the client a packet.
    fn packet(&mut self) {
        let gateway = self.arrives();
        if gateway == Some(self.at) {
            self.gap = 0;
        } else {
            self.gap += PACKETS;
            self.longest = self.longest.max(self.gap);
        }
        // Data that its allowed IPs refuse is data that came, to WireGuard's timers.
        let Some(gateway) = gateway.filter(|&gateway| gateway == self.at || self.case.keeps_both) else { return };
        if gateway == self.at && self.case.answers {
            self.got[gateway] = Some(Some(self.now));
            self.owes[gateway] = None;
        } else {
            self.owes[gateway].get_or_insert(self.now + KEEPALIVE);
        }
    }
}

/// Its first words to the new gateway are enough: who it left does not take it back for a keepalive, nor for what it is told late.
#[test]
fn a_client_that_others_talk_to_is_followed() {
    let mut worst = 0;
    for seed in seeds(1, 3) {
        for (n, edges, gateways, from) in [
            (3, vec![(0, 1), (0, 2), (1, 2)], [1, 2], 0),
            (5, vec![(0, 1), (1, 2), (2, 3), (3, 4)], [1, 4], 0),
            (4, vec![(0, 1), (1, 2), (2, 3)], [0, 3], 0),
            (4, vec![(0, 1), (0, 2), (0, 3)], [1, 2], 3),
        ] {
            for (answers, keeps_both) in [(false, false), (false, true), (true, false), (true, true)] {
                for late in [0, 150, 300, 900] {
                    let mut sim = Sim::new(n, &edges, seed);
                    sim.strict = false;
                    for gateway in gateways {
                        let config = PeerRoutes { allowed_ips: vec![client()], role: Role::Client };
                        sim.tell(gateway, Event::Peer { peer: CLIENT, config: &config });
                    }
                    sim.run(Duration::from_secs(5));
                    let case = Case { answers, keeps_both, late };
                    let mut world = World::new(sim, case, from, gateways, seed);
                    world.moves_to(0);
                    // Its keepalives come at any time after the move.
                    world.run(12_000 + seed * 2_170);
                    world.longest = 0;
                    for gateway in [1, 0, 1] {
                        world.moves_to(gateway);
                        world.run(25_000);
                        let longest = world.longest;
                        worst = worst.max(longest);
                        assert!(longest < 100, "seed {seed}, to {gateway} in {edges:?}, {case:?}: {longest} ms");
                    }
                }
            }
        }
    }
    println!("nothing arrived for {worst} ms at most");
}
