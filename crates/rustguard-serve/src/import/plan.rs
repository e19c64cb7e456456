//! Makes one server with settings and leases from the files of an existing server, or gives the reason for a refusal.

use super::{
    error::ImportError,
    source::{Peer, Source},
};
use crate::{
    clock::now,
    imported::Calls,
    settings::{MIN_MTU, NETWORK_MTU, Settings},
};
use ipnet::IpNet;
use rustguard_crypto::{hash::hash, x25519::StaticSecret};
use rustguard_device::key;
use rustguard_enroll::{
    lease::{Lease, MAX_NAME, clean_name},
    ledger::{Ledger, LedgerError, Policy, PrefixError},
    pool::Pools,
    store::{Change, LeaseStore as _, MemoryStore, State},
};
use rustguard_network::roster::{label::Label, roster::MAX_MEMBERS};
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    net::IpAddr,
    path::PathBuf,
};
use zeroize::Zeroizing;

/// The prefix lengths that are tried for the pool of an address without one, from long to short.
const LENGTHS_V4: [u8; 2] = [24, 16];
const LENGTHS_V6: [u8; 2] = [64, 48];

/// The remedy for a client that is left out.
const LATER: &str = "to let it in later: rustguard peer add NAME --public-key KEY, with its new settings";

/// The options of the command line.
#[derive(Clone, Debug, Default)]
pub struct ImportOptions {
    /// Pools that replace those from the addresses in the file.
    pub pools: Vec<IpNet>,
    /// The port that replaces the one in the file.
    pub port: Option<u16>,
}

/// The result of an import.
pub(super) struct Plan {
    pub(super) identity: StaticSecret,
    pub(super) settings: Settings,
    pub(super) leases: Vec<Lease>,
    /// The leases of expired peers. They are not stored, but are part of the digest: a repeated import finds the
    /// server unchanged if a peer has expired meanwhile.
    ended: Vec<Lease>,
    /// By public key in base64.
    pub(super) calls: BTreeMap<String, Calls>,
    pub(super) notes: Vec<String>,
}

impl Plan {
    /// Makes one server from all files.
    pub(super) fn make(sources: Vec<(PathBuf, Source)>, options: &ImportOptions) -> Result<Self, ImportError> {
        let mut notes = Vec::new();
        let server = merge(sources, options, &mut notes)?;
        let pools = pools(&server, &options.pools, &mut notes)?;
        let own_key = server.identity.public_key();
        let mut plan = Self {
            settings: settings(&server, &pools, &mut notes),
            identity: server.identity,
            leases: Vec::new(),
            ended: Vec::new(),
            calls: BTreeMap::new(),
            notes,
        };
        let today = i64::try_from(now().unix.as_secs()).unwrap_or(i64::MAX);
        let spaces = Pools::new(&pools).map_err(ImportError::Pool)?;
        let empty = Ledger::open(MemoryStore::default(), spaces.clone(), Policy::default(), now())?;
        let is_special = |net: &IpNet| matches!(empty.check_prefixes(&[*net], true), Err(PrefixError::Special(_)));
        let own = [spaces.v4().map(|(_, own)| IpAddr::V4(own)), spaces.v6().map(|(_, own)| IpAddr::V6(own))];
        let own: Vec<_> = own.into_iter().flatten().collect();
        let mut holders = BTreeMap::<IpNet, String>::new();
        for peer in &server.peers {
            let who = called(peer);
            if peer.public_key == own_key {
                return Err(ImportError::OwnKey(who));
            }
            if peer.allowed_ips.is_empty() {
                plan.notes.push(format!("{who} is left out: it has no AllowedIPs, so nothing could come from it"));
                continue;
            }
            let mut unique = peer.allowed_ips.clone();
            unique.sort_unstable();
            unique.dedup();
            for net in unique {
                if let Some(other) = holders.insert(net, who.clone()) {
                    return Err(ImportError::Shared { net, peers: Box::new([other, who]) });
                }
            }
            let before = plan.notes.len();
            let lease = plan.lease(peer, &who, &pools, &own, is_special)?;
            if let Some(expires) = peer.expires {
                if expires.as_second() <= today {
                    plan.notes.truncate(before);
                    plan.notes.push(format!("{who} has expired on {expires}, and is left out; {LATER}"));
                    plan.ended.push(lease);
                    continue;
                }
                plan.notes.push(format!(
                    "{who} expires on {expires}, of which `serve` knows nothing; remove it then: rustguard peer rm {}",
                    lease.name.as_deref().unwrap_or("KEY")
                ));
            }
            if peer.endpoint.is_some() || peer.keepalive.is_some() {
                let calls =
                    Calls { endpoint: peer.endpoint.as_ref().map(ToString::to_string), keepalive: peer.keepalive };
                plan.calls.insert(key::to_base64(&peer.public_key.0).to_string(), calls);
            }
            plan.leases.push(lease);
        }
        plan.check(spaces)?;
        Ok(plan)
    }

