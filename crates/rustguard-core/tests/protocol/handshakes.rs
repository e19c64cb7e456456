//! Handshakes: cookies and load, keys, timestamps, indices, removal.
use crate::sim::{A, B, Sim, at, ms, peer_config, secret, secs, seed_or};
use rand::{RngExt, SeedableRng, rngs::StdRng};
use rustguard_core::{
    cookie::Maker,
    node::{Action, AddPeerError, Dropped, Event, Node, PeerId},
    noise::WIREGUARD,
    tunnel::{Ignored, Tunnel},
    wire::{Initiation, Kind, Message, Response},
};
use rustguard_crypto::x25519::{PublicKey, StaticSecret};
use std::{collections::BTreeSet, net::SocketAddr, time::Duration};

pub(crate) fn initiations(actions: &[Action]) -> Vec<&[u8]> {
    actions
        .iter()
        .filter_map(|action| match action {
            Action::Send { datagram, .. } if Kind::of(datagram) == Some(Kind::Initiation) => Some(&datagram[..]),
            _ => None,
        })
        .collect()
}

/// A node with its own key and one peer.
pub(crate) fn node(secret: &StaticSecret, peer: PublicKey, rng: &mut StdRng) -> (Node, PeerId) {
    let mut node = Node::new(at(Duration::ZERO).instant, rng);
    node.set_private_key(Some(secret.clone()), &mut Vec::new());
    let peer = node.add_peer(peer_config(peer)).expect("a new peer");
    (node, peer)
}

/// An initiation that `node` would send now.
pub(crate) fn initiation(node: &mut Node, peer: PeerId, clock: Duration, rng: &mut StdRng) -> Vec<u8> {
    let mut actions = Vec::new();
    node.handshake_now(peer, at(clock), rng, &mut actions);
    initiations(&actions).first().expect("an initiation").to_vec()
}

/// A device that carries out the actions one by one is consistent after each action: it can receive before it answers,
/// and seal before it flushes.
#[test]
fn actions_come_in_an_order_that_can_be_carried_out() {
    let mut rng = StdRng::seed_from_u64(seed_or(1));
    let (ours, theirs) = (secret(&mut rng), secret(&mut rng));
    let (mut server, client_peer) = node(&ours, theirs.public_key(), &mut rng);
    let (mut client, server_peer) = node(&theirs, ours.public_key(), &mut rng);
    let (from, now) = (SocketAddr::from(([203, 0, 113, 1], 1000)), at(secs(1)));

    let message = initiation(&mut client, server_peer, secs(1), &mut rng);
    let mut out = Vec::new();
    assert_eq!(server.handle(from, &message, now, &mut rng, &mut out), Ok(()));
    let [Action::Endpoint { .. }, Action::AddOpener { opener, next: Some(_), .. }, Action::Send { datagram, .. }] =
        &out[..]
    else {
        panic!("{out:?}")
    };

    let mut answered = Vec::new();
    assert_eq!(client.handle(from, datagram, now, &mut rng, &mut answered), Ok(()));
    let [
        Action::Endpoint { .. },
        Action::AddOpener { next: None, .. },
        Action::SetSealer { sealer: Some(_), .. },
        Action::Flush { or_keepalive: true, .. },
        Action::Event(Event::HandshakeComplete { took: Some(_), .. }),
    ] = answered[..]
    else {
        panic!("{answered:?}")
    };
    // A handshake is still wanted, but has just been completed: the staged packets are flushed instead.
    let mut late = Vec::new();
    client.handshake_wanted(server_peer, now, &mut rng, &mut late);
    assert!(matches!(late[..], [Action::Flush { or_keepalive: false, .. }]), "{late:?}");

    let mut confirmed = Vec::new();
    server.confirmed(opener.index(), now, &mut confirmed);
    server.confirmed(opener.index(), now, &mut confirmed);
    let [
        Action::SetSealer { sealer: Some(_), .. },
        Action::Flush { or_keepalive: false, .. },
        Action::Event(Event::HandshakeComplete { took: None, .. }),
    ] = confirmed[..]
    else {
        panic!("{confirmed:?}")
    };
    assert_eq!(server.last_handshake(client_peer), Some(now.unix));

    let mut removed = Vec::new();
    assert!(server.remove_peer(client_peer, &mut removed));
    let [Action::SetSealer { sealer: None, .. }, Action::RemoveOpener { .. }, Action::DropStaged { .. }] = removed[..]
    else {
        panic!("{removed:?}")
    };
}

