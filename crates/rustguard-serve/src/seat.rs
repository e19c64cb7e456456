//! The seat of a server on a store that several servers share.
//!
//! All servers of a network have the same secrets, settings and policy: they are documents of the log. Each server has
//! a WireGuard key, a lease and an endpoint of its own, and is a server of the roster by that lease. The key of the
//! first server is the *gateway key*: clients and invites name it, and every server answers it.
//!
//! The state folder is a copy: the leases, the documents, and the position up to which it has the log.

mod error;
pub(crate) mod keys;
pub(crate) mod next_key;
mod state;

use crate::{
    clock::now,
    documents::{self, base64, name_document, rosters, secret, server_document},
    network::{
        files::{self, Secrets},
        key_before::KeyBefore,
        names::Names,
    },
    policy::{policy_path, policy_text},
    replica::{
        Documents, MAX_SERVER, ReplicaError,
        decides::Decides,
        documents_from_bytes, documents_to_bytes,
        link::{Link, Reached},
    },
    settings::{Settings, SettingsError},
    store::{FileStore, LEASES, changes},
};
pub use error::SeatError;
use next_key::{next_key, take_next_key};
use rustguard_crypto::x25519::StaticSecret;
use rustguard_enroll::{
    lease::{PresharedKey, ServerRole, Terms, clean_name},
    ledger::{Grant, Ledger, Policy, Request},
    pool::Pools,
    store::{MemoryStore, State},
};
use rustguard_network::{
    Folder, FolderError,
    roster::{label::Label, roster::MAX_MEMBERS},
};
use rustguard_store::{Log, LogError, NetworkLog, key::StoreKey, log::Page, network::Position};
use serde::{Deserialize, Serialize};
use state::Copy;
use std::{
    fs::File,
    io::{self, BufRead as _, BufReader, Read as _},
    path::Path,
    sync::Arc,
};
use zeroize::Zeroizing;

/// The file of the state folder that names the store.
const STORE: &str = "store.json";
/// The file with the store key.
pub(crate) const STORE_KEY: &str = "store-key";
/// The file with the position and the documents there.
const POSITION: &str = "store-position";
/// The file with the policy that was last taken from the administrator's file.
pub(crate) const POLICY_TAKEN: &str = "policy-taken";

/// The chunks in which a folder's leases are put into an empty log, in changes. A lease has up to some hundred bytes.
const CHUNK: usize = 64;
/// How many lists other servers may have made of records that are gone and that this server has not seen.
const UNSEEN: u64 = 1_000;
/// How often a machine tries to become a server while others are faster.
const TRIES: u32 = 10;

/// The store of a state folder.
#[derive(Debug, Serialize, Deserialize)]
struct Kept {
    version: u32,
    /// The address of the store, as the command line has it.
    address: String,
}

/// The address of the store that a server with this state folder shares; `None` if it has none.
///
/// # Errors
/// See [`FolderError`].
pub fn store_of(folder: &Folder) -> Result<Option<String>, FolderError> {
    let Some(text) = folder.read(STORE)? else { return Ok(None) };
    match serde_json::from_slice::<Kept>(&text) {
        Ok(Kept { version: 1, address }) => Ok(Some(address)),
        Ok(Kept { version, .. }) => {
            let why = format!("version {version}; this program knows version 1");
            Err(FolderError::Damaged { path: folder.path(STORE), why })
        }
        Err(error) => Err(FolderError::Damaged { path: folder.path(STORE), why: error.to_string() }),
    }
}

/// A store that was read to its end. [`take`](Self::take) makes this machine one of its servers.
pub struct SharedStore {
    folder: Folder,
    address: String,
    key: StoreKey,
    link: Link,
    copy: Copy<FileStore>,
    /// The state in the log, if it is not that of the state folder.
    of_log: Option<Copy<MemoryStore>>,
    /// Whether this machine is one of the servers, or began to put its state into the store.
    is_known: bool,
    /// The revision that this server has seen, of a store that was set back and that the administrator accepts.
    set_back: Option<u64>,
}

/// The seat of this machine. [`Prepared::with_seat`](crate::Prepared::with_seat) takes it.
pub struct Seat {
    pub(crate) link: Link,
    pub(crate) gateway: StaticSecret,
    pub(crate) keeper: Keeper,
}

