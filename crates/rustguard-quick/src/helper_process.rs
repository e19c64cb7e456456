//! The process of the privileged helper. [`helper`](crate::helper) describes its purpose, and how it treats its tunnel.

mod knowledge;
mod state;
#[cfg(test)]
mod tests;

use crate::{
    conf::{self, File, SaveError},
    helper::{
        Answer, Failure, Journal, Line, Notification, Said, Save, Task, Told, When, frame, length, notify, send_with,
    },
    hooks::{HookError, HookOutput, Hooks},
    host::{self, HostError},
    session_record,
};
use knowledge::Knowledge;
use rustguard_crypto::x25519::{PublicKey, StaticSecret};
use rustguard_device::{
    key,
    unix_socket::{self, Access},
};
use rustix::{
    io::Errno,
    process::{Pid, getppid},
};
pub use state::spare;
use std::{
    cell::RefCell,
    collections::HashMap,
    io,
    os::{
        fd::{AsFd as _, OwnedFd},
        unix::{net::UnixStream as StdUnixStream, process::ExitStatusExt as _},
    },
    path::{Path, PathBuf},
    rc::Rc,
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _, Interest},
    net::{
        UnixStream,
        unix::{OwnedReadHalf, OwnedWriteHalf},
    },
    signal::unix::{SignalKind, signal},
    sync::mpsc,
    task::{AbortHandle, Id, JoinError, JoinSet, LocalSet},
};

/// The most tasks at a time. A tunnel has two.
const AT_A_TIME: usize = 16;

/// Runs the privileged helper of a tunnel until the tunnel ends. The connection to the tunnel is this process's
/// standard input. `journal` writes a line into the journal.
///
/// # Errors
/// The file cannot be read, or standard input is not such a connection.
pub fn run(
    interface: &str,
    file: Option<&Path>,
    sockets: &[PathBuf],
    output: HookOutput,
    journal: impl FnMut(&Line) -> io::Result<()> + Send + 'static,
) -> io::Result<()> {
    let tunnel = getppid();
    let journal = Journal::start(journal)?;
    let stream = StdUnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    LocalSet::new().block_on(&runtime, async {
        // These signals are for the tunnel, which then has its hooks run. systemd sends SIGTERM to all processes of a
        // unit. Programs that are run do not inherit a handler, but they would inherit ignored signals.
        let kinds = [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup(), SignalKind::quit()];
        let _signals = kinds.map(|kind| if is_ignored(kind) { None } else { signal(kind).ok() });
        stream.set_nonblocking(true)?;
        let stream = UnixStream::from_std(stream)?;
        match Knowledge::new(interface, file, sockets, output) {
            Ok(knowledge) => {
                serve(stream, knowledge, tunnel, journal).await;
                state::remove_spare(interface);
                Ok(())
            }
            Err(failure) => {
                let (_, mut write) = stream.into_split();
                write.write_all(&frame(&Told { number: 0, answer: Answer::Failed(failure.clone()) })?).await?;
                Err(failure.into_io())
            }
        }
    })
}

/// Whether the process was started with this signal ignored, as by nohup(1). Programs that are run then inherit that.
fn is_ignored(kind: SignalKind) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    ignored.is_some_and(|mask| mask >> (kind.as_raw_value() - 1) & 1 != 0)
}

/// Does the tasks of the tunnel until it ends.
async fn serve(stream: UnixStream, knowledge: Knowledge, tunnel: Option<Pid>, mut journal: Journal) {
    let (read, mut write) = stream.into_split();
    let (said, mut heard) = mpsc::channel(AT_A_TIME);
    let reader = tokio::task::spawn_local(listen(read, said));
    let knowledge = Rc::new(RefCell::new(knowledge));
    let mut running = JoinSet::new();
    let mut numbers: HashMap<Id, (u64, AbortHandle)> = HashMap::new();
    let mut next = Some((0, Done::from(Answer::Done)));
    loop {
        if let Some((number, done)) = next.take()
            && tell(&mut write, number, done).await.is_err()
        {
            break;
        }
        tokio::select! {
            said = heard.recv() => match said {
                // Notifications are sent in place, so that they stay in order.
                Some(Said::Do { number, task: Task::Notify(notification) }) => {
                    let told = tunnel.map_or(Ok(()), |tunnel| notify::send(notification, tunnel));
                    let answer = told.map_or_else(|error| not_told(notification, error), |()| Answer::Done);
                    next = Some((number, answer.into()));
                }
                Some(Said::Do { number, task: Task::Log(line) }) => {
                    let refused = journal.write(number, line).err();
                    next = refused.map(|failure| (number, Answer::Failed(failure).into()));
                }
                Some(Said::Do { number, .. }) if running.len() >= AT_A_TIME => {
                    next = Some((number, Answer::Failed(Failure::refused("too many tasks at a time")).into()));
                }
                Some(Said::Do { number, task }) => {
                    let handle = running.spawn_local(carry_out(Rc::clone(&knowledge), task));
                    numbers.insert(handle.id(), (number, handle));
                }
                Some(Said::Cancel { number }) => {
                    for (_, handle) in numbers.values().filter(|(running, _)| *running == number) {
                        handle.abort();
                    }
                }
                None => break,
            },
            (number, answer) = journal.written() => next = Some((number, answer.into())),
            Some(ended) = running.join_next_with_id() => {
                let (id, done) = match ended {
                    Ok(ended) => ended,
                    Err(error) => (JoinError::id(&error), Answer::Failed(Failure::refused("it was ended")).into()),
                };
                next = numbers.remove(&id).map(|(number, _)| (number, done));
            }
        }
    }
    reader.abort();
    // Programs that run end with the tunnel that waits for them.
    running.shutdown().await;
}

