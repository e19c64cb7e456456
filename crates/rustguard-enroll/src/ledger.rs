//! The members of the network: invites, leases, addresses.
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
mod admission;
mod clock;
mod error;
mod expiry;
mod index;
mod invites;
mod refused_grants;
mod request;
#[cfg(test)]
mod tests;

use self::{clock::Clock, index::Index};
pub use self::{
    error::{LedgerError, Peer, Refusal},
    index::RETENTION,
    request::{Admission, Grant, Policy, Request},
};
use crate::{
    lease::{Lease, LeaseState, Origin, PresharedKey, TokenId, UnixSeconds, clean_name},
    pool::Pools,
    store::{Change, LeaseStore, Released, State, StoreError, Tombstone},
};
use core::{net::IpAddr, time::Duration};
use rustguard_core::time::{Instant, Now};
use rustguard_crypto::x25519::PublicKey;
use std::collections::{BTreeMap, BTreeSet};

/// No lease ends sooner than this after a start or a leap of the wall clock.
pub const GRACE: Duration = Duration::from_secs(10 * 60);
/// How long handshakes of active peers may wait to become durable, all of them in one commit.
const FLUSH: Duration = Duration::from_secs(60);
/// The coarsest step of [`Lease::last_handshake`].
const STEP: Duration = Duration::from_secs(3600);

/// The record of all members. Call [`expire`](Self::expire) when [`deadline`](Self::deadline) has come.
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
    /// Opens the stored state. A state with leases outside the pools is refused and left unchanged.
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

    /// Gives the store back, for example to open it again.
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

/// Whether the leases fit the pools, and each other.
fn check(state: &State, index: &Index) -> Result<(), LedgerError> {
    let addresses = || state.leases.values().flat_map(|lease| lease.addresses().map(move |address| (address, lease)));
    let outside: Vec<_> = addresses()
        .filter(|&(address, _)| index.space_of(address).is_none())
        .map(|(address, lease)| (address, Peer::of_lease(lease)))
        .collect();
    if !outside.is_empty() {
        return Err(LedgerError::OutsidePool(outside));
    }
    let mut holders = BTreeMap::new();
    for (address, lease) in addresses() {
        if let Some(first) = holders.insert(address, lease) {
            return Err(LedgerError::LeasedTwice {
                address,
                peers: Box::new([Peer::of_lease(first), Peer::of_lease(lease)]),
            });
        }
    }
    Ok(())
}
