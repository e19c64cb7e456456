//! One speaker and neighbours that say what a test wants: the clauses of RFC 8966, by their number in the design.
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
    /// Scripted neighbours, and the number of their next Hello.
    alive: BTreeMap<PeerId, u16>,
    /// Whether they acknowledge.
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

    /// Lets time pass; the neighbours greet, and acknowledge.
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

    /// What was sent about a prefix to a peer since the last call.
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

#[test]
fn c1_anything_but_babel_is_met_with_silence() {
    let mut lab = Lab::new(&[A]);
    let mut packet = Packet::new();
    packet.ack_request(1, 100);
    let global = ip::wrap("2001:db8::1".parse().expect("an address"), ip::MULTICAST, &packet.finish(0));
    lab.tell(Event::Packet { peer: A, packet: &global });
    lab.tell(Event::Packet { peer: A, packet: &[] });
    lab.tell(Event::Packet { peer: PeerId(77), packet: &global });
    lab.pass(100);
    assert!(!lab.sent.iter().any(|(_, tlv)| matches!(tlv, Tlv::Ack { .. })));
    let counters = lab.babel.counters();
    assert_eq!((counters.not_babel, counters.not_a_router), (2, 1));
}

#[test]
fn c7_ae_0_retracts_everything_of_that_neighbour() {
    let mut lab = Lab::new(&[A, B]);
    for (peer, prefix) in [(A, "10.1.0.0/16"), (A, "fd01::/16"), (B, "10.2.0.0/16")] {
        lab.announces(peer, net(prefix), route(5, 1, 100));
    }
    lab.says(A, |packet| packet.retract_all(INTERVAL));
    lab.pass(300);
    assert_eq!(lab.fib.keys().copied().collect::<Vec<_>>(), [net("10.2.0.0/16")]);
}

#[test]
fn c9_acknowledgments_come_at_once_and_in_bounds() {
    let mut lab = Lab::new(&[A]);
    lab.says(A, |packet| packet.ack_request(0xabcd, 1));
    assert!(lab.sent.contains(&(A, Tlv::Ack { opaque: 0xabcd })), "before time passes");
    lab.alive.clear();
    lab.pass(10_000);
    lab.sent.clear();
    lab.says(A, |packet| packet.ack_request(1, 100));
    lab.pass(100);
    assert!(!lab.sent.iter().any(|(_, tlv)| matches!(tlv, Tlv::Ack { .. })), "no neighbour any more");
}

#[test]
fn c16_what_was_announced_bounds_what_is_feasible() {
    let mut lab = Lab::new(&[A, B]);
    lab.announces(A, p(), route(5, 1, 100));
    assert_eq!((lab.hops(p()), lab.told(B, p())), (vec![A], vec![Some(route(5, 1, 100 + COST))]));
    assert!(lab.told(A, p()).is_empty(), "split horizon");
    lab.announces(B, p(), route(5, 1, 100 + COST));
    assert_eq!(lab.hops(p()), [A], "it may lead back here");
    lab.announces(B, p(), route(5, 1, 99 + COST));
    assert_eq!(lab.hops(p()), [A, B], "it cannot");
    // The memory outlives the route, but not for ever.
    lab.retracts(A, p());
    lab.retracts(B, p());
    lab.announces(B, p(), route(5, 1, 100 + COST));
    assert!(lab.selected(p()).is_none());
    lab.retracts(B, p());
    lab.pass(u64::try_from((SOURCE_GC + SWEEP_INTERVAL).as_millis()).expect("minutes"));
    lab.announces(B, p(), route(5, 1, 100 + COST));
    assert_eq!(lab.hops(p()), [B]);
}

#[test]
fn c18_an_unfeasible_update_of_the_selected_route() {
    let mut lab = Lab::new(&[A, B]);
    lab.announces(A, p(), route(5, 65_535, 100));
    lab.announces(A, p(), route(5, 65_535, 500));
    assert_eq!((lab.hops(p()), lab.selected(p())), (vec![A], Some(route(5, 65_535, 100 + COST))), "kept");
    assert_eq!(lab.requests()[..1], [(A, id(5), 0, 128)], "and asked about, only there");
    assert_eq!(lab.babel.counters().unfeasible, 1);
    lab.announces(A, p(), route(5, 0, 500));
    assert_eq!(lab.selected(p()), Some(route(5, 0, 500 + COST)));
    // With another one that is no longer, it is unselected at once.
    lab.announces(B, p(), route(5, 0, 550));
    lab.announces(A, p(), route(5, 0, 700));
    assert_eq!(lab.hops(p()), [B]);
    // Of another origin it is not the same route: unselected in any case.
    lab.babel.sources.announced(p(), route(6, 1, 10), None, lab.now);
    lab.announces(B, p(), route(6, 1, 50));
    assert_ne!(lab.hops(p()), [B]);
}

