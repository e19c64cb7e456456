//! The stored endpoints of connected peers. After a restart, the server begins handshakes with these peers at once.

use rustguard_core::time::Instant;
use rustguard_device::{PeerStatus, key};
use rustguard_network::{Folder, FolderError};
use std::{collections::HashMap, net::SocketAddr, time::Duration};

const FILE: &str = "endpoints.json";

/// How long after a handshake endpoints are stored. It is short, because a killed server contacts the stored peers
/// after its restart. While handshakes continue, each pause is twice as long as the previous one, up to a minute.
const SETTLE: Duration = Duration::from_millis(100);
const STORE_EVERY: Duration = Duration::from_secs(60);
/// A peer whose handshake is not older than this is connected.
pub(crate) const RECENT: Duration = Duration::from_secs(180);

/// The stored endpoints, by public key. A file that cannot be read is ignored, because the peers also start handshakes
/// themselves.
pub(crate) fn load(folder: &Folder) -> HashMap<String, SocketAddr> {
    let text = folder.read(FILE).ok().flatten();
    text.and_then(|text| serde_json::from_slice(&text).ok()).unwrap_or_default()
}

/// Stores endpoints, by public key.
pub(crate) fn store(folder: &Folder, endpoints: &HashMap<String, SocketAddr>) -> Result<(), FolderError> {
    folder.replace(FILE, &serde_json::to_vec(endpoints).expect("plain data"))
}

/// The endpoints on the disk, and when they are compared with the endpoints of the device.
pub(crate) struct StoredEndpoints {
    folder: Folder,
    known: HashMap<String, SocketAddr>,
    started: Instant,
    due: Option<Instant>,
    last: Option<Instant>,
    pause: Duration,
    /// Whether the last attempt has failed.
    failed: bool,
}

impl StoredEndpoints {
    pub(crate) fn new(folder: Folder, now: Instant) -> Self {
        let known = load(&folder);
        Self { folder, known, started: now, due: None, last: None, pause: SETTLE, failed: false }
    }

    /// A peer has completed a handshake, so its endpoint may have to be stored soon.
    pub(crate) fn handshake(&mut self, now: Instant) {
        let earliest = self.last.map_or(now, |at| at + self.pause);
        self.due.get_or_insert((now + SETTLE).max(earliest));
    }

    /// When [`store`](Self::store) has something to do.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.due
    }

    /// Stores the endpoints of the peers that are connected, one for each lease at most, if they have changed.
    pub(crate) fn store(&mut self, peers: &[PeerStatus], now: Instant, unix: Duration) {
        self.due = None;
        let name = |peer: &PeerStatus| key::to_base64(&peer.public_key.0).to_string();
        let here = peers.iter().filter(|peer| peer.last_handshake.is_some_and(|at| unix.saturating_sub(at) < RECENT));
        let mut endpoints: HashMap<_, _> = here.filter_map(|peer| Some((name(peer), peer.endpoint?))).collect();
        // Soon after the start, peers that were connected before may not be back yet.
        if now.since(self.started) < RECENT {
            let before = peers.iter().filter_map(|peer| self.known.get_key_value(&name(peer)));
            for (peer, endpoint) in before {
                endpoints.entry(peer.clone()).or_insert(*endpoint);
            }
        }
        let busy = self.last.is_some_and(|at| now.since(at) < STORE_EVERY * 2);
        self.pause = if busy { (self.pause * 2).min(STORE_EVERY) } else { SETTLE };
        self.last = Some(now);
        if endpoints == self.known {
            return;
        }
        match store(&self.folder, &endpoints) {
            Ok(()) => (self.known, self.failed) = (endpoints, false),
            // A failure is logged once, so that a full disk does not fill the log.
            Err(error) if std::mem::replace(&mut self.failed, true) => tracing::debug!("{error}"),
            Err(error) => {
                tracing::warn!("{error}; a restart does not know where machines are, and waits until they call");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustguard_crypto::x25519::PublicKey;

    const UNIX: Duration = Duration::from_secs(1_800_000_000);

    fn at(seconds: u64) -> Instant {
        Instant::from_nanos(1_000_000_000 * (1_000 + seconds))
    }

    fn peer(byte: u8, port: u16, age: Option<u64>) -> PeerStatus {
        let mut peer = PeerStatus::new(PublicKey([byte; 32]));
        peer.endpoint = Some(SocketAddr::from(([192, 0, 2, byte], port)));
        peer.last_handshake = age.map(|age| UNIX - Duration::from_secs(age));
        peer
    }

    #[test]
    fn who_is_connected_is_stored_and_who_was_before_a_restart_for_a_while() {
        let temporary = tempfile::tempdir().unwrap();
        let folder = Folder::open_at(&temporary.path().join("rg0")).unwrap();
        let mut stored = StoredEndpoints::new(folder.clone(), at(0));
        let peers = [peer(1, 10, Some(5)), peer(2, 20, Some(179)), peer(3, 30, Some(180)), peer(4, 40, None)];
        stored.store(&peers, at(1), UNIX);
        let mut ports: Vec<_> = load(&folder).into_values().map(|endpoint| endpoint.port()).collect();
        ports.sort_unstable();
        assert_eq!(ports, [10, 20]);
        // After a restart, peer 1 is not back yet, and peer 2 was removed.
        let mut stored = StoredEndpoints::new(folder.clone(), at(0));
        let away = [peer(1, 11, None), peer(4, 40, Some(1))];
        stored.store(&away, at(179), UNIX);
        let mut ports: Vec<_> = load(&folder).into_values().map(|endpoint| endpoint.port()).collect();
        ports.sort_unstable();
        assert_eq!(ports, [10, 40]);
        stored.store(&away, at(180), UNIX);
        assert_eq!(load(&folder).len(), 1, "who has not come back in three minutes is forgotten");
    }

    #[test]
    fn many_handshakes_are_stored_ever_less_often_and_the_first_after_a_pause_at_once() {
        let temporary = tempfile::tempdir().unwrap();
        let mut stored = StoredEndpoints::new(Folder::open_at(&temporary.path().join("rg0")).unwrap(), at(0));
        let (mut now, mut times) = (at(0), 0);
        while now < at(3_600) {
            stored.handshake(now);
            if stored.deadline().is_some_and(|due| due <= now) {
                stored.store(&[], now, UNIX);
                times += 1;
            }
            now = now + Duration::from_millis(50);
        }
        assert!((60..80).contains(&times), "{times} times in an hour");
        let last = stored.deadline().expect("there was a handshake");
        stored.store(&[], last, UNIX);
        let quiet = last + STORE_EVERY * 3;
        stored.handshake(quiet);
        assert_eq!(stored.deadline(), Some(quiet + SETTLE));
        stored.store(&[], quiet + SETTLE, UNIX);
        stored.handshake(quiet + SETTLE * 2);
        assert_eq!(stored.deadline(), Some(quiet + SETTLE * 3));
    }
}
