//! The kernel interface of a device: its name, and the folders for files about it.

use std::{
    io,
    path::{Path, PathBuf},
};

/// The folder for files of all running interfaces: run files, records of the host's set-up, control sockets and logs.
/// `/run` is emptied at boot.
pub const RUN_DIR: &str = "/run/rustguard";

/// The folder for data that is kept between two runs of an interface: keys, leases, the state of a routing protocol.
/// Each interface has a folder with its name in it.
pub const STATE_DIR: &str = "/var/lib/rustguard";

/// The maximum length of a name in bytes. The kernel's IFNAMSIZ is 16, and includes the byte that ends the string.
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

/// The text is not a valid name of an interface.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not an interface name: use 1 to 15 of a-z, A-Z, 0-9 and _=+.-, but not . or ..")]
pub struct InterfaceNameError(pub String);

/// Checks the name of an interface by wg-quick's rule. Such a name has no `/`, so it is safe in a path.
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

/// The path `/run/rustguard/NAME.EXTENSION`. The file is not created.
pub fn run_file(interface: &str, extension: &str) -> PathBuf {
    Path::new(RUN_DIR).join(format!("{interface}.{extension}"))
}

/// The kernel's index of the interface with this name.
///
/// # Errors
/// There is no such interface, or no socket could be opened.
pub fn interface_index(name: &str) -> io::Result<u32> {
    let any = rustix::net::socket(rustix::net::AddressFamily::INET, rustix::net::SocketType::DGRAM, None)?;
    Ok(rustix::net::netdevice::name_to_index(any, name)?)
}

/// The name of the interface with this index, in the network namespace of this process.
///
/// # Errors
/// There is no such interface, or no socket could be opened.
pub fn name_of(index: u32) -> io::Result<String> {
    let any = rustix::net::socket(rustix::net::AddressFamily::INET, rustix::net::SocketType::DGRAM, None)?;
    Ok(rustix::net::netdevice::index_to_name(any, index)?)
}
