//! Requests of the commands to the kernel, by netlink.

pub(crate) mod interface;
pub(crate) mod links;
