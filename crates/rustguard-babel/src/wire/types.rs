//! The small types of the protocol: sequence numbers, router-ids, metrics.
use core::{fmt, net::Ipv6Addr};
use rustguard_crypto::{hash::hash, x25519::PublicKey};

/// The metric and the cost that mean "unreachable" (RFC 8966 §3.2.6).
pub const INFINITY: u16 = 0xffff;

/// A sequence number: 16 bits that wrap (RFC 8966 §3.2.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Seqno(pub u16);

impl Seqno {
    /// The number that is `by` after this one.
    pub const fn plus(self, by: u16) -> Self {
        Self(self.0.wrapping_add(by))
    }

    /// Whether `self` is more recent than `other`. Of two numbers half the circle apart, neither is newer.
    pub const fn newer_than(self, other: Self) -> bool {
        let ahead = self.0.wrapping_sub(other.0);
        ahead != 0 && ahead < 0x8000
    }

    /// How far `self` is ahead of `other`; negative when it is behind.
    pub const fn ahead_of(self, other: Self) -> i16 {
        self.0.wrapping_sub(other.0).cast_signed()
    }
}

/// The identifier of the node that originates a route: 8 bytes, neither all zeros nor all ones (RFC 8966 §4.1.3).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RouterId([u8; 8]);

impl RouterId {
    /// The bounds of a range of all router-ids; not router-ids themselves.
    pub(crate) const MIN: Self = Self([0; 8]);
    pub(crate) const MAX: Self = Self([0xff; 8]);

    /// The router-id with these bytes; `None` for the two forbidden values.
    pub fn new(bytes: [u8; 8]) -> Option<Self> {
        (bytes != [0; 8] && bytes != [0xff; 8]).then_some(Self(bytes))
    }

    /// The router-id that stands for all nodes with this key, to [pin](crate::Pin) prefixes to their origin: 6 bytes of
    /// a hash, and zeros in place of the number that each running node has.
    /// [`is_of_same_key`](Self::is_of_same_key) compares it with a node's router-id.
    pub fn of_key(key: &PublicKey) -> Self {
        Self::numbered(key, 0)
    }

    /// The router-id of one of the nodes with this key. Gateways may share a key, and a node that has lost its sequence
    /// numbers has to appear as another node to nodes that remember them.
    pub(crate) fn numbered(key: &PublicKey, number: u16) -> Self {
        let [a, b, c, d, e, f, ..] = hash(&[b"RustGuard Babel router-id", &key.0]);
        let [high, low] = number.to_be_bytes();
        // It has at least one 1 bit and one 0 bit, so that it is neither of the forbidden values.
        Self([a | 1, b & 0xfe, c, d, e, f, high, low])
    }

    /// Whether both belong to nodes with the same key, or to the same node.
    pub fn is_of_same_key(self, other: Self) -> bool {
        self.0[..6] == other.0[..6]
    }

    /// Its bytes.
    pub const fn bytes(self) -> [u8; 8] {
        self.0
    }
}

impl fmt::Display for RouterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, byte) in self.0.iter().enumerate() {
            write!(f, "{}{byte:02x}", if i == 0 { "" } else { ":" })?;
        }
        Ok(())
    }
}

impl fmt::Debug for RouterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The information of a route about its origin: the node, its sequence number, and its distance. The prefix is known
/// from the context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Announcement {
    /// The node that originates the prefix.
    pub router_id: RouterId,
    /// The origin's sequence number; a newer one makes a longer route acceptable (RFC 8966 §3.5.1).
    pub seqno: Seqno,
    /// Distance to the origin, in units of cost; [`INFINITY`] is unreachable.
    pub metric: u16,
}

/// The link-local address that the node with this key sends Babel packets from: fe80::/64 and 8 bytes of a hash.
pub fn link_local(key: &PublicKey) -> Ipv6Addr {
    let mut octets = [0; 16];
    octets[..2].copy_from_slice(&[0xfe, 0x80]);
    octets[8..].copy_from_slice(&hash(&[b"RustGuard Babel link-local", &key.0])[..8]);
    Ipv6Addr::from(octets)
}

/// The sum of a cost and a metric, or of two costs; a sum that does not fit is infinite (RFC 8966 §3.5.2, additive).
pub(crate) const fn add(cost: u16, metric: u16) -> u16 {
    cost.saturating_add(metric)
}

/// The clock of timestamps (RFC 9616 §5): microseconds, modulo 2^32.
pub(crate) fn micros(now: rustguard_core::time::Instant) -> u32 {
    u32::try_from((now.as_nanos() / 1_000) & u64::from(u32::MAX)).expect("32 bits")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seqnos_wrap() {
        assert!(Seqno(0).newer_than(Seqno(65_535)) && !Seqno(65_535).newer_than(Seqno(0)));
        assert!(!Seqno(7).newer_than(Seqno(7)));
        assert!(
            Seqno(0x7fff).newer_than(Seqno(0))
                && !Seqno(0x8000).newer_than(Seqno(0))
                && !Seqno(0).newer_than(Seqno(0x8000))
        );
        assert_eq!((Seqno(2).ahead_of(Seqno(65_534)), Seqno(65_534).ahead_of(Seqno(2))), (4, -4));
        assert_eq!(Seqno(65_535).plus(1), Seqno(0));
    }

    #[test]
    fn ids_and_addresses_come_from_the_key() {
        let (a, b) = (PublicKey([1; 32]), PublicKey([2; 32]));
        assert_eq!(RouterId::of_key(&a), RouterId::of_key(&a));
        assert!(!RouterId::of_key(&a).is_of_same_key(RouterId::of_key(&b)));
        let (one, two) = (RouterId::numbered(&a, 1), RouterId::numbered(&a, 0x100));
        assert!(one != two && one.is_of_same_key(two) && two.is_of_same_key(RouterId::of_key(&a)));
        assert_ne!(link_local(&a), link_local(&b));
        assert!(link_local(&a).is_unicast_link_local() && link_local(&a).octets()[2..8] == [0; 6]);
        assert_eq!((RouterId::new([0; 8]), RouterId::new([255; 8])), (None, None));
        assert_eq!(
            RouterId::new([1, 2, 3, 4, 5, 6, 7, 0xab]).expect("a router-id").to_string(),
            "01:02:03:04:05:06:07:ab"
        );
    }

    #[test]
    fn sums_stay_infinite() {
        assert_eq!(
            (add(96, 100), add(INFINITY, 0), add(96, INFINITY), add(2_000, 65_000)),
            (196, INFINITY, INFINITY, INFINITY)
        );
    }
}
