//! The settings of `serve`. They are stored: a setting that is not given at the next start keeps its value.

mod changes;
mod network;
mod reach;

pub use self::{
    changes::SettingsChange,
    network::{MAX_MTU, MIN_MTU, NETWORK_MTU, NetworkSettings},
    reach::Reach,
};
use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use rand_core::Rng as _;
use rustguard_core::host_port::{Host, HostPort, HostPortError};
use rustguard_crypto::random::SystemRng;
use rustguard_enroll::{
    pool::{PoolError, Pools},
    server::{ConfigError, ServerConfig},
};
use rustguard_network::{
    Folder, FolderError,
    roster::label::{InvalidLabel, Label},
};
use serde::{Deserialize, Serialize};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

/// The file in the state folder.
const FILE: &str = "settings.json";
/// The format's version.
const VERSION: u32 = 1;
/// The private networks (RFC 1918) for the IPv4 pool, in the order in which they are tried.
const PRIVATE: [Ipv4Net; 3] = [
    Ipv4Net::new_assert(Ipv4Addr::new(10, 0, 0, 0), 8),
    Ipv4Net::new_assert(Ipv4Addr::new(172, 16, 0, 0), 12),
    Ipv4Net::new_assert(Ipv4Addr::new(192, 168, 0, 0), 16),
];
/// The second octets of the parts of 10.0.0.0/8 that other products use by default: many routers and clouds (0, 1, 10),
/// OpenVPN (8), k3s (42, 43), Podman (88 and 89), Kubernetes (96, 244). Joining machines may be in such networks.
const CROWDED: [u8; 10] = [0, 1, 8, 10, 42, 43, 88, 89, 96, 244];
/// How many networks are drawn from each of the private ones.
const DRAWS: u32 = 256;
/// The interval between keepalives of joined machines, in seconds. Most of them are behind address translation, and are
/// reachable only while it keeps their mapping.
const KEEPALIVE: u16 = 25;
/// WireGuard's customary port.
pub const DEFAULT_PORT: u16 = 51820;

/// The settings of a server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// The prefixes of the leased addresses: at most one IPv4 and one IPv6 prefix.
    pub pools: Vec<IpNet>,
    /// The UDP port.
    pub port: u16,
    /// The address of this machine for others, with or without a port, for invites. If it is absent, it is determined
    /// automatically.
    #[serde(default)]
    pub endpoint: Option<String>,
    /// Whether traffic between peers is blocked.
    #[serde(default)]
    pub isolate: bool,
    /// Prefixes besides the pools that peers route to this server.
    #[serde(default)]
    pub routes: Vec<IpNet>,
    /// Name servers for the peers.
    #[serde(default)]
    pub dns: Vec<IpAddr>,
    /// Search domains for the peers.
    #[serde(default)]
    pub search: Vec<String>,
    /// How long a lease lasts without a handshake, in seconds. There is no limit by default.
    #[serde(default)]
    pub lease_seconds: Option<u64>,
    /// How long the lease of an ephemeral peer lasts without a handshake, in seconds: at least [`LEAST_EPHEMERAL`]. 30
    /// minutes by default.
    // Earlier versions of the program cannot read it, so it is stored only if it is set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ephemeral_seconds: Option<u64>,
    /// Whether peers reach `routes` with an address of this machine.
    // Earlier versions of the program cannot read it, so it is stored only if it is set.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub nat: bool,
    /// The network that joined machines are members of.
    // It is stored beside the other settings: see `Kept`.
    #[serde(skip)]
    pub network: NetworkSettings,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            pools: Vec::new(),
            port: DEFAULT_PORT,
            endpoint: None,
            isolate: false,
            routes: Vec::new(),
            dns: Vec::new(),
            search: Vec::new(),
            lease_seconds: None,
            ephemeral_seconds: None,
            nat: false,
            network: NetworkSettings::default(),
        }
    }
}

/// The shortest time after which an ephemeral peer counts as silent, in seconds. A peer in use has a handshake every
/// two minutes, and one of them may be late.
pub const LEAST_EPHEMERAL: u64 = 300;