#[test]
fn under_load_a_cookie_lets_one_in_from_the_address_and_port_it_was_made_for() {
    let mut rng = StdRng::seed_from_u64(seed_or(6));
    let (ours, theirs) = (secret(&mut rng), secret(&mut rng));
    let (mut server, _) = node(&ours, theirs.public_key(), &mut rng);
    let (mut client, peer) = node(&theirs, ours.public_key(), &mut rng);
    let from = SocketAddr::from(([203, 0, 113, 1], 1000));
    let other_port = SocketAddr::from(([203, 0, 113, 1], 1001));
    let handle = |server: &mut Node, from, message: &[u8], clock, rng: &mut StdRng| {
        let mut out = Vec::new();
        (server.handle(from, message, at(clock), rng, &mut out), out)
    };

    // A source may send fifty at once, and one more becomes available in this time; the others get cookies.
    let mut cookies = Vec::new();
    for i in 0..60 {
        let message = initiation(&mut client, peer, ms(i), &mut rng);
        let (result, out) = handle(&mut server, from, &message, ms(i), &mut rng);
        if result == Err(Dropped::CookieSent) {
            cookies.extend(out);
        }
    }
    let [.., Action::Reply { datagram: reply }] = &cookies[..] else { panic!("cookie replies") };
    assert_eq!(cookies.len(), 9);
    assert_eq!(client.handle(from, reply, at(ms(60)), &mut rng, &mut Vec::new()), Ok(()));

    let message = initiation(&mut client, peer, ms(100), &mut rng);
    assert_eq!(handle(&mut server, other_port, &message, ms(100), &mut rng).0, Err(Dropped::CookieSent));
    assert_eq!(handle(&mut server, from, &message, ms(100), &mut rng).0, Ok(()));

    // Even with a cookie only twenty a second are allowed.
    let mut limited = 0;
    for i in 101..140 {
        let message = initiation(&mut client, peer, ms(i), &mut rng);
        limited += usize::from(handle(&mut server, from, &message, ms(i), &mut rng).0 == Err(Dropped::RateLimited));
    }
    assert!(limited >= 30, "{limited}");
}

#[test]
fn the_cookie_is_used_in_the_next_retry_not_at_once() {
    let mut sim = Sim::new(seed_or(7));
    let from = sim.hosts[A].address;
    flood(&mut sim, from);
    sim.sent.clear();
    let start = sim.clock;
    sim.send(A, 1);
    // Other messages from the same address keep B under load while A waits for its retry.
    while sim.clock < start + secs(6) {
        flood(&mut sim, from);
        sim.run(ms(500));
    }
    assert_eq!(sim.hosts[B].delivered, [1]);
    let ours: Vec<_> = sim.sent.iter().filter(|sent| sent.by == A && sent.kind == Kind::Initiation).collect();
    assert_eq!(ours.len(), 2, "the first attempt and the retry");
    assert_eq!(ours[0].datagram[132..], [0; 16]);
    assert_ne!(ours[1].datagram[132..], [0; 16], "the retry carries MAC2");
    assert!(ours[1].at - ours[0].at >= secs(5));
}

/// Puts B under load for messages from `from`: sends messages with a valid MAC1 that cannot be authenticated.
fn flood(sim: &mut Sim, from: SocketAddr) {
    let key = sim.hosts[B].tunnel.node().public_key().expect("B has a key");
    let mut maker = Maker::new(&WIREGUARD, &key);
    let now = sim.now();
    for i in 0..60 {
        let mut message = Initiation::build(i, &[9; 32], &[0; 48], &[0; 12], &[0; 16]);
        maker.sign(&mut message, now.instant);
        // Given without the network: replies do not matter.
        let host = &mut sim.hosts[B];
        let result = host.tunnel.receive(from, &mut message, now, &mut host.rng);
        assert!(matches!(result, Err(Ignored::Handshake(Dropped::Forged | Dropped::CookieSent))));
        while host.tunnel.poll().is_some() {}
    }
}

#[test]
fn a_flood_from_one_source_leaves_the_others_alone() {
    let mut sim = Sim::new(seed_or(71));
    flood(&mut sim, SocketAddr::from(([203, 0, 113, 5], 5)));
    sim.send(A, 1);
    sim.run(secs(1));
    assert_eq!(sim.hosts[B].delivered, [1]);
    assert_eq!(sim.count(B, |sent| sent.kind == Kind::CookieReply), 0);
}

