//! A running `up`: what wg-quick does, step by step, and how it is undone, whichever step was the last.

use crate::{hooks, runfile::{Contents, RunFile}};
use anyhow::{Context as _, Result};
use rustguard_device::{
    Device, DeviceHandle, Update, conf,
    host::{self, HostConfig},
    uapi,
};
use std::{net::SocketAddr, path::PathBuf, time::Duration};

/// How long names may take to resolve before the MTU is computed without them. The tunnel itself does not wait for names.
const MTU_LOOKUP: Duration = Duration::from_secs(1);

/// Everything that is there because of one `up`. [`stop`](Self::stop) undoes all of it, in the opposite order.
pub(crate) struct Session {
    interface: String,
    path: PathBuf,
    config: conf::Config,
    run: RunFile,
    device: Option<Device>,
    uapi: Option<uapi::Server>,
    host: Option<host::Applied>,
    /// PostUp was reached: PreDown belongs to the way back.
    complete: bool,
}

impl Session {
    /// Takes the name and cleans up after a predecessor that was killed.
    pub(crate) async fn claim(interface: String, path: PathBuf, config: conf::Config) -> Result<Self> {
        let (run, left) = RunFile::claim(&interface)?;
        if let Some(record) = left.and_then(|left| left.host) {
            tracing::warn!("{interface} was not ended properly: cleaning up what was left");
            if let Err(error) = host::cleanup(&record).await {
                tracing::warn!("{error}");
            }
        }
        Ok(Self { interface, path, config, run, device: None, uapi: None, host: None, complete: false })
    }

    /// Brings everything up. If this fails, call [`stop`](Self::stop).
    pub(crate) async fn start(&mut self) -> Result<()> {
        let me = i32::try_from(std::process::id()).context("a process id beyond 31 bits")?;
        let contents = |host| Contents { pid: me, config: Some(self.path.clone()), host };
        self.run.write(&contents(None))?;
        let interface = &self.config.interface;
        if host::exists(&self.interface).await? {
            anyhow::bail!("{0} exists already and is not ours; choose another name or remove it (ip link delete {0})", self.interface);
        }
        hooks::run("PreUp", &interface.pre_up, &self.interface).await?;

        let mut builder = Device::builder().listen_port(interface.listen_port.unwrap_or(0)).fwmark(interface.fwmark.unwrap_or(0));
        if let Some(mtu) = interface.mtu {
            builder = builder.mtu(mtu.into());
        }
        if let Some(key) = &interface.private_key {
            builder = builder.private_key(key.clone());
        }
        for peer in &self.config.peers {
            builder = builder.peer(peer.to_update());
        }
        let device = builder.start(&self.interface)?;
        let handle = device.handle();
        self.device = Some(device);
        self.uapi = Some(uapi::Server::start(&self.interface, handle.clone())?);

        let applied = host::apply(&self.host_config().await).await?;
        self.run.write(&contents(Some(applied.record().clone())))?;
        let mark = applied.fwmark();
        self.host = Some(applied);
        if let Some(mark) = mark {
            handle.update(Update { fwmark: Some(mark), ..Update::default() }).await?;
        }
        self.complete = true;
        hooks::run("PostUp", &self.config.interface.post_up, &self.interface).await
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
        if let Some(host) = self.host.take() {
            report(host.undo().await.map_err(Into::into));
        }
        if self.complete {
            report(hooks::run("PostDown", &interface.post_down, &self.interface).await);
        }
    }

    /// SaveConfig: the file becomes what the device is now.
    async fn save(&self, device: &DeviceHandle) -> Result<()> {
        let Some(status) = device.status().await else { return Ok(()) };
        let config = self.config.with_status(&status);
        conf::write(&self.path, &config).with_context(|| format!("cannot save {}", self.path.display()))
    }

    async fn host_config(&self) -> HostConfig {
        let interface = &self.config.interface;
        HostConfig {
            interface: self.interface.clone(),
            addresses: interface.addresses.clone(),
            mtu: interface.mtu.map(Into::into),
            dns: interface.dns.clone(),
            dns_search: interface.dns_search.clone(),
            table: interface.table,
            allowed_ips: self.config.peers.iter().flat_map(|peer| peer.allowed_ips.iter().copied()).collect(),
            fwmark: interface.fwmark,
            endpoints: self.endpoints().await,
        }
    }

    /// Where the peers are, for the MTU: addresses, and those names that resolve at once.
    async fn endpoints(&self) -> Vec<SocketAddr> {
        if self.config.interface.mtu.is_some() {
            return Vec::new();
        }
        let lookups = self.config.peers.iter().filter_map(|peer| peer.endpoint.as_ref()).map(async |endpoint| {
            let lookup = tokio::net::lookup_host(endpoint.to_string());
            match tokio::time::timeout(MTU_LOOKUP, lookup).await {
                Ok(Ok(addresses)) => addresses.collect(),
                _ => Vec::new(),
            }
        });
        futures_util::future::join_all(lookups).await.into_iter().flatten().collect()
    }
}

fn report(result: Result<()>) {
    if let Err(error) = result {
        tracing::error!("{error:#}");
    }
}
