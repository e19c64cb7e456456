//! The status line while a tunnel waits for the first handshake.

use super::log;
use rustguard_crypto::x25519::PublicKey;
use rustguard_device::{Connection, Device, DeviceHandle, Event, Events, EventsError, PeerStatus, Status, key};
use std::future::Future;

/// Shows on a terminal which peer's first handshake is awaited. Ends with any handshake, or when a message has reported
/// why there is none. Without a terminal it does nothing.
pub(crate) fn first_handshake(device: &Device) -> impl Future<Output = ()> + use<> {
    let (events, handle) = (device.events(), device.handle());
    async move {
        if log::is_live() {
            wait(events, &handle).await;
        }
    }
}

async fn wait(mut events: Events, handle: &DeviceHandle) {
    let Ok(status) = handle.status().await else { return };
    if status.peers.iter().any(|peer| peer.last_handshake.is_some() || peer.problem.is_some()) {
        return;
    }
    let mut waiting = awaited(&status).map(|text| log::wait_for(&text));
    loop {
        let begun = match events.recv().await {
            Ok(Event::HandshakeComplete { .. } | Event::HandshakeFailed { .. } | Event::ProblemFound { .. })
            | Err(EventsError::Closed) => return,
            // This replaces the name that was being resolved.
            Ok(Event::ConnectionChanged { peer, connection: Connection::Connecting { .. }, .. }) => peer,
            Ok(_) | Err(_) => continue,
        };
        let text = with(&status, &begun);
        match &waiting {
            Some(waiting) => waiting.now_for(&text),
            None => waiting = Some(log::wait_for(&text)),
        }
    }
}

/// The handshakes that are awaited at the beginning, in words. `None` if nothing has begun.
fn awaited(status: &Status) -> Option<String> {
    let connecting = |peer: &&PeerStatus| matches!(peer.connection, Connection::Connecting { .. });
    if let Some(peer) = status.peers.iter().find(connecting) {
        return Some(with(status, &peer.public_key));
    }
    let unresolved = status.peers.iter().find_map(|peer| peer.unresolved.as_ref())?;
    Some(format!("resolving {}", unresolved.name))
}

/// The peer, and how many others could answer as well.
fn with(status: &Status, peer: &PublicKey) -> String {
    let others = status.peers.iter().filter(|other| other.public_key != *peer && other.endpoint.is_some()).count();
    let name = status.peers.iter().find(|other| other.public_key == *peer).and_then(|peer| peer.name.clone());
    let name = name.unwrap_or_else(|| format!("{}…", &key::to_base64(&peer.0)[..8]));
    let others = match others {
        0 => String::new(),
        1 => " or another peer".to_owned(),
        n => format!(" or one of {n} others"),
    };
    format!("waiting for the first handshake with {name}{others}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn the_peer_is_named_and_a_name_that_is_being_resolved() {
        let mut status = Status::default();
        assert_eq!(awaited(&status), None);
        let mut office = PeerStatus::new(PublicKey([1; 32]));
        office.name = Some("office".to_owned());
        status.peers.push(office);
        assert_eq!(awaited(&status), None, "nothing has begun");
        let connecting = Connection::Connecting { since: Duration::ZERO, attempts: 1 };
        status.peers[0].connection = connecting;
        assert_eq!(awaited(&status).as_deref(), Some("waiting for the first handshake with office"));
        let mut nameless = PeerStatus::new(PublicKey([2; 32]));
        nameless.endpoint = Some("192.0.2.1:1".parse().unwrap());
        status.peers.push(nameless);
        assert!(awaited(&status).unwrap().ends_with("with office or another peer"));
        assert!(with(&status, &PublicKey([2; 32])).ends_with("with AgICAgIC…"));
    }
}
