//! A standby takes the place of the server: the state that it has stored becomes the state of this machine.

use super::{Backup, BackupError, KEY_BEFORE, PAIRS, ROSTER, SETTINGS};
use crate::{clock::now, endpoints, network::key_before::KeyBefore};
use rustguard_core::host_port::HostPort;
use rustguard_crypto::x25519::{PublicKey, StaticSecret};
use rustguard_device::{interface::STATE_DIR, key};
use rustguard_enroll::{audit::AuditEvent, lease::Lease, ledger::Policy, store::Released};
use rustguard_network::{
    Folder, kept_state,
    roster::{key::NetworkKey, pair::PairSecret, roster::Roster, shown_number},
};
use rustguard_quick::free_name;
use rustix::fs::{CWD, RenameFlags, renameat_with};
use std::{
    collections::HashMap,
    fs::{self, File},
    net::SocketAddr,
    path::{Path, PathBuf},
};
use zeroize::Zeroizing;

/// A standby's copy of the state of the server whose place it can take.
pub struct StandbyState {
    backup: Backup,
    roster: Zeroizing<Vec<u8>>,
    network: NetworkKey,
    made: u64,
    number: u64,
}

/// This machine as a member and standby.
#[derive(Clone)]
pub struct Standby {
    /// The key that it uses.
    pub key: StaticSecret,
    /// Its endpoint for others.
    pub endpoint: Option<HostPort>,
    /// The UDP port of its tunnel.
    pub port: Option<u16>,
    /// The endpoints of the others when its tunnel was up.
    pub endpoints: HashMap<PublicKey, SocketAddr>,
}

/// The result of a take-over.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct TakenOver {
    /// The former folder of this machine, as a member.
    pub before: PathBuf,
}

impl StandbyState {
    /// Reads the server's state that the standby `interface` has stored.
    ///
    /// # Errors
    /// See [`BackupError`].
    pub fn read(interface: &str, network: NetworkKey) -> Result<Self, BackupError> {
        let none = || BackupError::NoStandby(interface.to_owned());
        let folder = Folder::find(interface)?.ok_or_else(none)?;
        Self::read_in(&folder, network)?.ok_or_else(none)
    }

    pub(super) fn read_in(folder: &Folder, network: NetworkKey) -> Result<Option<Self>, BackupError> {
        let (Some(state), Some(roster)) = (kept_state(folder, &network)?, folder.read(ROSTER)?) else {
            return Ok(None);
        };
        let backup = Backup::from_bytes(state.text())?;
        let newest = Roster::from_bytes(&roster, &network).ok_or(BackupError::Damaged("its list of members"))?;
        // The state is signed with this network's key, and has to contain that key for the next server.
        if backup.network()? != Some(network) {
            return Err(BackupError::Damaged("it has the key of another network"));
        }
        let number = newest.version().number;
        Ok(Some(Self { backup, roster, network, made: state.made() / 1_000, number }))
    }

    /// When the state was made, in seconds since 1970.
    pub fn made(&self) -> u64 {
        self.made
    }

    /// The number of machines.
    pub fn machines(&self) -> usize {
        self.backup.machines()
    }

    /// The newest list of members that is known here, for people.
    pub fn list(&self) -> String {
        shown_number(self.number)
    }

    /// The key of the server.
    ///
    /// # Errors
    /// [`BackupError::Damaged`], which is not possible for a state that was read.
    pub fn public_key(&self) -> Result<PublicKey, BackupError> {
        self.backup.public_key()
    }

    /// The state as a backup, for its [policy](Backup::put_policy).
    pub fn backup(&self) -> &Backup {
        &self.backup
    }

    /// Makes this machine the server. Its tunnel must not be up. Its folder as a member is moved aside.
    ///
    /// # Errors
    /// See [`BackupError`]. After an error nothing has changed.
    pub fn take_over(&self, interface: &str, standby: &Standby) -> Result<TakenOver, BackupError> {
        self.take_over_in(Path::new(STATE_DIR), interface, standby)
    }

    pub(super) fn take_over_in(
        &self,
        folders: &Path,
        interface: &str,
        standby: &Standby,
    ) -> Result<TakenOver, BackupError> {
        let state = self.of_this_machine(interface, standby)?;
        let path = folders.join(interface);
        let io = |doing: &'static str, path: &Path| {
            let path = path.to_owned();
            move |cause| BackupError::Io { doing, path, cause }
        };
        let (new, before) = (folders.join(format!(".{interface}.take-over")), free_name(&path, "before-take-over"));
        match fs::remove_dir_all(&new) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(io("remove", &new)(error)),
            _ => {}
        }
        let put = || {
            state.fill(&new, interface, None, false, AuditEvent::TakenOver)?;
            let folder = Folder::open_at(&new)?;
            let endpoints = standby.endpoints.iter().map(|(peer, at)| (key::to_base64(&peer.0).to_string(), *at));
            endpoints::store(&folder, &endpoints.collect())?;
            // This is one step, so that one of the two folders is always in place.
            renameat_with(CWD, &new, CWD, &path, RenameFlags::EXCHANGE)
                .map_err(|cause| io("replace", &path)(cause.into()))
        };
        if let Err(error) = put() {
            let _ = fs::remove_dir_all(&new);
            return Err(error);
        }
        fs::rename(&new, &before).map_err(io("move aside", &new))?;
        File::open(folders).and_then(|folder| folder.sync_all()).map_err(io("sync", folders))?;
        Ok(TakenOver { before })
    }

    /// The state of the server with this machine's own values: its endpoint, and the key by which members know it.
    fn of_this_machine(&self, interface: &str, standby: &Standby) -> Result<Backup, BackupError> {
        let mut about = self.backup.about.clone();
        about.interface = interface.to_owned();
        about.created = self.made;
        let (mut files, mut state) = (self.backup.files.clone(), self.backup.state.clone());
        files.insert(ROSTER, self.roster.clone());
        let pairs = self.backup.secret(PAIRS).flatten().ok_or(BackupError::Damaged("the secret of the pairs"))?;
        let own = KeyBefore::of_standby(standby.key.clone(), PairSecret::from_bytes(&pairs), now());
        files.insert(KEY_BEFORE, Zeroizing::new(own.to_text().as_bytes().to_vec()));
        let mut settings = self.backup.settings()?;
        settings.endpoint = standby.endpoint.as_ref().map(ToString::to_string);
        settings.port = standby.port.unwrap_or(settings.port);
        files.insert(SETTINGS, Zeroizing::new(settings.to_json()));
        // This machine is the server now, and has the server's address. Others still know its former address.
        let time = state.time.max(now().unix.as_secs());
        let key = standby.key.public_key();
        let is_own = |lease: &Lease| lease.public_key == key || lease.old_key.is_some_and(|old| old.public_key == key);
        let own = state.leases.values().find(|lease| is_own(lease)).map(|lease| lease.public_key);
        if let Some(lease) = own.and_then(|own| state.leases.remove(&own)) {
            let until = time.saturating_add(Policy::default().quarantine.as_secs());
            let released = Released { public_key: lease.public_key, v4: lease.v4, v6: lease.v6, until };
            state.released.insert(lease.public_key, released);
        }
        state.time = time;
        let backup = Backup { about, files, state };
        backup.check()?;
        debug_assert_eq!(backup.network().ok().flatten(), Some(self.network));
        Ok(backup)
    }
}
