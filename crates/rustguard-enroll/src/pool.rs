//! The addresses that can be leased: the prefixes, the reserved addresses, and the free ones.
//!
//! | Prefix | Reserved besides the server's own address |
//! |---|---|
//! | IPv4, /0 to /30 | network and broadcast address |
//! | IPv4, /31 | nothing: a link of two (RFC 3021), so one address can be leased |
//! | IPv6, /0 to /126 | the first address, which is the subnet-router anycast address (RFC 4291, section 2.6.1) |
//! | IPv6, /127 | nothing: a link of two (RFC 6164), so one address can be leased |
//! | IPv4 /32, IPv6 /128 | refused: the only address is the server's own |
use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use rustguard_crypto::{hash::hash, x25519::PublicKey};
use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

/// The pools of a network: IPv4, IPv6 or both.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pools {
    v4: Option<(Ipv4Net, Ipv4Addr)>,
    v6: Option<(Ipv6Net, Ipv6Addr)>,
    /// Whether the server's own addresses are leased like others.
    own_are_leased: bool,
}

/// Why these prefixes cannot be a pool.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PoolError {
    /// Neither an IPv4 nor an IPv6 prefix.
    #[error("no address pool was given; name one, such as 10.150.0.0/24")]
    None,
    /// Two prefixes of one family.
    #[error("{0} and {1} are of one family; give at most one pool of each")]
    Two(IpNet, IpNet),
    /// A prefix of one address, which is the server's own.
    #[error("the pool {0} has no address besides the server's own; take a shorter prefix")]
    NoRoom(IpNet),
    /// The address before the slash is the broadcast address.
    #[error("{0} starts with its own broadcast address, which cannot be the server's; write {net}", net = .0.trunc())]
    Broadcast(IpNet),
}

impl Pools {
    /// Takes at most one prefix of each family. The server's own address is the one before the slash, as in
    /// `10.150.0.7/24`. If that is the network address, as in `10.150.0.0/24`, the server gets the first host address.
    pub fn new(prefixes: &[IpNet]) -> Result<Self, PoolError> {
        let mut pools = Self { v4: None, v6: None, own_are_leased: false };
        for &prefix in prefixes {
            if prefix.prefix_len() == prefix.max_prefix_len() {
                return Err(PoolError::NoRoom(prefix));
            }
            match prefix {
                IpNet::V4(net) => {
                    if let Some((other, _)) = pools.v4 {
                        return Err(PoolError::Two(other.into(), prefix));
                    }
                    if net.prefix_len() < 31 && net.addr() == net.broadcast() {
                        return Err(PoolError::Broadcast(prefix));
                    }
                    let first = u32::from(net.network()) + u32::from(net.prefix_len() < 31);
                    let own = if net.addr() == net.network() { Ipv4Addr::from(first) } else { net.addr() };
                    pools.v4 = Some((net.trunc(), own));
                }
                IpNet::V6(net) => {
                    if let Some((other, _)) = pools.v6 {
                        return Err(PoolError::Two(other.into(), prefix));
                    }
                    let first = u128::from(net.network()) + u128::from(net.prefix_len() < 127);
                    let own = if net.addr() == net.network() { Ipv6Addr::from(first) } else { net.addr() };
                    pools.v6 = Some((net.trunc(), own));
                }
            }
        }
        if pools.v4.is_none() && pools.v6.is_none() { Err(PoolError::None) } else { Ok(pools) }
    }

    /// No address is reserved for this server: each of several servers has a lease.
    #[must_use]
    pub fn without_own(self) -> Self {
        Self { own_are_leased: true, ..self }
    }

    /// The addresses of both pools.
    pub(crate) fn spaces(&self) -> (Option<Space>, Option<Space>) {
        let space = |mut space: Space| {
            if self.own_are_leased {
                space.release_own();
            }
            space
        };
        (self.v4.map(Space::v4).map(space), self.v6.map(Space::v6).map(space))
    }

    /// The IPv4 pool and the server's own address in it.
    pub fn v4(&self) -> Option<(Ipv4Net, Ipv4Addr)> {
        self.v4
    }

