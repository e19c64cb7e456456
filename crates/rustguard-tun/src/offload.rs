//! Super-packets: how the kernel hands over many TCP or UDP segments as one packet, and takes them back the same way.
//!
//! Pure functions on bytes, no I/O: [`split()`] is for what comes from the host, a [`Coalescer`] for what goes there.
//! [`Tun`](crate::tun::Tun) does both; they are of use by themselves to whoever brings a TUN of their own.
mod checksum;
mod coalesce;
mod split;
#[cfg(test)]
mod testing;

pub use coalesce::{Coalescer, Group, MAX_SEGMENTS};
pub use split::{Malformed, split};

/// Bytes of the header before every packet of a TUN with IFF_VNET_HDR.
pub const VNET_LEN: usize = 10;

/// IP protocol numbers.
const TCP: u8 = 6;
const UDP: u8 = 17;
/// Where the checksum lies in a TCP and a UDP header.
const TCP_CHECKSUM: usize = 16;
const UDP_CHECKSUM: usize = 6;
/// Bytes of a UDP header and the least of a TCP header.
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
    /// What a super-packet consists of.
    pub gso_type: u8,
    /// Bytes of all headers: a hint that the kernel does not keep to when it is the writer.
    pub hdr_len: u16,
    /// Bytes of payload per segment.
    pub gso_size: u16,
    /// Where the checksummed part begins: the TCP or UDP header.
    pub csum_start: u16,
    /// Where the checksum lies in it.
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
    /// A flag beside the type: the first segment carries CWR.
    pub const ECN: u8 = 0x80;

    /// From the bytes before a packet.
    pub fn parse(bytes: &[u8; VNET_LEN]) -> Self {
        let [flags, gso_type, rest @ ..] = *bytes;
        let half = |i: usize| u16::from_ne_bytes([rest[2 * i], rest[2 * i + 1]]);
        Self { flags, gso_type, hdr_len: half(0), gso_size: half(1), csum_start: half(2), csum_offset: half(3) }
    }

    /// The bytes before a packet.
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
