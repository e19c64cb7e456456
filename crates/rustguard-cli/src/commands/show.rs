//! `rustguard show`: the state of interfaces, for people, as JSON, and for scripts in the format of `wg show`.

pub(super) mod json;
mod pretty;

use crate::{
    arguments::tunnel::{Field, Show},
    output::{colour::Palette, screen},
    uapi::{self, Device, Peer},
};
use anyhow::{Context as _, Result};
use rustguard_device::key::to_base64;
use std::{
    io::{self, Write},
    process::ExitCode,
};
use zeroize::Zeroizing;

/// The word of `wg` for a missing value.
const NONE: &str = "(none)";

/// Runs `show`.
pub(crate) fn run(arguments: &Show) -> Result<ExitCode> {
    let mut out = io::stdout().lock();
    if arguments.interface == "interfaces" {
        let names = uapi::interfaces()?;
        if arguments.json {
            writeln!(out, "{}", serde_json::to_string_pretty(&names)?)?;
        } else if !names.is_empty() {
            writeln!(out, "{}", names.join(" "))?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    let secrets = show_secrets();
    if arguments.field.is_none() && !arguments.json {
        let palette = Palette::of(&io::stdout());
        let mut code = ExitCode::SUCCESS;
        drop(out);
        screen::show(arguments.watch, || {
            let found = devices(arguments, secrets)?;
            code = found.report()?;
            // Scripts that read the output of `wg show` expect each value in one line.
            Ok(pretty::page(&found.devices, secrets, screen::width_of_list(), palette))
        })?;
        return Ok(code);
    }
    let found = devices(arguments, secrets || arguments.field.is_some_and(Field::is_secret))?;
    let code = found.report()?;
    match arguments.field {
        Some(field) => {
            for (name, device) in &found.devices {
                // With `all`, the name comes first in every line.
                let prefix = if arguments.is_all() { format!("{name}\t") } else { String::new() };
                print_field(&mut out, &prefix, device, field)?;
            }
        }
        None => json::print(&mut out, found.devices, secrets)?,
    }
    Ok(code)
}

/// Devices with their names, and the errors of devices that could not be asked.
struct Found {
    devices: Vec<(String, Device)>,
    failures: Vec<anyhow::Error>,
}

impl Found {
    /// Writes the failures.
    fn report(&self) -> io::Result<ExitCode> {
        for error in &self.failures {
            writeln!(io::stderr(), "rustguard: {error:#}")?;
        }
        Ok(if self.failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

/// The requested device. With `all`, devices are shown even if another device does not answer.
fn devices(arguments: &Show, with_keys: bool) -> Result<Found> {
    let names = if arguments.is_all() { uapi::interfaces()? } else { vec![arguments.interface.clone()] };
    let mut found = Found { devices: Vec::new(), failures: Vec::new() };
    for name in names {
        let device = if with_keys { uapi::get_with_keys(&name) } else { uapi::get(&name) };
        match device.with_context(|| format!("cannot show {name}")) {
            Ok(device) => found.devices.push((name, device)),
            Err(error) if arguments.is_all() => found.failures.push(error),
            Err(error) => return Err(error),
        }
    }
    Ok(found)
}

/// Whether `WG_HIDE_KEYS=never` asks for private and preshared keys. A field that is given by its name shows them in
/// any case.
fn show_secrets() -> bool {
    std::env::var_os("WG_HIDE_KEYS").is_some_and(|value| value == "never")
}

/// Prints one field exactly in the format of `wg show INTERFACE FIELD`. With `all`, `wg` prints the interface in every
/// line except lines of endpoints. This function prints it there as well.
fn print_field(out: &mut impl Write, prefix: &str, device: &Device, field: Field) -> io::Result<()> {
    let mut peers = |value: &dyn Fn(&Peer) -> Zeroizing<String>| {
        device.peers.iter().try_for_each(|peer| {
            let (key, value) = (to_base64(&peer.public_key.0), value(peer));
            writeln!(out, "{prefix}{}\t{}", *key, *value)
        })
    };
    match field {
        Field::PublicKey => writeln!(out, "{prefix}{}", *public_key(device)),
        Field::PrivateKey => writeln!(out, "{prefix}{}", *secret(device.private_key.as_ref())),
        Field::ListenPort => writeln!(out, "{prefix}{}", device.listen_port),
        Field::Fwmark => writeln!(out, "{prefix}{}", fwmark(device)),
        Field::Peers => {
            device.peers.iter().try_for_each(|peer| writeln!(out, "{prefix}{}", *to_base64(&peer.public_key.0)))
        }
        Field::PresharedKeys => peers(&|peer| secret(peer.preshared_key.as_ref())),
        Field::Endpoints => peers(&|peer| endpoint(peer).to_owned().into()),
        Field::AllowedIps => peers(&|peer| allowed_ips(peer, " ").into()),
        Field::LatestHandshakes => peers(&|peer| peer.last_handshake.as_secs().to_string().into()),
        Field::Transfer => peers(&|peer| format!("{}\t{}", peer.rx_bytes, peer.tx_bytes).into()),
        Field::PersistentKeepalive => peers(&|peer| keepalive(peer).into()),
        Field::Dump => {
            let (private, public) = (secret(device.private_key.as_ref()), public_key(device));
            writeln!(out, "{prefix}{}\t{}\t{}\t{}", *private, *public, device.listen_port, fwmark(device))?;
            device.peers.iter().try_for_each(|peer| {
                let (key, preshared) = (to_base64(&peer.public_key.0), secret(peer.preshared_key.as_ref()));
                let (endpoint, allowed_ips, keepalive) = (endpoint(peer), allowed_ips(peer, ","), keepalive(peer));
                let handshake = peer.last_handshake.as_secs();
                let (rx, tx) = (peer.rx_bytes, peer.tx_bytes);
                writeln!(
                    out,
                    "{prefix}{}\t{}\t{endpoint}\t{allowed_ips}\t{handshake}\t{rx}\t{tx}\t{keepalive}",
                    *key, *preshared
                )
            })
        }
    }
}

fn public_key(device: &Device) -> Zeroizing<String> {
    match device.public_key {
        Some(key) => to_base64(&key.0),
        None => NONE.to_owned().into(),
    }
}

fn secret(key: Option<&Zeroizing<[u8; 32]>>) -> Zeroizing<String> {
    key.map_or_else(|| NONE.to_owned().into(), |key| to_base64(key))
}

fn fwmark(device: &Device) -> String {
    if device.fwmark == 0 { "off".to_owned() } else { format!("{:#x}", device.fwmark) }
}

fn endpoint(peer: &Peer) -> &str {
    peer.endpoint.as_deref().unwrap_or(NONE)
}

fn allowed_ips(peer: &Peer, separator: &str) -> String {
    if peer.allowed_ips.is_empty() {
        return NONE.to_owned();
    }
    peer.allowed_ips.iter().map(ToString::to_string).collect::<Vec<_>>().join(separator)
}

fn keepalive(peer: &Peer) -> String {
    if peer.persistent_keepalive == 0 { "off".to_owned() } else { peer.persistent_keepalive.to_string() }
}
