//! The exchange of rosters: three members, and a fourth that sends anything.
use crate::{
    roster_lab::{ISSUER, issued, key, network, secret},
    steps::Steps,
};
use rustguard_core::{
    control_message::{Header, Kind},
    time::Instant,
};
use rustguard_roster::{
    exchange::{Exchange, Output},
    pair::PairSecret,
    server_state::ServerState,
};
use std::{collections::VecDeque, time::Duration};
use zeroize::Zeroizing;

/// The members: a server that has the newest roster and the pair secret, one with an older roster, one without any.
const NODES: usize = 3;
/// The liar, which sends anything and is also a member.
const LIAR: u8 = 3;

/// Reads the input as steps: texts of the liar, messages of each kind with fields of the liar's choice, genuine
/// messages that are changed, lost, or delivered twice, sessions that begin and end, and the passing of time.
///
/// Nothing panics. Roster numbers only grow, no more is sent than was requested, only genuine rosters are accepted, and
/// nobody gets the key of a pair of others. The standby accepts only the server's state, and nobody else gets that
/// state. When the liar is finally silent, all get the newest roster, and the standby gets the state.
pub fn roster_message(input: &[u8]) {
    let mut lab = Lab::new();
    let mut steps = Steps(input);
    while let Some(step) = steps.byte() {
        let to = usize::from(step >> 4) % NODES;
        match step & 15 {
            0..=4 => {
                let text = message(&mut steps, step & 15);
                lab.hear(to, LIAR, &text);
            }
            14 => {
                let kind = 5 + steps.byte().unwrap_or(0) % 8;
                let text = message(&mut steps, kind);
                lab.hear(to, LIAR, &text);
            }
            5 => {
                let text = steps.bytes();
                lab.hear(to, LIAR, text);
            }
            6 => {
                let (at, change) = (steps.byte().unwrap_or(0), steps.byte().unwrap_or(0));
                lab.deliver(Some((usize::from(at), change)));
            }
            7 => drop(lab.flying.pop_front()),
            8 => {
                if let Some(first) = lab.flying.front().cloned() {
                    lab.flying.push_back(first);
                }
            }
            9 => lab.tell(to, |node, now| node.gone(&key(LIAR), now)),
            10 => lab.tell(to, |node, now| node.connected(&key(LIAR), now)),
            15 => lab.tell(to, |node, now| node.moved(&key(LIAR), now)),
            11 => {
                let wanted = steps.byte().unwrap_or(0) % 12;
                lab.tell(to, |node, now| node.want_keys([key(wanted)], now));
            }
            12 => lab.pass(Duration::from_millis(u64::from(steps.byte().unwrap_or(0)) * 50)),
            _ => lab.deliver(None),
        }
    }
    lab.nodes.iter().for_each(|node| assert!(node.roster().is_none_or(|roster| roster.version().number <= ISSUER)));
    lab.settle();
}

/// A message of one of the thirteen kinds, about a genuine version or one that nobody has.
fn message(steps: &mut Steps<'_>, kind: u8) -> Vec<u8> {
    let about = steps.byte().unwrap_or(0);
    let mut text = [&Header::new(Kind::Roster).to_bytes()[..], &[kind + 1, 0, 0, 0]].concat();
    match issued(u64::from(about) % (ISSUER + 1)).version() {
        version if about < 128 => {
            text.extend_from_slice(&version.number.to_le_bytes());
            text.extend_from_slice(&version.digest);
        }
        _ => text.extend_from_slice(&[about; 16]),
    }
    text.extend_from_slice(steps.bytes());
    text
}

struct Lab {
    now: Instant,
    nodes: Vec<Exchange>,
    /// The sender, the receiver, and the text.
    flying: VecDeque<(u8, u8, Vec<u8>)>,
    numbers: [u64; NODES],
    /// Whether the standby has the state.
    has_state: bool,
}

/// The member that is a standby.
const STANDBY: u8 = 1;

/// The state of the server.
fn state() -> Vec<u8> {
    (0..30_000_u32).flat_map(|n| n.wrapping_mul(2_654_435_761).to_le_bytes()).collect()
}

