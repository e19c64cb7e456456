//! What commands ask the kernel for, and change, by netlink.

pub(crate) mod links;
pub(crate) mod networks;
