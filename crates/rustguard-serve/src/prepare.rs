//! Preparation of `serve`, before the interface exists. All errors are found before anything is changed.

use crate::{
    clock::now,
    counters::Counters,
    folder::{Folder, FolderError},
    peer::to_update,
    settings::{Settings, SettingsError},
    store::{FileStore, FileStoreError},
};
use ipnet::IpNet;
use rustguard_crypto::{random::SystemRng, x25519::StaticSecret};
use rustguard_device::{Builder, Datagrams, Relay, key};
use rustguard_enroll::{
    ledger::{Ledger, LedgerError, Policy},
    pool::Pools,
    server::{Server, ServerError},
    store::LeaseStore,
    token::Passphrase,
    wire::is_enrolment,
};
use std::{sync::Arc, time::Duration};

/// The number of datagrams that may wait for the server. This is about 20 ms of work, at the cost of a handshake each.
const QUEUE: usize = 512;

/// A server whose state was read and checked. It has no device yet. [`configure`](Self::configure) converts it to
/// [`Configured`].
pub struct Prepared<S = FileStore> {
    interface: String,
    settings: Settings,
    server: Server<S>,
    passphrase: Option<Passphrase>,
    folder: Folder,
    identity: StaticSecret,
}

/// A server whose device is configured. [`Service::start`](crate::Service::start) takes it with the running device.
pub struct Configured<S = FileStore> {
    pub(crate) interface: String,
    pub(crate) settings: Settings,
    pub(crate) server: Server<S>,
    pub(crate) passphrase: Option<Passphrase>,
    pub(crate) folder: Folder,
    pub(crate) datagrams: Datagrams,
    pub(crate) counters: Arc<Counters>,
}

/// Why the server cannot start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PrepareError {
    /// The state folder cannot be used.
    #[error(transparent)]
    Folder(#[from] FolderError),
    /// The settings cannot be used.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// The store cannot be used.
    #[error(transparent)]
    Store(#[from] FileStoreError),
    /// The leases cannot be used.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    /// The settings cannot be sent to joiners.
    #[error(transparent)]
    Server(#[from] ServerError),
}

impl Prepared {
    /// Reads the state of `interface` from `folder`, and checks it against `settings`, which are stored when the
    /// [`Service`](crate::Service) has started. Windows use `passphrase` if there is one, and otherwise a code.
    ///
    /// # Errors
    /// See [`PrepareError`]. After an error nothing has changed.
    pub fn new(
        interface: &str,
        folder: &Folder,
        settings: Settings,
        passphrase: Option<Passphrase>,
    ) -> Result<Self, PrepareError> {
        // Before the store, which makes its folder.
        settings.check()?;
        Self::with_store(interface, folder, settings, passphrase, FileStore::open(&folder.path("leases"))?)
    }
}

impl<S: LeaseStore> Prepared<S> {
    /// Like [`new`](Prepared::new), with the leases in the embedder's own store.
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
        settings.check()?;
        let pools = Pools::new(&settings.pools).map_err(SettingsError::Pool)?;
        let identity = folder.private_key()?;
        let policy = Policy::default().with_lease_time(settings.lease_seconds.map(Duration::from_secs));
        let now = now();
        let ledger = Ledger::open(store, pools, policy, now)?;
        let server = Server::new(identity.clone(), ledger, &settings.to_config(), now, &mut SystemRng)?;
        Ok(Self { interface: interface.to_owned(), settings, server, passphrase, folder: folder.clone(), identity })
    }

    /// The addresses for the interface: the server's own address in each pool, with the pool's prefix length.
    pub fn addresses(&self) -> Vec<IpNet> {
        self.settings.own_addresses()
    }

    /// Whether traffic between peers is blocked.
    pub fn isolates(&self) -> bool {
        self.settings.isolate
    }

    /// Sets the device's key, port and peers, and lets enrolment share its port. Build the device from the returned
    /// builder, and pass the returned `Configured` to the service.
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
