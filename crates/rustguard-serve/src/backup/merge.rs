//! Merges a backup with the state that it replaces. Values that were used up since the backup stay used up: numbers of
//! rosters, invites, addresses, and keys that were changed.

use super::{Backup, BackupError, ENDPOINTS, KEY, KEY_BEFORE, PAIRS, ROSTER, ROUTING};
use crate::{
    imported,
    words::{called, first},
};
use rustguard_core::time::Now;
use rustguard_crypto::x25519::PublicKey;
use rustguard_enroll::{
    lease::{InviteRecord, Lease},
    ledger::Policy,
    store::{Released, State},
};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, fmt, path::Path};

/// The machines that are lost or readmitted when an older backup replaces the present state.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Losses {
    /// Machines that joined since: they have to join again.
    pub gone: Vec<String>,
    /// Machines that were removed since, or have left: they are in the network again.
    pub back: Vec<String>,
}

impl Losses {
    /// Whether no machine is affected.
    pub fn is_empty(&self) -> bool {
        self.gone.is_empty() && self.back.is_empty()
    }
}

impl fmt::Display for Losses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the backup is older than the present state, and nothing was changed: ")?;
        if let Some(gone) = first(self.gone.clone()) {
            write!(f, "it does not have {gone}, which would have to join again; ")?;
        }
        if let Some(back) = first(self.back.clone()) {
            write!(f, "it still has {back}, removed since, which would be in the network again; ")?;
        }
        f.write_str("to restore it all the same: --yes")
    }
}

impl Backup {
    /// Checks that both are of the same server.
    pub(crate) fn check_same(&self, present: &Self, path: &Path) -> Result<(), BackupError> {
        let same = match (self.network()?, present.network()?) {
            (Some(one), Some(other)) => one == other,
            // A star has no key of a network, and its server never changes its own.
            _ => self.public_key()? == present.public_key()?,
        };
        if same {
            return Ok(());
        }
        Err(BackupError::Other { path: path.to_owned(), present: present.public_key()?, backup: self.public_key()? })
    }

    /// The machines that are affected if this replaces the present state.
    pub(crate) fn losses(&self, present: &State) -> Losses {
        let names = |leases: &mut dyn Iterator<Item = &Lease>| {
            let mut names: Vec<_> = leases.map(called).collect();
            names.sort();
            names
        };
        let new_keys = new_keys(&self.state, present);
        let kept: Vec<_> = self.state.leases.keys().map(|key| new_keys.get(key).unwrap_or(key)).collect();
        Losses {
            gone: names(&mut present.leases.values().filter(|lease| !kept.contains(&&lease.public_key))),
            back: names(&mut self.state.leases.values().filter(|lease| {
                !present.leases.contains_key(&lease.public_key) && !new_keys.contains_key(&lease.public_key)
            })),
        }
    }

    /// The state with which the server continues.
    pub(super) fn merged(&self, present: Option<&Self>, now: Now) -> Result<Self, BackupError> {
        let mut files = self.files.clone();
        let Some(present) = present else {
            let state = alone(&self.state, now);
            return Ok(Self { about: self.about.clone(), files, state });
        };
        // Only the present state has these: a key that was changed since, a secret that was made because a server has
        // left, the endpoints of machines.
        for name in [KEY, KEY_BEFORE, PAIRS, ENDPOINTS, ROUTING] {
            match present.files.get(name) {
                Some(text) => drop(files.insert(name, text.clone())),
                None if name == KEY_BEFORE => drop(files.remove(name)),
                None => {}
            }
        }
        if let Some(text) = present.files.get(imported::FILE).filter(|_| !files.contains_key(imported::FILE)) {
            files.insert(imported::FILE, text.clone());
        }
        // No number is issued twice.
        let version = |backup: &Self| backup.roster().map(|roster| roster.version());
        if let Some(text) = present.files.get(ROSTER).filter(|_| version(present) > version(self)) {
            files.insert(ROSTER, text.clone());
        }
        Ok(Self { about: self.about.clone(), files, state: together(&self.state, &present.state, now) })
    }
}

/// The machines of a backup that have another key now, with that key.
fn new_keys(backup: &State, present: &State) -> BTreeMap<PublicKey, PublicKey> {
    let lost = backup.leases.values().filter(|lease| !present.leases.contains_key(&lease.public_key));
    let fresh: Vec<_> =
        present.leases.values().filter(|lease| !backup.leases.contains_key(&lease.public_key)).collect();
    // A lease keeps everything else when its machine changes its key.
    let is_same = |one: &Lease, other: &Lease| {
        (one.created, one.v4, one.v6, one.origin) == (other.created, other.v4, other.v6, other.origin)
            && (one.v4.is_some() || one.v6.is_some())
    };
    lost.filter_map(|lease| Some((lease.public_key, fresh.iter().find(|other| is_same(lease, other))?.public_key)))
        .collect()
}

/// The members of the backup, with the records of values that must not be used again.
fn together(backup: &State, present: &State, now: Now) -> State {
    let mut state = State {
        time: backup.time.max(present.time).max(now.unix.as_secs()),
        serial: backup.serial.max(present.serial),
        ..State::default()
    };
    let new_keys = new_keys(backup, present);
    for old in backup.leases.values() {
        let key = new_keys.get(&old.public_key).unwrap_or(&old.public_key);
        let lease = match present.leases.get(key) {
            // The backup does not revert the machine's own statements since then, nor its keys.
            Some(now) => Lease {
                name: old.name.clone(),
                tags: old.tags.clone(),
                admitted: old.admitted.clone(),
                server: old.server,
                ..now.clone()
            },
            None => old.clone(),
        };
        state.leases.insert(lease.public_key, lease);
    }
    // A removed machine gets its address back. A machine that joined since and has that address now is excluded.
    state.removed = present.removed.clone();
    for (key, tombstone) in &backup.removed {
        state.removed.entry(*key).or_insert_with(|| tombstone.clone());
    }
    state.removed.retain(|key, _| !state.leases.contains_key(key));
    let until = state.time.saturating_add(Policy::default().quarantine.as_secs());
    state.released = present.released.clone();
    for (key, released) in &backup.released {
        state.released.entry(*key).or_insert_with(|| released.clone());
    }
    for gone in present.leases.values().filter(|lease| !state.leases.contains_key(&lease.public_key)) {
        // Others still know the address as that machine's.
        state
            .released
            .insert(gone.public_key, Released { public_key: gone.public_key, v4: gone.v4, v6: gone.v6, until });
    }
    state.released.retain(|key, _| !state.leases.contains_key(key));
    state.invites = present.invites.clone();
    for (id, invite) in &backup.invites {
        // An invite that is no longer known was used up, revoked, or has expired.
        state.invites.entry(*id).or_insert_with(|| revoked(invite, state.time));
    }
    state
}

/// The members of a backup on another machine. It is unknown there which invites were used since.
fn alone(backup: &State, now: Now) -> State {
    let time = backup.time.max(now.unix.as_secs());
    let invites = backup.invites.iter().map(|(id, invite)| (*id, revoked(invite, time))).collect();
    State { time, invites, ..backup.clone() }
}

fn revoked(invite: &InviteRecord, time: u64) -> InviteRecord {
    let ended = invite.uses_left == 0 || invite.revoked.is_some();
    InviteRecord { revoked: if ended { invite.revoked } else { Some(time) }, ..invite.clone() }
}
