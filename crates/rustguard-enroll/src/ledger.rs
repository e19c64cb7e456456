//! Who is in the network: invites, leases, addresses.
//!
//! [`Ledger::admit`] gives a key its place, [`confirm`](Ledger::confirm) keeps it, [`remove`](Ledger::remove) and
//! [`expire`](Ledger::expire) end it. Every change is durable before it can be seen: if the store fails, the ledger is
//! what it was, and says so. The one exception is when a peer was last seen, which follows within a minute.
//!
//! # Time
//! Durable times are seconds since 1970 on a clock of the ledger's own. It is the wall clock, except that it never goes
//! back, and goes on with the monotonic clock when the wall clock was set back; the highest time is kept with the state.
//! - A step back changes nothing: everything lasts as long as it was meant to. Downtime while the wall clock is still
//!   behind does not count, so that things may last longer by that.
//! - A step forward is believed, and not taken back. Invites that have expired by then are gone, quarantines are over. Leases
//!   get [`GRACE`] before any of them ends, as after a start: peers that are there have had a handshake by then, which
//!   renews them.
//! - Whether an invite is newer than a removal is a matter of order, not of time. Pending leases and the grace are
//!   measured by the monotonic clock.
//!
//! # Coming back
//! A key that has a lease gets the same one again, by any grant that is still good, and by the invite it came with even
//! if that is used up: an answer can get lost. After a removal only what is newer admits the key: an invite made
//! later, a window opened later, or an administrator. The tombstone that sees to it is kept as long as there is an older
//! invite or window. Records of invites go seven days after they admitted for the last time ([`RETENTION`]); one
//! that never ends is never forgotten, nor are the removals since. A lease that merely ended leaves no tombstone: the key
//! comes back by whatever is good, and within the quarantine to its old addresses.
mod clock;
mod error;
mod index;
mod request;
#[cfg(test)]
mod tests;

use self::{clock::Clock, index::Index};
pub use self::{
    error::{LedgerError, Peer, Refusal},
    request::{Admission, Grant, Policy, Request},
};
use crate::{
    lease::{
        InviteRecord, Lease, LeaseState, MAX_USES, NewInvite, Origin, PresharedKey, Terms, TokenId, UnixSeconds,
        clean_name,
    },
    pool::{Pools, Space},
    store::{Change, LeaseStore, Released, State, StoreError, Tombstone},
};
use core::{net::IpAddr, time::Duration};
use rustguard_core::time::{Instant, Now};
use rustguard_crypto::x25519::PublicKey;
use std::collections::{BTreeMap, BTreeSet};

/// How long the record of an invite is kept after it admitted for the last time, so that a repeat of it can be told what
/// became of it.
pub const RETENTION: Duration = Duration::from_secs(7 * 24 * 3600);
/// No lease ends sooner than this after a start or a leap of the wall clock.
pub const GRACE: Duration = Duration::from_secs(10 * 60);
/// How long handshakes of active peers may wait to become durable, all of them in one commit.
const FLUSH: Duration = Duration::from_secs(60);
/// The coarsest step of [`Lease::last_handshake`].
const STEP: Duration = Duration::from_secs(3600);

/// The record of who is in. Call [`expire`](Self::expire) when [`deadline`](Self::deadline) has come.
#[derive(Debug)]
pub struct Ledger<S> {
    store: S,
    state: State,
    index: Index,
    pools: Pools,
    policy: Policy,
    clock: Clock,
    /// No lease ends before this.
    grace_until: Instant,
    /// Handshakes of active peers that are not durable yet, and when they have to be.
    seen: BTreeMap<PublicKey, UnixSeconds>,
    flush_at: Option<Instant>,
    /// The serial from which on removals are younger than the open window.
    window: Option<u64>,
    /// Tombstones may have become needless.
    sweep: bool,
}

