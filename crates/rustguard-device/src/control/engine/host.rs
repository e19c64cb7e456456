//! The engine host: the routing engine, and the results of its actions so far.

use super::{pace::Pace, sample::Sample, watch::Watching};
use crate::{
    control::timer::now,
    kernel::LearnedRoutes,
    settings::{Engine, StateSink},
};
use ipnet::IpNet;
use rustguard_core::{
    node::PeerId,
    routing::{Action, AllowedIpsMeaning, Role, RouteTable, StaticRoutes},
    time::Instant,
};
use std::{
    collections::{BTreeSet, HashMap},
    time::Duration,
};

/// The engine, and the results of its actions.
pub(in crate::control) struct EngineHost {
    pub(in crate::control) engine: Engine,
    /// More than one peer may carry a prefix: the engine decides, not the order of the configuration.
    pub(in crate::control) shares_prefixes: bool,
    /// The meaning of allowed IPs to the engine.
    pub(in crate::control) meaning: AllowedIpsMeaning,
    pub(super) actions: Vec<Action>,
    pub(in crate::control) table: RouteTable,
    /// The next hops for sealed datagrams, if the engine provides them.
    pub(in crate::control) places: Option<RouteTable>,
    pub(super) roles: HashMap<PeerId, Role>,
    /// The prefixes that the configuration announces.
    pub(super) configured: BTreeSet<IpNet>,
    /// The prefixes that are announced because the kernel has a route.
    pub(super) redistributed: BTreeSet<IpNet>,
    /// The prefixes of both kinds.
    pub(super) announced: BTreeSet<IpNet>,
    pub(in crate::control) kernel: Option<LearnedRoutes>,
    pub(super) state_sink: Option<StateSink>,
    /// When the counters are read next; `None` for an engine that does not speak to peers.
    pub(super) next_sample: Option<Instant>,
    pub(super) samples: HashMap<PeerId, Sample>,
    pub(super) watching: Watching,
    /// The peers whose counters are still to be read in this round, and when it began.
    pub(super) round: Vec<PeerId>,
    pub(super) round_began: Instant,
    /// The table has changed since the workers got it.
    pub(super) changed: bool,
    /// How long the first of these changes took: it copies the table that the workers have.
    pub(super) copied: Duration,
    /// When the workers may get another table.
    pub(super) pace: Pace,
    /// Packets of the engine that leave after the change is published: others must not rely on a route that is not
    /// followed yet (RFC 8966 §3.7.3).
    pub(super) after_change: Vec<(PeerId, Vec<u8>)>,
}

impl EngineHost {
    /// `engine` is the embedder's; without one, allowed IPs decide about routes.
    pub(in crate::control) fn new(
        engine: Option<Engine>,
        state_sink: Option<StateSink>,
        kernel: Option<LearnedRoutes>,
    ) -> Self {
        let shares_prefixes = engine.is_some();
        let engine = engine.unwrap_or_else(|| Box::new(StaticRoutes::default()));
        let next_sample = engine.claims().map(|_| Instant::default());
        Self {
            meaning: engine.allowed_ips(),
            engine,
            shares_prefixes,
            actions: Vec::new(),
            table: RouteTable::default(),
            places: None,
            roles: HashMap::new(),
            configured: BTreeSet::new(),
            redistributed: BTreeSet::new(),
            announced: BTreeSet::new(),
            kernel,
            state_sink,
            next_sample,
            samples: HashMap::new(),
            watching: Watching::default(),
            round: Vec::new(),
            round_began: Instant::default(),
            changed: false,
            copied: Duration::ZERO,
            pace: Pace::default(),
            after_change: Vec::new(),
        }
    }

    /// When the engine, the counters, or another table for the workers is due.
    pub(in crate::control) fn deadline(&self) -> Option<Instant> {
        let publish = self.changed.then_some(self.pace.next);
        [self.engine.deadline(), self.next_sample, self.watching.next, publish].into_iter().flatten().min()
    }

    /// The interface accepts routes now.
    pub(in crate::control) fn link_up(&self) {
        if let Some(kernel) = &self.kernel {
            kernel.link_up();
        }
    }

    /// The kernel's routes may have changed.
    pub(in crate::control) fn network_changed(&self) {
        if let Some(kernel) = &self.kernel {
            kernel.network_changed();
        }
    }

    pub(super) fn change(&mut self, change: impl FnOnce(&mut RouteTable)) {
        self.change_of(|host| change(&mut host.table));
    }

    pub(super) fn change_places(&mut self, change: impl FnOnce(&mut RouteTable)) {
        self.change_of(|host| change(host.places.get_or_insert_default()));
    }

    fn change_of(&mut self, change: impl FnOnce(&mut Self)) {
        let first = (!std::mem::replace(&mut self.changed, true)).then(|| now().instant);
        change(self);
        if let Some(started) = first {
            self.copied = now().instant.since(started);
        }
    }

    /// The role of a peer; `None` where the configuration does not say it.
    pub(in crate::control) fn role(&self, peer: PeerId) -> Option<Role> {
        self.roles.get(&peer).copied()
    }

    pub(in crate::control) fn set_role(&mut self, peer: PeerId, role: Role) {
        self.roles.insert(peer, role);
    }
}
