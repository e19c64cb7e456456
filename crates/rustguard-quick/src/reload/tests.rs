use super::*;
use crate::conf::{self, Config, NodeName, Peer, Pin, Redistribute, Routing, Table};
use ipnet::IpNet;
use proptest::{collection::vec, option, prelude::*, sample::subsequence};
use rustguard_core::routing::Role;
use rustguard_crypto::x25519::{PublicKey, StaticSecret};
use rustguard_device::{EndpointSpec, PathSpec, PresharedKey, SourceCheck};
use std::time::Duration;

fn config(text: &str) -> Config {
    let (config, diagnostics) = conf::parse(text);
    config.unwrap_or_else(|| panic!("{text}: {diagnostics:?}"))
}

/// A file with this `[Interface]` and these peers: number, and lines.
fn file(interface: &str, peers: &[(u8, &str)]) -> String {
    let key = |n| rustguard_device::key::to_base64(&[n; 32]).to_string();
    let mut text = format!("[Interface]\nPrivateKey = {}\n{interface}\n", key(200));
    for (n, lines) in peers {
        text.push_str(&format!("# Name = p{n}\n[Peer]\nPublicKey = {}\n{lines}\n", key(*n)));
    }
    text
}

fn lines(from: &str, to: &str) -> Vec<String> {
    Difference::between(&config(from), &config(to)).lines().iter().map(ToString::to_string).collect()
}

#[test]
fn every_change_is_told_in_words() {
    let before = file(
        "Address = 10.0.0.1/24\nDNS = 10.0.0.53, corp.example\nListenPort = 7\nPostDown = echo secret-of-a-hook",
        &[
            (1, "AllowedIPs = 10.1.0.0/16, 10.2.0.0/16\nPersistentKeepalive = 25"),
            (2, "AllowedIPs = 10.3.0.0/16\nEndpoint = a.example:1"),
        ],
    );
    let after = file(
        "Address = 10.0.0.2/24\nDNS = 10.0.0.54, corp.example\nMTU = 1380\nFwMark = 5\nForward = on\nPublicEndpoint = 203.0.113.9:4000\nPortMapping = off\nTable = off\nPostDown = echo another",
        &[
            (1, "AllowedIPs = 10.1.0.0/16\nEndpoint = 192.0.2.1:7, via-peer p3\nDirect = off"),
            (3, "AllowedIPs = 10.2.0.0/16\nPresharedKey = OBGBXk5Oo38YXxMMBCUzBkLS1Xpr2Wn8HgXKJTHmS3U="),
        ],
    );
    let said = lines(&before, &after);
    for line in [
        "- Address 10.0.0.1/24",
        "+ Address 10.0.0.2/24",
        "~ DNS 10.0.0.53 → 10.0.0.54",
        "~ MTU automatic → 1380",
        "~ Table auto → off",
        "~ ListenPort 7 → any (the present port stays)",
        "~ FwMark automatic → 0x5",
        "~ PostDown changed (runs at the end of the tunnel)",
        "- peer p2",
        "+ peer p3: AllowedIPs 10.2.0.0/16, with PresharedKey",
        "- peer p1: AllowedIPs 10.2.0.0/16",
        "+ peer p1: Endpoint 192.0.2.1:7, via-peer p3",
        "~ peer p1: Direct as the endpoints say → off",
        "~ Forward off → on",
        "~ PublicEndpoint none → 203.0.113.9:4000",
        "~ PortMapping on → off",
        "~ peer p1: PersistentKeepalive 25 s → off",
    ] {
        assert!(said.iter().any(|said| said == line), "{line} is not in {said:#?}");
    }
    assert_eq!(said.len(), 17, "{said:#?}");
}

#[test]
fn secrets_and_hooks_are_never_shown() {
    let mut before = config(&file("", &[(1, "")]));
    before.peers[0].preshared_key = Some(PresharedKey::from_bytes(&[7; 32]));
    let mut after = before.clone();
    after.interface.private_key = Some(StaticSecret::from_bytes([8; 32]));
    after.interface.post_up = vec!["curl --user me:password".into()];
    after.peers[0].preshared_key = Some(PresharedKey::from_bytes(&[9; 32]));
    let difference = Difference::between(&before, &after);
    let lines = difference.lines();
    let text = format!("{lines:?} {} {difference:?}", serde_json::to_string(&lines).unwrap());
    for n in [7, 8, 9] {
        let key = rustguard_device::key::to_base64(&[n; 32]);
        assert!(!text.contains(&**key), "{text}");
        assert!(!text.contains(&format!("{n}, {n}, {n}")), "{text}");
    }
    let said: Vec<_> = lines.iter().map(ToString::to_string).collect();
    assert!(said[0].starts_with("~ PrivateKey changed (another identity"), "{said:?}");
    assert!(said.contains(&"~ peer p1: PresharedKey changed (from the next handshake on)".to_owned()), "{said:?}");
    assert!(!serde_json::to_string(&lines).unwrap().contains("password"));
}

