//! Packets from the host: one super-packet is split in place into the segments that the wire carries.
use super::{
    CWR, FIN, PSH, TCP_CHECKSUM, TCP_HEADER, UDP_CHECKSUM, UDP_HEADER, VnetHeader, checksum, get16, get32, put16,
};
use crate::{HEADROOM, Segments};

/// The length of a Poly1305 tag in bytes. A tag follows every text.
const TAG: usize = 16;

/// The virtio-net header contradicts its packet, or requires something that was not offered to the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a packet from the TUN contradicts its virtio-net header")]
pub struct Malformed;

/// Splits the `len` bytes at `offset` into segments, with complete headers and checksums. The first segment begins at
/// `offset`.
///
/// The stride of the segments is the sum of the header, the text padded to 16 bytes (but not beyond `mtu`) and the tag.
/// Sealed datagrams therefore lie end to end, and one system call sends them. Each payload moves once, the last one
/// first. Every payload moves towards the end, over bytes that have been moved already.
///
/// # Errors
/// [`Malformed`], also when `slab` is too short for the segments. The bytes at `offset` are then unspecified.
pub fn split(slab: &mut [u8], offset: usize, len: usize, vnet: VnetHeader, mtu: usize) -> Result<Segments, Malformed> {
    let packet = slab.get_mut(offset..offset + len).ok_or(Malformed)?;
    if vnet.gso_type == VnetHeader::NONE {
        if vnet.flags & VnetHeader::NEEDS_CSUM != 0 {
            complete_checksum(packet, vnet)?;
        }
        return Ok(Segments { offset, stride: stride(len, mtu), count: 1, len, last_len: len });
    }
    let super_packet = SuperPacket::parse(packet, vnet)?;
    let SuperPacket { headers, gso_size, .. } = super_packet;
    let payload = len - headers;
    let count = payload.div_ceil(gso_size).max(1);
    let full = headers + gso_size.min(payload);
    let last_len = headers + payload - (count - 1) * gso_size;
    let stride = stride(full, mtu);
    // The padding and the tag after the last text must fit, too.
    if slab.len() < offset + count * stride {
        return Err(Malformed);
    }
    for i in (0..count).rev() {
        let len = if i + 1 == count { last_len } else { full };
        let (from, to) = (offset + headers + i * gso_size, offset + i * stride);
        if i > 0 {
            slab.copy_within(from..from + len - headers, to + headers);
            slab.copy_within(offset..offset + headers, to);
        }
        super_packet.complete(&mut slab[to..to + len], i, i + 1 == count);
    }
    Ok(Segments { offset, stride, count, len: full, last_len })
}

/// The distance in bytes from one text of `len` bytes to the next, when both are sealed.
fn stride(len: usize, mtu: usize) -> usize {
    HEADROOM + len.next_multiple_of(16).min(mtu.max(len)) + TAG
}

/// Completes the checksum of a single packet. The host left it to its network card, which is this program.
fn complete_checksum(packet: &mut [u8], vnet: VnetHeader) -> Result<(), Malformed> {
    let start = usize::from(vnet.csum_start);
    let field = start + usize::from(vnet.csum_offset);
    if packet.len() < field + 2 {
        return Err(Malformed);
    }
    // The field already holds the sum of the pseudo-header, so the sum over the field includes it.
    let sum = checksum::sum(&packet[start..]);
    put16(packet, field, checksum::inverted(sum));
    Ok(())
}

/// The values that all segments have in common. They are read once, because the first segment's header is changed
/// before the other segments are written.
#[derive(Clone, Copy)]
struct SuperPacket {
    v4: bool,
    tcp: bool,
    /// The start of the TCP or UDP header. With IPv6, extension headers may precede it.
    l4: usize,
    /// The length of all headers in bytes.
    headers: usize,
    gso_size: usize,
    /// The sum of the pseudo-header without the length. It comes from the kernel, because with an IPv6 routing header
    /// the addresses in the sum are not those of the IP header.
    pseudo: u16,
    id: u16,
    seq: u32,
    tcp_flags: u8,
}

