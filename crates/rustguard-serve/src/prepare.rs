//! Preparation of `serve`, before the interface exists. All errors are found before anything is changed.

use crate::{
    clock::now,
    counters::Counters,
    documents, endpoints,
    held::Held,
    imported::{self, Record},
    network::{
        Planned,
        key_before::{KeyBefore, KeyBeforeError},
        replaced::Replaced,
    },
    peer::to_update,
    policy::PolicyError,
    seat::{Seat, keys::SessionKeys},
    settings::{Settings, SettingsError},
    store::{FileStore, FileStoreError, LEASES},
    words::called,
};
use ipnet::IpNet;
use rustguard_core::host_port::HostPort;
use rustguard_crypto::{random::SystemRng, x25519::StaticSecret};
use rustguard_device::{Builder, Datagrams, PathSpec, Relay, Texts, key};
use rustguard_enroll::{
    lease::Lease,
    ledger::{Ledger, LedgerError, Policy},
    pool::Pools,
    server::{Server, ServerError},
    store::LeaseStore,
    token::Passphrase,
    wire::is_enrolment,
};
use rustguard_network::{
    Driver, Folder, FolderError,
    roster::{key::NetworkKey, roster::MAX_MEMBERS},
};
use std::{collections::BTreeMap, path::PathBuf, sync::Arc, time::Duration};

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
    key_before: Option<KeyBefore>,
    network: Option<Planned>,
    policy: Option<PathBuf>,
    policy_is_new: bool,
    calls: BTreeMap<String, imported::Calls>,
    seat: Option<Seat>,
}

/// A server whose device is configured. [`Service::start`](crate::Service::start) takes it with the running device.
pub struct Configured<S = FileStore> {
    pub(crate) interface: String,
    pub(crate) settings: Settings,
    pub(crate) server: Server<S>,
    pub(crate) passphrase: Option<Passphrase>,
    pub(crate) folder: Folder,
    pub(crate) identity: StaticSecret,
    pub(crate) key_before: Option<KeyBefore>,
    pub(crate) datagrams: Datagrams,
    pub(crate) counters: Arc<Counters>,
    pub(crate) network: Option<(Planned, Texts)>,
    pub(crate) policy: Option<PathBuf>,
    pub(crate) policy_is_new: bool,
    pub(crate) held: Held,
    pub(crate) seat: Option<Seat>,
}