#[test]
fn c19_a_held_route_blocks_covering_prefixes_until_everybody_knows() {
    let mut lab = Lab::new(&[A, B, C]);
    lab.announces(B, net("0.0.0.0/0"), route(4, 1, 100));
    lab.announces(A, p(), route(5, 1, 100));
    lab.acks = false;
    lab.retracts(A, p());
    assert!(lab.fib[&p()].is_unreachable() && !lab.fib[&net("0.0.0.0/0")].is_unreachable());
    lab.acks = true;
    lab.pass(2_000);
    assert!(!lab.fib.contains_key(&p()), "all have acknowledged");
    // An acknowledgment of the announcement before does not count, nor does a neighbour that is gone.
    lab.announces(A, p(), route(5, 2, 100));
    lab.acks = false;
    lab.retracts(A, p());
    lab.pass(500);
    assert!(lab.fib[&p()].is_unreachable());
    lab.alive.clear();
    lab.pass(2_000);
    assert!(!lab.fib.contains_key(&p()));
    // A route ends the hold.
    let mut lab = Lab::new(&[A, B]);
    lab.announces(A, p(), route(5, 1, 100));
    lab.acks = false;
    lab.retracts(A, p());
    lab.announces(B, p(), route(5, 1, 50));
    assert_eq!(lab.hops(p()), [B]);
}

#[test]
fn c21_another_router_id_is_urgent_and_repeated_until_acknowledged() {
    let mut lab = Lab::new(&[A, B]);
    lab.announces(A, p(), route(5, 1, 100));
    lab.pass(1_000);
    lab.sent.clear();
    lab.acks = false;
    lab.says(A, |packet| packet.update(p(), route(6, 9, 100), INTERVAL, None));
    lab.pass(15);
    assert_eq!(lab.told(B, p()), [Some(route(6, 9, 100 + COST))]);
    // Four more copies, and one when the neighbour is heard after all.
    lab.pass(20_000);
    assert_eq!(lab.told(B, p()).len(), 5);
    lab.acks = true;
    lab.announces(A, p(), route(7, 9, 100));
    lab.pass(5_000);
    assert_eq!(lab.told(B, p()).len(), 1, "acknowledged");
}

#[test]
fn a_retraction_is_urgent_and_a_small_change_is_no_news() {
    let mut lab = Lab::new(&[A, B]);
    lab.announces(A, p(), route(5, 1, 100));
    lab.told(B, p());
    lab.announces(A, p(), route(5, 1, 130));
    lab.pass(3_000);
    assert!(lab.told(B, p()).is_empty());
    lab.announces(A, p(), route(5, 2, 400));
    lab.pass(500);
    assert_eq!(lab.told(B, p()), [Some(route(5, 2, 400 + COST))]);
    lab.retracts(A, p());
    assert_eq!(lab.told(B, p()), [None]);
}

#[test]
fn c22_route_requests_are_answered_one_way_or_the_other() {
    let mut lab = Lab::new(&[A, B]);
    lab.announces(A, p(), route(5, 1, 100));
    lab.pass(2_000);
    lab.told(B, p());
    for (prefix, answer) in
        [(p(), Some(route(5, 1, 100 + COST))), (net("10.9.0.0/16"), None), (net("10.1.0.0/17"), None)]
    {
        lab.says(B, |packet| packet.route_request(Some(prefix)));
        lab.pass(20);
        assert_eq!(lab.told(B, prefix), [answer], "{prefix}");
    }
    for _ in 0..5 {
        lab.says(B, |packet| packet.route_request(None));
    }
    lab.pass(900);
    assert_eq!(lab.told(B, p()).len(), 1, "full dumps are limited");
}

