//! The checks that need the whole file.

use super::{Diagnostic, Draft, MIN_MTU_IPV6, Parser, Piece};
use rustguard_core::{
    paths::{MAX_ENDPOINTS, PathPolicy},
    routing::Role,
};
use rustguard_crypto::x25519::PublicKey;
use rustguard_device::{EndpointSpec, PathSpec};
use std::{collections::HashMap, net::IpAddr};

impl Parser<'_> {
    pub(super) fn check_interface(&mut self) {
        let start = Piece { text: self.text, line: 1, line_start: 0, start: 0, end: 0 };
        match self.interface_header {
            None => self
                .diagnostics
                .push(Diagnostic::error(start.span(), "there is no `[Interface]`").help("it holds the PrivateKey")),
            Some(header) if self.places.lines("PrivateKey").next().is_none() && !self.hook_sets_key() => {
                self.diagnostics.push(
                    Diagnostic::error(header.span(), "`[Interface]` has no PrivateKey")
                        .help("`rustguard genkey` makes one: PrivateKey = …"),
                );
            }
            Some(_) => {}
        }
        let in_vain = self.interface.nat == Some(true) && self.interface.announce.is_empty();
        if let Some(nat) = self.places.lines("Nat").next_back().filter(|_| in_vain) {
            self.diagnostics.push(
                Diagnostic::warning(nat.span(), "Nat has no effect without a network behind this machine")
                    .help("`Announce = 192.168.1.0/24` names one"),
            );
        }
        if !self.interface.routing.learns() {
            let lines = self.places.lines.iter().chain(self.drafts.iter().flat_map(|draft| &draft.places.lines));
            for (form, value) in lines.filter(|(form, _)| form.needs_babel) {
                let (key, span) = (form.name, value.span());
                // A member of a network announces prefixes too.
                if key == "Announce" && self.interface.network.is_some() {
                    continue;
                }
                let warning = Diagnostic::warning(span, format!("{key} has no effect without a routing protocol"));
                self.diagnostics.push(match self.interface.network {
                    Some(_) => warning.help("only the servers of a network have one"),
                    None => warning.help("`Routing = babel` in [Interface] starts one"),
                });
            }
        }
        if let (Some(mtu), Some(piece)) = (self.interface.mtu, self.places.items("MTU").next_back())
            && mtu < MIN_MTU_IPV6
            && self.interface.addresses.iter().any(|net| net.addr().is_ipv6())
        {
            self.diagnostics.push(
                Diagnostic::warning(piece.span(), format!("MTU {mtu} is too small for the IPv6 address"))
                    .help(format!("IPv6 needs {MIN_MTU_IPV6}; below that, Linux disables IPv6 on the interface")),
            );
        }
    }

    /// Whether a hook sets the private key, as in the example of wg-quick(8): `PostUp = wg set %i private-key FILE`.
    fn hook_sets_key(&self) -> bool {
        self.interface.pre_up.iter().chain(&self.interface.post_up).any(|hook| hook.contains("private-key"))
    }

    pub(super) fn check_peers(&mut self) {
        let own = self.interface.public_key();
        let mut keys = HashMap::<PublicKey, usize>::new();
        let mut nets = HashMap::<(IpAddr, u8), (usize, usize)>::new();
        for (index, draft) in self.drafts.iter().enumerate() {
            match (draft.public_key(), draft.peer.public_key) {
                (None, _) => self.diagnostics.push(
                    Diagnostic::error(draft.header.span(), "`[Peer]` has no PublicKey")
                        .help("`rustguard pubkey` prints it for the peer's private key"),
                ),
                (Some(_), PublicKey(bytes)) if bytes == [0; 32] => {}
                (Some(piece), key) => {
                    if let Some(first) = keys.insert(key, piece.line) {
                        let message = format!("the peer with this PublicKey is in line {first} already");
                        let help = "a peer has one section; merge the two sections and their AllowedIPs";
                        self.diagnostics.push(Diagnostic::error(piece.span(), message).help(help));
                    }
                    if own == Some(key) {
                        let message = "this PublicKey is the interface's own; an interface cannot be its own peer";
                        let help = "use the public key of the other side";
                        self.diagnostics.push(Diagnostic::warning(piece.span(), message).help(help));
                    }
                }
            }
            if draft.peer.role == Some(Role::Client) && draft.peer.allowed_ips.is_empty() {
                let message = "a client without AllowedIPs cannot be reached and cannot send";
                self.diagnostics.push(Diagnostic::warning(draft.header.span(), message));
            }
            check_endpoints(draft, &mut self.diagnostics);
            // With a routing engine, AllowedIPs may overlap.
            let shared = self.interface.routing.shares_prefixes();
            for (net, piece) in draft.allowed_ips().filter(|_| !shared) {
                let before = nets.insert((net.addr(), net.prefix_len()), (index, piece.line));
                if let Some((other, line)) = before.filter(|&(other, _)| other != index) {
                    let other =
                        self.drafts[other].peer.name.as_ref().map_or_else(String::new, |name| format!(" ({name})"));
                    let message = format!("AllowedIPs {net} is another peer's{other}, in line {line}");
                    let help = "the last peer gets it, and the other loses it; give it to one of them, or say `Routing = members` \
                                in [Interface] if both may have it";
                    self.diagnostics.push(Diagnostic::warning(piece.span(), message).help(help));
                }
            }
        }
    }
}

/// Checks that several endpoints are consistent.
fn check_endpoints(draft: &Draft<'_>, diagnostics: &mut Vec<Diagnostic>) {
    let endpoints = &draft.endpoints;
    for (index, (path, piece)) in endpoints.iter().enumerate() {
        if index == MAX_ENDPOINTS {
            let message = format!("a peer has at most {MAX_ENDPOINTS} endpoints");
            diagnostics.push(Diagnostic::error(piece.span(), message).help("leave out the least useful"));
        }
        let same = |(other, _): &&(PathSpec, _)| other.endpoint == path.endpoint && other.via == path.via;
        if endpoints[..index].iter().any(|other| same(&other)) {
            let (message, help) = match &path.endpoint {
                // The text of an endpoint through a peer may have the key.
                EndpointSpec::Peer(_) => ("Endpoint leads through one peer twice".to_owned(), "remove one of them"),
                endpoint => (
                    format!("Endpoint `{endpoint}` is given twice"),
                    "remove one of them; two paths to one address need different `via INTERFACE`",
                ),
            };
            diagnostics.push(Diagnostic::error(piece.span(), message).help(help));
        }
        match path.policy {
            PathPolicy::Pinned if endpoints.len() > 1 => {
                let message = "an endpoint is pinned, so the peer's other endpoints are never used";
                let help = "remove them, or `pinned`";
                diagnostics.push(Diagnostic::warning(piece.span(), message).help(help));
            }
            PathPolicy::Weighted(_)
                if !endpoints
                    .iter()
                    .enumerate()
                    .any(|(n, (other, _))| n != index && matches!(other.policy, PathPolicy::Weighted(_))) =>
            {
                let message = "a weight has no effect if no other endpoint of the peer has one";
                let help = "flows are spread over the endpoints with a weight; the others are in reserve";
                diagnostics.push(Diagnostic::warning(piece.span(), message).help(help));
            }
            _ => {}
        }
    }
}
