//! The settings of `serve`. They are stored: a setting that is not given at the next start keeps its value.

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use rand_core::Rng as _;
use rustguard_core::host_port::HostPort;
use rustguard_crypto::random::SystemRng;
use rustguard_enroll::pool::Pools;
use serde::{Deserialize, Serialize};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

/// The format's version.
const VERSION: u32 = 1;
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
        }
    }
}

impl Settings {
    /// The settings of a first start. The IPv4 pool is `10.150.0.0/24`, or the next such network that overlaps none of
    /// `taken`. The IPv6 pool is a random /64 of fd00::/8, unless `ipv6` is false. RFC 4193 requires 40 random bits;
    /// here all 56 bits up to the /64 are random.
    pub fn fresh(taken: &[IpNet], ipv6: bool) -> Self {
        let free = |net: &Ipv4Net| !taken.iter().any(|taken| overlap(taken, &IpNet::V4(*net)));
        let net = |second: u8| Ipv4Net::new(Ipv4Addr::new(10, second, 0, 0), 24).expect("24 is at most 32");
        let v4 = (150..=250).map(net).find(free).unwrap_or_else(|| net(150));
        let prefix = 0xfd_u64 << 56 | SystemRng.next_u64() >> 8;
        let v6 = Ipv6Net::new(Ipv6Addr::from_bits(u128::from(prefix) << 64), 64).expect("64 is at most 128");
        let pools = [Some(v4.into()), ipv6.then(|| v6.into())];
        Self { pools: pools.into_iter().flatten().collect(), ..Self::default() }
    }

    /// The server's own address in each pool, with the pool's prefix length. Empty if the pools are not valid;
    /// [`Prepared::new`](crate::Prepared::new) reports the reason.
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
            Some(endpoint) => Some(self.with_port(endpoint)),
            None => own_address().map(|address| SocketAddr::new(address, self.port).to_string()),
        }
    }

    /// Adds the port to `HOST`, `[IPv6]` or a bare IPv6 address, if it has none.
    pub(crate) fn with_port(&self, endpoint: &str) -> String {
        match HostPort::parse_or(endpoint, self.port) {
            Ok(complete) => complete.to_string(),
            // Joiners then get the text as it is.
            Err(_) => endpoint.to_owned(),
        }
    }

    pub(crate) fn from_json(text: &[u8]) -> Result<Self, String> {
        let kept: Kept<serde_json::Value> = serde_json::from_slice(text).map_err(|error| error.to_string())?;
        match kept.version {
            VERSION => serde_json::from_value(kept.settings).map_err(|error| error.to_string()),
            other => Err(format!("version {other}; this program knows version {VERSION}")),
        }
    }

    pub(crate) fn to_json(&self) -> Vec<u8> {
        let mut text = serde_json::to_vec_pretty(&Kept { version: VERSION, settings: self }).expect("plain data");
        text.push(b'\n');
        text
    }
}

/// The contents of the file.
#[derive(Serialize, Deserialize)]
struct Kept<T> {
    version: u32,
    settings: T,
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
    fn the_default_pool_keeps_out_of_what_the_host_has() {
        let pools = |taken: &[&str]| {
            let taken: Vec<IpNet> = taken.iter().map(|net| net.parse().unwrap()).collect();
            Settings::fresh(&taken, true).pools
        };
        let fresh = pools(&[]);
        assert_eq!(fresh[0], "10.150.0.0/24".parse().unwrap());
        assert!(fresh[1].addr().to_string().starts_with("fd") && fresh[1].prefix_len() == 64);
        assert_eq!(fresh[1], fresh[1].trunc());
        assert_ne!(fresh[1], pools(&[])[1]);
        assert_eq!(pools(&["10.150.0.7/32", "10.151.0.0/16"])[0], "10.152.0.0/24".parse().unwrap());
        assert_eq!(Settings::fresh(&[], false).pools, ["10.150.0.0/24".parse::<IpNet>().unwrap()]);
        // No network is free. The default is then used, and the set-up of the interface reports the reason.
        assert_eq!(pools(&["10.0.0.0/8"])[0], "10.150.0.0/24".parse().unwrap());
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
            assert_eq!(settings.with_port(given), complete);
        }
    }
}