/// Why settings cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SettingsError {
    /// The pools are not valid.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// Ephemeral peers would be removed while they are in use.
    #[error(
        "ephemeral_seconds is {0}, and a machine in use has a handshake every two minutes only: give at least {LEAST_EPHEMERAL} (5m)"
    )]
    Ephemeral(u64),
    /// The text is not an endpoint.
    #[error(
        "`{text}` is not an endpoint: {cause}; write HOST or HOST:PORT, such as vpn.example.org or 203.0.113.1:51820"
    )]
    Endpoint {
        /// The text.
        text: String,
        /// The cause.
        cause: HostPortError,
    },
    /// The endpoint has the port 0.
    #[error(
        "the endpoint `{0}` has the port 0, which cannot be reached; write the UDP port of this server, or leave it out"
    )]
    EndpointPort(String),
    /// The endpoint contains the name of an interface.
    #[error(
        "the endpoint `{0}` contains the name of an interface, which other machines do not know; write it without `%…`"
    )]
    EndpointZone(String),
    /// Address translation without networks to translate for.
    #[error(
        "--nat concerns the networks behind this machine: name them with --route, for example --route 192.168.1.0/24, or start with --nat=off"
    )]
    NatWithoutRoutes,
    /// The network's name is not a label of a domain name.
    #[error("`{0}` cannot be the name of a network: {1}")]
    NetworkName(String, InvalidLabel),
    /// Members would refuse the MTU.
    #[error(
        "an MTU of {0} bytes cannot be that of all joined machines: it has to be from {MIN_MTU}, which IPv6 needs, to {MAX_MTU}"
    )]
    Mtu(u16),
    /// Routes, name servers or search domains that joiners refuse.
    #[error(transparent)]
    Config(#[from] ConfigError),
}

impl Settings {
    /// The settings of a first start. The IPv4 pool is a random /24 of 10.0.0.0/8 that overlaps none of `taken` (or of
    /// 172.16.0.0/12 or 192.168.0.0/16, if 10.0.0.0/8 is taken): a fixed pool would overlap other networks of some
    /// joining machines. The IPv6 pool is a random /64 of fd00::/8, unless `ipv6` is false. RFC 4193 requires 40 random
    /// bits; here all 56 bits up to the /64 are random.
    pub fn fresh(taken: &[IpNet], ipv6: bool) -> Self {
        let v4 = random_v4(taken);
        let prefix = 0xfd_u64 << 56 | SystemRng.next_u64() >> 8;
        let v6 = Ipv6Net::new(Ipv6Addr::from_bits(u128::from(prefix) << 64), 64).expect("64 is at most 128");
        let pools = [Some(v4.into()), ipv6.then(|| v6.into())];
        Self { pools: pools.into_iter().flatten().collect(), ..Self::default() }
    }

    /// Replaces pools. If a new pool contains the server's address, the server keeps it, because other machines are
    /// configured with it. This does not hold if the pool is written with another address. If there is no new pool of a
    /// family, the old pool of that family stays, because machines have its addresses.
    pub fn set_pools(&mut self, pools: &[IpNet]) {
        let (own, before) = (self.own_addresses(), std::mem::take(&mut self.pools));
        let is_v4 = |net: &IpNet| net.addr().is_ipv4();
        self.pools = pools.iter().map(|pool| with_address(*pool, &own)).collect();
        self.pools.extend(before.into_iter().filter(|old| !pools.iter().any(|pool| is_v4(pool) == is_v4(old))));
    }

    /// Checks everything that can be checked without the stored state. Nothing is stored before this succeeds.
    ///
    /// # Errors
    /// See [`SettingsError`].
    pub fn check(&self) -> Result<(), SettingsError> {
        Pools::new(&self.pools)?;
        if let Some(endpoint) = &self.endpoint {
            self.complete(endpoint)?;
        }
        if self.nat && self.routes.is_empty() {
            return Err(SettingsError::NatWithoutRoutes);
        }
        if let Some(name) = &self.network.name {
            name.parse::<Label>().map_err(|why| SettingsError::NetworkName(name.clone(), why))?;
        }
        if let Some(mtu) = self.network.mtu.filter(|mtu| !(MIN_MTU..=MAX_MTU).contains(mtu)) {
            return Err(SettingsError::Mtu(mtu));
        }
        if let Some(seconds) = self.ephemeral_seconds.filter(|seconds| *seconds < LEAST_EPHEMERAL) {
            return Err(SettingsError::Ephemeral(seconds));
        }
        Ok(self.to_config().check()?)
    }

