//! Requests that the kernel refused.

use super::errno::{EPERM, errno};
use std::io;
use thiserror::Error;

/// A netlink request that failed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum KernelError {
    /// The process lacks CAP_NET_ADMIN in its network namespace (EPERM).
    #[error("cannot {action}: this needs CAP_NET_ADMIN; run as root, or with sudo")]
    Permission {
        /// The operation that failed, as an infinitive.
        action: String,
    },

    /// The kernel refused the request for another reason.
    #[error("cannot {action}: {source}")]
    Netlink {
        /// The operation that failed, as an infinitive.
        action: String,
        /// The kernel's errno.
        source: io::Error,
    },
}

impl KernelError {
    /// A failed netlink request. `action` is an infinitive: "add the address 10.0.0.1/24 to `wg0`".
    pub fn netlink(action: impl Into<String>, error: &rtnetlink::Error) -> Self {
        let action = action.into();
        match errno(error) {
            Some(EPERM) => Self::Permission { action },
            Some(code) => Self::Netlink { action, source: io::Error::from_raw_os_error(code) },
            None => Self::Netlink { action, source: io::Error::other(error.to_string()) },
        }
    }
}
