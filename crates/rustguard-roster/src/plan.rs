//! The plan of one member, derived from a roster: its peers, how they are reached, and their allowed prefixes.
//!
//! An authentic roster can still be harmful, because its issuer may be compromised. So a member accepts only what its
//! owner has agreed to, and what does not conflict with the networks of this machine.

use crate::{
    label::Label,
    member::{Member, Role},
    roster::Roster,
};
use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use rustguard_core::{host_port::HostPort, routing};
use rustguard_crypto::x25519::PublicKey;
use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

/// The keepalives of members towards servers if the settings have none, in seconds: less than the 30 s after which many
/// NATs drop a mapping.
const KEEPALIVE: u16 = 25;

/// The consent of this machine's owner, and the machine's own networks and addresses.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct LocalConsent {
    /// The networks of this machine's interfaces, without the tunnel.
    pub networks: Vec<IpNet>,
    /// The prefixes that this machine announces. If two machines took each other's announcements of the same prefix,
    /// packets would loop. The network itself may be inside such a prefix: this is so for an exit, and for a site with
    /// all of 10.0.0.0/8.
    pub announced: Vec<IpNet>,
    /// Addresses outside the tunnel that have to stay reachable: the addresses of the servers.
    pub underlay: Vec<IpAddr>,
    /// Whether default routes, and routes that cover more than half of all addresses, are accepted.
    pub default_route: bool,
    /// Whether prefixes behind members are accepted at all.
    pub prefixes: bool,
    /// Prefixes that are accepted, with their parts, even if they overlap a network of this machine or are public.
    pub accepted: Vec<IpNet>,
}

/// How a peer is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reach {
    /// At this address or name.
    At(HostPort),
    /// Through this server, which relays.
    Relayed(PublicKey),
}

/// A peer that the device is to have.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PlannedPeer {
    /// Its key.
    pub public_key: PublicKey,
    /// Its name.
    pub name: Label,
    /// Where it is reached. Empty: it initiates.
    pub reach: Vec<Reach>,
    /// The addresses that it may send from, and that are routed to it. A prefix of [`Plan::shared`] belongs to several
    /// peers: the device needs an engine that chooses ([`Members`](rustguard_core::routing::Members)).
    pub allowed_ips: Vec<IpNet>,
    /// The interval of keepalives to it, in seconds.
    pub keepalive: Option<u16>,
    /// Whether a server supplies a preshared key for this pair. With a stock client, and with the server where the
    /// machine joined, the pair uses the preshared key from joining.
    pub pair_key: bool,
    /// Whether direct paths are probed: both are members.
    pub direct: bool,
    /// Its role in this machine's routing.
    pub role: routing::Role,
}

/// Why something in the roster is not accepted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// A default route, or most of one.
    #[error("{0} announces {1}, which is a default route or most of one; say `--accept-default-route` if it may")]
    DefaultRoute(Label, IpNet),
    /// A network that this machine is in.
    #[error("{0} announces {1}, and this machine is in {2} itself")]
    OwnNetwork(Label, IpNet, IpNet),
    /// A network that this machine announces.
    #[error("{0} announces {1}, and this machine announces {2} itself")]
    Announced(Label, IpNet, IpNet),
    /// The route to a server would lead into the tunnel.
    #[error("{0} announces {1}, which holds {2}, the address of a server outside the tunnel")]
    Underlay(Label, IpNet, IpAddr),
    /// Addresses that are never behind a tunnel.
    #[error("{0} announces {1}: loopback, link-local, multicast and reserved addresses are never behind a tunnel")]
    Special(Label, IpNet),
    /// Public addresses, which belong to somebody else unless the owner has accepted them.
    #[error("{0} announces {1}, which are addresses of the Internet; `Accept = {1}` in the file takes them")]
    Public(Label, IpNet),
    /// This machine accepts no prefixes.
    #[error("{0} announces {1}, and this machine takes no prefixes")]
    NotWanted(Label, IpNet),
}

