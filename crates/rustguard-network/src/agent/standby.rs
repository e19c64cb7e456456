//! The state of the network's server that a standby keeps on its disk.

use super::{Agent, Running};
use crate::folder::{Folder, FolderError};
use rustguard_quick::conf::Config;
use rustguard_roster::{key::NetworkKey, server_state::ServerState};

/// The file in the state folder. Like a backup of the server, it contains all keys of the network.
const FILE: &str = "server-state";

/// Whether the owner wants this machine to be a standby.
pub(super) fn is_wanted(base: &Config) -> bool {
    base.interface.standby == Some(true) && crate::merge::forwards(base)
}

/// The state that a standby keeps in its folder. `None` if there is none, or if the network has not signed it.
///
/// # Errors
/// See [`FolderError`].
pub fn kept_state(folder: &Folder, network: &NetworkKey) -> Result<Option<ServerState>, FolderError> {
    let Some(bytes) = folder.read_secret(FILE)? else { return Ok(None) };
    let state = ServerState::from_bytes(&bytes, network);
    if state.is_none() {
        let path = folder.path(FILE);
        tracing::warn!("{} is damaged, or of another network: fetching it anew", path.display());
    }
    Ok(state)
}

/// The state on a machine whose file does not make it a standby is kept: a mistake in that file must not delete what
/// may be the last copy.
pub(super) fn warn_of_kept_state(folder: &Folder) {
    let path = folder.path(FILE);
    if path.exists() {
        tracing::warn!(
            "{} has all keys of the network, and the file of this tunnel does not make it a standby (`Standby = on`, `Forward = on`): delete it if it is to be none",
            path.display()
        );
    }
}

impl Agent {
    /// Stores a newer state. The server is informed once it is on the disk. Otherwise the server announces it again.
    pub(super) fn keep_state(&mut self, state: &ServerState) {
        match self.state.folder().replace(FILE, &state.to_bytes()) {
            Ok(()) => {
                let is_first = self.kept.replace(state.made()).is_none();
                if is_first {
                    tracing::info!(
                        "{}: this standby has the state of the network's server from now on",
                        self.interface
                    );
                }
                if let Running::On(driver, _) = &mut self.running {
                    driver.state_stored();
                }
                self.write_report();
            }
            Err(error) => tracing::error!("{}: this standby lacks the server's newest state: {error}", self.interface),
        }
    }

    /// This machine is no longer a standby, and must not keep the state.
    pub(super) fn forget_kept_state(&mut self) {
        self.kept = None;
        let folder = self.state.folder();
        if folder.path(FILE).exists()
            && let Err(error) = folder.remove(FILE)
        {
            tracing::error!("{}: the state of the network's server is still here: {error}", self.interface);
        }
    }
}
