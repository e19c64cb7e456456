//! Whether each peer can be talked to.

use super::{Control, paths::peer_paths::Unresolved, peer::Peer, timer::now};
use crate::{
    binder::Binder,
    config::EndpointSpec,
    status::{Cause, Connection, PathMtu, Problem, SILENCE},
};
use rustguard_core::{
    node::PeerId,
    time::{Instant, Now},
};
use std::time::Duration;

impl<B: Binder> Control<B> {
    /// The state of the connection to a peer.
    pub(super) fn connection(&self, peer: PeerId) -> Connection {
        let Some(entry) = self.peers.get(&peer) else { return Connection::NeverConnected };
        let (now, handshake) = (now(), self.node.last_handshake(peer));
        let heard = entry.shared.activity.heard_at().filter(|_| handshake.is_some());
        let attempt = self.node.attempt(peer).filter(|attempt| attempt.tries > 0);
        match (heard, attempt, handshake) {
            (Some(heard), ..) if now.instant.since(heard) < SILENCE => {
                Connection::Online { since: handshake.unwrap_or_default() }
            }
            (_, Some(attempt), _) => Connection::Connecting {
                since: unix(now, attempt.first_sent.unwrap_or(now.instant)),
                attempts: attempt.tries,
            },
            (Some(heard), ..) => Connection::Idle { since: unix(now, heard) },
            (None, _, Some(since)) => Connection::Idle { since },
            (None, None, None) => Connection::NeverConnected,
        }
    }

    /// What is wrong beside the handshake: with the name of the endpoint, or with the packets of a peer that can be talked to.
    pub(super) fn data_problem(&self, entry: &Peer) -> Option<Problem> {
        let now = now();
        if let Some((name, Some(why))) = unresolved(entry) {
            let cause = Cause::NotResolved { name, error: why.cause.clone() };
            return Some(Problem::new(cause, unix(now, why.since)));
        }
        if let Some(refused) = entry.shared.refused_source.current(now.instant) {
            let cause = Cause::SourceNotAllowed { source: refused.source };
            return Some(Problem::new(cause, unix(now, refused.since)));
        }
        match self.path_mtu(entry)? {
            PathMtu { packet, datagram, limited: true } => {
                let since = entry.path_mtu.since.unwrap_or(now.instant);
                Some(Problem::new(Cause::PathMtu { packet, datagram }, unix(now, since)))
            }
            _ => None,
        }
    }
}

/// The name of the peer's only endpoint while it has no address, and why not, once that is known.
pub(super) fn unresolved(entry: &Peer) -> Option<(String, Option<&Unresolved>)> {
    match &entry.endpoints[..] {
        [only] if entry.endpoint().is_none() && matches!(only.spec.endpoint, EndpointSpec::Name(..)) => {
            Some((only.spec.endpoint.to_string(), only.unresolved.as_ref()))
        }
        _ => None,
    }
}

/// A moment on the clock that counts sleep, as the time since the Unix epoch.
fn unix(now: Now, at: Instant) -> Duration {
    now.unix.saturating_sub(now.instant.since(at))
}
