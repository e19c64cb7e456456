//! An IP packet as a filter sees it: its flow, whether it begins the flow, and whether it is a fragment.
//!
//! The walk through IPv6 extension headers ends after eight of them, and at a header that hides the next one (AH, ESP,
//! an unknown one): that header then counts as the packet's protocol. Packets that hosts do not send, but that could
//! mislead a filter, are errors: a first fragment without the whole transport header (RFC 8200 §4.5, RFC 7112), a
//! packet with a source route to another destination.

use crate::{
    bytes::field,
    packet::{HOP_BY_HOP, IPV4_HEADER_LEN, IPV6_HEADER_LEN},
};
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

const ICMP: u8 = 1;
const TCP: u8 = 6;
const UDP: u8 = 17;
const DCCP: u8 = 33;
const ICMPV6: u8 = 58;
const SCTP: u8 = 132;
const UDP_LITE: u8 = 136;
/// IPv6 extension headers (RFC 8200, section 4).
const ROUTING: u8 = 43;
const FRAGMENT: u8 = 44;
const DESTINATION_OPTIONS: u8 = 60;
/// A packet with more extension headers is refused.
const EXTENSIONS_MAX: usize = 8;

/// IPv4 options that name routers on the way: loose and strict source routes (RFC 791, section 3.1).
const SOURCE_ROUTES: [u8; 2] = [131, 137];

const FIN: u8 = 0x01;
const SYN: u8 = 0x02;
const RST: u8 = 0x04;
const ACK: u8 = 0x10;

/// The two ends of a packet, its protocol and its ports: its flow, in the direction of the packet.
///
/// The port of an ICMP query is its identifier, at the end that asks; the other end has port 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Tuple {
    /// The source and the destination. An IPv4 address is in the lower 32 bits.
    pub ends: [u128; 2],
    /// The source port and the destination port; 0 if the protocol has none.
    pub ports: [u16; 2],
    /// The transport protocol.
    pub protocol: u8,
    /// Whether the addresses are IPv6 addresses.
    pub v6: bool,
}

impl Tuple {
    /// The same flow, in the direction of the answers.
    #[must_use]
    pub fn reversed(&self) -> Self {
        let ([from, to], [source, destination]) = (self.ends, self.ports);
        Self { ends: [to, from], ports: [destination, source], ..*self }
    }

    /// The source address.
    pub fn source(&self) -> IpAddr {
        self.address(0)
    }

    /// The destination address.
    pub fn destination(&self) -> IpAddr {
        self.address(1)
    }

    /// The destination port, if the protocol has ports.
    pub fn destination_port(&self) -> Option<u16> {
        has_ports(self.protocol).then_some(self.ports[1])
    }

    fn address(&self, end: usize) -> IpAddr {
        if self.v6 {
            Ipv6Addr::from_bits(self.ends[end]).into()
        } else {
            Ipv4Addr::from_bits(self.ends[end] as u32).into()
        }
    }
}

/// The role of a packet in its flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// It begins a flow: a TCP SYN, an ICMP query.
    Opens,
    /// It begins a flow, or continues one.
    Continues,
    /// It answers a query: it begins no flow.
    Answers,
    /// It ends its direction of a TCP connection.
    Finishes,
    /// It ends a TCP connection.
    Resets,
    /// It belongs to no flow.
    Alone,
}

/// The common identity of the fragments of one packet. Over IPv6, the protocol is 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FragmentId {
    /// The source and the destination.
    pub ends: [u128; 2],
    /// The identification of the packet.
    pub id: u32,
    /// The protocol.
    pub protocol: u8,
    /// Whether the addresses are IPv6 addresses.
    pub v6: bool,
}

/// The kind of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dissected {
    /// A packet, or the first fragment of one.
    Packet {
        /// Its flow.
        tuple: Tuple,
        /// Its role in the flow.
        role: Role,
        /// For a first fragment: its identity, and how many bytes of the packet it has.
        fragment: Option<(FragmentId, u32)>,
    },
    /// A later fragment: its identity, and its offset.
    Later(FragmentId, u32),
    /// An ICMP error about a packet of this flow, in the direction of that packet.
    ErrorAbout(Tuple),
    /// A packet that no filter should accept.
    Bad(Bad),
}

/// The defect of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bad {
    /// The transport header is cut short, or contradicts itself.
    Header,
    /// A fragment without the whole transport header, or without any bytes.
    Fragment,
    /// It has a source route to another destination, or is a redirect.
    SourceRoute,
    /// An ICMP error about a packet that was not sent by the error's destination.
    Error,
}

