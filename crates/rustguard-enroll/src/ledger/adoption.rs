//! Adoption of a list of members that is newer than the leases, for example after a restore from an older backup. It
//! adds, ends and changes leases.
//!
//! A list says less than a lease. A lease keeps the fields that the list does not have. A machine that only the list
//! has gets a new lease without a preshared key, because lists do not contain preshared keys.
use super::{
    Ledger,
    error::{AdoptionError, Peer, Refusal},
    rotation::OLD_KEY_TIME,
    tags::check_tags,
};
use crate::{
    lease::{
        Lease, LeaseState, MAX_ENDPOINTS, MAX_PREFIXES, MAX_SERVERS, OldKey, PresharedKey, ServerRole, UnixSeconds,
    },
    store::{Change, LeaseStore, Released, Tombstone},
};
use core::net::IpAddr;
use ipnet::IpNet;
use rustguard_core::{host_port::HostPort, time::Now};
use rustguard_crypto::x25519::PublicKey;
use std::collections::{BTreeMap, BTreeSet};

/// One machine in a list of members.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Listed {
    /// Its key.
    pub public_key: PublicKey,
    /// The key that it had before, while that is valid.
    pub old_key: Option<PublicKey>,
    /// The key of its lease in this ledger; `None`: it has no lease here.
    pub lease: Option<PublicKey>,
    /// Its name; `None`: the lease keeps its name.
    pub name: Option<String>,
    /// Its addresses.
    pub addresses: Vec<IpAddr>,
    /// Whether it is a member, and not a client.
    pub member: bool,
    /// Whether it is a further server.
    pub server: bool,
    /// Its tags; `None`: the lease keeps its tags.
    pub tags: Option<Vec<String>>,
    /// The prefixes that lead to it ([`Lease::prefixes`]).
    pub prefixes: Vec<IpNet>,
    /// The endpoints of a further server.
    pub endpoints: Vec<HostPort>,
}

impl Listed {
    /// A client with a key, and nothing else.
    pub fn new(public_key: PublicKey) -> Self {
        Self {
            public_key,
            old_key: None,
            lease: None,
            name: None,
            addresses: Vec::new(),
            member: false,
            server: false,
            tags: None,
            prefixes: Vec::new(),
            endpoints: Vec::new(),
        }
    }
}

/// A list of all machines except the server itself.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct List {
    /// When it was made. A lease that is not in the list ended before this time, or is newer.
    pub made: UnixSeconds,
    /// The machines.
    pub machines: Vec<Listed>,
}

impl List {
    /// A list that was made at this time.
    pub fn new(made: UnixSeconds, machines: Vec<Listed>) -> Self {
        Self { made, machines }
    }
}

/// The changes that a list makes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Adoption {
    /// The new leases. They have no preshared key.
    pub came: Vec<Lease>,
    /// The leases that end.
    pub gone: Vec<Lease>,
    /// The leases that change, each before and after.
    pub changed: Vec<(Lease, Lease)>,
}

impl Adoption {
    /// Whether the leases already agree with the list.
    pub fn is_empty(&self) -> bool {
        self.came.is_empty() && self.gone.is_empty() && self.changed.is_empty()
    }
}

impl<S: LeaseStore> Ledger<S> {
    /// Changes the leases to agree with the list, in one commit. Leases that are older than the list and not in it end
    /// as by [`remove`](Self::remove). Newer leases stay. A machine that was removed here after the list was made stays
    /// removed.
    ///
    /// # Errors
    /// See [`AdoptionError`]. Nothing has changed.
    pub fn adopt(&mut self, list: &List, now: Now) -> Result<Adoption, AdoptionError> {
        let adoption = self.adoption(list, now)?;
        if !adoption.is_empty() {
            let time = self.time(now);
            self.commit(self.adopting(&adoption, time), now)?;
        }
        Ok(adoption)
    }

    /// Reserves these addresses for these keys, as in a list of members that is newer than the leases. No other key
    /// gets one of them, unless an administrator names the address. An empty iterator ends all reservations, because
    /// there is no such list or it has been decided upon.
    pub fn set_listed(&mut self, listed: impl IntoIterator<Item = (IpAddr, PublicKey)>) {
        self.index.set_listed(listed);
    }

    /// The changes that [`adopt`](Self::adopt) would make.
    ///
    /// # Errors
    /// See [`AdoptionError`].
    pub fn adoption(&self, list: &List, now: Now) -> Result<Adoption, AdoptionError> {
        let adoption = self.differences(list, now)?;
        self.check_adoption(&adoption)?;
        Ok(adoption)
    }

