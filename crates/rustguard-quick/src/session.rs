//! A tunnel from its configuration to its end: the steps of wg-quick, and their reversal after any of them.

mod keys;

use crate::{
    chain::chain,
    conf::{self, Config, Routing},
    configure::configured,
    error::{RoutingError, SessionError},
    helper::{self, Answer, Task, open_socket},
    hooks::{HookOutput, Hooks},
    host::{self, Gateway, HostConfig},
    run_file::{self, RunFile},
    session_record::{DownHooks, LoadedFile, SessionRecord, TunnelFile},
};
use ipnet::IpNet;
use rustguard_device::{
    Builder, Device, DeviceHandle, EndpointSpec, interface, routing::Members, uapi, unix_socket::remove_dead,
};
use std::{error::Error, net::SocketAddr, path::Path, time::Duration};

/// The longest wait for name resolution before the MTU is computed without the unresolved names. The tunnel itself does
/// not wait for names.
const MTU_LOOKUP: Duration = Duration::from_secs(1);

/// All resources of one tunnel. [`stop`](Self::stop) releases them in reverse order.
///
/// A session that is dropped without `stop` leaves routes, rules and DNS in place, like a process that was killed. The
/// next session with this name undoes them.
pub struct Session {
    interface: String,
    config: Config,
    /// The file that `SaveConfig` writes.
    file: Option<LoadedFile>,
    hook_output: HookOutput,
    /// Under `Routing = babel`, packets between peers do not pass through the host.
    relays: bool,
    nat: Option<Gateway>,
    _run: RunFile,
    device: Option<Device>,
    uapi: Option<uapi::Server>,
    host: Option<host::Applied>,
    /// Whether PostUp was reached, so that PreDown runs when the session stops.
    complete: bool,
}

impl Session {
    /// Reads a configuration file and claims its interface. `target` is the path of a file, or a name that is looked up
    /// in `/etc/wireguard` and `/etc/rustguard` (see [`resolve_name`](conf::resolve_name)). Warnings about the file are
    /// logged.
    ///
    /// # Errors
    /// The file does not exist, has mistakes, or every user may change it. Also the errors of [`claim`](Self::claim).
    pub async fn open(target: &str) -> Result<Self, SessionError> {
        let (path, interface) = conf::resolve_name(target)?;
        let (config, file) = conf::load(&path)?;
        Ok(Self::claim(&interface, config).await?.of_file(&file))
    }

    /// Claims an interface for this process, and cleans up after an earlier process that was killed.
    ///
    /// # Errors
    /// Another process runs this interface, or the earlier changes cannot be undone.
    pub async fn claim(interface: &str, config: Config) -> Result<Self, SessionError> {
        let run = RunFile::claim(interface)?;
        clean_up_host(interface).await?;
        Ok(Self {
            interface: interface.to_owned(),
            config,
            file: None,
            hook_output: HookOutput::default(),
            relays: true,
            nat: None,
            _run: run,
            device: None,
            uapi: None,
            host: None,
            complete: false,
        })
    }

    /// Sets the file that the configuration was read from. `SaveConfig = true` writes it, a [reload](crate::reload)
    /// reads it again, and other processes find it with [`TunnelFile`](crate::TunnelFile). Without it nothing is
    /// saved.
    #[must_use]
    pub fn of_file(mut self, file: &conf::File) -> Self {
        self.file = Some(LoadedFile::new(file));
        self
    }

    /// The name of the interface.
    pub fn interface(&self) -> &str {
        &self.interface
    }

    /// The path of the session's file, if it has one.
    pub fn path(&self) -> Option<&Path> {
        self.file.as_ref().map(LoadedFile::path)
    }

    /// The configuration that the session has taken over last.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Stores a configuration that was taken over. A later process has to know its hooks.
    pub(crate) fn set_config(&mut self, config: Config) {
        self.config = config;
        report(self.write_record());
    }

    /// Stores a file that was taken over.
    pub(crate) fn set_file(&mut self, file: &conf::File) {
        let file = LoadedFile::new(file);
        if let Some(helper) = helper::get() {
            let (path, digest) = (file.path().to_owned(), file.digest().to_owned());
            if let Answer::Failed(failure) = helper.ask_now(Task::Taken { path, digest }) {
                tracing::error!("{}: hooks stay those of before: {failure}", self.interface);
            }
        }
        self.file = Some(file);
        report(self.write_record());
    }

    pub(crate) fn host(&self) -> Option<&host::Applied> {
        self.host.as_ref()
    }

    pub(crate) fn host_mut(&mut self) -> Option<&mut host::Applied> {
        self.host.as_mut()
    }

    /// Sets the output of hooks. The default is standard output, as in wg-quick.
    #[must_use]
    pub fn hook_output(mut self, output: HookOutput) -> Self {
        self.hook_output = output;
        self
    }