    /// The settings that joiners receive.
    pub(crate) fn to_config(&self) -> ServerConfig {
        ServerConfig::default()
            .with_addresses(self.own_addresses().iter().map(IpNet::addr).collect())
            .with_routes(self.advised_routes())
            .with_dns(self.dns.clone())
            .with_search(self.search.clone())
            .with_mtu(self.mtu())
            .with_keepalive(KEEPALIVE)
    }

    /// The server's own address in each pool, with the pool's prefix length. Empty if the pools are not valid;
    /// [`check`](Self::check) reports the reason.
    pub fn own_addresses(&self) -> Vec<IpNet> {
        let Ok(pools) = Pools::new(&self.pools) else { return Vec::new() };
        let v4 = pools.v4().and_then(|(pool, own)| IpNet::new(own.into(), pool.prefix_len()).ok());
        let v6 = pools.v6().and_then(|(pool, own)| IpNet::new(own.into(), pool.prefix_len()).ok());
        v4.into_iter().chain(v6).collect()
    }

    /// The prefixes that peers route to this server: the pools, and the networks behind it.
    pub(crate) fn advised_routes(&self) -> Vec<IpNet> {
        self.pools.iter().chain(&self.routes).map(IpNet::trunc).collect()
    }

    /// `HOST:PORT` by which others reach this server. It is the configured value, or else the source address that this
    /// machine uses to reach others. Behind address translation, that is not the address that others see.
    pub fn reachable_at(&self) -> Option<String> {
        match &self.endpoint {
            Some(endpoint) => self.complete(endpoint).ok(),
            None => own_address().map(|address| SocketAddr::new(address, self.port).to_string()),
        }
    }

    /// The limits of the endpoint that a user may not expect, as sentences with a remedy: which machines cannot reach
    /// it, and which routes the machines that use it leave out.
    pub fn limits(&self) -> Vec<String> {
        let Some(endpoint) = self.reachable_at() else { return Vec::new() };
        let mut limits: Vec<_> = Reach::of(&endpoint).map(|reach| reach.advice(&endpoint)).into_iter().collect();
        let Some(address) = endpoint.parse::<HostPort>().ok().and_then(|at| at.socket_addr()).map(|at| at.ip()) else {
            return limits;
        };
        limits.extend(self.routes.iter().filter(|route| route.prefix_len() > 0 && route.contains(&address)).map(|route| {
            format!(
                "machines that join by {endpoint} leave out the route {}, because it contains the server's own address; \
                 join by a public address or a name (--endpoint), or leave that address out of the routes",
                route.trunc()
            )
        }));
        limits
    }

    /// Checks an endpoint. Adds the port to `HOST`, `[IPv6]` or a bare IPv6 address, if it has none.
    pub(crate) fn complete(&self, endpoint: &str) -> Result<String, SettingsError> {
        let complete = HostPort::parse_or(endpoint, self.port)
            .map_err(|cause| SettingsError::Endpoint { text: endpoint.to_owned(), cause })?;
        match complete.host() {
            Host::Zone(..) => Err(SettingsError::EndpointZone(endpoint.to_owned())),
            _ if complete.port() == 0 => Err(SettingsError::EndpointPort(endpoint.to_owned())),
            _ => Ok(complete.to_string()),
        }
    }

    /// The last settings of `serve`; `None` the first time.
    ///
    /// # Errors
    /// See [`FolderError`].
    pub fn load(folder: &Folder) -> Result<Option<Self>, FolderError> {
        let Some(text) = folder.read(FILE)? else { return Ok(None) };
        Self::from_json(&text).map(Some).map_err(|why| FolderError::Damaged { path: folder.path(FILE), why })
    }

