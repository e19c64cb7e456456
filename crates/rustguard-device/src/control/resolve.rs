//! Endpoints with a name: resolved in a task of their own, again and again until there is an answer.

use super::{Control, now};
use crate::{binder::Binder, config::EndpointSpec, event::Event};
use rustguard_core::node::PeerId;
use std::{io, net::SocketAddr, time::Duration};
use tokio::sync::mpsc;

/// Waiting times between attempts; the last one repeats.
const BACKOFF: [Duration; 5] = [
    Duration::from_secs(1),
    Duration::from_secs(2),
    Duration::from_secs(5),
    Duration::from_secs(15),
    Duration::from_secs(30),
];

/// What the resolver said.
pub(super) struct Resolved {
    peer: PeerId,
    /// Which of its endpoints.
    path: usize,
    name: String,
    /// How often the handshake had failed when this was asked: another address every time.
    attempt: u32,
    answer: io::Result<Vec<SocketAddr>>,
    /// It is not tried again before the next handshake fails.
    last: bool,
}

/// A resolution under way. Dropping it ends it.
pub(super) struct Resolving(tokio::task::JoinHandle<()>);

impl Drop for Resolving {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Resolving {
    pub(super) fn finished(&self) -> bool {
        self.0.is_finished()
    }

    /// Resolves until there is an answer, or as often again as `retries` says; every failure is reported too.
    fn start(
        (peer, path): (PeerId, usize),
        host: String,
        port: u16,
        attempt: u32,
        retries: Option<u32>,
        report: mpsc::Sender<Resolved>,
    ) -> Self {
        Self(tokio::spawn(async move {
            let mut backoff = BACKOFF.iter();
            for retry in 0.. {
                let answer = lookup(&host, port).await;
                let last = answer.is_ok() || retries.is_some_and(|retries| retry >= retries);
                let name = format!("{host}:{port}");
                if report.send(Resolved { peer, path, name, attempt, answer, last }).await.is_err() || last {
                    return;
                }
                tokio::time::sleep(*backoff.next().unwrap_or(&BACKOFF[BACKOFF.len() - 1])).await;
            }
        }))
    }
}

/// A and AAAA, in the order that getaddrinfo prefers (RFC 6724).
async fn lookup(host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    let addresses: Vec<_> = tokio::net::lookup_host((host, port)).await?.collect();
    if addresses.is_empty() {
        return Err(io::Error::new(io::ErrorKind::NotFound, "the name has no address"));
    }
    Ok(addresses)
}

impl<B: Binder> Control<B> {
    /// Resolves all of the peer's endpoints that have names, for other addresses than those before; of several, those that work
    /// are left where they are.
    pub(super) fn resolve_again(&mut self, peer: PeerId, attempt: u32) {
        let Some(entry) = self.peers.get(&peer) else { return };
        let works = |path: &usize| entry.paths.as_ref().is_some_and(|several| several.paths.works(*path));
        let paths: Vec<usize> = (0..entry.endpoints.len()).filter(|path| !works(path)).collect();
        for path in paths {
            self.resolve(peer, path, attempt);
        }
    }

    /// Resolves one of the peer's endpoints, if it has a name and that is not under way already.
    pub(super) fn resolve(&mut self, peer: PeerId, path: usize, attempt: u32) {
        let Some(configured) = self.peers.get_mut(&peer).and_then(|entry| entry.endpoints.get_mut(path)) else {
            return;
        };
        let EndpointSpec::Name(host, port) = &configured.spec.endpoint else { return };
        if configured.resolving.as_ref().is_none_or(Resolving::finished) {
            let (retries, report) = (self.resolution_retries, self.resolved.clone());
            let task = Resolving::start((peer, path), host.clone(), *port, attempt, retries, report);
            configured.resolving = Some(task);
        }
    }

    /// Takes an answer.
    pub(super) fn resolved(&mut self, resolved: Resolved) {
        let Resolved { peer, path, name, attempt, answer, last } = resolved;
        let Some(entry) = self.peers.get(&peer) else { return };
        let Some(public_key) = self.node.peer_config(peer).map(|config| config.public_key) else { return };
        let configured = entry.endpoints.get(path).map(|configured| configured.spec.endpoint.to_string());
        if configured.as_deref() != Some(&name) {
            return; // configured anew in the meantime
        }
        match answer {
            Err(error) => {
                let next = if last { "no further attempt before a handshake fails" } else { "trying again" };
                tracing::warn!(peer = entry.label(&public_key), "cannot resolve the endpoint {name}: {error}; {next}");
                let cause = error.to_string();
                self.emit(Event::EndpointUnresolved { peer: public_key, name, cause, given_up: last });
            }
            Ok(addresses) => {
                let endpoint = addresses[attempt as usize % addresses.len()];
                let known = entry.shared.endpoint.load().as_deref().map(|known| known.remote);
                let waiting = known.is_some() || !entry.shared.waiting.lock().is_empty();
                if entry.paths.is_none() && known == Some(endpoint) {
                    return;
                }
                let alone = entry.endpoints.len() == 1;
                self.found(peer, path, endpoint);
                self.emit(Event::EndpointResolved { peer: public_key, endpoint });
                self.start(peer);
                // Of several, another may be doing.
                if waiting && alone {
                    // Initiations went to the wrong place, or nowhere.
                    self.node.handshake_now(peer, now(), &mut rand::rng(), &mut self.actions);
                }
            }
        }
    }
}
