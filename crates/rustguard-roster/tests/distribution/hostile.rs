//! Limits to the harm from members, servers and old backups that lie, withhold and flood.

use crate::{MS, key, member, roster, secret};
use rustguard_core::time::Instant;
use rustguard_crypto::x25519::PublicKey;
use rustguard_roster::{
    exchange::{Exchange, Output},
    member::Role,
    pair::PairSecret,
    roster::Roster,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

const SECOND: Duration = Duration::from_secs(1);

/// A member that does not run RustGuard: it answers a text, or is called without one every 10 ms.
type Liar = Box<dyn FnMut(Option<&[u8]>, Instant) -> Vec<Vec<u8>>>;

/// The text of a flood with this number.
type Flood = Box<dyn Fn(u64) -> Vec<u8>>;

enum Node {
    Honest(Box<Exchange>),
    Liar(Liar),
}

/// Members with sessions to the first one, 20 ms away from it.
struct World {
    now: Instant,
    nodes: BTreeMap<usize, Node>,
    flying: BTreeMap<(Instant, u64), (usize, usize, Vec<u8>)>,
    connected: BTreeSet<usize>,
    sent: u64,
    /// When the first one got each number.
    known: BTreeMap<u64, Instant>,
}

/// The member that the others lie to.
const VICTIM: usize = 1;

impl World {
    fn new(victim: Roster) -> Self {
        let victim = Exchange::new(secret().public_key(), Some(victim));
        Self {
            now: Instant::from_nanos(1_000_000_000),
            nodes: [(VICTIM, Node::Honest(Box::new(victim)))].into(),
            flying: BTreeMap::new(),
            connected: BTreeSet::new(),
            sent: 0,
            known: BTreeMap::new(),
        }
    }

    fn honest(&mut self, number: usize, has: Roster) {
        let exchange = Exchange::new(secret().public_key(), Some(has));
        self.nodes.insert(number, Node::Honest(Box::new(exchange)));
        self.connect(number);
    }

    fn liar(&mut self, number: usize, liar: impl FnMut(Option<&[u8]>, Instant) -> Vec<Vec<u8>> + 'static) {
        self.nodes.insert(number, Node::Liar(Box::new(liar)));
        self.connect(number);
    }

    fn connect(&mut self, number: usize) {
        self.connected.insert(number);
        let now = self.now;
        for (node, other) in [(VICTIM, number), (number, VICTIM)] {
            self.with(node, |exchange| exchange.connected(&key(other), now));
        }
    }

    fn disconnect(&mut self, number: usize) {
        self.connected.remove(&number);
        let now = self.now;
        for (node, other) in [(VICTIM, number), (number, VICTIM)] {
            self.with(node, |exchange| exchange.gone(&key(other), now));
        }
    }

    fn issue(&mut self, number: usize, roster: Roster) {
        let now = self.now;
        self.with(number, |exchange| exchange.issued(roster, now));
    }

    fn with(&mut self, node: usize, tell: impl FnOnce(&mut Exchange)) {
        let Some(Node::Honest(exchange)) = self.nodes.get_mut(&node) else { return };
        tell(exchange);
        let mut texts = Vec::new();
        while let Some(output) = exchange.next_output() {
            match output {
                Output::Send { to, text } => texts.push((to, text.to_vec())),
                Output::Newer if node == VICTIM => {
                    let number = exchange.roster().unwrap().version().number;
                    assert!(self.known.keys().all(|known| *known < number), "an old number was taken");
                    self.known.insert(number, self.now);
                }
                _ => {}
            }
        }
        for (to, text) in texts {
            let to = self.nodes.keys().copied().find(|number| key(*number) == to).unwrap();
            self.send(node, to, text);
        }
    }

    fn send(&mut self, from: usize, to: usize, text: Vec<u8>) {
        self.sent += 1;
        self.flying.insert((self.now + 20 * MS, self.sent), (from, to, text));
    }

    fn run(&mut self, time: Duration) {
        let end = self.now + time;
        while self.now < end {
            self.now = self.now + 10 * MS;
            while let Some(arrived) = self.flying.first_entry().filter(|first| first.key().0 <= self.now) {
                let (from, to, text) = arrived.remove();
                if self.connected.contains(if from == VICTIM { &to } else { &from }) {
                    self.hear(from, to, &text);
                }
            }
            let liars: Vec<_> = self.nodes.keys().copied().collect();
            for number in liars {
                self.turn(number);
            }
        }
    }

    fn hear(&mut self, from: usize, to: usize, text: &[u8]) {
        let now = self.now;
        match self.nodes.get_mut(&to) {
            Some(Node::Honest(_)) => self.with(to, |exchange| exchange.hear(&key(from), text, now)),
            Some(Node::Liar(liar)) => {
                liar(Some(text), now).into_iter().for_each(|text| self.send(to, from, text));
            }
            None => {}
        }
    }

    fn turn(&mut self, number: usize) {
        let now = self.now;
        match self.nodes.get_mut(&number) {
            Some(Node::Liar(liar)) => liar(None, now).into_iter().for_each(|text| self.send(number, VICTIM, text)),
            Some(Node::Honest(exchange)) if exchange.deadline().is_some_and(|at| at <= now) => {
                self.with(number, |exchange| exchange.tick(now));
            }
            _ => {}
        }
    }

    fn number(&self) -> u64 {
        self.known.keys().last().copied().unwrap_or(1)
    }

    /// Issues rosters one after the other at `issuer`. Returns the longest time until the victim got one.
    fn slowest_of(&mut self, issuer: usize, numbers: std::ops::RangeInclusive<u64>) -> Duration {
        let mut slowest = Duration::ZERO;
        for number in numbers {
            let began = self.now;
            self.issue(issuer, roster(number, (0..20 + number as usize).map(member)));
            self.run(100 * SECOND);
            let took = self.known.get(&number).unwrap_or_else(|| panic!("{number} never came")).since(began);
            slowest = slowest.max(took);
        }
        slowest
    }
}

fn text(kind: u8, number: u64, digest: [u8; 8], rest: &[u8]) -> Vec<u8> {
    [&[7, b'R', b'G', 1, kind, 0, 0, 0], &number.to_le_bytes()[..], &digest, rest].concat()
}

fn have(number: u64) -> Vec<u8> {
    text(1, number, [9; 8], &[])
}

/// The answer to `request`, if it asks for a part: these bytes of a part that is `total` long.
fn part(request: &[u8], total: u32, bytes: &[u8]) -> Option<Vec<u8>> {
    (request.get(4) == Some(&2)).then(|| {
        let mut answer = request[..32].to_vec();
        answer[4] = 3;
        [&answer, &total.to_le_bytes()[..], bytes].concat()
    })
}

/// Claims a higher number every 10 ms, and answers nothing.
fn boaster() -> impl FnMut(Option<&[u8]>, Instant) -> Vec<Vec<u8>> {
    let mut number = 1_000;
    move |heard, _| {
        number += 1;
        if heard.is_none() { vec![have(number)] } else { Vec::new() }
    }
}

/// Always claims the same number, and answers one request in seven seconds, with bytes of a head that nobody has
/// signed.
fn staller() -> impl FnMut(Option<&[u8]>, Instant) -> Vec<Vec<u8>> {
    let mut next = Instant::default();
    move |heard, now| match heard {
        None => vec![have(u64::MAX)],
        Some(request) if now >= next && request.get(4) == Some(&2) => {
            next = now + 7 * SECOND;
            part(request, 8_344, &[0; 1_100]).into_iter().collect()
        }
        Some(_) => Vec::new(),
    }
}

fn world(others: impl FnOnce(&mut World)) -> World {
    let mut world = World::new(roster(1, (0..20).map(member)));
    others(&mut world);
    world.run(30 * SECOND);
    world
}

/// Members that claim newer rosters and deliver none do not delay a member that has a session with a server.
#[test]
fn liars_cannot_keep_a_member_from_what_its_server_has() {
    let mut world = world(|world| {
        (2..6).for_each(|number| world.liar(number, boaster()));
        (6..10).for_each(|number| world.liar(number, staller()));
        world.honest(0, roster(1, (0..20).map(member)));
    });
    let slowest = world.slowest_of(0, 2..=5);
    println!("with eight liars: {slowest:?}");
    assert!(slowest <= SECOND);
}

/// Without a server, each liar costs time once. Then the members that deliver are asked first.
#[test]
fn liars_cannot_keep_a_member_from_what_another_member_has() {
    let mut world = world(|world| {
        world.liar(2, boaster());
        world.liar(3, staller());
        world.liar(4, boaster());
        world.honest(9, roster(1, (0..20).map(member)));
    });
    world.run(60 * SECOND);
    let slowest = world.slowest_of(9, 2..=5);
    println!("with three liars and no server: {slowest:?}");
    assert!(slowest <= SECOND);
}

/// Ending the session and beginning another one, even every second, does not restore trust after a lie.
#[test]
fn another_session_does_not_make_a_liar_credible() {
    let mut world = world(|world| {
        world.liar(2, boaster());
        world.liar(3, boaster());
        world.honest(9, roster(1, (0..20).map(member)));
    });
    world.run(60 * SECOND);
    world.issue(9, roster(2, (0..30).map(member)));
    let began = world.now;
    for _ in 0..20 {
        for liar in [2, 3] {
            world.disconnect(liar);
            world.connect(liar);
        }
        world.run(SECOND);
    }
    let took = world.known[&2].since(began);
    assert!(took <= 2 * SECOND, "{took:?}");
}

/// Has this roster, proves it with the head, and delivers no other part of it. In every other period of five seconds,
/// it claims another roster if `boasts`.
fn withholder(has: &Roster, boasts: bool) -> impl FnMut(Option<&[u8]>, Instant) -> Vec<Vec<u8>> + use<> {
    let (file, version) = (has.to_bytes(), has.version());
    let head = file[8..8 + u32::from_le_bytes(file[4..8].try_into().unwrap()) as usize].to_vec();
    move |heard, now| {
        let Some(request) = heard else {
            let lies = boasts && now.since(Instant::default()).as_secs() / 5 % 2 == 1;
            return vec![if lies { have(1_000) } else { text(1, version.number, version.digest, &[]) }];
        };
        if request[4] != 2 || request[8] != version.number as u8 || request[24..26] != [0xff; 2] {
            return Vec::new();
        }
        let offset = u32::from_le_bytes(request[28..32].try_into().unwrap()) as usize;
        let bytes = &head[offset..head.len().min(offset + 1_100)];
        part(request, head.len() as u32, bytes).into_iter().collect()
    }
}

/// Its claims between two proofs do not restart its period.
#[test]
fn a_member_cannot_withhold_for_long_what_it_proves_to_have() {
    let next = roster(2, (0..300).map(member));
    // Of two members with the same rank, the one with the lesser key is asked.
    let mut numbers = [2, 9];
    numbers.sort_by_key(|number| key(*number).0);
    let [liar, honest] = numbers;
    let mut world = World::new(roster(1, (0..20).map(member)));
    world.liar(liar, withholder(&next, true));
    world.honest(honest, roster(1, (0..20).map(member)));
    world.run(SECOND);
    world.issue(honest, next);
    world.run(200 * SECOND);
    let took = world.known.get(&2).expect("it comes").since(Instant::from_nanos(0));
    println!("withheld for {took:?}");
    assert!(took <= 45 * SECOND, "{took:?}");
}

/// If the session ends for an hour while a member is asked, this does not count as a failure of that member.
#[test]
fn who_was_away_is_not_taken_for_a_liar() {
    let mut world = World::new(roster(1, (0..20).map(member)));
    world.honest(0, roster(2, (0..30).map(member)));
    world.run(30 * MS);
    world.disconnect(0);
    world.run(3_600 * SECOND);
    assert!(world.known.is_empty(), "it was asked, and has not answered");
    let began = world.now;
    world.connect(0);
    world.run(SECOND);
    assert!(world.known[&2].since(began) < SECOND);
}

/// A roster that is issued here while another one is being fetched is newer than that one.
#[test]
fn a_roster_on_its_way_does_not_replace_what_was_issued_meanwhile() {
    let mut world = World::new(roster(1, (0..20).map(member)));
    world.honest(9, roster(2, (0..300).map(member)));
    world.run(100 * MS);
    assert!(world.known.is_empty(), "it is on its way");
    world.issue(VICTIM, roster(3, (0..20).map(member)));
    // `World` panics if an old number is taken.
    world.run(10 * SECOND);
    assert_eq!(world.number(), 3);
}

/// A member has the new roster, proves it with the head, and delivers no other part of it.
#[test]
fn a_member_that_withholds_the_parts_delays_nobody_with_a_server() {
    let next = roster(2, (0..300).map(member));
    let mut world = world(|world| {
        world.liar(2, withholder(&next, false));
        world.honest(0, roster(1, (0..20).map(member)));
    });
    assert_eq!(world.number(), 1);
    let began = world.now;
    world.issue(0, next);
    world.run(10 * SECOND);
    assert!(world.known[&2].since(began) <= SECOND);
}

/// Parts of a megabyte, parts that never end, parts that do not match the head: each ends the attempt with its sender.
#[test]
fn parts_that_lie_about_themselves_are_not_waited_for() {
    for (total, bytes) in [(u32::MAX, 1_100), (1 << 20, 1_100), (1_103, 1_100), (0, 0), (40, 40)] {
        let mut world = world(|world| {
            world.liar(2, move |heard, _| match heard {
                None => vec![have(50)],
                Some(request) => part(request, total, &vec![7; bytes]).into_iter().collect(),
            });
            world.honest(9, roster(1, (0..20).map(member)));
        });
        let slowest = world.slowest_of(9, 2..=3);
        assert!(slowest <= 4 * SECOND, "{total}: {slowest:?}");
    }
}

/// An authentic older roster is not taken, neither from a member nor from a server.
#[test]
fn an_old_roster_cannot_be_replayed() {
    let mut world = World::new(roster(7, (0..20).map(member)));
    world.honest(0, roster(3, (0..40).map(member)));
    world.honest(9, roster(6, (0..40).map(member)));
    world.run(30 * SECOND);
    assert!(world.known.is_empty());
    world.issue(VICTIM, roster(7, (0..20).map(member)));
    world.issue(VICTIM, roster(5, (0..20).map(member)));
    assert!(world.known.is_empty());
}

/// A server is restored from a backup of last month. It learns from any member which number was issued last.
#[test]
fn a_server_from_an_old_backup_learns_what_was_issued_after_it() {
    let mut world = World::new(roster(90, (0..40).map(member)));
    world.honest(0, roster(60, (0..20).map(member)));
    // Before that, it issues a roster that is older than those of the members, so nobody takes it.
    world.issue(0, roster(61, (0..21).map(member)));
    world.run(5 * SECOND);
    let Some(Node::Honest(server)) = world.nodes.get(&0) else { panic!() };
    let version = server.roster().unwrap().version();
    assert_eq!((version.number, world.known.len()), (90, 0));
    world.issue(0, roster(version.number + 1, (0..21).map(member)));
    world.run(5 * SECOND);
    assert_eq!(world.number(), 91);
}

/// Requests of one member are answered at a bounded rate, whatever they are.
#[test]
fn floods_of_one_member_are_answered_at_a_bounded_rate() {
    let all = roster(5, (0..200).map(member));
    let version = all.version();
    let names: Vec<u8> = (1..28).flat_map(|number| key(number).0[..8].to_vec()).collect();
    let wants = [&[27, 0, 0, 0], &names[..]].concat();
    let get = |part: u16, offset: u32| [&part.to_le_bytes()[..], &[0; 2], &offset.to_le_bytes()].concat();
    let floods: [(&str, Flood); 4] = [
        ("older rosters", Box::new(|n| text(1, n % 4, [n as u8; 8], &[]))),
        ("newer rosters", Box::new(|n| have(100 + n))),
        ("parts", Box::new(move |n| text(2, version.number, version.digest, &get(n as u16 % 16, 0)))),
        ("keys", Box::new(move |_| text(4, version.number, version.digest, &wants))),
    ];
    for (what, flood) in floods {
        let mut server = Exchange::new(secret().public_key(), Some(all.clone()));
        server = server.with_pair_secret(PairSecret::from_bytes(&[5; 32]));
        let start = Instant::from_nanos(1_000_000_000);
        let (flooder, other) = (key(3), key(4));
        server.connected(&flooder, start);
        server.connected(&other, start);
        while server.next_output().is_some() {}
        let (mut texts, mut bytes) = (0_usize, 0);
        for n in 0..100_000 {
            let now = start + Duration::from_micros(n * 10);
            server.hear(&flooder, &flood(n), now);
            while let Some(output) = server.next_output() {
                let Output::Send { to, text } = output else { continue };
                assert_eq!(to, flooder, "{what}");
                (texts, bytes) = (texts + 1, bytes + text.len());
            }
        }
        println!("100,000 in a second about {what}: {texts} answers, {bytes} bytes");
        assert!((1..=5_001).contains(&texts), "{what}: {texts}");
        // Others do not have to wait for it.
        let now = start + SECOND;
        server.hear(&other, &text(2, version.number, version.digest, &get(0xffff, 0)), now);
        assert!(matches!(server.next_output(), Some(Output::Send { to, .. }) if to == other), "{what}");
    }
}

/// A peer with a session can direct answers to somebody else, by datagrams with a false source. They are few.
#[test]
fn a_false_source_draws_little_to_somebody_else() {
    const SPOOFERS: usize = 100;
    let all = roster(5, (0..1_000).map(member));
    let version = all.version();
    let names: Vec<u8> = (200..227).flat_map(|number| key(number).0[..8].to_vec()).collect();
    let wants = text(4, version.number, version.digest, &[&[27, 0, 0, 0], &names[..]].concat());
    let get = |n: u64| text(2, version.number, version.digest, &[&(n as u16 % 16).to_le_bytes()[..], &[0; 6]].concat());
    let mut server = Exchange::new(secret().public_key(), Some(all)).with_pair_secret(PairSecret::from_bytes(&[5; 32]));
    let start = Instant::from_nanos(1_000_000_000);
    (1..=SPOOFERS).for_each(|n| server.connected(&key(n), start));
    while server.next_output().is_some() {}
    // The bytes of the answers to the requests of one second.
    let drawn = |server: &mut Exchange, spoofers: usize, from: Instant| {
        let (mut asked, mut answered) = (0, 0);
        for n in 0..100_000 {
            let request = if n % 100 == 1 { wants.clone() } else { get(n) };
            asked += request.len();
            server.hear(&key(n as usize % spoofers + 1), &request, from + Duration::from_micros(n * 10));
            while let Some(output) = server.next_output() {
                let Output::Send { text, .. } = output else { continue };
                answered += text.len();
            }
        }
        println!("{asked} bytes of {spoofers}: {answered} bytes");
        answered
    };
    assert!(drawn(&mut server, 1, start) > 1_000_000, "who stays where it is has a whole roster at once");
    let moved = start + SECOND;
    (1..=SPOOFERS).for_each(|n| server.moved(&key(n), moved));
    assert!(drawn(&mut server, 1, moved) < 200 * 1_200);
    // Another session changes nothing: the member begins it at its true address, and uses the false source afterwards.
    server.connected(&key(1), moved + SECOND);
    while server.next_output().is_some() {}
    assert!(drawn(&mut server, 1, moved + SECOND) < 60 * 1_200);
    assert!(drawn(&mut server, SPOOFERS, moved + SECOND * 10) < 2_600 * 1_200);
    // After three minutes without a move, the address is trusted: the session has begun from there.
    assert!(drawn(&mut server, 1, moved + Duration::from_secs(180)) > 1_000_000);
}

/// The texts that `server` sends.
pub(crate) fn said(server: &mut Exchange) -> Vec<Vec<u8>> {
    let output = std::iter::from_fn(|| server.next_output());
    output
        .filter_map(|output| if let Output::Send { text, .. } = output { Some(text.to_vec()) } else { None })
        .collect()
}

/// Peers without a session are ignored. A peer that has a session but is not a member, such as one that the user has
/// added by hand, and a stock client get neither keys nor the roster, and not even its number.
#[test]
fn strangers_and_clients_are_told_nothing() {
    let client = |number| if number == 6 { member(6).with_role(Role::Client(key(0))) } else { member(number) };
    let all = roster(5, (0..10).map(client));
    let version = all.version();
    let message = |kind, rest: &[u8]| text(kind, version.number, version.digest, rest);
    let head = [0xff, 0xff, 0, 0, 0, 0, 0, 0];
    let texts = [
        message(1, &[]),
        have(2),
        have(9),
        message(2, &head),
        text(2, 4, [1; 8], &head),
        message(4, &[&[1, 0, 0, 0], &key(5).0[..8]].concat()),
        message(8, &[]),
    ];
    let secret_of_pairs = PairSecret::from_bytes(&[5; 32]);
    let mut server = Exchange::new(secret().public_key(), Some(all)).with_pair_secret(secret_of_pairs);
    let mut now = Instant::from_nanos(1_000_000_000);
    let no_session = PublicKey([78; 32]);
    texts.iter().for_each(|text| server.hear(&no_session, text, now));
    assert_eq!(said(&mut server).len(), 0);
    for stranger in [PublicKey([77; 32]), key(6)] {
        server.connected(&stranger, now);
        for text in &texts {
            server.hear(&stranger, text, now);
        }
        // The peer claims to have a newer roster, and is asked for it.
        assert!(said(&mut server).iter().all(|text| text[4] == 2 && text[8] == 9));
        for _ in 0..60 {
            now = now + SECOND;
            server.tick(now);
        }
        server.issued(roster(5 + now.since(Instant::default()).as_secs(), (0..10).map(client)), now);
        assert!(said(&mut server).iter().all(|text| text[4] == 2), "nor of a new one");
        server.gone(&stranger, now);
    }
}

/// A removed member has to learn of its removal. Its session ends soon after. Then it is a stranger.
#[test]
fn a_removed_member_hears_of_its_removal_and_of_nothing_later() {
    let with = |number, members| roster(number, (0..members).map(member));
    let mut server = Exchange::new(secret().public_key(), Some(with(1, 4)));
    let now = Instant::from_nanos(1_000_000_000);
    let removed = key(3);
    server.connected(&removed, now);
    let without = with(2, 3);
    let version = without.version();
    server.issued(without, now);
    server.hear(&removed, &text(2, version.number, version.digest, &[0xff, 0xff, 0, 0, 0, 0, 0, 0]), now);
    let kinds: Vec<_> = said(&mut server).iter().map(|text| (text[4], text[8])).collect();
    assert_eq!(kinds, [(1, 1), (1, 2), (3, 2)]);
    server.gone(&removed, now);
    server.connected(&removed, now);
    server.issued(with(3, 3), now);
    assert_eq!(said(&mut server).len(), 0);
}
