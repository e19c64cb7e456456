//! `rustguard set` and `rustguard save`: changes a running interface like `wg set`, and saves it to its file.

use crate::{arguments, output::way, uapi};
use anyhow::{Context as _, Result, anyhow, bail};
use clap::CommandFactory as _;
use rustguard_crypto::x25519::PublicKey;
use rustguard_device::{EndpointSpec, PathSpec, Update, key::from_base64};
use rustguard_quick::{
    TunnelFile,
    conf::{WordContext, parse_words},
};
use std::{
    collections::HashMap,
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
pub(crate) fn run(arguments: &arguments::tunnel::Set) -> Result<()> {
    let interface = &arguments.interface;
    // `allowed-ips -10.0.0.0/8` begins with a hyphen, so clap treats everything after the first word as words.
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
        let device = uapi::configuration(uapi::get_with_keys(interface)?);
        file.save_update(&update, device).context("the running interface is changed, but not its file")?;
    }
    Ok(())
}

/// Runs `save`.
pub(crate) fn save(interface: &str) -> Result<()> {
    let device = uapi::get_to_save(interface).with_context(|| format!("cannot save {interface}"))?;
    Ok(TunnelFile::open(interface)?.save_device(device)?)
}

/// A relay has to be a peer after the change, with an address as its endpoint. The device itself would accept an
/// unusable endpoint.
fn check_relays(update: &Update, device: &uapi::Device) -> Result<()> {
    let known = device.peers.iter().map(|peer| (peer.public_key, Relays::configured(peer)));
    let mut after: HashMap<_, _> = known.collect();
    for peer in &update.peers {
        let relays = after.entry(peer.public_key).or_default();
        if peer.remove {
            after.remove(&peer.public_key);
        } else if !peer.endpoints.is_empty() {
            *relays = Relays::of(&peer.endpoints);
        }
    }
    let called = |key: &PublicKey| way::called(&key.to_string(), &device.peers);
    // An existing mistake may stay.
    let is_new = |key| update.peers.iter().any(|peer| peer.public_key == key && !peer.endpoints.is_empty());
    let updated = update.peers.iter().map(|peer| peer.public_key);
    for peer in updated.chain(device.peers.iter().map(|peer| peer.public_key)) {
        for relay in after.get(&peer).iter().flat_map(|relays| &relays.relays) {
            match after.get(relay) {
                None if is_new(peer) => bail!(
                    "endpoint via-peer {}: the interface has no peer with this key; add the relay first",
                    called(relay)
                ),
                Some(Relays { only: true, .. }) if is_new(peer) || is_new(*relay) => bail!(
                    "{name} would be reached through {via}, and {via} through a peer only; a relay is reached at an address: give \
                     {via} an address among its endpoints",
                    name = called(&peer),
                    via = called(relay),
                ),
                _ => {}
            }
        }
    }
    Ok(())
}

/// The relays by which a peer is reached.
#[derive(Debug, Default)]
struct Relays {
    relays: Vec<PublicKey>,
    /// There is no other endpoint.
    only: bool,
}

impl Relays {
    fn of(endpoints: &[PathSpec]) -> Self {
        let relay = |path: &PathSpec| match path.endpoint {
            EndpointSpec::Peer(relay) => Some(relay),
            _ => None,
        };
        let relays: Vec<_> = endpoints.iter().filter_map(relay).collect();
        Self { only: !relays.is_empty() && relays.len() == endpoints.len(), relays }
    }

    /// As the device reports them. It reports the configured endpoints if there is a choice of paths.
    fn configured(peer: &uapi::Peer) -> Self {
        let configured = || peer.paths.iter().filter_map(|path| path.configured.as_deref());
        let relay = |path: &str| {
            let key = path.strip_prefix("via-peer ")?.split(' ').next()?;
            Some(PublicKey(*from_base64(key).ok()?))
        };
        let relays: Vec<_> = configured().filter_map(relay).collect();
        Self { only: !relays.is_empty() && relays.len() == configured().count(), relays }
    }
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
