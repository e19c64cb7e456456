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

/// Room for three control messages, an address of either family, the DS field and the size of segments; aligned as a `cmsghdr`.
type Control = [u64; 11];
// SAFETY: only computes lengths.
const _: () = assert!(
    size_of::<Control>()
        >= unsafe {
            libc::CMSG_SPACE(size_of::<libc::in6_pktinfo>() as u32)
                + 2 * libc::CMSG_SPACE(size_of::<libc::c_int>() as u32)
        } as usize
);

/// The bits of a DS field or traffic class that are explicit congestion notification.
const ECN_MASK: u8 = 0b11;

/// A socket address of either family.
#[derive(Clone, Copy)]
#[repr(C)]
union Address {
    family: libc::sa_family_t,
    v4: libc::sockaddr_in,
    v6: libc::sockaddr_in6,
}

/// Datagrams to send, which lie end to end: `source` as their sender's address, where given.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outgoing {
    pub(crate) span: Span,
    pub(crate) to: SocketAddr,
    pub(crate) source: Option<LocalAddr>,
    /// The DS field of their IP headers.
    pub(crate) ds: u8,
    /// Bytes of each datagram but the last.
    pub(crate) size: usize,
    /// How many there are.
    pub(crate) count: usize,
}

/// Datagrams of one sender that came as one (UDP_GRO), or a single one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Incoming {
    pub(crate) len: usize,
    /// Bytes of each datagram but the last, where there are several.
    pub(crate) size: Option<usize>,
    /// It was longer than the buffer.
    pub(crate) truncated: bool,
    pub(crate) from: SocketAddr,
    pub(crate) local: Option<LocalAddr>,
    /// The explicit congestion notification of their IP headers: the kernel only joins what has the same.
    pub(crate) ecn: u8,
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
        let control = read_control(&self.0.controls[i], header.msg_hdr.msg_controllen as usize);
        Some(Incoming {
            len: header.msg_len as usize,
            size: control.size,
            truncated: header.msg_hdr.msg_flags & libc::MSG_TRUNC != 0,
            from: self.0.addresses[i].get(header.msg_hdr.msg_namelen as usize)?,
            local: control.local,
            ecn: control.ecn,
        })
    }

    /// Sends the first of `datagrams`, at most `N`, from `slab`, without waiting. Returns how many the kernel took; an
    /// error is about the first one, or left over from an earlier one (see `Udp`).
    pub(crate) fn send(&mut self, socket: impl AsFd, slab: &[u8], datagrams: &[Outgoing]) -> io::Result<usize> {
        let headers = self.fill(slab, datagrams);
        // SAFETY: each header was filled by `fill` and names an address and a control buffer that `self` owns with
        // their true lengths, and a part of `slab`, which the kernel only reads; all outlive the call.
        let sent = check(unsafe {
            let (count, headers) = (headers.len(), headers.as_mut_ptr());
            libc::sendmmsg(socket.as_fd().as_raw_fd(), headers, count as _, libc::MSG_DONTWAIT as _)
        })?;
        Ok(sent.try_into().expect("check() lets nothing negative through"))
    }

    /// Describes the first of `datagrams`, at most `N`, to the kernel: each header leads to memory of `self`, and to
    /// its part of `slab`, for reading.
    pub(super) fn fill(&mut self, slab: &[u8], datagrams: &[Outgoing]) -> &mut [libc::mmsghdr] {
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
            let mut control = datagram.source.map_or(0, |source| set_pktinfo(&mut controls[i], source));
            if datagram.ds != 0 {
                let (level, kind) = match datagram.to {
                    SocketAddr::V4(_) => (libc::IPPROTO_IP, libc::IP_TOS),
                    SocketAddr::V6(_) => (libc::IPPROTO_IPV6, libc::IPV6_TCLASS),
                };
                control += put(&mut controls[i], control, level, kind, libc::c_int::from(datagram.ds));
            }
            if datagram.count > 1 {
                // A datagram has no more than 65,507 bytes.
                control += put(&mut controls[i], control, libc::SOL_UDP, libc::UDP_SEGMENT, datagram.size as u16);
            }
            header.msg_control = if control == 0 { ptr::null_mut() } else { controls[i].as_mut_ptr().cast() };
            header.msg_controllen = control as _;
            header.msg_flags = 0;
        }
        &mut headers[..datagrams.len()]
    }
}

