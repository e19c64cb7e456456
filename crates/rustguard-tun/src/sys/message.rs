//! recvmmsg and sendmmsg with the addresses of both ends (ip(7), ipv6(7): IP_PKTINFO, IPV6_PKTINFO).
//!
//! The arrays for the kernel are kept between calls. Each call sets every pointer in them anew, to the slices that it
//! was given. No pointer is therefore followed after its slice is no longer valid.
#![allow(clippy::unnecessary_cast, reason = "musl gives some of these fields other integer types than glibc")]

use super::check;
use crate::{LocalAddr, Span};
use std::{
    io,
    mem::{size_of, size_of_val, zeroed},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6},
    os::fd::{AsFd, AsRawFd, BorrowedFd},
    ptr,
};

/// The buffer for three control messages: an address of either family, the DS field, and the segment size. A hop limit
/// comes without these last two. It is aligned as a `cmsghdr`.
type Control = [u64; 11];
// SAFETY: these macros only compute lengths.
const _: () = assert!(
    size_of::<Control>()
        >= unsafe {
            libc::CMSG_SPACE(size_of::<libc::in6_pktinfo>() as u32)
                + 2 * libc::CMSG_SPACE(size_of::<libc::c_int>() as u32)
        } as usize
);

/// The bits of explicit congestion notification in a DS field or traffic class.
const ECN_MASK: u8 = 0b11;

/// A socket address of either family.
#[derive(Clone, Copy)]
#[repr(C)]
union Address {
    family: libc::sa_family_t,
    v4: libc::sockaddr_in,
    v6: libc::sockaddr_in6,
}

/// Datagrams to send, which are contiguous. If `source` is given, they leave from that address.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outgoing {
    pub(crate) span: Span,
    pub(crate) to: SocketAddr,
    pub(crate) source: Option<LocalAddr>,
    /// The DS field of the IP headers.
    pub(crate) ds: u8,
    /// The hop limit of an IPv4 datagram; 0 for the usual one.
    pub(crate) hops: u8,
    /// The length of each datagram except for the last, in bytes.
    pub(crate) size: usize,
    /// The number of datagrams.
    pub(crate) count: usize,
}

/// A received datagram, or several datagrams of one sender that the kernel has joined (UDP_GRO).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Incoming {
    pub(crate) len: usize,
    /// The length of each datagram except for the last, in bytes; `None` for a single datagram.
    pub(crate) size: Option<usize>,
    /// Whether the datagram was longer than the buffer.
    pub(crate) truncated: bool,
    pub(crate) from: SocketAddr,
    pub(crate) local: Option<LocalAddr>,
    /// The explicit congestion notification of the IP headers. The kernel only joins datagrams in which it is the
    /// same.
    pub(crate) ecn: u8,
}

/// The arrays of `N` messages. They are boxed because they are too large to move.
pub(crate) struct Messages<const N: usize>(Box<Arrays<N>>);

struct Arrays<const N: usize> {
    headers: [libc::mmsghdr; N],
    buffers: [libc::iovec; N],
    addresses: [Address; N],
    controls: [Control; N],
}

// SAFETY: only the raw pointers inside prevent the automatic Send. The kernel alone follows them, during a call (`&mut
// self`), after that call has set them to memory that it borrows.
unsafe impl<const N: usize> Send for Messages<N> {}

impl<const N: usize> std::fmt::Debug for Messages<N> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Messages<{N}>")
    }
}

impl<const N: usize> Messages<N> {
    pub(crate) fn new() -> Self {
        // SAFETY: the arrays consist of integers and pointers, for which zeroes are valid.
        Self(Box::new(unsafe { zeroed() }))
    }

