//! Programs that run in the background of a scenario, and functions that wait for their effects.
use anyhow::{Context, Result, bail, ensure};
use rustix::{
    pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt},
    termios::{Winsize, tcsetwinsize},
};
use std::{
    fmt,
    fs::{self, File},
    io,
    os::unix::process::ExitStatusExt,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    thread::{JoinHandle, sleep, spawn},
    time::{Duration, Instant},
};

/// The factor by which other tests and builds may slow a test down. Only failing tests wait that long.
const BUSY: u32 = 4;

/// Calls `done` repeatedly until it returns true. `limit` is for a quiet machine. After several times `limit`, fails
/// with an error that names `what`.
pub fn eventually(what: &str, limit: Duration, mut done: impl FnMut() -> Result<bool>) -> Result<()> {
    let (started, limit) = (Instant::now(), limit * BUSY);
    loop {
        let asked = Instant::now();
        if done()? {
            return Ok(());
        }
        ensure!(started.elapsed() < limit, "not within {limit:?}: {what}");
        // Most calls start a program. Calling without pauses would take the processors from the awaited program, and
        // some calls take seconds on a busy machine.
        let took = asked.elapsed();
        sleep((took * 6).clamp(Duration::from_millis(20), took.max(Duration::from_millis(250))));
    }
}

/// The result of a finished program.
pub struct Ended {
    /// The exit status.
    pub status: ExitStatus,
    /// The standard output.
    pub stdout: String,
    /// The standard error.
    pub stderr: String,
}

impl Ended {
    /// Standard output with single spaces in place of line ends and indentation, because pages fold long lines.
    pub fn unfolded(&self) -> String {
        unfolded(&self.stdout)
    }

    /// Runs `command` to its end.
    pub fn of(command: &mut Command) -> Result<Self> {
        let output = command.stdin(Stdio::null()).output().with_context(|| format!("run {command:?}"))?;
        Ok(Self {
            status: output.status,
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        })
    }

    /// Whether the program ended with status 0.
    pub fn success(&self) -> bool {
        self.status.success()
    }

    /// Checks that the program failed properly: with status 1 (no signal, not 101), and with all of these words in its
    /// message, which name the thing and the cause. The message must not contain a panic or a backtrace.
    pub fn refused(&self, words: &[&str]) -> Result<()> {
        ensure!(self.status.code() == Some(1), "should end with status 1: {self}");
        self.says(words)
    }

    /// Checks that the command line was refused (status 2), without a panic.
    pub fn is_misuse(&self) -> Result<()> {
        ensure!(self.status.code() == Some(2), "should end with status 2: {self}");
        self.says(&[])
    }

    /// Checks that standard error contains all of these words, in upper or lower case, and no panic.
    pub fn says(&self, words: &[&str]) -> Result<()> {
        let text = self.stderr.to_lowercase();
        for word in words {
            ensure!(text.contains(&word.to_lowercase()), "should mention \"{word}\": {self}");
        }
        for never in ["panicked at", "stack backtrace", "rust_backtrace"] {
            ensure!(!text.contains(never), "must not reach a user: {self}");
        }
        Ok(())
    }
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.status)?;
        for (name, text) in [("stdout", &self.stdout), ("stderr", &self.stderr)] {
            if !text.trim().is_empty() {
                write!(f, "\n{name}: {}", text.trim_end())?;
            }
        }
        Ok(())
    }
}

/// A running program. Dropping it kills the program.
#[derive(Debug)]
pub struct Process {
    child: Child,
    log: PathBuf,
    /// Copies the output of a terminal into the log, until the last program has closed it.
    copier: Option<JoinHandle<()>>,
}

impl Process {
    pub(crate) fn spawn(command: &mut Command, log: &Path) -> Result<Self> {
        let file = File::options().create(true).append(true).open(log)?;
        let child = command
            .stdin(Stdio::null())
            .stdout(file.try_clone()?)
            .stderr(file)
            .spawn()
            .with_context(|| format!("start {command:?}"))?;
        Ok(Self { child, log: log.to_owned(), copier: None })
    }

    /// Like [`Process::spawn`], on a terminal of 80 columns.
    pub(crate) fn spawn_on_terminal(command: &mut Command, log: &Path) -> Result<Self> {
        let (mut output, terminal) = terminal()?;
        let mut file = File::options().create(true).append(true).open(log)?;
        command.stdin(terminal.try_clone()?).stdout(terminal.try_clone()?).stderr(terminal);
        let child = command.env("TERM", "xterm").spawn().with_context(|| format!("start {command:?}"))?;
        // Without these copies in `command`, reading fails with EIO when the program has ended.
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let copier = spawn(move || drop(io::copy(&mut output, &mut file)));
        Ok(Self { child, log: log.to_owned(), copier: Some(copier) })
    }

