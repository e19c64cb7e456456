use crate::{
    Endpoint, Network, Span,
    namespace::isolated,
    testing::{
        PATIENCE,
        udp::{here, open, transmit},
    },
    udp::{Udp, UdpOptions},
    wait::Waiter,
};
use std::{io, net::IpAddr};

const MAIN: [&str; 2] = ["127.0.0.1", "::1"];

fn bind(workers: usize) -> Vec<Udp> {
    Udp::bind_queues(&UdpOptions::default().lanes(true), workers).unwrap()
}

/// The start of a transport message of a lane.
fn data(lane: u8) -> Vec<u8> {
    let mut data = vec![7; 48];
    data[..4].copy_from_slice(&[4, 0, 0, 0]);
    data[15] = lane;
    data
}

/// The worker that receives a datagram, and the sender's endpoint.
fn heard_by(sender: &mut Udp, ip: &str, all: &mut [Udp], bytes: &[u8]) -> (usize, Endpoint) {
    let to = here(ip, &all[0]);
    assert_eq!(sender.send(bytes, &[transmit(to, None, Span { offset: 0, len: bytes.len() })]).sent, 1);
    let (mut waiter, _waker) = Waiter::new().unwrap();
    let mut slab = vec![0; all[0].recv_slab_len()];
    loop {
        for (n, udp) in all.iter_mut().enumerate() {
            let mut received = Vec::new();
            udp.recv(&mut slab, &mut received).unwrap();
            if let Some(first) = received.first() {
                assert_eq!(&slab[..first.segments.last_len], bytes);
                return (n, first.from);
            }
        }
        assert!(waiter.wait(all.iter().flat_map(Network::fds), Some(PATIENCE)).unwrap().ready, "nobody has heard it");
    }
}

/// The kernel's hash of the sender does not matter.
#[test]
fn the_lane_chooses_the_worker() {
    for workers in [2, 3, 9] {
        let mut all = bind(workers);
        for ip in MAIN.into_iter().take(if all[0].has_ipv6() { 2 } else { 1 }) {
            for _ in 0..6 {
                let mut sender: Udp = open();
                for lane in 1..=8 {
                    let (worker, _) = heard_by(&mut sender, ip, &mut all, &data(lane));
                    assert_eq!(worker, usize::from(lane - 1) % workers, "lane {lane} of {workers} from {ip}");
                }
            }
        }
    }
}

#[test]
fn everything_else_is_left_to_the_kernel() {
    let mut all = bind(2);
    let mut counts = [0; 2];
    for _ in 0..32 {
        let mut sender: Udp = open();
        let mut worker = |bytes: &[u8]| heard_by(&mut sender, MAIN[0], &mut all, bytes).0;
        let of_sender = worker(b"hello");
        counts[of_sender] += 1;
        let handshake = [&[1, 0, 0, 0][..], &[1; 144]].concat();
        for other in [&data(0), &data(9), &data(0x80), &data(0x81), &data(255), &data(1)[..15].to_vec(), &handshake] {
            assert_eq!(worker(other), of_sender, "{other:?}");
        }
    }
    assert!(counts[0] > 0 && counts[1] > 0, "{counts:?}");
}

/// With an address to listen at, sockets of single senders are members of the same group.
#[test]
fn sockets_of_single_senders_and_the_program_go_together() {
    for addresses in [vec![], vec![MAIN[0].parse::<IpAddr>().unwrap()]] {
        let options = UdpOptions::default().lanes(true).addresses(addresses);
        let mut all = Udp::bind_queues(&options, 2).unwrap();
        // The senders stay open: a sender with the port of an earlier one would be received by the earlier sender's
        // socket.
        let mut earlier = Vec::new();
        for round in 0..4_u8 {
            let mut senders: Vec<Udp> = (0..6).map(|_| open()).collect();
            for (n, sender) in (0_u8..).zip(&mut senders) {
                let lane = 1 + n % 2;
                let (worker, from) = heard_by(sender, MAIN[0], &mut all, &data(lane));
                assert_eq!(worker, usize::from(lane - 1));
                // Later sockets take the places of earlier ones, which are closed.
                all[worker].separate(&from, u64::from(round % 2));
            }
            for (n, sender) in (0_u8..).zip(&mut senders) {
                assert_eq!(heard_by(sender, MAIN[0], &mut all, &data(1 + n % 2)).0, usize::from(n % 2));
            }
            let mut new: Udp = open();
            for lane in 1..=8 {
                assert_eq!(heard_by(&mut new, MAIN[0], &mut all, &data(lane)).0, usize::from(lane - 1) % 2);
            }
            earlier.append(&mut senders);
        }
    }
}

#[test]
fn a_lane_sends_from_its_own_port_and_hears_nothing() {
    let mut ours = bind(2);
    let lanes = [0, 1].map(|n| ours[n].lane().unwrap());
    assert_eq!(lanes.map(|lane| (lane.number, lane.workers)), [(1, 2), (2, 2)]);
    let mut theirs = [open::<Udp>()];
    for (udp, lane) in ours.iter_mut().zip(lanes) {
        for ip in MAIN.into_iter().take(if udp.has_ipv6() { 2 } else { 1 }) {
            for by_clone in [false, true] {
                let mut clone = udp.try_clone().unwrap();
                assert_eq!(clone.lane(), Some(lane));
                for (local_port, from) in [(lane.port, lane.port), (0, udp.port()), (udp.port(), udp.port())] {
                    let mut message = transmit(here(ip, &theirs[0]), None, Span { offset: 0, len: 5 });
                    message.to.local_port = local_port;
                    let sender = if by_clone { &mut clone } else { &mut *udp };
                    assert_eq!(sender.send(b"hello", &[message, message]).sent, 2);
                    let received = crate::testing::udp::receive_all(&mut theirs[0], 2);
                    assert!(received.iter().all(|(at, _)| at.remote.port() == from));
                }
            }
            let to = std::net::SocketAddr::new(ip.parse().unwrap(), lane.port);
            assert_eq!(theirs[0].send(&data(1), &[transmit(to, None, Span { offset: 0, len: 48 })]).sent, 1);
            let pair = &udp.lane.as_ref().unwrap().pair;
            for socket in pair.iter() {
                let error = socket.peek_sender().unwrap_err();
                assert_eq!(error.kind(), io::ErrorKind::WouldBlock, "it was dropped");
            }
        }
        assert_eq!(udp.fds().count(), if udp.has_ipv6() { 2 } else { 1 }, "nobody waits for it");
    }
}

#[test]
fn a_lanes_port_has_the_mark() {
    isolated("the mark of lanes", || {
        let udp = &Udp::bind_queues(&UdpOptions::default().lanes(true).fwmark(7), 2).unwrap()[1];
        let marks = || udp.lane.as_ref().unwrap().pair.iter().map(|socket| socket.mark().unwrap()).collect::<Vec<_>>();
        assert!(!marks().is_empty() && marks().iter().all(|mark| *mark == 7));
        udp.set_fwmark(9).unwrap();
        assert!(marks().iter().all(|mark| *mark == 9));
    });
}

#[test]
fn one_worker_has_no_lane_and_there_are_eight_at_most() {
    assert_eq!(bind(1)[0].lane(), None);
    assert_eq!(Udp::bind_queues(&UdpOptions::default(), 2).unwrap()[1].lane(), None, "nobody wants any");
    let all = bind(9);
    let numbers: Vec<_> = all.iter().map(|udp| udp.lane().map(|lane| lane.number)).collect();
    assert_eq!(numbers[..8], (1..=8).map(Some).collect::<Vec<_>>());
    assert_eq!(numbers[8], None);
}
