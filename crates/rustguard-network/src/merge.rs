//! The configuration of a member: its file, and the roster as far as the file permits it.

mod names;

use crate::{dns::Upstream, state::State};
use ipnet::IpNet;
pub(crate) use names::Host;
pub use names::Resolver;
use rustguard_core::routing::Role as Router;
use rustguard_crypto::x25519::PublicKey;
use rustguard_device::{EndpointSpec, MAX_ENDPOINTS, PathSpec};
use rustguard_quick::conf::{Config, Peer};
use rustguard_roster::{
    member::{Member, Role},
    plan::{LocalConsent, Plan, PlannedPeer, Reach},
    roster::Roster,
    settings::Settings,
};
use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    net::{IpAddr, SocketAddr},
    time::Duration,
};

/// The default MTU. It fits every path, also one sealed through a server, if links carry 1,500 bytes.
pub(crate) const MTU: u16 = 1360;
/// The MTUs that members accept from a network. With a smaller one, an interface has no IPv6.
pub const MTUS: std::ops::RangeInclusive<u16> = 1280..=9216;
/// The most routes beyond the pools. Each is a route of the kernel.
const MAX_ROUTES: usize = 4096;

/// The result of applying a roster to this machine.
#[derive(Debug, Default)]
pub(crate) struct Merged {
    pub(crate) config: Config,
    /// Everything that is not accepted, and why.
    pub(crate) refused: Vec<String>,
    /// The members that are no peers yet, because the key of the pair is unknown.
    pub(crate) without_key: Vec<PublicKey>,
    /// The members whose key is derived from a different secret than the roster names. They keep it until a server
    /// sends the new one.
    pub(crate) with_old_key: Vec<PublicKey>,
    /// The names that the own resolver forwards.
    pub(crate) upstream: Upstream,
}

/// A member's configuration before it knows its network: only the file.
pub(crate) fn alone(base: &Config) -> Config {
    let mut config = base.clone();
    config.interface.mtu.get_or_insert(MTU);
    config
}

/// A former member's configuration: it no longer uses the network. The routes stay. Without them, packets to members
/// would leave this machine unsealed.
pub(crate) fn removed(base: &Config) -> Config {
    let mut config = Config::new(alone(base).interface, Vec::new());
    config.pools = base.peers.iter().flat_map(|peer| &peer.allowed_ips).copied().collect();
    config
}

/// What this machine knows of the network beside the roster.
pub(crate) struct Known<'a> {
    pub(crate) state: &'a State,
    /// The addresses at which members were reached directly in the last run.
    pub(crate) last: &'a BTreeMap<[u8; 32], SocketAddr>,
    /// The servers without whose sessions this machine does.
    pub(crate) resting: &'a BTreeSet<PublicKey>,
    pub(crate) host: &'a Host,
}

