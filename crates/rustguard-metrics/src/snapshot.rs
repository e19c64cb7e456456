//! The data of one scrape: the state of a tunnel at one moment.

use rustguard_device::{RoutingStatus, Status};
use std::{net::IpAddr, time::Duration};

/// The state of a tunnel at one moment.
#[derive(Debug)]
pub(crate) struct Snapshot {
    pub(crate) interface: String,
    pub(crate) status: Status,
    pub(crate) routing: RoutingStatus,
    pub(crate) enrolment: Option<Enrolment>,
    /// The moment, as the time since the Unix epoch.
    pub(crate) at: Duration,
}

/// The state of enrolment on a tunnel that other machines can join: see
/// [`Source::enrolment`](crate::Source::enrolment).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Enrolment {
    /// The pools of addresses.
    pub pools: Vec<Pool>,
    /// The leases of machines that have completed a handshake, or that an administrator added.
    pub active: usize,
    /// The leases of machines that have not completed a handshake yet.
    pub pending: usize,
    /// The invites that can be used.
    pub usable_invites: usize,
    /// Whether the pairing window is open.
    pub window_open: bool,
    /// The machines that wait for approval.
    pub waiting: usize,
    /// The network of joined machines, if they are members of one.
    pub network: Option<Network>,
}

/// The network of joined machines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Network {
    /// The number of the last roster.
    pub roster: u64,
    /// When it was issued, in seconds since the Unix epoch.
    pub issued: u64,
    /// The members, including the server.
    pub members: usize,
    /// The stock WireGuard peers of the server.
    pub clients: usize,
    /// The connected members that do not have the last roster yet.
    pub lagging: usize,
    /// The number of standbys.
    pub standbys: usize,
    /// The standbys that lack the present state of this server.
    pub standbys_lagging: usize,
    /// Whether the store that several servers share can be used; `None` without one.
    pub store_available: Option<bool>,
}

/// A pool of addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Pool {
    /// Its first address.
    pub network: IpAddr,
    /// The length of its prefix.
    pub prefix_len: u8,
    /// The number of addresses that are leased.
    pub leased: usize,
}

impl Pool {
    /// The pool `network/prefix_len`, with this many leased addresses.
    pub const fn new(network: IpAddr, prefix_len: u8, leased: usize) -> Self {
        Self { network, prefix_len, leased }
    }
}
