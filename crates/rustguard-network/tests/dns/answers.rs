//! The answers to various queries.

use super::network::{MEMBERS, Members, ip, query, query_of_class, records, roster, with_edns, zone, zone_with};
use domain::base::{
    Message, Name, Rtype, ToName,
    iana::{Class, OptRcode, Rcode},
};
use proptest::prelude::*;
use rustguard_network::dns::{
    Zone,
    query::{NoQuery, Query, Transport},
};

fn ask(zone: &Zone, query: &[u8]) -> Message<Vec<u8>> {
    let query = Query::read(query, Transport::Udp).unwrap();
    let answer = Message::from_octets(query.answer(zone).unwrap_or_else(|| query.refuse())).unwrap();
    assert_eq!((answer.header().id(), answer.header().qr(), answer.header().rd()), (0x1234, true, true));
    answer
}

fn check(zone: &Zone, name: &str, rtype: Rtype, code: Rcode, answers: &[&str], authority: &[&str]) {
    let answer = ask(zone, &query(name, rtype));
    assert_eq!(answer.header().rcode(), code, "{name} {rtype}");
    assert_eq!(records(&answer, 0), answers, "{name} {rtype}");
    assert_eq!(records(&answer, 1), authority, "{name} {rtype}");
    assert_eq!(answer.header().aa(), code != Rcode::REFUSED, "{name} {rtype}");
    assert!(!answer.header().tc() && !answer.header().ra() && !answer.header().ad(), "{name} {rtype}");
}

const SOA: &str = "rg0.internal SOA rg0.internal. rg0.internal. 7 0 0 0 0";
const SOA_V4: &str = "0.150.10.in-addr.arpa SOA rg0.internal. rg0.internal. 7 0 0 0 0";

#[test]
fn members_have_addresses_of_their_families() {
    let zone = zone();
    check(&zone, "laptop.rg0.internal", Rtype::A, Rcode::NOERROR, &["laptop.rg0.internal A 10.150.0.2"], &[]);
    check(&zone, "laptop.rg0.internal", Rtype::AAAA, Rcode::NOERROR, &["laptop.rg0.internal AAAA fd15::2"], &[]);
    check(&zone, "sensor.rg0.internal", Rtype::AAAA, Rcode::NOERROR, &["sensor.rg0.internal AAAA fd15::4"], &[]);
    let both = ["laptop.rg0.internal A 10.150.0.2", "laptop.rg0.internal AAAA fd15::2"];
    check(&zone, "laptop.rg0.internal", Rtype::ANY, Rcode::NOERROR, &both, &[]);
}

#[test]
fn an_absent_record_is_another_answer_than_an_absent_name() {
    let zone = zone();
    for (name, rtype) in [
        ("phone.rg0.internal", Rtype::AAAA),
        ("sensor.rg0.internal", Rtype::A),
        ("lost.rg0.internal", Rtype::A),
        ("laptop.rg0.internal", Rtype::HTTPS),
        ("laptop.rg0.internal", Rtype::SOA),
        ("rg0.internal", Rtype::MX),
    ] {
        check(&zone, name, rtype, Rcode::NOERROR, &[], &[SOA]);
    }
    for name in ["lapto.rg0.internal", "a.laptop.rg0.internal", "*.rg0.internal", "\\000.rg0.internal"] {
        check(&zone, name, Rtype::A, Rcode::NXDOMAIN, &[], &[SOA]);
    }
}

#[test]
fn the_network_itself_is_this_machine() {
    let zone = zone();
    check(&zone, "rg0.internal", Rtype::SOA, Rcode::NOERROR, &[SOA], &[]);
    check(&zone, "rg0.internal", Rtype::NS, Rcode::NOERROR, &["rg0.internal NS rg0.internal."], &[]);
    check(&zone, "rg0.internal", Rtype::A, Rcode::NOERROR, &["rg0.internal A 10.150.0.2"], &[]);
    check(&zone, "0.150.10.in-addr.arpa", Rtype::SOA, Rcode::NOERROR, &[SOA_V4], &[]);
    check(&zone, "0.150.10.in-addr.arpa", Rtype::A, Rcode::NOERROR, &[], &[SOA_V4]);
}

/// Browsers ask for `wpad` in each domain of the host, and use the proxy at that name.
#[test]
fn names_that_programs_trust_are_nobodys() {
    let members: Members<'_> = &[
        ("hub", &["10.150.0.1"]),
        ("wpad", &["10.150.0.2"]),
        ("isatap", &["10.150.0.3"]),
        ("localhost", &["10.150.0.4"]),
    ];
    let zone = Zone::new(&roster("rg0", 7, members), [ip("10.150.0.1")], [] as [ipnet::IpNet; 0]);
    check(&zone, "hub.rg0.internal", Rtype::A, Rcode::NOERROR, &["hub.rg0.internal A 10.150.0.1"], &[]);
    for name in ["wpad.rg0.internal", "WPAD.rg0.internal", "isatap.rg0.internal", "localhost.rg0.internal"] {
        check(&zone, name, Rtype::A, Rcode::NXDOMAIN, &[], &[SOA]);
    }
}

