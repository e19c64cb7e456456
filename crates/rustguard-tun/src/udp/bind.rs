//! Binds the sockets of both families to one port.

use super::{MAX_PORTS, UdpOptions};
use crate::sys;
use socket2::{Domain, Protocol, SockAddr, Socket, Type};
use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
};

/// The size of the receive buffer in bytes. A full TCP send queue of a peer must fit: with the default of 208 KiB, a
/// single TCP connection loses a sixth of its throughput.
const RECEIVE_BUFFER: usize = 7 << 20;
/// The size of the send buffer in bytes. All peers share it, including peers behind other links. The queueing
/// discipline of a saturated link must therefore drop before this buffer is full. The kernel doubles the value, and
/// counts all memory of a packet. The result is twice the memory limit of fq_codel (`memory_limit`, 32 MiB), and more
/// than 1,000 packets of pfifo_fast.
const SEND_BUFFER: usize = 32 << 20;
/// How often a random port is tried until both families can have it.
const PORT_ATTEMPTS: usize = 64;

/// The sockets of both families. At least one of them exists.
pub(super) struct Pair {
    pub(super) v4: Option<Socket>,
    pub(super) v6: Option<Socket>,
    /// The port of both.
    pub(super) port: u16,
}

impl Pair {
    pub(super) fn of(&self, remote: SocketAddr) -> Option<&Socket> {
        if remote.is_ipv4() { self.v4.as_ref() } else { self.v6.as_ref() }
    }

    pub(super) fn try_clone(&self) -> io::Result<Self> {
        let clone = |socket: &Option<Socket>| socket.as_ref().map(Socket::try_clone).transpose();
        Ok(Self { v4: clone(&self.v4)?, v6: clone(&self.v6)?, port: self.port })
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Socket> {
        self.v4.iter().chain(&self.v6)
    }
}

/// Binds both families to one port with `bind`. For port 0, another port is tried until both families can have it.
pub(super) fn bind_pair(port: u16, mut bind: impl FnMut(Domain, u16) -> io::Result<Socket>) -> io::Result<Pair> {
    let mut attempts = 0;
    loop {
        attempts += 1;
        let v4 = if_available(bind(Domain::IPV4, port))?;
        let drawn = v4.as_ref().map_or(Ok(port), port_of)?;
        let v6 = match if_available(bind(Domain::IPV6, drawn)) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && port == 0 && attempts < PORT_ATTEMPTS => continue,
            v6 => v6?,
        };
        let Some(any) = v4.as_ref().or(v6.as_ref()) else {
            return Err(io::Error::new(io::ErrorKind::Unsupported, "this host has neither IPv4 nor IPv6"));
        };
        let port = port_of(any)?;
        return Ok(Pair { v4, v6, port });
    }
}

/// All ports of the settings.
pub(super) fn ports(options: &UdpOptions) -> io::Result<Vec<u16>> {
    let ports: Vec<_> = std::iter::once(options.port).chain(options.more_ports.iter().copied()).collect();
    let problem = if ports.len() > MAX_PORTS {
        format!("{} UDP ports are too many: choose at most {MAX_PORTS}", ports.len())
    } else if ports.len() > 1 && ports.contains(&0) {
        "UDP port 0 is among several ports: choose numbers for all of them".to_owned()
    } else if let Some(twice) = (1..ports.len()).find(|&n| ports[..n].contains(&ports[n])) {
        format!("UDP port {} is given twice: give each port once", ports[twice])
    } else {
        return Ok(ports);
    };
    Err(io::Error::new(io::ErrorKind::InvalidInput, problem))
}

/// `None` if the host lacks a family: it is not built in (EAFNOSUPPORT), or disabled (EADDRNOTAVAIL).
fn if_available(socket: io::Result<Socket>) -> io::Result<Option<Socket>> {
    match socket {
        Err(error) if matches!(error.raw_os_error(), Some(libc::EAFNOSUPPORT | libc::EADDRNOTAVAIL)) => Ok(None),
        socket => socket.map(Some),
    }
}

pub(super) fn port_of(socket: &Socket) -> io::Result<u16> {
    let address = socket.local_addr()?.as_socket();
    Ok(address.expect("a UDP socket has an IP address").port())
}

/// How a socket takes its port.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Claim {
    /// No other socket may have the port.
    Alone,
    /// Sockets of the same user may share the port, if they also choose to.
    Shared,
    /// As `Alone`, but nothing is received.
    SendOnly,
}