#[test]
fn a_flood_from_spoofed_sources_asks_everybody_for_cookies() {
    let mut sim = Sim::new(seed_or(72));
    for host in 0..40 {
        flood(&mut sim, SocketAddr::from(([203, 0, 113, host], 5)));
    }
    sim.send(A, 1);
    sim.run(secs(1));
    assert_eq!(sim.count(B, |sent| sent.kind == Kind::CookieReply), 1);
    sim.run(secs(5));
    assert_eq!(sim.hosts[B].delivered, [1]);
}

/// Initiations with a valid MAC1 from spoofed sources, each from another address, at a steady rate in simulated time.
/// They fill every table that strangers can fill.
struct Spoofed {
    message: Vec<u8>,
    rate: u32,
    sent: u32,
}

impl Spoofed {
    fn new(key: &PublicKey, rate: u32) -> Self {
        let mut message = Initiation::build(1, &[9; 32], &[0; 48], &[0; 12], &[0; 16]);
        Maker::new(&WIREGUARD, key).sign(&mut message, at(Duration::ZERO).instant);
        Self { message: message.to_vec(), rate, sent: 0 }
    }

    /// Gives the node all messages that have arrived by `clock`. Returns for how many the node did computations.
    fn until(&mut self, clock: Duration, node: &mut Node, rng: &mut StdRng, out: &mut Vec<Action>) -> usize {
        let due = (clock.as_nanos() * u128::from(self.rate) / 1_000_000_000) as u32;
        let mut computed = 0;
        while self.sent < due {
            let from = SocketAddr::from(((0x0b00_0000 + self.sent).to_be_bytes(), 7));
            let then = secs(1) / self.rate * self.sent;
            out.clear();
            computed += usize::from(node.handle(from, &self.message, at(then), rng, out) == Err(Dropped::Forged));
            self.sent += 1;
        }
        computed
    }
}

#[test]
fn honest_sources_with_cookies_get_their_handshakes_under_any_number_of_spoofed_ones() {
    const HONEST: u8 = 20;
    for rate in [5_000, 20_000, 100_000] {
        let mut rng = StdRng::seed_from_u64(seed_or(73));
        let ours = secret(&mut rng);
        let mut server = Node::new(at(Duration::ZERO).instant, &mut rng);
        server.set_private_key(Some(ours.clone()), &mut Vec::new());
        let mut spoofed = Spoofed::new(&ours.public_key(), rate);
        let mut out = Vec::new();
        let mut honest: Vec<_> = (0..HONEST)
            .map(|n| {
                let theirs = secret(&mut rng);
                server.add_peer(peer_config(theirs.public_key())).expect("a new peer");
                let (client, peer) = node(&theirs, ours.public_key(), &mut rng);
                (client, peer, SocketAddr::from(([203, 0, 113, n], 1000)))
            })
            .collect();

        // The tables are full before any honest message arrives.
        let mut clock = ms(1_000);
        let mut computed = spoofed.until(clock, &mut server, &mut rng, &mut out);
        let begin = clock;
        for round in 0..2 {
            for (client, peer, from) in &mut honest {
                clock += ms(10);
                computed += spoofed.until(clock, &mut server, &mut rng, &mut out);
                let message = initiation(client, *peer, clock, &mut rng);
                out.clear();
                let result = server.handle(*from, &message, at(clock), &mut rng, &mut out);
                if round == 0 {
                    assert_eq!(result, Err(Dropped::CookieSent), "{from} at {rate} a second");
                    let [Action::Reply { datagram: reply }] = &out[..] else { panic!("{out:?}") };
                    assert_eq!(client.handle(*from, reply, at(clock), &mut rng, &mut Vec::new()), Ok(()));
                } else {
                    assert_eq!(result, Ok(()), "{from} at {rate} a second");
                }
            }
        }
        // Strangers can cause no more computations than without a flood: a burst, then 1,000 a second.
        assert!(computed <= 1_000 + clock.as_millis() as usize, "{computed} at {rate} a second");

        // A source with a cookie that floods is limited alone: the others continue as before.
        let (client, peer, from) = &mut honest[0];
        let mut limited = 0;
        for _ in 0..100 {
            clock += ms(1);
            let message = initiation(client, *peer, clock, &mut rng);
            limited +=
                usize::from(server.handle(*from, &message, at(clock), &mut rng, &mut out) == Err(Dropped::RateLimited));
        }
        assert!(limited >= 90, "{limited}");
        for (client, peer, from) in &mut honest[1..] {
            clock += ms(5);
            spoofed.until(clock, &mut server, &mut rng, &mut out);
            let message = initiation(client, *peer, clock, &mut rng);
            assert_eq!(server.handle(*from, &message, at(clock), &mut rng, &mut out), Ok(()), "{from}");
        }
        assert!(clock - begin < secs(2), "within the life of the cookies");
    }
}

