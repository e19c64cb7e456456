//! Test bodies for sockets, over loopback.
use super::PATIENCE;
use crate::{
    Endpoint, LocalAddr, Network, Received, Segments, Sent, Span, Transmit,
    namespace::isolated,
    sys,
    tun::{Tun, TunOptions},
    udp::{BATCH, Udp, UdpOptions},
    wait::Waiter,
};
use std::{
    fs,
    net::{IpAddr, Ipv6Addr, SocketAddr},
};

/// A backend of sockets.
pub(crate) trait TestUdp: Network + Sized {
    fn over(udp: Udp) -> Self;
    fn udp(&self) -> &Udp;
}

impl TestUdp for Udp {
    fn over(udp: Udp) -> Self {
        udp
    }

    fn udp(&self) -> &Udp {
        self
    }
}

pub(crate) fn open<N: TestUdp>() -> N {
    N::over(Udp::bind(&UdpOptions::default()).unwrap())
}

pub(crate) fn transmit(remote: impl Into<SocketAddr>, local: Option<LocalAddr>, span: Span) -> Transmit {
    let Span { offset, len } = span;
    let segments = Segments { offset, stride: len, count: 1, len, last_len: len };
    Transmit { to: Endpoint { local, ..Endpoint::new(remote.into()) }, segments, ds: 0 }
}

/// Receives until `count` datagrams are there. Returns the endpoint and the bytes of each.
pub(crate) fn receive_all(udp: &mut impl Network, count: usize) -> Vec<(Endpoint, Vec<u8>)> {
    receive_by_any(std::slice::from_mut(udp), count)
}

/// As `receive_all`, for queues of the same ports: the kernel chooses the queue for each datagram.
fn receive_by_any(queues: &mut [impl Network], count: usize) -> Vec<(Endpoint, Vec<u8>)> {
    let mut slab = vec![0; queues[0].recv_slab_len()];
    let (mut waiter, _waker) = Waiter::new().unwrap();
    let mut all = Vec::new();
    while all.len() < count {
        let before = all.len();
        for udp in &mut *queues {
            let mut received = Vec::new();
            udp.recv(&mut slab, &mut received).unwrap();
            for Received { from, segments, .. } in received {
                all.extend(segments.pieces().map(|at| (from, slab[at.offset..at.offset + at.len].to_vec())));
            }
        }
        if all.len() == before {
            let wake = waiter.wait(queues.iter().flat_map(Network::fds), Some(PATIENCE)).unwrap();
            assert!(wake.ready, "{} of {count} datagrams came", all.len());
        }
    }
    all
}

pub(crate) fn here(ip: &str, udp: &impl TestUdp) -> SocketAddr {
    SocketAddr::new(ip.parse().unwrap(), udp.udp().port())
}

pub(crate) fn local(ip: &str) -> Option<LocalAddr> {
    Some(LocalAddr { ip: ip.parse().unwrap(), interface: 0, bound: false })
}

pub(crate) fn sysctl(path: &str, value: &str) {
    fs::write(format!("/proc/sys/net/{path}"), value).unwrap();
}

pub(crate) fn run_to(to: SocketAddr, len: usize, count: usize, last_len: usize) -> Transmit {
    let segments = Segments { offset: 0, stride: len, count, len, last_len };
    Transmit { to: Endpoint::new(to), segments, ds: 0 }
}

pub(crate) fn datagrams_of_every_length_pass<N: TestUdp>() {
    let (mut ours, mut theirs) = (open::<N>(), open::<N>());
    let slab: Vec<u8> = (0..65_507u32).map(|i| (i % 251) as u8).collect();
    let to = here("127.0.0.1", &theirs);
    // All short lengths, then every 97th, then the longest.
    let lengths: Vec<_> = (0..2_000).chain((2_000..65_507).step_by(97)).chain([65_506, 65_507]).collect();
    for lengths in lengths.chunks(50) {
        let batch: Vec<_> = lengths.iter().map(|&len| transmit(to, None, Span { offset: 0, len })).collect();
        assert_eq!(ours.send(&slab, &batch), Sent { sent: lengths.len(), ..Sent::default() });
        for (&len, (from, bytes)) in lengths.iter().zip(receive_all(&mut theirs, lengths.len())) {
            assert_eq!(from.remote, here("127.0.0.1", &ours));
            assert_eq!(from.local.unwrap().ip, to.ip());
            assert!(bytes == slab[..len], "{len} bytes arrived as {}", bytes.len());
        }
    }
}

