//! `rustguard edit`: an editor on a copy of a configuration file, a check, and the running tunnel takes the file over.

use super::{
    check::{self, Reported},
    reload,
};
use crate::{arguments, one, process::runtime};
use anyhow::{Context as _, Result, bail};
use rustguard_quick::{TunnelFile, conf, run_file};
use std::{
    fs::{self, OpenOptions},
    io::{self, BufRead as _, IsTerminal as _, Write as _},
    os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
    process::ExitStatus,
};
use tempfile::TempDir;
use tokio::signal::unix::{SignalKind, signal};
use zeroize::Zeroizing;

/// The editor that POSIX specifies.
const DEFAULT_EDITOR: &str = "vi";

/// The folder of the copy. It is in memory, so the private key gets on no other disk. It is not `/run/rustguard`:
/// tunnels may write there, and a compromised tunnel could write commands into the file of another tunnel.
const FOLDER: &str = "/run";

/// Edits the file of a tunnel.
pub(crate) fn run(target: Option<&str>) -> Result<()> {
    let (path, interface) = match target {
        Some(target) => conf::resolve_name(target)?,
        None => loaded(one::tunnel(None)?)?,
    };
    let mut file = check::open(&path)?;
    // A tunnel that runs with another file is not concerned.
    let runs = run_file::running(&interface).is_some();
    let concerned = runs && TunnelFile::path_of(&interface)?.is_some_and(|loaded| is_same(&loaded, &path));

    let runtime = runtime()?;
    let edited = runtime.block_on(edited(&path, file.text()));
    // A thread may still wait for a line from the terminal.
    runtime.shutdown_background();
    let Some((copy, text)) = edited? else { return Ok(()) };
    if *text == *file.text() {
        writeln!(io::stderr(), "{} is unchanged", path.display())?;
        return Ok(());
    }
    if let Err(error) = file.replace(text) {
        let copy = copy.keep();
        return Err(error).with_context(|| format!("your text is in {}", copy.display()));
    }
    drop(copy);
    if !runs {
        return Ok(());
    }
    if !concerned {
        writeln!(io::stderr(), "{interface} runs with another file, and does not change")?;
        return Ok(());
    }
    let taken = reload::run(&arguments::tunnel::Reload {
        target: Some(interface.clone()),
        dry_run: false,
        adopt: false,
        restored: false,
        json: false,
    });
    taken.with_context(|| format!("{} is saved, but {interface} runs as before", path.display()))
}

/// The file that a running tunnel was started from, which may be in any folder.
fn loaded(interface: String) -> Result<(PathBuf, String)> {
    match TunnelFile::path_of(&interface)? {
        Some(path) => Ok((path, interface)),
        None => bail!("{interface} was not started from a file; name the file to edit"),
    }
}

fn is_same(one: &Path, other: &Path) -> bool {
    let real = |path: &Path| path.canonicalize().ok();
    real(one).is_some() && real(one) == real(other)
}

/// Runs the editor until the text is a valid configuration. `None` if the user discards it.
async fn edited(path: &Path, text: &str) -> Result<Option<(Copy, Zeroizing<String>)>> {
    // All of these signals would end the process without removing the copy. Ctrl-C is for the editor, as long as it has
    // the terminal.
    let _ignored = signal(SignalKind::interrupt())?;
    let (mut terminate, mut hangup) = (signal(SignalKind::terminate())?, signal(SignalKind::hangup())?);
    let (mut quit, mut alarm) = (signal(SignalKind::quit())?, signal(SignalKind::alarm())?);
    let (mut user1, mut user2) = (signal(SignalKind::user_defined1())?, signal(SignalKind::user_defined2())?);
    let ended = async {
        tokio::select! {
            _ = terminate.recv() => "SIGTERM",
            _ = hangup.recv() => "SIGHUP",
            _ = quit.recv() => "SIGQUIT",
            _ = alarm.recv() => "SIGALRM",
            _ = user1.recv() => "SIGUSR1",
            _ = user2.recv() => "SIGUSR2",
        }
    };
    let mut ended = std::pin::pin!(ended);
    let copy = Copy::new(path, text)?;
    loop {
        let status = tokio::select! {
            status = copy.edit() => status?,
            name = &mut ended => bail!("ended by {name}; {} is unchanged", path.display()),
        };
        if !status.success() {
            bail!("the editor failed ({status}); {} is unchanged", path.display());
        }
        match copy.read() {
            Ok(text) if check::shown(path, &text)?.is_some() => return Ok(Some((copy, text))),
            Ok(_) => {}
            Err(error) => writeln!(io::stderr(), "rustguard: {error:#}")?,
        }
        if !io::stdin().is_terminal() {
            writeln!(io::stderr(), "{} is unchanged", path.display())?;
            return Err(Reported.into());
        }
        // A Ctrl-C while the editor ran does not count.
        let mut interrupt = signal(SignalKind::interrupt())?;
        let again = tokio::select! {
            again = tokio::task::spawn_blocking(ask) => again??,
            _ = interrupt.recv() => false,
            _ = &mut ended => false,
        };
        if !again {
            writeln!(io::stderr(), "{} is unchanged", path.display())?;
            return Ok(None);
        }
    }
}

/// Whether the user wants to edit again. The end of the input means no.
fn ask() -> io::Result<bool> {
    loop {
        write!(io::stderr(), "(e)dit again or (d)iscard the changes? ")?;
        let mut answer = String::new();
        if io::stdin().lock().read_line(&mut answer)? == 0 {
            writeln!(io::stderr())?;
            return Ok(false);
        }
        match answer.trim() {
            "e" | "edit" => return Ok(true),
            "d" | "discard" => return Ok(false),
            _ => {}
        }
    }
}

/// The copy that the editor gets, in a folder of its own, where editors leave their swap files and backups. The folder
/// is private, and removed with everything in it.
struct Copy {
    folder: TempDir,
    file: PathBuf,
}

impl Copy {
    fn new(path: &Path, text: &str) -> Result<Self> {
        let private = fs::Permissions::from_mode(0o700);
        let mut builder = tempfile::Builder::new();
        let builder = builder.prefix("rustguard-edit-").permissions(private);
        // Other users than root cannot write there.
        let folder =
            builder.tempdir_in(FOLDER).or_else(|_| builder.tempdir()).context("cannot make a private folder")?;
        let file = folder.path().join(path.file_name().context("a path without a name")?);
        let written = OpenOptions::new().create_new(true).write(true).mode(0o600).open(&file);
        written.and_then(|mut out| out.write_all(text.as_bytes())).context("cannot write a private copy")?;
        Ok(Self { folder, file })
    }

    /// Runs the editor, whose variable may have arguments, as git does.
    async fn edit(&self) -> Result<ExitStatus> {
        let set = |name| std::env::var(name).ok().filter(|value| !value.trim().is_empty());
        let editor = set("VISUAL").or_else(|| set("EDITOR")).unwrap_or_else(|| DEFAULT_EDITOR.to_owned());
        let mut command = tokio::process::Command::new("/bin/sh");
        command.arg("-c").arg(format!("{editor} \"$@\"")).arg(&editor).arg(&self.file).kill_on_drop(true);
        command.status().await.with_context(|| format!("cannot start the editor {editor}"))
    }

    /// The text. An editor may have replaced the file.
    fn read(&self) -> Result<Zeroizing<String>> {
        Ok(Zeroizing::new(check::open(&self.file)?.text().to_owned()))
    }

    /// Leaves the copy where it is.
    fn keep(self) -> PathBuf {
        let Self { folder, file } = self;
        let _ = folder.keep();
        file
    }
}