/// Why the server cannot start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PrepareError {
    /// The state folder cannot be used.
    #[error(transparent)]
    Folder(#[from] FolderError),
    /// Another machine has taken the place of this server.
    #[error(transparent)]
    Replaced(#[from] Replaced),
    /// The server's previous key cannot be read.
    #[error(transparent)]
    KeyBefore(#[from] KeyBeforeError),
    /// The settings cannot be used.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// The store cannot be used.
    #[error(transparent)]
    Store(#[from] FileStoreError),
    /// The leases cannot be used.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    /// Members of a network would become machines of a star.
    #[error(
        "{} joined a network, in which machines have sessions of their own, and cannot be in a star: start without --star and \
         --isolate (`--star=off --isolate=off`), or remove {} before (rustguard peer rm)",
        names(.0), if .0.len() == 1 { "it" } else { "them" }
    )]
    Members(Vec<String>),
    /// The policy cannot be used.
    #[error(transparent)]
    Policy(#[from] PolicyError),
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
        // This comes before the store, which creates its folder.
        settings.check()?;
        Self::with_store(interface, folder, settings, passphrase, FileStore::open(&folder.path(LEASES))?)
    }

    /// Like [`new`](Self::new), on a store that several servers share. `settings` are those that
    /// [`SharedStore::take`](crate::SharedStore::take) has returned.
    ///
    /// # Errors
    /// See [`PrepareError`].
    pub fn with_seat(
        interface: &str,
        folder: &Folder,
        settings: Settings,
        passphrase: Option<Passphrase>,
        seat: Seat,
    ) -> Result<Self, PrepareError> {
        let store = FileStore::open(&folder.path(LEASES))?;
        Self::build(interface, folder, settings, passphrase, store, Some(seat))
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
        Self::build(interface, folder, settings, passphrase, store, None)
    }

    fn build(
        interface: &str,
        folder: &Folder,
        settings: Settings,
        passphrase: Option<Passphrase>,
        store: S,
        seat: Option<Seat>,
    ) -> Result<Self, PrepareError> {
        settings.check()?;
        if let Some(replaced) = Replaced::load(folder)? {
            return Err(replaced.into());
        }
        let pools = Pools::new(&settings.pools).map_err(SettingsError::Pool)?;
        let (now, identity) = (now(), folder.private_key()?);
        let key_before = KeyBefore::load(folder, &identity.public_key(), now)?;
        let mut policy = Policy::default().with_lease_time(settings.lease_seconds.map(Duration::from_secs));
        if let Some(seconds) = settings.ephemeral_seconds {
            policy = policy.with_ephemeral(Duration::from_secs(seconds));
        }
        if settings.has_network() {
            // All leases and this server fit into a roster.
            policy = policy.with_max_leases(if seat.is_some() { MAX_MEMBERS } else { MAX_MEMBERS - 1 });
        }
        // Each of several servers has a lease.
        let pools = if seat.is_some() { pools.without_own() } else { pools };
        let ledger = Ledger::open(store, pools, policy, now)?;
        fits_kind(&settings, &ledger)?;
        let before = || key_before.as_ref().map(|before| before.secret.clone());
        // Invites name the key that all servers answer.
        let of_invites = seat.as_ref().map_or_else(|| identity.clone(), |seat| seat.gateway.clone());
        let mut server = Server::new(of_invites.clone(), ledger, &settings.to_config(), now, &mut SystemRng)?;
        server.set_keys(of_invites, before())?;
        let mut network = match settings.has_network() {
            true => Some(Planned::open(folder, interface, identity.clone(), key_before.as_ref(), now)?),
            false => None,
        };
        if let Some(seat) = &seat {
            server.share(now);
            if let Some(network) = &mut network {
                // The leases may be newer than the position that was kept, so it gives no number to a roster.
                let revision = if seat.link.has_read() { seat.link.revision() } else { 0 };
                network.share(&seat.gateway, revision, seat.link.documents());
            }
        }
        let server = server.with_network(network.as_ref().map(|network| network.key().0));
        let calls = Record::load(folder)?.map(|record| record.calls).unwrap_or_default();
        let (interface, folder) = (interface.to_owned(), folder.clone());
        Ok(Self {
            interface,
            settings,
            server,
            passphrase,
            folder,
            identity,
            key_before,
            network,
            policy: None,
            policy_is_new: false,
            calls,
            seat,
        })
    }

    /// Sets the policy file of the network, such as [`policy_path`](crate::policy_path), and reads it. Without such a
    /// file, everything is allowed. It is read again when the settings are.
    ///
    /// # Errors
    /// See [`PolicyError`].
    pub fn with_policy(mut self, path: PathBuf) -> Result<Self, PolicyError> {
        // Servers on a store keep the policy of all in the state folder.
        let path = if self.seat.is_some() { self.folder.path(documents::POLICY) } else { path };
        match &mut self.network {
            Some(network) => self.policy_is_new = network.read_policy(&path)?,
            None if path.exists() => return Err(PolicyError::Star(path)),
            None => {}
        }
        self.policy = Some(path);
        Ok(self)
    }

    /// The addresses for the interface: the server's own address in each pool, with the pool's prefix length.
    pub fn addresses(&self) -> Vec<IpNet> {
        self.settings.own_addresses()
    }

    /// The network's key; `None` in a star. The server of a network speaks Babel with further servers.
    pub fn network(&self) -> Option<NetworkKey> {
        self.network.as_ref().map(Planned::key)
    }

    /// The server's private key.
    pub fn identity(&self) -> &StaticSecret {
        &self.identity
    }

    /// Whether traffic between peers is blocked.
    pub fn isolates(&self) -> bool {
        self.settings.isolate
    }

    /// Sets the device's key, port and peers, and lets enrolment share its port. Build the device from the returned
    /// builder, and pass the returned `Configured` to the service.
    #[must_use]
    pub fn configure(self, builder: Builder) -> (Builder, Configured<S>) {
        let Self {
            interface,
            settings,
            server,
            passphrase,
            folder,
            identity,
            key_before,
            network,
            policy,
            policy_is_new,
            calls,
            seat,
        } = self;
        let local = settings.own_addresses().iter().map(IpNet::addr).collect();
        let relay = if settings.isolate { Relay::Isolate } else { Relay::Always { local } };
        let counters = Arc::<Counters>::default();
        let shown = Arc::clone(&counters);
        let (builder, datagrams) = builder
            .private_key(identity.clone())
            .listen_port(settings.port)
            .pools(settings.pools.iter().map(IpNet::trunc))
            .relay(relay)
            .counters(move || shown.snapshot())
            .datagrams(is_enrolment, QUEUE);
        let endpoints = endpoints::load(&folder);
        let (has_standbys, mut held) = (server.ledger().leases().any(Lease::is_standby), Held::default());
        let keys = seat.as_ref().map(|seat| SessionKeys::of(seat, identity.public_key()));
        let update = |peer| match &keys {
            Some(keys) => keys.update(peer),
            None => Some(to_update(peer)),
        };
        let peers = server.peers().filter_map(|peer| {
            let name = key::to_base64(&peer.public_key.0);
            let calls = calls.get(&**name);
            let configured = calls.and_then(|calls| calls.endpoint.as_ref()?.parse::<HostPort>().ok());
            // The stored endpoint is newer than the endpoint in the imported file.
            let stored = endpoints.get(&**name).map(|at| PathSpec::from(*at));
            let endpoint = stored.or(configured.map(Into::into)).filter(|_| peer.endpoints.is_empty());
            let update = update(peer)?.endpoints(endpoint);
            let update = match calls.and_then(|calls| calls.keepalive) {
                Some(seconds) => update.persistent_keepalive(Duration::from_secs(seconds.into())),
                None => update,
            };
            Some(if has_standbys { held.hold(update) } else { update })
        });
        let builder = peers.fold(builder, Builder::peer);
        let (builder, network) = match network {
            Some(network) => {
                let (builder, texts) = Driver::texts(builder.forward(true).policy(network.policy()));
                (builder, Some((network, texts)))
            }
            None => (builder, None),
        };
        let configured = Configured {
            interface,
            settings,
            server,
            passphrase,
            folder,
            identity,
            key_before,
            datagrams,
            counters,
            network,
            policy,
            policy_is_new,
            held,
            seat,
        };
        (builder, configured)
    }
}

/// Whether a server with these settings could use the leases of its earlier runs.
pub(crate) fn fits<S: LeaseStore>(settings: &Settings, ledger: &Ledger<S>) -> Result<(), PrepareError> {
    let pools = Pools::new(&settings.pools).map_err(SettingsError::Pool)?;
    ledger.fits(&if ledger.is_shared() { pools.without_own() } else { pools })?;
    fits_kind(settings, ledger)
}

/// Whether all machines fit the kind of network: a star has no members.
fn fits_kind<S: LeaseStore>(settings: &Settings, ledger: &Ledger<S>) -> Result<(), PrepareError> {
    let members = ledger.leases().filter(|lease| lease.member && !settings.has_network());
    let members: Vec<_> = members.map(called).collect();
    if members.is_empty() { Ok(()) } else { Err(PrepareError::Members(members)) }
}

/// Some of the names.
fn names(names: &[String]) -> String {
    const SHOWN: usize = 5;
    let others = names.len().saturating_sub(SHOWN);
    let shown = names[..names.len().min(SHOWN)].join(", ");
    if others == 0 { shown } else { format!("{shown} and {others} others") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustguard_crypto::x25519::PublicKey;
    use rustguard_enroll::{
        lease::{PresharedKey, Terms},
        ledger::{Grant, Request},
        store::MemoryStore,
    };

    #[test]
    fn members_cannot_be_in_a_star() {
        let dir = tempfile::tempdir().unwrap();
        let folder = Folder::open_at(&dir.path().join("rg0")).unwrap();
        let settings = Settings { pools: vec!["10.83.41.0/24".parse().unwrap()], ..Settings::default() };
        let prepare = |member: bool, settings: &Settings| {
            let pools = Pools::new(&settings.pools).unwrap();
            let mut ledger = Ledger::open(MemoryStore::default(), pools, Policy::default(), now()).unwrap();
            let (psk, grant) = (PresharedKey::from_bytes(&[5; 32]), Grant::Admin(Terms::default()));
            let request = Request::new(PublicKey([2; 32]), psk, grant).with_name("desk".to_owned());
            ledger.admit(request.with_member(member), now()).unwrap();
            let prepared = Prepared::with_store("rg0", &folder, settings.clone(), None, ledger.into_store());
            prepared.map(drop).map_err(|error| error.to_string())
        };
        let mut star = settings.clone();
        star.network.star = true;
        assert_eq!(prepare(false, &star), Ok(()));
        assert_eq!(prepare(true, &settings), Ok(()));
        for apart in [star, Settings { isolate: true, ..settings }] {
            let error = prepare(true, &apart).unwrap_err();
            assert!(error.starts_with("desk joined a network") && error.contains("--star=off"), "{error}");
        }
        let many: Vec<_> = (0..7).map(|number| number.to_string()).collect();
        assert_eq!(names(&many), "0, 1, 2, 3, 4 and 2 others");
    }
}
