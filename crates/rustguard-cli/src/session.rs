//! A running `up`: what wg-quick does, step by step, and how it is undone, whichever step was the last.

use crate::{babel, hooks, runfile::RunFile};
use anyhow::{Context as _, Result, bail};
use ipnet::IpNet;
use rustguard_device::{Builder, Device, DeviceHandle, uapi};
use rustguard_quick::{
    conf::{self, Routing},
    host::{self, HostConfig},
};
use std::{net::SocketAddr, path::PathBuf, time::Duration};

/// How long names may take to resolve before the MTU is computed without them. The tunnel itself does not wait for names.
const MTU_LOOKUP: Duration = Duration::from_secs(1);

/// Everything that is there because of one `up`. [`stop`](Self::stop) undoes all of it, in the opposite order.
pub(crate) struct Session {
    interface: String,
    path: PathBuf,
    config: conf::Config,
    _run: RunFile,
    device: Option<Device>,
    uapi: Option<uapi::Server>,
    host: Option<host::Applied>,
    /// PostUp was reached: PreDown belongs to the way back.
    complete: bool,
}

impl Session {
    /// Takes the name and cleans up after a predecessor that was killed.
    pub(crate) async fn claim(interface: String, path: PathBuf, config: conf::Config) -> Result<Self> {
        let run = RunFile::claim(&interface)?;
        host::cleanup(&host::record_path(&interface)).await?;
        Ok(Self { interface, path, config, _run: run, device: None, uapi: None, host: None, complete: false })
    }

    /// Gives the interface addresses that no configuration file has.
    pub(crate) fn set_addresses(&mut self, addresses: Vec<IpNet>) {
        self.config.interface.addresses = addresses;
    }

    /// Brings everything up. If this fails, call [`stop`](Self::stop).
    /// `builder` has what the configuration does not say.
    ///
    /// With `relay`, what peers send to each other does not go through the host.
    pub(crate) async fn start(&mut self, builder: Builder, relay: bool) -> Result<()> {
        let name = &self.interface;
        if host::link_exists(name).await? {
            bail!(
                "the interface {name} exists already, and is not ours; choose another name, or remove it: ip link delete {name}"
            );
        }
        let interface = &self.config.interface;
        hooks::run("PreUp", &interface.pre_up, name).await?;

        let mut host_config = self.host_config().await;
        host_config.fwmark = host::choose_fwmark(&host_config).await?;
        let builder = match interface.routing {
            Routing::Static => builder,
            Routing::Babel => babel::speaker(builder, interface, &host_config, relay)?,
        };
        let mut builder = builder.fwmark(host_config.fwmark.unwrap_or(0));
        if let Some(port) = interface.listen_port {
            builder = builder.listen_port(port);
        }
        if let Some(mtu) = interface.mtu {
            builder = builder.mtu(mtu.into());
        }
        if let Some(key) = &interface.private_key {
            builder = builder.private_key(key.clone());
        }
        builder = builder.greet(interface.handshake_on_up.unwrap_or(true));
        if let Some(retries) = resolution_retries() {
            builder = builder.resolution_retries(retries);
        }
        for peer in &self.config.peers {
            builder = builder.peer(peer.to_update());
        }
        let device = builder.start(name).with_context(|| format!("cannot start {name}"))?;
        let handle = device.handle();
        self.device = Some(device);
        self.uapi = Some(uapi::Server::start(name, handle)?);

        let applied = host::apply(&host_config).await?;
        for warning in applied.warnings() {
            tracing::warn!("{name}: {warning}");
        }
        self.host = Some(applied);
        self.complete = true;
        hooks::run("PostUp", &self.config.interface.post_up, name).await
    }

    /// The device, once started.
    pub(crate) fn device(&self) -> Option<&Device> {
        self.device.as_ref()
    }

    /// Undoes everything. What fails on the way is reported and does not keep the rest from being undone.
    pub(crate) async fn stop(mut self) {
        let interface = self.config.interface.clone();
        if self.complete {
            report(hooks::run("PreDown", &interface.pre_down, &self.interface).await);
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
            Some(host) => report(host.undo().await.map_err(Into::into)),
            // A signal may have come in the middle of the set-up: the record knows how far it was.
            None => report(host::cleanup(&host::record_path(&self.interface)).await.map(drop).map_err(Into::into)),
        }
        if self.complete {
            report(hooks::run("PostDown", &interface.post_down, &self.interface).await);
        }
    }

    /// SaveConfig: the file becomes what the device is now.
    async fn save(&self, device: &DeviceHandle) -> Result<()> {
        let Some((status, secrets)) = device.status_with_secrets().await else { return Ok(()) };
        let config = self.config.with_status(&status, &secrets);
        conf::write(&self.path, &config).with_context(|| format!("cannot save {}", self.path.display()))
    }

    async fn host_config(&self) -> HostConfig {
        let interface = &self.config.interface;
        HostConfig {
            addresses: interface.addresses.clone(),
            mtu: interface.mtu.map(Into::into),
            dns: interface.dns.clone(),
            dns_search: interface.dns_search.clone(),
            table: interface.table,
            allowed_ips: self.config.peers.iter().flat_map(|peer| peer.allowed_ips.iter().copied()).collect(),
            learned: interface.routing == Routing::Babel,
            fwmark: interface.fwmark,
            endpoints: self.endpoints().await,
            record: Some(host::record_path(&self.interface)),
            ..HostConfig::new(&self.interface)
        }
    }

    /// Where the peers are, for the MTU: addresses, and those names that resolve at once.
    async fn endpoints(&self) -> Vec<SocketAddr> {
        if self.config.interface.mtu.is_some() {
            return Vec::new();
        }
        let lookups = self.config.peers.iter().flat_map(|peer| &peer.endpoints).map(async |path| {
            let lookup = tokio::net::lookup_host(path.endpoint.to_string());
            match tokio::time::timeout(MTU_LOOKUP, lookup).await {
                Ok(Ok(addresses)) => addresses.collect(),
                _ => Vec::new(),
            }
        });
        futures_util::future::join_all(lookups).await.into_iter().flatten().collect()
    }
}

/// wg's variable: a number, or `infinity`, which is what happens without it.
fn resolution_retries() -> Option<u32> {
    let text = std::env::var("WG_ENDPOINT_RESOLUTION_RETRIES").ok().filter(|text| text != "infinity")?;
    let retries = text.parse().ok();
    if retries.is_none() {
        tracing::warn!("WG_ENDPOINT_RESOLUTION_RETRIES={text} is neither a number nor `infinity`, and is ignored");
    }
    retries
}

fn report(result: Result<()>) {
    if let Err(error) = result {
        tracing::error!("{error:#}");
    }
}
