//! Test bodies for TUN queues on real interfaces.
use super::PATIENCE;
use crate::{
    HEADROOM, Segments, Span, TunQueue,
    namespace::isolated,
    sys,
    tun::{Tun, TunOptions},
    wait::{Waiter, Waker},
};
use std::{
    fs,
    io::{self, Read, Write},
    net::{IpAddr, TcpListener, TcpStream, UdpSocket},
    os::{fd::OwnedFd, unix::net::UnixDatagram},
    thread,
};

const MTU: usize = 1_420;

/// A backend of a TUN.
pub(crate) trait TestTun: TunQueue + Sized {
    fn over(tun: Tun) -> Self;
}

impl TestTun for Tun {
    fn over(tun: Tun) -> Self {
        tun
    }
}

pub(crate) fn ip(arguments: &str) {
    let output = super::run("ip", arguments);
    assert!(output.status.success(), "ip {arguments}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Creates the interface, up and with the addresses 10.9.9.1/24 and fd09::1/64.
pub(crate) fn create<T: TestTun>(name: &str, offload: bool) -> T {
    let tun = Tun::create(&TunOptions::new(name).mtu(1_420).offload(offload)).unwrap();
    ip(&format!("addr add 10.9.9.1/24 dev {name}"));
    ip(&format!("addr add fd09::1/64 dev {name} nodad"));
    ip(&format!("link set {name} up"));
    T::over(tun)
}

/// Waits until the descriptor is readable. Returns `false` if it was woken first.
fn wait(tun: &impl TunQueue, waiter: &mut Waiter) -> bool {
    let wake = waiter.wait([tun.fd()], Some(PATIENCE)).unwrap();
    assert!(wake.woken || wake.ready, "no packet came");
    !wake.woken
}

/// Waits for the next IPv4 packet. The kernel also sends router solicitations by itself.
pub(crate) fn next_ipv4(tun: &mut impl TunQueue, slab: &mut [u8], at: usize) -> Segments {
    let (mut waiter, _waker) = Waiter::new().unwrap();
    loop {
        match tun.read(slab, at, MTU).unwrap() {
            Some(packet) if slab[packet.offset] >> 4 == 4 => return packet,
            Some(_) => {}
            None => assert!(wait(tun, &mut waiter)),
        }
    }
}

pub(crate) fn packets_pass_both_ways<T: TestTun>() {
    for offload in [true, false] {
        isolated("packets through a real TUN", move || {
            let mut tun = T::over(Tun::create(&TunOptions::new("rg-test").mtu(1_420).offload(offload)).unwrap());
            let mut slab = vec![0; tun.max_read()];
            slab[0] = 0x45;
            assert_eq!(tun.write(&mut slab, &[Span { offset: 0, len: 20 }]).unwrap(), 1, "it is down");
            assert!(tun.read(&mut slab, 0, MTU).unwrap().is_none());

            ip("addr add 10.9.9.1/24 dev rg-test");
            ip("link set rg-test up");
            let socket = UdpSocket::bind("10.9.9.1:4000").unwrap();
            socket.set_read_timeout(Some(PATIENCE)).unwrap();
            // There are several rounds, because reads may have to be armed again.
            for round in 0..3 {
                socket.send_to(b"out", "10.9.9.2:5000").unwrap();
                let sent = next_ipv4(&mut tun, &mut slab, 0);
                assert_eq!((sent.offset, sent.count, sent.len, sent.last_len), (HEADROOM, 1, 31, 31), "{round}");
                assert_eq!(&slab[HEADROOM + 28..HEADROOM + 31], b"out");

                // The packet is reflected: both addresses and both ports are exchanged, which leaves the checksums
                // right.
                let packet = &mut slab[HEADROOM..HEADROOM + 31];
                packet[12..20].rotate_left(4);
                packet[20..24].rotate_left(2);
                let good = Span { offset: HEADROOM, len: 31 };
                slab[200] = 0xff;
                let batch = [Span { offset: 200, len: 40 }, Span { offset: 0, len: 0 }, good];
                let refused = tun.write(&mut slab, &batch).unwrap();
                assert_eq!(refused, 2, "neither IP nor empty packets are taken, nor do they hold up the next");
                let (len, from) = socket.recv_from(&mut [0; 8]).unwrap();
                assert_eq!((len, from), (3, "10.9.9.2:5000".parse().unwrap()));
            }
        });
    }
}

/// The kernel itself verifies the splitting and joining: it checks the packets that come back.
pub(crate) fn super_packets_of_udp_pass_both_ways<T: TestTun>() {
    for offload in [true, false] {
        isolated("super-packets", move || {
            let mut tun: T = create("rg-gso", offload);
            let socket = UdpSocket::bind("10.9.9.1:4000").unwrap();
            socket.set_read_timeout(Some(PATIENCE)).unwrap();
            sys::set_option(&socket, libc::SOL_UDP, libc::UDP_SEGMENT, 1_001).unwrap();
            let payload: Vec<u8> = (0..3_503u32).map(|i| (i % 251) as u8).collect();
            socket.send_to(&payload, "10.9.9.2:5000").unwrap();

            let mut slab = vec![0; tun.max_read() + 10_000];
            let (mut spans, mut at, mut reads) = (Vec::new(), 0, Vec::new());
            while spans.len() < 4 {
                let segments = next_ipv4(&mut tun, &mut slab, at);
                reads.push(segments.count);
                spans.extend(segments.pieces());
                at += segments.count * segments.stride;
            }
            assert_eq!(reads, if offload { vec![4] } else { vec![1; 4] });
            for span in &spans {
                let packet = &mut slab[span.offset..span.offset + span.len];
                assert_eq!(&packet[12..20], [10, 9, 9, 1, 10, 9, 9, 2]);
                packet[12..20].rotate_left(4);
                packet[20..24].rotate_left(2);
            }
            // A packet that was corrupted on its way must not be hidden by the checksum of a super-packet.
            slab[spans[1].offset + 500] ^= 1;
            assert_eq!(tun.write(&mut slab, &spans).unwrap(), 0);
            for piece in [0, 2, 3] {
                let mut buffer = [0; 2_000];
                let (len, _) = socket.recv_from(&mut buffer).unwrap();
                assert!(buffer[..len] == payload[piece * 1_001..payload.len().min((piece + 1) * 1_001)], "{piece}");
            }
        });
    }
}

/// A UDP packet over IPv4 with this number of payload bytes and correct checksums.
fn datagram(id: u16, payload: usize) -> Vec<u8> {
    let mut packet = vec![0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, 17, 0, 0, 10, 9, 9, 2, 10, 9, 9, 1, 0, 7, 0, 7, 0, 0, 0, 0];
    packet.resize(28 + payload, id as u8);
    let len = packet.len() as u16;
    packet[2..4].copy_from_slice(&len.to_be_bytes());
    packet[24..26].copy_from_slice(&(len - 20).to_be_bytes());
    let sum = |bytes: &[u8]| {
        let words = bytes.chunks(2).map(|word| u32::from(word[0]) << 8 | u32::from(*word.get(1).unwrap_or(&0)));
        let sum = words.sum::<u32>();
        let sum = (sum & 0xffff) + (sum >> 16);
        !((sum & 0xffff) + (sum >> 16)) as u16
    };
    let header = sum(&packet[..20]);
    packet[10..12].copy_from_slice(&header.to_be_bytes());
    let pseudo = [&packet[12..20], &[0, 17], &(len - 20).to_be_bytes(), &packet[20..]].concat();
    let udp = sum(&pseudo);
    packet[26..28].copy_from_slice(&udp.to_be_bytes());
    packet
}

/// The test replaces the TUN by a socket that takes no message longer than its buffer (36,000 bytes, which Linux
/// doubles), and so no super-packet of five packets. Single packets fit: the kernel only checks whether there is room
/// left, and counts 8.5 KiB for each.
pub(crate) fn super_packets_that_are_refused_go_singly<T: TestTun>() {
    let (here, there) = UnixDatagram::pair().unwrap();
    sys::set_option(&here, libc::SOL_SOCKET, libc::SO_SNDBUF, 18_000).unwrap();
    here.set_nonblocking(true).unwrap();
    there.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut tun = T::over(Tun::over(OwnedFd::from(here).into()));
    let packets: Vec<_> = (0..5).map(|id| datagram(id, 7_500)).collect();
    let (mut slab, len) = (packets.concat(), packets[0].len());
    let spans: Vec<_> = (0..5).map(|i| Span { offset: i * len, len }).collect();
    for round in 0..3 {
        assert_eq!(tun.write(&mut slab, &spans).unwrap(), 0, "{round}");
        let mut buffer = [0; 8_000];
        for packet in &packets {
            let received = there.recv(&mut buffer).unwrap();
            assert_eq!(buffer[..10], [0; 10], "no super-packet");
            assert!(buffer[10..received] == *packet, "as it came");
        }
    }
    // A super-packet of two such packets would fit. But a kind that was just refused is not offered again so soon.
    let fit = [datagram(7, 500), datagram(7, 500)];
    let (mut slab, len) = (fit.concat(), fit[0].len());
    assert_eq!(tun.write(&mut slab, &[Span { offset: 0, len }, Span { offset: len, len }]).unwrap(), 0);
    for _ in fit {
        assert_eq!(there.recv(&mut [0; 2_000]).unwrap(), 10 + len);
    }
    // A refusal is not remembered when the single packets are refused as well.
    let mut tun = T::over(Tun::over(OwnedFd::from(UnixDatagram::unbound().unwrap()).into()));
    let packets: Vec<_> = (0..5).map(|id| datagram(id, 100)).collect();
    let (mut slab, len) = (packets.concat(), packets[0].len());
    let spans: Vec<_> = (0..5).map(|i| Span { offset: i * len, len }).collect();
    assert_eq!(tun.write(&mut slab, &spans).unwrap(), 5, "nobody is there");
}

/// A TCP connection of this host with itself. Every packet passes through the TUN and back.
///
/// The client connects to an address that no host has. The test exchanges both addresses, which leaves the checksums
/// right. The client's packets are then for this host, and the answers return in the same way.
pub(crate) fn a_tcp_stream_passes_both_ways<T: TestTun>() {
    for offload in [true, false] {
        for (here, there) in [("10.9.9.1", "10.9.9.2"), ("fd09::1", "fd09::2")] {
            isolated("a TCP stream", move || {
                let mut tun: T = create("rg-tcp", offload);
                let (here, there): (IpAddr, IpAddr) = (here.parse().unwrap(), there.parse().unwrap());
                let listener = TcpListener::bind((here, 0)).unwrap();
                let port = listener.local_addr().unwrap().port();
                let (mut waiter, waker) = Waiter::new().unwrap();
                let payload: Vec<u8> = (0..4_000_000u32).map(|i| (i % 251) as u8).collect();
                let expected = payload.clone();
                let client = thread::spawn(move || {
                    let mut stream = TcpStream::connect((there, port)).unwrap();
                    stream.write_all(&payload).unwrap();
                });
                let server = thread::spawn(move || receive(&listener, &expected, &waker));

                let before = taken_by_the_host("rg-tcp");
                let Reflected { segments, largest } = reflect(&mut tun, &mut waiter);
                let writes = taken_by_the_host("rg-tcp") - before;
                client.join().unwrap();
                server.join().unwrap();
                if offload {
                    assert!(largest > 10, "a super-packet has up to 47 segments: {largest}");
                    assert!(writes * 4 < segments, "{segments} segments in {writes} writes");
                } else {
                    assert_eq!((largest, writes), (1, segments));
                }
            });
        }
    }
}

/// Receives everything that the first client sends, and calls the waker when all of it has arrived.
fn receive(listener: &TcpListener, expected: &[u8], waker: &Waker) {
    let mut stream = listener.accept().unwrap().0;
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut received = Vec::new();
    stream.read_to_end(&mut received).unwrap();
    assert!(received == expected, "{} of {} bytes, or other ones", received.len(), expected.len());
    waker.wake();
}

/// The packets that passed through.
struct Reflected {
    segments: usize,
    /// The number of segments in the largest super-packet.
    largest: usize,
}

/// Sends all TCP packets back to the host with their addresses exchanged, until it is woken.
fn reflect(tun: &mut impl TunQueue, waiter: &mut Waiter) -> Reflected {
    let mut slab = vec![0; 4 * tun.max_read()];
    let mut reflected = Reflected { segments: 0, largest: 0 };
    loop {
        let (mut spans, mut at) = (Vec::new(), 0);
        while at + tun.max_read() <= slab.len() {
            let Some(segments) = tun.read(&mut slab, at, MTU).unwrap() else { break };
            let packet = &slab[segments.offset..segments.offset + segments.len];
            let (addresses, protocol) = if packet[0] >> 4 == 4 { (12..20, packet[9]) } else { (8..40, packet[6]) };
            if i32::from(protocol) != libc::IPPROTO_TCP {
                continue;
            }
            for span in segments.pieces() {
                let addresses = &mut slab[span.offset..][addresses.clone()];
                addresses.rotate_left(addresses.len() / 2);
                spans.push(span);
            }
            reflected.segments += segments.count;
            reflected.largest = reflected.largest.max(segments.count);
            at += segments.count * segments.stride;
        }
        if spans.is_empty() {
            if !wait(tun, waiter) {
                return reflected;
            }
        } else {
            assert_eq!(tun.write(&mut slab, &spans).unwrap(), 0);
        }
    }
}

/// The number of packets or super-packets that an interface has given to the host.
fn taken_by_the_host(interface: &str) -> usize {
    let counters = fs::read_to_string("/proc/thread-self/net/dev").unwrap();
    let line = counters.lines().find_map(|line| line.trim_start().strip_prefix(&format!("{interface}:"))).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

pub(crate) fn an_interface_deleted_from_outside_surfaces_everywhere<T: TestTun>() {
    isolated("deleting a TUN", || {
        let mut tun: T = create("rg-gone", true);
        let mut slab = vec![0; tun.max_read()];
        // Takes the packets that the kernel sends by itself, so that the queue is empty and the read waits.
        while tun.read(&mut slab, 0, MTU).unwrap().is_some() {}
        ip("link delete dev rg-gone");
        let (mut waiter, _waker) = Waiter::new().unwrap();
        let error = loop {
            assert!(wait(&tun, &mut waiter), "whoever waits must learn of it");
            match tun.read(&mut slab, 0, MTU) {
                Ok(_) => {}
                Err(error) => break error,
            }
        };
        assert_eq!(error.kind(), io::ErrorKind::NotConnected);
        assert!(error.to_string().contains("rg-gone"));
        let error = tun.write(&mut slab, &[Span { offset: 0, len: 20 }]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotConnected);
        assert_eq!(tun.read(&mut slab, 0, MTU).unwrap_err().kind(), io::ErrorKind::NotConnected, "and stays so");
    });
}
