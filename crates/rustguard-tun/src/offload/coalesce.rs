//! Packets to the host: consecutive segments of a flow become one super-packet. The payloads are not moved.
//!
//! The rules are the same as for the kernel's own GRO, with one addition: a packet's checksum is verified before the
//! packet joins others, because the kernel does not verify the checksum of a super-packet. A packet that was corrupt
//! before it entered the tunnel goes to the host alone and unchanged, and the host refuses it.
use super::{
    ACK, PSH, TCP, TCP_CHECKSUM, TCP_HEADER, UDP, UDP_CHECKSUM, UDP_HEADER, VnetHeader, checksum, get16, get32, put16,
};
use crate::Span;

/// The maximum number of segments in one super-packet. The kernel refuses more segments of UDP (UDP_MAX_SEGMENTS), and
/// 64 KiB of TCP are 47 ordinary segments.
pub const MAX_SEGMENTS: usize = 64;
/// The length of the longest packet in bytes, by the 16-bit length fields of both IP versions (IPv6 permits 40 bytes
/// more).
const MAX_LEN: usize = 65_535;
/// The maximum number of open flows. With more flows, the oldest is closed: packets of so many interleaved flows are
/// rarely consecutive.
const OPEN_FLOWS: usize = 8;

/// After the host has refused a super-packet, this number of packets of the same kind go alone, and at most the second
/// number, if the host refuses again and again. A kernel that cannot take the kind then costs one failed write per
/// million packets. After a temporary failure of an interface, super-packets are soon tried again.
const ALONE: u32 = 1 << 10;
const ALONE_MAX: u32 = 1 << 20;

/// One write to the host: a packet, and the payloads of the packets that continue it.
#[derive(Clone, Copy, Debug)]
pub struct Group {
    /// The first packet, as an index into the batch.
    pub first: usize,
    last: usize,
    /// The number of packets.
    pub count: usize,
    /// The length of all headers in bytes. Only the first packet keeps its headers.
    pub headers: usize,
    /// The payload of each packet except for the last, in bytes.
    gso_size: usize,
    len: usize,
    psh: bool,
    flow: Option<Flow>,
}

/// The properties that packets of one group have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Flow {
    tcp: bool,
    v4: bool,
    /// Where the TCP or UDP header begins.
    l4: usize,
}

/// A packet that can be part of a super-packet, or that at least ends the super-packet of its flow.
struct Segment {
    flow: Flow,
    headers: usize,
    joins: bool,
    psh: bool,
}

/// Groups the packets of a batch. Its memory is kept between batches.
#[derive(Debug, Default)]
pub struct Coalescer {
    groups: Vec<Group>,
    /// For each packet, the packet that follows it in its group.
    next: Vec<usize>,
    /// The groups that are open. A new group is added at the end.
    open: Vec<usize>,
    /// The host's refusals, indexed by [`Flow::kind`].
    refusals: [Refusal; 4],
}

/// The host's refusal of a kind of super-packets.
#[derive(Clone, Copy, Debug, Default)]
struct Refusal {
    /// The number of packets that still go alone.
    left: u32,
    /// The initial value of that number.
    alone: u32,
}

impl Refusal {
    /// Whether the next packet may begin a super-packet.
    fn over(&mut self) -> bool {
        let over = self.left == 0;
        self.left = self.left.saturating_sub(1);
        over
    }
}

impl Flow {
    /// The combination of TCP or UDP with IPv4 or IPv6. Kernels differ in which of these they take.
    fn kind(self) -> usize {
        usize::from(self.tcp) << 1 | usize::from(self.v4)
    }
}

impl Coalescer {
    /// Groups `packets`. The groups are in the order of their first packets, and packets of one flow stay in order. No
    /// byte is changed.
    pub fn group(&mut self, slab: &[u8], packets: &[Span]) {
        self.groups.clear();
        self.open.clear();
        self.next.clear();
        self.next.resize(packets.len(), usize::MAX);
        for i in 0..packets.len() {
            self.add(slab, packets, i);
        }
    }

    /// The groups of the last batch.
    pub fn groups(&self) -> &[Group] {
        &self.groups
    }

