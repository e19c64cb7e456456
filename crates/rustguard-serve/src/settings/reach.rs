//! From where an endpoint can be reached.

use rustguard_core::host_port::{Host, HostPort};
use std::{
    fmt,
    net::{IpAddr, Ipv4Addr},
};

/// The machines that can reach an address which is not public. `Display` says which ones cannot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reach {
    /// This machine only: loopback addresses.
    Machine,
    /// The machines on the same link: link-local addresses (RFC 3927, RFC 4291).
    Link,
    /// The machines in the same private network: RFC 1918, RFC 4193, and shared addresses of providers (RFC 6598).
    Network,
}

impl Reach {
    /// From where `HOST:PORT` can be reached. `None` for public addresses, and for names, because a name may have
    /// another address elsewhere.
    pub fn of(endpoint: &str) -> Option<Self> {
        match endpoint.parse::<HostPort>().ok()?.host() {
            Host::Address(address) => Self::of_address(address.to_canonical()),
            Host::Zone(..) => Some(Self::Link),
            Host::Name(name) => (name == "localhost").then_some(Self::Machine),
        }
    }

    /// The sentence for users of `endpoint`, with the remedy.
    pub fn advice(self, endpoint: &str) -> String {
        match self {
            Self::Machine | Self::Link => {
                format!("{endpoint}: {self}; name this machine's address in the network: --endpoint HOST[:PORT]")
            }
            Self::Network => {
                let port = endpoint.rsplit(':').next().unwrap_or_default();
                format!(
                    "{endpoint}: {self}; if they are to join, forward UDP port {port} of the router to this machine, and give the \
                     router's public name or address: --endpoint HOST[:PORT]"
                )
            }
        }
    }

    fn of_address(address: IpAddr) -> Option<Self> {
        let (machine, link, network) = match address {
            IpAddr::V4(v4) => (v4.is_loopback(), v4.is_link_local(), v4.is_private() || is_shared(v4)),
            IpAddr::V6(v6) => (v6.is_loopback(), v6.is_unicast_link_local(), v6.is_unique_local()),
        };
        match () {
            () if machine || address.is_unspecified() => Some(Self::Machine),
            () if link => Some(Self::Link),
            () => network.then_some(Self::Network),
        }
    }
}

impl fmt::Display for Reach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Machine => "other machines cannot reach it",
            Self::Link => "machines on other links cannot reach it",
            Self::Network => "machines outside this network cannot reach it",
        })
    }
}

/// 100.64.0.0/10 (RFC 6598): behind the address translation of a provider.
fn is_shared(address: Ipv4Addr) -> bool {
    matches!(address.octets(), [100, 64..=127, ..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn private_endpoints_are_told_from_public_ones() {
        for (endpoint, reach) in [
            ("127.0.0.1:1", Some(Reach::Machine)),
            ("[::1]:1", Some(Reach::Machine)),
            ("localhost:1", Some(Reach::Machine)),
            ("169.254.1.1:1", Some(Reach::Link)),
            ("[fe80::1]:1", Some(Reach::Link)),
            ("10.1.0.1:1", Some(Reach::Network)),
            ("172.31.255.1:1", Some(Reach::Network)),
            ("192.168.1.5:1", Some(Reach::Network)),
            ("100.64.0.1:1", Some(Reach::Network)),
            ("100.127.255.255:1", Some(Reach::Network)),
            ("[fd00::1]:1", Some(Reach::Network)),
            ("[::ffff:10.0.0.1]:1", Some(Reach::Network)),
            ("172.32.0.1:1", None),
            ("100.128.0.1:1", None),
            ("203.0.113.1:1", None),
            ("[2001:db8::1]:1", None),
            ("vpn.example.org:1", None),
        ] {
            assert_eq!(Reach::of(endpoint), reach, "{endpoint}");
        }
    }
}
