//! The record of a session for other processes, also after it was killed: `/run/rustguard/NAME.session`, and its hooks
//! in `/run/rustguard-hooks/NAME`. A confined process may write only in the first folder, because the commands in the
//! second are executed.

use crate::{
    conf::{self, Config, SaveError},
    helper::{self, Answer, Failure, Save, Task, unexpected},
    host,
    run_file::replace,
};
use rustguard_device::{
    Update,
    interface::{check_name, run_file},
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use std::{
    fs, io,
    os::unix::fs::DirBuilderExt as _,
    path::{Path, PathBuf},
};

/// The folder of the hooks that still have to run for a session.
const HOOKS_DIR: &str = "/run/rustguard-hooks";

/// The contents of both files. Only root can read them, because commands may contain secrets.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct SessionRecord {
    /// The configuration file of the session.
    pub(crate) file: Option<LoadedFile>,
    /// The hooks that have to run at the end of the session, from the time when they are due. They are kept here
    /// because the file may change.
    #[serde(skip)]
    pub(crate) hooks: Option<DownHooks>,
}

/// The hooks of the end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct DownHooks {
    pub(crate) pre_down: Vec<String>,
    pub(crate) post_down: Vec<String>,
    /// The file of these hooks. The other record may name another file.
    #[serde(default)]
    pub(crate) file: Option<PathBuf>,
    /// The network namespace of the session, in the notation of /proc. `/run` may be shared with others.
    pub(crate) namespace: String,
}

/// A configuration file, and the text that the running tunnel agrees with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LoadedFile {
    path: PathBuf,
    /// See [`conf::File::digest`].
    digest: String,
}

/// The reason why the file of a running tunnel was not changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SaveTunnelError {
    /// No file belongs to the tunnel.
    #[error("{0} was not started from a file by `rustguard up`, so there is no file to save to")]
    NoFile(String),
    /// The file was edited, and the tunnel does not know the new text.
    #[error("{path} was changed after {interface} had read it; `rustguard reload {interface}` takes the changes over", path = path.display())]
    ChangedSince {
        /// The interface.
        interface: String,
        /// The file.
        path: PathBuf,
    },
    /// The file cannot be written.
    #[error(transparent)]
    File(#[from] SaveError),
    /// The record in `/run/rustguard` cannot be read or written.
    #[error("cannot {action} {}", path.display())]
    Record {
        /// `read`, `write` or `remove`.
        action: &'static str,
        /// The record.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
}

impl SessionRecord {
    /// The record of an interface, if there is one.
    pub(crate) fn read(interface: &str) -> Result<Option<Self>, SaveTunnelError> {
        let record: Option<Self> = read(&path(interface))?;
        match read(&hooks_path(interface))? {
            hooks @ Some(_) => Ok(Some(Self { hooks, ..record.unwrap_or_default() })),
            None => Ok(record),
        }
    }

    /// The hooks that have to run for a killed session, or the reason why they cannot run.
    pub(crate) fn owed(&self, interface: &str) -> Result<Option<&DownHooks>, String> {
        let Some(hooks) = &self.hooks else { return Ok(None) };
        if hooks.namespace != host::namespace() {
            return Err("it ran in another network namespace".to_owned());
        }
        host::check_trusted(&hooks_path(interface)).map_err(|error| error.to_string())?;
        Ok(Some(hooks))
    }

    /// Replaces the record.
    pub(crate) fn write(&self, interface: &str) -> Result<(), SaveTunnelError> {
        write(&path(interface), self)?;
        match (helper::get(), &self.hooks) {
            // The helper records the hooks that it has read itself.
            (Some(helper), hooks) => match helper.ask_now(Task::Owe(hooks.is_some())) {
                Answer::Done => Ok(()),
                Answer::Failed(failure) => Err(not_recorded(interface, failure.into_io())),
                answer => Err(not_recorded(interface, unexpected(&answer))),
            },
            (None, Some(hooks)) => write_hooks(interface, hooks),
            (None, None) => owe_nothing(interface),
        }
    }

    /// Whether an interface has a record. The name has to be valid.
    pub(crate) fn exists(interface: &str) -> bool {
        path(interface).exists() || hooks_path(interface).exists()
    }

    /// Removes the record of an interface.
    pub(crate) fn remove(interface: &str) {
        // Without the folder or the file there is nothing to remove, and `/run` is in memory.
        let _ = fs::remove_file(path(interface));
        match helper::get() {
            Some(helper) => drop(helper.ask_now(Task::Owe(false))),
            None => drop(fs::remove_file(hooks_path(interface))),
        }
    }
}

/// Records the hooks that the end of a session has to run, in this process itself.
pub(crate) fn owe(
    interface: &str,
    file: &Path,
    pre_down: Vec<String>,
    post_down: Vec<String>,
) -> Result<(), SaveTunnelError> {
    let file = Some(file.to_owned());
    write_hooks(interface, &DownHooks { pre_down, post_down, file, namespace: host::namespace() })
}

fn write_hooks(interface: &str, hooks: &DownHooks) -> Result<(), SaveTunnelError> {
    if hooks.pre_down.is_empty() && hooks.post_down.is_empty() {
        return owe_nothing(interface);
    }
    let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(HOOKS_DIR);
    made.map_err(|source| not_recorded(interface, source))?;
    write(&hooks_path(interface), hooks)
}

/// Deletes the record of hooks, because none have to run at the end of the session.
pub(crate) fn owe_nothing(interface: &str) -> Result<(), SaveTunnelError> {
    let path = hooks_path(interface);
    match fs::remove_file(&path) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => {
            Err(SaveTunnelError::Record { action: "remove", path, source })
        }
        _ => Ok(()),
    }
}

