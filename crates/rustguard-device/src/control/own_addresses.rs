//! The addresses at which this node may be reached, as far as it can find out itself: the addresses of the host, the
//! endpoints that the user names, and the router's mapping. [`Search`](rustguard_core::paths::Search) knows the
//! addresses that others see.
//!
//! They are looked for only while direct paths to some peer are searched for: otherwise neither the kernel nor the
//! router is asked.

#[cfg(feature = "port-mapping")]
use crate::port_mapping::{self, PortMapper};
use crate::{
    config::{EndpointSpec, MAX_PUBLIC_ENDPOINTS},
    interface::Interface,
    kernel::{Egress, Exit, HostAddresses, SourceLookup, host_addresses},
};
use ipnet::IpNet;
use rustguard_core::paths::{Candidate, CandidateKind};
use rustguard_tun::Endpoint;
use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4},
    time::Duration,
};
use tokio::sync::mpsc;

/// The minimum time between two looks at the host's addresses: one change of the network causes many messages of the
/// kernel.
const PAUSE: Duration = Duration::from_millis(500);
/// An address that only the default route covers: a root name server's. Nothing is sent to it.
const ELSEWHERE: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(198, 41, 0, 4)), 53);
/// The maximum number of the host's addresses that peers are told, which leaves room for other candidates.
const MAX_OF_HOST: usize = 8;

/// The settings of the search for own addresses, and its results.
pub(super) struct OwnAddresses {
    /// The index of the tunnel's interface; `None` over the embedder's own transports, whose addresses cannot be
    /// listed.
    interface: Option<u32>,
    /// The endpoints as the user wrote them.
    told: Vec<EndpointSpec>,
    /// Whether the router may be asked.
    maps: bool,
    /// The addresses are needed.
    wanted: bool,
    /// A look is under way, or was a moment ago.
    busy: bool,
    /// Something has changed since the look began.
    again: bool,
    host: Host,
    mapped: Option<SocketAddrV4>,
    /// Bounded by its senders: two for each look, one for each mapping.
    found: mpsc::UnboundedSender<Found>,
    #[cfg(feature = "port-mapping")]
    mapper: PortMapper,
}

/// A result.
#[derive(Debug)]
pub(super) enum Found {
    Host(Host),
    /// The look and the pause after it are over.
    Rested,
    /// The address that the router maps.
    #[cfg(feature = "port-mapping")]
    Mapped(Option<SocketAddrV4>),
}

/// The result of a look at the host.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Host {
    addresses: HostAddresses,
    /// The exit towards the Internet.
    exit: Option<Exit>,
    /// The addresses of the user's endpoints.
    told: Vec<SocketAddr>,
    /// Lookups that failed, with the reasons.
    missing: Vec<String>,
}

/// The kind of change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum News {
    Nothing,
    /// The list of candidates has changed.
    Candidates,
    /// The host is in another network.
    Network,
}

/// The port and the mark of control's sockets.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ports {
    /// The first port: where this node listens.
    pub(super) listen: u16,
    /// The mark of its datagrams.
    pub(super) mark: u32,
}

impl OwnAddresses {
    pub(super) fn new(interface: Option<&Interface>, found: mpsc::UnboundedSender<Found>) -> Self {
        Self {
            interface: interface.map(|interface| interface.index),
            told: Vec::new(),
            maps: true,
            wanted: false,
            busy: false,
            again: false,
            host: Host::default(),
            mapped: None,
            #[cfg(feature = "port-mapping")]
            mapper: PortMapper::new(interface.map_or("device", |interface| &interface.name), {
                let found = found.clone();
                move |mapped| drop(found.send(Found::Mapped(mapped)))
            }),
            found,
        }
    }

    /// Takes the endpoints at which this node is reached, as the user wrote them.
    pub(super) fn tell(&mut self, endpoints: Vec<EndpointSpec>, ports: Ports) {
        self.told = endpoints;
        self.look(ports);
    }

    /// Takes whether the router may be asked for a mapping.
    pub(super) fn set_port_mapping(&mut self, on: bool, ports: Ports) {
        self.maps = on;
        self.ask_router(ports);
    }

    /// The addresses are needed from now on, or no longer.
    pub(super) fn want(&mut self, wanted: bool, ports: Ports) {
        if self.wanted != wanted {
            self.wanted = wanted;
            self.look(ports);
            self.ask_router(ports);
        }
    }

    /// Something may have changed: looks again.
    pub(super) fn look(&mut self, ports: Ports) {
        if !self.wanted {
            return;
        }
        if self.busy {
            self.again = true;
            return;
        }
        self.busy = true;
        let (interface, told, found) = (self.interface, self.told.clone(), self.found.clone());
        tokio::spawn(async move {
            let host = look(interface, &told, ports).await;
            // Control is gone only while the device shuts down.
            if found.send(Found::Host(host)).is_ok() {
                tokio::time::sleep(PAUSE).await;
                let _ = found.send(Found::Rested);
            }
        });
    }