/// Keeps the position and the documents in the state folder.
pub(crate) struct Keeper(Folder);

impl Keeper {
    /// Stores what the link has.
    ///
    /// # Errors
    /// See [`FolderError`].
    pub(crate) fn keep(&self, link: &Link) -> Result<(), FolderError> {
        let documents = documents_to_bytes(link.documents());
        let mut text = Zeroizing::new(Vec::with_capacity(72 + documents.len()));
        text.extend_from_slice(&link.position().to_bytes());
        text.extend_from_slice(&documents);
        self.0.replace(POSITION, &text)
    }

    fn read(&self) -> Result<Option<(Position, Documents)>, FolderError> {
        let Some(text) = self.0.read_secret(POSITION)? else { return Ok(None) };
        let read = text.split_at_checked(72).and_then(|(position, documents)| {
            Some((Position::from_bytes(position)?, documents_from_bytes(documents)?))
        });
        let damaged = || FolderError::Damaged { path: self.0.path(POSITION), why: "it ends too early".to_owned() };
        read.map(Some).ok_or_else(damaged)
    }
}

/// The most bytes of a store key's text. A larger file is no store key.
const KEY_TEXT: usize = 128;

/// Reads the file with a store key; `-` is standard input.
///
/// # Errors
/// [`SeatError::KeyFile`].
pub fn read_store_key(path: &Path) -> Result<StoreKey, SeatError> {
    let is_stdin = path == Path::new("-");
    let shown = if is_stdin { Path::new("on standard input") } else { path };
    let failed = |why: String| SeatError::KeyFile { path: shown.to_owned(), why };
    let file: io::Result<Box<dyn io::Read>> = match is_stdin {
        true => Ok(Box::new(io::stdin())),
        false => File::open(path).map(|file| Box::new(file) as _),
    };
    // A line, so that a key can be typed.
    let mut text = Zeroizing::new(String::with_capacity(KEY_TEXT));
    let read =
        file.and_then(|file| BufReader::with_capacity(KEY_TEXT, file.take(KEY_TEXT as u64)).read_line(&mut text));
    read.map_err(|error| failed(error.to_string()))?;
    StoreKey::from_base64(&text).map_err(|error| failed(error.to_string()))
}

