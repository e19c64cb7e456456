//! One process per test, or benchmark, in namespaces of its own.
//!
//! The test first runs in the ordinary test process, where it starts the same test binary once more under `unshare`, asking
//! for exactly this test; there, told apart by an environment variable, the body runs. As root this needs nothing else;
//! without root a user namespace makes the caller root inside. A benchmark does the same with its own arguments.
use crate::{Lab, programs};
use anyhow::{Context, Result, bail, ensure};
use std::{
    any::type_name,
    env,
    fs::{self, File},
    io::{self, Read, Seek, Write},
    path::{Path, PathBuf},
    process::{self, Command, Stdio},
    thread::{self, sleep},
    time::{Duration, Instant},
};

const INSIDE: &str = "RUSTGUARD_LAB_INSIDE";
const BODY_RAN: &str = "the scenario's body ran to its end";
/// Longer than any scenario takes on a busy machine; those of `RUSTGUARD_LONG` included.
const LIMIT: Duration = Duration::from_secs(300);

/// Runs `body` in namespaces of its own; to be called with a closure written directly in a `#[test]` function, whose name
/// it finds out by the closure's type.
///
/// # Panics
/// When the body fails, when it does not end in five minutes, and, with `CI=true`, when it cannot be run at all.
pub fn scenario<F: FnOnce(&Lab) -> Result<()>>(body: F) {
    run(type_name::<F>(), body);
}

/// A [`scenario`] about what RustGuard has and wireguard-go has not; left out where that takes its place. `what` is said then.
///
/// # Panics
/// As [`scenario`].
pub fn scenario_of_rustguard<F: FnOnce(&Lab) -> Result<()>>(what: &str, body: F) {
    run(type_name::<F>(), |lab| if lab.is_about_rustguard(what) { body(lab) } else { Ok(()) });
}

fn run(closure: &str, body: impl FnOnce(&Lab) -> Result<()>) {
    let outcome = if env::var_os(INSIDE).is_some() { inside(body) } else { outside(test_name(closure)) };
    if let Err(error) = outcome {
        panic!("{error:#}");
    }
}

/// `interop::psk::rustguard_responds::{{closure}}` is the test `psk::rustguard_responds` of the binary `interop`.
fn test_name(closure: &str) -> &str {
    let path = closure.split_once("::").map_or(closure, |(_, path)| path);
    path.strip_suffix("::{{closure}}").unwrap_or(path)
}

/// Runs `body` in namespaces of its own; to be called by the `main` of a program, which is run once more for it with the
/// same arguments, and writes where this one does. `prepare` comes before, outside: the environment it returns is added.
///
/// # Errors
/// Those of `body` have been printed by then; else what is missing on this machine, or forbidden.
pub fn isolated(
    prepare: impl FnOnce() -> Result<Vec<(&'static str, PathBuf)>>,
    body: impl FnOnce(&Lab) -> Result<()>,
) -> Result<()> {
    if env::var_os(INSIDE).is_some() {
        // Ctrl-C ends the process outside, but signals do not reach the first of a PID namespace. Their pipe tells.
        thread::spawn(|| {
            let _ = io::copy(&mut io::stdin(), &mut io::sink());
            process::exit(130);
        });
        return with_lab(body);
    }
    programs::tools_of_a_lab()?;
    unshare().arg("true").status_ok().context("make namespaces: run as root, or allow unprivileged user namespaces")?;
    let mut child = unshare()
        .arg("--")
        .arg(env::current_exe()?)
        .args(env::args_os().skip(1))
        .env(INSIDE, "1")
        .envs(prepare()?)
        .stdin(Stdio::piped())
        .spawn()?;
    // Not Child::wait, which would close the pipe first.
    let pipe = child.stdin.take();
    let status = child.wait()?;
    drop(pipe);
    ensure!(status.success(), "see above");
    Ok(())
}

fn inside(body: impl FnOnce(&Lab) -> Result<()>) -> Result<()> {
    with_lab(body)?;
    println!("{BODY_RAN}");
    Ok(())
}

fn with_lab(body: impl FnOnce(&Lab) -> Result<()>) -> Result<()> {
    let lab = Lab::new().context("set up the laboratory")?;
    body(&lab).inspect_err(|_| lab.print_logs())
}

fn outside(name: &str) -> Result<()> {
    if let Err(missing) = programs::prerequisites().and_then(|()| unshare().arg("true").status_ok()) {
        return cannot_run(name, &format!("{missing:#}"));
    }
    let wireguard_go = programs::wireguard_go()?;
    let mut command = unshare();
    command
        .arg("--")
        .arg(env::current_exe()?)
        .args(["--exact", name, "--nocapture", "--test-threads=1"])
        .env(INSIDE, "1")
        .env("RUSTGUARD_WIREGUARD_GO", wireguard_go);
    if programs::subject() == programs::Subject::RustGuard {
        command.env("RUSTGUARD_BIN", programs::rustguard()?);
    }
    // A file, because a pipe would stay open for as long as any forgotten descendant lives.
    let mut output = tempfile::tempfile()?;
    let mut child = command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output.try_clone()?).spawn()?;
    let started = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break Some(status);
        }
        if started.elapsed() > LIMIT {
            child.kill()?;
            child.wait()?;
            break None;
        }
        sleep(Duration::from_millis(20));
    };
    let text = read_all(&mut output)?;
    for line in text.lines().filter(|line| line.starts_with("SKIPPED")) {
        loudly(line);
    }
    println!("{text}");
    let Some(status) = status else { bail!("{name}: not done after {LIMIT:?}") };
    ensure!(status.success(), "{name}: failed, see its output above");
    ensure!(text.contains(BODY_RAN), "{name}: the test binary does not know a test of this name");
    Ok(())
}