/// A member's configuration. `None` if the roster does not contain it.
pub(crate) fn merge(
    base: &Config,
    own_key: &PublicKey,
    roster: &Roster,
    consent: &LocalConsent,
    here: &Known<'_>,
) -> Option<Merged> {
    let state = here.state;
    let plan = Plan::new(roster, own_key, consent)?;
    let mut merged = Merged { config: Config::new(base.interface.clone(), Vec::new()), ..Merged::default() };
    merged.refused = plan.refused.iter().map(ToString::to_string).collect();
    merged.settings(roster.settings(), consent);
    let file_peers: HashMap<_, _> = base.peers.iter().map(|peer| (peer.public_key, peer)).collect();
    let mut known = HashSet::new();
    let mut routes = 0;
    for planned in &plan.peers {
        // The file knows a server by its key at the time when this machine joined.
        let old_key = roster.member(&planned.public_key).and_then(|member| member.old_key);
        let old_key = old_key.filter(|old_key| file_peers.get(old_key).is_none_or(|peer| is_of_network(peer)));
        let keys = [Some(planned.public_key), old_key].into_iter().flatten();
        let mut file = None;
        for key in keys {
            known.insert(key);
            file = file.or(file_peers.get(&key).copied());
        }
        let in_file = file.and_then(|peer| peer.preshared_key.as_ref());
        let present = roster.settings().pair_secret;
        let told = state.pair_key(own_key, &planned.public_key, present);
        if planned.pair_key && in_file.is_none() && told.is_none() {
            merged.without_key.push(planned.public_key);
        }
        // After one of the two has changed its key, the session continues. Its next handshake needs the new preshared
        // key.
        let before = state.key_before(&planned.public_key, old_key.as_ref());
        let pair_key = if state.uses_before() { before.or(told) } else { told.or(before) };
        // A session with a server that has lost the key of the file runs without one.
        let is_lost = state.is_lost(&planned.public_key);
        let preshared_key = in_file.cloned().or(pair_key).filter(|_| !is_lost);
        if planned.pair_key && preshared_key.is_none() && !is_lost {
            // No other session ever runs without a preshared key.
            continue;
        }
        if planned.pair_key && in_file.is_none() && !state.key_is_of(&planned.public_key, present) {
            merged.with_old_key.push(planned.public_key);
        }
        let mut peer = Peer::new(planned.public_key);
        peer.name = Some(planned.name.to_string());
        peer.preshared_key = preshared_key;
        peer.endpoints = endpoints(planned, file, here, roster);
        peer.persistent_keepalive = planned
            .keepalive
            .map(|seconds| Duration::from_secs(seconds.into()))
            .or(file.and_then(|peer| peer.persistent_keepalive))
            .filter(|_| !here.resting.contains(&planned.public_key));
        peer.direct = planned.direct.then_some(true);
        // A network has thousands of members, and only machines that forward use the role.
        peer.role = Some(planned.role).filter(|role| forwards(base) || *role == Router::Server);
        for net in &planned.allowed_ips {
            let in_pool = merged.config.pools.iter().any(|pool| pool.contains(net));
            routes += usize::from(!in_pool);
            if in_pool || routes <= MAX_ROUTES {
                peer.allowed_ips.push(*net);
            }
        }
        // A network has thousands of these, and they stay in memory.
        peer.allowed_ips.shrink_to_fit();
        merged.config.peers.push(peer);
    }
    merged.config.peers.shrink_to_fit();
    if routes > MAX_ROUTES {
        let left_out = routes - MAX_ROUTES;
        merged
            .refused
            .push(format!("{left_out} of {routes} routes beyond the network's pools: at most {MAX_ROUTES} are taken"));
    }
    // Peers that the user has added by hand.
    merged.config.peers.extend(base.peers.iter().filter(|peer| !known.contains(&peer.public_key)).cloned());
    merged.names(base, roster.settings(), here.host);
    Some(merged)
}

/// The members whose pair with this machine has no key here. This is computed before the rest of the configuration.
pub(crate) fn without_key(base: &Config, own_key: &PublicKey, roster: &Roster, state: &State) -> Vec<PublicKey> {
    let has_keys = |member: &Member| !matches!(member.role, Role::Client(_));
    let Some(me) = roster.holder(own_key).filter(|me| has_keys(me)) else { return Vec::new() };
    let in_file: HashSet<_> =
        base.peers.iter().filter(|peer| is_of_network(peer)).map(|peer| peer.public_key).collect();
    let present = roster.settings().pair_secret;
    let others = roster.members().filter(|member| member.public_key != me.public_key && has_keys(member));
    let missing = others.filter(|member| {
        !member.keys().any(|key| in_file.contains(&key))
            && state.pair_key(own_key, &member.public_key, present).is_none()
    });
    missing.map(|member| member.public_key).collect()
}

/// The members with new keys, each as the old and the new one, as far as they may replace peers of the file.
pub(crate) fn rekeyed(base: &Config, roster: &Roster) -> Vec<(PublicKey, PublicKey)> {
    let by_hand: HashSet<_> =
        base.peers.iter().filter(|peer| !is_of_network(peer)).map(|peer| peer.public_key).collect();
    let rekeyed = roster.members().filter_map(|member| Some((member.old_key?, member.public_key)));
    rekeyed.filter(|(before, _)| !by_hand.contains(before)).collect()
}