fn not_recorded(interface: &str, source: io::Error) -> SaveTunnelError {
    SaveTunnelError::Record { action: "write", path: hooks_path(interface), source }
}

fn read<T: DeserializeOwned>(path: &Path) -> Result<Option<T>, SaveTunnelError> {
    let failed = |source| SaveTunnelError::Record { action: "read", path: path.to_owned(), source };
    match fs::read(path) {
        Ok(text) => serde_json::from_slice(&text).map(Some).map_err(|error| failed(error.into())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(failed(error)),
    }
}

fn write(path: &Path, contents: &impl Serialize) -> Result<(), SaveTunnelError> {
    let written = serde_json::to_vec(contents).map_err(io::Error::from).and_then(|text| replace(path, &text));
    written.map_err(|source| SaveTunnelError::Record { action: "write", path: path.to_owned(), source })
}

impl LoadedFile {
    /// This file with its text.
    pub(crate) fn new(file: &conf::File) -> Self {
        Self {
            path: std::path::absolute(file.path()).unwrap_or_else(|_| file.path().to_owned()),
            digest: file.digest(),
        }
    }

    /// The digest of its text.
    pub(crate) fn digest(&self) -> &str {
        &self.digest
    }

    /// The absolute path of the file.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

fn path(interface: &str) -> PathBuf {
    run_file(interface, "session")
}

fn hooks_path(interface: &str) -> PathBuf {
    Path::new(HOOKS_DIR).join(interface)
}

/// The configuration file of a running tunnel, for changes that the running tunnel has also made, or also makes.
#[derive(Debug)]
pub struct TunnelFile {
    interface: String,
    record: SessionRecord,
    file: conf::File,
    config: Config,
}

impl TunnelFile {
    /// Reads the file that `rustguard up` has read.
    ///
    /// # Errors
    /// There is none, it was edited since then, or it cannot be read.
    pub fn open(interface: &str) -> Result<Self, SaveTunnelError> {
        let record = SessionRecord::read(interface)?.unwrap_or_default();
        let Some(loaded) = &record.file else { return Err(SaveTunnelError::NoFile(interface.to_owned())) };
        let path = &loaded.path;
        let file = conf::File::read(path).map_err(|source| SaveError::Io { path: path.clone(), source })?;
        match conf::parse(file.text()).0 {
            Some(config) if file.digest() == loaded.digest => {
                Ok(Self { interface: interface.to_owned(), record, file, config })
            }
            _ => Err(SaveTunnelError::ChangedSince { interface: interface.to_owned(), path: path.clone() }),
        }
    }

    /// The absolute path of the file of a running tunnel. `None` if it has none, or if this is no name of an interface.
    ///
    /// # Errors
    /// The record in `/run/rustguard` cannot be read.
    pub fn path_of(interface: &str) -> Result<Option<PathBuf>, SaveTunnelError> {
        // A path must not lead to another record.
        if check_name(interface).is_err() {
            return Ok(None);
        }
        Ok(SessionRecord::read(interface)?.and_then(|record| record.file).map(|file| file.path))
    }

    /// Saves the state of the whole device, as `wg-quick save` does: see [`Config::with_device`].
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn save_device(mut self, device: Config) -> Result<(), SaveTunnelError> {
        let Some(helper) = helper::get() else {
            let config = self.config.with_device(device);
            return self.save(&config);
        };
        // From this text, the privileged helper takes only the settings that a device knows.
        let save = Save::Device { digest: self.file.digest(), device: conf::to_text(&device) };
        let path = self.file.path().to_owned();
        let digest = match helper.ask_now(Task::Save(save)) {
            Answer::Saved(digest) => digest,
            Answer::Failed(Failure::Changed) => {
                return Err(SaveTunnelError::ChangedSince { interface: self.interface, path });
            }
            Answer::Failed(failure) => return Err(SaveError::Io { path, source: failure.into_io() }.into()),
            answer => return Err(SaveError::Io { path, source: unexpected(&answer) }.into()),
        };
        self.record.file = Some(LoadedFile { path: std::path::absolute(&path).unwrap_or(path), digest });
        self.record.write(&self.interface)
    }

    /// Checks that the file can hold a change, before it is made.
    ///
    /// # Errors
    /// The file cannot hold it.
    pub fn check_update(&self, update: &Update) -> Result<(), SaveTunnelError> {
        let mut config = self.config.clone();
        config.apply(update);
        match conf::edit(self.file.text(), &config) {
            Ok(_) => Ok(()),
            Err(source) => Err(SaveError::Edit { path: self.file.path().to_owned(), source }.into()),
        }
    }

    /// Saves one change. `device` is the state after it, for peers that were not in the file before.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn save_update(self, update: &Update, device: Config) -> Result<(), SaveTunnelError> {
        let mut config = self.config.clone();
        config.apply(update);
        for peer in device.peers {
            let new = self.config.peers.iter().all(|known| known.public_key != peer.public_key);
            if new && let Some(added) = config.peers.iter_mut().find(|added| added.public_key == peer.public_key) {
                let endpoints = std::mem::take(&mut added.endpoints);
                *added = conf::Peer { direct: added.direct, role: added.role, ..peer };
                if !endpoints.is_empty() {
                    added.endpoints = endpoints;
                }
            }
        }
        self.save(&config)
    }

    fn save(mut self, config: &Config) -> Result<(), SaveTunnelError> {
        self.file.save(config)?;
        self.record.file = Some(LoadedFile::new(&self.file));
        self.record.write(&self.interface)
    }
}
