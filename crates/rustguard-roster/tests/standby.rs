//! How the state of the issuing server reaches its standbys, and nobody else: over links with loss, delay and
//! duplication, and through restarts.
use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};
use rustguard_core::time::Instant;
use rustguard_crypto::x25519::PublicKey;
use rustguard_roster::{
    exchange::{Exchange, Output},
    key::NetworkSecret,
    member::{Member, Role},
    pair::PairSecret,
    roster::Roster,
    server_state::ServerState,
    settings::Settings,
};
use std::{collections::VecDeque, sync::Arc, time::Duration};
use zeroize::Zeroizing;

const ISSUER: u8 = 1;
const STANDBY: u8 = 2;
/// A further server that is no standby, and a member.
const SERVER: u8 = 3;
const MEMBER: u8 = 4;

fn key(n: u8) -> PublicKey {
    PublicKey([n; 32])
}

fn network() -> NetworkSecret {
    NetworkSecret::from_bytes(&[9; 32])
}

fn state_of(secret: &NetworkSecret, made: u64, text: &[u8]) -> ServerState {
    ServerState::new(secret, 1, made, Zeroizing::new(text.to_vec()))
}

fn state(made: u64, text: &[u8]) -> ServerState {
    state_of(&network(), made, text)
}

fn roster() -> Roster {
    let member = |n: u8| {
        let role = if n == MEMBER { Role::Member } else { Role::Server };
        Arc::new(Member::new(key(n), format!("m{n}").parse().unwrap()).with_role(role))
    };
    let settings = Settings::new("rg0".parse().unwrap());
    Roster::issue(&network(), 1, 0, settings, [ISSUER, STANDBY, SERVER, MEMBER].map(member)).unwrap()
}

struct Network {
    now: Instant,
    rng: StdRng,
    nodes: Vec<(u8, Exchange)>,
    /// The texts in flight: time of arrival, sender, receiver.
    texts: VecDeque<(Instant, u8, u8, Vec<u8>)>,
    /// How many texts per hundred are lost, and how many are duplicated. The maximum time that they take.
    loss: u32,
    delay: Duration,
    /// The pieces that this node sends are false.
    liar: Option<u8>,
    /// Whether the standby's disk is full.
    disk_is_full: bool,
    /// The state on the standby's disk, and how often it was written.
    disk: Option<ServerState>,
    writes: usize,
    bytes: usize,
}

impl Network {
    fn new(seed: u64) -> Self {
        let mut network = Self {
            now: Instant::from_nanos(0),
            rng: StdRng::seed_from_u64(seed),
            nodes: Vec::new(),
            texts: VecDeque::new(),
            loss: 0,
            delay: Duration::from_millis(20),
            liar: None,
            disk_is_full: false,
            disk: None,
            writes: 0,
            bytes: 0,
        };
        for n in [ISSUER, STANDBY, SERVER, MEMBER] {
            network.restart(n);
        }
        network
    }

    /// Starts the machine with the state on its disk, and connects it to all others.
    fn restart(&mut self, n: u8) {
        let exchange = Exchange::new(network().public_key(), Some(roster()));
        let exchange = match n {
            ISSUER => exchange.with_pair_secret(PairSecret::from_bytes(&[7; 32])),
            // All of them would take it.
            _ => exchange.for_member(key(n)).keeping_state(self.disk.clone().filter(|_| n == STANDBY)),
        };
        self.nodes.retain(|(node, _)| *node != n);
        self.nodes.push((n, exchange));
        self.texts.retain(|(_, from, to, _)| *from != n && *to != n);
        let others: Vec<_> = self.nodes.iter().map(|(node, _)| *node).filter(|node| *node != n).collect();
        for other in others {
            self.connect(n, other);
        }
    }

    fn connect(&mut self, a: u8, b: u8) {
        let now = self.now;
        self.at(a).connected(&key(b), now);
        self.at(b).connected(&key(a), now);
    }

    fn cut(&mut self, a: u8, b: u8) {
        let now = self.now;
        self.at(a).gone(&key(b), now);
        self.at(b).gone(&key(a), now);
        self.texts.retain(|(_, from, to, _)| ![*from, *to].iter().all(|n| [a, b].contains(n)));
    }

    fn at(&mut self, n: u8) -> &mut Exchange {
        self.nodes.iter_mut().find_map(|(node, exchange)| (*node == n).then_some(exchange)).unwrap()
    }

    fn tell(&mut self, state: ServerState) {
        let now = self.now;
        self.at(ISSUER).tell_state(state, [key(STANDBY)], now);
    }

