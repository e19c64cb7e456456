//! `rustguard up --rootless`: a tunnel whose inside ends in this process, so that it needs no root and no TUN device.

mod forward;
mod http;
mod listen;
mod relay;
mod socks;
mod users;

use crate::{
    arguments::{data_path::DataPath, metrics::Metrics, rootless::Rootless},
    process::{
        lifetime::{self, Signals, Wakeup},
        log, metrics, runtime,
    },
};
use anyhow::{Context as _, Result, bail};
use ipnet::IpNet;
use rustguard_device::{AsyncMemoryHost, Device, HostPort, UdpBinder, tun::memory};
use rustguard_metrics::Source;
use rustguard_netstack::{Stack, TcpStream};
use rustguard_quick::{
    conf::{self, Config, Routing},
    configured,
};
use rustguard_tun::environment;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::{
    io,
    net::{IpAddr, SocketAddr},
    sync::Arc,
};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The MTU of a file without one, as wg-quick has it for links that carry 1,500 bytes.
const MTU: u16 = 1_420;
/// The most connections of programs of the host at once, and of machines inside the tunnel.
const CONNECTIONS: usize = 2_048;

/// What all ways into the tunnel share.
#[derive(Clone)]
struct Inside {
    stack: Stack,
    /// Whether names are asked inside the tunnel: the file has name servers.
    has_names: bool,
    from_host: Arc<Semaphore>,
    from_tunnel: Arc<Semaphore>,
}

/// Brings a tunnel up, and keeps it until a signal.
pub(crate) fn run(target: &str, rootless: &Rootless, metrics: &Metrics, data_path: &DataPath) -> Result<()> {
    let (path, interface) = conf::resolve_name(target)?;
    log::set_interface(&interface);
    let (config, _) = super::check::load(&path)?;
    fits(&interface, &config)?;
    log::start();
    allow_connections();
    // Those of connections.
    environment::separate_large_allocations();
    runtime()?.block_on(async {
        let mut signals = Signals::new()?;
        let own: Vec<_> = config.interface.addresses.iter().map(IpNet::addr).collect();
        let mtu = config.interface.mtu.unwrap_or(MTU);
        let stack = Stack::new(&config.interface.addresses, mtu.into())
            .with_context(|| format!("{interface}: the addresses and the MTU of the file"))?;
        let servers: Vec<_> = config.interface.dns.iter().map(|server| server.address()).collect();
        let inside = Inside {
            stack: stack.with_name_servers(&servers),
            has_names: !servers.is_empty(),
            from_host: Arc::new(Semaphore::new(CONNECTIONS)),
            from_tunnel: Arc::new(Semaphore::new(CONNECTIONS)),
        };
        let exporter = metrics::bind(metrics, &own)?;
        let mut ways = Vec::new();
        let users = rootless.proxy_users.as_deref().map(users::Users::read).transpose()?.map(Arc::new);
        if let Some(at) = rootless.socks {
            ways.push(socks::start(&inside, at, users.clone()).await?);
        }
        if let Some(at) = rootless.http {
            ways.push(http::start(&inside, at, users).await?);
        }
        for way in &rootless.forwards {
            ways.push(forward::forward(&inside, way).await?);
        }
        for way in &rootless.exposed {
            ways.push(forward::expose(&inside, way)?);
        }
        let (tun, host) = memory::tun().context("the packets between this process and its tunnel")?;
        let builder = configured(data_path.apply(Device::builder()).mtu(mtu.into()), &config);
        let device =
            builder.start_with(tun, UdpBinder::default()).with_context(|| format!("cannot start {interface}"))?;
        let packets = tokio::spawn({
            let stack = inside.stack.clone();
            let host = AsyncMemoryHost::new(host)?;
            async move { stack.run(host).await }
        });
        if let Some(exporter) = &exporter {
            exporter.attach(Source::new(&interface, device.handle()));
        }
        for way in &ways {
            tracing::info!("{interface}: {}", way.words);
        }
        if ways.is_empty() {
            tracing::warn!(
                "{interface}: no program reaches the tunnel: --socks, --http, --forward and --expose are ways into it"
            );
        }
        if !inside.has_names {
            tracing::info!("{interface}: names are resolved outside the tunnel, because the file has no DNS");
        }
        lifetime::ready(&interface);
        let ended = loop {
            match lifetime::wait(&interface, &device, &mut signals).await {
                Ok(Wakeup::Reload) => {
                    tracing::warn!("{interface}: a rootless tunnel takes a changed file when it starts again");
                }
                Ok(Wakeup::End) => break Ok(()),
                Err(error) => break Err(error),
            }
        };
        drop(ways);
        inside.stack.close().await;
        device.shutdown().await;
        // It ends with the device.
        let _ = packets.await;
        ended
    })
}

/// Each connection of this host takes a file descriptor, and the usual limit is 1,024.
fn allow_connections() {
    let limit = getrlimit(Resource::Nofile);
    let wanted = 2 * CONNECTIONS as u64 + 1_024;
    let current = limit.maximum.map_or(wanted, |maximum| maximum.min(wanted));
    if limit.current.is_some_and(|now| now < current) {
        // With the limit of before, fewer connections are possible.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: Some(current), ..limit });
    }
}

/// Refuses files that need a host, and says what is left out of others.
fn fits(interface: &str, config: &Config) -> Result<()> {
    let own = &config.interface;
    if own.network.is_some() {
        bail!("{interface} is a member of a network, and --rootless is for files of plain WireGuard so far");
    }
    if own.routing == Routing::Babel {
        bail!("{interface} has `Routing = babel`: it would forward packets for others, which takes an interface");
    }
    if own.addresses.is_empty() {
        bail!("{interface} has no Address: the inside of the tunnel needs one");
    }
    if [&own.pre_up, &own.post_up, &own.pre_down, &own.post_down].iter().any(|hooks| !hooks.is_empty()) {
        tracing::warn!("{interface}: the hooks of the file do not run, because there is no interface");
    }
    Ok(())
}

impl Inside {
    /// Room for one more connection of the host.
    fn room(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.from_host).try_acquire_owned().ok()
    }

    /// Connects to a machine inside the tunnel. Its addresses are tried one after the other.
    async fn connect(&self, to: &HostPort) -> io::Result<TcpStream> {
        let mut last = io::ErrorKind::NotFound.into();
        for address in self.resolve(to).await? {
            match self.stack.connect(address).await {
                Ok(stream) => return Ok(stream),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// The addresses of a machine, at least one.
    async fn resolve(&self, to: &HostPort) -> io::Result<Vec<SocketAddr>> {
        if let Some(address) = to.socket_addr() {
            return Ok(vec![address]);
        }
        let name = to.host().to_string();
        let addresses: Vec<IpAddr> = if self.has_names {
            self.stack.resolve(&name).await?
        } else {
            tokio::net::lookup_host((&*name, to.port())).await?.map(|at| at.ip()).collect()
        };
        if addresses.is_empty() {
            return Err(io::Error::new(io::ErrorKind::NotFound, format!("{name} has no address")));
        }
        Ok(addresses.into_iter().map(|address| SocketAddr::new(address, to.port())).collect())
    }
}

/// A way into the tunnel. It ends when it is dropped.
struct Way {
    words: String,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Way {
    fn drop(&mut self) {
        self.task.abort();
    }
}
