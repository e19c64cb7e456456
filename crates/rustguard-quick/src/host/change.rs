//! Changes a set-up while the tunnel runs: all of it, or nothing.
//!
//! Each operation has a reverse. New settings are added before old ones are removed, so that an address or a route that
//! stays in use never disappears. If an operation fails, the reverses of all earlier ones run, last one first. The
//! record in the file follows each operation, so a process that is killed in the middle leaves nothing unknown behind.

mod operation;

use super::{
    apply::{Applied, resolve_mark},
    config::HostConfig,
    dns,
    error::{ChangeError, HostError},
    guard,
    link::is_v6,
    mtu,
    netlink::Netlink,
    policy, record,
    routes::{self, Plan},
    step::{Rule, RuleKind, Step},
};
use ipnet::IpNet;
use operation::{Operation, Side};
use rustguard_device::{
    UpdateError,
    kernel::{Family, MAIN_TABLE},
};
use std::collections::BTreeSet;

impl Applied {
    /// Changes the set-up to another configuration of the same interface. `set_mark` sets the mark of the tunnel's
    /// sockets. It is called at the moment when neither the old nor the new policy rules would send the tunnel's own
    /// packets into the tunnel.
    ///
    /// The routes of a routing engine stay in their tables, so [`learned_tables`](HostConfig::learned_tables) must not
    /// change.
    ///
    /// # Errors
    /// If a step fails, the earlier steps are undone, and the set-up is the old one. The error contains the steps that
    /// could not be undone. They stay in the record.
    pub async fn change(
        &mut self,
        config: HostConfig,
        set_mark: impl AsyncFn(u32) -> Result<(), UpdateError>,
    ) -> Result<(), ChangeError> {
        if config == self.config {
            return Ok(());
        }
        let nothing_done = |cause: HostError| ChangeError { cause, left: Vec::new() };
        let netlink = Netlink::open().map_err(|error| nothing_done(error.into()))?;
        let link = netlink.link_by_name(&config.interface).await.map_err(|error| nothing_done(error.into()))?;
        let Some(link) = link.filter(|link| link.index == self.journal.index()) else {
            if !same_set_up(&self.config, &config) {
                return Err(nothing_done(HostError::InterfaceGone(config.interface)));
            }
            self.config = config;
            return Ok(());
        };

        let plan = Plan::new(&config);
        let mark = resolve_mark(&netlink, &config, &plan).await.map_err(nothing_done)?;
        let mtu = if config.mtu.is_none() && same_path(&self.config, &config) {
            link.mtu
        } else {
            mtu::compute(&netlink, &config, mark).await.map_err(nothing_done)?
        };
        let before = self.journal.get().steps.clone();
        let old = State { config: self.config.clone(), plan: Plan::new(&self.config), mark: self.fwmark };
        let new = State { config, plan, mark };
        let mut change = Change {
            journal: &mut self.journal,
            netlink: &netlink,
            set_mark,
            old: &old,
            new: &new,
            up: link.up,
            done: Vec::new(),
            undoing: false,
        };
        if let Err(cause) = change.run(link.mtu, mtu).await {
            return Err(ChangeError { cause, left: change.undo(before).await });
        }
        (self.config, self.fwmark, self.mtu) = (new.config, new.mark, mtu);
        Ok(())
    }
}

/// Whether both configurations need the same set-up of the host. Endpoints matter for an automatic MTU only.
fn same_set_up(old: &HostConfig, new: &HostConfig) -> bool {
    let rest = |config: &HostConfig| HostConfig { allowed_ips: Vec::new(), endpoints: Vec::new(), ..config.clone() };
    Plan::new(old) == Plan::new(new) && rest(old) == rest(new)
}

/// Whether an automatic MTU is the same for both configurations.
fn same_path(old: &HostConfig, new: &HostConfig) -> bool {
    let v6 = |config: &HostConfig| config.addresses.iter().any(|net| is_v6(*net));
    old.mtu.is_none() && old.through_peers == new.through_peers && old.endpoints == new.endpoints && v6(old) == v6(new)
}

