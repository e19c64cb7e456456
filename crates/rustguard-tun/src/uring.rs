//! TUN queues and UDP sockets over io_uring, for Linux 6.7 and newer. Reads continue by themselves into buffers that
//! the kernel chooses. One system call sends or writes a whole batch.
//!
//! It works, but it is not faster. `benches/io.rs` measured in a virtual machine with two cores (Zen 5, Linux 6.18): 64
//! small datagrams sent and received take 79 µs instead of 68, a run of 45 full datagrams takes 7.4 µs instead of 4.9,
//! and 64 small packets through a TUN and back take 85 µs instead of 79. The result may differ where system calls are
//! more expensive.
//!
//! A ring belongs to the thread that first reads or writes through it. All other operations, including creation and
//! dropping, may happen on other threads.
use crate::{
    Endpoint, Network, Received, Segments, Sent, Span, Transmit, TunQueue,
    offload::{Coalescer, Group, VNET_LEN},
    sys::{Inbox, OUTBOX_BATCH, Outbox},
    tun::Tun,
    udp::{MAX_PORTS, PENDING_ERRORS, SLOT, Udp, run_of},
};
use std::{fmt, io, ops::Range, os::fd::BorrowedFd};

/// A queue of a TUN, driven by io_uring.
pub struct UringTun {
    /// The rings are dropped first, because their reads use this descriptor.
    inbox: Inbox,
    outbox: Outbox,
    tun: Tun,
    batch: Batch,
}

/// Writes that are submitted together. The batch is empty between calls of `write`.
#[derive(Default)]
struct Batch {
    headers: Vec<[u8; VNET_LEN]>,
    spans: Vec<Span>,
    /// The number of spans that each write joins.
    counts: Vec<usize>,
    /// The positions of the last writes that failed, in order, and their errors.
    failed: Vec<(usize, io::Error)>,
}

impl UringTun {
    /// Drives `tun` by io_uring.
    ///
    /// # Errors
    /// The kernel has no io_uring, its io_uring is too old, or it is forbidden. The message says which, and names the
    /// remedy.
    pub fn new(tun: Tun) -> io::Result<Self> {
        Ok(Self { inbox: Inbox::packets()?, outbox: Outbox::new()?, tun, batch: Batch::default() })
    }

    /// The queue itself, for its name, index and MTU.
    pub fn tun(&self) -> &Tun {
        &self.tun
    }
}

impl fmt::Debug for UringTun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UringTun").field("tun", &self.tun).finish_non_exhaustive()
    }
}

impl TunQueue for UringTun {
    /// Works as in [`Tun`]. The packet is copied once more, from the buffer that the kernel chose into `slab`.
    fn read(&mut self, slab: &mut [u8], at: usize, mtu: usize) -> io::Result<Option<Segments>> {
        let Self { inbox, tun, .. } = self;
        let begin = tun.begin(at);
        let copy = |_source, bytes: &[u8]| {
            // No IP packet is longer than `max_read` allows. If one were, it would be cut off and then refused as
            // malformed.
            let room = &mut slab[begin..];
            let len = bytes.len().min(room.len());
            room[..len].copy_from_slice(&bytes[..len]);
            len
        };
        match inbox.next(&[tun.fd()], 0, copy) {
            Ok(len) => Ok(len.map(|len| tun.lay_out(slab, at, len, mtu))),
            Err(error) => Err(tun.surface(error)),
        }
    }

    fn write(&mut self, slab: &mut [u8], packets: &[Span]) -> io::Result<usize> {
        let mut refused = 0;
        if !self.tun.has_vnet() {
            for packets in packets.chunks(OUTBOX_BATCH) {
                packets.iter().for_each(|&packet| self.batch.push_single(packet));
                self.flush(slab)?;
                refused += self.batch.failed.drain(..).count();
            }
            return Ok(refused);
        }
        let mut coalescer = std::mem::take(&mut self.tun.coalescer);
        coalescer.group(slab, packets);
        let count = coalescer.groups().len();
        let result = (0..count).step_by(OUTBOX_BATCH).try_fold(0, |refused, first| {
            let groups = first..count.min(first + OUTBOX_BATCH);
            for group in &coalescer.groups()[groups.clone()] {
                self.batch.push_group(slab, packets, group, coalescer.members(group));
            }
            Ok(refused + self.flush_groups(slab, packets, &mut coalescer, groups)?)
        });
        self.tun.coalescer = coalescer;
        result
    }