/// The plan of one member, derived from a roster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Plan {
    /// The peers, in the order of their keys.
    pub peers: Vec<PlannedPeer>,
    /// The prefixes that several peers have, with the keys of these peers.
    pub shared: BTreeMap<IpNet, Vec<PublicKey>>,
    /// Everything that is not accepted, and why.
    pub refused: Vec<Refusal>,
}

impl Plan {
    /// The plan for the member with this key. `None` if the roster does not contain it, because it was removed.
    pub fn new(roster: &Roster, own_key: &PublicKey, consent: &LocalConsent) -> Option<Self> {
        let me = roster.holder(own_key)?;
        let servers: Vec<_> = roster.members().filter(|member| member.role == Role::Server).collect();
        let (mut plan, mut announced) = (Self::default(), BTreeMap::<IpNet, Vec<PublicKey>>::new());
        for member in roster.members().filter(|member| member.public_key != me.public_key) {
            for prefix in &member.prefixes {
                match consent.refuses(member, *prefix) {
                    Some(refusal) => plan.refused.push(refusal),
                    None => announced.entry(*prefix).or_default().push(carrier(member)),
                }
            }
            // A stock client is reached through its server, which decrypts. Only its server has it as a peer.
            if let Role::Client(server) = member.role
                && server != me.public_key
            {
                continue;
            }
            plan.peers.push(PlannedPeer {
                public_key: member.public_key,
                name: member.name.clone(),
                reach: reach(me, member, &servers),
                allowed_ips: consent.addresses(member, &mut plan.refused),
                keepalive: (member.role == Role::Server && me.role != Role::Server)
                    .then(|| roster.settings().keepalive.unwrap_or(KEEPALIVE)),
                pair_key: ![me.role, member.role].iter().any(|role| matches!(role, Role::Client(_))),
                direct: me.role == Role::Member && member.role == Role::Member,
                role: match member.role {
                    Role::Client(_) => routing::Role::Client,
                    Role::Member => routing::Role::Member,
                    Role::Server => routing::Role::Server,
                },
            });
        }
        if !consent.default_route {
            let wide: BTreeSet<_> = default_routes(announced.keys()).into_iter().collect();
            for prefix in &wide {
                if let Some(member) = announced.remove(prefix).and_then(|keys| roster.member(&keys[0])) {
                    plan.refused.push(Refusal::DefaultRoute(member.name.clone(), *prefix));
                }
            }
        }
        for client in roster.members() {
            let Role::Client(server) = client.role else { continue };
            if server == me.public_key {
                continue;
            }
            let addresses = consent.addresses(client, &mut plan.refused);
            if let Some(peer) = plan.peer_mut(&server) {
                peer.allowed_ips.extend(addresses);
            }
        }
        for (prefix, keys) in announced {
            // Several clients of one server are one peer.
            let peers: BTreeMap<_, _> = keys.iter().map(|key| (key.0, *key)).collect();
            for key in peers.values() {
                if let Some(peer) = plan.peer_mut(key) {
                    peer.allowed_ips.push(prefix);
                }
            }
            if peers.len() > 1 {
                plan.shared.insert(prefix, peers.into_values().collect());
            }
        }
        Some(plan)
    }

    fn peer_mut(&mut self, key: &PublicKey) -> Option<&mut PlannedPeer> {
        let at = self.peers.binary_search_by_key(&key.0, |peer| peer.public_key.0).ok()?;
        self.peers.get_mut(at)
    }
}

/// The peer that carries the traffic of the prefixes behind a member.
fn carrier(member: &Member) -> PublicKey {
    match member.role {
        Role::Client(server) => server,
        Role::Member | Role::Server => member.public_key,
    }
}

fn reach(me: &Member, to: &Member, servers: &[&std::sync::Arc<Member>]) -> Vec<Reach> {
    match (me.role, to.role) {
        (_, Role::Server) => to.endpoints.iter().cloned().map(Reach::At).collect(),
        // Members and clients connect to their servers.
        (Role::Server, _) | (_, Role::Client(_)) => Vec::new(),
        (Role::Member | Role::Client(_), Role::Member) => {
            servers.iter().map(|server| Reach::Relayed(server.public_key)).collect()
        }
    }
}

