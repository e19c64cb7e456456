//! The zone, answered over UDP and TCP at this machine's addresses inside the network, only for this machine.
//!
//! A program on this machine that asks one of the machine's own addresses also uses one of them as its source. So a
//! query from any other address comes from another machine, and is not answered: nobody else can use this server, as a
//! resolver or for reflection attacks. A source can be forged, but then the answer stays on this machine.

mod forward;
mod listener;

use crate::dns::{PORT, zone::Zone};
use listener::Listener;
use std::{
    collections::HashMap,
    io,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};
use tokio::{sync::watch, task::JoinHandle};

/// How often it retries a port that is in use.
const RETRY: Duration = Duration::from_secs(30);

/// The pause after the first failure. It doubles up to [`RETRY`].
const FIRST_RETRY: Duration = Duration::from_millis(50);

/// Pauses up to this one are for the kernel: it shows a new IPv6 address on the interface before sockets can bind it.
const QUIET: Duration = Duration::from_secs(1);

/// A running server. It ends when it is dropped.
#[derive(Debug)]
pub struct Server {
    zone: watch::Sender<Arc<Zone>>,
    /// `None` until all addresses were tried.
    listening: watch::Receiver<Option<Vec<SocketAddr>>>,
    task: JoinHandle<()>,
}

impl Server {
    /// Starts answering at the zone's own addresses, on this port ([`PORT`]), inside the current tokio runtime.
    ///
    /// If that is impossible at an address, mostly because another program answers there, it logs this once and tries
    /// again: soon at first, then every 30 s.
    pub fn start(zone: Zone, port: u16) -> Self {
        let (zone, zones) = watch::channel(Arc::new(zone));
        let (listening_now, listening) = watch::channel(None);
        let task = tokio::spawn(serve(zones, port, listening_now));
        Self { zone, listening, task }
    }

    /// Answers from this zone from now on, at its addresses.
    pub fn set_zone(&self, zone: Zone) {
        self.zone.send_replace(Arc::new(zone));
    }

    /// The addresses where it answers at the moment.
    pub fn listening(&self) -> Vec<SocketAddr> {
        self.listening.borrow().clone().unwrap_or_default()
    }

    /// Waits until every address was tried.
    pub async fn tried(&mut self) {
        // An error means that the task has ended. It does not end before the server is dropped.
        let _ = self.listening.wait_for(Option::is_some).await;
    }

    /// Waits until [`listening`](Self::listening) has changed since the last call. The first call waits until every
    /// address was tried.
    pub async fn listening_changed(&mut self) {
        if self.listening.changed().await.is_err() {
            // The task has ended. It does not end before the server is dropped.
            std::future::pending::<()>().await;
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn serve(mut zones: watch::Receiver<Arc<Zone>>, port: u16, listening: watch::Sender<Option<Vec<SocketAddr>>>) {
    let mut listeners: HashMap<IpAddr, Listener> = HashMap::new();
    // The addresses whose failure was logged.
    let mut failed: Vec<IpAddr> = Vec::new();
    let mut pause = FIRST_RETRY;
    loop {
        let zone = zones.borrow_and_update().clone();
        let mut again = false;
        listeners.retain(|address, _| zone.own().contains(address));
        failed.retain(|address| zone.own().contains(address));
        for &address in zone.own() {
            if listeners.contains_key(&address) {
                continue;
            }
            match Listener::start(SocketAddr::new(address, port), zones.clone()) {
                Ok(listener) => {
                    if failed.contains(&address) {
                        tracing::info!("the names of {} are answered at {address} from now on", zone.domain());
                        failed.retain(|other| *other != address);
                    }
                    listeners.insert(address, listener);
                }
                Err(error) if error.kind() == io::ErrorKind::AddrNotAvailable && pause < QUIET => again = true,
                Err(error) if !failed.contains(&address) => {
                    let (domain, reason) = (zone.domain(), reason(&error));
                    tracing::warn!(
                        "the names of {domain} are not answered at {address}, because {reason}; the tunnel goes on without them, \
                         and the port is tried again every {} s",
                        RETRY.as_secs()
                    );
                    failed.push(address);
                }
                Err(_) => {}
            }
        }
        let mut places: Vec<_> = listeners.values().map(Listener::address).collect();
        places.sort_unstable();
        let places = Some(places);
        listening.send_if_modified(|now| std::mem::replace(now, places.clone()) != places);
        tokio::select! {
            changed = zones.changed() => {
                if changed.is_err() {
                    return;
                }
                pause = FIRST_RETRY;
            }
            () = tokio::time::sleep(pause), if again || !failed.is_empty() => pause = RETRY.min(pause * 2),
        }
    }
}

/// A message as in a stream: preceded by its length.
fn framed(message: &[u8]) -> io::Result<Vec<u8>> {
    let len = u16::try_from(message.len()).map_err(io::Error::other)?;
    Ok([&len.to_be_bytes(), message].concat())
}

fn reason(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::AddrInUse => {
            format!("another program has port {PORT} there (`ss -lnp sport = :{PORT}` names it)")
        }
        io::ErrorKind::PermissionDenied => format!("this process may not use port {PORT} (CAP_NET_BIND_SERVICE)"),
        io::ErrorKind::AddrNotAvailable => "no interface of this machine has the address".to_owned(),
        _ => error.to_string(),
    }
}
