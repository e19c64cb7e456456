//! The rules that one member enforces: the flows that may reach the member, and the networks and stock clients that it
//! is responsible for.

use ipnet::IpNet;
use std::{
    collections::HashMap,
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    ops::RangeInclusive,
};

/// ICMP, of IPv4.
const ICMP: u8 = 1;
/// ICMP, of IPv6.
const ICMPV6: u8 = 58;
/// TCP.
pub(crate) const TCP: u8 = 6;
/// UDP.
pub(crate) const UDP: u8 = 17;

/// A flow that begins: the fields of its first packet that rules use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Flow {
    /// The source.
    pub from: IpAddr,
    /// The destination.
    pub to: IpAddr,
    /// The protocol, by its number in the IP header.
    pub protocol: u8,
    /// The destination port of TCP, UDP and other protocols with ports. `None` if there is none, or if it is unknown,
    /// as in a fragment after the first.
    pub port: Option<u16>,
}

/// The rules that one member enforces: the traffic that may reach the member, and the networks and stock clients that
/// it is responsible for. Everything else is refused, so the rules that [`default`](Self::default) makes refuse
/// everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rules {
    sets: Vec<Set>,
    rules: Vec<Rule>,
}

/// One rule: the traffic that is allowed from some addresses to others.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Rule {
    line: u32,
    from: usize,
    to: usize,
    traffic: Traffic,
}

/// Addresses, as ranges in ascending order that neither touch nor overlap.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Set {
    v4: Vec<(u32, u32)>,
    v6: Vec<(u128, u128)>,
}

/// Makes [`Rules`].
#[derive(Clone, Debug, Default)]
pub struct RulesBuilder {
    rules: Rules,
    /// Finds equal sets, because many rules name the same addresses.
    known: HashMap<Set, usize>,
}

impl Rules {
    /// Begins with rules that refuse everything.
    pub fn builder() -> RulesBuilder {
        RulesBuilder::default()
    }

    /// The line of the policy that allows the flow. `None` if it is refused.
    ///
    /// The time is proportional to the number of rules, and to the logarithm of the number of prefixes in each.
    pub fn allows(&self, flow: &Flow) -> Option<u32> {
        let allows = |rule: &&Rule| {
            rule.traffic.contains(flow.protocol, flow.port)
                && self.sets[rule.to].contains(flow.to)
                && self.sets[rule.from].contains(flow.from)
        };
        self.rules.iter().find(allows).map(|rule| rule.line)
    }

    /// The rules between two addresses.
    pub(crate) fn between(&self, from: IpAddr, to: IpAddr) -> impl Iterator<Item = (u32, &Traffic)> {
        let is_between = move |rule: &&Rule| self.sets[rule.to].contains(to) && self.sets[rule.from].contains(from);
        self.rules.iter().filter(is_between).map(|rule| (rule.line, &rule.traffic))
    }

    /// How many rules there are.
    pub fn len(&self) -> usize {
        self.rules.len()
    }

    /// Whether there is no rule, so that everything is refused.
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }
}

impl RulesBuilder {
    /// Adds a rule for a line of the policy. A rule from or to no address allows nothing, and is left out.
    #[must_use]
    pub fn allow(
        mut self,
        line: u32,
        from: impl IntoIterator<Item = IpNet>,
        to: impl IntoIterator<Item = IpNet>,
        traffic: Traffic,
    ) -> Self {
        let (from, to) = (Set::new(from), Set::new(to));
        if !from.is_empty() && !to.is_empty() {
            let (from, to) = (self.set(from), self.set(to));
            self.rules.rules.push(Rule { line, from, to, traffic });
        }
        self
    }

    /// The rules.
    pub fn build(self) -> Rules {
        self.rules
    }

    fn set(&mut self, set: Set) -> usize {
        let sets = &mut self.rules.sets;
        *self.known.entry(set).or_insert_with_key(|set| {
            sets.push(set.clone());
            sets.len() - 1
        })
    }
}

impl Set {
    fn new(prefixes: impl IntoIterator<Item = IpNet>) -> Self {
        let mut set = Self::default();
        for prefix in prefixes {
            match prefix {
                IpNet::V4(prefix) => set.v4.push((prefix.network().into(), prefix.broadcast().into())),
                IpNet::V6(prefix) => set.v6.push((prefix.network().into(), prefix.broadcast().into())),
            }
        }
        set.v4 = merged(set.v4, |last| last.checked_add(1));
        set.v6 = merged(set.v6, |last| last.checked_add(1));
        set
    }

    fn is_empty(&self) -> bool {
        self.v4.is_empty() && self.v6.is_empty()
    }

