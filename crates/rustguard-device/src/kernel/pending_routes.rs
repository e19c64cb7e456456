//! Changes of routes that the kernel has not been told yet. Control adds to them and does not wait. The kernel takes longer for a
//! route than a router takes to announce and retract it. So each prefix is in here once, with its latest state: the list grows with
//! the number of prefixes that the engine knows, which is bounded, and not with the number of changes.

use ipnet::IpNet;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use tokio::sync::Notify;

#[derive(Default)]
pub(super) struct PendingRoutes {
    lot: Mutex<Lot>,
    some: Notify,
}

/// What is done together.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Lot {
    /// The interface was set up: the kernel takes no routes before that, and has dropped all if it was down in between.
    pub(super) link_up: bool,
    /// Whether each prefix is to be there.
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

    /// Waits until there is a change, and takes all of them: no prefix waits behind others that change all the time.
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

    /// A router that announces and retracts faster than the kernel follows.
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
