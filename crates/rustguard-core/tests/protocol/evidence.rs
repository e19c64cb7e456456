//! The evidence that a node has about failing handshakes: preshared keys that differ, slow clocks, keys that no peer
//! has.
use crate::{
    handshakes::{initiation, initiations, node},
    sim::{at, ms, peer_config, secret, secs, seed_or},
};
use rand::{SeedableRng, rngs::StdRng};
use rustguard_core::{
    node::{Action, Dropped, Event, Node, PeerId},
    wire::Kind,
};
use rustguard_crypto::x25519::StaticSecret;
use std::{net::SocketAddr, time::Duration};

const FROM: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::new(203, 0, 113, 1)), 1000);

/// A server, and a client that sends it initiations.
struct Server {
    node: Node,
    peer: PeerId,
    secret: StaticSecret,
    client: StaticSecret,
    rng: StdRng,
}

impl Server {
    fn new(seed: u64) -> Self {
        let mut rng = StdRng::seed_from_u64(seed_or(seed));
        let (secret, client) = (secret(&mut rng), secret(&mut rng));
        let (node, peer) = node(&secret, client.public_key(), &mut rng);
        Self { node, peer, secret, client, rng }
    }

    /// The client's initiations, made at these times by a program that has just started.
    fn initiations(&mut self, clocks: &[Duration]) -> Vec<Vec<u8>> {
        let (mut client, peer) = node(&self.client, self.secret.public_key(), &mut self.rng);
        clocks.iter().map(|&clock| initiation(&mut client, peer, clock, &mut self.rng)).collect()
    }

    /// Gives the server a message. Also returns by how much the client's clock is reported to be behind.
    fn receive(&mut self, message: &[u8], clock: Duration) -> (Result<(), Dropped>, Option<Duration>) {
        let mut out = Vec::new();
        let result = self.node.handle(FROM, message, at(clock), &mut self.rng, &mut out);
        let behind = out.iter().find_map(|action| match action {
            Action::Event(Event::ClockBehind { by, .. }) => Some(*by),
            _ => None,
        });
        (result, behind)
    }
}

#[test]
fn a_clock_that_was_set_back_is_told_after_three_initiations_in_step() {
    let mut server = Server::new(21);
    let before = server.initiations(&[secs(1_000)]);
    assert_eq!(server.receive(&before[0], secs(1_000)).0, Ok(()));

    // The client restarts with a clock that is ten minutes slow, and tries again every five seconds and a little more.
    let own = [secs(500), ms(505_100), ms(510_300), ms(515_500)];
    let late = server.initiations(&own);
    let told: Vec<_> = late.iter().zip(own).map(|(message, own)| server.receive(message, own + secs(600))).collect();
    assert!(told.iter().all(|(result, _)| *result == Err(Dropped::Replayed)), "{told:?}");
    assert_eq!((told[0].1, told[1].1), (None, None));
    for (_, behind) in &told[2..] {
        let behind = behind.expect("three in a row");
        assert!(behind.abs_diff(secs(600)) < ms(50), "{behind:?}");
    }
    // The same message again is a replay.
    assert_eq!(server.receive(&late[3], secs(1_120)), (Err(Dropped::Replayed), None));
    // The clock is right again.
    let right = server.initiations(&[secs(1_200)]);
    assert_eq!(server.receive(&right[0], secs(1_200)), (Ok(()), None));
    assert_eq!(server.receive(&late[3], secs(1_205)), (Err(Dropped::Replayed), None));
}

/// The client's own initiations are refused until its clock has caught up. Ours still work.
#[test]
fn a_client_whose_clock_was_set_back_is_called() {
    let mut server = Server::new(24);
    let (mut client, to_server) = node(&server.client, server.secret.public_key(), &mut server.rng);
    let ahead = initiation(&mut client, to_server, secs(4_600), &mut server.rng);
    assert_eq!(server.receive(&ahead, secs(1_000)).0, Ok(()));

    // The client restarts with its clock an hour behind, and tries.
    let (mut client, to_server) = node(&server.client, server.secret.public_key(), &mut server.rng);
    let mut called = Vec::new();
    for clock in [1_020, 1_026, 1_032, 1_038].map(secs) {
        let late = initiation(&mut client, to_server, clock, &mut server.rng);
        let mut out = Vec::new();
        assert_eq!(server.node.handle(FROM, &late, at(clock), &mut server.rng, &mut out), Err(Dropped::Replayed));
        server.node.tick(at(clock + ms(1)), &mut server.rng, &mut out);
        called.extend(initiations(&out).into_iter().map(<[u8]>::to_vec));
    }
    assert_eq!(called.len(), 2, "one when it is certain, one more in its time");
    let mut answer = Vec::new();
    assert_eq!(client.handle(FROM, &called[1], at(secs(1_039)), &mut server.rng, &mut answer), Ok(()));
    let response = answer.iter().find_map(|action| match action {
        Action::Send { datagram, .. } if Kind::of(datagram) == Some(Kind::Response) => Some(datagram),
        _ => None,
    });
    assert_eq!(server.receive(response.expect("an answer"), secs(1_039)).0, Ok(()));
}

