//! Tests of sockets over loopback, and of errors of the kernel.

use super::{bind::port_of, *};
use crate::{
    namespace::isolated,
    testing::{
        udp::{self as testing, here, receive_all, run_to, transmit},
        without_children,
    },
};
use socket2::Domain;
use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::atomic::{AtomicBool, AtomicU32, Ordering},
};

fn open() -> Udp {
    testing::open()
}

#[test]
fn datagrams_of_every_length_pass() {
    testing::datagrams_of_every_length_pass::<Udp>();
}

#[test]
fn pieces_of_many_transmits_arrive_in_order() {
    testing::pieces_of_many_transmits_arrive_in_order::<Udp>();
}

#[test]
fn runs_of_every_shape_arrive_as_they_were_cut() {
    testing::runs_of_every_shape_arrive_as_they_were_cut::<Udp>();
}

#[test]
fn congestion_notification_passes() {
    testing::congestion_notification_passes::<Udp>();
}

#[test]
fn runs_come_in_one_piece_where_the_kernel_does_that() {
    testing::runs_come_in_one_piece_where_the_kernel_does_that::<Udp>();
}

#[test]
fn both_families_share_a_port_and_are_drained_fairly() {
    testing::both_families_share_a_port_and_are_drained_fairly::<Udp>();
}

#[test]
fn a_bad_datagram_in_mid_batch_fails_alone() {
    testing::a_bad_datagram_in_mid_batch_fails_alone::<Udp>();
}

#[test]
fn replies_leave_from_the_address_that_was_addressed() {
    testing::replies_leave_from_the_address_that_was_addressed::<Udp>();
}

#[test]
fn a_source_that_moved_away_is_left_out() {
    testing::a_source_that_moved_away_is_left_out::<Udp>();
}

#[test]
fn hosts_with_ipv6_disabled_run_on_ipv4() {
    testing::hosts_with_ipv6_disabled_run_on_ipv4::<Udp>();
}

#[test]
fn a_full_socket_buffer_drops_a_peers_run_and_holds_up_nobody() {
    testing::a_full_socket_buffer_drops_a_peers_run_and_holds_up_nobody::<Udp>();
}

#[test]
fn a_run_the_kernel_refuses_goes_singly_and_the_next_is_a_run_again() {
    testing::a_run_the_kernel_refuses_goes_singly_and_the_next_is_a_run_again::<Udp>();
}

#[test]
fn a_message_has_at_most_64_datagrams_and_65507_bytes() {
    let longest = |len, stride, last_len| longest_run(&Segments { offset: 0, stride, count: 100, len, last_len });
    assert_eq!([longest(1, 1, 1), longest(1_023, 1_023, 9), longest(1_024, 1_024, 9)], [64, 64, 63]);
    assert_eq!([longest(1_452, 1_452, 1), longest(65_507, 65_507, 1)], [45, 1]);
    assert_eq!([longest(100, 116, 100), longest(7, 7, 0), longest(0, 0, 0)], [1, 1, 1], "gaps, empty datagrams");
    assert_eq!(run_of(5, 0, None), Segments { offset: 5, stride: 0, count: 1, len: 0, last_len: 0 });
    assert_eq!(run_of(5, 9, Some(0)).count, 1);
    assert_eq!(run_of(5, 9, Some(3)), Segments { offset: 5, stride: 3, count: 3, len: 3, last_len: 3 });
}

/// The kernel is asked once about each peer's run, and not again, with either error.
#[test]
fn what_a_full_buffer_refuses_is_dropped_run_by_run_without_waiting() {
    let mut udp = open();
    let at = |n: u8| SocketAddr::from(([192, 0, 2, n], 1));
    let run = |n: u8, count: usize| {
        let segments = Segments { offset: 0, stride: 100, count, len: 100, last_len: 100 };
        Transmit { to: Endpoint::new(at(n)), segments, ds: 0 }
    };
    let batch = [run(1, 64), run(1, 64), run(1, 3), run(2, 5), run(1, 7), run(2, 1)];
    for refusal in [libc::EAGAIN, libc::ENOBUFS] {
        let mut asked = Vec::new();
        let sent = udp.send_by(&[0; 6_400], &batch, &mut |_, _, _, messages| {
            asked.push(messages[0].to);
            // The link to 192.0.2.1 is saturated.
            let taken = messages.iter().take_while(|message| message.to == at(2)).count();
            if taken > 0 { Ok(taken) } else { Err(io::Error::from_raw_os_error(refusal)) }
        });
        assert_eq!(sent, Sent { sent: 6, failed: 138, source_lost: 0 });
        assert_eq!(asked, [at(1), at(2), at(1), at(2)]);
    }
}