/// `unshare` with what every scenario needs; `--kill-child` ends the PID namespace, and with it every process in it.
fn unshare() -> Command {
    let mut command = Command::new("unshare");
    if !is_root() {
        command.args(["--user", "--map-root-user"]);
    }
    command.args(["--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc"]);
    command
}

/// Says that a scenario was not run, past libtest's capturing; an error where nobody would read it.
fn cannot_run(name: &str, reason: &str) -> Result<()> {
    ensure!(!env::var("CI").is_ok_and(|value| value == "true"), "{name} cannot run: {reason}");
    loudly(&format!("SKIPPED {name}: {reason}"));
    Ok(())
}

fn loudly(line: &str) {
    // Losing the line because stderr is closed loses nothing that anybody could have read.
    let _ = writeln!(io::stderr(), "\n{line}");
}

/// Whether this process is root; the owner of its `/proc` entry says so without a system call of our own.
fn is_root() -> bool {
    use std::os::unix::fs::MetadataExt;
    fs::metadata("/proc/self").is_ok_and(|entry| entry.uid() == 0)
}

fn read_all(file: &mut File) -> Result<String> {
    let mut bytes = Vec::new();
    file.rewind()?;
    file.read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Gives the scenario an empty `/run` (control sockets, state files, no D-Bus).
pub(crate) fn private_run() -> Result<()> {
    Command::new("mount").args(["-t", "tmpfs", "tmpfs", "/run"]).status_ok()?;
    Ok(fs::create_dir_all("/run/netns")?)
}

/// Gives the scenario an `/etc` and a `/var/lib` of its own, which begin as the machine's, with an `/etc/resolv.conf` and
/// `/etc/hosts` that do not.
pub(crate) fn private_files(scratch: &Path) -> Result<()> {
    for (folder, name) in [("/etc", "etc"), ("/var/lib", "lib")] {
        let (upper, work) = (scratch.join(format!("{name}.upper")), scratch.join(format!("{name}.work")));
        fs::create_dir(&upper)?;
        fs::create_dir(&work)?;
        let options = format!("lowerdir={folder},upperdir={},workdir={}", upper.display(), work.display());
        Command::new("mount").args(["-t", "overlay", "overlay", "-o", &options, folder]).status_ok()?;
    }
    for (name, text) in [("resolv.conf", "nameserver 192.0.2.53\n"), ("hosts", "127.0.0.1 localhost\n")] {
        let ours = scratch.join(name);
        fs::write(&ours, text)?;
        Command::new("mount").arg("--bind").arg(&ours).arg(Path::new("/etc").join(name)).status_ok()?;
    }
    Ok(())
}

/// Runs a command for its exit status, with its output in the error.
trait StatusOk {
    fn status_ok(&mut self) -> Result<()>;
}

impl StatusOk for Command {
    fn status_ok(&mut self) -> Result<()> {
        let output = self.output().with_context(|| format!("run {self:?}"))?;
        ensure!(output.status.success(), "{self:?}: {}", String::from_utf8_lossy(&output.stderr).trim());
        Ok(())
    }
}
