//! Proof that the core needs neither std nor an operating system, nor a C library. Two tunnels in one process complete
//! a handshake and send each other packets. The exit status is 0 if all of that worked.
#![no_std]
#![no_main]
extern crate alloc;

mod system;

use alloc::vec::Vec;
use core::{
    convert::Infallible,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    time::Duration,
};
use rand_core::{Rng, TryCryptoRng, TryRng};
use rustguard_core::{
    node::{Event, PeerConfig},
    time::{Instant, Now},
    tunnel::{HEADROOM, Output, TAILROOM, Tunnel},
};
use rustguard_crypto::{hash, x25519::StaticSecret};

const NOW: Now = Now { instant: Instant::from_nanos(1_000_000_000), unix: Duration::from_secs(1_700_000_000) };
const INNER: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2)];

/// Runs the exchange; `None` means that something did not work.
fn run() -> Option<()> {
    let mut rng = Counting(0);
    let secrets = [secret(&mut rng), secret(&mut rng)];
    let mut tunnels = Vec::new();
    for me in 0..2 {
        let other = 1 - me;
        let mut tunnel = Tunnel::new(1420, NOW, &mut rng);
        tunnel.set_private_key(Some(secrets[me].clone()), NOW, &mut rng);
        let config = PeerConfig::new(secrets[other].public_key()).with_preshared_key([9; 32]);
        let endpoint = (me == 0).then(|| address(other));
        let peer = tunnel.add_peer(config, endpoint, &[IpAddr::V4(INNER[other]).into()], NOW, &mut rng).ok()?;
        tunnels.push((tunnel, peer));
    }

    let mut handshakes = 0;
    for (from, text) in [(0, b"there"), (1, b"back."), (0, b"again")] {
        let packet = packet(INNER[from], INNER[1 - from], text);
        let mut buffer = [&[0; HEADROOM][..], &packet, &[0; TAILROOM]].concat();
        let mut delivered = Vec::new();
        let sealed = tunnels[from].0.send(&mut buffer, packet.len(), NOW, &mut rng).ok()?;
        if let Some(sealed) = sealed {
            let received = tunnels[1 - from].0.receive(address(from), sealed.datagram, NOW, &mut rng).ok()??;
            delivered.push((1 - from, received.packet.to_vec()));
        }
        delivered.extend(settle(&mut tunnels, &mut rng, &mut handshakes)?);
        if delivered != [(1 - from, packet)] {
            return None;
        }
    }
    (handshakes == 2).then_some(())
}

/// Delivers datagrams in both directions until there are none. Returns the delivered packets and their receivers.
fn settle(
    tunnels: &mut [(Tunnel, rustguard_core::node::PeerId)],
    rng: &mut Counting,
    handshakes: &mut u32,
) -> Option<Vec<(usize, Vec<u8>)>> {
    let mut delivered = Vec::new();
    loop {
        let mut quiet = true;
        for me in 0..2 {
            while let Some(output) = tunnels[me].0.poll() {
                quiet = false;
                match output {
                    Output::Transmit { mut datagram, .. } => {
                        let received = tunnels[1 - me].0.receive(address(me), &mut datagram, NOW, rng).ok()?;
                        delivered.extend(received.map(|received| (1 - me, received.packet.to_vec())));
                    }
                    Output::Event(Event::HandshakeComplete { .. }) => *handshakes += 1,
                    _ => return None,
                }
            }
        }
        if quiet {
            return Some(delivered);
        }
    }
}

fn address(who: usize) -> SocketAddr {
    SocketAddr::from(([192, 0, 2, 1 + who as u8], 51_820))
}

fn packet(source: Ipv4Addr, destination: Ipv4Addr, text: &[u8; 5]) -> Vec<u8> {
    let mut packet = Vec::from([0x45, 0, 0, 25, 0, 0, 0, 0, 64, 17, 0, 0]);
    packet.extend(source.octets());
    packet.extend(destination.octets());
    packet.extend(text);
    packet
}

fn secret(rng: &mut Counting) -> StaticSecret {
    let mut bytes = [0; 32];
    rng.fill_bytes(&mut bytes);
    StaticSecret::from_bytes(bytes)
}

/// Hashes of a counter: predictable, which suffices for this proof and is forbidden in a real program.
struct Counting(u64);

impl TryRng for Counting {
    type Error = Infallible;
    fn try_next_u32(&mut self) -> Result<u32, Infallible> {
        rand_core::utils::next_word_via_fill(self)
    }

    fn try_next_u64(&mut self) -> Result<u64, Infallible> {
        rand_core::utils::next_word_via_fill(self)
    }

    fn try_fill_bytes(&mut self, bytes: &mut [u8]) -> Result<(), Infallible> {
        for chunk in bytes.chunks_mut(hash::HASH_LEN) {
            self.0 += 1;
            chunk.copy_from_slice(&hash::hash(&[&self.0.to_le_bytes()])[..chunk.len()]);
        }
        Ok(())
    }
}

impl TryCryptoRng for Counting {}