    /// The process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Its memory in kB, and its used processor time in hundredths of a second.
    pub fn cost(&self) -> Result<(u64, u64)> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.id()))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("a line")?;
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.id()))?;
        let times = stat.rsplit_once(')').context("a name")?.1.split_whitespace().skip(11).take(2);
        Ok((line.trim().trim_end_matches(" kB").parse()?, times.map(|time| time.parse::<u64>().unwrap_or(0)).sum()))
    }

    /// Its open Unix datagram sockets, as named in its folder in /proc.
    pub fn datagram_sockets(&self) -> Result<Vec<String>> {
        let of = |file: &str| format!("/proc/{}/{file}", self.id());
        let sockets = fs::read_to_string(of("net/unix"))?;
        // The fifth column is the type (2 is SOCK_DGRAM); the seventh is the inode.
        let columns = sockets.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
        let datagrams = columns.filter(|column| column.get(4) == Some(&"0002"));
        let datagrams: Vec<_> = datagrams.map(|column| format!("socket:[{}]", column[6])).collect();
        let mut open = Vec::new();
        for file in fs::read_dir(of("fd"))? {
            // The file was closed in the meantime.
            let Ok(file) = fs::read_link(file?.path()) else { continue };
            open.extend(datagrams.iter().filter(|socket| file.as_os_str() == &***socket).cloned());
        }
        Ok(open)
    }

    /// The output so far.
    pub fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Waits until `done` returns true. Fails at once if the program ends before.
    pub fn until(&mut self, what: &str, limit: Duration, mut done: impl FnMut() -> Result<bool>) -> Result<()> {
        let (child, log) = (&mut self.child, &self.log);
        eventually(what, limit, || {
            if done()? {
                return Ok(true);
            }
            if let Some(status) = child.try_wait()? {
                bail!("ended ({status}) before {what}: {}", fs::read_to_string(log).unwrap_or_default());
            }
            Ok(false)
        })
    }

    /// Sends a signal (`TERM`, `INT`, `KILL`, `HUP`, `STOP`, `CONT`). After `STOP`, no thread runs any more.
    pub fn signal(&self, name: &str) -> Result<()> {
        let sent = Command::new("kill").args(["-s", name, &self.id().to_string()]).status()?;
        ensure!(sent.success(), "cannot send {name} to process {}", self.id());
        if name == "STOP" {
            // The kernel gives the signal to one thread, which stops the others. While that one waits for a processor,
            // they go on.
            eventually("all threads stop", Duration::from_secs(10), || {
                Ok(self.threads()?.iter().all(|state| state == "T"))
            })?;
        }
        Ok(())
    }

    /// The states of its threads, as proc_pid_stat(5) names them.
    fn threads(&self) -> Result<Vec<String>> {
        let mut states = Vec::new();
        for thread in fs::read_dir(format!("/proc/{}/task", self.id()))? {
            // A thread that ended meanwhile has no file.
            let Ok(stat) = fs::read_to_string(thread?.path().join("stat")) else { continue };
            let state = stat.rsplit_once(')').and_then(|(_, rest)| rest.split_whitespace().next());
            states.push(state.context("a state")?.to_owned());
        }
        Ok(states)
    }

    /// Waits for the end of the program. In the result, `stderr` has the output of both streams.
    pub fn ended(&mut self, limit: Duration) -> Result<Ended> {
        let mut status = None;
        let child = &mut self.child;
        eventually("the end of the process", limit, || {
            status = child.try_wait()?;
            Ok(status.is_some())
        })
        .with_context(|| self.log())?;
        if let Some(copier) = self.copier.take() {
            let _ = copier.join();
        }
        Ok(Ended { status: status.unwrap_or(ExitStatus::from_raw(0)), stdout: String::new(), stderr: self.log() })
    }

    /// Waits for the end of a [`Node::keeps_pinging`](crate::Node::keeps_pinging), and fails if more than `lost`
    /// requests were not answered.
    pub fn lost_at_most(&mut self, lost: usize) -> Result<()> {
        let ended = self.ended(Duration::from_secs(15))?;
        let answered = ended.stderr.matches("icmp_seq=").count();
        ensure!(answered + lost >= 60, "{answered} of 60 answered: {ended}");
        Ok(())
    }

    /// Sends a signal, and waits for the end for at most a minute.
    pub fn stop(&mut self, signal: &str) -> Result<Ended> {
        self.signal(signal)?;
        // A minute even after SIGKILL: the kernel removes an interface under a global lock, and waits for other
        // removals.
        self.ended(Duration::from_secs(60))
    }
}

/// A pseudo-terminal: the tests' end, and the program's end.
fn terminal() -> Result<(File, File)> {
    let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
    grantpt(&ours)?;
    unlockpt(&ours)?;
    let name = ptsname(&ours, Vec::new())?.into_string()?;
    let theirs = File::options().read(true).write(true).open(name)?;
    tcsetwinsize(&theirs, Winsize { ws_row: 24, ws_col: 80, ws_xpixel: 0, ws_ypixel: 0 })?;
    Ok((File::from(ours), theirs))
}

impl Drop for Process {
    fn drop(&mut self) {
        // Both calls fail only if the process has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The text with single spaces in place of line ends and indentation, because pages fold long lines.
pub fn unfolded(page: &str) -> String {
    page.split_whitespace().collect::<Vec<_>>().join(" ")
}