    /// The packets of a group, in order.
    pub fn members(&self, group: &Group) -> impl Iterator<Item = usize> {
        std::iter::successors(Some(group.first), |&i| Some(self.next[i])).take(group.count)
    }

    /// Records that the host refused this group and took its packets singly. The next packets of this kind go alone,
    /// twice as many as the last time.
    pub fn refused(&mut self, group: &Group) {
        let Some(refusal) = group.flow.map(|flow| &mut self.refusals[flow.kind()]) else { return };
        // Further refusals in the same batch contain nothing new.
        if refusal.left == 0 {
            refusal.alone = (refusal.alone * 2).clamp(ALONE, ALONE_MAX);
            refusal.left = refusal.alone;
        }
    }

    /// Records that the host took this group.
    pub fn taken(&mut self, group: &Group) {
        if let (Some(flow), 2..) = (group.flow, group.count) {
            self.refusals[flow.kind()].alone = 0;
        }
    }

    fn add(&mut self, slab: &[u8], packets: &[Span], i: usize) {
        let packet = bytes(slab, packets[i]);
        let Some(segment) = Segment::parse(packet) else {
            // A fragment, or a packet with IP options, may belong to any flow, so no packet may overtake it.
            self.open.clear();
            return self.groups.push(Group::single(i, packet.len()));
        };
        let same_flow = |&at: &usize| {
            let group = &self.groups[at];
            group.flow == Some(segment.flow) && same_ends(bytes(slab, packets[group.first]), packet, segment.flow)
        };
        if let Some(place) = self.open.iter().position(same_flow) {
            let at = self.open[place];
            let group = self.groups[at];
            if segment.joins && self.continues(slab, packets, &group, &segment, packet) {
                let group = &mut self.groups[at];
                self.next[group.last] = i;
                group.last = i;
                group.count += 1;
                let payload = packet.len() - segment.headers;
                group.len += payload;
                group.psh |= segment.psh;
                if segment.psh || payload < group.gso_size || group.count == MAX_SEGMENTS {
                    self.open.swap_remove(place);
                }
                return;
            }
            // Later packets must not overtake this one.
            self.open.swap_remove(place);
        }
        let opens = segment.joins && !segment.psh && self.refusals[segment.flow.kind()].over();
        self.groups.push(Group {
            headers: segment.headers,
            gso_size: packet.len() - segment.headers,
            flow: Some(segment.flow),
            psh: segment.psh,
            ..Group::single(i, packet.len())
        });
        if opens {
            if self.open.len() == OPEN_FLOWS {
                self.open.remove(0);
            }
            self.open.push(self.groups.len() - 1);
        }
    }

    /// Whether `packet`, which is of the same flow, directly continues `group`, and both are intact.
    fn continues(&self, slab: &[u8], packets: &[Span], group: &Group, segment: &Segment, packet: &[u8]) -> bool {
        let first = bytes(slab, packets[group.first]);
        let payload = packet.len() - segment.headers;
        let Flow { tcp, v4, l4 } = segment.flow;
        let same_ip = if v4 {
            // Compares type of service, do-not-fragment and TTL. The identification matters only where fragmentation
            // may happen.
            let follows = get16(packet, 4) == get16(first, 4).wrapping_add(group.count as u16);
            first[1] == packet[1] && first[6..9] == packet[6..9] && (first[6] & 0x40 != 0 || follows)
        } else {
            // Compares traffic class, flow label and hop limit.
            first[..4] == packet[..4] && first[7] == packet[7]
        };
        let same_tcp = || {
            let (first, packet) = (&first[l4..group.headers], &packet[l4..segment.headers]);
            let seq = get32(first, 4).wrapping_add((group.len - group.headers) as u32);
            // Compares sequence and acknowledgement, data offset, window and options. `Segment::parse` has checked the
            // flags.
            get32(packet, 4) == seq
                && first[8..13] == packet[8..13]
                && first[14..16] == packet[14..16]
                && first[20..] == packet[20..]
        };
        group.headers == segment.headers
            && payload <= group.gso_size
            && group.len + payload <= MAX_LEN
            && same_ip
            && (!tcp || same_tcp())
            && (group.count > 1 || intact(first, segment.flow))
            && intact(packet, segment.flow)
    }
}

