//! Admission: which keys get a lease, and with which addresses.
use super::{
    Ledger,
    error::{Peer, Refusal},
    request::{Admission, Grant, Request},
    tags::check_tags,
};
use crate::{
    lease::{InviteRecord, Lease, LeaseState, Origin, Terms, UnixSeconds, clean_name},
    pool::Space,
    store::{Change, LeaseStore},
};
use core::net::IpAddr;
use rustguard_core::time::Now;
use rustguard_crypto::x25519::PublicKey;
use std::collections::BTreeMap;

impl<S: LeaseStore> Ledger<S> {
    /// Gives the key a new lease, or returns its existing one.
    pub fn admit(&mut self, request: Request, now: Now) -> Result<Admission, Refusal> {
        let time = self.time(now);
        let Request { public_key, name, preshared_key, ephemeral, member, grant } = request;
        let unless_used = if let Grant::Guest(_, within) = &grant { Some(within.as_secs()) } else { None };
        let (origin, terms) = self.permitted(&public_key, grant, time)?;
        if let Some(lease) = self.state.leases.get(&public_key) {
            // The machine may have got another version of the program since it joined.
            let member = if origin == Origin::Admin { lease.member } else { member };
            // A preshared key that was lost with a server is replaced when the machine joins again. An administrator's
            // request does not replace the key in the machine's configuration file.
            let is_lost = lease.preshared_key.is_zero() && !preshared_key.is_zero() && origin != Origin::Admin;
            let changed = lease.member != member || is_lost;
            let preshared_key = if is_lost { preshared_key } else { lease.preshared_key.clone() };
            let lease = Lease { member, preshared_key, ..lease.clone() };
            if changed {
                self.commit(vec![Change::Lease(lease.clone())], now)?;
            }
            return Ok(Admission { lease, fresh: false, changed });
        }
        if let Some(lease) = self.formerly(&public_key) {
            return Err(Refusal::OldKey(Peer::of_lease(lease)));
        }
        if self.state.leases.len() >= self.policy.max_leases {
            return Err(Refusal::Full(self.state.leases.len()));
        }
        self.check_terms(&terms, Some(&public_key))?;
        let fixed = |v4: bool| terms.addresses.iter().copied().find(|address| address.is_ipv4() == v4);
        let v4 = self.choose(self.index.v4.as_ref(), fixed(true), &public_key)?;
        let v6 = self.choose(self.index.v6.as_ref(), fixed(false), &public_key)?;

        let mut changes = self.taken_from_quarantine(v4.into_iter().chain(v6), &public_key);
        if let Origin::Invite(id) = origin
            && let Some(invite) = self.state.invites.get(&id)
        {
            let uses_left = invite.uses_left.saturating_sub(1);
            changes.push(Change::Invite(InviteRecord { uses_left, last_used: Some(time), ..invite.clone() }));
        }
        let mut lease = Lease {
            name: name.as_deref().and_then(clean_name),
            v4: v4.and_then(|address| if let IpAddr::V4(address) = address { Some(address) } else { None }),
            v6: v6.and_then(|address| if let IpAddr::V6(address) = address { Some(address) } else { None }),
            state: match origin {
                Origin::Admin => LeaseState::Active,
                _ => LeaseState::Pending { until: time.saturating_add(self.policy.pending.as_secs()) },
            },
            origin,
            tags: terms.tags,
            ephemeral: ephemeral || terms.ephemeral,
            member,
            server: terms.server,
            admitted: terms.admitted,
            created: time,
            ..Lease::new(public_key, preshared_key)
        };
        lease.expires = match unless_used {
            Some(within) => Some(time.saturating_add(within)),
            None => self.expires(&lease, time),
        };
        changes.push(Change::Lease(lease.clone()));
        self.commit(changes, now)?;
        Ok(Admission { lease, fresh: true, changed: true })
    }

    /// Whether the terms can be met now, for `key` or for any key.
    pub(super) fn check_terms(&self, terms: &Terms, key: Option<&PublicKey>) -> Result<(), Refusal> {
        check_tags(&terms.tags)?;
        // A default route was confirmed when the terms were made.
        self.check_prefixes(&terms.admitted, true)?;
        for (i, &address) in terms.addresses.iter().enumerate() {
            if let Some(&other) = terms.addresses[..i].iter().find(|other| other.is_ipv4() == address.is_ipv4()) {
                return Err(Refusal::TwoAddresses(other, address));
            }
            if self.index.space_of(address).is_none() {
                return Err(Refusal::AddressUnusable(address));
            }
            if let Some(lease) = self.by_address(address).filter(|lease| key != Some(&lease.public_key)) {
                return Err(Refusal::AddressTaken { address, holder: Peer::of_lease(lease) });
            }
        }
        Ok(())
    }

    /// The address from one pool, if the pool exists. In this order: the fixed address, the key's former address, the
    /// address that a list of members gives the key, a free address, and in a full pool the address that has been in
    /// quarantine for the longest time.
    fn choose(&self, space: Option<&Space>, fixed: Option<IpAddr>, key: &PublicKey) -> Result<Option<IpAddr>, Refusal> {
        let Some(space) = space else { return Ok(None) };
        let v4 = space.net().addr().is_ipv4();
        let former = self
            .state
            .released
            .get(key)
            .and_then(|released| released.address(v4).filter(|&address| self.index.holder(address) == Some(*key)));
        let free = || if v4 { space.lowest() } else { space.drawn(key) };
        let listed = || self.index.listed_for(key, v4);
        match fixed.or(former).or_else(listed).or_else(free).or_else(|| self.longest_in_quarantine(v4)) {
            Some(address) => Ok(Some(address)),
            None => Err(Refusal::Exhausted { pool: space.net(), next_free: self.next_free(v4) }),
        }
    }

    /// The address of one family that has been in quarantine for the longest time.
    fn longest_in_quarantine(&self, v4: bool) -> Option<IpAddr> {
        self.index.quarantines().find_map(|(_, key)| {
            let address = self.state.released.get(&key)?.address(v4)?;
            // A peer that came back has its former address by a lease.
            (self.index.holder(address) == Some(key) && self.by_address(address).is_none()).then_some(address)
        })
    }

    /// The earliest time at which an address of a family may become free, unless a peer is removed before: a peer
    /// without a handshake loses its lease.
    fn next_free(&self, v4: bool) -> Option<UnixSeconds> {
        let (until, _) = self.index.pendings().find(|(_, key)| {
            let lease = self.state.leases.get(key);
            lease.is_some_and(|lease| if v4 { lease.v4.is_some() } else { lease.v6.is_some() })
        })?;
        Some(self.clock.time_of(until))
    }

    /// Takes the addresses out of other keys' quarantine. An administrator may assign such an address, and a full pool
    /// gives it away. Its former holder does not get it back.
    fn taken_from_quarantine(&self, addresses: impl Iterator<Item = IpAddr>, key: &PublicKey) -> Vec<Change> {
        let mut taken = BTreeMap::new();
        for address in addresses {
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
}
