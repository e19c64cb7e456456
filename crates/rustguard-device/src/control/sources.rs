//! Our own address on the way to each peer, when the kernel's routes change.
//!
//! Packets to one of our addresses are answered from that address (sticky sources). When the route to the peer moves to another
//! interface, that address becomes wrong: a strict reverse path filter on the way drops what comes from it. So after a change of
//! the network the kernel is asked again for the route of each peer, as its own WireGuard does before it sends (`send4`, `send6` in
//! drivers/net/wireguard/socket.c), and an address whose interface the route has left is given up. One difference: where
//! the route never led by the interface, the address stays. A peer behind address translation reached us there, and
//! takes answers from nowhere else.
//!
//! The questions go out in batches. Peers with a session that had traffic since the last change come first.

pub(super) mod source;

use super::{
    Control,
    peer::Peer,
    peer_log::{Line, Topic},
};
use crate::{
    binder::Binder,
    kernel::{SourceLookup, Way},
};
use futures_util::future::join_all;
use rustguard_core::node::PeerId;
use rustguard_tun::{Endpoint, LocalAddr};
use source::{Due, SourceAnswer, SourceAnswers};
use std::time::{Duration, Instant};
use tokio::sync::mpsc;

/// Questions in one batch.
const BATCH: usize = 64;
/// Between two batches at least.
const PAUSE: Duration = Duration::from_millis(10);
/// The pause is also at least so many times what the batch took: with any number of peers, this takes at most a fifth of the time.
const REST: u32 = 4;

/// The peers whose routes are to be asked for.
pub(super) struct Sources {
    /// None over transports of the embedder's own.
    with_routes: bool,
    lookup: Option<SourceLookup>,
    /// The last one is asked for next.
    due: Vec<PeerId>,
    busy: bool,
    answers: mpsc::Sender<SourceAnswers>,
}

impl Sources {
    pub(super) fn new(with_routes: bool, answers: mpsc::Sender<SourceAnswers>) -> Self {
        Self { with_routes, lookup: None, due: Vec::new(), busy: false, answers }
    }
}

impl<B: Binder> Control<B> {
    /// The kernel's routes may have changed: asks for all peers again.
    pub(super) fn look_at_sources(&mut self) {
        if !self.sources.with_routes {
            return;
        }
        let mut due: Vec<_> = self
            .peers
            .iter_mut()
            .filter(|(_, entry)| question(entry).is_some())
            .map(|(&peer, entry)| {
                let sent = entry.shared.activity.tx_bytes();
                let lately = std::mem::replace(&mut entry.source.sent, sent) != sent;
                entry.source.due = Due::Changed;
                (lately && entry.shared.sealer.load().is_some(), peer)
            })
            .collect();
        due.sort_unstable();
        self.sources.due = due.into_iter().map(|(_, peer)| peer).collect();
        self.ask_for_sources();
    }

    /// The peer was heard from somewhere new, or at another address of ours.
    pub(super) fn source_learned(&mut self, peer: PeerId) {
        let Some(entry) = self.peers.get_mut(&peer).filter(|_| self.sources.with_routes) else { return };
        let Some((_, local)) = question(entry) else { return };
        if entry.source.due == Due::No && entry.source.checked != Some(local) {
            entry.source.due = Due::Learned;
            self.sources.due.push(peer);
            self.ask_for_sources();
        }
    }

    /// Where the answer to a handshake message goes. If the message came to an address that was given up, the first answer leaves from
    /// the address that the kernel chooses. If the peer asks again, it did not get that answer: the address that was given up is right.
    pub(super) fn answer_to(&mut self, peer: PeerId, from: Endpoint) -> Endpoint {
        let Some(entry) = self.peers.get_mut(&peer) else { return from };
        let Some(local) = from.local.filter(|local| entry.shared.abandoned_source.load().as_deref() == Some(local))
        else {
            return from;
        };
        if std::mem::replace(&mut entry.source.doubted, true) {
            entry.source.doubted = false;
            entry.source.checked = Some(local);
            // Given up again when the route has led there again.
            entry.source.led.iter_mut().filter(|led| **led == local.interface).for_each(|led| *led = 0);
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
            let cause = std::mem::take(&mut entry.source.due);
            if let Some((asked, local)) = question(entry).filter(|_| cause != Due::No) {
                batch.push((peer, cause, asked, local));
            }
            if batch.len() == BATCH {
                break;
            }
        }
        if batch.is_empty() {
            return;
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
            .map(|(peer, cause, asked, local)| {
                let way = lookup.way(asked.remote, local.ip, mark, port);
                async move { SourceAnswer { peer, cause, asked, local, way: way.await } }
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

    /// Takes what the kernel said.
    pub(super) fn sources_answered(&mut self, answers: SourceAnswers) {
        if answers.is_empty() {
            self.sources.busy = false;
            return self.ask_for_sources();
        }
        for SourceAnswer { peer, cause, asked, local, way } in answers {
            let Some(entry) = self.peers.get_mut(&peer) else { continue };
            let new = entry.source.checked.replace(local) != Some(local);
            let led = entry.source.led.contains(&local.interface);
            match way {
                Way::Interface(index) => entry.source.leads_by(index),
                Way::NotOurs => {}
                Way::Unknown => continue,
            }
            if way == Way::Interface(local.interface) {
                entry.source.doubted = false;
                entry.shared.restore_source(local);
            } else if led || way == Way::NotOurs || new && cause == Due::Changed {
                entry.source.doubted = false;
                entry.shared.abandon_source(&asked, local);
                let line = Line::new(
                    entry.label(&entry.shared.public_key),
                    format_args!(
                        "the route to {} has left the interface of {}: the kernel chooses our address anew",
                        asked.remote, local.ip
                    ),
                );
                // A peer that comes to two addresses of ours in turn can cause one after the other.
                self.tell(peer, Topic::Source, line);
            }
        }
    }
}

/// The endpoint whose route is to be looked at, and our address there; none for what is bound to an interface, and for peers with
/// several paths, which are probed.
fn question(entry: &Peer) -> Option<(Endpoint, LocalAddr)> {
    if entry.shared.path_set.load().is_some() {
        return None;
    }
    let endpoint = *entry.shared.endpoint.load().as_deref()?;
    let local = match endpoint.local {
        Some(local) => local,
        // Given up: it may be right again.
        None => *entry.shared.abandoned_source.load().as_deref()?,
    };
    // A link-local address is its interface's, whatever routes say.
    let routed = !local.bound && local.interface != 0 && !is_link_local(&endpoint);
    routed.then_some((endpoint, local))
}

fn is_link_local(endpoint: &Endpoint) -> bool {
    match endpoint.remote.ip() {
        std::net::IpAddr::V6(address) => address.is_unicast_link_local(),
        std::net::IpAddr::V4(_) => false,
    }
}
