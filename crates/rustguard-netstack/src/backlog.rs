//! Connections that others begin at a port, until they are accepted.
//!
//! Each place is a socket that listens. A packet with SYN takes one, and keeps it until the connection is established
//! and accepted, or was silent for ten seconds. One address has few places with half-open connections, so that who
//! floods a port with SYN keeps nobody else out. A SYN without a place is dropped, and not refused: its sender tries
//! again.

use crate::inner::Inner;
use smoltcp::{
    iface::SocketHandle,
    socket::tcp::{CongestionControl, Socket, SocketBuffer, State},
    time::Duration as SmolDuration,
    wire::{IpAddress, IpProtocol, IpVersion, Ipv4Packet, Ipv6Packet, TcpPacket},
};

/// The places of a port.
const PLACES: usize = 64;
/// How long the other end of a half-open connection may be silent.
const SILENT: SmolDuration = SmolDuration::from_secs(10);
/// How many half-open connections of one address may have places.
const HALF_OPEN: usize = 16;

impl Inner {
    /// Begins to listen at a port.
    pub(crate) fn add_backlog(&mut self, port: u16) {
        let places = (0..PLACES).map(|_| listening(self, port)).collect();
        self.backlogs.insert(port, places);
    }

    /// Ends it. Connections that were not accepted are reset.
    pub(crate) fn remove_backlog(&mut self, port: u16) {
        for place in self.backlogs.remove(&port).unwrap_or_default() {
            self.reset(place);
        }
    }

    /// Whether the stack takes a packet. All but SYN without a place.
    pub(crate) fn admits(&mut self, packet: &[u8]) -> bool {
        let Some((from, port)) = syn_of(packet) else { return true };
        let Some(places) = self.backlogs.get(&port) else { return true };
        let (mut is_free, mut of_sender) = (false, 0);
        for place in places {
            let socket = self.sockets.get::<Socket<'_>>(*place);
            match socket.state() {
                State::Listen => is_free = true,
                // A repetition of its SYN finds its place.
                State::SynReceived if socket.remote_endpoint().is_some_and(|it| it.addr == from) => of_sender += 1,
                _ => {}
            }
        }
        is_free && of_sender < HALF_OPEN
    }

    /// Breaks a connection, and removes it when the other end was told.
    pub(crate) fn reset(&mut self, handle: SocketHandle) {
        self.sockets.get_mut::<Socket<'_>>(handle).abort();
        self.close(handle);
    }
}

/// The sender and the port of a packet that begins a connection.
fn syn_of(packet: &[u8]) -> Option<(IpAddress, u16)> {
    let (from, payload): (IpAddress, &[u8]) = match IpVersion::of_packet(packet).ok()? {
        IpVersion::Ipv4 => {
            let packet = Ipv4Packet::new_checked(packet).ok().filter(|it| it.next_header() == IpProtocol::Tcp)?;
            (packet.src_addr().into(), packet.payload())
        }
        IpVersion::Ipv6 => {
            let packet = Ipv6Packet::new_checked(packet).ok().filter(|it| it.next_header() == IpProtocol::Tcp)?;
            (packet.src_addr().into(), packet.payload())
        }
    };
    let segment = TcpPacket::new_checked(payload).ok()?;
    (segment.syn() && !segment.ack()).then(|| (from, segment.dst_port()))
}

/// A socket that listens.
pub(crate) fn listening(inner: &mut Inner, port: u16) -> SocketHandle {
    let mut socket = socket(inner.buffer());
    socket.set_timeout(Some(SILENT));
    // The port is not 0, and the socket is new.
    let _ = socket.listen(port);
    inner.sockets.add(socket)
}

/// A socket with buffers of this size. A round trip of 20 ms and 256 KiB carry 100 Mbit/s.
pub(crate) fn socket(bytes: usize) -> Socket<'static> {
    let buffer = || SocketBuffer::new(vec![0; bytes]);
    let mut socket = Socket::new(buffer(), buffer());
    socket.set_congestion_control(CongestionControl::Cubic);
    // Programs write whole messages, as the kernel's sockets with TCP_NODELAY expect.
    socket.set_nagle_enabled(false);
    socket
}