/// The tunnel does not wait for this answer, so the error is logged here.
fn not_told(notification: Notification, error: io::Error) -> Answer {
    // There is a watchdog notification each second.
    if notification != Notification::Watchdog {
        tracing::warn!(
            "systemd is not told `{notification:?}`: {error}; its socket {} has to be in the sandbox of the unit, or the unit be Type=simple",
            std::env::var_os(notify::SOCKET).unwrap_or_default().display()
        );
    }
    Answer::Failed(error.into())
}

/// The outcome of a task, perhaps with a socket.
struct Done(Answer, Option<OwnedFd>);

impl From<Answer> for Done {
    fn from(answer: Answer) -> Self {
        Self(answer, None)
    }
}

async fn tell(write: &mut OwnedWriteHalf, number: u64, Done(answer, socket): Done) -> io::Result<()> {
    let frame = frame(&Told { number, answer })?;
    let mut rest = &**frame;
    if let Some(socket) = socket {
        let stream: &UnixStream = write.as_ref();
        let send = || send_with(stream, rest, socket.as_fd());
        let sent = stream.async_io(Interest::WRITABLE, send).await?;
        rest = &rest[sent..];
    }
    write.write_all(rest).await
}

/// Passes on the tunnel's messages, until the tunnel ends or sends an invalid message.
async fn listen(mut read: OwnedReadHalf, said: mpsc::Sender<Said>) {
    let mut next = async || {
        let mut head = [0; 4];
        read.read_exact(&mut head).await?;
        let mut bytes = zeroize::Zeroizing::new(vec![0; length(head)?]);
        read.read_exact(&mut bytes).await?;
        Ok::<Said, io::Error>(serde_json::from_slice(&bytes)?)
    };
    while let Ok(message) = next().await {
        if said.send(message).await.is_err() {
            return;
        }
    }
}

async fn carry_out(knowledge: Rc<RefCell<Knowledge>>, task: Task) -> Done {
    if let Task::Listen { path, group } = task {
        return match listen_at(&knowledge.borrow(), &path, group) {
            Ok(socket) => Done(Answer::Done, Some(socket)),
            Err(failure) => Answer::Failed(failure).into(),
        };
    }
    attempt(&knowledge, task).await.unwrap_or_else(Answer::Failed).into()
}

/// Opens one of the tunnel's sockets.
fn listen_at(knowledge: &Knowledge, path: &Path, group: bool) -> Result<OwnedFd, Failure> {
    let Some(path) = knowledge.socket(path) else {
        return Err(Failure::refused(format!("{} is no socket of {}", path.display(), knowledge.interface)));
    };
    let access = if group { Access::OwnerAndGroup } else { Access::Owner };
    unix_socket::open(path, access).map_err(|error| match error.kind() {
        // The caller distinguishes these errors.
        io::ErrorKind::AddrInUse => io::Error::from(Errno::ADDRINUSE).into(),
        io::ErrorKind::AlreadyExists => io::Error::from(Errno::EXIST).into(),
        _ => error.into(),
    })
}

