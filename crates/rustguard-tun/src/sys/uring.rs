//! io_uring: continuous reads into buffers that the kernel chooses, and batches of sends and writes with one system
//! call.
//!
//! There are two kinds of ring, one for each direction, so that neither waits for the other's completions. Both are
//! made with SINGLE_ISSUER and DEFER_TASKRUN. A ring therefore belongs to the thread that uses it first, and **the
//! kernel works on the ring, and touches memory that its entries name, only during that thread's `io_uring_enter`**.
//! The safety arguments below rely on this: code that holds `&mut` of a ring, outside of such a call, has exclusive
//! access to the ring's memory. This includes dropping the ring.
use super::{
    check,
    message::{Incoming, Messages, Outgoing},
    poll::EventFd,
};
use crate::{Span, offload::VNET_LEN};
use io_uring::{
    IoUring, Probe, cqueue, opcode, squeue,
    types::{self, CancelBuilder},
};
use std::{
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd},
    ptr,
    sync::atomic::{AtomicU16, Ordering},
};

/// The size of a buffer in bytes: the longest packet or datagram (65,535) and what the kernel reports about it. The
/// 1,536 bytes beyond a power of two keep the starts of the buffers out of each other's cache sets.
const BUFFER: usize = 65_536 + 1_536;
/// The number of buffers of each source, a power of two. It is the number of packets that may arrive before the thread
/// looks. Only buffers that were used take memory.
const BUFFERS: u16 = 32;
/// The operations that are needed. Linux has the newest of them (READ_MULTISHOT) since 6.7.
const NEEDED: [u8; 4] =
    [opcode::ReadMulti::CODE, opcode::RecvMsgMulti::CODE, opcode::SendMsg::CODE, opcode::Writev::CODE];
/// The number of submission slots of an [`Outbox`]: the longest batch of one call.
pub(crate) const BATCH: usize = 64;
/// How often `io_uring_enter` is tried while the kernel is temporarily out of resources.
const ENTER_ATTEMPTS: usize = 64;
/// Operations never wait, so that none is in progress when the call returns (uapi/linux/fs.h: RWF_NOWAIT).
const RWF_NOWAIT: i32 = 0x8;

/// The kind of data that is read from a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Bytes, by read(2).
    Packets,
    /// Datagrams with addresses and control messages, by recvmsg(2).
    Datagrams,
}

/// Continuous reads of one or more sources.
pub(crate) struct Inbox {
    /// Declared before the buffers that it refers to, and so dropped before them.
    ring: Ring,
    /// The kernel signals this for each completion, and when there is work for the ring's thread. Polling the ring
    /// itself did not work: with DEFER_TASKRUN, arriving packets did not wake threads that slept there (seen on Linux
    /// 6.18).
    event: EventFd,
    kind: Kind,
    sources: Vec<Source>,
    /// The layout of what the kernel reports about a datagram. It is boxed because read requests point to it until
    /// they are submitted.
    header: Box<libc::msghdr>,
}

struct Source {
    buffers: Buffers,
    /// Whether the continuous read is active. It ends with an error, and when no buffer is left.
    armed: bool,
}

// SAFETY: the raw pointers inside refer to memory that the inbox owns (mappings), or are null (in the msghdr). Only one
// thread may use the ring; the kernel itself enforces that and refuses others (EEXIST).
unsafe impl Send for Inbox {}

impl Inbox {
    /// Reads of a file, where each read gives one packet.
    pub(crate) fn packets() -> io::Result<Self> {
        Self::new(Kind::Packets, 1)
    }

    /// Reads of this number of sockets.
    pub(crate) fn datagrams(sources: usize) -> io::Result<Self> {
        Self::new(Kind::Datagrams, sources)
    }

