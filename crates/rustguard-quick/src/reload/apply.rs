//! The transaction: a running session takes over another configuration.
//!
//! The order keeps packets flowing, and puts changes that cannot be undone last:
//!
//! 1. The port, because the system may refuse it.
//! 2. New peers and allowed IPs, so that no packet follows a new route to a missing peer.
//! 3. The host: addresses, DNS, routes, policy rules, guard, mark, MTU.
//! 4. Everything else about peers, and the private key. The device does not refuse any of it.

use super::{Difference, Reload, ReloadError};
use crate::{
    conf::{self, Config, Interface, Peer},
    host::{self, HostConfig, HostError},
    session::Session,
};
use ipnet::IpNet;
use rustguard_crypto::x25519::PublicKey;
use rustguard_device::{DeviceHandle, PathSpec, Secrets, Status, Update, UpdateError};
use std::{
    collections::{HashMap, HashSet},
    path::{Path, PathBuf},
};

impl Session {
    /// The changes that [`reload`](Self::reload) would make now: from the running tunnel to `config`. This includes
    /// peers that were added by `wg set` since the start, which `config` does not have.
    ///
    /// # Errors
    /// The tunnel is not up, or changes need a restart.
    pub async fn difference(&self, config: &Config) -> Result<Difference, ReloadError> {
        Ok(self.compare(config).await?.1)
    }

    /// Takes over another configuration while the tunnel runs. Either all of it is taken over or nothing. Remaining
    /// peers keep their sessions. No hook runs: PreDown and PostDown of the new configuration run at the end. An
    /// endpoint is only set if it differs between the last configuration and the new one, so a peer that has moved
    /// stays reachable.
    ///
    /// # Errors
    /// See [`ReloadError`]. In all cases but [`NotUndone`](ReloadError::NotUndone) the tunnel runs as before.
    pub async fn reload(&mut self, config: Config) -> Result<Difference, ReloadError> {
        let (running, difference, status) = self.compare(&config).await?;
        let ports = Some(status.listen_port);
        self.carry_out(config, &running, difference, ports, status.fwmark).await
    }

    /// Takes over a configuration that a program has derived from the session's configuration, for example for a
    /// network's new roster. Unlike [`reload`](Self::reload), it compares with the configuration that was taken over
    /// last and not with the device. Later changes by `wg set` stay, and the cost of a change does not depend on the
    /// number of other peers.
    ///
    /// # Errors
    /// See [`ReloadError`]. In all cases but [`NotUndone`](ReloadError::NotUndone) the tunnel runs as before.
    pub async fn adopt(&mut self, config: Config) -> Result<Difference, ReloadError> {
        let (from, to) = parts_that_differ(self.config(), &config);
        let difference = Difference::between(&from, &to);
        let needed = difference.needs_restart(&from, &to);
        if !needed.is_empty() {
            return Err(ReloadError::NeedsRestart { interface: self.interface().to_owned(), needed });
        }
        let mark = self.host().and_then(host::Applied::fwmark).unwrap_or(0);
        self.carry_out(config, &from, difference, None, mark).await
    }

    /// Makes the changes. `running` has at least the peers that change, `own_port` is the device's.
    async fn carry_out(
        &mut self,
        config: Config,
        running: &Config,
        difference: Difference,
        own_port: Option<u16>,
        mark: u32,
    ) -> Result<Difference, ReloadError> {
        let Some(device) = self.device().map(rustguard_device::Device::handle) else { return Err(self.not_up()) };
        let host = self.host_after(&config, &difference).await.map_err(ReloadError::Undone)?;

        let (before, after) = (&difference.interface.from, &difference.interface.to);
        let port = after.listen_port.filter(|_| before.listen_port != after.listen_port);
        let port = port.filter(|port| Some(*port) != own_port);
        if let Some(port) = port {
            device.update(Update::new().listen_port(port)).await.map_err(ReloadError::refused)?;
        }
        let undo = Undo { device: &device, port: port.and(own_port) };
        let added = device.update(difference.additions()).await;
        if let Err(error) = added {
            return Err(ReloadError::failed(self.interface(), error.into(), undo.everything(Update::new()).await));
        }
        if let Err(error) = self.change_host(host, &device, mark).await {
            let left = undo.everything(difference.without_additions(running)).await;
            return Err(ReloadError::change(self.interface(), error, left));
        }
        // Only a device that has ended refuses this.
        let settled = device.update(difference.settlement(&config)).await;
        if before.public_key() != after.public_key() && config.greets() {
            device.handshake_now().await;
        }
        self.set_config(config);
        match settled {
            Ok(()) => Ok(difference),
            Err(_) => Err(self.not_up()),
        }
    }

