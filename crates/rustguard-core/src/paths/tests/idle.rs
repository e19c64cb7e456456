//! Two ends with real sessions: which datagrams they exchange while there is nothing to send, and what happens to the
//! next packet.
extern crate std;
use crate::{
    activity::Activity,
    node::{Action, Event, Node, PeerConfig, PeerId},
    paths::{
        Candidate, CandidateKind, Candidates, Choice, Locator, Observation, Order, PathPolicy, Paths, Probe, Search,
        discovery::LET_GO, locator::Address,
    },
    session::{HEADER_LEN, OVERHEAD, Opener, Sealer},
    sync::Arc,
    time::{Instant, Now},
    wire::Kind,
};
use alloc::{collections::BTreeMap, vec, vec::Vec};
use core::{net::SocketAddr, time::Duration};
use rand::{RngExt, SeedableRng, rngs::StdRng};
use rustguard_crypto::{
    aead::{Frame, TAG_LEN},
    x25519::StaticSecret,
};
use std::println;

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
const START: Instant = Instant::from_nanos(5_000_000_000);
const RELAY: Locator = Locator::Peer(PeerId(9));
/// One-way delays, directly and through the relay.
const DELAYS: [Duration; 2] = [Duration::from_millis(20), Duration::from_millis(40)];
/// The text of a packet, padded.
const PACKET: [u8; 96] = [0x45; 96];

struct End {
    node: Node,
    peer: PeerId,
    rng: StdRng,
    paths: Paths,
    search: Search,
    address: SocketAddr,
    activity: Arc<Activity>,
    /// Bytes that do not count as traffic.
    overhead: u64,
    sealer: Option<Arc<Sealer>>,
    openers: BTreeMap<u32, Arc<Opener>>,
    staged: usize,
    choice: Choice,
    heard: Locator,
    /// When packets arrived, and by which way.
    got: Vec<(Instant, Locator)>,
    direct_since: Option<Instant>,
    expired: Option<Instant>,
}

struct Pair {
    now: Instant,
    ends: [End; 2],
    flying: BTreeMap<(Instant, u64), (usize, Locator, Vec<u8>)>,
    /// All datagrams so far.
    sent: u64,
    handshakes: u64,
    /// The bytes of handshakes count as traffic.
    counts_handshakes: bool,
}

fn clocks(now: Instant) -> Now {
    Now { instant: now, unix: Duration::from_nanos(now.as_nanos()) }
}

impl Pair {
    fn new(seed: u64, counts_handshakes: bool) -> Self {
        let mut rng = StdRng::seed_from_u64(seed);
        let secrets = [0, 1].map(|_| StaticSecret::from_bytes(rng.random()));
        let keys = [1, 0].map(|other: usize| secrets[other].public_key());
        let mut ends = secrets.into_iter().zip(keys).enumerate().map(|(n, (secret, peer_key))| {
            let mut node = Node::new(START, &mut rng);
            node.set_private_key(Some(secret), &mut vec![]);
            let peer = node.add_peer(PeerConfig::new(peer_key)).expect("a new peer");
            let address = SocketAddr::from(([203, 0, 113, 10 + n as u8], 51_820));
            let mut search = Search::new(rng.random());
            search.set_candidates(vec![Candidate { address, kind: CandidateKind::Interface }], START);
            let mut paths = Paths::look_for_direct_ways(&[PathPolicy::Best], START);
            paths.put(0, RELAY, START);
            let activity = node.activity_of(peer).expect("it was added");
            End {
                node,
                peer,
                rng: StdRng::seed_from_u64(seed + n as u64),
                paths,
                search,
                address,
                activity,
                overhead: 0,
                sealer: None,
                openers: BTreeMap::new(),
                staged: 0,
                choice: Choice::default(),
                heard: RELAY,
                got: vec![],
                direct_since: None,
                expired: None,
            }
        });
        let ends = [ends.next(), ends.next()].map(|end| end.expect("two ends"));
        let flying = BTreeMap::new();
        Self { now: START, ends, flying, sent: 0, handshakes: 0, counts_handshakes }
    }

    fn transmit(&mut self, end: usize, to: Locator, datagram: Vec<u8>) {
        let (delay, from) = match to {
            Locator::Peer(_) => (DELAYS[1], RELAY),
            Locator::Address(at) if at.remote != self.ends[1 - end].address => return,
            Locator::Address(_) => (DELAYS[0], Address::new(self.ends[end].address).into()),
        };
        self.sent += 1;
        self.flying.insert((self.now + delay, self.sent), (1 - end, from, datagram));
    }