async fn attempt(knowledge: &RefCell<Knowledge>, task: Task) -> Result<Answer, Failure> {
    let interface = knowledge.borrow().interface.clone();
    match task {
        Task::Hook { when, command } => {
            let (path, output) = {
                let knowledge = knowledge.borrow();
                knowledge.has_hook(when, &command)?;
                (knowledge.file.as_ref().map(|file| file.path.clone()), knowledge.output)
            };
            let hooks = Hooks { interface: &interface, file: path.as_deref(), output };
            return match hooks.run_here(when.key(), &command.replace("%i", &interface)).await {
                Ok(()) => Ok(Answer::Ended(0)),
                Err(HookError::Failed { status, .. }) => Ok(Answer::Ended(status.into_raw())),
                Err(HookError::TimedOut { .. }) => Ok(Answer::TimedOut),
                Err(HookError::NotRun { source, .. }) => Err(source.into()),
            };
        }
        Task::Taken { path, digest } => knowledge.borrow_mut().take(&path, &digest)?,
        Task::Owe(owes) => owe(&knowledge.borrow(), owes)?,
        Task::Rules(rules) => host::load_rules_here(&interface, &rules).await?,
        Task::Dropping(networks) => return Ok(Answer::Chains(host::dropping_here(&interface, &networks).await)),
        Task::NameService => return Ok(Answer::Service(host::name_service_here().await)),
        Task::SetNames(names) => {
            names.check().map_err(Failure::refused)?;
            host::set_names_here(&interface, index(&interface).await?, &names).await?;
        }
        Task::DropNames(entry) => {
            let index = host::link_index(&interface).await?;
            if !entry.is_of(&interface) {
                return Err(Failure::refused("the entry of another interface"));
            }
            host::drop_names_here(&entry, &interface, index).await?;
        }
        Task::Sysctl { name, value } => {
            if !host::is_tunable(&name, &value) {
                return Err(Failure::refused(format!("no tunnel sets {name}={value}")));
            }
            std::fs::write(Path::new("/proc/sys").join(&name), &value)?;
        }
        Task::Save(save) => {
            let path = knowledge.borrow().file.as_ref().map(|file| file.path.clone());
            let path = path.ok_or_else(|| Failure::refused("this tunnel has no file"))?;
            return self::save(&path, save).map(Answer::Saved);
        }
        Task::Listen { .. } | Task::Notify(_) | Task::Log(_) => {
            return Err(Failure::refused("this is done in another place"));
        }
        Task::SwapState => return state::swap(&interface),
        Task::SwapStateBack => state::exchange(&interface)?,
    }
    Ok(Answer::Done)
}

/// Records the hooks that a later process has to run if the tunnel is killed.
fn owe(knowledge: &Knowledge, owes: bool) -> Result<(), Failure> {
    let Some(file) = knowledge.file.as_ref().filter(|_| owes) else {
        session_record::owe_nothing(&knowledge.interface)?;
        return Ok(());
    };
    let [pre_down, post_down] = [When::PreDown, When::PostDown].map(|when| file.hooks(when).to_vec());
    session_record::owe(&knowledge.interface, &file.path, pre_down, post_down)?;
    Ok(())
}

async fn index(interface: &str) -> Result<u32, Failure> {
    host::link_index(interface).await?.ok_or_else(|| Failure::refused(format!("there is no interface {interface}")))
}

/// Writes the configuration file, and keeps everything that the tunnel does not change. Returns its digest.
fn save(path: &Path, save: Save) -> Result<String, Failure> {
    let mut file = File::read(path)?;
    let mistakes = || Failure::refused(format!("{} has mistakes, which `rustguard check` shows", path.display()));
    match save {
        Save::PrivateKey(key) => {
            let mut config = conf::parse(file.text()).0.ok_or_else(mistakes)?;
            config.interface.private_key = Some(StaticSecret::from_bytes(bytes(&key)?));
            file.save(&config)?;
        }
        Save::PeerKeys(keys) => {
            let key = |text: &str| Ok::<_, Failure>(PublicKey(bytes(text)?));
            let keys = keys.iter().map(|(before, after)| Ok((key(before)?, key(after)?)));
            file.rename_peers(&keys.collect::<Result<Vec<_>, Failure>>()?)?;
        }
        Save::Device { digest, device } => {
            let config = conf::parse(file.text()).0.filter(|_| file.digest() == digest).ok_or(Failure::Changed)?;
            let device = conf::parse(&device).0.ok_or_else(|| Failure::refused("this is no state of a device"))?;
            // Only keys, ports, mark and peers are taken from `device`.
            file.save(&config.with_device(device))?;
        }
    }
    Ok(file.digest())
}

/// A key in base64.
fn bytes(text: &str) -> Result<[u8; 32], Failure> {
    key::from_base64(text).map(|key| *key).map_err(|_| Failure::refused("this is no key"))
}

impl From<HostError> for Failure {
    fn from(error: HostError) -> Self {
        match error {
            HostError::Command { command, reason } => Self::Command { command, reason },
            HostError::Resolved { action, reason, .. } => Self::Resolved { action, reason },
            HostError::NoDnsBackend { .. } => Self::NoDnsBackend,
            other => Self::Refused(crate::chain::chain(&other)),
        }
    }
}

impl From<SaveError> for Failure {
    fn from(error: SaveError) -> Self {
        match error {
            SaveError::Changed(_) => Self::Changed,
            SaveError::Io { source, .. } => source.into(),
            other @ SaveError::Edit { .. } => Self::Refused(crate::chain::chain(&other)),
        }
    }
}

impl From<session_record::SaveTunnelError> for Failure {
    fn from(error: session_record::SaveTunnelError) -> Self {
        Self::Refused(crate::chain::chain(&error))
    }
}