    /// Fulfils a request to the [`Server`](super::Server): reads the file, compares it with the running tunnel, and
    /// takes it over unless this is a dry run. A file that was taken over becomes the session's file.
    ///
    /// # Errors
    /// See [`ReloadError`].
    pub async fn fulfil(&mut self, request: &Reload) -> Result<(PathBuf, Difference), ReloadError> {
        self.fulfil_with(request, async |config| config).await
    }

    /// As `fulfil`, for a tunnel with more than its file: `extend` makes the configuration from the
    /// file's configuration.
    ///
    /// # Errors
    /// See [`ReloadError`].
    pub async fn fulfil_with(
        &mut self,
        request: &Reload,
        extend: impl AsyncFnOnce(Config) -> Config,
    ) -> Result<(PathBuf, Difference), ReloadError> {
        let (config, file) = self.read_again(request.file.as_deref())?;
        let config = extend(config).await;
        if request.dry_run {
            return Ok((file.path().to_owned(), self.difference(&config).await?));
        }
        let difference = self.reload(config).await?;
        self.set_file(&file);
        Ok((file.path().to_owned(), difference))
    }

    /// Reads the session's file again, or the one at `path`, which has to be a file for the same interface.
    ///
    /// # Errors
    /// See [`ReloadError`].
    fn read_again(&self, path: Option<&Path>) -> Result<(Config, conf::File), ReloadError> {
        let path = match path.or(self.path()) {
            Some(path) => path.to_owned(),
            None => return Err(ReloadError::NoFile(self.interface().to_owned())),
        };
        // An error of the metadata occurs again when the file is read, and is reported then.
        if std::fs::metadata(&path).is_ok_and(|file| !file.is_file()) {
            return Err(ReloadError::NotRegular(path));
        }
        let name = conf::resolve_name(&path.to_string_lossy()).map(|(_, name)| name);
        match name {
            Ok(name) if name != self.interface() => {
                return Err(ReloadError::OtherInterface { path, name, interface: self.interface().to_owned() });
            }
            _ => {}
        }
        Ok(conf::load(&path)?)
    }

    /// The running configuration, the changes to `config`, and the state of the device.
    async fn compare(&self, config: &Config) -> Result<(Config, Difference, Status), ReloadError> {
        let Some(device) = self.device() else { return Err(self.not_up()) };
        let Ok((status, secrets)) = device.handle().status_with_secrets().await else { return Err(self.not_up()) };
        let mark = self.host().and_then(host::Applied::fwmark).unwrap_or(0);
        let running = running(self.config(), &status, &secrets, mark);
        let mut difference = Difference::between(&running, config);
        let host = self.host().map(host::Applied::config);
        let host = host.filter(|host| host.table != conf::Table::Off && !host.learned);
        if let Some(host) = host.filter(|_| running.interface.table == config.interface.table) {
            difference.routes = difference.other_routes(&host.allowed_ips, config);
        }
        let needed = difference.needs_restart(&running, config);
        if needed.is_empty() {
            return Ok((running, difference, status));
        }
        Err(ReloadError::NeedsRestart { interface: self.interface().to_owned(), needed })
    }

    /// The host's set-up for the new configuration.
    async fn host_after(&self, config: &Config, difference: &Difference) -> Result<HostConfig, HostError> {
        let before = self.host().map(|host| host.config().clone());
        let mut after = self.host_config(config).await;
        let Some(before) = before else { return Ok(after) };
        // The path may have another MTU now, but that is no change of the file.
        let moved = difference.changed.iter().any(|change| change.from.endpoints != change.to.endpoints);
        if !moved && difference.added.is_empty() && difference.removed.is_empty() {
            after.endpoints.clone_from(&before.endpoints);
        }
        // A mark that was chosen at the start stays while it is needed.
        let chosen = |interface: &Interface| interface.fwmark.unwrap_or(0) == 0;
        let has_default = |host: &HostConfig| {
            host.table == conf::Table::Auto && host.allowed_ips.iter().any(|net| net.prefix_len() == 0)
        };
        after.fwmark = if chosen(&self.config().interface)
            && chosen(&config.interface)
            && has_default(&before)
            && has_default(&after)
        {
            before.fwmark
        } else {
            host::choose_fwmark(&after).await?
        };
        Ok(after)
    }

