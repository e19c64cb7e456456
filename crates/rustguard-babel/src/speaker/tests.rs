//! One speaker, and scripted neighbours that send packets for a test.
use super::*;
use crate::{
    config::{MAX_ROUTES, Pin, Start},
    name::Name,
    params::{COST, METRIC_CLIENT_NEVER_HEARD, METRIC_CLIENT_SILENT, SEQNO_LEAP, SOURCE_GC, UPDATE_INTERVAL},
    wire::{build::Packet, parse::Tlvs, tlv::Tlv, types::Announcement},
};
use core::time::Duration;
use rand::{SeedableRng, rngs::StdRng};
use rustguard_core::routing::NextHops;
use rustguard_crypto::x25519::PublicKey;
use std::collections::{BTreeMap, BTreeSet};

mod announcements;
mod identity;
mod link;
mod peers;
mod requests;
mod updates;
mod work;

const A: PeerId = PeerId(1);
const B: PeerId = PeerId(2);
const C: PeerId = PeerId(3);
const INTERVAL: u16 = 9_000;

fn net(text: &str) -> IpNet {
    text.parse().expect("a prefix")
}

fn id(byte: u8) -> RouterId {
    RouterId::new([byte; 8]).expect("a router-id")
}

fn route(origin: u8, seqno: u16, metric: u16) -> Announcement {
    Announcement { router_id: id(origin), seqno: Seqno(seqno), metric }
}

fn p() -> IpNet {
    net("10.1.0.0/16")
}

struct Lab {
    babel: Babel,
    now: Instant,
    /// The scripted neighbours that are alive, and the numbers of their next Hellos.
    alive: BTreeMap<PeerId, u16>,
    /// Whether the neighbours acknowledge.
    acks: bool,
    sent: Vec<(PeerId, Tlv)>,
    fib: BTreeMap<IpNet, NextHops>,
    permitted: BTreeSet<(PeerId, IpNet)>,
    kept: Vec<Vec<u8>>,
}

impl Lab {
    fn with(config: Config, peers: &[PeerId]) -> Self {
        let mut lab = Self {
            babel: Babel::new(config, &mut StdRng::seed_from_u64(7)),
            now: Instant::from_nanos(1 << 50),
            alive: peers.iter().map(|&peer| (peer, 100)).collect(),
            acks: true,
            sent: Vec::new(),
            fib: BTreeMap::new(),
            permitted: BTreeSet::new(),
            kept: Vec::new(),
        };
        for &peer in peers {
            lab.peer(peer, Role::Router, &["10.0.0.0/8", "fd00::/8", "0.0.0.0/0"]);
        }
        lab.pass(700);
        assert!(
            lab.babel.neighbours().all(|neighbour| neighbour.cost == Some(COST)),
            "{:?}",
            lab.babel.neighbours().collect::<Vec<_>>()
        );
        lab.sent.clear();
        lab
    }

    fn new(peers: &[PeerId]) -> Self {
        Self::with(Config::new(PublicKey([9; 32])), peers)
    }

    fn peer(&mut self, peer: PeerId, role: Role, allowed: &[&str]) {
        let config = PeerRoutes { allowed_ips: allowed.iter().map(|text| net(text)).collect(), role };
        self.tell(Event::Peer { peer, config: &config });
    }

    fn tell(&mut self, event: Event<'_>) {
        let mut out = Vec::new();
        self.babel.handle(event, self.now, &mut out);
        for action in out {
            match action {
                Action::Send { peer, packet } => {
                    let (_, datagram) = ip::unwrap(&packet).expect("what is sent is sound");
                    self.sent.extend(Tlvs::new(datagram).expect("a packet").map(|tlv| (peer, tlv)));
                }
                Action::Install { prefix, hops } => drop(self.fib.insert(prefix, hops)),
                Action::Remove { prefix } => drop(self.fib.remove(&prefix).expect("it was installed")),
                Action::Permit { peer, prefix, .. } => assert!(self.permitted.insert((peer, prefix))),
                Action::Forbid { peer, prefix } => assert!(self.permitted.remove(&(peer, prefix))),
                Action::Keep { bytes } => self.kept.push(bytes),
                Action::Neighbour { .. } => {}
                other => panic!("Babel does not ask for this: {other:?}"),
            }
        }
    }

    fn says(&mut self, peer: PeerId, write: impl FnOnce(&mut Packet)) {
        let mut packet = Packet::new();
        write(&mut packet);
        let packet = ip::wrap(link_local(&PublicKey([peer.0 as u8; 32])), ip::MULTICAST, &packet.finish(0));
        self.tell(Event::Packet { peer, packet: &packet });
    }

    fn announces(&mut self, peer: PeerId, prefix: IpNet, route: Announcement) {
        self.says(peer, |packet| packet.update(prefix, route, INTERVAL, None));
        self.pass(20);
    }

    fn retracts(&mut self, peer: PeerId, prefix: IpNet) {
        self.says(peer, |packet| packet.retraction(prefix, INTERVAL));
        self.pass(20);
    }

    /// Lets time pass. The neighbours send Hellos and acknowledgments.
    fn pass(&mut self, ms: u64) {
        let until = self.now + Duration::from_millis(ms);
        let mut answered = 0;
        while self.now < until {
            self.now = (self.now + Duration::from_millis(5)).min(until);
            let tick = (self.now.as_nanos() / 5_000_000).is_multiple_of(60);
            for (peer, seqno) in self.alive.clone() {
                if tick {
                    let us = self.babel.address;
                    self.alive.insert(peer, seqno.wrapping_add(1));
                    self.says(peer, |packet| {
                        packet.hello(Seqno(seqno), 30);
                        packet.ihu(us, COST, 90, None);
                    });
                }
            }
            self.tell(Event::Time);
            while let Some(&(peer, tlv)) = self.sent.get(answered) {
                answered += 1;
                if let Tlv::AckRequest { opaque, .. } = tlv
                    && self.acks
                    && self.alive.contains_key(&peer)
                {
                    self.says(peer, |packet| packet.ack(opaque));
                }
            }
        }
    }

    /// The updates of a prefix that were sent to a peer since the last call; `None`: a retraction.
    fn told(&mut self, peer: PeerId, prefix: IpNet) -> Vec<Option<Announcement>> {
        let mut told = Vec::new();
        self.sent.retain(|&(to, tlv)| match tlv {
            Tlv::Update { prefix: about, router_id, seqno, metric, .. } if to == peer && about == prefix => {
                told.push(Some(Announcement { router_id, seqno, metric }));
                false
            }
            Tlv::Retraction { prefix: Some(about) } if to == peer && about == prefix => {
                told.push(None);
                false
            }
            _ => true,
        });
        told
    }

    fn requests(&mut self) -> Vec<(PeerId, RouterId, u16, u8)> {
        let mut requests = Vec::new();
        self.sent.retain(|&(to, tlv)| match tlv {
            Tlv::SeqnoRequest { router_id, seqno, hop_count, .. } => {
                requests.push((to, router_id, seqno.0, hop_count));
                false
            }
            _ => true,
        });
        requests
    }

    fn hops(&self, prefix: IpNet) -> Vec<PeerId> {
        self.fib.get(&prefix).map(|hops| hops.peers().collect()).unwrap_or_default()
    }

    fn selected(&self, prefix: IpNet) -> Option<Announcement> {
        self.babel.routes().find(|report| report.prefix == prefix)?.selected
    }
}
