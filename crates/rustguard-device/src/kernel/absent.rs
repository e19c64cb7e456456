//! A device without the feature `kernel` has no interface in the kernel and follows nothing. These types replace those
//! of the feature, so that control is the same in both cases. Most of them have no values.

mod answers;

#[cfg(test)]
pub(crate) use answers::HostAddress;
pub(crate) use answers::{Egress, Exit, ForwardRules, HostAddresses, HostEvent};
use ipnet::IpNet;
use rustguard_core::node::PeerId;
use rustguard_tun::Endpoint;
use std::{
    collections::{BTreeMap, BTreeSet},
    future::Ready,
    io,
    net::IpAddr,
};
use tokio::sync::mpsc;

fn absent() -> io::Error {
    io::Error::new(io::ErrorKind::Unsupported, "this program was built without rustguard-device's feature `kernel`")
}

/// Replaces the setting of [`LearnedRoutes`].
pub(crate) enum LearnedTables {}

/// Replaces the setting of [`KernelRoutes`].
pub(crate) enum Redistribute {}

/// Replaces the monitor of the interface.
pub(crate) enum Monitor {}

impl Monitor {
    pub(crate) async fn new(_index: u32) -> io::Result<Self> {
        Err(absent())
    }

    pub(crate) fn mtu(&self) -> Option<u32> {
        match *self {}
    }

    pub(crate) fn is_up(&self) -> bool {
        match *self {}
    }

    pub(crate) async fn next(&mut self) -> Option<HostEvent> {
        match *self {}
    }
}

/// Replaces the learned routes in the kernel's table.
pub(crate) enum LearnedRoutes {}

impl LearnedRoutes {
    pub(crate) fn start(_index: u32, tables: LearnedTables) -> io::Result<Self> {
        match tables {}
    }

    pub(crate) fn set(&self, _prefix: IpNet, _wanted: bool) {
        match *self {}
    }

    pub(crate) fn link_up(&self) {
        match *self {}
    }

    pub(crate) fn endpoints(&self, _peer: PeerId, _addresses: Vec<IpAddr>) {
        match *self {}
    }

    pub(crate) fn mark(&self, _mark: u32) {
        match *self {}
    }

    pub(crate) fn network_changed(&self) {
        match *self {}
    }

    pub(crate) fn notes(&self) -> BTreeMap<IpNet, String> {
        match *self {}
    }
}

/// Replaces the kernel's routes that are announced.
pub(crate) enum KernelRoutes {}

impl KernelRoutes {
    pub(crate) fn start(_: u32, _: Vec<Redistribute>, _: mpsc::Sender<BTreeSet<IpNet>>) -> io::Result<Self> {
        Err(absent())
    }

    pub(crate) fn look_again(&self) {
        match *self {}
    }
}

/// Replaces the lookup of routes for packets of peers.
pub(crate) enum RouteLookup {}

impl RouteLookup {
    pub(crate) fn open(_index: u32) -> io::Result<Self> {
        Err(absent())
    }

    pub(crate) fn returns(&self, _source: IpAddr, _destination: IpAddr) -> Ready<bool> {
        match *self {}
    }
}

/// Replaces the lookup of routes for the tunnel's own datagrams.
pub(crate) enum SourceLookup {}

impl SourceLookup {
    pub(crate) fn open() -> io::Result<Self> {
        Err(absent())
    }

    pub(crate) fn egress(&self, _to: Endpoint, _mark: u32, _port: u16) -> Ready<Egress> {
        match *self {}
    }
}

/// Replaces the announcements of changed routes.
pub(crate) enum RouteChanges {}

impl RouteChanges {
    pub(crate) fn subscribe() -> io::Result<Self> {
        Err(absent())
    }

    pub(crate) async fn next(&mut self) -> Option<()> {
        match *self {}
    }
}

/// Replaces the watch on netfilter's rules. Only a device with an interface starts it.
pub(crate) struct RulesWatch;

impl RulesWatch {
    pub(crate) fn start(_interface: String, _found: mpsc::Sender<ForwardRules>) -> Self {
        Self
    }

    pub(crate) fn ask(&self) {}
}

/// All addresses of this host.
pub(crate) async fn local_addresses() -> io::Result<Vec<IpAddr>> {
    Err(absent())
}

/// The addresses of this host at which a peer may reach it.
pub(crate) async fn host_addresses(_own: u32) -> io::Result<HostAddresses> {
    Err(absent())
}