#[test]
fn without_offload_no_run_is_sent_nor_received() {
    isolated("datagrams singly", || {
        let (mut with, mut without) = (open(), Udp::bind(&UdpOptions::default().offload(false)).unwrap());
        let mut clone = without.try_clone().unwrap();
        for ip in ["127.0.0.1", "::1"] {
            let run = |to: &Udp| [run_to(here(ip, to), 1_000, 9, 500)];
            let (to_us, to_them) = (run(&without), run(&with));
            let all = Sent { sent: 9, ..Sent::default() };
            assert_eq!(with.send(&[1; 9_000], &to_us), all);
            assert_eq!(counts(&mut without, 9), [1; 9]);
            assert_eq!(without.send(&[1; 9_000], &to_them), all);
            assert_eq!(counts(&mut with, 9), [1; 9]);
            assert_eq!(clone.send(&[1; 9_000], &to_them), all);
            assert_eq!(counts(&mut with, 9), [1; 9]);
        }
    });
}

/// The number of datagrams in each received piece. Over loopback, a datagram has arrived once it was sent.
fn counts(udp: &mut Udp, datagrams: usize) -> Vec<usize> {
    let (mut slab, mut received) = (vec![0; udp.recv_slab_len()], Vec::new());
    while received.iter().map(|r: &Received| r.segments.count).sum::<usize>() < datagrams {
        let before = received.len();
        udp.recv(&mut slab, &mut received).unwrap();
        udp.recv(&mut slab, &mut received).unwrap();
        assert!(received.len() > before, "datagrams are missing");
    }
    received.iter().map(|r| r.segments.count).collect()
}

#[test]
fn handles_share_sockets_and_their_errors_are_not_the_receivers() {
    isolated("two handles", || {
        let mut worker = open();
        let mut control = worker.try_clone().unwrap();
        assert_eq!(worker.port(), control.port());
        let to = here("127.0.0.1", &worker);
        let slab = vec![0; 70_000];
        let (good, bad) =
            (transmit(to, None, Span { offset: 0, len: 1 }), transmit(to, None, Span { offset: 0, len: 65_508 }));
        for _ in 0..20 {
            assert_eq!(control.send(&slab, &[good, bad, good]).sent, 2);
            assert_eq!(receive_all(&mut worker, 2).len(), 2);
        }
        // With IP_RECVERR, the kernel leaves the error on the socket that no program was at port 9.
        let v4 = control.pairs[0].v4.as_ref().unwrap();
        sys::set_option(v4, libc::IPPROTO_IP, libc::IP_RECVERR, 1).unwrap();
        let nobody = transmit("127.0.0.1:9".parse::<SocketAddr>().unwrap(), None, Span { offset: 0, len: 1 });
        let one = Sent { sent: 1, ..Sent::default() };
        assert_eq!(control.send(&slab, &[nobody]), one);
        assert_eq!(worker.send(&slab, &[good]), one, "the error is not that of another datagram");
        assert_eq!(control.send(&slab, &[nobody]), one);
        assert_eq!(receive_all(&mut worker, 1).len(), 1, "nor the receiver's");
    });
}