impl Incoming {
    /// Room for the sender's address, and for control messages.
    pub(super) const NAME_LEN: usize = size_of::<Address>();
    pub(super) const CONTROL_LEN: usize = size_of::<Control>();

    /// From the bytes of the sender's address and of the control messages; `None` when the address is of no known
    /// family.
    pub(super) fn parse(name: &[u8], control_bytes: &[u8], len: usize) -> Option<Self> {
        let address = Address::from_bytes(name);
        let mut control: Control = Default::default();
        for (word, bytes) in control.iter_mut().zip(control_bytes.chunks(size_of::<u64>())) {
            let mut whole = [0; size_of::<u64>()];
            whole[..bytes.len()].copy_from_slice(bytes);
            *word = u64::from_ne_bytes(whole);
        }
        let ControlRead { local, size, ecn } = read_control(&control, control_bytes.len());
        Some(Self { len, size, truncated: false, from: address.get(name.len())?, local, ecn })
    }
}

impl Address {
    /// As the kernel wrote it elsewhere.
    fn from_bytes(bytes: &[u8]) -> Self {
        // SAFETY: all of it is integers, for which zeroes are values.
        let mut address: Self = unsafe { zeroed() };
        let len = bytes.len().min(size_of::<Self>());
        // SAFETY: both are valid for `len` bytes and distinct; any bytes are a value of the integers in the union.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), (&raw mut address).cast(), len) };
        address
    }

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
        // No interface unless it was asked for: it would override routing, and where no route leads through it, send to
        // neighbours what needs a gateway. The kernel's own WireGuard looks its route up by source address alone, too.
        IpAddr::V4(ip) => {
            let ipi_ifindex = if source.bound { source.interface as _ } else { 0 };
            let info =
                libc::in_pktinfo { ipi_ifindex, ipi_spec_dst: in_addr(ip), ipi_addr: libc::in_addr { s_addr: 0 } };
            put(control, 0, libc::IPPROTO_IP, libc::IP_PKTINFO, info)
        }
        // A link-local address means nothing without its interface.
        IpAddr::V6(ip) => {
            let interface = if source.bound || ip.is_unicast_link_local() { source.interface } else { 0 };
            let info = libc::in6_pktinfo { ipi6_addr: in6_addr(ip), ipi6_ifindex: interface as _ };
            put(control, 0, libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, info)
        }
    }
}

