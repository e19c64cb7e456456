//! A device next to a peer of which the test holds every datagram in its hands: what is dropped, and that it is counted. What
//! takes a hand on the clock, or on the workers' queues, is tested beside the worker's code.

use rustguard_core::{
    cookie::Maker,
    node::PeerConfig,
    noise::WIREGUARD,
    time::{Instant, Now},
    tunnel::{HEADROOM, Output, TAILROOM, Tunnel},
    wire::{Initiation, Kind},
};
use rustguard_crypto::x25519::StaticSecret;
use rustguard_device::{Device, DropReason, Event, MemoryBinder, PeerUpdate, Update};
use rustguard_tun::{
    Endpoint, Network, Segments, Transmit,
    memory::{self, MemoryHost, MemoryNet, MemorySocket},
};
use std::{
    io::{self, Write},
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::{Duration, Instant as Clock},
};

/// Far beyond anything that is waited for; only a hang meets it.
const LONG: Duration = Duration::from_secs(20);
const OURS: [u8; 4] = [10, 0, 0, 1];
const THEIRS: [u8; 4] = [10, 0, 0, 2];

fn at(n: u8) -> SocketAddr {
    SocketAddr::from(([192, 0, 2, n], 51820))
}

fn key(n: u8) -> StaticSecret {
    StaticSecret::from_bytes([n; 32])
}

/// A device with the key 2 and one peer with the key 1, whose endpoint is where the test's socket is.
struct Lab {
    device: Device,
    host: MemoryHost,
    net: MemoryNet,
    socket: MemorySocket,
    slab: Vec<u8>,
}

impl Lab {
    fn new(mtu: u32) -> Self {
        let net = MemoryNet::default();
        let (tun, host) = memory::tun().unwrap();
        host.set_timeout(Some(LONG)).unwrap();
        let socket = net.bind(at(1)).unwrap();
        let slab = vec![0; socket.recv_slab_len()];
        let allowed = ipnet::Ipv4Net::from(std::net::Ipv4Addr::from(OURS));
        let peer = PeerUpdate::new(key(1).public_key()).allowed_ip(allowed).endpoint(at(1));
        let binder = MemoryBinder::new(net.clone(), at(2));
        let device = Device::builder().private_key(key(2)).mtu(mtu).peer(peer).start_with(tun, binder).unwrap();
        Self { device, host, net, socket, slab }
    }

    fn send(&mut self, datagram: &[u8]) {
        send_from(&mut self.socket, datagram);
    }

    /// The next datagrams of the device's.
    async fn receive(&mut self) -> Vec<Vec<u8>> {
        let (mut received, started) = (Vec::new(), Clock::now());
        while received.is_empty() {
            assert!(started.elapsed() < LONG, "the device is silent");
            tokio::task::yield_now().await;
            self.socket.recv(&mut self.slab, &mut received).unwrap();
        }
        let spans = received.iter().flat_map(|received| received.segments.pieces());
        spans.map(|span| self.slab[span.offset..span.offset + span.len].to_vec()).collect()
    }

    async fn dropped(&self, reason: DropReason) -> u64 {
        self.device.status().await.unwrap().dropped(reason)
    }

    /// Until at least so many were dropped for this reason.
    async fn until_dropped(&self, reason: DropReason, packets: u64) {
        let counted = async {
            while self.dropped(reason).await < packets {
                tokio::task::yield_now().await;
            }
        };
        if tokio::time::timeout(LONG, counted).await.is_err() {
            panic!("{reason:?}: {} of {packets}", self.dropped(reason).await);
        }
    }
}

fn send_from(socket: &mut MemorySocket, datagram: &[u8]) {
    let len = datagram.len();
    let segments = Segments { offset: 0, stride: len, count: 1, len, last_len: len };
    socket.send(datagram, &[Transmit { to: Endpoint { remote: at(2), local: None }, segments, ds: 0 }]);
}

/// The protocol in the test's hand, with the key `n`, where time is what the test says.
struct Peer {
    tunnel: Tunnel,
    now: Now,
}