    /// Sets whether packets between peers are relayed without the host under `Routing = babel`. The default is yes. For
    /// tunnels without a routing protocol see [`Builder::relay`].
    #[must_use]
    pub fn relays(mut self, relays: bool) -> Self {
        self.relays = relays;
        self
    }

    /// Sets the networks that the tunnel's machines reach through address translation, with this host's address.
    /// Forwarding is switched on. Everything is undone at the end.
    #[must_use]
    pub fn nat(mut self, gateway: Gateway) -> Self {
        self.nat = Some(gateway);
        self
    }

    /// The session's configuration. It can be changed until [`start`](Self::start).
    pub fn config_mut(&mut self) -> &mut Config {
        &mut self.config
    }

    /// Starts everything: hooks, device, control socket for `wg`, host. `builder` has the settings that the
    /// configuration does not contain. If this fails or is dropped, call [`stop`](Self::stop).
    ///
    /// The environment variable `WG_ENDPOINT_RESOLUTION_RETRIES` has the same meaning as for `wg`.
    ///
    /// # Errors
    /// The first step that fails.
    pub async fn start(&mut self, builder: Builder) -> Result<(), SessionError> {
        let name = &self.interface;
        if host::link_exists(name).await? {
            return Err(SessionError::InterfaceExists(name.clone()));
        }
        self.write_record()?;
        self.hooks().run("PreUp", &self.config.interface.pre_up).await?;

        let mut host_config = self.host_config(&self.config).await;
        host_config.fwmark = host::choose_fwmark(&host_config).await?;
        let builder = self.routing(builder, &host_config)?;
        let builder = configured(builder.fwmark(host_config.fwmark.unwrap_or(0)), &self.config);
        let device = builder.start(name);
        let device = device.map_err(|source| SessionError::Device { interface: name.clone(), source })?;
        let handle = device.handle();
        self.device = Some(device);
        self.uapi = Some(uapi::Server::start_by(open_socket, name, handle)?);

        let applied = host::apply(&host_config).await?;
        for warning in applied.warnings() {
            tracing::warn!("{name}: {warning}");
        }
        self.host = Some(applied);
        self.complete = true;
        self.write_record()?;
        Ok(self.hooks().run("PostUp", &self.config.interface.post_up).await?)
    }

    /// Writes the record for other processes: see [`session_record`](crate::session_record).
    fn write_record(&self) -> Result<(), SessionError> {
        let interface = &self.config.interface;
        let hooks = self.complete.then(|| DownHooks {
            pre_down: interface.pre_down.clone(),
            post_down: interface.post_down.clone(),
            file: self.path().map(Path::to_owned),
            namespace: host::namespace(),
        });
        Ok(SessionRecord { file: self.file.clone(), hooks }.write(&self.interface)?)
    }

    fn hooks(&self) -> Hooks<'_> {
        let file = self.file.as_ref().map(LoadedFile::path);
        Hooks { interface: &self.interface, file, output: self.hook_output }
    }

    /// The device, if it is started.
    pub fn device(&self) -> Option<&Device> {
        self.device.as_ref()
    }

    /// Undoes everything. Failures are logged and do not stop the remaining steps.
    pub async fn stop(mut self) {
        let interface = &self.config.interface;
        if self.complete {
            report(self.hooks().run("PreDown", &interface.pre_down).await);
            if interface.save_config
                && let Some(device) = &self.device
            {
                report(self.save(&device.handle()).await);
            }
        }
        drop(self.uapi.take());
        if let Some(device) = self.device.take() {
            device.shutdown().await;
        }
        match self.host.take() {
            Some(host) => report(host.undo().await),
            // The set-up may have stopped in the middle. The record shows how far it got.
            None => report(host::cleanup(&host::record_path(&self.interface)).await.map(drop)),
        }
        if self.complete {
            report(self.hooks().run("PostDown", &self.config.interface.post_down).await);
        }
        SessionRecord::remove(&self.interface);
    }

    /// SaveConfig: writes the device's current state to the file.
    async fn save(&self, device: &DeviceHandle) -> Result<(), SessionError> {
        let (Some(_), Ok((status, secrets))) = (&self.file, device.status_with_secrets().await) else {
            return Ok(());
        };
        Ok(TunnelFile::open(&self.interface)?.save_device(Config::of_device(&status, &secrets))?)
    }

    fn routing(&self, builder: Builder, host: &HostConfig) -> Result<Builder, RoutingError> {
        match self.config.interface.routing {
            Routing::Static => Ok(builder),
            Routing::Members => Ok(self.members(builder)),
            #[cfg(feature = "babel")]
            Routing::Babel => crate::babel::speaker(builder, &self.config.interface, host, self.relays),
            #[cfg(not(feature = "babel"))]
            Routing::Babel => {
                let _ = (host, self.relays);
                Err(RoutingError::NotBuilt)
            }
        }
    }

    /// Lets several peers have the same prefix. Packets for this machine's own announced prefixes go to its host, even
    /// if other members announce them too: two members that send them to each other would make a loop.
    fn members(&self, builder: Builder) -> Builder {
        let interface = &self.config.interface;
        let addresses = interface.addresses.iter().map(|net| IpNet::from(net.addr()));
        builder.routing(Members::default()).announce(addresses.chain(interface.announce.iter().copied()))
    }

    /// The host's set-up for a configuration of this session.
    pub(crate) async fn host_config(&self, config: &Config) -> HostConfig {
        let interface = &config.interface;
        HostConfig {
            addresses: interface.addresses.clone(),
            mtu: interface.mtu.map(Into::into),
            dns: interface.dns.clone(),
            dns_search: interface.dns_search.clone(),
            table: interface.table,
            allowed_ips: config.routes(),
            // A server of a network has routes to its members: one for each pool.
            learned: interface.routing.learns() && interface.network.is_none(),
            fwmark: interface.fwmark,
            endpoints: endpoints(config).await,
            through_peers: config.leads_through_peers(),
            nat: self.nat.clone().or_else(|| config.gateway().filter(|_| interface.nat == Some(true))),
            record: Some(host::record_path(&self.interface)),
            ..HostConfig::new(&self.interface)
        }
    }
}

