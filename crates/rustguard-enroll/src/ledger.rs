//! The members of the network: invites, leases, addresses.
//!
//! [`Ledger::admit`] gives a key a lease, [`confirm`](Ledger::confirm) makes the lease active,
//! [`remove`](Ledger::remove) and [`expire`](Ledger::expire) end it. Every change is durable before it becomes visible:
//! if the store fails, the ledger stays as it was and returns the error. The only exception is the time when a peer was
//! last seen, which becomes durable within a minute.
//!
//! # Time
//! Durable times are seconds since 1970 on the ledger's own clock. It follows the wall clock, but never goes back.
//! After the wall clock was set back, the ledger's clock follows the monotonic clock. The highest time is stored with
//! the state.
//! - A step back changes nothing: all durations stay as intended. Downtime while the wall clock is still behind does
//!   not count, so things may last longer by that time.
//! - A step forward is accepted and not reverted. Invites that expire by it are gone, and quarantines end. Leases get
//!   [`GRACE`] before any of them ends, as after a start. Connected peers complete a handshake within that time, which
//!   renews their leases.
//! - The order of invites and removals, and not the time, decides whether an invite is newer than a removal. The
//!   monotonic clock measures pending leases and the grace.
//!
//! # Coming back
//! A key that has a lease gets the same lease again, by any grant that is still valid. The invite that admitted the key
//! works again too, even if it is used up, because an answer can get lost. After a removal only a newer grant admits
//! the key: an invite made later, a window opened later, or an administrator. A tombstone enforces this. It is kept as
//! long as an older invite or window exists. Records of invites are deleted seven days after they could last admit a
//! key ([`RETENTION`]). The record of an invite without an end of validity is kept, and so are all removals after it
//! was made. A lease that merely ended leaves no tombstone: any valid grant admits the key again, and during the
//! quarantine the key gets its old addresses.
//!
//! # Addresses
//! The address of an ended lease is in quarantine for a while ([`Policy::quarantine`]): other machines may still know
//! it as the former peer's. Only its former key gets it in that time. If no other address of the pool is left, the one
//! that has been in quarantine for the longest time is given to another key. A pool is full only if all of its
//! addresses are leased.
mod admission;
mod adoption;
mod clock;
mod error;
mod expiry;
mod index;
mod invites;
mod prefixes;
mod refused_grants;
mod request;
mod rotation;
mod shared;
mod tags;
#[cfg(test)]
mod tests;

pub use self::{
    adoption::{Adoption, List, Listed},
    error::{AdoptionError, LedgerError, Peer, PrefixError, Refusal},
    index::RETENTION,
    request::{Admission, Grant, Policy, Request},
    rotation::OLD_KEY_TIME,
    shared::MAX_SKEW,
};
use self::{clock::Clock, index::Index, shared::Shared};
use crate::{
    lease::{Lease, LeaseState, Origin, PresharedKey, TokenId, UnixSeconds, clean_name},
    pool::Pools,
    store::{Change, LeaseStore, Released, State, StoreError, Tombstone},
};
use core::{net::IpAddr, time::Duration};
use rustguard_core::time::{Instant, Now};
use rustguard_crypto::x25519::PublicKey;
use std::collections::{BTreeMap, BTreeSet};

