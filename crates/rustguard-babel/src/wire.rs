//! Babel on the wire: the packets around and inside (RFC 8966 §4).
pub(crate) mod build;
pub mod ip;
pub mod parse;
pub mod tlv;
pub mod types;