#[test]
fn what_means_the_same_is_no_difference() {
    for (from, to) in [
        ("FwMark = off", ""),
        ("HandshakeOnUp = true", ""),
        ("Forward = off", ""),
        ("PortMapping = on", ""),
        ("Address = 10.0.0.1/24, 10.1.0.1/24", "Address = 10.1.0.1/24\nAddress = 10.0.0.1/24"),
    ] {
        assert_eq!(lines(&file(from, &[]), &file(to, &[])), [""; 0]);
    }
    let peers = [(1, "AllowedIPs = 10.0.0.0/8, 10.1.0.0/16"), (2, "Role = router")];
    let swapped = [(2, ""), (1, "AllowedIPs = 10.1.0.0/16, 10.0.0.5/8")];
    assert_eq!(lines(&file("", &peers), &file("", &swapped)), [""; 0]);
    // The last of two peers gets a prefix. The first one does not have it, so it does not lose it.
    let both = [(1, "AllowedIPs = 10.0.0.0/8"), (2, "AllowedIPs = 10.0.0.0/8")];
    assert_eq!(lines(&file("", &both), &file("", &[(1, ""), (2, "AllowedIPs = 10.0.0.0/8")])), [""; 0]);
}

#[test]
fn without_a_word_the_endpoints_say_whether_direct_paths_are_looked_for() {
    let (plain, through) = ("Endpoint = 192.0.2.1:7", "Endpoint = via-peer p3");
    let told = |from: &str, to: &str| {
        let [from, to] = [from, to].map(|lines| config(&file("", &[(1, lines), (3, "Endpoint = 192.0.2.3:7")])));
        Difference::between(&from, &to).settlement(&to).peers.first().and_then(|peer| peer.direct)
    };
    assert_eq!((told(plain, through), told(through, plain)), (Some(true), Some(false)));
    assert_eq!(told(plain, "Endpoint = 192.0.2.1:8"), None, "nothing is said about it");
    for (direct, on) in [("on", true), ("off", false)] {
        assert_eq!(told(plain, &format!("{through}\nDirect = {direct}")), Some(on));
        assert_eq!(told(&format!("{through}\nDirect = {direct}"), through), Some(true));
    }
}

