//! Changes the server's own key. No session ends: the device, enrolment and the statements of members use both keys,
//! until the previous key has ended.

use super::{
    Service,
    commands::{Result, invite_view, state_of, text},
};
use crate::{
    clock::now,
    network::key_before::{KeyBefore, TIME},
    request::{Answer, InviteState, KeyChange},
    words::called,
};
use rustguard_crypto::x25519::StaticSecret;
use rustguard_device::{Change, SecondKey, Update};
use rustguard_enroll::{
    action::Action,
    audit::{AuditEvent, AuditRecord},
    lease::Lease,
    store::LeaseStore,
};
use std::time::Duration;

/// If the store fails, ending the previous key is tried again after this time.
const RETRY: Duration = Duration::from_secs(60);

impl<S: LeaseStore> Service<S> {
    /// Makes another key, stores it, and uses it from then on. Clients get no roster, so people have to give them the
    /// new key. If there are clients, nothing changes without the administrator's consent.
    pub(super) async fn change_key(&mut self, consent: bool) -> Result<Answer> {
        if self.shared.is_some() {
            return self.change_key_of_one().await;
        }
        let interface = &self.interface;
        let Some(network) = &self.network else {
            return Err(format!("{interface} is a star: its machines have no roster that would tell them another key"));
        };
        if let Some(why) = network.failure() {
            return Err(format!("members would not be told of another key: {why}"));
        }
        let time = now().unix.as_secs();
        if let Some(before) = &self.key_before {
            let hours = before.left(now().instant).as_secs().div_ceil(3600);
            if before.of_standby.is_some() {
                return Err(format!(
                    "this machine has taken the place of the server, and answers the key that it had as a standby for {hours} more hours; \
                     members that were off know that one alone. A change is possible after that"
                ));
            }
            return Err(format!(
                "the key was changed already, and the one before is answered for {hours} more hours; members that were \
                 off know that one alone. The next change is possible after that"
            ));
        }
        let ledger = self.server.ledger();
        let clients = ledger.leases().filter(|lease| !lease.member);
        let clients: Vec<_> = clients.map(called).collect();
        let before = KeyBefore::new(self.identity.clone(), ledger.next_serial(), now());
        let ends = |expires: Option<u64>| expires.is_none_or(|expires| expires > before.until);
        let invites =
            ledger.invites().filter(|invite| state_of(invite, time) == InviteState::Usable && ends(invite.expires));
        let mut change = KeyChange {
            changed: false,
            public_key: self.identity.public_key(),
            until: before.until,
            invites: invites.map(|invite| invite_view(invite, Some(&before), time)).collect(),
            clients,
        };
        if !change.clients.is_empty() && !consent {
            return Ok(Answer::KeyChange(change));
        }
        let new = StaticSecret::generate().map_err(text)?;
        before.store(&self.folder).map_err(text)?;
        self.folder.replace_private_key(&new).map_err(text)?;
        self.identity = new;
        self.key_before = Some(before);
        self.use_keys().await?;
        self.changed();
        change.public_key = self.identity.public_key();
        change.changed = true;
        let mut record = AuditRecord::new(AuditEvent::KeyRotated, now());
        record.public_key = Some(change.public_key);
        self.actions.push(Action::Audit(record));
        tracing::info!(
            "{}: this server has the key {} from now on, and answers the one before for {} days",
            self.interface,
            change.public_key,
            TIME.as_secs() / (24 * 3600)
        );
        Ok(Answer::KeyChange(change))
    }

    /// Applies the present key and the previous key wherever the server has a key.
    pub(super) async fn use_keys(&mut self) -> Result<()> {
        let before = self.key_before.as_ref().map(|before| before.secret.clone());
        self.server.set_keys(self.identity.clone(), before.clone()).map_err(text)?;
        if let Some(network) = &mut self.network {
            network.set_keys(self.identity.clone(), self.key_before.as_ref().and_then(KeyBefore::told));
        }
        // Each machine has one preshared key with this server, whichever of the two keys it knows. If this server was a
        // standby, each member has another preshared key for the standby's key.
        let second = before.map(|before| {
            let (of_standby, own) =
                (self.key_before.as_ref().and_then(|it| it.of_standby.as_ref()), before.public_key());
            let members = self.server.ledger().leases().filter(|lease| lease.member);
            let pair = |lease: &Lease| Some((lease.public_key, of_standby?.preshared_key(&lease.public_key, &own)));
            SecondKey::new(before).preshared_keys(members.filter_map(pair))
        });
        let second = Change::set_or_remove(second);
        let update = Update::new().private_key(self.identity.clone()).second_private_key(second);
        self.device.update(update).await.map_err(text)
    }

    /// Ends the previous key when its time is over: first the invites that name it, then the key.
    pub(super) async fn end_key_before(&mut self) {
        let now = now();
        let time = now.unix.as_secs();
        let Some(before) = self.key_before.as_mut().filter(|before| before.has_ended(now.instant)) else { return };
        before.end_later(now.instant + RETRY);
        let ledger = self.server.ledger();
        let invites = ledger.invites().filter(|invite| before.is_named_by(invite));
        let ended: Vec<_> =
            invites.filter(|invite| state_of(invite, time) == InviteState::Usable).map(|invite| invite.id).collect();
        let revoked = self.decided(|service| {
            let mut ended = ended.iter();
            ended.try_for_each(|id| service.server.revoke_invite(id, now, &mut service.actions))
        });
        let revoked = revoked.await.and_then(|revoked| revoked.map_err(text));
        self.carry_out(&[], None).await;
        if let Err(error) = revoked {
            tracing::warn!("the server's key from before is answered for longer: {error}");
            return;
        }
        if let Err(error) = KeyBefore::remove(&self.folder) {
            tracing::warn!("the server's key from before is answered for longer: {error}");
            return;
        }
        self.key_before = None;
        // Only a device that has ended refuses this.
        let _ = self.use_keys().await;
        self.changed();
        tracing::info!("{}: the server's key from before is answered no more", self.interface);
    }
}
