//! recvmmsg and sendmmsg with the addresses of both ends (ip(7), ipv6(7): IP_PKTINFO, IPV6_PKTINFO).
//!
//! The arrays the kernel wants are kept between calls; every pointer in them is set anew in each call, from the slices
//! that call was given, so none is ever followed after those slices are gone.
#![allow(clippy::unnecessary_cast, reason = "musl gives some of these fields other integer types than glibc")]

use super::check;
use crate::{LocalAddr, Span};
use std::{
    io,
    mem::{size_of, size_of_val, zeroed},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6},
    os::fd::{AsFd, AsRawFd},
    ptr,
};

/// Room for one control message of either family, aligned as a `cmsghdr`.
type Control = [u64; 5];
// SAFETY: only computes a length.
const _: () =
    assert!(size_of::<Control>() >= unsafe { libc::CMSG_SPACE(size_of::<libc::in6_pktinfo>() as u32) } as usize);

/// A socket address of either family.
#[derive(Clone, Copy)]
#[repr(C)]
union Address {
    family: libc::sa_family_t,
    v4: libc::sockaddr_in,
    v6: libc::sockaddr_in6,
}

/// A datagram to send: `source` as its sender's address, where given.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outgoing {
    pub(crate) span: Span,
    pub(crate) to: SocketAddr,
    pub(crate) source: Option<LocalAddr>,
}

/// A datagram that came.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Incoming {
    pub(crate) len: usize,
    /// It was longer than the buffer.
    pub(crate) truncated: bool,
    pub(crate) from: SocketAddr,
    pub(crate) local: Option<LocalAddr>,
}

/// The arrays of `N` messages, boxed: they are too large to move about.
pub(crate) struct Messages<const N: usize>(Box<Arrays<N>>);

struct Arrays<const N: usize> {
    headers: [libc::mmsghdr; N],
    buffers: [libc::iovec; N],
    addresses: [Address; N],
    controls: [Control; N],
}

// SAFETY: the raw pointers inside are what keeps this from being Send by itself. They are followed only by the kernel
// during a call (`&mut self`), after that call has set them to memory it borrows.
unsafe impl<const N: usize> Send for Messages<N> {}

impl<const N: usize> std::fmt::Debug for Messages<N> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Messages<{N}>")
    }
}

impl<const N: usize> Messages<N> {
    pub(crate) fn new() -> Self {
        // SAFETY: all of it is integers and pointers, for which zeroes are values.
        Self(Box::new(unsafe { zeroed() }))
    }

    /// Receives up to one datagram per `slot` bytes of `slab`, at most `N`, without waiting. Returns how many came;
    /// [`incoming`](Self::incoming) describes them, in order, until the next call.
    pub(crate) fn recv(&mut self, socket: impl AsFd, slab: &mut [u8], slot: usize) -> io::Result<usize> {
        let Arrays { headers, buffers, addresses, controls } = &mut *self.0;
        let mut count = 0;
        for (i, buffer) in slab.chunks_exact_mut(slot).take(N).enumerate() {
            buffers[i] = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
            let header = &mut headers[i].msg_hdr;
            header.msg_name = (&raw mut addresses[i]).cast();
            header.msg_namelen = size_of::<Address>() as libc::socklen_t;
            header.msg_iov = &raw mut buffers[i];
            header.msg_iovlen = 1;
            // The kernel leaves the length it filled here: without a reset the next call would have no room.
            header.msg_control = controls[i].as_mut_ptr().cast();
            header.msg_controllen = size_of::<Control>() as _;
            header.msg_flags = 0;
            count = i + 1;
        }
        // SAFETY: `count` headers were filled above; each names an address and a control buffer that `self` owns with
        // their true lengths, and a part of `slab` no other names; all outlive the call. A null timeout is allowed.
        let received = check(unsafe {
            let headers = headers.as_mut_ptr();
            let flags = libc::MSG_DONTWAIT;
            libc::recvmmsg(socket.as_fd().as_raw_fd(), headers, count as _, flags as _, ptr::null_mut())
        })?;
        Ok(received.try_into().expect("check() lets nothing negative through"))
    }

    /// The `i`th datagram of the last [`recv`](Self::recv); `None` when its sender's address is of no known family.
    pub(crate) fn incoming(&self, i: usize) -> Option<Incoming> {
        let header = &self.0.headers[i];
        Some(Incoming {
            len: header.msg_len as usize,
            truncated: header.msg_hdr.msg_flags & libc::MSG_TRUNC != 0,
            from: self.0.addresses[i].get(header.msg_hdr.msg_namelen as usize)?,
            local: pktinfo(&self.0.controls[i], header.msg_hdr.msg_controllen as usize),
        })
    }

