//! Prefixes whose routes changed: a decision about each is due.
use core::ops::Bound;
use ipnet::IpNet;
use std::collections::BTreeSet;

/// Prefixes to decide about, each once and in turn: prefixes that become stale again and again do not delay others.
#[derive(Debug, Default)]
pub(crate) struct Stale {
    prefixes: BTreeSet<IpNet>,
    /// The last prefix that was taken.
    last: Option<IpNet>,
}

impl Stale {
    pub(crate) fn insert(&mut self, prefix: IpNet) {
        self.prefixes.insert(prefix);
    }

    /// The next prefix in order; after the last one, the first.
    pub(crate) fn pop(&mut self) -> Option<IpNet> {
        let after = self.last.map_or(Bound::Unbounded, Bound::Excluded);
        let mut later = self.prefixes.range((after, Bound::Unbounded));
        let next = later.next().or(self.prefixes.first()).copied()?;
        self.prefixes.remove(&next);
        // When no prefix is left, the order begins again with the first.
        self.last = Some(next).filter(|_| !self.prefixes.is_empty());
        Some(next)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.prefixes.is_empty()
    }
}

impl Extend<IpNet> for Stale {
    fn extend<T: IntoIterator<Item = IpNet>>(&mut self, prefixes: T) {
        self.prefixes.extend(prefixes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn net(n: u8) -> IpNet {
        IpNet::new([10, n, 0, 0].into(), 16).expect("a prefix")
    }

    #[test]
    fn prefixes_that_become_stale_again_do_not_delay_others() {
        let mut stale = Stale::default();
        stale.extend([1, 2, 3, 9].map(net));
        let mut taken = Vec::new();
        for _ in 0..6 {
            let next = stale.pop().expect("there is one");
            taken.push(next);
            if next != net(9) {
                stale.insert(next);
            }
        }
        assert_eq!(taken, [1, 2, 3, 9, 1, 2].map(net));
        while stale.pop().is_some() {}
        assert!(stale.is_empty());
        stale.extend([1, 2, 3].map(net));
        assert_eq!(stale.pop(), Some(net(1)), "from the first again");
    }
}
