use super::*;
use crate::conf::{
    Interface, PresharedKey,
    tests::{full, good},
};
use proptest::prelude::*;
use rustguard_crypto::x25519::PublicKey;
use rustguard_device::{EndpointSpec, PathSpec};
use std::{net::SocketAddr, time::Duration};

const KEYS: [&str; 3] = [
    "xTIBA5rboUvnH4htodjb6e697QjLERt1NAB4mZqp8Dg=",
    "TrMvSoP4jYQlY6RIzBgbssQqY3vxI2Pi+y71lOWWXX0=",
    "gN65BkIKy1eCE9pP1wdc8ROUtkHLF2PfAqYdyYBz6EA=",
];
const SECRET: &str = "YAnz5TF+lXXJte14tji3zlMNq+hd2rYUIgJBgB3fBmk=";

/// A file in a style of its own.
fn hand_made() -> String {
    format!(
        "# The tunnel to the office. Ask Zoë before you change it.\n\n\
         [Interface]\n  PrivateKey={SECRET}   # made in 2019\n  Address=10.0.0.1/24\n  Address=fd00::1/64 # new\n\
         ListenPort   =   51820\n\n\
         # ---- servers ----\n\n\
         # Name = office\n# The rack on the left.\n[Peer]\nPublicKey = {0}\nAllowedIPs = 10.0.0.2,10.0.1.0/24 # two\nAllowedIPs = 10.0.2.0/24\n\
         Endpoint = vpn.example.org:51820 # old: 192.0.2.1:51820\n# still the office\n\n\
         # ---- laptops ----\n\n\
         [peer]\npublickey = {1}\n# PersistentKeepalive = 25\nAllowedIPs = 10.0.9.0/24\n",
        KEYS[0], KEYS[1]
    )
}

/// The text after a change of its configuration.
fn edited(text: &str, change: impl FnOnce(&mut Config)) -> String {
    let mut config = good(text);
    change(&mut config);
    let edited = edit(text, &config).expect("a configuration that a file can hold");
    assert!(keys::same(&good(&edited), &config), "{}", *edited);
    edited.to_string()
}

/// The lines that are only in the first text, and the lines that are only in the second.
fn difference<'t>(before: &'t str, after: &'t str) -> [Vec<&'t str>; 2] {
    let only =
        |these: &'t str, those: &str| these.lines().filter(|line| !those.lines().any(|other| other == *line)).collect();
    [only(before, after), only(after, before)]
}

#[test]
fn nothing_to_change_changes_nothing() {
    for text in [hand_made(), full(), hand_made().replace('\n', "\r\n"), hand_made().trim_end().to_owned()] {
        assert_eq!(edited(&text, |_| {}), text);
    }
}

/// A change, the lines that disappear, and the lines that are added.
type Case<'a> = (&'a dyn Fn(&mut Config), &'a [&'a str], &'a [&'a str]);

#[test]
fn one_key_changes_only_its_line() {
    let text = hand_made();
    let cases: [Case<'_>; 8] = [
        (&|config| config.interface.listen_port = Some(7), &["ListenPort   =   51820"], &["ListenPort   =   7"]),
        (&|config| config.interface.mtu = Some(1400), &[], &["MTU          =   1400"]),
        (
            &|config| config.peers[0].endpoints = vec![EndpointSpec::Name("new.example.org".into(), 5).into()],
            &["Endpoint = vpn.example.org:51820 # old: 192.0.2.1:51820"],
            &["Endpoint = new.example.org:5 # old: 192.0.2.1:51820"],
        ),
        (
            &|config| config.peers[0].allowed_ips.push("10.0.3.0/24".parse().unwrap()),
            &["AllowedIPs = 10.0.2.0/24"],
            &["AllowedIPs = 10.0.2.0/24, 10.0.3.0/24"],
        ),
        (
            &|config| config.peers[0].allowed_ips.retain(|net| net.to_string() != "10.0.0.2/32"),
            &["AllowedIPs = 10.0.0.2,10.0.1.0/24 # two"],
            &["AllowedIPs = 10.0.1.0/24 # two"],
        ),
        (
            &|config| config.peers[1].persistent_keepalive = Some(Duration::from_secs(9)),
            &[],
            &["PersistentKeepalive = 9"],
        ),
        (&|config| config.peers[0].name = Some("head office".into()), &["# Name = office"], &["# Name = head office"]),
        (&|config| config.peers[1].name = Some("laptop".into()), &[], &["# Name = laptop"]),
    ];
    for (change, gone, new) in cases {
        let after = edited(&text, |config| change(config));
        assert_eq!(difference(&text, &after), [gone.to_vec(), new.to_vec()], "{after}");
        // The same with the line ends of other systems.
        let crlf = edited(&text.replace('\n', "\r\n"), |config| change(config));
        assert_eq!(crlf, after.replace('\n', "\r\n"));
    }
}

