//! Allowed IPs: longest prefix match from address to peer (cryptokey routing).
use crate::node::PeerId;
use core::net::IpAddr;
use ipnet::IpNet;

/// The table. Cheap to look up; `Clone` makes a snapshot.
#[derive(Clone, Default)]
pub struct AllowedIps(());

impl AllowedIps {
    /// Gives `net` (host bits are cut) to `peer`; returns who had exactly this prefix before.
    pub fn insert(&mut self, _net: IpNet, _peer: PeerId) -> Option<PeerId> {
        todo!()
    }
    /// Takes `net` away from `peer`; false when that peer did not have exactly it.
    pub fn remove(&mut self, _net: IpNet, _peer: PeerId) -> bool {
        todo!()
    }
    /// Takes everything from `peer`.
    pub fn remove_peer(&mut self, _peer: PeerId) {
        todo!()
    }
    /// The peer with the longest prefix that holds `address`.
    pub fn lookup(&self, _address: IpAddr) -> Option<PeerId> {
        todo!()
    }
    /// The prefixes of `peer`, in a stable order.
    pub fn of(&self, _peer: PeerId) -> alloc::vec::Vec<IpNet> {
        todo!()
    }
}
