//! The TUN queues of one worker, read in turn: its lanes.
//!
//! A single queue is first in, first out: a ping waits behind everything that a bulk transfer has in flight, and a flood leaves no
//! room for others. The kernel spreads the host's packets over the queues by flow, and for three seconds answers a
//! packet through the queue by which it came (`tun_automq_select_queue`). So the lane of a flow is ours to choose: TCP and UDP
//! flows by a hash, and the first lane for everything else, which is ICMP mostly. Flows in different lanes take turns, a
//! super-packet each. What one flow sends stays in one lane and in order.

use rustguard_tun::{Segments, Span, TunQueue};
use std::{io, os::fd::BorrowedFd};

/// Lanes of a worker on a TUN device. Each costs a system call per batch, 1 % of a batch's time, and takes a share of the flows
/// out of a bulk transfer's way.
#[cfg(feature = "kernel")]
pub(crate) const LANES: usize = 4;

const TCP: u8 = 6;
const UDP: u8 = 17;

/// The queues, and what is to be written to each.
pub(super) struct Lanes<T> {
    queues: Vec<T>,
    deliver: Vec<Vec<Span>>,
    /// The lane that is read next.
    turn: usize,
    /// A bit for each lane that had nothing when it was last asked in this batch.
    dry: u64,
}

impl<T: TunQueue> Lanes<T> {
    /// # Panics
    /// Without a queue, or with more than 64.
    pub(super) fn new(queues: Vec<T>) -> Self {
        assert!((1..=64).contains(&queues.len()));
        // As many packets as a batch brings, in the usual case.
        let deliver = queues.iter().map(|_| Vec::with_capacity(512)).collect();
        Self { queues, deliver, turn: 0, dry: 0 }
    }

    /// The most bytes one [`read`](Self::read) may lay out.
    pub(super) fn max_read(&self) -> usize {
        self.queues.iter().map(TunQueue::max_read).max().expect("there is a queue")
    }

    /// Become readable when [`read`](Self::read) has something.
    pub(super) fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.queues.iter().map(TunQueue::fd)
    }

    /// Asks all lanes again, also those that had nothing before.
    pub(super) fn ask_all(&mut self) {
        self.dry = 0;
    }

    /// As [`TunQueue::read`], from the next lane that has something.
    pub(super) fn read(&mut self, slab: &mut [u8], at: usize, mtu: usize) -> io::Result<Option<Segments>> {
        for _ in 0..self.queues.len() {
            let lane = self.turn;
            self.turn = (lane + 1) % self.queues.len();
            if (self.dry >> lane) & 1 == 0 {
                match self.queues[lane].read(slab, at, mtu)? {
                    None => self.dry |= 1 << lane,
                    some => return Ok(some),
                }
            }
        }
        Ok(None)
    }

    /// Puts a packet on its way to the host.
    pub(super) fn deliver(&mut self, slab: &[u8], packet: Span) {
        let lane = match self.queues.len() - 1 {
            0 => 0,
            others => flow(&slab[packet.offset..packet.offset + packet.len])
                .map_or(0, |flow| 1 + ((u64::from(flow) * others as u64) >> u32::BITS) as usize),
        };
        self.deliver[lane].push(packet);
    }

    /// Writes an ICMP message for the host before all packets that are on their way. Returns 1 when it was refused.
    ///
    /// # Errors
    /// As [`TunQueue::write`].
    pub(super) fn answer(&mut self, packet: &mut [u8]) -> io::Result<usize> {
        let whole = Span { offset: 0, len: packet.len() };
        // ICMP is no flow: see `flow`.
        self.queues[0].write(packet, &[whole])
    }

    /// Writes what is on its way. Returns how many packets were refused.
    ///
    /// # Errors
    /// As [`TunQueue::write`].
    pub(super) fn flush(&mut self, slab: &mut [u8]) -> io::Result<usize> {
        let mut result = Ok(0);
        for (queue, packets) in self.queues.iter_mut().zip(&mut self.deliver) {
            if !packets.is_empty() {
                let written = queue.write(slab, packets);
                // Written or not: the slab is about to be used for others.
                packets.clear();
                result = result.and_then(|refused| Ok(refused + written?));
            }
        }
        result
    }
}

