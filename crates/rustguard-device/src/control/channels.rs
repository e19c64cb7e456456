//! The channels by which workers and control's own tasks reach it. The device's are in [`command`](super::command).

use super::{
    candidate_routes::Checked,
    connection::RouteTo,
    own_addresses::Found,
    peer::source::SourceAnswers,
    relay::{RelayAnswers, route_cache::RouteAnswer},
    resolver::Resolved,
};
use crate::{
    handshakes::{HANDSHAKE_QUEUE, HandshakeInbox, HandshakeQueues},
    kernel::ForwardRules,
    shared::to_control::{self, Capacity, FromWorkers, ROUTE_QUEUE, ToControl},
};
use ipnet::IpNet;
use std::{collections::BTreeSet, net::IpAddr};
use tokio::sync::mpsc;

/// The number of the resolver's answers that may wait. If there are more, the resolver itself waits.
const RESOLVED_QUEUE: usize = 1024;

/// The ends of the workers and tasks.
pub(super) struct Senders {
    pub(super) handshakes: HandshakeQueues,
    pub(super) to_control: ToControl,
    pub(super) resolved: mpsc::Sender<Resolved>,
    pub(super) relay: RelayAnswers,
    pub(super) kernel_routes: mpsc::Sender<BTreeSet<IpNet>>,
    pub(super) sources: mpsc::Sender<SourceAnswers>,
    pub(super) routes_to: mpsc::Sender<RouteTo>,
    pub(super) own_addresses: mpsc::UnboundedSender<Found>,
    pub(super) candidates: mpsc::Sender<Checked>,
}

/// Control's ends.
pub(super) struct Inbox {
    pub(super) handshakes: HandshakeInbox,
    pub(super) from_workers: FromWorkers,
    /// Names that were resolved.
    pub(super) resolved: mpsc::Receiver<Resolved>,
    /// The host's addresses.
    pub(super) addresses: mpsc::Receiver<Vec<IpAddr>>,
    /// Whether the kernel would route packets back into the interface.
    pub(super) route_answers: mpsc::Receiver<RouteAnswer>,
    /// Netfilter's rules for forwarded packets.
    pub(super) rules: mpsc::Receiver<ForwardRules>,
    /// The prefixes of the kernel's routes that are announced.
    pub(super) kernel_routes: mpsc::Receiver<BTreeSet<IpNet>>,
    /// The kernel's routes to peers.
    pub(super) sources: mpsc::Receiver<SourceAnswers>,
    /// The kernel's routes to peers that do not answer.
    pub(super) routes_to: mpsc::Receiver<RouteTo>,
    /// The addresses at which this node may be reached.
    pub(super) own_addresses: mpsc::UnboundedReceiver<Found>,
    /// Candidates of peers, after a look at the kernel's routes.
    pub(super) candidates: mpsc::Receiver<Checked>,
}

/// Makes both ends.
pub(super) fn channels() -> (Senders, Inbox) {
    let (handshakes, handshakes_in) = HandshakeQueues::new(HANDSHAKE_QUEUE);
    let (to_control, from_workers) = to_control::channels(&Capacity::default());
    let (resolved, resolved_in) = mpsc::channel(RESOLVED_QUEUE);
    let (addresses, addresses_in) = mpsc::channel(1);
    let (routes, route_answers) = mpsc::channel(ROUTE_QUEUE);
    let (rules, rules_in) = mpsc::channel(1);
    let (kernel_routes, kernel_routes_in) = mpsc::channel(1);
    let (sources, sources_in) = mpsc::channel(1);
    let (routes_to, routes_to_in) = mpsc::channel(1);
    let (own_addresses, own_addresses_in) = mpsc::unbounded_channel();
    let (candidates, candidates_in) = mpsc::channel(1);
    let relay = RelayAnswers { addresses, routes, rules };
    (
        Senders {
            handshakes,
            to_control,
            resolved,
            relay,
            kernel_routes,
            sources,
            routes_to,
            own_addresses,
            candidates,
        },
        Inbox {
            handshakes: handshakes_in,
            from_workers,
            resolved: resolved_in,
            addresses: addresses_in,
            route_answers,
            rules: rules_in,
            kernel_routes: kernel_routes_in,
            sources: sources_in,
            routes_to: routes_to_in,
            own_addresses: own_addresses_in,
            candidates: candidates_in,
        },
    )
}
