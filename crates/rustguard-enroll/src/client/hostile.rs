//! An authentic but hostile server: the joiner's reaction to all settings, at every limit.
use super::*;
use crate::{kem, payload};
use proptest::prelude::*;
use rand::{SeedableRng as _, rngs::StdRng};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use zeroize::Zeroizing;

fn now() -> Now {
    Now { instant: Instant::from_nanos(1 << 40), unix: Duration::from_secs(1_700_000_000) }
}

/// Lets a client join by an invite, at a server that answers with this greeting and this grant.
fn answered(greeting: &[u8], grant: &GrantText) -> Heard {
    let mut rng = StdRng::seed_from_u64(1);
    let identity = server();
    let invite = Invite::generate(identity.public_key(), None, &mut rng).expect("no endpoint");
    let joiner = StaticSecret::from_bytes([2; 32]);
    let mut client = Client::new(Token::Invite(invite), joiner.clone(), now()).expect("good keys");
    let datagram = client.poll(now(), &mut rng).expect("alive").expect("an initiation");
    let Some(Message::Initiation(initiation)) = Message::parse(&datagram) else { panic!("an initiation") };
    let claimed = invite::read(&identity, &initiation).expect("authentic");
    let (received, _) = invite::verify(claimed, &identity, &initiation).expect("authentic");
    let (keys, answer) =
        invite::respond(received, &datagram, &initiation.sender, &[1; 8], greeting, &mut rng).expect("honest keys");
    match client.handle(&answer, now(), &mut rng) {
        Heard::Progress => {}
        other => return other,
    }
    let datagram = client.poll(now(), &mut rng).expect("alive").expect("a claim");
    let Some(Message::Claim(claim)) = Message::parse(&datagram) else { panic!("a claim") };
    let keys = keys.claim(&identity, &joiner.public_key()).expect("honest keys");
    let header = &datagram[..datagram.len() - claim.text.len() - claim.tag.len()];
    let key = open(keys.key(), 0, header, claim.text, claim.tag).expect("authentic");
    let key = <&[u8; kem::KEY_LEN]>::try_from(&key[..]).expect("a key");
    let (ciphertext, shared) = Kem::default().encapsulate(key, &mut rng).expect("a key");
    let keys = keys.grant(&datagram, &ciphertext, &shared);
    let mut answer = wire::build(wire::GRANT, &[&initiation.sender, &ciphertext]);
    seal(&keys.grant, 0, &mut answer, &*grant.write());
    client.handle(&answer, now(), &mut rng)
}

fn server() -> StaticSecret {
    StaticSecret::from_bytes([1; 32])
}

fn grant() -> GrantText {
    GrantText {
        decision: Decision::Accepted,
        ephemeral: false,
        network: None,
        v4: Some(Ipv4Addr::new(10, 150, 0, 2)),
        v6: Some("fd15::2".parse().expect("an address")),
        expires: None,
        preshared_key: Zeroizing::new([7; 32]),
    }
}

/// The settings of an honest server.
fn honest() -> ServerConfig {
    ServerConfig {
        addresses: vec![address("10.150.0.1"), address("fd15::1")],
        routes: nets(&["10.150.0.0/24", "fd15::/64"]),
        ..ServerConfig::default()
    }
}

/// The joining machine: in a home network, with two more networks.
fn here() -> LocalPolicy {
    LocalPolicy {
        endpoints: vec![address("203.0.113.1")],
        networks: nets(&["127.0.0.1/8", "192.168.1.7/24", "172.17.0.1/16", "fd99::7/64", "10.9.0.1/32"]),
        default_route: false,
        dns: false,
        routes: vec![],
    }
}

