//! The state of the ledger, and the changes to it.
use crate::lease::{InviteRecord, Lease, TokenId, UnixSeconds, key_bytes};
use rustguard_crypto::x25519::PublicKey;
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

/// The state of the ledger.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// The highest time the ledger has seen.
    pub time: UnixSeconds,
    /// The next serial of invites and removals.
    pub serial: u64,
    /// All leases, including pending ones.
    pub leases: BTreeMap<PublicKey, Lease>,
    /// All invites. Those that admit nobody any more stay for a while.
    pub invites: BTreeMap<TokenId, InviteRecord>,
    /// Addresses in quarantine, by their former key.
    pub released: BTreeMap<PublicKey, Released>,
    /// Removed peers that older invites must not admit again.
    pub removed: BTreeMap<PublicKey, Tombstone>,
}

/// The addresses of an ended lease. For a while only the same key can get them, unless the pool has no other address.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Released {
    /// The former key.
    #[serde(with = "key_bytes")]
    pub public_key: PublicKey,
    /// The IPv4 address.
    pub v4: Option<Ipv4Addr>,
    /// The IPv6 address.
    pub v6: Option<Ipv6Addr>,
    /// When any key may get them.
    pub until: UnixSeconds,
}

impl Released {
    /// The address of one family.
    pub(crate) fn address(&self, v4: bool) -> Option<IpAddr> {
        if v4 { self.v4.map(IpAddr::V4) } else { self.v6.map(IpAddr::V6) }
    }
}

/// A peer that was removed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tombstone {
    /// The key of the removed peer.
    #[serde(with = "key_bytes")]
    pub public_key: PublicKey,
    /// The removal's position in the order of invites and removals.
    pub serial: u64,
    /// When it was removed.
    pub removed: UnixSeconds,
}

