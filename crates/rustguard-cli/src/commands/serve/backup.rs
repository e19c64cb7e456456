//! `rustguard serve backup` and `rustguard serve restore`.

use crate::{escape::escape, output::words::UNEXPECTED_ANSWER, process::lifetime};
use anyhow::{Context as _, Result, bail};
use base64ct::{Base64, Encoding as _};
use rustguard_serve::{
    AskError, Backup, Folder, MAX_BACKUP, PutPolicy, Restored, ask, check_backup_place,
    request::{Answer, Request},
    write_backup,
};
use std::{
    fs::{self, File},
    io::{self, IsTerminal as _, Read, Write as _},
    path::Path,
    thread,
    time::{Duration, Instant},
};
use zeroize::Zeroizing;

/// How long a running server may take to start with a backup.
const PATIENCE: Duration = Duration::from_secs(60);
/// How often this is checked.
const LOOK: Duration = Duration::from_millis(50);

/// Writes a backup of the server, which may run.
pub(super) fn make(interface: &str, path: &Path) -> Result<()> {
    let to_stdout = path == Path::new("-");
    if to_stdout && io::stdout().is_terminal() {
        bail!(
            "a backup has the keys of the network, and is not for a terminal: name a file, or pass it on, for example to age or gpg"
        );
    }
    let failed = || format!("cannot write {}", path.display());
    if !to_stdout {
        // This comes before the server records that a backup was made.
        check_backup_place(path).with_context(failed)?;
    }
    let (bytes, state) = match ask(interface, &Request::Backup) {
        Ok(Answer::Backup { file }) => {
            let bytes = Base64::decode_vec(file.reveal()).map_err(|_| anyhow::anyhow!(UNEXPECTED_ANSWER))?;
            (Zeroizing::new(bytes), "while it runs")
        }
        Ok(_) => bail!(UNEXPECTED_ANSWER),
        Err(AskError::NotServed { .. }) => {
            let folder = Folder::find(interface)?;
            let folder = folder.with_context(|| {
                format!("{interface} was never served by this machine: there is nothing to back up")
            })?;
            (Backup::of_folder(interface, &folder)?.to_bytes()?, "while it does not run")
        }
        Err(error) => return Err(error.into()),
    };
    // The backup must be readable.
    let backup = Backup::from_bytes(&bytes)?;
    if to_stdout {
        let mut out = io::stdout().lock();
        out.write_all(&bytes)?;
        out.flush()?;
        return Ok(());
    }
    write_backup(path, &bytes).with_context(|| format!("{}, and what was there before is as it was", failed()))?;
    writeln!(
        io::stdout(),
        "{interface} with {} is in {}, saved {state}. The file has all keys of the network: keep it as safe as the server",
        machines(backup.machines()),
        path.display()
    )?;
    Ok(())
}

/// Puts a backup in place of the state of the server, which may run.
pub(super) fn restore(interface: &str, path: &Path, consent: bool) -> Result<()> {
    let bytes = read(path).with_context(|| format!("cannot read {}", path.display()))?;
    let backup = Backup::from_bytes(&bytes).with_context(|| path.display().to_string())?;
    let folder = match ask(interface, &Request::Status) {
        Ok(_) => Folder::find(interface)?,
        Err(AskError::NotServed { .. }) => None,
        Err(error) => return Err(error.into()),
    };
    if let Some(folder) = folder {
        return to_running(interface, &folder, &backup, &bytes, consent);
    }
    let policy = backup.put_policy(interface)?;
    let restored = match backup.restore(interface, consent) {
        Ok(restored) => restored,
        Err(error) => {
            take_back(policy.as_ref())?;
            return Err(error.into());
        }
    };
    let mut out = io::stdout().lock();
    writeln!(
        out,
        "{interface} has the key {} and {} again; start it with: rustguard serve --interface {interface}",
        backup.public_key()?,
        machines(backup.machines())
    )?;
    for line in policy.iter().map(policy_line).chain(lines(interface, &restored)) {
        writeln!(out, "- {}", escape(&line))?;
    }
    Ok(())
}

