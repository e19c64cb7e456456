//! Everything that makes a machine the server of its network, in one file: [`Backup`].
//!
//! ```text
//! "RGbackup"                            8 bytes
//! version, 1; with a policy 2           4, little-endian as all numbers
//! for each part: length of the name     1
//!                name                   of the list below
//!                length                 8
//!                contents
//! BLAKE2s-256 of all of the above      32
//! ```
//!
//! | Part | Contents |
//! |---|---|
//! | `about` | JSON: the interface, and when the backup was made |
//! | `key`, `settings.json`, `network-key`, `pair-secret`, `roster`, `server-key-before`, `endpoints.json`, `imported.json`, `routing` | the files of the state folder with these names, if they exist |
//! | `policy` | the file of the [policy](crate::policy_path), if the network has one |
//! | `leases` | the members and invites, as a snapshot of the store |
//!
//! A file is checked as a whole before anything is replaced: its hash, each part, and whether a server would start with
//! all of them. The hash detects damage, not forgery: a writer of backups has the keys of the network anyway.

mod error;
mod merge;
mod policy;
mod restore;
mod take_over;

use crate::{
    clock::now,
    documents, imported,
    network::files::{KEY as NETWORK_KEY, PAIRS, ROSTER},
    policy::{policy_path, policy_text},
    settings::Settings,
    store::{FileStore, LEASES, from_snapshot, to_snapshot},
};
pub use error::BackupError;
pub use merge::Losses;
pub use restore::{Restored, check_backup_place, write_backup};
use rustguard_crypto::{
    hash::hash,
    x25519::{PublicKey, StaticSecret},
};
use rustguard_device::key;
use rustguard_enroll::{
    lease::Origin,
    ledger::{Ledger, Policy},
    pool::Pools,
    store::{LeaseStore as _, MemoryStore, State},
};
use rustguard_network::{
    Folder,
    roster::{
        key::{NetworkKey, NetworkSecret},
        roster::Roster,
    },
};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, path::Path};
pub use take_over::{Standby, StandbyState, TakenOver};
use zeroize::Zeroizing;

const MAGIC: &[u8; 8] = b"RGbackup";
/// Programs that know only version 1 do not know policies. The version number makes them refuse a backup with a policy.
const VERSION: u32 = 2;
const WITHOUT_POLICY: u32 = 1;
const HASH: usize = 32;
/// The largest backup, in bytes. The backup of a network with 65,536 machines has some 20 MB.
pub const MAX_BACKUP: u64 = 256 << 20;

const ABOUT: &str = "about";
const KEY: &str = "key";
const SETTINGS: &str = "settings.json";
const KEY_BEFORE: &str = "server-key-before";
const ENDPOINTS: &str = "endpoints.json";
const ROUTING: &str = "routing";
const POLICY: &str = "policy";
/// The file of the state folder that passes a backup to a running server.
pub(crate) const RESTORE: &str = "restore";
/// The files of the state folder that are in a backup.
const FILES: [&str; 9] = [KEY, SETTINGS, NETWORK_KEY, PAIRS, ROSTER, KEY_BEFORE, ENDPOINTS, imported::FILE, ROUTING];

/// The files with keys.
const SECRETS: [&str; 4] = [KEY, NETWORK_KEY, PAIRS, KEY_BEFORE];

/// Everything that a new machine needs to become a server: keys, settings, members. It needs the same protection as the
/// state folder.
pub struct Backup {
    about: About,
    files: BTreeMap<&'static str, Zeroizing<Vec<u8>>>,
    state: State,
}

/// The origin of a backup.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct About {
    interface: String,
    /// Seconds since 1970.
    created: u64,
}

impl Backup {
    /// The state of a server that does not run. Meanwhile no server can start.
    ///
    /// # Errors
    /// See [`BackupError`].
    pub fn of_folder(interface: &str, folder: &Folder) -> Result<Self, BackupError> {
        Self::of_folder_and(interface, folder, Some(&policy_path(interface)))
    }

    /// The same with the policy in this file, if there is one.
    fn of_folder_and(interface: &str, folder: &Folder, policy: Option<&Path>) -> Result<Self, BackupError> {
        if Settings::load(folder)?.is_none() {
            return Err(BackupError::NoServer(interface.to_owned()));
        }
        let mut store = FileStore::open(&folder.path(LEASES))?;
        let state = store.load().map_err(BackupError::Store)?.unwrap_or_default();
        Self::of_state(interface, folder, policy, state)
    }