/// One change from a state to the next. It contains the new value, not a difference: a sequence of changes can be
/// applied again, to its result or to any state in between, with the same result. A store writes and reads every field,
/// so a new field makes a new format.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Change {
    /// The new time of the ledger's clock.
    Time(UnixSeconds),
    /// The next serial.
    Serial(u64),
    /// A new or changed lease.
    Lease(Lease),
    /// A lease was deleted.
    LeaseGone(#[serde(with = "key_bytes")] PublicKey),
    /// A new or changed invite.
    Invite(InviteRecord),
    /// The record of an invite was deleted.
    InviteGone(TokenId),
    /// These addresses are in quarantine.
    Released(Released),
    /// The quarantine of this key's addresses ended.
    ReleasedGone(#[serde(with = "key_bytes")] PublicKey),
    /// A peer was removed.
    Removed(Tombstone),
    /// The tombstone of this key was deleted.
    RemovedGone(#[serde(with = "key_bytes")] PublicKey),
    /// The peer completed a handshake, which renewed its lease.
    Renewed {
        /// The peer's public key.
        #[serde(with = "key_bytes")]
        public_key: PublicKey,
        /// When the handshake was.
        last_handshake: UnixSeconds,
        /// The new end of the lease.
        expires: Option<UnixSeconds>,
    },
}

impl State {
    /// Applies a change.
    pub fn apply(&mut self, change: Change) {
        match change {
            Change::Time(time) => self.time = self.time.max(time),
            Change::Serial(serial) => self.serial = self.serial.max(serial),
            Change::Lease(lease) => {
                self.leases.insert(lease.public_key, lease);
            }
            Change::LeaseGone(key) => {
                self.leases.remove(&key);
            }
            Change::Invite(invite) => {
                self.invites.insert(invite.id, invite);
            }
            Change::InviteGone(id) => {
                self.invites.remove(&id);
            }
            Change::Released(released) => {
                self.released.insert(released.public_key, released);
            }
            Change::ReleasedGone(key) => {
                self.released.remove(&key);
            }
            Change::Removed(tombstone) => {
                self.removed.insert(tombstone.public_key, tombstone);
            }
            Change::RemovedGone(key) => {
                self.removed.remove(&key);
            }
            Change::Renewed { public_key, last_handshake, expires } => {
                if let Some(lease) = self.leases.get_mut(&public_key) {
                    lease.last_handshake = Some(last_handshake);
                    lease.expires = expires;
                }
            }
        }
    }
}

/// What a change has replaced.
#[derive(Debug)]
pub(crate) enum Undo {
    Time(UnixSeconds),
    Serial(u64),
    Lease(PublicKey, Option<Box<Lease>>),
    Invite(TokenId, Option<Box<InviteRecord>>),
    Released(PublicKey, Option<Released>),
    Removed(PublicKey, Option<Tombstone>),
}

impl State {
    /// The changes that make `to` of this state. The time and the serial stay where they are if they are greater.
    pub fn changes_to(&self, to: &Self) -> Vec<Change> {
        fn differences<K: Ord + Copy, V: PartialEq + Clone>(
            from: &BTreeMap<K, V>,
            to: &BTreeMap<K, V>,
            gone: impl Fn(K) -> Change,
            set: impl Fn(V) -> Change,
            changes: &mut Vec<Change>,
        ) {
            changes.extend(from.keys().filter(|key| !to.contains_key(key)).map(|key| gone(*key)));
            changes.extend(
                to.iter().filter(|(key, value)| from.get(key) != Some(value)).map(|(_, value)| set(value.clone())),
            );
        }
        let mut changes = vec![Change::Time(to.time), Change::Serial(to.serial)];
        // Addresses are given back before others get them.
        differences(&self.leases, &to.leases, Change::LeaseGone, Change::Lease, &mut changes);
        differences(&self.released, &to.released, Change::ReleasedGone, Change::Released, &mut changes);
        differences(&self.invites, &to.invites, Change::InviteGone, Change::Invite, &mut changes);
        differences(&self.removed, &to.removed, Change::RemovedGone, Change::Removed, &mut changes);
        changes
    }

    /// What a change would replace, to be taken [`back`](Self::back) after the change, and before the changes that
    /// came earlier.
    pub(crate) fn before(&self, change: &Change) -> Undo {
        match change {
            Change::Time(_) => Undo::Time(self.time),
            Change::Serial(_) => Undo::Serial(self.serial),
            Change::Lease(Lease { public_key: key, .. })
            | Change::LeaseGone(key)
            | Change::Renewed { public_key: key, .. } => Undo::Lease(*key, self.leases.get(key).cloned().map(Box::new)),
            Change::Invite(InviteRecord { id, .. }) | Change::InviteGone(id) => {
                Undo::Invite(*id, self.invites.get(id).cloned().map(Box::new))
            }
            Change::Released(Released { public_key: key, .. }) | Change::ReleasedGone(key) => {
                Undo::Released(*key, self.released.get(key).cloned())
            }
            Change::Removed(Tombstone { public_key: key, .. }) | Change::RemovedGone(key) => {
                Undo::Removed(*key, self.removed.get(key).cloned())
            }
        }
    }

    /// Takes a change back.
    pub(crate) fn back(&mut self, undo: Undo) {
        fn put<K: Ord, V>(map: &mut BTreeMap<K, V>, key: K, value: Option<V>) {
            match value {
                Some(value) => map.insert(key, value),
                None => map.remove(&key),
            };
        }
        match undo {
            Undo::Time(time) => self.time = time,
            Undo::Serial(serial) => self.serial = serial,
            Undo::Lease(key, lease) => put(&mut self.leases, key, lease.map(|lease| *lease)),
            Undo::Invite(id, invite) => put(&mut self.invites, id, invite.map(|invite| *invite)),
            Undo::Released(key, released) => put(&mut self.released, key, released),
            Undo::Removed(key, tombstone) => put(&mut self.removed, key, tombstone),
        }
    }
}

impl Undo {
    /// The peer whose lease, quarantine or tombstone it concerns.
    pub(crate) fn peer(&self) -> Option<PublicKey> {
        match self {
            Self::Lease(key, _) | Self::Released(key, _) | Self::Removed(key, _) => Some(*key),
            Self::Time(_) | Self::Serial(_) | Self::Invite(..) => None,
        }
    }

    /// The invite that it concerns.
    pub(crate) fn invite(&self) -> Option<TokenId> {
        if let Self::Invite(id, _) = self { Some(*id) } else { None }
    }
}

impl Change {
    /// The peer whose lease, quarantine or tombstone the change concerns.
    pub fn peer(&self) -> Option<PublicKey> {
        match self {
            Self::Lease(lease) => Some(lease.public_key),
            Self::Released(released) => Some(released.public_key),
            Self::Removed(tombstone) => Some(tombstone.public_key),
            Self::LeaseGone(key) | Self::ReleasedGone(key) | Self::RemovedGone(key) => Some(*key),
            Self::Renewed { public_key, .. } => Some(*public_key),
            Self::Time(_) | Self::Serial(_) | Self::Invite(_) | Self::InviteGone(_) => None,
        }
    }

    /// The invite that the change concerns.
    pub fn invite(&self) -> Option<TokenId> {
        match self {
            Self::Invite(invite) => Some(invite.id),
            Self::InviteGone(id) => Some(*id),
            _ => None,
        }
    }
}