#[test]
fn a_line_that_does_not_count_goes_with_the_next_change() {
    let text = hand_made().replace("Endpoint = ", "Endpoint = 192.0.2.1:1\nEndpoint = ");
    let mut config = parse(&text).0.unwrap();
    assert_eq!(*edit(&text, &config).unwrap(), text);
    let first = "192.0.2.1:1".parse::<SocketAddr>().unwrap();
    config.peers[0].endpoints.insert(0, first.into());
    let after = edit(&text, &config).unwrap();
    assert!(after.contains("\nEndpoint = 192.0.2.1:1, vpn.example.org:51820\n#"), "{}", *after);
    config.peers[0].endpoints.clear();
    assert!(!edit(&text, &config).unwrap().contains("Endpoint"));
}

#[test]
fn an_item_that_stays_keeps_its_spelling() {
    let text = hand_made().replace("[Interface]\n", "[Interface]\nListenAddress = 2001:DB8::7\n");
    let after = edited(&text, |config| config.interface.listen_addresses.push("203.0.113.9".parse().unwrap()));
    assert!(after.contains("\nListenAddress = 2001:DB8::7, 203.0.113.9\n"), "{after}");
}

#[test]
fn a_removed_peer_takes_its_comments_along() {
    let text = hand_made();
    let after = edited(&text, |config| drop(config.peers.remove(0)));
    let start = text.find("# Name = office").unwrap();
    let end = text.find("# ---- laptops").unwrap();
    assert_eq!(after, format!("{}{}", &text[..start], &text[end..]));
    let after = edited(&text, |config| drop(config.peers.remove(1)));
    assert_eq!(after, format!("{}# ---- laptops ----\n", &text[..end]));
}

#[test]
fn a_new_peer_comes_last() {
    let text = hand_made();
    let peer = || {
        let mut peer = Peer::new(PublicKey(*value::key(KEYS[2]).unwrap()));
        peer.name = Some("phone".into());
        peer.allowed_ips = vec!["10.0.7.0/24".parse().unwrap()];
        peer
    };
    let section = format!("# Name = phone\n[Peer]\nPublicKey = {}\nAllowedIPs = 10.0.7.0/24\n", KEYS[2]);
    for text in [&text, text.trim_end(), &format!("{text}\n")] {
        assert_eq!(edited(text, |config| config.peers.push(peer())), format!("{}\n\n{section}", text.trim_end()));
    }
    let after = edited(&text, |config| config.peers = vec![peer()]);
    assert!(after.starts_with("# The tunnel") && after.ends_with(&section) && !after.contains(KEYS[0]), "{after}");
}

#[test]
fn a_name_stays_with_its_peer() {
    // The parser gives these names to A (a blank line follows) and to B (a header follows).
    let text = format!(
        "[Interface]\nPrivateKey = {SECRET}\n[Peer]\nPublicKey = {}\n\nEndpoint = 192.0.2.1:1\n# Name = a\n\n# Name = b\n\n[Peer]\nPublicKey = {}\n",
        KEYS[0], KEYS[1]
    );
    let names = |text: &str| good(text).peers.into_iter().map(|peer| peer.name.unwrap()).collect::<Vec<_>>();
    assert_eq!(names(&text), ["a", "b"]);
    assert_eq!(names(&edited(&text, |config| config.peers[0].endpoints.clear())), ["a", "b"]);
    assert_eq!(names(&edited(&text, |config| drop(config.peers.remove(0)))), ["b"]);
    assert_eq!(names(&edited(&text, |config| drop(config.peers.remove(1)))), ["a"]);
}

#[test]
fn a_comment_that_is_not_usable_as_a_name_stays() {
    let text = hand_made().replace("# Name = office", "# Name = off*ce");
    let config = parse(&text).0.unwrap();
    assert_eq!(*edit(&text, &config).unwrap(), text);
}

#[test]
fn a_value_that_would_break_its_line_is_refused() {
    let text = hand_made();
    let mut config = good(&text);
    config.interface.post_up = vec!["true\nPreDown = reboot".into()];
    assert!(matches!(edit(&text, &config), Err(EditError::NotExpressible)));
    let mut config = good(&text);
    config.peers[0].name = Some("x\n[Peer]".into());
    assert!(matches!(edit(&text, &config), Err(EditError::NotExpressible)));
    assert!(
        matches!(edit("[Interface]\nPort = 1\n", &config), Err(EditError::Invalid(diagnostics)) if !diagnostics.is_empty())
    );
}

/// A third peer, which is reached through the office.
fn with_relay(endpoint: &str) -> String {
    format!("{}\n# Name = far\n[Peer]\nPublicKey = {}\nEndpoint = {endpoint} # by now\n", hand_made(), KEYS[2])
}

