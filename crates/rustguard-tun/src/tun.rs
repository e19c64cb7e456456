//! The kernel's TUN device.
use crate::{
    HEADROOM, Segments, Span, TAILROOM, TunQueue,
    offload::{Coalescer, Group, MAX_SEGMENTS, VNET_LEN, VnetHeader, split},
    sys::{self, TunFlags},
};
use std::{
    fs::{File, OpenOptions},
    io::{self, IoSlice, Read, Write},
    os::{
        fd::{AsFd, BorrowedFd},
        unix::{fs::OpenOptionsExt, net::UnixDatagram},
    },
};

/// Bytes of the longest name the kernel takes (IFNAMSIZ less the NUL).
pub const MAX_NAME_LEN: usize = 15;
/// The longest IP packet.
const MAX_PACKET: usize = 65_535;
/// Queues of one interface at most (MAX_TAP_QUEUES).
const MAX_QUEUES: usize = 256;
const DRIVER: &str = "/dev/net/tun";
/// Bytes the segments of one super-packet may take. The kernel's smallest segments (TCP_MIN_MSS: 48 bytes, less
/// options) need the most, and do not occur in practice: memory nobody writes to costs nothing.
const MAX_SPLIT: usize = 320 << 10;

/// What to create.
#[derive(Clone, Debug)]
pub struct TunOptions {
    /// Interface name, at most 15 bytes. The kernel puts the first free number in place of a `%d`.
    pub name: String,
    /// MTU to set at creation; `None` leaves the kernel's.
    pub mtu: Option<u32>,
    /// Exchange super-packets with the kernel, as far as it is able to. Without, every packet is a system call; only
    /// for tests and for kernels that get it wrong.
    pub offload: bool,
}

/// One queue.
#[derive(Debug)]
pub struct Tun {
    queue: File,
    /// Whether every packet has a virtio-net header.
    vnet: bool,
    pub(crate) coalescer: Coalescer,
    name: String,
    index: u32,
    /// A socket of the network namespace the interface was made in: threads that ask later may live in another.
    namespace: UnixDatagram,
}

impl Tun {
    /// Creates the interface, down and without addresses, with a single queue. It disappears when that is dropped,
    /// also when the process is killed.
    ///
    /// # Errors
    /// See [`TunError`]; nothing is left behind.
    pub fn create(options: &TunOptions) -> Result<Self, TunError> {
        let mut queues = Self::create_queues(options, 1)?;
        Ok(queues.pop().expect("as many as were asked for"))
    }

    /// What takes packets with virtio-net headers as a TUN does.
    #[cfg(test)]
    pub(crate) fn over(queue: File) -> Self {
        let (coalescer, name, namespace) =
            (Coalescer::default(), "double".to_owned(), UnixDatagram::unbound().unwrap());
        Self { queue, vnet: true, coalescer, name, index: 0, namespace }
    }