/// The peers' endpoints, for the MTU: addresses, and names that resolve quickly.
async fn endpoints(config: &Config) -> Vec<SocketAddr> {
    if config.interface.mtu.is_some() {
        return Vec::new();
    }
    let paths = config.peers.iter().flat_map(|peer| &peer.endpoints);
    let lookups = paths.filter(|path| !matches!(path.endpoint, EndpointSpec::Peer(_))).map(async |path| {
        let lookup = tokio::net::lookup_host(path.endpoint.to_string());
        match tokio::time::timeout(MTU_LOOKUP, lookup).await {
            Ok(Ok(addresses)) => addresses.collect(),
            _ => Vec::new(),
        }
    });
    futures_util::future::join_all(lookups).await.into_iter().flatten().collect()
}

/// Undoes the changes of a process that was killed: its set-up of the host and its control socket. Returns `false` if
/// there was nothing to undo.
///
/// # Errors
/// Another process runs this interface, or a step cannot be undone.
pub async fn clean_up(interface: &str) -> Result<bool, SessionError> {
    let run = RunFile::claim(interface)?;
    if !clean_up_host(interface).await? && !run.left_behind() {
        return Ok(false);
    }
    let removed = uapi::clean_up(interface).and_then(|()| remove_dead(&run_file::reload_socket(interface)).map(drop));
    removed.map_err(|source| SessionError::ControlSocketLeft { interface: interface.to_owned(), source })?;
    Ok(true)
}

/// Undoes what a killed process has changed on the host, and runs its recorded PreDown and PostDown. The interface is
/// gone, so commands that need it fail, and are named in the log.
async fn clean_up_host(interface: &str) -> Result<bool, SessionError> {
    let record = SessionRecord::read(interface).unwrap_or_else(|error| {
        tracing::warn!("{}; PreDown and PostDown of the killed {interface} do not run", chain(&error));
        None
    });
    let record = record.unwrap_or_default();
    // Standard output is for the results of this process's own command.
    let file = record.hooks.as_ref().and_then(|hooks| hooks.file.as_deref());
    let hooks = Hooks { interface, file, output: HookOutput::Stderr };
    let owed = record.owed(interface).unwrap_or_else(|reason| {
        let commands = record.hooks.iter().flat_map(|hooks| hooks.pre_down.iter().chain(&hooks.post_down));
        for command in commands {
            tracing::warn!("{interface} was killed, and its hook `{command}` does not run: {reason}");
        }
        None
    });
    if let Some(owed) = owed {
        hooks.run_late("PreDown", &owed.pre_down).await;
        // If the next step fails, a later process tries it again, but does not run PreDown again.
        let post_down = DownHooks { pre_down: Vec::new(), ..owed.clone() };
        report(SessionRecord { hooks: Some(post_down), ..record.clone() }.write(interface));
    }
    let undone = host::cleanup(&host::record_path(interface)).await?;
    if let Some(owed) = owed {
        hooks.run_late("PostDown", &owed.post_down).await;
    }
    SessionRecord::remove(interface);
    Ok(undone || owed.is_some())
}

/// Whether a killed process left changes to the host, or hooks that have not run, under this name.
pub fn left_behind(name: &str) -> bool {
    interface::check_name(name).is_ok() && (host::record_path(name).exists() || SessionRecord::exists(name))
}

fn report<E: Error + 'static>(result: Result<(), E>) {
    if let Err(error) = result {
        tracing::error!("{}", chain(&error));
    }
}