impl LocalConsent {
    /// Why a prefix of a member is not accepted.
    fn refuses(&self, member: &Member, prefix: IpNet) -> Option<Refusal> {
        if !self.prefixes && !self.accepts(&prefix) {
            return Some(Refusal::NotWanted(member.name.clone(), prefix));
        }
        self.conflict(member, prefix).or_else(|| {
            // An exit announces everything: the networks of others are more specific.
            let overlaps = |own: &&IpNet| own.contains(&prefix) && own.prefix_len() > 1;
            let own = self.announced.iter().find(overlaps).filter(|_| !self.accepts(&prefix))?;
            Some(Refusal::Announced(member.name.clone(), prefix, *own))
        })
    }

    /// The accepted addresses of a member. An address could also be the address of a server outside the tunnel.
    fn addresses(&self, member: &Member, refused: &mut Vec<Refusal>) -> Vec<IpNet> {
        let take = |address: &IpAddr| match self.conflict(member, (*address).into()) {
            Some(refusal) => {
                refused.push(refusal);
                None
            }
            None => Some((*address).into()),
        };
        member.addresses.iter().filter_map(take).collect()
    }

    /// Why the addresses of a pool of the network with this name are not routed into the tunnel.
    pub fn refuses_pool(&self, network: &Label, pool: IpNet) -> Option<Refusal> {
        self.conflict_of(network, pool)
    }

    /// Whether the owner has accepted the prefix, or one that contains it.
    fn accepts(&self, prefix: &IpNet) -> bool {
        self.accepted.iter().any(|accepted| accepted.contains(prefix))
    }

    fn conflict(&self, member: &Member, prefix: IpNet) -> Option<Refusal> {
        self.conflict_of(&member.name, prefix)
    }

    fn conflict_of(&self, name: &Label, prefix: IpNet) -> Option<Refusal> {
        let name = || name.clone();
        if is_special(&prefix) {
            return Some(Refusal::Special(name(), prefix));
        }
        // Two halves of all addresses are a default route.
        let is_default = prefix.prefix_len() <= 1;
        if !self.default_route && (is_default || !default_routes([&prefix]).is_empty()) {
            return Some(Refusal::DefaultRoute(name(), prefix));
        }
        let has_own = |own: &&IpNet| prefix == **own || !is_default && prefix.contains(*own) && !self.accepts(&prefix);
        if let Some(own) = self.announced.iter().find(has_own) {
            return Some(Refusal::Announced(name(), prefix, *own));
        }
        if is_default {
            return None;
        }
        let overlaps = |network: &&IpNet| network.contains(&prefix) || prefix.contains(*network);
        if let Some(network) = self.networks.iter().find(overlaps).filter(|_| !self.accepts(&prefix)) {
            return Some(Refusal::OwnNetwork(name(), prefix, *network));
        }
        if let Some(address) = self.underlay.iter().find(|address| prefix.contains(*address)) {
            return Some(Refusal::Underlay(name(), prefix, *address));
        }
        // A member that attracts 8.8.8.0/24 into the tunnel could impersonate the hosts there.
        let is_permitted = is_private(&prefix) || self.default_route || self.accepts(&prefix);
        (!is_permitted).then(|| Refusal::Public(name(), prefix))
    }
}

/// The prefixes that form a default route, as a whole or in parts: they would route most of this machine's Internet
/// traffic into the tunnel.
fn default_routes<'p>(prefixes: impl IntoIterator<Item = &'p IpNet>) -> Vec<IpNet> {
    /// Prefixes that together cover more addresses than one of this length (IPv4, IPv6). All public IPv6 addresses are
    /// in a /3, and a provider has a /19 or less.
    const WIDE: [u8; 2] = [6, 12];
    let mut public: Vec<_> =
        prefixes.into_iter().filter(|prefix| !is_special(prefix) && !is_private(prefix)).copied().collect();
    public.sort_by_key(|prefix| (prefix.prefix_len(), *prefix));
    let share = |len: u8| 1_u128 << (64 - u32::from(len.min(64)));
    let mut default = Vec::new();
    for (v4, wide) in [(true, WIDE[0]), (false, WIDE[1])] {
        let of_family = || public.iter().filter(|prefix| prefix.addr().is_ipv4() == v4);
        let mut covered: u128 = of_family().map(|prefix| share(prefix.prefix_len())).sum();
        // The widest are refused first. The others may be intended.
        default.extend(of_family().take_while(|prefix| {
            let too_wide = covered > share(wide);
            covered -= share(prefix.prefix_len());
            too_wide
        }));
    }
    default
}