impl Group {
    fn single(i: usize, len: usize) -> Self {
        Self { first: i, last: i, count: 1, headers: len, gso_size: 0, len, psh: false, flow: None }
    }

    /// Turns the headers of `first`, the group's first packet, into the headers of the group. Returns the virtio-net
    /// header that precedes it on a TUN.
    pub fn finish(&self, first: &mut [u8]) -> VnetHeader {
        let (Some(Flow { tcp, v4, l4 }), 2..) = (self.flow, self.count) else { return VnetHeader::default() };
        let addresses = if v4 {
            put16(first, 2, self.len as u16);
            put16(first, 10, 0);
            let sum = checksum::sum(&first[..l4]);
            put16(first, 10, !sum);
            12..20
        } else {
            put16(first, 4, (self.len - l4) as u16);
            8..40
        };
        let (protocol, field) = if tcp { (TCP, TCP_CHECKSUM) } else { (UDP, UDP_CHECKSUM) };
        let pseudo = checksum::pseudo(&first[addresses], protocol, self.len - l4);
        put16(first, l4 + field, pseudo);
        if tcp {
            first[l4 + 13] |= if self.psh { PSH } else { 0 };
        } else {
            put16(first, l4 + 4, (self.len - l4) as u16);
        }
        VnetHeader {
            flags: VnetHeader::NEEDS_CSUM,
            gso_type: match (tcp, v4) {
                (true, true) => VnetHeader::TCPV4,
                (true, false) => VnetHeader::TCPV6,
                (false, _) => VnetHeader::UDP_L4,
            },
            hdr_len: self.headers as u16,
            gso_size: self.gso_size as u16,
            csum_start: l4 as u16,
            csum_offset: field as u16,
        }
    }

    /// Undoes the changes of [`finish`](Self::finish), for a host that refuses the group. The result is exact, because
    /// the checksums of the first packet were right, except that the two zeroes of ones' complement may be exchanged.
    pub fn restore(&self, first: &mut [u8]) {
        let (Some(Flow { tcp, v4, l4 }), 2..) = (self.flow, self.count) else { return };
        let len = first.len();
        let addresses = if v4 {
            put16(first, 2, len as u16);
            put16(first, 10, 0);
            let sum = checksum::sum(&first[..l4]);
            put16(first, 10, !sum);
            12..20
        } else {
            put16(first, 4, (len - l4) as u16);
            8..40
        };
        let (protocol, field) = if tcp { (TCP, TCP_CHECKSUM) } else { (UDP, UDP_CHECKSUM) };
        if tcp {
            // A packet with PSH joins others only as their last.
            first[l4 + 13] &= !PSH;
        } else {
            put16(first, l4 + 4, (len - l4) as u16);
        }
        put16(first, l4 + field, checksum::pseudo(&first[addresses], protocol, len - l4));
        let sum = checksum::sum(&first[l4..]);
        put16(first, l4 + field, checksum::inverted(sum));
    }
}

impl Segment {
    /// Parses a packet. `None` means that it goes alone: it is not TCP or UDP directly after a plain IP header, or it
    /// contradicts itself.
    fn parse(packet: &[u8]) -> Option<Self> {
        let (v4, l4, protocol) = match packet.first()? >> 4 {
            // Options and fragments are excluded, because more fields than `headers` would have to agree.
            4 if packet.len() >= 20
                && packet[0] == 0x45
                && usize::from(get16(packet, 2)) == packet.len()
                && get16(packet, 6) & 0xbfff == 0 =>
            {
                (true, 20, packet[9])
            }
            6 if packet.len() >= 40 && usize::from(get16(packet, 4)) + 40 == packet.len() => (false, 40, packet[6]),
            _ => return None,
        };
        let transport = &packet[l4..];
        let (tcp, len, may_join, psh) = match protocol {
            TCP if transport.len() >= TCP_HEADER => {
                let flags = transport[13];
                let plain = flags & !PSH == ACK && transport[18..20] == [0, 0];
                (true, usize::from(transport[12] >> 4) * 4, plain, flags & PSH != 0)
            }
            // A checksum of zero means that there is none, so the packet cannot be verified.
            UDP if transport.len() >= UDP_HEADER => {
                let whole = usize::from(get16(transport, 4)) == transport.len();
                (false, UDP_HEADER, whole && get16(transport, UDP_CHECKSUM) != 0, false)
            }
            _ => return None,
        };
        if (tcp && len < TCP_HEADER) || transport.len() < len {
            return None;
        }
        let joins = may_join && transport.len() > len;
        Some(Self { flow: Flow { tcp, v4, l4 }, headers: l4 + len, joins, psh })
    }
}