/// A hash of the ends of a TCP or UDP flow, the same both ways. `None` for everything else, and for fragments, of which only
/// the first has ports.
fn flow(packet: &[u8]) -> Option<u32> {
    let (addresses, ports) = match packet.first()? >> 4 {
        4 if matches!(packet.get(9), Some(&TCP | &UDP)) => {
            let fragment = packet[6] & 0x3f != 0 || packet[7] != 0;
            (packet.get(12..20)?, (!fragment).then_some(usize::from(packet[0] & 0xf) * 4)?)
        }
        6 if matches!(packet.get(6), Some(&TCP | &UDP)) => (packet.get(8..40)?, 40),
        _ => return None,
    };
    let word = |bytes: &[u8; 4]| u32::from_be_bytes(*bytes);
    let (source, destination) = addresses.split_at(addresses.len() / 2);
    let end = |address: &[u8]| address.as_chunks().0.iter().fold(0, |sum: u32, part| sum.rotate_left(5) ^ word(part));
    let ports = packet.get(ports..ports + 4)?;
    let port = |at: usize| u32::from(u16::from_be_bytes([ports[at], ports[at + 1]]));
    // Each end is mixed with its own port, and the two are added: it does not matter which is the source.
    let mix = |end: u32, port: u32| (end ^ port.rotate_left(16)).wrapping_mul(0x9e37_79b1);
    let sum = mix(end(source), port(0)).wrapping_add(mix(end(destination), port(2)));
    Some((sum ^ (sum >> 15)).wrapping_mul(0x85eb_ca77))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustguard_tun::memory;

    fn packet(protocol: u8, [source, destination]: [u8; 2], ports: [u16; 2]) -> Vec<u8> {
        let mut packet = vec![0; 28];
        (packet[0], packet[9]) = (0x45, protocol);
        packet[12..20].copy_from_slice(&[10, 0, 0, source, 10, 0, 0, destination]);
        packet[20..22].copy_from_slice(&ports[0].to_be_bytes());
        packet[22..24].copy_from_slice(&ports[1].to_be_bytes());
        packet
    }

    fn packet6(protocol: u8, [source, destination]: [u8; 2], ports: [u16; 2]) -> Vec<u8> {
        let mut packet = vec![0; 48];
        (packet[0], packet[6]) = (0x60, protocol);
        (packet[23], packet[39]) = (source, destination);
        packet[40..42].copy_from_slice(&ports[0].to_be_bytes());
        packet[42..44].copy_from_slice(&ports[1].to_be_bytes());
        packet
    }

    #[test]
    fn both_directions_of_a_flow_have_one_hash_and_flows_differ() {
        for build in [packet, packet6] {
            let mut hashes = std::collections::HashSet::new();
            for port in 0..1_000 {
                let there = flow(&build(TCP, [1, 2], [5201, port]));
                assert_eq!(there, flow(&build(TCP, [2, 1], [port, 5201])));
                hashes.insert(there.expect("a flow") >> 24);
            }
            assert!(hashes.len() > 200, "they are spread: {}", hashes.len());
        }
    }

    #[test]
    fn what_has_no_ports_has_no_flow() {
        assert_eq!(flow(&packet(1, [1, 2], [8, 9])), None, "ICMP");
        for (at, bits) in [(6, 0x20), (6, 0x01), (7, 1)] {
            let mut fragment = packet(UDP, [1, 2], [8, 9]);
            fragment[at] = bits;
            assert_eq!(flow(&fragment), None, "a fragment");
        }
        let mut whole = packet(UDP, [1, 2], [8, 9]);
        whole[6] = 0x40;
        assert!(flow(&whole).is_some(), "may not be fragmented, and is not");
        for len in 0..24 {
            assert_eq!(flow(&whole[..len]), None, "cut");
            assert_eq!(flow(&packet6(TCP, [1, 2], [8, 9])[..len]), None, "cut");
        }
    }

    #[test]
    fn a_lane_that_is_full_leaves_the_others_their_turn() {
        let (queues, hosts): (Vec<_>, Vec<_>) = (0..3).map(|_| memory::tun().expect("two eventfds")).unzip();
        let mut lanes = Lanes::new(queues);
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
    fn a_flow_keeps_its_lane_and_what_is_none_the_first() {
        let (queues, hosts): (Vec<_>, Vec<_>) = (0..4).map(|_| memory::tun().expect("two eventfds")).unzip();
        let mut lanes = Lanes::new(queues);
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