    /// The IPv6 pool and the server's own address in it.
    pub fn v6(&self) -> Option<(Ipv6Net, Ipv6Addr)> {
        self.v6
    }

    /// The number of addresses of the IPv4 and of the IPv6 pool that can be leased; 0 without such a pool.
    pub fn capacity(&self) -> (u128, u128) {
        let size = |space: Space| (space.last - space.first).saturating_add(u128::from(space.own.is_none()));
        let (v4, v6) = self.spaces();
        (v4.map_or(0, size), v6.map_or(0, size))
    }
}

/// The free addresses of one pool.
///
/// They are stored as ranges: an empty /8 is one range, and the lowest free address is the start of the first range.
/// The cost of taking, returning and finding an address is logarithmic in the number of gaps.
#[derive(Debug)]
pub(crate) struct Space {
    net: IpNet,
    own: Option<u128>,
    /// The first and the last address that can be leased. The server's own is among them.
    first: u128,
    last: u128,
    /// Maps the first address of each range to its last. Ranges neither overlap nor touch.
    free: BTreeMap<u128, u128>,
}

/// How often an IPv6 address is drawn before the next free one is taken. If all draws fail, probably less than a tenth
/// of the addresses is free.
const DRAWS: u8 = 32;

impl Space {
    /// The addresses of an IPv4 pool.
    pub(crate) fn v4((net, own): (Ipv4Net, Ipv4Addr)) -> Self {
        let margin = u128::from(net.prefix_len() < 31);
        let (first, last) = (u128::from(net.network().to_bits()), u128::from(net.broadcast().to_bits()));
        Self::new(net.into(), own.to_bits().into(), first + margin, last - margin)
    }

    /// The addresses of an IPv6 pool.
    pub(crate) fn v6((net, own): (Ipv6Net, Ipv6Addr)) -> Self {
        let first = u128::from(net.network()) + u128::from(net.prefix_len() < 127);
        Self::new(net.into(), own.into(), first, net.broadcast().into())
    }

    fn new(net: IpNet, own: u128, first: u128, last: u128) -> Self {
        let mut space = Self { net, own: Some(own), first, last, free: BTreeMap::from([(first, last)]) };
        space.take_value(own);
        space
    }

    /// Nothing is reserved for the server any more.
    fn release_own(&mut self) {
        if let Some(own) = self.own.take() {
            self.give_back(self.address(own));
        }
    }

    /// The pool.
    pub(crate) fn net(&self) -> IpNet {
        self.net
    }

    /// Whether the address can be leased at all.
    pub(crate) fn contains(&self, address: IpAddr) -> bool {
        let value = value(address);
        self.net.contains(&address) && (self.first..=self.last).contains(&value) && Some(value) != self.own
    }

    /// Whether the address is free.
    pub(crate) fn is_free(&self, address: IpAddr) -> bool {
        self.net.contains(&address) && self.range_of(value(address)).is_some()
    }

    /// Removes the address from the free ones.
    pub(crate) fn take(&mut self, address: IpAddr) {
        if self.net.contains(&address) {
            self.take_value(value(address));
        }
    }

    /// Returns the address to the free ones, if it can be leased at all.
    pub(crate) fn give_back(&mut self, address: IpAddr) {
        if !self.contains(address) || self.is_free(address) {
            return;
        }
        // The addition cannot overflow: the highest address has no right neighbour.
        let (mut start, mut end) = (value(address), value(address));
        if let Some(after) = end.checked_add(1).and_then(|next| self.free.remove(&next)) {
            end = after;
        }
        if let Some((&before, &before_end)) = self.free.range(..start).next_back()
            && before_end + 1 == start
        {
            start = before;
        }
        self.free.insert(start, end);
    }

    /// The lowest free address.
    pub(crate) fn lowest(&self) -> Option<IpAddr> {
        self.free.keys().next().map(|&value| self.address(value))
    }

