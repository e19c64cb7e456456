use super::{super::CAPACITY, *};
use proptest::prelude::*;
use rand::{SeedableRng as _, rngs::StdRng, seq::SliceRandom as _};
use std::{cell::Cell, collections::hash_map::DefaultHasher};

/// The same keys each time.
type Seeded = BuildHasherDefault<DefaultHasher>;

const A: PeerId = PeerId(1);
const B: PeerId = PeerId(2);
const START: Instant = Instant::from_nanos(1 << 40);

fn seconds(seconds: u64) -> Instant {
    START + Duration::from_secs(seconds)
}

/// A flow from 10.0.0.`from` to 10.0.0.`to`.
fn flow(protocol: u8, [from, to]: [u8; 2], ports: [u16; 2]) -> Tuple {
    let end = |n: u8| u128::from(u32::from_be_bytes([10, 0, 0, n]));
    Tuple { ends: [end(from), end(to)], ports, protocol, v6: false }
}

/// A table under rules that a test sets.
struct Lab {
    table: Conntrack<Seeded>,
    allowed: Cell<fn(&Tuple) -> bool>,
    generation: Cell<u32>,
}

impl Lab {
    /// A table in which no earlier flow is missing.
    fn new(capacity: usize, allowed: fn(&Tuple) -> bool) -> Self {
        Self::since(Instant::from_nanos(0), capacity, allowed)
    }

    fn since(start: Instant, capacity: usize, allowed: fn(&Tuple) -> bool) -> Self {
        let table = Conntrack::with_hasher(capacity, start, 32_768..=60_999, Seeded::default());
        Self { table, allowed: Cell::new(allowed), generation: Cell::new(1) }
    }

    fn rules(&self, allowed: fn(&Tuple) -> bool) {
        self.allowed.set(allowed);
        self.generation.set(self.generation.get() + 1);
    }

