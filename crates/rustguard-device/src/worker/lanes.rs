//! The TUN queues of one worker, read in turn: its lanes.
//!
//! A single queue is first in, first out: a ping waits behind everything that a bulk transfer has in flight, and a
//! flood leaves no room for others. The kernel spreads the host's packets over the queues by flow. If a packet was
//! written to a queue, the kernel uses that queue for its flow for three seconds (`tun_automq_select_queue`). So this
//! module can choose the lane of a flow: a hash for TCP and UDP flows, and the first lane for everything else, which is
//! mostly ICMP. Flows in different lanes take turns, a super-packet each. The packets of one flow stay in one lane and
//! in order. The last lane is for [floods](strays) that nobody answers.

mod strays;

use super::now;
use rustguard_core::flow;
use rustguard_tun::{Segments, Span, TunQueue, wait::Ready};
use std::{io, os::fd::BorrowedFd};
use strays::Strays;

/// Lanes of a worker on a TUN device. Each costs an entry in every `ppoll`, and keeps a share of the flows apart from a
/// bulk transfer.
#[cfg(feature = "kernel")]
pub(crate) const LANES: usize = 5;
/// With fewer lanes, none is reserved for floods.
const FEWEST: usize = 4;

/// The queues, and the packets to write to each.
pub(super) struct Lanes {
    queues: Vec<Box<dyn TunQueue>>,
    /// The packets to write to each lane except the one for floods.
    deliver: Vec<Vec<Span>>,
    /// The last lane is for floods.
    strays: Option<Strays>,
    /// The lane that is read next.
    turn: usize,
    /// A bit for each lane that is not read any more in this batch.
    dry: u64,
    /// Each lane is read once in this batch.
    once: bool,
}

impl Lanes {
    /// # Panics
    /// Without a queue, or with more than 64.
    pub(super) fn new(queues: Vec<Box<dyn TunQueue>>) -> Self {
        assert!((1..=64).contains(&queues.len()));
        let movable = queues.len() >= FEWEST && queues.iter().all(|queue| queue.learns_flows());
        let strays = movable.then(|| Strays::new(queues.len()));
        // As many packets as a usual batch brings.
        let deliver = (0..queues.len() - usize::from(movable)).map(|_| Vec::with_capacity(512)).collect();
        Self { queues, deliver, strays, turn: 0, dry: 0, once: false }
    }

    #[cfg(test)]
    pub(super) fn of(queues: Vec<impl TunQueue>) -> Self {
        Self::new(queues.into_iter().map(|queue| Box::new(queue) as _).collect())
    }

    /// The most bytes one [`read`](Self::read) may lay out.
    pub(super) fn max_read(&self) -> usize {
        self.queues.iter().map(|queue| queue.max_read()).max().expect("there is a queue")
    }

    /// Become readable when [`read`](Self::read) has something.
    pub(super) fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.queues.iter().map(|queue| queue.fd())
    }

    pub(super) fn count(&self) -> usize {
        self.queues.len()
    }

    /// Begins a batch of the ready lanes, which are read until they are empty, or `once`.
    pub(super) fn ask(&mut self, ready: Ready, once: bool) {
        self.dry = (0..self.queues.len()).map(|lane| u64::from(!ready.contains(lane)) << lane).sum();
        self.once = once;
    }

    /// Reads all lanes again, also those that were empty before.
    pub(super) fn ask_all(&mut self) {
        self.dry = 0;
    }

    /// As [`TunQueue::read`], from the next lane that has packets.
    pub(super) fn read(&mut self, slab: &mut [u8], at: usize, mtu: usize) -> io::Result<Option<Segments>> {
        for _ in 0..self.queues.len() {
            let lane = self.turn;
            self.turn = (lane + 1) % self.queues.len();
            if (self.dry >> lane) & 1 == 0 {
                let read = self.queues[lane].read(slab, at, mtu)?;
                self.dry |= u64::from(self.once || read.is_none()) << lane;
                if let Some(segments) = read {
                    self.look(lane, segments, slab)?;
                    return Ok(read);
                }
            }
        }
        Ok(None)
    }

    /// Moves the flow of packets that were read from a lane, if it is a flood that nobody answers.
    #[inline]
    fn look(&mut self, lane: usize, segments: Segments, slab: &[u8]) -> io::Result<()> {
        let Some(strays) = &mut self.strays else { return Ok(()) };
        if !strays.is_due(lane, segments.count) {
            return Ok(());
        }
        let packet = &slab[segments.offset..segments.offset + segments.pieces().next().map_or(0, |first| first.len)];
        let own = lane_of(flow::symmetric_hash(packet), self.deliver.len());
        match (strays.look(packet, lane, own, now()), self.queues.last_mut()) {
            // If the interface is down, the host refuses the write. It then sends no packets either.
            (Some(header), Some(last)) => {
                let whole = Span { offset: 0, len: header.len() };
                last.write(header, &[whole]).map(drop)
            }
            _ => Ok(()),
        }
    }

    /// Queues a packet for the host.
    pub(super) fn deliver(&mut self, slab: &[u8], packet: Span) {
        let lane = match self.deliver.len() {
            1 => 0,
            lanes => {
                let bytes = &slab[packet.offset..packet.offset + packet.len];
                let flow = flow::symmetric_hash(bytes);
                if let Some(strays) = &mut self.strays {
                    strays.answered(bytes, flow);
                }
                lane_of(flow, lanes)
            }
        };
        self.deliver[lane].push(packet);
    }

    /// Writes an ICMP message for the host before all queued packets. Returns 1 when it was refused.
    ///
    /// # Errors
    /// As [`TunQueue::write`].
    pub(super) fn answer(&mut self, packet: &mut [u8]) -> io::Result<usize> {
        let whole = Span { offset: 0, len: packet.len() };
        // ICMP has no flow (see `flow::symmetric_hash`), and goes to the first lane.
        self.queues[0].write(packet, &[whole])
    }

    /// Writes the queued packets. Returns how many were refused.
    ///
    /// # Errors
    /// As [`TunQueue::write`].
    pub(super) fn flush(&mut self, slab: &mut [u8]) -> io::Result<usize> {
        let mut result = Ok(0);
        for (queue, packets) in self.queues.iter_mut().zip(&mut self.deliver) {
            if !packets.is_empty() {
                let written = queue.write(slab, packets);
                // Also after an error: the slab is about to be used for other packets.
                packets.clear();
                result = result.and_then(|refused| Ok(refused + written?));
            }
        }
        result
    }
}