pub(crate) fn pieces_of_many_transmits_arrive_in_order<N: TestUdp>() {
    let (mut ours, mut theirs) = (open::<N>(), open::<N>());
    let slab: Vec<u8> = (0..200).collect();
    let to = Endpoint::new(here("127.0.0.1", &theirs));
    let segments = |offset, count| Segments { offset, stride: 2, count, len: 2, last_len: 1 };
    let batch =
        [Transmit { to, segments: segments(0, 70), ds: 0 }, Transmit { to, segments: segments(140, 30), ds: 0 }];
    assert_eq!(ours.send(&slab, &batch).sent, 100);
    let received = receive_all(&mut theirs, 100);
    for (i, (_, bytes)) in received.iter().enumerate() {
        let len = if i == 69 || i == 99 { 1 } else { 2 };
        assert_eq!(*bytes, slab[2 * i..2 * i + len]);
    }
}

pub(crate) fn runs_of_every_shape_arrive_as_they_were_cut<N: TestUdp>() {
    isolated("runs of datagrams", || {
        let (mut ours, mut theirs) = (open::<N>(), open::<N>());
        let slab: Vec<u8> = (0..300_000u32).map(|i| (i % 251) as u8).collect();
        for ip in ["127.0.0.1", "::1"] {
            for (len, count, last) in [
                (1, 200, 1),
                (100, 64, 99),
                (100, 65, 100),
                (1_452, 45, 3),
                (1_452, 46, 1_452),
                (30_000, 5, 1),
                (65_507, 2, 9),
                (7, 3, 0),
            ] {
                let run = run_to(here(ip, &theirs), len, count, last);
                assert_eq!(ours.send(&slab, &[run]), Sent { sent: count, ..Sent::default() }, "{len} x {count}");
                let received = receive_all(&mut theirs, count);
                for ((from, bytes), at) in received.iter().zip(run.segments.pieces()) {
                    assert_eq!(from.remote, here(ip, &ours));
                    assert!(*bytes == slab[at.offset..at.offset + at.len], "{len} x {count}");
                }
            }
        }
    });
}

/// Each datagram has its own codepoint, also in runs.
pub(crate) fn congestion_notification_passes<N: TestUdp>() {
    isolated("the DS field", || {
        let (mut ours, mut theirs) = (open::<N>(), open::<N>());
        let slab = vec![7; 2_000];
        for ip in ["127.0.0.1", "::1"] {
            let to = here(ip, &theirs);
            let fields = [0, 1, 2, 3, 0x88, 0x8a, 0xff, 0];
            let with = |ds, count| Transmit { ds, ..run_to(to, 100, count, 100) };
            let batch: Vec<_> = fields.iter().flat_map(|&ds| [with(ds, 1), with(ds, 3)]).collect();
            // The same with a local address: three control messages in all.
            let local = LocalAddr { ip: to.ip(), interface: 0, bound: false };
            let from =
                |transmit: &Transmit| Transmit { to: Endpoint { local: Some(local), ..transmit.to }, ..*transmit };
            let batch: Vec<_> = batch.iter().copied().chain(batch.iter().map(from)).collect();
            assert_eq!(ours.send(&slab, &batch).sent, 64);
            let (mut buffer, mut codepoints) = (vec![0; theirs.recv_slab_len()], Vec::new());
            let (mut waiter, _waker) = Waiter::new().unwrap();
            while codepoints.len() < 64 {
                let mut received = Vec::new();
                theirs.recv(&mut buffer, &mut received).unwrap();
                if received.is_empty() {
                    assert!(waiter.wait(theirs.fds(), Some(PATIENCE)).unwrap().ready, "{codepoints:?}");
                }
                codepoints.extend(received.iter().flat_map(|r| vec![r.ecn; r.segments.count]));
            }
            let expected = fields.iter().chain(&fields).flat_map(|ds| [ds & 3; 4]);
            assert_eq!(codepoints, expected.collect::<Vec<_>>(), "{ip}");
        }
    });
}

