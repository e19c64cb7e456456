//! The steps that were made, in memory and in a file. They are undone at once when a later step fails, at the end of
//! the tunnel, or by the next process if this one was killed.

use super::{error::HostError, step::Step};
use crate::run_file::replace;
use rustguard_device::interface::{self, run_file};
use serde::{Deserialize, Serialize};
use std::{
    fs, io,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

/// All changes that [`apply`](super::apply) made for one interface, in order. The state file is this as JSON.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Record {
    /// The tunnel's interface.
    pub interface: String,
    /// Its index.
    pub index: u32,
    /// The network namespace of the changes, in the notation of /proc ("net:\[4026531840\]"). Namespaces usually share
    /// the state directory, but not the changes.
    pub namespace: String,
    /// The steps, first to last.
    pub steps: Vec<Step>,
}

/// The default state file of an interface, `/run/rustguard/NAME.json`. A boot empties `/run` and also reverts the
/// recorded changes.
pub fn record_path(interface: &str) -> PathBuf {
    run_file(interface, "json")
}

/// Reads the record of an earlier process. `None` if there is no such file, or it belongs to another network namespace.
pub(super) fn read(path: &Path) -> Result<Option<Journal>, HostError> {
    let failed = |source| HostError::Record { action: "read", path: path.to_owned(), source };
    let text = match fs::read(path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(error)),
    };
    check_trusted(path).map_err(failed)?;
    let record: Record = serde_json::from_slice(&text).map_err(|error| failed(error.into()))?;
    // The name becomes part of nft's script.
    if interface::check_name(&record.interface).is_err()
        || !record.steps.iter().all(|step| step.is_of(&record.interface))
    {
        let why =
            "it has steps that no tunnel makes, so it is not trusted; remove it, and undo by hand what is still there";
        return Err(failed(io::Error::new(io::ErrorKind::InvalidData, why)));
    }
    if record.namespace != namespace() {
        tracing::warn!("{} is about another network namespace and is ignored", path.display());
        return Ok(None);
    }
    Ok(Some(Journal { record, path: Some(path.to_owned()), written: true }))
}

/// Returns an error if another user could have written this file. A record is executed with this process's rights.
pub(crate) fn check_trusted(path: &Path) -> io::Result<()> {
    for path in [path.parent().unwrap_or(path), path] {
        let metadata = fs::metadata(path)?;
        if metadata.uid() != rustix::process::geteuid().as_raw() || metadata.mode() & 0o022 != 0 {
            let why = format!("others may change {}, so it is not trusted", path.display());
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
        }
    }
    Ok(())
}

/// The record during the set-up.
#[derive(Debug)]
pub(super) struct Journal {
    record: Record,
    path: Option<PathBuf>,
    /// Whether this journal wrote the file at `path`. Otherwise the file may belong to another network namespace.
    written: bool,
}

impl Journal {
    pub(super) fn new(interface: &str, index: u32, path: Option<PathBuf>) -> Self {
        let record = Record { interface: interface.to_owned(), index, namespace: namespace(), steps: Vec::new() };
        Self { record, path, written: false }
    }

    pub(super) fn interface(&self) -> &str {
        &self.record.interface
    }

    pub(super) fn index(&self) -> u32 {
        self.record.index
    }

    /// Takes the steps out, in order.
    pub(super) fn take_steps(&mut self) -> Vec<Step> {
        std::mem::take(&mut self.record.steps)
    }

    /// The records of other tunnels in this network namespace.
    pub(super) fn others(&self) -> impl Iterator<Item = Record> {
        let folder = self.path.as_deref().and_then(Path::parent).and_then(|folder| fs::read_dir(folder).ok());
        let files = folder.into_iter().flatten().flatten().map(|entry| entry.path());
        let files = files.filter(|path| path.extension().is_some_and(|extension| extension == "json"));
        // Other files, and incomplete records, are skipped.
        let files = files.filter(|path| check_trusted(path).is_ok());
        let records = files.filter_map(|path| serde_json::from_slice::<Record>(&fs::read(path).ok()?).ok());
        records.filter(|other| other.interface != self.record.interface && other.namespace == self.record.namespace)
    }

    pub(super) fn get(&self) -> &Record {
        &self.record
    }

    /// Records a step. A step that outlives the interface is recorded on disk *before* it is made, so SIGKILL never
    /// leaves an unknown change behind. Undoing a step that was not made does nothing.
    pub(super) fn record(&mut self, step: Step) -> Result<(), HostError> {
        let save = step.outlives_interface();
        self.record.steps.push(step);
        if save { self.save() } else { Ok(()) }
    }

    /// Forgets steps that were undone. A step that outlives the interface is forgotten on disk *after* it was undone.
    pub(super) fn forget(&mut self, gone: impl Fn(&Step) -> bool) -> Result<(), HostError> {
        let mut save = false;
        self.record.steps.retain(|step| {
            let gone = gone(step);
            save |= gone && step.outlives_interface();
            !gone
        });
        if save { self.save() } else { Ok(()) }
    }

    /// Puts other steps in the place of the present ones, after all of them were undone or made.
    pub(super) fn replace(&mut self, steps: Vec<Step>) -> Result<(), HostError> {
        self.record.steps = steps;
        self.save()
    }

    /// Writes the steps that outlive the interface. The others, which may be a hundred thousand routes, need no record.
    fn save(&mut self) -> Result<(), HostError> {
        let Some(path) = &self.path else { return Ok(()) };
        let steps: Vec<_> = self.record.steps.iter().filter(|step| step.outlives_interface()).cloned().collect();
        if steps.is_empty() {
            self.remove_file()?;
            self.written = false;
            return Ok(());
        }
        let record = Record {
            interface: self.record.interface.clone(),
            index: self.record.index,
            namespace: self.record.namespace.clone(),
            steps,
        };
        write(path, &record).map_err(|source| HostError::Record { action: "write", path: path.clone(), source })?;
        self.written = true;
        Ok(())
    }

    pub(super) fn remove_file(&self) -> Result<(), HostError> {
        let Some(path) = self.path.as_ref().filter(|_| self.written) else { return Ok(()) };
        match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(HostError::Record { action: "remove", path: path.clone(), source: error })
            }
            _ => Ok(()),
        }
    }
}

fn write(path: &Path, record: &Record) -> io::Result<()> {
    if let Some(directory) = path.parent() {
        fs::create_dir_all(directory)?;
    }
    replace(path, &serde_json::to_vec_pretty(record)?)
}

/// The network namespace of this thread. Without /proc it is the empty string, which equals itself.
pub(crate) fn namespace() -> String {
    fs::read_link("/proc/thread-self/ns/net").map(|link| link.to_string_lossy().into_owned()).unwrap_or_default()
}