    /// The state of a running server, whose leases are passed in.
    pub(crate) fn of_state(
        interface: &str,
        folder: &Folder,
        policy: Option<&Path>,
        state: State,
    ) -> Result<Self, BackupError> {
        let mut files = BTreeMap::new();
        for name in FILES {
            // Settings are edited by people, and have no secrets.
            let text = if SECRETS.contains(&name) { folder.read_secret(name)? } else { folder.read(name)? };
            if let Some(text) = text {
                files.insert(name, text);
            }
        }
        // A star has no policy.
        if let Some(path) = policy.filter(|_| files.contains_key(NETWORK_KEY))
            && let Some(text) = policy_text(path)?
        {
            files.insert(POLICY, text);
        }
        let about = About { interface: interface.to_owned(), created: now().unix.as_secs() };
        let mut state = state;
        // One of several servers on a store. With its backup, one machine serves by itself, with the key that all of
        // them answer, and this server's address.
        if let Some(gateway) = folder.read_secret(documents::GATEWAY_KEY)? {
            files.insert(KEY, gateway);
            state.leases.retain(|_, lease| !(lease.is_server() && lease.origin == Origin::Admin));
        }
        let backup = Self { about, files, state };
        // A backup that cannot be restored is useless.
        backup.check()?;
        Ok(backup)
    }

    /// The same for a standby. If nothing has changed, the bytes are the same.
    pub(crate) fn for_standby(
        interface: &str,
        folder: &Folder,
        policy: Option<&Path>,
        state: State,
    ) -> Result<Self, BackupError> {
        let mut backup = Self::of_state(interface, folder, policy, state)?;
        // A standby has the newest roster and the endpoints of the others itself.
        backup.files.retain(|name, _| ![ROSTER, ENDPOINTS].contains(name));
        backup.about.created = 0;
        Ok(backup)
    }

    /// The contents of a backup file.
    ///
    /// # Errors
    /// [`BackupError::TooLarge`].
    pub fn to_bytes(&self) -> Result<Zeroizing<Vec<u8>>, BackupError> {
        let about = Zeroizing::new(serde_json::to_vec(&self.about).expect("plain data"));
        let leases = to_snapshot(&self.state).map_err(BackupError::TooLarge)?;
        let parts = [(ABOUT, &about)]
            .into_iter()
            .chain(self.files.iter().map(|(name, text)| (*name, text)))
            .chain([(LEASES, &leases)]);
        // The capacity is exact, because a vector that grows leaves copies of keys behind.
        let len: usize = parts.clone().map(|(name, text)| 1 + name.len() + 8 + text.len()).sum();
        let mut bytes = Zeroizing::new(Vec::with_capacity(MAGIC.len() + 4 + len + HASH));
        bytes.extend_from_slice(MAGIC);
        let version = if self.files.contains_key(POLICY) { VERSION } else { WITHOUT_POLICY };
        bytes.extend_from_slice(&version.to_le_bytes());
        for (name, text) in parts {
            bytes.push(u8::try_from(name.len()).expect("names are short"));
            bytes.extend_from_slice(name.as_bytes());
            bytes.extend_from_slice(&(text.len() as u64).to_le_bytes());
            bytes.extend_from_slice(text);
        }
        let digest = hash(&[&bytes]);
        bytes.extend_from_slice(&digest);
        if bytes.len() as u64 > MAX_BACKUP { Err(BackupError::TooLarge(bytes.len())) } else { Ok(bytes) }
    }

    /// Reads and checks a backup file.
    ///
    /// # Errors
    /// See [`BackupError`].
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, BackupError> {
        let rest = bytes.strip_prefix(MAGIC).ok_or(BackupError::Foreign)?;
        let (version, _) = rest.split_first_chunk().ok_or(BackupError::Damaged("it ends too early"))?;
        match u32::from_le_bytes(*version) {
            WITHOUT_POLICY..=VERSION => {}
            found => return Err(BackupError::Version { found, known: VERSION }),
        }
        let (body, digest) = bytes.split_last_chunk::<HASH>().ok_or(BackupError::Damaged("it ends too early"))?;
        if hash(&[body]) != *digest {
            return Err(BackupError::Damaged("its hash is another one, so a part was changed or is missing"));
        }
        let mut rest = body.get(MAGIC.len() + 4..).ok_or(BackupError::Damaged("it ends too early"))?;
        let (mut about, mut leases, mut files) = (None, None, BTreeMap::new());
        while !rest.is_empty() {
            let (name, text) = part(&mut rest).ok_or(BackupError::Damaged("a part ends too early"))?;
            let is_new = match FILES.iter().chain([&POLICY]).find(|file| file.as_bytes() == name) {
                Some(file) => files.insert(*file, Zeroizing::new(text.to_vec())).is_none(),
                None if name == ABOUT.as_bytes() => about.replace(text).is_none(),
                None if name == LEASES.as_bytes() => leases.replace(text).is_none(),
                None => return Err(BackupError::Damaged("it has a part that this program does not know")),
            };
            if !is_new {
                return Err(BackupError::Damaged("it has a part twice"));
            }
        }
        let about = about
            .and_then(|text| serde_json::from_slice(text).ok())
            .ok_or(BackupError::Damaged("it does not say of what it is"))?;
        let state = leases.ok_or(BackupError::Damaged("it has no members"))?;
        let state = from_snapshot(state).ok_or(BackupError::Damaged("its members cannot be read"))?;
        let backup = Self { about, files, state };
        backup.check()?;
        Ok(backup)
    }