    /// The lease of a peer: its addresses in the pools, and all other prefixes behind it.
    fn lease(
        &mut self,
        peer: &Peer,
        who: &str,
        pools: &[IpNet],
        own: &[IpAddr],
        is_special: impl Fn(&IpNet) -> bool,
    ) -> Result<Lease, ImportError> {
        let mut lease = Lease::new(peer.public_key, peer.preshared_key.clone());
        lease.created = now().unix.as_secs();
        lease.name = self.name(peer);
        for &net in &peer.allowed_ips {
            let pool = pools.iter().find(|pool| pool.trunc().contains(&net)).map(IpNet::trunc);
            let is_host = net.prefix_len() == net.max_prefix_len();
            match (pool, is_host) {
                (Some(_), true) if own.contains(&net.addr()) => {
                    return Err(ImportError::OwnAddress { address: net.addr(), peer: who.to_owned() });
                }
                (Some(_), true) => {
                    let taken = match net.addr() {
                        IpAddr::V4(address) => lease.v4.replace(address).map(IpAddr::V4),
                        IpAddr::V6(address) => lease.v6.replace(address).map(IpAddr::V6),
                    };
                    if let Some(first) = taken.filter(|first| *first != net.addr()) {
                        return Err(ImportError::TwoAddresses { addresses: [first, net.addr()], peer: who.to_owned() });
                    }
                }
                (Some(pool), false) => return Err(ImportError::PartOfPool { net, pool, peer: who.to_owned() }),
                (None, _) => lease.admitted.push(net),
            }
        }
        lease.admitted.sort_unstable();
        lease.admitted.dedup();
        let (special, usable): (Vec<_>, Vec<_>) = lease.admitted.into_iter().partition(is_special);
        lease.admitted = usable;
        if !special.is_empty() {
            self.notes.push(format!(
                "AllowedIPs {} of {who} are left out: loopback, link-local, multicast and reserved addresses are never behind a peer",
                list(&special)
            ));
        }
        if lease.addresses().next().is_none() {
            self.notes.push(format!("{who} has no address in the pool; it is reached by {}", list(&lease.admitted)));
        }
        if lease.admitted.iter().any(|net| net.prefix_len() == 0) {
            self.notes.push(format!(
                "{who} has a default route: what comes from it is taken from any address, and this machine's own traffic does not go there"
            ));
        }
        Ok(lease)
    }

    /// The name in the form that the network permits.
    fn name(&mut self, peer: &Peer) -> Option<String> {
        let said = peer.name.as_deref()?;
        let clean = clean_name(said).filter(|name| !Label::clean(name).is_some_and(|label| label.is_of_programs()));
        match &clean {
            Some(clean) if clean != said => self.notes.push(format!("`{said}` is called {clean} from now on")),
            None => self.notes.push(format!(
                "`{said}` is not usable as a name (letters, digits, -, _ and ., at most {MAX_NAME}): rustguard peer rename gives another one"
            )),
            _ => {}
        }
        clean
    }

    /// Whether a ledger accepts the result.
    fn check(&self, pools: Pools) -> Result<(), ImportError> {
        if self.settings.has_network() && self.leases.len() >= MAX_MEMBERS {
            return Err(ImportError::TooMany(self.leases.len()));
        }
        self.settings.check()?;
        let mut store = MemoryStore::default();
        store.commit(&self.changes(), &State::default()).map_err(LedgerError::from)?;
        let ledger = Ledger::open(store, pools, Policy::default(), now())?;
        for lease in &self.leases {
            ledger.check_prefixes(&lease.admitted, true).map_err(|why| ImportError::Prefix {
                peer: lease.name.clone().unwrap_or_else(|| lease.public_key.to_string()),
                why,
            })?;
        }
        Ok(())
    }

