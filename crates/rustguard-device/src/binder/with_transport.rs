//! An embedder's own transport beside UDP: two networks in one, which the address tells apart.

use super::{Binder, Bound};
use rustguard_core::paths::TransportAddress;
use rustguard_tun::{Endpoint, Lane, Network, Received, Sent, Transmit, udp::UdpOptions, wait::Ready};
use std::{io, os::fd::BorrowedFd};

/// Once in this many batches, the network that did not deliver the last batch is asked first.
const OTHER_FIRST: usize = 8;

/// UDP, and beside it an embedder's own transport, such as TCP through a firewall that blocks UDP. Each
/// [`TransportAddress`] is a place in this transport. As an endpoint of a peer, beside addresses or
/// [peers](crate::EndpointSpec::Peer), it is a way like any other: it is probed, kept in reserve, used when the others
/// fail, and left when they work again.
///
/// [`Transport`](crate::Transport) is such a transport made of two functions. Any other [`Binder`] can be one, too.
///
/// - The transport carries whole WireGuard datagrams, and may lose and reorder them. It needs no security of its own.
/// - Datagrams from UDP with a [`TransportAddress`], and from the transport with any other address, are dropped:
///   neither can pass as the other.
/// - The first error of the transport's [`recv`](Network::recv) ends its use until the sockets are bound again: ways by
///   it fail, and UDP goes on.
/// - Limits on the senders of handshakes count all addresses of a transport together as one sender.
/// - Peers are not told such addresses. The side that accepts connections needs none in its configuration: it answers
///   to the address from which the other side probes.
pub struct WithTransport {
    pub(crate) udp: Box<dyn Binder>,
    pub(crate) transport: Box<dyn Binder>,
}

impl WithTransport {
    /// `transport` beside `udp`.
    pub fn new(udp: impl Binder, transport: impl Binder) -> Self {
        Self { udp: Box::new(udp), transport: Box::new(transport) }
    }
}

impl Binder for WithTransport {
    fn bind(&mut self, options: &UdpOptions, workers: usize) -> io::Result<Bound> {
        let udp = self.udp.bind(options, workers)?;
        let transport = self.transport.bind(options, workers)?;
        Ok(Bound::new(both(udp.workers, transport.workers), both(udp.control, transport.control), udp.port))
    }
}

fn both(udp: Vec<Box<dyn Network>>, transport: Vec<Box<dyn Network>>) -> impl Iterator<Item = Both> {
    let transport = transport.into_iter().map(Some).chain(std::iter::repeat_with(|| None));
    udp.into_iter().zip(transport).map(|(udp, transport)| Both { udp, transport, had: Had::Udp, turn: 0 })
}

/// The sockets of a worker, UDP and the embedder's.
struct Both {
    udp: Box<dyn Network>,
    /// `None` after its end.
    transport: Option<Box<dyn Network>>,
    /// The network that is asked first, because it had datagrams the last time.
    had: Had,
    /// Counts calls of `recv`, to give the other network its turn.
    turn: usize,
}

/// One of the two networks.
#[derive(Clone, Copy)]
enum Had {
    Udp,
    Transport,
}

impl Had {
    fn other(self) -> Self {
        match self {
            Self::Udp => Self::Transport,
            Self::Transport => Self::Udp,
        }
    }
}

impl Network for Both {
    /// Receives from one of the two: both begin at the start of the slab.
    fn recv(&mut self, slab: &mut [u8], out: &mut Vec<Received>) -> io::Result<()> {
        self.recv_ready(Ready::ALL, slab, out)
    }

    fn recv_ready(&mut self, ready: Ready, slab: &mut [u8], out: &mut Vec<Received>) -> io::Result<()> {
        self.turn = (self.turn + 1) % OTHER_FIRST;
        let first = if self.turn == 0 { self.had.other() } else { self.had };
        let (of_udp, of_transport) = (self.udp.fds().count(), self.transport.fds().count());
        let before = out.len();
        for from in [first, first.other()] {
            match from {
                Had::Udp if ready.is_empty(of_udp) => {}
                Had::Udp => self.udp.recv_ready(ready, slab, out)?,
                Had::Transport if ready.after(of_udp).is_empty(of_transport) => {}
                Had::Transport => self.recv_by_transport(ready.after(of_udp), slab, out),
            }
            if out.len() > before {
                self.had = from;
                keep(out, before, from);
                break;
            }
        }
        Ok(())
    }

    fn separate(&mut self, from: &Endpoint, owner: u64) {
        if TransportAddress::of(from.remote).is_none() {
            self.udp.separate(from, owner);
        }
    }

    fn send(&mut self, slab: &[u8], batch: &[Transmit]) -> Sent {
        let by_transport = |transmit: &Transmit| TransportAddress::of(transmit.to.remote).is_some();
        let mut all = Sent::default();
        for run in batch.chunk_by(|a, b| by_transport(a) == by_transport(b)) {
            let Sent { sent, failed, source_lost } =
                if by_transport(&run[0]) { self.transport.send(slab, run) } else { self.udp.send(slab, run) };
            all.sent += sent;
            all.failed += failed;
            all.source_lost += source_lost;
        }
        all
    }

