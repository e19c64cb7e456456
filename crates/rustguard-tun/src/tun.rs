//! The kernel's TUN device.

mod error;

use crate::{
    HEADROOM, Segments, Span, TAILROOM, TunQueue,
    offload::{Coalescer, Group, MAX_SEGMENTS, VNET_LEN, VnetHeader, split},
    sys::{self, TunFlags},
};
pub use error::TunError;
use error::check_name;
use socket2::{Domain, Socket, Type};
use std::{
    fs::{File, OpenOptions},
    io::{self, IoSlice, Read, Write},
    os::{
        fd::{AsFd, BorrowedFd},
        unix::fs::OpenOptionsExt,
    },
};

/// The maximum length of a name in bytes (IFNAMSIZ without the final NUL).
pub const MAX_NAME_LEN: usize = 15;
/// The length of the longest IP packet in bytes.
const MAX_PACKET: usize = 65_535;
/// The maximum number of queues of one interface (MAX_TAP_QUEUES).
pub const MAX_QUEUES: usize = 256;
const DRIVER: &str = "/dev/net/tun";
/// The maximum number of bytes that the segments of one super-packet take. The kernel's smallest segments (TCP_MIN_MSS:
/// 48 bytes, less options) need the most room, and do not occur in practice. Memory that is never written costs
/// nothing.
const MAX_SPLIT: usize = 320 << 10;

/// The settings of an interface.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct TunOptions {
    /// The name of the interface, at most 15 bytes. The kernel replaces `%d` by the first free number.
    pub name: String,
    /// The MTU in bytes, 68 to 65,535; `None` leaves the kernel's default of 1,500.
    pub mtu: Option<u32>,
    /// Whether super-packets are exchanged with the kernel as far as it supports them (TUNSETOFFLOAD: TCP, and UDP
    /// since Linux 6.2). If not, every packet is a system call. That is for tests, and for kernels with bugs.
    pub offload: bool,
}

impl TunOptions {
    /// Settings with this name and the kernel's MTU, with offload.
    pub fn new(name: impl Into<String>) -> Self {
        Self { name: name.into(), mtu: None, offload: true }
    }

    /// Sets the MTU in bytes.
    #[must_use]
    pub fn mtu(mut self, mtu: u32) -> Self {
        self.mtu = Some(mtu);
        self
    }

    /// Sets whether super-packets are exchanged with the kernel.
    #[must_use]
    pub fn offload(mut self, offload: bool) -> Self {
        self.offload = offload;
        self
    }
}

/// One queue of an interface.
#[derive(Debug)]
pub struct Tun {
    queue: File,
    /// Whether every packet has a virtio-net header.
    vnet: bool,
    pub(crate) coalescer: Coalescer,
    name: String,
    index: u32,
    /// A socket of the network namespace in which the interface was created. Threads that ask later may be in another
    /// namespace. It is an IP socket, because a Unix socket could reach the services of the machine.
    namespace: Socket,
}

impl Tun {
    /// Creates the interface with a single queue. It is down and has no addresses. It disappears when the queue is
    /// dropped, also when the process is killed.
    ///
    /// # Errors
    /// See [`TunError`]; nothing is left behind.
    pub fn create(options: &TunOptions) -> Result<Self, TunError> {
        let mut queues = Self::create_queues(options, 1)?;
        Ok(queues.pop().expect("as many as were asked for"))
    }

    /// A queue over any file that accepts packets with virtio-net headers as a TUN does.
    #[cfg(test)]
    pub(crate) fn over(queue: File) -> Self {
        let (coalescer, name, namespace) = (Coalescer::default(), "double".to_owned(), any_socket().unwrap());
        Self { queue, vnet: true, coalescer, name, index: 0, namespace }
    }