    fn way(&self, end: usize) -> Locator {
        self.ends[end].choice.active.unwrap_or(self.ends[end].heard)
    }

    /// Seals and sends a text, if there is a session.
    fn seal(&mut self, end: usize, to: Locator, text: &[u8], data: bool) -> bool {
        let (me, now) = (&mut self.ends[end], clocks(self.now));
        let reserved = me.sealer.clone().and_then(|sealer| Some((sealer.reserve(now.instant, 1)?, sealer)));
        let mut actions = vec![];
        if reserved.as_ref().is_none_or(|(reserved, _)| reserved.rekey) {
            me.node.handshake_wanted(me.peer, now, &mut me.rng, &mut actions);
        }
        let sealed = reserved.is_some();
        if let Some((reserved, sealer)) = reserved {
            let mut datagram = vec![0; HEADER_LEN];
            datagram.extend_from_slice(text);
            datagram.resize(datagram.len() + TAG_LEN, 0);
            sealer.seal(&mut datagram, &[Frame { offset: HEADER_LEN, len: text.len(), counter: reserved.first }]);
            let bytes = datagram.len() as u64;
            if !data {
                me.overhead += if text.is_empty() { 0 } else { bytes };
                me.activity.keepalive_sent(now.instant, bytes);
            } else if me.activity.data_sent(now.instant, bytes) {
                me.node.activity(me.peer, now.instant);
                me.paths.wake(now.instant);
            }
            self.transmit(end, to, datagram);
        }
        self.actions(end, actions, None);
        sealed
    }

    /// Sends a packet of the host.
    fn send(&mut self, end: usize) {
        let to = self.way(end);
        if !self.seal(end, to, &PACKET, true) {
            self.ends[end].staged += 1;
        }
    }

    fn actions(&mut self, end: usize, actions: Vec<Action>, from: Option<Locator>) {
        for action in actions {
            match action {
                Action::Send { datagram, .. } => {
                    let locators = match from {
                        Some(from) => vec![from],
                        None if self.ends[end].paths.certain() => vec![self.way(end)],
                        None => self.ends[end].paths.locators(),
                    };
                    for to in locators {
                        self.handshake_bytes(end, &datagram);
                        self.transmit(end, to, datagram.clone());
                    }
                }
                Action::Endpoint { .. } => {
                    let from = from.expect("a message was handled");
                    self.ends[end].heard = from;
                    self.ends[end].paths.heard(from, self.now);
                }
                Action::AddOpener { opener, .. } => drop(self.ends[end].openers.insert(opener.index(), opener)),
                Action::RemoveOpener { index } => drop(self.ends[end].openers.remove(&index)),
                Action::SetSealer { sealer, .. } => self.ends[end].sealer = sealer,
                Action::Flush { or_keepalive, .. } => {
                    let staged = core::mem::take(&mut self.ends[end].staged);
                    (0..staged).for_each(|_| self.send(end));
                    if staged == 0 && or_keepalive {
                        self.seal(end, self.way(end), &[], false);
                    }
                }
                Action::Keepalive { .. } => drop(self.seal(end, self.way(end), &[], false)),
                Action::Event(Event::HandshakeComplete { .. }) => {
                    self.handshakes += 1;
                    self.ends[end].paths.established(self.now);
                }
                Action::Event(Event::SessionExpired { .. }) => self.ends[end].expired = Some(self.now),
                _ => {}
            }
        }
        self.chosen(end);
    }

    fn handshake_bytes(&mut self, end: usize, datagram: &[u8]) {
        let bytes = datagram.len() as u64;
        self.ends[end].activity.count_sent(bytes);
        self.ends[end].overhead += if self.counts_handshakes { 0 } else { bytes };
    }

    fn orders(&mut self, end: usize, orders: Vec<Order>) {
        for order in orders {
            match order {
                Order::Probe { to, probe } => drop(self.seal(end, to, &probe.to_bytes(), false)),
                Order::Tell { to, message } => drop(self.seal(end, to, &message.to_bytes(), false)),
                Order::Handshake => {
                    let me = &mut self.ends[end];
                    let mut actions = vec![];
                    me.node.handshake_now(me.peer, clocks(self.now), &mut me.rng, &mut actions);
                    self.actions(end, actions, None);
                }
                Order::Open { .. } | Order::Observe | Order::State { .. } | Order::Elsewhere { .. } => {}
            }
        }
        self.chosen(end);
    }