/// A configuration and what follows from it.
struct State {
    config: HostConfig,
    plan: Plan,
    mark: Option<u32>,
}

/// A change in progress.
struct Change<'a, F> {
    journal: &'a mut record::Journal,
    netlink: &'a Netlink,
    set_mark: F,
    old: &'a State,
    new: &'a State,
    /// Whether the interface is up. A change does not affect this.
    up: bool,
    /// The operations so far.
    done: Vec<Operation>,
    undoing: bool,
}

impl State {
    /// The default routes that are added with policy rules: their networks and tables.
    fn default_routes(&self) -> Vec<(IpNet, u32)> {
        self.mark.into_iter().flat_map(|mark| self.plan.default.iter().map(move |net| (*net, mark))).collect()
    }

    /// The default routes for which there is a guard now. A routing engine adds the guard with a learned route.
    fn guarded(&self) -> &[IpNet] {
        if self.plan.learned || self.mark.is_none() { &[] } else { &self.plan.default }
    }
}

impl<'a, F: AsyncFn(u32) -> Result<(), UpdateError>> Change<'a, F> {
    async fn run(&mut self, old_mtu: u32, mtu: u32) -> Result<(), HostError> {
        let (old, new) = (self.old, self.new);
        let steps = &self.journal.get().steps;
        let addresses: BTreeSet<IpNet> = addresses(steps).collect();
        let wanted: BTreeSet<IpNet> = new.config.addresses.iter().copied().collect();
        // The last one first, so that undoing adds them in their order: the kernel prefers a network's first address.
        let mut gone: Vec<_> = self::addresses(steps).filter(|address| !wanted.contains(address)).collect();
        gone.reverse();
        let defaults = old.default_routes();
        let own: BTreeSet<_> = routes_of(steps).filter(|route| !defaults.contains(route)).collect();
        let old_rules: Vec<_> = rules_of(steps).collect();

        // The kernel removes IPv6 from an interface with a small MTU, so it grows first and shrinks last.
        if mtu > old_mtu {
            self.make(Operation::Mtu { from: old_mtu, to: mtu }).await?;
        }
        for address in wanted.difference(&addresses) {
            self.make(Operation::AddAddress(*address)).await?;
        }
        // The routes decide which names the servers are asked for.
        let all = |config: &HostConfig| !config.dns.is_empty() && config.routes_everything();
        if (&old.config.dns, &old.config.dns_search, all(&old.config))
            != (&new.config.dns, &new.config.dns_search, all(&new.config))
        {
            self.make(Operation::Dns(Side::New)).await?;
        }

        // These routes to connected networks disappear with their addresses.
        let connected = |net: &IpNet| net.trunc();
        let stay: BTreeSet<_> = wanted.iter().map(connected).collect();
        let leaving: BTreeSet<_> = gone.iter().map(connected).filter(|net| !stay.contains(net)).collect();
        let ours = own.iter().filter(|(_, table)| *table == MAIN_TABLE).map(|(net, _)| *net);
        let ignored: Vec<_> = ours.chain(leaving.iter().copied()).collect();
        let table = new.plan.table;
        let routes = routes::wanted(self.netlink, self.journal.index(), &new.plan, &ignored).await?;
        let routes: BTreeSet<_> = routes.into_iter().map(|net| (net, table)).collect();
        // A route with the destination of a connected network can only be added after it.
        let is_late = |route: &&(IpNet, u32)| table == MAIN_TABLE && leaving.contains(&route.0);
        let (late, early): (Vec<_>, Vec<_>) = routes.difference(&own).partition(is_late);
        self.add_routes(early).await?;
        self.policy(&old_rules).await?;
        self.remove_routes(own.difference(&routes).copied().collect()).await?;

        for address in &gone {
            self.make(Operation::RemoveAddress(*address)).await?;
        }
        if !gone.is_empty() {
            let routes = routes_of(&self.journal.get().steps).collect();
            self.restore(&new.config.addresses, routes).await?;
        }
        self.add_routes(late).await?;
        if mtu < old_mtu {
            self.make(Operation::Mtu { from: old_mtu, to: mtu }).await?;
        }
        Ok(())
    }

