//! The ioctls on network interfaces (netdevice(7)) and on /dev/net/tun.
//!
//! Two of them make a TUN device, without a library. A missing driver, a missing permission and a taken name each need
//! their own helpful message, and a library reports them all as one error.
use super::check;
use std::{
    ffi::CStr,
    io,
    os::fd::{AsFd, AsRawFd},
};

/// How to attach to an interface.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TunFlags {
    /// Whether every packet has a virtio-net header.
    pub(crate) vnet: bool,
    /// Whether the interface may have several queues.
    pub(crate) multi_queue: bool,
    /// Whether the call fails if the interface exists.
    pub(crate) exclusive: bool,
}

/// Turns an open /dev/net/tun into a queue of an interface that carries IP packets. Creates the interface unless it
/// exists. Returns its name.
pub(crate) fn attach_tun(tun: impl AsFd, name: &str, flags: TunFlags) -> io::Result<String> {
    let mut request = Request::named(name)?;
    let TunFlags { vnet, multi_queue, exclusive } = flags;
    let flags = [(vnet, libc::IFF_VNET_HDR), (multi_queue, libc::IFF_MULTI_QUEUE), (exclusive, libc::IFF_TUN_EXCL)]
        .into_iter()
        .filter(|(wanted, _)| *wanted)
        .fold(libc::IFF_TUN | libc::IFF_NO_PI, |flags, (_, flag)| flags | flag);
    // The kernel reads the flags as unsigned. The highest flag is the sign bit of a C short.
    request.0.ifr_ifru.ifru_flags = flags as libc::c_short;
    request.run(tun, libc::TUNSETIFF as libc::Ioctl)?;
    request.name()
}

/// Tells the kernel which kinds of incomplete packets (TUN_F_…) it may send.
pub(crate) fn set_tun_offload(tun: impl AsFd, offloads: libc::c_uint) -> io::Result<()> {
    // SAFETY: the request takes its argument by value.
    check(unsafe { libc::ioctl(tun.as_fd().as_raw_fd(), libc::TUNSETOFFLOAD as libc::Ioctl, offloads) }).map(drop)
}

/// The current name of an interface. Here and below, `socket` is any socket of the interface's network namespace.
pub(crate) fn name_of(socket: impl AsFd, index: u32) -> io::Result<String> {
    let mut request = Request::named("")?;
    request.0.ifr_ifru.ifru_ifindex = index.try_into().map_err(|_| io::ErrorKind::InvalidInput)?;
    request.run(socket, libc::SIOCGIFNAME as libc::Ioctl)?;
    request.name()
}

pub(crate) fn index_of(socket: impl AsFd, name: &str) -> io::Result<u32> {
    let mut request = Request::named(name)?;
    request.run(socket, libc::SIOCGIFINDEX as libc::Ioctl)?;
    // SAFETY: SIOCGIFINDEX has written this member. Any bits are a valid integer.
    let index = unsafe { request.0.ifr_ifru.ifru_ifindex };
    u32::try_from(index).map_err(|_| io::ErrorKind::InvalidData.into())
}

pub(crate) fn mtu(socket: impl AsFd, name: &str) -> io::Result<u32> {
    let mut request = Request::named(name)?;
    request.run(socket, libc::SIOCGIFMTU as libc::Ioctl)?;
    // SAFETY: SIOCGIFMTU has written this member. Any bits are a valid integer.
    let mtu = unsafe { request.0.ifr_ifru.ifru_mtu };
    u32::try_from(mtu).map_err(|_| io::ErrorKind::InvalidData.into())
}

pub(crate) fn set_mtu(socket: impl AsFd, name: &str, mtu: u32) -> io::Result<()> {
    let mut request = Request::named(name)?;
    request.0.ifr_ifru.ifru_mtu = mtu.try_into().map_err(|_| io::ErrorKind::InvalidInput)?;
    request.run(socket, libc::SIOCSIFMTU as libc::Ioctl)
}

pub(crate) fn bring_up(socket: impl AsFd, name: &str) -> io::Result<()> {
    let mut request = Request::named(name)?;
    request.run(&socket, libc::SIOCGIFFLAGS as libc::Ioctl)?;
    // SAFETY: SIOCGIFFLAGS has written this member. Any bits are a valid integer.
    let flags = unsafe { request.0.ifr_ifru.ifru_flags };
    request.0.ifr_ifru.ifru_flags = flags | libc::IFF_UP as libc::c_short;
    request.run(&socket, libc::SIOCSIFFLAGS as libc::Ioctl)
}

/// An `ifreq` in which every byte is initialised, and in which the name ends with a NUL.
struct Request(libc::ifreq);

impl Request {
    fn named(name: &str) -> io::Result<Self> {
        // SAFETY: an ifreq consists of integers, arrays of integers and (in its union) pointers. Zeroes are valid for
        // all of them.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        if name.len() >= request.ifr_name.len() || name.contains('\0') {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        for (to, &byte) in request.ifr_name.iter_mut().zip(name.as_bytes()) {
            *to = byte as libc::c_char;
        }
        Ok(Self(request))
    }

    /// Makes one of the requests above. Each of them takes an `ifreq` and follows no pointer in it.
    fn run(&mut self, fd: impl AsFd, request: libc::Ioctl) -> io::Result<()> {
        // SAFETY: the kernel reads and writes one ifreq, which this function borrows mutably. These requests use no
        // pointer in it.
        check(unsafe { libc::ioctl(fd.as_fd().as_raw_fd(), request, &raw mut self.0) }).map(drop)
    }

    fn name(&self) -> io::Result<String> {
        let bytes = self.0.ifr_name.map(|byte| byte as u8);
        let name = CStr::from_bytes_until_nul(&bytes).map_err(|_| io::ErrorKind::InvalidData)?;
        Ok(name.to_str().map_err(|_| io::ErrorKind::InvalidData)?.to_owned())
    }
}
