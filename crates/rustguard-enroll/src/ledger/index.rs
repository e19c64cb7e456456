//! Lookup tables of the ledger. All of their contents follow from the state.
use crate::{
    lease::{InviteRecord, Lease, TokenId, UnixSeconds},
    pool::{Pools, Space},
    store::State,
};
use core::time::Duration;
use rustguard_core::time::Instant;
use rustguard_crypto::x25519::PublicKey;
use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

/// How long the record of an invite is kept after it could last admit a key. A repeated use in this time gets a precise
/// refusal.
pub const RETENTION: Duration = Duration::from_secs(7 * 24 * 3600);

/// Addresses and due times of a state.
#[derive(Debug)]
pub(super) struct Index {
    /// The IPv4 pool.
    pub(super) v4: Option<Space>,
    /// The IPv6 pool.
    pub(super) v6: Option<Space>,
    /// The key that has an address, by a lease or in quarantine.
    holders: BTreeMap<IpAddr, PublicKey>,
    /// Addresses without a holder that are reserved for a machine of a list of members. They are not free.
    listed: BTreeMap<IpAddr, PublicKey>,
    /// When pending leases end, on the monotonic clock: a change of the wall clock during a join does not end the
    /// lease.
    pending: BTreeMap<PublicKey, Instant>,
    pending_due: BTreeSet<(Instant, PublicKey)>,
    /// When leases end.
    expiry: BTreeSet<(UnixSeconds, PublicKey)>,
    /// When quarantines end.
    quarantine: BTreeSet<(UnixSeconds, PublicKey)>,
    /// Keys that leases had before their present ones, and when they are no longer kept.
    old_keys: BTreeMap<PublicKey, PublicKey>,
    old_keys_end: BTreeSet<(UnixSeconds, PublicKey)>,
    /// When the records of invites that admit nobody any more may be deleted.
    ended: BTreeSet<(UnixSeconds, TokenId)>,
}

impl Index {
    /// The index of an empty state.
    pub(super) fn new(pools: &Pools) -> Self {
        let (v4, v6) = pools.spaces();
        Self {
            v4,
            v6,
            holders: BTreeMap::new(),
            listed: BTreeMap::new(),
            pending: BTreeMap::new(),
            pending_due: BTreeSet::new(),
            expiry: BTreeSet::new(),
            quarantine: BTreeSet::new(),
            old_keys: BTreeMap::new(),
            old_keys_end: BTreeSet::new(),
            ended: BTreeSet::new(),
        }
    }

    /// Adds the state's records about a peer. A new pending lease waits until `pending_until`.
    pub(super) fn enter_peer(&mut self, state: &State, key: PublicKey, pending_until: Instant) {
        let lease = state.leases.get(&key);
        let released = state.released.get(&key);
        for address in addresses(state, &key) {
            self.take(address, key);
        }
        if let Some(released) = released {
            self.quarantine.insert((released.until, key));
        }
        if let Some(expires) = lease.and_then(|lease| lease.expires) {
            self.expiry.insert((expires, key));
        }
        if let Some(old) = lease.and_then(|lease| lease.old_key) {
            self.old_keys.insert(old.public_key, key);
            self.old_keys_end.insert((old.until, key));
        }
        if lease.is_some_and(Lease::is_pending) {
            let until = *self.pending.entry(key).or_insert(pending_until);
            self.pending_due.insert((until, key));
        } else if let Some(until) = self.pending.remove(&key) {
            self.pending_due.remove(&(until, key));
        }
    }

    /// Removes the state's records about a peer, before they change.
    pub(super) fn leave_peer(&mut self, state: &State, key: PublicKey) {
        for address in addresses(state, &key) {
            self.give_back(address, key);
        }
        if let Some(released) = state.released.get(&key) {
            self.quarantine.remove(&(released.until, key));
        }
        if let Some(expires) = state.leases.get(&key).and_then(|lease| lease.expires) {
            self.expiry.remove(&(expires, key));
        }
        if let Some(old) = state.leases.get(&key).and_then(|lease| lease.old_key) {
            self.old_keys.remove(&old.public_key);
            self.old_keys_end.remove(&(old.until, key));
        }
    }

    /// Adds an invite.
    pub(super) fn enter_invite(&mut self, invite: &InviteRecord) {
        self.ended.extend(forgotten_at(invite).map(|at| (at, invite.id)));
    }

    /// Removes an invite, before it changes.
    pub(super) fn leave_invite(&mut self, invite: &InviteRecord) {
        if let Some(at) = forgotten_at(invite) {
            self.ended.remove(&(at, invite.id));
        }
    }

    /// The key that has an address, by a lease or in quarantine.
    pub(super) fn holder(&self, address: IpAddr) -> Option<PublicKey> {
        self.holders.get(&address).copied()
    }

    /// Reserves these addresses for these keys. Earlier reservations end.
    pub(super) fn set_listed(&mut self, listed: impl IntoIterator<Item = (IpAddr, PublicKey)>) {
        for address in std::mem::take(&mut self.listed).into_keys() {
            if let Some(space) = self.space_mut(address) {
                space.give_back(address);
            }
        }
        for (address, key) in listed {
            let Some(space) = self.space_mut(address).filter(|space| space.is_free(address)) else { continue };
            space.take(address);
            self.listed.insert(address, key);
        }
    }