fn bytes(slab: &[u8], span: Span) -> &[u8] {
    &slab[span.offset..span.offset + span.len]
}

/// Whether both packets have the same addresses and ports.
fn same_ends(a: &[u8], b: &[u8], Flow { v4, l4, .. }: Flow) -> bool {
    let addresses = if v4 { 12..20 } else { 8..40 };
    a[l4..l4 + 4] == b[l4..l4 + 4] && a[addresses.clone()] == b[addresses]
}

/// Whether the checksums of the IPv4 header and of TCP or UDP are right.
fn intact(packet: &[u8], Flow { tcp, v4, l4 }: Flow) -> bool {
    let addresses = if v4 { 12..20 } else { 8..40 };
    let pseudo = checksum::pseudo(&packet[addresses], if tcp { TCP } else { UDP }, packet.len() - l4);
    let header = !v4 || checksum::sum(&packet[..l4]) == 0xffff;
    header && checksum::add(pseudo, checksum::sum(&packet[l4..])) == 0xffff
}

#[cfg(test)]
mod tests {
    use super::{super::testing::Packet, *};
    use crate::offload::split;
    use proptest::prelude::*;

    /// Groups the packets, checks that every group splits into exactly its packets again, and returns the groups.
    fn run(packets: &[Vec<u8>]) -> Vec<Vec<usize>> {
        let (mut slab, mut spans) = (Vec::new(), Vec::new());
        for packet in packets {
            spans.push(Span { offset: slab.len() + 16, len: packet.len() });
            slab.extend([0xee; 16]);
            slab.extend(packet);
        }
        let mut coalescer = Coalescer::default();
        coalescer.group(&slab, &spans);
        let mut all = Vec::new();
        for group in coalescer.groups() {
            let members: Vec<_> = coalescer.members(group).collect();
            let mut whole = packets[members[0]].clone();
            let vnet = group.finish(&mut whole);
            let mut restored = whole.clone();
            group.restore(&mut restored);
            assert!(restored == packets[members[0]], "{members:?}");
            for &i in &members[1..] {
                whole.extend(&packets[i][group.headers..]);
            }
            assert!(whole.len() <= MAX_LEN && members.len() <= MAX_SEGMENTS);
            assert_eq!(whole.len(), group.len);
            let mut area = vec![0; 400_000];
            area[16..16 + whole.len()].copy_from_slice(&whole);
            let segments = split(&mut area, 16, whole.len(), vnet, 65_535).unwrap();
            let split: Vec<_> = segments.pieces().map(|at| area[at.offset..at.offset + at.len].to_vec()).collect();
            let expected: Vec<_> = members.iter().map(|&i| packets[i].clone()).collect();
            assert!(split == expected, "{members:?}");
            all.push(members);
        }
        all
    }

    fn flow(v4: bool, tcp: bool, options: usize, payload: usize) -> Packet {
        let payload = (0..payload).map(|i| (i % 253) as u8).collect();
        Packet { v4, tcp, id: 65_000, seq: u32::MAX - 3_000, flags: 0x10, options, payload }
    }

    const KINDS: [(bool, bool); 4] = [(true, true), (true, false), (false, true), (false, false)];

    #[test]
    fn what_was_split_comes_together_again() {
        for (v4, tcp) in KINDS {
            let whole = flow(v4, tcp, 12, 60_000);
            let packets = whole.segments(1_000);
            assert_eq!(run(&packets), [(0..60).collect::<Vec<_>>()], "v4 {v4}, tcp {tcp}");
            let short_last = flow(v4, tcp, 0, 3_001).segments(1_000);
            assert_eq!(run(&short_last), [[0, 1, 2, 3]]);
        }
    }

