//! A [`Tunnel`] in a session allocates nothing for a packet, and copies none: it seals and opens in the caller's
//! buffers.
use alloc_tracker::{Allocator, Session};
use rand::{SeedableRng, rngs::StdRng};
use rustguard_core::{
    node::PeerConfig,
    time::{Instant, Now},
    tunnel::{HEADROOM, Output, TAILROOM, Tunnel},
};
use rustguard_crypto::x25519::StaticSecret;
use std::{alloc::System, net::SocketAddr, time::Duration};

#[global_allocator]
static ALLOCATOR: Allocator<System> = Allocator::system();

/// Room for a packet of 100 bytes.
const LEN: usize = HEADROOM + 100 + TAILROOM;

/// An IPv4 packet of 100 bytes between the two.
fn packet(from: u8) -> [u8; 100] {
    let mut packet = [0; 100];
    (packet[0], packet[3]) = (0x45, 100);
    packet[12..20].copy_from_slice(&[10, 0, 0, from, 10, 0, 0, 3 - from]);
    packet
}

struct Pair {
    tunnels: [Tunnel; 2],
    now: Now,
    rng: StdRng,
}

impl Pair {
    fn new() -> Self {
        let mut rng = StdRng::seed_from_u64(1);
        let now = Now { instant: Instant::from_nanos(1 << 40), unix: Duration::from_secs(1 << 30) };
        let keys = [1, 2].map(|n| StaticSecret::from_bytes([n; 32]));
        let tunnels = [0, 1].map(|n| {
            let mut tunnel = Tunnel::new(1_420, now, &mut rng);
            tunnel.set_private_key(Some(keys[n].clone()), now, &mut rng);
            let public_key = keys[1 - n].public_key();
            let config = PeerConfig::new(public_key);
            let at = Some(Self::address(1 - n));
            tunnel.add_peer(config, at, &["10.0.0.0/8".parse().unwrap()], now, &mut rng).unwrap();
            tunnel
        });
        Self { tunnels, now, rng }
    }

    fn address(n: usize) -> SocketAddr {
        SocketAddr::from(([192, 0, 2, n as u8 + 1], 51_820))
    }

    /// Sends a packet in the buffer, and receives it there; then the datagrams that the tunnels make themselves.
    /// Returns how many packets were received.
    fn send(&mut self, from: usize, buffer: &mut [u8; LEN]) -> usize {
        let (now, rng, sent) = (self.now, &mut self.rng, packet(from as u8 + 1));
        let at = buffer.as_ptr_range();
        buffer[HEADROOM..HEADROOM + 100].copy_from_slice(&sent);
        let mut received = 0;
        if let Some(sealed) = self.tunnels[from].send(buffer, 100, now, rng).unwrap() {
            assert_eq!(
                (sealed.to, sealed.datagram.as_ptr()),
                (Self::address(1 - from), at.start),
                "sealed where it lay"
            );
            let there = self.tunnels[1 - from].receive(Self::address(from), sealed.datagram, now, rng).unwrap();
            let packet = there.expect("a packet").packet;
            assert_eq!(
                (packet.as_ptr(), &packet[..]),
                (at.start.wrapping_add(HEADROOM), &sent[..]),
                "opened where it lay"
            );
            received += 1;
        }
        let (mut who, mut silent) = (from, 0);
        while silent < 2 {
            let Some(output) = self.tunnels[who].poll() else {
                (silent, who) = (silent + 1, 1 - who);
                continue;
            };
            silent = 0;
            if let Output::Transmit { mut datagram, .. } = output {
                let there = self.tunnels[1 - who].receive(Self::address(who), &mut datagram, now, rng).unwrap();
                received += usize::from(there.is_some());
            }
        }
        received
    }
}

#[test]
fn packets_of_a_session_cost_no_allocation_and_no_copy() {
    let mut pair = Pair::new();
    let mut buffer = [0; LEN];
    // The handshake, and the session's first packets.
    for n in 0..20 {
        assert_eq!(pair.send(n % 2, &mut buffer), 1);
    }
    let session = Session::new().no_stdout().no_file();
    let operation = session.operation("packets");
    {
        let _span = operation.measure_thread().iterations(1);
        for n in 0..1_000 {
            assert_eq!(pair.send(n % 2, &mut buffer), 1);
        }
    }
    let report = session.to_report();
    let (_, measured) = report.operations().next().unwrap();
    assert_eq!(measured.total_iterations(), 1, "counted once");
    assert_eq!((measured.total_allocations_count(), measured.total_bytes_allocated()), (0, 0));
}