/// A namespace cannot have a kernel that lacks an address family, so the test simulates its answers.
#[test]
fn a_missing_family_is_left_out() {
    let missing = |family| {
        move |domain, port| match domain == family {
            true => Err(io::Error::from_raw_os_error(libc::EAFNOSUPPORT)),
            false => bind(domain, port, &UdpOptions::default(), Claim::Alone),
        }
    };
    let pair = bind_pair(0, missing(Domain::IPV6)).unwrap();
    assert!(pair.v4.is_some() && pair.v6.is_none() && pair.port != 0);
    let mut only_v4 = Udp::new(vec![pair], true);
    let v6 = transmit("[::1]:1".parse::<SocketAddr>().unwrap(), None, Span { offset: 0, len: 1 });
    assert_eq!(only_v4.send(&[0], &[v6, v6]), Sent { sent: 0, failed: 2, source_lost: 0 });
    assert_eq!(only_v4.fds().count(), 1);

    let pair = bind_pair(0, missing(Domain::IPV4)).unwrap();
    assert!(pair.v4.is_none() && pair.v6.is_some() && pair.port != 0);
    let neither = bind_pair(0, |_, _| Err(io::Error::from_raw_os_error(libc::EAFNOSUPPORT)));
    assert_eq!(neither.err().unwrap().kind(), io::ErrorKind::Unsupported);
}

#[test]
fn a_random_port_is_drawn_until_both_families_have_it() {
    let mut refusals = 3;
    let pair = bind_pair(0, |domain, port| {
        if domain == Domain::IPV6 && refusals > 0 {
            refusals -= 1;
            return Err(io::ErrorKind::AddrInUse.into());
        }
        bind(domain, port, &UdpOptions::default(), Claim::Alone)
    })
    .unwrap();
    assert!(pair.iter().all(|socket| port_of(socket).unwrap() == pair.port));
    let error = bind_pair(0, |domain, port| match domain == Domain::IPV6 {
        true => Err(io::ErrorKind::AddrInUse.into()),
        false => bind(domain, port, &UdpOptions::default(), Claim::Alone),
    });
    assert_eq!(error.err().unwrap().kind(), io::ErrorKind::AddrInUse, "it does not go on for ever");
}

#[test]
fn a_taken_port_is_named() {
    let first = open();
    let error = Udp::bind(&UdpOptions::new(first.port())).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
    assert!(error.to_string().contains(&first.port().to_string()), "{error}");
}

#[test]
fn sources_are_spread_over_the_queues_and_each_keeps_to_one() {
    isolated("several sockets on a port", || {
        let mut queues = Udp::bind_queues(&UdpOptions::default(), 4).unwrap();
        assert_eq!(queues.len(), 4);
        assert!(queues.iter().all(|queue| queue.port() == queues[0].port() && queue.has_ipv6()));
        let sources: Vec<_> = (0..64).map(|_| open()).collect();
        for ip in ["127.0.0.1", "::1"] {
            let to = transmit(here(ip, &queues[0]), None, Span { offset: 0, len: 1 });
            for round in 0..8 {
                for source in &sources {
                    let mut source = source.try_clone().unwrap();
                    assert_eq!(source.send(&[round], &[to]).sent, 1);
                }
            }
            let mut seen = std::collections::HashMap::new();
            for queue in &mut queues {
                let (before, mut slab) = (seen.len(), vec![0; queue.recv_slab_len()]);
                // Over loopback, a datagram has arrived once it was sent.
                loop {
                    let mut received = Vec::new();
                    queue.recv(&mut slab, &mut received).unwrap();
                    if received.is_empty() {
                        break;
                    }
                    for Received { from, segments, .. } in received {
                        let next = seen.entry(from.remote).or_insert(0);
                        for piece in segments.pieces() {
                            assert_eq!(slab[piece.offset], *next, "{}: in order, all to one queue", from.remote);
                            *next += 1;
                        }
                    }
                }
                // With 64 sources, the chance that one of four queues stays idle is 1 in 25 million.
                assert!(seen.len() > before, "an idle queue");
            }
            assert_eq!(seen.len(), sources.len());
            assert!(seen.values().all(|&count| count == 8), "{seen:?}");
        }
    });
}

