//! `install` and `uninstall`: the files of the program below a prefix, and the services that use them.
//!
//! [`files`] is the list of what is installed. The program carries all of it: units and rules from
//! `crates/rustguard-cli/system`, and manual pages and completions, which are made from the definition of the command
//! line. So there is one list for a checkout, a copied program, and every package: packages take the files that
//! `rustguard install --root` has put into a folder. ExecStart of the units is below the prefix.
//!
//! [`services`] starts, stops and restarts services, for these commands and for the scripts of packages
//! (`--only-services`). `packaging/booted` tests all of it with a real systemd: process 1 in namespaces of its own, on
//! a clean Debian of debootstrap.

mod files;
mod services;

use crate::{arguments::Installation, escape::escape, one};
use anyhow::{Context as _, Result, bail};
use files::{FOLDERS, File, MANIFEST, Source};
use rustguard_device::interface::STATE_DIR;
use rustguard_quick::{conf::DIRECTORIES, run_file};
use std::{
    collections::BTreeSet,
    fs,
    io::{self, Write as _},
    os::unix::fs::PermissionsExt as _,
    path::{Component, Path, PathBuf},
};
use tempfile::NamedTempFile;

/// The place of the installation.
struct Place<'a> {
    root: Option<&'a Path>,
    prefix: &'a Path,
}

impl<'a> Place<'a> {
    /// The full path of a file whose path is relative to the prefix.
    fn path(&self, file: &str) -> PathBuf {
        let path = self.prefix.join(file);
        match (self.root, path.strip_prefix("/")) {
            (Some(root), Ok(path)) => root.join(path),
            _ => path,
        }
    }

    /// The files that an earlier installation here has made. Another version may have made other files.
    fn installed(&self) -> Result<BTreeSet<String>> {
        self.listed(MANIFEST)
    }

    /// The lines of a list that stay below the prefix.
    fn listed(&self, list: &str) -> Result<BTreeSet<String>> {
        let path = self.path(list);
        match fs::read_to_string(&path) {
            Ok(lines) => {
                let is_ours = |line: &&str| is_below(line) || (list == FOLDERS && *line == PREFIX);
                Ok(lines.lines().filter(is_ours).map(str::to_owned).collect())
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(BTreeSet::new()),
            Err(error) => Err(error).with_context(|| format!("cannot read {}", path.display())),
        }
    }

    /// The folders that have to be made for these files.
    fn missing_folders<'f>(&self, files: impl Iterator<Item = &'f str>) -> BTreeSet<String> {
        let folders = files.flat_map(|file| Path::new(file).ancestors().skip(1));
        let missing = folders.filter_map(Path::to_str).filter(|folder| !self.path(folder).exists());
        missing.map(|folder| if folder.is_empty() { PREFIX } else { folder }.to_owned()).collect()
    }
}

/// The prefix itself, in the list of folders.
const PREFIX: &str = ".";

/// Whether a line of the list stays below the prefix.
fn is_below(line: &str) -> bool {
    !line.is_empty() && Path::new(line).components().all(|component| matches!(component, Component::Normal(_)))
}

pub(crate) fn install(arguments: &Installation, root: Option<&Path>) -> Result<()> {
    if arguments.only_services {
        return services::take_over();
    }
    let place = Place { root, prefix: &arguments.prefix };
    let files = files::all(place.prefix);
    if let Some(root) = root {
        files.iter().try_for_each(|file| put(file, &place))?;
        println!("{} files are in {}", files.len(), root.display());
        return Ok(());
    }
    let before = place.installed()?;
    // A program without our list belongs to a package. The package manager would not know of our changes.
    if before.is_empty() && place.path("bin/rustguard").exists() {
        bail!(
            "{} was not installed by this command: remove it first, or choose another place with --prefix",
            place.path("bin/rustguard").display()
        );
    }
    let now: BTreeSet<String> = files.iter().map(|file| file.path.clone()).collect();
    let made = place.listed(FOLDERS)?;
    let missing = place.missing_folders(now.iter().map(String::as_str).chain([MANIFEST]));
    // The lists come first: if a file cannot be written, `uninstall` removes the others.
    list(&place, MANIFEST, before.union(&now))?;
    list(&place, FOLDERS, made.union(&missing))?;
    files.iter().try_for_each(|file| put(file, &place))?;
    for gone in before.difference(&now) {
        remove(&place.path(gone))?;
    }
    list(&place, MANIFEST, now.iter())?;
    println!("installed {} files in {}", files.len(), place.prefix.display());
    services::take_over()?;
    services::tell_where(place.prefix);
    println!("`systemctl enable --now rustguard@wg0` brings a tunnel up at each start; `man rustguard` has the rest");
    Ok(())
}

