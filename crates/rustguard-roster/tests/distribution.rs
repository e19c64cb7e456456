//! How rosters reach all members: a simulated network with its own clock, with loss, delay and reordering.

#[path = "distribution/hostile.rs"]
mod hostile;
#[path = "distribution/policy.rs"]
mod policy;
#[path = "distribution/size.rs"]
mod size;
#[path = "distribution/unasked.rs"]
mod unasked;

use rand::{Rng as _, RngExt as _, SeedableRng as _, rngs::StdRng};
use rustguard_core::{preshared_key::PresharedKey, time::Instant};
use rustguard_crypto::x25519::PublicKey;
use rustguard_roster::{
    exchange::{Exchange, Output},
    key::NetworkSecret,
    member::{Member, Role},
    pair::PairSecret,
    roster::Roster,
    settings::Settings,
    statement::Statement,
};
use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    net::IpAddr,
    sync::Arc,
    time::Duration,
};

const MS: Duration = Duration::from_millis(1);

fn secret() -> NetworkSecret {
    NetworkSecret::from_bytes(&[9; 32])
}

fn key(number: usize) -> PublicKey {
    PublicKey(rustguard_crypto::hash::hash(&[&number.to_le_bytes()]))
}

fn member(number: usize) -> Member {
    let address = IpAddr::from((0x0a00_0000 + number as u32).to_be_bytes());
    let role = if number == 0 { Role::Server } else { Role::Member };
    Member::new(key(number), format!("member-{number}").parse().unwrap()).with_addresses([address]).with_role(role)
}

fn roster(number: u64, members: impl IntoIterator<Item = Member>) -> Roster {
    let settings = Settings::new("rg0".parse().unwrap());
    Roster::issue(&secret(), number, 1_800_000_000, settings, members.into_iter().map(Arc::new)).unwrap()
}

/// Some members with sessions between them.
struct Network {
    rng: StdRng,
    now: Instant,
    nodes: Vec<Exchange>,
    numbers: HashMap<PublicKey, usize>,
    connected: BTreeSet<(usize, usize)>,
    /// The texts in flight, by their time of arrival.
    flying: BTreeMap<(Instant, u64), (usize, usize, Vec<u8>)>,
    sent: u64,
    /// Per hundred texts.
    lost: u32,
    delay: Duration,
    /// How many bytes of texts each node has received.
    received: Vec<usize>,
    /// How many requests for parts and keys each node has sent.
    asked: Vec<u32>,
    /// When each node got each number.
    known: Vec<BTreeMap<u64, Instant>>,
    keys: HashMap<(usize, usize), PresharedKey>,
    /// The statements of members about themselves, as the first node has them; and the percentage that it cannot
    /// store.
    stated: Vec<(usize, Statement)>,
    unstored: u32,
}

impl Network {
    fn new(seed: u64, nodes: usize, start: impl Fn(usize) -> Option<Roster>) -> Self {
        println!("seed {seed}");
        let exchange = |number| {
            let exchange = Exchange::new(secret().public_key(), start(number));
            match number {
                0 => exchange.with_pair_secret(PairSecret::from_bytes(&[5; 32])).taking_statements(),
                _ => exchange,
            }
        };
        Self {
            rng: StdRng::seed_from_u64(seed),
            now: Instant::from_nanos(1_000_000_000),
            nodes: (0..nodes).map(exchange).collect(),
            numbers: (0..nodes.max(100)).map(|number| (key(number), number)).collect(),
            connected: BTreeSet::new(),
            flying: BTreeMap::new(),
            sent: 0,
            lost: 0,
            delay: 20 * MS,
            received: vec![0; nodes],
            asked: vec![0; nodes],
            known: vec![BTreeMap::new(); nodes],
            keys: HashMap::new(),
            stated: Vec::new(),
            unstored: 0,
        }
    }

    fn connect(&mut self, a: usize, b: usize) {
        self.connected.insert((a.min(b), a.max(b)));
        self.nodes[a].connected(&key(b), self.now);
        self.nodes[b].connected(&key(a), self.now);
        self.flush(a);
        self.flush(b);
    }

