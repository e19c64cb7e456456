//! One process for each test or benchmark, in its own namespaces.
//!
//! A test first runs in the ordinary test process. There it starts the same test binary again under `unshare`, for
//! exactly this test. An environment variable tells the new process to run the body. Without root, a user namespace
//! makes the caller root inside. A benchmark does the same with its own arguments.
use crate::{
    Lab,
    programs::{self, Missing},
};
use anyhow::{Context, Result, bail, ensure};
use std::{
    any::type_name,
    env,
    fs::{self, File},
    io::{self, Read, Seek},
    path::{Path, PathBuf},
    process::{self, Command, Stdio},
    thread::{self, sleep},
    time::{Duration, Instant},
};

const INSIDE: &str = "RUSTGUARD_LAB_INSIDE";
const BODY_RAN: &str = "the scenario's body ran to its end";
/// The limit for a scenario. It suffices on a busy machine, also for the scenarios of `RUSTGUARD_LONG`.
const LIMIT: Duration = Duration::from_secs(900);

/// Runs `body` in its own namespaces. The argument has to be a closure written directly in a `#[test]` function,
/// because the name of the test comes from the closure's type.
///
/// # Panics
/// If the body fails, or does not end within a quarter of an hour. With `CI=true`, also if it cannot run here
/// ([`Missing`]).
pub fn scenario<F: FnOnce(&Lab) -> Result<()>>(body: F) {
    run(type_name::<F>(), body);
}

/// A [`scenario`] about a feature that only RustGuard has. If wireguard-go is the subject, it is skipped with a message
/// that names `what`.
///
/// # Panics
/// Like [`scenario`].
pub fn scenario_of_rustguard<F: FnOnce(&Lab) -> Result<()>>(what: &str, body: F) {
    run(type_name::<F>(), |lab| if lab.is_about_rustguard(what) { body(lab) } else { Ok(()) });
}

fn run(closure: &str, body: impl FnOnce(&Lab) -> Result<()>) {
    let name = test_name(closure);
    let outcome = if env::var_os(INSIDE).is_some() { inside(name, body) } else { outside(name) };
    if let Err(error) = outcome {
        panic!("{error:#}");
    }
}

/// `interop::psk::rustguard_responds::{{closure}}` is the test `psk::rustguard_responds` of the binary `interop`.
fn test_name(closure: &str) -> &str {
    let path = closure.split_once("::").map_or(closure, |(_, path)| path);
    path.strip_suffix("::{{closure}}").unwrap_or(path)
}