    /// Creates the interface with several queues, 1 to 256: one for each worker. It disappears with the last of them.
    ///
    /// The host's packets are spread over the queues by a hash of their addresses and ports, which is the same both
    /// ways; the kernel also remembers for three seconds (`TUN_FLOW_EXPIRE`) through which queue a flow's last
    /// packet came *to* the host, and answers there. Packets of one flow therefore stay in order as long as its packets
    /// to the host keep to one queue.
    ///
    /// # Errors
    /// See [`TunError`]; nothing is left behind.
    pub fn create_queues(options: &TunOptions, queues: usize) -> Result<Vec<Self>, TunError> {
        let TunOptions { name, mtu, offload } = options;
        check_name(name)?;
        if !(1..=MAX_QUEUES).contains(&queues) {
            return Err(TunError::InvalidQueues { name: name.clone(), queues });
        }
        // Exclusive: never attach to an interface somebody else made, it would outlive us. Then the name is ours.
        let first = TunFlags { vnet: *offload, multi_queue: queues > 1, exclusive: true };
        let (queue, name) = attach(name, first)?;
        let namespace = UnixDatagram::unbound()?;
        let index = sys::index_of(&namespace, &name)?;
        if *offload {
            // Of the interface, not of one queue.
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

    /// One more queue of this interface.
    fn attach_next(&self) -> Result<Self, TunError> {
        let flags = TunFlags { vnet: self.vnet, multi_queue: true, exclusive: false };
        let (queue, name) = attach(&self.name, flags)?;
        let namespace = self.namespace.try_clone()?;
        Ok(Self { queue, vnet: self.vnet, coalescer: Coalescer::default(), name, index: self.index, namespace })
    }

    /// The name the kernel gave.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The interface index.
    pub fn index(&self) -> u32 {
        self.index
    }

    /// The MTU now, from the kernel. Follows a renamed interface.
    pub fn mtu(&self) -> io::Result<u32> {
        sys::mtu(&self.namespace, &sys::name_of(&self.namespace, self.index)?)
    }

    /// Changes the MTU (the kernel takes 68 to 65,535).
    pub fn set_mtu(&self, mtu: u32) -> io::Result<()> {
        sys::set_mtu(&self.namespace, &sys::name_of(&self.namespace, self.index)?, mtu)
    }

    /// The driver forgets a queue whose interface was deleted, and answers EBADFD from then on (poll: POLLERR). ENODEV means the same.
    pub(crate) fn surface(&self, error: io::Error) -> io::Error {
        if matches!(error.raw_os_error(), Some(libc::EBADFD | libc::ENODEV)) {
            let message = format!("the interface `{}` is gone: somebody deleted it", self.name);
            return io::Error::new(io::ErrorKind::NotConnected, message);
        }
        error
    }
}

impl TunQueue for Tun {
    /// A super-packet is split into segments. One that contradicts itself is given as a single empty packet, so that
    /// whoever counts what is no IP packet counts it.
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

    /// The kernel refuses what is no IP packet (EINVAL), everything while the interface is down (EIO), and what it has
    /// no memory for.
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
}

impl Tun {
    /// Whether every packet has a virtio-net header.
    pub(crate) fn has_vnet(&self) -> bool {
        self.vnet
    }

    /// Where to put what is read for `at`: the virtio-net header ends where the packet begins, the WireGuard header
    /// overwrites it later.
    pub(crate) fn begin(&self, at: usize) -> usize {
        at + HEADROOM - if self.vnet { VNET_LEN } else { 0 }
    }

    /// Makes segments of the `len` bytes that were read to [`begin`](Self::begin).
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

    /// Writes the `n`th group of packets with one system call; returns how many were refused.
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

    /// What is left to do for a group that the kernel refused; returns how many packets were refused in the end.
    ///
    /// Kernels that do not know a kind of super-packets refuse it (EINVAL, UDP before 6.2), and some refuse what they know: 6.6.44
    /// and its contemporaries checked the header too strictly. So the packets go singly, and the next of their kind as well.
    #[cold]
    pub(crate) fn write_refused(
        &self,
        slab: &mut [u8],
        packets: &[Span],
        coalescer: &mut Coalescer,
        group: &Group,
        error: io::Error,
    ) -> io::Result<usize> {
        // The interface is down: it takes nothing.
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
                // Nothing to write is nothing the driver is even asked about (vfs_writev).
                Ok(0) => return Err(io::ErrorKind::InvalidInput.into()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                result => return result.map(drop),
            }
        }
    }
}

/// 1 when the kernel refused a packet, 0 when it took it; an error when the queue is gone.
fn refusal(written: io::Result<()>) -> io::Result<usize> {
    match written {
        Ok(()) => Ok(0),
        Err(error) if error.raw_os_error() == Some(libc::EBADFD) => Err(error),
        Err(_) => Ok(1),
    }
}

/// Opens the driver and makes what was opened a queue of the interface `name`. Returns the name the kernel gave.
fn attach(name: &str, flags: TunFlags) -> Result<(File, String), TunError> {
    let not_permitted = || TunError::NotPermitted { name: name.to_owned() };
    let mut open = OpenOptions::new();
    let queue = open.read(true).write(true).custom_flags(libc::O_NONBLOCK).open(DRIVER).map_err(|error| {
        match error.raw_os_error() {
            // ENODEV and ENXIO: the node is there, the driver behind it is not.
            Some(libc::ENOENT | libc::ENODEV | libc::ENXIO) => TunError::NoDriver,
            Some(libc::EPERM | libc::EACCES) => not_permitted(),
            _ => TunError::Io(error),
        }
    })?;
    let name = sys::attach_tun(&queue, name, flags).map_err(|error| match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => not_permitted(),
        Some(libc::EBUSY | libc::EEXIST) => TunError::Taken { name: name.to_owned() },
        _ => TunError::Io(error),
    })?;
    Ok((queue, name))
}