    fn disconnect(&mut self, a: usize, b: usize) {
        self.connected.remove(&(a.min(b), a.max(b)));
        self.nodes[a].gone(&key(b), self.now);
        self.nodes[b].gone(&key(a), self.now);
        self.flush(a);
        self.flush(b);
    }

    /// Connects all others to the first.
    fn star(&mut self) {
        (1..self.nodes.len()).for_each(|number| self.connect(0, number));
    }

    fn issue(&mut self, roster: Roster) {
        self.nodes[0].issued(roster, self.now);
        self.flush(0);
    }

    fn flush(&mut self, from: usize) {
        while let Some(output) = self.nodes[from].next_output() {
            match output {
                Output::Send { to, text } => {
                    let to = self.numbers[&to];
                    self.asked[from] += u32::from([2, 4].contains(&text[4]));
                    if self.rng.random_range(0..100) >= self.lost {
                        let jitter = self.rng.random_range(0..1 + self.delay.as_nanos() as u64 / 4);
                        let at = self.now + self.delay + Duration::from_nanos(jitter);
                        self.sent += 1;
                        self.flying.insert((at, self.sent), (from, to, text.to_vec()));
                    }
                }
                Output::Newer => {
                    let version = self.nodes[from].roster().unwrap().version();
                    let before = self.known[from].insert(version.number, self.now);
                    assert!(before.is_none() || self.nodes.len() > 2, "an old number is never taken");
                    assert!(*self.known[from].keys().last().unwrap() == version.number, "an old number was taken");
                }
                Output::PresharedKey { member, key, .. } => {
                    self.keys.insert((from, self.numbers[&member]), key);
                }
                Output::Statement { from: member, statement } if self.rng.random_range(0..100) >= self.unstored => {
                    self.nodes[from].stored(&member, &statement);
                    self.stated.push((self.numbers[&member], statement));
                }
                _ => {}
            }
        }
    }

    fn state(&mut self, node: usize, prefixes: &[&str]) {
        let statement = Statement::new(prefixes.iter().map(|prefix| prefix.parse().unwrap()));
        self.nodes[node].state(statement, self.now);
        self.flush(node);
    }

    /// Runs for this long, or until nothing is due.
    fn run(&mut self, time: Duration) {
        let end = self.now + time;
        loop {
            let arrival = self.flying.keys().next().map(|(at, _)| *at);
            let deadline = self.nodes.iter().filter_map(Exchange::deadline).min();
            let Some(next) = arrival.into_iter().chain(deadline).min().filter(|next| *next <= end) else { break };
            self.now = self.now.max(next);
            if arrival.is_some_and(|at| at <= self.now) {
                let (_, (from, to, text)) = self.flying.pop_first().unwrap();
                if self.connected.contains(&(from.min(to), from.max(to))) {
                    self.received[to] += text.len();
                    self.nodes[to].hear(&key(from), &text, self.now);
                    self.flush(to);
                }
                continue;
            }
            for number in 0..self.nodes.len() {
                if self.nodes[number].deadline().is_some_and(|at| at <= self.now) {
                    self.nodes[number].tick(self.now);
                    self.flush(number);
                }
            }
        }
        self.now = end;
    }

    fn number(&self, node: usize) -> u64 {
        self.nodes[node].roster().map_or(0, |roster| roster.version().number)
    }

    fn all_have(&self, number: u64) {
        for node in 0..self.nodes.len() {
            assert_eq!(self.number(node), number, "member {node}");
        }
    }

    /// The time until the last node got the roster, among those that got it after `since`.
    fn slowest_since(&self, number: u64, since: Instant) -> Duration {
        let at = self.known.iter().filter_map(|known| known.get(&number)).filter(|at| **at >= since);
        at.map(|at| at.since(since)).max().unwrap_or_default()
    }

    /// The time until the last node got the roster.
    fn slowest(&self, number: u64, since: Instant) -> Duration {
        self.known.iter().map(|known| known[&number].since(since)).max().unwrap()
    }
}

