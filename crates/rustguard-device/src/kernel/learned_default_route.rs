//! Where a learned default route goes, and the guard that comes and goes with it.
//!
//! A default route in the main table would send the tunnel's own datagrams into the tunnel. So it goes into a table of its own,
//! which policy rules choose for all packets without the tunnel's mark, and which are set up before the tunnel runs. Where nothing
//! is prepared, a learned default route stays out of the kernel's tables.

use super::route_table::MAIN_TABLE;
use ipnet::IpNet;
use std::{collections::BTreeSet, error::Error, fmt, pin::Pin, sync::Arc};

/// What a [`DefaultRouteGuard`] does, and whether it succeeded.
pub type GuardFuture<'a> = Pin<Box<dyn Future<Output = Result<(), Box<dyn Error + Send + Sync>>> + Send + 'a>>;

/// What has to be there for as long as a learned default route is, for example a rule of nftables against packets that
/// claim to come through the tunnel. Errors are logged; the route stays.
pub trait DefaultRouteGuard: Send + Sync {
    /// The default route of this family (`0.0.0.0/0` or `::/0`) was added.
    fn put_up(&self, default: IpNet) -> GuardFuture<'_>;

    /// The default route of this family was taken away.
    fn take_down(&self, default: IpNet) -> GuardFuture<'_>;
}

/// The kernel's tables for the routes that a routing engine learns.
#[derive(Debug, Clone)]
pub struct LearnedTables {
    table: u32,
    defaults: Defaults,
}

/// What becomes of 0.0.0.0/0 and ::/0.
#[derive(Debug, Clone)]
enum Defaults {
    /// They would catch the tunnel's own packets, because nothing is prepared.
    LeftOut,
    /// They go where the others do: a table of the user's own.
    Together,
    /// They go into a table that policy rules choose.
    Apart(Apart),
}

/// A prepared table.
#[derive(Clone)]
struct Apart {
    /// The default routes that it is prepared for.
    nets: Vec<IpNet>,
    /// The table, and the mark that does not go there.
    mark: u32,
    guard: Arc<dyn DefaultRouteGuard>,
}

impl fmt::Debug for Apart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Apart").field("nets", &self.nets).field("mark", &self.mark).finish_non_exhaustive()
    }
}

impl LearnedTables {
    /// The main table. Default routes are left out, unless [`default_routes`](Self::default_routes) says where they go.
    pub fn main() -> Self {
        Self { table: MAIN_TABLE, defaults: Defaults::LeftOut }
    }

    /// A table of the user's own, by number, for all routes, default routes included.
    pub fn table(number: u32) -> Self {
        Self { table: number, defaults: Defaults::Together }
    }

    /// The default routes `nets` go into the table with the number `mark`. Policy rules must lead all packets there but those
    /// with this mark, which the tunnel's sockets must have. `guard` is told when one comes and goes.
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

    /// Where the prefix goes; none for a default route that would catch the tunnel's own packets.
    pub(super) fn of(&self, prefix: IpNet) -> Option<u32> {
        match &self.defaults {
            _ if prefix.prefix_len() > 0 => Some(self.table),
            Defaults::Together => Some(self.table),
            Defaults::Apart(apart) if apart.nets.contains(&prefix) => Some(apart.mark),
            Defaults::Apart(_) | Defaults::LeftOut => None,
        }
    }

    /// Whether it is a default route in a table of its own: rules keep packets with this mark from it.
    pub(super) fn spares(&self, prefix: IpNet, mark: u32) -> bool {
        match &self.defaults {
            Defaults::Apart(apart) => prefix.prefix_len() == 0 && mark == apart.mark,
            Defaults::Together | Defaults::LeftOut => false,
        }
    }
}

/// Puts the guard up with each learned default route that is added, and takes it down with each that is taken away.
#[derive(Debug, Default)]
pub(super) struct Guarded {
    /// The default routes that have a guard now.
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

    /// The route was taken away.
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
