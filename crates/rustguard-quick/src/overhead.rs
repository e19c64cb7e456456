//! WireGuard's overhead for a packet, and the remaining MTU of a path.

use rustguard_core::{forward::HEADER_LEN, session::OVERHEAD as MESSAGE_OVERHEAD};

/// Outer IPv6 header (40), UDP (8), WireGuard data header (16) and tag (16), in bytes. An IPv4 header is 20 bytes
/// smaller. The larger value counts, because a peer may roam between the families.
const OVERHEAD: u32 = 80;

/// The overhead of a datagram that travels through a peer, in bytes. The header of the forwarded datagram (24) and the
/// inner message (32) are the content of a message to the relay (32), in an IPv6 and UDP datagram (48).
pub(crate) const OVERHEAD_THROUGH_PEER: u32 = OVERHEAD + (HEADER_LEN + MESSAGE_OVERHEAD) as u32;

/// The MTU of Ethernet, for a host that has no route yet.
pub(crate) const DEFAULT_PATH_MTU: u32 = 1500;

/// Packets are padded to a multiple of this many bytes (WireGuard paper, section 5.4.6).
const PADDING: u32 = 16;

/// The longest packet inside a tunnel, in bytes, whose datagrams fit a path of `path` bytes: 80 less. If datagrams may
/// travel through a peer, one value has to fit all ways, with both layers of WireGuard: 136 less, and a multiple of 16,
/// because of WireGuard's padding. A path of 1,500 bytes leads to 1,420 and 1,360. Packets longer than 1,360 bytes are
/// not sent through a peer, because most of the peer's paths are not known here.
pub fn mtu_for_path(path: u32, through_peers: bool) -> u32 {
    if through_peers {
        path.min(DEFAULT_PATH_MTU).saturating_sub(OVERHEAD_THROUGH_PEER) / PADDING * PADDING
    } else {
        path.saturating_sub(OVERHEAD)
    }
}

/// Explains why an MTU fits all ways of a tunnel whose datagrams may travel through a peer: the computation, in words.
/// If `configured` is `None`, it is for a path of 1,500 bytes, the MTU of most networks. Returns `None` for a
/// configured MTU that is too large.
pub fn explain_mtu_through_peers(configured: Option<u16>) -> Option<String> {
    let layers = format!(
        "{} (IPv6, UDP) {sign} {MESSAGE_OVERHEAD} (the message to the relay) {sign} {HEADER_LEN} (for whom, and from whom) {sign} \
         {MESSAGE_OVERHEAD} (the message to the peer)",
        OVERHEAD - MESSAGE_OVERHEAD as u32,
        sign = if configured.is_some() { "+" } else { "-" },
    );
    match configured.map(u32::from) {
        None => {
            let fits = DEFAULT_PATH_MTU - OVERHEAD_THROUGH_PEER;
            let mtu = mtu_for_path(DEFAULT_PATH_MTU, true);
            Some(format!("{mtu}: {DEFAULT_PATH_MTU} - {layers} = {fits}, and a multiple of {PADDING}"))
        }
        Some(mtu) => {
            let outside = mtu + OVERHEAD_THROUGH_PEER;
            (outside <= DEFAULT_PATH_MTU).then(|| {
                format!("{mtu}: {mtu} + {layers} = {outside} bytes outside, of {DEFAULT_PATH_MTU} in most networks")
            })
        }
    }
}
