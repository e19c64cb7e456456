//! The addresses and names that can be used in a network. The server checks its own settings with these functions, and
//! a joining machine checks the settings that it receives.
use ipnet::{IpNet, Ipv4Net, Ipv6Net};

/// "This network", loopback, link-local, multicast, reserved (RFC 6890).
const SPECIAL_V4: [Ipv4Net; 5] =
    [v4([0; 4], 8), v4([127, 0, 0, 0], 8), v4([169, 254, 0, 0], 16), v4([224, 0, 0, 0], 4), v4([240, 0, 0, 0], 4)];
/// Unspecified, loopback, IPv4-mapped and IPv4-compatible addresses; link-local; multicast.
const SPECIAL_V6: [Ipv6Net; 3] = [v6(0, 80), v6(0xfe80, 10), v6(0xff00, 8)];

/// Private networks (RFC 1918, RFC 6598). They are not part of the Internet, whatever their prefix length.
const PRIVATE_V4: [Ipv4Net; 4] =
    [v4([10, 0, 0, 0], 8), v4([172, 16, 0, 0], 12), v4([192, 168, 0, 0], 16), v4([100, 64, 0, 0], 10)];
/// Unique local addresses (RFC 4193).
const PRIVATE_V6: Ipv6Net = v6(0xfc00, 7);
/// Public prefixes that are shorter than this, or that together cover more than one of this length, are a default
/// route.
pub(crate) const WIDE_V4: u8 = 6;
/// The same for IPv6, where all public addresses are in a /3 and a provider has a /19 or less.
pub(crate) const WIDE_V6: u8 = 12;

pub(crate) const fn v4([a, b, c, d]: [u8; 4], len: u8) -> Ipv4Net {
    Ipv4Net::new_assert(core::net::Ipv4Addr::new(a, b, c, d), len)
}

pub(crate) const fn v6(first: u16, len: u8) -> Ipv6Net {
    Ipv6Net::new_assert(core::net::Ipv6Addr::new(first, 0, 0, 0, 0, 0, 0, 0), len)
}

/// Whether all addresses of the network are special-purpose ones, which are never behind a tunnel.
pub(crate) fn is_special(net: &IpNet) -> bool {
    match net {
        IpNet::V4(net) => SPECIAL_V4.iter().any(|special| special.contains(net)),
        IpNet::V6(net) => SPECIAL_V6.iter().any(|special| special.contains(net)),
    }
}

/// Whether all addresses of the network are private ones.
pub(crate) fn is_private(net: &IpNet) -> bool {
    match net {
        IpNet::V4(net) => PRIVATE_V4.iter().any(|private| private.contains(net)),
        IpNet::V6(net) => PRIVATE_V6.contains(net),
    }
}

/// Whether the network is a default route, or a large part of one.
pub(crate) fn is_wide(net: &IpNet) -> bool {
    let shortest = if net.addr().is_ipv4() { WIDE_V4 } else { WIDE_V6 };
    net.prefix_len() < shortest && !is_private(net)
}

/// Whether the text is a domain name and cannot be read as an address: configuration files list both in one place. A
/// `~` before it makes it a domain for split DNS.
pub(crate) fn is_domain(text: &str) -> bool {
    let text = text.strip_prefix('~').unwrap_or(text);
    let label = |label: &str| {
        (1..=63).contains(&label.len())
            && !label.starts_with('-')
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))
    };
    let name = text.strip_suffix('.').unwrap_or(text);
    text.len() <= 253 && name.split('.').all(label) && !name.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.')
}