    /// Before the first `read`, only the TUN itself can be waited for.
    fn fd(&self) -> BorrowedFd<'_> {
        if self.inbox.is_running() { self.inbox.fd() } else { self.tun.fd() }
    }

    fn max_read(&self) -> usize {
        self.tun.max_read()
    }

    fn learns_flows(&self) -> bool {
        self.tun.learns_flows()
    }
}

impl UringTun {
    /// Writes the batch and empties it. The batch then lists the writes that failed.
    fn flush(&mut self, slab: &[u8]) -> io::Result<()> {
        let Self { outbox, tun, batch, .. } = self;
        let Batch { headers, spans, counts, failed } = &mut *batch;
        let result = outbox.write(tun.fd(), slab, headers, spans, counts).and_then(|results| {
            for (i, &result) in results.iter().enumerate().filter(|&(_, &result)| result <= 0) {
                // The kernel does not call the driver for an empty write.
                let error = io::Error::from_raw_os_error(if result == 0 { libc::EINVAL } else { -result });
                if error.raw_os_error() == Some(libc::EBADFD) {
                    return Err(tun.surface(error));
                }
                failed.push((i, error));
            }
            Ok(())
        });
        batch.clear();
        result
    }

    /// Writes a batch of these groups. Returns the number of packets that were refused in the end. If a group is
    /// refused as a whole, its packets are written after those of the batch.
    fn flush_groups(
        &mut self,
        slab: &mut [u8],
        packets: &[Span],
        coalescer: &mut Coalescer,
        groups: Range<usize>,
    ) -> io::Result<usize> {
        self.flush(slab)?;
        let (mut failed, mut refused) = (self.batch.failed.drain(..).peekable(), 0);
        for (i, n) in groups.enumerate() {
            let group = coalescer.groups()[n];
            match failed.next_if(|(at, _)| *at == i) {
                Some((_, error)) => refused += self.tun.write_refused(slab, packets, coalescer, &group, error)?,
                None => coalescer.taken(&group),
            }
        }
        Ok(refused)
    }
}

impl Batch {
    fn push_single(&mut self, packet: Span) {
        self.spans.push(packet);
        self.counts.push(1);
    }

    /// Adds the first packet as a whole, with the headers of the group, and the payloads of the other packets.
    fn push_group(&mut self, slab: &mut [u8], packets: &[Span], group: &Group, members: impl Iterator<Item = usize>) {
        let first = packets[group.first];
        self.headers.push(group.finish(&mut slab[first.offset..first.offset + first.len]).to_bytes());
        self.spans.push(first);
        self.spans.extend(members.skip(1).map(|i| {
            let Span { offset, len } = packets[i];
            Span { offset: offset + group.headers, len: len - group.headers }
        }));
        self.counts.push(group.count);
    }

    fn clear(&mut self) {
        let Self { headers, spans, counts, failed: _ } = self;
        headers.clear();
        spans.clear();
        counts.clear();
    }
}

/// The sockets of one worker, driven by io_uring.
pub struct UringUdp {
    inbox: Inbox,
    outbox: Outbox,
    udp: Udp,
    /// The port of each socket.
    ports: Vec<u16>,
    /// The socket that is asked first. The sockets take turns.
    turn: usize,
}

impl UringUdp {
    /// Drives `udp` by io_uring. [`Udp::try_clone`] gives plain handles to other threads, before or after.
    ///
    /// # Errors
    /// The kernel has no io_uring, its io_uring is too old, or it is forbidden. The message says which, and names the
    /// remedy.
    pub fn new(udp: Udp) -> io::Result<Self> {
        let ports: Vec<_> = udp.fd_ports().collect();
        Ok(Self { inbox: Inbox::datagrams(ports.len())?, outbox: Outbox::new()?, udp, ports, turn: 0 })
    }

    /// The sockets themselves, for their port, their mark and further handles.
    pub fn udp(&self) -> &Udp {
        &self.udp
    }
}

impl fmt::Debug for UringUdp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UringUdp").field("udp", &self.udp).finish_non_exhaustive()
    }
}

