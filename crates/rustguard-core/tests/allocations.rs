//! A [`Tunnel`] in a session allocates nothing for a packet, where its outputs are given back.
use alloc_tracker::{Allocator, Session};
use rand::{SeedableRng, rngs::StdRng};
use rustguard_core::{
    node::PeerConfig,
    time::{Instant, Now},
    tunnel::{Output, Tunnel},
};
use rustguard_crypto::x25519::StaticSecret;
use std::{alloc::System, net::SocketAddr, time::Duration};

#[global_allocator]
static ALLOCATOR: Allocator<System> = Allocator::system();

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
            let config = PeerConfig { public_key, preshared_key: [0; 32], persistent_keepalive: None };
            let at = Some(Self::address(1 - n));
            tunnel.add_peer(config, at, &["10.0.0.0/8".parse().unwrap()], now, &mut rng).unwrap();
            tunnel
        });
        Self { tunnels, now, rng }
    }

    fn address(n: usize) -> SocketAddr {
        SocketAddr::from(([192, 0, 2, n as u8 + 1], 51_820))
    }

    /// Sends a packet, carries everything to and fro, and gives the outputs back; how many packets were delivered.
    fn send(&mut self, from: usize) -> usize {
        self.tunnels[from].send(&packet(from as u8 + 1), self.now, &mut self.rng).unwrap();
        let (mut delivered, mut at) = (0, from);
        let mut silent = 0;
        while silent < 2 {
            let Some(output) = self.tunnels[at].poll() else {
                (silent, at) = (silent + 1, 1 - at);
                continue;
            };
            silent = 0;
            match &output {
                Output::Transmit { datagram, .. } => {
                    let there = &mut self.tunnels[1 - at];
                    there.receive(Self::address(at), datagram, self.now, &mut self.rng).unwrap();
                }
                Output::Deliver { packet: got, .. } => {
                    assert_eq!(got[..], packet(2 - at as u8)[..]);
                    delivered += 1;
                }
                Output::Event(_) => {}
            }
            self.tunnels[at].recycle(output);
        }
        delivered
    }
}

#[test]
fn packets_of_a_session_cost_no_allocation() {
    let mut pair = Pair::new();
    // The handshake, the session's first packets, and the buffers.
    for n in 0..20 {
        assert_eq!(pair.send(n % 2), 1);
    }
    let session = Session::new().no_stdout().no_file();
    let operation = session.operation("packets");
    {
        let _span = operation.measure_thread().iterations(1);
        for n in 0..1_000 {
            assert_eq!(pair.send(n % 2), 1);
        }
    }
    let report = session.to_report();
    let (_, measured) = report.operations().next().unwrap();
    assert_eq!(measured.total_iterations(), 1, "counted once");
    assert_eq!((measured.total_allocations_count(), measured.total_bytes_allocated()), (0, 0));
}