#[test]
fn c22_the_own_seqno_rises_by_one_and_no_more() {
    let mut lab = Lab::new(&[A]);
    lab.tell(Event::Announce { prefix: p(), metric: 0 });
    lab.tell(Event::Announce { prefix: net("10.2.0.0/16"), metric: 0 });
    lab.pass(100);
    let own = lab.babel.router_id();
    let first = lab.selected(p()).expect("announced").seqno;
    lab.told(A, p());
    for (asked, answer) in [(first, 0), (first.plus(1), 1), (first.plus(900), 2), (first.plus(0xffff), 2)] {
        lab.pass(100);
        lab.says(A, |packet| packet.seqno_request(p(), own, asked, 1));
        lab.pass(20);
        // Nobody who heard this run wants the one after 899.
        assert_eq!(lab.babel.router_id() != own, answer == 2, "{asked:?}");
        let expected = Announcement { router_id: lab.babel.router_id(), seqno: first.plus(answer), metric: 0 };
        assert_eq!(lab.told(A, p()).first(), Some(&Some(expected)), "{asked:?}");
        lab.pass(2_000);
        lab.told(A, p());
    }
    assert_eq!(lab.selected(net("10.2.0.0/16")).expect("announced").seqno, first, "others are left alone");
    lab.says(A, |packet| packet.seqno_request(p(), id(77), Seqno(1), 1));
    lab.pass(20);
    assert_eq!(lab.told(A, p()).len(), 1, "another origin is an answer to any request");
}

#[test]
fn c23_requests_are_forwarded_to_one_neighbour_and_the_answer_comes_back() {
    let mut lab = Lab::new(&[A, B, C]);
    lab.announces(A, p(), route(5, 1, 100));
    lab.announces(B, p(), route(5, 1, 190));
    assert_eq!(lab.hops(p()), [A, B], "B in reserve");
    lab.pass(2_000);
    lab.sent.clear();
    let ask = |lab: &mut Lab, who, seqno: u16, hop_count| {
        lab.says(who, |packet| packet.seqno_request(p(), id(5), Seqno(seqno), hop_count));
        lab.pass(20);
        lab.requests()
    };
    assert_eq!(ask(&mut lab, C, 2, 1), [], "it ends here");
    assert_eq!(ask(&mut lab, C, 2, 7), [(A, id(5), 2, 6)]);
    assert_eq!(ask(&mut lab, C, 2, 7), [], "just now");
    assert_eq!(ask(&mut lab, A, 3, 7), [(B, id(5), 3, 6)], "not to who asks");
    assert_eq!(ask(&mut lab, C, 1, 7), [], "there is an answer");
    assert_eq!(lab.told(C, p()), [Some(route(5, 1, 100 + COST))]);
    lab.announces(A, p(), route(5, 3, 100));
    assert_eq!(lab.told(C, p()), [Some(route(5, 3, 100 + COST))], "urgent for who asked");
}

#[test]
fn c23_a_newer_seqno_on_a_route_that_is_not_selected_does_not_end_the_request() {
    let mut lab = Lab::new(&[A, B, C]);
    lab.announces(A, p(), route(5, 1, 100));
    lab.announces(B, p(), route(5, 1, 190));
    lab.says(C, |packet| packet.seqno_request(p(), id(5), Seqno(2), 64));
    lab.pass(20);
    assert_eq!(lab.requests(), [(A, id(5), 2, 63)]);
    // The answer comes by B, and A is selected still: nobody is told, and A is asked once more.
    lab.told(C, p());
    lab.announces(B, p(), route(5, 2, 190));
    assert_eq!((lab.hops(p())[0], lab.told(C, p())), (A, vec![]));
    assert_eq!(lab.requests(), [(A, id(5), 2, 128)]);
    lab.announces(A, p(), route(5, 2, 100));
    assert_eq!(lab.told(C, p()), [Some(route(5, 2, 100 + COST))]);
}

#[test]
fn starving_everybody_with_a_route_is_asked_until_one_answers() {
    let mut lab = Lab::new(&[A, B, C]);
    lab.announces(A, p(), route(5, 65_535, 100));
    lab.announces(B, p(), route(5, 65_535, 300));
    lab.announces(C, p(), route(5, 65_535, 400));
    lab.requests();
    lab.retracts(A, p());
    assert_eq!(lab.requests(), [(B, id(5), 0, 128), (C, id(5), 0, 128)]);
    assert_eq!(lab.told(A, p()).last(), Some(&None));
    lab.pass(40_000);
    assert_eq!(lab.requests().iter().filter(|(to, ..)| *to == B).count(), 6, "it does not give up");
    lab.announces(C, p(), route(5, 0, 400));
    assert_eq!((lab.hops(p()), lab.told(B, p()).last()), (vec![C], Some(&Some(route(5, 0, 400 + COST)))));
    lab.requests();
    lab.pass(40_000);
    assert_eq!(lab.requests(), []);
}