    fn chosen(&mut self, end: usize) {
        let now = self.now;
        let me = &mut self.ends[end];
        if let Some(choice) = me.paths.changes(now) {
            me.choice = choice;
            let direct = me.choice.active.is_some_and(|active| active.relay().is_none());
            me.direct_since = if direct { me.direct_since.or(Some(now)) } else { None };
        }
    }

    fn arrive(&mut self, end: usize, from: Locator, mut datagram: Vec<u8>) {
        let (me, now) = (&mut self.ends[end], clocks(self.now));
        let (mut actions, mut orders) = (vec![], vec![]);
        let Some(Kind::Data { receiver, counter }) = Kind::of(&datagram) else {
            let bytes = datagram.len() as u64;
            me.activity.count_received(bytes);
            me.overhead += if self.counts_handshakes { 0 } else { bytes };
            let origin = SocketAddr::from(([192, 0, 2, 1], 1));
            me.node.handle(origin, &datagram, now, &mut me.rng, &mut actions).expect("nothing is lost or twice");
            return self.actions(end, actions, Some(from));
        };
        let Some(opener) = me.openers.get(&receiver).cloned().filter(|opener| opener.usable(now.instant)) else {
            return;
        };
        let (len, mut opened) = (datagram.len() - OVERHEAD, [false]);
        opener.open(&mut datagram, &[Frame { offset: HEADER_LEN, len, counter }], &mut opened);
        assert_eq!(opened, [true]);
        if opener.first_use() {
            me.node.confirmed(receiver, now, &mut actions);
        }
        if opener.rekey_on_receive(now.instant) {
            me.node.handshake_wanted(me.peer, now, &mut me.rng, &mut actions);
        }
        let (text, bytes) = (&datagram[HEADER_LEN..HEADER_LEN + len], datagram.len() as u64);
        if text == PACKET {
            if me.activity.data_received(now.instant, bytes) {
                me.node.activity(me.peer, now.instant);
                me.paths.wake(now.instant);
            }
            me.got.push((now.instant, from));
        } else {
            me.activity.keepalive_received(now.instant, bytes);
            me.overhead += if text.is_empty() { 0 } else { bytes };
            match (Probe::parse(text), Candidates::parse(text)) {
                (Some(Probe::Request(request)), _) => {
                    me.paths.request(from, &request, me.rng.random(), now.instant, &mut orders);
                }
                (Some(Probe::Reply(reply)), _) => me.paths.reply(&reply, &me.search, now.instant, &mut orders),
                (None, Some(message)) => me.paths.candidates(&message, &mut me.search, now.instant, &mut orders),
                (None, None) => {}
            }
        }
        self.actions(end, actions, Some(from));
        self.orders(end, orders);
    }

    fn run(&mut self, time: Duration) {
        let until = self.now + time;
        loop {
            let arrival = self.flying.keys().next().map(|&(at, _)| at);
            let deadlines = self.ends.iter().flat_map(|end| [end.paths.deadline(), end.node.deadline()]);
            let next = deadlines.chain([arrival]).flatten().min();
            let Some(next) = next.filter(|&at| at <= until) else { break };
            self.now = next.max(self.now);
            if arrival.is_some_and(|at| at <= self.now) {
                let (_, (end, from, datagram)) = self.flying.pop_first().expect("it was looked at");
                self.arrive(end, from, datagram);
            }
            for end in 0..2 {
                let (me, now) = (&mut self.ends[end], clocks(self.now));
                let (mut actions, mut orders) = (vec![], vec![]);
                if me.node.deadline().is_some_and(|at| at <= now.instant) {
                    me.node.tick(now, &mut me.rng, &mut actions);
                }
                if me.paths.deadline().is_some_and(|at| at <= now.instant) {
                    let data = (me.activity.rx_bytes() + me.activity.tx_bytes()).saturating_sub(me.overhead);
                    let seen =
                        Observation { session: me.sealer.is_some(), data, unanswered: me.activity.unanswered_since() };
                    me.paths.tick(seen, &mut me.search, now.instant, &mut orders);
                }
                self.actions(end, actions, None);
                self.orders(end, orders);
            }
        }
        self.now = until;
    }