    /// The differences between the list and the leases, without a check of whether the result can be stored.
    ///
    /// # Errors
    /// [`AdoptionError`], if the list contains values that no lease can have.
    pub fn differences(&self, list: &List, now: Now) -> Result<Adoption, AdoptionError> {
        let time = self.clock.time_of(now.instant);
        let mut adoption = Adoption::default();
        let mut listed = BTreeSet::new();
        for machine in &list.machines {
            let before = machine.lease.and_then(|key| self.state.leases.get(&key));
            match before {
                Some(before) if !listed.insert(before.public_key) => {
                    return Err(AdoptionError::KeyTwice(Peer::of_lease(before)));
                }
                None if self.has_ended_since(machine, list.made) => {}
                before => {
                    let after = self.lease_of(machine, before, list.made, time)?;
                    match before {
                        None => adoption.came.push(after),
                        Some(before) if *before != after => adoption.changed.push((before.clone(), after)),
                        Some(_) => {}
                    }
                }
            }
        }
        let rest = self.state.leases.values().filter(|lease| !listed.contains(&lease.public_key));
        adoption.gone = rest.filter(|lease| lease.created < list.made).cloned().collect();
        Ok(adoption)
    }

    /// Whether the machine lost its lease here after the list was made. The list does not bring back such a machine.
    fn has_ended_since(&self, machine: &Listed, made: UnixSeconds) -> bool {
        let quarantine = self.policy.quarantine.as_secs();
        let ended = |key: &PublicKey| {
            let removed = self.state.removed.get(key).map(|tombstone| tombstone.removed);
            let released = self.state.released.get(key).map(|released| released.until.saturating_sub(quarantine));
            removed.max(released).is_some_and(|ended| ended >= made)
        };
        ended(&machine.public_key) || machine.old_key.as_ref().is_some_and(ended)
    }

    /// The lease of a machine according to the list.
    fn lease_of(
        &self,
        machine: &Listed,
        before: Option<&Lease>,
        made: UnixSeconds,
        time: UnixSeconds,
    ) -> Result<Lease, AdoptionError> {
        let mut lease = before.cloned().unwrap_or_else(|| Lease {
            // The lease counts as older than the list.
            created: made.saturating_sub(1),
            ..Lease::new(machine.public_key, PresharedKey::from_bytes(&[0; 32]))
        });
        // A machine that changed its key after the list was made keeps the newer key.
        if lease.old_key.is_none_or(|old| old.public_key != machine.public_key) {
            let until = made.min(time).saturating_add(OLD_KEY_TIME.as_secs());
            let known = |key: &PublicKey| lease.old_key.filter(|old| old.public_key == *key);
            lease.old_key = machine.old_key.map(|key| known(&key).unwrap_or(OldKey { public_key: key, until }));
            lease.public_key = machine.public_key;
        }
        lease.state = LeaseState::Active;
        lease.name = machine.name.clone().or(lease.name);
        lease.tags = machine.tags.clone().unwrap_or(lease.tags);
        (lease.v4, lease.v6) = (None, None);
        lease.member = machine.member;
        // A machine admitted as a server is listed as a client if its program cannot be a server.
        lease.server = match machine.server || !machine.member && lease.server.is_server() {
            // A list does not say which servers are standbys.
            true => lease.server.max(ServerRole::Server),
            false => ServerRole::None,
        };
        if lease.is_server() {
            lease.endpoints = machine.endpoints.iter().take(MAX_ENDPOINTS).cloned().collect();
        }
        let peer = Peer::of_lease(&lease);
        for &address in &machine.addresses {
            if self.index.space_of(address).is_none() {
                return Err(AdoptionError::OutsidePool { address, peer });
            }
            let is_second = match address {
                IpAddr::V4(address) => lease.v4.replace(address).is_some(),
                IpAddr::V6(address) => lease.v6.replace(address).is_some(),
            };
            if is_second {
                return Err(AdoptionError::TwoAddresses { address, peer });
            }
        }
        let unusable = |cause: Refusal| AdoptionError::Unusable { peer: peer.clone(), cause: Box::new(cause) };
        check_tags(&lease.tags).map_err(unusable)?;
        let prefixes = self.check_prefixes(&machine.prefixes, true).map_err(|cause| unusable(cause.into()))?;
        lead(&mut lease, &prefixes);
        Ok(lease)
    }

    /// Checks the leases that would result.
    fn check_adoption(&self, adoption: &Adoption) -> Result<(), AdoptionError> {
        let Adoption { came, gone, changed } = adoption;
        let before = changed.iter().map(|(before, _)| before).chain(gone);
        let before: BTreeSet<_> = before.map(|lease| lease.public_key).collect();
        let stay = self.state.leases.values().filter(|lease| !before.contains(&lease.public_key));
        let all = || came.iter().chain(changed.iter().map(|(_, after)| after)).chain(stay.clone());
        let count = all().count();
        if count > self.policy.max_leases {
            return Err(AdoptionError::Full(count, self.policy.max_leases));
        }
        let servers = all().filter(|lease| lease.server.is_server()).count();
        if servers > MAX_SERVERS {
            return Err(AdoptionError::Servers(servers));
        }
        let (mut keys, mut holders) = (BTreeSet::new(), BTreeMap::new());
        for lease in all() {
            let old_key = lease.old_key.map(|old| old.public_key);
            if !keys.insert(lease.public_key) || old_key.is_some_and(|key| !keys.insert(key)) {
                return Err(AdoptionError::KeyTwice(Peer::of_lease(lease)));
            }
            for address in lease.addresses() {
                if let Some(first) = holders.insert(address, lease) {
                    // Unchanged leases come last, so `first` is of the list.
                    let peers = Box::new([first, lease].map(Peer::of_lease));
                    return Err(AdoptionError::AddressTaken { address, peers });
                }
            }
        }
        Ok(())
    }