#[test]
fn the_hundredth_handshake_is_treated_like_the_first() {
    let mut sim = Sim::new(seed_or(8));
    let from = sim.hosts[A].address;
    flood(&mut sim, from);
    sim.run(ms(1_001));
    for number in 0..100 {
        sim.with(A, |host, now| host.tunnel.handshake_now(host.peer, now, &mut host.rng));
        sim.send(A, number);
        sim.run(ms(100));
    }
    assert_eq!(sim.count(B, |sent| sent.kind == Kind::CookieReply), 0);
    assert_eq!(sim.count(B, |sent| sent.kind == Kind::Response), 100);
    assert_eq!(sim.hosts[B].delivered, (0..100).collect::<Vec<_>>());
}

#[test]
fn a_cookie_reply_never_moves_an_endpoint() {
    let mut sim = Sim::new(seed_or(51));
    let home = sim.hosts[A].address;
    flood(&mut sim, home);
    sim.send(A, 1);
    let initiation = sim.intercept().remove(0);
    assert_eq!(sim.give(B, home, &initiation), Err(Ignored::Handshake(Dropped::CookieSent)));
    let reply = sim.intercept().remove(0);
    let (peer, before) = (sim.hosts[A].peer, sim.hosts[B].address);
    assert_eq!(sim.give(A, SocketAddr::from(([198, 51, 100, 9], 9)), &reply), Ok(()));
    assert_eq!(sim.hosts[A].tunnel.endpoint(peer), Some(before));
    assert_eq!(sim.give(A, before, &reply), Err(Ignored::Handshake(Dropped::Forged)), "a replayed cookie reply");
}

#[test]
fn a_new_preshared_key_waits_for_the_next_handshake() {
    let mut sim = Sim::connected(seed_or(11));
    let (a, b) = (sim.hosts[A].peer, sim.hosts[B].peer);
    sim.hosts[A].tunnel.set_preshared_key(a, [5; 32]);
    sim.send(A, 1);
    sim.send(B, 2);
    sim.run(secs(1));
    assert_eq!((&sim.hosts[B].delivered[..], &sim.hosts[A].delivered[..]), (&[1][..], &[2][..]), "the session lives");

    sim.with(A, |host, now| host.tunnel.handshake_now(host.peer, now, &mut host.rng));
    sim.run(secs(1));
    assert_eq!(sim.hosts[A].ignored, [Ignored::Handshake(Dropped::Forged)], "B has the old key");
    sim.hosts[B].tunnel.set_preshared_key(b, [5; 32]);
    sim.hosts[A].events.clear();
    sim.run(secs(6));
    assert!(matches!(sim.hosts[A].events[..], [(_, Event::HandshakeComplete { .. })]), "the retry succeeds");
}

#[test]
fn a_new_private_key_keeps_the_session_and_own_keys_are_refused() {
    let mut sim = Sim::connected(seed_or(111));
    let new = secret(&mut StdRng::seed_from_u64(112));
    sim.with(A, |host, now| host.tunnel.set_private_key(Some(new.clone()), now, &mut host.rng));
    sim.send(A, 1);
    sim.send(B, 2);
    sim.run(secs(1));
    assert_eq!((&sim.hosts[B].delivered[..], &sim.hosts[A].delivered[..]), (&[1][..], &[2][..]), "the session lives");

    sim.with(A, |host, now| host.tunnel.handshake_now(host.peer, now, &mut host.rng));
    sim.run(ms(500));
    assert_eq!(sim.hosts[B].ignored, [Ignored::Handshake(Dropped::UnknownPeer)]);

    sim.with(A, |host, now| {
        let own = peer_config(new.public_key());
        assert_eq!(host.tunnel.add_peer(own, None, &[], now, &mut host.rng), Err(AddPeerError::OwnKey));
        let again = peer_config(host.tunnel.node().peer_config(host.peer).expect("the peer").public_key);
        let result = host.tunnel.add_peer(again, None, &[], now, &mut host.rng);
        assert_eq!(result, Err(AddPeerError::Exists(host.peer)));
    });
    // The key of a peer becomes our own: that peer is removed with its session.
    let peers_key = secret(&mut StdRng::seed_from_u64(113));
    sim.with(A, |host, now| {
        let peer = host.tunnel.add_peer(peer_config(peers_key.public_key()), None, &[], now, &mut host.rng);
        let removed = host.tunnel.set_private_key(Some(peers_key), now, &mut host.rng);
        assert_eq!(removed, peer.ok());
        assert_eq!(host.tunnel.node().peers().collect::<Vec<_>>(), [host.peer]);
    });
}

