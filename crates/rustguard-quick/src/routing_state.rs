//! `/var/lib/rustguard/NAME/routing`: the state of a routing protocol for its next start.

use crate::error::RoutingError;
use atomic_write_file::{AtomicWriteFile, unix::OpenOptionsExt as _};
use rustguard_device::interface::STATE_DIR;
use std::{
    fs,
    io::{self, Write as _},
    os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

/// The file of one interface.
pub(crate) struct RoutingState(PathBuf);

impl RoutingState {
    /// Opens the folder, and makes it if it does not exist.
    pub(crate) fn open(interface: &str) -> Result<Self, RoutingError> {
        let folder = Path::new(STATE_DIR).join(interface);
        let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(&folder);
        made.map_err(failed("make the state folder", &folder))?;
        let mode = fs::metadata(&folder).map_err(failed("look at", &folder))?.mode() & 0o777;
        if mode & 0o077 != 0 {
            return Err(RoutingError::Exposed { path: folder, mode });
        }
        Ok(Self(folder.join("routing")))
    }

    /// The state that the protocol stored last; `None` the first time.
    pub(crate) fn load(&self) -> Result<Option<Vec<u8>>, RoutingError> {
        match fs::read(&self.0) {
            Ok(state) => Ok(Some(state)),
            Err(cause) if cause.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(cause) => Err(failed("read", &self.0)(cause)),
        }
    }

    /// Replaces the file atomically: readers see the old contents or the new contents. The file is durable on return.
    pub(crate) fn store(&self, state: &[u8]) -> Result<(), RoutingError> {
        let written =
            AtomicWriteFile::options().mode(0o600).preserve_mode(false).preserve_owner(false).open(&self.0).and_then(
                |mut file| {
                    file.write_all(state)?;
                    file.commit()
                },
            );
        written.map_err(failed("write", &self.0))
    }
}

fn failed(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> RoutingError {
    let path = path.to_owned();
    move |cause| RoutingError::State { action, path, cause }
}
