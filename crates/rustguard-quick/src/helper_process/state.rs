//! The state folder, which a server can replace by another one. A process that is confined by Landlock may write in
//! folders, but not rename the folders themselves. So both folders exist from the start, and are exchanged.

use crate::{
    aside::free_name,
    helper::{Answer, Failure},
};
use rustguard_device::interface::STATE_DIR;
use rustix::fs::{CWD, RenameFlags, renameat_with};
use std::{
    fs::{self, DirBuilder, File},
    io,
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

/// The depth of a state folder. Deeper folders are not part of the state.
const DEEPEST: usize = 4;

/// The spare state folder of an interface. No interface can have this name.
pub fn spare(interface: &str) -> PathBuf {
    Path::new(STATE_DIR).join(format!(".{interface}.restore"))
}

/// Copies the state folder, and puts the spare one in its place.
pub(super) fn swap(interface: &str) -> Result<Answer, Failure> {
    let path = Path::new(STATE_DIR).join(interface);
    let before = free_name(&path, "before-restore");
    copy(&path, &before, DEEPEST)?;
    exchange(interface)?;
    Ok(Answer::Moved(before))
}

/// Exchanges both folders in one step, so that the state folder always exists.
pub(super) fn exchange(interface: &str) -> Result<(), Failure> {
    let path = Path::new(STATE_DIR).join(interface);
    renameat_with(CWD, spare(interface), CWD, path, RenameFlags::EXCHANGE).map_err(io::Error::from)?;
    File::open(STATE_DIR)?.sync_all()?;
    Ok(())
}

/// Removes the spare folder at the end of its tunnel. It contains only replaced state.
pub(super) fn remove_spare(interface: &str) {
    let _ = fs::remove_dir_all(spare(interface));
}

/// Copies files and folders, but no links, because the tunnel has written them.
fn copy(from: &Path, to: &Path, deepest: usize) -> io::Result<()> {
    DirBuilder::new().mode(0o700).create(to)?;
    for entry in fs::read_dir(from)? {
        let (entry, target) = entry.map(|entry| (entry.path(), to.join(entry.file_name())))?;
        let kind = entry.symlink_metadata()?.file_type();
        if kind.is_dir() && deepest > 0 {
            copy(&entry, &target, deepest - 1)?;
        } else if kind.is_file() {
            let nofollow = i32::try_from(rustix::fs::OFlags::NOFOLLOW.bits()).unwrap_or_default();
            let mut read = File::options().read(true).custom_flags(nofollow).open(&entry)?;
            let mut write = File::options().write(true).create_new(true).mode(0o600).open(&target)?;
            io::copy(&mut read, &mut write)?;
            write.sync_all()?;
        }
    }
    File::open(to)?.sync_all()
}