pub(crate) fn runs_come_in_one_piece_where_the_kernel_does_that<N: TestUdp>() {
    isolated("runs received", || {
        let (mut ours, mut theirs) = (open::<N>(), open::<N>());
        ours.send(&[1; 9_000], &[run_to(here("127.0.0.1", &theirs), 1_000, 9, 500)]);
        let (mut slab, mut received) = (vec![0; theirs.recv_slab_len()], Vec::new());
        theirs.recv(&mut slab, &mut received).unwrap();
        let segments = Segments { offset: 0, stride: 1_000, count: 9, len: 1_000, last_len: 500 };
        assert_eq!(received.iter().map(|r| r.segments).collect::<Vec<_>>(), [segments]);
    });
}

pub(crate) fn both_families_share_a_port_and_are_drained_fairly<N: TestUdp>() {
    isolated("both families", || {
        let (mut ours, mut theirs) = (open::<N>(), open::<N>());
        assert!(theirs.udp().has_ipv6());
        let one = Span { offset: 0, len: 1 };
        let v4 = transmit(here("127.0.0.1", &theirs), None, one);
        let v6 = transmit(here("::1", &theirs), None, one);
        let mut batch = vec![v4; 2 * BATCH];
        batch.push(v6);
        assert_eq!(ours.send(&[1], &batch).sent, batch.len());
        let (mut slab, mut received) = (vec![0; theirs.recv_slab_len()], Vec::new());
        for _ in 0..8 {
            theirs.recv(&mut slab, &mut received).unwrap();
        }
        assert!(received.iter().any(|r| r.from.remote.is_ipv6()), "a flood of IPv4 must not starve IPv6");
        receive_all(&mut theirs, batch.len() - received.len());
        // All slots have held IPv4 addresses now, which are shorter.
        assert_eq!(ours.send(&[1], &[v6]).sent, 1);
        for _ in 0..2 {
            let (from, _) = receive_all(&mut theirs, 1)[0];
            assert_eq!(from.remote, here("::1", &ours));
            assert_eq!(from.local.unwrap().ip, IpAddr::V6(Ipv6Addr::LOCALHOST));
            assert_eq!(ours.send(&[1], &[v6]).sent, 1);
        }
    });
}

pub(crate) fn a_bad_datagram_in_mid_batch_fails_alone<N: TestUdp>() {
    isolated("a bad destination", || {
        // The namespace has only the route of the loopback: 192.0.2.1 is unreachable. No program is at port 9, so
        // datagrams to it are refused (ICMP).
        let (mut ours, mut theirs) = (open::<N>(), open::<N>());
        let to = here("127.0.0.1", &theirs);
        let slab = vec![7; 70_000];
        let one = |i| transmit(to, None, Span { offset: 0, len: i });
        let nowhere = transmit("192.0.2.1:1".parse::<SocketAddr>().unwrap(), None, Span { offset: 0, len: 1 });
        let too_long = transmit(to, None, Span { offset: 0, len: 65_508 });
        let refused = transmit("127.0.0.1:9".parse::<SocketAddr>().unwrap(), None, Span { offset: 0, len: 1 });
        let batch = [one(1), nowhere, one(2), too_long, too_long, one(3), refused, one(4), nowhere];
        for _ in 0..3 {
            assert_eq!(ours.send(&slab, &batch), Sent { sent: 5, failed: 4, source_lost: 0 });
            let lengths: Vec<_> = receive_all(&mut theirs, 4).iter().map(|(_, bytes)| bytes.len()).collect();
            assert_eq!(lengths, [1, 2, 3, 4]);
        }
        // A run that cannot be sent counts as many failures as it has datagrams.
        let run = run_to("192.0.2.1:1".parse().unwrap(), 100, 40, 7);
        assert_eq!(ours.send(&slab, &[one(1), run]), Sent { sent: 1, failed: 40, source_lost: 0 });
        assert_eq!(receive_all(&mut theirs, 1).len(), 1);
        // Earlier failures do not appear as errors of receiving.
        let mut received = Vec::new();
        ours.recv(&mut vec![0; ours.recv_slab_len()], &mut received).unwrap();
        assert_eq!(received, []);
    });
}

