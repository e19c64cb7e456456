//! A node of the ring: its namespace, its device, and its echo requests to the other nodes.

use super::ring::{Log, NAMES, Sample, TICK};
use crate::{commands::demo::enter, netlink::links::Links};
use anyhow::{Context as _, Result};
use rustguard_babel::{Babel, Config};
use rustguard_crypto::{
    random::SystemRng,
    x25519::{PublicKey, StaticSecret},
};
use rustguard_device::{Device, PeerUpdate, Relay, kernel::LearnedTables};
use rustguard_tun::namespace;
use std::{
    net::{Ipv4Addr, SocketAddr},
    num::NonZeroUsize,
    os::fd::OwnedFd,
    time::Instant,
};
use tokio::{
    net::UdpSocket,
    sync::{mpsc, oneshot},
    time::MissedTickBehavior,
};

const PORT: u16 = 51820;
/// The UDP port of echo requests inside the tunnel.
const SERVICE: u16 = 7777;

/// A request to a node. The node answers when it has done it.
pub(super) enum Ask {
    /// Return the node's namespace.
    Namespace(oneshot::Sender<OwnedFd>),
    /// Lay a cable into the namespace of the next node.
    Lay(OwnedFd, oneshot::Sender<()>),
    /// Start the device, and begin to send.
    Start(oneshot::Sender<()>),
    /// Return the next hop to each node.
    Look(oneshot::Sender<[Option<usize>; NAMES.len()]>),
    /// Return whether a node is a neighbour over a usable link.
    Hears(usize, oneshot::Sender<bool>),
    /// Return whether every node that this one sends to has answered a request made since then.
    Reaches(Instant, oneshot::Sender<bool>),
    /// Lose all packets to this node on the cable.
    Lose(usize, oneshot::Sender<()>),
    /// End the loss.
    Find(usize, oneshot::Sender<()>),
}

/// A node, which runs in its own thread.
pub(super) struct Node {
    me: usize,
    keys: [PublicKey; NAMES.len()],
    links: Links,
    device: Option<Device>,
    socket: Option<UdpSocket>,
    log: Log,
}

impl Node {
    /// Runs until the sending end of `asked` is dropped.
    pub(super) fn run(
        me: usize,
        secret: StaticSecret,
        keys: [PublicKey; NAMES.len()],
        mut asked: mpsc::UnboundedReceiver<Ask>,
    ) -> Result<Log> {
        enter()?.block_on(async {
            let links = Links::here()?;
            let mut node = Self { me, keys, links, device: None, socket: None, log: Log::default() };
            let mut ticks = tokio::time::interval(TICK);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
            loop {
                let mut buffer = [0; 16];
                tokio::select! {
                    ask = asked.recv() => match ask {
                        Some(ask) => node.answer(ask, &secret).await?,
                        None => break,
                    },
                    received = receive(node.socket.as_ref(), &mut buffer) => node.received(&buffer, received).await,
                    _ = ticks.tick() => node.send().await,
                }
            }
            if let Some(device) = node.device {
                device.shutdown().await;
            }
            Ok(node.log)
        })
    }

    async fn answer(&mut self, ask: Ask, secret: &StaticSecret) -> Result<()> {
        // The sender of a request may be gone. It needs no answer then.
        match ask {
            Ask::Namespace(answer) => {
                let _ = answer.send(namespace::current_network()?);
            }
            Ask::Lay(other, done) => {
                self.links.lay(&cable(next(self.me)), &cable(self.me), &other).await?;
                let _ = done.send(());
            }
            Ask::Start(done) => {
                self.start(secret).await?;
                let _ = done.send(());
            }
            Ask::Look(answer) => {
                let _ = answer.send(self.look().await?);
            }
            Ask::Hears(node, answer) => {
                let status = self.device()?.handle().routing().await.context("the device has ended")?;
                let link = status.neighbours.iter().find(|neighbour| neighbour.peer.public_key == self.keys[node]);
                let _ = answer.send(link.is_some_and(|link| link.cost.is_some()));
            }
            Ask::Reaches(since, answer) => {
                let _ = answer.send(self.reaches(since));
            }
            Ask::Lose(node, done) => {
                self.links.lose(&cable(node), outside(node, self.me)).await?;
                let _ = done.send(());
            }
            Ask::Find(node, done) => {
                self.links.find(&cable(node), outside(node, self.me)).await?;
                let _ = done.send(());
            }
        }
        Ok(())
    }

