//! Super-packets: the kernel hands over many TCP or UDP segments as one packet, and accepts them in the same form.
//!
//! These are pure functions on bytes, without I/O. [`split()`] splits super-packets from the host. A [`Coalescer`]
//! joins packets to the host. [`Tun`](crate::tun::Tun) does both. Programs with a TUN of their own can use them
//! directly.
mod checksum;
mod coalesce;
mod split;
#[cfg(test)]
mod testing;

pub use coalesce::{Coalescer, Group, MAX_SEGMENTS};
pub use split::{Malformed, split};

/// The length in bytes of the header before every packet of a TUN with IFF_VNET_HDR.
pub const VNET_LEN: usize = 10;

/// IP protocol numbers.
const TCP: u8 = 6;
const UDP: u8 = 17;
/// The offset of the checksum in a TCP header and in a UDP header, in bytes.
const TCP_CHECKSUM: usize = 16;
const UDP_CHECKSUM: usize = 6;
/// The length of a UDP header, and the minimum length of a TCP header, in bytes.
const UDP_HEADER: usize = 8;
const TCP_HEADER: usize = 20;
/// TCP flags, in byte 13.
const FIN: u8 = 0x01;
const PSH: u8 = 0x08;
const ACK: u8 = 0x10;
const CWR: u8 = 0x80;

/// `struct virtio_net_hdr` (include/uapi/linux/virtio_net.h), in the byte order of the host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VnetHeader {
    /// [`NEEDS_CSUM`](Self::NEEDS_CSUM): the checksum field holds only the sum of the pseudo-header.
    pub flags: u8,
    /// The kind of segments in a super-packet.
    pub gso_type: u8,
    /// The length of all headers in bytes. It is only a hint: the kernel does not keep to it when it writes packets.
    pub hdr_len: u16,
    /// The payload of each segment in bytes.
    pub gso_size: u16,
    /// The start of the checksummed part: the TCP or UDP header.
    pub csum_start: u16,
    /// The offset of the checksum in that part.
    pub csum_offset: u16,
}

impl VnetHeader {
    /// The only flag that matters here (VIRTIO_NET_HDR_F_NEEDS_CSUM).
    pub const NEEDS_CSUM: u8 = 1;
    /// No super-packet (VIRTIO_NET_HDR_GSO_NONE).
    pub const NONE: u8 = 0;
    /// TCP segments over IPv4.
    pub const TCPV4: u8 = 1;
    /// TCP segments over IPv6.
    pub const TCPV6: u8 = 4;
    /// UDP datagrams, each with a header of its own, over either IP.
    pub const UDP_L4: u8 = 5;
    /// A flag in addition to the type: the first segment carries CWR.
    pub const ECN: u8 = 0x80;

    /// Reads the header from the bytes before a packet.
    pub fn parse(bytes: &[u8; VNET_LEN]) -> Self {
        let [flags, gso_type, rest @ ..] = *bytes;
        let half = |i: usize| u16::from_ne_bytes([rest[2 * i], rest[2 * i + 1]]);
        Self { flags, gso_type, hdr_len: half(0), gso_size: half(1), csum_start: half(2), csum_offset: half(3) }
    }

    /// The bytes that precede the packet.
    pub fn to_bytes(self) -> [u8; VNET_LEN] {
        let Self { flags, gso_type, hdr_len, gso_size, csum_start, csum_offset } = self;
        let mut bytes = [0; VNET_LEN];
        (bytes[0], bytes[1]) = (flags, gso_type);
        for (to, half) in bytes[2..].chunks_exact_mut(2).zip([hdr_len, gso_size, csum_start, csum_offset]) {
            to.copy_from_slice(&half.to_ne_bytes());
        }
        bytes
    }
}

fn get16(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

fn get32(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn put16(bytes: &mut [u8], at: usize, value: u16) {
    bytes[at..at + 2].copy_from_slice(&value.to_be_bytes());
}
