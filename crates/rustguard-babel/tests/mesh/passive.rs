//! A client that moves while only others send data: it sends only WireGuard's own messages.
use ipnet::{IpNet, Ipv4Net};
use rustguard_core::{
    node::PeerId,
    routing::{Event, PeerRoutes, Role, Signal},
};
use rustguard_sim::{Sim, seeds};
use std::{net::Ipv4Addr, time::Duration};

const MS: Duration = Duration::from_millis(1);
/// The client's number as a peer of its gateways. It is not a node of the mesh.
const CLIENT: PeerId = PeerId(1_000);
/// Milliseconds between two packets towards the client, and between two looks of a gateway at its counters.
const PACKETS: u64 = 10;
const LOOKS: u64 = 200;
/// WireGuard's Keepalive-Timeout: a peer that received data and sent nothing for this long sends an empty packet.
const KEEPALIVE: u64 = 10_000;

const CLIENT_PREFIX: IpNet = IpNet::V4(Ipv4Net::new_assert(Ipv4Addr::new(10, 200, 0, 50), 32));

/// The behaviour of the client, and the delay of the gateways.
#[derive(Clone, Copy, Debug)]
struct Case {
    /// Whether the client answers each packet.
    answers: bool,
    /// Whether both gateways are peers of the client, which accepts data from one of them. Otherwise its only peer is
    /// the gateway that it talks to.
    keeps_both: bool,
    /// How late the gateways look at their counters, in milliseconds.
    late: u64,
}

/// A mesh with a client, and a node that sends to the client without pause.
struct World {
    sim: Sim,
    case: Case,
    /// The node that sends.
    from: usize,
    gateways: [usize; 2],
    /// The gateway that the client accepts data from, as an index.
    at: usize,
    /// The state of each gateway's counters: whether any packet came from the client, and when the last data came.
    got: [Option<Option<u64>>; 2],
    /// The time at which each gateway will read its counters, and the values.
    seen: Vec<(u64, usize, Option<u64>)>,
    /// When the client owes each gateway a keepalive.
    owes: [Option<u64>; 2],
    /// When each gateway looks at its counters.
    phase: [u64; 2],
    now: u64,
    /// For how long no packet has arrived, and the maximum.
    gap: u64,
    longest: u64,
}

impl World {
    fn new(sim: Sim, case: Case, from: usize, gateways: [usize; 2], seed: u64) -> Self {
        let phase = [seed * 31 % LOOKS, seed * 87 % LOOKS];
        let (got, seen, owes) = ([None; 2], Vec::new(), [None; 2]);
        Self { sim, case, from, gateways, at: 0, got, seen, owes, phase, now: 0, gap: 0, longest: 0 }
    }

    /// The gateway at which a packet for the client arrives.
    fn arrives(&self) -> Option<usize> {
        let mut at = self.from;
        for _ in 0..self.sim.nodes.len() {
            match self.sim.nodes[at].fib.get(&CLIENT_PREFIX)?.members().first()?.peer {
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

    /// A packet is sent to the client.
    fn packet(&mut self) {
        let gateway = self.arrives();
        if gateway == Some(self.at) {
            self.gap = 0;
        } else {
            self.gap += PACKETS;
            self.longest = self.longest.max(self.gap);
        }
        // WireGuard's timers also count data that the allowed IPs refuse.
        let Some(gateway) = gateway.filter(|&gateway| gateway == self.at || self.case.keeps_both) else { return };
        if gateway == self.at && self.case.answers {
            self.got[gateway] = Some(Some(self.now));
            self.owes[gateway] = None;
        } else {
            self.owes[gateway].get_or_insert(self.now + KEEPALIVE);
        }
    }
}

/// The client's first packets to the new gateway are enough. The gateway that it left does not take it back because of
/// a keepalive, or because of data that its counters show late.
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
                        let config = PeerRoutes { allowed_ips: vec![CLIENT_PREFIX], role: Role::Client };
                        sim.tell(gateway, Event::Peer { peer: CLIENT, config: &config });
                    }
                    sim.run(Duration::from_secs(5));
                    let case = Case { answers, keeps_both, late };
                    let mut world = World::new(sim, case, from, gateways, seed);
                    world.moves_to(0);
                    // The client's keepalives come at any time after the move.
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
