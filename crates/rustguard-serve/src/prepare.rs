//! Preparation of `serve`, before there is an interface: every error is found before anything is changed.

use crate::{
    clock::now,
    counters::Counters,
    folder::{Folder, FolderError},
    peer::to_update,
    settings::Settings,
    store::{FileStore, FileStoreError},
};
use ipnet::IpNet;
use rustguard_crypto::{random::SystemRng, x25519::StaticSecret};
use rustguard_device::{Builder, Datagrams, Relay, key};
use rustguard_enroll::{
    ledger::{Ledger, LedgerError, Policy},
    pool::{PoolError, Pools},
    server::{Server, ServerConfig, ServerError},
    store::LeaseStore,
    token::Passphrase,
    wire::is_enrolment,
};
use std::{sync::Arc, time::Duration};

/// Datagrams that may wait for the server: some 20 ms of work at what a handshake costs.
const QUEUE: usize = 512;
/// Seconds between the keepalives of joined machines: they are mostly behind address translation, and reachable only as long
/// as that remembers them.
const KEEPALIVE: u16 = 25;

/// A server whose state has been read and checked, and that has no device yet. [`configure`](Self::configure) makes it
/// [`Configured`].
pub struct Prepared<S = FileStore> {
    interface: String,
    settings: Settings,
    server: Server<S>,
    passphrase: Option<Passphrase>,
    folder: Folder,
    identity: StaticSecret,
}

/// A server whose device has been configured: [`Service::start`](crate::Service::start) takes it with the running device.
pub struct Configured<S = FileStore> {
    pub(crate) interface: String,
    pub(crate) settings: Settings,
    pub(crate) server: Server<S>,
    pub(crate) passphrase: Option<Passphrase>,
    pub(crate) folder: Folder,
    pub(crate) datagrams: Datagrams,
    pub(crate) counters: Arc<Counters>,
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
        let policy = Policy::default().with_lease_time(settings.lease_seconds.map(Duration::from_secs));
        let now = now();
        let ledger = Ledger::open(store, pools, policy, now)?;
        let config = ServerConfig::default()
            .with_addresses(settings.own_addresses().iter().map(IpNet::addr).collect())
            .with_routes(settings.advised_routes())
            .with_dns(settings.dns.clone())
            .with_search(settings.search.clone())
            .with_keepalive(KEEPALIVE);
        let server = Server::new(identity.clone(), ledger, &config, now, &mut SystemRng)?;
        if folder.settings()?.as_ref() != Some(&settings) {
            folder.set_settings(&settings)?;
        }
        Ok(Self { interface: interface.to_owned(), settings, server, passphrase, folder: folder.clone(), identity })
    }

    /// What the interface is to have: the server's own address in each pool, with the pool's length.
    pub fn addresses(&self) -> Vec<IpNet> {
        self.settings.own_addresses()
    }

    /// Whether peers are kept from reaching each other.
    pub fn isolates(&self) -> bool {
        self.settings.isolate
    }

    /// Tells the device its key, port and peers, and that enrolment shares its port. The device is then built of the first, and
    /// served by the second.
    #[must_use]
    pub fn configure(self, builder: Builder) -> (Builder, Configured<S>) {
        let Self { interface, settings, server, passphrase, folder, identity } = self;
        let local = settings.own_addresses().iter().map(IpNet::addr).collect();
        let relay = if settings.isolate { Relay::Isolate } else { Relay::Always { local } };
        let counters = Arc::<Counters>::default();
        let shown = Arc::clone(&counters);
        let (builder, datagrams) = builder
            .private_key(identity)
            .listen_port(settings.port)
            .relay(relay)
            .counters(move || shown.snapshot())
            .datagrams(is_enrolment, QUEUE);
        let endpoints = folder.endpoints();
        let peers = server.peers().map(|peer| {
            let endpoint = endpoints.get(&*key::to_base64(&peer.public_key.0)).copied();
            to_update(peer).endpoints(endpoint.map(Into::into))
        });
        let builder = peers.fold(builder, Builder::peer);
        (builder, Configured { interface, settings, server, passphrase, folder, datagrams, counters })
    }
}
