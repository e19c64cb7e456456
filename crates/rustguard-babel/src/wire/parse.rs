//! Reading a Babel packet: any bytes in, decoded TLVs out.
//!
//! Nothing is allocated and no byte is read twice. Unknown and malformed TLVs are skipped one at a time. A skipped TLV
//! still sets the state for later TLVs: router-id, next hop, default prefix (RFC 8966 §4.5).
use crate::{
    name::Name,
    wire::{
        tlv::{HEADER, MAGIC, NAME_TAG, Timestamps, Tlv, VERSION, ae, flag, kind, sub},
        types::{INFINITY, RouterId, Seqno},
    },
};
use core::{
    error::Error,
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};
use ipnet::{IpNet, Ipv4Net, Ipv6Net};

/// The TLVs of a packet.
#[derive(Clone, Debug)]
pub struct Tlvs<'a> {
    body: &'a [u8],
    malformed: u32,
    /// By address encoding: 1, 2, 4.
    default_prefix: [Option<[u8; 16]>; 3],
    router_id: Option<RouterId>,
    /// Whether a Next Hop TLV for IPv4 came. (For IPv6, the source of the packet is the next hop.)
    next_hop_v4: bool,
}

/// Why a datagram is not a Babel packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NotBabel {
    /// It ends before its header, or before the length in the header.
    Truncated,
    /// It does not begin with 42.
    Magic,
    /// Its protocol version is not 2.
    Version,
}

impl fmt::Display for NotBabel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Truncated => "the datagram ends before the Babel packet",
            Self::Magic => "the datagram is not a Babel packet: its first byte is not 42",
            Self::Version => "the Babel packet is not of version 2",
        })
    }
}

impl Error for NotBabel {}

impl<'a> Tlvs<'a> {
    /// The TLVs of the packet in a datagram (§4.2).
    ///
    /// # Errors
    ///
    /// If the datagram is not a packet of this version of Babel, or ends before the packet.
    pub fn new(datagram: &'a [u8]) -> Result<Self, NotBabel> {
        let (&[magic, version, high, low], rest) = datagram.split_first_chunk::<HEADER>().ok_or(NotBabel::Truncated)?;
        if magic != MAGIC {
            return Err(NotBabel::Magic);
        }
        if version != VERSION {
            return Err(NotBabel::Version);
        }
        // The trailer contains nothing that this speaker knows.
        let body = rest.get(..usize::from(u16::from_be_bytes([high, low]))).ok_or(NotBabel::Truncated)?;
        Ok(Self { body, malformed: 0, default_prefix: [None; 3], router_id: None, next_hop_v4: false })
    }

    /// How many TLVs were skipped so far because their content does not match their type. Unknown ones are not counted.
    pub const fn malformed(&self) -> u32 {
        self.malformed
    }
}

impl Iterator for Tlvs<'_> {
    type Item = Tlv;

    fn next(&mut self) -> Option<Tlv> {
        loop {
            let (&kind, rest) = self.body.split_first()?;
            if kind == kind::PAD_1 {
                self.body = rest;
                continue;
            }
            let Some((value, rest)) = rest.split_first().and_then(|(&len, rest)| rest.split_at_checked(len.into()))
            else {
                // Longer than the packet: the beginning of the next TLV is unknown.
                self.malformed += 1;
                self.body = &[];
                return None;
            };
            self.body = rest;
            match self.decode(kind, value) {
                Ok(Some(tlv)) => return Some(tlv),
                Ok(None) => {}
                Err(Malformed) => self.malformed += 1,
            }
        }
    }
}

/// The content of a TLV does not match its type, or is forbidden.
struct Malformed;

