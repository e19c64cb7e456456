//! What was done to the host, step by step, so that it can be undone: at once when a later step fails, at the end of
//! the tunnel, or by the next process when this one was killed.

use super::{
    HostError,
    dns::{self, DnsEntry},
    guard,
    netlink::Netlink,
    policy::Rule,
};
use atomic_write_file::AtomicWriteFile;
use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use std::{
    fs,
    io::{self, Write},
    path::{Path, PathBuf},
};

/// Everything [`apply`](super::apply) changed for one interface, in order. As JSON it is the state file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
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

/// One change to the host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Step {
    /// An address of the interface.
    Address(IpNet),
    /// The interface was set up; this is how it was before.
    Link {
        /// MTU in bytes.
        mtu: u32,
        /// Whether it was up.
        up: bool,
    },
    /// Name servers and search domains.
    Dns(DnsEntry),
    /// A route through the interface.
    Route {
        /// The destination.
        net: IpNet,
        /// The routing table.
        table: u32,
    },
    /// A policy rule.
    Rule(Rule),
    /// The nftables guard.
    Guard {
        /// Whether there is one for IPv4.
        v4: bool,
        /// Whether there is one for IPv6.
        v6: bool,
    },
}

impl Step {
    /// Whether the change stays when the interface goes. Addresses and routes vanish with it.
    fn outlives_interface(&self) -> bool {
        matches!(self, Self::Dns(_) | Self::Rule(_) | Self::Guard { .. })
    }
}

/// The default state file of an interface, `/run/rustguard/NAME.json`. `/run` is emptied at boot, as is everything it
/// records.
pub fn record_path(interface: &str) -> PathBuf {
    Path::new("/run/rustguard").join(format!("{interface}.json"))
}

/// Undoes what a process that was killed left behind, and removes its state file. Answers `false` when there is no
/// such file, or it tells of another network namespace, where this process cannot do anything.
///
/// To be called when it is certain that no tunnel of that name is running; [`apply`](super::apply) does so itself.
///
/// # Errors
/// Everything that can be undone is undone; the first failure is returned, and the file then stays.
pub async fn cleanup(path: &Path) -> Result<bool, HostError> {
    let failed = |action, source| HostError::Record { action, path: path.to_owned(), source };
    let text = match fs::read(path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(failed("read", error)),
    };
    let record: Record = serde_json::from_slice(&text).map_err(|error| failed("read", error.into()))?;
    if record.namespace != namespace() {
        tracing::warn!("{} is about another network namespace and is ignored", path.display());
        return Ok(false);
    }
    tracing::info!("cleaning up what an earlier `{}` left behind", record.interface);
    Journal { record, path: Some(path.to_owned()), written: true }.undo(&Netlink::open()?).await?;
    Ok(true)
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

    /// Undoes every step, last to first, as far as possible. The first failure is returned, the others are logged.
    pub(super) async fn undo(mut self, netlink: &Netlink) -> Result<(), HostError> {
        // The index alone could meanwhile be another interface's.
        let link = netlink.link_by_name(&self.record.interface).await?;
        let present = link.is_some_and(|link| link.index == self.record.index);

        let mut outcome = Ok(());
        for step in std::mem::take(&mut self.record.steps).into_iter().rev() {
            if !present && !step.outlives_interface() {
                continue;
            }
            if let Err(error) = self.undo_step(netlink, &step, present).await {
                tracing::warn!("{error}");
                outcome = outcome.and(Err(error));
            }
        }
        outcome?;
        self.remove_file()
    }

    async fn undo_step(&self, netlink: &Netlink, step: &Step, present: bool) -> Result<(), HostError> {
        let Record { interface, index, .. } = &self.record;
        match step {
            Step::Address(address) => netlink.delete_address(interface, *index, *address).await,
            Step::Link { mtu, up } => netlink.set_link(interface, *index, *mtu, *up).await,
            Step::Dns(entry) => dns::remove(entry, interface, present.then_some(*index)).await,
            Step::Route { net, table } => netlink.delete_route(interface, *index, *net, *table).await,
            Step::Rule(rule) => netlink.delete_rule(*rule).await,
            Step::Guard { v4, v6 } => guard::remove(interface, *v4, *v6).await,
        }
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

    fn remove_file(&self) -> Result<(), HostError> {
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