impl Network for UringUdp {
    /// Works as in [`Udp`]. Datagrams are copied once more, from the buffers that the kernel chose, and therefore lie
    /// close together. As many are received as fit.
    fn recv(&mut self, slab: &mut [u8], out: &mut Vec<Received>) -> io::Result<()> {
        let Self { inbox, udp, ports, turn, .. } = self;
        let Some(first) = udp.fds().next() else { return Ok(()) };
        let mut files = [first; 2 * MAX_PORTS];
        files.iter_mut().zip(udp.fds()).for_each(|(place, file)| *place = file);
        let files = &files[..ports.len()];
        *turn = (*turn + 1) % files.len();
        let (mut offset, mut errors) = (0, 0);
        while slab.len() - offset >= SLOT {
            let room = &mut slab[offset..];
            match inbox.next_datagram(files, *turn, room) {
                Ok(None) => break,
                // No UDP payload is longer than a slot. If one were, it would be cut off, and could not be authentic.
                Ok(Some(None)) => {}
                Ok(Some(Some((source, datagram)))) => {
                    let from = Endpoint { remote: datagram.from, local: datagram.local, local_port: ports[source] };
                    let segments = run_of(offset, datagram.len, datagram.size);
                    out.push(Received { from, segments, ecn: datagram.ecn });
                    offset += datagram.len.next_multiple_of(CACHE_LINE);
                }
                // ICMP or an earlier `send` left this error on the socket. Reading it has cleared it.
                Err(_) if errors < PENDING_ERRORS => errors += 1,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn send(&mut self, slab: &[u8], batch: &[Transmit]) -> Sent {
        let Self { outbox, udp, .. } = self;
        udp.send_by(slab, batch, &mut |messages, socket, slab, datagrams| {
            // The ring may belong to another thread. Plain system calls always work.
            if outbox.is_usable() {
                outbox.send(messages, socket, slab, datagrams)
            } else {
                messages.send(socket, slab, datagrams)
            }
        })
    }

    fn send_near(&mut self, datagram: &[u8], to: Endpoint, hops: u8) -> Sent {
        self.udp.send_near(datagram, to, hops)
    }

    fn set_fwmark(&self, mark: u32) -> io::Result<()> {
        self.udp.set_fwmark(mark)
    }

    /// Before the first `recv`, only the sockets themselves can be waited for.
    fn fd(&self, n: usize) -> Option<BorrowedFd<'_>> {
        if self.inbox.is_running() { (n == 0).then(|| self.inbox.fd()) } else { self.udp.fd(n) }
    }

    fn recv_slab_len(&self) -> usize {
        self.udp.recv_slab_len()
    }
}

/// Every datagram begins on a cache line of its own.
const CACHE_LINE: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        namespace::{isolated, skipped},
        testing::{
            tun::{self, TestTun},
            udp::{self, TestUdp},
        },
        wait::Waiter,
    };
    use std::{
        net::{SocketAddr, UdpSocket},
        thread,
        time::Duration,
    };

    impl TestTun for UringTun {
        fn over(tun: Tun) -> Self {
            Self::new(tun).unwrap()
        }
    }

    impl TestUdp for UringUdp {
        fn over(udp: Udp) -> Self {
            Self::new(udp).unwrap()
        }

        fn udp(&self) -> &Udp {
            self.udp()
        }
    }

    /// Whether this host permits io_uring. If not, the test prints that it was skipped.
    fn allowed() -> bool {
        Inbox::packets().map_err(|error| skipped("io_uring", &error)).is_ok()
    }

    macro_rules! over {
        ($backend:ty: $($module:ident::$test:ident),* $(,)?) => {
            $(
                #[test]
                fn $test() {
                    if allowed() {
                        $module::$test::<$backend>();
                    }
                }
            )*
        };
    }

    over!(UringTun:
        tun::packets_pass_both_ways,
        tun::super_packets_of_udp_pass_both_ways,
        tun::super_packets_that_are_refused_go_singly,
        tun::a_tcp_stream_passes_both_ways,
        tun::an_interface_deleted_from_outside_surfaces_everywhere,
    );

    over!(UringUdp:
        udp::datagrams_of_every_length_pass,
        udp::pieces_of_many_transmits_arrive_in_order,
        udp::runs_of_every_shape_arrive_as_they_were_cut,
        udp::congestion_notification_passes,
        udp::runs_come_in_one_piece_where_the_kernel_does_that,
        udp::both_families_share_a_port_and_are_drained_fairly,
        udp::a_bad_datagram_in_mid_batch_fails_alone,
        udp::replies_leave_from_the_address_that_was_addressed,
        udp::a_source_that_moved_away_is_left_out,
        udp::hosts_with_ipv6_disabled_run_on_ipv4,
        udp::several_ports_are_heard_and_answer_each_for_itself,
        udp::a_full_socket_buffer_drops_a_peers_run_and_holds_up_nobody,
        udp::a_run_the_kernel_refuses_goes_singly_and_the_next_is_a_run_again,
    );