    async fn change_host(
        &mut self,
        after: HostConfig,
        device: &DeviceHandle,
        mark: u32,
    ) -> Result<(), host::ChangeError> {
        let Some(host) = self.host_mut() else { return Ok(()) };
        let set = async |mark: u32| device.update(Update::new().fwmark(mark)).await;
        // The mark may have been changed with `wg set`.
        let expected = host.fwmark().unwrap_or(0);
        if mark != expected {
            set(expected).await.map_err(|error| host::ChangeError { cause: error.into(), left: Vec::new() })?;
        }
        let changed = host.change(after, set).await;
        match changed {
            Err(mut error) if mark != expected => {
                error.left.extend(set(mark).await.err().map(HostError::from));
                Err(error)
            }
            changed => changed,
        }
    }

    fn not_up(&self) -> ReloadError {
        ReloadError::NotUp(self.interface().to_owned())
    }
}

/// Both configurations, without peers that are the same in both.
fn parts_that_differ(from: &Config, to: &Config) -> (Config, Config) {
    let known: HashMap<PublicKey, &Peer> = from.peers.iter().map(|peer| (peer.public_key, peer)).collect();
    let mut same = HashSet::new();
    let differs = |peer: &&Peer| known.get(&peer.public_key).is_none_or(|known| known != peer);
    let mut after = Config::new(to.interface.clone(), Vec::new());
    for peer in &to.peers {
        if differs(&peer) {
            after.peers.push(peer.clone());
        } else {
            same.insert(peer.public_key);
        }
    }
    let peers = from.peers.iter().filter(|peer| !same.contains(&peer.public_key)).cloned().collect();
    (Config::new(from.interface.clone(), peers), after)
}

/// The changes of the device to undo if a later step fails.
struct Undo<'a> {
    device: &'a DeviceHandle,
    /// The old port, if it was changed.
    port: Option<u16>,
}

impl Undo<'_> {
    /// Returns the failures.
    async fn everything(&self, peers: Update) -> Vec<HostError> {
        let mut left = Vec::new();
        left.extend(self.device.update(peers).await.err());
        if let Some(port) = self.port {
            left.extend(self.device.update(Update::new().listen_port(port)).await.err());
        }
        left.into_iter().map(|error: UpdateError| error.into()).collect()
    }
}

/// The configuration of the tunnel as it runs. `loaded` is what was taken over last, and `mark` the mark that the
/// host's set-up needs.
///
/// Endpoints come from `loaded`, because a peer may have moved. If a peer has several, the device reports which were
/// set since. A port or a mark that both `loaded` and the new configuration leave to the system is no difference.
pub(super) fn running(loaded: &Config, status: &Status, secrets: &Secrets, mark: u32) -> Config {
    let mut interface = loaded.interface.clone();
    // A hook may have set the key of a file without one.
    interface.private_key = loaded.interface.private_key.as_ref().and(secrets.private_key()).cloned();
    interface.listen_port = interface.listen_port.map(|_| status.listen_port);
    interface.more_listen_ports.clone_from(&status.more_listen_ports);
    if status.fwmark != mark {
        interface.fwmark = Some(status.fwmark);
    }
    interface.forward = Some(status.forward);
    let loaded: HashMap<PublicKey, &Peer> = loaded.peers.iter().map(|peer| (peer.public_key, peer)).collect();
    let peers = status.peers.iter().map(|peer| {
        let known = loaded.get(&peer.public_key);
        let mut config = Peer::new(peer.public_key);
        config.name.clone_from(&peer.name);
        config.preshared_key = secrets.preshared_key(&peer.public_key).cloned();
        let configured: Vec<_> = peer.paths.iter().filter_map(|path| path.configured.clone()).collect();
        config.endpoints = match known {
            _ if !configured.is_empty() => configured,
            Some(known) => known.endpoints.clone(),
            None => peer.endpoint.map(PathSpec::from).into_iter().collect(),
        };
        config.allowed_ips = peer.allowed_ips.iter().map(IpNet::trunc).collect();
        config.persistent_keepalive = peer.persistent_keepalive;
        config.parity = peer.parity.map(|parity| parity.size);
        config.direct = known.and_then(|known| known.direct);
        config.role = known.and_then(|known| known.role);
        config
    });
    Config::new(interface, peers.collect())
}