    /// The state of the ledger, as changes to an empty one.
    pub(super) fn changes(&self) -> Vec<Change> {
        let time = Change::Time(now().unix.as_secs());
        [time].into_iter().chain(self.leases.iter().cloned().map(Change::Lease)).collect()
    }

    /// A digest of the contents of the files. It does not depend on their order and comments.
    pub(super) fn digest(&self) -> String {
        let mut lines: Vec<_> = self
            .leases
            .iter()
            .chain(&self.ended)
            .map(|lease| {
                let psk = key::to_base64(lease.preshared_key.as_bytes());
                let calls = self.calls.get(&*key::to_base64(&lease.public_key.0));
                Zeroizing::new(format!(
                    "{} {} {:?} {:?} {} {:?} {calls:?}",
                    lease.public_key,
                    *psk,
                    lease.v4,
                    lease.v6,
                    list(&lease.admitted),
                    lease.name
                ))
            })
            .collect();
        lines.sort_by(|a, b| a.as_str().cmp(b));
        let own = Zeroizing::new(self.identity.to_bytes());
        let Settings { pools, port, endpoint, isolate, routes, nat, network, .. } = &self.settings;
        let settings = format!("{pools:?} {port} {endpoint:?} {isolate} {routes:?} {nat} {:?}\n", network.mtu);
        let mut parts: Vec<&[u8]> = vec![b"RustGuard import v1", &*own, settings.as_bytes()];
        parts.extend(lines.iter().flat_map(|line| [line.as_bytes(), b"\n"]));
        hash(&parts).iter().fold(String::new(), |mut text, byte| {
            write!(text, "{byte:02x}").expect("writing to a string cannot fail");
            text
        })
    }
}

/// One server, made from all files.
struct Server {
    identity: StaticSecret,
    port: u16,
    addresses: Vec<IpNet>,
    peers: Vec<Peer>,
    mtu: Option<u16>,
    endpoint: Option<String>,
    translated: BTreeSet<IpNet>,
    isolate: bool,
    interface: String,
}

/// Merges the files. All of them have to describe one server.
fn merge(
    sources: Vec<(PathBuf, Source)>,
    options: &ImportOptions,
    notes: &mut Vec<String>,
) -> Result<Server, ImportError> {
    let mut identity: Option<(PathBuf, StaticSecret)> = None;
    let mut port: Option<(PathBuf, u16)> = None;
    // wg-easy's file does not have the port. In its container, the program always uses the same one.
    let (mut server, mut easy_port) = (None, None);
    let mut barred = Vec::new();
    for (path, mut source) in sources {
        if options.port.is_none()
            && let Some(endpoint) = as_client(&source)
        {
            return Err(ImportError::Client { path, endpoint });
        }
        let key = source.private_key.take().ok_or_else(|| ImportError::NoKey(path.clone()))?;
        if let Some((first, other)) = &identity
            && other.public_key() != key.public_key()
        {
            return Err(ImportError::TwoServers([first.clone(), path]));
        }
        let stated = source.port.filter(|_| !source.easy);
        if let (Some((first, one)), Some(two)) = (&port, stated)
            && *one != two
        {
            return Err(ImportError::TwoPorts { paths: [first.clone(), path], ports: [*one, two] });
        }
        if let Some(stated) = stated {
            port.get_or_insert((path.clone(), stated));
        }
        easy_port = easy_port.or(source.port.filter(|_| source.easy));
        barred.append(&mut source.barred);
        note(&path, &source, notes);
        let interface = path.file_stem().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let into = server.get_or_insert_with(|| Server {
            identity: key.clone(),
            port: 0,
            addresses: Vec::new(),
            peers: Vec::new(),
            mtu: None,
            endpoint: None,
            translated: BTreeSet::new(),
            isolate: false,
            interface,
        });
        into.addresses.extend(
            source
                .addresses
                .iter()
                .filter(|net| !into.addresses.iter().any(|own| own.addr() == net.addr()))
                .copied()
                .collect::<Vec<_>>(),
        );
        into.mtu = into.mtu.or(source.mtu);
        into.endpoint = into.endpoint.take().or(source.endpoint.take());
        into.translated.extend(&source.hooks.translated);
        into.isolate |= source.hooks.isolate;
        if source.easy {
            // The effect of its default hooks.
            into.translated.insert("0.0.0.0/0".parse().expect("a network"));
        }
        for peer in source.peers {
            add(&mut into.peers, peer, &path)?;
        }
        identity.get_or_insert((path, key));
    }
    let mut server: Server = server.ok_or(ImportError::NoFile)?;
    server.peers.retain(|peer| !barred.contains(&peer.public_key));
    let (path, _) = identity.ok_or(ImportError::NoFile)?;
    let stated = options.port.or(port.map(|(_, port)| port));
    server.port = stated.or(easy_port).ok_or(ImportError::NoPort(path))?;
    if stated.is_none() {
        notes.push(format!(
            "wg0.json does not have the port, which is {} unless the container publishes another one: --port",
            server.port
        ));
    }
    Ok(server)
}

