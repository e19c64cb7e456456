//! Tests which flows are moved, and that a kernel moves them.

use super::{
    super::{LANES, Lanes, lane_of},
    *,
};
use rustguard_tun::{
    Span, TunQueue as _,
    namespace::enter_network,
    tun::{Tun, TunOptions},
    wait::Ready,
};
use std::{fs, net::UdpSocket, ops::Range, process::Command};

const UDP: u8 = 17;
const BEGIN: Instant = Instant::from_nanos(1 << 40);

fn v4(options: usize, fragment: [u8; 2], ports: [u16; 2]) -> Vec<u8> {
    let header = 20 + options;
    let mut packet = vec![0; header + 300];
    let len = packet.len() as u16;
    (packet[0], packet[8], packet[9]) = (0x40 | (header / 4) as u8, 64, UDP);
    packet[2..4].copy_from_slice(&len.to_be_bytes());
    packet[6..8].copy_from_slice(&fragment);
    packet[12..20].copy_from_slice(&[10, 9, 9, 1, 10, 9, 9, 2]);
    packet[20..header].fill(1);
    packet[header..header + 2].copy_from_slice(&ports[0].to_be_bytes());
    packet[header + 2..header + 4].copy_from_slice(&ports[1].to_be_bytes());
    let checksum = !sum(&packet[..header]);
    packet[10..12].copy_from_slice(&checksum.to_be_bytes());
    packet
}

fn v6(ports: [u16; 2]) -> Vec<u8> {
    let mut packet = vec![0; 48];
    (packet[0], packet[5], packet[6], packet[23], packet[39]) = (0x60, 8, UDP, 1, 2);
    packet[40..42].copy_from_slice(&ports[0].to_be_bytes());
    packet[42..44].copy_from_slice(&ports[1].to_be_bytes());
    packet
}

fn sum(header: &[u8]) -> u16 {
    let sum: u32 = header.chunks(2).map(|word| u32::from(u16::from_be_bytes([word[0], word[1]]))).sum();
    ((sum & 0xffff) + (sum >> 16)) as u16
}

#[test]
fn a_header_is_of_the_same_flow_and_of_no_packet() {
    for (packet, header) in [
        (v4(0, [0x40, 0], [5, 9]), 20),
        (v4(40, [0, 0], [5, 9]), 60),
        (v4(0, [0x20, 0], [5, 9]), 20),
        (v4(0, [0, 7], [0, 0]), 20),
        (v6([5, 9]), 40),
    ] {
        let mut strays = Strays::new(4);
        let turned = strays.turned(&packet);
        assert_eq!(flow::symmetric_hash(turned), flow::symmetric_hash(&packet));
        assert_eq!(IpHead::parse(turned), None, "it is cut");
        if header < 40 || packet[0] >> 4 == 4 {
            assert_eq!(sum(&turned[..header]), 0xffff, "its checksum is sound");
            assert_eq!((&turned[12..16], &turned[16..20]), (&packet[16..20], &packet[12..16]));
            assert_eq!(turned[6..10], packet[6..10]);
        } else {
            assert_eq!((&turned[8..24], &turned[24..40]), (&packet[24..40], &packet[8..24]));
        }
    }
    let mut strays = Strays::new(4);
    for cut in [v4(0, [0, 0], [5, 9])[..20].to_vec(), v6([5, 9])[..40].to_vec()] {
        assert_eq!(strays.turned(&cut).len(), cut.len());
    }
}

/// Reads `rate` packets a millisecond from a lane, in the milliseconds `time`. Returns when the flow was moved.
fn flood(strays: &mut Strays, packet: &[u8], [lane, own]: [usize; 2], rate: usize, time: Range<u64>) -> Vec<u64> {
    time.filter(|&millisecond| {
        let now = BEGIN + Duration::from_millis(millisecond);
        strays.is_due(lane, rate) && strays.look(packet, lane, own, now).is_some()
    })
    .collect()
}

