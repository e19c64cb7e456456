//! Everything the ledger keeps, and the changes it is made of.
use crate::lease::{InviteRecord, Lease, TokenId, UnixSeconds, key_bytes};
use rustguard_crypto::x25519::PublicKey;
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeMap,
    net::{Ipv4Addr, Ipv6Addr},
};

/// Everything the ledger keeps.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// The highest time the ledger has seen.
    pub time: UnixSeconds,
    /// The next serial of invites and removals.
    pub serial: u64,
    /// All leases, pending ones too.
    pub leases: BTreeMap<PublicKey, Lease>,
    /// All invites, also those that admit nobody any more, for a while.
    pub invites: BTreeMap<TokenId, InviteRecord>,
    /// Addresses in quarantine, by whose they were.
    pub released: BTreeMap<PublicKey, Released>,
    /// Peers that were removed, and that older invites must not bring back.
    pub removed: BTreeMap<PublicKey, Tombstone>,
}

/// The addresses of a lease that has ended: for a while they are given to nobody but the same key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Released {
    /// Whose they were.
    #[serde(with = "key_bytes")]
    pub public_key: PublicKey,
    /// The IPv4 address.
    pub v4: Option<Ipv4Addr>,
    /// The IPv6 address.
    pub v6: Option<Ipv6Addr>,
    /// When anybody may have them.
    pub until: UnixSeconds,
}

/// A peer that was removed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tombstone {
    /// Whose lease it was.
    #[serde(with = "key_bytes")]
    pub public_key: PublicKey,
    /// The removal's place in the order of invites and removals.
    pub serial: u64,
    /// When it was removed.
    pub removed: UnixSeconds,
}

/// One step from a state to the next. It holds the new value, not a difference: applying a sequence of changes again, to its
/// result or to any state in between, gives the same result. A store writes and reads every field, so a new field is a new format.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Change {
    /// The ledger's clock has reached this.
    Time(UnixSeconds),
    /// The next serial is this.
    Serial(u64),
    /// A lease is as given here.
    Lease(Lease),
    /// There is no such lease.
    LeaseGone(#[serde(with = "key_bytes")] PublicKey),
    /// An invite is as given here.
    Invite(InviteRecord),
    /// There is no such invite.
    InviteGone(TokenId),
    /// These addresses are in quarantine.
    Released(Released),
    /// No address is in quarantine for this key.
    ReleasedGone(#[serde(with = "key_bytes")] PublicKey),
    /// A peer was removed.
    Removed(Tombstone),
    /// The removal no longer matters.
    RemovedGone(#[serde(with = "key_bytes")] PublicKey),
    /// The peer completed a handshake, which renewed its lease.
    Renewed {
        /// Whose lease.
        #[serde(with = "key_bytes")]
        public_key: PublicKey,
        /// When the handshake was.
        last_handshake: UnixSeconds,
        /// When the lease ends now.
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

impl Change {
    /// The peer whose lease, quarantine or tombstone changes.
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

    /// The invite that changes.
    pub fn invite(&self) -> Option<TokenId> {
        match self {
            Self::Invite(invite) => Some(invite.id),
            Self::InviteGone(id) => Some(*id),
            _ => None,
        }
    }
}