    /// The default routes: routes in a table of their own, policy rules, guard, and the mark of the sockets.
    ///
    /// If the mark changes, the new rules exempt packets with the old one. The sockets get the new mark when the old
    /// rules are gone, because those would send packets with the new mark into the tunnel. After that the exemption
    /// goes.
    async fn policy(&mut self, old_rules: &[Rule]) -> Result<(), HostError> {
        let (old, new) = (self.old, self.new);
        let remarked = old.mark != new.mark;
        let mark = Operation::Mark { from: old.mark.unwrap_or(0), to: new.mark.unwrap_or(0) };
        if remarked && old.plan.default.is_empty() {
            self.make(mark.clone()).await?;
        }
        let (before, after) = (old.default_routes(), new.default_routes());
        let mut new_rules = Vec::new();
        for &(net, table) in after.iter().filter(|route| !before.contains(route)) {
            if !new.plan.learned {
                self.make(Operation::AddRoutes(vec![(net, table)])).await?;
            }
            policy::prepare_filter(net)?;
            for rule in policy::rules(self.netlink, Family::of(net.addr()), table).await? {
                self.make(Operation::AddRule(rule)).await?;
                new_rules.push(rule);
            }
        }
        let guard = |state: &State| (state.guarded().to_vec(), state.mark, state.config.addresses.clone());
        let is_guarded = !old.guarded().is_empty() || !new.guarded().is_empty();
        if is_guarded && guard(old) != guard(new) {
            self.make(Operation::Guard(Side::New)).await?;
        }
        for (net, table) in before.into_iter().filter(|route| !after.contains(route)) {
            // In the reverse order of their addition.
            for rule in old_rules.iter().rev().filter(|rule| rule.v6 == is_v6(net)) {
                self.make(Operation::RemoveRule(*rule)).await?;
            }
            if !old.plan.learned {
                self.make(Operation::RemoveRoutes(vec![(net, table)])).await?;
            }
        }
        if remarked && !old.plan.default.is_empty() {
            self.make(mark).await?;
            self.end_exemption(old.mark, &new_rules).await?;
        }
        Ok(())
    }

    /// Removes the rules that exist only for packets with the old mark.
    async fn end_exemption(&mut self, old: Option<u32>, rules: &[Rule]) -> Result<(), HostError> {
        for v6 in [false, true] {
            let exempts = |rule: &&Rule| rule.v6 == v6 && matches!(rule.kind, RuleKind::Exempt { .. });
            let is_ours = |rule: &&Rule| matches!(rule.kind, RuleKind::Exempt { mark, .. } if Some(mark) == old);
            let (ours, others): (Vec<_>, Vec<_>) = rules.iter().filter(exempts).partition(is_ours);
            let end = rules.iter().filter(|rule| rule.v6 == v6 && rule.kind == RuleKind::End && others.is_empty());
            for rule in ours.into_iter().chain(end) {
                self.make(Operation::RemoveRule(*rule)).await?;
            }
        }
        Ok(())
    }

    async fn add_routes(&mut self, routes: Vec<&(IpNet, u32)>) -> Result<(), HostError> {
        // As at the start: the most specific routes come first.
        let mut routes: Vec<_> = routes.into_iter().copied().collect();
        routes.sort_unstable_by_key(|(net, _)| (std::cmp::Reverse(net.prefix_len()), *net));
        for routes in routes.chunks(routes::IN_FLIGHT) {
            self.make(Operation::AddRoutes(routes.to_vec())).await?;
        }
        Ok(())
    }

    async fn remove_routes(&mut self, mut routes: Vec<(IpNet, u32)>) -> Result<(), HostError> {
        routes.sort_unstable_by_key(|(net, _)| (net.prefix_len(), *net));
        for routes in routes.chunks(routes::IN_FLIGHT) {
            self.make(Operation::RemoveRoutes(routes.to_vec())).await?;
        }
        Ok(())
    }