#[test]
fn a_much_better_unfeasible_route_is_asked_for_a_few_times() {
    let mut lab = Lab::new(&[A, B]);
    lab.announces(A, p(), route(5, 1, 100));
    lab.announces(A, p(), route(5, 2, 3_000));
    lab.babel.sources.announced(p(), route(6, 1, 50), None, lab.now);
    lab.requests();
    lab.announces(B, p(), route(6, 1, 200));
    assert_eq!(lab.hops(p()), [A]);
    lab.pass(60_000);
    let requests = lab.requests();
    assert!(
        requests.len() == 4 && requests.iter().all(|&(to, origin, seqno, _)| (to, origin, seqno) == (B, id(6), 2)),
        "{requests:?}"
    );
}

#[test]
fn routes_are_asked_about_before_they_expire_and_their_permission_lasts_longer() {
    let mut lab = Lab::new(&[A]);
    lab.says(A, |packet| packet.update(p(), route(5, 1, 100), 100, None));
    lab.pass(3_000);
    assert!(lab.hops(p()) == [A] && lab.permitted.contains(&(A, p())));
    lab.sent.clear();
    lab.pass(200);
    assert!(lab.sent.contains(&(A, Tlv::RouteRequest { prefix: Some(p()) })));
    lab.pass(320);
    assert!(lab.selected(p()).is_none() && lab.permitted.contains(&(A, p())), "3.5 intervals, then one of grace");
    lab.pass(1_000);
    assert!(lab.permitted.is_empty());
    lab.says(A, |packet| packet.update(p(), route(5, 1, 90), u16::MAX, None));
    lab.pass(60_000);
    assert_eq!(lab.hops(p()), [A], "an announcement that is never repeated");
}

#[test]
fn refusals_are_counted_and_end_what_was_there() {
    let pins = vec![Pin { prefix: net("10.7.0.0/16"), origin: id(7) }];
    let mut lab = Lab::with(Config { pins, max_routes: 3, ..Config::new(PublicKey([9; 32])) }, &[A, B]);
    lab.peer(A, Role::Router, &["10.0.0.0/8"]);
    for (prefix, origin) in
        [("10.7.1.0/24", 7), ("10.7.2.0/24", 6), ("11.0.0.0/8", 5), ("0.0.0.0/0", 5), ("224.0.0.0/8", 5)]
    {
        lab.announces(A, net(prefix), route(origin, 1, 100));
    }
    assert_eq!(lab.fib.keys().copied().collect::<Vec<_>>(), [net("10.7.1.0/24")]);
    lab.announces(A, net("10.7.1.0/24"), route(6, 1, 100));
    assert_eq!(lab.hops(net("10.7.1.0/24")), []);
    for i in 0..5 {
        lab.announces(A, net(&format!("10.8.{i}.0/24")), route(5, 1, 100));
    }
    let counters = lab.babel.counters();
    assert_eq!(
        (counters.pinned, counters.outside_allowed_ips, counters.martian, counters.too_many_routes),
        (2, 2, 1, 3)
    );
    assert_eq!(lab.babel.neighbours().next().map(|neighbour| neighbour.routes), Some(3));
}

#[test]
fn a_narrower_filter_retracts_and_a_wider_one_asks() {
    let mut lab = Lab::new(&[A, B]);
    lab.announces(A, p(), route(5, 1, 100));
    lab.told(B, p());
    lab.peer(A, Role::Router, &["10.2.0.0/16"]);
    lab.pass(50);
    assert_eq!((lab.hops(p()), lab.told(B, p())), (vec![], vec![None]));
    assert!(lab.permitted.is_empty());
    lab.sent.clear();
    lab.peer(A, Role::Router, &["10.0.0.0/8"]);
    lab.pass(20);
    assert!(lab.sent.contains(&(A, Tlv::RouteRequest { prefix: None })));
}

/// A neighbour that believes an IHU for as long as it says must not be left without the next: not when the link falls idle either,
/// at whichever of the Hellos between two IHUs that is.
#[test]
fn c14_an_ihu_holds_until_the_next_whatever_the_pace() {
    for phase in 0..12 {
        let mut lab = Lab::new(&[A]);
        lab.pass(phase * 80);
        lab.tell(Event::Signal { peer: A, signal: Signal::Carried });
        let mut until = None;
        for _ in 0..6_000 {
            lab.sent.clear();
            lab.pass(5);
            for (_, tlv) in &lab.sent {
                if let &Tlv::Ihu { interval, .. } = tlv {
                    until = Some(lab.now + crate::params::hold(crate::params::from_centis(interval)));
                }
            }
            assert!(until.is_none_or(|until| lab.now < until), "phase {phase}: the last one has expired");
        }
        assert!(until.is_some_and(|until| until > lab.now + Duration::from_secs(10)), "it is idle");
    }
}

