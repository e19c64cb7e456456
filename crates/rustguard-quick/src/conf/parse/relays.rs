//! Reads endpoints, which may lead through other peers of the file, and checks them.

use super::{Diagnostic, Draft, Parser, Piece, read_value, value};
use crate::{conf::peer_names::PeerNames, overhead};
use rustguard_crypto::x25519::PublicKey;
use rustguard_device::EndpointSpec;
use std::collections::HashMap;

/// The most peers that a message about a loop names.
const LONGEST: usize = 8;

impl<'a> Parser<'a> {
    /// Reads all endpoints. Every peer of the file is known now.
    pub(super) fn read_endpoints(&mut self) {
        let through_peer = |item: &Piece<'_>| {
            let word = item.str().get(..value::VIA_PEER.len());
            word.is_some_and(|word| word.eq_ignore_ascii_case(value::VIA_PEER))
        };
        let names: PeerNames<'_> = if self.drafts.iter().flat_map(Draft::endpoint_items).any(|item| through_peer(&item))
        {
            self.drafts.iter().filter_map(|draft| Some((draft.peer.name.as_deref()?, draft.key()?))).collect()
        } else {
            PeerNames::default()
        };
        let mut endpoints: Vec<Vec<_>> = Vec::with_capacity(self.drafts.len());
        for draft in &self.drafts {
            let mut read = |item: Piece<'a>| {
                let path = |text| value::path(text, |name| names.find(name));
                Some((read_value("Endpoint", item, &mut self.diagnostics, path)?, item))
            };
            endpoints.push(draft.endpoint_items().into_iter().filter_map(&mut read).collect());
        }
        drop(names);
        for (draft, endpoints) in self.drafts.iter_mut().zip(endpoints) {
            draft.endpoints = endpoints;
        }
    }

    /// Checks the endpoints that lead through a peer.
    pub(super) fn check_relays(&mut self) {
        if !self.drafts.iter().any(Draft::leads_through_peers) {
            return;
        }
        let own = self.interface.public_key();
        let drafts: HashMap<_, _> = self.drafts.iter().filter_map(|draft| Some((draft.key()?, draft))).collect();
        let mut found = Vec::new();
        for draft in &self.drafts {
            for (relay, piece) in draft.relays() {
                let mut error = |message: String, help: String| {
                    found.push(Diagnostic::error(piece.span(), format!("Endpoint {message}")).help(help));
                };
                if draft.key() == Some(relay) {
                    error(
                        "leads to the peer through the peer itself".to_owned(),
                        "name another peer of this file behind `via-peer`".to_owned(),
                    );
                } else if own == Some(relay) {
                    error(
                        "leads through this interface itself".to_owned(),
                        "name the peer that passes datagrams on; it has to have both sides as its peers".to_owned(),
                    );
                } else if let Some(other) = drafts.get(&relay) {
                    if other.leads_through_peers_only() {
                        let (message, help) = without_address(draft, other, &drafts);
                        error(message, help);
                    }
                } else {
                    error(
                        "leads through a peer that this file does not have".to_owned(),
                        "add a [Peer] section with this PublicKey; the relay needs `Forward = on` in its own file"
                            .to_owned(),
                    );
                }
            }
        }
        self.diagnostics.append(&mut found);
        if let (Some(mtu), Some(piece)) = (self.interface.mtu, self.places.items("MTU").next_back())
            && u32::from(mtu) + overhead::OVERHEAD_THROUGH_PEER > overhead::DEFAULT_PATH_MTU
        {
            let message = format!(
                "MTU {mtu} is too large for an Endpoint through a peer: with both layers of WireGuard a packet has {} bytes \
                 outside, and most networks carry {}",
                u32::from(mtu) + overhead::OVERHEAD_THROUGH_PEER,
                overhead::DEFAULT_PATH_MTU
            );
            let help = format!(
                "`MTU = {}` fits; without the key, `up` computes it from the routes to the endpoints",
                overhead::mtu_for_path(overhead::DEFAULT_PATH_MTU, true)
            );
            self.diagnostics.push(Diagnostic::warning(piece.span(), message).help(help));
        }
    }
}

impl<'a> Draft<'a> {
    fn key(&self) -> Option<PublicKey> {
        self.public_key().map(|_| self.peer.public_key)
    }

    /// The last line with endpoints counts. Options follow an endpoint after a blank, so only commas separate
    /// endpoints.
    fn endpoint_items(&self) -> Vec<Piece<'a>> {
        let Some(value) = self.places.lines("Endpoint").next_back() else { return Vec::new() };
        let items: Vec<_> = value.words(|c| c == ',').map(Piece::trim).collect();
        if items.is_empty() { vec![value] } else { items }
    }

    fn relays(&self) -> impl Iterator<Item = (PublicKey, Piece<'a>)> {
        self.endpoints.iter().filter_map(|(path, piece)| match path.endpoint {
            EndpointSpec::Peer(relay) => Some((relay, *piece)),
            _ => None,
        })
    }

    pub(super) fn leads_through_peers(&self) -> bool {
        self.relays().next().is_some()
    }

    /// A peer without any endpoint is reached at the address from which it calls.
    fn leads_through_peers_only(&self) -> bool {
        self.leads_through_peers() && self.relays().count() == self.endpoints.len()
    }

    fn label(&self) -> String {
        self.peer
            .name
            .as_ref()
            .map_or_else(|| format!("the peer in line {}", self.header.line), |name| format!("`{name}`"))
    }
}

/// The problem with a relay that is itself reached through peers only.
fn without_address(draft: &Draft<'_>, relay: &Draft<'_>, drafts: &HashMap<PublicKey, &Draft<'_>>) -> (String, String) {
    let own = draft.key();
    let help = format!("a relay is reached at an address: give {} an address among its Endpoints", relay.label());
    let mut round = vec![draft.label(), relay.label()];
    let mut next = relay;
    // The limit ends a loop that this peer is not part of.
    while round.len() < LONGEST {
        let Some((key, _)) = next.relays().next() else { break };
        let Some(other) = drafts.get(&key) else { break };
        round.push(other.label());
        if own == Some(key) {
            return (format!("leads in a circle: {}", round.join(" through ")), help);
        }
        next = other;
    }
    let through = round.get(2).map_or_else(String::new, |other| format!(" (through {other})"));
    (format!("leads through {}, which has no address itself{through}", relay.label()), help)
}