#[test]
fn initiations_must_be_newer_and_no_more_than_fifty_a_second() {
    let mut rng = StdRng::seed_from_u64(seed_or(12));
    let (ours, theirs) = (secret(&mut rng), secret(&mut rng));
    let (mut server, _) = node(&ours, theirs.public_key(), &mut rng);
    let (mut client, peer) = node(&theirs, ours.public_key(), &mut rng);
    let from = SocketAddr::from(([203, 0, 113, 1], 1000));
    let mut handle = |message: &[u8], clock: Duration, rng: &mut StdRng| {
        server.handle(from, message, at(clock), rng, &mut Vec::new())
    };

    let first = initiation(&mut client, peer, secs(100), &mut rng);
    let second = initiation(&mut client, peer, secs(100), &mut rng);
    assert_eq!(handle(&second, secs(100), &mut rng), Ok(()), "greater by one step of the whitened clock");
    assert_eq!(handle(&second, secs(101), &mut rng), Err(Dropped::Replayed));
    assert_eq!(handle(&first, secs(102), &mut rng), Err(Dropped::Replayed));

    // The client restarts, and its clock is behind.
    let (mut restarted, peer) = node(&theirs, ours.public_key(), &mut rng);
    let behind = initiation(&mut restarted, peer, secs(99), &mut rng);
    assert_eq!(handle(&behind, secs(103), &mut rng), Err(Dropped::Replayed));
    let caught_up = initiation(&mut restarted, peer, secs(104), &mut rng);
    assert_eq!(handle(&caught_up, secs(104), &mut rng), Ok(()));
    // Its clock is set back while it runs: its timestamps still increase.
    let set_back = initiation(&mut restarted, peer, secs(50), &mut rng);
    assert_eq!(handle(&set_back, secs(105), &mut rng), Ok(()));

    let mut processed = 0;
    for i in 0..1_000 {
        let clock = secs(200) + ms(i);
        let message = initiation(&mut restarted, peer, clock, &mut rng);
        // Each from its own source, or the limit by source would apply first.
        let from = SocketAddr::from(([10, 0, (i / 256) as u8, i as u8], 1000));
        let result = server.handle(from, &message, at(clock), &mut rng, &mut Vec::new());
        assert!(matches!(result, Ok(()) | Err(Dropped::Flood)), "{result:?}");
        processed += usize::from(result.is_ok());
    }
    assert_eq!(processed, 50);
}

#[test]
fn simultaneous_initiation_converges() {
    let first = seed_or(16_000);
    for seed in first..first + 1_000 {
        let mut sim = Sim::new(seed);
        let home = sim.hosts[A].address;
        sim.with(B, |host, now| host.tunnel.set_endpoint(host.peer, home, now, &mut host.rng));
        sim.network.delay = ms(1)..=ms(120);
        sim.network.loss = 0.1;
        sim.send(A, 0);
        sim.send(B, 0);
        sim.run(secs(40));
        // The last loss can have left one side with a session that the other side has replaced: silence reveals that
        // within 15 s.
        sim.network.loss = 0.0;
        sim.send(A, 0);
        sim.send(B, 0);
        sim.run(secs(20));
        sim.sent.clear();
        for host in &mut sim.hosts {
            host.delivered.clear();
        }
        for number in 1..20 {
            sim.send(A, number);
            sim.send(B, number);
            sim.run(secs(1));
        }
        for who in [A, B] {
            let mut delivered = sim.hosts[who].delivered.clone();
            delivered.sort_unstable();
            assert_eq!(delivered, (1..20).collect::<Vec<_>>(), "seed {seed}");
            assert_eq!(sim.initiations(who), 0, "seed {seed}: a settled pair initiates nothing");
        }
    }
}