    fn contains(&self, address: IpAddr) -> bool {
        match address {
            IpAddr::V4(address) => holds(&self.v4, Ipv4Addr::to_bits(address)),
            IpAddr::V6(address) => holds(&self.v6, Ipv6Addr::to_bits(address)),
        }
    }
}

/// The same addresses as ranges in order, without overlaps.
fn merged<A: Copy + Ord>(mut ranges: Vec<(A, A)>, next: impl Fn(A) -> Option<A>) -> Vec<(A, A)> {
    ranges.sort_unstable();
    let mut merged: Vec<(A, A)> = Vec::with_capacity(ranges.len());
    for (first, last) in ranges {
        match merged.last_mut() {
            // The previous range ends directly before this one, or later.
            Some(before) if next(before.1).is_none_or(|next| first <= next) => before.1 = before.1.max(last),
            _ => merged.push((first, last)),
        }
    }
    merged.shrink_to_fit();
    merged
}

fn holds<A: Copy + Ord>(ranges: &[(A, A)], address: A) -> bool {
    let behind = ranges.partition_point(|(first, _)| *first <= address);
    behind.checked_sub(1).is_some_and(|at| address <= ranges[at].1)
}

/// The traffic that a rule allows between its ends: everything, or some protocols and ports.
///
/// `None` means everything, so that an accidentally empty list means nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Traffic(Option<Vec<Kind>>);

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Kind {
    /// ICMP of both versions of IP.
    Icmp,
    Protocol(u8),
    /// A protocol with ports, limited to these.
    Ports(u8, RangeInclusive<u16>),
}

impl Traffic {
    /// Everything.
    pub fn any() -> Self {
        Self::default()
    }

    /// ICMP of both versions of IP.
    pub fn icmp() -> Self {
        Self(Some(vec![Kind::Icmp]))
    }

    /// A protocol by its number, with all ports. 1 and 58 are ICMP of one version of IP only.
    pub fn protocol(number: u8) -> Self {
        Self(Some(vec![Kind::Protocol(number)]))
    }

    /// TCP to these ports. Without any, it is nothing.
    pub fn tcp(ports: impl IntoIterator<Item = RangeInclusive<u16>>) -> Self {
        Self(Some(ports.into_iter().map(|ports| Kind::Ports(TCP, ports)).collect()))
    }

    /// UDP to these ports. Without any, it is nothing.
    pub fn udp(ports: impl IntoIterator<Item = RangeInclusive<u16>>) -> Self {
        Self(Some(ports.into_iter().map(|ports| Kind::Ports(UDP, ports)).collect()))
    }

    /// The union of both. The union with everything is everything.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self(self.0.zip(other.0).map(|(kinds, others)| [kinds, others].concat()))
    }

    /// The allowed ports of a protocol: several ranges, in no order. A protocol without ports has the full range.
    fn ports(&self, protocol: u8) -> impl Iterator<Item = RangeInclusive<u16>> {
        let of = move |kind: &Kind| match kind {
            Kind::Icmp if protocol == ICMP || protocol == ICMPV6 => Some(0..=u16::MAX),
            Kind::Protocol(number) if *number == protocol => Some(0..=u16::MAX),
            Kind::Ports(number, ports) if *number == protocol => Some(ports.clone()),
            _ => None,
        };
        let all = self.0.is_none().then_some(0..=u16::MAX);
        self.0.iter().flatten().filter_map(of).chain(all)
    }

    /// Its protocols with their ports. `None` for everything. ICMP is the one of this version of IP.
    fn parts(&self, v4: bool) -> Option<impl Iterator<Item = (u8, RangeInclusive<u16>)>> {
        let part = move |kind: &Kind| match kind {
            Kind::Icmp => (if v4 { ICMP } else { ICMPV6 }, 0..=u16::MAX),
            Kind::Protocol(number) => (*number, 0..=u16::MAX),
            Kind::Ports(number, ports) => (*number, ports.clone()),
        };
        self.0.as_ref().map(|kinds| kinds.iter().map(part))
    }

    /// Whether some of `other` is part of it.
    pub(crate) fn touches(&self, other: &Self, v4: bool) -> bool {
        let meet = |a: &RangeInclusive<u16>, b: &RangeInclusive<u16>| a.start() <= b.end() && b.start() <= a.end();
        other
            .parts(v4)
            .is_none_or(|mut parts| parts.any(|(protocol, ports)| self.ports(protocol).any(|own| meet(&own, &ports))))
    }

    /// The intersection of both. `None` if it is empty.
    #[must_use]
    pub fn common(&self, other: &Self) -> Option<Self> {
        let (Some(ours), Some(theirs)) = (&self.0, &other.0) else {
            return Some(if self.0.is_none() { other.clone() } else { self.clone() });
        };
        let both =
            ours.iter().flat_map(|a| theirs.iter().filter_map(|b| a.common(b))).fold(Vec::new(), |mut all, kind| {
                if !all.contains(&kind) {
                    all.push(kind);
                }
                all
            });
        (!both.is_empty()).then_some(Self(Some(both)))
    }

    /// Whether all of it is covered by these together.
    pub(crate) fn is_within<'t>(&self, others: impl Iterator<Item = &'t Self> + Clone, v4: bool) -> bool {
        if others.clone().any(|other| other.0.is_none()) {
            return true;
        }
        self.parts(v4).is_some_and(|mut parts| {
            parts.all(|(protocol, wanted)| {
                let mut ranges: Vec<_> = others.clone().flat_map(|other| other.ports(protocol)).collect();
                ranges.sort_unstable_by_key(|ports| *ports.start());
                // The first port that is not known to be covered.
                let mut next = u32::from(*wanted.start());
                for ports in ranges {
                    if u32::from(*ports.start()) <= next {
                        next = next.max(u32::from(*ports.end()) + 1);
                    }
                }
                next > u32::from(*wanted.end())
            })
        })
    }

    /// Whether a packet of this protocol, to this port if it has one, is part of it.
    pub fn contains(&self, protocol: u8, port: Option<u16>) -> bool {
        let is_of = |kind: &Kind| match kind {
            Kind::Icmp => protocol == ICMP || protocol == ICMPV6,
            Kind::Protocol(number) => protocol == *number,
            Kind::Ports(number, ports) => protocol == *number && port.is_some_and(|port| ports.contains(&port)),
        };
        self.0.as_ref().is_none_or(|kinds| kinds.iter().any(is_of))
    }
}

