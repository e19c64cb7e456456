//! A device drops packets of a peer whose datagrams the test carries, and counts each drop. Tests that need control of
//! the clock or of the workers' queues are next to the worker's code.

use super::support::{LONG, Node, Peer, Socket, at, inner, key, packet};
use rustguard_core::{
    cookie::Maker,
    noise::WIREGUARD,
    wire::{Initiation, Kind},
};
use rustguard_device::{Device, DropReason, Event, PeerUpdate, Update};
use rustguard_tun::memory::MemoryNet;
use std::{
    io::{self, Write},
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::{Duration, Instant as Clock},
};

/// Device 2 and its peer 1. The test's socket is at the peer's endpoint.
struct Lab {
    node: Node,
    net: MemoryNet,
    socket: Socket,
}

impl Lab {
    fn new(mtu: u32) -> Self {
        let net = MemoryNet::default();
        let socket = Socket::bind(&net, at(1));
        let peer = PeerUpdate::new(key(1)).allowed_ip(ipnet::Ipv4Net::from(inner(1))).endpoint(at(1));
        let node = Node::start(&net, 2, Device::builder().mtu(mtu).peer(peer));
        Self { node, net, socket }
    }
}

/// A session of peer 1 with the device, and the first datagram in it, not yet sent.
async fn session(lab: &mut Lab) -> (Peer, Vec<u8>) {
    let mut peer = Peer::new(1);
    for datagram in peer.sends(&packet(1, 2, b"first")) {
        lab.socket.send(&datagram);
    }
    for datagram in lab.socket.receive().await {
        peer.takes(datagram).unwrap();
    }
    let mut data = peer.outgoing();
    assert_eq!(data.len(), 1, "the staged packet");
    let first = data.remove(0);
    (peer, first)
}

#[tokio::test]
async fn nonsense_forgeries_and_repetitions_are_told_apart() {
    let mut lab = Lab::new(1_420);
    let mut events = lab.node.device.events();
    let (mut peer, first) = session(&mut lab).await;
    let mut forged = first.clone();
    *forged.last_mut().unwrap() ^= 1;
    let mut elsewhere = first.clone();
    elsewhere[4] ^= 1;
    let not_mine = peer.sends(&packet(9, 2, b"not mine")).remove(0);
    for datagram in [&b"nonsense"[..], &forged, &first, &first, &elsewhere, &not_mine, &[], &first] {
        lab.socket.send(datagram);
    }
    let last = peer.sends(&packet(1, 2, b"last")).remove(0);
    lab.socket.send(&last);
    for payload in [&b"first"[..], b"last"] {
        assert_eq!(lab.node.next(), packet(1, 2, payload));
    }
    let status = lab.node.device.status().await.unwrap();
    for (reason, packets, of_the_peer) in [
        (DropReason::Malformed, 1, 0),
        (DropReason::Empty, 1, 0),
        (DropReason::Forged, 1, 1),
        (DropReason::Replayed, 2, 2),
        (DropReason::UnknownIndex, 1, 0),
        (DropReason::SourceNotAllowed, 1, 1),
    ] {
        assert_eq!((status.dropped(reason), status.peers[0].dropped(reason)), (packets, of_the_peer), "{reason:?}");
    }
    let found = loop {
        if let Event::ProblemFound { peer, problem, .. } =
            tokio::time::timeout(LONG, events.recv()).await.unwrap().unwrap()
        {
            break (peer, problem);
        }
    };
    assert_eq!((found.0, found.1.kind()), (key(1), "source-not-allowed"));
    // The two times may differ, because the wall clock is read for each of them.
    let shown = status.peers[0].problem.clone().map(|problem| problem.cause);
    assert_eq!(Some(found.1.cause), shown, "the status and the events say the same");
}