/// The lane of a flow, by its hash and the number of lanes.
fn lane_of(flow: Option<u32>, lanes: usize) -> usize {
    let others = lanes.saturating_sub(1) as u64;
    flow.map_or(0, |flow| 1 + ((u64::from(flow) * others) >> u32::BITS) as usize)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustguard_tun::memory;

    const TCP: u8 = 6;

    fn packet(protocol: u8, [source, destination]: [u8; 2], ports: [u16; 2]) -> Vec<u8> {
        let mut packet = vec![0; 28];
        (packet[0], packet[9]) = (0x45, protocol);
        packet[12..20].copy_from_slice(&[10, 0, 0, source, 10, 0, 0, destination]);
        packet[20..22].copy_from_slice(&ports[0].to_be_bytes());
        packet[22..24].copy_from_slice(&ports[1].to_be_bytes());
        packet
    }

    #[test]
    fn a_lane_that_is_full_leaves_the_others_their_turn() {
        let (queues, hosts): (Vec<_>, Vec<_>) = (0..3).map(|_| memory::tun().expect("two eventfds")).unzip();
        let mut lanes = Lanes::of(queues);
        for n in 0..100 {
            hosts[0].send(&[0, n]).expect("room for a hundred");
        }
        hosts[2].send(&[2, 0]).expect("room");
        let mut slab = vec![0; lanes.max_read()];
        let mut order = Vec::new();
        while let Some(packet) = lanes.read(&mut slab, 0, 1_420).expect("the hosts are there") {
            order.push([slab[packet.offset], slab[packet.offset + 1]]);
        }
        assert_eq!(order[..2], [[0, 0], [2, 0]]);
        assert_eq!(order[2..], (1..100).map(|n| [0, n]).collect::<Vec<_>>(), "and each stays in order");
        hosts[1].send(&[1, 0]).expect("room");
        assert_eq!(lanes.read(&mut slab, 0, 1_420).expect("the hosts are there"), None, "not asked again before");
        lanes.ask_all();
        assert!(lanes.read(&mut slab, 0, 1_420).expect("the hosts are there").is_some());
    }

    #[test]
    fn only_ready_lanes_are_read_and_once_where_that_is_enough() {
        let (queues, hosts): (Vec<_>, Vec<_>) = (0..3).map(|_| memory::tun().expect("two eventfds")).unzip();
        let mut lanes = Lanes::of(queues);
        for (n, host) in hosts.iter().enumerate() {
            for _ in 0..2 {
                host.send(&[n as u8]).expect("room");
            }
        }
        let mut slab = vec![0; lanes.max_read()];
        let mut read = |ready: [bool; 3], once| {
            lanes.ask(ready.into_iter().collect(), once);
            let mut all = Vec::new();
            while let Some(packet) = lanes.read(&mut slab, 0, 1_420).expect("the hosts are there") {
                all.push(slab[packet.offset]);
            }
            all
        };
        assert_eq!(read([true, false, true], true), [0, 2]);
        assert_eq!(read([true, false, false], false), [0]);
        assert_eq!(read([false, true, true], false), [1, 2, 1]);
    }

    #[test]
    fn a_flow_keeps_its_lane_and_what_is_none_the_first() {
        let (queues, hosts): (Vec<_>, Vec<_>) = (0..4).map(|_| memory::tun().expect("two eventfds")).unzip();
        let mut lanes = Lanes::of(queues);
        let mut packets = vec![packet(1, [1, 2], [0, 0])];
        packets.extend((0..64).map(|port| packet(TCP, [1, 2], [443, port])));
        let mut slab: Vec<u8> = packets.concat();
        for (i, packet) in packets.iter().enumerate() {
            lanes.deliver(&slab, Span { offset: 28 * i, len: packet.len() });
        }
        assert_eq!(lanes.flush(&mut slab).expect("the hosts are there"), 0);
        let mut counts = [0; 4];
        for (count, host) in counts.iter_mut().zip(&hosts) {
            host.set_timeout(Some(std::time::Duration::ZERO)).expect("it cannot fail");
            *count = std::iter::from_fn(|| host.recv(&mut [0; 28]).ok()).count();
        }
        assert_eq!(counts[0], 1);
        assert_eq!(counts.iter().sum::<usize>(), 65);
        assert!(counts[1..].iter().all(|&count| count > 8), "{counts:?}");
    }
}
