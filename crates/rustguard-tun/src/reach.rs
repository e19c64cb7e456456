//! Asks the network whether a UDP port can be reached.
//!
//! The tunnel's own sockets do not hear of ICMP errors: they are not connected, and with IP_RECVERR each error would be reported for the
//! next datagram, whoever it is for, which the kernel then does not send. A socket of its own, connected to the port in question, hears
//! of the errors for its own datagram only.

use crate::{Endpoint, sys};
use socket2::{Domain, Protocol, Socket, Type};
use std::{io, net::SocketAddr};

/// An empty datagram on its way to a UDP port. WireGuard ignores it. A host on which nobody listens on the port refuses it by an ICMP
/// message, and so does a router that cannot deliver it. This host's kernel does the same when the next hop does not answer.
#[derive(Debug)]
pub struct ReachProbe {
    socket: Socket,
}

impl ReachProbe {
    /// Sends the datagram from the address in `to`, if there is one, and from a port that the kernel chooses, with the firewall mark (0
    /// means no mark).
    ///
    /// # Errors
    /// The kernel refuses to send it: there is no route, a firewall rule of this host forbids it, or the host does not have the address
    /// any more.
    pub fn send(to: Endpoint, fwmark: u32) -> io::Result<Self> {
        let Endpoint { remote, local, .. } = to;
        let (domain, level, name) = match remote {
            SocketAddr::V4(_) => (Domain::IPV4, libc::IPPROTO_IP, libc::IP_RECVERR),
            SocketAddr::V6(_) => (Domain::IPV6, libc::IPPROTO_IPV6, libc::IPV6_RECVERR),
        };
        let socket = Socket::new(domain, Type::DGRAM.nonblocking().cloexec(), Some(Protocol::UDP))?;
        // Without it, only a refused port is reported (__udp4_lib_err, `harderr`).
        sys::set_option(&socket, level, name, 1)?;
        if fwmark != 0 {
            socket.set_mark(fwmark)?;
        }
        if let Some(local) = local {
            socket.bind(&SocketAddr::new(local.ip, 0).into())?;
        }
        socket.connect(&remote.into())?;
        socket.send(&[])?;
        Ok(Self { socket })
    }

    /// The error that came back since the last call, such as [`io::ErrorKind::ConnectionRefused`] for a port on which nobody listens.
    pub fn error(&self) -> Option<io::Error> {
        self.socket.take_error().ok().flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::LocalAddr;
    use std::{net::UdpSocket, time::Duration};

    fn port(address: &str) -> io::Result<UdpSocket> {
        let socket = UdpSocket::bind((address, 0))?;
        socket.set_read_timeout(Some(Duration::from_secs(10)))?;
        Ok(socket)
    }

    #[test]
    fn a_port_without_a_listener_is_refused_and_one_with_a_listener_is_not() {
        for address in ["127.0.0.1", "::1"] {
            let Ok(listener) = port(address) else { continue };
            let remote = listener.local_addr().unwrap();
            let probe = ReachProbe::send(Endpoint::new(remote), 0).unwrap();
            assert_eq!(listener.recv(&mut [0; 8]).unwrap(), 0, "an empty datagram");
            assert!(probe.error().is_none());
            drop(listener);
            // On the loopback interface, the answer is there before the call returns.
            let probe = ReachProbe::send(Endpoint::new(remote), 0).unwrap();
            assert_eq!(probe.error().map(|error| error.kind()), Some(io::ErrorKind::ConnectionRefused));
            assert!(probe.error().is_none(), "reported once");
        }
    }

    #[test]
    fn the_datagram_leaves_from_the_address_that_is_asked_for() {
        let listener = port("127.0.0.1").unwrap();
        let from = LocalAddr { ip: [127, 0, 0, 2].into(), interface: 0, bound: false };
        let to = Endpoint { local: Some(from), ..Endpoint::new(listener.local_addr().unwrap()) };
        let _probe = ReachProbe::send(to, 0).unwrap();
        assert_eq!(listener.recv_from(&mut [0; 8]).unwrap().1.ip(), from.ip);
    }
}
