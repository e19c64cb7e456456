//! A machine of a demonstration: its own namespaces, empty folders in place of the folders with state, and the
//! processes in them.

use super::{
    course::{PATIENCE, answer},
    say,
    underlay::Node,
};
use crate::{
    output::{columns::WIDTH, words::folded},
    uapi::{self, Device, Peer},
};
use anyhow::{Context as _, Result, anyhow, bail};
use rustguard_network::Report;
use rustguard_tun::namespace;
use rustix::{
    mount::{MountFlags, MountPropagationFlags, mount, mount_change},
    process::{Pid, Signal, getpid, getppid, set_parent_process_death_signal},
    system::sethostname,
    thread::{LinkNameSpaceType, move_into_link_name_space},
};
use std::{
    ffi::{CString, OsStr, OsString},
    fs::{self, File},
    io::{BufRead as _, BufReader},
    net::{IpAddr, Ipv4Addr, SocketAddrV4, UdpSocket},
    os::{fd::AsFd as _, unix::process::CommandExt as _},
    path::Path,
    process::{Child, ChildStdout, Command, Stdio},
    sync::mpsc,
    time::{Duration, Instant},
};
use tokio::{
    sync::{oneshot, watch},
    time::{sleep, timeout},
};

/// The interface of each machine.
const INTERFACE: &str = "rg0";
/// The port of the UDP echo service of a machine.
const SERVICE: u16 = 7777;
/// The folders that are private to a machine: the program's files, its state, and the folder with sockets of other
/// programs of the host, such as D-Bus.
const OWN: [&str; 3] = ["/etc", "/run", "/var/lib"];
/// The folder above the sockets of WireGuard. Nearly everywhere, it is a link to /run.
const VAR_RUN: &str = "/var/run";
/// The interval at which a machine is asked for its state.
const LOOK: Duration = Duration::from_millis(10);
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
        self.start_program(None, words).await
    }

    /// Runs a program on the machine, or `rustguard`.
    pub(super) async fn start_program(&self, other: Option<&Path>, words: &[&str]) -> Result<Running> {
        say_command(self.name, other, words)?;
        let words: Vec<_> = words.iter().map(|&word| word.to_owned()).collect();
        let other = other.map(Path::to_owned);
        let spawned = self.inside(move || {
            let mut child = program(other.as_deref(), &words)?.spawn()?;
            let output = child.stdout.take().map(BufReader::new);
            Ok((child, output))
        });
        let (child, output) = spawned.await?;
        Ok(Running { machine: self.clone(), child, output })
    }

    /// Runs `rustguard` on the machine to its end, and returns what it prints.
    pub(super) async fn ask(&self, words: &[&str]) -> Result<String> {
        match self.answer(words).await? {
            (true, text) => Ok(text),
            (false, text) => bail!("`rustguard {}`: {}", words.join(" "), text.trim_end()),
        }
    }

    /// Runs `rustguard` on the machine to its end. Returns what it prints if it succeeds; otherwise false, and why.
    pub(super) async fn answer(&self, words: &[&str]) -> Result<(bool, String)> {
        say_command(self.name, None, words)?;
        self.quietly(words).await
    }

    /// Like [`Machine::answer`], without a line about the command.
    pub(super) async fn quietly(&self, words: &[&str]) -> Result<(bool, String)> {
        let words: Vec<_> = words.iter().map(|&word| word.to_owned()).collect();
        self.inside(move || {
            let ended = program(None, &words)?.stderr(Stdio::piped()).output()?;
            let succeeds = ended.status.success();
            Ok((succeeds, String::from_utf8(if succeeds { ended.stdout } else { ended.stderr })?))
        })
        .await
    }

    /// Waits until `done` is true for the device of the machine.
    pub(super) async fn until(
        &self,
        what: &str,
        done: impl Fn(&Device) -> bool + Clone + Send + 'static,
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

    /// Waits until the machine has an address in the network, and answers echo requests there from then on.
    pub(super) async fn echo(&self) -> Result<SocketAddrV4> {
        let (name, start) = (self.name, Instant::now());
        let at = loop {
            match self.inside(move || address(name)).await {
                Ok(inside) => break SocketAddrV4::new(inside, SERVICE),
                Err(error) if start.elapsed() > PATIENCE => return Err(error),
                Err(_) => sleep(LOOK).await,
            }
        };
        let echo = self.inside(move || Ok(UdpSocket::bind(at)?)).await?;
        echo.set_nonblocking(true)?;
        tokio::spawn(answer(tokio::net::UdpSocket::from_std(echo)?));
        Ok(at)
    }

    /// Follows something about the device of the machine.
    pub(super) async fn watch<T: Send + Sync + Clone + PartialEq + 'static>(
        &self,
        look: impl Fn(&Device) -> T + Send + 'static,
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

/// Runs a command of this program, or another program. It ends when the process of the demonstration ends in any way.
pub(crate) fn command(parent: i32, other: Option<&Path>, words: &[OsString]) -> Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    // The parent may have ended before that call.
    if getppid() != Pid::from_raw(parent) {
        bail!("this command is part of a demonstration, which has ended");
    }
    let program = other.unwrap_or(Path::new(PROGRAM));
    Err(Command::new(program).args(words).exec()).with_context(|| format!("cannot run {}", program.display()))
}