pub(crate) fn uninstall(arguments: &Installation) -> Result<()> {
    if arguments.only_services {
        return services::end();
    }
    let place = Place { root: None, prefix: &arguments.prefix };
    let installed = place.installed()?;
    if installed.is_empty() {
        bail!("`rustguard install` has installed nothing in {}", place.prefix.display());
    }
    let folders = place.listed(FOLDERS)?;
    services::end()?;
    // The lists come last, so that files that could not be removed are removed the next time.
    for file in installed.iter().map(String::as_str).chain([FOLDERS, MANIFEST]) {
        let path = place.path(file);
        remove(&path)?;
        remove_empty_folders(&path);
    }
    // In the order of names, a folder comes before its content. A folder that others use is not empty, and stays.
    for folder in folders.iter().rev().filter(|folder| *folder != PREFIX) {
        let _ = fs::remove_dir(place.path(folder));
    }
    if folders.contains(PREFIX) {
        let _ = fs::remove_dir(place.path(""));
    }
    services::forget();
    println!("removed {} files from {}", installed.len(), place.prefix.display());
    for name in one::up().unwrap_or_default() {
        let process = run_file::running(&name).and_then(|runner| runner.process);
        let end = process.map_or_else(String::new, |id| format!(": `kill {id}` ends it"));
        println!("{} was not started by systemd, and is still up{end}", escape(&name));
    }
    let kept = DIRECTORIES.into_iter().chain([STATE_DIR]).filter(|kept| Path::new(kept).exists());
    let kept: Vec<&str> = kept.collect();
    if !kept.is_empty() {
        println!("kept, with your keys: {}", kept.join(", "));
    }
    Ok(())
}

/// Writes a list of what is installed.
fn list<'a>(place: &Place<'_>, list: &str, lines: impl Iterator<Item = &'a String>) -> Result<()> {
    let text: String = lines.flat_map(|line| [line.as_str(), "\n"]).collect();
    write(&place.path(list), 0o644, text.as_bytes())
}

fn put(file: &File, place: &Place<'_>) -> Result<()> {
    let path = place.path(&file.path);
    match &file.source {
        Source::Text(contents) => write(&path, 0o644, contents),
        Source::Program => {
            // Its path may lead to another program by now.
            let program = fs::read("/proc/self/exe").context("cannot read this program")?;
            write(&path, 0o755, &program)
        }
    }
}

/// Writes a file that replaces an earlier one in one step: a program that runs cannot be written to.
fn write(path: &Path, mode: u32, contents: &[u8]) -> Result<()> {
    let write = || -> io::Result<()> {
        let folder = path.parent().unwrap_or(Path::new("/"));
        make(folder)?;
        let mut file = NamedTempFile::new_in(folder)?;
        file.write_all(contents)?;
        // Everyone may read it, with any umask of the shell.
        file.as_file().set_permissions(fs::Permissions::from_mode(mode))?;
        file.as_file().sync_all()?;
        file.persist(path)?;
        Ok(())
    };
    write().map_err(|error| failed("write", path, &error))
}

fn failed(doing: &str, path: &Path, error: &io::Error) -> anyhow::Error {
    let denied = error.kind() == io::ErrorKind::PermissionDenied;
    let remedy = if denied { "; run as root, or with sudo" } else { "" };
    anyhow::anyhow!("cannot {doing} {}: {error}{remedy}", path.display())
}

/// Makes a folder that everyone may read, with its parents.
fn make(folder: &Path) -> io::Result<()> {
    if folder.as_os_str().is_empty() || folder.is_dir() {
        return Ok(());
    }
    if let Some(above) = folder.parent() {
        make(above)?;
    }
    fs::create_dir(folder)?;
    fs::set_permissions(folder, fs::Permissions::from_mode(0o755))
}

fn remove(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed("remove", path, &error)),
        _ => Ok(()),
    }
}

/// Removes the folders of a file that bear our name and are empty now. Others, such as man1, are the system's.
fn remove_empty_folders(file: &Path) {
    for folder in file.ancestors().skip(1) {
        if folder.file_name().is_none_or(|name| name != "rustguard") || fs::remove_dir(folder).is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_of_an_installation_leads_to_nothing_outside_of_it() {
        for line in ["", "/etc/passwd", "../etc/passwd", "share/../../etc/passwd", "./x"] {
            assert!(!is_below(line), "{line}");
        }
        assert!(is_below("share/man/man1/rustguard.1"));
    }
}
