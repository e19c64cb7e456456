//! The names and addresses of one roster, as a zone of the DNS.

use crate::dns::{WireName, upstream::Upstream};
use domain::base::{Name, ToName};
use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use rustguard_roster::{label::Label, member::Member, roster::Roster};
use std::{
    collections::{BTreeMap, HashMap},
    fmt::Write,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::Arc,
};

/// The domain that contains the networks.
const PARENT: &str = "internal";

/// Domains below `internal` that clouds and container engines answer on their own machines. A network with such a name
/// would take them over: `metadata.google.internal` gives credentials to programs.
const FOREIGN: [&str; 7] = ["compute", "containers", "docker", "ec2", "google", "lima", "orb"];

/// The widest pools with reverse names, in bits, for IPv4 and IPv6: wider ones would include names of other networks.
const WIDEST: (u8, u8) = (8, 16);

/// The names and addresses of one roster. Lookups are cheap. It is built anew for each roster.
///
/// | Name | Records |
/// |---|---|
/// | `rg0.internal` | SOA, NS, and A and AAAA of this machine, which is the name server |
/// | `laptop.rg0.internal` | A and AAAA of the member |
/// | a reverse name in the pools | PTR, where a member has the address |
/// | the domain of a pool, such as `0.150.10.in-addr.arpa` | SOA, NS |
///
/// All other names in these domains do not exist. The same holds for names that programs resolve by themselves and
/// trust ([`Label::is_of_programs`]), whatever the roster says. Names outside these domains do not belong to the zone.
/// So a roster cannot define a name outside its network's domain, or a reverse name outside the pools.
#[derive(Clone, Debug)]
pub struct Zone {
    network: Label,
    apex: WireName,
    serial: u32,
    own: Vec<IpAddr>,
    pools: Vec<IpNet>,
    by_name: HashMap<Box<str>, Arc<Member>>,
    by_address: BTreeMap<IpAddr, Arc<Member>>,
    upstream: Upstream,
}

/// The result of looking up a name.
pub(crate) enum Found<'a> {
    /// It is in none of the zone's domains.
    Elsewhere,
    /// It is in this domain of the zone, and has these records.
    Here { domain: WireName, records: Records<'a> },
}

/// The records of a name, by the kind of the name.
pub(crate) enum Records<'a> {
    /// Neither the name nor any name below it exists.
    NoName,
    /// The name exists without records, because names below it exist.
    Nothing,
    /// The name is one of the zone's domains, with these addresses.
    Domain(&'a [IpAddr]),
    /// The name of a member.
    Addresses(&'a [IpAddr]),
    /// The reverse name of an address of this member.
    Pointer(&'a Label),
}

impl Zone {
    /// The names of a roster, for the machine with these addresses.
    ///
    /// `pools` are the pools of the roster's [settings](rustguard_roster::settings::Settings::pools) that this machine
    /// accepts.
    pub fn new(roster: &Roster, own: impl IntoIterator<Item = IpAddr>, pools: impl IntoIterator<Item = IpNet>) -> Self {
        let network = roster.settings().name.clone();
        let pools = pools.into_iter().filter(has_reverse_names).map(|pool| pool.trunc()).collect();
        let members = || roster.members().map(Arc::clone);
        let found = members().filter(|member| !member.name.is_of_programs());
        let by_name = found.map(|member| (member.name.as_str().into(), member)).collect();
        let of_addresses = |member: Arc<Member>| {
            let addresses = member.addresses.clone();
            addresses.into_iter().map(move |address| (address, member.clone()))
        };
        Self {
            apex: wire_name(&format!("{network}.{PARENT}")),
            network,
            // The numbers of rosters grow by one. A serial number wraps around (RFC 1982).
            serial: roster.version().number as u32,
            own: own.into_iter().collect(),
            pools,
            by_name,
            by_address: members().flat_map(of_addresses).collect(),
            upstream: Upstream::default(),
        }
    }

    /// Sets the name servers for names outside the zone. Without them, such names are refused.
    #[must_use]
    pub fn with_upstream(self, upstream: Upstream) -> Self {
        Self { upstream, ..self }
    }

    /// The servers to ask for a name outside the zone.
    pub(crate) fn servers(&self, name: &WireName) -> Vec<SocketAddr> {
        self.upstream.servers(name, &self.own)
    }

    /// The network's domain: `rg0.internal`.
    pub fn domain(&self) -> String {
        domain(&self.network)
    }

    /// The domains of the pools' reverse names: `0.150.10.in-addr.arpa`. A pool has at most 128 of them.
    pub fn reverse_domains(&self) -> Vec<String> {
        self.pools.iter().flat_map(reverse_domains).collect()
    }

    /// The addresses of this machine in the network.
    pub fn own(&self) -> &[IpAddr] {
        &self.own
    }

    /// The name of the zone's name server. It is the network's domain, as in the empty zones of RFC 6303.
    pub(crate) fn name_server(&self) -> &WireName {
        &self.apex
    }

    pub(crate) fn serial(&self) -> u32 {
        self.serial
    }

    /// The full domain name of a member.
    pub(crate) fn full_name(&self, name: &Label) -> WireName {
        wire_name(&format!("{name}.{}", self.domain()))
    }

    pub(crate) fn find(&self, name: &WireName) -> Found<'_> {
        if name.ends_with(&self.apex) {
            let records = match name.label_count() - self.apex.label_count() {
                0 => Records::Domain(&self.own),
                1 => {
                    self.member(name.first().as_slice()).map_or(Records::NoName, |it| Records::Addresses(&it.addresses))
                }
                _ => Records::NoName,
            };
            return Found::Here { domain: self.apex.clone(), records };
        }
        match reverse_prefix(name) {
            Some(prefix) => self.find_reverse(name, prefix),
            None => Found::Elsewhere,
        }
    }

    fn member(&self, label: &[u8]) -> Option<&Arc<Member>> {
        self.by_name.get(&*std::str::from_utf8(label).ok()?.to_ascii_lowercase())
    }

    fn find_reverse(&self, name: &WireName, asked: IpNet) -> Found<'_> {
        // The domain begins at a label boundary: 10.150.0.0/20 has 16 domains of 24 bits.
        let Some(pool) = self.pools.iter().find(|pool| {
            same_family(pool, &asked) && asked.prefix_len() >= boundary(pool) && pool.contains(&asked.addr())
        }) else {
            return Found::Elsewhere;
        };
        let below = usize::from((asked.prefix_len() - boundary(pool)) / bits_of_label(pool));
        let domain = name.iter_suffixes().nth(below).expect("a domain is an end of the names below it").to_name();
        let mut members = self.by_address.range(asked.network()..=asked.broadcast());
        let records = match members.next() {
            Some((_, member)) if asked.prefix_len() == asked.max_prefix_len() => Records::Pointer(&member.name),
            _ if below == 0 => Records::Domain(&[]),
            Some(_) => Records::Nothing,
            None => Records::NoName,
        };
        Found::Here { domain, records }
    }
}