impl SharedStore {
    /// Reads a store, whose log `log` is, into the state folder. `key` is the store key, if the administrator has given
    /// one; otherwise it is that of the folder, or a new one for an empty log. `accept_older`: if the store was set
    /// back, this server goes on with what it says.
    ///
    /// # Errors
    /// See [`SeatError`].
    pub async fn read(
        folder: &Folder,
        address: &str,
        log: Arc<dyn Log>,
        key: Option<StoreKey>,
        accept_older: bool,
    ) -> Result<Self, SeatError> {
        let mut is_known = store_of(folder)?.is_some();
        let keeper = Keeper(folder.clone());
        let (position, mut documents) = match is_known {
            true => keeper.read()?.unwrap_or((Position::START, Documents::new())),
            false => (Position::START, Documents::new()),
        };
        let kept_key = match folder.read_secret(STORE_KEY)? {
            Some(text) => {
                let text = std::str::from_utf8(&text).ok().and_then(|text| StoreKey::from_base64(text).ok());
                let why = "it is no store key".to_owned();
                Some(text.ok_or_else(|| FolderError::Damaged { path: folder.path(STORE_KEY), why })?)
            }
            None => None,
        };
        let key = match (key, kept_key) {
            (Some(given), Some(kept)) if is_known && given.to_base64() != kept.to_base64() => {
                return Err(SeatError::OtherKey { path: folder.path(STORE_KEY) });
            }
            (Some(given), _) => given,
            (None, Some(kept)) => kept,
            (None, None) => {
                let page = log.read(0).await.map_err(ReplicaError::from)?;
                if !matches!(&page, Page::Entries { entries, .. } if entries.is_empty()) {
                    return Err(SeatError::NoKey { store: log.name() });
                }
                StoreKey::generate().map_err(FolderError::Random)?
            }
        };
        let mut copy = Copy::open(FileStore::open(&folder.path(LEASES))?)?;
        let mut log = NetworkLog::new(log, key.clone(), position);
        let mut set_back = None;
        let checked = match log.check().await {
            Err(LogError::RolledBack { .. } | LogError::Forked { .. }) if accept_older && is_known => {
                // From here on, the folder counts as that of a server with another state.
                (is_known, set_back, documents) = (false, Some(position.revision), Documents::new());
                log = NetworkLog::new(Arc::clone(log.log()), key.clone(), Position::START);
                Ok(())
            }
            Err(error) if error.is_unknown() && is_known && position != Position::START => Err(error),
            checked => Ok(checked.map_err(ReplicaError::from)?),
        };
        let (mut link, mut in_log) = (Link::new(log, server_name(), documents), None);
        if let Err(error) = checked {
            tracing::warn!(
                "{error}; this server starts with what it knows, and decides nothing until the store answers"
            );
        } else if is_known {
            link.follow();
            reach(&mut link, &mut copy).await?;
        } else {
            // The state of the folder is not that of the log.
            let mut of_log = Copy::open(MemoryStore::default())?;
            link.follow();
            reach(&mut link, &mut of_log).await?;
            let has_own = Settings::load(folder)?.is_some();
            let is_whole = link.documents().contains_key(documents::GATEWAY_KEY);
            // It became a server at a start that was interrupted before the folder said so.
            is_known = has_own && link.documents().contains_key(&server_document(&folder.private_key()?.public_key()));
            if has_own && is_whole && !is_known {
                return Err(SeatError::OtherNetwork { store: link.log().name(), folder: folder.as_path().to_owned() });
            }
            if is_whole {
                copy.replace(&of_log)?;
            } else if has_own || link.position().revision == 0 {
                in_log = Some(of_log);
            } else {
                return Err(SeatError::Unfinished { store: link.log().name() });
            }
        }
        let (folder, address) = (folder.clone(), address.to_owned());
        Ok(Self { folder, address, key, link, copy, of_log: in_log, is_known, set_back })
    }

    /// Whether the store has no network yet.
    pub fn is_new(&self) -> bool {
        !self.link.documents().contains_key(documents::GATEWAY_KEY)
    }

    /// The settings of this server: those that all servers share, and its own. `None` if neither are known.
    ///
    /// # Errors
    /// See [`SeatError`].
    pub fn settings(&self) -> Result<Option<Settings>, SeatError> {
        let own = Settings::load(&self.folder)?;
        let Some(shared) = self.link.documents().get(documents::SETTINGS) else { return Ok(own) };
        let shared =
            Settings::from_json(shared).map_err(|why| SeatError::Document { name: documents::SETTINGS, why })?;
        Ok(Some(own.unwrap_or_default().with_shared(&shared)))
    }

