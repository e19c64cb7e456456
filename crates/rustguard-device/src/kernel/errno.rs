//! What the errors of netlink requests mean.

use std::io;

// The errno values that are told apart. They are the same on every Linux architecture.
pub(super) const EPERM: i32 = 1;
pub(super) const ENOENT: i32 = 2;
pub(super) const ESRCH: i32 = 3;
/// The kernel has what was to be added already.
pub const EEXIST: i32 = 17;
pub(super) const ENODEV: i32 = 19;
pub(super) const EINVAL: i32 = 22;

/// The errno that the kernel answered with; `None` when the error has another origin.
pub fn errno(error: &rtnetlink::Error) -> Option<i32> {
    match error {
        rtnetlink::Error::NetlinkError(message) => message.code.map(|code| -code.get()),
        _ => None,
    }
}

/// Whether the error says that the thing to be removed is not there any more, for addresses, routes, rules and links.
pub fn already_gone(error: &rtnetlink::Error) -> bool {
    errno(error).is_some_and(|code| {
        matches!(code, ENOENT | ESRCH | ENODEV)
            || io::Error::from_raw_os_error(code).kind() == io::ErrorKind::AddrNotAvailable
    })
}

/// Whether the error says that the interface is down: no route can lead there.
pub(super) fn link_is_down(error: &rtnetlink::Error) -> bool {
    errno(error).is_some_and(|code| io::Error::from_raw_os_error(code).kind() == io::ErrorKind::NetworkDown)
}