#[test]
fn a_flood_in_a_lane_that_is_not_its_own_is_moved_and_a_slow_flow_is_not() {
    let packet = v4(0, [0, 0], [5, 9]);
    let mut strays = Strays::new(5);
    assert_eq!(flood(&mut strays, &packet, [0, 2], 50, 0..300), [19, 119, 219]);
    assert!(flood(&mut Strays::new(5), &packet, [0, 2], 9, 0..300).is_empty());
    assert!(flood(&mut Strays::new(5), &[0; 20], [0, 2], 50, 0..300).is_empty(), "no packet");
}

#[test]
fn a_flood_in_its_own_lane_is_moved_where_nothing_answers_it() {
    for (packet, other) in [
        (v6([5, 9]), v6([5, 10])),
        // Fragments, and fragments of another protocol.
        (v4(0, [0, 7], [0, 0]), {
            let mut other = v4(0, [0, 7], [0, 0]);
            other[9] = 1;
            other
        }),
    ] {
        let mut strays = Strays::new(5);
        let moved = flood(&mut strays, &packet, [2, 2], 50, 0..600);
        assert_eq!(moved, [319], "suspected at 19, and looked at once in 100 ms");
        let mut strays = Strays::new(5);
        for hundred in 0..10 {
            let time = 100 * hundred..100 * (hundred + 1);
            assert!(flood(&mut strays, &packet, [2, 2], 50, time).is_empty());
            let answer = answer(&packet);
            strays.answered(&answer, flow::symmetric_hash(&answer));
        }
        // A packet of another flow is no answer.
        strays.answered(&other, flow::symmetric_hash(&other));
        assert_eq!(flood(&mut strays, &packet, [2, 2], 50, 1_000..1_400), [1_319]);
        // Another flow was suspected first, and has ended.
        assert!(flood(&mut strays, &other, [2, 2], 50, 2_000..2_050).is_empty());
        assert_eq!(flood(&mut strays, &packet, [2, 2], 50, 2_050..3_400), [3_319]);
    }
}

fn ip(arguments: &str) {
    let output = Command::new("ip").args(arguments.split(' ')).output().expect("iproute2 is there");
    assert!(output.status.success(), "ip {arguments}: {}", String::from_utf8_lossy(&output.stderr));
}

/// A counter of this network namespace, from `/proc/net/snmp`, `netstat` or `snmp6`.
fn counter(file: &str, group: &str, name: &str) -> u64 {
    let text = fs::read_to_string(format!("/proc/thread-self/net/{file}")).expect("/proc is there");
    if group.is_empty() {
        let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
        return line.trim().parse().unwrap_or_default();
    }
    let mut lines = text.lines().filter_map(|line| line.strip_prefix(group));
    let (names, values) = (lines.next().expect("names"), lines.next().expect("values"));
    let place = names.split(' ').position(|word| word == name).expect("it is counted");
    values.split(' ').nth(place).expect("as many as names").parse().expect("a number")
}

/// Five lanes of an interface; the host is this network namespace.
struct Host {
    lanes: Lanes,
    slab: Vec<u8>,
}

impl Host {
    fn new() -> Self {
        let queues = Tun::create_queues(&TunOptions::new("rg-strays").mtu(1_420), LANES).expect("root may");
        ip("addr add 10.9.9.1/24 dev rg-strays");
        ip("addr add fd09::1/64 dev rg-strays nodad");
        ip("link set rg-strays up");
        let slab = vec![0; queues[0].max_read()];
        Self { lanes: Lanes::of(queues), slab }
    }