    fn send_near(&mut self, datagram: &[u8], to: Endpoint, hops: u8) -> Sent {
        self.udp.send_near(datagram, to, hops)
    }

    fn lane(&self) -> Option<Lane> {
        self.udp.lane()
    }

    fn set_fwmark(&self, mark: u32) -> io::Result<()> {
        self.udp.set_fwmark(mark)?;
        self.transport.set_fwmark(mark)
    }

    fn fd(&self, n: usize) -> Option<BorrowedFd<'_>> {
        self.udp.fds().chain(self.transport.fds()).nth(n)
    }

    fn recv_slab_len(&self) -> usize {
        self.udp.recv_slab_len().max(self.transport.recv_slab_len())
    }
}

impl Both {
    fn recv_by_transport(&mut self, ready: Ready, slab: &mut [u8], out: &mut Vec<Received>) {
        if let Err(error) = self.transport.recv_ready(ready, slab, out) {
            tracing::warn!("the program's own transport has ended, and with it the ways by it: {error}");
            self.transport = None;
        }
    }
}

/// Drops datagrams, from `first` on, whose address is not one of the network that they came from.
fn keep(out: &mut Vec<Received>, first: usize, from: Had) {
    let mut kept = first;
    for n in first..out.len() {
        let by_transport = TransportAddress::of(out[n].from.remote).is_some();
        if by_transport == matches!(from, Had::Transport) {
            out.swap(kept, n);
            kept += 1;
        }
    }
    out.truncate(kept);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{MemoryBinder, Transport};
    use rustguard_tun::{Endpoint, Segments, memory::MemoryNet};
    use std::net::SocketAddr;

    fn transport(number: u64) -> SocketAddr {
        TransportAddress::new(number).into()
    }

    fn bind(mut binder: impl Binder) -> Box<dyn Network> {
        binder.bind(&UdpOptions::default(), 1).unwrap().workers.remove(0)
    }

    fn transmits(slab: &[u8], to: &[SocketAddr]) -> Vec<Transmit> {
        let len = slab.len();
        let segments = Segments { offset: 0, stride: len, count: 1, len, last_len: len };
        to.iter().map(|to| Transmit { to: Endpoint::new(*to), segments, ds: 0 }).collect()
    }

    /// The senders of all that has arrived.
    fn received(network: &mut impl Network) -> Vec<SocketAddr> {
        let mut slab = vec![0; network.recv_slab_len()];
        let mut all = Vec::new();
        // A batch comes from one of the two networks. If all its datagrams are dropped, the batch is empty.
        for _ in 0..2 * OTHER_FIRST {
            network.recv(&mut slab, &mut all).unwrap();
        }
        all.iter().map(|received| received.from.remote).collect()
    }

    #[test]
    fn each_address_has_its_network_and_neither_passes_as_the_other() {
        let [net, beside] = [MemoryNet::default(), MemoryNet::default()];
        let (ours, udp) = ("192.0.2.1:1".parse().unwrap(), "192.0.2.2:1".parse().unwrap());
        let udp_binder = MemoryBinder::new(net.clone(), ours);
        let mut both = bind(WithTransport::new(udp_binder, MemoryBinder::new(beside.clone(), transport(1))));
        // In each network there is a peer, and another peer with an address of the other kind.
        let at = [(&net, udp), (&net, transport(2)), (&beside, transport(2)), (&beside, udp)];
        let mut others = at.map(|(net, at)| net.bind(at).unwrap());

        let batch = transmits(b"hello", &[udp, transport(2), transport(2), udp, udp]);
        assert_eq!(both.send(b"hello", &batch), Sent { sent: 5, ..Sent::default() });
        let counts = others.each_mut().map(|other| received(other).len());
        assert_eq!(counts, [3, 0, 2, 0]);

        for (other, to) in others.iter_mut().zip([ours, ours, transport(1), transport(1)]) {
            other.send(b"hello", &transmits(b"hello", &[to]));
        }
        let mut from = received(&mut both);
        from.sort_unstable();
        assert_eq!(from, [udp, transport(2)]);
    }

    #[tokio::test]
    async fn the_end_of_the_transport_is_not_the_end_of_udp() {
        let net = MemoryNet::default();
        let (ours, udp) = ("192.0.2.1:1".parse().unwrap(), "192.0.2.2:1".parse().unwrap());
        let (own, end) = Transport::new().unwrap();
        let mut both = bind(WithTransport::new(MemoryBinder::new(net.clone(), ours), own));
        assert_eq!(both.fds().count(), 2);
        drop(end);
        let mut other = net.bind(udp).unwrap();
        other.send(b"hello", &transmits(b"hello", &[ours]));
        assert_eq!(received(&mut both), [udp]);
        assert_eq!(both.fds().count(), 1, "it would be readable for ever");
        let sent = both.send(b"hello", &transmits(b"hello", &[transport(7), udp]));
        assert_eq!(sent, Sent { sent: 1, failed: 1, ..Sent::default() });
    }
}