    /// Makes this machine one of the servers: it has a lease, and the others know it. `adopt`: the network of the state
    /// folder may become that of an empty store. Returns the settings with this server's addresses.
    ///
    /// # Errors
    /// See [`SeatError`].
    pub async fn take(
        self,
        interface: &str,
        mut settings: Settings,
        adopt: bool,
    ) -> Result<(Seat, Settings), SeatError> {
        if !settings.has_network() {
            return Err(SeatError::Star);
        }
        settings.check()?;
        let is_new = self.is_new();
        let Self { folder, address, key, mut link, copy, of_log, is_known, set_back } = self;
        let has_own = Settings::load(&folder)?.is_some();
        if is_new && has_own && !adopt && !is_known {
            return Err(SeatError::Adopt { store: link.log().name(), machines: copy.machines() });
        }
        // Before the first record: without the key, nobody could read it.
        folder.replace(STORE_KEY, format!("{}\n", *key.to_base64()).as_bytes())?;
        let mut own = folder.private_key()?;
        if !link.documents().contains_key(&server_document(&own.public_key()))
            && let Some(next) = next_key(&folder, link.documents())?
        {
            take_next_key(&folder, &next)?;
            own = next;
        }
        let own_key = own.public_key();
        if is_new {
            if KeyBefore::load(&folder, &own_key, now())?.is_some() {
                return Err(SeatError::KeyBefore);
            }
            settings.network.name.get_or_insert_with(|| network_name(interface));
        }
        if let Some(of_log) = of_log {
            // Completes an interrupted attempt.
            link = put(link, of_log, &copy).await?;
        }
        let mut own_documents = own_documents(&folder, interface, &own, &settings, copy.state(), is_new)?;
        if let Some(seen) = set_back {
            // Members have the lists of the records that are gone, and other servers may have made more of them.
            let gone = seen.saturating_sub(link.position().revision);
            let number = rosters(link.documents()).saturating_add(gone).saturating_add(UNSEEN);
            own_documents.insert(documents::ROSTERS.to_owned(), Zeroizing::new(number.to_string().into_bytes()));
        }
        if let Some(error) = link.copy_error() {
            return Err(SeatError::Copy(error.to_string()));
        }
        // The lease of this server. The store is opened again, because it is read once.
        drop(copy);
        let pools = Pools::new(&settings.pools).map_err(SettingsError::Pool)?.without_own();
        let policy = Policy::default().with_max_leases(MAX_MEMBERS);
        let mut ledger = Ledger::open(FileStore::open(&folder.path(LEASES))?, pools, policy, now())?;
        ledger.share(now());
        let is_server = link.documents().contains_key(&server_document(&own_key));
        if is_known && !is_new && (!is_server || ledger.lease(&own_key).is_none()) {
            return Err(SeatError::Removed { store: link.log().name(), folder: folder.as_path().to_owned() });
        }
        let addresses = settings.own_addresses();
        let mut tries = 0;
        loop {
            for (name, text) in &own_documents {
                link.stage(name, Some(text.clone()));
            }
            if ledger.lease(&own_key).is_none() {
                // The first server has the addresses that the others know.
                let terms = Terms::default().with_server(ServerRole::from(true)).with_addresses(match is_new {
                    true => addresses.iter().map(ipnet::IpNet::addr).collect(),
                    false => Vec::new(),
                });
                let psk = rustguard_crypto::random::bytes().map_err(FolderError::Random)?;
                let request = Request::new(own_key, PresharedKey::from_bytes(&psk), Grant::Admin(terms));
                ledger.admit(request.with_name(clean_name(&server_name())).with_member(true), now())?;
            }
            if !link.has_staged(&ledger) {
                break;
            }
            link.decide(&mut ledger, now());
            match reach(&mut link, &mut ledger).await? {
                Reached::Accepted => break,
                // Another server was faster. The decision was taken back.
                _ if tries < TRIES && !is_new => tries += 1,
                _ => return Err(ReplicaError::Overtaken.into()),
            }
        }
        if let Some(error) = link.copy_error() {
            return Err(SeatError::Copy(error.to_string()));
        }
        let lease = ledger.lease(&own_key).ok_or(SeatError::NoLease)?.clone();
        drop(ledger);
        settings.pools = settings
            .pools
            .iter()
            .map(|pool| {
                let own = lease.addresses().find(|own| pool.contains(own));
                own.and_then(|own| ipnet::IpNet::new(own, pool.prefix_len()).ok()).unwrap_or(*pool)
            })
            .collect();
        // The folder is that of a server on this store, from here on.
        let log = link.documents();
        let missing = |name| SeatError::Document { name, why: "it is missing".to_owned() };
        let gateway = secret(log, documents::GATEWAY_KEY).ok_or_else(|| missing(documents::GATEWAY_KEY))?;
        write_secrets(&folder, log)?;
        keep_policy(&folder, log)?;
        // A file from before this machine was a server of the network is no change of its policy.
        if let Some(text) = policy_text(&policy_path(interface))? {
            folder.replace(POLICY_TAKEN, &text)?;
        }
        folder.replace(documents::GATEWAY_KEY, &base64(&gateway))?;
        settings.store(&folder)?;
        let keeper = Keeper(folder.clone());
        keeper.keep(&link)?;
        let kept = serde_json::to_vec(&Kept { version: 1, address }).expect("plain data");
        folder.replace(STORE, &kept)?;
        Ok((Seat { link, gateway: StaticSecret::from_bytes(*gateway), keeper }, settings))
    }
}