/// The domain of a network: `rg0.internal`.
pub fn domain(network: &Label) -> String {
    format!("{network}.{PARENT}")
}

/// Whether this domain, in lower case, is one that others already use below `internal`, such as `google.internal`, or
/// is inside such a domain.
pub fn is_foreign(domain: &str) -> bool {
    let mut labels = domain.rsplit('.');
    labels.next() == Some(PARENT) && labels.next().is_some_and(|label| FOREIGN.contains(&label))
}

fn wire_name(text: &str) -> WireName {
    text.parse().expect("labels of 63 bytes at most make a name of less than 255")
}

fn has_reverse_names(pool: &IpNet) -> bool {
    pool.prefix_len() >= if pool.addr().is_ipv4() { WIDEST.0 } else { WIDEST.1 }
}

/// The bits of an address for one label of its reverse name.
fn bits_of_label(prefix: &IpNet) -> u8 {
    if prefix.addr().is_ipv4() { 8 } else { 4 }
}

/// The prefix length of the pool's domains: the pool's own length, rounded up to a label.
fn boundary(pool: &IpNet) -> u8 {
    pool.prefix_len().next_multiple_of(bits_of_label(pool))
}

fn same_family(a: &IpNet, b: &IpNet) -> bool {
    a.addr().is_ipv4() == b.addr().is_ipv4()
}

fn reverse_domains(pool: &IpNet) -> Vec<String> {
    let domains =
        pool.subnets(boundary(pool)).expect("the boundary is no shorter than the pool, and no longer than an address");
    domains.map(|prefix| reverse_name(&prefix)).collect()
}

/// The reverse name of a prefix whose length ends at a label boundary.
fn reverse_name(prefix: &IpNet) -> String {
    let labels = usize::from(prefix.prefix_len() / bits_of_label(prefix));
    let mut text = String::new();
    let mut put = |label: &dyn std::fmt::Display| write!(text, "{label}.").expect("a string takes everything");
    match prefix.addr() {
        IpAddr::V4(address) => address.octets()[..labels].iter().rev().for_each(|octet| put(octet)),
        IpAddr::V6(address) => {
            let nibble = |index: usize| address.octets()[index / 2] >> (4 * (1 - index % 2)) & 15;
            (0..labels).rev().for_each(|index| put(&format_args!("{:x}", nibble(index))));
        }
    }
    text + if prefix.addr().is_ipv4() { "in-addr.arpa" } else { "ip6.arpa" }
}

/// The prefix of a reverse name. `None` if it is no reverse name, or not in canonical form (`01.10.in-addr.arpa`).
fn reverse_prefix(name: &WireName) -> Option<IpNet> {
    let below = |domain: &[u8]| name.ends_with(Name::from_slice(domain).expect("a name"));
    let v4 = below(b"\x07in-addr\x04arpa\0");
    if !v4 && !below(b"\x03ip6\x04arpa\0") {
        return None;
    }
    let count = name.label_count() - 3;
    let mut octets = [0; 16];
    if count > if v4 { 4 } else { 32 } {
        return None;
    }
    for (index, label) in name.iter().take(count).enumerate() {
        let label = std::str::from_utf8(label.as_slice()).ok()?.to_ascii_lowercase();
        let place = count - 1 - index;
        if v4 {
            octets[place] = label.parse().ok().filter(|octet: &u8| octet.to_string() == label)?;
        } else {
            let nibble =
                u8::from_str_radix(&label, 16).ok().filter(|nibble| format!("{nibble:x}") == label && *nibble < 16)?;
            octets[place / 2] |= nibble << (4 * (1 - place % 2));
        }
    }
    Some(if v4 {
        let [a, b, c, d, ..] = octets;
        Ipv4Net::new(Ipv4Addr::new(a, b, c, d), 8 * count as u8).ok()?.into()
    } else {
        Ipv6Net::new(Ipv6Addr::from(octets), 4 * count as u8).ok()?.into()
    })
}