    /// Sends datagrams from a socket. Returns their lane, and the start of the last one.
    fn send(&mut self, socket: &UdpSocket, datagrams: usize, len: usize) -> (usize, Vec<u8>) {
        for _ in 0..datagrams {
            socket.send(&vec![7; len]).expect("the interface is up");
        }
        let (mut last, to) = (None, socket.peer_addr().expect("it is connected").ip());
        for lane in 0..self.lanes.count() {
            self.lanes.ask((0..self.lanes.count()).map(|other| other == lane).collect::<Ready>(), false);
            while let Some(read) = self.lanes.read(&mut self.slab, 0, 1_420).expect("the interface is there") {
                let packet = &self.slab[read.offset..read.offset + read.len];
                // The kernel sends IPv6 packets of its own.
                if IpHead::parse(packet).is_some_and(|head| head.destination == to) {
                    assert!(last.as_ref().is_none_or(|(known, _)| *known == lane), "a flow is in one lane");
                    last = Some((lane, packet.to_vec()));
                }
            }
        }
        last.expect("it is sent through the interface")
    }
}

/// Checks that the kernel moves floods from every lane: it sends floods until each lane has had one.
fn moves(len: usize) {
    let mut host = Host::new();
    for (own, to) in [("10.9.9.1", "10.9.9."), ("fd09::1", "fd09::")] {
        let (mut had, last) = ([false; LANES], LANES - 1);
        for n in 2..=99 {
            let socket = UdpSocket::bind((own, 0)).expect("a port is free");
            socket.connect((format!("{to}{n}"), 9)).expect("there is a route");
            let (before, packet) = host.send(&socket, 1, len);
            had[before] = true;
            // A flood in its own lane is moved later; and this test may get no core for a while.
            let moved = (0..100_000).any(|_| host.send(&socket, 100, len).0 == last);
            assert!(moved, "a flood in lane {before}");

            // An answer moves the flood back to its lane, where it stays while there are other answers. Answers to
            // fragments are other flows.
            if let flow @ Some(_) = flow::symmetric_hash(&packet) {
                for _ in 0..20 {
                    let answer = answer(&packet);
                    host.slab[..answer.len()].copy_from_slice(&answer);
                    host.lanes.deliver(&host.slab, Span { offset: 0, len: answer.len() });
                    assert_eq!(host.lanes.flush(&mut host.slab).expect("the interface is there"), 0);
                    assert_eq!(host.send(&socket, 100, len).0, lane_of(flow, last));
                }
            }
            if had == [true; LANES] {
                break;
            }
        }
        assert_eq!(had, [true; LANES], "they are spread");
    }
    let truncated = [counter("netstat", "IpExt:", "InTruncatedPkts"), counter("snmp6", "", "Ip6InTruncatedPkts")];
    assert!(truncated.iter().all(|&count| count > 0), "{truncated:?}");
    let errors = [("Ip:", "InHdrErrors"), ("Ip:", "InAddrErrors"), ("Icmp:", "OutMsgs"), ("Udp:", "InErrors")];
    let errors = errors.map(|(group, name)| counter("snmp", group, name));
    let errors_v6 = ["Ip6InHdrErrors", "Ip6InAddrErrors", "Icmp6OutParmProblems", "Udp6InErrors"];
    assert_eq!(
        (errors, errors_v6.map(|name| counter("snmp6", "", name))),
        ([0; 4], [0; 4]),
        "nothing else was noticed"
    );
}

/// The same packet in the other direction. Its checksums stay correct because words only change places.
fn answer(packet: &[u8]) -> Vec<u8> {
    let mut answer = packet.to_vec();
    let (addresses, ports) = if packet[0] >> 4 == 4 { (12..20, 20..24) } else { (8..40, 40..44) };
    for ends in [addresses, ports] {
        let half = ends.len() / 2;
        answer[ends].rotate_left(half);
    }
    answer
}

fn isolated(test: impl FnOnce() + Send + 'static) {
    let thread = std::thread::spawn(move || match enter_network() {
        Ok(()) => test(),
        Err(error) => println!("skipped: no network namespace ({error}); run as root or under `unshare -Ur`"),
    });
    if let Err(panic) = thread.join() {
        std::panic::resume_unwind(panic);
    }
}

#[test]
fn a_kernel_gives_floods_another_lane_and_answers_their_own() {
    isolated(|| moves(100));
}

#[test]
fn a_kernel_gives_fragments_another_lane() {
    isolated(|| moves(3_000));
}