#[test]
fn a_relay_keeps_the_form_in_which_it_was_written() {
    for endpoint in ["192.0.2.9:1,  Via-Peer office", &format!("192.0.2.9:1,  via-peer {}", KEYS[0])] {
        let text = with_relay(endpoint);
        let more =
            |config: &mut Config| config.peers[2].endpoints.push("192.0.2.10:1".parse::<SocketAddr>().unwrap().into());
        assert!(edited(&text, more).contains(&format!("Endpoint = {endpoint}, 192.0.2.10:1 # by now\n")));
        let name = |config: &mut Config| config.peers[1].name = Some("other".into());
        assert!(edited(&text, name).contains(&format!("Endpoint = {endpoint} # by now\n")));
    }
    let new =
        |config: &mut Config| config.peers[1].endpoints = vec![EndpointSpec::Peer(config.peers[0].public_key).into()];
    assert!(
        edited(&with_relay("192.0.2.9:1"), new).contains("\nEndpoint = via-peer office\n"),
        "a new one has the name"
    );
}

#[test]
fn the_name_of_a_relay_changes_where_it_is_used() {
    let text = with_relay("192.0.2.9:1, via-peer office");
    let rename = |n: usize, name: &'static str| move |config: &mut Config| config.peers[n].name = Some(name.into());
    let after = edited(&text, rename(0, "head office"));
    assert!(after.contains("Endpoint = 192.0.2.9:1, via-peer head office # by now"), "{after}");
    let key = format!("Endpoint = 192.0.2.9:1, via-peer {} # by now", KEYS[0]);
    for n in [1, 2] {
        assert!(edited(&text, rename(n, "office")).contains(&key), "two peers have the name");
    }
    assert!(edited(&text, |config| config.peers[0].name = None).contains(&key));
    let swapped = edited(&text, |config| {
        (config.peers[0].name, config.peers[1].name) = (Some("branch".into()), Some("office".into()));
    });
    assert!(swapped.contains("Endpoint = 192.0.2.9:1, via-peer branch # by now"), "{swapped}");
}

#[test]
fn a_relay_does_not_go_while_it_is_used() {
    let text = with_relay("via-peer office");
    let mut config = good(&text);
    config.peers.remove(0);
    let error = edit(&text, &config).unwrap_err();
    assert!(matches!(&error, EditError::NoRelay { peer } if peer == "far"));
    assert!(
        error.to_string().contains("an Endpoint of far leads through a peer that would not be in the file"),
        "{error}"
    );
}

#[test]
fn stripped_is_what_wg_reads() {
    let stripped = strip(&full()).unwrap();
    for gone in [
        "Address",
        "DNS",
        "PostUp",
        "Routing",
        "Pin",
        "Role",
        "NodeName",
        "SaveConfig",
        "Forward",
        "Direct",
        "via-peer",
    ] {
        assert!(!stripped.contains(gone), "{gone} in {}", *stripped);
    }
    for stays in
        ["# Name = laptop of Zoë", "ListenPort = 51820", "FwMark = 0xca6c", "PersistentKeepalive = 25", "PresharedKey"]
    {
        assert!(stripped.contains(stays), "{stays} is missing in {}", *stripped);
    }
    let several = hand_made().replace("vpn.example.org:51820 #", "192.0.2.7:5 via eth0 weight 2, 192.0.2.8:5 #");
    assert!(strip(&several).unwrap().contains("Endpoint = 192.0.2.7:5 # old"));
    let far = |endpoint| strip(&with_relay(endpoint)).unwrap().split("# Name = far").nth(1).unwrap().to_owned();
    assert!(far("Via-Peer office, 192.0.2.9:1 weight 2").ends_with("Endpoint = 192.0.2.9:1 # by now\n"));
    assert!(far("via-peer office").ends_with(&format!("PublicKey = {}\n", KEYS[2])), "wg knows no such endpoint");
    assert!(!strip("[Interface]\n").unwrap_err().is_empty());
}

fn net() -> impl Strategy<Value = ipnet::IpNet> {
    (0..4_u8, prop_oneof![Just(16_u8), Just(24), Just(32)])
        .prop_map(|(n, length)| ipnet::IpNet::new([10, n, n, n].into(), length).unwrap().trunc())
}