    /// The changes of an adoption. Leases whose addresses or keys change end before new ones begin, because two
    /// machines may have swapped addresses.
    fn adopting(&self, adoption: &Adoption, time: UnixSeconds) -> Vec<Change> {
        let Adoption { came, gone, changed } = adoption;
        let moves = |(before, after): &&(Lease, Lease)| {
            (before.public_key, before.v4, before.v6) != (after.public_key, after.v4, after.v6)
        };
        let ending = gone.iter().chain(changed.iter().filter(moves).map(|(before, _)| before));
        let mut changes: Vec<_> = ending.map(|lease| Change::LeaseGone(lease.public_key)).collect();
        let serial = self.state.serial;
        if !gone.is_empty() && self.has_grants() {
            changes.push(Change::Serial(serial + 1));
            let tombstone = |lease: &Lease| Tombstone { public_key: lease.public_key, serial, removed: time };
            changes.extend(gone.iter().map(tombstone).map(Change::Removed));
        }
        // An address that the list gives to a machine leaves quarantine.
        let listed = came.iter().chain(changed.iter().map(|(_, after)| after));
        let leased: BTreeSet<_> = listed.flat_map(Lease::addresses).collect();
        let free = |released: &Released| Released {
            v4: released.v4.filter(|address| !leased.contains(&IpAddr::V4(*address))),
            v6: released.v6.filter(|address| !leased.contains(&IpAddr::V6(*address))),
            ..released.clone()
        };
        let quarantined = self.state.released.values().map(|released| (released, free(released)));
        changes
            .extend(quarantined.filter(|(before, after)| *before != after).map(|(_, after)| Change::Released(after)));
        // Nobody else knows the address of a pending lease, because its peer never connected.
        let known: Vec<_> = gone.iter().filter(|lease| !lease.is_pending()).collect();
        let room = self.policy.max_leases.saturating_sub(self.state.released.len());
        let oldest = self.index.quarantines().take(known.len().saturating_sub(room));
        changes.extend(oldest.map(|(_, key)| Change::ReleasedGone(key)));
        changes.extend(known.into_iter().map(|lease| Change::Released(free(&self.released(lease, time)))));
        let seen = |lease: &Lease| self.seen.get(&lease.public_key).copied();
        changes.extend(came.iter().cloned().map(Change::Lease));
        changes.extend(changed.iter().map(|(before, after)| {
            Change::Lease(Lease { last_handshake: seen(before).or(after.last_handshake), ..after.clone() })
        }));
        changes
    }
}

/// Makes [`Lease::prefixes`] equal to `to`, the sorted prefixes of the list. A prefix of the lease that is not in the
/// list is neither admitted nor announced any more: the list does not say which of the two has ended. Prefixes that are
/// admitted and not announced stay. Prefixes that wait for admission stay too.
fn lead(lease: &mut Lease, to: &[IpNet]) {
    let is_led = |lease: &Lease| lease.prefixes().map(|prefix| prefix.trunc()).collect::<BTreeSet<_>>().iter().eq(to);
    if is_led(lease) {
        return;
    }
    let no_more: Vec<_> = lease.prefixes().filter(|prefix| !to.contains(&prefix.trunc())).collect();
    let covers = |net: &IpNet, prefixes: &[IpNet]| prefixes.iter().any(|prefix| net.contains(prefix));
    lease.admitted.retain(|net| !covers(net, &no_more) || covers(net, to));
    lease.announced.retain(|net| !no_more.contains(net));
    for prefix in to {
        if !lease.admits(prefix) {
            lease.admitted.push(*prefix);
        }
        if lease.member && !lease.announced.contains(prefix) {
            lease.announced.push(*prefix);
        }
    }
    lease.admitted.sort_unstable();
    lease.announced.sort_unstable();
    // If nested prefixes prevent this, or there are too many prefixes, the lease gets only those of the list.
    if !is_led(lease) || lease.admitted.len().max(lease.announced.len()) > MAX_PREFIXES {
        lease.admitted = to.to_vec();
        lease.announced = if lease.member { to.to_vec() } else { Vec::new() };
    }
}