pub(crate) fn replies_leave_from_the_address_that_was_addressed<N: TestUdp>() {
    isolated("sticky source", || {
        let (mut ours, mut theirs) = (open::<N>(), open::<N>());
        let empty = Span { offset: 0, len: 0 };
        assert_eq!(ours.send(&[], &[transmit(here("127.0.0.2", &theirs), None, empty)]).sent, 1);
        let (from, _) = receive_all(&mut theirs, 1)[0];
        assert_eq!(from.local.unwrap().ip, "127.0.0.2".parse::<IpAddr>().unwrap());
        assert_eq!(theirs.send(&[], &[transmit(from.remote, from.local, empty)]).sent, 1);
        let (reply, _) = receive_all(&mut ours, 1)[0];
        assert_eq!(reply.remote, here("127.0.0.2", &theirs));
    });
}

pub(crate) fn a_source_that_moved_away_is_left_out<N: TestUdp>() {
    isolated("a lost source", || {
        let (mut ours, mut theirs) = (open::<N>(), open::<N>());
        let one = |i| Span { offset: 0, len: i };
        for (ip, gone) in [("127.0.0.1", "192.0.2.7"), ("::1", "2001:db8::7")] {
            let to = here(ip, &theirs);
            let with = transmit(to, local(gone), Span { offset: 0, len: 2 });
            let batch = [transmit(to, None, one(1)), with, with, transmit(to, local(ip), one(3)), with];
            let expected = Sent { sent: 5, failed: 0, source_lost: 3 };
            assert_eq!(ours.send(&[0; 4], &batch), expected, "{ip}");
            for (from, _) in receive_all(&mut theirs, 5) {
                assert_eq!(from.remote, here(ip, &ours));
            }
        }
        // Without a route, the datagram fails with and without a source.
        let nowhere = transmit("198.51.100.1:1".parse::<SocketAddr>().unwrap(), local("192.0.2.7"), one(1));
        assert_eq!(ours.send(&[0], &[nowhere]), Sent { sent: 0, failed: 1, source_lost: 0 });
        // An interface that was asked for is not replaced by another. The first interface of a namespace is the
        // loopback.
        let bound = |interface| Some(LocalAddr { ip: "0.0.0.0".parse().unwrap(), interface, bound: true });
        let by = |interface| transmit(here("127.0.0.1", &theirs), bound(interface), one(1));
        let expected = Sent { sent: 1, failed: 1, source_lost: 0 };
        assert_eq!(ours.send(&[0], &[by(1), by(999)]), expected);
        // A source of the other address family is ignored.
        let odd = transmit(here("127.0.0.1", &theirs), local("::1"), one(1));
        assert_eq!(ours.send(&[0], &[odd]), Sent { sent: 1, failed: 0, source_lost: 0 });
    });
}

pub(crate) fn hosts_with_ipv6_disabled_run_on_ipv4<N: TestUdp>() {
    isolated("IPv6 disabled", || {
        sysctl("ipv6/conf/all/disable_ipv6", "1");
        sysctl("ipv6/conf/default/disable_ipv6", "1");
        let (mut ours, mut theirs) = (open::<N>(), open::<N>());
        let one = Span { offset: 0, len: 1 };
        let v6 = transmit("[2001:db8::1]:1".parse::<SocketAddr>().unwrap(), None, one);
        let v4 = transmit(here("127.0.0.1", &theirs), None, one);
        assert_eq!(ours.send(&[0], &[v6, v4]), Sent { sent: 1, failed: 1, source_lost: 0 });
        assert_eq!(receive_all(&mut theirs, 1).len(), 1);
    });
}

pub(crate) fn a_full_socket_buffer_drops_a_peers_run_and_holds_up_nobody<N: TestUdp>() {
    isolated("a full buffer", || {
        // An interface whose queue hardly drains: one byte per second.
        let _tun = Tun::create(&TunOptions::new("slow")).unwrap();
        for command in [
            "tc qdisc add dev slow root tbf rate 8bit burst 2000 limit 100000000",
            "ip address add 10.7.0.1/24 dev slow",
            "ip link set slow up",
        ] {
            let (program, arguments) = command.split_once(' ').expect("it has arguments");
            assert!(super::run(program, arguments).status.success(), "{command}");
        }
        let mut udp = open::<N>();
        let small = 4_096;
        for socket in udp.udp().fds() {
            sys::set_option(socket, libc::SOL_SOCKET, libc::SO_SNDBUF, small).unwrap();
        }
        let to = "10.7.0.2:1".parse::<SocketAddr>().unwrap();
        let batch = [transmit(to, None, Span { offset: 0, len: 1_000 }); 2 * BATCH];
        let sent = udp.send(&[0; 1_000], &batch);
        assert_eq!(sent.sent + sent.failed, batch.len());
        assert!(sent.failed > 0 && sent.sent > 0, "{sent:?}");
    });
}