/// Examines a packet that [`IpHead`](crate::packet::IpHead) has checked, without padding.
#[inline]
pub fn dissect(packet: &[u8]) -> Dissected {
    match Layers::read(packet) {
        Ok(layers) => layers.dissect(true),
        Err(bad) => Dissected::Bad(bad),
    }
}

/// An IP packet whose transport header was found.
struct Layers<'a> {
    ends: [u128; 2],
    v6: bool,
    protocol: u8,
    transport: &'a [u8],
    fragment: Option<Place>,
}

/// The position of a fragment in its packet.
#[derive(Clone, Copy)]
struct Place {
    id: u32,
    /// In bytes.
    offset: u32,
    len: u32,
    /// Whether other fragments follow.
    more: bool,
}

impl<'a> Layers<'a> {
    /// Reads a whole packet, or the beginning of a packet inside an ICMP error.
    #[inline]
    fn read(packet: &'a [u8]) -> Result<Self, Bad> {
        match packet.first().map(|first| first >> 4) {
            Some(4) => Self::read_v4(packet),
            Some(6) => Self::read_v6(packet),
            _ => Err(Bad::Header),
        }
    }

    #[inline]
    fn read_v4(packet: &'a [u8]) -> Result<Self, Bad> {
        let header: &[u8; IPV4_HEADER_LEN] = packet.first_chunk().ok_or(Bad::Header)?;
        let header_len = usize::from(header[0] & 0x0f) * 4;
        let transport = packet.get(header_len..).filter(|_| header_len >= IPV4_HEADER_LEN).ok_or(Bad::Header)?;
        if header_len > IPV4_HEADER_LEN && has_source_route(&packet[IPV4_HEADER_LEN..header_len]) {
            return Err(Bad::SourceRoute);
        }
        let place = u16::from_be_bytes([header[6], header[7]]);
        let fragment = (place & 0x3fff != 0).then(|| {
            let id = u16::from_be_bytes([header[4], header[5]]).into();
            let offset = u32::from(place & 0x1fff) * 8;
            Place { id, offset, len: transport.len() as u32, more: place & 0x2000 != 0 }
        });
        let end = |at| u128::from(u32::from_be_bytes(*field::<4>(header, at)));
        Ok(Self { ends: [end(12), end(16)], v6: false, protocol: header[9], transport, fragment })
    }

    #[inline]
    fn read_v6(packet: &'a [u8]) -> Result<Self, Bad> {
        let header: &[u8; IPV6_HEADER_LEN] = packet.first_chunk().ok_or(Bad::Header)?;
        let end = |at| u128::from_be_bytes(*field::<16>(header, at));
        let mut layers = Self {
            ends: [end(8), end(24)],
            v6: true,
            protocol: header[6],
            transport: &packet[IPV6_HEADER_LEN..],
            fragment: None,
        };
        match layers.protocol {
            TCP | UDP | ICMPV6 => Ok(layers),
            _ => layers.walk().map(|()| layers),
        }
    }

    /// Follows extension headers.
    fn walk(&mut self) -> Result<(), Bad> {
        for n in 0..=EXTENSIONS_MAX {
            let (HOP_BY_HOP | ROUTING | FRAGMENT | DESTINATION_OPTIONS) = self.protocol else { return Ok(()) };
            let cut = if self.fragment.is_some() { Bad::Fragment } else { Bad::Header };
            let header: &[u8; 8] = self.transport.first_chunk().ok_or(cut)?;
            let len = match self.protocol {
                FRAGMENT if self.fragment.is_some() => return Err(Bad::Fragment),
                FRAGMENT => {
                    let place = u16::from_be_bytes([header[2], header[3]]);
                    let id = u32::from_be_bytes(*field::<4>(header, 4));
                    // Offset 0 and no further fragments: an atomic fragment (RFC 6946) is a whole packet.
                    if place & 0xfff9 != 0 {
                        let (offset, len) = (u32::from(place & 0xfff8), self.transport.len() as u32 - 8);
                        self.fragment = Some(Place { id, offset, len, more: place & 1 != 0 });
                    }
                    8
                }
                // RFC 8200, section 4.3: it must be the first header.
                HOP_BY_HOP if n > 0 => return Err(Bad::Header),
                // Segments left: the packet has not reached its last destination.
                ROUTING if header[3] > 0 => return Err(Bad::SourceRoute),
                _ => 8 * (usize::from(header[1]) + 1),
            };
            self.protocol = header[0];
            self.transport = self.transport.get(len..).ok_or(cut)?;
            if self.fragment.is_some_and(|place| place.offset > 0) {
                // The bytes behind this header come from the middle of the packet.
                return Ok(());
            }
        }
        Err(Bad::Header)
    }

