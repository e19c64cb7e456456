//! The resolver's part of control: which endpoints have names to resolve, and what control does with the answers.

use super::{
    Control,
    resolver::{Resolved, Resolving},
    timer::now,
};
use crate::{config::EndpointSpec, event::Event};
use rustguard_core::node::PeerId;
use std::net::SocketAddr;

impl Control {
    /// Resolves the names of the peer's endpoints again, to find other addresses. If there are several endpoints, those
    /// that work are left alone.
    pub(super) fn resolve_again(&mut self, peer: PeerId, attempt: u32) {
        let Some(entry) = self.peers.get(&peer) else { return };
        let works = |path: &usize| entry.paths.as_ref().is_some_and(|peer_paths| peer_paths.paths.works(*path));
        let paths: Vec<usize> = (0..entry.endpoints.len()).filter(|path| !works(path)).collect();
        for path in paths {
            self.resolve(peer, path, attempt);
        }
    }

    /// Resolves one of the peer's endpoints, if it has a name that is not being resolved already.
    pub(super) fn resolve(&mut self, peer: PeerId, path: usize, attempt: u32) {
        let Some(configured) = self.peers.get_mut(&peer).and_then(|entry| entry.endpoints.get_mut(path)) else {
            return;
        };
        let EndpointSpec::Name(host, port) = &configured.spec.endpoint else { return };
        if configured.resolving.as_ref().is_none_or(Resolving::finished) {
            configured.resolving = Some(self.resolver.start(peer, path, (host.clone(), *port), attempt));
        }
    }

    /// Takes an answer.
    pub(super) fn resolved(&mut self, resolved: Resolved) {
        let Resolved { peer, path, name, attempt, answer, last } = resolved;
        let Some(entry) = self.peers.get_mut(&peer) else { return };
        let Some(public_key) = self.node.peer_config(peer).map(|config| config.public_key) else { return };
        let alone = entry.configured().count() == 1;
        let Some(configured) = entry.endpoints.get_mut(path) else { return };
        if configured.spec.endpoint.to_string() != name {
            return; // configured anew in the meantime
        }
        let other = configured.answered(answer.as_ref().err().map(ToString::to_string), now().instant);
        match answer {
            Err(error) => {
                let next = if last { "no further attempt before a handshake fails" } else { "trying again" };
                let cause = error.to_string();
                // The attempts have no end, so the same error is logged once.
                if other || last {
                    tracing::warn!(
                        peer = entry.label(&public_key),
                        "cannot resolve the endpoint {name}: {cause}; {next}"
                    );
                }
                self.emit(Event::EndpointUnresolved { peer: public_key, name, cause, given_up: last });
            }
            Ok(addresses) => {
                let known = entry.shared.endpoint().map(|known| known.remote);
                let endpoint = match alone {
                    // If initiations get no answer, all addresses are raced, and the address in use is replaced when
                    // another one answers. Otherwise there is no route to it, and the resolver puts addresses with a
                    // route first (RFC 6724, section 6).
                    true => {
                        let addresses = entry.race.get_or_insert_default().resolved(&addresses);
                        known.filter(|known| attempt > 0 && addresses.contains(known)).unwrap_or(addresses[0])
                    }
                    false => another(&addresses, configured.address.filter(|_| attempt > 0)),
                };
                configured.address = Some(endpoint);
                let waiting = known.is_some() || !entry.shared.waiting.lock().is_empty();
                if entry.paths.is_none() && known == Some(endpoint) {
                    return;
                }
                self.found(peer, path, endpoint);
                self.emit(Event::EndpointResolved { peer: public_key, endpoint });
                self.start(peer);
                // If there are several endpoints, another one may work.
                if waiting && alone {
                    // Initiations went to a wrong address, or to none.
                    self.node.handshake_now(peer, now(), &mut rand::rng(), &mut self.actions);
                }
            }
        }
    }
}

/// The address of a name that is used: the first one, or another one than `known`, which does not answer. The addresses
/// take turns in their own order, whatever the order of the resolver.
fn another(addresses: &[SocketAddr], known: Option<SocketAddr>) -> SocketAddr {
    let next = known.and_then(|known| {
        let later = addresses.iter().filter(|address| **address > known);
        later.min().or_else(|| addresses.iter().min())
    });
    *next.unwrap_or(&addresses[0])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_address_has_its_turn_whatever_the_resolver_prefers() {
        let mut addresses = ["[2001:db8::1]:1", "192.0.2.2:1", "192.0.2.1:1"].map(|text| text.parse().unwrap());
        assert_eq!(another(&addresses, None), addresses[0]);
        let mut known = addresses[0];
        let turns: Vec<_> = (0..6)
            .map(|_| {
                addresses.rotate_left(1);
                known = another(&addresses, Some(known));
                known.to_string()
            })
            .collect();
        assert_eq!(turns, ["192.0.2.1:1", "192.0.2.2:1", "[2001:db8::1]:1"].repeat(2));
        assert_eq!(another(&addresses[..1], Some(addresses[0])), addresses[0], "there is no other");
        assert_eq!(another(&addresses[..1], Some("192.0.2.9:1".parse().unwrap())), addresses[0], "it was given up");
    }
}