/// Returns chosen words first.
struct Scripted {
    words: Vec<u32>,
    rest: StdRng,
}

impl rand_core::TryRng for Scripted {
    type Error = core::convert::Infallible;
    fn try_next_u32(&mut self) -> Result<u32, Self::Error> {
        Ok(self.words.pop().unwrap_or_else(|| self.rest.random()))
    }

    fn try_next_u64(&mut self) -> Result<u64, Self::Error> {
        Ok(self.rest.random())
    }

    fn try_fill_bytes(&mut self, bytes: &mut [u8]) -> Result<(), Self::Error> {
        self.rest.try_fill_bytes(bytes)
    }
}

impl rand_core::TryCryptoRng for Scripted {}

#[test]
fn indices_are_random_and_a_collision_is_retried() {
    let mut rng = StdRng::seed_from_u64(seed_or(18));
    let mut out = Vec::new();
    let ours = secret(&mut rng);
    let mut node = Node::new(at(Duration::ZERO).instant, &mut rng);
    node.set_private_key(Some(ours), &mut out);
    let mut scripted = Scripted { words: vec![8, 7, 7, 7, 7], rest: rng };
    for _ in 0..3 {
        let key = secret(&mut scripted.rest).public_key();
        let peer = node.add_peer(peer_config(key)).expect("a new peer");
        node.handshake_now(peer, at(Duration::ZERO), &mut scripted, &mut out);
    }
    let senders: Vec<_> = initiations(&out)
        .into_iter()
        .map(|message| match Message::parse(message) {
            Some(Message::Initiation(message)) => message.sender(),
            _ => panic!("an initiation"),
        })
        .collect();
    assert_eq!(senders[..2], [7, 8], "seven was taken three times over");
    assert_eq!(senders.iter().collect::<BTreeSet<_>>().len(), 3);
}

#[test]
fn low_order_keys_end_the_handshake_in_silence() {
    let mut rng = StdRng::seed_from_u64(seed_or(20));
    let (ours, theirs) = (secret(&mut rng), secret(&mut rng));
    let (mut server, peer) = node(&ours, theirs.public_key(), &mut rng);
    let from = SocketAddr::from(([203, 0, 113, 1], 1000));
    let mut maker = Maker::new(&WIREGUARD, &ours.public_key());
    let now = at(secs(1));
    // The points of order 1, 2 and 4, and the prime, which is a non-canonical encoding of zero.
    let mut one = [0; 32];
    one[0] = 1;
    let mut prime_minus_one = [0xff; 32];
    (prime_minus_one[0], prime_minus_one[31]) = (0xec, 0x7f);
    let mut prime = prime_minus_one;
    prime[0] = 0xed;
    for point in [[0; 32], one, prime_minus_one, prime] {
        let mut out = Vec::new();
        let mut message = Initiation::build(1, &point, &[0; 48], &[0; 12], &[0; 16]);
        maker.sign(&mut message, now.instant);
        assert_eq!(server.handle(from, &message, now, &mut rng, &mut out), Err(Dropped::Forged));
        assert!(out.is_empty());

        // The same in a response; the genuine one is still accepted afterwards.
        server.handshake_now(peer, now, &mut rng, &mut out);
        let sender = match Message::parse(initiations(&out)[0]) {
            Some(Message::Initiation(message)) => message.sender(),
            _ => panic!("an initiation"),
        };
        out.clear();
        let mut message = Response::build(1, sender, &point, &[0; 16]);
        maker.sign(&mut message, now.instant);
        assert_eq!(server.handle(from, &message, now, &mut rng, &mut out), Err(Dropped::Forged));
        assert!(out.is_empty());
    }
    // A peer with such a static key gets no messages, and is given up like one that does not answer.
    let mut out = Vec::new();
    let mut server = Node::new(now.instant, &mut rng);
    server.set_private_key(Some(ours), &mut out);
    out.clear();
    let peer = server.add_peer(peer_config(PublicKey([0; 32]))).expect("a new peer");
    server.handshake_wanted(peer, now, &mut rng, &mut out);
    assert!(out.is_empty());
    while let Some(deadline) = server.deadline() {
        let later = deadline.since(at(Duration::ZERO).instant);
        server.tick(at(later), &mut rng, &mut out);
    }
    assert!(matches!(out[..], [Action::DropStaged { .. }, Action::Event(Event::HandshakeFailed { .. })]));
}

