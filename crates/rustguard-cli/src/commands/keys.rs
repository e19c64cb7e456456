//! `genkey`, `genpsk` and `pubkey`, like the commands of `wg` with these names.

use anyhow::{Context as _, Result, bail};
use rustguard_crypto::{random, x25519::StaticSecret};
use rustguard_device::key::{from_base64, to_base64};
use std::{
    fs::File,
    io::{self, Read as _, Write as _},
    os::{fd::AsFd as _, unix::fs::PermissionsExt as _},
};
use zeroize::Zeroizing;

/// Longer than any key with white space around it.
const MOST_INPUT: u64 = 4096;

/// Prints a new private key.
pub(crate) fn genkey() -> Result<()> {
    warn_if_readable();
    // Clamped, as `wg genkey` prints it.
    let key = StaticSecret::generate()?;
    print(&Zeroizing::new(key.to_bytes()))
}

/// Prints a new preshared key.
pub(crate) fn genpsk() -> Result<()> {
    warn_if_readable();
    print(&*random::bytes()?)
}

/// Reads a private key and prints the public one.
pub(crate) fn pubkey() -> Result<()> {
    // The capacity suffices for all input, because a string that grows leaves copies of the key behind.
    let mut text = Zeroizing::new(String::with_capacity(MOST_INPUT as usize + 1));
    io::stdin()
        .lock()
        .take(MOST_INPUT)
        .read_to_string(&mut text)
        .context("cannot read a private key from standard input")?;
    let text = text.trim();
    if text.is_empty() {
        bail!("standard input is empty; give it a private key: rustguard genkey | rustguard pubkey");
    }
    let key = from_base64(text).context("standard input is not a private key")?;
    print(&StaticSecret::from_bytes(*key).public_key().0)
}

fn print(key: &[u8; 32]) -> Result<()> {
    let mut line = to_base64(key);
    line.push('\n');
    // The key is written directly to the descriptor, because io::stdout's buffer would keep a copy.
    let mut out = File::from(io::stdout().as_fd().try_clone_to_owned()?);
    out.write_all(line.as_bytes())?;
    Ok(())
}

/// Warns if the key goes into a file that every user can read.
fn warn_if_readable() {
    let Ok(out) = io::stdout().as_fd().try_clone_to_owned() else { return };
    if File::from(out).metadata().is_ok_and(|out| out.is_file() && out.permissions().mode() & 0o007 != 0) {
        tracing::warn!("the key goes into a file that every user can read; set `umask 077` before generating a key");
    }
}
