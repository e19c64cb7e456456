//! A tunnel over a program's own transports, without root: IP packets come from a Unix socket in place of a TUN device,
//! and datagrams go through a Unix socket in place of UDP.
//!
//! ```text
//! cargo run -p rustguard-device --example own_transports
//! ```

use rustguard_device::{
    Binder, Bound,
    prelude::*,
    tun::{Endpoint, HEADROOM, Network, Received, Segments, Sent, Span, TAILROOM, Transmit, TunQueue, udp::UdpOptions},
};
use std::{
    error::Error,
    io,
    net::SocketAddr,
    os::{
        fd::{AsFd, BorrowedFd},
        unix::net::UnixDatagram,
    },
    time::Duration,
};

/// Bytes of the longest packet and the longest datagram here. Both are below the 65,535 of IP.
const LONGEST: usize = 2048;
/// Datagrams taken by one call of `recv`.
const BATCH: usize = 16;

/// In place of a TUN device: each datagram of this socket is an IP packet. The program has the other end of the pair.
struct PacketSocket(UnixDatagram);

impl TunQueue for PacketSocket {
    fn read(&mut self, slab: &mut [u8], at: usize, _mtu: usize) -> io::Result<Option<Segments>> {
        // The WireGuard header is written before the packet, padding and tag behind it, all in place.
        let offset = at + HEADROOM;
        let Some(len) = ready(self.0.recv(&mut slab[offset..offset + LONGEST]))? else { return Ok(None) };
        Ok(Some(Segments { offset, stride: HEADROOM + len + TAILROOM, count: 1, len, last_len: len }))
    }

    fn write(&mut self, slab: &mut [u8], packets: &[Span]) -> io::Result<usize> {
        let mut refused = 0;
        for packet in packets {
            let sent = ready(self.0.send(&slab[packet.offset..packet.offset + packet.len]))?;
            refused += usize::from(sent.is_none());
        }
        Ok(refused)
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    fn max_read(&self) -> usize {
        HEADROOM + LONGEST + TAILROOM
    }
}

/// In place of a UDP socket: a link to one other node. WireGuard needs an address for it; any address is possible.
struct Link {
    socket: UnixDatagram,
    remote: SocketAddr,
}

impl Network for Link {
    fn recv(&mut self, slab: &mut [u8], out: &mut Vec<Received>) -> io::Result<()> {
        for offset in (0..BATCH).map(|slot| slot * LONGEST) {
            let Some(len) = ready(self.socket.recv(&mut slab[offset..offset + LONGEST]))? else { break };
            out.push(Received {
                from: Endpoint::new(self.remote),
                segments: Segments { offset, stride: len, count: 1, len, last_len: len },
                ecn: 0,
            });
        }
        Ok(())
    }

    fn send(&mut self, slab: &[u8], batch: &[Transmit]) -> Sent {
        let mut sent = Sent::default();
        for datagram in batch.iter().flat_map(|transmit| transmit.segments.pieces()) {
            // A datagram that fails is lost, as on any network.
            match self.socket.send(&slab[datagram.offset..datagram.offset + datagram.len]) {
                Ok(_) => sent.sent += 1,
                Err(_) => sent.failed += 1,
            }
        }
        sent
    }

    fn fd(&self, n: usize) -> Option<BorrowedFd<'_>> {
        (n == 0).then(|| self.socket.as_fd())
    }

    fn recv_slab_len(&self) -> usize {
        BATCH * LONGEST
    }
}

/// Gives the device its links: one for the worker, which receives and sends, and one for the control thread, which
/// sends.
struct LinkBinder(Link);

impl Binder for LinkBinder {
    fn bind(&mut self, _options: &UdpOptions, workers: usize) -> io::Result<Bound> {
        let link = || Ok(Link { socket: self.0.socket.try_clone()?, remote: self.0.remote });
        let links = || (0..workers).map(|_| link()).collect::<io::Result<Vec<_>>>();
        Ok(Bound::new(links()?, links()?, self.0.remote.port()))
    }
}

/// `None` if the socket has no datagram, or no room, now.
fn ready(result: io::Result<usize>) -> io::Result<Option<usize>> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
        result => result.map(Some),
    }
}

fn pair() -> io::Result<(UnixDatagram, UnixDatagram)> {
    let (one, other) = UnixDatagram::pair()?;
    one.set_nonblocking(true)?;
    Ok((one, other))
}

#[tokio::main(flavor = "current_thread")]
pub(crate) async fn main() -> Result<(), Box<dyn Error>> {
    let keys = [StaticSecret::generate()?, StaticSecret::generate()?];
    let places: [SocketAddr; 2] = ["192.0.2.1:51820".parse()?, "192.0.2.2:51820".parse()?];
    let inside: [IpNet; 2] = ["10.0.0.1/32".parse()?, "10.0.0.2/32".parse()?];
    let (cable, other_end) = pair()?;
    other_end.set_nonblocking(true)?;

    let (mut devices, mut hosts) = (Vec::new(), Vec::new());
    for (own, socket) in [cable, other_end].into_iter().enumerate() {
        let other = 1 - own;
        let (packets, host) = pair()?;
        host.set_read_timeout(Some(Duration::from_secs(5)))?;
        let peer = PeerUpdate::new(keys[other].public_key()).endpoint(places[other]).allowed_ip(inside[other]);
        let binder = LinkBinder(Link { socket, remote: places[other] });
        let builder = Device::builder().private_key(keys[own].clone()).peer(peer);
        devices.push(builder.start_with(PacketSocket(packets), binder)?);
        hosts.push(host);
    }

    let packet = packet(b"by a socket of our own");
    hosts[0].send(&packet)?;
    let mut received = [0; LONGEST];
    let len = hosts[1].recv(&mut received)?;
    println!("the other side received {:?}", String::from_utf8_lossy(&received[20..len]));
    assert_eq!(received[..len], packet);
    for device in devices {
        device.shutdown().await;
    }
    Ok(())
}

/// An IPv4 packet from 10.0.0.1 to 10.0.0.2, with a protocol for experiments (253, RFC 3692).
fn packet(payload: &[u8]) -> Vec<u8> {
    let total = u8::try_from(20 + payload.len()).expect("a short payload");
    let mut packet = vec![0x45, 0, 0, total, 0, 0, 0x40, 0, 64, 253, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
    packet.extend_from_slice(payload);
    packet
}
