use super::*;
use crate::policy::{
    Policy, Rules, Traffic,
    before::{Running, Stage},
    seat::Seat,
};
use ipnet::IpNet;
use rustguard_core::{dissect::Bad, icmp};
use std::{net::IpAddr, sync::Arc};

const A: PeerId = PeerId(1);
const B: PeerId = PeerId(2);
const START: Instant = Instant::from_nanos(1 << 40);
const UDP: u8 = 17;
const TCP: u8 = 6;

/// A packet from 10.0.0.`from` for 10.0.0.`to`.
fn v4(protocol: u8, [from, to]: [u8; 2], rest: &[u8]) -> Vec<u8> {
    let mut packet = vec![0x45, 0, 0, 0, 0, 0, 0, 0, 64, protocol, 0, 0, 10, 0, 0, from, 10, 0, 0, to];
    packet.extend(rest);
    let len = packet.len() as u16;
    packet[2..4].copy_from_slice(&len.to_be_bytes());
    packet
}

fn udp(ends: [u8; 2], [from, to]: [u16; 2], text: &[u8]) -> Vec<u8> {
    let mut rest = vec![0; 8];
    rest[..2].copy_from_slice(&from.to_be_bytes());
    rest[2..4].copy_from_slice(&to.to_be_bytes());
    rest.extend(text);
    v4(UDP, ends, &rest)
}

/// The fragment with this identification, at this offset.
fn fragment(mut packet: Vec<u8>, id: u8, offset: u16, more: bool) -> Vec<u8> {
    packet[5] = id;
    packet[6..8].copy_from_slice(&((offset / 8) | (u16::from(more) << 13)).to_be_bytes());
    packet
}

fn later(ends: [u8; 2], id: u8, offset: u16) -> Vec<u8> {
    fragment(v4(UDP, ends, &[9; 8]), id, offset, false)
}

/// Sets a policy on a host that has begun no connections.
fn set(seat: &Seat, policy: Option<Policy>) {
    seat.set_at(policy, START, Vec::new);
}

/// A worker under a policy.
struct Lab {
    seat: Seat,
    rx: Gate,
    tx: Gate,
}

impl Lab {
    fn new(policy: Policy) -> Self {
        let seat = Seat::default();
        set(&seat, Some(policy));
        Self { seat, rx: Gate::default(), tx: Gate::default() }
    }

    fn admit(&mut self, peer: PeerId, packet: &[u8], scope: Scope, now: Instant) -> Result<(), Reason> {
        let head = IpHead::parse(packet).unwrap();
        let in_force = self.seat.in_force();
        let in_force = in_force.as_deref().unwrap();
        self.rx.admit(packet, &head, scope, peer, in_force, now).map_err(|refused| refused.reason)
    }

    fn host(&mut self, packet: &[u8], now: Instant) {
        let in_force = self.seat.in_force();
        self.tx.sent(packet, in_force.as_deref().unwrap(), now);
    }
}

/// Any source may send UDP to these ports.
fn open(ports: impl IntoIterator<Item = u16>) -> Policy {
    let any: IpNet = "0.0.0.0/0".parse().unwrap();
    let traffic = Traffic::udp(ports.into_iter().map(|port| port..=port));
    Policy::new(Arc::new(Rules::builder().allow(1, [any], [any], traffic).build()))
}

fn nothing() -> Policy {
    Policy::new(Arc::default())
}

#[test]
fn a_flow_that_is_remembered_ends_with_its_rules_and_with_time() {
    let mut lab = Lab::new(open([53]));
    let query = udp([1, 2], [1_000, 53], b"");
    for _ in 0..3 {
        assert_eq!(lab.admit(A, &query, Scope::Host, START), Ok(()));
    }
    // Similar packets do not pass.
    for other in [
        udp([1, 2], [1_000, 54], b""),
        udp([1, 3], [1_000, 54], b""),
        v4(TCP, [1, 2], &[&query[20..24], &[0; 8], &[0x50, 16, 0, 0, 0, 0, 0, 0]].concat()),
    ] {
        assert_eq!(lab.admit(A, &other, Scope::Host, START), Err(Reason::NotAllowed));
    }
    set(&lab.seat, Some(open([54])));
    assert_eq!(lab.admit(A, &query, Scope::Host, START), Err(Reason::NotAllowed), "at the next packet");
    // The host's own flow is cached, and the table is updated in time.
    let mine = udp([2, 1], [50_000, 99], b"");
    lab.host(&mine, START);
    let answer = udp([1, 2], [99, 50_000], b"");
    for n in 0..100 {
        let now = START + Duration::from_secs(10 * n);
        lab.host(&mine, now);
        assert_eq!(lab.admit(A, &answer, Scope::Host, now), Ok(()), "after {n}");
    }
    let silent = START + Duration::from_secs(10 * 99 + 120);
    assert_eq!(lab.admit(A, &answer, Scope::Host, silent), Err(Reason::NotAllowed));
}

