//! Keys that change while a session goes on.

use super::Session;
use crate::{
    conf,
    helper::{self, Answer, Failure, Save, Task, unexpected},
};
use rustguard_crypto::x25519::{PublicKey, StaticSecret};
use rustguard_device::{Device, EndpointSpec, PeerUpdate, Update, key};
use std::{io, path::Path};

impl Session {
    /// Gives peers other public keys, each as the old and the new key. Their sessions, ways and allowed IPs stay. Peers
    /// that the session does not have, or whose new key it already has, are left out. Returns the other peers.
    pub async fn rename_peers(&mut self, keys: Vec<(PublicKey, PublicKey)>) -> Vec<(PublicKey, PublicKey)> {
        let has = |key: &PublicKey| self.config.peers.iter().any(|peer| peer.public_key == *key);
        let keys: Vec<_> = keys.into_iter().filter(|(before, after)| has(before) && !has(after)).collect();
        let Some(device) = self.device().map(Device::handle).filter(|_| !keys.is_empty()) else { return Vec::new() };
        let peers = keys.iter().map(|(before, after)| PeerUpdate::new(*before).update_only().new_public_key(*after));
        // Only a device that has ended refuses this.
        if device.update(Update::new().peers(peers)).await.is_err() {
            return Vec::new();
        }
        let after = |key: &PublicKey| keys.iter().find(|(before, _)| before == key).map(|(_, after)| *after);
        for peer in &mut self.config.peers {
            peer.public_key = after(&peer.public_key).unwrap_or(peer.public_key);
            for path in &mut peer.endpoints {
                if let EndpointSpec::Peer(relay) = &mut path.endpoint {
                    *relay = after(relay).unwrap_or(*relay);
                }
            }
        }
        keys
    }

    /// Writes another private key into the session's file, in which everything else stays.
    ///
    /// # Errors
    /// See [`SaveError`](conf::SaveError). The file is then unchanged.
    pub fn save_private_key(&mut self, key: &StaticSecret) -> Result<(), conf::SaveError> {
        let Some(path) = self.path().map(Path::to_owned) else { return Ok(()) };
        let failed = |source| conf::SaveError::Io { path: path.clone(), source };
        if let Some(helper) = helper::get() {
            let key = key::to_base64(&key.to_bytes());
            return self.saved(&path, helper.ask_now(Task::Save(Save::PrivateKey(key))));
        }
        let mut file = conf::File::read(&path).map_err(failed)?;
        let Some(mut config) = conf::parse(file.text()).0 else {
            return Err(failed(io::Error::new(io::ErrorKind::InvalidData, "it has mistakes, which `check` shows")));
        };
        config.interface.private_key = Some(key.clone());
        file.save(&config)?;
        self.set_file(&file);
        Ok(())
    }

    /// Writes other public keys of peers into the session's file, each the old and the new one: see
    /// [`rename_peers`](conf::File::rename_peers).
    ///
    /// # Errors
    /// See [`SaveError`](conf::SaveError). The file is then unchanged.
    pub fn save_peer_keys(&mut self, keys: &[(PublicKey, PublicKey)]) -> Result<(), conf::SaveError> {
        let Some(path) = self.path().map(Path::to_owned) else { return Ok(()) };
        if let Some(helper) = helper::get() {
            let text = |key: &PublicKey| key::to_base64(&key.0).to_string();
            let keys = keys.iter().map(|(before, after)| (text(before), text(after))).collect();
            return self.saved(&path, helper.ask_now(Task::Save(Save::PeerKeys(keys))));
        }
        let mut file = conf::File::read(&path).map_err(|source| conf::SaveError::Io { path, source })?;
        file.rename_peers(keys)?;
        self.set_file(&file);
        Ok(())
    }

    /// Handles the privileged helper's answer after it had to write the session's file.
    fn saved(&mut self, path: &Path, answer: Answer) -> Result<(), conf::SaveError> {
        let failed = |source| conf::SaveError::Io { path: path.to_owned(), source };
        match answer {
            Answer::Saved(_) => {
                self.set_file(&conf::File::read(path).map_err(failed)?);
                Ok(())
            }
            Answer::Failed(Failure::Changed) => Err(conf::SaveError::Changed(path.to_owned())),
            Answer::Failed(failure) => Err(failed(failure.into_io())),
            answer => Err(failed(unexpected(&answer))),
        }
    }
}
