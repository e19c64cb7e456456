//! The place of a device's policy: the workers read it, and holders of a handle set it.

use super::{
    CAPACITY, Judge, Policy,
    before::{self, Running},
    conntrack::{Asked, Conntrack},
    refusals::Refusals,
};
use crate::logged_counter::LoggedCounter;
use arc_swap::{ArcSwapOption, Guard};
use parking_lot::Mutex;
use rustguard_core::time::Instant;
use std::sync::Arc;

/// One per device.
#[derive(Default)]
pub(crate) struct Seat {
    in_force: ArcSwapOption<InForce>,
    /// Locked while a policy is set. The number of policies so far.
    policies: Mutex<u32>,
    /// Packets that were refused.
    pub(crate) refused: LoggedCounter,
    pub(crate) refusals: Refusals,
}

/// The policy that is in force, and the connections under it.
pub(crate) struct InForce {
    policy: Policy,
    pub(super) judge: Judge,
    /// Each policy has another number.
    pub(super) generation: u32,
    /// It stays when another policy replaces this one.
    pub(super) table: Arc<Conntrack>,
}

impl Seat {
    /// The most connections in the table.
    pub(crate) const CAPACITY: usize = CAPACITY;

    /// The policy that the workers enforce; usually none.
    #[inline]
    pub(crate) fn in_force(&self) -> Guard<Option<Arc<InForce>>> {
        self.in_force.load()
    }

    /// Sets or removes the policy. Existing connections are then judged again.
    pub(crate) fn set(&self, policy: Option<Policy>) {
        self.set_at(policy, Instant::from_nanos(rustguard_tun::clock::boottime_nanos()), before::running);
    }

    /// The same at this time. `running` returns the connections that the host has begun.
    pub(super) fn set_at(&self, policy: Option<Policy>, now: Instant, running: impl Fn() -> Vec<Running>) {
        let mut policies = self.policies.lock();
        let before = self.in_force.load_full();
        if before.as_ref().map(|before| &before.policy) == policy.as_ref() {
            return;
        }
        *policies = policies.wrapping_add(1);
        let Some(policy) = policy else {
            self.in_force.store(None);
            return;
        };
        let judge = Judge::new(&policy);
        let known = before.map(|before| Arc::clone(&before.table));
        let is_first = known.is_none();
        let table = known.unwrap_or_else(|| Arc::new(Conntrack::new(CAPACITY, now, before::chosen())));
        let take_over = |table: &Conntrack| {
            let asked = Asked { now, generation: *policies, allows: &|_| false };
            table.take_over(running(), &asked);
        };
        if is_first {
            take_over(&table);
        }
        let in_force = InForce { policy, judge, generation: *policies, table: Arc::clone(&table) };
        self.in_force.store(Some(Arc::new(in_force)));
        // Also connections that have begun meanwhile.
        if is_first {
            take_over(&table);
        }
    }
}

impl InForce {
    /// How many rules there are.
    pub(crate) fn rules(&self) -> usize {
        self.judge.rules.len()
    }

    /// How many connections there are.
    pub(crate) fn connections(&self) -> usize {
        self.table.len()
    }
}
