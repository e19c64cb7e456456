//! Changes of keys: this machine's own, and those of other members.

use super::{Agent, Running, Standing};
use crate::{identity::Change, merge::rekeyed};
use rustguard_crypto::x25519::PublicKey;
use rustguard_device::{self as device, Device, EndpointSpec, PresharedKey, SecondKey, Update};
use rustguard_quick::Session;
use rustguard_roster::{member::Member, roster::Roster};
use std::{collections::BTreeSet, sync::Arc, time::Instant};

impl Agent {
    /// Begins to change this machine's key: generates the next one, stores it, and sends it to the servers. Returns its
    /// public half. The tunnel uses it once the roster contains it.
    ///
    /// # Errors
    /// The reason why nothing was changed, for people.
    pub fn rotate(&mut self) -> Result<PublicKey, String> {
        let interface = &self.interface;
        if self.standing != Standing::Member {
            return Err(format!("{interface} is no member of its network yet, or no more: it has no place to keep"));
        }
        let next = self.identity.begin().map_err(|error| error.to_string())?.public_key();
        self.statement().check().map_err(|error| error.to_string())?;
        tracing::info!("{interface}: this machine changes its key to {next}");
        self.state_anew();
        self.changed = true;
        Ok(next)
    }

    /// Follows changes of keys, both of other members and of this machine. They end no session.
    pub(super) async fn follow_keys(&mut self, session: &mut Session) {
        let Some(roster) = self.roster().cloned() else { return };
        let now = Instant::now();
        for (before, member) in session.rename_peers(rekeyed(&self.base, &roster)).await {
            self.state.renamed(&before, &member);
        }
        match self.identity.follow(&roster, now) {
            Change::Nothing => {}
            Change::Soon => self.state.own_key_will_change(),
            Change::Settled => self.state.forget_keys_before(),
        }
        if self.identity.change_at().is_none_or(|at| at > now) {
            return;
        }
        // Stored before the file of the interface is written: without a roster, the key in that file counts at the next
        // start.
        self.state.store_now(now);
        match self.identity.change() {
            Ok(()) => {
                let own_key = self.own_key();
                tracing::info!("{}: this machine has the key {own_key} from now on", self.interface);
                self.state.own_key_has_changed();
                if let Running::On(driver, _) = &mut self.running {
                    driver.set_own_key(own_key);
                }
                self.state_anew();
            }
            Err(error) => {
                tracing::error!("{}: the new key waits, and the one before goes on: {error}", self.interface);
                self.identity.change_later(now);
            }
        }
    }

    /// Writes the key in use into the file of the interface.
    pub(super) fn save_key(&mut self, session: &mut Session) {
        if !self.identity.is_unsaved() {
            return;
        }
        match session.save_private_key(self.identity.key()) {
            Ok(()) => {
                self.base.interface.private_key = Some(self.identity.key().clone());
                self.identity.saved();
            }
            Err(error) if self.identity.warned => tracing::debug!("{error}"),
            Err(error) => {
                self.identity.warned = true;
                let cause = std::error::Error::source(&error).map(|cause| format!(": {cause}")).unwrap_or_default();
                tracing::warn!(
                    "{error}{cause}; the key that the network knows is in {} and is used at the next start as well",
                    self.state.folder().as_path().display()
                );
            }
        }
    }

    /// Writes the present keys of servers into the file of the interface, which has their preshared keys. A roster
    /// contains the previous key of a server only for some days.
    pub(super) fn save_peer_keys(&mut self, session: &mut Session) {
        let Some(roster) = self.roster() else { return };
        let of_file: BTreeSet<_> = self.base.peers.iter().map(|peer| peer.public_key).collect();
        let mut rekeyed = rekeyed(&self.base, roster);
        rekeyed.retain(|(before, after)| of_file.contains(before) && !of_file.contains(after));
        if rekeyed.is_empty() {
            return;
        }
        if let Err(error) = session.save_peer_keys(&rekeyed) {
            // It is tried again with the next roster.
            let cause = std::error::Error::source(&error).map(|cause| format!(": {cause}")).unwrap_or_default();
            tracing::warn!(
                "{error}{cause}; the file has the key that a server had before, which will be answered no more"
            );
            return;
        }
        let after = |key: &PublicKey| rekeyed.iter().find(|(before, _)| before == key).map(|(_, after)| *after);
        for peer in &mut self.base.peers {
            peer.public_key = after(&peer.public_key).unwrap_or(peer.public_key);
            for path in &mut peer.endpoints {
                if let EndpointSpec::Peer(relay) = &mut path.endpoint {
                    *relay = after(relay).unwrap_or(*relay);
                }
            }
        }
    }

    /// Sets the second key of this machine on the device, with its preshared keys.
    pub(super) async fn set_second_key(&mut self, device: &Device) {
        let second = self.identity.second().cloned();
        let keys = match (&second, self.roster()) {
            (Some(second), Some(roster)) => self.second_pair_keys(&second.public_key(), roster),
            _ => Vec::new(),
        };
        let set = second.as_ref().map(|second| (second.public_key(), keys.len()));
        // Each change aborts handshakes in progress.
        if self.second != set {
            let key = second.map(|second| SecondKey::new(second).preshared_keys(keys));
            // Only a device that has ended refuses this.
            let _ = device.update(Update::new().second_private_key(device::Change::set_or_remove(key))).await;
            self.second = set;
        }
    }

    /// The preshared keys of the second key. With the server of the file, both keys have the same preshared key.
    fn second_pair_keys(&self, second: &PublicKey, roster: &Roster) -> Vec<(PublicKey, PresharedKey)> {
        let of_file: BTreeSet<_> = self.base.peers.iter().map(|peer| peer.public_key).collect();
        let present = roster.settings().pair_secret;
        let others = roster.members().filter(|member| !member.keys().any(|key| of_file.contains(&key)));
        let key = |member: &Arc<Member>| {
            let key = self.state.second_pair_key(second, &member.public_key, present)?;
            Some((member.public_key, key))
        };
        others.filter_map(key).collect()
    }
}