    fn new(kind: Kind, sources: usize) -> io::Result<Self> {
        // There is room for one completion per buffer, and for the end of every read.
        let completions = (sources * usize::from(BUFFERS) * 2) as u32;
        let ring = Ring::new(sources as u32, completions)?;
        let event = EventFd::new()?;
        ring.io.submitter().register_eventfd(event.as_fd().as_raw_fd())?;
        let mut all = Vec::with_capacity(sources);
        for group in 0..sources {
            let buffers = Buffers::new()?;
            // SAFETY: the kernel pins the pages of the ring, which stay mapped for as long as `self` has the ring.
            unsafe {
                let address = buffers.ring.start as u64;
                ring.io.submitter().register_buf_ring_with_flags(address, BUFFERS, group as u16, 0)?;
            }
            all.push(Source { buffers, armed: false });
        }
        Ok(Self { ring, event, kind, sources: all, header: Box::new(datagram_layout()) })
    }

    /// Whether the reads have begun. From then on, [`fd`](Self::fd) becomes readable when there is something.
    pub(crate) fn is_running(&self) -> bool {
        self.ring.enabled
    }

    /// This descriptor is readable until [`next`](Self::next) has returned `None`, and again when something arrives.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }

    /// Gives the next packet, and the number of its source, to `take`, and then returns its buffer to the kernel.
    /// `files` are the descriptors of the sources, the same ones in each call. `first` is the source to begin with
    /// where several wait for buffers. `Ok(None)` means that nothing is there now.
    ///
    /// # Errors
    /// The error of a source. Its next read begins with the next call.
    pub(crate) fn next<R>(
        &mut self,
        files: &[BorrowedFd<'_>],
        first: usize,
        mut take: impl FnMut(usize, &[u8]) -> R,
    ) -> io::Result<Option<R>> {
        let mut cleared = false;
        loop {
            let Some(completion) = self.ring.io.completion().next() else {
                if self.begin_reads(files, first)? {
                    continue;
                }
                if cleared {
                    return Ok(None);
                }
                // Anything that arrives from here on is either seen below or signalled.
                self.event.clear();
                cleared = true;
                continue;
            };
            // The signal for completions after this one may have been cleared.
            if std::mem::take(&mut cleared) {
                self.event.signal();
            }
            let number = completion.user_data() as usize;
            let source = &mut self.sources[number];
            source.armed = cqueue::more(completion.flags());
            let buffer = cqueue::buffer_select(completion.flags());
            let result = match usize::try_from(completion.result()) {
                Ok(len) => buffer.map(|id| Ok(take(number, source.buffers.filled(id, len)))),
                // All buffers are full, or were full until just now. The waiting packets are taken first; then the read
                // begins again.
                Err(_) if completion.result() == -libc::ENOBUFS => None,
                Err(_) => Some(Err(io::Error::from_raw_os_error(-completion.result()))),
            };
            if let Some(id) = buffer {
                source.buffers.give_back(id);
            }
            match result {
                None => {}
                Some(result) => return result.map(Some),
            }
        }
    }

    /// Copies the next datagram to the start of `room`, and returns its source. `Ok(Some(None))` stands for a datagram
    /// that was longer than a buffer, or whose sender's address has an unknown family.
    pub(crate) fn next_datagram(
        &mut self,
        files: &[BorrowedFd<'_>],
        first: usize,
        room: &mut [u8],
    ) -> io::Result<Option<Option<(usize, Incoming)>>> {
        self.next(files, first, |source, bytes| {
            let out = types::RecvMsgOut::parse(bytes, &datagram_layout()).ok()?;
            if out.is_payload_truncated() {
                return None;
            }
            let payload = out.payload_data();
            room.get_mut(..payload.len())?.copy_from_slice(payload);
            let datagram = Incoming::parse(out.name_data(), out.control_data(), payload.len())?;
            Some((source, datagram))
        })
    }

    /// Begins the reads that have ended or never began, and lets the kernel process what has arrived. Returns `false`
    /// when there is nothing to do.
    fn begin_reads(&mut self, files: &[BorrowedFd<'_>], first: usize) -> io::Result<bool> {
        for i in 0..self.sources.len() {
            let i = (first + i) % self.sources.len();
            if self.sources[i].armed {
                continue;
            }
            let (file, group) = (types::Fd(files[i].as_raw_fd()), i as u16);
            let entry = match self.kind {
                // An offset of -1 means no position, as in read(2).
                Kind::Packets => opcode::ReadMulti::new(file, 0, group).offset(u64::MAX).build(),
                Kind::Datagrams => opcode::RecvMsgMulti::new(file, &raw const *self.header, group).build(),
            };
            // SAFETY: reads write to the buffers of the group, which live as long as the ring. The header does, too.
            let pushed = unsafe { self.ring.io.submission().push(&entry.user_data(i as u64)) };
            pushed.expect("there is a place for each source, and none is pushed again before its completion");
            self.sources[i].armed = true;
        }
        let submission = self.ring.io.submission();
        // There may also be entries of an earlier call that failed.
        let work = submission.taskrun() || !submission.is_empty();
        drop(submission);
        if work {
            self.ring.enter(0)?;
        }
        Ok(work)
    }
}

impl Drop for Inbox {
    /// Ends the reads, so that the kernel releases their files now and not some time after the ring is closed. Only the
    /// ring's thread may do this. On another thread, the kernel releases the files later.
    fn drop(&mut self) {
        if !self.ring.enabled || self.ring.io.submitter().register_sync_cancel(None, CancelBuilder::any()).is_err() {
            return;
        }
        for _ in 0..ENTER_ATTEMPTS {
            for completion in self.ring.io.completion() {
                self.sources[completion.user_data() as usize].armed = cqueue::more(completion.flags());
            }
            if self.sources.iter().all(|source| !source.armed) || self.ring.enter(0).is_err() {
                return;
            }
        }
    }
}

/// The layout of what the kernel reports about a datagram: the room for its sender's address and for control messages.
fn datagram_layout() -> libc::msghdr {
    // SAFETY: a msghdr consists of integers and pointers, for which zeroes are valid.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    header.msg_namelen = Incoming::NAME_LEN as libc::socklen_t;
    header.msg_controllen = Incoming::CONTROL_LEN as _;
    header
}

/// Sends and writes in batches.
pub(crate) struct Outbox {
    ring: Ring,
    /// The result of each operation of the last batch.
    results: Vec<i32>,
    /// The pieces of writes. The list is empty between calls.
    pieces: Vec<libc::iovec>,
    /// Whether a submission failed half-way. The ring then refers to memory that it must not use any more, and is
    /// never used again.
    broken: bool,
}

// SAFETY: the pointers in `pieces` and in the ring's entries are followed only during a call, which has just set them.
unsafe impl Send for Outbox {}

impl Outbox {
    pub(crate) fn new() -> io::Result<Self> {
        let ring = Ring::new(BATCH as u32, 2 * BATCH as u32)?;
        Ok(Self { ring, results: Vec::with_capacity(BATCH), pieces: Vec::new(), broken: false })
    }

    /// Whether the ring can still be used.
    pub(crate) fn is_usable(&self) -> bool {
        !self.broken
    }

    /// Sends as [`Messages::send`] does. The first datagram that fails ends the batch.
    pub(crate) fn send<const N: usize>(
        &mut self,
        messages: &mut Messages<N>,
        socket: impl AsFd,
        slab: &[u8],
        datagrams: &[Outgoing],
    ) -> io::Result<usize> {
        let count = datagrams.len().min(BATCH);
        let headers = messages.fill(slab, &datagrams[..count]);
        let (socket, count) = (types::Fd(socket.as_fd().as_raw_fd()), headers.len());
        let entries = headers.iter().enumerate().map(|(i, header)| {
            // The operation does not wait for the socket, so that none is in progress when the call returns.
            let entry =
                opcode::SendMsg::new(socket, &raw const header.msg_hdr).flags(libc::MSG_DONTWAIT as u32).build();
            // The operations run in order, and stop at the first that fails.
            if i + 1 < count { entry.flags(squeue::Flags::IO_LINK) } else { entry }
        });
        // SAFETY: each entry refers to a header that `fill` has just set, to memory of `messages` and `slab`. Both are
        // borrowed for longer than the call takes.
        let results = unsafe { submit(&mut self.ring, &mut self.results, &mut self.broken, entries) }?;
        match results.iter().position(|&result| result < 0) {
            Some(0) => Err(io::Error::from_raw_os_error(-results[0])),
            Some(sent) => Ok(sent),
            None => Ok(count),
        }
    }

    /// Writes packets, at most [`BATCH`], in order. The `i`th packet consists of `headers[i]` (where there are headers)
    /// and the next `counts[i]` of `spans`. Returns the result of each: the bytes written, or a negated error number.
    pub(crate) fn write(
        &mut self,
        file: impl AsFd,
        slab: &[u8],
        headers: &[[u8; VNET_LEN]],
        spans: &[Span],
        counts: &[usize],
    ) -> io::Result<&[i32]> {
        let iovec = |bytes: &[u8]| libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
        let mut rest = spans.iter();
        self.pieces.clear();
        for (i, &count) in counts.iter().enumerate() {
            self.pieces.extend(headers.get(i).map(|header| iovec(header)));
            let spans = rest.by_ref().take(count);
            self.pieces.extend(spans.map(|span| iovec(&slab[span.offset..span.offset + span.len])));
        }
        let file = types::Fd(file.as_fd().as_raw_fd());
        let with_header = usize::from(!headers.is_empty());
        let mut pieces = self.pieces.as_slice();
        let entries = counts[..counts.len().min(BATCH)].iter().map(|count| {
            let (first, rest) = pieces.split_at(with_header + count);
            pieces = rest;
            opcode::Writev::new(file, first.as_ptr(), first.len() as u32).offset(u64::MAX).rw_flags(RWF_NOWAIT).build()
        });
        // SAFETY: each entry refers to pieces that were just set to parts of `headers` and `slab`, which are borrowed
        // for longer than the call takes. `pieces` does not grow meanwhile.
        unsafe { submit(&mut self.ring, &mut self.results, &mut self.broken, entries) }
    }
}

/// Submits operations that do not wait, and returns the result of each.
///
/// # Safety
/// The memory that the entries refer to is valid during the call.
unsafe fn submit<'a>(
    ring: &mut Ring,
    results: &'a mut Vec<i32>,
    broken: &mut bool,
    entries: impl Iterator<Item = squeue::Entry>,
) -> io::Result<&'a [i32]> {
    if *broken {
        return Err(io::ErrorKind::BrokenPipe.into());
    }
    results.clear();
    for entry in entries {
        // SAFETY: the caller promises this. Entries that are not used up in this call are never used.
        let pushed = unsafe { ring.io.submission().push(&entry.user_data(results.len() as u64)) };
        pushed.expect("there are as many places as operations in a batch, and all are free between calls");
        results.push(0);
    }
    let mut left = results.len();
    while left > 0 {
        // All operations are done when this returns, in the given order, because none waits.
        if let Err(error) = ring.enter(left) {
            *broken = true;
            return Err(error);
        }
        for completion in ring.io.completion() {
            results[completion.user_data() as usize] = completion.result();
            left -= 1;
        }
    }
    Ok(results)
}

/// A ring that is enabled by its first use, on the thread that uses it.
struct Ring {
    io: IoUring,
    enabled: bool,
}

impl Ring {
    fn new(submissions: u32, completions: u32) -> io::Result<Self> {
        let mut builder = IoUring::builder();
        // The ring is disabled at first, because it belongs to the thread that enables it. All entries are tried,
        // including those after one that fails at once.
        builder.setup_r_disabled().setup_single_issuer().setup_defer_taskrun().setup_taskrun_flag().setup_submit_all();
        let io = builder.setup_cqsize(completions).build(submissions).map_err(explain)?;
        let mut probe = Probe::new();
        io.submitter().register_probe(&mut probe)?;
        if NEEDED.iter().all(|&code| probe.is_supported(code)) {
            return Ok(Self { io, enabled: false });
        }
        Err(explain(io::Error::from_raw_os_error(libc::EINVAL)))
    }