/// Whether a roster may give this peer of the file another key. `join` writes only peers with a preshared key, and
/// nobody can replace such a peer in a session without its preshared key. Peers that a user has added by hand are not
/// subject to the network.
fn is_of_network(peer: &Peer) -> bool {
    peer.preshared_key.is_some()
}

/// The endpoints of a peer: first those of the file, then the last direct address of a member, then the servers that
/// relay to it.
fn endpoints(planned: &PlannedPeer, file: Option<&Peer>, here: &Known<'_>, roster: &Roster) -> Vec<PathSpec> {
    let last = here.last.get(&planned.public_key.0).filter(|_| planned.direct);
    let mut endpoints: Vec<PathSpec> = file.map_or_else(Vec::new, |peer| peer.endpoints.clone());
    // Several servers answer the key that machines join by. This one may have joined at another of them. The file has
    // few peers, and the roster may have thousands.
    if !endpoints.is_empty() && planned.reach.iter().any(|reach| matches!(reach, Reach::At(_))) {
        let others = roster.members().filter(|other| other.is_gateway() && other.public_key != planned.public_key);
        let of_others: Vec<_> = others.flat_map(|other| &other.endpoints).cloned().map(EndpointSpec::from).collect();
        endpoints.retain(|path| !of_others.contains(&path.endpoint));
    }
    endpoints.extend(last.map(|address| PathSpec::from(EndpointSpec::Address(*address))));
    let rests = |reach: &&Reach| matches!(reach, Reach::Relayed(server) if here.resting.contains(server));
    for reach in planned.reach.iter().filter(|reach| !rests(reach)) {
        let endpoint = match reach {
            Reach::At(at) => EndpointSpec::from(at.clone()),
            Reach::Relayed(server) => EndpointSpec::Peer(*server),
        };
        if endpoints.iter().all(|known| known.endpoint != endpoint) {
            endpoints.push(endpoint.into());
        }
    }
    endpoints.truncate(MAX_ENDPOINTS);
    endpoints.shrink_to_fit();
    endpoints
}

impl Merged {
    /// Applies the settings of the network. The user's own values take precedence.
    fn settings(&mut self, settings: &Settings, consent: &LocalConsent) {
        let interface = &mut self.config.interface;
        if interface.mtu.is_none() {
            let told = settings.mtu.filter(|mtu| MTUS.contains(mtu));
            if let (Some(mtu), None) = (settings.mtu, told) {
                self.refused.push(format!("the MTU {mtu}: it has to be from {} to {}", MTUS.start(), MTUS.end()));
            }
            interface.mtu = Some(told.unwrap_or(MTU));
        }
        for pool in &settings.pools {
            match consent.refuses_pool(&settings.name, *pool) {
                Some(refusal) => self.refused.push(refusal.to_string()),
                None => self.config.pools.push(*pool),
            }
        }
    }
}

/// Whether the address can belong to a host.
fn is_host(address: &IpAddr) -> bool {
    let is_of_a_link = matches!(address, IpAddr::V4(address) if address.is_broadcast() || address.is_link_local());
    !(is_of_a_link || address.is_loopback() || address.is_multicast() || address.is_unspecified())
}

/// The addresses outside the tunnel that its datagrams are sent to: those of the servers, as far as they are known
/// without a resolver.
pub(crate) fn underlay<'c>(base: &'c Config, roster: Option<&'c Roster>) -> impl Iterator<Item = IpAddr> + 'c {
    let in_file = base.peers.iter().flat_map(|peer| &peer.endpoints).filter_map(|path| match &path.endpoint {
        EndpointSpec::Address(address) => Some(address.ip()),
        _ => None,
    });
    let members = roster.into_iter().flat_map(Roster::members).filter(|member| member.role == Role::Server);
    in_file.chain(members.flat_map(|member| &member.endpoints).filter_map(|at| at.socket_addr()).map(|at| at.ip()))
}

/// Whether the machine offers to be a server of the network.
pub(crate) fn forwards(base: &Config) -> bool {
    base.interface.forward == Some(true)
}