#[test]
fn the_same_policy_again_changes_nothing() {
    let seat = Seat::default();
    set(&seat, Some(open([53])));
    let generation = seat.in_force().as_ref().unwrap().generation;
    set(&seat, Some(open([53])));
    assert_eq!(seat.in_force().as_ref().unwrap().generation, generation);
    let table = Arc::clone(&seat.in_force().as_ref().unwrap().table);
    set(&seat, Some(open([54])));
    let now = seat.in_force();
    assert!(now.as_ref().is_some_and(|it| it.generation != generation && Arc::ptr_eq(&it.table, &table)));
    set(&seat, None);
    assert!(seat.in_force().is_none());
}

/// A TCP segment from 10.0.0.`from` for 10.0.0.`to`.
fn tcp(ends: [u8; 2], [from, to]: [u16; 2], flags: u8) -> Vec<u8> {
    let ports = [from.to_be_bytes(), to.to_be_bytes()].concat();
    v4(TCP, ends, &[&ports[..], &[0; 8], &[0x50, flags, 0, 0, 0, 0, 0, 0]].concat())
}

#[test]
fn what_ran_before_the_first_policy_is_the_hosts_only_if_the_host_began_it() {
    const FIN: u8 = 1;
    const SYN: u8 = 2;
    const ACK: u8 = 16;
    let (mine, theirs) = (tcp([2, 1], [40_000, 443], ACK), tcp([1, 2], [50_000, 22], ACK));
    let running = || match dissect(&tcp([2, 1], [40_000, 443], SYN)) {
        Dissected::Packet { tuple, .. } => vec![Running { tuple, stage: Stage::Open }],
        other => panic!("{other:?}"),
    };
    let mut lab = Lab { seat: Seat::default(), rx: Gate::default(), tx: Gate::default() };
    lab.seat.set_at(Some(nothing()), START, running);
    assert_eq!(lab.admit(A, &tcp([1, 2], [443, 40_000], ACK), Scope::Host, START), Ok(()), "the host began it");
    assert_eq!(lab.admit(A, &tcp([1, 2], [443, 40_001], ACK), Scope::Host, START), Err(Reason::NotAllowed));
    // The host repeats unacknowledged segments. This does not make the connection the host's.
    for flags in [ACK, ACK | FIN, ACK | SYN] {
        lab.host(&tcp([2, 1], [22, 50_000], flags), START);
        assert_eq!(lab.admit(A, &theirs, Scope::Host, START), Err(Reason::NotAllowed), "{flags:#x}");
    }
    // Days later, within conntrack's timeout.
    let later = START + Duration::from_secs(4 * 86_400);
    lab.host(&mine, later);
    assert_eq!(lab.admit(A, &tcp([1, 2], [443, 40_000], ACK), Scope::Host, later), Ok(()));
    // Another policy takes over the table, and reads no list of sockets.
    lab.seat.set_at(Some(open([53])), later, || panic!("there is a table"));
    assert_eq!(lab.admit(A, &tcp([1, 2], [443, 40_000], ACK), Scope::Host, later), Ok(()));
}

/// On a host that was restarted, or that gets its first policy, a service continues to send to a peer that the rules
/// refuse.
#[test]
fn a_service_that_goes_on_sending_opens_nothing() {
    let (theirs, push) = (udp([1, 2], [50_000, 5_004], b""), udp([2, 1], [5_004, 50_000], b""));
    let mut lab = Lab::new(nothing());
    for n in 0..30 {
        let now = START + Duration::from_secs(20 * n);
        lab.host(&push, now);
        assert_eq!(lab.admit(A, &theirs, Scope::Host, now), Err(Reason::NotAllowed), "after {n}");
    }
    // Without a policy everything passes. The next policy begins with an empty table.
    let again = START + Duration::from_secs(1_000);
    set(&lab.seat, None);
    lab.seat.set_at(Some(nothing()), again, Vec::new);
    lab.host(&push, again);
    assert_eq!(lab.admit(A, &theirs, Scope::Host, again), Err(Reason::NotAllowed));
    let (mine, answer) = (udp([2, 1], [50_000, 53], b""), udp([1, 2], [53, 50_000], b""));
    lab.host(&mine, again);
    assert_eq!(lab.admit(A, &answer, Scope::Host, again), Ok(()), "the host's own begin at once");
}

