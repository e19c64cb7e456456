//! The tunnel that the other files check.

use crate::uapi;
use rustguard_quick::{
    NameServer,
    conf::{Config, Table},
};

/// A tunnel, with all that is known about it.
pub(super) struct Tunnel {
    pub(super) name: String,
    /// The content of the configuration file, if it has no errors. A `serve` has no file.
    pub(super) config: Option<Config>,
    /// The running device, if it answers.
    pub(super) device: Option<uapi::Device>,
}

impl Tunnel {
    /// Whether the allowed IPs should be routes of the host.
    pub(super) fn has_routes(&self) -> bool {
        self.config.as_ref().is_none_or(|config| config.interface.table != Table::Off) && !self.learns_routes()
    }

    /// Whether a routing protocol learns the routes.
    pub(super) fn learns_routes(&self) -> bool {
        self.config.as_ref().is_some_and(|config| config.interface.routing.learns())
    }

    /// Whether it is a member of a network, and not a server.
    pub(super) fn is_member(&self) -> bool {
        self.config
            .as_ref()
            .is_some_and(|config| config.interface.network.is_some() && config.interface.forward != Some(true))
    }

    /// The servers in `DNS`.
    pub(super) fn name_servers(&self) -> &[NameServer] {
        self.config.as_ref().map_or(&[], |config| &config.interface.dns)
    }
}