/// The owner's consent, according to the file.
pub(crate) fn consent(base: &Config, networks: Vec<IpNet>, underlay: impl IntoIterator<Item = IpAddr>) -> LocalConsent {
    let accept = &base.interface.accept;
    let mut consent = LocalConsent::default();
    consent.networks = networks;
    consent.announced = base.interface.announce.iter().map(IpNet::trunc).collect();
    consent.underlay = underlay.into_iter().collect();
    consent.default_route = accept.default_route;
    consent.prefixes = accept.routes;
    consent.accepted.clone_from(&accept.prefixes);
    consent
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::folder::Folder;
    use rustguard_roster::{key::NetworkSecret, pair::SecretId};
    use std::sync::Arc;

    fn merged(base: &Config, roster: &Roster, consent: &LocalConsent, state: &State) -> Merged {
        let (last, resting, host) = (BTreeMap::new(), BTreeSet::new(), Host::default());
        let here = Known { state, last: &last, resting: &resting, host: &host };
        merge(base, &PublicKey([1; 32]), roster, consent, &here).unwrap()
    }

    /// The holder of the network's key decides which peers there are and how they are reached. Everything else comes
    /// from the file, above all the programs to run.
    #[test]
    fn a_roster_runs_nothing_and_changes_nothing_else_of_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let (secret, key) = (NetworkSecret::from_bytes(&[7; 32]), |n: u8| PublicKey([n; 32]));
        let folder = Folder::open_at(&dir.path().join("rg0")).unwrap();
        let (mut state, _) = State::load(folder, secret.public_key()).unwrap();
        state.set_key(&key(2), SecretId::from_bytes([7; 16]), rustguard_device::PresharedKey::from_bytes(&[5; 32]));
        let mut settings = Settings::new("rg0".parse().unwrap());
        (settings.mtu, settings.keepalive) = (Some(1400), Some(1));
        settings.pools = vec!["10.150.0.0/24".parse().unwrap()];
        settings.name_servers = vec!["10.150.0.1".parse().unwrap()];
        settings.domains = vec!["corp.example".into()];
        let server = Member::new(key(2), "server".parse().unwrap()).with_role(Role::Server);
        let server = server
            .with_addresses(["10.150.0.1".parse().unwrap()])
            .with_endpoints(["hub.example:51820".parse().unwrap()])
            .with_prefixes(["192.168.7.0/24".parse().unwrap()]);
        let me = Member::new(key(1), "me".parse().unwrap()).with_addresses(["10.150.0.9".parse().unwrap()]);
        let roster = Roster::issue(&secret, 1, 0, settings, [server, me].map(Arc::new)).unwrap();
        let mut base = Config::default();
        base.interface.post_up = vec!["mine".to_owned()];
        base.interface.addresses = vec!["10.150.0.2/32".parse().unwrap()];
        (base.interface.accept.routes, base.interface.accept.dns) = (true, true);
        let consent = consent(&base, Vec::new(), []);
        let merged = merged(&base, &roster, &consent, &state);
        assert_eq!((merged.config.peers.len(), merged.config.peers[0].allowed_ips.len()), (1, 2), "it was taken over");
        let mut interface = merged.config.interface;
        assert_eq!(interface.mtu, Some(1400));
        (interface.mtu, interface.dns, interface.dns_search) = (None, Vec::new(), Vec::new());
        assert_eq!(format!("{interface:?}"), format!("{:?}", base.interface));
    }

    /// No roster contains the preshared key with the server where the machine joined. If this server has lost it, the
    /// record of this machine says so. The keys with all others stay as they are.
    #[test]
    fn a_session_runs_without_a_preshared_key_only_with_the_server_that_has_lost_it() {
        let dir = tempfile::tempdir().unwrap();
        let (secret, key) = (NetworkSecret::from_bytes(&[7; 32]), |n: u8| PublicKey([n; 32]));
        let folder = Folder::open_at(&dir.path().join("rg0")).unwrap();
        let (mut state, _) = State::load(folder, secret.public_key()).unwrap();
        let psk = |byte| rustguard_device::PresharedKey::from_bytes(&[byte; 32]);
        state.set_key(&key(3), SecretId::from_bytes([7; 16]), psk(3));
        let mut base = Config::default();
        base.peers = vec![Peer::new(key(2))];
        base.peers[0].preshared_key = Some(psk(2));
        let member = |n: u8, name: &str| {
            Member::new(key(n), name.parse().unwrap()).with_addresses([IpAddr::from([10, 150, 0, n])])
        };
        let roster = |me: Member| {
            // The losses of other servers do not concern this machine.
            let others = [member(2, "hub"), member(3, "other"), member(4, "third").with_no_psk(key(2))];
            let others =
                others.map(|member| if member.public_key == key(3) { member } else { member.with_role(Role::Server) });
            let mut settings = Settings::new("rg0".parse().unwrap());
            settings.pools = vec!["10.150.0.0/24".parse().unwrap()];
            Roster::issue(&secret, 1, 0, settings, others.into_iter().chain([me]).map(Arc::new)).unwrap()
        };
        let mut keys = |me: Member| {
            let roster = roster(me);
            let consent = consent(&base, Vec::new(), []);
            state.follow_lost(&base, &key(1), &roster);
            let merged = merged(&base, &roster, &consent, &state);
            merged.config.peers.into_iter().map(|peer| (peer.public_key, peer.preshared_key)).collect::<Vec<_>>()
        };
        let [of_hub, of_other] = [2, 3].map(|n| (key(n), Some(psk(n))));
        assert_eq!(keys(member(1, "me")), [of_hub.clone(), of_other.clone()]);
        assert_eq!(keys(member(1, "me").with_no_psk(key(2))), [(key(2), None), of_other.clone()]);
        assert_eq!(
            keys(member(1, "me").with_no_psk(key(4))),
            [of_hub, of_other],
            "no server but that of the file has lost one"
        );
    }

    /// Otherwise the holder of the network's key could replace a peer that does not belong to the network with another
    /// machine.
    #[test]
    fn a_roster_gives_no_other_key_to_a_peer_that_was_added_by_hand() {
        let dir = tempfile::tempdir().unwrap();
        let (secret, key) = (NetworkSecret::from_bytes(&[7; 32]), |n: u8| PublicKey([n; 32]));
        let folder = Folder::open_at(&dir.path().join("rg0")).unwrap();
        let (mut state, _) = State::load(folder, secret.public_key()).unwrap();
        for n in [3, 5] {
            state.set_key(&key(n), SecretId::from_bytes([7; 16]), rustguard_device::PresharedKey::from_bytes(&[5; 32]));
        }
        let mut settings = Settings::new("rg0".parse().unwrap());
        settings.pools = vec!["10.150.0.0/24".parse().unwrap()];
        let member = |own: u8, name: &str| {
            let address = IpAddr::from([10, 150, 0, own]);
            Member::new(key(own), name.parse().unwrap()).with_addresses([address])
        };
        let members = [
            member(1, "me"),
            member(3, "server").with_role(Role::Server).with_old_key(key(2)),
            member(5, "evil").with_old_key(key(4)),
        ];
        let roster = Roster::issue(&secret, 1, 0, settings, members.map(Arc::new)).unwrap();
        let mut base = Config::default();
        let mut of_join = Peer::new(key(2));
        of_join.preshared_key = Some(rustguard_device::PresharedKey::from_bytes(&[8; 32]));
        let mut by_hand = Peer::new(key(4));
        by_hand.allowed_ips = vec!["192.168.7.0/24".parse().unwrap()];
        base.peers = vec![of_join, by_hand];
        assert_eq!(rekeyed(&base, &roster), [(key(2), key(3))]);
        let consent = consent(&base, Vec::new(), []);
        let merged = merged(&base, &roster, &consent, &state);
        let peers: BTreeMap<_, _> = merged.config.peers.iter().map(|peer| (peer.public_key.0[0], peer)).collect();
        assert_eq!(peers.keys().copied().collect::<Vec<_>>(), [3, 4, 5]);
        assert_eq!(peers[&4].allowed_ips, base.peers[1].allowed_ips, "it stays as it is");
        let psk = |peer: &Peer| peer.preshared_key.as_ref().map(|key| *key.as_bytes());
        assert_eq!(psk(peers[&3]), psk(&base.peers[0]), "the server goes on with the preshared key of the file");
    }
}
