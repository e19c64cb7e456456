//! The allowed IPs as they were configured.

use ipnet::IpNet;
use rustguard_core::{allowed_ips::AllowedIps, node::PeerId};
use std::collections::{BTreeMap, BTreeSet};

/// Whose allowed IPs are which.
pub(super) enum Allowed {
    /// As in WireGuard: a prefix belongs to the peer that was given it last.
    Exclusive(AllowedIps),
    /// Bounds of what each peer may carry, for an engine that decides where things are.
    Shared(BTreeMap<PeerId, BTreeSet<IpNet>>),
}

impl Allowed {
    pub(super) fn new(shared: bool) -> Self {
        if shared { Self::Shared(BTreeMap::new()) } else { Self::Exclusive(AllowedIps::default()) }
    }

    /// Gives `net` to `peer`; returns who has lost it by that.
    pub(super) fn insert(&mut self, net: IpNet, peer: PeerId) -> Option<PeerId> {
        match self {
            Self::Exclusive(table) => table.insert(net, peer).filter(|&before| before != peer),
            Self::Shared(nets) => {
                nets.entry(peer).or_default().insert(net.trunc());
                None
            }
        }
    }

    pub(super) fn remove(&mut self, net: IpNet, peer: PeerId) {
        match self {
            Self::Exclusive(table) => {
                table.remove(net, peer);
            }
            Self::Shared(nets) => {
                if let Some(nets) = nets.get_mut(&peer) {
                    nets.remove(&net.trunc());
                }
            }
        }
    }

    pub(super) fn remove_peer(&mut self, peer: PeerId) {
        match self {
            Self::Exclusive(table) => table.remove_peer(peer),
            Self::Shared(nets) => {
                nets.remove(&peer);
            }
        }
    }

    pub(super) fn of(&self, peer: PeerId) -> Vec<IpNet> {
        match self {
            Self::Exclusive(table) => table.of(peer),
            Self::Shared(nets) => nets.get(&peer).into_iter().flatten().copied().collect(),
        }
    }
}
