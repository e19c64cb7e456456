//! Tests of devices with several workers, over in-memory transports.

use super::*;
use crate::{MemoryBinder, PeerUpdate};
use ipnet::IpNet;
use rustguard_crypto::x25519::StaticSecret;
use rustguard_tun::memory::{self, MemoryHost, MemoryNet};
use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

/// A time limit for waiting. Only a hang reaches it.
const LONG: Duration = Duration::from_secs(20);
const PAYLOAD: usize = 20;

/// Starts a device with this number of workers. Its own address is 10.0.0.`n`, and `peers` are the numbers of the other
/// devices.
fn device(net: &MemoryNet, n: u8, workers: usize, peers: &[u8]) -> (Device, Vec<MemoryHost>) {
    let key = |n: u8| StaticSecret::from_bytes([n; 32]);
    let at = |n: u8| SocketAddr::from(([192, 0, 2, n], 51820));
    let (queues, hosts): (Vec<_>, Vec<_>) = (0..workers).map(|_| memory::tun().expect("two eventfds")).unzip();
    for host in &hosts {
        host.set_timeout(Some(LONG)).expect("it cannot fail");
    }
    let mut builder = Device::builder().private_key(key(n));
    for &peer in peers {
        let allowed = IpNet::from(IpAddr::from([10, 0, 0, peer]));
        builder = builder.peer(PeerUpdate::new(key(peer).public_key()).allowed_ip(allowed).endpoint(at(peer)));
    }
    let binder = MemoryBinder::new(net.clone(), at(n));
    let queues = queues.into_iter().map(|queue| vec![Box::new(queue) as _]).collect();
    (Device::launch(builder.settings, queues, Box::new(binder), None).expect("the addresses are free"), hosts)
}

/// A packet with a number, of one of several flows.
fn packet(from: u8, to: u8, flow: u8, number: u32) -> Vec<u8> {
    let mut packet = vec![0x45, 0, 0, PAYLOAD as u8 + 20, 0, 0, 0, 0, 64, 253, 0, 0];
    packet.extend(Ipv4Addr::new(10, 0, 0, from).octets());
    packet.extend(Ipv4Addr::new(10, 0, 0, to).octets());
    packet.push(flow);
    packet.extend(number.to_be_bytes());
    packet.resize(20 + PAYLOAD, 0);
    packet
}

/// Sends numbered packets of a flow (from, to, which) into the tunnel until `stop` is set.
fn flood(host: &MemoryHost, (from, to, flow): (u8, u8, u8), stop: &AtomicBool) {
    let mut number = 0;
    while !stop.load(Ordering::Relaxed) {
        match host.send(&packet(from, to, flow, number)) {
            Ok(()) => number += 1,
            Err(_) => std::thread::yield_now(),
        }
    }
}

/// Receives the next packet for the host. Returns its flow and its number.
fn next(host: &MemoryHost) -> (u8, u32) {
    let mut buffer = [0; 64];
    host.recv(&mut buffer).expect("packets go on coming");
    (buffer[20], u32::from_be_bytes(buffer[21..25].try_into().expect("four bytes")))
}

#[test]
fn flows_stay_in_order_while_sessions_begin() {
    for start in 0..24 {
        let net = MemoryNet::default();
        let (_a, hosts) = device(&net, 1, 2, &[2]);
        let (_b, theirs) = device(&net, 2, 1, &[1]);
        let stop = AtomicBool::new(false);
        let last = std::thread::scope(|scope| {
            for (host, flow) in hosts.iter().zip(0..) {
                let stop = &stop;
                scope.spawn(move || flood(host, (1, 2, flow), stop));
            }
            // This is long enough for late packets to arrive.
            let (mut last, mut late) = ([None, None], None);
            for _ in 0..1_000 {
                let (flow, number) = next(&theirs[0]);
                let before: &mut Option<u32> = &mut last[usize::from(flow)];
                if *before >= Some(number) {
                    late = Some((flow, *before, number));
                }
                *before = Some(number);
            }
            stop.store(true, Ordering::Relaxed);
            late
        });
        assert_eq!(last, None, "start {start}: a packet of this flow came after a newer one");
    }
}