#[test]
fn a_change_comes_to_all_at_once_and_costs_what_it_may() {
    for (members, most) in [(100, 4 << 10), (1_000, 8 << 10), (10_000, 32 << 10)] {
        let first = roster(1, (0..members).map(member));
        // All members are in the roster, but only some of them are simulated.
        let mut network = Network::new(1, 40, |_| Some(first.clone()));
        network.star();
        network.run(Duration::from_secs(60));
        network.received.fill(0);
        let changed = |number| {
            if number == 77 { member(number).with_prefixes(["10.9.0.0/16".parse().unwrap()]) } else { member(number) }
        };
        let began = network.now;
        network.issue(roster(2, (0..members).map(changed)));
        network.run(Duration::from_secs(60));
        network.all_have(2);
        let bytes = network.received[1..].iter().max().unwrap();
        println!("{members} members: {bytes} bytes for each, all know after {:?}", network.slowest(2, began));
        assert!(*bytes <= most, "{bytes} bytes for a change of one of {members}");
    }
}

#[test]
fn nothing_is_said_where_nothing_changes() {
    let first = roster(1, (0..10).map(member));
    let mut network = Network::new(2, 10, |_| Some(first.clone()));
    network.star();
    network.run(Duration::from_secs(60));
    network.received.fill(0);
    network.run(Duration::from_secs(86_400));
    assert_eq!(network.received, [0; 10]);
    assert!(network.nodes.iter().all(|node| node.deadline().is_none()));
}

/// After a restart of the server, or a renewed session with a member, the server learns which roster the member has,
/// whichever end learns of the session first. Both have the newest roster, so neither has a reason to announce it.
#[test]
fn a_server_knows_what_its_members_have() {
    for (delay, seed) in [(20 * MS, 1), (200 * MS, 2), (3_000 * MS, 3)] {
        let first = roster(1, (0..2).map(member));
        let mut network = Network::new(seed, 2, |_| Some(first.clone()));
        network.delay = delay;
        let has = |network: &Network| -> Vec<_> {
            network.nodes[0].versions().map(|(_, has)| has.map(|version| version.number)).collect()
        };
        network.star();
        network.run(Duration::from_secs(60));
        assert_eq!(has(&network), [Some(1)]);
        // The member's message arrives before the server knows that the handshake is complete.
        network.nodes[1].connected(&key(0), network.now);
        network.flush(1);
        network.run(delay * 2);
        network.nodes[0].connected(&key(1), network.now);
        network.flush(0);
        assert_eq!(has(&network), [Some(1)], "it is as new as before");
        network.run(Duration::from_secs(60));
        assert_eq!(has(&network), [Some(1)]);
        // The server is a new process, and drops messages that arrive before it knows of the session.
        network.nodes[0] = Exchange::new(secret().public_key(), Some(first.clone()));
        network.nodes[1].connected(&key(0), network.now);
        network.flush(1);
        network.run(delay * 2);
        network.nodes[0].connected(&key(1), network.now);
        network.flush(0);
        network.run(Duration::from_secs(10) + delay * 4);
        assert_eq!(has(&network), [Some(1)]);
        network.run(Duration::from_secs(60));
        network.received.fill(0);
        network.run(Duration::from_secs(86_400));
        assert_eq!(network.received, [0; 2], "they do not answer each other's answers");
    }
}

#[test]
fn clients_are_told_nothing_until_they_are_members() {
    let with = |number, role| roster(number, [member(0), member(1).with_role(role)]);
    let first = with(1, Role::Client(key(0)));
    let mut network = Network::new(14, 2, |number| (number == 0).then(|| first.clone()));
    // A stock WireGuard sends no such messages.
    network.connected.insert((0, 1));
    network.nodes[0].connected(&key(1), network.now);
    network.flush(0);
    network.run(Duration::from_secs(60));
    network.issue(with(2, Role::Client(key(0))));
    network.run(Duration::from_secs(60));
    assert_eq!(network.received[1], 0);
    network.issue(with(3, Role::Member));
    network.run(Duration::from_secs(60));
    assert!(network.received[1] > 0);
}

#[test]
fn a_new_member_gets_all_of_it_over_a_link_that_loses_a_third() {
    for seed in 0..20 {
        let all = roster(5, (0..2_000).map(member));
        let mut network = Network::new(seed, 2, |number| (number == 0).then(|| all.clone()));
        network.lost = 33;
        network.star();
        let began = network.now;
        network.run(Duration::from_secs(120));
        network.all_have(5);
        println!("2,000 members after {:?}", network.slowest_of(1, 5, began));
        assert_eq!(network.nodes[1].roster().unwrap().changes_since(&all), Default::default());
    }
}