    /// Receives datagrams without waiting: at most one for each `slot` bytes of `slab`, and at most `N`. Returns their
    /// number. [`incoming`](Self::incoming) describes them, in order, until the next call.
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
            // The kernel writes the length that it used here. Without a reset, the next call would have no room.
            header.msg_control = controls[i].as_mut_ptr().cast();
            header.msg_controllen = size_of::<Control>() as _;
            header.msg_flags = 0;
            count = i + 1;
        }
        // SAFETY: `count` headers were filled above. Each refers to an address and a control buffer that `self` owns,
        // with their true lengths, and to a part of `slab` that no other header refers to. All of this memory outlives
        // the call. A null timeout is allowed.
        let received = check(unsafe {
            let headers = headers.as_mut_ptr();
            let flags = libc::MSG_DONTWAIT;
            libc::recvmmsg(socket.as_fd().as_raw_fd(), headers, count as _, flags as _, ptr::null_mut())
        })?;
        Ok(received.try_into().expect("check() lets nothing negative through"))
    }

    /// The `i`th datagram of the last [`recv`](Self::recv); `None` when the family of its sender's address is unknown.
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

    /// Sends the first of `datagrams`, at most `N`, from `slab`, without waiting. Returns how many the kernel accepted.
    /// An error belongs to the first datagram, or is left over from an earlier one (see `Udp`).
    pub(crate) fn send(&mut self, socket: impl AsFd, slab: &[u8], datagrams: &[Outgoing]) -> io::Result<usize> {
        let headers = self.fill(slab, datagrams);
        // SAFETY: `fill` has set each header. It refers to an address and a control buffer that `self` owns, with their
        // true lengths, and to a part of `slab`, which the kernel only reads. All of this memory outlives the call.
        let sent = check(unsafe {
            let (count, headers) = (headers.len(), headers.as_mut_ptr());
            libc::sendmmsg(socket.as_fd().as_raw_fd(), headers, count as _, libc::MSG_DONTWAIT as _)
        })?;
        Ok(sent.try_into().expect("check() lets nothing negative through"))
    }

    /// Describes the first of `datagrams`, at most `N`, to the kernel. Each header refers to memory of `self` and, for
    /// reading, to its part of `slab`.
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
            if datagram.hops != 0 && datagram.to.is_ipv4() {
                let hops = libc::c_int::from(datagram.hops);
                control += put(&mut controls[i], control, libc::IPPROTO_IP, libc::IP_TTL, hops);
            }
            if datagram.count > 1 {
                // A datagram has at most 65,507 bytes.
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
    /// The room in bytes for the sender's address, and for control messages.
    pub(super) const NAME_LEN: usize = size_of::<Address>();
    pub(super) const CONTROL_LEN: usize = size_of::<Control>();

    /// Reads the bytes of the sender's address and of the control messages. `None` when the family of the address is
    /// unknown.
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
    /// Copies an address that the kernel wrote elsewhere.
    fn from_bytes(bytes: &[u8]) -> Self {
        // SAFETY: the union consists of integers, for which zeroes are valid.
        let mut address: Self = unsafe { zeroed() };
        let len = bytes.len().min(size_of::<Self>());
        // SAFETY: both are valid for `len` bytes and do not overlap. Any bytes are valid for the integers in the union.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), (&raw mut address).cast(), len) };
        address
    }

    /// Sets the address and returns its length in bytes.
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

    /// Reads the `len` bytes that the kernel wrote.
    fn get(&self, len: usize) -> Option<SocketAddr> {
        // SAFETY: every union here was zeroed first, and then written as one of these structs, by this module or the
        // kernel. All bytes are initialised, and any bits are valid integers.
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

/// Writes the control message that makes a datagram leave from `source`. Returns its length in bytes.
fn set_pktinfo(control: &mut Control, source: LocalAddr) -> usize {
    match source.ip {
        // The interface is left out unless it was asked for. It would override routing: where no route leads through
        // it, packets that need a gateway would be sent to neighbours. The kernel's own WireGuard also looks up its
        // route by the source address alone.
        IpAddr::V4(ip) => {
            let ipi_ifindex = if source.bound { source.interface as _ } else { 0 };
            let info =
                libc::in_pktinfo { ipi_ifindex, ipi_spec_dst: in_addr(ip), ipi_addr: libc::in_addr { s_addr: 0 } };
            put(control, 0, libc::IPPROTO_IP, libc::IP_PKTINFO, info)
        }
        // A link-local address is valid only together with its interface.
        IpAddr::V6(ip) => {
            let interface = if source.bound || ip.is_unicast_link_local() { source.interface } else { 0 };
            let info = libc::in6_pktinfo { ipi6_addr: in6_addr(ip), ipi6_ifindex: interface as _ };
            put(control, 0, libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, info)
        }
    }
}

/// Writes one control message after the first `at` bytes, which other messages use. Returns the bytes that it takes.
/// `T` consists of plain integers.
fn put<T: Copy>(control: &mut Control, at: usize, level: libc::c_int, kind: libc::c_int, value: T) -> usize {
    let bytes = size_of::<T>() as u32;
    // SAFETY: these macros only compute lengths.
    let (len, space) = unsafe { (libc::CMSG_LEN(bytes), libc::CMSG_SPACE(bytes) as usize) };
    // `at` is a sum of message sizes, which are multiples of the alignment.
    control[at / size_of::<u64>()..].fill(0);
    assert!(at + space <= size_of::<Control>(), "the buffer was made for both");
    let header: *mut libc::cmsghdr = control[at / size_of::<u64>()..].as_mut_ptr().cast();
    // SAFETY: the buffer is aligned for a cmsghdr, and has room for it and the value behind it, as asserted. CMSG_DATA
    // computes the place of the value.
    unsafe {
        (*header).cmsg_len = len as _;
        (*header).cmsg_level = level;
        (*header).cmsg_type = kind;
        libc::CMSG_DATA(header).cast::<T>().write_unaligned(value);
    }
    space
}

/// The contents of a datagram's control messages.
#[derive(Default)]
struct ControlRead {
    local: Option<LocalAddr>,
    size: Option<usize>,
    ecn: u8,
}

/// Reads the `len` bytes of control messages that came with a datagram.
fn read_control(control: &Control, len: usize) -> ControlRead {
    let mut read = ControlRead::default();
    let mut words = &control[..len.min(size_of::<Control>()).div_ceil(size_of::<u64>())];
    while size_of_val(words) >= size_of::<libc::cmsghdr>() {
        let header: *const libc::cmsghdr = words.as_ptr().cast();
        // SAFETY: the buffer is aligned for a cmsghdr and longer than one, and all of its bytes are initialised.
        let (level, kind, bytes) = unsafe { ((*header).cmsg_level, (*header).cmsg_type, (*header).cmsg_len as usize) };
        if bytes < size_of::<libc::cmsghdr>() || bytes > size_of_val(words) {
            break;
        }
        // SAFETY: the macro only computes the start of the value, behind the header.
        let data = unsafe { libc::CMSG_DATA(header) };
        // SAFETY: each branch reads a value within the buffer, after it has checked that the message is long enough.
        // Any bits are valid integers of these types.
        unsafe {
            if (level, kind) == (libc::IPPROTO_IP, libc::IP_PKTINFO) && bytes >= cmsg_len::<libc::in_pktinfo>() {
                let info = data.cast::<libc::in_pktinfo>().read_unaligned();
                // `ipi_addr` is not used: it is the destination address of the packet, which may be a broadcast
                // address.
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
                // The kernel gives a single byte, but takes an int.
                read.ecn = data.read() & ECN_MASK;
            } else if (level, kind) == (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) && bytes >= cmsg_len::<libc::c_int>() {
                read.ecn = data.cast::<libc::c_int>().read_unaligned() as u8 & ECN_MASK;
            }
        }
        words = &words[bytes.div_ceil(size_of::<u64>())..];
    }
    read
}

/// An error of the queue of a socket with IP_RECVERR (ip(7)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QueuedError {
    pub(crate) errno: i32,
    /// Type and code of the ICMP message; `None` if the kernel itself has refused.
    pub(crate) icmp: Option<(u8, u8)>,
    /// The sender of the ICMP message.
    pub(crate) by: Option<IpAddr>,
}

/// Takes the oldest error off the queue of a socket. Does not wait.
pub(crate) fn queued_error(socket: BorrowedFd<'_>) -> Option<QueuedError> {
    // Room for the error with an IPv6 address after it, and for nothing else, because no other message was requested.
    let mut control = [0_u64; 16];
    // SAFETY: a header of zeros is valid: no name, no data, no control messages.
    let mut header: libc::msghdr = unsafe { zeroed() };
    header.msg_control = control.as_mut_ptr().cast();
    header.msg_controllen = size_of_val(&control) as _;
    // SAFETY: the header points to a buffer that outlives the call, with its length. The datagram itself has no buffer,
    // and is cut.
    let got = unsafe { libc::recvmsg(socket.as_raw_fd(), &mut header, libc::MSG_ERRQUEUE | libc::MSG_DONTWAIT) };
    if got < 0 || (header.msg_controllen as usize) < size_of::<libc::cmsghdr>() {
        return None;
    }
    let message: *const libc::cmsghdr = control.as_ptr().cast();
    // SAFETY: the buffer is aligned for a cmsghdr and longer than one, and all of its bytes are initialised.
    let (level, kind, bytes) = unsafe { ((*message).cmsg_level, (*message).cmsg_type, (*message).cmsg_len as usize) };
    let is_error =
        matches!((level, kind), (libc::IPPROTO_IP, libc::IP_RECVERR) | (libc::IPPROTO_IPV6, libc::IPV6_RECVERR));
    if !is_error || bytes < cmsg_len::<libc::sock_extended_err>() || bytes > size_of_val(&control) {
        return None;
    }
    // SAFETY: the macro only computes the start of the value, behind the header.
    let data = unsafe { libc::CMSG_DATA(message) };
    // SAFETY: the message is long enough for the value, as was checked, and any bits are valid integers.
    let error = unsafe { data.cast::<libc::sock_extended_err>().read_unaligned() };
    let behind = bytes - cmsg_len::<libc::sock_extended_err>();
    // SO_EE_OFFENDER: its address is behind the error.
    let offender = data.wrapping_add(size_of::<libc::sock_extended_err>());
    // SAFETY: each branch reads an address within the message, after it has checked that this is long enough. Any bits
    // are valid.
    let by = unsafe {
        let family = if behind >= size_of::<libc::sa_family_t>() {
            offender.cast::<libc::sa_family_t>().read_unaligned()
        } else {
            0
        };
        match libc::c_int::from(family) {
            libc::AF_INET if behind >= size_of::<libc::sockaddr_in>() => {
                Some(ipv4(offender.cast::<libc::sockaddr_in>().read_unaligned().sin_addr).into())
            }
            libc::AF_INET6 if behind >= size_of::<libc::sockaddr_in6>() => {
                Some(Ipv6Addr::from(offender.cast::<libc::sockaddr_in6>().read_unaligned().sin6_addr.s6_addr).into())
            }
            _ => None,
        }
    };
    let by_icmp = matches!(error.ee_origin, libc::SO_EE_ORIGIN_ICMP | libc::SO_EE_ORIGIN_ICMP6);
    Some(QueuedError { errno: error.ee_errno as i32, icmp: by_icmp.then_some((error.ee_type, error.ee_code)), by })
}

fn cmsg_len<T>() -> usize {
    // SAFETY: the macro only computes a length.
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

/// Sets a socket option whose value is an int.
pub(crate) fn set_option(
    socket: impl AsFd,
    level: libc::c_int,
    option: libc::c_int,
    value: libc::c_int,
) -> io::Result<()> {
    let len = size_of_val(&value) as libc::socklen_t;
    // SAFETY: `value` is valid for `len` bytes, and the kernel only reads it.
    check(unsafe { libc::setsockopt(socket.as_fd().as_raw_fd(), level, option, (&raw const value).cast(), len) })
        .map(drop)
}

/// Lets this program choose the socket for a datagram to a port that several sockets share: its result is the socket's
/// number.
pub(crate) fn steer(socket: impl AsFd, program: &[libc::sock_filter]) -> io::Result<()> {
    /// Since Linux 4.5, in `asm-generic/socket.h`; libc does not have it for Linux.
    const SO_ATTACH_REUSEPORT_CBPF: libc::c_int = 51;
    attach(socket, SO_ATTACH_REUSEPORT_CBPF, program)
}

/// Lets the kernel drop every datagram that arrives at this socket.
pub(crate) fn drop_all(socket: impl AsFd) -> io::Result<()> {
    attach(socket, libc::SO_ATTACH_FILTER, &[libc::sock_filter { code: libc::BPF_RET as u16, jt: 0, jf: 0, k: 0 }])
}

fn attach(socket: impl AsFd, option: libc::c_int, program: &[libc::sock_filter]) -> io::Result<()> {
    let len = u16::try_from(program.len()).map_err(io::Error::other)?;
    let program = libc::sock_fprog { len, filter: program.as_ptr().cast_mut() };
    let size = size_of_val(&program) as libc::socklen_t;
    // SAFETY: `program` is valid for `size` bytes and points at `len` instructions. The kernel copies both, and writes
    // to neither.
    check(unsafe {
        libc::setsockopt(socket.as_fd().as_raw_fd(), libc::SOL_SOCKET, option, (&raw const program).cast(), size)
    })
    .map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Addresses that are written for the kernel read back the same.
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