impl<S: LeaseStore> Ledger<S> {
    /// Opens what the store has kept. Refuses a state whose leases the pools have no room for, and leaves it alone.
    pub fn open(mut store: S, pools: Pools, policy: Policy, now: Now) -> Result<Self, LedgerError> {
        let state = store.load()?.unwrap_or_default();
        let clock = Clock::new(state.time, now);
        let mut index = Index::new(&pools);
        check(&state, &index)?;
        for (&key, lease) in &state.leases {
            let left = match lease.state {
                LeaseState::Pending { until } => Duration::from_secs(until.saturating_sub(clock.seconds())),
                LeaseState::Active => Duration::ZERO,
            };
            index.enter_peer(&state, key, now.instant + left.min(policy.pending));
        }
        for &key in state.released.keys().filter(|key| !state.leases.contains_key(key)) {
            index.enter_peer(&state, key, now.instant);
        }
        state.invites.values().for_each(|invite| index.enter_invite(invite));
        Ok(Self {
            store,
            state,
            index,
            pools,
            policy,
            clock,
            grace_until: now.instant + GRACE,
            seen: BTreeMap::new(),
            flush_at: None,
            window: None,
            sweep: true,
        })
    }

    /// Lets the store go, for opening it again.
    pub fn into_store(self) -> S {
        self.store
    }

    /// The pools.
    pub fn pools(&self) -> &Pools {
        &self.pools
    }

    /// The policy.
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// The ledger's time: see the module's page.
    pub fn time(&mut self, now: Now) -> UnixSeconds {
        if self.clock.advance(now) {
            self.grace_until = self.grace_until.max(now.instant + GRACE);
        }
        self.clock.seconds()
    }

    /// Makes an invite. Its fixed addresses must be free, or in quarantine, now and when it is used.
    pub fn add_invite(&mut self, invite: NewInvite, now: Now) -> Result<&InviteRecord, LedgerError> {
        let time = self.time(now);
        let NewInvite { id, public_key, lifetime, uses, terms } = invite;
        if self.state.invites.contains_key(&id) {
            return Err(LedgerError::InviteExists(id));
        }
        if !(1..=MAX_USES).contains(&uses) || (uses > 1 && !terms.addresses.is_empty()) {
            return Err(LedgerError::Uses(uses));
        }
        self.check_terms(&terms, None).map_err(LedgerError::Terms)?;
        let serial = self.state.serial;
        let record = InviteRecord {
            id,
            public_key,
            serial,
            created: time,
            expires: lifetime.map(|lifetime| time.saturating_add(lifetime.as_secs())),
            uses,
            uses_left: uses,
            last_used: None,
            revoked: None,
            terms,
        };
        self.commit(vec![Change::Serial(serial + 1), Change::Invite(record)], now)?;
        Ok(&self.state.invites[&id])
    }

    /// Withdraws an invite. Who came in by it stays.
    pub fn revoke_invite(&mut self, id: &TokenId, now: Now) -> Result<(), LedgerError> {
        let time = self.time(now);
        let invite = self.state.invites.get(id).ok_or(LedgerError::UnknownInvite(*id))?;
        if invite.revoked.is_some() {
            return Ok(());
        }
        let revoked = InviteRecord { revoked: Some(time), ..invite.clone() };
        Ok(self.commit(vec![Change::Invite(revoked)], now)?)
    }

    /// All invites, by id, also those that admit nobody any more.
    pub fn invites(&self) -> impl ExactSizeIterator<Item = &InviteRecord> {
        self.state.invites.values()
    }

    /// One invite.
    pub fn invite(&self, id: &TokenId) -> Option<&InviteRecord> {
        self.state.invites.get(id)
    }

    /// A window opens: [`Grant::Window`] admits from now on, also peers that were removed before this moment. Windows do
    /// not outlive the process.
    pub fn window_opened(&mut self) {
        self.window = Some(self.state.serial);
    }

    /// The window is closed.
    pub fn window_closed(&mut self) {
        self.window = None;
        self.sweep = true;
    }