    /// The interface of the server.
    pub fn interface(&self) -> &str {
        &self.about.interface
    }

    /// When it was made, in seconds since 1970.
    pub fn created(&self) -> u64 {
        self.about.created
    }

    /// The number of machines.
    pub fn machines(&self) -> usize {
        self.state.leases.len()
    }

    /// The server's public key.
    ///
    /// # Errors
    /// [`BackupError::Damaged`], which is not possible for a backup that was read.
    pub fn public_key(&self) -> Result<PublicKey, BackupError> {
        Ok(self.identity()?.public_key())
    }

    fn identity(&self) -> Result<StaticSecret, BackupError> {
        let damaged = BackupError::Damaged("the key of the server cannot be read");
        self.secret(KEY).flatten().map(|key| StaticSecret::from_bytes(*key)).ok_or(damaged)
    }

    fn settings(&self) -> Result<Settings, BackupError> {
        let damaged = BackupError::Damaged("its settings cannot be read");
        self.files.get(SETTINGS).and_then(|text| Settings::from_json(text).ok()).ok_or(damaged)
    }

    /// The network's key; `None` if there has been none.
    fn network(&self) -> Result<Option<NetworkKey>, BackupError> {
        let damaged = BackupError::Damaged("the key of the network cannot be read");
        self.secret(NETWORK_KEY)
            .map(|key| Ok(NetworkSecret::from_bytes(&*key.ok_or(damaged)?).public_key()))
            .transpose()
    }

    fn roster(&self) -> Option<Roster> {
        Roster::from_bytes(self.files.get(ROSTER)?, &self.network().ok()??)
    }

    /// The key in a file; `None` if there is none, and `Some(None)` if it cannot be read.
    fn secret(&self, name: &str) -> Option<Option<Zeroizing<[u8; 32]>>> {
        let text = self.files.get(name)?;
        Some(std::str::from_utf8(text).ok().and_then(|text| key::from_base64(text.trim_end()).ok()))
    }

    /// Whether a server starts with it.
    fn check(&self) -> Result<(), BackupError> {
        rustguard_device::interface::check_name(&self.about.interface)
            .map_err(|_| BackupError::Damaged("its interface has no name"))?;
        self.identity()?;
        let settings = self.settings()?;
        settings.check()?;
        if self.network()?.is_some() != (self.secret(PAIRS).is_some()) || self.secret(PAIRS) == Some(None) {
            return Err(BackupError::Damaged("the secret of the pairs cannot be read"));
        }
        if self.files.contains_key(ROSTER) && self.network()?.is_none() {
            return Err(BackupError::Damaged("it has a list of members, and not the key that has signed it"));
        }
        self.check_policy()?;
        let mut store = MemoryStore::default();
        let changes = crate::store::changes(&self.state);
        store.commit(&changes, &State::default()).map_err(BackupError::Store)?;
        let pools = Pools::new(&settings.pools).map_err(crate::SettingsError::from)?;
        Ledger::open(store, pools, Policy::default(), now())?;
        Ok(())
    }
}

/// The name and the contents of the next part.
fn part<'a>(rest: &mut &'a [u8]) -> Option<(&'a [u8], &'a [u8])> {
    let (&len, after) = rest.split_first()?;
    let (name, after) = after.split_at_checked(len.into())?;
    let (len, after) = after.split_first_chunk()?;
    let (text, after) = after.split_at_checked(usize::try_from(u64::from_le_bytes(*len)).ok()?)?;
    *rest = after;
    Some((name, text))
}

/// The fuzz target of the reader: any bytes are a backup or an error, even if their hash is right.
#[doc(hidden)]
pub fn fuzz(bytes: &[u8]) {
    let sealed = [bytes, &hash(&[bytes])].concat();
    for bytes in [bytes, &sealed] {
        if let Ok(backup) = Backup::from_bytes(bytes) {
            let written = backup.to_bytes().expect("it is not larger than before by much");
            let again = Backup::from_bytes(&written).unwrap_or_else(|error| panic!("refuses its own writing: {error}"));
            assert_eq!(again.state, backup.state, "other members after writing and reading");
            let merged = backup.merged(Some(&again), now());
            assert!(merged.is_ok_and(|merged| merged.check().is_ok()), "it cannot be put in its own place");
        }
    }
}

#[cfg(test)]
mod tests;