/// The documents that this server has to say something about: its own, the settings, and everything of a network that
/// is put into a store.
fn own_documents(
    folder: &Folder,
    interface: &str,
    own: &StaticSecret,
    settings: &Settings,
    state: &State,
    is_new: bool,
) -> Result<Documents, SeatError> {
    let mut own_documents = Documents::new();
    own_documents.insert(documents::SETTINGS.to_owned(), Zeroizing::new(settings.shared().to_json()));
    own_documents.insert(server_document(&own.public_key()), Zeroizing::new(server_name().into_bytes()));
    if is_new {
        let secrets = Secrets::open(folder)?;
        let last = files::last_roster(folder, &secrets.network.public_key())?;
        let number = last.as_ref().map_or(0, |last| last.version().number);
        own_documents.insert(documents::GATEWAY_KEY.to_owned(), base64(&Zeroizing::new(own.to_bytes())));
        own_documents.insert(documents::NETWORK_KEY.to_owned(), base64(secrets.network.as_bytes()));
        own_documents.insert(documents::PAIR_SECRET.to_owned(), base64(secrets.pairs.as_bytes()));
        own_documents.insert(documents::ROSTERS.to_owned(), Zeroizing::new(number.to_string().into_bytes()));
        let mut names = last.as_ref().map(Names::of).unwrap_or_default();
        names.settle(&state.leases);
        for (key, name) in names.others() {
            own_documents.insert(name_document(&key), Zeroizing::new(name.as_str().as_bytes().to_vec()));
        }
    }
    // The administrator's file counts for a new network, and when it has changed since it was taken.
    let taken = folder.read(POLICY_TAKEN)?;
    if let Some(text) = policy_text(&policy_path(interface))?
        && (is_new || taken.is_some_and(|taken| taken != text))
    {
        own_documents.insert(documents::POLICY.to_owned(), text);
    }
    Ok(own_documents)
}

/// Keeps the policy of all servers in the state folder.
pub(crate) fn keep_policy(folder: &Folder, log: &Documents) -> Result<(), FolderError> {
    match log.get(documents::POLICY) {
        Some(text) => folder.replace(documents::POLICY, text),
        None => folder.remove(documents::POLICY),
    }
}

/// Writes the secrets that all servers share into the state folder.
pub(crate) fn write_secrets(folder: &Folder, log: &Documents) -> Result<(), SeatError> {
    for (name, file) in [(documents::NETWORK_KEY, files::KEY), (documents::PAIR_SECRET, files::PAIRS)] {
        let text = secret(log, name).ok_or(SeatError::Document { name, why: "it is missing".to_owned() })?;
        folder.replace(file, &base64(&text))?;
    }
    Ok(())
}

/// The name of the network of an interface without one of its own.
fn network_name(interface: &str) -> String {
    Label::clean(interface).map_or_else(|| "network".to_owned(), |label| label.to_string())
}

/// The name of this server in records: that of its host.
fn server_name() -> String {
    let host = rustix::system::uname().nodename().to_str().unwrap_or("server").to_owned();
    host[..host.floor_char_boundary(MAX_SERVER)].to_owned()
}

/// Makes the state of the log that of the folder, which has no documents yet.
async fn put(mut link: Link, mut of_log: Copy<MemoryStore>, folder: &Copy<FileStore>) -> Result<Link, SeatError> {
    let differences = of_log.state().changes_to(folder.state());
    // An empty folder puts nothing there.
    if changes(folder.state()).len() <= 2 && link.position().revision == 0 {
        return Ok(link);
    }
    for chunk in differences.chunks(CHUNK) {
        of_log.stage(chunk.to_vec());
        link.decide(&mut of_log, now());
        if reach(&mut link, &mut of_log).await? != Reached::Accepted {
            return Err(SeatError::Unfinished { store: link.log().name() });
        }
    }
    Ok(link)
}

async fn reach(link: &mut Link, ledger: &mut dyn Decides) -> Result<Reached, ReplicaError> {
    loop {
        let done = link.io().await;
        if let Some(reached) = link.advance(done, ledger, now()) {
            return reached;
        }
    }
}