#[test]
fn a_removed_peer_leaves_nothing() {
    let mut lab = Lab::new(&[A, B]);
    lab.announces(A, p(), route(5, 1, 100));
    lab.alive.remove(&A);
    lab.tell(Event::PeerRemoved { peer: A });
    assert!(lab.hops(p()).is_empty() && lab.permitted.is_empty() && lab.babel.neighbours().count() == 1);
    lab.peer(C, Role::Client, &["10.3.0.3/32"]);
    lab.tell(Event::PeerRemoved { peer: C });
    lab.pass(2_000);
    assert!(lab.fib.is_empty() && lab.permitted.is_empty());
}

#[test]
fn clients_are_announced_held_and_give_way_to_gateways_that_hear_them() {
    let client = net("10.3.0.3/32");
    let mut lab = Lab::new(&[A]);
    lab.peer(C, Role::Client, &["10.3.0.3/32"]);
    lab.pass(50);
    assert_eq!(
        (lab.hops(client), lab.selected(client).map(|route| route.metric)),
        (vec![C], Some(METRIC_CLIENT_NEVER_HEARD))
    );
    lab.tell(Event::Signal { peer: C, signal: Signal::Heard { data: Some(lab.now) } });
    lab.pass(500);
    assert_eq!(lab.told(A, client).last().copied().flatten().map(|route| route.metric), Some(0));
    // Another gateway hears it; here it is silent.
    lab.announces(A, client, route(5, 1, 0));
    assert_eq!(lab.hops(client), [C], "both may");
    lab.pass(600);
    assert_eq!(lab.hops(client), [A]);
    // It comes back.
    lab.tell(Event::Signal { peer: C, signal: Signal::Heard { data: Some(lab.now) } });
    lab.pass(20);
    assert_eq!(lab.hops(client), [C]);
    let before = lab.selected(client).expect("announced").seqno;
    lab.retracts(A, client);
    lab.tell(Event::Signal { peer: C, signal: Signal::HandshakeFailed });
    lab.pass(500);
    let held = lab.selected(client).expect("held");
    assert_eq!((held.metric, lab.hops(client)), (METRIC_CLIENT_SILENT, vec![C]));
    assert!(held.seqno.newer_than(before), "a longer route needs a newer number to be believed");
}

#[test]
fn prefixes_of_the_host_come_and_go() {
    let mut lab = Lab::new(&[A]);
    lab.tell(Event::Announce { prefix: net("10.5.1.1/24"), metric: 30 });
    lab.tell(Event::Announce { prefix: net("127.0.0.0/8"), metric: 0 });
    lab.pass(50);
    assert_eq!(lab.told(A, net("10.5.1.0/24")).iter().flatten().map(|route| route.metric).collect::<Vec<_>>(), [30]);
    assert!(lab.told(A, net("127.0.0.0/8")).is_empty() && lab.fib.is_empty());
    lab.announces(A, net("10.5.1.0/24"), Announcement { router_id: lab.babel.router_id(), seqno: Seqno(9), metric: 1 });
    assert!(lab.fib.is_empty(), "an echo");
    lab.tell(Event::Withdraw { prefix: net("10.5.1.0/24") });
    lab.pass(500);
    assert_eq!(lab.told(A, net("10.5.1.0/24")).last(), Some(&None));
    lab.pass(100_000);
    assert_eq!(lab.babel.routes().count(), 0);
}

#[test]
fn the_seqno_goes_on_after_a_restart() {
    let config = |start| Config { start, ..Config::new(PublicKey([9; 32])) };
    let mut lab = Lab::with(config(Start::First), &[A]);
    lab.tell(Event::Announce { prefix: p(), metric: 0 });
    let first = lab.selected(p()).expect("announced").seqno;
    for step in 1..300 {
        lab.pass(60);
        let own = lab.babel.router_id();
        lab.says(A, |packet| packet.seqno_request(p(), own, first.plus(step), 1));
    }
    let last = lab.selected(p()).expect("announced").seqno;
    assert_eq!((last, lab.kept.len()), (first.plus(299), 2));
    let kept = lab.kept.pop().expect("two");
    let mut again = Lab::with(config(Start::Stored(kept)), &[A]);
    again.tell(Event::Announce { prefix: p(), metric: 0 });
    assert!(again.selected(p()).expect("announced").seqno.newer_than(last));
    assert_eq!(again.babel.router_id(), lab.babel.router_id());
}

