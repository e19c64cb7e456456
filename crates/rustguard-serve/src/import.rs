//! Imports an existing WireGuard server into `serve`: its key, addresses and port, and its peers with their keys,
//! preshared keys, AllowedIPs and names. Clients do not notice the change.
//!
//! | File | Contents |
//! |---|---|
//! | `source`, `names`, `hooks`, `wg_easy` | the parsers for the files of wg-quick and wg-easy |
//! | `plan` | the result: settings and leases, or the reason for a refusal |
//!
//! The state folder is made under another name, opened as a server would open it, and then renamed. So it exists either
//! completely or not at all.

mod error;
mod hooks;
mod names;
mod plan;
mod source;
mod wg_easy;

use crate::{
    audit::AuditLog,
    clock::now,
    endpoints,
    imported::{self, Record},
    prepare::Prepared,
    settings::Settings,
    store::FileStore,
};
pub use error::ImportError;
use ipnet::IpNet;
pub use plan::ImportOptions;
use plan::Plan;
use rustguard_crypto::x25519::PublicKey;
use rustguard_device::interface::{STATE_DIR, check_name};
use rustguard_enroll::{
    audit::{AuditEvent, AuditRecord},
    store::{LeaseStore as _, State},
};
use rustguard_network::{Folder, FolderError};
use rustguard_quick::conf::writable_by_others;
use rustix::fs::OFlags;
use source::{Problem, Source};
use std::{
    collections::HashMap,
    fs::{self, File},
    io::{self, Read as _},
    net::{IpAddr, SocketAddr},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
};
use zeroize::Zeroizing;

/// The largest file that is read, in bytes. 100,000 peers take far less.
const MAX_FILE: u64 = 64 << 20;

/// A server that was read from its files. Nothing is stored yet.
pub struct Import {
    plan: Plan,
}

/// A peer of the server.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ImportedPeer {
    /// Its name.
    pub name: Option<String>,
    /// Its public key.
    pub public_key: PublicKey,
    /// Its addresses.
    pub addresses: Vec<IpAddr>,
    /// The prefixes behind it.
    pub prefixes: Vec<IpNet>,
}

/// The result of [`Import::store`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stored {
    /// The state folder was made.
    New,
    /// The same server was imported before. Nothing was changed.
    Before,
}

impl Import {
    /// Reads the files of a server: the configuration of wg-quick, `wg0.json` of wg-easy, or both.
    ///
    /// # Errors
    /// See [`ImportError`].
    pub fn read(files: &[PathBuf], options: &ImportOptions) -> Result<Self, ImportError> {
        let mut sources = Vec::with_capacity(files.len());
        for path in files {
            let bytes = read(path)?;
            // Another user who may change the file could add a peer.
            if writable_by_others(path).unwrap_or(false) {
                return Err(ImportError::Exposed(path.clone()));
            }
            let interface = path.file_stem().unwrap_or_default().to_string_lossy();
            let source = parse(&bytes, &interface);
            sources.push((
                path.clone(),
                source.map_err(|Problem(problem)| ImportError::Invalid { path: path.clone(), problem })?,
            ));
        }
        Ok(Self { plan: Plan::make(sources, options)? })
    }

    /// The peers.
    pub fn peers(&self) -> impl ExactSizeIterator<Item = ImportedPeer> {
        self.plan.leases.iter().map(|lease| ImportedPeer {
            name: lease.name.clone(),
            public_key: lease.public_key,
            addresses: lease.addresses().collect(),
            prefixes: lease.admitted.clone(),
        })
    }

    /// Notes on everything that is not carried over or differs, in sentences with the remedy.
    pub fn notes(&self) -> &[String] {
        &self.plan.notes
    }

    /// The settings of the server.
    pub fn settings(&self) -> &Settings {
        &self.plan.settings
    }

    /// The server's public key.
    pub fn public_key(&self) -> PublicKey {
        self.plan.identity.public_key()
    }

    /// Whether the same server was imported into this interface before.
    ///
    /// # Errors
    /// [`ImportError::Exists`], [`ImportError::Changed`], [`ImportError::Folder`].
    pub fn is_stored(&self, interface: &str) -> Result<bool, ImportError> {
        check_name(interface).map_err(FolderError::from)?;
        self.is_stored_in(Path::new(STATE_DIR), interface)
    }

    /// Makes the state folder of `interface`, which `serve` then uses.
    ///
    /// # Errors
    /// See [`ImportError`]. After an error nothing has changed.
    pub fn store(&self, interface: &str) -> Result<Stored, ImportError> {
        check_name(interface).map_err(FolderError::from)?;
        self.store_in(Path::new(STATE_DIR), interface)
    }

