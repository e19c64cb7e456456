//! Which addresses there are to give.
use std::net::{Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

/// The pools of a network: IPv4, IPv6 or both.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pools {
    v4: Option<(Ipv4Net, Ipv4Addr)>,
    v6: Option<(Ipv6Net, Ipv6Addr)>,
}

/// Why these prefixes cannot be a pool.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PoolError {
    /// Neither an IPv4 nor an IPv6 prefix.
    #[error("no address pool was given; name one, such as 10.150.0.0/24")]
    None,
    /// Two of one family.
    #[error("{0} and {1} are of one family; give at most one pool of each")]
    Two(IpNet, IpNet),
    /// One address, which is the server's own.
    #[error("the pool {0} has no address besides the server's own; take a shorter prefix")]
    NoRoom(IpNet),
}

impl Pools {
    /// At most one prefix of each family. The prefix may be written with the server's own address in it, as
    /// `10.150.0.7/24`; written with the network's, the server takes the first host.
    pub fn new(_prefixes: &[IpNet]) -> Result<Self, PoolError> {
        todo!()
    }

    /// The IPv4 pool and the server's own address in it.
    pub fn v4(&self) -> Option<(Ipv4Net, Ipv4Addr)> {
        self.v4
    }

    /// The IPv6 pool and the server's own address in it.
    pub fn v6(&self) -> Option<(Ipv6Net, Ipv6Addr)> {
        self.v6
    }
}
