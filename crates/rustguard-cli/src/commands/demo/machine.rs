//! A machine of the demonstration: its own namespaces, empty folders in place of the folders with state, and the
//! processes in them.

use super::{super::course::PATIENCE, LOOK};
use crate::{commands::demo::underlay::Node, uapi};
use anyhow::{Context as _, Result, anyhow, bail};
use rustguard_tun::namespace;
use rustix::{
    mount::{MountFlags, MountPropagationFlags, mount, mount_change},
    process::{Pid, Signal, getpid, getppid, set_parent_process_death_signal},
    system::sethostname,
    thread::{LinkNameSpaceType, move_into_link_name_space},
};
use std::{
    ffi::{CString, OsString},
    fs::{self, File},
    io::{BufRead as _, BufReader},
    os::{fd::AsFd as _, unix::process::CommandExt as _},
    path::Path,
    process::{Child, ChildStdout, Command, Stdio},
    sync::mpsc,
    time::Instant,
};
use tokio::{
    sync::{oneshot, watch},
    time::{sleep, timeout},
};

/// The interface of each machine.
pub(super) const INTERFACE: &str = "rg0";
/// The folders that are private to a machine: the program's files, its state, and the folder with sockets of other
/// programs of the host, such as D-Bus.
const OWN: [&str; 3] = ["/etc", "/run", "/var/lib"];
/// The folder above the sockets of WireGuard. Nearly everywhere, it is a link to /run.
const VAR_RUN: &str = "/var/run";
/// The output of the processes of a machine.
const LOG: &str = "/run/log";
/// This program, wherever its file is.
const PROGRAM: &str = "/proc/self/exe";

type Job = Box<dyn FnOnce() + Send>;

/// A machine. Its namespaces exist as long as its thread, which ends with the process.
#[derive(Clone)]
pub(super) struct Machine {
    name: &'static str,
    jobs: mpsc::Sender<Job>,
}

/// A process on a machine.
pub(super) struct Running {
    machine: Machine,
    child: Child,
    output: Option<BufReader<ChildStdout>>,
}

impl Machine {
    /// Starts the thread of a machine, in the network namespace of a node.
    pub(super) fn start(name: &'static str, node: &Node) -> Result<Self> {
        let (jobs, to_do) = mpsc::channel::<Job>();
        let network = node.namespace()?;
        let (ready, is_ready) = mpsc::channel();
        std::thread::Builder::new().name(name.to_owned()).spawn(move || {
            let entered = move_into_link_name_space(network.as_fd(), Some(LinkNameSpaceType::Network))
                .context("cannot enter a network namespace")
                .and_then(|()| own_folders(name));
            let entered_well = entered.is_ok();
            // Without a receiver, the demonstration has ended.
            let _ = ready.send(entered);
            if entered_well {
                to_do.iter().for_each(|job| job());
            }
        })?;
        is_ready.recv().map_err(|_| anyhow!("the thread of {name} has ended"))?.with_context(|| name.to_owned())?;
        Ok(Self { name, jobs })
    }