    /// Takes a result.
    pub(super) fn found(&mut self, found: Found, ports: Ports) -> News {
        match found {
            #[cfg(feature = "port-mapping")]
            Found::Mapped(mapped) if std::mem::replace(&mut self.mapped, mapped) == mapped => News::Nothing,
            #[cfg(feature = "port-mapping")]
            Found::Mapped(_) => News::Candidates,
            Found::Host(host) => {
                // Each look repeats what is missing: only new entries are logged.
                for new in host.missing.iter().filter(|new| !self.host.missing.contains(new)) {
                    tracing::warn!("peers are not told {new}");
                }
                let moved = self.host.exit != host.exit || self.host.addresses != host.addresses;
                let changed = std::mem::replace(&mut self.host, host) != self.host;
                self.ask_router(ports);
                match (moved, changed) {
                    (true, _) => News::Network,
                    (false, true) => News::Candidates,
                    (false, false) => News::Nothing,
                }
            }
            Found::Rested => {
                self.busy = false;
                if std::mem::take(&mut self.again) {
                    self.look(ports);
                }
                News::Nothing
            }
        }
    }

    /// The networks of the tunnel's own interface.
    pub(super) fn tunnel_networks(&self) -> &[IpNet] {
        &self.host.addresses.tunnel
    }

    /// The addresses at which this node may be reached, the best first: addresses of the host that only its own network
    /// reaches, IPv6 and other addresses of the host, the user's endpoints, the router's mapping. `inside` tells which
    /// addresses lie in the tunnel.
    pub(super) fn candidates(&self, ports: Ports, inside: impl Fn(IpAddr) -> bool) -> Vec<Candidate> {
        let mut own: Vec<_> = self.host.addresses.addresses.iter().filter(|own| !inside(own.ip)).collect();
        // The interfaces beside the main one are mostly bridges of containers and virtual machines.
        let main = self.host.exit.map(|exit| exit.interface);
        own.sort_by_key(|own| (rank(own.ip), main.is_some_and(|main| main != own.interface)));
        let of = |kind, addresses: &mut dyn Iterator<Item = SocketAddr>| {
            addresses.map(|address| Candidate { address, kind }).collect::<Vec<_>>()
        };
        let mut own = own.iter().map(|own| SocketAddr::new(own.ip, ports.listen));
        let mut candidates = of(CandidateKind::Interface, &mut own.by_ref().take(MAX_OF_HOST));
        candidates
            .extend(of(CandidateKind::Configured, &mut self.host.told.iter().copied().take(MAX_PUBLIC_ENDPOINTS)));
        candidates.extend(of(CandidateKind::Mapped, &mut self.mapped.map(SocketAddr::from).into_iter()));
        candidates
    }

    /// Asks the router to map the port, if there is a router that may be asked.
    #[cfg(feature = "port-mapping")]
    fn ask_router(&mut self, ports: Ports) {
        let wanted = || {
            let exit = self.host.exit.filter(|_| self.wanted && self.maps)?;
            let (Some(IpAddr::V4(router)), Some(IpAddr::V4(own))) = (exit.gateway, exit.source) else { return None };
            // An address that others can send to needs no mapping.
            let translated = !port_mapping::is_outside(own);
            Some(port_mapping::Wanted { router, own, port: ports.listen.try_into().ok()? }).filter(|_| translated)
        };
        let wanted = wanted();
        self.mapper.want(wanted);
    }

    #[cfg(not(feature = "port-mapping"))]
    fn ask_router(&self, _ports: Ports) {}
}

/// Looks at the host. Without an interface, only names are resolved.
async fn look(interface: Option<u32>, told: &[EndpointSpec], ports: Ports) -> Host {
    let mut host = Host::default();
    if let Some(index) = interface {
        match host_addresses(index).await {
            Ok(addresses) => host.addresses = addresses,
            Err(error) => host.missing.push(format!("this host's addresses: {error}")),
        }
        if let Ok(lookup) = SourceLookup::open()
            && let Egress::By(exit) = lookup.egress(Endpoint::new(ELSEWHERE), ports.mark, ports.listen).await
        {
            host.exit = Some(exit).filter(|exit| exit.interface != index);
        }
    }
    for spec in told {
        match spec {
            EndpointSpec::Address(address) => host.told.push(*address),
            EndpointSpec::Name(name, port) => match tokio::net::lookup_host((name.as_str(), *port)).await {
                Ok(addresses) => host.told.extend(addresses),
                Err(error) => host.missing.push(format!("{spec}: {error}")),
            },
            // An endpoint through a peer is not an address of this node.
            EndpointSpec::Peer(_) => {}
        }
    }
    host
}

