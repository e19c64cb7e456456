//! The store that this server shares with others.

use crate::arguments::serve::Serve;
use anyhow::Result;
use rustguard_serve::{Folder, SharedStore, store_of};
use std::path::PathBuf;
use zeroize::Zeroizing;

/// The value of `--store-key` for standard input.
const INPUT: &str = "-";

/// The address of the store, from the command line or from an earlier start.
fn address(arguments: &Serve) -> Result<Option<String>> {
    let given = arguments.store.address.clone();
    let kept =
        || Ok(Folder::find(&arguments.interface.interface)?.map(|folder| store_of(&folder)).transpose()?.flatten());
    given.map_or_else(kept, |given| Ok(Some(given)))
}

/// Whether the store key comes by standard input.
#[cfg(feature = "stores")]
fn key_is_input(arguments: &Serve) -> bool {
    arguments.store.key.as_deref().is_some_and(|key| key.as_os_str() == INPUT)
}

/// The store key, if it comes by standard input.
#[cfg(feature = "stores")]
pub(super) fn key_from_input(arguments: &Serve) -> Result<Option<Zeroizing<String>>> {
    let key = arguments.store.key.as_deref().filter(|_| key_is_input(arguments));
    Ok(key.map(rustguard_serve::read_store_key).transpose()?.map(|key| key.to_base64()))
}

#[cfg(not(feature = "stores"))]
pub(super) fn key_from_input(_: &Serve) -> Result<Option<Zeroizing<String>>> {
    Ok(None)
}

/// The command that makes another machine a server too. The store key goes by ssh, and no command line has it.
pub(super) fn line_for_another_server(interface: &str) -> Result<Option<String>> {
    let Some(folder) = Folder::find(interface)? else { return Ok(None) };
    let Some(address) = store_of(&folder)? else { return Ok(None) };
    let key = folder.path("store-key");
    Ok(Some(format!(
        "ssh HOST \"rustguard serve -d --store '{address}' --store-key {INPUT} --endpoint HOST\" < {}",
        key.display()
    )))
}

/// The files that a connection to the store needs. A wrong address is an error.
#[cfg(feature = "stores")]
pub(super) fn files(arguments: &Serve) -> Result<Vec<PathBuf>> {
    let Some(address) = address(arguments)? else { return Ok(Vec::new()) };
    let address = rustguard_store::address::StoreAddress::parse(&address)?;
    let identity = address.identity.into_iter().flat_map(|(certificate, key)| [certificate, key]);
    let files = identity
        .chain(address.ca)
        .chain(address.password_file)
        .chain(arguments.store.key.clone().filter(|_| !key_is_input(arguments)));
    Ok(files.map(|file| std::path::absolute(&file).unwrap_or(file)).collect())
}

/// Reads the store; `None` if this server has none.
#[cfg(feature = "stores")]
pub(super) async fn read(arguments: &Serve, is_first: bool) -> Result<Option<SharedStore>> {
    use rustguard_serve::read_store_key;
    use rustguard_store::{address::StoreAddress, open, open_later};

    let Some(text) = address(arguments)? else { return Ok(None) };
    let address = StoreAddress::parse(&text)?;
    // Standard input has it once. After a restore, the folder has it.
    let key = arguments.store.key.as_deref().filter(|_| is_first || !key_is_input(arguments));
    let key = key.map(read_store_key).transpose()?;
    let folder = Folder::open(&arguments.interface.interface)?;
    // A server of the network starts also while its store cannot be reached.
    let log = if store_of(&folder)?.is_some() { open_later(address) } else { open(&address).await? };
    Ok(Some(SharedStore::read(&folder, &text, log, key, arguments.store.accept_older && is_first).await?))
}

#[cfg(not(feature = "stores"))]
pub(super) fn files(arguments: &Serve) -> Result<Vec<PathBuf>> {
    match address(arguments)? {
        Some(address) => {
            anyhow::bail!("this program was built without stores (cargo feature `stores`), and cannot use {address}")
        }
        None => Ok(Vec::new()),
    }
}

#[cfg(not(feature = "stores"))]
pub(super) async fn read(arguments: &Serve, _is_first: bool) -> Result<Option<SharedStore>> {
    files(arguments).map(|_| None)
}
