//! The cost of the timers of 100,000 idle peers, as a share of one core.
//!
//! ```text
//! cargo bench -p rustguard-benches --bench timers
//! ```
//!
//! A node runs with a simulated clock. Every peer gets a real session. Then only time passes, and the benchmark calls
//! the node at each of its deadlines, as its owner would. An owner has the additional cost of waking its thread. An
//! owner whose clock counts milliseconds needs fewer calls than one for each deadline. Keepalives are counted as sent,
//! but not sealed, because that is the work of the data plane. Renewing a session is a handshake, which the benchmark
//! `handshake` measures.

use rand::{SeedableRng as _, rngs::StdRng};
use rustguard_core::{
    node::{Action, Node, PeerConfig, PeerId},
    time::{Instant, Now},
};
use rustguard_crypto::x25519::StaticSecret;
use std::{
    error::Error,
    fs,
    net::{Ipv4Addr, SocketAddr},
    time::Duration,
};

const PEERS: u32 = 100_000;
/// The sessions begin one after the other during this time, so that their timers do not expire all at once. It is
/// slightly less than two minutes, so that no two keepalives fall on the same nanosecond.
const SPREAD: Duration = Duration::from_nanos(119_999_999_989);
/// Transport bytes of a keepalive.
const KEEPALIVE: u64 = 32;

fn main() -> Result<(), Box<dyn Error>> {
    println!("{PEERS} peers; target: 1 % of a core");
    println!("{:<52} {:>9} {:>9} {:>9} {:>9} {:>8}", "", "simulated", "events", "CPU", "an event", "of core");
    let mut quiet = Simulation::new(None);
    quiet.pass("sessions idle, then erased", Duration::from_secs(600))?;
    quiet.pass("sessions erased", Duration::from_secs(600))?;
    drop(quiet);
    // The time is short enough that even the oldest session is still valid.
    let mut kept = Simulation::new(Some(Duration::from_secs(25)));
    kept.pass("PersistentKeepalive = 25, sessions idle but for it", Duration::from_secs(50))?;
    Ok(())
}

/// A node whose peers all have a session, and its clock.
struct Simulation {
    node: Node,
    clock: Duration,
    rng: StdRng,
    out: Vec<Action>,
}

impl Simulation {
    fn new(persistent_keepalive: Option<Duration>) -> Self {
        let mut rng = StdRng::seed_from_u64(1);
        let key = StaticSecret::from_bytes([1; 32]);
        let mut node = Node::new(now(Duration::ZERO).instant, &mut rng);
        node.set_private_key(Some(key.clone()), &mut Vec::new());
        let mut simulation = Self { node, clock: Duration::ZERO, rng, out: Vec::new() };
        for n in 0..PEERS {
            simulation.advance(SPREAD * n / PEERS);
            simulation.connect(n, &key, persistent_keepalive);
        }
        simulation
    }

    /// Adds a peer and completes a handshake with it. The other end exists only for its answer.
    fn connect(&mut self, n: u32, key: &StaticSecret, persistent_keepalive: Option<Duration>) {
        let mut secret = [0x5a; 32];
        secret[..4].copy_from_slice(&n.to_be_bytes());
        let secret = StaticSecret::from_bytes(secret);
        let config = PeerConfig::new(secret.public_key()).with_persistent_keepalive(persistent_keepalive);
        let id = self.node.add_peer(config).expect("a new peer");
        let now = now(self.clock);
        // With persistent keepalive, this call begins a handshake already.
        self.node.start(id, now, &mut self.rng, &mut self.out);
        self.node.handshake_wanted(id, now, &mut self.rng, &mut self.out);
        let initiation = self.sent();

        let mut peer = Node::new(now.instant, &mut self.rng);
        peer.set_private_key(Some(secret), &mut self.out);
        let ours = PeerConfig::new(key.public_key());
        peer.add_peer(ours).expect("a new peer");
        let from = SocketAddr::from((Ipv4Addr::from(0x0a00_0000 + n), 51_820));
        peer.handle(from, &initiation, now, &mut self.rng, &mut self.out).expect("an honest initiation");
        let response = self.sent();
        self.node.handle(from, &response, now, &mut self.rng, &mut self.out).expect("an honest response");
        self.obey();
    }

    /// The one datagram among the actions.
    fn sent(&mut self) -> Vec<u8> {
        let datagram = self.out.drain(..).find_map(|action| match action {
            Action::Send { datagram, .. } => Some(datagram),
            _ => None,
        });
        datagram.expect("something was sent")
    }

    /// Carries out the keepalives, as the data plane would, and ignores other actions.
    fn obey(&mut self) {
        let now = now(self.clock).instant;
        for action in self.out.drain(..) {
            match action {
                Action::Keepalive { peer } | Action::Flush { peer, or_keepalive: true } => stamp(&self.node, peer, now),
                Action::Send { .. } => unreachable!("an idle peer has no handshakes"),
                _ => {}
            }
        }
    }

    /// Calls the node at each of its deadlines until `end`. Returns the number of calls.
    fn advance(&mut self, end: Duration) -> u64 {
        let mut events = 0;
        while let Some(due) = self.node.deadline().filter(|&due| due <= now(end).instant) {
            self.clock = due.since(now(Duration::ZERO).instant);
            self.node.tick(now(self.clock), &mut self.rng, &mut self.out);
            self.obey();
            events += 1;
        }
        self.clock = end;
        events
    }

    /// Lets time pass, and prints the cost.
    fn pass(&mut self, what: &str, time: Duration) -> Result<(), Box<dyn Error>> {
        let before = cpu_time()?;
        let events = self.advance(self.clock + time);
        let cpu = cpu_time()?.saturating_sub(before);
        let each = match events {
            0 => "–".to_owned(),
            _ => format!("{} ns", cpu.as_nanos() / u128::from(events)),
        };
        let share = 100.0 * cpu.as_secs_f64() / time.as_secs_f64();
        println!("{what:<52} {:>9} {events:>9} {cpu:>9.1?} {each:>9} {share:>6.3} %", format!("{} s", time.as_secs()));
        Ok(())
    }
}

fn stamp(node: &Node, peer: PeerId, now: Instant) {
    if let Some(activity) = node.activity_of(peer) {
        activity.keepalive_sent(now, KEEPALIVE);
    }
}

/// Both clocks at this time after the simulation's start.
fn now(clock: Duration) -> Now {
    const BOOTED: Duration = Duration::from_secs(1_000);
    const EPOCH: Duration = Duration::from_secs(1_700_000_000);
    Now { instant: Instant::from_nanos(0) + BOOTED + clock, unix: EPOCH + clock }
}

/// The CPU time of this thread so far.
fn cpu_time() -> Result<Duration, Box<dyn Error>> {
    let stat = fs::read_to_string("/proc/thread-self/schedstat")?;
    let nanos = stat.split_whitespace().next().ok_or("an empty schedstat")?.parse()?;
    Ok(Duration::from_nanos(nanos))
}
