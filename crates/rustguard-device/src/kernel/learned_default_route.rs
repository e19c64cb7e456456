//! The table for a learned default route, and the guard that is added and removed with it.
//!
//! A default route in the main table would send the tunnel's own datagrams into the tunnel. Therefore it goes into a
//! separate table. Policy rules select this table for all packets without the tunnel's mark, and they are set up before
//! the tunnel runs. If nothing is prepared, a learned default route stays out of the kernel's tables.

use super::route_table::MAIN_TABLE;
use ipnet::IpNet;
use std::{collections::BTreeSet, error::Error, fmt, pin::Pin, sync::Arc};

/// Shorter prefixes are large parts of a default route.
const WIDE_V4: u8 = 6;
/// The same for IPv6, where all public addresses are in a /3 and a provider has a /19 or less.
const WIDE_V6: u8 = 12;

/// The result of a [`DefaultRouteGuard`]'s operation.
pub type GuardFuture<'a> = Pin<Box<dyn Future<Output = Result<(), Box<dyn Error + Send + Sync>>> + Send + 'a>>;

/// A guard that must exist while there is a learned default route, for example an nftables rule against packets that
/// falsely claim to come through the tunnel. Errors are logged, and the route stays.
pub trait DefaultRouteGuard: Send + Sync {
    /// Adds the guard: the default route of this family (`0.0.0.0/0` or `::/0`) was added.
    fn put_up(&self, default: IpNet) -> GuardFuture<'_>;

    /// Removes the guard: the default route of this family was removed.
    fn take_down(&self, default: IpNet) -> GuardFuture<'_>;
}

/// The kernel's tables for the routes that a routing engine learns.
#[derive(Debug, Clone)]
pub struct LearnedTables {
    table: u32,
    defaults: Defaults,
    networks_only: bool,
}

/// The treatment of 0.0.0.0/0 and ::/0.
#[derive(Debug, Clone)]
enum Defaults {
    /// They stay out, because nothing is prepared and they would capture the tunnel's own packets.
    LeftOut,
    /// They go into the same table as the other routes, which the user chose.
    Together,
    /// They go into a separate table, which policy rules select.
    Apart(Apart),
}

/// A prepared table.
#[derive(Clone)]
struct Apart {
    /// The default routes that it is prepared for.
    nets: Vec<IpNet>,
    /// The number of the table. Packets with the same number as mark do not use it.
    mark: u32,
    guard: Arc<dyn DefaultRouteGuard>,
}

impl fmt::Debug for Apart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Apart").field("nets", &self.nets).field("mark", &self.mark).finish_non_exhaustive()
    }
}

impl LearnedTables {
    /// The main table. Default routes are left out, unless [`default_routes`](Self::default_routes) sets a table for
    /// them.
    pub fn main() -> Self {
        Self { table: MAIN_TABLE, defaults: Defaults::LeftOut, networks_only: false }
    }

    /// A table that the user chose, by number. It gets all routes, including default routes.
    pub fn table(number: u32) -> Self {
        Self { table: number, defaults: Defaults::Together, networks_only: false }
    }

    /// Routes to single addresses are left out: the network of the interface covers them, and a route for each of a
    /// thousand peers would only be work. Default routes and large parts of them are left out too: a host that many
    /// others reach through the Internet must not lose this access because a peer offers its own.
    #[must_use]
    pub fn networks_only(self) -> Self {
        Self { networks_only: true, ..self }
    }

    /// The default routes `nets` go into the table with the number `mark`. Policy rules must select this table for all
    /// packets except those with this mark, which the tunnel's sockets must set. `guard` is called when a default route
    /// is added or removed.
    #[must_use]
    pub fn default_routes(
        mut self,
        nets: impl IntoIterator<Item = IpNet>,
        mark: u32,
        guard: impl DefaultRouteGuard + 'static,
    ) -> Self {
        self.defaults = Defaults::Apart(Apart { nets: nets.into_iter().collect(), mark, guard: Arc::new(guard) });
        self
    }

    /// Whether the prefix is one of those that are left out.
    pub(super) fn leaves_out(&self, prefix: IpNet) -> bool {
        self.networks_only && (prefix.prefix_len() == prefix.max_prefix_len() || is_wide(&prefix))
    }

    /// The table for the prefix. `None` for a default route that would capture the tunnel's own packets.
    pub(super) fn of(&self, prefix: IpNet) -> Option<u32> {
        match &self.defaults {
            _ if prefix.prefix_len() > 0 => Some(self.table),
            Defaults::Together => Some(self.table),
            Defaults::Apart(apart) if apart.nets.contains(&prefix) => Some(apart.mark),
            Defaults::Apart(_) | Defaults::LeftOut => None,
        }
    }

    /// Whether the prefix is a default route in a separate table, which rules do not select for packets with this mark.
    pub(super) fn spares(&self, prefix: IpNet, mark: u32) -> bool {
        match &self.defaults {
            Defaults::Apart(apart) => prefix.prefix_len() == 0 && mark == apart.mark,
            Defaults::Together | Defaults::LeftOut => false,
        }
    }
}

/// Whether the prefix is a default route or a large part of one. Unique local addresses (RFC 4193) are no part of the
/// Internet.
fn is_wide(prefix: &IpNet) -> bool {
    match prefix {
        IpNet::V4(net) => net.prefix_len() < WIDE_V4,
        IpNet::V6(net) => net.prefix_len() < WIDE_V6 && (net.prefix_len() < 7 || !net.addr().is_unique_local()),
    }
}

/// Adds the guard with each learned default route that is added, and removes it with each that is removed.
#[derive(Debug, Default)]
pub(super) struct Guarded {
    /// The default routes that currently have a guard.
    nets: BTreeSet<IpNet>,
}

impl Guarded {
    /// The route was added.
    pub(super) async fn added(&mut self, tables: &LearnedTables, prefix: IpNet) {
        if let Defaults::Apart(apart) = &tables.defaults
            && prefix.prefix_len() == 0
            && self.nets.insert(prefix)
        {
            report(apart.guard.put_up(prefix).await);
        }
    }

    /// The route was removed.
    pub(super) async fn taken_away(&mut self, tables: &LearnedTables, prefix: IpNet) {
        if let Defaults::Apart(apart) = &tables.defaults
            && self.nets.remove(&prefix)
        {
            report(apart.guard.take_down(prefix).await);
        }
    }
}

fn report(done: Result<(), Box<dyn Error + Send + Sync>>) {
    if let Err(error) = done {
        tracing::warn!("{error}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_are_neither_single_addresses_nor_large_parts_of_the_internet() {
        let tables = LearnedTables::main().networks_only();
        let leaves_out = |text: &str| tables.leaves_out(text.parse().unwrap());
        for net in ["0.0.0.0/0", "128.0.0.0/1", "::/0", "2000::/3", "10.1.0.1/32", "fd00::1/128"] {
            assert!(leaves_out(net), "{net}");
        }
        for net in ["10.0.0.0/8", "192.168.1.0/24", "fc00::/7", "fd00::/8", "2001:db8::/32", "10.1.0.0/31"] {
            assert!(!leaves_out(net), "{net}");
        }
        assert!(!LearnedTables::main().leaves_out("10.1.0.1/32".parse().unwrap()));
    }
}