    #[test]
    fn both_limits() {
        for (v4, tcp) in KINDS {
            let many = flow(v4, tcp, 0, 65 * 10).segments(10);
            assert_eq!(run(&many), [(0..64).collect(), vec![64]], "64 segments");
            let headers = flow(v4, tcp, 0, 0).headers();
            let fits = flow(v4, tcp, 0, 65_535 - headers).segments(32_000);
            assert_eq!(run(&fits), [[0, 1, 2]], "65,535 bytes");
            let mut over = flow(v4, tcp, 0, 65_535 - headers);
            over.payload.push(0);
            assert_eq!(run(&over.segments(32_000)), [vec![0, 1], vec![2]], "65,536 bytes");
        }
    }

    #[test]
    fn a_short_segment_and_a_push_end_a_super_packet() {
        let mut packets = flow(true, true, 12, 2_500).segments(1_000);
        let mut rest = flow(true, true, 12, 2_000);
        (rest.seq, rest.id) = (rest.seq.wrapping_add(2_500), rest.id + 3);
        packets.extend(rest.segments(1_000));
        assert_eq!(run(&packets), [vec![0, 1, 2], vec![3, 4]]);

        let mut pushed = flow(true, true, 12, 2_000);
        pushed.flags |= PSH;
        let mut packets = pushed.segments(1_000);
        (rest.seq, rest.id) = (pushed.seq.wrapping_add(2_000), pushed.id + 2);
        packets.extend(rest.segments(1_000));
        assert_eq!(run(&packets), [vec![0, 1], vec![2, 3]]);
    }

    #[test]
    fn interleaved_flows_are_put_together_each() {
        let (a, b) = (flow(true, true, 12, 3_000).segments(1_000), flow(false, false, 0, 3_000).segments(1_000));
        let mixed: Vec<_> = a.into_iter().zip(b).flat_map(|(a, b)| [a, b]).collect();
        assert_eq!(run(&mixed), [[0, 2, 4], [1, 3, 5]]);
    }

    /// Changes one byte, and corrects the checksums if `repair` says so.
    fn changed(packet: &[u8], at: usize, to: u8, repair: bool) -> Vec<u8> {
        let mut packet = packet.to_vec();
        packet[at] = to;
        if repair {
            let l4 = if packet[0] >> 4 == 4 { 20 } else { 40 };
            if l4 == 20 {
                put16(&mut packet, 10, 0);
                let sum = checksum::sum(&packet[..20]);
                put16(&mut packet, 10, !sum);
            }
            let (protocol, addresses) = if l4 == 20 { (packet[9], 12..20) } else { (packet[6], 8..40) };
            let field = l4 + if protocol == TCP { 16 } else { 6 };
            put16(&mut packet, field, 0);
            let pseudo = checksum::pseudo(&packet[addresses], protocol, packet.len() - l4);
            let sum = checksum::add(pseudo, checksum::sum(&packet[l4..]));
            // Ones' complement has two zeroes. This is the one that splitting writes.
            put16(&mut packet, field, if sum == 0xffff { sum } else { !sum });
        }
        packet
    }

    #[test]
    fn what_differs_stays_apart_and_nothing_overtakes_it() {
        // The offset and the new value of a byte in the second of four segments. The checksums stay right.
        let v4_tcp = [
            (1, 0, "type of service"),
            (6, 0, "fragments allowed"),
            (8, 63, "TTL"),
            (27, 0, "sequence"),
            (31, 0, "acknowledgement"),
            (33, 0x11, "FIN"),
            (33, 0x30, "URG"),
            (33, 0x50, "ECE"),
            (33, 0x90, "CWR"),
            (35, 0, "window"),
            (45, 99, "options"),
        ];
        for (at, to, what) in v4_tcp {
            let mut packets = flow(true, true, 12, 4_000).segments(1_000);
            packets[1] = changed(&packets[1], at, to, true);
            assert_eq!(run(&packets), [vec![0], vec![1], vec![2, 3]], "{what}");
        }
        for (at, to, what) in [(1, 0, "traffic class"), (3, 0, "flow label"), (7, 3, "hop limit")] {
            let mut packets = flow(false, false, 0, 4_000).segments(1_000);
            packets[1] = changed(&packets[1], at, to, true);
            assert_eq!(run(&packets), [vec![0], vec![1,], vec![2, 3]], "{what}");
        }
        for (at, to, what) in [(0, 0x46, "IP options"), (6, 0x60, "a fragment"), (7, 1, "a later fragment")] {
            let mut packets = flow(true, false, 0, 4_000).segments(1_000);
            packets[1] = changed(&packets[1], at, to, false);
            assert!(run(&packets).contains(&vec![1]), "{what}");
        }
        let mut packets = flow(false, true, 0, 3_000).segments(1_000);
        packets[1][6] = 60;
        assert!(run(&packets).contains(&vec![1]), "an extension header");
    }