impl SuperPacket {
    fn parse(packet: &[u8], vnet: VnetHeader) -> Result<Self, Malformed> {
        let (tcp, version) = match vnet.gso_type & !VnetHeader::ECN {
            VnetHeader::TCPV4 => (true, Some(4)),
            VnetHeader::TCPV6 => (true, Some(6)),
            VnetHeader::UDP_L4 => (false, None),
            _ => return Err(Malformed),
        };
        let l4 = usize::from(vnet.csum_start);
        let v4 = match packet.first().ok_or(Malformed)? >> 4 {
            4 => true,
            6 => false,
            _ => return Err(Malformed),
        };
        let field = if tcp { TCP_CHECKSUM } else { UDP_CHECKSUM };
        let min_l4 = if tcp { TCP_HEADER } else { UDP_HEADER };
        let ip_fits = if v4 { l4 == usize::from(packet[0] & 0xf) * 4 && l4 >= 20 } else { l4 >= 40 };
        if version.is_some_and(|version| version != packet[0] >> 4)
            || vnet.flags & VnetHeader::NEEDS_CSUM == 0
            || vnet.gso_size == 0
            || usize::from(vnet.csum_offset) != field
            || !ip_fits
            || packet.len() < l4 + min_l4
        {
            return Err(Malformed);
        }
        let headers = l4 + if tcp { usize::from(packet[l4 + 12] >> 4) * 4 } else { UDP_HEADER };
        if headers < l4 + min_l4 || packet.len() < headers {
            return Err(Malformed);
        }
        // The sum includes the length of the super-packet. Adding the complement subtracts it.
        let total = u16::try_from(packet.len() - l4).map_err(|_| Malformed)?;
        Ok(Self {
            v4,
            tcp,
            l4,
            headers,
            gso_size: vnet.gso_size.into(),
            pseudo: checksum::add(get16(packet, l4 + field), !total),
            id: get16(packet, 4),
            seq: if tcp { get32(packet, l4 + 4) } else { 0 },
            tcp_flags: if tcp { packet[l4 + 13] } else { 0 },
        })
    }

    /// Turns the copied headers into the headers of segment `i`.
    fn complete(&self, segment: &mut [u8], i: usize, last: bool) {
        let len = segment.len();
        // None of these conversions loses bits: a segment is no longer than the super-packet, which had at most 65,535
        // bytes.
        if self.v4 {
            put16(segment, 2, len as u16);
            put16(segment, 4, self.id.wrapping_add(i as u16));
            put16(segment, 10, 0);
            let sum = checksum::sum(&segment[..self.l4]);
            put16(segment, 10, !sum);
        } else {
            put16(segment, 4, (len - 40) as u16);
        }
        let l4 = &mut segment[self.l4..];
        let l4_len = l4.len() as u16;
        let field = if self.tcp {
            let seq = self.seq.wrapping_add((i * self.gso_size) as u32);
            l4[4..8].copy_from_slice(&seq.to_be_bytes());
            let only_last = if last { 0 } else { FIN | PSH };
            // RFC 3168 §6.1.2: one reduction of the window is answered by one CWR.
            let only_first = if i == 0 { 0 } else { CWR };
            l4[13] = self.tcp_flags & !only_last & !only_first;
            TCP_CHECKSUM
        } else {
            put16(l4, 4, l4_len);
            UDP_CHECKSUM
        };
        put16(l4, field, checksum::add(self.pseudo, l4_len));
        let sum = checksum::sum(l4);
        put16(l4, field, checksum::inverted(sum));
    }
}

#[cfg(test)]
mod tests {
    use super::{super::testing::Packet, *};
    use proptest::prelude::*;

    const SLAB: usize = 400_000;

    fn vnet(packet: &Packet, gso_size: usize) -> VnetHeader {
        VnetHeader {
            flags: VnetHeader::NEEDS_CSUM,
            gso_type: match (packet.tcp, packet.v4) {
                (true, true) => VnetHeader::TCPV4 | VnetHeader::ECN,
                (true, false) => VnetHeader::TCPV6,
                _ => VnetHeader::UDP_L4,
            },
            hdr_len: 0,
            gso_size: gso_size as u16,
            csum_start: packet.l4() as u16,
            csum_offset: if packet.tcp { 16 } else { 6 },
        }
    }

