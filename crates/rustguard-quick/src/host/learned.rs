//! The tables for the routes of a routing engine.

use super::{
    config::{HostConfig, Table},
    guard,
    link::is_v6,
    routes::Plan,
};
use ipnet::IpNet;
use rustguard_device::kernel::{DefaultRouteGuard, GuardFuture, LearnedTables};

impl HostConfig {
    /// The tables of this set-up for an engine's routes; `None` with `Table = off`. Call this after the mark was
    /// [chosen](super::choose_fwmark).
    pub fn learned_tables(&self) -> Option<LearnedTables> {
        match self.table {
            Table::Off => None,
            Table::Number(table) => Some(LearnedTables::table(table)),
            Table::Auto => {
                let (tables, defaults) = (LearnedTables::main(), Plan::new(self).default);
                Some(match self.mark().filter(|_| !defaults.is_empty()) {
                    Some(mark) => {
                        let (interface, addresses) = (self.interface.clone(), self.addresses.clone());
                        tables.default_routes(defaults, mark, Guard { interface, mark, addresses })
                    }
                    None => tables,
                })
            }
        }
    }
}

/// The nftables guard of one tunnel.
struct Guard {
    interface: String,
    mark: u32,
    /// The tunnel's addresses, which the guard protects.
    addresses: Vec<IpNet>,
}

impl DefaultRouteGuard for Guard {
    fn put_up(&self, default: IpNet) -> GuardFuture<'_> {
        Box::pin(async move { Ok(guard::put_up(&self.interface, &[default], self.mark, &self.addresses).await?) })
    }

    fn take_down(&self, default: IpNet) -> GuardFuture<'_> {
        let v6 = is_v6(default);
        Box::pin(async move { Ok(guard::remove(&self.interface, !v6, v6).await?) })
    }
}