    /// Calls `io_uring_enter`: submits the queued entries, lets the kernel work, and waits for `want` completions.
    fn enter(&mut self, want: usize) -> io::Result<()> {
        if !self.enabled {
            self.io.submitter().register_enable_rings()?;
            self.enabled = true;
        }
        let mut attempts = 0;
        loop {
            match self.io.submit_and_wait(want) {
                Ok(_) => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => match error.raw_os_error() {
                    Some(libc::EAGAIN | libc::EBUSY) if attempts < ENTER_ATTEMPTS => attempts += 1,
                    _ => return Err(error),
                },
            }
        }
    }
}

/// Explains why there is no ring, and names the remedy.
fn explain(error: io::Error) -> io::Error {
    let message = match error.raw_os_error() {
        Some(libc::ENOSYS) => "this kernel has no io_uring: use `--io poll`",
        Some(libc::EINVAL) => "this kernel's io_uring is too old: use Linux 6.7 or newer, or `--io poll`",
        Some(libc::EPERM | libc::EACCES) => {
            "io_uring is forbidden here, by the sysctl kernel.io_uring_disabled or a container's seccomp profile: allow \
             it there, or use `--io poll`"
        }
        _ => return error,
    };
    io::Error::new(error.kind(), message)
}

/// Buffers from which the kernel chooses, and the ring that offers them (io_uring_register_buf_ring(3)).
struct Buffers {
    ring: Mapping,
    memory: Mapping,
    /// The number of offers so far, modulo 2^16.
    offered: u16,
}

impl Buffers {
    fn new() -> io::Result<Self> {
        let ring = Mapping::new(usize::from(BUFFERS) * size_of::<types::BufRingEntry>())?;
        let memory = Mapping::new(usize::from(BUFFERS) * BUFFER)?;
        let mut buffers = Self { ring, memory, offered: 0 };
        (0..BUFFERS).for_each(|id| buffers.give_back(id));
        Ok(buffers)
    }