    /// The address of one family that is reserved for a key.
    pub(super) fn listed_for(&self, key: &PublicKey, v4: bool) -> Option<IpAddr> {
        let mut listed = self.listed.iter().filter(|&(address, of)| of == key && address.is_ipv4() == v4);
        listed.next().map(|(&address, _)| address)
    }

    /// The present key of the lease that had this key before.
    pub(super) fn had_key(&self, key: &PublicKey) -> Option<PublicKey> {
        self.old_keys.get(key).copied()
    }

    pub(super) fn old_keys(&self) -> usize {
        self.old_keys.len()
    }

    pub(super) fn next_old_key(&self) -> Option<UnixSeconds> {
        self.old_keys_end.first().map(|due| due.0)
    }

    pub(super) fn old_keys_due(&self, time: UnixSeconds) -> impl Iterator<Item = PublicKey> {
        self.old_keys_end.iter().take_while(move |due| due.0 <= time).map(|due| due.1)
    }

    /// When the next pending lease ends.
    pub(super) fn next_pending(&self) -> Option<Instant> {
        self.pending_due.first().map(|due| due.0)
    }

    pub(super) fn next_expiry(&self) -> Option<UnixSeconds> {
        self.expiry.first().map(|due| due.0)
    }

    pub(super) fn next_quarantine(&self) -> Option<UnixSeconds> {
        self.quarantine.first().map(|due| due.0)
    }

    pub(super) fn next_ended(&self) -> Option<UnixSeconds> {
        self.ended.first().map(|due| due.0)
    }

    /// The keys of pending leases that are due, the earliest first.
    pub(super) fn pending_due(&self, now: Instant) -> impl Iterator<Item = PublicKey> {
        self.pending_due.iter().take_while(move |due| due.0 <= now).map(|due| due.1)
    }

    pub(super) fn expiry_due(&self, time: UnixSeconds) -> impl Iterator<Item = PublicKey> {
        self.expiry.iter().take_while(move |due| due.0 <= time).map(|due| due.1)
    }

    pub(super) fn quarantine_due(&self, time: UnixSeconds) -> impl Iterator<Item = PublicKey> {
        self.quarantine.iter().take_while(move |due| due.0 <= time).map(|due| due.1)
    }

    pub(super) fn ended_due(&self, time: UnixSeconds) -> impl Iterator<Item = TokenId> {
        self.ended.iter().take_while(move |due| due.0 <= time).map(|due| due.1)
    }

    /// Quarantines, ordered by their end.
    pub(super) fn quarantines(&self) -> impl Iterator<Item = (UnixSeconds, PublicKey)> {
        self.quarantine.iter().copied()
    }

    /// Pending leases, ordered by their end.
    pub(super) fn pendings(&self) -> impl Iterator<Item = (Instant, PublicKey)> {
        self.pending_due.iter().copied()
    }

    /// The pool that can give the address.
    pub(super) fn space_of(&self, address: IpAddr) -> Option<&Space> {
        let space = if address.is_ipv4() { &self.v4 } else { &self.v6 };
        space.as_ref().filter(|space| space.contains(address))
    }

    fn space_mut(&mut self, address: IpAddr) -> Option<&mut Space> {
        let space = if address.is_ipv4() { &mut self.v4 } else { &mut self.v6 };
        space.as_mut().filter(|space| space.contains(address))
    }

    /// Addresses outside the pools have no holder. Addresses of a former pool may remain in quarantine without effect.
    fn take(&mut self, address: IpAddr, key: PublicKey) {
        let was_kept = self.listed.remove(&address).is_some();
        let Some(space) = self.space_mut(address) else { return };
        if was_kept || space.is_free(address) {
            space.take(address);
            self.holders.insert(address, key);
        }
    }

    fn give_back(&mut self, address: IpAddr, key: PublicKey) {
        if self.holder(address) == Some(key) {
            self.holders.remove(&address);
            if let Some(space) = self.space_mut(address) {
                space.give_back(address);
            }
        }
    }
}

/// All addresses of a peer, by a lease or in quarantine. Some appear twice.
fn addresses(state: &State, key: &PublicKey) -> impl Iterator<Item = IpAddr> + use<> {
    let leased = state.leases.get(key).map(Lease::addresses);
    let released = state
        .released
        .get(key)
        .map(|released| released.v4.map(IpAddr::V4).into_iter().chain(released.v6.map(IpAddr::V6)).collect::<Vec<_>>());
    leased.into_iter().flatten().chain(released.into_iter().flatten())
}

/// When an invite's record may be deleted: some time after it could last admit a key.
fn forgotten_at(invite: &InviteRecord) -> Option<UnixSeconds> {
    let used_up = invite.last_used.filter(|_| invite.uses_left == 0);
    let ended = [invite.revoked, invite.expires, used_up].into_iter().flatten().min()?;
    Some(ended.saturating_add(RETENTION.as_secs()))
}