/// No lease ends within this time after a start or a leap of the wall clock.
pub const GRACE: Duration = Duration::from_secs(10 * 60);
/// The longest time until handshakes of active peers become durable, all of them in one commit.
const FLUSH: Duration = Duration::from_secs(60);
/// The coarsest step of [`Lease::last_handshake`], the longest time between two records of it.
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
    /// No lease ends before this time.
    grace_until: Instant,
    /// Handshakes of active peers that are not durable yet, and the time by which they must be.
    seen: BTreeMap<PublicKey, UnixSeconds>,
    flush_at: Option<Instant>,
    /// The serial at the opening of the window. Removals with this serial or a later one are newer than the window.
    window: Option<u64>,
    /// Some tombstones may no longer be needed.
    sweep: bool,
    commits: u64,
    /// The decisions that are not in the log yet, if several servers share one; see [`share`](Self::share).
    shared: Option<Shared>,
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
            commits: 0,
            shared: None,
        })
    }

    /// Whether a ledger with these pools could take over the leases of this one.
    ///
    /// # Errors
    /// The errors of [`open`](Self::open) about the stored state.
    pub fn fits(&self, pools: &Pools) -> Result<(), LedgerError> {
        check(&self.state, &Index::new(pools))
    }

    /// Returns the store, for example to open it again.
    pub fn into_store(self) -> S {
        self.store
    }

    /// The state, as the store has it.
    pub fn state(&self) -> &State {
        &self.state
    }

    /// How often the state has changed since it was opened.
    pub fn commits(&self) -> u64 {
        self.commits
    }

    /// The pools.
    pub fn pools(&self) -> &Pools {
        &self.pools
    }

    /// The policy.
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// The ledger's time (see the module's page).
    pub fn time(&mut self, now: Now) -> UnixSeconds {
        if self.clock.advance(now) {
            self.grace_until = self.grace_until.max(now.instant + GRACE);
        }
        self.clock.seconds()
    }

    /// Takes note that a window opens: [`Grant::Window`] admits from now on, including peers that were removed before
    /// this moment. Windows do not survive a restart.
    pub fn window_opened(&mut self) {
        self.window = Some(self.state.serial);
    }

    /// Takes note that the window is closed.
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

    /// Takes note of a completed handshake: the peer's lease becomes active and is renewed. Returns true if it was
    /// pending.
    ///
    /// The active state is durable on return. A renewal is recorded only if the last recorded one is older than a
    /// sixteenth of the lease's lifetime, or one hour if that is less. It becomes durable within a minute, together
    /// with those of other peers. Without this, 60,000 peers with a handshake every two minutes would need 500 commits
    /// a second.
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

    /// Removes a peer and returns its former lease. Only grants newer than this moment admit its key again.
    pub fn remove(&mut self, key: &PublicKey, now: Now) -> Result<Lease, LedgerError> {
        let time = self.time(now);
        let lease = self.state.leases.get(key).cloned().ok_or(LedgerError::UnknownPeer(*key))?;
        let mut changes = vec![Change::LeaseGone(*key)];
        if !lease.is_pending() {
            changes.extend(self.quarantined(&lease, time));
        }
        let serial = self.state.serial;
        if self.has_grants() {
            changes.push(Change::Serial(serial + 1));
            changes.push(Change::Removed(Tombstone { public_key: *key, serial, removed: time }));
        }
        self.commit(changes, now)?;
        Ok(lease)
    }

    /// Renames a peer. No other peer may have the name. Joiners may choose equal names for themselves; an administrator
    /// then tells them apart by renaming.
    pub fn rename(&mut self, key: &PublicKey, name: &str, now: Now) -> Result<(), LedgerError> {
        self.state.leases.get(key).ok_or(LedgerError::UnknownPeer(*key))?;
        let clean = clean_name(name).filter(|clean| clean == name).ok_or_else(|| LedgerError::Name(name.to_owned()))?;
        let taken = |other: &&Lease| other.public_key != *key && other.name.as_ref() == Some(&clean);
        if let Some(other) = self.state.leases.values().find(taken) {
            return Err(LedgerError::NameTaken(Peer::of_lease(other)));
        }
        self.change(key, now, |lease| Lease { name: Some(clean), ..lease }).map(drop)
    }

    /// All leases, by key, including pending ones.
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

    /// Makes the changes durable, then applies them.
    fn commit(&mut self, mut changes: Vec<Change>, now: Now) -> Result<(), StoreError> {
        let time = self.time(now);
        if time > self.state.time {
            changes.push(Change::Time(time));
        }
        match &mut self.shared {
            // The log has the last word.
            Some(shared) => shared.stage(&changes, &self.state, &self.seen)?,
            None => self.store.commit(&changes, &self.state)?,
        }
        self.enter(changes, now.instant + self.policy.pending);
        Ok(())
    }

    /// Applies changes to the state and the index. New pending leases wait until `pending_until`.
    fn enter(&mut self, changes: Vec<Change>, pending_until: Instant) {
        self.commits += 1;
        for change in changes {
            let (peer, invite) = (change.peer(), change.invite());
            if let Change::LeaseGone(key) = &change {
                self.seen.remove(key);
            }
            self.indexed(peer, invite, pending_until, |state| state.apply(change));
        }
    }

    /// Changes the records about a peer or an invite, in the state and in the index.
    fn indexed(
        &mut self,
        peer: Option<PublicKey>,
        invite: Option<TokenId>,
        pending_until: Instant,
        change: impl FnOnce(&mut State),
    ) {
        if let Some(key) = peer {
            self.index.leave_peer(&self.state, key);
        }
        if let Some(invite) = invite.and_then(|id| self.state.invites.get(&id)) {
            self.index.leave_invite(invite);
        }
        change(&mut self.state);
        if let Some(key) = peer {
            self.index.enter_peer(&self.state, key, pending_until);
        }
        if let Some(invite) = invite.and_then(|id| self.state.invites.get(&id)) {
            self.index.enter_invite(invite);
        }
    }

    /// The quarantine of a lease that ends. If there are too many quarantines, the earliest one ends.
    fn quarantined(&self, lease: &Lease, time: UnixSeconds) -> impl Iterator<Item = Change> + use<S> {
        let full = self.state.released.len() >= self.policy.max_leases;
        let oldest = self.index.quarantines().next().filter(|_| full);
        oldest
            .map(|(_, key)| Change::ReleasedGone(key))
            .into_iter()
            .chain([Change::Released(self.released(lease, time))])
    }

    fn released(&self, lease: &Lease, time: UnixSeconds) -> Released {
        let until = time.saturating_add(self.policy.quarantine.as_secs());
        Released { public_key: lease.public_key, v4: lease.v4, v6: lease.v6, until }
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

    /// Whether an invite or a window could admit a key that is removed now. Other servers have windows that this one
    /// does not know.
    fn has_grants(&self) -> bool {
        self.shared.is_some() || self.oldest_grant(&BTreeSet::new()).is_some()
    }

    /// The serial of the oldest invite or window that could still admit a key. Records of invites that admit nobody
    /// count too while they are kept, because a lapsed lease can give a use back.
    fn oldest_grant(&self, but: &BTreeSet<TokenId>) -> Option<u64> {
        let invites = self.state.invites.values().filter(|invite| !but.contains(&invite.id));
        invites.map(|invite| invite.serial).chain(self.window).min()
    }
}

/// Checks that the leases fit the pools and do not collide.
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
