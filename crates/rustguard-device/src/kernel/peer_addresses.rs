//! The destinations of the tunnel's own datagrams: the addresses of all peers, and the mark of the packets.

use ipnet::IpNet;
use rustguard_core::node::PeerId;
use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    net::IpAddr,
};

/// The addresses of peers.
#[derive(Debug, Default)]
pub(super) struct PeerAddresses {
    /// SO_MARK of the sockets, 0 for none.
    pub(super) mark: u32,
    /// The kernel's routes have changed, so the route to each address may differ.
    pub(super) all_changed: bool,
    /// New addresses.
    new: BTreeSet<IpAddr>,
    of: HashMap<PeerId, Vec<IpAddr>>,
    /// Each address, and the number of peers that have it.
    all: BTreeMap<IpAddr, usize>,
}

impl PeerAddresses {
    /// Sets all addresses of the peer. Returns false if nothing changed.
    pub(super) fn set(&mut self, peer: PeerId, mut addresses: Vec<IpAddr>) -> bool {
        addresses.sort_unstable();
        addresses.dedup();
        let before = match addresses.is_empty() {
            true => self.of.remove(&peer).unwrap_or_default(),
            false => self.of.insert(peer, addresses.clone()).unwrap_or_default(),
        };
        if before == addresses {
            return false;
        }
        for address in addresses {
            *self.all.entry(address).or_default() += 1;
            self.new.insert(address);
        }
        for address in before {
            if let Some(count) = self.all.get_mut(&address) {
                *count -= 1;
                if *count == 0 {
                    self.all.remove(&address);
                    self.new.remove(&address);
                }
            }
        }
        true
    }

    /// Takes the addresses that are new, or whose routes may have changed, since the kernel was last asked.
    pub(super) fn take_changed(&mut self) -> Vec<IpAddr> {
        let new = std::mem::take(&mut self.new);
        if std::mem::take(&mut self.all_changed) {
            return self.all.keys().copied().collect();
        }
        new.into_iter().collect()
    }

    /// The addresses that the prefix covers.
    pub(super) fn within(&self, prefix: IpNet) -> impl Iterator<Item = IpAddr> {
        self.all.range(prefix.network()..=prefix.broadcast()).map(|(address, _)| *address)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn addresses_are_there_for_as_long_as_a_peer_has_them() {
        let mut peers = PeerAddresses::default();
        let [first, second] = [PeerId(1), PeerId(2)];
        assert!(peers.set(first, vec![ip("192.0.2.1"), ip("192.0.2.1"), ip("2001:db8::1")]));
        assert!(!peers.set(first, vec![ip("2001:db8::1"), ip("192.0.2.1")]), "known");
        assert!(peers.set(second, vec![ip("192.0.2.1"), ip("198.51.100.1")]));
        let within = |peers: &PeerAddresses, net: &str| peers.within(net.parse().unwrap()).collect::<Vec<_>>();
        assert_eq!(within(&peers, "0.0.0.0/0"), [ip("192.0.2.1"), ip("198.51.100.1")]);
        assert_eq!(within(&peers, "192.0.2.0/24"), [ip("192.0.2.1")]);
        assert!(within(&peers, "192.0.2.2/31").is_empty());
        assert_eq!(within(&peers, "::/0"), [ip("2001:db8::1")]);
        assert!(peers.set(first, vec![]));
        assert_eq!(peers.take_changed(), [ip("192.0.2.1"), ip("198.51.100.1")], "the other has it too");
        assert!(peers.take_changed().is_empty());
        peers.all_changed = true;
        assert_eq!(peers.take_changed().len(), 2);
        assert!(peers.set(second, vec![]) && !peers.set(second, vec![]));
        peers.all_changed = true;
        assert!(peers.take_changed().is_empty());
    }
}
