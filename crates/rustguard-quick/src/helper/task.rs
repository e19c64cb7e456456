//! The tasks of the privileged helper, and their protocol: frames of JSON after their length.

use super::{
    line::Line,
    values::{Chain, DnsEntry, NameService, Names, Rules},
};
use ipnet::IpNet;
use rustix::{
    io::retry_on_intr,
    net::{
        RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
        recvmsg, sendmsg,
    },
};
use serde::{Deserialize, Serialize};
use std::{
    io::{self, IoSlice, IoSliceMut, Read as _},
    mem::MaybeUninit,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::net::UnixStream,
    },
    path::PathBuf,
};
use zeroize::Zeroizing;

/// The longest frame: the saved state of a device with a hundred thousand peers.
pub(super) const LONGEST: usize = 32 << 20;

/// A notification to systemd about a tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Notification {
    /// The tunnel is up, or a reload is over.
    Ready,
    /// The settings are being read. [`Notification::Ready`] has to follow.
    Reloading,
    /// The tunnel ends.
    Stopping,
    /// The tunnel is alive, for `WatchdogSec=`.
    Watchdog,
}

/// All that a tunnel can have its helper do.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Task {
    /// Run this hook, which has to be in the file.
    Hook { when: When, command: String },
    /// Read the file that the tunnel has taken over. It has to have the digest of the file that the tunnel has read.
    Taken { path: PathBuf, digest: String },
    /// Record the hooks that have to run at the end of the tunnel, or delete the record.
    Owe(bool),
    /// Load or remove tables of nftables.
    Rules(Rules),
    /// Look for chains that drop packets that are forwarded to these networks.
    Dropping(Vec<IpNet>),
    /// Look for the service that manages name servers.
    NameService,
    /// Pass name servers on.
    SetNames(Names),
    /// Withdraw them.
    DropNames(DnsEntry),
    /// Set a tunable.
    Sysctl { name: String, value: String },
    /// Write the configuration file.
    Save(Save),
    /// Open one of the tunnel's sockets. It comes with the answer.
    Listen { path: PathBuf, group: bool },
    /// Keep a copy of the state folder, and exchange it with the spare state folder.
    SwapState,
    /// Exchange the two folders without a copy.
    SwapStateBack,
    /// Tell systemd.
    Notify(Notification),
    /// Write a line into the journal.
    Log(Line),
}

/// The key of a hook in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum When {
    PreUp,
    PostUp,
    PreDown,
    PostDown,
}

impl When {
    /// The key in the file.
    pub(crate) fn key(self) -> &'static str {
        match self {
            Self::PreUp => "PreUp",
            Self::PostUp => "PostUp",
            Self::PreDown => "PreDown",
            Self::PostDown => "PostDown",
        }
    }

    /// The hooks under this key of a file.
    pub(crate) fn of_key(key: &str) -> Option<Self> {
        [Self::PreUp, Self::PostUp, Self::PreDown, Self::PostDown].into_iter().find(|when| when.key() == key)
    }
}

/// A change of the configuration file. Keys are in base64.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Save {
    /// Another private key.
    PrivateKey(Zeroizing<String>),
    /// Other public keys of peers, each the old and the new one.
    PeerKeys(Vec<(String, String)>),
    /// The state of the device, as a configuration file, for the file whose text has this digest.
    Device { digest: String, device: Zeroizing<String> },
}

impl std::fmt::Debug for Save {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::PrivateKey(_) => "PrivateKey",
            Self::PeerKeys(_) => "PeerKeys",
            Self::Device { .. } => "Device",
        })
    }
}

/// A message of the tunnel.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Said {
    Do {
        number: u64,
        task: Task,
    },
    /// End the programs of this task. The task still gets an answer.
    Cancel {
        number: u64,
    },
}

/// A message of the privileged helper. The first message, with number 0, says that it is ready.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Told {
    pub(crate) number: u64,
    pub(crate) answer: Answer,
}

/// The outcome of a task.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Answer {
    Done,
    /// A hook has ended with this status of wait(2).
    Ended(i32),
    /// A hook was killed at its limit.
    TimedOut,
    Chains(Vec<Chain>),
    Service(NameService),
    /// The digest of the file that was saved.
    Saved(String),
    /// The new path of the earlier state.
    Moved(PathBuf),
    Failed(Failure),
}

/// Why a task was not done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Failure {
    /// A program failed.
    Command { command: String, reason: String },
    /// systemd-resolved refused.
    Resolved { action: String, reason: String },
    /// No service manages name servers.
    NoDnsBackend,
    /// The configuration file was edited.
    Changed,
    /// The system refused.
    System { code: Option<i32>, reason: String },
    /// The privileged helper does no such task, or has ended.
    Refused(String),
}

impl Failure {
    pub(crate) fn refused(why: impl Into<String>) -> Self {
        Self::Refused(why.into())
    }

    /// Converts it to an error of the system.
    pub(crate) fn into_io(self) -> io::Error {
        match self {
            Self::System { code: Some(code), .. } => io::Error::from_raw_os_error(code),
            other => io::Error::other(other.to_string()),
        }
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Command { command, reason } => write!(f, "`{command}` failed: {reason}"),
            Self::Resolved { action, reason } => write!(f, "systemd-resolved refused {action}: {reason}"),
            Self::NoDnsBackend => f.write_str("nobody takes name servers"),
            Self::Changed => f.write_str("the file was edited"),
            Self::System { reason, .. } | Self::Refused(reason) => f.write_str(reason),
        }
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::System { code: error.raw_os_error(), reason: error.to_string() }
    }
}

/// A frame.
pub(crate) fn frame(message: &impl Serialize) -> io::Result<Zeroizing<Vec<u8>>> {
    let mut frame = Zeroizing::new(vec![0; 4]);
    serde_json::to_writer(&mut *frame, message)?;
    let length = frame.len() - 4;
    if length > LONGEST {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "too much for the privileged helper"));
    }
    frame[..4].copy_from_slice(&u32::try_from(length).map_err(io::Error::other)?.to_be_bytes());
    Ok(frame)
}

/// The length in the head of a frame.
pub(crate) fn length(head: [u8; 4]) -> io::Result<usize> {
    usize::try_from(u32::from_be_bytes(head))
        .ok()
        .filter(|length| *length <= LONGEST)
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "a frame that is too long"))
}

/// The next answer, with the socket that comes with its first byte.
pub(super) fn read_told(mut stream: &UnixStream) -> io::Result<(Told, Option<OwnedFd>)> {
    let (mut head, mut socket) = ([0; 4], None);
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received =
        retry_on_intr(|| recvmsg(stream, &mut [IoSliceMut::new(&mut head)], &mut control, RecvFlags::CMSG_CLOEXEC))?;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(sockets) = message {
            socket = sockets.last();
        }
    }
    if received.bytes == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    stream.read_exact(&mut head[received.bytes..])?;
    let mut bytes = vec![0; length(head)?];
    stream.read_exact(&mut bytes)?;
    Ok((serde_json::from_slice(&bytes)?, socket))
}

/// Sends the beginning of a frame, with a socket. Returns how much was sent.
pub(crate) fn send_with(stream: impl AsFd, bytes: &[u8], socket: BorrowedFd<'_>) -> io::Result<usize> {
    let sockets = [socket];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    control.push(SendAncillaryMessage::ScmRights(&sockets));
    Ok(sendmsg(stream, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL)?)
}
