//! The key that a server is to have next, in the state folder.

use crate::{
    documents::{base64, server_document},
    replica::Documents,
};
use rustguard_crypto::x25519::StaticSecret;
use rustguard_device::key;
use rustguard_network::{Folder, FolderError};
use zeroize::Zeroizing;

const FILE: &str = "key-next";

/// Stores the next key.
pub(crate) fn store_next_key(folder: &Folder, next: &StaticSecret) -> Result<(), FolderError> {
    folder.replace(FILE, &base64(&Zeroizing::new(next.to_bytes())))
}

/// The next key of a server, if the log has it in place of the present one.
pub(crate) fn next_key(folder: &Folder, log: &Documents) -> Result<Option<StaticSecret>, FolderError> {
    let Some(stored) = folder.read_secret(FILE)? else { return Ok(None) };
    let read = std::str::from_utf8(&stored).ok().and_then(|stored| key::from_base64(stored.trim_end()).ok());
    let next = read.map(|next| StaticSecret::from_bytes(*next));
    Ok(next.filter(|next| log.contains_key(&server_document(&next.public_key()))))
}

/// Removes the next key: the log will not have it.
pub(crate) fn forget_next_key(folder: &Folder) -> Result<(), FolderError> {
    folder.remove(FILE)
}

/// Makes the next key the server's key.
pub(crate) fn take_next_key(folder: &Folder, next: &StaticSecret) -> Result<(), FolderError> {
    folder.replace_private_key(next)?;
    forget_next_key(folder)
}