/// Writes one control message behind `at` bytes of others; returns the bytes it takes. `T` is plain integers.
fn put<T: Copy>(control: &mut Control, at: usize, level: libc::c_int, kind: libc::c_int, value: T) -> usize {
    let bytes = size_of::<T>() as u32;
    // SAFETY: only computes lengths.
    let (len, space) = unsafe { (libc::CMSG_LEN(bytes), libc::CMSG_SPACE(bytes) as usize) };
    // `at` is a sum of spaces, which are multiples of the alignment.
    control[at / size_of::<u64>()..].fill(0);
    assert!(at + space <= size_of::<Control>(), "the buffer was made for both");
    let header: *mut libc::cmsghdr = control[at / size_of::<u64>()..].as_mut_ptr().cast();
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

/// What the control messages of a datagram say.
#[derive(Default)]
struct ControlRead {
    local: Option<LocalAddr>,
    size: Option<usize>,
    ecn: u8,
}

/// Reads the `len` bytes of control messages a datagram came with.
fn read_control(control: &Control, len: usize) -> ControlRead {
    let mut read = ControlRead::default();
    let mut words = &control[..len.min(size_of::<Control>()).div_ceil(size_of::<u64>())];
    while size_of_val(words) >= size_of::<libc::cmsghdr>() {
        let header: *const libc::cmsghdr = words.as_ptr().cast();
        // SAFETY: the buffer is aligned for a cmsghdr, longer than one, and all of its bytes are initialised.
        let (level, kind, bytes) = unsafe { ((*header).cmsg_level, (*header).cmsg_type, (*header).cmsg_len as usize) };
        if bytes < size_of::<libc::cmsghdr>() || bytes > size_of_val(words) {
            break;
        }
        // SAFETY: only computes where the value begins, behind the header.
        let data = unsafe { libc::CMSG_DATA(header) };
        // SAFETY: each reads a value that the message was just seen to be long enough for, within the buffer; any bits
        // of these types are integers.
        unsafe {
            if (level, kind) == (libc::IPPROTO_IP, libc::IP_PKTINFO) && bytes >= cmsg_len::<libc::in_pktinfo>() {
                let info = data.cast::<libc::in_pktinfo>().read_unaligned();
                // Not `ipi_addr`, which is what the packet was addressed to, broadcast included.
                read.local = Some(LocalAddr {
                    ip: ipv4(info.ipi_spec_dst).into(),
                    interface: info.ipi_ifindex as u32,
                    bound: false,
                });
            } else if (level, kind) == (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO)
                && bytes >= cmsg_len::<libc::in6_pktinfo>()
            {
                let info = data.cast::<libc::in6_pktinfo>().read_unaligned();
                read.local = Some(LocalAddr {
                    ip: Ipv6Addr::from(info.ipi6_addr.s6_addr).into(),
                    interface: info.ipi6_ifindex as u32,
                    bound: false,
                });
            } else if (level, kind) == (libc::SOL_UDP, libc::UDP_GRO) && bytes >= cmsg_len::<libc::c_int>() {
                read.size = usize::try_from(data.cast::<libc::c_int>().read_unaligned()).ok();
            } else if (level, kind) == (libc::IPPROTO_IP, libc::IP_TOS) && bytes >= cmsg_len::<u8>() {
                // A single byte on the way in, an int on the way out.
                read.ecn = data.read() & ECN_MASK;
            } else if (level, kind) == (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) && bytes >= cmsg_len::<libc::c_int>() {
                read.ecn = data.cast::<libc::c_int>().read_unaligned() as u8 & ECN_MASK;
            }
        }
        words = &words[bytes.div_ceil(size_of::<u64>())..];
    }
    read
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
        fn addresses_survive_the_kernels_format(remote: SocketAddr, ip: IpAddr, interface: u32, bound: bool, size: u16, ds: u8) {
            let mut address = Messages::<1>::new().0.addresses[0];
            let len = address.set(remote);
            prop_assert_eq!(address.get(len), Some(remote));
            prop_assert_eq!(address.get(len - 1), None);

            let mut control = [u64::MAX; 11];
            let mut len = set_pktinfo(&mut control, LocalAddr { ip, interface, bound });
            len += put(&mut control, len, libc::IPPROTO_IPV6, libc::IPV6_TCLASS, libc::c_int::from(ds));
            len += put(&mut control, len, libc::SOL_UDP, libc::UDP_GRO, libc::c_int::from(size));
            let both = read_control(&control, len);
            prop_assert_eq!((both.size, both.ecn), (Some(size.into()), ds & 3));
            let len = put(&mut control, 0, libc::IPPROTO_IP, libc::IP_TOS, ds);
            prop_assert_eq!(read_control(&control, len).ecn, ds & 3);
            let read = both.local.unwrap();
            prop_assert_eq!(read.ip, ip);
            let link_local = matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local());
            prop_assert_eq!(read.interface, if link_local || bound { interface } else { 0 });
            prop_assert_eq!(read_control(&control, 0).local, None);
        }
    }
}