/// A start without numbers, and gateways that share a key: to the others each is somebody else, but for pins.
#[test]
fn who_remembers_nothing_has_a_router_id_of_its_own() {
    let key = PublicKey([9; 32]);
    let mut seen = BTreeSet::new();
    let mut number = 0;
    for start in [Start::First, Start::Random, Start::Stored(vec![1]), Start::Stored(vec![1, 2])] {
        for _ in 0..4 {
            number += 1;
            let mut rng = StdRng::seed_from_u64(number);
            let id = Babel::new(Config { start: start.clone(), ..Config::new(key) }, &mut rng).router_id();
            assert!(seen.insert(id), "{start:?} gives {id} again");
            assert!(id.is_of_same_key(RouterId::of_key(&key)));
        }
    }
}

/// An echo of what was never said: numbers were lost, or another node has this router-id.
#[test]
fn an_echo_that_cannot_be_one_is_overtaken_or_makes_a_new_router_id() {
    let start = || Lab::with(Config { start: Start::First, ..Config::new(PublicKey([9; 32])) }, &[A]);
    let other = net("10.5.2.0/24");
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum Then {
        Nothing,
        Overtakes,
        Renumbers,
    }
    for (what, prefix, ahead, then) in [
        ("what was said", p(), 0, Then::Nothing),
        ("what an earlier run has said", p(), u16::MAX, Then::Nothing),
        ("more than was said", p(), 1, Then::Overtakes),
        ("much more than was said", p(), SEQNO_LEAP, Then::Overtakes),
        ("more than there is a number for", p(), SEQNO_LEAP + 1, Then::Renumbers),
        ("the most that is newer", p(), 0x7fff, Then::Renumbers),
        ("what this run does not announce", other, 0, Then::Renumbers),
        ("what an earlier run announced", other, u16::MAX, Then::Nothing),
    ] {
        let mut lab = start();
        lab.tell(Event::Announce { prefix: p(), metric: 0 });
        lab.tell(Event::Announce { prefix: net("10.2.0.0/16"), metric: 0 });
        lab.pass(50);
        let (own, kept) = (lab.babel.router_id(), lab.kept.len());
        let seqno = lab.selected(p()).expect("announced").seqno;
        lab.announces(A, prefix, Announcement { router_id: own, seqno: seqno.plus(ahead), metric: 96 });
        let id = lab.babel.router_id();
        assert_eq!((id != own, lab.kept.len() > kept), (then == Then::Renumbers, then != Then::Nothing), "{what}");
        assert!(id.is_of_same_key(own));
        let expected = if then == Then::Overtakes { seqno.plus(ahead + identity::STORED_AHEAD) } else { seqno };
        for own in [p(), net("10.2.0.0/16")] {
            assert_eq!(lab.selected(own), Some(Announcement { router_id: id, seqno: expected, metric: 0 }), "{what}");
        }
        lab.pass(50);
        let told = lab.told(A, p());
        assert_eq!(
            told.last().copied().flatten().map(|route| (route.router_id, route.seqno)),
            Some((id, expected)),
            "{what}"
        );
        assert!(!lab.fib.contains_key(&other), "{what}");
        let kept = lab.kept.last().expect("kept").clone();
        let config = Config { start: Start::Stored(kept), ..Config::new(PublicKey([9; 32])) };
        let mut again = Lab::with(config, &[A]);
        again.tell(Event::Announce { prefix: p(), metric: 0 });
        let again = again.selected(p()).expect("announced");
        assert!(again.router_id == id && again.seqno.newer_than(expected), "{what}: {again:?}");
        // A second time, there is no end to be expected: a new router-id, and not twice within ten seconds.
        lab.announces(A, p(), Announcement { router_id: id, seqno: expected.plus(1), metric: 96 });
        let second = lab.babel.router_id();
        assert_eq!(second != id, then == Then::Overtakes, "{what}");
        lab.pass(10_000);
        lab.announces(A, other, Announcement { router_id: second, seqno: expected.plus(9_000), metric: 96 });
        assert_ne!(lab.babel.router_id(), second, "{what}");
    }
}