/// Whether the prefix is in a private network (RFC 1918, RFC 6598, RFC 4193), which is not part of the Internet.
fn is_private(prefix: &IpNet) -> bool {
    const PRIVATE: [IpNet; 5] = [
        v4([10, 0, 0, 0], 8),
        v4([172, 16, 0, 0], 12),
        v4([192, 168, 0, 0], 16),
        v4([100, 64, 0, 0], 10),
        IpNet::V6(Ipv6Net::new_assert(Ipv6Addr::new(0xfc00, 0, 0, 0, 0, 0, 0, 0), 7)),
    ];
    PRIVATE.iter().any(|private| private.contains(prefix))
}

const fn v4([a, b, c, d]: [u8; 4], len: u8) -> IpNet {
    IpNet::V4(Ipv4Net::new_assert(Ipv4Addr::new(a, b, c, d), len))
}

/// Loopback, link-local, multicast and reserved addresses (RFC 6890), and prefixes that overlap them: 169.0.0.0/8 would
/// include 169.254.169.254, where clouds give secrets to their machines.
fn is_special(prefix: &IpNet) -> bool {
    const SPECIAL: [&str; 9] = [
        "0.0.0.0/8",
        "127.0.0.0/8",
        "169.254.0.0/16",
        "224.0.0.0/4",
        "240.0.0.0/4",
        "::/96",
        "::ffff:0:0/96",
        "fe80::/10",
        "ff00::/8",
    ];
    let special = SPECIAL.iter().map(|text| text.parse::<IpNet>().expect("a prefix"));
    prefix.prefix_len() > 1 && special.into_iter().any(|special| special.contains(prefix) || prefix.contains(&special))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{key::NetworkSecret, settings::Settings};
    use std::sync::Arc;

    const SERVER: u8 = 1;
    const PHONE: u8 = 9;

    fn key(n: u8) -> PublicKey {
        PublicKey([n; 32])
    }

    fn net(text: &str) -> IpNet {
        text.parse().unwrap()
    }

    fn member(n: u8) -> Member {
        let address: IpAddr = [10, 150, 0, n].into();
        Member::new(key(n), format!("m{n}").parse().unwrap()).with_addresses([address])
    }

    fn server(n: u8) -> Member {
        member(n).with_role(Role::Server).with_endpoints([format!("203.0.113.{n}:51820").parse().unwrap()])
    }

    fn roster(members: impl IntoIterator<Item = Member>) -> Roster {
        let secret = NetworkSecret::from_bytes(&[7; 32]);
        let settings = Settings::new("rg0".parse().unwrap());
        Roster::issue(&secret, 1, 0, settings, members.into_iter().map(Arc::new)).unwrap()
    }

    fn all() -> LocalConsent {
        LocalConsent { prefixes: true, ..LocalConsent::default() }
    }

    /// Two servers, two members, and a phone of the first server.
    fn network() -> Roster {
        let phone = member(PHONE).with_role(Role::Client(key(SERVER)));
        roster([server(SERVER), server(2), member(3), member(4), phone])
    }

    fn peer(plan: &Plan, n: u8) -> &PlannedPeer {
        plan.peers.iter().find(|peer| peer.public_key == key(n)).unwrap()
    }

    #[test]
    fn members_reach_servers_by_address_and_each_other_through_them() {
        let plan = Plan::new(&network(), &key(3), &all()).unwrap();
        let keys: Vec<_> = plan.peers.iter().map(|peer| peer.public_key).collect();
        assert_eq!(keys, [SERVER, 2, 4].map(key), "a phone is nobody's peer but its server's");
        assert_eq!(peer(&plan, SERVER).reach, [Reach::At("203.0.113.1:51820".parse().unwrap())]);
        assert_eq!(peer(&plan, SERVER).keepalive, Some(KEEPALIVE));
        assert_eq!(peer(&plan, SERVER).allowed_ips, [net("10.150.0.1/32"), net("10.150.0.9/32")], "and the phone's");
        assert_eq!(peer(&plan, 4).reach, [Reach::Relayed(key(SERVER)), Reach::Relayed(key(2))]);
        assert_eq!((peer(&plan, 4).keepalive, peer(&plan, 4).pair_key, peer(&plan, 4).direct), (None, true, true));
        assert!(peer(&plan, 2).pair_key && !peer(&plan, 2).direct, "a server has an address");
    }

    #[test]
    fn servers_are_called() {
        let plan = Plan::new(&network(), &key(SERVER), &all()).unwrap();
        assert_eq!(peer(&plan, 3).reach, []);
        assert_eq!(peer(&plan, PHONE).allowed_ips, [net("10.150.0.9/32")]);
        assert_eq!(peer(&plan, 2).reach.len(), 1, "servers call each other");
        assert!(plan.peers.iter().all(|peer| peer.keepalive.is_none() && !peer.direct));
        assert_eq!((peer(&plan, 2).role, peer(&plan, 3).role), (routing::Role::Server, routing::Role::Member));
        assert!(peer(&plan, 3).pair_key && !peer(&plan, PHONE).pair_key, "a phone knows nothing of it");
        let other = Plan::new(&network(), &key(2), &all()).unwrap();
        assert!(other.peers.iter().all(|peer| peer.public_key != key(PHONE)));
    }

    #[test]
    fn who_was_removed_has_no_plan_and_an_old_key_has_one() {
        let rotated = member(5).with_old_key(key(6));
        let network = roster([server(SERVER), rotated]);
        assert_eq!(Plan::new(&network, &key(7), &all()), None);
        assert_eq!(Plan::new(&network, &key(6), &all()), Plan::new(&network, &key(5), &all()));
    }

    #[test]
    fn a_prefix_is_of_all_who_announce_it() {
        let network = roster([
            server(SERVER),
            member(2),
            member(3).with_prefixes([net("192.168.1.0/24"), net("192.168.2.0/24")]),
            member(4).with_prefixes([net("192.168.2.0/24")]),
        ]);
        let plan = Plan::new(&network, &key(2), &all()).unwrap();
        assert_eq!(peer(&plan, 3).allowed_ips, [net("10.150.0.3/32"), net("192.168.1.0/24"), net("192.168.2.0/24")]);
        assert_eq!(peer(&plan, 4).allowed_ips, [net("10.150.0.4/32"), net("192.168.2.0/24")]);
        assert_eq!(plan.shared, [(net("192.168.2.0/24"), vec![key(3), key(4)])].into());
    }

    #[test]
    fn special_addresses_cannot_be_announced_inside_of_others() {
        let announced = ["169.0.0.0/8", "168.0.0.0/5", "126.0.0.0/7", "fe00::/8", "::/8"].map(net);
        let network = roster([server(SERVER), member(2), member(3).with_prefixes(announced)]);
        let plan = Plan::new(&network, &key(2), &all()).unwrap();
        let special = announced.map(|prefix| Refusal::Special("m3".parse().unwrap(), prefix));
        assert_eq!((peer(&plan, 3).allowed_ips.len(), plan.refused), (1, special.into()));
    }

    #[test]
    fn an_address_of_a_member_is_no_way_around_that() {
        let greedy =
            member(3).with_addresses(["203.0.113.1", "192.168.1.7", "10.150.0.3"].map(|ip| ip.parse().unwrap()));
        let consent = LocalConsent {
            networks: vec![net("192.168.1.0/24")],
            underlay: vec!["203.0.113.1".parse().unwrap()],
            ..LocalConsent::default()
        };
        for greedy in [greedy.clone(), greedy.with_role(Role::Client(key(SERVER)))] {
            let plan = Plan::new(&roster([server(SERVER), member(2), greedy]), &key(2), &consent).unwrap();
            let carried: Vec<_> = plan.peers.iter().flat_map(|peer| &peer.allowed_ips).collect();
            assert!(carried.contains(&&net("10.150.0.3/32")));
            assert!(!carried.contains(&&net("203.0.113.1/32")) && !carried.contains(&&net("192.168.1.7/32")));
            assert_eq!(plan.refused.len(), 2);
        }
    }

    #[test]
    fn a_roster_can_take_nothing_that_the_owner_has_not_agreed_to() {
        let announced = [
            "0.0.0.0/0",
            "128.0.0.0/1",
            "192.168.1.0/24",
            "192.168.0.0/16",
            "203.0.113.0/24",
            "127.0.0.0/8",
            "172.16.0.0/12",
        ];
        let network = roster([server(SERVER), member(2), member(3).with_prefixes(announced.map(net))]);
        let consent = LocalConsent {
            networks: vec![net("192.168.1.0/24")],
            underlay: vec!["203.0.113.1".parse().unwrap()],
            ..all()
        };
        let plan = Plan::new(&network, &key(2), &consent).unwrap();
        assert_eq!(peer(&plan, 3).allowed_ips, [net("10.150.0.3/32"), net("172.16.0.0/12")]);
        let why: Vec<_> = plan.refused.iter().map(ToString::to_string).collect();
        assert_eq!(why.len(), 6, "{why:?}");
        assert_eq!(
            why[4],
            "m3 announces 203.0.113.0/24, which holds 203.0.113.1, the address of a server outside the tunnel"
        );
        let agreed = Plan::new(&network, &key(2), &LocalConsent { default_route: true, ..consent.clone() }).unwrap();
        assert!(peer(&agreed, 3).allowed_ips.contains(&net("0.0.0.0/0")));
        let named = LocalConsent { accepted: vec![net("192.168.0.0/16")], ..LocalConsent::default() };
        let named = LocalConsent { networks: consent.networks, ..named };
        let plan = Plan::new(&network, &key(2), &named).unwrap();
        assert_eq!(peer(&plan, 3).allowed_ips[1..], [net("192.168.0.0/16"), net("192.168.1.0/24")]);
        let nothing = Plan::new(&network, &key(2), &LocalConsent::default()).unwrap();
        assert_eq!((peer(&nothing, 3).allowed_ips.len(), nothing.refused.len()), (1, 7));
    }

    #[test]
    fn what_a_machine_announces_may_hold_the_network_itself() {
        let others = ["0.0.0.0/0", "10.0.0.0/8", "10.1.0.0/16", "192.168.9.0/24"];
        let network = roster([server(SERVER), member(2), member(3).with_prefixes(others.map(net))]);
        let name: Label = "rg0".parse().unwrap();
        for (announced, taken) in [
            // An exit: all except the route of another exit.
            ("0.0.0.0/0", &["10.0.0.0/8", "10.1.0.0/16", "192.168.9.0/24"][..]),
            // A site: prefixes inside its own are refused.
            ("10.0.0.0/8", &["0.0.0.0/0", "192.168.9.0/24"]),
            ("192.168.9.0/24", &["0.0.0.0/0", "10.0.0.0/8", "10.1.0.0/16"]),
        ] {
            let consent = LocalConsent { announced: vec![net(announced)], default_route: true, ..all() };
            assert_eq!(consent.refuses_pool(&name, net("10.150.0.0/24")), None, "{announced}");
            assert!(consent.refuses_pool(&name, net(announced)).is_some(), "{announced}: the same");
            let plan = Plan::new(&network, &key(2), &consent).unwrap();
            let carried = &peer(&plan, 3).allowed_ips;
            assert!(carried.contains(&net("10.150.0.3/32")), "{announced}");
            let prefixes: Vec<_> =
                carried.iter().filter(|prefix| prefix.prefix_len() < 32).map(ToString::to_string).collect();
            assert_eq!(prefixes, taken, "{announced}: {:?}", plan.refused);
        }
        // Unless the owner has accepted a part of it.
        let consent = LocalConsent { announced: vec![net("10.0.0.0/8")], accepted: vec![net("10.1.0.0/16")], ..all() };
        assert!(peer(&Plan::new(&network, &key(2), &consent).unwrap(), 3).allowed_ips.contains(&net("10.1.0.0/16")));
    }

    #[test]
    fn a_default_route_in_parts_is_one() {
        const PARTS: [&str; 5] = ["64.0.0.0/2", "128.0.0.0/3", "2000::/5", "10.0.0.0/8", "198.51.100.0/24"];
        let network = roster([server(SERVER), member(2), member(3).with_prefixes(PARTS.map(net))]);
        let named = LocalConsent { accepted: PARTS.map(net).into(), ..all() };
        let plan = Plan::new(&network, &key(2), &named).unwrap();
        assert_eq!(peer(&plan, 3).allowed_ips[1..], [net("10.0.0.0/8"), net("198.51.100.0/24")]);
        assert_eq!(plan.refused.len(), 3, "{:?}", plan.refused);
        // Together they are a default route, although each of them was accepted by name.
        let parts: Vec<_> = (1..=9_u8).map(|n| net(&format!("{n}.0.0.0/8"))).chain([net("198.51.100.0/24")]).collect();
        let network = roster([server(SERVER), member(2), member(3).with_prefixes(parts.iter().copied())]);
        let plan = Plan::new(&network, &key(2), &LocalConsent { accepted: parts, ..all() }).unwrap();
        assert!(plan.refused.iter().any(|it| matches!(it, Refusal::DefaultRoute(..))), "{:?}", plan.refused);
        let network = roster([server(SERVER), member(2), member(3).with_prefixes(PARTS.map(net))]);
        let agreed = Plan::new(&network, &key(2), &LocalConsent { default_route: true, ..all() }).unwrap();
        assert_eq!(peer(&agreed, 3).allowed_ips.len(), 5, "127.0.0.0/8 is in one of them");
        assert!(all().refuses_pool(&"rg0".parse().unwrap(), net("128.0.0.0/2")).is_some());
    }

    #[test]
    fn addresses_of_the_internet_are_taken_only_by_name() {
        let (public, name): (_, Label) = ([net("8.8.8.0/24"), net("2001:db8::/32")], "rg0".parse().unwrap());
        let greedy =
            member(3).with_prefixes(public).with_addresses(["10.150.0.3", "9.9.9.9"].map(|it| it.parse().unwrap()));
        let network = roster([server(SERVER), member(2), greedy]);
        let taken = |consent: &LocalConsent| {
            let plan = Plan::new(&network, &key(2), consent).unwrap();
            let pools = public.iter().filter(|pool| consent.refuses_pool(&name, **pool).is_none()).count();
            (peer(&plan, 3).allowed_ips[1..].to_vec(), pools, plan.refused)
        };
        let refused = [public[0], public[1], net("9.9.9.9/32")].map(|it| Refusal::Public("m3".parse().unwrap(), it));
        assert_eq!(taken(&all()), (vec![], 0, refused.clone().into()));
        assert_eq!(
            refused[0].to_string(),
            "m3 announces 8.8.8.0/24, which are addresses of the Internet; `Accept = 8.8.8.0/24` in the file takes them"
        );
        let named = LocalConsent { accepted: vec![net("8.8.0.0/16")], ..LocalConsent::default() };
        assert_eq!((taken(&named).0, taken(&named).1), (vec![net("8.8.8.0/24")], 1));
        assert_eq!(
            taken(&LocalConsent { default_route: true, ..all() }).0.len(),
            3,
            "a default route holds all of them"
        );
        for private in ["10.150.0.0/24", "172.16.0.0/12", "192.168.7.0/24", "100.64.0.0/10", "fd15::/64"] {
            assert_eq!(LocalConsent::default().refuses_pool(&name, net(private)), None, "{private}");
        }
    }
}