    /// Creates the interface with several queues, 1 to 256: one for each worker. It disappears with the last queue.
    ///
    /// The kernel distributes the host's packets over the queues by a hash of their addresses and ports, which is the
    /// same in both directions. It also remembers for three seconds (`TUN_FLOW_EXPIRE`) the queue through which a
    /// flow's last packet came *to* the host, and answers there. The packets of one flow therefore stay in order as
    /// long as its packets to the host use one queue.
    ///
    /// # Errors
    /// See [`TunError`]; nothing is left behind.
    pub fn create_queues(options: &TunOptions, queues: usize) -> Result<Vec<Self>, TunError> {
        let TunOptions { name, mtu, offload } = options;
        check_name(name)?;
        if !(1..=MAX_QUEUES).contains(&queues) {
            return Err(TunError::InvalidQueues { name: name.clone(), queues });
        }
        // Exclusive: never attach to an interface of another program, because it would outlive this process. After this
        // call the name is taken.
        let first = TunFlags { vnet: *offload, multi_queue: queues > 1, exclusive: true };
        let (queue, name) = attach(name, first)?;
        let namespace = any_socket()?;
        let index = sys::index_of(&namespace, &name)?;
        if *offload {
            // The setting belongs to the interface, not to one queue.
            enable_offloads(|offloads| sys::set_tun_offload(&queue, offloads));
        }
        let first = Self { queue, vnet: *offload, coalescer: Coalescer::default(), name, index, namespace };
        if let Some(mtu) = *mtu {
            first.set_mtu(mtu).map_err(|error| match error.raw_os_error() {
                Some(libc::EINVAL) => TunError::InvalidMtu { name: first.name.clone(), mtu },
                _ => TunError::Io(error),
            })?;
        }
        let mut all = vec![first];
        while all.len() < queues {
            let next = all[0].attach_next()?;
            all.push(next);
        }
        Ok(all)
    }

    /// Opens one more queue of this interface.
    fn attach_next(&self) -> Result<Self, TunError> {
        let flags = TunFlags { vnet: self.vnet, multi_queue: true, exclusive: false };
        let (queue, name) = attach(&self.name, flags)?;
        let namespace = self.namespace.try_clone()?;
        Ok(Self { queue, vnet: self.vnet, coalescer: Coalescer::default(), name, index: self.index, namespace })
    }

    /// The name that the kernel gave to the interface when it was created.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The index of the interface.
    pub fn index(&self) -> u32 {
        self.index
    }

    /// The current MTU in bytes, as the kernel reports it. This works after the interface was renamed, too.
    ///
    /// # Errors
    /// The interface no longer exists.
    pub fn mtu(&self) -> io::Result<u32> {
        sys::mtu(&self.namespace, &sys::name_of(&self.namespace, self.index)?)
    }

    /// Changes the MTU, in bytes.
    ///
    /// # Errors
    /// The kernel refuses values outside of 68 to 65,535 (EINVAL), or the interface no longer exists.
    pub fn set_mtu(&self, mtu: u32) -> io::Result<()> {
        sys::set_mtu(&self.namespace, &sys::name_of(&self.namespace, self.index)?, mtu)
    }

    /// Translates the errors of a deleted interface. The driver forgets its queues, and answers EBADFD from then on
    /// (poll: POLLERR). ENODEV means the same.
    pub(crate) fn surface(&self, error: io::Error) -> io::Error {
        if matches!(error.raw_os_error(), Some(libc::EBADFD | libc::ENODEV)) {
            let message = format!("the interface `{}` no longer exists: another program deleted it", self.name);
            return io::Error::new(io::ErrorKind::NotConnected, message);
        }
        error
    }
}

impl TunQueue for Tun {
    /// A super-packet is split into segments. A super-packet that contradicts its header is returned as a single empty
    /// packet, so that the caller counts it among the packets that are not IP.
    ///
    /// # Errors
    /// [`io::ErrorKind::NotConnected`] once the interface was deleted.
    ///
    /// # Panics
    /// When `slab` does not have [`max_read`](TunQueue::max_read) bytes from `at` on.
    fn read(&mut self, slab: &mut [u8], at: usize, mtu: usize) -> io::Result<Option<Segments>> {
        let begin = self.begin(at);
        let len = loop {
            match self.queue.read(&mut slab[begin..at + HEADROOM + MAX_PACKET]) {
                Ok(len) => break len,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(self.surface(error)),
            }
        };
        Ok(Some(self.lay_out(slab, at, len, mtu)))
    }

