//! The TLVs of a Babel packet that this speaker knows, decoded.
use crate::{
    name::Name,
    wire::types::{RouterId, Seqno},
};
use core::net::IpAddr;
use ipnet::IpNet;

/// First byte of every packet (RFC 8966 §4.2).
pub(crate) const MAGIC: u8 = 42;
/// Version of the protocol, the second byte.
pub(crate) const VERSION: u8 = 2;
/// Bytes of a packet's header.
pub(crate) const HEADER: usize = 4;

/// Types of TLVs (RFC 8966 §4.6).
pub(crate) mod kind {
    pub(crate) const PAD_1: u8 = 0;
    pub(crate) const ACK_REQUEST: u8 = 2;
    pub(crate) const ACK: u8 = 3;
    pub(crate) const HELLO: u8 = 4;
    pub(crate) const IHU: u8 = 5;
    pub(crate) const ROUTER_ID: u8 = 6;
    pub(crate) const NEXT_HOP: u8 = 7;
    pub(crate) const UPDATE: u8 = 8;
    pub(crate) const ROUTE_REQUEST: u8 = 9;
    pub(crate) const SEQNO_REQUEST: u8 = 10;
    /// In each packet of a speaker that authenticates its packets (RFC 8967 §4.2, §6.2).
    pub(crate) const PACKET_COUNTER: u8 = 17;
    /// The name of the origin in the Router-Id before. The type is one of those for experiments (RFC 8966 §9, 224 to
    /// 254); [`NAME_TAG`] distinguishes it from other experiments.
    ///
    /// [`NAME_TAG`]: super::NAME_TAG
    pub(crate) const NAME: u8 = 239;
}

/// The first bytes of a Name TLV. The length of the name in one byte and the name follow.
pub(crate) const NAME_TAG: [u8; 2] = *b"RG";

/// Types of sub-TLVs (RFC 8966 §4.7, RFC 9616 §5).
pub(crate) mod sub {
    pub(crate) const PAD_1: u8 = 0;
    pub(crate) const TIMESTAMP: u8 = 3;
    /// A TLV with an unknown sub-TLV of this bit must be ignored (RFC 8966 §4.4).
    pub(crate) const MANDATORY: u8 = 0x80;
}

/// Address encodings (RFC 8966 §4.1.4, RFC 9229 §3).
pub(crate) mod ae {
    pub(crate) const WILDCARD: u8 = 0;
    pub(crate) const V4: u8 = 1;
    pub(crate) const V6: u8 = 2;
    pub(crate) const LINK_LOCAL: u8 = 3;
    pub(crate) const V4_VIA_V6: u8 = 4;
}

/// Flags of updates (RFC 8966 §4.6.9).
pub(crate) mod flag {
    /// The prefix is the default for the following updates.
    pub(crate) const PREFIX: u8 = 0x80;
    /// The router-id is in the prefix.
    pub(crate) const ROUTER_ID: u8 = 0x40;
    /// The Unicast flag of a Hello.
    pub(crate) const UNICAST: u16 = 0x8000;
}

/// When a Hello was sent and received (RFC 9616 §5.2), in microseconds modulo 2^32.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timestamps {
    /// When it was sent, by the clock of its sender.
    pub sent: u32,
    /// When it was received, by the clock of its receiver.
    pub received: u32,
}

/// A decoded TLV. Router-Id and Next Hop are not here: their content is in the updates that follow them. Intervals are
/// in hundredths of a second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Tlv {
    /// The sender wants a [`Tlv::Ack`] within this time (§4.6.3).
    AckRequest {
        /// Returned in the answer.
        opaque: u16,
        /// The time to answer in.
        interval: u16,
    },
    /// The packet is authenticated, and packets to its sender must be too (RFC 8967 §4.2).
    PacketCounter,
    /// An answer (§4.6.4).
    Ack {
        /// From the request.
        opaque: u16,
    },
    /// The sender is alive (§4.6.5).
    Hello {
        /// Whether it is a Unicast Hello, which is counted apart from Multicast Hellos.
        unicast: bool,
        /// The number of this Hello.
        seqno: Seqno,
        /// The next one comes within this time; 0 promises nothing.
        interval: u16,
        /// When it was sent (RFC 9616 §5.1), in microseconds of the sender's clock modulo 2^32.
        sent: Option<u32>,
    },
    /// The sender hears a node (§4.6.6).
    Ihu {
        /// The address of that node; `None`: the receiver of this packet.
        address: Option<IpAddr>,
        /// The cost of receiving from that node; 0xffff: it is not heard.
        rxcost: u16,
        /// The next one comes within this time, not 0.
        interval: u16,
        /// When the last Hello was sent and received.
        timestamps: Option<Timestamps>,
    },
    /// A route (§4.6.9).
    Update {
        /// The destination.
        prefix: IpNet,
        /// The node that originates it.
        router_id: RouterId,
        /// The origin's sequence number.
        seqno: Seqno,
        /// The distance from the sender, not infinite.
        metric: u16,
        /// The next one comes within this time, not 0; 0xffff: none does.
        interval: u16,
    },
    /// The sender has no route any more (§4.6.9, infinite metric).
    Retraction {
        /// The destination; `None`: all destinations.
        prefix: Option<IpNet>,
    },
    /// The name of the origin of the updates that follow. This TLV is RustGuard's own and unknown to other speakers.
    Name {
        /// The origin.
        router_id: RouterId,
        /// Its name, as the origin or a node on the way announces it.
        name: Name,
    },
    /// The sender wants an update (§4.6.10).
    RouteRequest {
        /// The destination; `None`: all destinations.
        prefix: Option<IpNet>,
    },
    /// The sender wants an update that is at least this recent (§4.6.11).
    SeqnoRequest {
        /// The destination.
        prefix: IpNet,
        /// The node that originates it.
        router_id: RouterId,
        /// The least sequence number.
        seqno: Seqno,
        /// How many more nodes may handle it, not 0.
        hop_count: u8,
    },
}