/// The kernel refuses segments that exceed the MTU, and fragments single datagrams that exceed it.
pub(crate) fn a_run_the_kernel_refuses_goes_singly_and_the_next_is_a_run_again<N: TestUdp>() {
    isolated("a small MTU", || {
        fs::write("/sys/class/net/lo/mtu", "1400").unwrap();
        let (mut ours, mut theirs) = (open::<N>(), open::<N>());
        let to = here("127.0.0.1", &theirs);
        let batch = [run_to(to, 100, 3, 50), run_to(to, 2_000, 5, 7), run_to(to, 100, 4, 100)];
        assert_eq!(ours.send(&[3; 10_000], &batch), Sent { sent: 12, ..Sent::default() });
        let lengths: Vec<_> = receive_all(&mut theirs, 12).iter().map(|(_, bytes)| bytes.len()).collect();
        assert_eq!(lengths, [100, 100, 50, 2_000, 2_000, 2_000, 2_000, 7, 100, 100, 100, 100]);
        let mut ours = N::over(Udp::bind(&UdpOptions::default().offload(false)).unwrap());
        assert_eq!(ours.send(&[3; 10_000], &batch), Sent { sent: 12, ..Sent::default() });
        assert_eq!(receive_all(&mut theirs, 12).len(), 12, "a kernel without segmentation");
    });
}

/// Several ports on two queues: each datagram tells its port, and the answer leaves from there, with and without a
/// source. A peer whose port is not known gets everything from one port.
pub(crate) fn several_ports_are_heard_and_answer_each_for_itself<N: TestUdp>() {
    isolated("several ports", || {
        let ports = [7_000, 7_001, 7_002];
        let options = UdpOptions::new(ports[0]).more_ports(ports[1..].iter().copied());
        let mut queues: Vec<N> = Udp::bind_queues(&options, 2).unwrap().into_iter().map(N::over).collect();
        assert!(queues[0].udp().ports().eq(ports));
        assert!(queues[0].udp().try_clone().unwrap().ports().eq(ports));
        for ip in ["127.0.0.1", "::1"] {
            let mut theirs = open::<Udp>();
            let empty = Span { offset: 0, len: 0 };
            let batch = ports.map(|port| transmit(SocketAddr::new(ip.parse().unwrap(), port), None, empty));
            assert_eq!(theirs.send(&[], &batch).sent, 3);
            let mut heard: Vec<_> = receive_by_any(&mut queues, 3).into_iter().map(|(from, _)| from).collect();
            let ours = &mut queues[1];
            heard.sort_by_key(|from| from.local_port);
            assert!(heard.iter().map(|from| from.local_port).eq(ports), "{heard:?}");
            // Alternately to different sockets, in one batch.
            let answer = |to: Endpoint| Transmit { to, ..transmit(to.remote, None, empty) };
            let answers: Vec<_> = [2, 0, 1, 0].map(|n| answer(heard[n])).to_vec();
            assert_eq!(ours.send(&[], &answers), Sent { sent: 4, ..Sent::default() });
            let mut from: Vec<_> = receive_all(&mut theirs, 4).iter().map(|(from, _)| from.remote.port()).collect();
            from.sort_unstable();
            assert_eq!(from, [7_000, 7_000, 7_001, 7_002]);
            let forgotten = Endpoint { local: None, ..heard[1] };
            assert_eq!(ours.send(&[], &[answer(forgotten)]).sent, 1);
            assert_eq!(receive_all(&mut theirs, 1)[0].0.remote.port(), 7_001);
            let unknown = answer(Endpoint::new(heard[0].remote));
            assert_eq!(ours.send(&[], &[unknown; 5]).sent, 5);
            let from: Vec<_> = receive_all(&mut theirs, 5).iter().map(|(from, _)| from.remote.port()).collect();
            assert!(ports.contains(&from[0]) && from.iter().all(|port| *port == from[0]), "{from:?}");
        }
    });
}