    /// The first `len` bytes of a buffer that the kernel has filled.
    fn filled(&self, id: u16, len: usize) -> &[u8] {
        assert!(id < BUFFERS && len <= BUFFER, "the kernel fills what it was offered");
        // SAFETY: the range is within the mapping, whose pages were zero at first. The kernel has filled the buffer,
        // and does not touch it until it is given back, which takes `&mut self`.
        unsafe { std::slice::from_raw_parts(self.memory.start.add(usize::from(id) * BUFFER), len) }
    }

    /// Offers a buffer to the kernel.
    fn give_back(&mut self, id: u16) {
        assert!(id < BUFFERS, "a buffer of these");
        let entries: *mut types::BufRingEntry = self.ring.start.cast();
        // SAFETY: both places are within their mappings, which are aligned to pages. The kernel reads entries only up
        // to the tail, which moves past this entry afterwards.
        unsafe {
            let entry = &mut *entries.add(usize::from(self.offered % BUFFERS));
            entry.set_addr(self.memory.start.add(usize::from(id) * BUFFER) as u64);
            entry.set_len(BUFFER as u32);
            entry.set_bid(id);
        }
        self.offered = self.offered.wrapping_add(1);
        // SAFETY: the tail is an aligned u16 in the first entry, in a part of that entry that no other code writes.
        let tail = unsafe { AtomicU16::from_ptr(types::BufRingEntry::tail(entries).cast_mut()) };
        tail.store(self.offered, Ordering::Release);
    }
}

/// Private pages, which are zero at first and take memory only when they are touched.
struct Mapping {
    start: *mut u8,
    len: usize,
}

impl Mapping {
    fn new(len: usize) -> io::Result<Self> {
        let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping at an address that the kernel chooses does not touch existing memory.
        let start = unsafe { libc::mmap(ptr::null_mut(), len, protection, flags, -1, 0) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Self { start: start.cast(), len })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: this value owns the mapping, and nothing that was borrowed from it is left.
        let unmapped = check(unsafe { libc::munmap(self.start.cast(), self.len) });
        debug_assert!(unmapped.is_ok(), "{unmapped:?}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A namespace cannot have a kernel that refuses io_uring, so the test simulates its answers.
    #[test]
    fn refusals_name_their_cause_and_a_way_out() {
        for (errno, cause) in [
            (libc::ENOSYS, "no io_uring"),
            (libc::EPERM, "kernel.io_uring_disabled"),
            (libc::EACCES, "seccomp"),
            (libc::EINVAL, "6.7"),
        ] {
            let told = explain(io::Error::from_raw_os_error(errno)).to_string();
            assert!(told.contains(cause) && told.contains("--io poll"), "{told}");
        }
        assert_eq!(explain(io::Error::from_raw_os_error(libc::ENOMEM)).raw_os_error(), Some(libc::ENOMEM));
    }
}
