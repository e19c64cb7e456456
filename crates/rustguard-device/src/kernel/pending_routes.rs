//! Changes of routes that are not yet sent to the kernel. Control adds to them without waiting. A router can announce
//! and retract a route faster than the kernel can follow. Therefore each prefix is here only once, with its latest
//! state. The size of the list is bounded by the number of prefixes that the engine knows, and does not depend on the
//! number of changes.

use ipnet::IpNet;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use tokio::sync::Notify;

#[derive(Default)]
pub(super) struct PendingRoutes {
    lot: Mutex<Lot>,
    some: Notify,
}

/// Changes that are made together.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Lot {
    /// The interface was set up. The kernel accepts no routes before that, and has deleted all if it was down in
    /// between.
    pub(super) link_up: bool,
    /// Whether each prefix is wanted.
    pub(super) prefixes: BTreeMap<IpNet, bool>,
}

impl PendingRoutes {
    pub(super) fn want(&self, prefix: IpNet, wanted: bool) {
        self.lot.lock().prefixes.insert(prefix, wanted);
        self.some.notify_one();
    }

    pub(super) fn link_up(&self) {
        self.lot.lock().link_up = true;
        self.some.notify_one();
    }

    /// Waits for a change, and takes all of them. No prefix therefore waits behind others that change all the time.
    pub(super) async fn take(&self) -> Lot {
        loop {
            let lot = std::mem::take(&mut *self.lot.lock());
            if lot != Lot::default() {
                return lot;
            }
            self.some.notified().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A router announces and retracts faster than the kernel can follow.
    #[tokio::test]
    async fn what_changes_again_and_again_waits_once() {
        let pending = PendingRoutes::default();
        let [a, b]: [IpNet; 2] = ["10.0.0.0/8", "fd00::/8"].map(|prefix| prefix.parse().expect("a prefix"));
        for n in 0..1_000 {
            pending.want(a, n % 2 == 0);
        }
        pending.want(b, true);
        let lot = pending.take().await;
        assert_eq!(lot, Lot { link_up: false, prefixes: [(a, false), (b, true)].into() }, "the last word counts");
        pending.link_up();
        assert_eq!(pending.take().await, Lot { link_up: true, prefixes: BTreeMap::new() });
        assert!(*pending.lot.lock() == Lot::default(), "nothing is left");
    }
}