impl Peer {
    fn new(n: u8) -> Self {
        // Any time at all, as long as it is after 1970 for the timestamps.
        let now = Now { instant: Instant::from_nanos(1 << 40), unix: Duration::from_secs(1 << 30) };
        let mut tunnel = Tunnel::new(1_420, now, &mut rand::rng());
        tunnel.set_private_key(Some(key(n)), now, &mut rand::rng());
        let other = PeerConfig::new(key(2).public_key());
        let any = "0.0.0.0/0".parse().unwrap();
        tunnel.add_peer(other, Some(at(2)), &[any], now, &mut rand::rng()).unwrap();
        Self { tunnel, now }
    }

    /// The datagrams that are to be sent now.
    fn outgoing(&mut self) -> Vec<Vec<u8>> {
        let outputs = std::iter::from_fn(|| self.tunnel.poll());
        outputs
            .filter_map(|out| if let Output::Transmit { datagram, .. } = out { Some(datagram) } else { None })
            .collect()
    }

    /// What carries `packet`: an initiation, when there is no session yet.
    fn sends(&mut self, packet: &[u8]) -> Vec<Vec<u8>> {
        let mut buffer = [&[0; HEADROOM][..], packet, &[0; TAILROOM]].concat();
        let sealed = self.tunnel.send(&mut buffer, packet.len(), self.now, &mut rand::rng()).unwrap();
        let mut datagrams: Vec<_> = sealed.map(|sealed| sealed.datagram.to_vec()).into_iter().collect();
        datagrams.extend(self.outgoing());
        datagrams
    }
}

/// A session between the two, and the first packet in it, sealed but not sent.
async fn session(lab: &mut Lab) -> (Peer, Vec<u8>) {
    let mut peer = Peer::new(1);
    for datagram in peer.sends(&packet(OURS, THEIRS, b"first")) {
        lab.send(&datagram);
    }
    for mut datagram in lab.receive().await {
        peer.tunnel.receive(at(2), &mut datagram, peer.now, &mut rand::rng()).unwrap();
    }
    let mut data = peer.outgoing();
    assert_eq!(data.len(), 1, "the staged packet");
    let first = data.remove(0);
    (peer, first)
}

fn packet(from: [u8; 4], to: [u8; 4], payload: &[u8]) -> Vec<u8> {
    let total = u16::try_from(20 + payload.len()).unwrap();
    let mut packet = vec![0x45, 0];
    packet.extend(total.to_be_bytes());
    packet.extend([0, 0, 0x40, 0, 64, 253, 0, 0]);
    packet.extend(from.iter().chain(&to).chain(payload));
    packet
}

#[tokio::test]
async fn nonsense_forgeries_and_repetitions_are_told_apart() {
    let mut lab = Lab::new(1_420);
    let (mut peer, first) = session(&mut lab).await;
    let mut forged = first.clone();
    *forged.last_mut().unwrap() ^= 1;
    let mut elsewhere = first.clone();
    elsewhere[4] ^= 1;
    let not_mine = peer.sends(&packet([10, 0, 0, 9], THEIRS, b"not mine")).remove(0);
    for datagram in [&b"nonsense"[..], &forged, &first, &first, &elsewhere, &not_mine, &[], &first] {
        lab.send(datagram);
    }
    let last = peer.sends(&packet(OURS, THEIRS, b"last")).remove(0);
    lab.send(&last);
    for payload in [&b"first"[..], b"last"] {
        let mut buffer = [0; 2_048];
        let n = lab.host.recv(&mut buffer).unwrap();
        assert_eq!(buffer[..n], packet(OURS, THEIRS, payload)[..]);
    }
    for (reason, packets) in [
        (DropReason::Malformed, 2),
        (DropReason::Forged, 1),
        (DropReason::Replayed, 2),
        (DropReason::UnknownIndex, 1),
        (DropReason::SourceNotAllowed, 1),
    ] {
        assert_eq!(lab.dropped(reason).await, packets, "{reason:?}");
    }
}

#[tokio::test]
async fn a_handshake_of_a_stranger_or_with_a_wrong_mac_is_refused_without_an_answer() {
    let mut lab = Lab::new(1_420);
    let mut stranger = Peer::new(7);
    let initiation = stranger.sends(&packet(OURS, THEIRS, b"let me in")).remove(0);
    let mut broken = Peer::new(1).sends(&packet(OURS, THEIRS, b"it is me")).remove(0);
    broken[100] ^= 1;
    lab.send(&initiation);
    lab.send(&broken);
    lab.until_dropped(DropReason::HandshakeRefused, 2).await;
    let mut answers = Vec::new();
    lab.socket.recv(&mut lab.slab, &mut answers).unwrap();
    assert!(answers.is_empty(), "silence is the answer");
}