#[test]
fn a_port_of_several_sockets_is_not_shared_with_others() {
    isolated("a shared port taken", || {
        let ours = Udp::bind_queues(&UdpOptions::default(), 2).unwrap();
        for queues in 1..3 {
            let error = Udp::bind_queues(&UdpOptions::new(ours[0].port()), queues);
            let error = error.unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
            assert!(error.to_string().contains(&ours[0].port().to_string()), "{error}");
        }
        // A port that others would share is not joined either.
        let theirs = bind(Domain::IPV4, 0, &UdpOptions::default(), Claim::Shared).unwrap();
        let options = UdpOptions::new(port_of(&theirs).unwrap());
        assert_eq!(Udp::bind_queues(&options, 2).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        assert_eq!(Udp::bind_queues(&UdpOptions::default(), 0).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        let options = UdpOptions::new(ours[0].port()).fwmark(7);
        without_children(|| drop(ours));
        for queue in Udp::bind_queues(&options, 3).unwrap() {
            assert!(queue.pairs[0].iter().all(|socket| socket.mark().unwrap() == 7), "on every socket");
        }
    });
}

#[test]
fn a_mark_is_set_on_both_families_and_all_handles() {
    isolated("firewall marks", || {
        let udp = Udp::bind(&UdpOptions::default().fwmark(0xca6c)).unwrap();
        let marks = |udp: &Udp| udp.pairs[0].iter().map(|socket| socket.mark().unwrap()).collect::<Vec<_>>();
        assert_eq!(marks(&udp), [0xca6c; 2]);
        udp.try_clone().unwrap().set_fwmark(0).unwrap();
        assert_eq!(marks(&udp), [0; 2]);
    });
}

#[test]
fn sockets_listen_at_the_given_address_alone() {
    isolated("listening at one address", || {
        let here: IpAddr = "127.0.0.2".parse().unwrap();
        let udp = Udp::bind(&UdpOptions::default().addresses([here])).unwrap();
        assert!(!udp.has_ipv6(), "no IPv6 address was given");
        // Another socket may have the same port at another address, but not at the same address.
        let other = std::net::UdpSocket::bind(("127.0.0.3", udp.port())).unwrap();
        assert_eq!(std::net::UdpSocket::bind((here, udp.port())).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        without_children(|| drop(other));

        let absent = UdpOptions::default().addresses(["192.0.2.7".parse().unwrap()]);
        let error = Udp::bind(&absent).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AddrNotAvailable);
        assert!(error.to_string().contains("no interface of this host has the address 192.0.2.7"), "{error}");
        let two = UdpOptions::default().addresses([here, "127.0.0.3".parse().unwrap()]);
        assert_eq!(Udp::bind(&two).unwrap_err().kind(), io::ErrorKind::InvalidInput);
    });
}

#[test]
fn what_cannot_be_several_ports_is_refused() {
    for (ports, problem) in [
        (vec![7_000; 2], "UDP port 7000 is given twice"),
        (vec![7_000, 0], "UDP port 0 is among several"),
        (vec![0, 7_000], "UDP port 0 is among several"),
        ((7_000..7_009).collect(), "9 UDP ports are too many: choose at most 8"),
    ] {
        let error = Udp::bind(&UdpOptions::new(ports[0]).more_ports(ports[1..].iter().copied())).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
        assert!(error.to_string().contains(problem), "{error}");
    }
}

#[test]
fn peers_are_spread_over_ports_and_each_keeps_its_own() {
    let peers = (1..=200_u8).map(|n| SocketAddr::from(([192, 0, 2, n], 51_820)));
    let mut counts = [0; 3];
    for peer in peers {
        counts[spread(peer, 3)] += 1;
        assert_eq!(spread(peer, 3), spread(peer, 3));
    }
    assert!(counts.iter().all(|count| *count > 40), "{counts:?}");
    // Peers behind one address of a NAT.
    let ports: std::collections::HashSet<_> =
        (0..32).map(|n| spread(SocketAddr::from(([192, 0, 2, 1], 40_000 + n)), 8)).collect();
    assert_eq!(ports.len(), 8);
}

#[test]
fn several_ports_are_heard_and_answer_each_for_itself() {
    testing::several_ports_are_heard_and_answer_each_for_itself::<Udp>();
}

/// Lets `udp` receive a datagram from `sender`, and returns the sender's endpoint.
fn heard(udp: &mut Udp, sender: &mut Udp, text: &[u8]) -> Endpoint {
    let to = here("127.0.0.1", udp);
    assert_eq!(sender.send(text, &[transmit(to, None, Span { offset: 0, len: text.len() })]).sent, 1);
    let [(from, bytes)] = &receive_all(udp, 1)[..] else { panic!("one came") };
    assert_eq!(bytes, text);
    *from
}

#[test]
fn a_flood_of_a_separated_sender_fills_only_its_own_buffer() {
    for queues in 1..=2 {
        let mut all = Udp::bind_queues(&UdpOptions::default(), queues).unwrap();
        let (mut flooder, mut other) = (open(), open());
        // The kernel chooses the queue of each sender by a hash. Both senders need the same queue.
        let to = here("127.0.0.1", &all[0]);
        let queue_of = |sender: &mut Udp, all: &mut [Udp]| {
            assert_eq!(sender.send(b"hello", &[transmit(to, None, Span { offset: 0, len: 5 })]).sent, 1);
            let (mut waiter, _waker) = crate::wait::Waiter::new().unwrap();
            let mut slab = vec![0; all[0].recv_slab_len()];
            loop {
                for (n, udp) in all.iter_mut().enumerate() {
                    let mut received = Vec::new();
                    udp.recv(&mut slab, &mut received).unwrap();
                    if let Some(first) = received.first() {
                        return (n, first.from);
                    }
                }
                waiter.wait(all.iter().flat_map(Network::fds), None).unwrap();
            }
        };
        let (queue, from) = queue_of(&mut flooder, &mut all);
        while queue_of(&mut other, &mut all).0 != queue {
            other = open();
        }
        all[queue].separate(&from, 1);
        assert_eq!(all[queue].owns.len(), 1);

        // More than any buffer holds. The kernel counts whole pages for a datagram, so short datagrams fill the rest.
        let long = vec![1; 60_000];
        for len in std::iter::repeat_n(long.len(), 1_280).chain(std::iter::repeat_n(1, 20_000)) {
            flooder.send(&long, &[transmit(to, None, Span { offset: 0, len })]);
        }
        let count = 200;
        for n in 0..count {
            assert_eq!(other.send(&[2, n], &[transmit(to, None, Span { offset: 0, len: 2 })]).sent, 1);
        }
        let mut others = Vec::new();
        let mut slab = vec![0; all[queue].recv_slab_len()];
        let mut flooded = 0;
        loop {
            let mut received = Vec::new();
            all[queue].recv(&mut slab, &mut received).unwrap();
            if received.is_empty() {
                break;
            }
            for Received { from, segments, .. } in received {
                for piece in segments.pieces() {
                    if from.remote.port() == other.port() {
                        others.push(slab[piece.offset + 1]);
                    } else {
                        flooded += 1;
                    }
                }
            }
        }
        assert_eq!(others, (0..count).collect::<Vec<_>>(), "all of them, in order");
        assert!((1..21_280).contains(&flooded), "{flooded} of the flood came: its buffer was full");
    }
}

/// A socket of another program, bound to the port of `ours` at this address.
fn bound_by_a_stranger(address: &str, port: u16, user: Option<u32>) -> io::Result<Socket> {
    let stranger = Socket::new(Domain::IPV4, socket2::Type::DGRAM, None)?;
    stranger.set_reuse_address(true)?;
    if let Some(user) = user {
        // The kernel compares the owners of sockets, which this call sets.
        std::os::unix::fs::fchown(&stranger, Some(user), None)?;
        stranger.set_reuse_port(true)?;
    }
    let address: IpAddr = address.parse().unwrap();
    stranger.bind(&SocketAddr::new(address, port).into())?;
    Ok(stranger)
}

#[test]
fn the_port_stays_closed_to_others_while_senders_are_separated() {
    let (mut ours, mut sender) = (open(), open());
    let from = heard(&mut ours, &mut sender, b"hello");
    ours.separate(&from, 1);
    assert_eq!(ours.owns.len(), 1);
    let nobody = 65_534;
    let mut users = vec![None, Some(nobody)];
    if let Err(error) = bound_by_a_stranger("127.0.0.1", 0, Some(nobody)) {
        rustguard_skip::skipped(&format!("no socket of another user: {error}"));
        users.pop();
    }
    for (user, address) in users.into_iter().flat_map(|user| ["0.0.0.0", "127.0.0.1"].map(|address| (user, address))) {
        let error = bound_by_a_stranger(address, ours.port(), user).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse, "{user:?} {address}");
    }
    assert_eq!(heard(&mut ours, &mut sender, b"again").remote, from.remote);
    assert_eq!(heard(&mut ours, &mut open(), b"anybody").local_port, ours.port());
}

/// Another program tries again and again, so that it would find even a short time in which the port can be shared.
#[test]
fn no_program_gets_between_while_a_sender_is_separated() {
    let mut ours = open();
    let (port, ended) = (ours.port(), AtomicBool::new(false));
    let local = LocalAddr { ip: Ipv4Addr::LOCALHOST.into(), interface: 0, bound: false };
    let attempts = AtomicU32::new(0);
    std::thread::scope(|scope| {
        let stranger = scope.spawn(|| {
            let mut bound = 0;
            while !ended.load(Ordering::Relaxed) {
                bound += u32::from(bound_by_a_stranger("127.0.0.1", port, None).is_ok());
                attempts.fetch_add(1, Ordering::Relaxed);
            }
            bound
        });
        for n in 1.. {
            let remote = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 1 + n % 1_000);
            ours.separate(&Endpoint { local: Some(local), ..Endpoint::new(remote) }, u64::from(n));
            // Makes room for the next sender.
            ours.owns = Owns::default();
            if n >= 2_000 && attempts.load(Ordering::Relaxed) >= 10_000 {
                break;
            }
        }
        ended.store(true, Ordering::Relaxed);
        assert_eq!(stranger.join().unwrap(), 0, "a stranger had the port");
    });
}