impl Network {
    fn slowest_of(&self, node: usize, number: u64, since: Instant) -> Duration {
        self.known[node][&number].since(since)
    }
}

/// Without the server, members that missed a change get it from another member.
#[test]
fn members_tell_each_other_without_a_server() {
    let rosters = [1, 2].map(|number| roster(number, (0..50 + number as usize).map(member)));
    let mut network = Network::new(3, 4, |number| Some(rosters[usize::from(number == 1)].clone()));
    network.connect(1, 2);
    network.connect(2, 3);
    network.run(Duration::from_secs(60));
    assert_eq!([1, 2, 3].map(|node| network.number(node)), [2; 3]);
}

/// Rosters are issued faster than they are distributed.
#[test]
fn the_newest_wins_while_others_are_on_their_way() {
    for seed in 0..10 {
        let mut network = Network::new(seed, 8, |_| Some(roster(1, (0..300).map(member))));
        network.lost = 5;
        network.star();
        for number in 2..40 {
            network.issue(roster(number, (0..300 + number as usize).map(member)));
            network.run(15 * MS);
        }
        network.run(Duration::from_secs(120));
        network.all_have(39);
    }
}

/// Members come and go for days. In the end, all have the last roster.
#[test]
fn whoever_was_away_catches_up() {
    for seed in 0..10 {
        let mut network = Network::new(seed, 12, |_| Some(roster(1, (0..100).map(member))));
        network.lost = 10;
        network.star();
        for number in 2..30 {
            let node = network.rng.random_range(1..12);
            let other = network.rng.random_range(0..12);
            match network.rng.random_range(0..3) {
                0 if network.connected.contains(&(0, node)) => network.disconnect(0, node),
                0 | 1 if !network.connected.contains(&(0, node)) => network.connect(0, node),
                _ if node != other && !network.connected.contains(&(node.min(other), node.max(other))) => {
                    network.connect(node, other);
                }
                _ => {}
            }
            network.issue(roster(number, (0..100).filter(|member| member % 50 != number as usize % 50).map(member)));
            let pause = network.rng.random_range(0..20_000);
            network.run(pause * MS);
        }
        (1..12).filter(|node| !network.connected.contains(&(0, *node))).collect::<Vec<_>>().into_iter().for_each(
            |node| {
                network.connect(0, node);
            },
        );
        network.run(Duration::from_secs(300));
        network.all_have(29);
    }
}

/// The network is partitioned for two hours, while rosters are issued on one side. Then two members see each other
/// again: the newest roster is passed from member to member, and nothing was sent in vain during the partition.
#[test]
fn a_partition_that_heals_is_caught_up_with() {
    for seed in 0..4 {
        let mut network = Network::new(seed, 12, |_| Some(roster(1, (0..500).map(member))));
        network.lost = 20;
        network.star();
        (6..11).for_each(|node| network.connect(node, node + 1));
        network.connect(5, 6);
        network.run(Duration::from_secs(60));
        (6..12).for_each(|node| network.disconnect(0, node));
        network.disconnect(5, 6);
        for number in 2..30 {
            network.issue(roster(
                number,
                (0..500).filter(|member| *member < 12 || member % 50 != number as usize % 50).map(member),
            ));
            network.run(Duration::from_secs(120));
        }
        for node in 0..12 {
            assert_eq!(network.number(node), if node < 6 { 29 } else { 1 }, "member {node}");
        }
        network.received.fill(0);
        network.run(Duration::from_secs(3_600));
        assert_eq!(network.received, [0; 12], "both sides have said what there was to say");
        let healed = network.now;
        network.connect(5, 6);
        network.run(Duration::from_secs(60));
        network.all_have(29);
        println!("all know {:?} after the first link", network.slowest_since(29, healed));
    }
}

