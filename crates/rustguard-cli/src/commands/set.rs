//! `rustguard set` and `rustguard save`: changes a running interface like `wg set`, and saves it to its file.

use crate::{arguments, uapi};
use anyhow::{Context as _, Result, anyhow, bail};
use clap::CommandFactory as _;
use rustguard_crypto::x25519::PublicKey;
use rustguard_device::{EndpointSpec, Update};
use rustguard_quick::{
    TunnelFile,
    conf::{WordContext, parse_words},
};
use std::{
    fs::File,
    io::{self, Read as _},
    net::ToSocketAddrs as _,
    path::Path,
};
use zeroize::Zeroizing;

/// The most bytes that are read for a key. A key has 44, and a line end.
const KEY_MAX: u64 = 4096;

/// The options of `set`, which may follow its words.
const OPTIONS: [&str; 3] = ["--save", "--help", "-h"];

/// Runs `set`.
pub(crate) fn run(arguments: &arguments::Set) -> Result<()> {
    let interface = &arguments.interface;
    // `allowed-ips -10.0.0.0/8` begins with a hyphen, so clap takes all that follows the first word for words.
    let (options, words): (Vec<_>, Vec<_>) =
        arguments.words.iter().cloned().partition(|word| OPTIONS.contains(&&**word));
    if options.iter().any(|option| option != "--save") {
        let mut command = arguments::Cli::command();
        return Ok(command.find_subcommand_mut("set").context("this command")?.print_long_help()?);
    }
    let save = arguments.save || !options.is_empty();
    let device = uapi::get(interface).with_context(|| format!("cannot change {interface}"))?;
    // The file is read before the device changes, so that a change which cannot be saved is not made.
    let file = save.then(|| TunnelFile::open(interface)).transpose()?;
    let mut update = parse_words(&words, &Words { interface, device: &device }).map_err(anyhow::Error::msg)?;
    if device.is_rustguard() {
        check_relays(&update, &device)?;
    } else {
        resolve(&mut update)?;
    }
    if let Some(file) = &file {
        file.check_update(&update)?;
    }
    uapi::set(interface, &update)?;
    if let Some(file) = file {
        let device = uapi::get(interface)?.into_config();
        file.save_update(&update, device).context("the running interface is changed, but not its file")?;
    }
    Ok(())
}

/// Runs `save`.
pub(crate) fn save(interface: &str) -> Result<()> {
    let device = uapi::get(interface).with_context(|| format!("cannot save {interface}"))?;
    Ok(TunnelFile::open(interface)?.save_device(device.into_config())?)
}

/// A relay has to be a peer after the change. The device would take an endpoint that leads nowhere.
fn check_relays(update: &Update, device: &uapi::Device) -> Result<()> {
    let is_peer = |relay: &PublicKey| {
        let last = update.peers.iter().rev().find(|peer| peer.public_key == *relay);
        last.map_or_else(|| device.peers.iter().any(|peer| peer.public_key == *relay), |peer| !peer.remove)
    };
    for path in update.peers.iter().flat_map(|peer| &peer.endpoints) {
        if let EndpointSpec::Peer(relay) = &path.endpoint
            && !is_peer(relay)
        {
            bail!("endpoint {}: the interface has no peer with this key; add the relay first", path.endpoint);
        }
    }
    Ok(())
}

/// Other implementations take addresses only, so names are resolved here, as `wg` does.
fn resolve(update: &mut Update) -> Result<()> {
    for path in update.peers.iter_mut().flat_map(|peer| &mut peer.endpoints) {
        match &path.endpoint {
            EndpointSpec::Name(name, port) => {
                let addresses = (name.as_str(), *port).to_socket_addrs();
                let mut addresses = addresses.with_context(|| format!("endpoint {name}"))?;
                let address = addresses.next().ok_or_else(|| anyhow!("endpoint {name}: there is no address"))?;
                path.endpoint = EndpointSpec::Address(address);
            }
            EndpointSpec::Peer(_) => bail!("endpoint {}: only RustGuard knows ways through a peer", path.endpoint),
            _ => {}
        }
    }
    Ok(())
}

/// The names of a running device, and files with keys.
struct Words<'a> {
    interface: &'a str,
    device: &'a uapi::Device,
}

impl WordContext for Words<'_> {
    fn peer_named(&self, name: &str) -> Result<PublicKey, String> {
        let mut named = self.device.peers.iter().filter(|peer| peer.name.as_deref() == Some(name));
        match (named.next(), named.next()) {
            (Some(peer), None) => Ok(peer.public_key),
            (Some(_), Some(_)) => {
                Err(format!("several peers of {} are called `{name}`; use the public key", self.interface))
            }
            (None, _) => Err(format!(
                "no peer of {0} is called `{name}`; a new peer is added by its public key (`rustguard show {0}`)",
                self.interface
            )),
        }
    }

    fn read_key(&self, path: &Path) -> io::Result<Zeroizing<String>> {
        // The buffer is large enough from the beginning, because growth would leave a copy of the key behind.
        let mut text = Zeroizing::new(String::with_capacity(KEY_MAX as usize + 1));
        let read = if path == Path::new("-") {
            io::stdin().lock().take(KEY_MAX).read_to_string(&mut text)
        } else {
            File::open(path)?.take(KEY_MAX).read_to_string(&mut text)
        };
        read.map(|_| text)
    }
}
