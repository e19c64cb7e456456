//! Reads a configuration file that a tunnel is about to use.

use super::{Config, Diagnostic, File, parse, text::decode, writable_by_others};
use std::{
    io::{self, Read as _},
    path::{Path, PathBuf},
};
use zeroize::Zeroizing;

/// The largest file that is read, in bytes. 100,000 peers take far less.
const MAX_FILE: u64 = 64 << 20;

/// Why a configuration file cannot be used.
#[derive(Debug, thiserror::Error)]
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

/// Reads and checks a configuration file. Warnings about it are logged.
///
/// # Errors
/// The file cannot be read, has mistakes, or every user may change it.
pub fn load(path: &Path) -> Result<(Config, File), FileError> {
    let text = read(path).map_err(|source| FileError::NotRead { path: path.to_owned(), source })?;
    // A user who may change the file can run commands as root. If other users may only read it, wg-quick prints a
    // warning.
    if writable_by_others(path).unwrap_or(false) {
        return Err(FileError::Exposed(path.to_owned()));
    }
    let (config, mut diagnostics) = parse(&text);
    let Some(config) = config else {
        diagnostics.sort_by_key(|diagnostic| std::cmp::Reverse(diagnostic.severity));
        return Err(FileError::Invalid { path: path.to_owned(), diagnostics });
    };
    for warning in diagnostics {
        tracing::warn!("{}, line {}: {}", path.display(), warning.span.line, warning.message);
    }
    Ok((config, File::new(path, text)))
}

fn read(path: &Path) -> io::Result<Zeroizing<String>> {
    let file = std::fs::File::open(path)?;
    // The capacity covers the whole file, because a reallocation would leave a copy of the private key behind.
    let size = file.metadata()?.len().min(MAX_FILE);
    let mut text = Zeroizing::new(Vec::with_capacity(usize::try_from(size).unwrap_or(0) + 64));
    if file.take(MAX_FILE + 1).read_to_end(&mut text)? as u64 > MAX_FILE {
        let reason = format!("it is larger than {} MiB, so not a configuration file", MAX_FILE >> 20);
        return Err(io::Error::new(io::ErrorKind::InvalidData, reason));
    }
    Ok(decode(&text)?)
}