/// A member claims to have a newer roster, but has none, or one signed by another key.
#[test]
fn who_lies_about_a_roster_is_not_asked_again_soon_and_keeps_nobody_from_the_true_one() {
    let forged = {
        let settings = Settings::new("rg0".parse().unwrap());
        let members = (0..20).map(member).map(Arc::new);
        Roster::issue(&NetworkSecret::from_bytes(&[8; 32]), 1_000, 0, settings, members).unwrap()
    };
    let first = roster(1, (0..20).map(member));
    let mut network = Network::new(4, 3, |_| Some(first.clone()));
    // Its exchange belongs to another network with the same members.
    network.nodes[2] = Exchange::new(NetworkSecret::from_bytes(&[8; 32]).public_key(), Some(forged));
    network.connect(1, 2);
    network.connect(0, 1);
    network.run(Duration::from_secs(5));
    assert_eq!(network.number(1), 1);
    let heard = network.received[2];
    network.issue(roster(2, (0..21).map(member)));
    network.run(Duration::from_secs(20));
    assert_eq!(network.number(1), 2);
    println!("{heard} bytes at the liar, then {}", network.received[2] - heard);
    assert!(network.received[2] - heard < 200, "it is told of the new roster, and asked for nothing");
}

/// Malformed messages, truncated messages and unrequested ones change nothing.
#[test]
fn noise_changes_nothing() {
    let first = roster(1, (0..20).map(member));
    let mut rng = StdRng::seed_from_u64(5);
    let mut node = Exchange::new(secret().public_key(), Some(first.clone()));
    let mut now = Instant::from_nanos(1);
    node.connected(&key(3), now);
    for _ in 0..20_000 {
        let mut text = vec![0; rng.random_range(0..200)];
        rng.fill_bytes(&mut text);
        for (byte, magic) in text.iter_mut().zip([7, b'R', b'G', 1, rng.random_range(0..9), 0, 0, 0]) {
            *byte = magic;
        }
        now = now + MS;
        let before = text.len();
        node.hear(&key(3), &text, now);
        node.hear(&key(4), &text, now);
        node.tick(now);
        let mut sent = 0;
        while let Some(output) = node.next_output() {
            let Output::Send { to, text } = output else { panic!("{output:?} of noise of {before} bytes") };
            assert_eq!(to, key(3), "who is not connected gets nothing");
            sent += text.len();
        }
        assert!(sent <= 1_136 + 32 * 32 + 24, "{sent} bytes at once");
    }
    assert_eq!(node.roster().unwrap().version(), first.version());
}

#[test]
fn pairs_get_the_same_key_from_the_server_and_nobody_else() {
    let all = roster(1, (0..60).map(member));
    let mut network = Network::new(6, 60, |_| Some(all.clone()));
    network.lost = 20;
    network.star();
    for node in 1..60 {
        let now = network.now;
        network.nodes[node].want_keys((1..60).filter(|other| *other != node).map(key), now);
        network.flush(node);
    }
    network.run(Duration::from_secs(60));
    for (a, b) in (1..60).flat_map(|a| (1..a).map(move |b| (a, b))) {
        assert!(network.keys.contains_key(&(a, b)), "{a} has no key for {b}");
        assert_eq!(network.keys[&(a, b)], network.keys[&(b, a)], "{a} and {b}");
    }
    assert_ne!(network.keys[&(1, 2)], network.keys[&(1, 3)]);
    assert!(network.nodes.iter().all(|node| node.deadline().is_none()), "nothing is left to ask");
    // A peer that is in no roster is told nothing.
    let mut network = Network::new(7, 3, |_| Some(roster(1, (0..2).map(member))));
    network.star();
    let now = network.now;
    network.nodes[2].want_keys([key(1)], now);
    network.flush(2);
    network.run(Duration::from_secs(30));
    assert!(network.keys.is_empty());
}

