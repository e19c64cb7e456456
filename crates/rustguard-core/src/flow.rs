//! Which flow a packet belongs to: packets of one flow must not overtake each other, and all take the same way.
use crate::packet::{IPV4_HEADER_LEN, IPV6_HEADER_LEN, IpHead};
use core::net::IpAddr;

/// Protocols whose header begins with two ports.
const TCP: u8 = 6;
const UDP: u8 = 17;
const DCCP: u8 = 33;
const SCTP: u8 = 132;
const UDP_LITE: u8 = 136;

/// The transport protocol, and the source and destination port if the packet has them. Fragments count as without
/// ports, since only the first fragment of a packet has them (RFC 791, section 3.2). IPv6 extension headers are not
/// followed.
#[inline]
fn transport(packet: &[u8]) -> Option<(u8, Option<&[u8; 4]>)> {
    let (protocol, at) = match packet.first()? >> 4 {
        6 => (*packet.get(6)?, Some(IPV6_HEADER_LEN)),
        _ => {
            let header = packet.first_chunk::<IPV4_HEADER_LEN>()?;
            let fragment = u16::from_be_bytes([header[6], header[7]]) & 0x3fff != 0;
            (header[9], (!fragment).then_some(usize::from(header[0] & 0x0f) * 4))
        }
    };
    let ports = match protocol {
        TCP | UDP | DCCP | SCTP | UDP_LITE => at.and_then(|at| packet.get(at..)).and_then(<[u8]>::first_chunk),
        _ => None,
    };
    Some((protocol, ports))
}

/// A hash of addresses, protocol and ports. All fragments of a packet have the same hash.
pub fn hash(packet: &[u8], head: &IpHead) -> u64 {
    let (protocol, ports) = transport(packet).unwrap_or_default();
    let ports = ports.map_or(0, |ports| u32::from_be_bytes(*ports));
    let fold = |address: IpAddr| match address {
        IpAddr::V4(address) => u64::from(address.to_bits()),
        IpAddr::V6(address) => (address.to_bits() >> 64) as u64 ^ (address.to_bits() as u64).rotate_left(29),
    };
    // NextHops::pick does the rest of the mixing; here it is enough that no two inputs cancel each other.
    let mut hash = fold(head.source).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    hash = (hash.rotate_left(31) ^ fold(head.destination)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (hash.rotate_left(31) ^ (u64::from(ports) << 8 | u64::from(protocol))).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// A hash of the two ends of a TCP or UDP flow, the same for both directions. `None` for all other packets, and for
/// fragments.
pub fn symmetric_hash(packet: &[u8]) -> Option<u32> {
    let (TCP | UDP, Some(ports)) = transport(packet)? else { return None };
    let addresses = match packet[0] >> 4 {
        4 => packet.get(12..20)?,
        6 => packet.get(8..40)?,
        _ => return None,
    };
    let word = |bytes: &[u8; 4]| u32::from_be_bytes(*bytes);
    let (source, destination) = addresses.split_at(addresses.len() / 2);
    let end = |address: &[u8]| address.as_chunks().0.iter().fold(0, |sum: u32, part| sum.rotate_left(5) ^ word(part));
    let port = |at: usize| u32::from(u16::from_be_bytes([ports[at], ports[at + 1]]));
    // Each end is mixed with its own port, and the two results are added: it does not matter which end is the source.
    let mix = |end: u32, port: u32| (end ^ port.rotate_left(16)).wrapping_mul(0x9e37_79b1);
    let sum = mix(end(source), port(0)).wrapping_add(mix(end(destination), port(2)));
    Some((sum ^ (sum >> 15)).wrapping_mul(0x85eb_ca77))
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use alloc::{vec, vec::Vec};

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
                let there = symmetric_hash(&build(TCP, [1, 2], [5201, port]));
                assert_eq!(there, symmetric_hash(&build(TCP, [2, 1], [port, 5201])));
                hashes.insert(there.expect("a flow") >> 24);
            }
            assert!(hashes.len() > 200, "they are spread: {}", hashes.len());
        }
    }

    #[test]
    fn what_has_no_ports_has_no_flow() {
        assert_eq!(symmetric_hash(&packet(1, [1, 2], [8, 9])), None, "ICMP");
        for (at, bits) in [(6, 0x20), (6, 0x01), (7, 1)] {
            let mut fragment = packet(UDP, [1, 2], [8, 9]);
            fragment[at] = bits;
            assert_eq!(symmetric_hash(&fragment), None, "a fragment");
        }
        let mut whole = packet(UDP, [1, 2], [8, 9]);
        whole[6] = 0x40;
        assert!(symmetric_hash(&whole).is_some(), "may not be fragmented, and is not");
        for len in 0..24 {
            assert_eq!(symmetric_hash(&whole[..len]), None, "cut");
            assert_eq!(symmetric_hash(&packet6(TCP, [1, 2], [8, 9])[..len]), None, "cut");
        }
    }

    #[test]
    fn a_flow_has_one_hash_and_others_have_others() {
        let mut first = packet(TCP, [1, 2], [0x0102, 0x0304]);
        first.resize(40, 0);
        first[3] = 40;
        let hash = |packet: &[u8]| hash(packet, &IpHead::parse(packet).expect("a packet"));
        let mut later = first.clone();
        (later[8], later[30]) = (1, 77);
        assert_eq!(hash(&first), hash(&later), "only addresses, protocol and ports count");
        for at in [9, 12, 16, 20, 23] {
            let mut other = first.clone();
            other[at] ^= 16;
            assert_ne!(hash(&first), hash(&other), "byte {at}");
        }
        // The first fragment has ports, the next one has payload in their place.
        let (mut one, mut two) = (first.clone(), first.clone());
        (one[6], two[7]) = (0x20, 1);
        two[20..24].fill(9);
        assert_eq!(hash(&one), hash(&two));
        let mut six = vec![0; 44];
        (six[0], six[5], six[6]) = (0x60, 4, UDP);
        let mut other = six.clone();
        other[43] = 1;
        assert_ne!(hash(&six), hash(&other));
        six.truncate(40);
        six[5] = 0;
        let _ = hash(&six);
    }
}
