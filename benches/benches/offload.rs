//! Super-packets: the cost of splitting those that the host sends, and of coalescing packets that it receives.
//!
//! ```text
//! cargo bench -p rustguard-benches --bench offload
//! ```
//!
//! Throughput counts the bytes of the packets as the host sees them. It does not include system calls.
#![forbid(unsafe_code)]

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use rustguard_tun::{
    HEADROOM, Span,
    offload::{Coalescer, VnetHeader, split},
};
use std::{
    hint::black_box,
    time::{Duration, Instant},
};

/// Room for the sealed segments of one super-packet.
const SLAB: usize = 128 << 10;
/// TCP payload at an MTU of 1,420 (and 12 bytes of options).
const SEGMENT: usize = 1_368;
const MTU: usize = 1_420;

/// A packet as the kernel hands it over for segmentation. Its checksum covers only the pseudo-header.
struct SuperPacket {
    bytes: Vec<u8>,
    vnet: VnetHeader,
}

/// An IPv4 packet from 10.0.0.1 to 10.0.0.2, with the number of the flow as source port.
fn super_packet(tcp: bool, flow: u16, payload: usize, segment: usize) -> SuperPacket {
    let (protocol, headers) = if tcp { (6, 20 + 32) } else { (17, 20 + 8) };
    let len = headers + payload;
    let l4_len = u16::try_from(len - 20).expect("it fits into a packet");
    let mut bytes = vec![0x45, 0];
    bytes.extend((l4_len + 20).to_be_bytes());
    bytes.extend([0, 0, 0x40, 0, 64, protocol, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    let sum = words(&bytes);
    bytes[10..12].copy_from_slice(&(!sum).to_be_bytes());
    bytes.extend(flow.to_be_bytes());
    bytes.extend([0x14, 0x51]);
    let pseudo = words(&[&bytes[12..20], &[0, protocol], &l4_len.to_be_bytes()].concat());
    if tcp {
        // Sequence, acknowledgement, header of 32 bytes, ACK, window, checksum, urgent pointer, padding and timestamps.
        bytes.extend([0, 0, 0, 1, 0, 0, 0, 1, 0x80, 0x10, 1, 0]);
        bytes.extend(pseudo.to_be_bytes());
        bytes.extend([0, 0, 1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 1]);
    } else {
        bytes.extend(l4_len.to_be_bytes());
        bytes.extend(pseudo.to_be_bytes());
    }
    bytes.extend((0..payload).map(|i| (i % 251) as u8));
    let single = payload <= segment;
    let vnet = VnetHeader {
        flags: VnetHeader::NEEDS_CSUM,
        gso_type: match (single, tcp) {
            (true, _) => VnetHeader::NONE,
            (false, true) => VnetHeader::TCPV4,
            (false, false) => VnetHeader::UDP_L4,
        },
        hdr_len: 0,
        gso_size: if single { 0 } else { u16::try_from(segment).expect("a segment fits into a packet") },
        csum_start: 20,
        csum_offset: if tcp { 16 } else { 6 },
    };
    SuperPacket { bytes, vnet }
}

/// The Internet checksum (RFC 1071), not inverted.
fn words(bytes: &[u8]) -> u16 {
    let sum = bytes.chunks_exact(2).fold(0, |sum, word| sum + u32::from(u16::from_be_bytes([word[0], word[1]])));
    let folded = (sum & 0xffff) + (sum >> 16);
    u16::try_from(folded).expect("so few words carry once")
}

fn splitting(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("split");
    for (name, tcp) in [("a TCP super-packet", true), ("a UDP super-packet", false)] {
        let SuperPacket { bytes, vnet } = super_packet(tcp, 1, 47 * SEGMENT, SEGMENT);
        group.throughput(Throughput::Bytes(bytes.len() as u64));
        let mut slab = vec![0; SLAB];
        group.bench_function(name, |bencher| {
            bencher.iter_custom(|iterations| {
                let mut total = Duration::ZERO;
                for _ in 0..iterations {
                    // `split` works in place, so the packet has to be copied into the slab each time.
                    slab[HEADROOM..HEADROOM + bytes.len()].copy_from_slice(&bytes);
                    let start = Instant::now();
                    let segments = split(black_box(&mut slab), HEADROOM, bytes.len(), vnet, MTU);
                    total += start.elapsed();
                    assert_eq!(segments.map(|segments| segments.count), Ok(47));
                }
                total
            });
        });
    }
    group.finish();
}

/// Packets as they leave the tunnel: complete, with checksums, and not adjacent in the slab.
#[derive(Default)]
struct Batch {
    slab: Vec<u8>,
    packets: Vec<Span>,
}

impl Batch {
    /// Adds the packets of one flow after those of the previous one.
    fn add(&mut self, SuperPacket { bytes, vnet }: &SuperPacket) {
        let at = self.slab.len();
        self.slab.resize(at + SLAB, 0);
        self.slab[at + HEADROOM..at + HEADROOM + bytes.len()].copy_from_slice(bytes);
        let segments = split(&mut self.slab, at + HEADROOM, bytes.len(), *vnet, MTU).expect("it was made to be split");
        self.packets.extend(segments.pieces());
        self.slab.truncate(at + HEADROOM + segments.count * segments.stride);
    }

    /// The same packets, in an order in which the `flows` alternate.
    fn interleaved(mut self, flows: usize) -> Self {
        let each = self.packets.len() / flows;
        self.packets = (0..self.packets.len()).map(|i| self.packets[i % flows * each + i / flows]).collect();
        self
    }

    /// Coalesces the packets and creates the headers. Returns the number of writes that this would take.
    fn coalesce(&self, coalescer: &mut Coalescer) -> usize {
        coalescer.group(&self.slab, &self.packets);
        for group in coalescer.groups() {
            // The headers are written into a copy, so that the packets do not change.
            let mut headers = [0; 128];
            let first = self.packets[group.first];
            let len = first.len.min(headers.len());
            headers[..len].copy_from_slice(&self.slab[first.offset..first.offset + len]);
            black_box(group.finish(&mut headers[..len]));
        }
        coalescer.groups().len()
    }
}

fn coalescing(criterion: &mut Criterion) {
    let mut one = Batch::default();
    one.add(&super_packet(true, 1, 47 * SEGMENT, SEGMENT));
    let mut four = Batch::default();
    let mut singles = Batch::default();
    for flow in 0..4 {
        four.add(&super_packet(true, flow, 16 * SEGMENT, SEGMENT));
    }
    for flow in 0..64 {
        singles.add(&super_packet(false, flow, 64, SEGMENT));
    }
    let mut group = criterion.benchmark_group("coalesce");
    let batches = [
        ("47 segments of a flow", one, 1),
        ("64 segments of 4 flows in turns", four.interleaved(4), 4),
        ("64 small packets of a flow each", singles, 64),
    ];
    for (name, batch, writes) in batches {
        let bytes: usize = batch.packets.iter().map(|packet| packet.len).sum();
        group.throughput(Throughput::Bytes(bytes as u64));
        let mut coalescer = Coalescer::default();
        assert_eq!(batch.coalesce(&mut coalescer), writes, "{name}");
        group.bench_function(name, |bencher| bencher.iter(|| black_box(&batch).coalesce(&mut coalescer)));
    }
    group.finish();
}

criterion_group!(offload, splitting, coalescing);
criterion_main!(offload);