#[test]
fn a_removed_peer_leaves_nothing_behind() {
    let mut sim = Sim::new(seed_or(21));
    sim.send(A, 1);
    sim.run(ms(15));
    assert_eq!(sim.count(B, |sent| sent.kind == Kind::Response), 1, "the response is on its way");
    let a = sim.hosts[A].peer;
    assert!(sim.with(A, |host, now| host.tunnel.remove_peer(a, now, &mut host.rng)));
    sim.run(secs(1));
    assert_eq!(sim.hosts[A].ignored, [Ignored::Handshake(Dropped::UnknownIndex)]);
    assert_eq!(sim.hosts[A].tunnel.deadline(), None);
    assert!(sim.hosts[B].delivered.is_empty() && sim.hosts[A].events.is_empty());

    // The responder's side, and with a live session.
    let mut sim = Sim::connected(seed_or(21));
    sim.with(A, |host, now| host.tunnel.handshake_now(host.peer, now, &mut host.rng));
    sim.run(ms(15));
    let b = sim.hosts[B].peer;
    assert!(sim.with(B, |host, now| host.tunnel.remove_peer(b, now, &mut host.rng)));
    sim.send(A, 2);
    sim.run(secs(1));
    assert!(sim.hosts[B].delivered.is_empty());
    assert!(sim.hosts[B].ignored.iter().all(|ignored| *ignored == Ignored::UnknownIndex));
    assert_eq!(sim.hosts[B].tunnel.deadline(), None);
    assert!(!sim.with(B, |host, now| host.tunnel.remove_peer(b, now, &mut host.rng)));
}

#[test]
fn ten_thousand_peers() {
    let mut rng = StdRng::seed_from_u64(seed_or(29));
    let mut tunnel = Tunnel::new(1420, at(Duration::ZERO), &mut rng);
    tunnel.set_private_key(Some(secret(&mut rng)), at(Duration::ZERO), &mut rng);
    for i in 0..10_000_u32 {
        let net = std::net::IpAddr::from((0x0a00_0000 + i).to_be_bytes()).into();
        let config = peer_config(PublicKey(rng.random()));
        tunnel.add_peer(config, None, &[net], at(Duration::ZERO), &mut rng).expect("a new peer");
    }
    assert_eq!(tunnel.node().peers().count(), 10_000);
    assert_eq!(tunnel.deadline(), None, "idle peers wait for nothing");
}

/// Even without persistent keepalive, a peer that the node communicated with gets a handshake when the interface is set
/// up again, and no other peer does.
#[test]
fn a_resumed_node_greets_those_that_it_spoke_to() {
    let mut rng = StdRng::seed_from_u64(seed_or(404));
    let (ours, theirs) = (secret(&mut rng), secret(&mut rng).public_key());
    let (mut server, spoken_to) = node(&ours, theirs, &mut rng);
    let silent = server.add_peer(peer_config(secret(&mut rng).public_key())).expect("a new peer");
    let mut out = Vec::new();
    server.handshake_wanted(spoken_to, at(secs(1)), &mut rng, &mut out);
    server.stop(&mut out);
    server.resume(at(secs(600)), &mut out);
    out.clear();
    server.tick(at(secs(600)), &mut rng, &mut out);
    assert!(matches!(out[..], [Action::Send { peer, .. }] if peer == spoken_to && peer != silent), "{out:?}");
    // No packet waits for it: it ends after three initiations, without an event.
    while let Some(deadline) = server.deadline() {
        server.tick(at(deadline.since(at(Duration::ZERO).instant)), &mut rng, &mut out);
    }
    assert_eq!((initiations(&out).len(), out.len()), (3, 3), "{out:?}");
}