    #[inline]
    fn dissect(&self, whole: bool) -> Dissected {
        let fragment = match self.fragment {
            None => None,
            Some(Place { id, offset, len, more }) => {
                let protocol = if self.v6 { 0 } else { self.protocol };
                let fragment = FragmentId { ends: self.ends, id, protocol, v6: self.v6 };
                if len == 0 || (more && !len.is_multiple_of(8)) {
                    return Dissected::Bad(Bad::Fragment);
                }
                if offset > 0 {
                    return Dissected::Later(fragment, offset);
                }
                Some((fragment, len))
            }
        };
        let cut = Dissected::Bad(if fragment.is_some() { Bad::Fragment } else { Bad::Header });
        let tuple = |ports| Tuple { ends: self.ends, ports, protocol: self.protocol, v6: self.v6 };
        let packet = |ports, role| Dissected::Packet { tuple: tuple(ports), role, fragment };
        let ports =
            |header: &[u8; 8]| [u16::from_be_bytes([header[0], header[1]]), u16::from_be_bytes([header[2], header[3]])];
        match (self.protocol, self.transport.first_chunk::<8>()) {
            (TCP, Some(header)) if !whole => packet(ports(header), Role::Continues),
            (TCP, Some(header)) => match self.transport.first_chunk::<20>() {
                Some(tcp) if (20..=self.transport.len()).contains(&(usize::from(tcp[12] >> 4) * 4)) => {
                    match tcp_role(tcp[13]) {
                        Some(role) => packet(ports(header), role),
                        None => Dissected::Bad(Bad::Header),
                    }
                }
                _ => cut,
            },
            (UDP | UDP_LITE | DCCP | SCTP, Some(header)) => packet(ports(header), Role::Continues),
            (ICMP, Some(header)) if !self.v6 => self.icmp(header, icmp_kind(header[0]), fragment, whole),
            (ICMPV6, Some(header)) if self.v6 => self.icmp(header, icmpv6_kind(header[0]), fragment, whole),
            // Some messages of ICMPv6 have only four bytes and a body; none that matters here is shorter than eight.
            (TCP | UDP | UDP_LITE | DCCP | SCTP | ICMP | ICMPV6, None) => cut,
            _ => packet([0; 2], Role::Continues),
        }
    }

    fn icmp(&self, header: &[u8; 8], kind: Icmp, fragment: Option<(FragmentId, u32)>, whole: bool) -> Dissected {
        let id = u16::from_be_bytes([header[4], header[5]]);
        let tuple = |ports| Tuple { ends: self.ends, ports, protocol: self.protocol, v6: self.v6 };
        let packet = |ports, role| Dissected::Packet { tuple: tuple(ports), role, fragment };
        match kind {
            Icmp::Query => packet([id, 0], Role::Opens),
            Icmp::Answer => packet([0, id], Role::Answers),
            Icmp::Other => packet([0; 2], Role::Alone),
            Icmp::Redirect => Dissected::Bad(Bad::SourceRoute),
            // There are no errors about errors, and no errors in fragments.
            Icmp::Error if !whole || fragment.is_some() => Dissected::Bad(Bad::Error),
            Icmp::Error => {
                let inner = Self::read(&self.transport[8..]);
                match inner.ok().filter(|inner| inner.v6 == self.v6).map(|inner| inner.dissect(false)) {
                    // The packet in the error must have been sent by the error's destination.
                    Some(Dissected::Packet { tuple, .. }) if tuple.ends[0] == self.ends[1] => {
                        Dissected::ErrorAbout(tuple)
                    }
                    _ => Dissected::Bad(Bad::Error),
                }
            }
        }
    }
}

/// Kinds of ICMP messages.
#[derive(Clone, Copy)]
enum Icmp {
    Query,
    Answer,
    Error,
    Redirect,
    Other,
}

/// RFC 792: echo, and time stamps.
fn icmp_kind(kind: u8) -> Icmp {
    match kind {
        8 | 13 => Icmp::Query,
        0 | 14 => Icmp::Answer,
        3 | 4 | 11 | 12 => Icmp::Error,
        5 => Icmp::Redirect,
        _ => Icmp::Other,
    }
}