    /// Stores the settings for the next start.
    ///
    /// # Errors
    /// See [`FolderError`].
    pub fn store(&self, folder: &Folder) -> Result<(), FolderError> {
        folder.replace(FILE, &self.to_json())
    }

    pub(crate) fn from_json(text: &[u8]) -> Result<Self, String> {
        let kept: Kept<serde_json::Value> = serde_json::from_slice(text).map_err(|error| error.to_string())?;
        match kept.version {
            VERSION => {
                let settings: Self = serde_json::from_value(kept.settings).map_err(|error| error.to_string())?;
                Ok(Self { network: kept.network, ..settings })
            }
            other => Err(format!("version {other}; this program knows version {VERSION}")),
        }
    }

    pub(crate) fn to_json(&self) -> Vec<u8> {
        let kept = Kept { version: VERSION, settings: self, network: self.network.clone() };
        let mut text = serde_json::to_vec_pretty(&kept).expect("plain data");
        text.push(b'\n');
        text
    }
}

/// The contents of the file.
#[derive(Serialize, Deserialize)]
struct Kept<T> {
    version: u32,
    settings: T,
    /// Earlier versions of the program ignore it.
    #[serde(default, skip_serializing_if = "is_default")]
    network: NetworkSettings,
}

fn is_default(network: &NetworkSettings) -> bool {
    *network == NetworkSettings::default()
}

/// The pool, written with one of these addresses of the server if it contains one and is not written with an address.
fn with_address(pool: IpNet, own: &[IpNet]) -> IpNet {
    let ends = [pool.network(), pool.broadcast()];
    let kept = own.iter().map(IpNet::addr).find(|own| pool.contains(own) && !ends.contains(own));
    let Some(kept) = kept.filter(|_| pool.addr() == pool.network()) else { return pool };
    let written = IpNet::new(kept, pool.prefix_len()).unwrap_or(pool);
    let address = |pool| Settings { pools: vec![pool], ..Settings::default() }.own_addresses();
    // The first address is the default, and is not written.
    if address(pool) == address(written) { pool } else { written }
}

/// A random private /24 that overlaps none of `taken`. If there seems to be none, one that overlaps; the caller's
/// checks then report that.
fn random_v4(taken: &[IpNet]) -> Ipv4Net {
    let free = |net: &Ipv4Net| !taken.iter().any(|taken| overlap(taken, &IpNet::V4(*net)));
    let crowded = |net: &Ipv4Net| net.addr().octets()[0] == 10 && CROWDED.contains(&net.addr().octets()[1]);
    let mut draws = PRIVATE.iter().flat_map(|private| {
        (0..DRAWS).map(|_| {
            let host = SystemRng.next_u32() & !u32::from(private.netmask()) & 0xffff_ff00;
            Ipv4Net::new((u32::from(private.network()) | host).into(), 24).expect("24 is at most 32")
        })
    });
    draws
        .find(|net| free(net) && !crowded(net))
        .unwrap_or_else(|| Ipv4Net::new_assert(Ipv4Addr::new(10, 150, 0, 0), 24))
}

/// The source address of packets to the Internet. Connecting a UDP socket only looks up the route and sends nothing.
/// The addresses are reserved for documentation (RFC 5737, RFC 3849).
fn own_address() -> Option<IpAddr> {
    let ask = |from: IpAddr, to: IpAddr| {
        let socket = UdpSocket::bind((from, 0)).ok()?;
        socket.connect((to, 9)).ok()?;
        socket.local_addr().ok().map(|address| address.ip())
    };
    let v4 = ask(Ipv4Addr::UNSPECIFIED.into(), Ipv4Addr::new(192, 0, 2, 1).into());
    v4.or_else(|| ask(Ipv6Addr::UNSPECIFIED.into(), Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1).into()))
}