    /// Gives the key a lease, or the one it has.
    pub fn admit(&mut self, request: Request, now: Now) -> Result<Admission, Refusal> {
        let time = self.time(now);
        let Request { public_key, name, preshared_key, ephemeral, grant } = request;
        let unless_used = if let Grant::Guest(_, within) = &grant { Some(within.as_secs()) } else { None };
        let (origin, terms) = self.permitted(&public_key, grant, time)?;
        if let Some(lease) = self.state.leases.get(&public_key) {
            return Ok(Admission { lease: lease.clone(), fresh: false });
        }
        if self.state.leases.len() >= self.policy.max_leases {
            return Err(Refusal::Full(self.state.leases.len()));
        }
        self.check_terms(&terms, Some(&public_key))?;
        let fixed = |v4: bool| terms.addresses.iter().copied().find(|address| address.is_ipv4() == v4);
        let v4 = self.choose(self.index.v4.as_ref(), fixed(true), &public_key)?;
        let v6 = self.choose(self.index.v6.as_ref(), fixed(false), &public_key)?;

        let mut changes = self.taken_from_quarantine(&terms, &public_key);
        if let Origin::Invite(id) = origin
            && let Some(invite) = self.state.invites.get(&id)
        {
            let uses_left = invite.uses_left.saturating_sub(1);
            changes.push(Change::Invite(InviteRecord { uses_left, last_used: Some(time), ..invite.clone() }));
        }
        let mut lease = Lease {
            public_key,
            name: name.as_deref().and_then(clean_name),
            v4: v4.and_then(|address| if let IpAddr::V4(address) = address { Some(address) } else { None }),
            v6: v6.and_then(|address| if let IpAddr::V6(address) = address { Some(address) } else { None }),
            preshared_key,
            state: match origin {
                Origin::Admin => LeaseState::Active,
                _ => LeaseState::Pending { until: time.saturating_add(self.policy.pending.as_secs()) },
            },
            origin,
            tag: terms.tag,
            ephemeral: ephemeral || terms.ephemeral,
            created: time,
            expires: None,
            last_handshake: None,
        };
        lease.expires = match unless_used {
            Some(within) => Some(time.saturating_add(within)),
            None => self.expires(&lease, time),
        };
        changes.push(Change::Lease(lease.clone()));
        self.commit(changes, now)?;
        Ok(Admission { lease, fresh: true })
    }

    /// Replaces the preshared key of a lease.
    pub fn set_preshared_key(&mut self, key: &PublicKey, to: PresharedKey, now: Now) -> Result<(), LedgerError> {
        let lease = self.state.leases.get(key).ok_or(LedgerError::UnknownPeer(*key))?;
        let lease = Lease { preshared_key: to, ..lease.clone() };
        Ok(self.commit(vec![Change::Lease(lease)], now)?)
    }

    /// The peer completed a handshake: its lease is active, and renewed. True if it was pending.
    ///
    /// That it is active is durable on return. Renewals are noted when the last one noted is older than a sixteenth of
    /// what the lease lasts, one hour at most, and become durable together with those of other peers a minute later: 60,000
    /// peers with a handshake every two minutes would otherwise be 500 commits a second.
    pub fn confirm(&mut self, key: &PublicKey, now: Now) -> Result<bool, LedgerError> {
        let time = self.time(now);
        let lease = self.state.leases.get(key).ok_or(LedgerError::UnknownPeer(*key))?;
        if lease.is_pending() {
            let expires = self.expires(lease, time);
            let last_handshake = Some(time);
            let lease = Lease { state: LeaseState::Active, expires, last_handshake, ..lease.clone() };
            self.commit(vec![Change::Lease(lease)], now)?;
            return Ok(true);
        }
        let step = self.lifetime(lease).map_or(STEP, |lifetime| (lifetime / 16).min(STEP)).as_secs();
        let noted = self.seen.get(key).copied().or(lease.last_handshake);
        if noted.is_none_or(|noted| time.saturating_sub(noted) >= step) {
            self.seen.insert(*key, time);
            self.flush_at.get_or_insert(now.instant + FLUSH);
        }
        Ok(false)
    }

    /// Removes a peer, and returns what its lease was. Nothing older than this moment lets its key in again.
    pub fn remove(&mut self, key: &PublicKey, now: Now) -> Result<Lease, LedgerError> {
        let time = self.time(now);
        let lease = self.state.leases.get(key).cloned().ok_or(LedgerError::UnknownPeer(*key))?;
        let mut changes = vec![Change::LeaseGone(*key)];
        if !lease.is_pending() {
            changes.extend(self.quarantined(&lease, time));
        }
        let serial = self.state.serial;
        if self.oldest_grant(&BTreeSet::new()).is_some() {
            changes.push(Change::Serial(serial + 1));
            changes.push(Change::Removed(Tombstone { public_key: *key, serial, removed: time }));
        }
        self.commit(changes, now)?;
        Ok(lease)
    }

    /// Gives a peer another name.
    pub fn rename(&mut self, key: &PublicKey, name: &str, now: Now) -> Result<(), LedgerError> {
        let lease = self.state.leases.get(key).ok_or(LedgerError::UnknownPeer(*key))?;
        let clean = clean_name(name).filter(|clean| clean == name).ok_or_else(|| LedgerError::Name(name.to_owned()))?;
        let lease = Lease { name: Some(clean), ..lease.clone() };
        Ok(self.commit(vec![Change::Lease(lease)], now)?)
    }

