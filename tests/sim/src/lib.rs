//! Meshes of Babel speakers in simulated time: links with delay and faults, a clock, a seed, and the forwarding tables
//! that result.
//!
//! Tests (`crates/rustguard-babel/tests/mesh`) and benchmarks share it. A [`Sim`] panics if a speaker does something
//! forbidden. [`figures`] are measurements made with it. A [`Log`] records what one speaker was told, to repeat it
//! without the mesh.
#![forbid(unsafe_code)]
pub mod figures;
mod log;

use ipnet::IpNet;
pub use log::Log;
use rand::{RngExt, SeedableRng, rngs::StdRng};
use rustguard_babel::{Babel, Config, params::WORK_SLICE};
use rustguard_core::{
    node::PeerId,
    routing::{Action, Event, NextHops, PeerRoutes, Role, RoutingEngine, Signal},
    time::Instant,
};
use rustguard_crypto::x25519::PublicKey;
use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet, BinaryHeap, HashMap},
    time::Duration,
};

/// Node clocks start at this time, so that they can be set back.
const EPOCH: u64 = 1 << 50;

/// The seed in `RUSTGUARD_SEED`, or `default`. It is printed, so that a failure can be replayed.
pub fn seed(default: u64) -> u64 {
    let seed = std::env::var("RUSTGUARD_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(default);
    println!("RUSTGUARD_SEED={seed}");
    seed
}

/// `count` seeds from `first` on. `RUSTGUARD_SEED` replays one seed; `RUSTGUARD_ROUNDS` multiplies the count, to search
/// further.
pub fn seeds(first: u64, count: u64) -> impl Iterator<Item = u64> {
    let number = |variable: &str| std::env::var(variable).ok()?.parse::<u64>().ok();
    let rounds = number("RUSTGUARD_ROUNDS").unwrap_or(1);
    let (first, count) = number("RUSTGUARD_SEED").map_or((first, count * rounds), |seed| (seed, 1));
    (first..first + count).inspect(|seed| println!("RUSTGUARD_SEED={seed}"))
}

/// One direction of a link.
#[derive(Clone, Copy, Debug)]
pub struct Link {
    /// Whether packets pass.
    pub up: bool,
    /// The delay of each packet.
    pub delay: Duration,
    /// A random additional delay of at most this. Packets that follow each other faster may be reordered.
    pub jitter: Duration,
    /// How many of 1,000 packets are lost, on average.
    pub loss: u32,
    /// How many of 1,000 packets arrive twice, on average.
    pub duplication: u32,
    /// Bytes sent so far, IPv6 and UDP headers included.
    pub bytes: u64,
}

impl Link {
    /// A delay of a millisecond, and no loss.
    pub fn good() -> Self {
        let delay = Duration::from_millis(1);
        Self { up: true, delay, jitter: Duration::from_micros(200), loss: 0, duplication: 0, bytes: 0 }
    }

    /// Loses, repeats and reorders packets.
    pub fn bad() -> Self {
        Self { jitter: Duration::from_millis(20), loss: 50, duplication: 20, ..Self::good() }
    }
}

/// A speaker, and the result of its actions.
pub struct Node {
    /// The speaker; `None` while the node is stopped.
    pub engine: Option<Babel>,
    /// The installed next hops.
    pub fib: HashMap<IpNet, NextHops>,
    /// Which peers may send from which prefixes.
    pub permitted: BTreeSet<(PeerId, IpNet)>,
    /// The costs of the links, as the speaker reported them.
    pub costs: BTreeMap<usize, Option<u16>>,
    /// The prefixes and metrics that are announced when the node starts again.
    pub announces: BTreeMap<IpNet, u16>,
    /// The state that the speaker last asked to store.
    pub kept: Option<Vec<u8>>,
    /// How far the node's clock is ahead, in nanoseconds.
    skew: u64,
    wake_at: u64,
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Item {
    Wake(usize),
    Packet(usize, usize, Vec<u8>),
    Traffic,
}

/// A mesh.
pub struct Sim {
    /// Nanoseconds since the start.
    pub now: u64,
    /// All nodes.
    pub nodes: Vec<Node>,
    /// The links, by sender and receiver.
    pub links: BTreeMap<(usize, usize), Link>,
    /// The source of all randomness.
    pub rng: StdRng,
    /// If set, a loop fails the test at once. Otherwise loops are counted, for events that may cause one for a moment
    /// (RFC 8966 §2.7).
    pub strict: bool,
    /// How many loops there were.
    pub loops: u64,
    /// Packets sent so far by all nodes.
    pub packets: u64,
    /// How often a link became unusable, at any node.
    pub downs: u64,
    /// The record of one node's events, if requested.
    pub log: Option<Log>,
    queue: BinaryHeap<Reverse<(u64, u64, Item)>>,
    counter: u64,
}

/// The prefix that a node announces.
pub fn prefix(node: usize) -> IpNet {
    let [.., high, low] = u32::try_from(node).expect("a small number").to_be_bytes();
    IpNet::new([10, high, low, 0].into(), 24).expect("a length in range")
}

/// A node's key.
pub fn key(node: usize) -> PublicKey {
    let mut key = [7; 32];
    key[..8].copy_from_slice(&(node as u64).to_be_bytes());
    PublicKey(key)
}

fn peer(node: usize) -> PeerId {
    PeerId(u32::try_from(node).expect("a small number"))
}

impl Sim {
    /// Creates `n` nodes and starts them all at once. Each announces its [`prefix`]. The links are good in both
    /// directions.
    pub fn new(n: usize, edges: &[(usize, usize)], seed: u64) -> Self {
        let mut links = BTreeMap::new();
        for &(a, b) in edges {
            links.insert((a, b), Link::good());
            links.insert((b, a), Link::good());
        }
        let node = |i| Node {
            engine: None,
            fib: HashMap::new(),
            permitted: BTreeSet::new(),
            costs: BTreeMap::new(),
            announces: BTreeMap::from([(prefix(i), 0)]),
            kept: None,
            skew: 0,
            wake_at: u64::MAX,
        };
        let mut sim = Self {
            now: 0,
            nodes: (0..n).map(node).collect(),
            links,
            rng: StdRng::seed_from_u64(seed),
            strict: true,
            loops: 0,
            packets: 0,
            downs: 0,
            log: None,
            queue: BinaryHeap::new(),
            counter: 0,
        };
        for i in 0..n {
            sim.start(i);
        }
        sim
    }

    /// Schedules an item for later.
    pub fn push(&mut self, after: Duration, item: ItemKind) {
        let item = match item {
            ItemKind::Traffic => Item::Traffic,
        };
        self.schedule(self.now + nanos(after), item);
    }

    fn schedule(&mut self, at: u64, item: Item) {
        self.counter += 1;
        self.queue.push(Reverse((at, self.counter, item)));
    }

    /// Starts a node, or restarts it without state.
    pub fn start(&mut self, i: usize) {
        self.start_with(i, Config::new(key(i)));
    }

    /// Starts a node with a configuration, or restarts it.
    pub fn start_with(&mut self, i: usize, config: Config) {
        self.stop(i);
        let seed = self.rng.random();
        self.nodes[i].engine = Some(Babel::new(config.clone(), &mut StdRng::seed_from_u64(seed)));
        if let Some(log) = self.log.as_mut().filter(|log| log.node() == i) {
            log.started(config, seed);
        }
        let neighbours: Vec<usize> = self.links.range((i, 0)..=(i, usize::MAX)).map(|(&(_, to), _)| to).collect();
        let config = PeerRoutes { allowed_ips: vec!["10.0.0.0/8".parse().expect("a prefix")], role: Role::Router };
        for to in neighbours {
            self.tell(i, Event::Peer { peer: peer(to), config: &config });
        }
        for (prefix, metric) in self.nodes[i].announces.clone() {
            self.tell(i, Event::Announce { prefix, metric });
        }
    }

    /// Stops a node without a retraction.
    pub fn stop(&mut self, i: usize) {
        let node = &mut self.nodes[i];
        node.engine = None;
        node.fib.clear();
        node.permitted.clear();
        node.costs.clear();
        node.wake_at = u64::MAX;
    }

    /// A node's clock jumps ahead, as after a suspend.
    pub fn jump(&mut self, i: usize, by: Duration) {
        self.nodes[i].skew += nanos(by);
        self.tell(i, Event::Time);
    }

    /// Cuts or restores both directions of a link.
    pub fn set_link(&mut self, a: usize, b: usize, up: bool) {
        self.set_direction(a, b, up);
        self.set_direction(b, a, up);
    }

    /// Cuts or restores one direction of a link.
    pub fn set_direction(&mut self, a: usize, b: usize, up: bool) {
        self.links.get_mut(&(a, b)).expect("a link").up = up;
    }

    /// A node's clock.
    pub fn local(&self, i: usize) -> Instant {
        Instant::from_nanos(EPOCH + self.now + self.nodes[i].skew)
    }

    /// Gives a node an event, and carries out its actions.
    pub fn tell(&mut self, i: usize, event: Event<'_>) {
        let now = self.local(i);
        let Some(engine) = &mut self.nodes[i].engine else { return };
        if let Some(log) = self.log.as_mut().filter(|log| log.node() == i) {
            log.told(event, now);
        }
        let (mut actions, before) = (Vec::new(), engine.work());
        engine.handle(event, now, &mut actions);
        let deadline = engine.deadline().expect("a speaker always waits for something");
        let left_over = engine.work() - before >= WORK_SLICE;
        assert!(deadline > now || left_over, "node {i} at {now:?}: a deadline that has passed would never end");
        for action in actions {
            self.act(i, action);
        }
        let node = &mut self.nodes[i];
        let at = deadline.as_nanos() - EPOCH - node.skew;
        if at < node.wake_at || node.wake_at <= self.now {
            node.wake_at = at;
            self.schedule(at, Item::Wake(i));
        }
    }

    fn act(&mut self, i: usize, action: Action) {
        match action {
            Action::Send { peer, packet } => {
                let to = peer.0 as usize;
                assert!(packet.len() <= 1_280, "a packet of {} bytes", packet.len());
                let Some(link) = self.links.get_mut(&(i, to)) else { return };
                link.bytes += packet.len() as u64;
                self.packets += 1;
                let link = *link;
                let copies = 1 + usize::from(self.rng.random_range(0..1_000) < link.duplication);
                for _ in 0..copies {
                    if link.up && self.rng.random_range(0..1_000) >= link.loss {
                        let jitter = self.rng.random_range(0..=nanos(link.jitter));
                        self.schedule(self.now + nanos(link.delay) + jitter, Item::Packet(i, to, packet.clone()));
                    }
                }
            }
            Action::Install { prefix, hops } => {
                self.nodes[i].fib.insert(prefix, hops);
                self.check_loop(i, prefix);
            }
            Action::Remove { prefix } => {
                self.nodes[i].fib.remove(&prefix).expect("what is removed was installed");
            }
            Action::Permit { peer, prefix, .. } => {
                assert!(self.nodes[i].permitted.insert((peer, prefix)), "permitted twice");
            }
            Action::Forbid { peer, prefix } => {
                assert!(self.nodes[i].permitted.remove(&(peer, prefix)), "was not permitted");
            }
            Action::Neighbour { peer, cost } => {
                self.downs += u64::from(cost.is_none());
                self.nodes[i].costs.insert(peer.0 as usize, cost);
            }
            Action::Keep { bytes } => self.nodes[i].kept = Some(bytes),
            // Clients are not nodes here, so no answer will come.
            Action::Ask { .. } | Action::Usable { .. } => {}
            other => panic!("Babel does not ask for this: {other:?}"),
        }
    }

    /// Looks for loops. A new loop goes through the node that changed.
    fn check_loop(&mut self, start: usize, prefix: IpNet) {
        let mut seen = vec![false; self.nodes.len()];
        let mut left: Vec<usize> = self.next(start, prefix).collect();
        while let Some(node) = left.pop() {
            if node == start {
                self.loops += 1;
                assert!(!self.strict, "{prefix} loops: {}", self.describe_loop(start, prefix));
                return;
            }
            if !std::mem::replace(&mut seen[node], true) {
                left.extend(self.next(node, prefix));
            }
        }
    }

    /// The nodes of a loop, and their routes.
    fn describe_loop(&self, start: usize, prefix: IpNet) -> String {
        let reaches = |from: usize, to: usize| {
            let (mut seen, mut left) = (BTreeSet::new(), self.next(from, prefix).collect::<Vec<_>>());
            while let Some(node) = left.pop() {
                if seen.insert(node) {
                    left.extend(self.next(node, prefix));
                }
            }
            seen.contains(&to)
        };
        let nodes = (0..self.nodes.len()).filter(|&node| reaches(start, node) && reaches(node, start));
        let tell = |node: usize| {
            let engine = self.nodes[node].engine.as_ref();
            let route = engine.and_then(|engine| engine.routes().find(|route| route.prefix == prefix));
            format!("\n{node} ({:?}): {route:?}", engine.map(Babel::router_id))
        };
        let nodes: Vec<String> = nodes.map(tell).collect();
        format!("at {} ms{}", self.now / 1_000_000, nodes.concat())
    }

    fn next(&self, node: usize, prefix: IpNet) -> impl Iterator<Item = usize> {
        // Peers that are not nodes are clients; packets end there.
        let peers = self.hops(node, prefix).into_iter().flat_map(NextHops::peers).map(|peer| peer.0 as usize);
        peers.filter(|&peer| peer < self.nodes.len())
    }

    fn hops(&self, node: usize, prefix: IpNet) -> Option<&NextHops> {
        self.nodes[node].fib.get(&prefix)
    }

    /// The prefixes that have a loop at this moment.
    pub fn loops_now(&self) -> usize {
        let prefixes: BTreeSet<IpNet> = self.nodes.iter().flat_map(|node| node.fib.keys().copied()).collect();
        prefixes.into_iter().filter(|&prefix| self.has_loop(prefix)).count()
    }

    /// Whether packets for this prefix can loop at this moment.
    pub fn has_loop(&self, prefix: IpNet) -> bool {
        #[derive(Clone, Copy, PartialEq)]
        enum Seen {
            No,
            OnTheWay,
            Done,
        }
        // A depth-first search: a node whose next hop is on the current path is in a loop.
        let mut seen = vec![Seen::No; self.nodes.len()];
        for start in 0..self.nodes.len() {
            let mut way = vec![(start, self.next(start, prefix))];
            if std::mem::replace(&mut seen[start], Seen::OnTheWay) != Seen::No {
                seen[start] = Seen::Done;
                continue;
            }
            while let Some((node, onward)) = way.last_mut() {
                let Some(next) = onward.next() else {
                    seen[*node] = Seen::Done;
                    way.pop();
                    continue;
                };
                match std::mem::replace(&mut seen[next], Seen::OnTheWay) {
                    Seen::No => way.push((next, self.next(next, prefix))),
                    Seen::OnTheWay => return true,
                    Seen::Done => seen[next] = Seen::Done,
                }
            }
        }
        false
    }

    /// Lets time pass.
    pub fn run(&mut self, time: Duration) {
        let until = self.now + nanos(time);
        while let Some(Reverse((at, ..))) = self.queue.peek()
            && *at <= until
        {
            let Some(Reverse((at, _, item))) = self.queue.pop() else { break };
            self.now = at;
            match item {
                Item::Wake(i) if self.nodes[i].wake_at == at => {
                    self.nodes[i].wake_at = u64::MAX;
                    self.tell(i, Event::Time);
                }
                Item::Wake(_) => {}
                Item::Packet(from, to, packet) => self.tell(to, Event::Packet { peer: peer(from), packet: &packet }),
                Item::Traffic => {
                    let links: Vec<(usize, usize)> = self.links.keys().copied().collect();
                    for (from, to) in links {
                        self.tell(from, Event::Signal { peer: peer(to), signal: Signal::Carried });
                    }
                    self.push(Duration::from_secs(2), ItemKind::Traffic);
                }
            }
        }
        self.now = until;
    }

    /// Runs until all reachable pairs are connected. Returns how long that took, or `None` if it took longer than
    /// `limit`.
    pub fn converge(&mut self, limit: Duration) -> Option<Duration> {
        let start = self.now;
        while self.is_any_lost() {
            if self.now - start > nanos(limit) {
                return None;
            }
            self.run(Duration::from_millis(10));
        }
        Some(Duration::from_nanos(self.now - start))
    }

    /// Runs until all reachable pairs are connected, and returns how long that took.
    ///
    /// # Panics
    /// If it takes longer than `limit`; the message names the pairs.
    pub fn must_converge(&mut self, limit: Duration) -> Duration {
        self.converge(limit).unwrap_or_else(|| panic!("lost: {}", self.describe_lost()))
    }

    fn works(&self, a: usize, b: usize) -> bool {
        let alive = self.nodes[a].engine.is_some() && self.nodes[b].engine.is_some();
        alive
            && self.links.get(&(a, b)).is_some_and(|link| link.up)
            && self.links.get(&(b, a)).is_some_and(|link| link.up)
    }

    /// Counts connected pairs of a node and a prefix with a path that does not arrive, and pairs that are not connected
    /// but still have a next hop.
    pub fn lost_pairs(&self) -> usize {
        self.origins().map(|(origin, prefix)| self.lost(origin, prefix).len()).sum()
    }

    /// Whether any pair is among [`Sim::lost_pairs`]. It stops at the first one, because with hundreds of nodes the
    /// others are most of the work.
    fn is_any_lost(&self) -> bool {
        self.origins().any(|(origin, prefix)| !self.lost(origin, prefix).is_empty())
    }

    /// The nodes and their announced prefixes.
    fn origins(&self) -> impl Iterator<Item = (usize, IpNet)> {
        let announced = |(origin, node): (usize, &Node)| {
            node.announces.keys().map(move |&prefix| (origin, prefix)).collect::<Vec<_>>()
        };
        self.nodes.iter().enumerate().flat_map(announced)
    }

    /// The routes of nodes that do not reach everything.
    pub fn describe_lost(&self) -> String {
        let mut text = String::new();
        for (origin, prefix) in self.origins() {
            for node in self.lost(origin, prefix) {
                let around = self.links.range((node, 0)..=(node, usize::MAX)).map(|(&(_, to), _)| to);
                for node in std::iter::once(node).chain(around) {
                    let engine = self.nodes[node].engine.as_ref();
                    let route = engine.and_then(|engine| engine.routes().find(|route| route.prefix == prefix));
                    text += &format!("\n{node} {:?}: {route:?}", self.nodes[node].costs);
                }
            }
        }
        text.chars().take(4_000).collect()
    }

    fn lost(&self, origin: usize, prefix: IpNet) -> Vec<usize> {
        let alive: Vec<usize> = (0..self.nodes.len()).filter(|&node| self.nodes[node].engine.is_some()).collect();
        let mut connected = BTreeSet::new();
        if self.nodes[origin].engine.is_some() {
            connected.insert(origin);
            let mut left = vec![origin];
            while let Some(node) = left.pop() {
                for (&(_, to), _) in self.links.range((node, 0)..=(node, usize::MAX)) {
                    if self.works(node, to) && connected.insert(to) {
                        left.push(to);
                    }
                }
            }
        }
        // The search goes backwards from the origin. Packets of a node arrive if the packets of all its next hops
        // arrive.
        let mut arrives = vec![false; self.nodes.len()];
        arrives[origin] = true;
        let mut open: Vec<usize> = connected.iter().copied().filter(|&node| node != origin).collect();
        loop {
            let before = open.len();
            open.retain(|&node| {
                let members = self.hops(node, prefix).map(NextHops::members).unwrap_or_default();
                let good = |next: usize| arrives[next] && self.works(node, next);
                arrives[node] = !members.is_empty() && members.iter().all(|member| good(member.peer.0 as usize));
                !arrives[node]
            });
            if open.len() == before {
                break;
            }
        }
        alive
            .into_iter()
            .filter(|node| {
                if connected.contains(node) {
                    !arrives[*node]
                } else {
                    self.nodes[*node].fib.get(&prefix).is_some_and(|hops| !hops.is_unreachable())
                }
            })
            .collect()
    }
}

/// An item that a test can schedule.
pub enum ItemKind {
    /// Data on all links, every two seconds from now on, so that Hellos stay frequent.
    Traffic,
}

/// A duration in nanoseconds.
pub fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).expect("centuries")
}

