//! The endpoints of the peers that were connected, so that the next server can start handshakes at once.

use rustguard_network::{Folder, FolderError};
use std::{collections::HashMap, net::SocketAddr};

const FILE: &str = "endpoints.json";

/// The stored endpoints, by public key. A file that cannot be read is ignored, because the peers also start handshakes themselves.
pub(crate) fn load(folder: &Folder) -> HashMap<String, SocketAddr> {
    let text = folder.read(FILE).ok().flatten();
    text.and_then(|text| serde_json::from_slice(&text).ok()).unwrap_or_default()
}

/// Stores the peers' endpoints, by public key.
pub(crate) fn store(folder: &Folder, endpoints: &HashMap<String, SocketAddr>) -> Result<(), FolderError> {
    folder.replace(FILE, &serde_json::to_vec(endpoints).expect("plain data"))
}
