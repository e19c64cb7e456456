//! The messages.
use core::ops::RangeInclusive;

/// Bytes of the longest datagram: an IPv6 path of 1,280 bytes, without the headers of IPv6 and UDP.
pub const MAX_DATAGRAM: usize = 1232;
/// The message types: outside WireGuard's 1 to 4, which is all that other implementations know.
pub const MESSAGE_TYPES: RangeInclusive<u32> = 0x4567_7201..=0x4567_7209;

/// Whether a datagram is one of enrolment's, by its type: a comparison, for the data path.
pub fn is_enrolment(datagram: &[u8]) -> bool {
    datagram.first_chunk().is_some_and(|kind| MESSAGE_TYPES.contains(&u32::from_le_bytes(*kind)))
}