fn bytes(slab: &[u8], span: Span) -> &[u8] {
    &slab[span.offset..span.offset + span.len]
}

/// Asks (TUNSETOFFLOAD, TUN_F_…) for super-packets of TCP and UDP, else (before Linux 6.2) of TCP only, else only for
/// packets whose checksum is left to us. A kernel that refuses all of them sends whole packets: the header is there,
/// and says so.
fn enable_offloads(mut ask: impl FnMut(libc::c_uint) -> io::Result<()>) {
    let checksum = libc::TUN_F_CSUM;
    let tcp = checksum | libc::TUN_F_TSO4 | libc::TUN_F_TSO6 | libc::TUN_F_TSO_ECN;
    let udp = tcp | libc::TUN_F_USO4 | libc::TUN_F_USO6;
    let _ = [udp, tcp, checksum].into_iter().any(|offloads| ask(offloads).is_ok());
}

/// Why an interface was not created: each variant's message names the thing, the cause and the remedy.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TunError {
    /// The kernel has no TUN driver here.
    #[error(
        "no {DRIVER}: the kernel's tun driver is missing; load it (modprobe tun), or give the device to the container \
         (--device {DRIVER})"
    )]
    NoDriver,
    /// CAP_NET_ADMIN is missing.
    #[error(
        "not permitted to create the interface `{name}`: it needs CAP_NET_ADMIN; run as root, or grant the capability"
    )]
    NotPermitted {
        /// The interface.
        name: String,
    },
    /// Another interface has the name.
    #[error("an interface `{name}` exists already: choose another name, or delete it (ip link delete dev {name})")]
    Taken {
        /// The interface.
        name: String,
    },
    /// No interface can have this name.
    #[error("`{name}` is no interface name: {problem}; take up to {MAX_NAME_LEN} letters, digits and `_=+.-`")]
    InvalidName {
        /// What was asked for.
        name: String,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// Out of the kernel's bounds.
    #[error("the interface `{name}` cannot have an MTU of {mtu}: the kernel takes 68 to 65535")]
    InvalidMtu {
        /// The interface.
        name: String,
        /// What was asked for.
        mtu: u32,
    },
    /// Out of the kernel's bounds.
    #[error("the interface `{name}` cannot have {queues} queues: the kernel takes 1 to {MAX_QUEUES}")]
    InvalidQueues {
        /// The interface.
        name: String,
        /// What was asked for.
        queues: usize,
    },
    /// Anything else.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// The kernel's rules (dev_valid_name, dev_alloc_name), checked here because it only says EINVAL.
fn check_name(name: &str) -> Result<(), TunError> {
    let problem = if name.is_empty() {
        "it is empty"
    } else if name.len() > MAX_NAME_LEN {
        "it is too long"
    } else if name == "." || name == ".." {
        "it would name a directory in /sys/class/net"
    } else if name.contains(['/', ':']) {
        "it contains `/` or `:`"
    } else if name.contains(|c: char| c.is_whitespace() || c.is_control()) {
        "it contains white space or control characters"
    } else if name.replacen("%d", "", 1).contains('%') {
        "`%` only goes with `d`, once, for a number"
    } else {
        return Ok(());
    };
    Err(TunError::InvalidName { name: name.to_owned(), problem })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        namespace::isolated,
        testing::tun::{self as testing, ip},
        wait::Waiter,
    };
    use std::{net::UdpSocket, time::Duration};

    fn create(name: &str, mtu: Option<u32>) -> Result<Tun, TunError> {
        Tun::create(&TunOptions { name: name.into(), mtu, offload: true })
    }

    #[test]
    fn names_are_checked_before_the_kernel_is_asked() {
        for name in ["", "sixteen-bytes-xx", ".", "..", "a/b", "a:b", "a b", "a\tb", "a\0b", "wg%", "%d%d", "%s"] {
            assert!(matches!(create(name, None), Err(TunError::InvalidName { .. })), "{name:?}");
        }
        for name in ["wg0", "fifteen-bytes-x", "wg%d", "a.b", "...", "ü"] {
            assert!(check_name(name).is_ok(), "{name:?}");
        }
    }

    #[test]
    fn packets_pass_both_ways() {
        testing::packets_pass_both_ways::<Tun>();
    }

    #[test]
    fn c28_super_packets_of_udp_pass_both_ways() {
        testing::super_packets_of_udp_pass_both_ways::<Tun>();
    }

    #[test]
    fn super_packets_that_are_refused_go_singly() {
        testing::super_packets_that_are_refused_go_singly::<Tun>();
    }

    #[test]
    fn c28_a_tcp_stream_passes_both_ways() {
        testing::a_tcp_stream_passes_both_ways::<Tun>();
    }

    #[test]
    fn an_interface_deleted_from_outside_surfaces_everywhere() {
        testing::an_interface_deleted_from_outside_surfaces_everywhere::<Tun>();
        isolated("a deleted TUN's properties", || {
            let tun = create("rg-gone", None).unwrap();
            ip("link delete dev rg-gone");
            assert_eq!(tun.mtu().unwrap_err().raw_os_error(), Some(libc::ENODEV));
        });
    }

    #[test]
    fn names_and_mtus_are_the_kernels() {
        isolated("properties of a TUN", || {
            let tun = create("rg-test%d", Some(1337)).unwrap();
            assert_eq!(tun.name(), "rg-test0");
            assert_eq!(tun.mtu().unwrap(), 1337);
            ip("link set rg-test0 name renamed");
            tun.set_mtu(65_535).unwrap();
            assert_eq!(tun.mtu().unwrap(), 65_535);
            assert_eq!(tun.set_mtu(65_536).unwrap_err().raw_os_error(), Some(libc::EINVAL));
        });
    }

    /// Kernels by the offloads they know: what each is asked for, in order.
    #[test]
    fn older_kernels_are_asked_for_less() {
        let (checksum, tcp, udp) = (0x01, 0x0f, 0x6f);
        let (all, no_uso, no_tso, none) = (0x7f, 0x1f, 0x01, 0);
        for (known, expected) in
            [(all, &[udp][..]), (no_uso, &[udp, tcp]), (no_tso, &[udp, tcp, checksum]), (none, &[udp, tcp, checksum])]
        {
            let mut asked = Vec::new();
            enable_offloads(|offloads| {
                asked.push(offloads);
                if offloads & !known == 0 { Ok(()) } else { Err(io::ErrorKind::InvalidInput.into()) }
            });
            assert_eq!(asked, expected, "a kernel that knows {known:#x}");
        }
    }

    /// The number a flow's packets carry, and the flow's port.
    fn flow_and_number(packet: &[u8]) -> (u16, u32) {
        let number = packet[28..32].try_into().expect("four bytes");
        (u16::from_be_bytes([packet[20], packet[21]]), u32::from_be_bytes(number))
    }

    #[test]
    fn flows_are_spread_over_the_queues_and_each_keeps_its_order() {
        isolated("several queues", || {
            let options = TunOptions { name: "rg-many".into(), mtu: Some(1_300), offload: true };
            let mut queues = Tun::create_queues(&options, 4).unwrap();
            assert_eq!(queues.len(), 4);
            for queue in &queues {
                assert_eq!((queue.name(), queue.index()), ("rg-many", queues[0].index()));
                assert_eq!(queue.mtu().unwrap(), 1_300);
            }
            queues[3].set_mtu(1_280).unwrap();
            assert_eq!(queues[0].mtu().unwrap(), 1_280);

            ip("addr add 10.9.9.1/24 dev rg-many");
            ip("link set rg-many up");
            let (flows, packets) = (32, 20);
            let sockets: Vec<_> = (0..flows).map(|_| UdpSocket::bind("10.9.9.1:0").unwrap()).collect();
            for number in 0..packets {
                for socket in &sockets {
                    socket.send_to(&u32::to_be_bytes(number), "10.9.9.2:5000").unwrap();
                }
            }
            let mut slab = vec![0; queues[0].max_read()];
            let mut next = std::collections::HashMap::new();
            let mut busy = 0;
            for queue in &mut queues {
                let before = next.len();
                // All are waiting already: the kernel queues what is sent before `send_to` returns.
                while let Some(packet) = queue.read(&mut slab, 0, 1_420).unwrap() {
                    let packet = &slab[packet.offset..packet.offset + packet.len];
                    // Router solicitations are the kernel's own.
                    if packet[0] >> 4 != 4 {
                        continue;
                    }
                    let (flow, number) = flow_and_number(packet);
                    let expected = next.entry(flow).or_insert(0);
                    assert_eq!(number, *expected, "flow {flow}: in order, and all in one queue");
                    *expected += 1;
                }
                busy += usize::from(next.len() > before);
            }
            assert_eq!(next.len(), flows);
            assert!(next.values().all(|&count| count == packets), "{next:?}");
            assert!(busy > 1, "32 flows do not hash to a single queue of four");

            // Whichever queue writes: the packet reaches the host.
            let socket = &sockets[0];
            socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
            let to_us = reply_packet(socket.local_addr().unwrap().port());
            for queue in &mut queues {
                slab[..to_us.len()].copy_from_slice(&to_us);
                assert_eq!(queue.write(&mut slab, &[Span { offset: 0, len: to_us.len() }]).unwrap(), 0);
                assert_eq!(socket.recv_from(&mut [0; 8]).unwrap(), (4, "10.9.9.2:5000".parse().unwrap()));
            }
            let last = queues.pop().unwrap();
            drop(queues);
            assert_eq!(last.mtu().unwrap(), 1_280, "it lives as long as one queue does");
            drop(last);
            Tun::create(&options).unwrap();
        });
    }

    /// 10.9.9.2:5000 to 10.9.9.1 and `port`, four bytes, without UDP checksum.
    fn reply_packet(port: u16) -> Vec<u8> {
        let mut packet = vec![0x45, 0, 0, 32, 0, 0, 0, 0, 64, 17, 0, 0, 10, 9, 9, 2, 10, 9, 9, 1];
        let sum = packet.chunks(2).fold(0, |sum, word| sum + (u32::from(word[0]) << 8 | u32::from(word[1])));
        let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
        packet[10..12].copy_from_slice(&sum.to_be_bytes());
        packet.extend(5_000_u16.to_be_bytes());
        packet.extend(port.to_be_bytes());
        packet.extend([0, 12, 0, 0, 1, 2, 3, 4]);
        packet
    }

    #[test]
    fn an_interface_of_several_queues_is_not_joined_and_its_end_reaches_every_queue() {
        isolated("several queues taken, and deleted", || {
            let create = |name: &str, queues| {
                Tun::create_queues(&TunOptions { name: name.into(), mtu: None, offload: true }, queues)
            };
            ip("tuntap add dev rg-theirs mode tun multi_queue");
            for queues in [1, 2] {
                assert!(matches!(create("rg-theirs", queues), Err(TunError::Taken { name }) if name == "rg-theirs"));
            }
            let mut ours = create("rg-ours%d", 3).unwrap();
            assert!(ours.iter().all(|queue| queue.name() == "rg-ours0"));
            assert!(matches!(create("rg-ours0", 2), Err(TunError::Taken { .. })));
            for queues in [0, 257] {
                assert!(matches!(create("rg-none", queues), Err(TunError::InvalidQueues { .. })));
            }
            assert_eq!(create("rg-most", 256).unwrap().len(), 256);

            ip("link delete dev rg-ours0");
            let mut slab = vec![0; ours[0].max_read()];
            let (mut waiter, _waker) = Waiter::new().unwrap();
            for queue in &mut ours {
                assert!(waiter.wait([queue.fd()], Some(Duration::from_secs(10))).unwrap().ready);
                assert_eq!(queue.read(&mut slab, 0, 1_420).unwrap_err().kind(), io::ErrorKind::NotConnected);
                let error = queue.write(&mut slab, &[Span { offset: 0, len: 20 }]).unwrap_err();
                assert_eq!(error.kind(), io::ErrorKind::NotConnected);
            }
        });
    }

    #[test]
    fn failures_name_their_cause_and_leave_nothing_behind() {
        isolated("failures to create a TUN", || {
            assert!(matches!(create("lo", None), Err(TunError::Taken { name }) if name == "lo"));
            let first = create("rg-twice", None).unwrap();
            assert!(matches!(create("rg-twice", None), Err(TunError::Taken { .. })));
            drop(first);
            assert!(matches!(create("rg-twice", Some(1)), Err(TunError::InvalidMtu { mtu: 1, .. })));
            let after = create("rg-twice", None).unwrap();
            assert_eq!(after.mtu().unwrap(), 1500);
            ip("tuntap add dev rg-kept mode tun");
            assert!(matches!(create("rg-kept", None), Err(TunError::Taken { .. })), "a persistent one is not ours");
        });
    }
}