/// The interface is set down: no state is left that could send, and nothing is answered. When it is up again,
/// persistent keepalive resumes.
#[test]
fn a_stopped_node_is_silent_until_it_is_resumed() {
    let mut rng = StdRng::seed_from_u64(seed_or(1));
    let (ours, theirs) = (secret(&mut rng), secret(&mut rng));
    let (mut server, client_peer) = node(&ours, theirs.public_key(), &mut rng);
    let (mut client, server_peer) = node(&theirs, ours.public_key(), &mut rng);
    let from = SocketAddr::from(([203, 0, 113, 1], 1000));
    let message = initiation(&mut client, server_peer, secs(1), &mut rng);
    let mut out = Vec::new();
    assert_eq!(server.handle(from, &message, at(secs(1)), &mut rng, &mut out), Ok(()));
    server.set_persistent_keepalive(client_peer, Some(secs(1)), at(secs(1)), &mut rng, &mut out);
    server.start(client_peer, at(secs(1)), &mut rng, &mut out);

    out.clear();
    server.stop(&mut out);
    assert!(out.iter().any(|action| matches!(action, Action::RemoveOpener { .. })), "{out:?}");
    assert!(out.iter().any(|action| matches!(action, Action::SetSealer { sealer: None, .. })), "{out:?}");
    assert!(out.iter().any(|action| matches!(action, Action::DropStaged { .. })), "{out:?}");
    out.clear();
    let message = initiation(&mut client, server_peer, secs(2), &mut rng);
    assert_eq!(server.handle(from, &message, at(secs(2)), &mut rng, &mut out), Err(Dropped::Stopped));
    // A packet that the data plane was already handling.
    server.handshake_wanted(client_peer, at(secs(3)), &mut rng, &mut out);
    server.handshake_now(client_peer, at(secs(3)), &mut rng, &mut out);
    server.start(client_peer, at(secs(3)), &mut rng, &mut out);
    for second in 3..1_000 {
        server.tick(at(secs(second)), &mut rng, &mut out);
    }
    assert!(out.is_empty(), "{out:?}");

    server.resume(at(secs(1_000)), &mut out);
    assert!(matches!(out[..], [Action::DropStaged { peer }] if peer == client_peer), "it is stale: {out:?}");
    server.tick(at(secs(1_000)), &mut rng, &mut out);
    assert_eq!(initiations(&out).len(), 1, "{out:?}");
    let message = initiation(&mut client, server_peer, secs(1_001), &mut rng);
    assert_eq!(server.handle(from, &message, at(secs(1_001)), &mut rng, &mut out), Ok(()));
}

/// The host's first packets arrive before the interface is reported as up. They wait for a session like others.
#[test]
fn what_comes_a_moment_before_a_node_is_resumed_begins_a_handshake() {
    let mut rng = StdRng::seed_from_u64(seed_or(3));
    let (mut node, peer) = node(&secret(&mut rng), secret(&mut rng).public_key(), &mut rng);
    let mut out = Vec::new();
    for (wanted, resumed, begins) in [(1_000, 1_200, true), (2_000, 6_999, true), (7_000, 12_000, false)] {
        let ms = |ms| at(Duration::from_millis(ms));
        node.stop(&mut out);
        out.clear();
        node.handshake_wanted(peer, ms(wanted), &mut rng, &mut out);
        node.handshake_wanted(peer, ms(resumed), &mut rng, &mut out);
        assert!(out.is_empty(), "{out:?}");
        node.resume(ms(resumed), &mut out);
        node.tick(ms(resumed), &mut rng, &mut out);
        match begins {
            true => assert!(matches!(out[..], [Action::Send { .. }]), "{out:?}"),
            false => assert!(matches!(out[0], Action::DropStaged { .. }), "{out:?}"),
        }
    }
}

/// A responder treats initiations closer together than 20 ms as a flood: a restarted handshake waits, so that the
/// answer to the initiation before can still arrive.
#[test]
fn a_handshake_that_begins_anew_is_no_flood() {
    let mut rng = StdRng::seed_from_u64(seed_or(405));
    let (ours, theirs) = (secret(&mut rng), secret(&mut rng));
    let (mut client, peer) = node(&ours, theirs.public_key(), &mut rng);
    let (mut server, _) = node(&theirs, ours.public_key(), &mut rng);
    let from: SocketAddr = "192.0.2.1:1".parse().unwrap();
    let mut out = Vec::new();
    let first = initiation(&mut client, peer, secs(1), &mut rng);
    assert_eq!(server.handle(from, &first, at(secs(1)), &mut rng, &mut out), Ok(()));
    client.handshake_at(peer, at(secs(1)).instant);
    let due = client.deadline().expect("a handshake").since(at(Duration::ZERO).instant);
    out.clear();
    client.tick(at(due), &mut rng, &mut out);
    let second = initiations(&out).first().expect("an initiation").to_vec();
    assert_eq!(server.handle(from, &second, at(due), &mut rng, &mut out), Ok(()), "{due:?}");
    assert!(due < secs(2), "at once, for a person: {due:?}");
}