    /// The kernel refuses a packet that is not IP (EINVAL), every packet while the interface is down (EIO), and packets
    /// for which it has no memory.
    ///
    /// # Errors
    /// [`io::ErrorKind::NotConnected`] once the interface was deleted.
    fn write(&mut self, slab: &mut [u8], packets: &[Span]) -> io::Result<usize> {
        if !self.vnet {
            let results = packets.iter().map(|&packet| refusal(self.write_one(&[IoSlice::new(bytes(slab, packet))])));
            return results.sum::<io::Result<_>>().map_err(|error| self.surface(error));
        }
        let mut coalescer = std::mem::take(&mut self.coalescer);
        coalescer.group(slab, packets);
        let result = (0..coalescer.groups().len()).map(|n| self.write_group(slab, packets, &mut coalescer, n)).sum();
        self.coalescer = coalescer;
        result
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.queue.as_fd()
    }

    fn max_read(&self) -> usize {
        if self.vnet { MAX_SPLIT } else { HEADROOM + MAX_PACKET + TAILROOM }
    }

    /// The driver does this with several queues (`tun_flow_update`, `tun_automq_select_queue`).
    fn learns_flows(&self) -> bool {
        true
    }
}

impl Tun {
    /// Whether every packet has a virtio-net header.
    pub(crate) fn has_vnet(&self) -> bool {
        self.vnet
    }

    /// The place to read to for a packet at `at`. The virtio-net header ends where the packet begins. The WireGuard
    /// header overwrites it later.
    pub(crate) fn begin(&self, at: usize) -> usize {
        at + HEADROOM - if self.vnet { VNET_LEN } else { 0 }
    }

    /// Splits the `len` bytes that were read to [`begin`](Self::begin) into segments.
    pub(crate) fn lay_out(&self, slab: &mut [u8], at: usize, len: usize, mtu: usize) -> Segments {
        let (begin, offset) = (self.begin(at), at + HEADROOM);
        let vnet = match slab[begin..offset].first_chunk() {
            Some(header) if self.vnet => VnetHeader::parse(header),
            _ => VnetHeader::default(),
        };
        let len = len.saturating_sub(offset - begin);
        let area = &mut slab[..at + self.max_read()];
        let malformed = Segments { offset, stride: HEADROOM + TAILROOM, count: 1, len: 0, last_len: 0 };
        split(area, offset, len, vnet, mtu).unwrap_or(malformed)
    }

    /// Writes the `n`th group of packets with one system call. Returns the number of refused packets.
    fn write_group(&self, slab: &mut [u8], packets: &[Span], coalescer: &mut Coalescer, n: usize) -> io::Result<usize> {
        let group = coalescer.groups()[n];
        let first = packets[group.first];
        let header = group.finish(&mut slab[first.offset..first.offset + first.len]).to_bytes();
        let mut slices = [IoSlice::new(&header); 1 + MAX_SEGMENTS];
        slices[1] = IoSlice::new(bytes(slab, first));
        for (slice, i) in slices[2..].iter_mut().zip(coalescer.members(&group).skip(1)) {
            *slice = IoSlice::new(&bytes(slab, packets[i])[group.headers..]);
        }
        match self.write_one(&slices[..1 + group.count]) {
            Ok(()) => {
                coalescer.taken(&group);
                Ok(0)
            }
            Err(error) => self.write_refused(slab, packets, coalescer, &group, error),
        }
    }

