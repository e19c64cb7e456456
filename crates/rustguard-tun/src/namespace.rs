//! Network namespaces of our own, for demonstrations and tests that leave the host alone.
use crate::sys;
use std::{
    fs::{self, File},
    io,
    os::{fd::OwnedFd, unix::net::UnixDatagram},
};

/// Capabilities by their bit (linux/capability.h): to configure networks, and to make namespaces.
const CAP_NET_ADMIN: u32 = 12;
const CAP_SYS_ADMIN: u32 = 21;

/// Makes sure that this process may make network namespaces. `true`: it may already (it is root, or has
/// CAP_SYS_ADMIN and CAP_NET_ADMIN). `false`: it was moved into a user namespace in which it is root, with all
/// capabilities inside and none outside.
///
/// # Errors
/// A process that needs the user namespace must have a single thread ([`io::ErrorKind::InvalidInput`], user_namespaces(7)).
/// Hosts may forbid such namespaces (`kernel.unprivileged_userns_clone`, `user.max_user_namespaces`, AppArmor's
/// `kernel.apparmor_restrict_unprivileged_userns`).
pub fn enter_user_if_needed() -> io::Result<bool> {
    if privileged()? {
        return Ok(true);
    }
    // Afterwards both are the overflow ids, until the maps are written.
    let (user, group) = sys::effective_ids();
    sys::unshare(libc::CLONE_NEWUSER)?;
    // gid_map may only be written by the unprivileged once setgroups is forbidden (user_namespaces(7)).
    fs::write("/proc/self/setgroups", "deny")?;
    fs::write("/proc/self/uid_map", format!("0 {user} 1"))?;
    fs::write("/proc/self/gid_map", format!("0 {group} 1"))?;
    Ok(false)
}

/// Moves the calling thread, and threads it starts later, into a new network namespace, and brings its `lo` up. The
/// namespace vanishes with the last thread, socket and descriptor that refer to it.
pub fn enter_network() -> io::Result<()> {
    sys::unshare(libc::CLONE_NEWNET)?;
    // Any socket of the new namespace names it to the kernel.
    sys::bring_up(UnixDatagram::unbound()?, "lo")
}

/// The network namespace of the calling thread.
pub fn current_network() -> io::Result<OwnedFd> {
    Ok(File::open("/proc/thread-self/ns/net")?.into())
}

/// Whether the calling thread has the capabilities that matter here.
fn privileged() -> io::Result<bool> {
    let status = fs::read_to_string("/proc/thread-self/status")?;
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let effective = effective.and_then(|digits| u64::from_str_radix(digits.trim(), 16).ok());
    let effective = effective.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "no CapEff in status"))?;
    let needed = 1 << CAP_NET_ADMIN | 1 << CAP_SYS_ADMIN;
    Ok(effective & needed == needed)
}

/// For this crate's tests: runs `test` in a thread with a network namespace of its own, or says aloud that it cannot.
#[cfg(test)]
pub(crate) fn isolated(what: &str, test: impl FnOnce() + Send + 'static) {
    let thread = std::thread::spawn(move || match enter_network() {
        Ok(()) => {
            test();
            Ok(())
        }
        Err(error) => Err(error),
    });
    match thread.join() {
        Ok(Ok(())) => {}
        Ok(Err(error)) => skipped(&format!("{what}: no network namespace, for want of root or `unshare -Ur`"), &error),
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

/// For this crate's tests: says that something was not tested, and why.
#[cfg(test)]
pub(crate) fn skipped(what: &str, why: &io::Error) {
    use std::io::Write as _;
    // Not eprintln!, which the test harness captures.
    io::stderr().write_all(format!("skipped: {what} ({why})\n").as_bytes()).expect("standard error is open");
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{net::UdpSocket, os::unix::fs::MetadataExt};

    fn inode(namespace: OwnedFd) -> u64 {
        File::from(namespace).metadata().unwrap().ino()
    }

    #[test]
    fn a_new_network_is_another_and_has_a_loopback() {
        let outside = inode(current_network().unwrap());
        isolated("a new network", move || {
            assert_ne!(inode(current_network().unwrap()), outside);
            let (here, there) = (UdpSocket::bind("127.0.0.1:0").unwrap(), UdpSocket::bind("127.0.0.1:0").unwrap());
            here.send_to(b"x", there.local_addr().unwrap()).unwrap();
            assert_eq!(there.recv(&mut [0; 2]).unwrap(), 1);
        });
        assert_eq!(inode(current_network().unwrap()), outside, "only that thread has moved");
    }
}
