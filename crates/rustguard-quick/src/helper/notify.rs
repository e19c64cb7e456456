//! Notifications to systemd about a tunnel (sd_notify(3)).
//!
//! A confined process has no socket that reaches systemd. The same socket would reach every other service that listens
//! for datagrams, and some of these obey uid 0. So the privileged helper sends the notifications, and they are a closed
//! list: a tunnel cannot name another main process or leave descriptors with systemd.

use super::{
    client::get,
    task::{Notification, Task},
};
use rustix::{
    io::Errno,
    net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, UCred, sendmsg_addr},
    process::{Pid, getgid, getpid, getuid},
    time::{ClockId, clock_gettime},
};
use std::{
    env,
    io::{self, IoSlice},
    mem::MaybeUninit,
    os::unix::{ffi::OsStrExt as _, net::UnixDatagram},
    time::Duration,
};

/// The variable in which systemd names its socket.
pub(crate) const SOCKET: &str = "NOTIFY_SOCKET";
/// The time that systemd has to read earlier notifications.
const PATIENCE: Duration = Duration::from_secs(5);

/// Notifies systemd, if systemd asked for it. If there is a privileged helper, it does so after this function has
/// returned.
///
/// # Errors
/// The privileged helper has ended, or systemd's socket cannot be reached.
pub fn notify(notification: Notification) -> io::Result<()> {
    match get() {
        Some(helper) => helper.tell(Task::Notify(notification)).map_err(super::Failure::into_io),
        None => send(notification, getpid()),
    }
}

/// Whether systemd wants to hear [`Notification::Watchdog`] from this process.
pub fn is_watched() -> bool {
    let number = |name: &str| env::var(name).ok()?.parse::<u64>().ok();
    number("WATCHDOG_USEC").is_some() && number("WATCHDOG_PID").is_none_or(|id| id == u64::from(std::process::id()))
}

/// Notifies systemd from this process, in the name of `tunnel`.
pub(crate) fn send(notification: Notification, tunnel: Pid) -> io::Result<()> {
    let Some(name) = env::var_os(SOCKET) else { return Ok(()) };
    let address = match name.as_bytes() {
        [b'@', rest @ ..] => SocketAddrUnix::new_abstract_name(rest)?,
        _ => SocketAddrUnix::new(&*name)?,
    };
    let socket = UnixDatagram::unbound()?;
    socket.set_write_timeout(Some(PATIENCE))?;
    let text = text(notification);
    let say = |control: &mut SendAncillaryBuffer<'_, '_, '_>| {
        sendmsg_addr(&socket, &address, &[IoSlice::new(text.as_bytes())], control, SendFlags::NOSIGNAL)
    };
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmCredentials(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    control.push(SendAncillaryMessage::ScmCredentials(UCred { pid: tunnel, uid: getuid(), gid: getgid() }));
    // Sending with another process's number needs CAP_SYS_ADMIN (unix(7)), and systemd then accepts it also with
    // NotifyAccess=main. Without that right, as in the sandbox of our units, NotifyAccess=all is needed.
    match say(&mut control) {
        Err(Errno::PERM) => say(&mut SendAncillaryBuffer::default()),
        said => said,
    }?;
    Ok(())
}

fn text(notification: Notification) -> String {
    match notification {
        Notification::Ready => "READY=1\n".to_owned(),
        Notification::Reloading => {
            // Type=notify-reload requires a time after the time of its signal.
            let now = clock_gettime(ClockId::Monotonic);
            format!("RELOADING=1\nMONOTONIC_USEC={}\n", now.tv_sec * 1_000_000 + now.tv_nsec / 1_000)
        }
        Notification::Stopping => "STOPPING=1\n".to_owned(),
        Notification::Watchdog => "WATCHDOG=1\n".to_owned(),
    }
}