impl Kind {
    fn common(&self, other: &Self) -> Option<Self> {
        match (self, other) {
            (Self::Icmp, Self::Icmp) => Some(Self::Icmp),
            (Self::Icmp, Self::Protocol(number)) | (Self::Protocol(number), Self::Icmp) => {
                (*number == ICMP || *number == ICMPV6).then_some(Self::Protocol(*number))
            }
            (Self::Protocol(a), Self::Protocol(b)) => (a == b).then_some(Self::Protocol(*a)),
            (Self::Protocol(a), Self::Ports(b, ports)) | (Self::Ports(b, ports), Self::Protocol(a)) => {
                (a == b).then(|| Self::Ports(*a, ports.clone()))
            }
            (Self::Ports(a, ours), Self::Ports(b, theirs)) => {
                let ports = *ours.start().max(theirs.start())..=*ours.end().min(theirs.end());
                (a == b && !ports.is_empty()).then_some(Self::Ports(*a, ports))
            }
            (Self::Icmp, Self::Ports(..)) | (Self::Ports(..), Self::Icmp) => None,
        }
    }
}

/// In the policy language: `tcp/22,443`, `icmp,udp/53`. Empty for everything.
impl fmt::Display for Traffic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut before = None;
        for (at, kind) in self.0.iter().flatten().enumerate() {
            if at > 0 {
                f.write_str(",")?;
            }
            let number = match kind {
                Kind::Icmp => {
                    f.write_str("icmp")?;
                    before = None;
                    continue;
                }
                Kind::Protocol(number) | Kind::Ports(number, _) => *number,
            };
            let Kind::Ports(_, ports) = kind else {
                match number {
                    TCP => f.write_str("tcp")?,
                    UDP => f.write_str("udp")?,
                    _ => write!(f, "proto/{number}")?,
                }
                before = None;
                continue;
            };
            // The protocol is written once before all its ports.
            if before.replace(number) != Some(number) {
                f.write_str(if number == TCP { "tcp/" } else { "udp/" })?;
            }
            write!(f, "{}", ports.start())?;
            if ports.start() != ports.end() {
                write!(f, "-{}", ports.end())?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn net(text: &str) -> IpNet {
        text.parse().unwrap()
    }

    fn flow(from: &str, to: &str, protocol: u8, port: impl Into<Option<u16>>) -> Flow {
        Flow { from: from.parse().unwrap(), to: to.parse().unwrap(), protocol, port: port.into() }
    }

    #[test]
    fn nothing_is_allowed_that_no_rule_names() {
        let rules = Rules::builder()
            .allow(3, [net("10.0.0.1/32"), net("fd00::1/128")], [net("10.0.0.2/32")], Traffic::tcp([22..=22, 80..=90]))
            .allow(5, [net("0.0.0.0/0")], [net("10.0.0.2/32")], Traffic::icmp())
            .build();
        assert_eq!(rules.allows(&flow("10.0.0.1", "10.0.0.2", TCP, 22)), Some(3));
        assert_eq!(rules.allows(&flow("10.0.0.1", "10.0.0.2", TCP, 85)), Some(3));
        assert_eq!(rules.allows(&flow("10.9.9.9", "10.0.0.2", ICMP, None)), Some(5));
        for refused in [
            flow("10.0.0.1", "10.0.0.2", TCP, 23),
            flow("10.0.0.1", "10.0.0.2", UDP, 22),
            flow("10.0.0.1", "10.0.0.3", TCP, 22),
            flow("10.0.0.3", "10.0.0.2", TCP, 22),
            // A later fragment has no port.
            flow("10.0.0.1", "10.0.0.2", TCP, None),
            flow("fd00::9", "fd00::2", ICMPV6, None),
            flow("::ffff:10.0.0.1", "10.0.0.2", TCP, 22),
        ] {
            assert_eq!(rules.allows(&refused), None, "{refused:?}");
        }
        assert_eq!(Rules::default().allows(&flow("10.0.0.1", "10.0.0.2", ICMP, None)), None);
    }

    #[test]
    fn a_rule_without_an_end_is_none_and_no_ports_are_nothing() {
        let rules = Rules::builder().allow(1, [], [net("0.0.0.0/0")], Traffic::any()).build();
        assert!(rules.is_empty());
        for nothing in [Traffic::tcp([]), Traffic::udp([])] {
            assert!(!nothing.contains(TCP, Some(1)) && !nothing.contains(UDP, None) && nothing != Traffic::any());
        }
    }

    #[test]
    fn traffic_is_shown_as_it_is_written() {
        let all = Traffic::icmp()
            .and(Traffic::tcp([22..=22, 8000..=8100]))
            .and(Traffic::udp([53..=53]))
            .and(Traffic::protocol(UDP))
            .and(Traffic::protocol(47));
        assert_eq!(all.to_string(), "icmp,tcp/22,8000-8100,udp/53,udp,proto/47");
        assert_eq!(all.and(Traffic::any()).to_string(), "");
    }

    proptest! {
        /// The common traffic of two is the traffic that is in both.
        #[test]
        fn common_traffic_is_in_both(
            a in prop::collection::vec((0u8..6, 0u16..20, 0u16..20), 0..4),
            b in prop::collection::vec((0u8..6, 0u16..20, 0u16..20), 0..4),
        ) {
            let traffic = |kinds: &[(u8, u16, u16)]| {
                let kind = |&(kind, first, len): &(u8, u16, u16)| match kind {
                    0 => Traffic::icmp(),
                    1 => Traffic::protocol(ICMPV6),
                    2 => Traffic::protocol(TCP),
                    3 => Traffic::udp([first..=first + len]),
                    _ => Traffic::tcp([first..=first + len]),
                };
                kinds.iter().map(kind).reduce(Traffic::and).unwrap_or_default()
            };
            let (a, b) = (traffic(&a), traffic(&b));
            let common = a.common(&b);
            for protocol in [ICMP, ICMPV6, TCP, UDP, 47] {
                for port in [None].into_iter().chain((0..40).map(Some)) {
                    let both = a.contains(protocol, port) && b.contains(protocol, port);
                    prop_assert_eq!(common.as_ref().is_some_and(|it| it.contains(protocol, port)), both, "{} {:?}", protocol, port);
                }
            }
        }

        /// A set contains exactly its prefixes, however they overlap.
        #[test]
        fn sets_hold_what_their_prefixes_hold(
            prefixes in prop::collection::vec((0u32..256, 24u8..=32), 0..12),
            wide in prop::collection::vec((any::<u32>(), 0u8..=32), 0..3),
            address in 0u32..256,
        ) {
            let v4 = |(address, len): (u32, u8)| IpNet::new(Ipv4Addr::from_bits(address).into(), len).unwrap();
            let v6 = |net: &IpNet| match net {
                IpNet::V4(net) => IpNet::new(net.addr().to_ipv6_mapped().into(), 96 + net.prefix_len()).unwrap(),
                IpNet::V6(_) => *net,
            };
            let prefixes: Vec<_> = prefixes.into_iter().chain(wide).map(v4).collect();
            let address = Ipv4Addr::from_bits(address);
            let expected = prefixes.iter().any(|prefix| prefix.contains(&IpAddr::from(address)));
            prop_assert_eq!(Set::new(prefixes.iter().copied()).contains(address.into()), expected);
            let mapped = address.to_ipv6_mapped().into();
            prop_assert_eq!(Set::new(prefixes.iter().map(v6)).contains(mapped), expected);
        }
    }
}