#[test]
fn what_only_a_restart_can_change_is_named() {
    let needed = |from: &str, to: &str| {
        let (from, to) = (config(from), config(to));
        let difference = Difference::between(&from, &to);
        difference.needs_restart(&from, &to).iter().map(|needed| needed.setting).collect::<Vec<_>>()
    };
    let babel = |more: &str| {
        file(&format!("Address = 10.0.0.1/32\nRouting = babel\n{more}"), &[(1, "AllowedIPs = 10.0.0.0/8")])
    };
    assert_eq!(needed(&babel(""), &file("Address = 10.0.0.1/32", &[(1, "AllowedIPs = 10.0.0.0/8")])), ["Routing"]);
    for (line, setting) in [
        ("Redistribute = 10.5.0.0/16", "Redistribute"),
        ("SourceCheck = log", "SourceCheck"),
        ("NodeName = gw", "NodeName"),
        ("Table = 7", "Table"),
    ] {
        assert_eq!(needed(&babel(""), &babel(line)), [setting]);
    }
    assert_eq!(needed(&babel("Announce = 10.9.0.0/16"), &babel("Announce = 10.9.0.0/16\nNat = on")), ["Nat"]);
    let translated = |net: &str| babel(&format!("Nat = on\nAnnounce = {net}"));
    assert_eq!(needed(&translated("10.9.0.0/16"), &translated("10.8.0.0/16")), ["Nat"]);
    let identity = babel("").replace("yMjIyMjI", "yMjIyMjM");
    assert_eq!(needed(&babel(""), &identity), ["PrivateKey"]);
    let with_default =
        |address: &str| file(&format!("Address = {address}\nRouting = babel"), &[(1, "AllowedIPs = 0.0.0.0/0")]);
    assert_eq!(needed(&babel(""), &with_default("10.0.0.1/32")), ["AllowedIPs"]);
    assert_eq!(needed(&with_default("10.0.0.1/32"), &with_default("10.0.0.1/32, fd00::1/128")), ["Address"]);
    for more in ["Announce = 10.9.0.0/16", "Address = 10.0.0.2/32", "MTU = 1300", "ListenPort = 5", "FwMark = 3"] {
        assert_eq!(needed(&babel(""), &babel(more)), [""; 0], "{more}");
    }
    let network = |lines: &str| file(lines, &[(1, "AllowedIPs = 10.0.0.0/8")]);
    let key = "Network = OBGBXk5Oo38YXxMMBCUzBkLS1Xpr2Wn8HgXKJTHmS3U=";
    assert_eq!(needed(&network(""), &network(key)), ["Network"]);
    assert_eq!(needed(&network(key), &network(&format!("{key}\nAccept = dns"))), [""; 0]);
    assert_eq!(
        lines(&network(&format!("{key}\nAccept = dns")), &network(&format!("{key}\nAccept = routes, dns"))),
        ["~ Accept dns → dns, routes"]
    );
    for (from, to) in [("1", "1, 2"), ("1, 2", "1"), ("1, 2", "3, 2")] {
        let [from, to] = [from, to].map(|ports| file(&format!("ListenPort = {ports}"), &[]));
        assert_eq!(needed(&from, &to), ["ListenPort"]);
    }
    assert_eq!(needed(&file("", &[]), &file("NodeName = gw\nListenPort = 3", &[])), [""; 0], "no effect without Babel");
}

fn nets(family: &'static [&'static str]) -> impl Strategy<Value = Vec<IpNet>> {
    let all: Vec<IpNet> = family.iter().map(|net| net.parse().unwrap()).collect();
    subsequence(all, 0..=family.len())
}

const NETS: &[&str] = &["10.0.0.0/8", "10.1.0.0/16", "10.1.2.0/24", "0.0.0.0/0", "fd00::/8", "fd00::1/128", "::/0"];
const ADDRESSES: &[&str] = &["10.0.0.1/24", "10.0.0.2/24", "10.0.0.1/32", "fd00::1/64", "fd00::2/64"];

fn peer() -> impl Strategy<Value = Peer> {
    let endpoint = prop_oneof![Just("192.0.2.1:5"), Just("[2001:db8::1]:6"), Just("192.0.2.2:7")];
    let endpoint = prop_oneof![
        3 => endpoint.prop_map(|text| PathSpec::from(text.parse::<std::net::SocketAddr>().unwrap())),
        1 => (1..8_u8).prop_map(|key| EndpointSpec::Peer(PublicKey([key; 32])).into()),
    ];
    let role = prop_oneof![Just(Role::Router), Just(Role::Client)];
    (
        1..8_u8,
        option::of("[a-z]{1,3}"),
        option::of(1..4_u8),
        vec(endpoint, 0..3),
        nets(NETS),
        option::of(1..3_u64),
        option::of(role),
        option::of(any::<bool>()),
        option::of(2..5_u8),
    )
        .prop_map(|(key, name, psk, endpoints, allowed_ips, keepalive, role, direct, parity)| {
            let mut peer = Peer::new(PublicKey([key; 32]));
            peer.name = name;
            peer.preshared_key = psk.map(|byte| PresharedKey::from_bytes(&[byte; 32]));
            peer.endpoints = endpoints;
            peer.allowed_ips = allowed_ips;
            peer.persistent_keepalive = keepalive.map(Duration::from_secs);
            peer.role = role;
            peer.direct = direct;
            peer.parity = parity;
            peer
        })
}