/// RFC 4443, section 2.1: errors are below 128. RFC 4861: a redirect.
fn icmpv6_kind(kind: u8) -> Icmp {
    match kind {
        128 => Icmp::Query,
        129 => Icmp::Answer,
        0..128 => Icmp::Error,
        137 => Icmp::Redirect,
        _ => Icmp::Other,
    }
}

/// `None`: flags that contradict each other.
#[inline]
fn tcp_role(flags: u8) -> Option<Role> {
    match flags & (SYN | RST | FIN | ACK) {
        0 | ACK => Some(Role::Continues),
        SYN => Some(Role::Opens),
        flags if flags & SYN == 0 => Some(if flags & RST > 0 { Role::Resets } else { Role::Finishes }),
        flags if flags == SYN | ACK => Some(Role::Continues),
        _ => None,
    }
}

fn has_ports(protocol: u8) -> bool {
    matches!(protocol, TCP | UDP | DCCP | SCTP | UDP_LITE)
}

/// Whether IPv4 options have a source route. Options that cannot be read count as one.
fn has_source_route(mut options: &[u8]) -> bool {
    while let Some((&kind, rest)) = options.split_first() {
        options = match kind {
            0 => return false,
            1 => rest,
            _ if SOURCE_ROUTES.contains(&kind) => return true,
            _ => match rest.first().and_then(|&len| options.get(usize::from(len.max(2))..)) {
                Some(rest) => rest,
                None => return true,
            },
        };
    }
    false
}

/// The TCP reset that refuses a segment (RFC 9293, section 3.10.7.1), sent in the name of the segment's destination.
/// Returns its length; 0 if the packet is not TCP, is a reset, or is a fragment other than the first.
pub fn reset(packet: &[u8], out: &mut [u8; RESET_MAX]) -> usize {
    let Ok(Layers { ends: [from, to], v6, protocol: TCP, transport, fragment }) = Layers::read(packet) else {
        return 0;
    };
    let Some(segment) = transport.first_chunk::<20>() else { return 0 };
    if fragment.is_some_and(|place| place.offset > 0) || segment[13] & RST > 0 {
        return 0;
    }
    let flags = segment[13];
    let text = transport.len().saturating_sub(usize::from(segment[12] >> 4) * 4) as u32;
    let len = text + u32::from(flags & SYN > 0) + u32::from(flags & FIN > 0);
    let (seq, ack, answer) = if flags & ACK > 0 {
        (*field::<4>(segment, 8), [0; 4], RST)
    } else {
        ([0; 4], u32::from_be_bytes(*field::<4>(segment, 4)).wrapping_add(len).to_be_bytes(), RST | ACK)
    };
    let ip = if v6 {
        out[..8].copy_from_slice(&[0x60, 0, 0, 0, 0, 20, TCP, 64]);
        out[8..24].copy_from_slice(&to.to_be_bytes());
        out[24..40].copy_from_slice(&from.to_be_bytes());
        IPV6_HEADER_LEN
    } else {
        out[..12].copy_from_slice(&[0x45, 0, 0, 40, 0, 0, 0x40, 0, 64, TCP, 0, 0]);
        out[12..16].copy_from_slice(&(to as u32).to_be_bytes());
        out[16..20].copy_from_slice(&(from as u32).to_be_bytes());
        let checksum = !crate::icmp::sum(&out[..IPV4_HEADER_LEN], 0);
        out[10..12].copy_from_slice(&checksum.to_be_bytes());
        IPV4_HEADER_LEN
    };
    let end = ip + 20;
    out[ip..ip + 2].copy_from_slice(&segment[2..4]);
    out[ip + 2..ip + 4].copy_from_slice(&segment[..2]);
    out[ip + 4..ip + 8].copy_from_slice(&seq);
    out[ip + 8..ip + 12].copy_from_slice(&ack);
    out[ip + 12..end].copy_from_slice(&[0x50, answer, 0, 0, 0, 0, 0, 0]);
    let addresses = if v6 { 8..40 } else { 12..20 };
    let pseudo = crate::icmp::sum(&out[addresses], 20 + u32::from(TCP));
    let checksum = !crate::icmp::sum(&out[ip..end], pseudo.into());
    out[ip + 16..ip + 18].copy_from_slice(&checksum.to_be_bytes());
    end
}

/// Bytes of the longest [`reset`].
pub const RESET_MAX: usize = IPV6_HEADER_LEN + 20;

#[cfg(test)]
mod tests;
