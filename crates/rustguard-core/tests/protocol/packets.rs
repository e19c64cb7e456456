//! Data: lengths, sources, replay, endpoints, staging.
use crate::sim::{A, B, Sim, packet, secs, seed_or};
use rand::{Rng, RngExt};
use rustguard_core::{
    node::Dropped,
    session::Replay,
    tunnel::{Ignored, Unsent},
    wire::Kind,
};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

#[test]
fn data_flows_both_ways() {
    let mut sim = Sim::new(seed_or(0));
    for number in 0..10 {
        sim.send(A, number);
    }
    sim.run(secs(1));
    assert_eq!(sim.hosts[B].delivered, (0..10).collect::<Vec<_>>());
    sim.send(B, 7);
    sim.run(secs(1));
    assert_eq!(sim.hosts[A].delivered, [7]);
    assert_eq!(sim.initiations(A) + sim.initiations(B), 1);
}

#[test]
fn no_datagram_of_any_length_stops_reception() {
    let mut sim = Sim::connected(seed_or(1));
    let from = sim.hosts[A].address;
    let mut garbage = vec![0; 65_535];
    sim.hosts[A].rng.fill_bytes(&mut garbage);
    for kind in [0, 1, 2, 3, 4, garbage[0]] {
        garbage[..4].copy_from_slice(&[kind, 0, 0, 0]);
        // Every short length, then strides through the long ones.
        for len in (0..=300).chain((301..=65_535).step_by(997)).chain([65_535]) {
            assert!(sim.give(B, from, &garbage[..len]).is_err(), "type {kind}, {len} bytes");
        }
    }
    sim.send(A, 1);
    sim.run(secs(1));
    assert_eq!(sim.hosts[B].delivered, [1]);
}

#[test]
fn a_source_that_a_more_specific_prefix_gives_to_another_is_rejected() {
    let mut sim = Sim::connected(seed_or(2));
    let (peer, inner) = (sim.hosts[B].peer, sim.hosts[A].inner);
    let stolen = Ipv4Addr::new(10, 0, 0, 99);
    let allowed = sim.hosts[B].tunnel.allowed_ips_mut();
    allowed.insert("10.0.0.0/24".parse().expect("a prefix"), peer);

    let send_from = |sim: &mut Sim, source: Ipv4Addr| {
        let destination = sim.hosts[B].inner;
        sim.send_packet(A, &packet(source, destination, 5)).expect("a packet for the peer");
        sim.run(secs(1));
    };
    send_from(&mut sim, stolen);
    assert_eq!(sim.hosts[B].delivered, [5], "all of the /24 is A's");

    let other = sim.with(B, |host, now| {
        let config = crate::sim::peer_config(rustguard_crypto::x25519::PublicKey([7; 32]));
        let net = IpAddr::V4(stolen).into();
        host.tunnel.add_peer(config, None, &[net], now, &mut host.rng).expect("a new peer")
    });
    assert_eq!(sim.hosts[B].tunnel.allowed_ips().lookup(IpAddr::V4(stolen)), Some(other));
    send_from(&mut sim, stolen);
    assert_eq!(sim.hosts[B].ignored, [Ignored::Source]);
    send_from(&mut sim, inner);
    assert_eq!(sim.hosts[B].delivered, [5, 5]);
}

#[test]
fn replay_window_of_8192() {
    let mut sim = Sim::connected(seed_or(4));
    let from = sim.hosts[A].address;
    for number in 0..9_000 {
        sim.send(A, number);
    }
    let datagrams = sim.intercept();
    assert_eq!(datagrams.len(), 9_000);

    // A forged packet far ahead must not move the window.
    let mut forged = datagrams[8_999].clone();
    forged[8..16].copy_from_slice(&(1_u64 << 40).to_le_bytes());
    assert_eq!(sim.give(B, from, &forged), Err(Ignored::Forged));

    assert_eq!(sim.give(B, from, &datagrams[8_999]), Ok(()));
    let oldest = 9_000 - 8_192;
    for datagram in datagrams[oldest..8_999].iter().rev() {
        assert_eq!(sim.give(B, from, datagram), Ok(()));
    }
    for datagram in &datagrams[..oldest] {
        assert_eq!(sim.give(B, from, datagram), Err(Ignored::Replay(Replay::Outside)));
    }
    for datagram in &datagrams[oldest..] {
        assert_eq!(sim.give(B, from, datagram), Err(Ignored::Replay(Replay::Duplicate)));
    }
    assert_eq!(sim.hosts[B].delivered.len(), 8_192);
}