    fn asked<R>(&self, now: Instant, ask: impl FnOnce(&Asked<'_>) -> R) -> R {
        let allows = self.allowed.get();
        ask(&Asked { now, generation: self.generation.get(), allows: &allows })
    }

    fn peer(&self, peer: PeerId, tuple: Tuple, role: Role, now: Instant) -> bool {
        self.asked(now, |asked| self.table.received(peer, &tuple, role, asked))
    }

    fn host(&self, tuple: Tuple, role: Role, now: Instant) {
        self.asked(now, |asked| self.table.sent(&tuple, role, asked));
    }

    fn knows(&self, tuple: Tuple, now: Instant) -> bool {
        self.asked(now, |asked| self.table.knows(&tuple, asked))
    }

    /// Makes a TCP connection from a peer to the host, with packets in both directions.
    fn connect(&self, peer: PeerId, tuple: Tuple, now: Instant) {
        assert!(self.peer(peer, tuple, Role::Opens, now));
        self.host(tuple.reversed(), Role::Continues, now);
        assert!(self.peer(peer, tuple, Role::Continues, now));
    }
}

fn all(_: &Tuple) -> bool {
    true
}

fn nothing(_: &Tuple) -> bool {
    false
}

/// Peer 1 may reach port 22.
fn ssh(tuple: &Tuple) -> bool {
    tuple.ports[1] == 22
}

#[test]
fn answers_pass_and_nothing_else_does() {
    let lab = Lab::new(1_024, nothing);
    let mine = flow(TCP, [2, 1], [50_000, 443]);
    assert!(!lab.peer(A, mine.reversed(), Role::Continues, START), "an answer to nothing");
    lab.host(mine, Role::Opens, START);
    assert!(lab.peer(A, mine.reversed(), Role::Continues, START));
    assert!(lab.knows(mine, START), "an error about what the host has sent");
    for other in [flow(TCP, [1, 2], [443, 50_001]), flow(TCP, [3, 2], [443, 50_000]), flow(UDP, [1, 2], [443, 50_000])]
    {
        assert!(!lab.peer(A, other, Role::Continues, START) && !lab.knows(other, START), "{other:?}");
    }
    lab.host(mine, Role::Continues, START);
    assert!(!lab.peer(A, mine.reversed(), Role::Opens, START), "a connection to the port that the host has used");
    assert!(lab.peer(A, mine.reversed(), Role::Continues, START), "which changes nothing for the first");
    // Both sides begin at the same time.
    let both = flow(TCP, [2, 1], [7, 7]);
    lab.host(both, Role::Opens, START);
    assert!(lab.peer(A, both.reversed(), Role::Opens, START));
    // A ping, its answer, and a ping from the other side with the same identifier.
    let ping = flow(ICMP, [2, 1], [9, 0]);
    lab.host(ping, Role::Opens, START);
    assert!(lab.peer(A, ping.reversed(), Role::Answers, START));
    assert!(!lab.peer(A, flow(ICMP, [1, 2], [9, 0]), Role::Opens, START));
    let zero = flow(ICMP, [2, 1], [0, 0]);
    lab.host(zero, Role::Opens, START);
    assert!(!lab.peer(A, zero.reversed(), Role::Opens, START), "an identifier of 0 makes both directions one flow");
    assert!(lab.peer(A, zero.reversed(), Role::Answers, START));
    // Segments that make no connection.
    for role in [Role::Answers, Role::Alone, Role::Resets] {
        lab.host(flow(TCP, [2, 1], [1, 1]), role, START);
        assert!(!lab.peer(A, flow(TCP, [1, 2], [1, 1]), Role::Continues, START), "{role:?}");
    }
}

#[test]
fn other_rules_cut_running_flows() {
    let lab = Lab::new(1_024, ssh);
    let (theirs, mine) = (flow(TCP, [1, 2], [50_000, 22]), flow(TCP, [2, 1], [50_000, 443]));
    lab.connect(A, theirs, START);
    lab.host(mine, Role::Opens, START);
    lab.rules(nothing);
    // The host repeats unacknowledged segments for a long time: this begins no flow of the host.
    for n in 0..10 {
        let now = seconds(100 * n);
        lab.host(theirs.reversed(), Role::Continues, now);
        assert!(!lab.peer(A, theirs, Role::Continues, now), "after {n}");
        assert!(!lab.knows(theirs.reversed(), now));
        lab.host(mine, Role::Continues, now);
        assert!(lab.peer(A, mine.reversed(), Role::Continues, now), "the host's own go on");
        lab.host(mine, Role::Continues, now);
    }
    // A connection that the host begins with these ports belongs to the host.
    lab.host(theirs.reversed(), Role::Opens, seconds(1_000));
    assert!(lab.peer(A, theirs, Role::Continues, seconds(1_000)));
    // If rules allow it again, it continues.
    let again = flow(TCP, [1, 2], [50_001, 22]);
    lab.rules(ssh);
    lab.connect(A, again, START);
    lab.rules(nothing);
    assert!(!lab.peer(A, again, Role::Continues, START));
    lab.rules(ssh);
    assert!(lab.peer(A, again, Role::Continues, START));
    // Both directions of a connection between two peers through this device.
    let relayed = flow(TCP, [1, 3], [50_002, 22]);
    assert!(lab.peer(A, relayed, Role::Opens, START) && lab.peer(B, relayed.reversed(), Role::Continues, START));
    lab.rules(nothing);
    assert!(!lab.peer(B, relayed.reversed(), Role::Continues, START));
    assert!(!lab.peer(A, relayed, Role::Continues, START));
}

#[test]
fn the_limits_of_conntrack() {
    type Step = (bool, Role);
    const OUT: Step = (true, Role::Continues);
    const SYN: Step = (true, Role::Opens);
    const IN: Step = (false, Role::Continues);
    let cases: [(u8, &[Step], u64); 12] = [
        (TCP, &[SYN], 120),
        (TCP, &[SYN, IN], 60),
        (TCP, &[SYN, IN, OUT], 432_000),
        (TCP, &[SYN, IN, OUT, (false, Role::Finishes)], 120),
        (TCP, &[SYN, IN, OUT, (true, Role::Resets)], 10),
        (TCP, &[SYN, IN, OUT, (true, Role::Resets), OUT], 120),
        (TCP, &[SYN, IN, OUT, (true, Role::Finishes), (false, Role::Finishes), SYN], 120),
        (UDP, &[OUT], 30),
        (UDP, &[OUT, IN], 30),
        (UDP, &[OUT, IN, OUT], 120),
        (ICMP, &[SYN, IN, OUT], 30),
        (47, &[OUT, IN, OUT], 600),
    ];
    for (protocol, steps, limit) in cases {
        let run = |wait: u64| {
            let lab = Lab::new(1_024, nothing);
            let tuple = flow(protocol, [2, 1], [5, 6]);
            for &(out, role) in steps {
                if out {
                    lab.host(tuple, role, START);
                } else {
                    assert!(lab.peer(A, tuple.reversed(), role, START));
                }
            }
            lab.peer(A, tuple.reversed(), Role::Answers, seconds(wait))
        };
        assert_eq!((run(limit - 1), run(limit)), (true, false), "protocol {protocol}, {steps:?}");
    }
}

#[test]
fn a_flood_of_one_peer_pushes_out_its_own() {
    let lab = Lab::new(4_096, all);
    let mut random = StdRng::seed_from_u64(1);
    // Ten peers and the host have connections, of which some were not answered.
    let mut kept = Vec::new();
    for n in 0..200_u16 {
        let peer = PeerId(10 + u32::from(n) % 10);
        let theirs = flow(TCP, [10 + (n % 10) as u8, 2], [1_000 + n, 443]);
        if n % 3 > 0 {
            lab.connect(peer, theirs, START);
        } else {
            assert!(lab.peer(peer, theirs, Role::Opens, START));
        }
        kept.push((peer, theirs));
    }
    let mine: Vec<_> = (0..800).map(|n| flow(UDP, [2, 1], [40_000 + n, 53])).collect();
    for &tuple in &mine {
        lab.host(tuple, Role::Continues, START);
    }
    // Two peers flood, one of them with connections that the host answers.
    for n in 0..80_000_u32 {
        let tuple = Tuple { ports: random.random(), ..flow(TCP, [1, 2], [0; 2]) };
        lab.peer(A, tuple, Role::Opens, seconds(1));
        if n % 4 == 0 {
            let answered = Tuple { ports: random.random(), ..flow(UDP, [3, 2], [0; 2]) };
            lab.peer(B, answered, Role::Continues, seconds(1));
            lab.host(answered.reversed(), Role::Continues, seconds(1));
        }
    }
    assert!(lab.table.len() <= 4_096);
    // The others have lost none: under rules that allow nothing, only known flows pass.
    lab.allowed.set(nothing);
    for (peer, tuple) in kept {
        assert!(lab.peer(peer, tuple, Role::Answers, seconds(2)), "{tuple:?} of {peer:?}");
    }
    for tuple in mine {
        assert!(lab.peer(A, tuple.reversed(), Role::Answers, seconds(2)), "the host's {tuple:?}");
    }
    // A later peer gets room at once.
    lab.allowed.set(all);
    let late = flow(TCP, [99, 2], [1, 2]);
    lab.connect(PeerId(99), late, seconds(2));
    for _ in 0..20_000 {
        lab.peer(A, Tuple { ports: random.random(), ..flow(TCP, [1, 2], [0; 2]) }, Role::Opens, seconds(2));
    }
    lab.allowed.set(nothing);
    assert!(lab.peer(PeerId(99), late, Role::Continues, seconds(2)));
}

#[test]
fn a_peer_keeps_what_was_answered_rather_than_what_was_not() {
    let lab = Lab::new(4_096, all);
    let mut random = StdRng::seed_from_u64(2);
    let own: Vec<_> = (0..100).map(|n| flow(TCP, [1, 2], [n, 443])).collect();
    for &tuple in &own {
        lab.connect(A, tuple, START);
    }
    for _ in 0..50_000 {
        lab.peer(A, Tuple { ports: random.random(), ..flow(TCP, [1, 2], [0; 2]) }, Role::Opens, seconds(1));
    }
    lab.allowed.set(nothing);
    let left = own.iter().filter(|&&tuple| lab.peer(A, tuple, Role::Answers, seconds(2))).count();
    assert!(left >= 99, "{left} of 100: eight entries of which none is new are rare");
}

#[test]
fn the_host_has_half() {
    let lab = Lab::new(4_096, all);
    let mut random = StdRng::seed_from_u64(3);
    for _ in 0..20_000 {
        lab.peer(A, Tuple { ports: random.random(), ..flow(UDP, [1, 2], [0; 2]) }, Role::Continues, START);
    }
    let mine: Vec<_> = (0..1_000).map(|n| flow(TCP, [2, 1], [n, 443])).collect();
    for &tuple in &mine {
        lab.host(tuple, Role::Opens, seconds(1));
        lab.peer(A, Tuple { ports: random.random(), ..flow(UDP, [1, 2], [0; 2]) }, Role::Continues, seconds(1));
    }
    lab.allowed.set(nothing);
    for &tuple in &mine {
        assert!(lab.peer(A, tuple.reversed(), Role::Answers, seconds(2)), "{tuple:?}");
    }
    // But not more than half, if peers need the rest.
    lab.allowed.set(all);
    let mut own = || flow(UDP, [2, 1], [random.random_range(32_768..60_999), random.random()]);
    for _ in 0..20_000 {
        lab.host(own(), Role::Continues, seconds(3));
    }
    let theirs: Vec<_> = (0..400).map(|n| flow(TCP, [3, 2], [n, 443])).collect();
    for &tuple in &theirs {
        lab.connect(B, tuple, seconds(3));
        lab.host(own(), Role::Continues, seconds(3));
    }
    lab.allowed.set(nothing);
    for &tuple in &theirs {
        assert!(lab.peer(B, tuple, Role::Answers, seconds(4)), "{tuple:?}");
    }
}

#[test]
fn what_is_over_makes_room() {
    let lab = Lab::new(1_024, all);
    for n in 0..900 {
        lab.peer(A, flow(UDP, [1, 2], [n, 53]), Role::Continues, START);
    }
    for n in 0..300 {
        lab.peer(B, flow(UDP, [3, 2], [n, 53]), Role::Continues, seconds(60));
    }
    assert!(lab.table.len() < 900, "each new one looks at two others: {}", lab.table.len());
    lab.allowed.set(nothing);
    assert!((0..300).all(|n| lab.peer(B, flow(UDP, [3, 2], [n, 53]), Role::Answers, seconds(60))));
}

/// An ended or refused connection does not become the host's by a segment other than a SYN.
#[test]
fn only_a_syn_of_the_hosts_makes_a_tcp_connection() {
    let lab = Lab::new(1_024, nothing);
    let theirs = flow(TCP, [1, 2], [50_000, 22]);
    for role in [Role::Continues, Role::Finishes, Role::Resets] {
        lab.host(theirs.reversed(), role, START);
        assert!(!lab.peer(A, theirs, Role::Continues, START) && !lab.knows(theirs.reversed(), START), "{role:?}");
    }
    assert_eq!(lab.table.len(), 0);
    // A connection that new rules refuse is removed after five minutes of silence, and does not become the host's.
    let lab = Lab::new(1_024, ssh);
    lab.connect(A, theirs, START);
    lab.rules(nothing);
    assert!(!lab.peer(A, theirs, Role::Continues, START));
    lab.host(theirs.reversed(), Role::Continues, seconds(300));
    assert!(!lab.peer(A, theirs, Role::Continues, seconds(300)));
    lab.host(theirs.reversed(), Role::Opens, seconds(300));
    assert!(lab.peer(A, theirs, Role::Continues, seconds(300)));
}

/// A UDP flow to a service of the host is older than the table, and the service continues to send.
#[test]
fn a_service_of_before_does_not_make_flows_of_the_hosts() {
    let theirs = flow(UDP, [1, 2], [50_000, 5_004]);
    let lab = Lab::since(START, 1_024, nothing);
    for n in 0..30 {
        let now = seconds(50 * n);
        lab.host(theirs.reversed(), Role::Continues, now);
        assert!(!lab.peer(A, theirs, Role::Continues, now), "after {n}");
        assert!(!lab.knows(theirs.reversed(), now));
    }
    // The same with a protocol without ports.
    let tunnel = flow(47, [1, 2], [0, 0]);
    lab.host(tunnel.reversed(), Role::Continues, seconds(1));
    assert!(!lab.peer(A, tunnel, Role::Continues, seconds(1)));
    // After both sides were silent, or when no earlier flow can continue, it is a new flow.
    for (tuple, now) in [(theirs, 50 * 29 + 300), (flow(UDP, [1, 2], [50_001, 5_004]), 120)] {
        lab.host(tuple.reversed(), Role::Continues, seconds(now));
        assert!(lab.peer(A, tuple, Role::Continues, seconds(now)), "{tuple:?}");
    }
    // An allowed flow continues until other rules refuse it.
    let lab = Lab::since(START, 1_024, |tuple| tuple.ports[1] == 5_004);
    lab.host(theirs.reversed(), Role::Continues, START);
    assert!(lab.peer(A, theirs, Role::Continues, START) && lab.knows(theirs.reversed(), START));
    lab.rules(nothing);
    lab.host(theirs.reversed(), Role::Continues, START);
    assert!(!lab.peer(A, theirs, Role::Continues, START));
}

/// From the first packet on, in a new table.
#[test]
fn what_the_host_begins_is_its_own_at_once() {
    let lab = Lab::since(START, 1_024, nothing);
    for (protocol, ports, role) in [
        (UDP, [40_000, 53], Role::Continues),
        // From a machine behind this one.
        (UDP, [62_000, 53], Role::Continues),
        // NTP and IKE.
        (UDP, [123, 123], Role::Continues),
        (UDP, [500, 500], Role::Continues),
        (ICMP, [7, 0], Role::Opens),
        (TCP, [700, 2_049], Role::Opens),
        (TCP, [40_000, 443], Role::Opens),
    ] {
        let mine = flow(protocol, [2, 1], ports);
        lab.host(mine, role, START);
        assert!(lab.peer(A, mine.reversed(), Role::Answers, START), "{mine:?}");
    }
}

/// A peer's allowed flows evict its refused flows. The service continues to send to both.
#[test]
fn a_flood_does_not_make_refused_flows_the_hosts() {
    const SERVICES: fn(&Tuple) -> bool = |tuple| tuple.protocol == UDP && tuple.ports[1] < 1_024;
    const OTHERS: fn(&Tuple) -> bool = |tuple| SERVICES(tuple) && tuple.ports[1] != 514;
    let mut random = StdRng::seed_from_u64(5);
    // Few refused flows among many others; and only refused flows.
    for refused in [20_u16, 6_000] {
        let lab = Lab::new(4_096, SERVICES);
        let cut: Vec<_> = (0..refused).map(|n| flow(UDP, [1, 2], [20_000 + n, 514])).collect();
        for &theirs in &cut {
            lab.peer(A, theirs, Role::Continues, START);
            lab.host(theirs.reversed(), Role::Continues, START);
        }
        lab.rules(OTHERS);
        for &theirs in &cut {
            assert!(!lab.peer(A, theirs, Role::Continues, seconds(1)));
        }
        for n in 0..40_000_u16 {
            let theirs = flow(UDP, [1, 2], [random.random(), 7]);
            assert!(lab.peer(A, theirs, Role::Continues, seconds(2)), "what is allowed passes");
            lab.host(theirs.reversed(), Role::Continues, seconds(2));
            lab.peer(A, theirs, Role::Continues, seconds(2));
            let theirs = cut[usize::from(n % refused)];
            lab.host(theirs.reversed(), Role::Continues, seconds(2));
            assert!(!lab.peer(A, theirs, Role::Continues, seconds(2)), "{theirs:?} goes on after {n}");
        }
        assert!(lab.table.len() <= 4_096);
        // The host's flows with others begin as before.
        let mine = flow(UDP, [2, 3], [5_004, 50_000]);
        lab.host(mine, Role::Continues, seconds(2));
        assert!(lab.peer(B, mine.reversed(), Role::Continues, seconds(2)));
    }
}

/// Flows that were evicted while they were allowed do not become the host's when other rules refuse them.
#[test]
fn an_evicted_flow_is_judged_by_the_next_rules() {
    const SERVICES: fn(&Tuple) -> bool = |tuple| tuple.ports[1] < 1_024;
    let mut random = StdRng::seed_from_u64(6);
    let lab = Lab::new(4_096, SERVICES);
    let own: Vec<_> = (0..500).map(|n| flow(UDP, [1, 2], [20_000 + n, 514])).collect();
    for &theirs in &own {
        lab.peer(A, theirs, Role::Continues, START);
    }
    for _ in 0..40_000 {
        lab.peer(A, flow(UDP, [1, 2], [random.random(), 7]), Role::Continues, seconds(1));
    }
    lab.rules(nothing);
    for &theirs in &own {
        lab.host(theirs.reversed(), Role::Continues, seconds(2));
        assert!(!lab.peer(A, theirs, Role::Continues, seconds(2)), "{theirs:?}");
    }
}

/// A service answers flows that the table has evicted. They take no room from flows that the host has begun.
#[test]
fn flows_that_a_peer_has_perhaps_begun_have_no_share_of_the_hosts() {
    let lab = Lab::new(4_096, all);
    let mut random = StdRng::seed_from_u64(7);
    let mine: Vec<_> = (0..1_000).map(|n| flow(UDP, [2, 1], [40_000 + n, 53])).collect();
    for &tuple in &mine {
        lab.host(tuple, Role::Continues, START);
    }
    for _ in 0..40_000 {
        lab.host(flow(UDP, [2, 1], [7, random.random()]), Role::Continues, seconds(1));
        lab.peer(B, flow(UDP, [3, 2], [random.random(), 7]), Role::Continues, seconds(1));
    }
    lab.allowed.set(nothing);
    for tuple in mine {
        assert!(lab.peer(A, tuple.reversed(), Role::Answers, seconds(2)), "{tuple:?}");
    }
}

/// `cargo test --profile optimized -p rustguard-device --lib -- --ignored --nocapture what_a_flood_costs`
#[test]
#[ignore = "it prints how long packets take, and checks nothing"]
fn what_a_flood_costs() {
    let lab = Lab::new(CAPACITY, all);
    let mut random = StdRng::seed_from_u64(4);
    let new: Vec<_> = (0..400_000).map(|_| Tuple { ports: random.random(), ..flow(TCP, [1, 2], [0; 2]) }).collect();
    for (what, peers, packets) in
        [("empty", 1, 0..40_000), ("full, of one peer", 1, 100_000..200_000), ("full, of 500", 500, 200_000..400_000)]
    {
        let started = std::time::Instant::now();
        let count = packets.len() as u32;
        for n in packets {
            lab.peer(PeerId(n as u32 % peers), new[n], Role::Opens, START);
        }
        println!("a table that is {what}: {:?} for a packet that begins a connection", started.elapsed() / count);
        for &tuple in &new[40_000..100_000] {
            lab.peer(A, tuple, Role::Opens, START);
        }
    }
    let tuple = flow(TCP, [1, 2], [50_000, 443]);
    lab.connect(A, tuple, START);
    let started = std::time::Instant::now();
    for _ in 0..1_000_000 {
        assert!(lab.peer(A, tuple, Role::Continues, START));
    }
    println!("a connection that is known: {:?} for a look-up", started.elapsed() / 1_000_000);
}

/// A connection in the model: its direction, whether rules judge it, which sides have sent, and when.
struct Modelled {
    began: Tuple,
    judged: bool,
    answered: bool,
    established: bool,
    cut: bool,
    seen: u64,
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// With enough room, the table decides about UDP like a simple list that is searched linearly and judges every flow
    /// at every packet. A port of this side is a service's or a dynamic one; a peer's port may equal the service's.
    #[test]
    fn as_a_list_says(
        steps in prop::collection::vec((0_u8..4, 0_u16..3, 0_u16..3, any::<bool>(), 0_u64..40, 0_u8..12), 1..200),
    ) {
        const RULES: [fn(&Tuple) -> bool; 3] = [|tuple| tuple.ports[1] % 3 == 1, |tuple| tuple.ports[1] % 3 != 1, nothing];
        let lab = Lab::since(START, 65_536, RULES[0]);
        let mut model: Vec<Modelled> = Vec::new();
        let (mut now, mut rules) = (0, 0);
        for (who, here, there, chosen, wait, change) in steps {
            now += wait;
            if change == 0 {
                rules = (rules + 1) % RULES.len();
                lab.rules(RULES[rules]);
            }
            model.retain(|it| now - it.seen < if it.cut { 300 } else if it.established { 120 } else { 30 });
            let peer = if who % 2 == 0 { A } else { B };
            let here = 1 + here + if chosen { 48_000 } else { 0 };
            let from_peer = flow(UDP, [peer.0 as u8, 9], [1 + there, here]);
            let tuple = if who < 2 { from_peer } else { from_peer.reversed() };
            let allowed = RULES[rules](&tuple);
            let known = model.iter_mut().find(|it| it.began == tuple || it.began == tuple.reversed());
            let owner = (who < 2).then_some(peer);
            let new = |began, judged| Modelled { began, judged, answered: false, established: false, cut: false, seen: now };
            let expected = match known {
                Some(it) => {
                    let cut = it.judged && !RULES[rules](&it.began);
                    if it.cut && !cut {
                        (it.answered, it.established) = (false, false);
                    }
                    it.cut = cut;
                    it.seen = now;
                    if !it.cut {
                        it.established |= it.answered && it.began == tuple;
                        it.answered |= it.began != tuple;
                    }
                    !it.cut
                }
                None => {
                    let may_be_allowed = RULES[rules](&from_peer);
                    if owner.is_some() {
                        model.extend(allowed.then(|| new(tuple, true)));
                    } else if chosen || here == 1 + there {
                        model.push(new(tuple, false));
                    } else if may_be_allowed {
                        model.push(Modelled { answered: true, ..new(from_peer, true) });
                    } else if now < 120 {
                        model.push(Modelled { cut: true, ..new(from_peer, true) });
                    } else {
                        model.push(new(tuple, false));
                    }
                    allowed
                }
            };
            if owner.is_some() {
                prop_assert_eq!(lab.peer(peer, tuple, Role::Continues, seconds(now)), expected, "{:?} at {}", tuple, now);
            } else {
                lab.host(tuple, Role::Continues, seconds(now));
            }
        }
    }

