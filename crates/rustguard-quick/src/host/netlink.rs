//! The netlink connection of the set-up.

use rustguard_device::kernel;
use std::ops::Deref;

/// Wraps the connection of `rustguard_device::kernel`. The other files of this folder add their requests to it.
pub(super) struct Netlink(kernel::Netlink);

impl Netlink {
    pub(super) fn open() -> Result<Self, kernel::KernelError> {
        kernel::Netlink::open().map(Self)
    }
}

impl Deref for Netlink {
    type Target = kernel::Netlink;

    fn deref(&self) -> &kernel::Netlink {
        &self.0
    }
}