#[test]
fn only_authenticated_packets_move_an_endpoint() {
    let mut sim = Sim::connected(seed_or(5));
    let (home, elsewhere) = (sim.hosts[A].address, SocketAddr::from(([198, 51, 100, 9], 9)));
    let peer = sim.hosts[B].peer;
    let endpoint = |sim: &Sim| sim.hosts[B].tunnel.endpoint(peer).expect("B has heard of A");
    assert_eq!(endpoint(&sim), home);

    sim.send(A, 1);
    let data = sim.intercept().remove(0);
    let mut forged = data.clone();
    forged[20] ^= 1;
    assert_eq!(sim.give(B, elsewhere, &forged), Err(Ignored::Forged));
    assert_eq!(endpoint(&sim), home, "forged data");
    assert_eq!(sim.give(B, elsewhere, &data), Ok(()));
    assert_eq!(endpoint(&sim), elsewhere, "data");
    assert_eq!(sim.give(B, home, &data), Err(Ignored::Replay(Replay::Duplicate)));
    assert_eq!(endpoint(&sim), elsewhere, "replayed data");

    sim.run(secs(1));
    sim.with(A, |host, now| host.tunnel.handshake_now(host.peer, now, &mut host.rng));
    let initiation = sim.intercept().remove(0);
    let mut forged = initiation.clone();
    forged[100] ^= 1;
    assert!(sim.give(B, home, &forged).is_err());
    assert_eq!(endpoint(&sim), elsewhere, "forged initiation");
    assert_eq!(sim.give(B, home, &initiation), Ok(()));
    assert_eq!(endpoint(&sim), home, "initiation");
    assert_eq!(sim.give(B, elsewhere, &initiation), Err(Ignored::Handshake(Dropped::Replayed)));
    assert_eq!(endpoint(&sim), home, "replayed initiation");

    let response = sim.intercept().remove(0);
    let peer_of_a = sim.hosts[A].peer;
    let mut forged = response.clone();
    forged[50] ^= 1;
    assert!(sim.give(A, elsewhere, &forged).is_err());
    assert_ne!(sim.hosts[A].tunnel.endpoint(peer_of_a), Some(elsewhere), "forged response");
    assert_eq!(sim.give(A, elsewhere, &response), Ok(()));
    assert_eq!(sim.hosts[A].tunnel.endpoint(peer_of_a), Some(elsewhere), "response");
}

#[test]
fn packets_are_staged_and_the_oldest_dropped_first() {
    let mut sim = Sim::new(seed_or(22));
    for number in 0..200 {
        sim.send(A, number);
    }
    sim.run(secs(1));
    assert_eq!(sim.hosts[B].delivered, (72..200).collect::<Vec<_>>());
    // A host without an endpoint has nothing to wait for.
    let mut sim = Sim::new(1);
    let packet = packet(sim.hosts[B].inner, Ipv4Addr::new(10, 0, 0, 1), 0);
    assert_eq!(sim.send_packet(B, &packet), Err(Unsent::NoEndpoint));
}

#[test]
fn a_bad_network_delivers_what_it_does_not_lose_and_nothing_twice() {
    for round in 0..20 {
        let mut sim = Sim::new(seed_or(100 + round));
        sim.network.loss = 0.2;
        sim.network.duplication = 0.2;
        sim.network.delay = secs(0)..=crate::sim::ms(400);
        for number in 0..2_000 {
            let who = if number > 500 && sim.hosts[B].rng.random_bool(0.5) { B } else { A };
            if sim.hosts[who].tunnel.endpoint(sim.hosts[who].peer).is_some() {
                sim.send(who, number);
            }
            sim.run(crate::sim::ms(200));
        }
        for who in [A, B] {
            let mut delivered = sim.hosts[who].delivered.clone();
            let data = sim.count(1 - who, |sent| matches!(sent.kind, Kind::Data { .. }) && !sent.is_keepalive());
            assert!(delivered.len() * 10 > data * 7, "{} of {data}", delivered.len());
            delivered.sort_unstable();
            assert!(delivered.windows(2).all(|pair| pair[0] != pair[1]), "a packet came twice");
        }
    }
}