    async fn start(&mut self, secret: &StaticSecret) -> Result<()> {
        let me = self.me;
        let engine = Babel::new(Config::new(self.keys[me]).address_v4(Some(inside(me))), &mut SystemRng);
        let mut builder = Device::builder()
            .private_key(secret.clone())
            .listen_port(PORT)
            // The five devices may share two cores.
            .queues(NonZeroUsize::MIN)
            .relay(Relay::ByEngine)
            .routing(engine)
            .routing_tables(LearnedTables::main())
            .announce([host(me)]);
        for other in [next(me), previous(me)] {
            self.links.address(&cable(other), outside(me, other), 30).await?;
            builder = builder.peer(
                PeerUpdate::new(self.keys[other])
                    .name(NAMES[other])
                    .endpoint(SocketAddr::from((outside(other, me), PORT)))
                    .allowed_ip(ipnet::Ipv4Net::new(inside(0), 24)?.trunc()),
            );
        }
        let name = format!("wg-{}", NAMES[me]);
        self.device = Some(builder.start(&name)?);
        self.links.address(&name, inside(me), 32).await?;
        self.socket = Some(UdpSocket::bind((inside(me), SERVICE)).await.context("the echo service")?);
        Ok(())
    }

    fn device(&self) -> Result<&Device> {
        self.device.as_ref().context("asked before the start")
    }

    async fn look(&self) -> Result<[Option<usize>; NAMES.len()]> {
        let status = self.device()?.handle().routing().await.context("the device has ended")?;
        Ok(std::array::from_fn(|to| {
            let route = status.routes.iter().find(|route| route.prefix == host(to))?;
            let hop = route.next_hops.first()?;
            self.keys.iter().position(|&key| key == hop.public_key)
        }))
    }

    fn reaches(&self, since: Instant) -> bool {
        let answered = |to| {
            self.log
                .samples
                .iter()
                .rev()
                .take_while(|sample| sample.at >= since)
                .any(|sample| sample.to == to && sample.round_trip.is_some())
        };
        later(self.me).all(answered)
    }

    /// Sends one request to each node that comes later in the ring, so that each pair is tested once.
    async fn send(&mut self) {
        let Some(socket) = &self.socket else { return };
        for to in later(self.me) {
            let [.., a, b, c, d] = self.log.samples.len().to_be_bytes();
            self.log.samples.push(Sample { to, at: Instant::now(), round_trip: None });
            // Sending fails while there is no route, at the start or for a moment after the cut.
            let _ = socket.try_send_to(&[b'?', a, b, c, d], SocketAddr::from((inside(to), SERVICE)));
        }
    }

    /// Answers a request, or records an answer.
    async fn received(&mut self, buffer: &[u8; 16], received: std::io::Result<(usize, SocketAddr)>) {
        let (Ok((5, from)), [kind, a, b, c, d, ..]) = (received, *buffer) else { return };
        if kind == b'?' {
            let Some(socket) = &self.socket else { return };
            let _ = socket.try_send_to(&[b'!', a, b, c, d], from);
        } else if let Some(sample) = self.log.samples.get_mut(u32::from_be_bytes([a, b, c, d]) as usize) {
            sample.round_trip.get_or_insert(sample.at.elapsed());
        }
    }
}

/// Waits for the next packet. Without a socket, it waits for ever.
async fn receive(socket: Option<&UdpSocket>, buffer: &mut [u8]) -> std::io::Result<(usize, SocketAddr)> {
    match socket {
        Some(socket) => socket.recv_from(buffer).await,
        None => std::future::pending().await,
    }
}

fn next(node: usize) -> usize {
    (node + 1) % NAMES.len()
}

fn previous(node: usize) -> usize {
    (node + NAMES.len() - 1) % NAMES.len()
}

fn later(node: usize) -> std::ops::Range<usize> {
    node + 1..NAMES.len()
}

/// The interface of the cable to a node.
fn cable(to: usize) -> String {
    format!("to-{}", NAMES[to])
}

/// A node's address in the mesh. A node's number fits in any integer.
fn inside(node: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 77, 0, node as u8 + 1)
}

fn host(node: usize) -> ipnet::IpNet {
    std::net::IpAddr::from(inside(node)).into()
}

/// A node's address on the cable to another node (RFC 5737). Each cable has a block of four addresses, numbered after
/// the node whose next node is at the other end.
fn outside(node: usize, other: usize) -> Ipv4Addr {
    let (owner, end) = if next(node) == other { (node, 1) } else { (other, 2) };
    Ipv4Addr::new(192, 0, 2, owner as u8 * 4 + end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_cable_has_two_addresses_of_its_own() {
        let mut seen = std::collections::BTreeSet::new();
        for node in 0..NAMES.len() {
            for other in [next(node), previous(node)] {
                assert!(seen.insert(outside(node, other)));
                let net = |address| ipnet::Ipv4Net::new(address, 30).unwrap().trunc();
                assert_eq!(net(outside(node, other)), net(outside(other, node)));
            }
        }
    }
}
