//! Super-packets.
use rustguard_tun::{
    HEADROOM, Span,
    offload::{Coalescer, VNET_LEN, VnetHeader, split},
};

/// Room for the largest number of segments that the input can cause.
const SLAB: usize = 512 << 10;
const MTU: usize = 1_420;

/// Any header before any packet is either split or refused. Packets that are coalesced split into exactly the same
/// packets again.
pub fn offload(input: &[u8]) {
    if let Some((header, packet)) = input.split_first_chunk::<VNET_LEN>()
        && let Some(pieces) = pieces(packet, VnetHeader::parse(header))
    {
        put_together(&pieces);
    }
    // The input is read a second time as packets, each after its length.
    let (mut packets, mut rest) = (Vec::new(), input);
    while let [len, tail @ ..] = rest {
        let (packet, tail) = tail.split_at(usize::from(*len).min(tail.len()));
        packets.push(packet.to_vec());
        rest = tail;
    }
    put_together(&packets);
}

fn pieces(packet: &[u8], vnet: VnetHeader) -> Option<Vec<Vec<u8>>> {
    let mut slab = vec![0; SLAB];
    slab[HEADROOM..HEADROOM + packet.len()].copy_from_slice(packet);
    let segments = split(&mut slab, HEADROOM, packet.len(), vnet, MTU).ok()?;
    Some(segments.pieces().map(|at| slab[at.offset..at.offset + at.len].to_vec()).collect())
}

fn put_together(packets: &[Vec<u8>]) {
    let (mut slab, mut spans) = (Vec::new(), Vec::new());
    for packet in packets {
        spans.push(Span { offset: slab.len(), len: packet.len() });
        slab.extend(packet);
    }
    let mut coalescer = Coalescer::default();
    coalescer.group(&slab, &spans);
    let mut seen = 0;
    for group in coalescer.groups() {
        let members: Vec<usize> = coalescer.members(group).collect();
        seen += members.len();
        let mut whole = packets[members[0]].clone();
        let vnet = group.finish(&mut whole);
        for &i in &members[1..] {
            whole.extend(&packets[i][group.headers..]);
        }
        let expected: Vec<_> = members.iter().map(|&i| packets[i].clone()).map(without_identification).collect();
        let again = pieces(&whole, vnet).map(|pieces| pieces.into_iter().map(without_identification).collect());
        assert_eq!(again, Some(expected), "{vnet:?}");
    }
    assert_eq!(seen, packets.len(), "each packet is in one group");
}

/// Removes the identification of a packet that may not be fragmented. It has no meaning (RFC 6864, section 4.1), and
/// splitting sets a new one.
fn without_identification(mut packet: Vec<u8>) -> Vec<u8> {
    if packet.len() >= 20 && packet[0] >> 4 == 4 && packet[6] & 0x40 != 0 {
        packet[4..6].fill(0);
        packet[10..12].fill(0);
    }
    packet
}
