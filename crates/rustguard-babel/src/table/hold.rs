//! Holds: a retracted prefix stays unreachable until all neighbours know of it (RFC 8966 §3.5.4).
use crate::table::route::{Entry, Hold};
use ipnet::IpNet;
use rustguard_core::{node::PeerId, time::Instant};
use std::collections::{BTreeMap, BTreeSet};

/// The prefixes on hold, by the neighbours that have not acknowledged the retraction.
#[derive(Debug, Default)]
pub(crate) struct Holds {
    count: u64,
    owed: BTreeMap<PeerId, BTreeSet<IpNet>>,
}

impl Holds {
    /// Begins a hold, unless no neighbour has to acknowledge the retraction.
    pub(crate) fn begin(&mut self, prefix: IpNet, entry: &mut Entry, owed: BTreeSet<PeerId>, until: Instant) {
        for &peer in &owed {
            self.owed.entry(peer).or_default().insert(prefix);
        }
        self.count += 1;
        entry.hold = Some(Hold { number: self.count, owed, until }).filter(|hold| !hold.owed.is_empty());
    }

    /// Ends the hold of this prefix, if there is one.
    pub(crate) fn end(&mut self, prefix: IpNet, entry: &mut Entry) {
        for peer in entry.hold.take().into_iter().flat_map(|hold| hold.owed) {
            self.acknowledged(prefix, peer);
        }
    }

    /// This neighbour has acknowledged the retraction.
    pub(crate) fn acknowledged(&mut self, prefix: IpNet, peer: PeerId) {
        if let Some(owed) = self.owed.get_mut(&peer) {
            owed.remove(&prefix);
            if owed.is_empty() {
                self.owed.remove(&peer);
            }
        }
    }

    /// Releases this neighbour from all acknowledgments, and returns the prefixes whose retraction it had not
    /// acknowledged.
    pub(crate) fn release(&mut self, peer: PeerId) -> BTreeSet<IpNet> {
        self.owed.remove(&peer).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn net(n: u8) -> IpNet {
        IpNet::new([10, n, 0, 0].into(), 16).expect("a prefix")
    }

    #[test]
    fn each_neighbour_owes_its_own() {
        let at = Instant::from_nanos(1 << 40);
        let (mut holds, mut entries) = (Holds::default(), [Entry::default(), Entry::default(), Entry::default()]);
        let [a, b] = [1, 2].map(PeerId);
        for (n, owed) in [(0, BTreeSet::from([a, b])), (1, BTreeSet::from([b])), (2, BTreeSet::new())] {
            holds.begin(net(n), &mut entries[usize::from(n)], owed, at);
        }
        assert!(entries[1].hold.is_some() && entries[2].hold.is_none(), "nobody has to hear of the third");
        holds.acknowledged(net(0), b);
        assert_eq!(holds.release(b), [net(1)].into());
        holds.end(net(0), &mut entries[0]);
        assert!(holds.owed.is_empty() && entries[0].hold.is_none());
    }
}
