//! `rustguard leave`: undoes `join`.

use super::{
    down,
    join::{CONFIG_DIR, MARK},
};
use crate::escape::escape;
use anyhow::{Context as _, Result, bail};
use rustguard_device::interface::{self, STATE_DIR};
use rustguard_network::{Report, Standing};
use rustguard_quick::{
    left_behind,
    reload::{Answer, Request, ask},
    run_file,
};
use rustguard_serve::{Folder, NETWORK_KEY};
use std::{
    fs, io,
    io::Write as _,
    path::{Path, PathBuf},
};

/// Tells a server, if possible, and removes the network from this machine.
pub(crate) fn run(interface: Option<&str>) -> Result<()> {
    let interface = &match interface {
        Some(interface) => interface.to_owned(),
        None => the_only_one()?,
    };
    interface::check_name(interface)?;
    let folder = Folder::find(interface)?;
    if folder.as_ref().is_some_and(|folder| folder.path(NETWORK_KEY).exists()) {
        bail!(cannot_leave(interface));
    }
    let path = joined(interface)?;
    let report = Report::read(interface).ok().flatten().unwrap_or_default();
    let is_up = run_file::running(interface).is_some();
    // No server answers a machine that was removed.
    let was_removed = report.standing == Standing::Removed;
    let heard = is_up && !was_removed && matches!(ask(interface, &Request::Leave), Ok(Answer::Left { heard: true }));
    if is_up || left_behind(interface) {
        down::run(Some(interface))?;
    }
    // The file first: without it, nothing uses the key any more.
    fs::remove_file(&path).with_context(|| format!("cannot remove {}", path.display()))?;
    if let Some(folder) = folder {
        let folder = folder.as_path();
        fs::remove_dir_all(folder).with_context(|| format!("cannot remove {}", folder.display()))?;
    }
    let network = report.name.as_deref().unwrap_or(interface);
    let mut out = io::stdout().lock();
    writeln!(out, "this machine has left {}; {} and its key are removed", escape(network), path.display())?;
    if !heard && !was_removed {
        let name = report.own_name.as_deref().unwrap_or("NAME");
        writeln!(out, "no server has heard it: to remove this machine there, `rustguard peer rm {}`", escape(name))?;
    }
    Ok(())
}

/// The file of a network that this machine has joined.
fn joined(interface: &str) -> Result<PathBuf> {
    let path = Path::new(CONFIG_DIR).join(format!("{interface}.conf"));
    match fs::read_to_string(&path) {
        Ok(text) if text.starts_with(MARK) => Ok(path),
        Ok(_) => bail!(
            "{} was not written by `join`, so there is nothing to leave; `rustguard down {interface}` ends the tunnel",
            path.display()
        ),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            bail!("this machine has joined no network as {interface}: there is no {}", path.display())
        }
        Err(error) => Err(error).with_context(|| format!("cannot read {}; run as root, or with sudo", path.display())),
    }
}

/// The interface of the only network that was joined.
fn the_only_one() -> Result<String> {
    let entries = match fs::read_dir(CONFIG_DIR) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(error).with_context(|| format!("cannot read {CONFIG_DIR}; run as root, or with sudo"));
        }
        entries => entries.into_iter().flatten(),
    };
    let mut names = Vec::new();
    for entry in entries {
        let path = entry?.path();
        let name = path.file_stem().and_then(|name| name.to_str());
        if let (Some(name), Some("conf")) = (name, path.extension().and_then(|end| end.to_str())) {
            let text = fs::read_to_string(&path)
                .with_context(|| format!("cannot read {}; run as root, or with sudo", path.display()))?;
            names.extend(text.starts_with(MARK).then(|| name.to_owned()));
        }
    }
    names.sort_unstable();
    match &names[..] {
        [] => match served() {
            Some(interface) => bail!(cannot_leave(&interface)),
            None => bail!("this machine has joined no network"),
        },
        [only] => Ok(only.clone()),
        several => bail!("this machine has joined several networks: {}; give one of them", several.join(", ")),
    }
}

/// The interface of a network that this machine serves.
fn served() -> Option<String> {
    let names = fs::read_dir(STATE_DIR).ok()?.flatten().filter(|entry| entry.path().join(NETWORK_KEY).exists());
    let names = names.filter_map(|entry| entry.file_name().into_string().ok());
    // A folder that a restored backup has replaced has a name that no interface can have.
    names.filter(|name| interface::check_name(name).is_ok() && !name.starts_with('.')).min()
}

fn cannot_leave(interface: &str) -> String {
    format!("{interface} is served by this machine, which cannot leave; `rustguard down {interface}` ends it")
}