/// Runs `body` in its own namespaces. The `main` function of a program calls it. The program is started again for it,
/// with the same arguments, standard output and standard error. `prepare` runs first, outside the namespaces, and
/// returns variables for the environment of the new process.
///
/// # Errors
/// If `body` fails; its error is printed already. If this machine lacks a program, or forbids namespaces.
pub fn isolated(
    prepare: impl FnOnce() -> Result<Vec<(&'static str, PathBuf)>>,
    body: impl FnOnce(&Lab) -> Result<()>,
) -> Result<()> {
    if env::var_os(INSIDE).is_some() {
        // Ctrl-C ends the process outside the namespaces, but not the first process of a PID namespace. That process
        // therefore watches the pipe between them.
        thread::spawn(|| {
            let _ = io::copy(&mut io::stdin(), &mut io::sink());
            process::exit(130);
        });
        return with_lab("", body);
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
    // The pipe has to stay open, but Child::wait would close it first.
    let pipe = child.stdin.take();
    let status = child.wait()?;
    drop(pipe);
    ensure!(status.success(), "see above");
    Ok(())
}

fn inside(name: &str, body: impl FnOnce(&Lab) -> Result<()>) -> Result<()> {
    if let Err(error) = with_lab(name, body) {
        // Also below a function's context, because the missing program can be needed anywhere.
        match error.chain().find_map(|cause| cause.downcast_ref::<Missing>()) {
            Some(missing) if !rustguard_skip::in_ci() => println!("\nSKIPPED {name}: {missing}"),
            _ => return Err(error),
        }
    }
    println!("{BODY_RAN}");
    Ok(())
}

fn with_lab(name: &str, body: impl FnOnce(&Lab) -> Result<()>) -> Result<()> {
    let lab = Lab::new(name).context("set up the laboratory")?;
    body(&lab).inspect_err(|_| lab.print_logs())
}

fn outside(name: &str) -> Result<()> {
    if let Err(missing) = programs::prerequisites() {
        rustguard_skip::missing(&missing.to_string());
        return Ok(());
    }
    if let Err(error) = unshare().arg("true").status_ok() {
        rustguard_skip::missing(&format!(
            "no namespaces: run as root, or allow unprivileged user namespaces ({error:#})"
        ));
        return Ok(());
    }
    let mut command = unshare();
    command
        .arg("--")
        .arg(env::current_exe()?)
        .args(["--exact", name, "--nocapture", "--test-threads=1"])
        .env(INSIDE, "1");
    // Benchmarks look for wireguard-go in this variable.
    if let Ok(wireguard_go) = programs::wireguard_go() {
        command.env("RUSTGUARD_WIREGUARD_GO", wireguard_go);
    }
    if programs::subject() == programs::Subject::RustGuard {
        command.env("RUSTGUARD_BIN", programs::rustguard()?);
    }
    // The output goes to a file, because a pipe would stay open as long as any forgotten descendant runs.
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
    for reason in text.lines().filter_map(|line| line.strip_prefix("SKIPPED ")?.split_once(": ")) {
        rustguard_skip::skipped_by(name, reason.1);
    }
    println!("{text}");
    let Some(status) = status else { bail!("{name}: not done after {LIMIT:?}") };
    ensure!(status.success(), "{name}: failed, see its output above");
    ensure!(text.contains(BODY_RAN), "{name}: the test binary does not know a test of this name");
    Ok(())
}

/// `unshare` with the options that every scenario needs. `--kill-child` ends the PID namespace and every process in it.
fn unshare() -> Command {
    let mut command = Command::new("unshare");
    if !is_root() {
        command.args(["--user", "--map-root-user"]);
    }
    command.args(["--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc"]);
    command
}

/// Whether this process is root. The owner of its `/proc` entry is its user.
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

/// Gives the scenario an empty `/run` (control sockets, state files, no D-Bus) and an empty `/dev/shm`. faketime(1)
/// uses names with the process id there, and the process ids of each scenario begin at 1.
pub(crate) fn private_run() -> Result<()> {
    for folder in ["/run", "/dev/shm"] {
        Command::new("mount").args(["-t", "tmpfs", "tmpfs", folder]).status_ok()?;
    }
    Ok(fs::create_dir_all("/run/netns")?)
}

/// Gives the scenario its own `/etc` and `/var/lib`, as overlays of the machine's without its tunnels.
/// `/etc/resolv.conf` and `/etc/hosts` are new files.
pub(crate) fn private_files(scratch: &Path) -> Result<()> {
    for (folder, name) in [("/etc", "etc"), ("/var/lib", "lib")] {
        let (upper, work) = (scratch.join(format!("{name}.upper")), scratch.join(format!("{name}.work")));
        fs::create_dir(&upper)?;
        fs::create_dir(&work)?;
        let options = format!("lowerdir={folder},upperdir={},workdir={}", upper.display(), work.display());
        Command::new("mount").args(["-t", "overlay", "overlay", "-o", &options, folder]).status_ok()?;
    }
    // The scenario does not get the state of this machine's tunnels.
    for folder in ["/etc/rustguard", "/etc/wireguard", "/var/lib/rustguard"]
        .map(Path::new)
        .into_iter()
        .filter(|folder| folder.exists())
    {
        fs::remove_dir_all(folder)?;
    }
    for (name, text) in [("resolv.conf", "nameserver 192.0.2.53\n"), ("hosts", "127.0.0.1 localhost\n")] {
        let ours = scratch.join(name);
        fs::write(&ours, text)?;
        Command::new("mount").arg("--bind").arg(&ours).arg(Path::new("/etc").join(name)).status_ok()?;
    }
    Ok(())
}

/// Runs a command, and fails with its standard error if its exit status is not 0.
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
