//! Detects a UDP port that another tunnel of this machine has. The process of a tunnel cannot name that tunnel when it
//! binds, because it may no longer connect to other processes.

use crate::uapi;
use anyhow::{Result, bail};
use socket2::{Domain, Socket, Type};
use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
};

/// Refuses a port that another tunnel has, with the tunnel's name. A port of another program is refused when it is
/// bound.
///
/// # Errors
/// With the name of the tunnel and a remedy.
pub(crate) fn check(interface: &str, port: u16, addresses: &[IpAddr]) -> Result<()> {
    let all = [Ipv4Addr::UNSPECIFIED.into(), Ipv6Addr::UNSPECIFIED.into()];
    let addresses = if addresses.is_empty() { &all } else { addresses };
    let is_taken = |&ip: &IpAddr| bind(ip, port).is_err_and(|error| error.kind() == io::ErrorKind::AddrInUse);
    if port == 0 || !addresses.iter().any(is_taken) {
        return Ok(());
    }
    for name in uapi::interfaces().unwrap_or_default() {
        // A tunnel that does not answer is treated like another program.
        if uapi::get(&name).is_ok_and(|device| device.all_listen_ports().any(|listened| listened == port)) {
            bail!(
                "cannot start {interface}: the tunnel {name} listens on UDP port {port}: choose another port, or end {name} \
                 (rustguard down {name})"
            );
        }
    }
    Ok(())
}

/// Binds as a tunnel does: a socket for IPv6 does not take the IPv4 port.
fn bind(ip: IpAddr, port: u16) -> io::Result<()> {
    let address = SocketAddr::new(ip, port);
    let socket = Socket::new(Domain::for_address(address), Type::DGRAM, None)?;
    if ip.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    socket.bind(&address.into())
}
