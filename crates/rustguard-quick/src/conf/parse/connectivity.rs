//! Checks for valid settings with which a tunnel cannot work: no side can begin, or packets take a wrong way. All of
//! them are warnings, because a hook, a program or `set` may change the settings.

use super::{Diagnostic, Draft, Parser, Piece, Table};
use crate::NameServer;
use ipnet::IpNet;
use rustguard_core::paths::can_be_a_peer;
use rustguard_device::EndpointSpec;
use std::net::IpAddr;

impl Parser<'_> {
    pub(super) fn check_connectivity(&mut self) {
        self.check_who_begins();
        let mut found = Vec::new();
        let own_routes = !self.interface.routing.learns();
        for draft in &self.drafts {
            if own_routes && draft.peer.allowed_ips.is_empty() && !self.hooks_mention("allowed-ips") {
                found.push(
                    Diagnostic::warning(
                        draft.header.span(),
                        "a peer without AllowedIPs sends nothing and receives nothing",
                    )
                    .help("AllowedIPs are the addresses behind the peer: `AllowedIPs = 10.0.0.2/32`"),
                );
            }
            found.extend(self.own_address_elsewhere(draft));
            found.extend(self.endpoint_in_the_tunnel(draft));
        }
        found.extend(self.dns_outside());
        found.extend(self.public_endpoints_in_vain());
        self.diagnostics.append(&mut found);
    }

    /// Without an endpoint, this side cannot begin. Without a port, the other side does not know the port to send to.
    fn check_who_begins(&mut self) {
        if self.interface.listen_port.is_some_and(|port| port != 0) || self.hooks_mention("listen-port") {
            return;
        }
        let mut silent = self.drafts.iter().filter(|draft| draft.endpoints.is_empty());
        let Some(first) = silent.next().filter(|_| !self.hooks_mention("endpoint")) else { return };
        let others = silent.count();
        let message = match others {
            0 => "neither side can begin: the peer has no Endpoint, and [Interface] has no ListenPort".to_owned(),
            _ => format!(
                "neither side can begin: this peer and {others} more have no Endpoint, and [Interface] has no ListenPort"
            ),
        };
        let help = "give [Interface] a port that the peer knows: `ListenPort = 51820`; or give the peer an Endpoint";
        self.diagnostics.push(Diagnostic::warning(first.header.span(), message).help(help));
    }

    /// The peer's AllowedIPs contain an address of this interface as a single host.
    fn own_address_elsewhere<'s>(&'s self, draft: &'s Draft<'_>) -> impl Iterator<Item = Diagnostic> + 's {
        draft.allowed_ips().filter_map(|(net, piece)| {
            let addresses = self.interface.addresses.iter().zip(self.places.items("Address"));
            let mut own = addresses.filter(|(address, _)| address.addr() == net.addr());
            let (_, first) = own.next().filter(|_| net.prefix_len() == net.max_prefix_len())?;
            let message = format!("AllowedIPs {net} is this interface's own Address, in line {}", first.line);
            let help =
                "AllowedIPs are the addresses behind the peer; Linux never sends packets for its own address to a peer";
            Some(Diagnostic::warning(piece.span(), message).help(help))
        })
    }

    /// The peer's endpoint is an address to which the host's route leads through the tunnel. A default route is no
    /// problem: `up` makes rules for it.
    fn endpoint_in_the_tunnel(&self, draft: &Draft<'_>) -> Vec<Diagnostic> {
        // The user has other rules and routes.
        let elsewhere = self.interface.table != Table::Auto
            || self.interface.fwmark.is_some_and(|mark| mark != 0)
            || self.interface.routing.learns()
            || ["ip route", "ip -4 route", "ip -6 route", "ip rule", "route add"]
                .iter()
                .any(|words| self.hooks_mention(words));
        let endpoints = draft.endpoints.iter().filter(|(path, _)| !elsewhere && path.via.is_none());
        let inside = endpoints.filter_map(|(path, piece)| {
            let EndpointSpec::Address(at) = &path.endpoint else { return None };
            let routed = |net: &IpNet| net.prefix_len() > 0 && net.contains(&at.ip());
            let message = if let Some(net) = self.interface.addresses.iter().find(|net| routed(net)) {
                format!("Endpoint {at} is inside the tunnel, in the network of Address {net}")
            } else {
                let net = draft.peer.allowed_ips.iter().find(|net| routed(net))?;
                format!("Endpoint {at} is in the peer's own AllowedIPs {net}, so its route leads into the tunnel")
            };
            let help = "the endpoint is the peer's address outside of the tunnel; it works only where the host has a longer \
                        route to it";
            Some(Diagnostic::warning(piece.span(), message).help(help))
        });
        inside.collect()
    }

    /// A server of `DNS` has a private address, and no peer has it.
    fn dns_outside(&self) -> Vec<Diagnostic> {
        if self.interface.routing.learns() || self.drafts.iter().all(|draft| draft.peer.allowed_ips.is_empty()) {
            return Vec::new();
        }
        let nets = || {
            let allowed_ips = self.drafts.iter().flat_map(|draft| &draft.peer.allowed_ips);
            allowed_ips.chain(&self.interface.addresses)
        };
        let servers = self.interface.dns.iter().map(NameServer::address).zip(self.places.items("DNS"));
        let outside = servers.filter(|(server, _)| is_private(server) && !nets().any(|net| net.contains(server)));
        let warn = |(server, piece): (IpAddr, Piece<'_>)| {
            let message = format!("DNS {server} is a private address that no peer has in its AllowedIPs");
            let help = format!(
                "queries to it leave outside of the tunnel; add {server} to the AllowedIPs of the peer that has it"
            );
            Diagnostic::warning(piece.span(), message).help(help)
        };
        outside.map(warn).collect()
    }

    /// `PublicEndpoint` has no effect: no peer learns the endpoint, or no peer tries it.
    fn public_endpoints_in_vain(&self) -> Vec<Diagnostic> {
        let Some(first) = self.places.items("PublicEndpoint").next() else { return Vec::new() };
        let looks = |draft: &Draft<'_>| draft.peer.direct.unwrap_or_else(|| draft.leads_through_peers());
        if self.interface.network.is_none() && !self.drafts.iter().any(looks) {
            let message = "PublicEndpoint has no effect: direct paths are looked for to no peer";
            let help = "give a peer `Direct = on`, or an Endpoint through another peer; the other side needs the same";
            return vec![Diagnostic::warning(first.span(), message).help(help)];
        }
        let of_interface = self.interface.public_endpoints.iter().zip(self.places.items("PublicEndpoint"));
        let in_vain = of_interface.filter_map(|(endpoint, piece)| {
            let EndpointSpec::Address(at) = endpoint else { return None };
            let message = if let Some(net) = self.interface.addresses.iter().find(|net| net.contains(&at.ip())) {
                format!("PublicEndpoint {at} is inside the tunnel, in the network of Address {net}, and is not tried")
            } else if can_be_a_peer(*at) {
                return None;
            } else {
                format!("PublicEndpoint {at} is no address at which others could reach this machine, and is not tried")
            };
            let help = "it is the address that others have to send to, for example that of the router, with the port that \
                        the router passes on";
            Some(Diagnostic::warning(piece.span(), message).help(help))
        });
        in_vain.collect()
    }

    fn hooks_mention(&self, words: &str) -> bool {
        let interface = &self.interface;
        interface.pre_up.iter().chain(&interface.post_up).any(|hook| hook.contains(words))
    }
}

/// RFC 1918 and RFC 4193.
fn is_private(address: &IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => address.is_private(),
        IpAddr::V6(address) => address.is_unique_local(),
    }
}