pub(super) fn bind(domain: Domain, port: u16, options: &UdpOptions, claim: Claim) -> io::Result<Socket> {
    let ip = listen_address(domain, options)?;
    let socket = open(domain, options.offload)?;
    if options.fwmark != 0 {
        set_mark(&socket, options.fwmark)?;
    }
    socket.set_reuse_port(claim == Claim::Shared)?;
    if claim == Claim::SendOnly {
        sys::drop_all(&socket)?;
    }
    socket.bind(&SockAddr::from(SocketAddr::new(ip, port))).map_err(|error| match error.raw_os_error() {
        // IP_FREEBIND would hide a mistyped address: nothing would ever arrive.
        Some(libc::EADDRNOTAVAIL) if !options.addresses.is_empty() => io::Error::new(
            error.kind(),
            format!("no interface of this host has the address {ip}: correct ListenAddress, or start the tunnel when the host has the address"),
        ),
        Some(libc::EADDRINUSE) => {
            let message =
                format!("UDP port {port} is in use by another program: choose another port, or end that program");
            io::Error::new(error.kind(), message)
        }
        Some(libc::EACCES) => io::Error::new(
            error.kind(),
            format!("not permitted to use UDP port {port}: choose a port above 1023, or run as root"),
        ),
        _ => error,
    })?;
    Ok(socket)
}

/// A socket with our common options, without an address.
fn open(domain: Domain, offload: bool) -> io::Result<Socket> {
    let socket = Socket::new(domain, Type::DGRAM.nonblocking(), Some(Protocol::UDP))?;
    if domain == Domain::IPV6 {
        socket.set_only_v6(true)?;
        sys::set_option(&socket, libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO, 1)?;
        sys::set_option(&socket, libc::IPPROTO_IPV6, libc::IPV6_RECVTCLASS, 1)?;
    } else {
        sys::set_option(&socket, libc::IPPROTO_IP, libc::IP_PKTINFO, 1)?;
        sys::set_option(&socket, libc::IPPROTO_IP, libc::IP_RECVTOS, 1)?;
        sys::set_option(&socket, libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_DONT)?;
    }
    enlarge_buffers(&socket);
    if offload {
        // Needs Linux 5.0. Older kernels deliver every datagram separately.
        let _ = sys::set_option(&socket, libc::SOL_UDP, libc::UDP_GRO, 1);
    }
    Ok(socket)
}

/// A socket at the port of `shared` that receives only datagrams from `remote` to `local`. The kernel prefers it to
/// unconnected sockets (`compute_score`). Between bind and connect, it may receive datagrams of others, which are read
/// as well.
///
/// # Errors
/// The kernel's errors. `shared` is then unchanged.
pub(super) fn connected(shared: &Socket, local: SocketAddr, remote: SocketAddr, offload: bool) -> io::Result<Socket> {
    let socket = open(Domain::for_address(remote), offload)?;
    // Both sockets need the option. SO_REUSEPORT admits only sockets of the same user. With SO_REUSEADDR, any program
    // that binds at the same moment could get the port, and all datagrams of the other senders.
    let is_shared = shared.reuse_port()?;
    socket.set_reuse_port(true)?;
    shared.set_reuse_port(true)?;
    let bound = socket.bind(&local.into());
    shared.set_reuse_port(is_shared)?;
    bound?;
    socket.connect(&remote.into())?;
    Ok(socket)
}

/// The address at which the socket of this family listens. A family without an address gives the same error as a host
/// without the family.
fn listen_address(domain: Domain, options: &UdpOptions) -> io::Result<IpAddr> {
    let any = if domain == Domain::IPV6 { Ipv6Addr::UNSPECIFIED.into() } else { IpAddr::from(Ipv4Addr::UNSPECIFIED) };
    if options.addresses.is_empty() {
        return Ok(any);
    }
    let mut of_family = options.addresses.iter().filter(|address| address.is_ipv6() == any.is_ipv6());
    let address = of_family.next().ok_or_else(|| io::Error::from_raw_os_error(libc::EAFNOSUPPORT))?;
    if let Some(second) = of_family.next() {
        let message = format!("a tunnel listens at one address of each IP version, not at {address} and {second}");
        return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
    }
    Ok(*address)
}

pub(super) fn set_mark(socket: &Socket, mark: u32) -> io::Result<()> {
    socket.set_mark(mark).map_err(|error| match error.raw_os_error() {
        Some(libc::EPERM) => io::Error::new(
            error.kind(),
            format!("not permitted to set the firewall mark {mark:#x}: it needs CAP_NET_ADMIN; run as root, or leave FwMark out"),
        ),
        _ => error,
    })
}

/// Sets the sizes of the buffers. Sizes beyond `net.core.rmem_max` and `wmem_max` need CAP_NET_ADMIN; without it, those
/// limits apply. If the host refuses any change, the tunnel still works, but slower.
fn enlarge_buffers(socket: &Socket) {
    for (force, plain, size) in
        [(libc::SO_RCVBUFFORCE, libc::SO_RCVBUF, RECEIVE_BUFFER), (libc::SO_SNDBUFFORCE, libc::SO_SNDBUF, SEND_BUFFER)]
    {
        let size = size as libc::c_int;
        if sys::set_option(socket, libc::SOL_SOCKET, force, size).is_err() {
            let _ = sys::set_option(socket, libc::SOL_SOCKET, plain, size);
        }
    }
}