#[tokio::test]
async fn a_handshake_of_a_stranger_or_with_a_wrong_mac_is_refused_without_an_answer() {
    let mut lab = Lab::new(1_420);
    let mut stranger = Peer::new(7);
    let initiation = stranger.sends(&packet(1, 2, b"let me in")).remove(0);
    let mut broken = Peer::new(1).sends(&packet(1, 2, b"it is me")).remove(0);
    broken[100] ^= 1;
    lab.socket.send(&initiation);
    lab.socket.send(&broken);
    lab.node.until_dropped(DropReason::HandshakeRefused, 2).await;
    assert!(lab.socket.arrived().is_empty(), "the device sends no answer");
}

#[tokio::test]
async fn a_source_that_sends_handshakes_without_end_is_asked_for_a_cookie() {
    let mut lab = Lab::new(1_420);
    let mut stranger = Peer::new(7);
    let mut initiations = stranger.sends(&packet(1, 2, b"let me in"));
    // Twice the number of handshakes that the device permits to one source at once.
    while initiations.len() < 100 {
        stranger.now.instant = stranger.now.instant + Duration::from_secs(6);
        stranger.now.unix += Duration::from_secs(6);
        stranger.tunnel.tick(stranger.now, &mut rand::rng());
        let mut more = stranger.outgoing();
        if more.is_empty() {
            more = stranger.sends(&packet(1, 2, b"let me in"));
        }
        initiations.append(&mut more);
    }
    for initiation in &initiations {
        lab.socket.send(initiation);
    }
    lab.node.until_dropped(DropReason::UnderLoad, 1).await;
    let refused = lab.node.dropped(DropReason::HandshakeRefused).await;
    assert!((50..100).contains(&refused), "{refused} handshakes were processed");
    assert_eq!(lab.socket.receive().await[0].len(), 64, "a cookie reply");
}

/// Many sources send more initiations than the control thread can process. The peer proves its address with a cookie.
/// From then on its handshakes have precedence.
#[tokio::test]
async fn a_peer_with_a_cookie_has_its_handshake_in_a_flood_from_everywhere() {
    let mut lab = Lab::new(1_420);
    let mut peer = Peer::new(1);
    let mut spoofed = Initiation::build(1, &[9; 32], &[0; 48], &[0; 12], &[0; 16]);
    Maker::new(&WIREGUARD, &key(2)).sign(&mut spoofed, peer.now.instant);
    let mut sources: Vec<_> =
        (0..200_u8).map(|n| Socket::bind(&lab.net, SocketAddr::from(([198, 51, 100, n], 7)))).collect();
    let id = peer.tunnel.node().peers().next().unwrap();
    let (started, mut rounds, mut cookies) = (Clock::now(), 0_u32, 0);
    'answered: loop {
        assert!(started.elapsed() < LONG, "no response, {cookies} cookies");
        for source in &mut sources {
            for _ in 0..2 {
                source.send(&spoofed);
            }
            // Makes room for more answers.
            source.arrived();
        }
        if lab.node.dropped(DropReason::UnderLoad).await == 0 {
            continue;
        }
        let mut again = rounds.is_multiple_of(50);
        rounds += 1;
        for answer in lab.socket.arrived() {
            if Kind::of(&answer) == Some(Kind::Response) {
                break 'answered;
            }
            // A cookie for an earlier initiation is refused.
            let taken = peer.takes(answer).is_ok();
            cookies += u32::from(taken);
            again |= taken;
        }
        if again {
            peer.now.unix += Duration::from_secs(1);
            peer.tunnel.handshake_now(id, peer.now, &mut rand::rng());
            for initiation in peer.outgoing() {
                lab.socket.send(&initiation);
            }
        }
    }
}

