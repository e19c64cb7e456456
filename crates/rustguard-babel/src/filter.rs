//! The filter for updates of neighbours (RFC 8966 Appendix C).
use crate::{config::Pin, wire::types::RouterId};
use core::net::Ipv4Addr;
use ipnet::{IpNet, Ipv4Net, Ipv6Net};

/// The configured limits for routes of neighbours.
#[derive(Debug)]
pub(crate) struct ImportFilter {
    pub(crate) pins: Vec<Pin>,
    /// The limit of routes in the table from one neighbour.
    pub(crate) max_routes: usize,
}

/// The reason why an update is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// The prefix is link-local, multicast, loopback or unspecified.
    Martian,
    /// The peer may not carry the prefix.
    OutsideAllowedIps,
    /// The prefix is pinned to another origin.
    Pinned,
}

impl ImportFilter {
    /// The reason why a neighbour with these allowed IPs may not announce the prefix for this origin; `None` if it may.
    pub(crate) fn refuses(&self, prefix: &IpNet, origin: RouterId, allowed: &[IpNet]) -> Option<Refused> {
        if is_martian(prefix) {
            Some(Refused::Martian)
        } else if !is_within(allowed, prefix) {
            Some(Refused::OutsideAllowedIps)
        } else if !pinned_to(&self.pins, prefix, origin) {
            Some(Refused::Pinned)
        } else {
            None
        }
    }
}

/// Whether the pins permit `origin` to originate `prefix`.
fn pinned_to(pins: &[Pin], prefix: &IpNet, origin: RouterId) -> bool {
    let covering = pins.iter().filter(|pin| pin.prefix.contains(prefix));
    let Some(longest) = covering.clone().map(|pin| pin.prefix.prefix_len()).max() else { return true };
    let mut longest = covering.filter(|pin| pin.prefix.prefix_len() == longest);
    longest.any(|pin| pin.origin.is_of_same_key(origin))
}

/// Whether a prefix is never learned nor announced: link-local, multicast, loopback, unspecified (RFC 8966 Appendix C).
pub(crate) fn is_martian(prefix: &IpNet) -> bool {
    match prefix {
        IpNet::V4(net) => {
            let within = |a, b, c, d, len| Ipv4Net::new_assert(Ipv4Addr::new(a, b, c, d), len).contains(net);
            within(127, 0, 0, 0, 8) || within(224, 0, 0, 0, 4) || within(169, 254, 0, 0, 16) || within(0, 0, 0, 0, 32)
        }
        IpNet::V6(net) => {
            let within = |first: u16, last: u16, len| {
                Ipv6Net::new_assert([first, 0, 0, 0, 0, 0, 0, last].into(), len).contains(net)
            };
            within(0xfe80, 0, 10) || within(0xff00, 0, 8) || within(0, 0, 128) || within(0, 1, 128)
        }
    }
}

/// Whether a prefix lies inside one of these.
pub(crate) fn is_within(bounds: &[IpNet], prefix: &IpNet) -> bool {
    bounds.iter().any(|bound| bound.contains(prefix))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn net(text: &str) -> IpNet {
        text.parse().expect("a prefix")
    }

    /// RFC 8966 Appendix C.
    #[test]
    fn link_local_multicast_and_loopback_prefixes_are_martian() {
        for bad in [
            "fe80::/64",
            "fe80::1/128",
            "ff00::/8",
            "ff02::1/128",
            "127.0.0.1/32",
            "0.0.0.0/32",
            "224.0.0.0/8",
            "239.1.0.0/16",
            "::1/128",
            "169.254.7.0/24",
        ] {
            assert!(is_martian(&net(bad)), "{bad}");
        }
        for good in ["0.0.0.0/0", "::/0", "10.0.0.0/8", "fd00::/8", "2001:db8::/32", "128.0.0.0/1", "192.0.2.1/32"] {
            assert!(!is_martian(&net(good)), "{good}");
        }
    }

    #[test]
    fn the_longest_pin_counts() {
        let id = |byte| RouterId::new([byte; 8]).expect("a router-id");
        let pin = |text, byte| Pin { prefix: net(text), origin: id(byte) };
        let pins = [pin("10.0.0.0/8", 1), pin("10.1.0.0/16", 2), pin("10.1.0.0/16", 3)];
        for (prefix, origins) in
            [("10.2.0.0/16", &[1][..]), ("10.1.0.0/16", &[2, 3]), ("10.1.1.0/24", &[2, 3]), ("10.0.0.0/7", &[1, 2, 3])]
        {
            for origin in 1..=3 {
                assert_eq!(pinned_to(&pins, &net(prefix), id(origin)), origins.contains(&origin), "{prefix} {origin}");
            }
        }
    }

    #[test]
    fn bounds_contain_whole_prefixes() {
        let bounds = [net("10.0.0.0/8"), net("fd00::/8")];
        assert!(is_within(&bounds, &net("10.9.0.0/16")) && is_within(&bounds, &net("fd00::/8")));
        assert!(!is_within(&bounds, &net("0.0.0.0/0")) && !is_within(&bounds, &net("11.0.0.0/16")));
    }
}