    /// Sends the first of `datagrams`, at most `N`, from `slab`, without waiting. Returns how many the kernel took; an
    /// error is about the first one, or left over from an earlier one (see `Udp`).
    pub(crate) fn send(&mut self, socket: impl AsFd, slab: &[u8], datagrams: &[Outgoing]) -> io::Result<usize> {
        let Arrays { headers, buffers, addresses, controls } = &mut *self.0;
        let datagrams = &datagrams[..datagrams.len().min(N)];
        for (i, datagram) in datagrams.iter().enumerate() {
            let bytes = &slab[datagram.span.offset..datagram.span.offset + datagram.span.len];
            buffers[i] = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
            let header = &mut headers[i].msg_hdr;
            header.msg_namelen = addresses[i].set(datagram.to) as libc::socklen_t;
            header.msg_name = (&raw mut addresses[i]).cast();
            header.msg_iov = &raw mut buffers[i];
            header.msg_iovlen = 1;
            let control = datagram.source.map_or(0, |source| set_pktinfo(&mut controls[i], source));
            header.msg_control = if control == 0 { ptr::null_mut() } else { controls[i].as_mut_ptr().cast() };
            header.msg_controllen = control as _;
            header.msg_flags = 0;
        }
        let count = datagrams.len();
        // SAFETY: `count` headers were filled above; each names an address and a control buffer that `self` owns with
        // their true lengths, and a part of `slab`, which the kernel only reads; all outlive the call.
        let sent = check(unsafe {
            let headers = headers.as_mut_ptr();
            libc::sendmmsg(socket.as_fd().as_raw_fd(), headers, count as _, libc::MSG_DONTWAIT as _)
        })?;
        Ok(sent.try_into().expect("check() lets nothing negative through"))
    }
}

impl Address {
    /// Returns the length of what was set.
    fn set(&mut self, address: SocketAddr) -> usize {
        match address {
            SocketAddr::V4(address) => {
                self.v4 = libc::sockaddr_in {
                    sin_family: libc::AF_INET as libc::sa_family_t,
                    sin_port: address.port().to_be(),
                    sin_addr: in_addr(*address.ip()),
                    sin_zero: [0; 8],
                };
                size_of::<libc::sockaddr_in>()
            }
            SocketAddr::V6(address) => {
                self.v6 = libc::sockaddr_in6 {
                    sin6_family: libc::AF_INET6 as libc::sa_family_t,
                    sin6_port: address.port().to_be(),
                    sin6_flowinfo: address.flowinfo(),
                    sin6_addr: in6_addr(*address.ip()),
                    sin6_scope_id: address.scope_id(),
                };
                size_of::<libc::sockaddr_in6>()
            }
        }
    }

    /// What the kernel wrote, `len` bytes of it.
    fn get(&self, len: usize) -> Option<SocketAddr> {
        // SAFETY: every union here was zeroed at first and then written as one of these structs, by us or the kernel:
        // all bytes are initialised, and any bits are integers.
        let (family, v4, v6) = unsafe { (self.family, self.v4, self.v6) };
        if i32::from(family) == libc::AF_INET && len >= size_of_val(&v4) {
            Some(SocketAddrV4::new(ipv4(v4.sin_addr), u16::from_be(v4.sin_port)).into())
        } else if i32::from(family) == libc::AF_INET6 && len >= size_of_val(&v6) {
            let (ip, port) = (Ipv6Addr::from(v6.sin6_addr.s6_addr), u16::from_be(v6.sin6_port));
            Some(SocketAddrV6::new(ip, port, v6.sin6_flowinfo, v6.sin6_scope_id).into())
        } else {
            None
        }
    }
}

/// Writes the control message that makes a datagram leave from `source`; returns its length.
fn set_pktinfo(control: &mut Control, source: LocalAddr) -> usize {
    match source.ip {
        // No interface: it would override routing, and send to neighbours what needs a gateway. The kernel's own
        // WireGuard looks its route up by source address alone, too.
        IpAddr::V4(ip) => {
            let info =
                libc::in_pktinfo { ipi_ifindex: 0, ipi_spec_dst: in_addr(ip), ipi_addr: libc::in_addr { s_addr: 0 } };
            put(control, libc::IPPROTO_IP, libc::IP_PKTINFO, info)
        }
        // A link-local address means nothing without its interface.
        IpAddr::V6(ip) => {
            let interface = if ip.is_unicast_link_local() { source.interface } else { 0 };
            let info = libc::in6_pktinfo { ipi6_addr: in6_addr(ip), ipi6_ifindex: interface as _ };
            put(control, libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, info)
        }
    }
}

