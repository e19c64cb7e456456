//! `rustguard serve import`: an existing server, before `serve` starts it.

use crate::{arguments::serve::ServeImport, escape::escape, process::runtime};
use anyhow::{Context as _, Result, bail};
use ipnet::IpNet;
use rustguard_device::interface;
use rustguard_quick::{host::networks, run_file};
use rustguard_serve::{Import, ImportError, ImportOptions, Stored, is_served};
use std::io::{self, Write as _};

/// Takes the server over, and prints a description.
pub(super) fn run(arguments: &ServeImport) -> Result<()> {
    let interface = &arguments.interface.interface;
    let options = ImportOptions { pools: arguments.pools.clone(), port: arguments.port };
    let import = Import::read(&arguments.files, &options)?;
    if arguments.dry_run {
        let known = import.is_stored(interface)?;
        return tell(&import, interface, if known { "was taken over before" } else { "would be taken over" });
    }
    if let Some(runner) = run_file::running(interface) {
        let what = if is_served(interface) { "is served already" } else { "is up already" };
        bail!(
            "{interface} {what}, by {runner}; import into another interface (--interface), or end it: rustguard down {interface}"
        );
    }
    if !import.is_stored(interface)? {
        runtime()?.block_on(free(&import, arguments))?;
    }
    let words = match import.store(interface)? {
        Stored::New => "is taken over",
        Stored::Before => "was taken over before, and nothing is changed",
    };
    tell(&import, interface, words)
}

/// Refuses a server that is still up on this machine under another name, and pools that overlap another network.
async fn free(import: &Import, arguments: &ServeImport) -> Result<()> {
    let networks = networks::addresses().await.context("cannot list this machine's addresses")?;
    for pool in &import.settings().pools {
        if networks.iter().any(|network| network.addr() == pool.addr()) {
            let file = arguments.files.first().and_then(|path| path.file_stem()).unwrap_or_default();
            let name = file.to_string_lossy();
            let name = if interface::check_name(&name).is_ok() { name.into_owned() } else { "NAME".to_owned() };
            return Err(ImportError::StillUp { address: pool.addr(), interface: name }.into());
        }
    }
    super::overlaps(&import.settings().pools, &[]).await
}

/// Prints what was found in the files.
fn tell(import: &Import, interface: &str, words: &str) -> Result<()> {
    let mut out = io::stdout().lock();
    let settings = import.settings();
    let own: Vec<_> = settings.own_addresses().iter().map(|net| net.addr().to_string()).collect();
    writeln!(
        out,
        "The server {} with the address {} and the port {} {words} as {interface}, with these peers:\n",
        import.public_key(),
        own.join(" and "),
        settings.port
    )?;
    let peers = import.peers();
    if peers.len() == 0 {
        writeln!(out, "  none")?;
    }
    for peer in peers {
        let name = peer.name.unwrap_or_else(|| peer.public_key.to_string());
        let nets = peer.addresses.iter().map(ToString::to_string).chain(peer.prefixes.iter().map(IpNet::to_string));
        writeln!(out, "  {}  {}", escape(&name), nets.collect::<Vec<_>>().join(", "))?;
    }
    writeln!(out)?;
    for note in import.notes() {
        writeln!(out, "- {}", escape(note))?;
    }
    if !import.notes().is_empty() {
        writeln!(out)?;
    }
    out.flush()?;
    Ok(())
}