/// The endpoint of the server in what seems to be the file of a client.
fn as_client(source: &Source) -> Option<String> {
    let [peer] = &*source.peers else { return None };
    let wide = peer.allowed_ips.iter().any(|net| net.prefix_len() == 0);
    let endpoint = peer.endpoint.as_ref()?;
    (wide || source.port.is_none()).then(|| endpoint.to_string())
}

/// Adds notes on what is not carried over from a file, and on its replacement.
fn note(path: &std::path::Path, source: &Source, notes: &mut Vec<String>) {
    let file = path.display();
    for (what, remedy) in &source.left {
        notes.push(format!("{what} is left out: {remedy}"));
    }
    if !source.hooks.others.is_empty() {
        let commands: Vec<_> = source.hooks.others.iter().map(|command| format!("`{command}`")).collect();
        notes.push(format!(
            "these commands of hooks are left out, and what undoes them: {}. `serve` runs no hooks: what is still needed belongs to the rules of the \
             firewall, or into ExecStartPost= (systemctl edit rustguard-serve@NAME)",
            commands.join(", ")
        ));
    }
    if source.saves {
        notes.push(
            "SaveConfig needs no equal: what `rustguard peer` and `rustguard join` change is kept at once".to_owned(),
        );
    }
    for name in &source.disabled {
        notes.push(format!("{name} is disabled in {file} and left out; {LATER}"));
    }
    if source.easy {
        notes.push(
            "wg0.json does not say what PostUp does: as wg-easy does by default, clients reach the Internet with an address of this machine"
                .to_owned(),
        );
    }
}

/// Adds a peer, or merges what another file says about it.
fn add(peers: &mut Vec<Peer>, peer: Peer, path: &std::path::Path) -> Result<(), ImportError> {
    let Some(known) = peers.iter_mut().find(|known| known.public_key == peer.public_key) else {
        peers.push(peer);
        return Ok(());
    };
    let sorted = |peer: &Peer| peer.allowed_ips.iter().copied().collect::<BTreeSet<_>>();
    if sorted(known) != sorted(&peer) || known.preshared_key.as_bytes() != peer.preshared_key.as_bytes() {
        return Err(ImportError::Twice { path: path.to_owned(), peer: called(&peer) });
    }
    known.name = known.name.take().or(peer.name);
    known.endpoint = known.endpoint.take().or(peer.endpoint);
    known.keepalive = known.keepalive.or(peer.keepalive);
    known.expires = known.expires.or(peer.expires);
    Ok(())
}

/// A peer in messages.
fn called(peer: &Peer) -> String {
    peer.name.clone().unwrap_or_else(|| peer.public_key.to_string())
}