    /// All leases, by key, pending ones too.
    pub fn leases(&self) -> impl ExactSizeIterator<Item = &Lease> {
        self.state.leases.values()
    }

    /// The lease of a key.
    pub fn lease(&self, key: &PublicKey) -> Option<&Lease> {
        self.state.leases.get(key)
    }

    /// The lease that has this address.
    pub fn by_address(&self, address: IpAddr) -> Option<&Lease> {
        let lease = self.state.leases.get(&self.index.holder(address)?)?;
        lease.addresses().any(|leased| leased == address).then_some(lease)
    }

    /// When [`expire`](Self::expire) has something to do.
    pub fn deadline(&self) -> Option<Instant> {
        let at = |time: Option<UnixSeconds>| time.map(|time| self.clock.instant_of(time));
        let expiry = at(self.index.next_expiry()).map(|expiry| expiry.max(self.grace_until));
        let (quarantine, ended) = (at(self.index.next_quarantine()), at(self.index.next_ended()));
        [self.index.next_pending(), expiry, quarantine, ended, self.flush_at].into_iter().flatten().min()
    }

    /// Ends what is over, in one commit, and returns the leases that ended: pending ones without a handshake, and those
    /// that nobody renewed.
    pub fn expire(&mut self, now: Now) -> Result<Vec<Lease>, LedgerError> {
        let time = self.time(now);
        let mut changes = Vec::new();
        let mut gone = BTreeMap::new();

        let mut invites: BTreeMap<TokenId, InviteRecord> = BTreeMap::new();
        for lease in self.index.pending_due(now.instant).filter_map(|key| self.state.leases.get(&key)) {
            if let Origin::Invite(id) = lease.origin
                && let Some(kept) = self.state.invites.get(&id)
            {
                let invite = invites.entry(id).or_insert_with(|| kept.clone());
                invite.uses_left = invite.uses_left.saturating_add(1).min(invite.uses);
            }
            changes.push(Change::LeaseGone(lease.public_key));
            gone.insert(lease.public_key, lease.clone());
        }
        changes.extend(invites.into_values().map(Change::Invite));
        // Before the leases: those that end begin a quarantine.
        changes.extend(self.index.quarantine_due(time).map(Change::ReleasedGone));

        let ending = now.instant >= self.grace_until && self.index.next_expiry().is_some_and(|next| next <= time);
        let flushing = ending || self.flush_at.is_some_and(|at| at <= now.instant);
        if flushing {
            changes.extend(self.seen.iter().filter_map(|(key, &last_handshake)| {
                let lease = self.state.leases.get(key)?;
                let expires = self.expires(lease, last_handshake);
                Some(Change::Renewed { public_key: *key, last_handshake, expires })
            }));
        }
        if ending {
            let room = self.policy.max_leases.saturating_sub(self.state.released.len());
            let mut oldest = self.index.quarantines();
            let mut released = 0;
            for lease in self.index.expiry_due(time).filter_map(|key| self.state.leases.get(&key)) {
                let key = lease.public_key;
                let renewed = self.seen.get(&key).and_then(|&seen| self.expires(lease, seen));
                if gone.contains_key(&key) || renewed.is_some_and(|expires| expires > time) {
                    continue;
                }
                released += 1;
                if released > room
                    && let Some((_, oldest)) = oldest.find(|(_, key)| !gone.contains_key(key))
                {
                    changes.push(Change::ReleasedGone(oldest));
                }
                changes.push(Change::LeaseGone(key));
                changes.push(self.released(lease, time));
                gone.insert(key, lease.clone());
            }
        }

        let ended: BTreeSet<_> = self.index.ended_due(time).collect();
        changes.extend(ended.iter().copied().map(Change::InviteGone));
        let sweeping = self.sweep || !ended.is_empty();
        if sweeping {
            let oldest = self.oldest_grant(&ended);
            let needless = |tombstone: &&Tombstone| oldest.is_none_or(|oldest| tombstone.serial < oldest);
            let swept = self.state.removed.values().filter(needless);
            changes.extend(swept.map(|tombstone| Change::RemovedGone(tombstone.public_key)));
        }

        if !changes.is_empty() {
            self.commit(changes, now)?;
        }
        if flushing {
            self.seen.clear();
            self.flush_at = None;
        }
        self.sweep &= !sweeping;
        Ok(gone.into_values().collect())
    }