    #[test]
    fn corrupt_packets_and_unsummed_ones_go_alone() {
        for (v4, tcp) in KINDS {
            let good = flow(v4, tcp, 0, 4_000).segments(1_000);
            for bad in 0..4 {
                let mut packets = good.clone();
                packets[bad] = changed(&good[bad], 700, !good[bad][700], false);
                assert!(run(&packets).contains(&vec![bad]), "{bad}: the host's stack must see the wrong checksum");
            }
        }
        let mut packets = flow(true, false, 0, 3_000).segments(1_000);
        for packet in &mut packets {
            put16(packet, 26, 0);
        }
        assert_eq!(run(&packets), [[0], [1], [2]]);
    }

    #[test]
    fn what_the_host_refuses_goes_alone_for_a_while_that_grows() {
        let [tcp, udp] = [true, false].map(|tcp| flow(true, tcp, 0, 2_000).segments(1_000));
        let spans = [Span { offset: 0, len: tcp[0].len() }, Span { offset: tcp[0].len(), len: tcp[1].len() }];
        let mut coalescer = Coalescer::default();
        let together = |coalescer: &mut Coalescer, packets: &[Vec<u8>], len: usize| {
            let spans = spans.map(|span| Span { offset: span.offset / tcp[0].len() * len, len });
            coalescer.group(&packets.concat(), &spans);
            coalescer.groups().len() == 1
        };
        for alone in [1_024, 2_048, 4_096] {
            assert!(together(&mut coalescer, &tcp, tcp[0].len()));
            let group = coalescer.groups()[0];
            coalescer.refused(&group);
            coalescer.refused(&group);
            for _ in 0..alone / 2 {
                assert!(!together(&mut coalescer, &tcp, tcp[0].len()));
                assert!(together(&mut coalescer, &udp, udp[0].len()), "another kind");
            }
        }
        assert!(together(&mut coalescer, &tcp, tcp[0].len()));
        let group = coalescer.groups()[0];
        coalescer.taken(&group);
        coalescer.refused(&group);
        for _ in 0..512 {
            assert!(!together(&mut coalescer, &tcp, tcp[0].len()));
        }
        assert!(together(&mut coalescer, &tcp, tcp[0].len()), "it had been taken");
    }

    proptest! {
        #[test]
        fn any_mixture_reaches_the_host_as_it_came(
            flows in proptest::collection::vec((0..4_usize, 0..4_usize, 1..6_000_usize, 1..1_500_usize, 0..64_u8), 1..6),
            order in proptest::collection::vec(0..6_usize, 0..80),
        ) {
            let mut queues: Vec<std::collections::VecDeque<_>> = flows.iter().enumerate().map(|(n, &(kind, options, len, size, flags))| {
                let (v4, tcp) = KINDS[kind];
                let mut packet = flow(v4, tcp, 4 * options, len);
                packet.flags = 0x10 | flags & 9;
                packet.segments(size.max(len / 60)).into_iter().map(|packet| changed(&packet, packet.len().min(23), n as u8, true)).collect()
            }).collect();
            let mut packets: Vec<Vec<u8>> = Vec::new();
            for at in order {
                let n = queues.len();
                packets.extend(queues[at % n].pop_front());
            }
            packets.extend(queues.into_iter().flatten());
            let groups = run(&packets);
            let mut all: Vec<_> = groups.concat();
            all.sort_unstable();
            prop_assert_eq!(all, (0..packets.len()).collect::<Vec<_>>());
        }

        #[test]
        fn no_packets_panic(packets in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..100), 0..20)) {
            run(&packets);
        }
    }
}
