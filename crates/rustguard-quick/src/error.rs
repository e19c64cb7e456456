//! Why a tunnel did not start. Each message names the thing and the remedy. Causes are
//! [`source`](std::error::Error::source)s.

use crate::{
    conf::{Diagnostic, NameError},
    host::HostError,
    session_record::SaveTunnelError,
};
use rustguard_device::{StartError, uapi::ServerError};
use std::{io, path::PathBuf, process::ExitStatus, time::Duration};
use thiserror::Error;

/// Why a [`Session`](crate::Session) could not be opened or started.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SessionError {
    /// There is no configuration with this name.
    #[error(transparent)]
    Name(#[from] NameError),
    /// The configuration file cannot be used.
    #[error(transparent)]
    File(#[from] FileError),
    /// Another process has the interface, or the run file cannot be made.
    #[error(transparent)]
    RunFile(#[from] RunFileError),
    /// An interface with this name already exists.
    #[error("the interface {0} exists already, and is not ours; choose another name, or remove it: ip link delete {0}")]
    InterfaceExists(String),
    /// A hook of the configuration failed.
    #[error(transparent)]
    Hook(#[from] HookError),
    /// The routing protocol cannot run.
    #[error(transparent)]
    Routing(#[from] RoutingError),
    /// The device did not start.
    #[error("cannot start {interface}")]
    Device {
        /// The interface.
        interface: String,
        /// The cause.
        source: StartError,
    },
    /// The control socket for `wg` could not be opened.
    #[error(transparent)]
    ControlSocket(#[from] ServerError),
    /// The control socket of a process that was killed cannot be removed.
    #[error("cannot remove the control socket of {interface}")]
    ControlSocketLeft {
        /// The interface.
        interface: String,
        /// The cause.
        source: io::Error,
    },
    /// The host could not be set up.
    #[error(transparent)]
    Host(#[from] HostError),
    /// The record of the session cannot be written, or `SaveConfig` cannot write the file.
    #[error(transparent)]
    NotSaved(#[from] SaveTunnelError),
}

/// Why a configuration file cannot be used.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum FileError {
    /// It cannot be read.
    #[error("cannot read {}", path.display())]
    NotRead {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// Every user may change the file, and thus the commands that root runs.
    #[error("everybody on this machine may change {path}, and with it the commands that it runs: chmod 600 {path}", path = .0.display())]
    Exposed(PathBuf),
    /// The file has mistakes.
    #[error("{}, line {}: {}", path.display(), .diagnostics.first().map_or(0, |first| first.span.line), .diagnostics.first().map_or("", |first| &first.message))]
    Invalid {
        /// The file.
        path: PathBuf,
        /// The errors, at least one, in the order of the file, followed by the warnings.
        diagnostics: Vec<Diagnostic>,
    },
}

/// Why an interface cannot be claimed for this process.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum RunFileError {
    /// The folder or the file cannot be written.
    #[error("cannot write {}{}", path.display(), to_write(source.kind()))]
    NotWritable {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The file cannot be locked.
    #[error("cannot lock {}", path.display())]
    NotLocked {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// Another process runs this interface.
    #[error(
        "{interface} is up already{}{}; `rustguard down {interface}` ends it",
        process.map(|process| format!(" (process {process})")).unwrap_or_default(),
        log.as_ref().map(|log| format!(", and its log is {}", log.display())).unwrap_or_default()
    )]
    Up {
        /// The interface.
        interface: String,
        /// The process id, if this process can see it.
        process: Option<i32>,
        /// The log of the process, if it runs in the background.
        log: Option<PathBuf>,
    },
}

/// Why a hook failed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum HookError {
    /// The shell could not be started.
    #[error("{key} hook `{hook}` cannot be run")]
    NotRun {
        /// The key in the file: `PreUp`, …
        key: &'static str,
        /// The command.
        hook: String,
        /// The cause.
        source: io::Error,
    },
    /// The command took too long, and was ended with everything that it had started.
    #[error("{key} hook `{hook}` has not ended in {} s and was killed; put what takes longer into the background (`… &`)", limit.as_secs())]
    TimedOut {
        /// The key in the file: `PreUp`, …
        key: &'static str,
        /// The command.
        hook: String,
        /// The limit.
        limit: Duration,
    },
    /// The command ended with an error.
    #[error("{key} hook `{hook}` failed: {status}")]
    Failed {
        /// The key in the file: `PreUp`, …
        key: &'static str,
        /// The command.
        hook: String,
        /// The exit status of the command.
        status: ExitStatus,
    },
}

/// Why `Routing = babel` is not possible.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum RoutingError {
    /// The file has no `PrivateKey`.
    #[error("Routing = babel needs the PrivateKey in the file: the protocol's addresses are derived from it")]
    NoPrivateKey,
    /// This program was built without Babel.
    #[error("Routing = babel: this program was built without rustguard-quick's feature `babel`")]
    NotBuilt,
    /// The state of the protocol cannot be stored for the next start.
    #[error("cannot {action} {}: {cause}{}", path.display(), if cause.kind() == io::ErrorKind::PermissionDenied { "; run as root, or with sudo" } else { "" })]
    State {
        /// The operation that failed, as an infinitive.
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The cause.
        cause: io::Error,
    },
    /// Other users could read or change the state.
    #[error("{} is open to others (mode {mode:o}): chmod 700 {}", path.display(), path.display())]
    Exposed {
        /// The folder.
        path: PathBuf,
        /// The folder's mode.
        mode: u32,
    },
}

/// The error and its causes, in one line. A cause that a message already contains is not repeated.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut line = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let text = error.to_string();
        if !line.ends_with(&text) {
            line.push_str(": ");
            line.push_str(&text);
        }
        cause = error.source();
    }
    line
}

/// How a file in `/run` can be written after all.
fn to_write(refused: io::ErrorKind) -> &'static str {
    match refused {
        io::ErrorKind::PermissionDenied => "; a tunnel needs CAP_NET_ADMIN: run as root, or with sudo",
        io::ErrorKind::ReadOnlyFilesystem => "; /run has to be writable: mount -t tmpfs tmpfs /run",
        _ => "",
    }
}