    /// Makes the changes durable, then carries them out.
    fn commit(&mut self, mut changes: Vec<Change>, now: Now) -> Result<(), StoreError> {
        let time = self.time(now);
        if time > self.state.time {
            changes.push(Change::Time(time));
        }
        self.store.commit(&changes, &self.state)?;
        let pending_until = now.instant + self.policy.pending;
        for change in changes {
            let (peer, invite) = (change.peer(), change.invite());
            if let Change::LeaseGone(key) = &change {
                self.seen.remove(key);
            }
            if let Some(key) = peer {
                self.index.leave_peer(&self.state, key);
            }
            if let Some(invite) = invite.and_then(|id| self.state.invites.get(&id)) {
                self.index.leave_invite(invite);
            }
            self.state.apply(change);
            if let Some(key) = peer {
                self.index.enter_peer(&self.state, key, pending_until);
            }
            if let Some(invite) = invite.and_then(|id| self.state.invites.get(&id)) {
                self.index.enter_invite(invite);
            }
        }
        Ok(())
    }

    /// Whether the grant lets this key in, and on what terms.
    fn permitted(&self, key: &PublicKey, grant: Grant, time: UnixSeconds) -> Result<(Origin, Terms), Refusal> {
        let removed = |since: u64| self.state.removed.get(key).is_some_and(|tombstone| tombstone.serial >= since);
        match grant {
            Grant::Admin(terms) | Grant::Guest(terms, _) => Ok((Origin::Admin, terms)),
            Grant::Window => match self.window {
                None => Err(Refusal::Closed),
                Some(opened) if removed(opened) => Err(Refusal::Removed),
                Some(_) => Ok((Origin::Window, Terms::default())),
            },
            Grant::Invite(id) => {
                let invite = self.state.invites.get(&id).ok_or(Refusal::Unknown(id))?;
                let came_by_it = self.state.leases.get(key).is_some_and(|lease| lease.origin == Origin::Invite(id));
                if invite.revoked.is_some() {
                    Err(Refusal::Revoked(id))
                } else if invite.expires.is_some_and(|expires| expires <= time) {
                    Err(Refusal::Expired(id))
                } else if removed(invite.serial) {
                    Err(Refusal::Removed)
                } else if invite.uses_left == 0 && !came_by_it {
                    Err(Refusal::Used(id))
                } else {
                    Ok((Origin::Invite(id), invite.terms.clone()))
                }
            }
        }
    }

    /// Whether the terms can be kept now: for `key`, or for whoever will come.
    fn check_terms(&self, terms: &Terms, key: Option<&PublicKey>) -> Result<(), Refusal> {
        if let Some(tag) = terms.tag.as_ref().filter(|tag| clean_name(tag).as_ref() != Some(tag)) {
            return Err(Refusal::Tag(tag.clone()));
        }
        for (i, &address) in terms.addresses.iter().enumerate() {
            if let Some(&other) = terms.addresses[..i].iter().find(|other| other.is_ipv4() == address.is_ipv4()) {
                return Err(Refusal::TwoAddresses(other, address));
            }
            if self.index.space_of(address).is_none() {
                return Err(Refusal::AddressUnusable(address));
            }
            if let Some(lease) = self.by_address(address).filter(|lease| key != Some(&lease.public_key)) {
                return Err(Refusal::AddressTaken { address, holder: peer(lease) });
            }
        }
        Ok(())
    }

    /// The address in one pool, if there is such a pool: the fixed one, the one the key had before, or a free one.
    fn choose(&self, space: Option<&Space>, fixed: Option<IpAddr>, key: &PublicKey) -> Result<Option<IpAddr>, Refusal> {
        let Some(space) = space else { return Ok(None) };
        let v4 = space.net().addr().is_ipv4();
        let former = self.state.released.get(key).and_then(|released| {
            let address = if v4 { released.v4.map(IpAddr::V4) } else { released.v6.map(IpAddr::V6) };
            address.filter(|&address| self.index.holder(address) == Some(*key))
        });
        let free = || if v4 { space.lowest() } else { space.drawn(key) };
        match fixed.or(former).or_else(free) {
            Some(address) => Ok(Some(address)),
            None => Err(Refusal::Exhausted { pool: space.net(), next_free: self.next_free(v4) }),
        }
    }

