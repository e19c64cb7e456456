//! The way to each peer, and our own address on it, when the kernel's routes change.
//!
//! The kernel is asked by which interface and router, and from which address, datagrams to a peer leave. If the answer
//! has changed, the peer is [greeted](super::greetings). So hundreds of addresses that Docker adds, a renewed DHCP
//! lease, and the tunnel's own addresses cost only questions and no handshakes. If there is no route to a peer, its
//! name is resolved again.
//!
//! Packets to one of our addresses are answered from that address (sticky sources). When the route to the peer moves to
//! another interface, that address becomes wrong: a strict reverse path filter on the way drops packets from it. So
//! after a change of the network the kernel is asked again for the route of each peer, as its own WireGuard does before
//! it sends (`send4`, `send6` in drivers/net/wireguard/socket.c), and an address whose interface the route has left is
//! given up. One difference: if the route never led by the interface, the address stays. A peer behind address
//! translation reached us at this address, and accepts answers only from it.
//!
//! The questions go out in batches. Peers with a session that had traffic since the last change come first.

use super::{
    Control,
    peer::{
        Peer,
        source::{Due, Question, SourceAnswer, SourceAnswers},
    },
    peer_log::{Line, Topic},
    timer::now,
};
use crate::kernel::{Egress, Exit, SourceLookup};
use futures_util::future::join_all;
use rustguard_core::node::PeerId;
use rustguard_tun::Endpoint;
use std::time::{Duration, Instant};
use tokio::sync::mpsc;

/// The number of questions in one batch.
const BATCH: usize = 64;
/// The minimum pause between two batches.
const PAUSE: Duration = Duration::from_millis(10);
/// The pause is also at least this many times the duration of the batch: with any number of peers, the questions take
/// at most a fifth of the time.
const REST: u32 = 4;

/// How often a pass over all peers begins again because the network changes meanwhile, before a pass has to reach its
/// end. The first peers of a pass are those in use.
const RESTARTS: u32 = 8;

/// The peers whose routes are to be asked for.
pub(super) struct Sources {
    /// False over the embedder's own transports.
    with_routes: bool,
    lookup: Option<SourceLookup>,
    /// The last peer is asked for next.
    due: Vec<PeerId>,
    busy: bool,
    /// How often the present pass has begun again.
    restarts: u32,
    /// The network has changed since the present pass last began.
    again: bool,
    /// Interfaces that have their link again. They may be attached to another network now.
    regained: Vec<u32>,
    answers: mpsc::Sender<SourceAnswers>,
}

impl Sources {
    pub(super) fn new(with_routes: bool, answers: mpsc::Sender<SourceAnswers>) -> Self {
        Self {
            with_routes,
            lookup: None,
            due: Vec::new(),
            busy: false,
            restarts: 0,
            again: false,
            regained: Vec::new(),
            answers,
        }
    }

    /// Whether the kernel's routes matter: it sends the tunnel's datagrams.
    pub(super) fn with_routes(&self) -> bool {
        self.with_routes
    }
}

impl Control {
    /// The kernel's routes may have changed: asks for all peers again.
    pub(super) fn look_at_sources(&mut self) {
        if !self.sources.with_routes {
            return;
        }
        if self.sources.busy || !self.sources.due.is_empty() {
            if self.sources.restarts == RESTARTS {
                self.sources.again = true;
                return;
            }
            self.sources.restarts += 1;
        }
        let mut due: Vec<_> = self
            .peers
            .iter_mut()
            .filter(|(_, entry)| question(entry).is_some())
            .map(|(&peer, entry)| {
                let sent = entry.shared.activity.tx_bytes();
                let source = entry.source();
                let lately = std::mem::replace(&mut source.sent, sent) != sent;
                source.due = Due::Changed;
                (lately && entry.shared.sealer.load().is_some(), peer)
            })
            .collect();
        due.sort_unstable();
        self.sources.due = due.into_iter().map(|(_, peer)| peer).collect();
        self.ask_for_sources();
    }

