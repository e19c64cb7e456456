//! The meaning of errors of netlink requests.

use std::io;

// The errno values that this module distinguishes. They are the same on every Linux architecture.
pub(super) const EPERM: i32 = 1;
pub(super) const ENOENT: i32 = 2;
pub(super) const ESRCH: i32 = 3;
pub(super) const EACCES: i32 = 13;
/// The object to be added already exists.
pub const EEXIST: i32 = 17;
pub(super) const ENODEV: i32 = 19;
pub(super) const EINVAL: i32 = 22;

/// The errno in the kernel's answer; `None` if the error has another origin.
pub fn errno(error: &rtnetlink::Error) -> Option<i32> {
    match error {
        rtnetlink::Error::NetlinkError(message) => message.code.map(|code| -code.get()),
        _ => None,
    }
}

/// Whether the error means that the object to be removed no longer exists. It covers addresses, routes, rules and
/// links.
pub fn already_gone(error: &rtnetlink::Error) -> bool {
    errno(error).is_some_and(|code| {
        matches!(code, ENOENT | ESRCH | ENODEV)
            || io::Error::from_raw_os_error(code).kind() == io::ErrorKind::AddrNotAvailable
    })
}

/// Whether the answer to a question for a route is that there is none. The kernel's answer is EACCES for a route of
/// type `prohibit`, and EINVAL for `blackhole`.
pub(super) fn no_route(error: &rtnetlink::Error) -> bool {
    errno(error).is_some_and(|code| {
        matches!(code, EACCES | EINVAL)
            || matches!(
                io::Error::from_raw_os_error(code).kind(),
                io::ErrorKind::NetworkUnreachable | io::ErrorKind::HostUnreachable
            )
    })
}

/// Whether the error means that the interface is down, so that it cannot have routes.
pub(super) fn link_is_down(error: &rtnetlink::Error) -> bool {
    errno(error).is_some_and(|code| io::Error::from_raw_os_error(code).kind() == io::ErrorKind::NetworkDown)
}