    fn run(bytes: &[u8], vnet: VnetHeader, mtu: usize) -> Result<(Segments, Vec<Vec<u8>>), Malformed> {
        let mut slab = vec![0xee; SLAB];
        slab[HEADROOM..HEADROOM + bytes.len()].copy_from_slice(bytes);
        let segments = split(&mut slab, HEADROOM, bytes.len(), vnet, mtu)?;
        let pieces = segments.pieces().map(|at| slab[at.offset..at.offset + at.len].to_vec()).collect();
        Ok((segments, pieces))
    }

    pub(super) fn packets(payload: std::ops::Range<usize>) -> impl Strategy<Value = Packet> {
        let payload = proptest::collection::vec(any::<u8>(), payload);
        (any::<(bool, bool, u16, u32, u8)>(), 0..11_usize, payload).prop_map(|(fields, options, payload)| {
            let (v4, tcp, id, seq, flags) = fields;
            Packet { v4, tcp, id, seq, flags, options: 4 * options, payload }
        })
    }

    proptest! {
        #[test]
        fn splitting_is_segmenting_one_by_one(packet in packets(1..9_000), size in 100..3_000_usize, mtu in 68..3_100_usize) {
            let (segments, pieces) = run(&packet.with_partial_checksum(), vnet(&packet, size), mtu).unwrap();
            prop_assert_eq!(pieces, packet.segments(size));
            let text = segments.stride - 32;
            prop_assert!(text >= segments.len && text < segments.len + 16 && (text <= mtu || text == segments.len));
        }

        #[test]
        fn single_checksums_are_completed(packet in packets(0..2_000)) {
            let vnet = VnetHeader { gso_type: VnetHeader::NONE, gso_size: 0, ..vnet(&packet, 0) };
            let (_, pieces) = run(&packet.with_partial_checksum(), vnet, 1_420).unwrap();
            prop_assert_eq!(pieces, [packet.to_bytes()]);
        }

        #[test]
        fn no_header_and_no_packet_panics(
            bytes in proptest::collection::vec(any::<u8>(), 0..300), header: [u8; 10], kind in 0..7_u8, l4 in 0..80_u16,
        ) {
            let any = VnetHeader::parse(&header);
            let _ = run(&bytes, any, 1_420);
            let _ = run(&bytes, VnetHeader { gso_type: kind, flags: 1, csum_start: l4, ..any }, 1_420);
            for csum_offset in [6, 16] {
                let _ = run(&bytes, VnetHeader { gso_type: kind, flags: 1, csum_start: l4, csum_offset, ..any }, 1_420);
            }
        }
    }

    #[test]
    fn the_longest_packets() {
        for (v4, tcp) in [(true, true), (true, false), (false, true), (false, false)] {
            let mut packet =
                Packet { v4, tcp, id: 65_530, seq: u32::MAX - 9, flags: 0x99, options: 12, payload: vec![] };
            packet.payload = (0..65_535 - packet.headers()).map(|i| i as u8).collect();
            for size in [packet.payload.len(), packet.payload.len() - 1, 1_368, 1_023, 536] {
                let (_, pieces) = run(&packet.with_partial_checksum(), vnet(&packet, size), 1_420).unwrap();
                assert!(pieces == packet.segments(size), "v4 {v4}, tcp {tcp}, {size}");
            }
            assert_eq!(run(&packet.with_partial_checksum(), vnet(&packet, 1), 1_420), Err(Malformed), "no room");
        }
    }

    /// The kernel tells the start of the TCP header. Everything before it is copied.
    #[test]
    fn ipv6_extension_headers_are_carried_in_every_segment() {
        let plain = Packet { v4: false, tcp: true, id: 0, seq: 7, flags: 0x18, options: 0, payload: vec![5; 2_500] };
        let extend = |mut packet: Vec<u8>| {
            let len = get16(&packet, 4) + 8;
            put16(&mut packet, 4, len);
            packet[6] = 60;
            packet.splice(40..40, [6, 0, 1, 4, 0, 0, 0, 0]);
            packet
        };
        let vnet = VnetHeader { csum_start: 48, ..vnet(&plain, 1_000) };
        let (_, pieces) = run(&extend(plain.with_partial_checksum()), vnet, 1_420).unwrap();
        assert_eq!(pieces, plain.segments(1_000).into_iter().map(extend).collect::<Vec<_>>());
    }
}