#[tokio::test]
async fn a_source_that_sends_handshakes_without_end_is_asked_for_a_cookie() {
    let mut lab = Lab::new(1_420);
    let mut stranger = Peer::new(7);
    let mut initiations = stranger.sends(&packet(OURS, THEIRS, b"let me in"));
    // The whole allowance of a source at once, and as many again.
    while initiations.len() < 100 {
        stranger.now.instant = stranger.now.instant + Duration::from_secs(6);
        stranger.now.unix += Duration::from_secs(6);
        stranger.tunnel.tick(stranger.now, &mut rand::rng());
        let mut more = stranger.outgoing();
        if more.is_empty() {
            more = stranger.sends(&packet(OURS, THEIRS, b"let me in"));
        }
        initiations.append(&mut more);
    }
    for initiation in &initiations {
        lab.send(initiation);
    }
    lab.until_dropped(DropReason::UnderLoad, 1).await;
    let refused = lab.dropped(DropReason::HandshakeRefused).await;
    assert!((50..100).contains(&refused), "{refused} were looked at");
    assert_eq!(lab.receive().await[0].len(), 64, "a cookie reply");
}

/// Many sources send more initiations than control can look at. The peer proves its address with a cookie; from then on its
/// handshakes pass them all.
#[tokio::test]
async fn a_peer_with_a_cookie_has_its_handshake_in_a_flood_from_everywhere() {
    let mut lab = Lab::new(1_420);
    let mut peer = Peer::new(1);
    let mut spoofed = Initiation::build(1, &[9; 32], &[0; 48], &[0; 12], &[0; 16]);
    Maker::new(&WIREGUARD, &key(2).public_key()).sign(&mut spoofed, peer.now.instant);
    let mut sources: Vec<_> =
        (0..200_u8).map(|n| lab.net.bind(SocketAddr::from(([198, 51, 100, n], 7))).unwrap()).collect();
    let mut answers = Vec::new();
    let id = peer.tunnel.node().peers().next().unwrap();
    let (started, mut rounds, mut cookies) = (Clock::now(), 0_u32, 0);
    'answered: loop {
        assert!(started.elapsed() < LONG, "no response, {cookies} cookies");
        for source in &mut sources {
            for _ in 0..2 {
                send_from(source, &spoofed);
            }
            answers.clear();
            source.recv(&mut lab.slab, &mut answers).unwrap();
        }
        if lab.dropped(DropReason::UnderLoad).await == 0 {
            continue;
        }
        let mut again = rounds.is_multiple_of(50);
        rounds += 1;
        answers.clear();
        lab.socket.recv(&mut lab.slab, &mut answers).unwrap();
        for span in answers.iter().flat_map(|received| received.segments.pieces()) {
            let answer = &mut lab.slab[span.offset..span.offset + span.len];
            if Kind::of(answer) == Some(Kind::Response) {
                break 'answered;
            }
            // A cookie for an earlier initiation is refused.
            let taken = peer.tunnel.receive(at(2), answer, peer.now, &mut rand::rng()).is_ok();
            cookies += u32::from(taken);
            again |= taken;
        }
        if again {
            peer.now.unix += Duration::from_secs(1);
            peer.tunnel.handshake_now(id, peer.now, &mut rand::rng());
            for initiation in peer.outgoing() {
                lab.send(&initiation);
            }
        }
    }
}

/// The log of all tests in this process.
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

