//! Two engines in one: [`Members`] decides which peer gets a packet, and another engine learns where that peer is.
//!
//! A packet goes to the peer that has its destination, in the session with that peer. The routes of the other engine
//! are for sealed datagrams that this node forwards. So only the two ends can read a packet, no matter which nodes
//! forward it.
//!
//! There are two exceptions. This node has no session with the machines behind a peer with [`Role::Router`], so their
//! packets go to the router. And a peer with [`Role::Client`] may be at a peer with [`Role::Gateway`], which decrypts
//! for it as this node does: packets for it go there, if the other engine says so.
#[cfg(test)]
mod tests;

use super::{Action, Event, Members, NextHop, NextHops, PeerRoutes, Report, Role, RoutingEngine, Signal, SourceRule};
use crate::{peer::PeerId, time::Instant};
use alloc::{collections::BTreeMap, vec::Vec};
use ipnet::IpNet;

/// [`Members`], and an engine that learns where they are.
///
/// While a peer is reached through another one ([`Signal::Relayed`]), the other engine gets no news of it and sends it
/// nothing: only a direct way counts as a link.
#[derive(Debug)]
pub struct Located<E> {
    members: Members,
    places: E,
    peers: BTreeMap<PeerId, Peer>,
    pools: Vec<IpNet>,
    /// The other engine's routes to routers. Packets use them if no member has the prefix.
    routers: BTreeMap<IpNet, NextHops>,
    clients: Clients,
    actions: Vec<Action>,
}

/// The clients of this node, and the other engine's routes by way of gateways.
#[derive(Debug, Default)]
struct Clients {
    own: BTreeMap<IpNet, PeerId>,
    /// The next hops that are gateways.
    routes: BTreeMap<IpNet, NextHops>,
    /// The gateways that announce a prefix, and so may send from it.
    sources: BTreeMap<(IpNet, PeerId), SourceRule>,
}

#[derive(Debug)]
struct Peer {
    role: Role,
    /// The allowed IPs of a server; empty for other peers.
    own: Vec<IpNet>,
    relayed: bool,
}

impl<E: RoutingEngine> Located<E> {
    /// `places` learns where peers are.
    pub fn new(places: E) -> Self {
        Self {
            members: Members::default(),
            places,
            peers: BTreeMap::new(),
            pools: Vec::new(),
            routers: BTreeMap::new(),
            clients: Clients::default(),
            actions: Vec::new(),
        }
    }
}

impl<E: RoutingEngine> RoutingEngine for Located<E> {
    fn handle(&mut self, event: Event<'_>, now: Instant, out: &mut Vec<Action>) {
        match event {
            Event::Peer { peer, config } => self.set(peer, config, now, out),
            Event::PeerRemoved { peer } => {
                self.set_clients(peer, &[], out);
                self.tell_members(event, now, out);
                self.tell_places(event, now, out);
                self.peers.remove(&peer);
                self.clients.sources.retain(|(_, server), _| *server != peer);
                self.clients.routes.retain(|_, hops| hops.members().iter().all(|hop| hop.peer != peer));
            }
            Event::Pools { prefixes } => {
                self.pools = prefixes.iter().map(IpNet::trunc).collect();
                let servers = self.peers.iter().filter(|(_, known)| known.role.is_server());
                let servers: Vec<_> = servers.map(|(peer, known)| (*peer, known.own.clone())).collect();
                for (peer, own) in servers {
                    self.tell_server(peer, own, now, out);
                }
            }
            Event::Signal { peer, signal: Signal::Relayed(relayed) } => {
                let known = self.peers.get_mut(&peer).map(|known| core::mem::replace(&mut known.relayed, relayed));
                if relayed && known == Some(false) {
                    // The link is lost.
                    self.tell_places(Event::Signal { peer, signal: Signal::HandshakeFailed }, now, out);
                }
            }
            Event::Signal { peer, .. } => {
                self.tell_members(event, now, out);
                if !self.is_relayed(peer) {
                    self.tell_places(event, now, out);
                }
            }
            Event::Packet { peer, .. } if self.is_relayed(peer) => {}
            Event::Packet { .. } | Event::Announce { .. } | Event::Withdraw { .. } => {
                self.tell_places(event, now, out);
            }
            Event::Time => {
                self.tell_members(event, now, out);
                self.tell_places(event, now, out);
            }
        }
    }