    fn is_stored_in(&self, folders: &Path, interface: &str) -> Result<bool, ImportError> {
        let path = folders.join(interface);
        let is_empty = match fs::read_dir(&path) {
            Ok(mut entries) => entries.next().is_none(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => true,
            Err(cause) => return Err(ImportError::Io { doing: "look at", path, cause }),
        };
        if is_empty {
            return Ok(false);
        }
        match Record::load(&Folder::open_at(&path)?)? {
            Some(record) if record.import == self.plan.digest() => Ok(true),
            Some(_) => Err(ImportError::Changed(path)),
            None => Err(ImportError::Exists(path)),
        }
    }

    fn store_in(&self, folders: &Path, interface: &str) -> Result<Stored, ImportError> {
        if self.is_stored_in(folders, interface)? {
            return Ok(Stored::Before);
        }
        // The name begins with a dot, and no interface of `serve` does.
        let new = folders.join(format!(".{interface}.import"));
        let io = |doing: &'static str, path: &Path| {
            let path = path.to_owned();
            move |cause| ImportError::Io { doing, path, cause }
        };
        match fs::remove_dir_all(&new) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(io("remove", &new)(error)),
            _ => {}
        }
        let made = self.fill(&new, interface);
        let put = made.and_then(|()| {
            let path = folders.join(interface);
            // An empty folder in its place is replaced.
            fs::rename(&new, &path).map_err(io("make", &path))?;
            File::open(folders).and_then(|folder| folder.sync_all()).map_err(io("sync", folders))
        });
        if put.is_err() {
            // Unused keys are not left on the disk.
            let _ = fs::remove_dir_all(&new);
        }
        put.map(|()| Stored::New)
    }

    /// Writes the state into a new folder, and opens it as a server does.
    fn fill(&self, path: &Path, interface: &str) -> Result<(), ImportError> {
        let Plan { identity, settings, leases, calls, .. } = &self.plan;
        let folder = Folder::open_at(path)?;
        folder.replace_private_key(identity)?;
        settings.store(&folder)?;
        let mut store = FileStore::open(&folder.path("leases"))?;
        store.load().map_err(rustguard_enroll::ledger::LedgerError::from)?;
        store.commit(&self.plan.changes(), &State::default()).map_err(rustguard_enroll::ledger::LedgerError::from)?;
        drop(store);
        let record = Record::new(self.plan.digest(), calls.clone());
        folder.replace(imported::FILE, &serde_json::to_vec_pretty(&record).expect("plain data"))?;
        let known = calls.iter().filter_map(|(key, calls)| Some((key.clone(), calls.endpoint.as_ref()?.parse().ok()?)));
        endpoints::store(&folder, &known.collect::<HashMap<_, SocketAddr>>())?;
        let audit = folder.path("audit.jsonl");
        let written = AuditLog::open(&audit).and_then(|mut log| {
            leases.iter().try_for_each(|lease| {
                let mut record = AuditRecord::new(AuditEvent::PeerAdded, now());
                (record.public_key, record.name) = (Some(lease.public_key), lease.name.clone());
                (record.addresses, record.prefixes) = (lease.addresses().collect(), lease.admitted.clone());
                record.uid = Some(rustix::process::getuid().as_raw());
                log.write(&record)
            })
        });
        written.map_err(|cause| ImportError::Io { doing: "write", path: audit, cause })?;
        Prepared::new(interface, &folder, settings.clone(), None)?;
        Ok(())
    }
}

/// Reads a file that contains keys.
fn read(path: &Path) -> Result<Zeroizing<Vec<u8>>, ImportError> {
    let failed = |cause| ImportError::NotRead { path: path.to_owned(), cause };
    // Otherwise opening a pipe would wait for a writer.
    let at_once = OFlags::NONBLOCK.bits().cast_signed();
    let file = File::options().read(true).custom_flags(at_once).open(path).map_err(failed)?;
    let metadata = file.metadata().map_err(failed)?;
    if !metadata.is_file() {
        let reason = "it is no file; give the configuration of the server itself, or a copy";
        return Err(failed(io::Error::new(io::ErrorKind::InvalidInput, reason)));
    }
    let too_large = || {
        let reason = format!("it is larger than {} MiB, so no configuration of a server", MAX_FILE >> 20);
        failed(io::Error::new(io::ErrorKind::InvalidData, reason))
    };
    if metadata.len() > MAX_FILE {
        return Err(too_large());
    }
    // The capacity covers the whole file, because a reallocation would leave a copy of the keys behind.
    let mut bytes = Zeroizing::new(Vec::with_capacity(usize::try_from(metadata.len()).unwrap_or(0) + 64));
    if file.take(MAX_FILE + 1).read_to_end(&mut bytes).map_err(failed)? as u64 > MAX_FILE {
        return Err(too_large());
    }
    Ok(bytes)
}

/// Parses a file of one of the known kinds. `interface` is the name of its interface, for its hooks.
fn parse(bytes: &[u8], interface: &str) -> Result<Source, Problem> {
    if bytes.starts_with(b"SQLite format 3\0") {
        return Err(Problem(
            "it is a database: wg-easy 15 keeps its clients in one, and writes all that is needed into wg0.conf beside it; import that file".to_owned(),
        ));
    }
    let text = std::str::from_utf8(bytes).map_err(|_| {
        Problem("it is no text; import the configuration file of wg-quick, or wg0.json of wg-easy".to_owned())
    })?;
    if text.trim_start_matches('\u{feff}').trim_start().starts_with('{') {
        return wg_easy::read(text);
    }
    source::wg_quick(text, interface)
}

/// The fuzz target of the parsers: any bytes are a server or an error.
#[doc(hidden)]
pub fn fuzz(bytes: &[u8]) {
    if let Ok(source) = parse(bytes, "wg0") {
        let again = parse(bytes, "wg0")
            .ok()
            .and_then(|source| Plan::make(vec![("wg0".into(), source)], &ImportOptions::default()).ok());
        if let Ok(plan) = Plan::make(vec![("wg0".into(), source)], &ImportOptions::default()) {
            assert_eq!(Some(plan.digest()), again.map(|again| again.digest()), "one file is two servers");
            assert!(plan.settings.check().is_ok(), "settings with which no server starts");
        }
    }
}

#[cfg(test)]
mod tests;
