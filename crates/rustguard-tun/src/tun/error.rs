//! The reasons why an interface was not created, and the check of its name.

use super::{DRIVER, MAX_NAME_LEN, MAX_QUEUES};
use std::io;

/// The reason why an interface was not created. The message of each variant names the thing, the cause and the remedy.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TunError {
    /// The kernel has no TUN driver, or the container has no device for it.
    #[error(
        "no {DRIVER}: the kernel's tun driver is missing; load it (modprobe tun), or give the device to the container \
         (--device {DRIVER})"
    )]
    NoDriver,
    /// The device node of the TUN driver is another kind of file.
    #[error(
        "{DRIVER} is no TUN device: remove it, then load the driver (modprobe tun) or make the device (mknod {DRIVER} c 10 200)"
    )]
    NotTheDriver,
    /// The process lacks CAP_NET_ADMIN.
    #[error(
        "not permitted to create the interface `{name}`: it needs CAP_NET_ADMIN; run as root, or grant the capability"
    )]
    NotPermitted {
        /// The interface.
        name: String,
    },
    /// Another interface has the name.
    #[error("an interface `{name}` exists already: choose another name, or delete it (ip link delete dev {name})")]
    Taken {
        /// The interface.
        name: String,
    },
    /// The text cannot be the name of an interface.
    #[error("`{name}` is not an interface name: {problem}; use up to {MAX_NAME_LEN} letters, digits and `_=+.-`")]
    InvalidName {
        /// The name.
        name: String,
        /// The rule that the name breaks.
        problem: &'static str,
    },
    /// The MTU is outside of the kernel's bounds: 68 to 65,535 bytes.
    #[error("the interface `{name}` cannot have an MTU of {mtu}: the kernel takes 68 to 65535")]
    InvalidMtu {
        /// The interface.
        name: String,
        /// The MTU in bytes.
        mtu: u32,
    },
    /// The number of queues is outside of the kernel's bounds: 1 to 256.
    #[error("the interface `{name}` cannot have {queues} queues: the kernel takes 1 to {MAX_QUEUES}")]
    InvalidQueues {
        /// The interface.
        name: String,
        /// The number of queues.
        queues: usize,
    },
    /// Another error of the system.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// Checks the kernel's rules for names (dev_valid_name, dev_alloc_name). They are checked here because the kernel only
/// answers EINVAL.
pub(super) fn check_name(name: &str) -> Result<(), TunError> {
    let problem = if name.is_empty() {
        "it is empty"
    } else if name.len() > MAX_NAME_LEN {
        "it is too long"
    } else if name == "." || name == ".." {
        "it would name a directory in /sys/class/net"
    } else if name.contains(['/', ':']) {
        "it contains `/` or `:`"
    } else if name.contains(|c: char| c.is_whitespace() || c.is_control()) {
        "it contains white space or control characters"
    } else if name.replacen("%d", "", 1).contains('%') {
        "`%` only goes with `d`, once, for a number"
    } else {
        return Ok(());
    };
    Err(TunError::InvalidName { name: name.to_owned(), problem })
}