    /// Handles a group that the kernel refused. Returns the number of packets that were refused in the end.
    ///
    /// A kernel refuses kinds of super-packets that it does not know (EINVAL; UDP before 6.2). Some kernels refuse
    /// kinds that they know: Linux 6.6.44 and others of its time checked the header too strictly. The packets are
    /// therefore written singly, and so are the next packets of their kind.
    #[cold]
    pub(crate) fn write_refused(
        &self,
        slab: &mut [u8],
        packets: &[Span],
        coalescer: &mut Coalescer,
        group: &Group,
        error: io::Error,
    ) -> io::Result<usize> {
        // The interface is down and refuses every packet.
        if group.count == 1 || error.raw_os_error() == Some(libc::EIO) {
            return refusal(Err(error)).map(|one| one * group.count).map_err(|error| self.surface(error));
        }
        let first = packets[group.first];
        group.restore(&mut slab[first.offset..first.offset + first.len]);
        let header = VnetHeader::default().to_bytes();
        let single = |i| self.write_one(&[IoSlice::new(&header), IoSlice::new(bytes(slab, packets[i]))]);
        let refused = coalescer.members(group).map(|i| refusal(single(i))).sum::<io::Result<usize>>();
        let refused = refused.map_err(|error| self.surface(error))?;
        let short_of_memory = matches!(error.raw_os_error(), Some(libc::ENOMEM | libc::ENOBUFS | libc::EAGAIN));
        if refused < group.count && !short_of_memory {
            coalescer.refused(group);
        }
        Ok(refused)
    }

    fn write_one(&self, slices: &[IoSlice<'_>]) -> io::Result<()> {
        loop {
            match (&self.queue).write_vectored(slices) {
                // The kernel does not call the driver for an empty write (vfs_writev).
                Ok(0) => return Err(io::ErrorKind::InvalidInput.into()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                result => return result.map(drop),
            }
        }
    }
}

/// 1 when the kernel refused a packet, 0 when it accepted it. An error means that the queue no longer exists.
fn refusal(written: io::Result<()>) -> io::Result<usize> {
    match written {
        Ok(()) => Ok(0),
        Err(error) if error.raw_os_error() == Some(libc::EBADFD) => Err(error),
        Err(_) => Ok(1),
    }
}

/// Opens the driver and attaches the descriptor to the interface `name` as a queue. Returns the name that the kernel
/// gave.
fn attach(name: &str, flags: TunFlags) -> Result<(File, String), TunError> {
    let not_permitted = || TunError::NotPermitted { name: name.to_owned() };
    let mut open = OpenOptions::new();
    let queue = open.read(true).write(true).custom_flags(libc::O_NONBLOCK).open(DRIVER).map_err(|error| {
        match error.raw_os_error() {
            // ENODEV and ENXIO: the device node exists, but there is no driver for it.
            Some(libc::ENOENT | libc::ENODEV | libc::ENXIO) => TunError::NoDriver,
            Some(libc::EISDIR) => TunError::NotTheDriver,
            Some(libc::EPERM | libc::EACCES) => not_permitted(),
            _ => TunError::Io(error),
        }
    })?;
    let name = sys::attach_tun(&queue, name, flags).map_err(|error| match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => not_permitted(),
        Some(libc::EBUSY | libc::EEXIST) => TunError::Taken { name: name.to_owned() },
        // The file does not know the driver's requests.
        Some(libc::ENOTTY) => TunError::NotTheDriver,
        _ => TunError::Io(error),
    })?;
    Ok((queue, name))
}

/// A socket that only identifies the network namespace.
fn any_socket() -> io::Result<Socket> {
    Socket::new(Domain::IPV4, Type::DGRAM, None)
}

fn bytes(slab: &[u8], span: Span) -> &[u8] {
    &slab[span.offset..span.offset + span.len]
}

/// Asks the kernel (TUNSETOFFLOAD, TUN_F_…) for super-packets of TCP and UDP. If it refuses (before Linux 6.2), asks
/// for TCP only. If it refuses that too, asks only for packets with incomplete checksums. A kernel that refuses all
/// three sends complete packets; the virtio-net header is still present and says so.
fn enable_offloads(mut ask: impl FnMut(libc::c_uint) -> io::Result<()>) {
    let checksum = libc::TUN_F_CSUM;
    let tcp = checksum | libc::TUN_F_TSO4 | libc::TUN_F_TSO6 | libc::TUN_F_TSO_ECN;
    let udp = tcp | libc::TUN_F_USO4 | libc::TUN_F_USO6;
    let _ = [udp, tcp, checksum].into_iter().any(|offloads| ask(offloads).is_ok());
}

#[cfg(test)]
mod tests;