    /// Puts a text in flight once, twice, or not at all.
    fn send(&mut self, from: u8, to: u8, text: &[u8]) {
        for again in [false, true] {
            let chance = self.rng.random_range(0..100);
            if if again { chance < self.loss } else { chance >= self.loss } {
                let at = self.now + self.delay.mul_f64(self.rng.random());
                self.texts.push_back((at, from, to, text.to_vec()));
            }
        }
    }

    fn run(&mut self, time: Duration) {
        let end = self.now + time;
        loop {
            for at in 0..self.nodes.len() {
                let n = self.nodes[at].0;
                while let Some(output) = self.nodes[at].1.next_output() {
                    match output {
                        Output::Send { to, mut text } => {
                            self.bytes += text.len();
                            // Only pieces that are longer than the list of pieces. The list stays true.
                            let is_long = |text: &[u8]| {
                                text[4] == 12 && u32::from_le_bytes(text[60..64].try_into().unwrap()) >= 4_096
                            };
                            if self.liar == Some(n) && is_long(&text) {
                                *text.last_mut().unwrap() ^= 1;
                            }
                            self.send(n, to.0[0], &text);
                        }
                        Output::State(state) => {
                            assert_eq!(n, STANDBY, "somebody else has the state");
                            if !self.disk_is_full {
                                self.disk = Some(state);
                                self.writes += 1;
                                self.nodes[at].1.state_stored();
                            }
                        }
                        _ => {}
                    }
                }
            }
            let due = self.nodes.iter().filter_map(|(_, exchange)| exchange.deadline());
            let next = due.chain(self.texts.iter().map(|(at, ..)| *at)).min().filter(|at| *at <= end);
            let Some(next) = next else { break };
            self.now = self.now.max(next);
            let now = self.now;
            let mut arrived = Vec::new();
            self.texts.retain(|text| {
                let is_there = text.0 <= now;
                if is_there {
                    arrived.push(text.clone());
                }
                !is_there
            });
            for (_, from, to, text) in arrived {
                self.at(to).hear(&key(from), &text, now);
            }
            for (_, exchange) in &mut self.nodes {
                if exchange.deadline().is_some_and(|at| at <= now) {
                    exchange.tick(now);
                }
            }
        }
        self.now = end;
    }

    fn text(&self) -> Option<&[u8]> {
        self.disk.as_ref().map(ServerState::text)
    }

    /// The time of the standby's state, as far as the issuer knows.
    fn stored(&self) -> Option<u64> {
        let issuer = self.nodes.iter().find(|(node, _)| *node == ISSUER).unwrap();
        let mut standbys = issuer.1.standbys();
        let (of, made) = standbys.next().unwrap();
        assert_eq!((of, standbys.next()), (key(STANDBY), None));
        made
    }
}

fn bytes(seed: u64, len: usize) -> Vec<u8> {
    StdRng::seed_from_u64(seed).random_iter().take(len).collect()
}

#[test]
fn a_change_is_on_the_disk_of_a_standby_within_a_second() {
    let mut network = Network::new(1);
    let mut text = bytes(1, 200_000);
    network.tell(state(1, &text));
    network.run(Duration::from_secs(1));
    assert!(network.text() == Some(&text), "another state");
    assert_eq!((network.stored(), network.writes), (Some(1), 1));
    network.bytes = 0;
    text.splice(100_000..100_000, *b"another machine");
    network.tell(state(2, &text));
    network.run(Duration::from_secs(1));
    assert!(network.text() == Some(&text), "another state");
    assert_eq!((network.stored(), network.writes), (Some(2), 2));
    assert!(network.bytes < 130_000, "{} bytes for a change of 15", network.bytes);
    network.bytes = 0;
    network.run(Duration::from_secs(600));
    assert_eq!((network.bytes, network.writes), (0, 2), "nothing is said where nothing changes");
}

/// The state makes its holder able to act as the server. Each node asks for a piece with its correct digest.
#[test]
fn nobody_but_a_standby_gets_the_state() {
    let mut network = Network::new(2);
    let text = bytes(2, 50_000);
    let known = state(1, &text);
    network.tell(known.clone());
    network.run(Duration::from_secs(5));
    // The requests of a standby, sent by others.
    let mut asking = Network::new(3);
    asking.tell(known);
    let mut questions = Vec::new();
    while questions.is_empty() {
        asking.run(Duration::from_millis(1));
        let is_question =
            |(_, from, to, text): &&(Instant, u8, u8, Vec<u8>)| (*from, *to, text[4]) == (STANDBY, ISSUER, 11);
        questions.extend(asking.texts.iter().filter(is_question).map(|(.., text)| text.clone()));
    }
    let now = network.now;
    for (from, answered) in [(STANDBY, true), (SERVER, false), (MEMBER, false)] {
        for question in &questions {
            network.at(ISSUER).hear(&key(from), question, now);
        }
        let mut answers = 0;
        while let Some(output) = network.at(ISSUER).next_output() {
            answers += usize::from(matches!(output, Output::Send { to, text } if to == key(from) && text[4] == 12));
        }
        assert_eq!(answers > 0, answered, "m{from} got {answers} pieces");
    }
}