    fn deadline(&self) -> Option<Instant> {
        [self.members.deadline(), self.places.deadline()].into_iter().flatten().min()
    }

    fn claims(&self) -> Option<fn(&[u8]) -> bool> {
        self.places.claims()
    }

    fn leave(&mut self, now: Instant, out: &mut Vec<Action>) {
        let mut actions = core::mem::take(&mut self.actions);
        self.places.leave(now, &mut actions);
        self.pass_on(&mut actions, out);
        self.actions = actions;
    }

    /// The other engine's report, and the holder of each prefix that several members share.
    fn report(&self) -> Report {
        let mut report = self.places.report();
        for shared in self.members.report().routes.into_iter().filter(|route| route.learned.len() > 1) {
            report.routes.retain(|route| route.prefix != shared.prefix);
            report.routes.push(shared);
        }
        report
    }
}

impl<E: RoutingEngine> Located<E> {
    fn set(&mut self, peer: PeerId, config: &PeerRoutes, now: Instant, out: &mut Vec<Action>) {
        let before = self.peers.get(&peer);
        let was_router = before.map(|known| known.role == Role::Router);
        let relayed = before.is_some_and(|known| known.relayed);
        let is_router = config.role == Role::Router;
        if was_router.is_some_and(|was| was != is_router) {
            // Each engine takes back its permissions.
            self.tell_members(Event::PeerRemoved { peer }, now, out);
            self.tell_places(Event::PeerRemoved { peer }, now, out);
        }
        let own = if config.role.is_server() { config.allowed_ips.clone() } else { Vec::new() };
        self.peers.insert(peer, Peer { role: config.role, own: own.clone(), relayed });
        let is_client = config.role == Role::Client;
        self.set_clients(peer, if is_client { &config.allowed_ips } else { &[] }, out);
        if !is_router {
            self.tell_members(Event::Peer { peer, config }, now, out);
        }
        match config.role {
            Role::Server | Role::Gateway => self.tell_server(peer, own, now, out),
            _ => self.tell_places(Event::Peer { peer, config }, now, out),
        }
    }

    /// Tells the other engine what a server may announce.
    fn tell_server(&mut self, peer: PeerId, own: Vec<IpNet>, now: Instant, out: &mut Vec<Action>) {
        let mut config = PeerRoutes { allowed_ips: own, role: Role::Server };
        config.allowed_ips.extend(&self.pools);
        self.tell_places(Event::Peer { peer, config: &config }, now, out);
    }

    /// These are the prefixes of a client; none if the peer is none.
    fn set_clients(&mut self, peer: PeerId, prefixes: &[IpNet], out: &mut Vec<Action>) {
        let Clients { own, sources, .. } = &mut self.clients;
        let prefixes: Vec<_> = prefixes.iter().map(IpNet::trunc).collect();
        let gone: Vec<_> =
            own.iter().filter(|(prefix, holder)| **holder == peer && !prefixes.contains(prefix)).collect();
        let gone: Vec<_> = gone.into_iter().map(|(prefix, _)| *prefix).collect();
        for prefix in gone {
            own.remove(&prefix);
            let servers = sources.keys().filter(|(of, _)| *of == prefix);
            out.extend(servers.map(|&(prefix, peer)| Action::Forbid { peer, prefix }));
        }
        for prefix in prefixes {
            if own.insert(prefix, peer).is_none() {
                let servers = sources.iter().filter(|((of, _), _)| *of == prefix);
                out.extend(servers.map(|(&(prefix, peer), &rule)| Action::Permit { peer, prefix, rule }));
            }
        }
    }

    fn is_gateway(&self, peer: PeerId) -> bool {
        self.peers.get(&peer).is_some_and(|known| known.role == Role::Gateway)
    }

    fn is_relayed(&self, peer: PeerId) -> bool {
        self.peers.get(&peer).is_some_and(|known| known.relayed)
    }

    fn is_router(&self, peer: PeerId) -> bool {
        self.peers.get(&peer).is_some_and(|known| known.role == Role::Router)
    }

