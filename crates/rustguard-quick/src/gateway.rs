//! A host that forwards packets.

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

/// A host between the machines of a tunnel and other networks.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gateway {
    /// The addresses of the tunnel's machines.
    pub pools: Vec<IpNet>,
    /// The networks behind this host.
    pub networks: Vec<IpNet>,
}

impl Gateway {
    /// The pools with the networks of the same family.
    pub(crate) fn pairs(&self) -> impl Iterator<Item = (IpNet, IpNet)> {
        let is_v6 = |net: IpNet| net.addr().is_ipv6();
        let networks =
            move |pool: IpNet| self.networks.iter().map(IpNet::trunc).filter(move |net| is_v6(*net) == is_v6(pool));
        self.pools.iter().map(IpNet::trunc).flat_map(move |pool| networks(pool).map(move |network| (pool, network)))
    }
}