fn overlap(a: &IpNet, b: &IpNet) -> bool {
    a.contains(b) || b.contains(a)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_pools_are_random_and_keep_out_of_what_the_host_has() {
        let pools = |taken: &[&str]| {
            let taken: Vec<IpNet> = taken.iter().map(|net| net.parse().unwrap()).collect();
            Settings::fresh(&taken, true).pools
        };
        let inside = |net: &IpNet, outer: &str| outer.parse::<IpNet>().unwrap().contains(net);
        let fresh: Vec<_> = (0..200).map(|_| pools(&["10.0.0.0/9", "10.192.0.7/10"])).collect();
        for pools in &fresh {
            assert!(inside(&pools[0], "10.128.0.0/10") && pools[0].prefix_len() == 24, "{pools:?}");
            assert!(inside(&pools[1], "fd00::/8") && pools[1].prefix_len() == 64, "{pools:?}");
            assert_eq!([pools[0].trunc(), pools[1].trunc()], **pools);
        }
        // 200 draws of 16,384 networks: if fewer than 100 differ, they are not random.
        for family in [0, 1] {
            let different: std::collections::HashSet<_> = fresh.iter().map(|pools| pools[family]).collect();
            assert!(different.len() > 100, "{different:?}");
        }
        assert!(inside(&pools(&["10.0.0.0/8"])[0], "172.16.0.0/12"));
        assert!(inside(&pools(&["10.0.0.0/8", "172.16.0.0/12"])[0], "192.168.0.0/16"));
        assert_eq!(Settings::fresh(&[], false).pools.len(), 1);
        // Nothing is free. The check of the pools against the host then reports the reason.
        let pool = pools(&["10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16"])[0];
        assert_eq!(pool, "10.150.0.0/24".parse().unwrap());
    }

    #[test]
    fn another_pool_keeps_the_servers_address_and_the_other_family() {
        let set = |before: &[&str], pools: &[&str]| {
            let nets = |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect::<Vec<IpNet>>();
            let mut settings = Settings { pools: nets(before), ..Settings::default() };
            settings.set_pools(&nets(pools));
            settings.pools.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert_eq!(set(&["10.9.4.0/24"], &["10.9.0.0/16"]), ["10.9.4.1/16"]);
        assert_eq!(set(&["10.9.0.0/24"], &["10.9.0.0/16"]), ["10.9.0.0/16"], "the first address already");
        assert_eq!(set(&["10.9.4.0/24"], &["10.9.0.7/16"]), ["10.9.0.7/16"], "written with another");
        assert_eq!(set(&["10.9.4.0/24"], &["10.10.0.0/16"]), ["10.10.0.0/16"]);
        assert_eq!(set(&["10.9.4.0/24", "fd09::/64"], &["10.9.0.0/16"]), ["10.9.4.1/16", "fd09::/64"]);
        assert_eq!(set(&["10.9.4.0/24", "fd09:0:0:1::/64"], &["fd09::/48"]), ["fd09:0:0:1::1/48", "10.9.4.0/24"]);
    }

    #[test]
    fn an_endpoint_gets_the_port_it_lacks() {
        let settings = Settings { port: 7, ..Settings::default() };
        for (given, complete) in [
            ("192.0.2.1", "192.0.2.1:7"),
            ("192.0.2.1:9", "192.0.2.1:9"),
            ("2001:db8::1", "[2001:db8::1]:7"),
            ("[2001:db8::1]", "[2001:db8::1]:7"),
            ("[2001:db8::1]:9", "[2001:db8::1]:9"),
            ("vpn.example.org", "vpn.example.org:7"),
            ("vpn.example.org:9", "vpn.example.org:9"),
        ] {
            assert_eq!(settings.complete(given).as_deref(), Ok(complete));
        }
    }

    #[test]
    fn settings_come_back_and_damaged_ones_are_told() {
        let dir = tempfile::tempdir().unwrap();
        let folder = Folder::open_at(&dir.path().join("rg0")).unwrap();
        assert_eq!(Settings::load(&folder).unwrap(), None);
        let settings = Settings { port: 7, isolate: true, ..Settings::default() };
        settings.store(&folder).unwrap();
        assert_eq!(Settings::load(&folder).unwrap(), Some(settings));
        for damage in [
            "",
            "{",
            r#"{"version":2,"settings":{}}"#,
            r#"{"version":1,"settings":{"pools":["300.0.0.0/8"],"port":1}}"#,
        ] {
            std::fs::write(folder.path(FILE), damage).unwrap();
            let error = Settings::load(&folder).unwrap_err().to_string();
            assert!(error.contains("settings.json") && error.contains("damaged"), "{error}");
        }
    }

    #[test]
    fn the_guide_names_every_key_of_the_file() {
        let guide =
            std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/guide/joining.md")).unwrap();
        let network = NetworkSettings { star: true, name: Some("home".to_owned()), mtu: Some(1_280) };
        let settings = Settings { nat: true, network, ephemeral_seconds: Some(LEAST_EPHEMERAL), ..Settings::default() };
        let kept: serde_json::Value = serde_json::from_slice(&settings.to_json()).unwrap();
        let keys = |of: &str| kept[of].as_object().unwrap().keys().cloned().collect::<Vec<_>>();
        for key in keys("settings").into_iter().chain(keys("network")) {
            assert!(guide.contains(&format!("`{key}`")), "{key}");
        }
    }

    #[test]
    fn settings_that_cannot_work_are_refused_with_the_cause() {
        let fine = Settings { pools: vec!["10.83.41.0/24".parse().unwrap()], ..Settings::default() };
        fine.check().unwrap();
        let endpoint = |endpoint: &str| Settings { endpoint: Some(endpoint.to_owned()), ..fine.clone() };
        let route = |route: &str| Settings { routes: vec![route.parse().unwrap()], ..fine.clone() };
        let dns = |dns: &str| Settings { dns: vec![dns.parse().unwrap()], ..fine.clone() };
        let network = |name: Option<&str>, mtu| Settings {
            network: NetworkSettings { star: false, name: name.map(str::to_owned), mtu },
            ..fine.clone()
        };
        let search = |domain: &str| Settings { search: vec![domain.to_owned()], ..dns("10.83.41.1") };
        for good in [
            network(Some("home"), Some(1280)),
            network(None, Some(9216)),
            endpoint("vpn.example.org"),
            route("0.0.0.0/0"),
            route("192.168.1.0/24"),
            search("corp.example"),
        ] {
            good.check().unwrap();
        }
        for (bad, cause) in [
            (Settings { pools: vec![], ..fine.clone() }, "no address pool"),
            (endpoint("https://vpn.example.org"), "`https://`"),
            (endpoint("udp://192.0.2.1:7"), "`udp://`"),
            (endpoint("vpn example"), "HOST:PORT"),
            (endpoint(""), "HOST:PORT"),
            (endpoint("vpn.example.org:99999"), "`99999` is not a port"),
            (endpoint("192.0.2.1:0"), "port 0"),
            (endpoint("[fe80::1%eth0]:7"), "interface"),
            (route("127.0.0.0/8"), "127.0.0.0/8"),
            (route("ff00::/8"), "ff00::/8"),
            (Settings { nat: true, ..fine.clone() }, "--route"),
            (network(Some("Home Office"), None), "`Home Office`"),
            (network(None, Some(1279)), "1279"),
            (network(None, Some(9217)), "9217"),
            (Settings { ephemeral_seconds: Some(299), ..fine.clone() }, "at least 300"),
            (dns("0.0.0.0"), "0.0.0.0"),
            (dns("::1"), "::1"),
            (search("no domain"), "search domain"),
            (search("1.2.3.4"), "search domain"),
            (Settings { dns: vec![], ..search("corp.example") }, "name server"),
            (
                Settings {
                    routes: (0..70).map(|n| IpNet::new([10, n, 0, 0].into(), 16).unwrap()).collect(),
                    ..fine.clone()
                },
                "too many",
            ),
            (
                Settings {
                    search: vec!["a".repeat(63) + "." + &"b".repeat(63) + "." + &"c".repeat(63); 16],
                    ..dns("10.83.41.1")
                },
                "datagram",
            ),
        ] {
            let error = bad.check().expect_err(cause).to_string();
            assert!(error.contains(cause), "{cause}: {error}");
        }
    }
}