/// A connected random graph: a tree, and as many more edges as the mean degree needs.
pub fn random_graph(n: usize, degree: usize, rng: &mut StdRng) -> Vec<(usize, usize)> {
    let mut edges = BTreeSet::new();
    for i in 1..n {
        edges.insert((rng.random_range(0..i), i));
    }
    while edges.len() < n * degree / 2 {
        let (a, b) = (rng.random_range(0..n), rng.random_range(0..n));
        if a != b {
            edges.insert((a.min(b), a.max(b)));
        }
    }
    edges.into_iter().collect()
}

/// All connected graphs of `n` nodes, one of each shape.
pub fn all_graphs(n: usize) -> Vec<Vec<(usize, usize)>> {
    let pairs: Vec<(usize, usize)> = (0..n).flat_map(|a| (a + 1..n).map(move |b| (a, b))).collect();
    let orders = permutations(n);
    let mut shapes = BTreeSet::new();
    let mut graphs = Vec::new();
    for mask in 0_u32..1 << pairs.len() {
        let edges: Vec<(usize, usize)> =
            pairs.iter().enumerate().filter(|(bit, _)| mask >> bit & 1 == 1).map(|(_, &pair)| pair).collect();
        let mut reached = BTreeSet::from([0]);
        for _ in 0..n {
            for &(a, b) in &edges {
                if reached.contains(&a) || reached.contains(&b) {
                    reached.extend([a, b]);
                }
            }
        }
        let renamed = |order: &Vec<usize>| {
            let rename = |&(a, b): &(usize, usize)| (order[a].min(order[b]), order[a].max(order[b]));
            edges.iter().map(rename).collect::<BTreeSet<_>>()
        };
        let shape = orders.iter().map(renamed).min();
        if reached.len() == n && shapes.insert(shape) {
            graphs.push(edges);
        }
    }
    graphs
}

fn permutations(n: usize) -> Vec<Vec<usize>> {
    if n == 0 {
        return vec![Vec::new()];
    }
    let insert = |rest: &Vec<usize>, at: usize| {
        let mut order = rest.clone();
        order.insert(at, n - 1);
        order
    };
    permutations(n - 1).iter().flat_map(|rest| (0..n).map(move |at| insert(rest, at))).collect()
}
