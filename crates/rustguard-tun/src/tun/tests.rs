//! Tests of the driver in network namespaces, and of a substitute with the refusals of some kernels.

use super::*;
use crate::{
    namespace::isolated,
    testing::{
        tun::{self as testing, ip},
        without_children,
    },
    wait::Waiter,
};
use std::{net::UdpSocket, time::Duration};

fn create(name: &str, mtu: Option<u32>) -> Result<Tun, TunError> {
    Tun::create(&TunOptions { name: name.into(), mtu, offload: true })
}

#[test]
fn names_are_checked_before_the_kernel_is_asked() {
    for name in ["", "sixteen-bytes-xx", ".", "..", "a/b", "a:b", "a b", "a\tb", "a\0b", "wg%", "%d%d", "%s"] {
        assert!(matches!(create(name, None), Err(TunError::InvalidName { .. })), "{name:?}");
    }
    for name in ["wg0", "fifteen-bytes-x", "wg%d", "a.b", "...", "ü"] {
        assert!(check_name(name).is_ok(), "{name:?}");
    }
}

#[test]
fn packets_pass_both_ways() {
    testing::packets_pass_both_ways::<Tun>();
}

#[test]
fn super_packets_of_udp_pass_both_ways() {
    testing::super_packets_of_udp_pass_both_ways::<Tun>();
}

#[test]
fn super_packets_that_are_refused_go_singly() {
    testing::super_packets_that_are_refused_go_singly::<Tun>();
}

#[test]
fn a_tcp_stream_passes_both_ways() {
    testing::a_tcp_stream_passes_both_ways::<Tun>();
}

#[test]
fn an_interface_deleted_from_outside_surfaces_everywhere() {
    testing::an_interface_deleted_from_outside_surfaces_everywhere::<Tun>();
    isolated("a deleted TUN's properties", || {
        let tun = create("rg-gone", None).unwrap();
        ip("link delete dev rg-gone");
        assert_eq!(tun.mtu().unwrap_err().raw_os_error(), Some(libc::ENODEV));
    });
}

#[test]
fn names_and_mtus_are_the_kernels() {
    isolated("properties of a TUN", || {
        let tun = create("rg-test%d", Some(1337)).unwrap();
        assert_eq!(tun.name(), "rg-test0");
        assert_eq!(tun.mtu().unwrap(), 1337);
        ip("link set rg-test0 name renamed");
        tun.set_mtu(65_535).unwrap();
        assert_eq!(tun.mtu().unwrap(), 65_535);
        assert_eq!(tun.set_mtu(65_536).unwrap_err().raw_os_error(), Some(libc::EINVAL));
    });
}

/// The requests to each kernel, in order, by the offloads that it knows.
#[test]
fn older_kernels_are_asked_for_less() {
    let (checksum, tcp, udp) = (0x01, 0x0f, 0x6f);
    let (all, no_uso, no_tso, none) = (0x7f, 0x1f, 0x01, 0);
    for (known, expected) in
        [(all, &[udp][..]), (no_uso, &[udp, tcp]), (no_tso, &[udp, tcp, checksum]), (none, &[udp, tcp, checksum])]
    {
        let mut asked = Vec::new();
        enable_offloads(|offloads| {
            asked.push(offloads);
            if offloads & !known == 0 { Ok(()) } else { Err(io::ErrorKind::InvalidInput.into()) }
        });
        assert_eq!(asked, expected, "a kernel that knows {known:#x}");
    }
}

/// The port of a packet's flow, and the packet's number.
fn flow_and_number(packet: &[u8]) -> (u16, u32) {
    let number = packet[28..32].try_into().expect("four bytes");
    (u16::from_be_bytes([packet[20], packet[21]]), u32::from_be_bytes(number))
}