/// A further server announces a state of another network, or an older one. A member announces one, too.
#[test]
fn only_a_newer_state_that_the_network_has_signed_is_taken() {
    let mut network = Network::new(4);
    network.tell(state(5, b"the present one"));
    network.run(Duration::from_secs(1));
    let foreign = NetworkSecret::from_bytes(&[8; 32]);
    for (from, lie) in [
        (SERVER, state_of(&foreign, 9, b"of another network")),
        (SERVER, state(4, b"an older one")),
        (MEMBER, state(9, b"a newer one, which no member has")),
    ] {
        let now = network.now;
        network.at(from).tell_state(lie, [key(STANDBY)], now);
        network.run(Duration::from_secs(30));
        assert_eq!((network.text(), network.writes), (Some(&b"the present one"[..]), 1));
    }
    // A server that has taken over from the issuer has one.
    let now = network.now;
    network.at(SERVER).tell_state(state(9, b"of a new issuer"), [key(STANDBY)], now);
    network.run(Duration::from_secs(1));
    assert_eq!(network.text(), Some(&b"of a new issuer"[..]));
}

/// A further server that has obtained the head of a newer state without its pieces does not prevent others from
/// delivering it.
#[test]
fn what_is_no_piece_of_the_state_is_not_taken() {
    let mut network = Network::new(6);
    let [old, new] = [bytes(6, 50_000), bytes(7, 50_000)];
    network.tell(state(1, &old));
    network.run(Duration::from_secs(1));
    network.liar = Some(SERVER);
    let now = network.now;
    network.at(SERVER).tell_state(state(2, &new), [key(STANDBY)], now);
    network.run(Duration::from_secs(60));
    assert!(network.text() == Some(&old), "a false state is on the disk");
    network.tell(state(2, &new));
    network.run(Duration::from_secs(1));
    assert!(network.text() == Some(&new), "the true one is not");
}

#[test]
fn a_full_disk_is_tried_again_and_never_said_to_be_done() {
    let mut network = Network::new(5);
    network.disk_is_full = true;
    network.tell(state(1, b"one"));
    network.run(Duration::from_secs(60));
    assert_eq!((network.stored(), network.text()), (None, None));
    network.disk_is_full = false;
    network.connect(ISSUER, STANDBY);
    network.run(Duration::from_secs(1));
    assert_eq!((network.stored(), network.text()), (Some(1), Some(&b"one"[..])));
}

/// Random changes, losses, cuts and restarts. The disk never goes back, holds only states that existed, and has the
/// newest one in the end.
#[test]
fn whatever_happens_the_newest_state_comes_to_the_standby() {
    for seed in 0..90 {
        let mut network = Network::new(seed);
        network.loss = [0, 10, 30][seed as usize % 3];
        network.delay = Duration::from_millis([5, 80, 600][seed as usize / 3 % 3]);
        let mut text = bytes(seed, 60_000);
        let mut states: Vec<Vec<u8>> = Vec::new();
        for made in 1..=12 {
            match network.rng.random_range(0..6) {
                0 => network.cut(ISSUER, STANDBY),
                1 => network.restart(STANDBY),
                2 => {
                    network.restart(ISSUER);
                    network.connect(ISSUER, STANDBY);
                }
                3 => network.connect(ISSUER, STANDBY),
                _ => {}
            }
            let at = network.rng.random_range(0..text.len());
            let more = network.rng.random_range(0..20_000);
            text.splice(at..(at + more / 2).min(text.len()), bytes(made, more));
            states.push(text.clone());
            network.tell(state(made, &text));
            let time = Duration::from_millis(network.rng.random_range(0..3_000));
            let before = network.disk.as_ref().map(ServerState::made);
            network.run(time);
            let after = network.disk.as_ref().map(ServerState::made);
            assert!(before <= after, "seed {seed}: the disk went back from {before:?} to {after:?}");
            if let Some(disk) = &network.disk {
                assert!(disk.text() == states[disk.made() as usize - 1], "seed {seed}: another state");
            }
            let said = network.stored();
            assert!(said <= after, "seed {seed}: {said:?} was said to be stored, and {after:?} is");
        }
        // Sessions are renewed.
        for _ in 0..3 {
            network.connect(ISSUER, STANDBY);
            network.run(Duration::from_secs(120));
        }
        assert!(network.text() == Some(&text) && network.stored() == Some(12), "seed {seed}: not the newest");
    }
}
