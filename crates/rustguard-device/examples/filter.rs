//! A filter between peers: pings and HTTPS (TCP to or from port 443) pass from one peer to the other, the rest is
//! counted and dropped. The filter does not restrict traffic between peers and this host. Three devices in memory,
//! without root.
//!
//! ```text
//! cargo run -p rustguard-device --example filter
//! ```

use rustguard_device::{
    Counter,
    filter::{Packet, RouteDecision, Verdict},
    ipnet::Ipv4Net,
    prelude::*,
    tun::memory::{self, MemoryHost, MemoryNet},
};
use std::{
    error::Error,
    net::{Ipv4Addr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

const ICMP: u8 = 1;
const TCP: u8 = 6;
const UDP: u8 = 17;
const ICMPV6: u8 = 58;
const HTTPS: [u8; 2] = 443_u16.to_be_bytes();

/// Runs on the workers for every packet, so it reads only a few bytes. Counters are shared, so they are atomic.
fn https_and_pings(packet: &Packet<'_>, passed: &AtomicU64, refused: &AtomicU64) -> Verdict {
    // Packets that routing does not forward to a peer are for this host, and pass.
    let RouteDecision::Forward(_) = packet.route else { return Verdict::Pass };
    let good = match transport(packet.bytes) {
        Some((ICMP | ICMPV6, _)) => true,
        Some((TCP, [a, b, c, d, ..])) => [*a, *b] == HTTPS || [*c, *d] == HTTPS,
        _ => false,
    };
    let (counter, verdict) = if good { (passed, Verdict::Pass) } else { (refused, Verdict::Drop) };
    counter.fetch_add(1, Ordering::Relaxed);
    verdict
}

/// The protocol, and the bytes from its header on. `None` for later fragments, which have no such header.
fn transport(packet: &[u8]) -> Option<(u8, &[u8])> {
    match packet {
        [0x60..=0x6f, ..] => Some((*packet.get(6)?, packet.get(40..)?)),
        [first, _, _, _, _, _, high, low, ..] if high & 0x1f == 0 && *low == 0 => {
            Some((*packet.get(9)?, packet.get(usize::from(first & 0xf) * 4..)?))
        }
        _ => None,
    }
}

#[tokio::main(flavor = "current_thread")]
pub(crate) async fn main() -> Result<(), Box<dyn Error>> {
    let net = MemoryNet::default();
    let keys = [1, 2, 3].map(|_| StaticSecret::generate().expect("the system has random bytes"));
    let counters = Arc::new([AtomicU64::new(0), AtomicU64::new(0)]);

    // The middle device has both others as peers, relays between them, and shows the filter's counts among its
    // counters.
    let (filter, shown) = (Arc::clone(&counters), Arc::clone(&counters));
    let mut middle = Device::builder()
        .private_key(keys[1].clone())
        .relay(Relay::Always { local: vec![address(2).into()] })
        .filter(move |packet| https_and_pings(packet, &filter[0], &filter[1]))
        .counters(move || {
            let counters = ["passed", "refused"].into_iter().zip(&*shown);
            counters.map(|(name, count)| Counter::new(name, count.load(Ordering::Relaxed))).collect()
        });
    for n in [1, 3] {
        let key = keys[usize::from(n) - 1].public_key();
        middle = middle.peer(PeerUpdate::new(key).endpoint(place(n)).allowed_ip(Ipv4Net::from(address(n))));
    }
    let (tun, _host) = memory::tun()?;
    let middle = middle.start_with(tun, MemoryBinder::new(net.clone(), place(2)))?;

    // The other devices have the middle as their only peer, for all addresses.
    let mut ends = Vec::new();
    for n in [1, 3] {
        let everything = Ipv4Net::default();
        let (tun, host) = memory::tun()?;
        host.set_timeout(Some(Duration::from_secs(5)))?;
        let device = Device::builder()
            .private_key(keys[usize::from(n) - 1].clone())
            .peer(PeerUpdate::new(keys[1].public_key()).endpoint(place(2)).allowed_ip(everything))
            .start_with(tun, MemoryBinder::new(net.clone(), place(n)))?;
        ends.push((device, host));
    }

    let alice = &ends[0].1;
    for (protocol, port) in [(ICMP, 0), (TCP, 22), (TCP, 443), (UDP, 53), (ICMP, 0)] {
        alice.send(&packet(protocol, port))?;
    }
    for expected in ["a ping", "protocol 6 to port 443", "a ping"] {
        let received = describe(&ends[1].1)?;
        println!("Bob received       {received}");
        assert_eq!(received, expected);
    }
    let counted = middle.status().await?.counters;
    println!("the filter counts  {counted:?}");
    assert_eq!(counted, [Counter::new("passed", 3), Counter::new("refused", 2)]);
    Ok(())
}

fn address(n: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 0, 0, n)
}

fn place(n: u8) -> SocketAddr {
    ([192, 0, 2, n], 51_820).into()
}

/// A packet from Alice (10.0.0.1) to Bob (10.0.0.3).
fn packet(protocol: u8, port: u16) -> Vec<u8> {
    let mut packet = vec![0x45, 0, 0, 40, 0, 0, 0x40, 0, 64, protocol, 0, 0];
    packet.extend([address(1).octets(), address(3).octets()].concat());
    packet.extend([&50_000_u16.to_be_bytes()[..], &port.to_be_bytes(), &[0; 16]].concat());
    packet
}

fn describe(host: &MemoryHost) -> Result<String, Box<dyn Error>> {
    let mut buffer = [0; 2_048];
    let n = host.recv(&mut buffer)?;
    Ok(match transport(&buffer[..n]) {
        Some((ICMP, _)) => "a ping".to_owned(),
        Some((protocol, [_, _, high, low, ..])) => {
            format!("protocol {protocol} to port {}", u16::from_be_bytes([*high, *low]))
        }
        _ => "something strange".to_owned(),
    })
}