/// Whoever speaks for this node, and goes on with it, is not answered without bound.
#[test]
fn who_forges_numbers_is_answered_less_and_less() {
    let mut lab = Lab::with(Config { start: Start::First, ..Config::new(PublicKey([9; 32])) }, &[A]);
    lab.tell(Event::Announce { prefix: p(), metric: 0 });
    lab.pass(50);
    let period = u64::try_from(SOURCE_GC.as_millis()).expect("minutes");
    for round in 0..2 {
        let (mut ids, mut leaps) = (BTreeSet::from([lab.babel.router_id()]), 0);
        let mut before = lab.selected(p()).expect("announced").seqno;
        for _ in 0..period / 4_000 {
            let id = lab.babel.router_id();
            for ahead in [SEQNO_LEAP, 1, 0x7fff, 0x8000] {
                let seqno = lab.selected(p()).expect("announced").seqno.plus(ahead);
                lab.announces(A, p(), Announcement { router_id: id, seqno, metric: 96 });
                lab.says(A, |packet| packet.seqno_request(p(), id, seqno, 1));
                lab.pass(980);
                let seqno = lab.selected(p()).expect("announced").seqno;
                leaps += u32::from(seqno.ahead_of(before) > 1);
                before = seqno;
            }
            ids.insert(lab.babel.router_id());
        }
        assert!(ids.len() <= 5 && leaps <= 2, "round {round}: {} router-ids, {leaps} leaps", ids.len());
        assert!(round > 0 || ids.len() > 1 && leaps == 1, "round {round}: {} router-ids, {leaps} leaps", ids.len());
    }
}

#[test]
fn hellos_are_frequent_with_traffic_and_rare_without() {
    let mut lab = Lab::new(&[A, B]);
    lab.pass(20_000);
    let hellos = |lab: &mut Lab, ms| {
        lab.sent.clear();
        lab.pass(ms);
        [A, B].map(|peer| {
            let hellos = lab.sent.iter().filter_map(|&(to, tlv)| match tlv {
                Tlv::Hello { seqno, interval, .. } if to == peer => Some((seqno, interval)),
                _ => None,
            });
            hellos.collect::<Vec<_>>()
        })
    };
    let [idle, _] = hellos(&mut lab, 40_000);
    assert!((10..=11).contains(&idle.len()) && idle.iter().all(|&(_, interval)| interval == 400), "{idle:?}");
    lab.tell(Event::Signal { peer: A, signal: Signal::Carried });
    let [busy, other] = hellos(&mut lab, 9_000);
    assert!((29..=35).contains(&busy.len()) && busy.iter().all(|&(_, interval)| interval == 30), "{busy:?}");
    assert!(other.len() <= 3 && other.windows(2).all(|pair| pair[1].0 == pair[0].0.plus(1)), "{other:?}");
    assert!(busy.windows(2).all(|pair| pair[1].0 == pair[0].0.plus(1)), "no gap for who counts");
}

#[test]
fn leaving_says_so() {
    let mut lab = Lab::new(&[A, B]);
    let mut out = Vec::new();
    lab.babel.leave(lab.now, &mut out);
    assert_eq!(out.len(), 2);
    for action in out {
        let Action::Send { packet, .. } = action else { panic!("{action:?}") };
        let (_, datagram) = ip::unwrap(&packet).expect("a packet");
        assert_eq!(Tlvs::new(datagram).expect("a packet").collect::<Vec<_>>(), [Tlv::Retraction { prefix: None }]);
    }
}

#[test]
fn time_that_goes_back_and_ten_minutes_of_sleep() {
    let mut lab = Lab::new(&[A]);
    lab.announces(A, p(), route(5, 1, 100));
    let now = lab.now;
    lab.now = Instant::from_nanos(5);
    lab.tell(Event::Time);
    lab.now = now + Duration::from_secs(600);
    lab.tell(Event::Time);
    assert!(lab.babel.neighbours().all(|neighbour| !neighbour.heard && neighbour.cost.is_none()));
    assert!(lab.hops(p()).is_empty() && lab.babel.deadline().is_some_and(|at| at > lab.now));
    lab.pass(1_000);
    lab.announces(A, p(), route(5, 2, 100));
    assert_eq!(lab.hops(p()), [A]);
}

#[test]
fn periodic_updates_repeat_what_is_selected() {
    let mut lab = Lab::new(&[A, B]);
    lab.announces(A, p(), route(5, 1, 100));
    lab.told(B, p());
    for _ in 0..3 {
        lab.says(A, |packet| packet.update(p(), route(5, 1, 100), INTERVAL, None));
        lab.pass(u64::try_from(UPDATE_INTERVAL.as_millis()).expect("seconds"));
        assert_eq!((lab.told(B, p()).len(), lab.told(A, p()).len()), (1, 0));
    }
    assert_eq!(MAX_ROUTES, 4_096);
}