#[test]
fn everything_else_is_refused() {
    let zone = zone();
    for name in
        [".", "internal", "rg1.internal", "xrg0.internal", "rg0.internal.example", "example.com", "google.internal"]
    {
        check(&zone, name, Rtype::A, Rcode::REFUSED, &[], &[]);
    }
    // The same for names near the pools, because they belong to others.
    for name in [
        "in-addr.arpa",
        "10.in-addr.arpa",
        "150.10.in-addr.arpa",
        "1.1.150.10.in-addr.arpa",
        "arpa",
        "1.0.0.127.in-addr.arpa",
    ] {
        check(&zone, name, Rtype::PTR, Rcode::REFUSED, &[], &[]);
    }
    for class in [Class::CH, Class::HS] {
        let answer = ask(&zone, &query_of_class("laptop.rg0.internal", Rtype::TXT, class));
        assert_eq!(answer.header().rcode(), Rcode::REFUSED);
    }
    check_refused_transfer(&zone);
}

fn check_refused_transfer(zone: &Zone) {
    for rtype in [Rtype::AXFR, Rtype::IXFR] {
        let answer = ask(zone, &query("rg0.internal", rtype));
        assert_eq!((answer.header().rcode(), answer.header_counts().ancount()), (Rcode::REFUSED, 0));
    }
}

#[test]
fn addresses_have_names() {
    let zone = zone();
    let laptop = "2.0.150.10.in-addr.arpa";
    check(&zone, laptop, Rtype::PTR, Rcode::NOERROR, &[&format!("{laptop} PTR laptop.rg0.internal.")], &[]);
    check(&zone, laptop, Rtype::A, Rcode::NOERROR, &[], &[SOA_V4]);
    check(&zone, "9.0.150.10.in-addr.arpa", Rtype::PTR, Rcode::NXDOMAIN, &[], &[SOA_V4]);
    for name in ["02.0.150.10.in-addr.arpa", "x.0.150.10.in-addr.arpa", "1.2.0.150.10.in-addr.arpa"] {
        let answer = ask(&zone, &query(name, Rtype::PTR));
        assert_eq!(records(&answer, 0), [""; 0], "{name}");
    }
    let v6: Name<Vec<u8>> = Name::reverse_from_addr(ip("fd15::4")).unwrap();
    let expected = format!("{v6} PTR sensor.rg0.internal.");
    check(&zone, &v6.to_string(), Rtype::PTR, Rcode::NOERROR, &[&expected], &[]);
}

/// RFC 8020: a name does not exist only if no name below it exists.
#[test]
fn names_above_addresses_exist() {
    let zone = zone();
    let domain = zone.reverse_domains().pop().unwrap();
    assert_eq!(domain, "0.0.0.0.0.0.0.0.0.0.0.0.5.1.d.f.ip6.arpa");
    let soa = format!("{domain} SOA rg0.internal. rg0.internal. 7 0 0 0 0");
    for (below, code) in
        [("0", Rcode::NOERROR), ("0.0", Rcode::NOERROR), ("1.0", Rcode::NXDOMAIN), ("f", Rcode::NXDOMAIN)]
    {
        check(&zone, &format!("{below}.{domain}"), Rtype::PTR, code, &[], &[&soa]);
    }
}

#[test]
fn reverse_domains_end_at_labels() {
    for (pool, domains) in [
        ("10.150.0.0/24", vec!["0.150.10.in-addr.arpa"]),
        ("10.0.0.0/8", vec!["10.in-addr.arpa"]),
        ("10.150.0.0/15", vec!["150.10.in-addr.arpa", "151.10.in-addr.arpa"]),
        ("10.150.0.2/31", vec!["2.0.150.10.in-addr.arpa", "3.0.150.10.in-addr.arpa"]),
        ("fd15::/16", vec!["5.1.d.f.ip6.arpa"]),
        ("fd15::/47", vec!["0.0.0.0.0.0.0.0.5.1.d.f.ip6.arpa", "1.0.0.0.0.0.0.0.5.1.d.f.ip6.arpa"]),
        // Wider ones would include names of others.
        ("8.0.0.0/7", vec![]),
        ("0.0.0.0/0", vec![]),
        ("fc00::/7", vec![]),
        ("::/0", vec![]),
    ] {
        assert_eq!(zone_with(&[pool]).reverse_domains(), domains, "{pool}");
    }
    let zone = zone_with(&["10.150.0.2/31"]);
    let answer = ask(&zone, &query("2.0.150.10.in-addr.arpa", Rtype::PTR));
    assert_eq!(records(&answer, 0), ["2.0.150.10.in-addr.arpa PTR laptop.rg0.internal."]);
    assert_eq!(ask(&zone, &query("1.0.150.10.in-addr.arpa", Rtype::PTR)).header().rcode(), Rcode::REFUSED);
}

