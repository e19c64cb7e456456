//! The netlink connection of the set-up.

use rustguard_device::kernel;
use std::ops::Deref;

/// That of `rustguard_device::kernel`, to which the files beside this one add their requests.
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
