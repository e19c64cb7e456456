//! The record of an import in the state folder: its digest, and values that leases do not have.

use rustguard_network::{Folder, FolderError};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The file of the state folder.
pub(crate) const FILE: &str = "imported.json";
const VERSION: u32 = 1;

/// How the server reaches a peer to which it connects itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Calls {
    /// `HOST:PORT`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) endpoint: Option<String>,
    /// In seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) keepalive: Option<u16>,
}

/// The contents of [`FILE`].
#[derive(Serialize, Deserialize)]
pub(crate) struct Record {
    version: u32,
    /// The digest of the import, from `Plan::digest`.
    pub(crate) import: String,
    /// By public key in base64.
    #[serde(default)]
    pub(crate) calls: BTreeMap<String, Calls>,
}

impl Record {
    pub(crate) fn new(import: String, calls: BTreeMap<String, Calls>) -> Self {
        Self { version: VERSION, import, calls }
    }

    /// # Errors
    /// See [`FolderError`].
    pub(crate) fn load(folder: &Folder) -> Result<Option<Self>, FolderError> {
        let Some(text) = folder.read(FILE)? else { return Ok(None) };
        let damaged = |why: String| FolderError::Damaged { path: folder.path(FILE), why };
        let record: Self = serde_json::from_slice(&text).map_err(|why| damaged(why.to_string()))?;
        match record.version {
            VERSION => Ok(Some(record)),
            other => Err(damaged(format!("version {other}; this program knows version {VERSION}"))),
        }
    }
}