/// Replaying a recorded row of initiations causes at most as many initiations of ours. They go to the peer's known
/// endpoint. None are sent while the peer is heard.
#[test]
fn who_replays_a_row_of_initiations_makes_us_send_little() {
    for heard in [true, false] {
        let mut server = Server::new(25);
        let row = server.initiations(&(0..100).map(|n| secs(6 * n)).collect::<Vec<_>>());
        let newer = server.initiations(&[secs(10_000)]);
        assert_eq!(server.receive(&newer[0], secs(10_000)).0, Ok(()));
        let activity = server.node.activity_of(server.peer).expect("the client");
        let mut called = 0;
        // The second time, the row is known.
        for (n, message) in (0..).zip(row.iter().chain(&row)) {
            let (mut out, clock) = (Vec::new(), secs(20_000 + 6 * n));
            if heard {
                activity.keepalive_received(at(clock).instant, 32);
            }
            assert_eq!(server.node.handle(FROM, message, at(clock), &mut server.rng, &mut out), Err(Dropped::Replayed));
            assert!(
                !out.iter().any(|action| matches!(action, Action::Endpoint { .. } | Action::Reply { .. })),
                "{out:?}"
            );
            server.node.tick(at(clock + secs(5)), &mut server.rng, &mut out);
            called += initiations(&out).len();
        }
        let most = if heard { 0..=0 } else { 1..=row.len() + 2 };
        assert!(most.contains(&called), "{called}");
    }
}

#[test]
fn replays_of_recorded_initiations_are_not_taken_for_a_clock() {
    let mut server = Server::new(22);
    // Each of these was accepted: rekeys, two minutes apart.
    let times: Vec<_> = (0..10).map(|n| secs(120 * n)).collect();
    let recorded = server.initiations(&times);
    for (message, &clock) in recorded.iter().zip(&times) {
        assert_eq!(server.receive(message, clock).0, Ok(()));
    }
    let mut clock = secs(2_000);
    for pause in [ms(1), secs(5), secs(120)] {
        for message in recorded.iter().chain(recorded.iter().rev()).chain([&recorded[3]; 5]) {
            clock += pause;
            assert_eq!(server.receive(message, clock), (Err(Dropped::Replayed), None));
        }
    }
}

#[test]
fn preshared_keys_that_differ_leave_traces_on_both_sides() {
    let mut rng = StdRng::seed_from_u64(seed_or(23));
    let (ours, theirs) = (secret(&mut rng), secret(&mut rng));
    let (mut server, client_peer) = node(&ours, theirs.public_key(), &mut rng);
    let (mut client, server_peer) = node(&theirs, ours.public_key(), &mut rng);
    client.set_preshared_key(server_peer, [7; 32]);
    assert_eq!(server.unconfirmed(client_peer), None);

    let mut out = Vec::new();
    client.handshake_wanted(server_peer, at(secs(1)), &mut rng, &mut out);
    let mut clock = secs(1);
    for n in 1..=3 {
        let message = initiations(&out).first().expect("an initiation").to_vec();
        let mut answer = Vec::new();
        assert_eq!(server.handle(FROM, &message, at(clock), &mut rng, &mut answer), Ok(()));
        let unconfirmed = server.unconfirmed(client_peer).expect("nobody confirmed it");
        assert_eq!((unconfirmed.count, unconfirmed.since), (n, at(secs(1)).instant));
        let response = answer.iter().find_map(|action| match action {
            Action::Send { datagram, .. } if Kind::of(datagram) == Some(Kind::Response) => Some(datagram),
            _ => None,
        });
        let refused = client.handle(FROM, response.expect("an answer"), at(clock), &mut rng, &mut Vec::new());
        assert_eq!(refused, Err(Dropped::Forged));
        assert_eq!(client.attempt(server_peer).map(|attempt| (attempt.tries, attempt.refused)), Some((n, n)));
        clock += secs(6);
        out.clear();
        client.tick(at(clock), &mut rng, &mut out);
    }
    // With the right key the next answer opens, and both nodes forget the evidence.
    client.set_preshared_key(server_peer, [0; 32]);
    let message = initiations(&out).first().expect("an initiation").to_vec();
    let mut answer = Vec::new();
    assert_eq!(server.handle(FROM, &message, at(clock), &mut rng, &mut answer), Ok(()));
    let mut index = None;
    for action in &answer {
        match action {
            Action::Send { datagram, .. } => {
                assert_eq!(client.handle(FROM, datagram, at(clock), &mut rng, &mut Vec::new()), Ok(()));
            }
            Action::AddOpener { opener, .. } => index = Some(opener.index()),
            _ => {}
        }
    }
    assert_eq!(client.attempt(server_peer), None);
    server.confirmed(index.expect("a session"), at(clock), &mut Vec::new());
    assert_eq!(server.unconfirmed(client_peer), None);
}

#[test]
fn the_initiator_is_named_only_where_it_has_the_key_it_claims() {
    let mut server = Server::new(24);
    let stranger = secret(&mut server.rng);
    let (mut node, peer) = node(&stranger, server.secret.public_key(), &mut server.rng);
    let message = initiation(&mut node, peer, secs(1), &mut server.rng);
    assert_eq!(server.receive(&message, secs(1)).0, Err(Dropped::UnknownPeer));
    assert_eq!(server.node.initiator(&message), Some(stranger.public_key()));
    // The timestamp's tag proves the key: it is the last field before the MACs.
    let mut forged = message.clone();
    forged[115] ^= 1;
    assert_eq!(server.node.initiator(&forged), None);
    assert_eq!(server.node.initiator(&message[..100]), None);
    let other = server.node.add_peer(peer_config(stranger.public_key())).expect("a new peer");
    assert_eq!(server.node.peer_by_key(&stranger.public_key()), Some(other));
    assert!(server.peer != other);
}