    /// Many peers need more entries than there are. No peer loses an entry to a peer with more, and the final shares
    /// are equal, with any order of the packets, in each shard.
    #[test]
    fn shares_are_equal(wanted in prop::collection::vec(1_usize..90, 2..40), host in 0_usize..200, seed in any::<u64>()) {
        // One shard.
        const ROOM: usize = 256;
        let lab = Lab::new(ROOM, all);
        let mut shard = Shard::new(ROOM, START, seed);
        let owner = |n: usize| n.checked_sub(1).map(|n| PeerId(n as u32 + 1));
        let wanted = [&[host][..], &wanted].concat();
        let mut order: Vec<_> = wanted.iter().enumerate().flat_map(|(n, wants)| vec![n; *wants]).collect();
        order.shuffle(&mut StdRng::seed_from_u64(seed));
        let have = |shard: &Shard, n: usize| {
            let number = owner(n).map_or(Some(HOST), |peer| shard.owners.known(peer));
            number.map_or(0, |number| shard.owners.places(number).len())
        };
        for (at, &n) in order.iter().enumerate() {
            let before: Vec<_> = (0..wanted.len()).map(|n| have(&shard, n)).collect();
            let tuple = flow(TCP, [1, 2], [at as u16, 1]);
            lab.asked(START, |asked| shard.make(at as u64, &tuple, State::New, owner(n), asked));
            let now: Vec<_> = (0..wanted.len()).map(|n| have(&shard, n)).collect();
            for loser in (0..wanted.len()).filter(|&it| it != n && now[it] < before[it]) {
                if loser == 0 {
                    prop_assert!(before[0] > ROOM / 2, "the host has half");
                } else {
                    let most = before[1..].iter().max();
                    prop_assert_eq!(Some(&before[loser]), most, "who has most gives");
                    prop_assert!(n == 0 && before[0] < ROOM / 2 || before[n] < before[loser]);
                }
            }
        }
        prop_assert_eq!(shard.owners.check(), shard.entries.len());
        // The same result as max-min fairness.
        let all: usize = wanted.iter().sum();
        if all > ROOM {
            let left = ROOM - host.min(ROOM / 2);
            let share = (0..=90).take_while(|share| wanted[1..].iter().map(|it| it.min(share)).sum::<usize>() <= left).last().unwrap_or(0);
            for (n, wants) in wanted.iter().enumerate().skip(1) {
                let has = have(&shard, n);
                prop_assert!(has + 1 >= *wants.min(&share), "{} of {}, where {} is fair", has, wants, share);
            }
        }
    }