fn address(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

fn net(text: &str) -> IpNet {
    text.parse().expect("a prefix")
}

fn nets(texts: &[&str]) -> Vec<IpNet> {
    texts.iter().map(|text| net(text)).collect()
}

fn joined(config: &ServerConfig, grant: &GrantText) -> Joined {
    let greeting = payload::settings_unchecked(&server().public_key(), config).expect("fits");
    match answered(&greeting, grant) {
        Heard::Joined(joined) => *joined,
        other => panic!("{other:?}"),
    }
}

/// The result of a check of settings on the machine `here`.
fn accepted(config: &ServerConfig, here: &LocalPolicy) -> Result<(Joined, Vec<LeftOut>), Unacceptable> {
    let accepted = joined(config, &grant()).accept(here)?;
    Ok((accepted.joined, accepted.left_out))
}

#[test]
fn an_honest_server_is_taken_at_its_word() {
    let config = ServerConfig { mtu: Some(1280), keepalive: Some(25), ..honest() };
    let before = joined(&config, &grant());
    let Accepted { joined: after, left_out } = before.clone().accept(&here()).expect("honest");
    assert_eq!((after, left_out), (before, vec![]));
}

#[test]
fn default_routes_whole_or_in_parts_need_the_users_consent() {
    let eighths: Vec<String> = (1..64)
        .map(|n| format!("{}.0.0.0/8", 1 + n * 3 % 223))
        .filter(|net| !["10.0.0.0/8", "127.0.0.0/8"].contains(&&**net))
        .collect();
    let eighths: Vec<&str> = eighths.iter().map(String::as_str).collect();
    for (offered, left) in [
        (&["0.0.0.0/0", "::/0"][..], 0),
        (&["0.0.0.0/1", "128.0.0.0/1"], 0),
        (&["2000::/3"], 0),
        (
            &[
                "1.0.0.0/8",
                "2.0.0.0/7",
                "4.0.0.0/6",
                "8.0.0.0/5",
                "16.0.0.0/4",
                "32.0.0.0/3",
                "64.0.0.0/2",
                "128.0.0.0/1",
            ],
            2,
        ),
        (&eighths, 4),
    ] {
        let config = ServerConfig { routes: [honest().routes, nets(offered)].concat(), ..honest() };
        let (taken, left_out) = accepted(&config, &here()).expect("the rest is good");
        let default = left_out.iter().filter(|left| matches!(left, LeftOut::DefaultRoute(_))).count();
        assert_eq!((taken.routes.len(), default), (2 + left, offered.len() - left), "{offered:?}: {left_out:?}");
        assert!(left_out[0].to_string().contains("--accept-default-route"));
    }
    let config = ServerConfig { routes: [honest().routes, nets(&["0.0.0.0/0", "::/0"])].concat(), ..honest() };
    assert_eq!(joined(&config, &grant()).default_routes(), nets(&["0.0.0.0/0", "::/0"]));
    let (taken, left_out) = accepted(&config, &LocalPolicy { default_route: true, ..here() }).expect("good");
    assert_eq!((taken.routes, left_out), (config.routes, vec![]));
    // These are private networks, which may be of any width.
    let config = ServerConfig {
        routes: nets(&["10.0.0.0/8", "172.24.0.0/13", "fc00::/8", "203.0.112.0/24", "2001:db8::/32"]),
        ..honest()
    };
    assert_eq!(accepted(&config, &LocalPolicy { networks: vec![], ..here() }).expect("good").1, []);
}

#[test]
fn routes_over_the_endpoint_over_this_machines_networks_and_to_nowhere_are_left_out() {
    let (endpoint, v6) = (address("203.0.113.1"), address("2001:db8::1"));
    for (route, why) in [
        ("203.0.113.1/32", LeftOut::Endpoint(net("203.0.113.1/32"), endpoint)),
        ("203.0.113.9/24", LeftOut::Endpoint(net("203.0.113.0/24"), endpoint)),
        ("192.168.1.1/32", LeftOut::Overlap(net("192.168.1.1/32"), net("192.168.1.0/24"))),
        ("192.168.1.0/24", LeftOut::Overlap(net("192.168.1.0/24"), net("192.168.1.0/24"))),
        ("192.168.0.0/16", LeftOut::Overlap(net("192.168.0.0/16"), net("192.168.1.0/24"))),
        ("172.16.0.0/12", LeftOut::Overlap(net("172.16.0.0/12"), net("172.17.0.0/16"))),
        ("fd99::/32", LeftOut::Overlap(net("fd99::/32"), net("fd99::/64"))),
        ("10.9.0.1/32", LeftOut::Overlap(net("10.9.0.1/32"), net("10.9.0.1/32"))),
        ("127.0.0.53/32", LeftOut::Special(net("127.0.0.53/32"))),
        ("224.0.0.0/4", LeftOut::Special(net("224.0.0.0/4"))),
        ("255.255.255.255/32", LeftOut::Special(net("255.255.255.255/32"))),
        ("169.254.169.254/32", LeftOut::Special(net("169.254.169.254/32"))),
        ("0.0.0.0/8", LeftOut::Special(net("0.0.0.0/8"))),
        ("::1/128", LeftOut::Special(net("::1/128"))),
        ("::ffff:10.0.0.0/104", LeftOut::Special(net("::ffff:10.0.0.0/104"))),
        ("fe80::/10", LeftOut::Special(net("fe80::/10"))),
        ("ff02::/16", LeftOut::Special(net("ff02::/16"))),
    ] {
        let config = ServerConfig { routes: [honest().routes, nets(&[route, route])].concat(), ..honest() };
        let (taken, left_out) = accepted(&config, &here()).expect("the rest is good");
        assert_eq!((taken.routes, left_out), (honest().routes, vec![why]), "{route}");
    }
    // The server has an IPv6 endpoint as well. A default route uses the mark and does not loop.
    let by_v6 = LocalPolicy { endpoints: vec![address("198.51.100.1"), v6], default_route: true, ..here() };
    let config = ServerConfig { routes: nets(&["2001:db8::/32", "::/0", "10.150.0.0/24", "fd15::/64"]), ..honest() };
    let (taken, left_out) = accepted(&config, &by_v6).expect("the rest is good");
    assert_eq!(taken.routes, nets(&["::/0", "10.150.0.0/24", "fd15::/64"]));
    assert_eq!(left_out, [LeftOut::Endpoint(net("2001:db8::/32"), v6)]);
    // Halves of a default route are plain routes: the one with the endpoint loops even when it is accepted.
    let halves = ServerConfig { routes: nets(&["0.0.0.0/1", "128.0.0.0/1"]), ..honest() };
    let (_, left_out) = accepted(&halves, &LocalPolicy { default_route: true, ..here() }).expect("the rest is good");
    assert_eq!(left_out, [LeftOut::Endpoint(net("128.0.0.0/1"), endpoint)]);
    // The user can permit overlaps, but not loops.
    let said = LocalPolicy { routes: nets(&["172.16.0.0/12", "203.0.113.0/24"]), ..here() };
    let config = ServerConfig { routes: nets(&["172.16.0.0/12", "203.0.113.0/24", "10.150.0.0/24"]), ..honest() };
    let (taken, left_out) = accepted(&config, &said).expect("the rest is good");
    assert_eq!(taken.routes, nets(&["172.16.0.0/12", "10.150.0.0/24", "fd15::1/128"]));
    assert_eq!(left_out, [LeftOut::Endpoint(net("203.0.113.0/24"), endpoint)]);
    // All other routes are left out.
    let config =
        ServerConfig { addresses: vec![endpoint], routes: nets(&["192.168.1.0/24"]), ..ServerConfig::default() };
    assert_eq!(accepted(&config, &here()).expect_err("nothing is left"), Unacceptable::NoRoute);
}

#[test]
fn a_network_has_addresses_of_the_internet_only_if_the_user_says_so() {
    let config = ServerConfig { routes: nets(&["8.8.8.0/24", "10.150.0.0/24"]), ..honest() };
    let member = |config| Joined { network: Some([3; 32]), ..joined(config, &grant()) };
    let careful = member(&config).accept(&here()).expect("the rest is good");
    assert!(
        !careful.joined.routes.contains(&net("8.8.8.0/24")) && careful.joined.routes.contains(&net("10.150.0.0/24"))
    );
    assert_eq!(careful.left_out, [LeftOut::Public(net("8.8.8.0/24"))]);
    let named = LocalPolicy { routes: nets(&["8.8.0.0/16"]), ..here() };
    for (joined, here) in [(member(&config), named), (joined(&config, &grant()), here())] {
        let all = joined.accept(&here).expect("all is good");
        assert!(all.joined.routes.contains(&net("8.8.8.0/24")) && all.left_out.is_empty(), "named, or a star");
    }
    let nothing_else = ServerConfig { addresses: vec![address("8.8.8.1")], routes: vec![], ..ServerConfig::default() };
    let refused = member(&nothing_else).accept(&here()).map(drop).expect_err("nothing is left");
    assert_eq!(refused, Unacceptable::Public(net("8.8.8.1/32")));
    assert!(refused.to_string().contains("--accept-route 8.8.8.1/32 takes them"), "{refused}");
}

#[test]
fn addresses_that_no_machine_has_or_somebody_has_already_are_refused() {
    let with = |v4: Option<&str>, v6: Option<&str>, here: &LocalPolicy| {
        let parse = |text: &str| text.parse::<IpAddr>().expect("an address");
        let v4 = v4.map(|text| if let IpAddr::V4(v4) = parse(text) { v4 } else { panic!("IPv4") });
        let v6 = v6.map(|text| if let IpAddr::V6(v6) = parse(text) { v6 } else { panic!("IPv6") });
        joined(&honest(), &GrantText { v4, v6, ..grant() }).accept(here).map(drop)
    };
    assert_eq!(with(None, None, &here()), Err(Unacceptable::NoAddress));
    for text in ["127.0.0.1", "224.0.0.1", "255.255.255.255", "0.1.2.3", "169.254.1.1", "240.0.0.1"] {
        assert_eq!(with(Some(text), None, &here()), Err(Unacceptable::Address(address(text))));
    }
    for text in ["::1", "ff02::1", "fe80::1", "::ffff:10.150.0.2"] {
        assert_eq!(with(None, Some(text), &here()), Err(Unacceptable::Address(address(text))));
    }
    for text in ["10.150.0.1", "203.0.113.1"] {
        assert_eq!(with(Some(text), None, &here()), Err(Unacceptable::ServersAddress(address(text))));
    }
    for (text, network) in
        [("192.168.1.7", "192.168.1.0/24"), ("192.168.1.8", "192.168.1.0/24"), ("10.9.0.1", "10.9.0.1/32")]
    {
        assert_eq!(with(Some(text), None, &here()), Err(Unacceptable::AddressInNetwork(address(text), net(network))));
    }
    // The user gives up a network, but not this machine's own address in it.
    let said = LocalPolicy { routes: nets(&["192.168.1.0/24"]), ..here() };
    assert_eq!(with(Some("192.168.1.8"), None, &said), Ok(()));
    assert!(with(Some("192.168.1.7"), None, &said).is_err());
}

#[test]
fn an_mtu_that_no_tunnel_takes_and_more_than_a_machine_takes_are_refused() {
    let dual = grant();
    let v4_only = GrantText { v6: None, ..grant() };
    for (grant, mtu, good) in [
        (&dual, 1279, false),
        (&dual, 1280, true),
        (&v4_only, 575, false),
        (&v4_only, 576, true),
        (&dual, 1, false),
        (&dual, 65_535, true),
    ] {
        let config = ServerConfig { mtu: Some(mtu), ..honest() };
        let result = joined(&config, grant).accept(&here());
        assert_eq!(result.is_ok(), good, "{mtu}: {result:?}");
    }
    let routes = |n: u8| (1..=n).map(|n| net(&format!("10.150.{n}.0/24"))).collect::<Vec<_>>();
    for (count, good) in [(62, true), (63, false), (150, false)] {
        // The server's two addresses are routes as well.
        let result = accepted(&ServerConfig { routes: routes(count), ..honest() }, &here()).map(drop);
        let refused = Unacceptable::TooMany { what: "routes", count: usize::from(count) + 2, most: MAX_ROUTES };
        assert_eq!(result, if good { Ok(()) } else { Err(refused) });
    }
    let config = ServerConfig { addresses: vec![address("10.150.0.1"); 200], ..ServerConfig::default() };
    assert!(accepted(&config, &here()).is_ok(), "the same one is one");
    let asked = LocalPolicy { dns: true, ..here() };
    let servers = |n: u8| (1..=n).map(|n| address(&format!("10.150.0.{n}"))).collect::<Vec<_>>();
    for here in [&here(), &asked] {
        assert!(accepted(&ServerConfig { dns: servers(8), ..honest() }, here).is_ok());
        assert!(accepted(&ServerConfig { dns: servers(9), ..honest() }, here).is_err());
        let domains = |n: usize| vec!["a".to_owned(); n];
        assert!(accepted(&ServerConfig { dns: servers(1), search: domains(16), ..honest() }, here).is_ok());
        assert!(accepted(&ServerConfig { dns: servers(1), search: domains(17), ..honest() }, here).is_err());
        assert!(
            accepted(&ServerConfig { dns: servers(1), search: vec![String::new(); 255], ..honest() }, here).is_err()
        );
    }
}

#[test]
fn name_servers_need_the_users_consent_and_search_domains_are_domains() {
    let dns = vec![
        address("10.150.0.1"),
        address("127.0.0.53"),
        address("::1"),
        address("224.0.0.251"),
        address("10.150.0.1"),
    ];
    let search = [
        "corp.example",
        "~lab.example",
        "~",
        "~.",
        "~~a",
        "~8.8.8.8",
        "8.8.8.8",
        "::1",
        "a,b",
        "x;PostUp=id",
        "-a",
        "a..b",
        "\"",
        "#",
        "a.b.",
        "\\033[31m",
    ];
    let search: Vec<_> = search.map(str::to_owned).into();
    let config = ServerConfig { dns, search, ..honest() };
    let (taken, left_out) = accepted(&config, &here()).expect("the rest is good");
    assert_eq!((taken.dns, taken.search), (vec![], vec![]));
    let [LeftOut::Dns(servers, domains)] = &*left_out else { panic!("{left_out:?}") };
    assert_eq!(
        (servers.len(), &domains[..]),
        (5, &["corp.example".to_owned(), "~lab.example".to_owned(), "a.b.".to_owned()][..])
    );
    assert!(left_out[0].to_string().contains("--accept-dns"));
    let (taken, left_out) = accepted(&config, &LocalPolicy { dns: true, ..here() }).expect("the rest is good");
    assert_eq!(taken.dns, [address("10.150.0.1")]);
    assert_eq!(taken.search, ["corp.example", "~lab.example", "a.b."]);
    assert_eq!(left_out.len(), 3 + 13);
    // Search domains alone are useless, and they do not bypass the user's consent.
    let config = ServerConfig { search: vec!["corp.example".to_owned()], ..honest() };
    assert_eq!(accepted(&config, &LocalPolicy { dns: true, ..here() }).expect("the rest is good").0.search, [""; 0]);
}

#[test]
fn what_is_authentic_and_makes_no_sense_ends_it_with_a_word() {
    let good = payload::settings(&server().public_key(), &honest()).expect("fits");
    for greeting in [&good[..good.len() - 1], &[&good[..], &[0]].concat(), &[0], &[99], &[]] {
        assert!(matches!(answered(greeting, &grant()), Heard::Failed(JoinError::Unreadable)), "{greeting:?}");
    }
    for escapes in ["a\nPostUp=id", "a\x1b[2J", "a b", "ä"] {
        let config = ServerConfig { dns: vec![address("10.150.0.1")], search: vec![escapes.to_owned()], ..honest() };
        let greeting = payload::settings_unchecked(&server().public_key(), &config).expect("fits");
        assert!(matches!(answered(&greeting, &grant()), Heard::Failed(JoinError::Unreadable)), "{escapes:?}");
    }
    let waits = GrantText { decision: Decision::Wait, ..grant() };
    assert!(matches!(answered(&good, &waits), Heard::Failed(JoinError::Unreadable)));
    let zeros = GrantText { network: Some([0; 32]), ..grant() };
    assert!(matches!(answered(&good, &zeros), Heard::Failed(JoinError::Unreadable)));
}

#[test]
fn a_network_key_that_was_not_asked_for_is_not_taken() {
    let good = payload::settings(&server().public_key(), &honest()).expect("fits");
    let network = GrantText { network: Some([8; 32]), ..grant() };
    let Heard::Joined(joined) = answered(&good, &network) else { panic!("the rest is as it should be") };
    assert_eq!(joined.network, None);
}

fn any_address() -> impl Strategy<Value = IpAddr> {
    prop_oneof![
        any::<[u8; 4]>().prop_map(|octets| Ipv4Addr::from(octets).into()),
        any::<[u8; 16]>().prop_map(|octets| Ipv6Addr::from(octets).into()),
        prop::sample::select(vec!["203.0.113.1", "192.168.1.7", "127.0.0.1", "::1", "10.150.0.2"]).prop_map(address),
    ]
}

fn any_net() -> impl Strategy<Value = IpNet> {
    (any_address(), 0_u8..=128).prop_map(|(address, len)| {
        IpNet::new(address, if address.is_ipv4() { len % 33 } else { len }).expect("a length of its family")
    })
}

proptest! {
    /// For any settings from the server, the accepted settings are within all limits.
    #[test]
    fn nothing_gets_past(
        routes in prop::collection::vec(any_net(), 0..70),
        dns in prop::collection::vec(any_address(), 0..10),
        search in prop::collection::vec("[ -~]{0,12}", 0..18),
        own in prop::collection::vec(any_address(), 0..4),
        given in any_net(),
        mtu in any::<Option<u16>>(),
        (default_route, dns_too) in any::<(bool, bool)>(),
    ) {
        let here = LocalPolicy { default_route, dns: dns_too, ..here() };
        let joined = Joined {
            server: PublicKey([1; 32]),
            preshared_key: Zeroizing::new([7; 32]),
            addresses: vec![IpNet::from(given.addr())],
            routes,
            server_addresses: own,
            dns,
            search,
            mtu,
            port: None,
            keepalive: None,
            expires: None,
            ephemeral: false,
            network: None,
        };
        let wide = joined.default_routes();
        let Ok(Accepted { joined: taken, .. }) = joined.accept(&here) else { return Ok(()) };
        prop_assert!((1..=MAX_ROUTES).contains(&taken.routes.len()));
        prop_assert!(taken.dns.len() <= MAX_DNS && taken.search.len() <= MAX_SEARCH);
        prop_assert!(dns_too || (taken.dns.is_empty() && taken.search.is_empty()));
        prop_assert!(default_route || taken.default_routes().is_empty());
        prop_assert!(taken.mtu.is_none_or(|mtu| mtu >= 576));
        for route in &taken.routes {
            prop_assert!(route.prefix_len() == 0 || !route.contains(&here.endpoints[0]), "{route} loops");
            let wide = wide.contains(route);
            for network in &here.networks {
                prop_assert!(wide || !(route.contains(network) || network.contains(route)), "{route} over {network}");
            }
        }
        for address in taken.addresses.iter().map(IpNet::addr) {
            prop_assert!(!here.networks.iter().any(|network| network.contains(&address)));
        }
        prop_assert!(taken.search.iter().all(|domain| domain.parse::<IpAddr>().is_err()));
    }
}