/// One authenticated packet by one port, the next by another: the peer moves each time, and the log says so now and then.
#[tokio::test]
async fn a_peer_that_alternates_its_port_writes_a_bounded_number_of_lines() {
    let (log, started) = (Log::default(), Clock::now());
    let writer = log.clone();
    tracing_subscriber::fmt().with_writer(move || writer.clone()).init();
    let mut lab = Lab::new(1_420);
    let mut events = lab.device.events();
    let (mut peer, first) = session(&mut lab).await;
    lab.send(&first);
    let mut ports = [1, 2].map(|port| lab.net.bind(SocketAddr::from(([203, 0, 113, 77], port))).unwrap());
    for n in 0..200 {
        let datagram = peer.sends(&packet(OURS, THEIRS, b"from elsewhere")).remove(0);
        send_from(&mut ports[n % 2], &datagram);
        // Each move is noticed before the next.
        while !matches!(
            tokio::time::timeout(LONG, events.recv()).await.unwrap().unwrap(),
            Event::PeerRoamed { endpoint, .. } if endpoint == ports[n % 2].address()
        ) {}
    }
    let text = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
    let lines = text.lines().filter(|line| line.contains("203.0.113.77")).count();
    // At most one in ten seconds, however long all of it took here.
    assert!(lines <= 1 + started.elapsed().as_secs() as usize / 10, "{lines} lines: {text}");
}

#[tokio::test]
async fn packets_that_wait_in_vain_make_room_for_newer_ones() {
    let mut lab = Lab::new(1_420);
    // Nobody answers; the device keeps the 128 newest.
    for n in 0..200_u16 {
        lab.host.send(&packet(THEIRS, OURS, &n.to_be_bytes())).unwrap();
    }
    lab.until_dropped(DropReason::StagingFull, 72).await;
    assert_eq!(lab.dropped(DropReason::StagingFull).await, 72);
    let mut peer = Peer::new(1);
    for mut datagram in lab.receive().await {
        peer.tunnel.receive(at(2), &mut datagram, peer.now, &mut rand::rng()).unwrap();
    }
    for datagram in peer.outgoing() {
        lab.send(&datagram);
    }
    let mut expected = 72..200_u16;
    while !expected.is_empty() {
        for mut datagram in lab.receive().await {
            let received = peer.tunnel.receive(at(2), &mut datagram, peer.now, &mut rand::rng()).unwrap();
            if let Some(received) = received {
                let n = expected.next().expect("no more than 128");
                assert_eq!(received.packet, packet(THEIRS, OURS, &n.to_be_bytes()));
            }
        }
    }
}

#[tokio::test]
async fn packets_that_wait_for_a_peer_are_counted_when_it_is_removed() {
    let lab = Lab::new(1_420);
    for n in 0..129_u16 {
        lab.host.send(&packet(THEIRS, OURS, &n.to_be_bytes())).unwrap();
    }
    // The oldest had to go: the other 128 are there.
    lab.until_dropped(DropReason::StagingFull, 1).await;
    let removed = PeerUpdate::remove(key(1).public_key());
    lab.device.update(Update::new().peer(removed)).await.unwrap();
    assert_eq!(lab.dropped(DropReason::StagingFull).await, 129);
}

#[tokio::test]
async fn what_is_too_long_for_a_datagram_is_a_failure_to_send() {
    let mut lab = Lab::new(65_535);
    let (_peer, first) = session(&mut lab).await;
    // The device may send once it has seen the session in use.
    lab.send(&first);
    lab.host.recv(&mut [0; 64]).unwrap();
    lab.host.send(&packet(THEIRS, OURS, &[0; 65_515])).unwrap();
    lab.until_dropped(DropReason::SendFailed, 1).await;
    lab.host.send(&packet(THEIRS, OURS, b"short")).unwrap();
    lab.receive().await;
    assert_eq!(lab.dropped(DropReason::SendFailed).await, 1);
}

#[tokio::test]
async fn a_host_that_does_not_take_its_packets_has_them_counted() {
    let mut lab = Lab::new(1_420);
    let (mut peer, first) = session(&mut lab).await;
    lab.send(&first);
    // An interface in memory holds 500 packets; the host takes none. In small lots, for the network has an end as well.
    for lot in 1..=11 {
        for _ in 0..50 {
            let datagram = peer.sends(&packet(OURS, THEIRS, b"for a sleeper")).remove(0);
            lab.send(&datagram);
        }
        let bytes = 148 + 64 * (1 + 50 * lot);
        while lab.device.status().await.unwrap().peers[0].rx_bytes < bytes {
            tokio::task::yield_now().await;
        }
    }
    lab.until_dropped(DropReason::HostRefused, 51).await;
    assert_eq!(lab.dropped(DropReason::HostRefused).await, 51);
}