    /// A free address derived from a hash of the key and the pool. It is the same each time while no other peer has it.
    pub(crate) fn drawn(&self, key: &PublicKey) -> Option<IpAddr> {
        let net = value(self.net.network());
        let host_bits = u32::from(self.net.max_prefix_len() - self.net.prefix_len());
        let mask = 1_u128.checked_shl(host_bits).map_or(u128::MAX, |above| above - 1);
        let mut candidate = self.first;
        for draw in 0..DRAWS {
            let digest =
                hash(&[b"RustGuard lease address v1", &net.to_be_bytes(), &[self.net.prefix_len(), draw], &key.0]);
            let (half, _) = digest.split_first_chunk().expect("a digest has 32 bytes");
            candidate = net | (u128::from_be_bytes(*half) & mask);
            if self.range_of(candidate).is_some() {
                return Some(self.address(candidate));
            }
        }
        let next = self.free.range(candidate..).next().or_else(|| self.free.iter().next());
        next.map(|(&start, _)| self.address(start))
    }

    fn take_value(&mut self, value: u128) {
        let Some((start, end)) = self.range_of(value) else { return };
        self.free.remove(&start);
        if start < value {
            self.free.insert(start, value - 1);
        }
        if value < end {
            self.free.insert(value + 1, end);
        }
    }

    /// The free range that contains the value.
    fn range_of(&self, value: u128) -> Option<(u128, u128)> {
        self.free.range(..=value).next_back().map(|(&start, &end)| (start, end)).filter(|&(_, end)| value <= end)
    }

    fn address(&self, value: u128) -> IpAddr {
        match self.net {
            IpNet::V4(_) => Ipv4Addr::from(u32::try_from(value).expect("IPv4 spaces hold IPv4 addresses")).into(),
            IpNet::V6(_) => Ipv6Addr::from(value).into(),
        }
    }
}