    /// Does this work on the machine.
    pub(super) async fn inside<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let (answer, answered) = oneshot::channel();
        let job = move || {
            // Without a receiver, the demonstration has ended.
            let _ = answer.send(work());
        };
        self.jobs.send(Box::new(job)).map_err(|_| anyhow!("the thread of {} has ended", self.name))?;
        let done = timeout(PATIENCE, answered).await.with_context(|| format!("{} took too long", self.name))?;
        done.map_err(|_| anyhow!("the thread of {} has ended", self.name))?.with_context(|| self.name.to_owned())
    }

    /// Runs `rustguard` on the machine.
    pub(super) async fn run(&self, words: &[&str]) -> Result<Running> {
        say_command(self.name, words)?;
        let words: Vec<_> = words.iter().map(|&word| word.to_owned()).collect();
        let spawned = self.inside(move || {
            let mut child = program(&words)?.spawn()?;
            let output = child.stdout.take().map(BufReader::new);
            Ok((child, output))
        });
        let (child, output) = spawned.await?;
        Ok(Running { machine: self.clone(), child, output })
    }

    /// Runs `rustguard` on the machine to its end, and returns what it prints.
    pub(super) async fn ask(&self, words: &[&str]) -> Result<String> {
        say_command(self.name, words)?;
        let words: Vec<_> = words.iter().map(|&word| word.to_owned()).collect();
        self.inside(move || {
            let ended = program(&words)?.output()?;
            if !ended.status.success() {
                bail!("`rustguard {}`: {}", words.join(" "), last_words());
            }
            Ok(String::from_utf8(ended.stdout)?)
        })
        .await
    }

    /// Waits until `done` is true for the device of the machine.
    pub(super) async fn until(
        &self,
        what: &str,
        done: impl Fn(&uapi::Device) -> bool + Clone + Send + 'static,
    ) -> Result<()> {
        let start = Instant::now();
        loop {
            let done = done.clone();
            // At first there is no device.
            if self.inside(move || Ok(uapi::get(INTERFACE).is_ok_and(|device| done(&device)))).await? {
                return Ok(());
            }
            if start.elapsed() > PATIENCE {
                let words = self.inside(|| Ok(last_words())).await.unwrap_or_default();
                bail!("this did not happen within {PATIENCE:?}: {what} ({words})");
            }
            sleep(LOOK).await;
        }
    }

    /// Follows something about the device of the machine.
    pub(super) async fn watch<T: Send + Sync + Clone + PartialEq + 'static>(
        &self,
        look: impl Fn(&uapi::Device) -> T + Send + 'static,
    ) -> Result<watch::Receiver<T>> {
        self.inside(move || {
            let (sender, receiver) = watch::channel(look(&uapi::get(INTERFACE)?));
            // A new thread is in the namespaces of the thread that starts it.
            std::thread::spawn(move || {
                while !sender.is_closed() {
                    std::thread::sleep(LOOK);
                    let Ok(device) = uapi::get(INTERFACE) else { break };
                    let seen = look(&device);
                    sender.send_if_modified(|known| std::mem::replace(known, seen.clone()) != seen);
                }
            });
            Ok(receiver)
        })
        .await
    }
}

impl Running {
    /// The next line of its output that begins with this.
    pub(super) async fn line(&mut self, start: &'static str) -> Result<String> {
        let mut output = self.output.take().context("its output is read already")?;
        let read = self.machine.inside(move || {
            loop {
                let mut line = String::new();
                if output.read_line(&mut line)? == 0 {
                    bail!("`rustguard` has ended: {}", last_words());
                }
                if line.trim_start().starts_with(start) {
                    return Ok((output, line.trim().to_owned()));
                }
            }
        });
        let (output, line) = read.await?;
        self.output = Some(output);
        Ok(line)
    }

    /// Kills it, as if the machine had lost its power.
    pub(super) fn kill(&mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.kill();
    }
}

/// Runs a command of the program. It ends when the process of the demonstration ends in any way.
pub(crate) fn command(parent: i32, words: &[OsString]) -> Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    // The parent may have ended before that call.
    if getppid() != Pid::from_raw(parent) {
        bail!("this command is part of `rustguard demo network`, which has ended");
    }
    Err(Command::new(PROGRAM).args(words).exec()).context("cannot run this program")
}

/// `rustguard` with these words. Its thread must live as long as the process: the kernel sends the signal when the
/// parent thread ends.
fn program(words: &[String]) -> Result<Command> {
    let mut command = Command::new(PROGRAM);
    command.args(["demo", "command", &getpid().as_raw_nonzero().to_string()]).args(words).env_clear();
    let log = File::options().create(true).append(true).open(LOG)?;
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log);
    Ok(command)
}

/// The last line of the log of the calling thread's machine.
fn last_words() -> String {
    let text = fs::read_to_string(LOG).unwrap_or_default();
    text.lines().last().unwrap_or("it said nothing").to_owned()
}

/// Gives the calling thread a host name and folders of its own, which are empty.
fn own_folders(name: &str) -> Result<()> {
    let remedy = "in a container, mounting has to be permitted (--privileged)";
    namespace::enter_machine().with_context(|| format!("cannot create a mount namespace; {remedy}"))?;
    sethostname(name.as_bytes())?;
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?;
    let var_run = fs::symlink_metadata(VAR_RUN).is_ok_and(|folder| folder.is_dir()).then_some(VAR_RUN);
    for folder in OWN.into_iter().chain(var_run).filter(|folder| Path::new(folder).exists()) {
        let options = CString::new("mode=755")?;
        mount("tmpfs", folder, "tmpfs", MountFlags::NOSUID | MountFlags::NODEV, Some(options.as_c_str()))
            .with_context(|| format!("cannot mount an empty folder at {folder}; {remedy}"))?;
    }
    Ok(())
}

/// Prints a command as a user types it, without the secret.
fn say_command(machine: &str, words: &[&str]) -> Result<()> {
    let words: Vec<_> = words.iter().map(|word| if word.starts_with("rg1-") { "…" } else { word }).collect();
    super::say!("  {machine}# rustguard {}", words.join(" "))?;
    Ok(())
}
