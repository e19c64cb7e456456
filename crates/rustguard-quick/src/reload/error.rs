//! The reasons why a tunnel does not take over a configuration.

use super::restart::NeedsRestart;
use crate::{
    chain::chain,
    conf::FileError,
    host::{ChangeError, HostError},
};
use rustguard_device::UpdateError;
use std::path::PathBuf;
use thiserror::Error;

/// Why a configuration was not taken over. The tunnel then runs as before, unless the error is [`Self::NotUndone`].
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ReloadError {
    /// The tunnel has no file.
    #[error("{0} was not brought up from a file; give the file: rustguard reload FILE")]
    NoFile(String),
    /// The file cannot be read again, because it is a pipe or a terminal.
    #[error("{} is no regular file, so it cannot be read again; give another file: rustguard reload FILE", .0.display())]
    NotRegular(PathBuf),
    /// The file belongs to an interface with another name.
    #[error("{} is the file of the interface {name}, and this is {interface}", path.display())]
    OtherInterface {
        /// The file.
        path: PathBuf,
        /// The interface in the file's name.
        name: String,
        /// The interface of this tunnel.
        interface: String,
    },
    /// The file cannot be used.
    #[error(transparent)]
    File(#[from] FileError),
    /// The tunnel is not up, or not any more.
    #[error("{0} is not up")]
    NotUp(String),
    /// Some of the changes need a restart. None was made.
    #[error(
        "these changes need a restart, and nothing was changed: {}; run: rustguard down {interface}; rustguard up {interface}",
        .needed.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
    )]
    NeedsRestart {
        /// The interface.
        interface: String,
        /// The changes.
        needed: Vec<NeedsRestart>,
    },
    /// A step failed, and all earlier steps were undone.
    #[error("{}; everything is as before", chain(.0))]
    Undone(HostError),
    /// A step failed, and some of the earlier steps could not be undone.
    #[error(
        "{}; not all of it could be undone: {}; `rustguard down {interface}` removes what is left",
        chain(.cause), .left.iter().map(|error| chain(error)).collect::<Vec<_>>().join("; ")
    )]
    NotUndone {
        /// The interface.
        interface: String,
        /// The step that failed.
        cause: HostError,
        /// The steps that could not be undone.
        left: Vec<HostError>,
    },
}

impl ReloadError {
    /// The failed step, if only name servers could not be set or undone. Everything else is as before, and can be taken
    /// over with the present name servers of the tunnel.
    pub fn of_names(&self) -> Option<&HostError> {
        match self {
            Self::Undone(cause) if cause.is_of_names() => Some(cause),
            Self::NotUndone { cause, left, .. } => {
                (cause.is_of_names() && left.iter().all(HostError::is_of_names)).then_some(cause)
            }
            _ => None,
        }
    }

    /// A failed step, and the steps that could not be undone after it.
    pub(super) fn failed(interface: &str, cause: HostError, left: Vec<HostError>) -> Self {
        if left.is_empty() {
            Self::Undone(cause)
        } else {
            Self::NotUndone { interface: interface.to_owned(), cause, left }
        }
    }

    pub(super) fn change(interface: &str, error: ChangeError, mut more: Vec<HostError>) -> Self {
        more.splice(0..0, error.left);
        Self::failed(interface, error.cause, more)
    }

    /// The device refused, and nothing else was changed before.
    pub(super) fn refused(error: UpdateError) -> Self {
        Self::Undone(error.into())
    }
}