/// The announcement of a member reaches the server that issues the roster, although the links lose a third and the
/// server cannot always store it. After that, nothing more is sent.
#[test]
fn what_members_say_about_themselves_is_stored() {
    for seed in 0..20 {
        // Two servers, of which the second does not issue the roster.
        let servers = |number| if number == 1 { member(1).with_role(Role::Server) } else { member(number) };
        let all = roster(1, (0..10).map(servers));
        let mut network = Network::new(seed, 10, |_| Some(all.clone()));
        (network.lost, network.unstored) = (33, 33);
        network.star();
        (2..10).for_each(|node| network.connect(1, node));
        for node in 2..10 {
            network.state(node, &["10.9.0.0/16"]);
        }
        network.run(Duration::from_secs(1));
        network.state(5, &["10.8.0.0/16", "10.7.0.0/16"]);
        network.state(6, &[]);
        // Sessions are renewed. Messages that were lost too often are then sent again.
        for _ in 0..5 {
            network.run(Duration::from_secs(120));
            (2..10).for_each(|node| network.connect(0, node));
        }
        network.run(Duration::from_secs(120));
        let last = |node| network.stated.iter().rev().find(|(from, _)| *from == node).map(|(_, statement)| statement);
        let statement = |prefixes: &[&str]| Statement::new(prefixes.iter().map(|prefix| prefix.parse().unwrap()));
        for node in 2..10 {
            let expected: &[&str] = match node {
                5 => &["10.7.0.0/16", "10.8.0.0/16"],
                6 => &[],
                _ => &["10.9.0.0/16"],
            };
            assert_eq!(last(node), Some(&statement(expected)), "member {node}");
        }
        (network.lost, network.unstored) = (0, 0);
        network.run(Duration::from_secs(120));
        let stated = network.stated.len();
        for _ in 0..3 {
            (2..10).for_each(|node| network.connect(0, node));
            network.received.fill(0);
            network.run(Duration::from_secs(120));
        }
        // Only which roster each has.
        assert_eq!((network.stated.len(), network.received[0]), (stated, 8 * 24), "what is stored is not told again");
    }
}

/// One member sends a different statement with every message, and so does one that is in no roster.
#[test]
fn a_member_that_talks_costs_little() {
    let all = roster(1, (0..3).map(member));
    let mut network = Network::new(8, 4, |_| Some(all.clone()));
    network.star();
    for n in 0..10_000_u32 {
        for node in [2, 3] {
            network.state(node, &[&format!("10.{}.{}.0/24", n >> 8 & 0xff, n & 0xff)]);
        }
        network.run(MS);
    }
    assert!(network.stated.iter().all(|(from, _)| *from == 2));
    assert!(network.stated.len() <= 8 + 2, "{} in ten seconds", network.stated.len());
    network.run(Duration::from_secs(60));
    let last = network.stated.last().unwrap();
    assert_eq!(last.1, Statement::new(["10.39.15.0/24".parse().unwrap()]), "the last one comes in the end");
}

/// A member changes its key. Pending reminders and its newer roster move to the new key: nothing stays due under the
/// previous key.
#[test]
fn a_member_is_told_and_asked_by_the_key_that_it_has() {
    let texts = |node: &mut Exchange| {
        let outputs = std::iter::from_fn(|| node.next_output());
        let sent = outputs.filter_map(|output| match output {
            Output::Send { to, text } => Some((to, text)),
            _ => None,
        });
        sent.collect::<Vec<_>>()
    };
    let mut node = Exchange::new(secret().public_key(), Some(roster(1, (0..4).map(member))));
    let mut newer = Exchange::new(secret().public_key(), Some(roster(2, (0..4).map(member))));
    let mut now = Instant::from_nanos(1_000_000_000);
    node.connected(&key(1), now);
    node.connected(&key(2), now);
    newer.connected(&key(3), now);
    // The second has a newer roster, and does not answer requests.
    for (_, text) in texts(&mut newer) {
        node.hear(&key(2), &text, now);
    }
    texts(&mut node);
    node.renamed(&key(1), &key(11));
    node.renamed(&key(2), &key(12));
    let mut told = BTreeMap::new();
    for _ in 0..60 {
        let Some(deadline) = node.deadline() else { break };
        now = now.max(deadline);
        node.tick(now);
        for (to, _) in texts(&mut node) {
            *told.entry(to.0).or_insert(0) += 1;
        }
        assert!(node.deadline().is_none_or(|at| at > now), "what was due is done");
    }
    assert_eq!(told.get(&key(11).0), Some(&5), "the first is told until it has been told six times");
    assert!(told.get(&key(12).0).is_some_and(|count| *count > 10), "the second is asked again and again");
    assert_eq!(told.len(), 2, "nobody is told by a key that it had before");
    node.gone(&key(12), now);
    assert_eq!(node.deadline(), None);
}