/// Addresses of private networks, which only the same network reaches, come first, then IPv6, then IPv4.
fn rank(ip: IpAddr) -> u8 {
    match ip {
        IpAddr::V4(ip) if ip.is_private() => 0,
        IpAddr::V6(ip) if ip.is_unique_local() => 0,
        IpAddr::V6(_) => 1,
        IpAddr::V4(_) => 2,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::HostAddress;

    const PORTS: Ports = Ports { listen: 51820, mark: 0 };

    fn own(addresses: &[(&str, u32)], main: Option<u32>) -> OwnAddresses {
        let mut own = OwnAddresses::new(None, mpsc::unbounded_channel().0);
        let address = |&(ip, interface): &(&str, u32)| HostAddress { ip: ip.parse().unwrap(), interface };
        own.host.addresses.addresses = addresses.iter().map(address).collect();
        own.host.exit = main.map(|interface| Exit { interface, gateway: None, source: None });
        own
    }

    fn told(own: &OwnAddresses, inside: impl Fn(IpAddr) -> bool) -> Vec<String> {
        own.candidates(PORTS, inside).iter().map(|candidate| candidate.address.to_string()).collect()
    }

    #[test]
    fn places_of_the_same_network_come_first_then_ipv6_then_what_is_outside() {
        let host = [("203.0.113.7", 2), ("172.17.0.1", 3), ("2001:db8::5", 2), ("fd01::5", 2), ("192.168.1.5", 2)];
        let mut own = own(&host, Some(2));
        own.host.told = vec!["198.51.100.1:4000".parse().unwrap()];
        own.mapped = Some("198.51.100.2:4500".parse().unwrap());
        assert_eq!(
            told(&own, |_| false),
            [
                "[fd01::5]:51820",
                "192.168.1.5:51820",
                "172.17.0.1:51820",
                "[2001:db8::5]:51820",
                "203.0.113.7:51820",
                "198.51.100.1:4000",
                "198.51.100.2:4500",
            ]
        );
    }

    #[test]
    fn a_host_with_many_addresses_still_says_how_it_is_reached_from_outside() {
        let bridges: Vec<_> = (0..40).map(|n| format!("10.0.{n}.1")).collect();
        let mut own = own(&bridges.iter().map(|ip| (ip.as_str(), 3)).collect::<Vec<_>>(), None);
        own.host.told = (0..9).map(|n| ([198, 51, 100, 1], 4_000 + n).into()).collect();
        own.mapped = Some("198.51.100.2:4500".parse().unwrap());
        let kinds: Vec<_> = own.candidates(PORTS, |_| false).iter().map(|candidate| candidate.kind).collect();
        assert_eq!(kinds[..MAX_OF_HOST], [CandidateKind::Interface; MAX_OF_HOST]);
        assert_eq!(
            kinds[MAX_OF_HOST..MAX_OF_HOST + MAX_PUBLIC_ENDPOINTS],
            [CandidateKind::Configured; MAX_PUBLIC_ENDPOINTS]
        );
        assert_eq!(kinds[MAX_OF_HOST + MAX_PUBLIC_ENDPOINTS..], [CandidateKind::Mapped]);
    }

    #[test]
    fn addresses_inside_the_tunnel_are_not_told() {
        let own = own(&[("10.9.0.7", 2), ("192.168.1.5", 2)], Some(2));
        let inside = |ip: IpAddr| ip.to_string().starts_with("10.9.");
        assert_eq!(told(&own, inside), ["192.168.1.5:51820"]);
    }

    #[tokio::test]
    async fn the_host_is_looked_at_only_while_somebody_wants_to_know() {
        let (sender, mut found) = mpsc::unbounded_channel();
        let mut own = OwnAddresses::new(None, sender);
        own.tell(vec![EndpointSpec::Address("198.51.100.1:4000".parse().unwrap())], PORTS);
        assert!(!own.busy);
        own.want(true, PORTS);
        let host = found.recv().await.unwrap();
        assert_eq!(own.found(host, PORTS), News::Candidates);
        assert_eq!(told(&own, |_| false), ["198.51.100.1:4000"]);
        // All requests during the pause cause one more look.
        own.look(PORTS);
        own.look(PORTS);
        assert!(matches!(found.recv().await, Some(Found::Rested)));
        assert_eq!(own.found(Found::Rested, PORTS), News::Nothing);
        let host = found.recv().await.unwrap();
        assert_eq!(own.found(host, PORTS), News::Nothing);
    }
}
