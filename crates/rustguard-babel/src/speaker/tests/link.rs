//! Hellos, IHUs and acknowledgments on the link to a neighbour.
use super::*;

/// RFC 8966 §4.
#[test]
fn packets_that_are_not_babel_are_not_answered() {
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

/// RFC 8966 §3.3.
#[test]
fn acknowledgments_are_sent_at_once_and_to_neighbours_only() {
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

/// RFC 8967 §4.2: the counter is in each packet, and the MAC behind the packet. A neighbour that has stopped
/// authentication needs no MACs any more.
#[test]
fn a_neighbour_that_wants_macs_is_known() {
    let mut lab = Lab::new(&[A, B]);
    let wants = |lab: &Lab| lab.babel.neighbours().map(|neighbour| neighbour.wants_macs).collect::<Vec<_>>();
    assert_eq!(wants(&lab), [false, false]);
    lab.says(A, |packet| packet.tlv(17, |body| body.extend([0, 0, 0, 1, 9, 9, 9, 9])));
    assert_eq!(wants(&lab), [true, false]);
    lab.says(B, |packet| packet.tlv(17, |body| body.extend([0, 0, 1])));
    assert_eq!((wants(&lab), lab.babel.counters().malformed), (vec![true, false], 1));
    lab.says(A, |packet| packet.ack_request(1, 100));
    assert_eq!(wants(&lab), [false, false]);
}

/// The next IHU must arrive before the last one expires, also when the link becomes idle at any time between two IHUs.
#[test]
fn an_ihu_holds_until_the_next_whatever_the_pace() {
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
    assert!(busy.windows(2).all(|pair| pair[1].0 == pair[0].0.plus(1)), "no gap in the numbers");
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
fn ignored_updates_are_not_acknowledged() {
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