#[test]
fn what_is_ignored_is_not_acknowledged() {
    let mut lab = Lab::new(&[A]);
    lab.peer(B, Role::Router, &["10.0.0.0/8"]);
    lab.says(B, |packet| {
        packet.update(p(), route(5, 1, 100), INTERVAL, None);
        packet.ack_request(0x1234, 100);
    });
    lab.alive.insert(B, 100);
    lab.pass(1_000);
    assert!(lab.babel.neighbours().all(|neighbour| neighbour.cost.is_some()));
    assert!(lab.hops(p()).is_empty(), "it was no neighbour when it said so");
    assert!(!lab.sent.contains(&(B, Tlv::Ack { opaque: 0x1234 })), "or it would not say it again");
}

#[test]
fn a_retraction_that_may_have_been_overtaken_is_asked_about() {
    let mut lab = Lab::new(&[A]);
    let asked = |lab: &mut Lab| {
        lab.sent.clear();
        lab.retracts(A, p());
        lab.sent.contains(&(A, Tlv::RouteRequest { prefix: Some(p()) }))
    };
    lab.announces(A, p(), route(5, 1, 100));
    assert!(asked(&mut lab), "the announcement may be the later one");
    assert!(!asked(&mut lab), "there was nothing to retract");
    lab.sent.clear();
    lab.announces(A, p(), route(5, 1, 90));
    assert!(lab.sent.contains(&(A, Tlv::RouteRequest { prefix: Some(p()) })), "nor may this be the later one");
    lab.pass(1_500);
    lab.retracts(A, p());
    lab.pass(1_500);
    lab.sent.clear();
    lab.announces(A, p(), route(5, 2, 100));
    lab.pass(1_500);
    assert!(!asked(&mut lab), "long after");
}

#[test]
fn a_new_next_hop_hears_that_there_is_no_other_way_and_the_old_one_that_there_is() {
    let mut lab = Lab::new(&[A, B]);
    lab.announces(A, p(), route(5, 1, 100));
    lab.announces(B, p(), route(5, 1, 110));
    lab.pass(2_000);
    assert_eq!((lab.hops(p()), lab.told(A, p())), (vec![A, B], vec![]));
    assert_eq!(lab.told(B, p()), [Some(route(5, 1, 100 + COST))]);
    lab.retracts(A, p());
    lab.pass(500);
    assert_eq!(lab.hops(p()), [B]);
    assert_eq!(lab.told(A, p()), [Some(route(5, 1, 110 + COST))]);
    assert_eq!(lab.told(B, p()), [None]);
}

/// The way to an origin says what it is called; others may say what they like.
#[test]
fn a_name_is_taken_from_the_next_hop_and_passed_on() {
    let name = |text: &str| Name::new(text.as_bytes()).expect("a name");
    let mut lab = Lab::with(Config { name: Some(name("here")), ..Config::new(PublicKey([9; 32])) }, &[A, B, C]);
    let called =
        |lab: &Lab| lab.babel.names().map(|(id, name)| (id, name.as_str().to_owned())).collect::<BTreeMap<_, _>>();
    let claims = |lab: &mut Lab, peer, text: &str, route: Announcement| {
        lab.says(peer, |packet| {
            packet.name(route.router_id, name(text));
            packet.update(p(), route, INTERVAL, None);
        });
        lab.pass(20);
    };
    claims(&mut lab, A, "far", route(7, 1, 100));
    assert_eq!(called(&lab), [(lab.babel.router_id(), "here".to_owned()), (id(7), "far".to_owned())].into());
    // Not on the way, or without a route, or for this node.
    claims(&mut lab, B, "liar", route(7, 1, 150));
    lab.says(B, |packet| packet.name(id(8), name("nobody")));
    let own = Announcement { router_id: lab.babel.router_id(), ..route(1, 1, 96) };
    claims(&mut lab, B, "liar", own);
    assert_eq!(called(&lab), [(lab.babel.router_id(), "here".to_owned()), (id(7), "far".to_owned())].into());
    lab.tell(Event::Announce { prefix: net("10.2.0.0/16"), metric: 0 });
    lab.pass(20);
    let said = |lab: &Lab, to| -> BTreeSet<String> {
        let names = lab.sent.iter().filter(|(peer, _)| *peer == to);
        names
            .filter_map(|(_, tlv)| if let Tlv::Name { name, .. } = tlv { Some(name.as_str().to_owned()) } else { None })
            .collect()
    };
    assert_eq!(said(&lab, C), ["far".to_owned(), "here".to_owned()].into());
    // The way leads elsewhere: so does the say.
    lab.retracts(A, p());
    claims(&mut lab, B, "other", route(7, 2, 150));
    assert_eq!(called(&lab)[&id(7)], "other");
}