#[test]
fn fragments_follow_the_first() {
    let mut lab = Lab::new(open([53]));
    let first = |id, port| fragment(udp([1, 2], [1_000, port], &[7; 24]), id, 0, true);
    assert_eq!(lab.admit(A, &later([1, 2], 1, 32), Scope::Host, START), Err(Reason::Fragment), "before the first");
    assert_eq!(lab.admit(A, &first(1, 53), Scope::Host, START), Ok(()));
    assert_eq!(lab.admit(A, &later([1, 2], 1, 40), Scope::Host, START), Ok(()));
    assert_eq!(lab.admit(A, &later([1, 2], 1, 32), Scope::Host, START), Ok(()));
    for (what, peer, packet) in [
        ("overlaps", A, later([1, 2], 1, 24)),
        ("another packet", A, later([1, 2], 2, 40)),
        ("other ends", A, later([1, 3], 1, 40)),
        ("another peer", B, later([1, 2], 1, 40)),
    ] {
        assert_eq!(lab.admit(peer, &packet, Scope::Host, START), Err(Reason::Fragment), "{what}");
    }
    let late = START + Duration::from_secs(30);
    assert_eq!(lab.admit(A, &later([1, 2], 1, 40), Scope::Host, late), Err(Reason::Fragment), "too late");
    // A refused first fragment removes the permission of an earlier one.
    assert_eq!(lab.admit(A, &first(1, 54), Scope::Host, START), Err(Reason::NotAllowed));
    assert_eq!(lab.admit(A, &later([1, 2], 1, 40), Scope::Host, START), Err(Reason::Fragment));
    // Too short for the ports.
    let tiny = fragment(v4(TCP, [1, 2], &udp([1, 2], [1_000, 53], b"")[20..28]), 3, 0, true);
    assert_eq!(lab.admit(A, &tiny, Scope::Host, START), Err(Reason::Bad(Bad::Fragment)));
    // Other rules.
    assert_eq!(lab.admit(A, &first(4, 53), Scope::Host, START), Ok(()));
    set(&lab.seat, Some(open([54])));
    assert_eq!(lab.admit(A, &later([1, 2], 4, 40), Scope::Host, START), Err(Reason::Fragment));
}

#[test]
fn a_flood_of_fragments_leaves_other_peers_theirs() {
    let first = |from, id| fragment(udp([from, 2], [1_000, 53], &[7; 24]), id, 0, true);
    // Two peers share their places if their hashes are equal modulo 64.
    let survived = (10..110).filter(|&flooder| {
        let mut lab = Lab::new(open([53]));
        lab.admit(A, &first(1, 1), Scope::Host, START).unwrap();
        for id in 0..=255 {
            lab.admit(PeerId(flooder), &first(9, id), Scope::Host, START).unwrap();
        }
        lab.admit(A, &later([1, 2], 1, 40), Scope::Host, START).is_ok()
    });
    assert!(survived.count() > 75, "the expectation is 98 of 100");
}

#[test]
fn errors_pass_with_the_flow_that_they_are_about() {
    let mut lab = Lab::new(nothing());
    let mine = udp([2, 1], [50_000, 99], b"text");
    let mut error = [0; icmp::MAX_LEN];
    let len = icmp::unreachable(&mine, &IpHead::parse(&mine).unwrap(), &mut error);
    assert_eq!(lab.admit(A, &error[..len], Scope::Host, START), Err(Reason::UnknownFlow));
    lab.host(&mine, START);
    assert_eq!(lab.admit(A, &error[..len], Scope::Host, START), Ok(()));
    // From a router on the path.
    error[15] = 77;
    assert_eq!(lab.admit(B, &error[..len], Scope::Host, START), Ok(()));
    // About another port.
    error[28 + 23] ^= 1;
    assert_eq!(lab.admit(A, &error[..len], Scope::Host, START), Err(Reason::UnknownFlow));
}

#[test]
fn what_is_relayed_for_others_is_not_remembered_for_the_host() {
    let address: IpAddr = [10, 0, 0, 3].into();
    let mut lab = Lab::new(nothing().others(["10.0.0.0/24".parse().unwrap()]));
    let packet = udp([1, 3], [1_000, 22], b"");
    assert_eq!(IpHead::parse(&packet).unwrap().destination, address);
    for _ in 0..2 {
        assert_eq!(lab.admit(A, &packet, Scope::Relayed, START), Ok(()));
        assert_eq!(lab.admit(A, &packet, Scope::Host, START), Err(Reason::NotAllowed));
    }
}
