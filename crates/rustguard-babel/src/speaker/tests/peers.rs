//! Peers that are removed, clients, names.
use super::*;

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
fn clients_are_announced_and_give_way_to_gateways_that_hear_them() {
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
    // Another gateway hears the client; here it is silent.
    lab.announces(A, client, route(5, 1, 0));
    assert_eq!(lab.hops(client), [C], "both may");
    lab.pass(600);
    assert_eq!(lab.hops(client), [A]);
    // The client comes back.
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

/// The next hop to an origin decides what the origin is called; names from other neighbours are ignored.
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
    // Ignored claims: from a neighbour that is not the next hop, without a route, or about this node.
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
    // The route leads through another neighbour, which now decides the name.
    lab.retracts(A, p());
    claims(&mut lab, B, "other", route(7, 2, 150));
    assert_eq!(called(&lab)[&id(7)], "other");
}