#[test]
fn a_few_senders_have_sockets_of_their_own_and_the_rest_share() {
    let mut ours = open();
    let mut senders: Vec<_> = (0..own::MOST + 2).map(|_| open()).collect();
    for (owner, sender) in (0..).zip(&mut senders) {
        let from = heard(&mut ours, sender, b"hello");
        ours.separate(&from, owner);
        ours.separate(&from, owner);
    }
    assert_eq!(ours.owns.len(), own::MOST);
    assert_eq!(ours.fds().count(), own::MOST + ours.pairs[0].iter().count());
    for (n, sender) in senders.iter_mut().enumerate() {
        heard(&mut ours, sender, &[n as u8]);
    }
}

#[test]
fn one_owner_of_many_addresses_keeps_no_place_from_others() {
    let mut ours = open();
    let mut senders: Vec<_> = (0..own::MOST + 3).map(|_| open()).collect();
    for (n, sender) in senders.iter_mut().enumerate() {
        let from = heard(&mut ours, sender, b"hello");
        // One owner takes all places. Two other owners follow, and then the first owner takes one more.
        ours.separate(&from, if [own::MOST, own::MOST + 1].contains(&n) { n as u64 } else { 0 });
    }
    assert_eq!(ours.owns.len(), own::MOST);
    for (n, sender) in senders.iter_mut().enumerate() {
        heard(&mut ours, sender, &[n as u8]);
    }
    let separated = |owner| (0..own::MOST).filter(|&n| ours.owns.get(n).unwrap().owner == owner).count();
    assert_eq!([0, own::MOST as u64, own::MOST as u64 + 1].map(separated), [own::MOST - 2, 1, 1]);
}

#[test]
fn only_ready_sockets_are_asked() {
    let (mut ours, mut one, mut two) = (open(), open(), open());
    let from = heard(&mut ours, &mut one, b"hello");
    ours.separate(&from, 1);
    let to = here("127.0.0.1", &ours);
    for sender in [&mut one, &mut two] {
        assert_eq!(sender.send(b"again", &[transmit(to, None, Span { offset: 0, len: 5 })]).sent, 1);
    }
    let mut slab = vec![0; ours.recv_slab_len()];
    let mut ports = |ready| {
        let mut received = Vec::new();
        ours.recv_ready(ready, &mut slab, &mut received).unwrap();
        received.iter().map(|received| received.from.remote.port()).collect::<Vec<_>>()
    };
    assert!(ports(Ready::NONE).is_empty());
    let own = ports([false, false, true].into_iter().collect());
    assert_eq!(own, [one.port()], "it is the last, behind the two families");
    assert_eq!(ports(Ready::ALL), [two.port()]);
}