    /// Another interface has its link again.
    pub(super) fn link_regained(&mut self, interface: u32) {
        if !self.sources.regained.contains(&interface) {
            self.sources.regained.push(interface);
        }
        self.look_at_sources();
    }

    /// The peer was heard from somewhere new, or at another address of ours, or an initiation was sent to it.
    pub(super) fn source_learned(&mut self, peer: PeerId) {
        let Some(entry) = self.peers.get_mut(&peer).filter(|_| self.sources.with_routes) else { return };
        let Some(Question { endpoint, local }) = question(entry) else { return };
        let known =
            entry.source().knows_exit(endpoint.remote.ip()) && (local.is_none() || entry.source().checked == local);
        if entry.source().due == Due::No && !known {
            entry.source().due = Due::Learned;
            self.sources.due.push(peer);
            self.ask_for_sources();
        }
    }

    /// The destination of the answer to a handshake message. If the message came to an address that was given up, the
    /// first answer leaves from the address that the kernel chooses. If the peer asks again, it did not get that
    /// answer: the address that was given up is right.
    pub(super) fn answer_to(&mut self, peer: PeerId, from: Endpoint) -> Endpoint {
        let Some(entry) = self.peers.get_mut(&peer) else { return from };
        let Some(local) = from.local.filter(|local| entry.shared.abandoned_source.load().as_deref() == Some(local))
        else {
            return from;
        };
        if std::mem::replace(&mut entry.source().doubted, true) {
            entry.source().doubted = false;
            entry.source().checked = Some(local);
            // It is given up again only after the route has led there again.
            entry.source().led.iter_mut().filter(|led| **led == local.interface).for_each(|led| *led = 0);
            entry.shared.abandoned_source.store(None);
            return from;
        }
        Endpoint { local: None, ..from }
    }

    fn ask_for_sources(&mut self) {
        if self.sources.busy {
            return;
        }
        let mut batch = Vec::new();
        while let Some(peer) = self.sources.due.pop() {
            let Some(entry) = self.peers.get_mut(&peer) else { continue };
            let cause = std::mem::take(&mut entry.source().due);
            if let Some(question) = question(entry).filter(|_| cause != Due::No) {
                batch.push((peer, cause, question));
            }
            if batch.len() == BATCH {
                break;
            }
        }
        if batch.is_empty() {
            self.sources.restarts = 0;
            if std::mem::take(&mut self.sources.again) {
                return self.look_at_sources();
            }
            return self.sources.regained.clear();
        }
        if self.sources.lookup.is_none() {
            match SourceLookup::open() {
                Ok(lookup) => self.sources.lookup = Some(lookup),
                Err(error) => {
                    tracing::warn!("our own addresses do not follow the routes to peers: {error}");
                    self.sources.with_routes = false;
                    return;
                }
            }
        }
        let Some(lookup) = &self.sources.lookup else { return };
        self.sources.busy = true;
        let (started, mark, port) = (Instant::now(), self.sockets.fwmark(), self.sockets.port());
        let questions: Vec<_> = batch
            .into_iter()
            .map(|(peer, cause, question)| {
                let Question { endpoint, local } = question;
                let from_local =
                    local.map(|local| lookup.egress(Endpoint { local: Some(local), ..endpoint }, mark, port));
                let bound = endpoint.local.filter(|local| local.bound);
                let local = bound.or_else(|| self.sockets.source_to(endpoint.remote));
                let way = lookup.egress(Endpoint { local, ..endpoint }, mark, port);
                async move {
                    let from_local = match from_local {
                        Some(way) => Some(way.await),
                        None => None,
                    };
                    SourceAnswer { peer, cause, question, from_local, way: way.await }
                }
            })
            .collect();
        let answers = self.sources.answers.clone();
        tokio::spawn(async move {
            let answered = join_all(questions).await;
            // Control is gone only while the device shuts down.
            if answers.send(answered).await.is_ok() {
                tokio::time::sleep(PAUSE.max(started.elapsed() * REST)).await;
                let _ = answers.send(Vec::new()).await;
            }
        });
    }