impl Lab {
    fn new() -> Self {
        let server = Exchange::new(network(), Some(issued(ISSUER))).with_pair_secret(PairSecret::from_bytes(&[5; 32]));
        let mut server = server.taking_statements();
        let now = Instant::from_nanos(1 << 40);
        server.tell_state(ServerState::new(&secret(), ISSUER, 7, Zeroizing::new(state())), [key(STANDBY)], now);
        // Both would accept the state.
        let others = [Exchange::new(network(), Some(issued(5))), Exchange::new(network(), None)];
        let others = others.map(|other| other.keeping_state(None));
        let nodes = [server].into_iter().chain(others).collect();
        let mut lab = Self { now, nodes, flying: VecDeque::new(), numbers: [ISSUER, 5, 0], has_state: false };
        for node in 0..NODES {
            for other in (0..=LIAR).filter(|other| usize::from(*other) != node) {
                lab.tell(node, |node, now| node.connected(&key(other), now));
            }
        }
        lab
    }

    fn tell(&mut self, node: usize, tell: impl FnOnce(&mut Exchange, Instant)) {
        tell(&mut self.nodes[node], self.now);
        let mut sent = 0;
        while let Some(output) = self.nodes[node].next_output() {
            match output {
                Output::Send { to, text } => {
                    let to = (0..=LIAR).find(|other| key(*other) == to).expect("a member with a session");
                    assert_ne!(usize::from(to), node, "to itself");
                    (sent, _) = (sent + 1, assert!(text.len() <= 1_136, "{} bytes", text.len()));
                    if to != LIAR {
                        self.flying.push_back((node as u8, to, text.to_vec()));
                    }
                }
                Output::Newer => {
                    let number = self.nodes[node].roster().map_or(0, |roster| roster.version().number);
                    assert!(number > self.numbers[node], "{number} after {}", self.numbers[node]);
                    assert_eq!(
                        self.nodes[node].roster().map(|roster| roster.to_bytes()),
                        Some(issued(number).to_bytes())
                    );
                    self.numbers[node] = number;
                }
                Output::PresharedKey { member, key: told, .. } => {
                    let own = PairSecret::from_bytes(&[5; 32]).preshared_key(&key(node as u8), &member);
                    assert_eq!(told, own, "another pair's key");
                }
                Output::State(kept) => {
                    assert_eq!(
                        (node, kept.text() == state()),
                        (usize::from(STANDBY), true),
                        "another state, or another's"
                    );
                    self.has_state = true;
                    self.nodes[node].state_stored();
                }
                _ => {}
            }
        }
        // The windows of requests, one announcement for each member, and one request for keys.
        assert!(sent <= 3 * 32 + 3 * usize::from(LIAR), "{sent} texts at once");
    }

    fn hear(&mut self, to: usize, from: u8, text: &[u8]) {
        self.tell(to, |node, now| node.hear(&key(from), text, now));
    }

    /// Delivers the first message. With `change`, the liar first sends a changed copy of it.
    fn deliver(&mut self, change: Option<(usize, u8)>) {
        let Some((from, to, text)) = self.flying.pop_front() else { return };
        if let Some((at, change)) = change {
            let mut changed = text.clone();
            let at = at % changed.len();
            changed[at] ^= change;
            self.hear(to.into(), LIAR, &changed);
        }
        self.hear(to.into(), from, &text);
    }

    fn pass(&mut self, time: Duration) {
        self.now = self.now + time;
        for node in 0..NODES {
            if self.nodes[node].deadline().is_some_and(|deadline| deadline <= self.now) {
                self.tell(node, |node, now| node.tick(now));
            }
        }
    }

    /// From now on, the liar is silent.
    fn settle(&mut self) {
        for node in 0..NODES {
            self.tell(node, |node, now| node.gone(&key(LIAR), now));
            for other in (0..LIAR).filter(|other| usize::from(*other) != node) {
                self.tell(node, |node, now| node.connected(&key(other), now));
            }
        }
        for _ in 0..2_000 {
            while !self.flying.is_empty() {
                self.deliver(None);
            }
            if self.numbers == [ISSUER; NODES] && self.has_state {
                return;
            }
            self.pass(Duration::from_millis(100));
        }
        panic!("{:?}, and has state: {}", self.numbers, self.has_state);
    }
}
