//! A UDP port that another tunnel of this machine has. The process of a tunnel cannot say so when it binds: it may not
//! talk to others then.

use crate::uapi;
use anyhow::{Result, bail};
use socket2::{Domain, Socket, Type};
use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
};

/// Refuses a port that a tunnel has, by its name. One that another program has is refused when it is bound.
///
/// # Errors
/// With the name of the tunnel and what to do.
pub(crate) fn check(interface: &str, port: u16, addresses: &[IpAddr]) -> Result<()> {
    let all = [Ipv4Addr::UNSPECIFIED.into(), Ipv6Addr::UNSPECIFIED.into()];
    let addresses = if addresses.is_empty() { &all } else { addresses };
    let is_taken = |&ip: &IpAddr| bind(ip, port).is_err_and(|error| error.kind() == io::ErrorKind::AddrInUse);
    if port == 0 || !addresses.iter().any(is_taken) {
        return Ok(());
    }
    for name in uapi::interfaces().unwrap_or_default() {
        // One that does not answer is as good as another program.
        if uapi::get(&name).is_ok_and(|device| device.all_listen_ports().any(|listened| listened == port)) {
            bail!(
                "cannot start {interface}: the tunnel {name} listens on UDP port {port}: choose another port, or end {name} \
                 (rustguard down {name})"
            );
        }
    }
    Ok(())
}

/// As a tunnel does it: a socket for IPv6 leaves IPv4 to others.
fn bind(ip: IpAddr, port: u16) -> io::Result<()> {
    let address = SocketAddr::new(ip, port);
    let socket = Socket::new(Domain::for_address(address), Type::DGRAM, None)?;
    if ip.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    socket.bind(&address.into())
}