    /// Adds again what the kernel has removed together with an address. When a network's first IPv4 address is removed,
    /// the kernel removes the other addresses of this network, unless `promote_secondaries` is set. When the
    /// interface's last IPv4 address is removed, it removes all routes.
    async fn restore(&mut self, addresses: &[IpNet], routes: BTreeSet<(IpNet, u32)>) -> Result<(), HostError> {
        for address in addresses {
            self.make(Operation::AddAddress(*address)).await?;
        }
        let tables: BTreeSet<u32> = routes.iter().map(|(_, table)| *table).collect();
        for table in tables {
            let present = self.netlink.destinations_through(self.journal.index(), table).await?;
            let present: BTreeSet<_> = present.into_iter().collect();
            let missing = routes.iter().filter(|(net, of)| *of == table && !present.contains(net));
            for routes in missing.copied().collect::<Vec<_>>().chunks(routes::IN_FLIGHT) {
                operation::add_routes(self.netlink, self.journal, routes).await.1?;
            }
        }
        Ok(())
    }

    /// Undoes everything so far. `before` are the steps of the record before the change. Returns the failures.
    async fn undo(&mut self, before: Vec<Step>) -> Vec<HostError> {
        self.undoing = true;
        let (mut left, mut added) = (Vec::new(), BTreeSet::new());
        for operation in std::mem::take(&mut self.done).into_iter().rev() {
            if let Operation::RemoveAddress(address) = operation {
                added.insert(address.trunc());
            }
            match self.make(operation.reverse()).await {
                // Possibly the route of an address that will only be removed now. `restore` tries again.
                Ok(()) | Err(HostError::RouteExists { .. }) => {}
                Err(error) => left.push(error),
            }
        }
        let addresses: Vec<_> = addresses(&before).collect();
        // An address that was the first one of its IPv4 network has come back as the last one. `restore` adds all of
        // them in their order.
        for address in addresses.iter().rev().filter(|address| !is_v6(**address) && added.contains(&address.trunc())) {
            left.extend(self.make(Operation::RemoveAddress(*address)).await.err());
        }
        left.extend(self.restore(&addresses, routes_of(&before).collect()).await.err());
        if left.is_empty() {
            left.extend(self.journal.replace(before).err());
        }
        left
    }

    /// Carries out an operation, and records it for [`undo`](Self::undo).
    async fn make(&mut self, operation: Operation) -> Result<(), HostError> {
        if !self.undoing {
            faults::before()?;
        }
        self.carry_out(operation).await?;
        if self.undoing { Ok(()) } else { faults::after() }
    }

    async fn carry_out(&mut self, operation: Operation) -> Result<(), HostError> {
        let (name, index) = (self.journal.interface().to_owned(), self.journal.index());
        match &operation {
            Operation::Mtu { to, .. } => {
                self.netlink.set_link(&name, index, *to, self.up).await?;
                self.done.push(operation);
            }
            Operation::AddAddress(address) => {
                let is_ours = addresses(&self.journal.get().steps).any(|ours| ours == *address);
                if self.netlink.add_address(&name, index, *address).await? && !is_ours {
                    self.journal.record(Step::Address(*address))?;
                    self.done.push(operation);
                }
            }
            Operation::RemoveAddress(address) => {
                self.netlink.delete_address(&name, index, *address).await?;
                self.journal.forget(|step| *step == Step::Address(*address))?;
                self.done.push(operation);
            }
            Operation::AddRoutes(routes) => {
                let (added, outcome) = operation::add_routes(self.netlink, self.journal, routes).await;
                self.done.push(Operation::AddRoutes(added));
                outcome?;
            }
            Operation::RemoveRoutes(routes) => {
                let (removed, outcome) = operation::remove_routes(self.netlink, self.journal, routes).await;
                self.done.push(Operation::RemoveRoutes(removed));
                outcome?;
            }
            Operation::AddRule(rule) => {
                self.journal.record(Step::Rule(*rule))?;
                self.done.push(operation.clone());
                self.netlink.add_rule(*rule).await?;
            }
            Operation::RemoveRule(rule) => {
                self.netlink.delete_rule(*rule).await?;
                self.done.push(operation.clone());
                self.journal.forget(|step| *step == Step::Rule(*rule))?;
            }
            Operation::Dns(side) => {
                // A failed operation may be half done.
                self.done.push(operation.clone());
                self.dns(*side).await?;
            }
            Operation::Guard(side) => {
                self.done.push(operation.clone());
                self.guard(*side).await?;
            }
            Operation::Mark { to, .. } => {
                (self.set_mark)(*to).await?;
                self.done.push(operation);
            }
        }
        Ok(())
    }