    /// Both ends send a packet every 20 ms.
    fn talk(&mut self, time: Duration) {
        let until = self.now + time;
        while self.now < until {
            (0..2).for_each(|end| self.send(end));
            self.run(20 * MS);
        }
    }

    fn directs(&self) -> [bool; 2] {
        [0, 1].map(|end| self.ends[end].direct_since.is_some())
    }
}

/// How long an end continues to send after the last packet, and how many handshakes this causes.
fn until_silent(pair: &mut Pair) -> (Duration, u64) {
    let (stopped, handshakes) = (pair.now, pair.handshakes);
    let mut last = pair.now;
    while pair.now.since(stopped) < 1_200 * SECOND {
        let before = pair.sent;
        pair.run(SECOND);
        if pair.sent != before {
            last = pair.now;
        }
    }
    (last.since(stopped), pair.handshakes - handshakes)
}

#[test]
fn an_idle_pair_falls_silent_and_its_session_ends_as_wireguards_do() {
    // The age of the session when the traffic ends: new, and just before it is renewed.
    for age in [5, 60, 95, 100, 110, 115, 119] {
        let mut pair = Pair::new(age, false);
        pair.talk(age as u32 * SECOND);
        assert_eq!(pair.directs(), [true; 2], "{age} s");
        let (silent, handshakes) = until_silent(&mut pair);
        println!("after {age} s of traffic: the last datagram after {silent:?}, {handshakes} ends of a handshake");
        // An end begins to sleep at the first look after this time; the peer's last request is answered.
        assert!(silent <= LET_GO + 2 * SECOND, "{age} s: {silent:?}");
        assert_eq!(pair.directs(), [false; 2]);
        for end in &pair.ends {
            assert!(end.sealer.is_none() && end.expired.is_some(), "the session is erased");
            assert_eq!((end.node.deadline(), end.paths.deadline()), (None, None), "nothing will happen");
        }
        let sent = pair.sent;
        pair.run(24 * 3_600 * SECOND);
        assert_eq!(pair.sent, sent, "not one datagram in a day");
        let before = pair.ends[1].got.len();
        let at = pair.now;
        pair.send(0);
        pair.run(200 * MS);
        let (came, by) = pair.ends[1].got[before];
        println!("the next packet came after {:?} through {by:?}", came.since(at));
        // A handshake through the relay, and then the packet.
        assert_eq!((came.since(at), by), (3 * DELAYS[1], RELAY));
        pair.talk(2 * SECOND);
        let after = pair.ends.iter().map(|end| end.direct_since.expect("direct again").since(at)).max();
        println!("both ends were direct again after {after:?}");
        assert!(after < Some(SECOND), "{after:?}");
    }
}

#[test]
fn a_handshake_is_no_traffic() {
    let silent = |counts| {
        [95, 100, 110, 115].map(|age| {
            let mut pair = Pair::new(age, counts);
            pair.talk(age as u32 * SECOND);
            until_silent(&mut pair).0
        })
    };
    let [as_traffic, as_overhead] = [silent(true), silent(false)];
    println!("the last datagram, if handshakes were traffic: {as_traffic:?}; as they are none: {as_overhead:?}");
    assert!(as_traffic.iter().max() > as_overhead.iter().max(), "the simulation has such handshakes");
}

#[test]
fn persistent_keepalives_keep_no_direct_way() {
    for interval in [25, 50] {
        let mut pair = Pair::new(1, false);
        pair.talk(5 * SECOND);
        for end in 0..2 {
            let (me, now) = (&mut pair.ends[end], clocks(pair.now));
            let mut actions = vec![];
            me.node.set_persistent_keepalive(me.peer, Some(interval * SECOND), now, &mut me.rng, &mut actions);
            me.node.start(me.peer, now, &mut me.rng, &mut actions);
            pair.actions(end, actions, None);
        }
        pair.run(300 * SECOND);
        let (sent, handshakes) = (pair.sent, pair.handshakes);
        pair.run(3_600 * SECOND);
        assert_eq!(pair.directs(), [false; 2]);
        // For each handshake, both ends may send an initiation, a response and a confirmation.
        let (sent, handshakes) = (pair.sent - sent, pair.handshakes - handshakes);
        println!("an hour of keepalives every {interval} s: {sent} datagrams, {handshakes} ends of a handshake");
        assert!(handshakes >= 2 * 20, "sessions are renewed");
        assert!(sent <= 2 * 3_600 / u64::from(interval) + 3 * handshakes, "{sent} datagrams");
    }
}