impl Tlvs<'_> {
    /// `None` for a TLV that is unknown, has an unknown mandatory sub-TLV, or only applies to later TLVs.
    fn decode(&mut self, kind: u8, value: &[u8]) -> Result<Option<Tlv>, Malformed> {
        let fields = Fields(value);
        match kind {
            kind::ACK_REQUEST => ack_request(fields),
            kind::ACK => ack(fields),
            kind::HELLO => hello(fields),
            kind::IHU => ihu(fields),
            kind::ROUTER_ID => self.router_id(fields),
            kind::NEXT_HOP => self.next_hop(fields),
            kind::UPDATE => self.update(fields),
            kind::ROUTE_REQUEST => route_request(fields),
            kind::SEQNO_REQUEST => seqno_request(fields),
            kind::NAME => self.name(fields),
            kind::PACKET_COUNTER => Fields(value).take(4).map(|_| Some(Tlv::PacketCounter)),
            _ => Ok(None),
        }
    }

    fn router_id(&mut self, mut fields: Fields<'_>) -> Result<Option<Tlv>, Malformed> {
        fields.take(2)?;
        self.router_id = RouterId::new(fields.array()?);
        if self.router_id.is_some() { Ok(None) } else { Err(Malformed) }
    }

    /// The tunnel leads to the peer with any address. Only the presence of an IPv4 address matters.
    fn next_hop(&mut self, mut fields: Fields<'_>) -> Result<Option<Tlv>, Malformed> {
        let ae = fields.u8()?;
        fields.take(1)?;
        if ae == ae::V4 {
            fields.take(4)?;
            self.next_hop_v4 = true;
        }
        Ok(None)
    }

    fn name(&self, mut fields: Fields<'_>) -> Result<Option<Tlv>, Malformed> {
        if fields.array()? != NAME_TAG {
            return Ok(None);
        }
        let len = fields.u8()?;
        let name = Name::new(fields.take(len.into())?).map_err(|_| Malformed)?;
        let router_id = self.router_id.ok_or(Malformed)?;
        Ok(fields.sub_tlvs()?.permit(Tlv::Name { router_id, name }))
    }

    fn update(&mut self, mut fields: Fields<'_>) -> Result<Option<Tlv>, Malformed> {
        let (ae, flags, plen, omitted) = (fields.u8()?, fields.u8()?, fields.u8()?, fields.u8()?);
        let (interval, seqno, metric) = (fields.u16()?, Seqno(fields.u16()?), fields.u16()?);
        let state = match ae {
            ae::WILDCARD => {
                let all = metric == INFINITY && plen == 0 && omitted == 0;
                let known = all && !fields.sub_tlvs()?.unknown;
                return if all { Ok(known.then_some(Tlv::Retraction { prefix: None })) } else { Err(Malformed) };
            }
            ae::V4 => Some(0),
            ae::V6 => Some(1),
            ae::V4_VIA_V6 => Some(2),
            ae::LINK_LOCAL => None,
            _ => return Ok(None),
        };
        let default = state.and_then(|state| self.default_prefix[state]);
        let octets = fields.prefix(ae, plen, omitted, default)?;
        // This update's state for later updates applies even if the update is refused below.
        if let Some(state) = state.filter(|_| flags & flag::PREFIX != 0) {
            self.default_prefix[state] = Some(octets);
        }
        if flags & flag::ROUTER_ID != 0 {
            let mut id = [0; 8];
            match ae {
                ae::V4 | ae::V4_VIA_V6 => id[4..].copy_from_slice(&octets[..4]),
                _ => id.copy_from_slice(&octets[8..]),
            }
            self.router_id = RouterId::new(id);
        }
        let prefix = net(ae, octets, plen)?;
        if fields.sub_tlvs()?.unknown {
            return Ok(None);
        }
        if metric == INFINITY {
            return Ok(Some(Tlv::Retraction { prefix: Some(prefix) }));
        }
        if ae == ae::V4 && !self.next_hop_v4 {
            return Err(Malformed);
        }
        let router_id = self.router_id.ok_or(Malformed)?;
        Ok(Some(Tlv::Update { prefix, router_id, seqno, metric, interval: nonzero(interval)? }))
    }
}

fn ack_request(mut fields: Fields<'_>) -> Result<Option<Tlv>, Malformed> {
    fields.take(2)?;
    let (opaque, interval) = (fields.u16()?, nonzero(fields.u16()?)?);
    Ok(fields.sub_tlvs()?.permit(Tlv::AckRequest { opaque, interval }))
}

fn ack(mut fields: Fields<'_>) -> Result<Option<Tlv>, Malformed> {
    let opaque = fields.u16()?;
    Ok(fields.sub_tlvs()?.permit(Tlv::Ack { opaque }))
}

fn hello(mut fields: Fields<'_>) -> Result<Option<Tlv>, Malformed> {
    let unicast = fields.u16()? & flag::UNICAST != 0;
    let (seqno, interval) = (Seqno(fields.u16()?), fields.u16()?);
    let subs = fields.sub_tlvs()?;
    Ok(subs.permit(Tlv::Hello { unicast, seqno, interval, sent: subs.timestamp(0) }))
}

fn ihu(mut fields: Fields<'_>) -> Result<Option<Tlv>, Malformed> {
    let ae = fields.u8()?;
    fields.take(1)?;
    let (rxcost, interval) = (fields.u16()?, fields.u16()?);
    let address = match ae {
        ae::WILDCARD => None,
        ae::V4 | ae::V6 | ae::LINK_LOCAL => Some(fields.address(ae)?),
        _ => return Ok(None),
    };
    let subs = fields.sub_tlvs()?;
    let timestamps = subs.timestamp(0).zip(subs.timestamp(4)).map(|(sent, received)| Timestamps { sent, received });
    Ok(subs.permit(Tlv::Ihu { address, rxcost, interval: nonzero(interval)?, timestamps }))
}

fn route_request(mut fields: Fields<'_>) -> Result<Option<Tlv>, Malformed> {
    let (ae, plen) = (fields.u8()?, fields.u8()?);
    let prefix = match ae {
        ae::WILDCARD if plen == 0 => None,
        ae::V4 | ae::V6 | ae::LINK_LOCAL | ae::V4_VIA_V6 => Some(net(ae, fields.prefix(ae, plen, 0, None)?, plen)?),
        ae::WILDCARD => return Err(Malformed),
        _ => return Ok(None),
    };
    Ok(fields.sub_tlvs()?.permit(Tlv::RouteRequest { prefix }))
}