    /// When an address of a family comes free at the earliest, unless a peer is removed.
    fn next_free(&self, v4: bool) -> Option<UnixSeconds> {
        let has = |mine: Option<bool>| mine == Some(true);
        let quarantine = self.index.quarantines().find(|(_, key)| {
            let released = self.state.released.get(key);
            !self.state.leases.contains_key(key)
                && has(released.map(|released| if v4 { released.v4.is_some() } else { released.v6.is_some() }))
        });
        let pending = self.index.pendings().find(|(_, key)| {
            let lease = self.state.leases.get(key);
            has(lease.map(|lease| if v4 { lease.v4.is_some() } else { lease.v6.is_some() }))
        });
        let pending = pending.map(|(until, _)| self.clock.time_of(until));
        [quarantine.map(|(until, _)| until), pending].into_iter().flatten().min()
    }

    /// An administrator's fixed address may be one in quarantine: whose it was does not get it back.
    fn taken_from_quarantine(&self, terms: &Terms, key: &PublicKey) -> Vec<Change> {
        let mut taken = BTreeMap::new();
        for &address in &terms.addresses {
            let holder = self.index.holder(address).filter(|holder| holder != key);
            let Some(released) = holder.and_then(|holder| self.state.released.get(&holder)) else { continue };
            let entry = taken.entry(released.public_key).or_insert_with(|| released.clone());
            if address.is_ipv4() {
                entry.v4 = None;
            } else {
                entry.v6 = None;
            }
        }
        taken.into_values().map(Change::Released).collect()
    }

    /// The quarantine of a lease that ends; the earliest one ends with it where there are too many.
    fn quarantined(&self, lease: &Lease, time: UnixSeconds) -> impl Iterator<Item = Change> + use<S> {
        let full = self.state.released.len() >= self.policy.max_leases;
        let oldest = self.index.quarantines().next().filter(|_| full);
        oldest.map(|(_, key)| Change::ReleasedGone(key)).into_iter().chain([self.released(lease, time)])
    }

    fn released(&self, lease: &Lease, time: UnixSeconds) -> Change {
        let until = time.saturating_add(self.policy.quarantine.as_secs());
        Change::Released(Released { public_key: lease.public_key, v4: lease.v4, v6: lease.v6, until })
    }

    /// How long a lease lasts after a handshake.
    fn lifetime(&self, lease: &Lease) -> Option<Duration> {
        let lease_time = self.policy.lease_time.filter(|_| lease.origin != Origin::Admin);
        let ephemeral = lease.ephemeral.then_some(self.policy.ephemeral);
        [lease_time, ephemeral].into_iter().flatten().min()
    }

    fn expires(&self, lease: &Lease, handshake: UnixSeconds) -> Option<UnixSeconds> {
        self.lifetime(lease).map(|lifetime| handshake.saturating_add(lifetime.as_secs()))
    }

    /// The serial of the oldest invite or window that could still let somebody in. Records that admit nobody count
    /// too, while they are kept: a lapsed lease can give a use back.
    fn oldest_grant(&self, but: &BTreeSet<TokenId>) -> Option<u64> {
        let invites = self.state.invites.values().filter(|invite| !but.contains(&invite.id));
        invites.map(|invite| invite.serial).chain(self.window).min()
    }
}

fn peer(lease: &Lease) -> Peer {
    Peer { public_key: lease.public_key, name: lease.name.clone() }
}

/// Whether the leases fit the pools, and each other.
fn check(state: &State, index: &Index) -> Result<(), LedgerError> {
    let addresses = || state.leases.values().flat_map(|lease| lease.addresses().map(move |address| (address, lease)));
    let outside: Vec<_> = addresses()
        .filter(|&(address, _)| index.space_of(address).is_none())
        .map(|(address, lease)| (address, peer(lease)))
        .collect();
    if !outside.is_empty() {
        return Err(LedgerError::OutsidePool(outside));
    }
    let mut holders = BTreeMap::new();
    for (address, lease) in addresses() {
        if let Some(first) = holders.insert(address, lease) {
            return Err(LedgerError::LeasedTwice { address, peers: Box::new([peer(first), peer(lease)]) });
        }
    }
    Ok(())
}