fn peer_after(key: usize) -> impl Strategy<Value = Peer> {
    (
        proptest::option::of(prop_oneof![Just("office".to_owned()), Just("a weight 2".to_owned()), "[a-z]{1,5}"]),
        proptest::option::of(1..4_u8),
        proptest::collection::vec((1..4_u8, 1..3_u16), 0..3),
        proptest::collection::vec(net(), 0..4),
        proptest::option::of(1..60_u64),
    )
        .prop_map(move |(name, preshared, endpoints, allowed_ips, keepalive)| {
            let mut peer = Peer::new(PublicKey(*value::key(KEYS[key]).unwrap()));
            peer.name = name;
            peer.preshared_key = preshared.map(|byte| PresharedKey::from_bytes(&[byte; 32]));
            for (n, port) in endpoints {
                let path = PathSpec::from(SocketAddr::from(([192, 0, 2, n], port)));
                if !peer.endpoints.contains(&path) {
                    peer.endpoints.push(path);
                }
            }
            peer.allowed_ips = allowed_ips;
            peer.persistent_keepalive = keepalive.map(Duration::from_secs);
            peer
        })
}

/// Any configuration with some of three peers.
fn config() -> impl Strategy<Value = Config> {
    let peers = (proptest::sample::subsequence(vec![0, 1, 2], 0..4))
        .prop_shuffle()
        .prop_flat_map(|keys| keys.into_iter().map(peer_after).collect::<Vec<_>>());
    let interface = (
        proptest::option::of(0..3_u16),
        proptest::collection::vec(net(), 0..3),
        proptest::collection::vec("[a-z]{1,3}( # [a-z])?", 0..3),
        proptest::option::of(1280..1290_u16),
        proptest::collection::vec((1..4_u8).prop_map(|n| std::net::IpAddr::from([10, 0, 0, n]).into()), 0..3),
    );
    let switches = (proptest::option::of(any::<bool>()), proptest::option::of(any::<bool>()), 0..4_usize, 0..4_usize);
    (interface, peers, switches).prop_map(|((port, mut addresses, hooks, mtu, dns), mut peers, switches)| {
        let (forward, direct, via, relay) = switches;
        if let Some(relay) = peers.get(relay).map(|relay| relay.public_key)
            && let Some(peer) = peers.get_mut(via).filter(|peer| peer.public_key != relay)
        {
            peer.endpoints.insert(0, PathSpec::from(EndpointSpec::Peer(relay)));
            peer.direct = direct;
        }
        addresses.sort();
        addresses.dedup();
        let interface = Interface {
            private_key: good(&hand_made()).interface.private_key,
            listen_port: port,
            addresses,
            post_up: hooks,
            mtu,
            dns,
            forward,
            ..Interface::default()
        };
        Config::new(interface, peers)
    })
}

/// The lines of a file, mixed with comments, names, blanks and other spellings.
fn file() -> impl Strategy<Value = String> {
    let noise = prop_oneof![
        4 => Just(""),
        1 => Just("\n"),
        1 => Just("# Name = stray\n"),
        1 => Just("# a comment\n"),
        1 => Just("\n# Name = apart\n\n"),
        1 => Just("  # AllowedIPs = 10.0.0.0/8\n"),
    ];
    let style = prop_oneof![Just(" = "), Just("="), Just("   =\t")];
    (config(), proptest::collection::vec((noise, style), 80), any::<bool>(), any::<bool>())
        .prop_map(|(config, noise, crlf, ended)| {
            let text = crate::conf::to_text(&config);
            let mut out = String::new();
            for (line, (noise, style)) in text.lines().zip(noise.iter().cycle()) {
                out.push_str(noise);
                out.push_str(&line.replacen(" = ", style, 1).replace("# Name=", "# Name ="));
                out.push('\n');
            }
            let out = if crlf { out.replace('\n', "\r\n") } else { out };
            if ended { out } else { out.trim_end().to_owned() }
        })
        .prop_filter("a name strewn in may take the place of a relay's", |text| parse(text).0.is_some())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1_000, ..ProptestConfig::default() })]

    #[test]
    fn any_file_can_become_any_configuration(text in file(), after in config()) {
        let before = parse(&text).0.expect("a valid file");
        prop_assert_eq!(&*edit(&text, &before).unwrap(), &text, "nothing to change");
        let edited = edit(&text, &after).unwrap();
        let parsed = parse(&edited).0.expect("still a valid file");
        prop_assert!(keys::same(&parsed, &after), "{}", *edited);
        prop_assert_eq!(edited.contains("\r\n"), text.contains("\r\n"));
        // Comments that name no peer are left where no peer was removed.
        let keys = |config: &Config| config.peers.iter().map(|peer| peer.public_key.0).collect::<std::collections::BTreeSet<_>>();
        if keys(&before).is_subset(&keys(&after)) {
            for comment in ["# a comment", "# AllowedIPs ="] {
                prop_assert_eq!(edited.matches(comment).count(), text.matches(comment).count(), "{}", *edited);
            }
        }
        // A second edit finds nothing to do.
        prop_assert_eq!(&*edit(&edited, &after).unwrap(), &*edited);
    }
}