fn seqno_request(mut fields: Fields<'_>) -> Result<Option<Tlv>, Malformed> {
    let (ae, plen, seqno, hop_count) = (fields.u8()?, fields.u8()?, Seqno(fields.u16()?), fields.u8()?);
    fields.take(1)?;
    let router_id = RouterId::new(fields.array()?).ok_or(Malformed)?;
    let prefix = match ae {
        ae::V4 | ae::V6 | ae::LINK_LOCAL | ae::V4_VIA_V6 => net(ae, fields.prefix(ae, plen, 0, None)?, plen)?,
        ae::WILDCARD => return Err(Malformed),
        _ => return Ok(None),
    };
    if hop_count == 0 {
        return Err(Malformed);
    }
    Ok(fields.sub_tlvs()?.permit(Tlv::SeqnoRequest { prefix, router_id, seqno, hop_count }))
}

/// The rest of a TLV.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn take(&mut self, len: usize) -> Result<&'a [u8], Malformed> {
        let (taken, rest) = self.0.split_at_checked(len).ok_or(Malformed)?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (taken, rest) = self.0.split_first_chunk().ok_or(Malformed)?;
        self.0 = rest;
        Ok(*taken)
    }

    fn u8(&mut self) -> Result<u8, Malformed> {
        self.array().map(|[byte]| byte)
    }

    fn u16(&mut self) -> Result<u16, Malformed> {
        self.array().map(u16::from_be_bytes)
    }

    /// The address of a node: encodings 1 to 3.
    fn address(&mut self, ae: u8) -> Result<IpAddr, Malformed> {
        let plen = if ae == ae::V4 { 32 } else { 128 };
        let octets = self.prefix(ae, plen, 0, None)?;
        Ok(net(ae, octets, plen)?.addr())
    }

    /// The address of a prefix, bits beyond its length cleared. IPv4 has the first four bytes.
    fn prefix(&mut self, ae: u8, plen: u8, omitted: u8, default: Option<[u8; 16]>) -> Result<[u8; 16], Malformed> {
        let mut octets = [0; 16];
        let (width, mut from) = match ae {
            ae::V4 | ae::V4_VIA_V6 => (4, 0),
            ae::V6 => (16, 0),
            _ => {
                octets[..2].copy_from_slice(&[0xfe, 0x80]);
                (16, 8)
            }
        };
        let until = usize::from(plen).div_ceil(8);
        if until > width || (omitted > 0 && from > 0) || usize::from(omitted) > until {
            return Err(Malformed);
        }
        if omitted > 0 {
            from = usize::from(omitted);
            octets[..from].copy_from_slice(&default.ok_or(Malformed)?[..from]);
        }
        if from < until {
            octets[from..until].copy_from_slice(self.take(until - from)?);
        }
        let kept = plen % 8;
        if kept != 0 {
            octets[until - 1] &= 0xff << (8 - kept);
        }
        Ok(octets)
    }

    /// The rest as sub-TLVs (§4.4).
    fn sub_tlvs(self) -> Result<SubTlvs<'a>, Malformed> {
        let mut subs = SubTlvs { unknown: false, timestamp: &[] };
        let mut fields = self;
        while let Ok(kind) = fields.u8() {
            if kind == sub::PAD_1 {
                continue;
            }
            let len = fields.u8()?;
            let value = fields.take(len.into())?;
            match kind {
                sub::TIMESTAMP => subs.timestamp = value,
                kind => subs.unknown |= kind & sub::MANDATORY != 0,
            }
        }
        Ok(subs)
    }
}

/// The content of the sub-TLVs of a TLV.
struct SubTlvs<'a> {
    /// Whether one of them is mandatory and unknown.
    unknown: bool,
    timestamp: &'a [u8],
}

impl SubTlvs<'_> {
    /// The TLV, unless one of its sub-TLVs is mandatory and unknown.
    fn permit(&self, tlv: Tlv) -> Option<Tlv> {
        (!self.unknown).then_some(tlv)
    }

    /// The timestamp at this byte; `None` if it is too short (RFC 9616 §5.1).
    fn timestamp(&self, at: usize) -> Option<u32> {
        self.timestamp.get(at..)?.first_chunk().copied().map(u32::from_be_bytes)
    }
}

fn nonzero(interval: u16) -> Result<u16, Malformed> {
    if interval == 0 { Err(Malformed) } else { Ok(interval) }
}

fn net(ae: u8, octets: [u8; 16], plen: u8) -> Result<IpNet, Malformed> {
    let [a, b, c, d, ..] = octets;
    match ae {
        ae::V4 | ae::V4_VIA_V6 => Ipv4Net::new(Ipv4Addr::new(a, b, c, d), plen).map(IpNet::V4),
        _ => Ipv6Net::new(Ipv6Addr::from(octets), plen).map(IpNet::V6),
    }
    .map_err(|_| Malformed)
}

#[cfg(test)]
mod tests;