#[test]
fn flows_are_spread_over_the_queues_and_each_keeps_its_order() {
    isolated("several queues", || {
        let options = TunOptions::new("rg-many").mtu(1_300);
        let mut queues = Tun::create_queues(&options, 4).unwrap();
        assert_eq!(queues.len(), 4);
        for queue in &queues {
            assert_eq!((queue.name(), queue.index()), ("rg-many", queues[0].index()));
            assert_eq!(queue.mtu().unwrap(), 1_300);
        }
        queues[3].set_mtu(1_280).unwrap();
        assert_eq!(queues[0].mtu().unwrap(), 1_280);

        ip("addr add 10.9.9.1/24 dev rg-many");
        ip("link set rg-many up");
        let (flows, packets) = (32, 20);
        let sockets: Vec<_> = (0..flows).map(|_| UdpSocket::bind("10.9.9.1:0").unwrap()).collect();
        for number in 0..packets {
            for socket in &sockets {
                socket.send_to(&u32::to_be_bytes(number), "10.9.9.2:5000").unwrap();
            }
        }
        let mut slab = vec![0; queues[0].max_read()];
        let mut next = std::collections::HashMap::new();
        let mut busy = 0;
        for queue in &mut queues {
            let before = next.len();
            // All packets are waiting already: the kernel queues a packet before `send_to` returns.
            while let Some(packet) = queue.read(&mut slab, 0, 1_420).unwrap() {
                let packet = &slab[packet.offset..packet.offset + packet.len];
                // The kernel sends router solicitations by itself.
                if packet[0] >> 4 != 4 {
                    continue;
                }
                let (flow, number) = flow_and_number(packet);
                let expected = next.entry(flow).or_insert(0);
                assert_eq!(number, *expected, "flow {flow}: in order, and all in one queue");
                *expected += 1;
            }
            busy += usize::from(next.len() > before);
        }
        assert_eq!(next.len(), flows);
        assert!(next.values().all(|&count| count == packets), "{next:?}");
        assert!(busy > 1, "32 flows do not hash to a single queue of four");

        // A packet reaches the host through every queue.
        let socket = &sockets[0];
        socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        let to_us = reply_packet(socket.local_addr().unwrap().port());
        for queue in &mut queues {
            slab[..to_us.len()].copy_from_slice(&to_us);
            assert_eq!(queue.write(&mut slab, &[Span { offset: 0, len: to_us.len() }]).unwrap(), 0);
            assert_eq!(socket.recv_from(&mut [0; 8]).unwrap(), (4, "10.9.9.2:5000".parse().unwrap()));
        }
        let last = queues.pop().unwrap();
        without_children(|| drop(queues));
        assert_eq!(last.mtu().unwrap(), 1_280, "it lives as long as one queue does");
        without_children(|| drop(last));
        Tun::create(&options).unwrap();
    });
}

/// A packet of four bytes from 10.9.9.2:5000 to 10.9.9.1 and `port`, without a UDP checksum.
fn reply_packet(port: u16) -> Vec<u8> {
    let mut packet = vec![0x45, 0, 0, 32, 0, 0, 0, 0, 64, 17, 0, 0, 10, 9, 9, 2, 10, 9, 9, 1];
    let sum = packet.chunks(2).fold(0, |sum, word| sum + (u32::from(word[0]) << 8 | u32::from(word[1])));
    let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
    packet.extend(5_000_u16.to_be_bytes());
    packet.extend(port.to_be_bytes());
    packet.extend([0, 12, 0, 0, 1, 2, 3, 4]);
    packet
}

#[test]
fn an_interface_of_several_queues_is_not_joined_and_its_end_reaches_every_queue() {
    isolated("several queues taken, and deleted", || {
        let create = |name: &str, queues| Tun::create_queues(&TunOptions::new(name), queues);
        ip("tuntap add dev rg-theirs mode tun multi_queue");
        for queues in [1, 2] {
            assert!(matches!(create("rg-theirs", queues), Err(TunError::Taken { name }) if name == "rg-theirs"));
        }
        let mut ours = create("rg-ours%d", 3).unwrap();
        assert!(ours.iter().all(|queue| queue.name() == "rg-ours0"));
        assert!(matches!(create("rg-ours0", 2), Err(TunError::Taken { .. })));
        for queues in [0, 257] {
            assert!(matches!(create("rg-none", queues), Err(TunError::InvalidQueues { .. })));
        }
        assert_eq!(create("rg-most", 256).unwrap().len(), 256);

        ip("link delete dev rg-ours0");
        let mut slab = vec![0; ours[0].max_read()];
        let (mut waiter, _waker) = Waiter::new().unwrap();
        for queue in &mut ours {
            assert!(waiter.wait([queue.fd()], Some(Duration::from_secs(10))).unwrap().ready);
            assert_eq!(queue.read(&mut slab, 0, 1_420).unwrap_err().kind(), io::ErrorKind::NotConnected);
            let error = queue.write(&mut slab, &[Span { offset: 0, len: 20 }]).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::NotConnected);
        }
    });
}

#[test]
fn failures_name_their_cause_and_leave_nothing_behind() {
    isolated("failures to create a TUN", || {
        assert!(matches!(create("lo", None), Err(TunError::Taken { name }) if name == "lo"));
        let first = create("rg-twice", None).unwrap();
        assert!(matches!(create("rg-twice", None), Err(TunError::Taken { .. })));
        without_children(|| drop(first));
        let refused = without_children(|| create("rg-twice", Some(1)));
        assert!(matches!(refused, Err(TunError::InvalidMtu { mtu: 1, .. })));
        let after = create("rg-twice", None).unwrap();
        assert_eq!(after.mtu().unwrap(), 1500);
        ip("tuntap add dev rg-kept mode tun");
        assert!(matches!(create("rg-kept", None), Err(TunError::Taken { .. })), "a persistent one is not ours");
    });
}