/// The log of all tests in this program.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(text)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Authenticated packets come from two ports in turn. The peer moves each time, but the log reports it at a limited
/// rate.
#[tokio::test]
async fn a_peer_that_alternates_its_port_writes_a_bounded_number_of_lines() {
    let (log, started) = (Log::default(), Clock::now());
    let writer = log.clone();
    tracing_subscriber::fmt().with_writer(move || writer.clone()).init();
    let mut lab = Lab::new(1_420);
    let mut events = lab.node.device.events();
    let (mut peer, first) = session(&mut lab).await;
    lab.socket.send(&first);
    let mut ports = [1, 2].map(|port| Socket::bind(&lab.net, SocketAddr::from(([203, 0, 113, 77], port))));
    for n in 0..200 {
        let datagram = peer.sends(&packet(1, 2, b"from elsewhere")).remove(0);
        ports[n % 2].send(&datagram);
        // Waits until the device has noticed the move.
        while !matches!(
            tokio::time::timeout(LONG, events.recv()).await.unwrap().unwrap(),
            Event::PeerRoamed { endpoint, .. } if endpoint == ports[n % 2].socket.address()
        ) {}
    }
    let text = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
    let lines = text.lines().filter(|line| line.contains("203.0.113.77")).count();
    // The first move is logged, then at most one move in ten seconds, and once a line about the likely cause.
    assert!((2..=2 + started.elapsed().as_secs() as usize / 10).contains(&lines), "{lines} lines: {text}");
}

#[tokio::test]
async fn packets_that_wait_in_vain_make_room_for_newer_ones() {
    let mut lab = Lab::new(1_420);
    // No peer answers, and the device keeps the 128 newest packets.
    for n in 0..200_u16 {
        lab.node.host.send(&packet(2, 1, &n.to_be_bytes())).unwrap();
    }
    lab.node.has_dropped(DropReason::StagingFull, 72).await;
    let mut peer = Peer::new(1);
    for datagram in lab.socket.receive().await {
        peer.takes(datagram).unwrap();
    }
    for datagram in peer.outgoing() {
        lab.socket.send(&datagram);
    }
    let mut expected = 72..200_u16;
    while !expected.is_empty() {
        for datagram in lab.socket.receive().await {
            if let Some(received) = peer.takes(datagram).unwrap() {
                let n = expected.next().expect("no more than 128 packets");
                assert_eq!(received, packet(2, 1, &n.to_be_bytes()));
            }
        }
    }
}

#[tokio::test]
async fn packets_that_wait_for_a_peer_are_counted_when_it_is_removed() {
    let lab = Lab::new(1_420);
    for n in 0..129_u16 {
        lab.node.host.send(&packet(2, 1, &n.to_be_bytes())).unwrap();
    }
    // The oldest packet was dropped, and the other 128 wait.
    lab.node.until_dropped(DropReason::StagingFull, 1).await;
    let removed = PeerUpdate::remove(key(1));
    lab.node.device.update(Update::new().peer(removed)).await.unwrap();
    let dropped = (lab.node.dropped(DropReason::StagingFull).await, lab.node.dropped(DropReason::NoSession).await);
    assert_eq!(dropped, (1, 128));
}

#[tokio::test]
async fn what_is_too_long_for_a_datagram_is_a_failure_to_send() {
    let mut lab = Lab::new(65_535);
    let (_peer, first) = session(&mut lab).await;
    // The device may send after it has received the first packet of the session.
    lab.socket.send(&first);
    lab.node.host.recv(&mut [0; 64]).unwrap();
    lab.node.host.send(&packet(2, 1, &[0; 65_515])).unwrap();
    lab.node.until_dropped(DropReason::SendFailed, 1).await;
    lab.node.host.send(&packet(2, 1, b"short")).unwrap();
    lab.socket.receive().await;
    assert_eq!(lab.node.dropped(DropReason::SendFailed).await, 1);
}

#[tokio::test]
async fn a_host_that_does_not_take_its_packets_has_them_counted() {
    let mut lab = Lab::new(1_420);
    let (mut peer, first) = session(&mut lab).await;
    lab.socket.send(&first);
    // An in-memory interface holds 500 packets, and the host takes none. The datagrams are sent in small lots, because
    // the queue of the in-memory network is bounded too.
    for lot in 1..=11 {
        for _ in 0..50 {
            let datagram = peer.sends(&packet(1, 2, b"for a sleeper")).remove(0);
            lab.socket.send(&datagram);
        }
        let bytes = 148 + 64 * (1 + 50 * lot);
        while lab.node.device.status().await.unwrap().peers[0].rx_bytes < bytes {
            tokio::task::yield_now().await;
        }
    }
    lab.node.has_dropped(DropReason::HostRefused, 51).await;
}
