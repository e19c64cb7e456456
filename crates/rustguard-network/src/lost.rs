//! A preshared key that was lost by the server where this machine joined, because the server was restored from an older
//! backup.
//!
//! The roster says so in the machine's own record. Then the machine uses no preshared key towards that server, instead
//! of the one in its file. With that key, it would never have a session with the server again. `lost-psk` contains the
//! hash of the key that was given up. A file with a different key means that the machine has joined again, possibly
//! while it still has the earlier roster.

use crate::folder::Folder;
use rustguard_crypto::{hash::hash, x25519::PublicKey};
use rustguard_device::{PresharedKey, key};
use rustguard_quick::conf::Config;
use rustguard_roster::{member::Role, roster::Roster};

const FILE: &str = "lost-psk";
const LABEL: &[u8] = b"rustguard lost preshared key v1";

/// The preshared key that was given up.
#[derive(Default)]
pub(crate) struct Lost {
    /// Its hash.
    given_up: Option<[u8; 32]>,
    /// The server for which none is used.
    server: Option<PublicKey>,
}

impl Lost {
    /// Reads the note. A damaged note counts as absent: the key of the file is given up again.
    pub(crate) fn load(folder: &Folder) -> Self {
        let text = folder.read(FILE).ok().flatten();
        let hash = text.and_then(|text| key::from_base64(std::str::from_utf8(&text).ok()?.trim_end()).ok());
        Self { given_up: hash.map(|hash| *hash), server: None }
    }

    /// The server for which no preshared key is used, by its present key.
    pub(crate) fn server(&self) -> Option<&PublicKey> {
        self.server.as_ref()
    }

    /// Follows a roster that is in use, for this file.
    pub(crate) fn follow(&mut self, folder: &Folder, base: &Config, own_key: &PublicKey, roster: &Roster) {
        self.server = None;
        let Some(named) = roster.holder(own_key).and_then(|own| own.without_psk()) else {
            if self.given_up.take().is_some()
                && let Err(error) = folder.remove(FILE)
            {
                tracing::debug!("{error}; the key that it notes is used no more");
            }
            return;
        };
        // For members that are no servers, the pair uses a key that servers send. Such a key is never given up.
        let Some(server) = roster.member(&named).filter(|server| server.role == Role::Server) else { return };
        let in_file = base.peers.iter().filter(|peer| server.keys().any(|key| key == peer.public_key));
        let Some(psk) = in_file.filter_map(|peer| peer.preshared_key.as_ref()).next() else { return };
        let hash = digest(psk);
        if self.given_up.is_none() {
            self.given_up = Some(hash);
            tracing::warn!(
                "{} has lost the preshared key of this machine, and there is none with it until this machine joins again: `rustguard join` with a \
                 new invite",
                server.name
            );
            if let Err(error) = folder.replace(FILE, format!("{}\n", *key::to_base64(&hash)).as_bytes()) {
                tracing::warn!("{error}; after a restart, the key of a file that was written anew may be given up too");
            }
        }
        self.server = (self.given_up == Some(hash)).then_some(named);
    }
}

fn digest(psk: &PresharedKey) -> [u8; 32] {
    hash(&[LABEL, psk.as_bytes()])
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustguard_quick::conf::Peer;
    use rustguard_roster::{key::NetworkSecret, member::Member, settings::Settings};
    use std::sync::Arc;

    fn key(byte: u8) -> PublicKey {
        PublicKey([byte; 32])
    }

    /// This machine is 1, 2 and 3 are servers, and 4 is another member.
    fn roster(without: Option<u8>, before: Option<u8>) -> Roster {
        let member = |byte: u8| Member::new(key(byte), format!("m{byte}").parse().unwrap());
        let me = without.map_or(member(1), |server| member(1).with_no_psk(key(server)));
        let hub = before.map_or(member(2), |before| member(2).with_old_key(key(before))).with_role(Role::Server);
        let members = [me, hub, member(3).with_role(Role::Server), member(4).with_no_psk(key(2))].map(Arc::new);
        let settings = Settings::new("rg0".parse().unwrap());
        Roster::issue(&NetworkSecret::from_bytes(&[7; 32]), 1, 0, settings, members).unwrap()
    }

    fn file(server: u8, psk: Option<u8>) -> Config {
        let mut peer = Peer::new(key(server));
        peer.preshared_key = psk.map(|byte| PresharedKey::from_bytes(&[byte; 32]));
        let mut base = Config::default();
        base.peers = vec![peer];
        base
    }

    #[test]
    fn only_the_own_record_gives_a_key_up_and_only_that_of_the_server_it_names() {
        for (file, roster, expected) in [
            (file(2, Some(5)), roster(Some(2), None), Some(2)),
            (file(2, Some(5)), roster(None, None), None),
            (file(2, Some(5)), roster(Some(3), None), None),
            // Not for a member that is no server, for an absent machine, or for a peer without a key.
            (file(4, Some(5)), roster(Some(4), None), None),
            (file(2, Some(5)), roster(Some(9), None), None),
            (file(2, None), roster(Some(2), None), None),
            // The file has the previous key of the server.
            (file(8, Some(5)), roster(Some(2), Some(8)), Some(2)),
        ] {
            let dir = tempfile::tempdir().unwrap();
            let folder = Folder::open_at(&dir.path().join("rg0")).unwrap();
            let mut lost = Lost::load(&folder);
            lost.follow(&folder, &file, &key(1), &roster);
            assert_eq!(lost.server(), expected.map(key).as_ref());
            assert_eq!(folder.path(FILE).exists(), expected.is_some());
        }
    }

    #[test]
    fn a_key_from_joining_again_counts_whatever_roster_is_still_there() {
        let dir = tempfile::tempdir().unwrap();
        let folder = Folder::open_at(&dir.path().join("rg0")).unwrap();
        let server = |lost: &mut Lost, psk, without| {
            lost.follow(&folder, &file(2, Some(psk)), &key(1), &roster(without, None));
            lost.server().copied()
        };
        let mut lost = Lost::load(&folder);
        assert_eq!(server(&mut lost, 5, Some(2)), Some(key(2)));
        assert_eq!(server(&mut lost, 6, Some(2)), None, "the file is another one");
        // The same holds after a restart, and before the next roster.
        let mut lost = Lost::load(&folder);
        assert_eq!((server(&mut lost, 6, Some(2)), server(&mut lost, 5, Some(2))), (None, Some(key(2))));
        assert_eq!(server(&mut lost, 6, None), None);
        assert!(!folder.path(FILE).exists());
        assert_eq!(server(&mut Lost::load(&folder), 6, Some(2)), Some(key(2)), "it was lost once more");
    }
}
