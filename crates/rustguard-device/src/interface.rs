//! The kernel interface of a device: what it is called, and where programs keep files about it while it runs.

use std::path::{Path, PathBuf};

/// Run files, records of the host's set-up, control sockets and logs of all interfaces are in this folder. `/run` is emptied at
/// boot.
pub const RUN_DIR: &str = "/run/rustguard";

/// What is kept of an interface between two runs is in a folder with its name in this one: keys, leases, the state of a routing
/// protocol.
pub const STATE_DIR: &str = "/var/lib/rustguard";

/// The kernel's IFNAMSIZ is 16, with the byte that ends the string.
const MAX_NAME: usize = 15;

/// The kernel interface of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Interface {
    /// The interface's name.
    pub name: String,
    /// The interface's index in the kernel.
    pub index: u32,
}

/// A text that is not the name of an interface.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no interface name: 1 to 15 of a-z, A-Z, 0-9 and _=+.-, but not . or ..")]
pub struct InterfaceNameError(pub String);

/// Whether this can be the name of an interface, by wg-quick's rule. Such a name has no `/`: it is safe in a path.
///
/// # Errors
/// [`InterfaceNameError`], with the name.
pub fn check_name(name: &str) -> Result<(), InterfaceNameError> {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"_=+.-".contains(&byte);
    if (1..=MAX_NAME).contains(&name.len()) && name.bytes().all(allowed) && name != "." && name != ".." {
        Ok(())
    } else {
        Err(InterfaceNameError(name.to_owned()))
    }
}

/// `/run/rustguard/NAME.EXTENSION`. Nothing is made.
pub fn run_file(interface: &str, extension: &str) -> PathBuf {
    Path::new(RUN_DIR).join(format!("{interface}.{extension}"))
}