fn value(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => u32::from(address).into(),
        IpAddr::V6(address) => address.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn net(text: &str) -> IpNet {
        text.parse().unwrap()
    }

    fn space(text: &str) -> Space {
        let pools = Pools::new(&[net(text)]).unwrap();
        pools.v4().map(Space::v4).or_else(|| pools.v6().map(Space::v6)).unwrap()
    }

    fn all_free(space: &mut Space) -> Vec<String> {
        let mut found = Vec::new();
        while let Some(address) = space.lowest() {
            space.take(address);
            found.push(address.to_string());
        }
        found
    }

    #[test]
    fn what_each_prefix_length_has_to_give() {
        for (pool, expected) in [
            ("10.0.0.0/29", &["10.0.0.2", "10.0.0.3", "10.0.0.4", "10.0.0.5", "10.0.0.6"][..]),
            ("10.0.0.4/29", &["10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.5", "10.0.0.6"]),
            ("10.0.0.0/30", &["10.0.0.2"]),
            ("10.0.0.0/31", &["10.0.0.1"]),
            ("10.0.0.1/31", &["10.0.0.0"]),
            ("255.255.255.254/31", &["255.255.255.255"]),
            ("fd00::/126", &["fd00::2", "fd00::3"]),
            ("fd00::3/126", &["fd00::1", "fd00::2"]),
            ("fd00::/127", &["fd00::1"]),
            ("fd00::1/127", &["fd00::"]),
            ("ffff:ffff:ffff:ffff:ffff:ffff:ffff:fffe/127", &["ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"]),
        ] {
            assert_eq!(all_free(&mut space(pool)), expected, "{pool}");
            let (v4, v6) = Pools::new(&[net(pool)]).unwrap().capacity();
            assert_eq!(v4 + v6, expected.len() as u128, "{pool}");
        }
    }

    #[test]
    fn a_whole_address_space_is_one_range() {
        for (pool, lowest) in [("0.0.0.0/0", "0.0.0.2"), ("10.0.0.0/8", "10.0.0.2"), ("::/0", "::2")] {
            let space = space(pool);
            assert_eq!(space.lowest().unwrap().to_string(), lowest);
            assert_eq!(space.free.len(), 1);
        }
        assert!(!space("0.0.0.0/0").is_free("255.255.255.255".parse().unwrap()), "the broadcast address");
        assert!(space("::/0").is_free("ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff".parse().unwrap()));
        assert!(space("::/0").drawn(&PublicKey([1; 32])).is_some());
    }

    #[test]
    fn pools_that_are_none_are_refused() {
        assert_eq!(Pools::new(&[]), Err(PoolError::None));
        for one in ["10.0.0.1/32", "fd00::1/128"] {
            assert_eq!(Pools::new(&[net(one)]), Err(PoolError::NoRoom(net(one))));
        }
        for (a, b) in [("10.0.0.0/24", "10.1.0.0/24"), ("fd00::/64", "fd01::/64")] {
            assert_eq!(Pools::new(&[net(a), net(b)]), Err(PoolError::Two(net(a), net(b))));
        }
        assert_eq!(Pools::new(&[net("10.0.0.255/24")]), Err(PoolError::Broadcast(net("10.0.0.255/24"))));
        assert!(PoolError::Broadcast(net("10.0.0.255/24")).to_string().ends_with("write 10.0.0.0/24"));
    }

    #[test]
    fn the_server_has_the_first_host_or_the_one_it_is_written_with() {
        let pools = Pools::new(&[net("10.0.0.0/24"), net("fd00::/64")]).unwrap();
        assert_eq!(pools.v4().unwrap().1.to_string(), "10.0.0.1");
        assert_eq!(pools.v6().unwrap().1.to_string(), "fd00::1");
        let pools = Pools::new(&[net("10.0.0.9/24"), net("fd00::9/64")]).unwrap();
        assert_eq!(pools.v4().unwrap(), ("10.0.0.0/24".parse().unwrap(), "10.0.0.9".parse().unwrap()));
        assert_eq!(pools.v6().unwrap(), ("fd00::/64".parse().unwrap(), "fd00::9".parse().unwrap()));
    }

    #[test]
    fn addresses_of_the_other_family_are_not_in_a_space() {
        let v4 = space("0.0.0.0/0");
        assert!(!v4.contains("::a00:2".parse().unwrap()));
        assert!(!v4.is_free("::a00:2".parse().unwrap()));
    }

    #[test]
    fn drawing_is_stable_differs_by_key_and_pool_and_finds_the_last_one() {
        let mut small = space("fd00::/120");
        let key = PublicKey([7; 32]);
        assert_eq!(small.drawn(&key), small.drawn(&key));
        let wide = space("fd00::/64");
        assert_ne!(wide.drawn(&key), wide.drawn(&PublicKey([8; 32])));
        let other = space("fd00:0:0:1::/64");
        let host = |address: IpAddr| value(address) & u128::from(u64::MAX);
        assert_ne!(host(wide.drawn(&key).unwrap()), host(other.drawn(&key).unwrap()));

        let mut seen = BTreeSet::new();
        for _ in 0..254 {
            let address = small.drawn(&key).expect("as many as there are");
            assert!(small.contains(address) && seen.insert(address));
            small.take(address);
        }
        assert_eq!(small.drawn(&key), None);
    }

    proptest! {
        /// The ranges are compared with a plain set.
        #[test]
        fn ranges_are_a_set(steps in proptest::collection::vec((any::<bool>(), 0_u8..=255), 0..400)) {
            let mut space = space("10.0.0.77/24");
            let mut set: BTreeSet<u8> = (1..255).filter(|&host| host != 77).collect();
            for (take, host) in steps {
                let address = IpAddr::from([10, 0, 0, host]);
                if take {
                    space.take(address);
                    set.remove(&host);
                } else {
                    space.give_back(address);
                    if (1..255).contains(&host) && host != 77 {
                        set.insert(host);
                    }
                }
                prop_assert_eq!(space.lowest(), set.first().map(|&host| IpAddr::from([10, 0, 0, host])));
                prop_assert_eq!(space.is_free(address), set.contains(&host));
                let gaps = set.iter().filter(|&&host| !set.contains(&(host - 1))).count();
                prop_assert_eq!(space.free.len(), gaps, "touching ranges are one");
            }
        }
    }
}