    /// With any packets, a table keeps its bounds, and its counts agree with its entries.
    #[test]
    fn bounds(steps in prop::collection::vec((0_u8..6, 0_u16..40, 0_u16..40, 0_u8..6, 0_u64..5), 1..600), capacity in 1_usize..200) {
        let lab = Lab::new(capacity, all);
        let mut now = 0;
        for (who, here, there, role, wait) in steps {
            now += wait;
            let role = [Role::Opens, Role::Continues, Role::Answers, Role::Finishes, Role::Resets, Role::Alone][usize::from(role)];
            let tuple = flow(TCP, [who + 1, 9], [there, here]);
            match who {
                0 => lab.host(tuple.reversed(), role, seconds(now)),
                who => drop(lab.peer(PeerId(who.into()), tuple, role, seconds(now))),
            }
            prop_assert!(lab.table.len() <= capacity);
        }
        for shard in &lab.table.shards {
            let shard = shard.lock();
            prop_assert!(shard.index.iter().all(|(hash, at)| shard.entries[*at as usize].hash == *hash));
            prop_assert_eq!(shard.index.len(), shard.entries.len());
            prop_assert_eq!(shard.owners.check(), shard.entries.len());
            for (at, entry) in shard.entries.iter().enumerate() {
                prop_assert_eq!(shard.owners.places(entry.owner)[entry.slot as usize] as usize, at);
            }
        }
    }
}