/// `rustguard` or another program with these words. Its thread must live as long as the process: the kernel sends the
/// signal when the parent thread ends.
fn program(other: Option<&Path>, words: &[String]) -> Result<Command> {
    let mut command = Command::new(PROGRAM);
    command.args(["demo", "command"]);
    if let Some(other) = other {
        command.arg("--program").arg(other);
    }
    command.arg(getpid().as_raw_nonzero().to_string()).args(words).env_clear();
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
    Ok(fs::write("/etc/hosts", "127.0.0.1 localhost\n")?)
}

/// Prints a command as a user types it, without the secret. An option and its value are on one line.
fn say_command(machine: &str, other: Option<&Path>, words: &[&str]) -> Result<()> {
    let program = other.and_then(Path::file_name).and_then(OsStr::to_str).unwrap_or("rustguard");
    let mut parts = vec![format!("{machine}# {program}")];
    for pair in words.chunk_by(|word, next| word.starts_with('-') && !next.starts_with('-')) {
        let pair: Vec<_> = pair.iter().map(|word| if word.starts_with("rg1-") { "…" } else { word }).collect();
        parts.push(pair.join(" "));
    }
    // The backslash takes two columns.
    let lines = folded(parts.iter().map(String::as_str), WIDTH - 6);
    say!("  {}", lines.join(" \\\n    "))?;
    Ok(())
}

/// The arguments of a line that the program printed for people.
pub(super) fn words(line: &str) -> Result<Vec<&str>> {
    let words = line.trim().strip_prefix("rustguard ").context("it is no command")?;
    Ok(words.split_whitespace().collect())
}

/// How many servers there is a session with.
pub(super) fn sessions(device: &Device) -> usize {
    let online = |peer: &&Peer| peer.connection.as_ref().is_some_and(|connection| connection.state == "online");
    device.peers.iter().filter(|peer| peer.persistent_keepalive > 0).filter(online).count()
}

/// The peer with this name.
pub(super) fn peer<'a>(device: &'a Device, name: &str) -> Option<&'a Peer> {
    device.peers.iter().find(|peer| peer.name.as_deref() == Some(name))
}

/// The IPv4 address of a member in the network, as the machine of the calling thread knows it.
fn address(name: &str) -> Result<Ipv4Addr> {
    let report = Report::read(INTERFACE)?.context("the machine is no member of a network")?;
    let listed = report.list.iter().find(|listed| listed.name == name);
    let addresses = listed.into_iter().flat_map(|listed| &listed.addresses);
    let mut v4 = addresses.filter_map(|address| match address {
        IpAddr::V4(v4) => Some(*v4),
        IpAddr::V6(_) => None,
    });
    v4.next().with_context(|| format!("{name} has no IPv4 address in the network"))
}