/// Has a running server start again with a backup.
fn to_running(interface: &str, folder: &Folder, backup: &Backup, bytes: &[u8], consent: bool) -> Result<()> {
    let before = restorations(folder);
    // A confined server cannot write the policy itself. It reads the file when it starts again.
    let policy = backup.put_policy(interface)?;
    folder.replace("restore", bytes)?;
    let answer = ask(interface, &Request::Restore { consent });
    // The server removes the file. If the request did not reach the server, the file is still there.
    folder.remove("restore")?;
    match answer {
        Ok(Answer::Restore { restarts: true, .. }) => {}
        refused => {
            take_back(policy.as_ref())?;
            match refused? {
                Answer::Restore { losses, .. } => bail!("{losses}"),
                _ => bail!(UNEXPECTED_ANSWER),
            }
        }
    }
    let until = Instant::now() + PATIENCE;
    while Instant::now() < until {
        thread::sleep(LOOK);
        if let Ok(Answer::Status(status)) = ask(interface, &Request::Status) {
            if restorations(folder) == before {
                if policy.is_some() {
                    take_back(policy.as_ref())?;
                    // The server has the earlier state, but it has read the policy of the backup.
                    ask(interface, &Request::Reload { dry_run: false, restored: false })?;
                }
                bail!(
                    "{interface} did not start with the backup, and runs with its state of before; the reason is in its log"
                );
            }
            writeln!(
                io::stdout(),
                "{interface} runs with the backup: the key {}, {}",
                status.public_key,
                machines(status.peers.len())
            )?;
            for line in policy.iter().map(policy_line) {
                writeln!(io::stdout(), "- {}", escape(&line))?;
            }
            return Ok(());
        }
    }
    bail!("{interface} is not back after {} seconds; the reason is in its log", PATIENCE.as_secs())
}

/// The backup was not restored: puts the earlier policy back.
fn take_back(policy: Option<&PutPolicy>) -> Result<()> {
    policy.map_or(Ok(()), PutPolicy::undo).context("the policy of before cannot be put back")
}

fn policy_line(policy: &PutPolicy) -> String {
    let path = policy.path.display();
    match &policy.before {
        Some(before) => {
            format!("the policy in {path} is that of the backup; the one of before is in {}", before.display())
        }
        None => format!("the policy of the backup is in {path}"),
    }
}

/// Replaces the state with the backup, in the process of the server. `None` if this fails; then the state is as before.
pub(super) fn put_in_place(interface: &str, backup: &Backup) -> Option<Restored> {
    match backup.restore(interface, true) {
        Ok(restored) => {
            for line in lines(interface, &restored) {
                tracing::warn!("{line}");
            }
            Some(restored)
        }
        Err(error) => {
            tracing::error!("the backup was not restored, and {interface} goes on as before: {error}");
            None
        }
    }
}

/// The server did not start with the backup: puts the earlier state back.
pub(super) fn put_back(interface: &str, restored: &Restored, error: &anyhow::Error) -> Result<()> {
    tracing::error!("{interface} does not start with the backup, and goes on as before: {error:#}");
    lifetime::reloading();
    restored.undo(interface).context("the state of before cannot be put back")
}

/// The notes for the administrator afterwards.
fn lines(interface: &str, restored: &Restored) -> Vec<String> {
    let mut lines = Vec::new();
    if let Some(before) = &restored.before {
        lines.push(format!(
            "the state of before, with its keys, is in {}: delete it when it is not needed",
            before.display()
        ));
    }
    if restored.revoked > 0 {
        lines.push(format!(
            "{} of the backup cannot be used any more, because that may have happened since: rustguard invite new makes others",
            if restored.revoked == 1 { "an invite".to_owned() } else { format!("{} invites", restored.revoked) }
        ));
    }
    if restored.before.is_none() {
        lines.push("the server of before must not run any more: one network has one server that signs".to_owned());
        lines.push("machines that joined since the backup are not known, and machines that were removed since are back: rustguard peer ls, rustguard peer rm".to_owned());
    }
    if restored.waits {
        lines.push(format!(
            "nothing is signed until a member has told which list it has; if none is to come: rustguard reload {interface} --restored"
        ));
    }
    lines
}

/// How often the state of this folder was restored.
fn restorations(folder: &Folder) -> usize {
    let audit = fs::read_to_string(folder.path("audit.jsonl")).unwrap_or_default();
    audit.lines().filter(|line| line.contains("\"event\":\"restored\"")).count()
}

pub(super) fn machines(number: usize) -> String {
    if number == 1 { "1 machine".to_owned() } else { format!("{number} machines") }
}

/// Reads a file, or standard input.
fn read(path: &Path) -> io::Result<Zeroizing<Vec<u8>>> {
    let (input, size): (Box<dyn Read>, u64) = if path == Path::new("-") {
        (Box::new(io::stdin().lock()), 0)
    } else {
        let file = File::open(path)?;
        let metadata = file.metadata()?;
        if metadata.is_dir() {
            return Err(io::ErrorKind::IsADirectory.into());
        }
        (Box::new(file), metadata.len())
    };
    // The capacity covers the whole file, because a reallocation would leave a copy of the keys behind.
    let mut bytes = Zeroizing::new(Vec::with_capacity(usize::try_from(size.min(MAX_BACKUP)).unwrap_or(0) + 64));
    if input.take(MAX_BACKUP + 1).read_to_end(&mut bytes)? as u64 > MAX_BACKUP {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            format!("it is larger than {} MiB, so no backup", MAX_BACKUP >> 20),
        ));
    }
    Ok(bytes)
}
