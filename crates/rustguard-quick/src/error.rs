//! Errors at the start of a tunnel. Each message names the thing and the remedy. Causes are
//! [`source`](std::error::Error::source)s.

use crate::{
    conf::{FileError, NameError},
    hooks::HookError,
    host::HostError,
    run_file::RunFileError,
    session_record::SaveTunnelError,
};
use rustguard_device::{StartError, uapi::ServerError};
use std::{io, path::PathBuf};
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
