//! Everything that `serve` needs before there is an interface: whatever is wrong is said before anything is changed.

use crate::{
    folder::{Folder, FolderError},
    service::{self, Counters},
    settings::Settings,
    store::{FileStore, FileStoreError},
};
use ipnet::IpNet;
use rustguard_crypto::x25519::StaticSecret;
use rustguard_device::{Builder, Datagram, Relay, key};
use rustguard_enroll::{
    ledger::{Ledger, LedgerError, Policy},
    pool::{PoolError, Pools},
    server::{Server, ServerConfig, ServerError},
    store::LeaseStore,
    token::Passphrase,
    wire::is_enrolment,
};
use std::{sync::Arc, time::Duration};
use tokio::sync::mpsc;

/// Datagrams that may wait for the server: some 20 ms of work at what a handshake costs.
const QUEUE: usize = 512;
/// Seconds between the keepalives of joined machines: they are mostly behind address translation, and reachable only as long
/// as that remembers them.
const KEEPALIVE: u16 = 25;

/// A server that is ready to have a device.
pub struct Prepared<S = FileStore> {
    pub(crate) interface: String,
    pub(crate) settings: Settings,
    pub(crate) server: Server<S>,
    pub(crate) passphrase: Option<Passphrase>,
    pub(crate) datagrams: mpsc::Receiver<Datagram>,
    pub(crate) folder: Folder,
    pub(crate) counters: Arc<Counters>,
    pub(crate) identity: StaticSecret,
}

/// Why nothing can be served.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PrepareError {
    /// The state folder.
    #[error(transparent)]
    Folder(#[from] FolderError),
    /// The pools.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// The store.
    #[error(transparent)]
    Store(#[from] FileStoreError),
    /// The leases.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    /// What joiners would be told.
    #[error(transparent)]
    Server(#[from] ServerError),
}

impl Prepared {
    /// Reads the state of `interface` from `folder` and checks it against `settings`, which are kept from then on. A window is
    /// opened for `passphrase`; where there is none, for a code.
    ///
    /// # Errors
    /// See [`PrepareError`]; nothing has been changed then.
    pub fn new(
        interface: &str,
        folder: &Folder,
        settings: Settings,
        passphrase: Option<Passphrase>,
    ) -> Result<Self, PrepareError> {
        Self::with_store(interface, folder, settings, passphrase, FileStore::open(&folder.path("leases"))?)
    }
}

impl<S: LeaseStore> Prepared<S> {
    /// As [`new`](Prepared::new), with the leases in a store of the embedder's own.
    ///
    /// # Errors
    /// See [`PrepareError`].
    pub fn with_store(
        interface: &str,
        folder: &Folder,
        settings: Settings,
        passphrase: Option<Passphrase>,
        store: S,
    ) -> Result<Self, PrepareError> {
        let pools = Pools::new(&settings.pools)?;
        let identity = folder.private_key()?;
        let policy = Policy { lease_time: settings.lease_seconds.map(Duration::from_secs), ..Policy::default() };
        let now = service::now();
        let ledger = Ledger::open(store, pools, policy, now)?;
        let config = ServerConfig {
            addresses: settings.own_addresses().iter().map(IpNet::addr).collect(),
            routes: settings.advised_routes(),
            dns: settings.dns.clone(),
            search: settings.search.clone(),
            mtu: None,
            port: None,
            keepalive: Some(KEEPALIVE),
        };
        let server = Server::new(identity.clone(), ledger, &config, now, &mut rand::rng())?;
        if folder.settings()?.as_ref() != Some(&settings) {
            folder.set_settings(&settings)?;
        }
        Ok(Self {
            interface: interface.to_owned(),
            settings,
            server,
            passphrase,
            // Replaced by `configure`: until then there is nobody who sends.
            datagrams: mpsc::channel(1).1,
            folder: folder.clone(),
            counters: Arc::default(),
            identity,
        })
    }

    /// What the interface is to have: the server's own address in each pool, with the pool's length.
    pub fn addresses(&self) -> Vec<IpNet> {
        self.settings.own_addresses()
    }

    /// Whether peers are kept from reaching each other.
    pub fn isolates(&self) -> bool {
        self.settings.isolate
    }

    /// Tells the device its key, port and peers, and that enrolment shares its port.
    #[must_use]
    pub fn configure(&mut self, builder: Builder) -> Builder {
        let local = self.settings.own_addresses().iter().map(IpNet::addr).collect();
        let relay = if self.settings.isolate { Relay::Isolate } else { Relay::Always { local } };
        let counters = Arc::clone(&self.counters);
        let (builder, datagrams) = builder
            .private_key(self.identity.clone())
            .listen_port(self.settings.port)
            .relay(relay)
            .counters(move || counters.snapshot())
            .datagrams(is_enrolment, QUEUE);
        self.datagrams = datagrams;
        let endpoints = self.folder.endpoints();
        let peers = self.server.peers().map(|peer| {
            let endpoint = endpoints.get(&*key::to_base64(&peer.public_key.0)).copied();
            service::to_update(peer).endpoints(endpoint.map(Into::into))
        });
        peers.fold(builder, Builder::peer)
    }
}