    fn tell_members(&mut self, event: Event<'_>, now: Instant, out: &mut Vec<Action>) {
        let first = out.len();
        self.members.handle(event, now, out);
        for action in &mut out[first..] {
            let hops = match action {
                Action::Remove { prefix } => self.routers.get(prefix),
                // A client that is at another gateway.
                Action::Install { prefix, .. } if self.clients.own.contains_key(prefix) => {
                    self.clients.routes.get(prefix)
                }
                _ => None,
            };
            if let (Action::Remove { prefix } | Action::Install { prefix, .. }, Some(hops)) = (&*action, hops) {
                *action = Action::Install { prefix: *prefix, hops: hops.clone() };
            }
        }
    }

    fn tell_places(&mut self, event: Event<'_>, now: Instant, out: &mut Vec<Action>) {
        let mut actions = core::mem::take(&mut self.actions);
        self.places.handle(event, now, &mut actions);
        self.pass_on(&mut actions, out);
        self.actions = actions;
    }

    /// Passes on the other engine's actions. Its routes are for sealed datagrams, except routes to routers.
    fn pass_on(&mut self, actions: &mut Vec<Action>, out: &mut Vec<Action>) {
        for action in actions.drain(..) {
            match action {
                Action::Install { prefix, hops } => {
                    self.route(prefix, self.by_routers(prefix, &hops), out);
                    self.route_client(prefix, Some(&hops), out);
                    out.push(Action::Locate { prefix, hops: Some(hops) });
                }
                Action::Remove { prefix } => {
                    self.route(prefix, None, out);
                    self.route_client(prefix, None, out);
                    out.push(Action::Locate { prefix, hops: None });
                }
                Action::Permit { peer, prefix, rule } if self.is_gateway(peer) => {
                    self.clients.sources.insert((prefix, peer), rule);
                    if self.clients.own.contains_key(&prefix) {
                        out.push(action);
                    }
                }
                Action::Forbid { peer, prefix } if self.is_gateway(peer) => {
                    self.clients.sources.remove(&(prefix, peer));
                    if self.clients.own.contains_key(&prefix) {
                        out.push(action);
                    }
                }
                Action::Permit { peer, .. } | Action::Forbid { peer, .. } if !self.is_router(peer) => {}
                Action::Send { peer, .. } | Action::Ask { peer } if self.is_relayed(peer) => {}
                _ => out.push(action),
            }
        }
    }

    /// The routers among next hops; `None` if there is none. A router's prefix stays unreachable while the other engine
    /// says so.
    fn by_routers(&self, prefix: IpNet, hops: &NextHops) -> Option<NextHops> {
        if hops.is_unreachable() {
            return self.routers.contains_key(&prefix).then_some(NextHops::UNREACHABLE);
        }
        let routers: Vec<NextHop> = hops.members().iter().filter(|hop| self.is_router(hop.peer)).copied().collect();
        let routers = NextHops::new(routers, hops.backup().filter(|peer| self.is_router(*peer)));
        (!routers.is_unreachable()).then_some(routers)
    }

    /// Sets where packets go for a prefix that may be a client's: to the gateway where it is, or to itself.
    fn route_client(&mut self, prefix: IpNet, hops: Option<&NextHops>, out: &mut Vec<Action>) {
        let hops = hops.filter(|hops| !hops.is_unreachable());
        let at_servers = hops.filter(|hops| hops.members().iter().all(|hop| self.is_gateway(hop.peer))).cloned();
        let was_elsewhere = match &at_servers {
            Some(hops) => self.clients.routes.insert(prefix, hops.clone()).is_some(),
            None => self.clients.routes.remove(&prefix).is_some(),
        };
        let Some(client) = self.clients.own.get(&prefix) else { return };
        match at_servers {
            Some(hops) => out.push(Action::Install { prefix, hops }),
            None if was_elsewhere => out.push(Action::Install { prefix, hops: NextHops::single(*client) }),
            None => {}
        }
    }

    /// Sets where packets go for a prefix that no member has.
    fn route(&mut self, prefix: IpNet, hops: Option<NextHops>, out: &mut Vec<Action>) {
        let action = match hops {
            Some(hops) => {
                self.routers.insert(prefix, hops.clone());
                Action::Install { prefix, hops }
            }
            None if self.routers.remove(&prefix).is_some() => Action::Remove { prefix },
            None => return,
        };
        if !self.members.has(&prefix) {
            out.push(action);
        }
    }
}
