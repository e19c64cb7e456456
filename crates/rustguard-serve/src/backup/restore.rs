//! Restores a backup.

use super::{Backup, BackupError, FILES, LEASES};
use crate::{
    audit::AuditLog,
    clock::now,
    network::files::RESTORED,
    prepare::Prepared,
    store::{FileStore, changes},
};
use atomic_write_file::{AtomicWriteFile, unix::OpenOptionsExt as _};
use rustguard_device::interface::{STATE_DIR, check_name};
use rustguard_enroll::{
    audit::{AuditEvent, AuditRecord},
    store::{LeaseStore as _, State},
};
use rustguard_network::{Folder, FolderError};
use rustguard_quick::{free_name, helper};
use rustix::fs::{CWD, RenameFlags, renameat_with};
use std::{
    fs::{self, File},
    io::{self, Write as _},
    os::unix::fs::{FileTypeExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

/// The audit log and the previous one. A restore keeps them, because it does not undo the decisions in them.
const AUDIT: [&str; 2] = ["audit.jsonl", "audit.jsonl.1"];

/// The end of the new name of the previous folder, or of the previous policy file.
pub(super) const BEFORE: &str = "before-restore";

/// The result of a restore.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Restored {
    /// The folder of the previous state; `None` if there was none.
    pub before: Option<PathBuf>,
    /// Invites that nobody can use any more, because they may have been used since the backup.
    pub revoked: usize,
    /// Whether nothing is signed until a member has reported which list it has.
    pub waits: bool,
}

impl Backup {
    /// Makes this the state of `interface`, whose server must not run. `consent`: even if machines are lost or
    /// readmitted by this.
    ///
    /// # Errors
    /// See [`BackupError`]. After an error nothing has changed.
    pub fn restore(&self, interface: &str, consent: bool) -> Result<Restored, BackupError> {
        check_name(interface).map_err(FolderError::from)?;
        self.restore_in(Path::new(STATE_DIR), interface, consent)
    }

    pub(super) fn restore_in(&self, folders: &Path, interface: &str, consent: bool) -> Result<Restored, BackupError> {
        let path = folders.join(interface);
        let io = |doing: &'static str, path: &Path| {
            let path = path.to_owned();
            move |cause| BackupError::Io { doing, path, cause }
        };
        let is_there = match fs::read_dir(&path) {
            Ok(mut entries) => entries.next().is_some(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => false,
            Err(cause) => return Err(io("look at", &path)(cause)),
        };
        let present = match is_there {
            true => Some(match Self::of_folder_and(interface, &Folder::open_at(&path)?, None) {
                Err(BackupError::NoServer(_)) => return Err(BackupError::Member(path)),
                present => present?,
            }),
            false => None,
        };
        if let Some(present) = &present {
            self.check_same(present, &path)?;
            let losses = self.losses(&present.state);
            if !losses.is_empty() && !consent {
                return Err(BackupError::Consent(losses));
            }
        }
        let merged = self.merged(present.as_ref(), now())?;
        let usable = |state: &State| {
            state.invites.values().filter(|invite| invite.uses_left > 0 && invite.revoked.is_none()).count()
        };
        let revoked = usable(&self.state).saturating_sub(usable(&merged.state));
        // Only the members know which numbers of rosters were issued after the backup.
        let waited = is_there && path.join(RESTORED).exists();
        let waits = (present.is_none() || waited) && merged.state.leases.values().any(|lease| lease.member);
        let new = folders.join(format!(".{interface}.restore"));
        // A confined process keeps the folder itself, because it cannot make another one.
        let emptied = if helper::exists() { empty(&new) } else { fs::remove_dir_all(&new) };
        match emptied {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(io("remove", &new)(error)),
            _ => {}
        }
        let filled = merged.fill(&new, interface, is_there.then_some(&*path), waits, AuditEvent::Restored);
        let put = filled.and_then(|()| {
            if present.is_none() {
                // An empty folder in its place is replaced.
                fs::rename(&new, &path).map_err(io("make", &path))?;
                return Ok(None);
            }
            if let Some(swapped) = helper::swap_state() {
                return swapped.map(Some).map_err(io("replace", &path));
            }
            let before = free_name(&path, BEFORE);
            // This is one step, so that there always is a folder: a server that finds none would begin a new network.
            renameat_with(CWD, &new, CWD, &path, RenameFlags::EXCHANGE)
                .map_err(|cause| io("replace", &path)(cause.into()))?;
            fs::rename(&new, &before).map_err(io("move aside", &new))?;
            Ok(Some(before))
        });
        let before = match put {
            Ok(before) => before,
            Err(error) => {
                let _ = fs::remove_dir_all(&new);
                return Err(error);
            }
        };
        // A confined process may not open the folder of all state. Its helper has synced that folder already.
        if !helper::exists() {
            File::open(folders).and_then(|folder| folder.sync_all()).map_err(io("sync", folders))?;
        }
        Ok(Restored { before, revoked, waits })
    }

    /// Writes the state into a new folder, and opens it as a server does.
    pub(super) fn fill(
        &self,
        path: &Path,
        interface: &str,
        before: Option<&Path>,
        waits: bool,
        event: AuditEvent,
    ) -> Result<(), BackupError> {
        let folder = Folder::open_at(path)?;
        for name in FILES {
            if let Some(text) = self.files.get(name) {
                folder.replace(name, text)?;
            }
        }
        if waits {
            folder.replace(RESTORED, format!("{}\n", self.about.created).as_bytes())?;
        }
        let mut store = FileStore::open(&folder.path(LEASES))?;
        store.load().map_err(BackupError::Store)?;
        store.commit(&changes(&self.state), &State::default()).map_err(BackupError::Store)?;
        drop(store);
        for name in AUDIT {
            let (to, failed) =
                (folder.path(name), |cause| BackupError::Io { doing: "copy", path: folder.path(name), cause });
            match before.map(|before| copy(&before.join(name), &to)) {
                Some(Err(error)) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
                _ => {}
            }
        }
        let audit = folder.path(AUDIT[0]);
        let mut record = AuditRecord::new(event, now());
        record.uid = Some(rustix::process::getuid().as_raw());
        let written = AuditLog::open(&audit).and_then(|mut log| log.write(&record));
        written.map_err(|cause| BackupError::Io { doing: "write", path: audit, cause })?;
        Prepared::new(interface, &folder, self.settings()?, None)?;
        Ok(())
    }
}

impl Restored {
    /// Puts the previous state back, if the server does not start with the state of the backup.
    ///
    /// # Errors
    /// See [`BackupError`].
    pub fn undo(&self, interface: &str) -> Result<(), BackupError> {
        let Some(before) = &self.before else { return Ok(()) };
        let path = Path::new(STATE_DIR).join(interface);
        let failed = |cause: io::Error| BackupError::Io { doing: "replace", path: path.clone(), cause };
        match helper::swap_state_back() {
            Some(swapped) => swapped.map_err(failed),
            None => renameat_with(CWD, before, CWD, &path, RenameFlags::EXCHANGE).map_err(|error| failed(error.into())),
        }
    }
}

/// Removes everything in a folder.
fn empty(folder: &Path) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            fs::remove_dir_all(entry.path())?;
        } else {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

/// Whether a backup may be written here: the path does not exist, or is a file.
///
/// # Errors
/// What is there, and what to do. The new file replaces whatever has the name: the name of a device would become a
/// file, and a link would not be followed.
pub fn check_backup_place(path: &Path) -> io::Result<()> {
    let kind = match path.symlink_metadata() {
        Ok(metadata) if metadata.is_file() => return Ok(()),
        Ok(metadata) => metadata.file_type(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    let reason = if kind.is_symlink() {
        let target = path.canonicalize().map_or_else(|_| "what it leads to".to_owned(), |to| to.display().to_string());
        format!("it is a symbolic link, which would be replaced; name {target}, or remove the link")
    } else if kind.is_dir() {
        "it is a folder; name a file in it".to_owned()
    } else {
        let what = if kind.is_fifo() || kind.is_socket() { "a pipe or socket" } else { "a device" };
        format!("it is {what}, and not a file; name a file, or write there by `rustguard serve backup - >FILE`")
    };
    Err(io::Error::new(io::ErrorKind::InvalidInput, reason))
}

/// Writes a backup file. At no time can anybody but the user of this process read it. Readers see the previous file or
/// the complete new one.
///
/// # Errors
/// The errors of [`check_backup_place`], and errors of the operating system. The previous file is then unchanged.
pub fn write_backup(path: &Path, bytes: &[u8]) -> io::Result<()> {
    check_backup_place(path)?;
    // The owner is not preserved: another user may have made the previous file in a shared folder to get at the keys.
    let mut file = AtomicWriteFile::options().mode(0o600).preserve_mode(false).preserve_owner(false).open(path)?;
    file.write_all(bytes)?;
    // This syncs the file and, after renaming it, the folder.
    file.commit()
}

/// Copies a file so that only this user can read it. `fs::copy` would set the mode afterwards, which a confined process
/// may not do.
fn copy(from: &Path, to: &Path) -> io::Result<()> {
    let mut from = File::open(from)?;
    let mut to = File::options().write(true).create(true).truncate(true).mode(0o600).open(to)?;
    io::copy(&mut from, &mut to).map(drop)
}