/// Writes one control message; returns the length for `msg_controllen`. `T` is one of the two pktinfo structs.
fn put<T: Copy>(control: &mut Control, level: libc::c_int, kind: libc::c_int, value: T) -> usize {
    *control = [0; 5];
    let bytes = size_of::<T>() as u32;
    // SAFETY: only computes lengths.
    let (len, space) = unsafe { (libc::CMSG_LEN(bytes), libc::CMSG_SPACE(bytes) as usize) };
    assert!(space <= size_of::<Control>(), "the buffer was made for the larger of both");
    let header: *mut libc::cmsghdr = control.as_mut_ptr().cast();
    // SAFETY: the buffer is aligned for a cmsghdr and has room for it and the value behind it, as asserted; CMSG_DATA
    // computes where that is.
    unsafe {
        (*header).cmsg_len = len as _;
        (*header).cmsg_level = level;
        (*header).cmsg_type = kind;
        libc::CMSG_DATA(header).cast::<T>().write_unaligned(value);
    }
    space
}

/// Reads the control message a datagram came with, of which there is at most one: nothing else was asked for.
fn pktinfo(control: &Control, len: usize) -> Option<LocalAddr> {
    if len < size_of::<libc::cmsghdr>() {
        return None;
    }
    let header: *const libc::cmsghdr = control.as_ptr().cast();
    // SAFETY: the buffer is aligned for a cmsghdr, longer than one, and all of its bytes are initialised.
    let (level, kind, bytes) = unsafe { ((*header).cmsg_level, (*header).cmsg_type, (*header).cmsg_len as usize) };
    // SAFETY: only computes lengths, here and below; then reads a value that lies within the buffer (asserted at its
    // type for the larger one) wherever the kernel says it wrote all of it, and any bits of which are integers.
    unsafe {
        let data = libc::CMSG_DATA(header);
        if (level, kind) == (libc::IPPROTO_IP, libc::IP_PKTINFO) && bytes >= cmsg_len::<libc::in_pktinfo>() {
            let info = data.cast::<libc::in_pktinfo>().read_unaligned();
            // Not `ipi_addr`, which is what the packet was addressed to, broadcast included.
            Some(LocalAddr { ip: ipv4(info.ipi_spec_dst).into(), interface: info.ipi_ifindex as u32 })
        } else if (level, kind) == (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) && bytes >= cmsg_len::<libc::in6_pktinfo>()
        {
            let info = data.cast::<libc::in6_pktinfo>().read_unaligned();
            Some(LocalAddr { ip: Ipv6Addr::from(info.ipi6_addr.s6_addr).into(), interface: info.ipi6_ifindex as u32 })
        } else {
            None
        }
    }
}

fn cmsg_len<T>() -> usize {
    // SAFETY: only computes a length.
    unsafe { libc::CMSG_LEN(size_of::<T>() as u32) as usize }
}

fn in_addr(ip: Ipv4Addr) -> libc::in_addr {
    libc::in_addr { s_addr: u32::from_ne_bytes(ip.octets()) }
}

fn in6_addr(ip: Ipv6Addr) -> libc::in6_addr {
    libc::in6_addr { s6_addr: ip.octets() }
}

fn ipv4(address: libc::in_addr) -> Ipv4Addr {
    address.s_addr.to_ne_bytes().into()
}

/// Sets a socket option that is an int.
pub(crate) fn set_option(
    socket: impl AsFd,
    level: libc::c_int,
    option: libc::c_int,
    value: libc::c_int,
) -> io::Result<()> {
    let len = size_of_val(&value) as libc::socklen_t;
    // SAFETY: `value` is valid for `len` bytes, which the kernel only reads.
    check(unsafe { libc::setsockopt(socket.as_fd().as_raw_fd(), level, option, (&raw const value).cast(), len) })
        .map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// What we tell the kernel about addresses is what we would read back from it.
        #[test]
        fn addresses_survive_the_kernels_format(remote: SocketAddr, ip: IpAddr, interface: u32) {
            let mut address = Messages::<1>::new().0.addresses[0];
            let len = address.set(remote);
            prop_assert_eq!(address.get(len), Some(remote));
            prop_assert_eq!(address.get(len - 1), None);

            let mut control = [u64::MAX; 5];
            let len = set_pktinfo(&mut control, LocalAddr { ip, interface });
            let read = pktinfo(&control, len).unwrap();
            prop_assert_eq!(read.ip, ip);
            let link_local = matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local());
            prop_assert_eq!(read.interface, if link_local { interface } else { 0 });
            prop_assert_eq!(pktinfo(&control, 0), None);
        }
    }
}