    fn side(&self, side: Side) -> &'a State {
        match side {
            Side::Old => self.old,
            Side::New => self.new,
        }
    }

    async fn dns(&mut self, side: Side) -> Result<(), HostError> {
        let config = &self.side(side).config;
        let is_dns = |step: &Step| matches!(step, Step::Dns(_));
        let before = self.journal.get().steps.iter().filter(|step| is_dns(step)).count();
        if !config.dns.is_empty() {
            dns::add(self.journal, config).await?;
        }
        // The last added entry replaces an entry with the same name.
        let mut steps = self.journal.get().steps.clone();
        let now = steps.iter().rfind(|step| is_dns(step) && !config.dns.is_empty()).cloned();
        for _ in 0..before {
            let Some(first) = steps.iter().position(is_dns) else { break };
            let old = steps.remove(first);
            if let Step::Dns(entry) = &old
                && Some(&old) != now.as_ref()
            {
                dns::remove(entry, &config.interface, Some(self.journal.index())).await?;
            }
        }
        self.journal.replace(steps)
    }

    async fn guard(&mut self, side: Side) -> Result<(), HostError> {
        let (state, other) = (self.side(side), self.side(side.other()));
        let is_guard = |step: &Step| matches!(step, Step::Guard { .. });
        let before = self.journal.get().steps.iter().filter(|step| is_guard(step)).count();
        if let Some(mark) = state.mark {
            guard::add(self.journal, state.guarded(), mark, &state.config.addresses).await?;
        }
        let gone = |v6: bool| other.guarded().iter().any(|net| is_v6(*net) == v6 && !state.guarded().contains(net));
        if gone(false) || gone(true) {
            guard::remove(&state.config.interface, gone(false), gone(true)).await?;
        }
        let mut steps = self.journal.get().steps.clone();
        for _ in 0..before {
            if let Some(first) = steps.iter().position(is_guard) {
                steps.remove(first);
            }
        }
        self.journal.replace(steps)
    }
}

fn addresses(steps: &[Step]) -> impl Iterator<Item = IpNet> {
    steps.iter().filter_map(|step| match step {
        Step::Address(address) => Some(*address),
        _ => None,
    })
}

fn routes_of(steps: &[Step]) -> impl Iterator<Item = (IpNet, u32)> {
    steps.iter().filter_map(|step| match step {
        Step::Route { net, table } => Some((*net, *table)),
        _ => None,
    })
}

fn rules_of(steps: &[Step]) -> impl Iterator<Item = Rule> {
    steps.iter().filter_map(|step| match step {
        Step::Rule(rule) => Some(*rule),
        _ => None,
    })
}

/// Failures that tests inject, once before and once after each operation.
#[cfg(not(test))]
mod faults {
    use super::HostError;

    pub(super) fn before() -> Result<(), HostError> {
        Ok(())
    }

    pub(super) fn after() -> Result<(), HostError> {
        Ok(())
    }
}

#[cfg(test)]
pub(in crate::host) mod faults {
    use super::HostError;
    use std::cell::Cell;

    thread_local! {
        /// How many points of failure pass before one fails. `None`: none fails.
        pub(in crate::host) static PASS: Cell<Option<usize>> = const { Cell::new(None) };
    }

    fn point() -> Result<(), HostError> {
        match PASS.get() {
            Some(0) => {
                PASS.set(None);
                Err(HostError::NoSuchInterface("injected".into()))
            }
            pass => {
                PASS.set(pass.map(|pass| pass - 1));
                Ok(())
            }
        }
    }

    pub(super) fn before() -> Result<(), HostError> {
        point()
    }

    pub(super) fn after() -> Result<(), HostError> {
        point()
    }
}
