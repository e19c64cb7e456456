//! Programs that the tests start, and that end with them.

use std::{
    env,
    ffi::OsStr,
    fs::{self, File},
    net::{Ipv4Addr, TcpListener},
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

/// How long a program may take to start: minutes, where the machine is busy.
pub(crate) const START: Duration = Duration::from_secs(120);
pub(crate) const PAUSE: Duration = Duration::from_millis(20);

/// The user and group `nobody` of Debian. PostgreSQL does not run as root.
const NOBODY: u32 = 65_534;

/// A running program. It is killed when it is dropped.
pub(crate) struct Process {
    child: Child,
    log: PathBuf,
}

impl Process {
    /// Starts a program with its output in a file of `folder`, under the name `name`.
    pub(crate) fn start(
        program: &Path,
        folder: &Path,
        name: &str,
        arguments: impl IntoIterator<Item = impl AsRef<OsStr>>,
    ) -> Self {
        let log = folder.join(format!("{name}.log"));
        let output = File::options().append(true).create(true).open(&log).unwrap();
        let mut command = as_nobody(program);
        command.args(arguments).current_dir(folder).stdin(Stdio::null());
        let child = command.stdout(output.try_clone().unwrap()).stderr(output).spawn().unwrap();
        Self { child, log }
    }

    /// Waits until `is_done`.
    pub(crate) fn until(&mut self, mut is_done: impl FnMut() -> bool) {
        let started = Instant::now();
        while !is_done() {
            let log = || fs::read_to_string(&self.log).unwrap_or_default();
            if let Some(status) = self.child.try_wait().unwrap() {
                panic!("the store ended ({status}): {}", log());
            }
            assert!(started.elapsed() < START, "the store does not start: {}", log());
            thread::sleep(PAUSE);
        }
    }

    /// Sends a signal.
    pub(crate) fn signal(&self, signal: rustix::process::Signal) {
        rustix::process::kill_process(rustix::process::Pid::from_child(&self.child), signal).unwrap();
    }

    /// Sends a signal that ends it, and waits for the end.
    pub(crate) fn stop(mut self, signal: rustix::process::Signal) {
        self.signal(signal);
        self.child.wait().unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A program of the system; a test without it is skipped.
pub(crate) fn program(name: &str, package: &str) -> Option<PathBuf> {
    let mut folders: Vec<_> = env::split_paths(&env::var_os("PATH").unwrap_or_default()).collect();
    // Debian has the programs of PostgreSQL in a folder for each version.
    let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    // A user's PATH may lack it.
    folders.push("/usr/sbin".into());
    folders.extend(versions.map(|version| version.path().join("bin")));
    let found = folders.into_iter().map(|folder| folder.join(name)).find(|path| path.is_file());
    if found.is_none() {
        rustguard_skip::missing(&format!("no {name}: apt install {package}"));
    }
    found
}

/// A command without the rights of root.
pub(crate) fn as_nobody(program: &Path) -> Command {
    let mut command = Command::new(program);
    if rustix::process::geteuid().is_root() {
        command.uid(NOBODY).gid(NOBODY);
    }
    command
}

/// A new folder, which belongs to the user of [`as_nobody`].
pub(crate) fn folder() -> tempfile::TempDir {
    let folder = tempfile::Builder::new().prefix("rustguard-store-").tempdir_in("/tmp").unwrap();
    give(folder.path());
    folder
}

/// Gives a file to the user of [`as_nobody`].
pub(crate) fn give(path: &Path) {
    if rustix::process::geteuid().is_root() {
        std::os::unix::fs::chown(path, Some(NOBODY), Some(NOBODY)).unwrap();
    }
}

/// Free ports of the loopback interface.
pub(crate) fn ports<const N: usize>() -> [u16; N] {
    // All are held until all are known, so that they differ.
    let listeners = [(); N].map(|()| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap());
    listeners.map(|listener| listener.local_addr().unwrap().port())
}
