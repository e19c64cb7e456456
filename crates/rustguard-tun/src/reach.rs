//! Asks the network whether a UDP port can be reached.
//!
//! The tunnel's own sockets do not receive ICMP errors, because they are not connected. With IP_RECVERR, the kernel
//! would report each error for the next datagram to any destination, and not send that datagram. A separate socket,
//! connected to the port in question, receives only the errors for its own datagram.

use crate::{Endpoint, sys};
use socket2::{Domain, Protocol, Socket, Type};
use std::{
    io,
    net::{IpAddr, SocketAddr},
    os::fd::AsFd as _,
};

/// The reason why a datagram was not delivered, from an ICMP message. Such messages are not authenticated: this is a
/// hint for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unreachable {
    /// The reason in the message.
    pub reason: Reason,
    /// The sender of the message: the host itself, a router, or this host's kernel with an address of this host.
    pub by: Option<IpAddr>,
}

/// The reasons in ICMP messages about a datagram (RFC 792, RFC 1812 §5.2.7, RFC 4443 §3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reason {
    /// No program listens on the port.
    Port,
    /// The last router, or this host, does not find the host.
    Host,
    /// A router has no route.
    Network,
    /// A rule forbids it.
    Prohibited,
    /// It was forwarded too often, because the routers' routes form a loop.
    HopLimit,
    /// This host's address is out of scope there (IPv6 only).
    Scope,
    /// Another type and code.
    Other(u8, u8),
}

impl Reason {
    /// The reason for a type and a code of ICMP or ICMPv6.
    fn of(icmp: (u8, u8), is_v6: bool) -> Self {
        match (is_v6, icmp) {
            (false, (3, 3)) | (true, (1, 4)) => Self::Port,
            (false, (3, 1 | 7 | 8 | 12)) | (true, (1, 3)) => Self::Host,
            (false, (3, 0 | 6 | 11)) | (true, (1, 0)) => Self::Network,
            (false, (3, 9 | 10 | 13 | 14 | 15)) | (true, (1, 1 | 5 | 6)) => Self::Prohibited,
            (false, (11, 0)) | (true, (3, 0)) => Self::HopLimit,
            (true, (1, 2)) => Self::Scope,
            (_, (kind, code)) => Self::Other(kind, code),
        }
    }
}

/// An empty datagram on its way to a UDP port. WireGuard ignores it. A host on which no program listens on the port
/// refuses it by an ICMP message. A router that cannot deliver it does the same, and so does this host's kernel when
/// the next hop does not answer.
#[derive(Debug)]
pub struct ReachProbe {
    socket: Socket,
    is_v6: bool,
}

impl ReachProbe {
    /// Sends the datagram from the address in `to`, if there is one, and from a port that the kernel chooses, with the
    /// firewall mark (0 means no mark).
    ///
    /// # Errors
    /// The kernel refuses to send it: there is no route, a firewall rule of this host forbids it, or the host does not
    /// have the address any more.
    pub fn send(to: Endpoint, fwmark: u32) -> io::Result<Self> {
        let Endpoint { remote, local, .. } = to;
        let (domain, level, name) = match remote {
            SocketAddr::V4(_) => (Domain::IPV4, libc::IPPROTO_IP, libc::IP_RECVERR),
            SocketAddr::V6(_) => (Domain::IPV6, libc::IPPROTO_IPV6, libc::IPV6_RECVERR),
        };
        let socket = Socket::new(domain, Type::DGRAM.nonblocking().cloexec(), Some(Protocol::UDP))?;
        // Without this option, only a refused port is reported (__udp4_lib_err, `harderr`).
        sys::set_option(&socket, level, name, 1)?;
        if fwmark != 0 {
            socket.set_mark(fwmark)?;
        }
        if let Some(local) = local {
            socket.bind(&SocketAddr::new(local.ip, 0).into())?;
        }
        socket.connect(&remote.into())?;
        socket.send(&[])?;
        Ok(Self { socket, is_v6: remote.is_ipv6() })
    }

    /// The error that has come back since the last call.
    pub fn unreachable(&self) -> Option<Unreachable> {
        let sys::QueuedError { errno, icmp, by } = sys::queued_error(self.socket.as_fd())?;
        let reason = match icmp {
            Some(icmp) => Reason::of(icmp, self.is_v6),
            // The kernel has sent no message to itself.
            None if errno == libc::ENETUNREACH => Reason::Network,
            None => Reason::Host,
        };
        Some(Unreachable { reason, by })
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
            assert_eq!(probe.unreachable(), None);
            drop(listener);
            // On the loopback interface, the answer is there before the call returns.
            let probe = ReachProbe::send(Endpoint::new(remote), 0).unwrap();
            let refused = Unreachable { reason: Reason::Port, by: Some(remote.ip()) };
            assert_eq!(probe.unreachable(), Some(refused));
            assert_eq!(probe.unreachable(), None, "reported once");
        }
    }

    #[test]
    fn each_code_of_both_versions_says_what_it_means() {
        let said = |is_v6, kind, codes: std::ops::Range<u8>| {
            codes.map(|code| Reason::of((kind, code), is_v6)).collect::<Vec<_>>()
        };
        use Reason::{HopLimit, Host, Network, Other, Port, Prohibited, Scope};
        let (protocol, too_long, source_route) = (Other(3, 2), Other(3, 4), Other(3, 5));
        let v4 = [Network, Host, protocol, Port, too_long, source_route, Network, Host];
        assert_eq!(said(false, 3, 0..8), v4);
        assert_eq!(
            said(false, 3, 8..16),
            [Host, Prohibited, Prohibited, Network, Host, Prohibited, Prohibited, Prohibited]
        );
        assert_eq!(said(true, 1, 0..8), [Network, Prohibited, Scope, Host, Port, Prohibited, Prohibited, Other(1, 7)]);
        assert_eq!(
            (said(false, 11, 0..2), said(true, 3, 0..2)),
            (vec![HopLimit, Other(11, 1)], vec![HopLimit, Other(3, 1)])
        );
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