#[test]
fn edns_is_answered_with_edns() {
    let zone = zone();
    let plain = query("laptop.rg0.internal", Rtype::A);
    assert!(ask(&zone, &plain).opt().is_none());
    let answer = ask(&zone, &with_edns(plain.clone(), 4096, 0));
    assert_eq!(answer.opt().unwrap().udp_payload_size(), 1232);
    assert_eq!(records(&answer, 0), ["laptop.rg0.internal A 10.150.0.2"]);
    let error = |query: &[u8]| match Query::read(query, Transport::Udp) {
        Err(NoQuery::Error(answer)) => Message::from_octets(answer).unwrap().opt_rcode(),
        other => panic!("{other:?}"),
    };
    assert_eq!(error(&with_edns(plain.clone(), 4096, 1)), OptRcode::BADVERS);
    assert_eq!(error(&with_edns(with_edns(plain, 4096, 0), 4096, 0)), OptRcode::FORMERR);
}

#[test]
fn a_newer_roster_is_answered_from_at_once() {
    let own = || [ip("10.150.0.2")];
    let old = Zone::new(&roster("rg0", 7, &[("laptop", &["10.150.0.2"])]), own(), []);
    let new = Zone::new(&roster("rg0", 8, &[("desk", &["10.150.0.2"])]), own(), []);
    for (zone, name, code) in [
        (&old, "laptop.rg0.internal", Rcode::NOERROR),
        (&old, "desk.rg0.internal", Rcode::NXDOMAIN),
        (&new, "laptop.rg0.internal", Rcode::NXDOMAIN),
        (&new, "desk.rg0.internal", Rcode::NOERROR),
    ] {
        assert_eq!(ask(zone, &query(name, Rtype::A)).header().rcode(), code);
    }
}

#[test]
fn networks_named_like_the_domains_of_clouds_are_known() {
    for (name, foreign) in [
        ("google.internal", true),
        ("docker.internal", true),
        ("metadata.google.internal", true),
        ("rg0.internal", false),
        ("google-2.internal", false),
        ("google.rg0.internal", false),
        ("google", false),
        ("google.example", false),
        ("internal", false),
    ] {
        assert_eq!(rustguard_network::dns::zone::is_foreign(name), foreign, "{name}");
    }
}

proptest! {
    /// The answers match the list of members, in any letter case. The question is returned unchanged.
    #[test]
    fn answers_agree_with_the_list_of_members(
        asked in prop_oneof![
            proptest::sample::select(MEMBERS).prop_map(|(name, _)| name.to_owned()),
            "[a-z0-9-]{1,20}",
            "[a-z]{1,3}\\.(laptop|phone)",
        ],
        domain in proptest::sample::select(&["rg0.internal", "rg1.internal", "internal", "example"][..]),
        upper in proptest::collection::vec(any::<bool>(), 80),
        v6 in any::<bool>(),
        edns in proptest::option::of((any::<u16>(), any::<bool>())),
    ) {
        let name = format!("{asked}.{domain}");
        let mixed: String = name.chars().zip(&upper).map(|(c, upper)| if *upper { c.to_ascii_uppercase() } else { c }).collect();
        let rtype = if v6 { Rtype::AAAA } else { Rtype::A };
        let mut text = query(&mixed, rtype);
        if let Some((size, _)) = edns {
            text = with_edns(text, size, 0);
        }
        let answer = ask(&zone(), &text);
        let member = MEMBERS.iter().find(|(member, _)| *member == asked);
        let (code, expected) = match (domain, member) {
            ("rg0.internal", Some((_, addresses))) => (Rcode::NOERROR, addresses.to_vec()),
            ("rg0.internal", None) => (Rcode::NXDOMAIN, vec![]),
            _ => (Rcode::REFUSED, vec![]),
        };
        let expected: Vec<_> = expected.iter().filter(|text| ip(text).is_ipv6() == v6)
            .map(|address| format!("{mixed} {rtype} {address}")).collect();
        prop_assert_eq!(answer.header().rcode(), code);
        prop_assert_eq!(records(&answer, 0), expected);
        let question = answer.sole_question().unwrap();
        // Names compare without case; their bytes do not.
        let asked: Name<Vec<u8>> = question.qname().to_name();
        prop_assert_eq!(asked.to_string(), mixed);
        prop_assert_eq!(answer.opt().is_some(), edns.is_some());
    }
}