    /// Takes the kernel's answers.
    pub(super) fn sources_answered(&mut self, answers: SourceAnswers) {
        if answers.is_empty() {
            self.sources.busy = false;
            return self.ask_for_sources();
        }
        let now = now().instant;
        for answer in answers {
            let (peer, changed) = (answer.peer, answer.cause == Due::Changed);
            let given_up = self.source_answered(&answer);
            let Some(entry) = self.peers.get_mut(&peer) else { continue };
            let remote = answer.question.endpoint.remote.ip();
            let exit = match answer.way {
                Egress::By(exit) => Some(exit),
                Egress::Unreachable | Egress::NotOurs => None,
                Egress::Unknown => continue,
            };
            if !changed {
                // A change of the network that is still to be looked at must not go unnoticed.
                if !entry.source().knows_exit(remote) {
                    entry.source().leaves_by(remote, exit);
                }
                continue;
            }
            let moved = entry.source().leaves_by(remote, exit)
                || exit.is_some_and(|Exit { interface, .. }| self.sources.regained.contains(&interface));
            if !self.node.is_in_use(peer, now) {
                continue;
            }
            if exit.is_none() {
                self.resolve_again(peer, 0);
            } else if moved || given_up {
                self.greet(peer);
            }
        }
    }

    /// Takes the kernel's answer about our address on the way to a peer. Returns whether the address was given up.
    fn source_answered(&mut self, answer: &SourceAnswer) -> bool {
        let &SourceAnswer { peer, cause, question: Question { endpoint, local }, from_local, .. } = answer;
        let (Some(local), Some(way)) = (local, from_local) else { return false };
        let Some(entry) = self.peers.get_mut(&peer) else { return false };
        let new = entry.source().checked.replace(local) != Some(local);
        let led = entry.source().led.contains(&local.interface);
        let interface = match way {
            Egress::By(exit) => Some(exit.interface),
            Egress::NotOurs => None,
            Egress::Unreachable | Egress::Unknown => return false,
        };
        if let Some(index) = interface {
            entry.source().leads_by(index);
        }
        if interface == Some(local.interface) {
            entry.source().doubted = false;
            entry.shared.restore_source(local);
            return false;
        }
        if !led && interface.is_some() && !(new && cause == Due::Changed) {
            return false;
        }
        entry.source().doubted = false;
        let used = endpoint.local == Some(local);
        entry.shared.abandon_source(&endpoint, local);
        let line = Line::new(
            entry.label(&entry.shared.public_key()),
            format_args!(
                "the route to {} has left the interface of {}: the kernel chooses our address anew",
                endpoint.remote, local.ip
            ),
        );
        // A peer that sends to two of our addresses in turn can cause such lines one after the other.
        self.tell(peer, Topic::Source, line);
        used
    }
}

/// The question to the kernel about the peer; `None` while the peer has no endpoint by UDP. Our address is left out if
/// it is bound to an interface, and for peers with several paths, because paths are probed.
fn question(entry: &Peer) -> Option<Question> {
    let endpoint = *entry.way()?.udp()?;
    // An address that was given up may be right again.
    let local = endpoint.local.or_else(|| entry.shared.abandoned_source.load().as_deref().copied());
    let local = local.filter(|local| {
        // A link-local address belongs to its interface, whatever routes say.
        let routed = !local.bound && local.interface != 0 && !is_link_local(&endpoint);
        routed && entry.shared.path_set.load().is_none()
    });
    Some(Question { endpoint, local })
}

fn is_link_local(endpoint: &Endpoint) -> bool {
    match endpoint.remote.ip() {
        std::net::IpAddr::V6(address) => address.is_unicast_link_local(),
        std::net::IpAddr::V4(_) => false,
    }
}
