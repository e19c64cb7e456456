//! Another key for this server, if it is one of several on a store.
//!
//! | Step | On disk | In the log |
//! |---|---|---|
//! | 1. The next key is stored | `key`, `key-next` | `server/KEY`, a lease with the key |
//! | 2. The log gets both under the next key | the same | `server/NEXT`, the lease with the next key |
//! | 3. The next key is used, here and by all others | `key`, which is the next one | the same |
//!
//! What the log says decides which of the two is this server's key: after a restart as well, and if it was not known at
//! first whether the log has the record of step 2.

use super::{
    Service,
    commands::{Result, text},
};
use crate::{
    clock::now,
    documents::servers,
    request::{Answer, KeyChange},
    seat::next_key::{forget_next_key, next_key, store_next_key, take_next_key},
};
use rustguard_crypto::x25519::StaticSecret;
use rustguard_device::Update;
use rustguard_enroll::store::LeaseStore;

impl<S: LeaseStore> Service<S> {
    /// Makes another key for this server, and uses it when the log has it. Phones and invites know none of it.
    pub(super) async fn change_key_of_one(&mut self) -> Result<Answer> {
        let (interface, own) = (&self.interface, self.identity.public_key());
        let Some(shared) = &self.shared else { return Err(format!("{interface} has no store")) };
        if own == shared.gateway.public_key() {
            return Err(format!(
                "phones and invites know the key of {interface}, and all servers answer it, so it cannot be changed. To take this machine's key \
                 out of use: add another server, and remove this one there (rustguard peer rm)"
            ));
        }
        if servers(shared.link.documents()).len() < 2 {
            return Err(format!(
                "{interface} is the only server: members that are off could not learn of another key. Add a server first"
            ));
        }
        if let Some(why) = shared.problem() {
            return Err(why.to_owned());
        }
        let next = StaticSecret::generate().map_err(text)?;
        let to = next.public_key();
        store_next_key(&self.folder, &next).map_err(text)?;
        let rotated = self.decided(|service| service.server.rotate(&own, &to, now(), &mut service.actions));
        let rotated = rotated.await.and_then(|rotated| rotated.map_err(text));
        if let Err(why) = rotated {
            if !self.shared.as_ref().is_some_and(|shared| shared.link.is_in_doubt()) {
                forget_next_key(&self.folder).map_err(text)?;
            }
            return Err(why);
        }
        self.carry_out(&[], None).await;
        self.use_documents().await;
        if self.identity.public_key() != to {
            return Err(format!("the key is changed in the store and not here; restart {}", self.interface));
        }
        tracing::info!("{}: this server has the key {to} from now on", self.interface);
        Ok(Answer::KeyChange(KeyChange {
            changed: true,
            public_key: to,
            until: 0,
            clients: Vec::new(),
            invites: Vec::new(),
        }))
    }

    /// Uses the next key, if the log has it in place of the present one. Returns whether it does so.
    pub(super) async fn follow_own_key(&mut self) -> Result<bool> {
        let Some(shared) = &mut self.shared else { return Ok(false) };
        let Some(next) = next_key(&self.folder, shared.link.documents()).map_err(text)? else { return Ok(false) };
        take_next_key(&self.folder, &next).map_err(text)?;
        shared.refresh_keys(next.public_key());
        let gateway = shared.gateway.clone();
        self.identity = next;
        if let Some(network) = &mut self.network {
            network.set_keys(self.identity.clone(), Some(gateway));
        }
        let _ = self.device.update(Update::new().private_key(self.identity.clone())).await;
        self.set_session_keys().await;
        self.keep_position();
        Ok(true)
    }
}