fn any_config() -> impl Strategy<Value = Config> {
    let wireguard =
        (option::of(1..4_u8), option::of(1..3_u16), option::of(0..3_u32), nets(ADDRESSES), option::of(1280..1283_u16));
    let table = prop_oneof![Just(Table::Auto), Just(Table::Off), (1..3_u32).prop_map(Table::Number)];
    let words = || vec("[a-c]{1,2}", 0..3);
    let host = (vec(any::<std::net::Ipv4Addr>(), 0..2), words(), table, [words(), words(), words(), words()]);
    let name = prop_oneof![Just(NodeName::Host), Just(NodeName::Off), "[a-c]".prop_map(NodeName::Is)];
    let check = prop_oneof![Just(SourceCheck::Enforce), Just(SourceCheck::Log), Just(SourceCheck::Off)];
    let routing = prop_oneof![Just(Routing::Static), Just(Routing::Babel)];
    let pins = vec((0..2_u8).prop_map(|n| Pin::new("10.0.0.0/8".parse().unwrap(), PublicKey([n; 32]))), 0..2);
    let redistribute = vec(nets(NETS).prop_map(|nets| nets.first().copied()), 0..2);
    let switches = (option::of(any::<bool>()), any::<bool>(), option::of(any::<bool>()), option::of(any::<bool>()));
    let public = (1..3_u16).prop_map(|port| EndpointSpec::Name("home".into(), port));
    let babel = (routing, nets(NETS), redistribute, pins, check, name, switches, vec(public, 0..2));
    (wireguard, host, babel, vec(peer(), 0..6)).prop_map(|(wireguard, host, babel, peers)| {
        let mut config = Config::default();
        let interface = &mut config.interface;
        interface.private_key = wireguard.0.map(|byte| StaticSecret::from_bytes([byte; 32]));
        (interface.listen_port, interface.fwmark) = (wireguard.1, wireguard.2);
        (interface.addresses, interface.mtu) = (wireguard.3, wireguard.4);
        interface.dns = host.0.into_iter().map(|server| std::net::IpAddr::from(server).into()).collect();
        (interface.dns_search, interface.table) = (host.1, host.2);
        let [pre_up, post_up, pre_down, post_down] = host.3;
        (interface.pre_up, interface.post_up) = (pre_up, post_up);
        (interface.pre_down, interface.post_down) = (pre_down, post_down);
        (interface.routing, interface.announce) = (babel.0, babel.1);
        interface.redistribute = babel.2.into_iter().flatten().map(Redistribute::Within).collect();
        (interface.pins, interface.source_check, interface.node_name) = (babel.3, babel.4, babel.5);
        let switches = babel.6;
        (interface.handshake_on_up, interface.save_config) = (switches.0, switches.1);
        (interface.forward, interface.port_mapping) = (switches.2, switches.3);
        interface.nat = switches.2;
        interface.public_endpoints = babel.7;
        interface.accept.dns = switches.1;
        interface.accept.prefixes.clone_from(&interface.announce);
        // A file with two sections for a peer is refused.
        let mut known = std::collections::HashSet::new();
        config.peers = peers.into_iter().filter(|peer| known.insert(peer.public_key)).collect();
        config
    })
}

/// The text of a configuration, in a form without irrelevant differences.
fn canonical(config: &Config) -> String {
    let mut config = config.clone();
    let own = config.interface.private_key.as_ref().map(StaticSecret::public_key);
    config.peers.retain(|peer| Some(peer.public_key) != own);
    if config.interface.routing == Routing::Static {
        for n in 0..config.peers.len() {
            let (before, rest) = config.peers.split_at_mut(n);
            before.iter_mut().for_each(|peer| peer.allowed_ips.retain(|net| !rest[0].allowed_ips.contains(net)));
        }
    }
    for peer in &mut config.peers {
        peer.allowed_ips.sort();
        peer.role = peer.role.filter(|role| *role == Role::Client);
    }
    config.peers.sort_by_key(|peer| peer.public_key.0);
    let interface = &mut config.interface;
    interface.fwmark = interface.fwmark.filter(|mark| *mark != 0);
    interface.handshake_on_up = interface.handshake_on_up.filter(|greet| !greet);
    interface.forward = interface.forward.filter(|forward| *forward);
    interface.port_mapping = interface.port_mapping.filter(|on| !on);
    interface.nat = interface.nat.filter(|nat| *nat);
    interface.addresses.sort();
    interface.announce.sort();
    conf::to_text(&config).to_string()
}

proptest! {
    #[test]
    fn the_difference_of_a_configuration_and_itself_is_empty(config in any_config()) {
        let difference = Difference::between(&config, &config);
        prop_assert!(difference.is_empty() && difference.lines().is_empty(), "{difference:?}");
    }

    #[test]
    fn a_difference_is_empty_only_for_configurations_that_mean_the_same(from in any_config(), to in any_config()) {
        let difference = Difference::between(&from, &to);
        prop_assert_eq!(difference.is_empty(), canonical(&from) == canonical(&to));
    }
}
