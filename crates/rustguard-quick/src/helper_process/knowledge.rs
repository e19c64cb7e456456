//! The privileged helper's own knowledge of its tunnel, which it has read itself.

use crate::{
    conf::{self, Config},
    helper::{Failure, When},
    hooks::HookOutput,
};
use rustguard_device::{
    interface::{RUN_DIR, STATE_DIR, check_name, run_file},
    uapi::SOCKET_DIR,
};
use std::path::{Path, PathBuf};

/// Folders in which a confined tunnel can write. Their content is not trusted.
const OF_TUNNELS: [&str; 3] = [RUN_DIR, SOCKET_DIR, STATE_DIR];

/// A tunnel, as its privileged helper knows it.
#[derive(Debug)]
pub(super) struct Knowledge {
    pub(super) interface: String,
    pub(super) output: HookOutput,
    /// `None` for a tunnel without a file.
    pub(super) file: Option<KnownFile>,
    /// The sockets that it may open.
    sockets: Vec<PathBuf>,
}

/// The configuration file.
#[derive(Debug)]
pub(super) struct KnownFile {
    /// Absolute.
    pub(super) path: PathBuf,
    /// The folders in which another file may take its place: the folders of the link and of its target at the start.
    folders: Vec<PathBuf>,
    hooks: [Vec<String>; 4],
}

impl Knowledge {
    /// Reads the file of the tunnel.
    pub(super) fn new(
        interface: &str,
        file: Option<&Path>,
        sockets: &[PathBuf],
        output: HookOutput,
    ) -> Result<Self, Failure> {
        check_name(interface).map_err(|error| Failure::refused(error.to_string()))?;
        let file = file.map(KnownFile::start).transpose()?;
        let mut known = vec![
            Path::new(SOCKET_DIR).join(format!("{interface}.sock")),
            run_file(interface, "sock"),
            run_file(interface, "ctl"),
        ];
        for path in sockets {
            known.push(std::path::absolute(path)?);
        }
        Ok(Self { interface: interface.to_owned(), output, file, sockets: known })
    }

    /// The known path of the tunnel's socket at `path`, if there is one. Each tunnel has some sockets, and the command
    /// line names others. The tunnel may use another path to the folder, but only the known path is opened.
    pub(super) fn socket(&self, path: &Path) -> Option<&Path> {
        let real = |path: &Path| Some(path.parent()?.canonicalize().ok()?.join(path.file_name()?));
        let wanted = real(path);
        let is_it = |known: &&PathBuf| *known == path || wanted.is_some() && real(known) == wanted;
        self.sockets.iter().find(is_it).map(PathBuf::as_path)
    }

    /// Whether a hook is in the file.
    pub(super) fn has_hook(&self, when: When, command: &str) -> Result<(), Failure> {
        let hooks = self.file.as_ref().map(|file| file.hooks(when)).unwrap_or_default();
        if hooks.iter().any(|hook| hook == command) {
            return Ok(());
        }
        Err(Failure::refused(match &self.file {
            Some(file) => format!(
                "it is not in {} as the process that runs hooks has read it; `rustguard reload {}` takes an edited file over",
                file.path.display(),
                self.interface
            ),
            None => "this tunnel has no file with hooks".to_owned(),
        }))
    }

    /// Reads the file that the tunnel has taken over: the file of the start, or another file with its name in the same
    /// folder.
    pub(super) fn take(&mut self, path: &Path, digest: &str) -> Result<(), Failure> {
        let Some(file) = &mut self.file else { return Err(Failure::refused("this tunnel has no file")) };
        file.take(&self.interface, path, digest)
    }
}

impl KnownFile {
    fn start(path: &Path) -> Result<Self, Failure> {
        let path = std::path::absolute(path)?;
        let (config, _) = read(&path)?;
        let target = path.canonicalize()?;
        let of_link = path.parent().map(Path::canonicalize).transpose()?;
        let folders = of_link.into_iter().chain(target.parent().map(Path::to_owned)).collect();
        Ok(Self { path, folders, hooks: hooks(&config) })
    }

    fn take(&mut self, interface: &str, path: &Path, digest: &str) -> Result<(), Failure> {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let is_named = name.strip_suffix(".conf").unwrap_or(name) == interface && path.is_absolute();
        let target = path.canonicalize()?;
        let folder = path.parent().map(Path::canonicalize).transpose()?;
        let is_there = |folder: Option<&Path>| {
            folder.is_some_and(|folder| {
                self.folders.iter().any(|known| known == folder)
                    && !OF_TUNNELS.iter().any(|writable| folder.starts_with(writable))
            })
        };
        if !is_named || !is_there(folder.as_deref()) || !is_there(target.parent()) {
            return Err(Failure::refused(format!(
                "{} is not in the folder of the file with which {interface} was started",
                path.display()
            )));
        }
        let (config, read) = read(path)?;
        if read != digest {
            return Err(Failure::Changed);
        }
        (self.path, self.hooks) = (path.to_owned(), hooks(&config));
        Ok(())
    }

    pub(super) fn hooks(&self, when: When) -> &[String] {
        &self.hooks[when as usize]
    }
}

/// Reads a file, with its digest. Refuses a file that every user may change.
fn read(path: &Path) -> Result<(Config, String), Failure> {
    if conf::writable_by_others(path)? {
        return Err(Failure::refused(format!("everybody on this machine may change {}", path.display())));
    }
    let file = conf::File::read(path)?;
    let config = conf::parse(file.text()).0;
    let config = config.ok_or_else(|| Failure::refused(format!("{} has mistakes", path.display())))?;
    Ok((config, file.digest()))
}

/// In the order of [`When`].
fn hooks(config: &Config) -> [Vec<String>; 4] {
    let interface = &config.interface;
    [&interface.pre_up, &interface.post_up, &interface.pre_down, &interface.post_down].map(Clone::clone)
}