/// The pools: the networks of the addresses, each with the server's own address before the slash.
fn pools(server: &Server, given: &[IpNet], notes: &mut Vec<String>) -> Result<Vec<IpNet>, ImportError> {
    let mut pools = Vec::new();
    for v4 in [true, false] {
        let of = |net: &&IpNet| net.addr().is_ipv4() == v4;
        let hosts: Vec<Vec<IpAddr>> = server
            .peers
            .iter()
            .map(|peer| {
                let hosts = peer.allowed_ips.iter().filter(of).filter(|net| net.prefix_len() == net.max_prefix_len());
                hosts.map(IpNet::addr).collect()
            })
            .collect();
        let within = |pool: &IpNet| hosts.iter().filter(|all| all.iter().any(|address| pool.contains(address))).count();
        let all = hosts.iter().filter(|all| !all.is_empty()).count();
        let own: Vec<IpNet> = server.addresses.iter().filter(of).copied().collect();
        if let Some(given) = given.iter().find(of) {
            // The server keeps its address from the file.
            let kept = own.iter().find(|own| given.contains(&own.addr())).filter(|_| given.addr() == given.network());
            pools.push(kept.and_then(|own| IpNet::new(own.addr(), given.prefix_len()).ok()).unwrap_or(*given));
            continue;
        }
        let candidates: Vec<_> = own
            .iter()
            .map(|own| {
                if own.prefix_len() < own.max_prefix_len() {
                    return *own;
                }
                let lengths = if v4 { LENGTHS_V4 } else { LENGTHS_V6 };
                let nets = lengths.map(|length| IpNet::new(own.addr(), length).expect("a length of this version"));
                *nets.iter().find(|net| within(net) == all).unwrap_or(&nets[0])
            })
            .collect();
        // The candidate with the most peers, and the first of several with equally many.
        let Some((at, best)) =
            candidates.iter().enumerate().max_by_key(|(at, net)| (within(net), std::cmp::Reverse(*at)))
        else {
            continue;
        };
        let wide = widened(*best);
        if own[at].prefix_len() == own[at].max_prefix_len() {
            notes.push(format!(
                "Address {} has no prefix length: machines that join get addresses from {}; --pool names others",
                own[at].addr(),
                wide.trunc()
            ));
        } else if wide != *best {
            notes.push(format!(
                "Address {best} is the first or last of its network: for it to stay the server's, machines that join get addresses from {}",
                wide.trunc()
            ));
        }
        for other in own.iter().enumerate().filter(|(other, _)| *other != at).map(|(_, net)| net) {
            notes.push(format!(
                "Address {other} is left out: a network has one pool of each IP version. If clients use this address, add it after each start: ip address add {other} dev NAME"
            ));
        }
        pools.push(wide);
    }
    if pools.is_empty() { Err(ImportError::NoAddress(server.interface.clone())) } else { Ok(pools) }
}

/// The smallest network around an address in which it is a host address.
fn widened(net: IpNet) -> IpNet {
    let hosts = |net: &IpNet| net.prefix_len() + 1 < net.max_prefix_len();
    let at_edge = |net: &IpNet| net.addr() == net.network() || (net.addr().is_ipv4() && net.addr() == net.broadcast());
    let lengths = (0..=net.prefix_len()).rev();
    let wider = lengths.filter_map(|length| IpNet::new(net.addr(), length).ok());
    wider.into_iter().find(|wide| !hosts(wide) || !at_edge(wide)).unwrap_or(net)
}

/// The settings that the files contain.
fn settings(server: &Server, pools: &[IpNet], notes: &mut Vec<String>) -> Settings {
    let mut settings =
        Settings { pools: pools.to_vec(), port: server.port, isolate: server.isolate, ..Settings::default() };
    settings.endpoint.clone_from(&server.endpoint);
    let reaches = |net: &&IpNet| pools.iter().any(|pool| pool.addr().is_ipv4() == net.addr().is_ipv4());
    settings.routes = server.translated.iter().filter(reaches).copied().collect();
    settings.nat = !settings.routes.is_empty();
    if settings.nat {
        notes.push(format!(
            "clients reach {} with an address of this machine, as by the hooks: `serve --nat`, in a table of its own",
            list(&settings.routes)
        ));
    }
    if settings.isolate {
        notes.push("clients cannot reach each other, as by the hooks: `serve --isolate`, so machines that join make no network".to_owned());
    }
    match server.mtu {
        Some(mtu) if (MIN_MTU..=NETWORK_MTU).contains(&mtu) => settings.network.mtu = Some(mtu),
        Some(mtu) => notes.push(format!(
            "MTU = {mtu} is left out: machines that join get {NETWORK_MTU}, which fits every way through a network; clients keep theirs. \
             `serve --mtu` sets another"
        )),
        None => {}
    }
    settings
}

fn list<T: ToString>(values: &[T]) -> String {
    values.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests;