    /// Sends numbered datagrams, each as a separate message.
    fn send_numbers(ours: &mut UringUdp, to: SocketAddr, numbers: Range<u32>) {
        let slab: Vec<u8> = numbers.clone().flat_map(u32::to_be_bytes).collect();
        let spans = (0..numbers.len()).map(|i| Span { offset: 4 * i, len: 4 });
        let batch: Vec<_> = spans.map(|span| udp::transmit(to, None, span)).collect();
        assert_eq!(ours.send(&slab, &batch), Sent { sent: batch.len(), ..Sent::default() });
    }

    fn is_ready(fds: &[BorrowedFd<'_>]) -> bool {
        let (mut waiter, _waker) = Waiter::new().unwrap();
        waiter.wait(fds.iter().copied(), Some(Duration::ZERO)).unwrap().ready
    }

    fn isolated_if_allowed(what: &str, test: impl FnOnce() + Send + 'static) {
        if allowed() {
            isolated(what, test);
        }
    }

    /// There are 32 buffers. The continuous read ends whenever all of them are full.
    #[test]
    fn datagrams_beyond_the_buffers_come_later_and_in_order() {
        isolated_if_allowed("more datagrams than buffers", || {
            let (mut ours, mut theirs) = (udp::open::<UringUdp>(), udp::open::<UringUdp>());
            for ip in ["127.0.0.1", "::1"] {
                send_numbers(&mut ours, udp::here(ip, &theirs), 0..500);
                let received = udp::receive_all(&mut theirs, 500);
                let expected = (0..500_u32).map(|number| number.to_be_bytes().to_vec());
                assert!(received.into_iter().map(|(_, bytes)| bytes).eq(expected));
            }
        });
    }

    #[test]
    fn packets_beyond_the_buffers_come_later_and_in_order() {
        isolated_if_allowed("more packets than buffers", || {
            let mut queue: UringTun = tun::create("rg-many", true);
            let socket = UdpSocket::bind("10.9.9.1:0").unwrap();
            for number in 0..400_u32 {
                socket.send_to(&number.to_be_bytes(), "10.9.9.2:5000").unwrap();
            }
            let mut slab = vec![0; queue.max_read()];
            for number in 0..400_u32 {
                assert!(number == 0 || is_ready(&[queue.fd()]), "{number}: readable for as long as there is something");
                let packet = tun::next_ipv4(&mut queue, &mut slab, 0);
                assert_eq!(slab[packet.offset + 28..][..4], number.to_be_bytes());
            }
            while queue.read(&mut slab, 0, 1_420).unwrap().is_some() {}
            assert!(!is_ready(&[queue.fd()]));
        });
    }

    #[test]
    fn whoever_waits_is_woken_before_and_after_the_first_call() {
        isolated_if_allowed("waiting for io_uring", || {
            let (mut ours, mut theirs) = (udp::open::<UringUdp>(), udp::open::<UringUdp>());
            let mut slab = vec![0; theirs.recv_slab_len()];
            for round in 0..20 {
                let fds: Vec<_> = theirs.fds().collect();
                assert!(!is_ready(&fds), "{round}");
                send_numbers(&mut ours, udp::here("127.0.0.1", &theirs), 0..3);
                let fds: Vec<_> = theirs.fds().collect();
                assert!(is_ready(&fds), "{round}");
                let mut received = Vec::new();
                theirs.recv(&mut slab, &mut received).unwrap();
                assert_eq!(received.len(), 3);
            }
        });
    }

    #[test]
    fn a_ring_is_its_threads_and_sending_goes_on_without() {
        isolated_if_allowed("a ring on two threads", || {
            let (mut ours, mut theirs) = (udp::open::<UringUdp>(), udp::open::<UringUdp>());
            let to = udp::here("127.0.0.1", &theirs);
            send_numbers(&mut ours, to, 0..3);
            assert_eq!(udp::receive_all(&mut theirs, 3).len(), 3);
            let (ours, mut theirs) = thread::spawn(move || {
                send_numbers(&mut ours, to, 3..6);
                let mut slab = vec![0; theirs.recv_slab_len()];
                let error = theirs.recv(&mut slab, &mut Vec::new()).unwrap_err();
                assert_eq!(error.raw_os_error(), Some(libc::EEXIST));
                (ours, theirs)
            })
            .join()
            .unwrap();
            drop(ours);
            assert_eq!(udp::receive_all(&mut theirs, 3).len(), 3);
        });
    }
}
