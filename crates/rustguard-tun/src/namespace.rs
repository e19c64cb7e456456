//! Creates network namespaces, for demonstrations and tests that do not change the host.
use crate::sys;
use std::{
    fs::{self, File},
    io,
    os::{fd::OwnedFd, unix::net::UnixDatagram},
};

/// The bit numbers of two capabilities (linux/capability.h). CAP_NET_ADMIN permits to configure networks, CAP_SYS_ADMIN
/// to create namespaces.
const CAP_NET_ADMIN: u32 = 12;
const CAP_SYS_ADMIN: u32 = 21;

/// Makes sure that this process may create network namespaces. Returns `true` if it was already permitted (it is root,
/// or has CAP_SYS_ADMIN and CAP_NET_ADMIN). Returns `false` if it was moved into a new user namespace. In there it is
/// root and has all capabilities; outside it has none.
///
/// # Errors
/// A process that needs the user namespace must have a single thread ([`io::ErrorKind::InvalidInput`],
/// user_namespaces(7)). A host may forbid such namespaces (`kernel.unprivileged_userns_clone`,
/// `user.max_user_namespaces`, AppArmor's `kernel.apparmor_restrict_unprivileged_userns`).
pub fn enter_user_if_needed() -> io::Result<bool> {
    if privileged()? {
        return Ok(true);
    }
    // After unshare, both are the overflow ids until the maps are written.
    let (user, group) = sys::effective_ids();
    sys::unshare(libc::CLONE_NEWUSER)?;
    // An unprivileged process may write gid_map only after setgroups is forbidden (user_namespaces(7)).
    fs::write("/proc/self/setgroups", "deny")?;
    fs::write("/proc/self/uid_map", format!("0 {user} 1"))?;
    fs::write("/proc/self/gid_map", format!("0 {group} 1"))?;
    Ok(false)
}

/// Moves the calling thread into a new network namespace and brings its `lo` up. Threads that the calling thread starts
/// later are in the new namespace, too. The namespace vanishes with the last thread, socket and descriptor that refer
/// to it.
pub fn enter_network() -> io::Result<()> {
    sys::unshare(libc::CLONE_NEWNET)?;
    // A socket of the new namespace tells the kernel which namespace is meant.
    sys::bring_up(UnixDatagram::unbound()?, "lo")
}

/// Moves the calling thread into new namespaces of mounts and of the host name. Processes and threads that it starts
/// later are in them, too. Mounts of the host go on appearing there until the caller makes them private
/// (mount_namespaces(7)).
pub fn enter_machine() -> io::Result<()> {
    // With CLONE_NEWNS, the thread gets a root and a working folder of its own, which a new namespace needs.
    sys::unshare(libc::CLONE_NEWNS | libc::CLONE_NEWUTS)
}

/// The network namespace of the calling thread.
pub fn current_network() -> io::Result<OwnedFd> {
    Ok(File::open("/proc/thread-self/ns/net")?.into())
}

/// Whether the calling thread has CAP_NET_ADMIN and CAP_SYS_ADMIN.
fn privileged() -> io::Result<bool> {
    let status = fs::read_to_string("/proc/thread-self/status")?;
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let effective = effective.and_then(|digits| u64::from_str_radix(digits.trim(), 16).ok());
    let effective = effective.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "no CapEff in status"))?;
    let needed = 1 << CAP_NET_ADMIN | 1 << CAP_SYS_ADMIN;
    Ok(effective & needed == needed)
}

/// For this crate's tests: runs `test` in a thread with a network namespace of its own. If that is not possible, it
/// prints that the test was skipped.
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
        Ok(Err(error)) => skipped(&format!("{what}: no network namespace; run as root or under `unshare -Ur`"), &error),
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

/// For this crate's tests: prints what was not tested, and why.
#[cfg(test)]
pub(crate) fn skipped(what: &str, why: &io::Error) {
    rustguard_skip::missing(&format!("{what} ({why})"));
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
