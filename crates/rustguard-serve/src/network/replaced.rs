//! A server whose place another machine has taken signs nothing any more.

use rustguard_network::{Folder, FolderError, roster::shown_number};

/// The file that records this. It contains the number of the list from which this machine learned of it.
const FILE: &str = "replaced";

/// Another machine has taken the place of this server.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "another machine has taken the place of this server, as the list {list} of the members says: this one signs nothing and does not serve. \
     To be a standby of that one: move {folder} aside, and join with an invite of it (rustguard invite new --standby). To be the server again: \
     stop that one, move {folder} aside, and rustguard serve restore FILE, with a backup of that one. If that one is gone too, a backup of this one \
     does (rustguard serve backup FILE), which then adopts the list: rustguard reload --adopt"
)]
pub struct Replaced {
    /// The number of the list.
    pub(crate) list: String,
    /// The state folder of this server.
    pub(crate) folder: String,
}

impl Replaced {
    pub(crate) fn by(folder: &Folder, number: u64) -> Self {
        Self { list: shown_number(number), folder: folder.as_path().display().to_string() }
    }

    /// Reads the record of an earlier run.
    ///
    /// # Errors
    /// See [`FolderError`].
    pub(crate) fn load(folder: &Folder) -> Result<Option<Self>, FolderError> {
        let Some(text) = folder.read(FILE)? else { return Ok(None) };
        let list = std::str::from_utf8(&text).ok().and_then(|text| text.trim_end().parse().ok());
        Ok(Some(Self::by(folder, list.unwrap_or_default())))
    }

    /// Records it for the next start.
    ///
    /// # Errors
    /// See [`FolderError`].
    pub(crate) fn store(folder: &Folder, number: u64) -> Result<(), FolderError> {
        folder.replace(FILE, format!("{number}\n").as_bytes())
    }
}
