//! The mapping is asked for only while it is wanted ([`PortMapper::want`]), renewed at half its lifetime, and removed
//! at the end. The router's answer is trusted only as an address that peers try. A thread of its own talks to the
//! router: neither a large answer nor an endless one can delay control.

mod protocols;

use protocols::Mapping;
use std::{
    net::{Ipv4Addr, SocketAddrV4},
    num::NonZeroU16,
    sync::Arc,
    thread::JoinHandle,
    time::Duration,
};
use tokio::{
    sync::watch,
    time::{sleep, timeout},
};

/// The pause before the next attempt after a failure, or if no router answers.
const RETRY: Duration = Duration::from_secs(600);
/// The minimum time between two renewals, whatever lifetime the router gives.
const LEAST: Duration = Duration::from_secs(30);
/// How long the end waits for the router to remove the mapping. A mapping that the router keeps expires by itself.
const RELEASE: Duration = Duration::from_millis(300);

/// The mapping to ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wanted {
    /// The router.
    pub(crate) router: Ipv4Addr,
    /// Our address in the router's network.
    pub(crate) own: Ipv4Addr,
    /// The UDP port of the tunnel.
    pub(crate) port: NonZeroU16,
}

/// Keeps one port mapped.
pub(crate) struct PortMapper {
    /// The name of the interface.
    name: String,
    running: Option<(watch::Sender<Option<Wanted>>, JoinHandle<()>)>,
    found: Arc<dyn Fn(Option<SocketAddrV4>) + Send + Sync>,
}

impl PortMapper {
    /// `found` is called for each new mapping, and for its end (`None`), on the mapper's thread.
    pub(crate) fn new(name: &str, found: impl Fn(Option<SocketAddrV4>) + Send + Sync + 'static) -> Self {
        Self { name: name.to_owned(), running: None, found: Arc::new(found) }
    }

    /// Sets the mapping that is wanted; `None` for no mapping.
    pub(crate) fn want(&mut self, wanted: Option<Wanted>) {
        if let Some((sender, _)) = &self.running {
            sender.send_if_modified(|before| std::mem::replace(before, wanted) != wanted);
        } else if wanted.is_some() {
            let (sender, receiver) = watch::channel(wanted);
            let found = Arc::clone(&self.found);
            let thread = std::thread::Builder::new().name(format!("rg-{}-map", self.name)).spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
                match runtime {
                    Ok(runtime) => runtime.block_on(keep(receiver, &*found)),
                    Err(error) => tracing::debug!("no port is mapped: {error}"),
                }
            });
            match thread {
                Ok(thread) => self.running = Some((sender, thread)),
                Err(error) => tracing::debug!("no port is mapped: {error}"),
            }
        }
    }
}

impl Drop for PortMapper {
    fn drop(&mut self) {
        if let Some((sender, thread)) = self.running.take() {
            drop(sender);
            // The panic hook has printed a panic of that thread.
            let _ = thread.join();
        }
    }
}

/// Runs until the sender of `wanted` is dropped.
async fn keep(mut wanted: watch::Receiver<Option<Wanted>>, found: &dyn Fn(Option<SocketAddrV4>)) {
    let mut mapping: Option<Mapping> = None;
    loop {
        let now = *wanted.borrow_and_update();
        if let Some(other) = mapping.take_if(|mapping| Some(mapping.wanted) != now) {
            release(other).await;
            found(None);
        }
        let pause = match now {
            None => None,
            Some(now) => {
                let attempt = attempt(&mut mapping, now);
                let external = tokio::select! {
                    external = attempt => external,
                    changed = wanted.changed() => match changed {
                        Ok(()) => {
                            // The mapping may have been lost, without a new one yet.
                            if mapping.is_none() {
                                found(None);
                            }
                            continue;
                        }
                        Err(_) => break,
                    },
                };
                found(external);
                Some(mapping.as_ref().map_or(RETRY, |mapping| (mapping.lifetime / 2).max(LEAST)))
            }
        };
        let changed = tokio::select! {
            changed = wanted.changed() => changed,
            () = async { match pause {
                Some(pause) => sleep(pause).await,
                None => std::future::pending().await,
            } } => Ok(()),
        };
        if changed.is_err() {
            break;
        }
    }
    if let Some(mapping) = mapping {
        release(mapping).await;
    }
}

/// Renews the mapping, or asks for one. Returns the external address.
async fn attempt(mapping: &mut Option<Mapping>, wanted: Wanted) -> Option<SocketAddrV4> {
    let before = mapping.as_ref().map(|mapping| mapping.external);
    let renewed = match mapping {
        Some(mapping) => mapping.renew().await,
        None => false,
    };
    if !renewed {
        if let Some(lost) = mapping.take() {
            release(lost).await;
        }
        *mapping = Mapping::ask(wanted).await;
    }
    let external = mapping.as_ref().map(|mapping| mapping.external);
    if before != external {
        match mapping {
            Some(mapping) => tracing::info!(
                "the router {} passes on UDP port {} of {} (by {})",
                wanted.router,
                mapping.external.port(),
                mapping.external.ip(),
                mapping.protocol()
            ),
            None => tracing::info!("the router {} no longer passes the UDP port on", wanted.router),
        }
    }
    external
}

async fn release(mapping: Mapping) {
    if timeout(RELEASE, mapping.release()).await.is_err() {
        tracing::debug!("the router did not take the mapping back in time: it ends by itself");
    }
}

/// Whether others can send to an address that a router reports as its external one. Behind a second translation they
/// cannot.
pub(crate) fn is_outside(ip: Ipv4Addr) -> bool {
    let [first, second, ..] = ip.octets();
    let shared = first == 100 && second & 0xc0 == 64; // RFC 6598
    !(ip.is_private()
        || shared
        || first == 0
        || ip.is_loopback()
        || ip.is_link_local()
        || ip.is_multicast()
        || ip.is_broadcast())
}

#[cfg(test)]
mod tests;
