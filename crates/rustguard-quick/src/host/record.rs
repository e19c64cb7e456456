//! The steps that were taken, in memory and in a file, so that they can be undone: at once when a later step fails, at
//! the end of the tunnel, or by the next process when this one was killed.

use super::{error::HostError, step::Step};
use atomic_write_file::AtomicWriteFile;
use rustguard_device::interface::run_file;
use serde::{Deserialize, Serialize};
use std::{
    fs,
    io::{self, Write},
    path::{Path, PathBuf},
};

/// Everything [`apply`](super::apply) changed for one interface, in order. As JSON it is the state file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Record {
    /// The tunnel's interface.
    pub interface: String,
    /// Its index.
    pub index: u32,
    /// The network namespace this happened in, as /proc names it ("net:\[4026531840\]"): the state directory is
    /// usually shared between namespaces, what was changed is not.
    pub namespace: String,
    /// The steps, first to last.
    pub steps: Vec<Step>,
}

/// The default state file of an interface, `/run/rustguard/NAME.json`. `/run` is emptied at boot, as is everything it
/// records.
pub fn record_path(interface: &str) -> PathBuf {
    run_file(interface, "json")
}

/// Reads the record of an earlier process; `None` when there is no such file, or it is about another network namespace.
pub(super) fn read(path: &Path) -> Result<Option<Journal>, HostError> {
    let failed = |source| HostError::Record { action: "read", path: path.to_owned(), source };
    let text = match fs::read(path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(error)),
    };
    let record: Record = serde_json::from_slice(&text).map_err(|error| failed(error.into()))?;
    if record.namespace != namespace() {
        tracing::warn!("{} is about another network namespace and is ignored", path.display());
        return Ok(None);
    }
    Ok(Some(Journal { record, path: Some(path.to_owned()), written: true }))
}

/// The record while it is being written.
#[derive(Debug)]
pub(super) struct Journal {
    record: Record,
    path: Option<PathBuf>,
    /// Whether the file at `path` is this journal's; it may still be that of another network namespace.
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

    /// Takes the steps out, first to last.
    pub(super) fn take_steps(&mut self) -> Vec<Step> {
        std::mem::take(&mut self.record.steps)
    }

    pub(super) fn get(&self) -> &Record {
        &self.record
    }

    /// Notes a step. One that outlives the interface is noted, and on disk, *before* it is taken, so that there is no
    /// moment at which SIGKILL leaves something unknown behind; undoing a step that was never taken does nothing.
    pub(super) fn record(&mut self, step: Step) -> Result<(), HostError> {
        let save = step.outlives_interface();
        self.record.steps.push(step);
        if save { self.save() } else { Ok(()) }
    }

    /// Writes the steps that outlive the interface; the others, up to a hundred thousand routes, need no record.
    fn save(&mut self) -> Result<(), HostError> {
        let Some(path) = &self.path else { return Ok(()) };
        let steps = self.record.steps.iter().filter(|step| step.outlives_interface()).cloned().collect();
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
    let mut file = AtomicWriteFile::open(path)?;
    serde_json::to_writer_pretty(&mut file, record)?;
    file.write_all(b"\n")?;
    file.commit()
}

/// The network namespace of this thread. Empty, and thus equal to itself, where /proc is not mounted.
fn namespace() -> String {
    fs::read_link("/proc/thread-self/ns/net").map(|link| link.to_string_lossy().into_owned()).unwrap_or_default()
}
