//! Babel on the wire (RFC 8966 §4): IPv6 and UDP headers, TLVs, reading and writing packets.
pub(crate) mod build;
pub mod ip;
pub mod parse;
pub mod tlv;
pub mod types;
