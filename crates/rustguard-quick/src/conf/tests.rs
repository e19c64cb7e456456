//! The parser, its diagnostics and the writer, tested together.

mod network;
mod relays;

use super::*;
use proptest::prelude::*;
use rustguard_device::key::to_base64;

const SECRET: &str = "YAnz5TF+lXXJte14tji3zlMNq+hd2rYUIgJBgB3fBmk=";
const PRIVATE: &str = "yAnz5TF+lXXJte14tji3zlMNq+hd2rYUIgJBgB3fBmk=";
const PEER: &str = "xTIBA5rboUvnH4htodjb6e697QjLERt1NAB4mZqp8Dg=";
const OTHER: &str = "TrMvSoP4jYQlY6RIzBgbssQqY3vxI2Pi+y71lOWWXX0=";

/// A file with every key.
pub(super) fn full() -> String {
    format!(
        "[Interface]\nAddress = 10.0.0.1/24, fd00::1/64\nDNS = 10.0.0.53, example.com, ~corp.example\nMTU = 1360\nTable = 7\nSaveConfig = true\nHandshakeOnUp = false\nForward = on\nPublicEndpoint = 203.0.113.9:4000, home.example:51820\nPortMapping = off\nNat = on\n\
         Routing = babel\nAnnounce = 192.168.1.0/24, fd01::/64\nRedistribute = 192.168.0.0/16, default\nPin = 10.7.0.5/32 {PEER}, fd07::/64 {OTHER}\nSourceCheck = Log\nNodeName = gw-1\nPreUp = echo up # now\nPostUp = a; b=c\nPostUp = d\nPreDown = e\nPostDown = f\nListenAddress = 192.0.2.1, 2001:db8::1\nListenPort = 51820, 51821\nFwMark = 0xca6c\n\
         PrivateKey = {SECRET}\n\n# Name = laptop of Zoë\n[Peer]\nPublicKey = {PEER}\nPresharedKey = {OTHER}\n\
         AllowedIPs = 10.0.0.2/32, fd00::2/128\nEndpoint = vpn.example.com:51820\nPersistentKeepalive = 25\nRole = client\n\n\
         [Peer]\nPublicKey = {OTHER}\nRole = Router\nEndpoint = [2001:db8::1]:51820, via-peer laptop of Zoë\nDirect = on\nParity = 7\n"
    )
}

pub(super) fn good(text: &str) -> Config {
    assert_eq!(said(text), [""; 0], "{text}");
    parse(text).0.expect("no diagnostics, no configuration")
}

/// `SEVERITY LINE:COLUMN MESSAGE [HELP]` for each diagnostic except two, because most files here are too short for a
/// connection.
fn said(text: &str) -> Vec<String> {
    let short = ["neither side can begin", "a peer without AllowedIPs"];
    all_said(text).into_iter().filter(|line| !short.iter().any(|words| line.contains(words))).collect()
}

fn all_said(text: &str) -> Vec<String> {
    let line = |d: Diagnostic| {
        let help = d.help.map(|help| format!(" [{help}]")).unwrap_or_default();
        format!("{} {}:{} {}{help}", d.severity.name(), d.span.line, d.span.column, d.message)
    };
    parse(text).1.into_iter().map(line).collect()
}

fn interface(lines: &str) -> String {
    format!("[Interface]\nPrivateKey = {SECRET}\n{lines}\n")
}

fn peer(lines: &str) -> String {
    interface(&format!("[Peer]\nPublicKey = {PEER}\n{lines}"))
}

#[test]
fn everything_is_read() {
    let config = good(&full());
    let interface = &config.interface;
    assert_eq!(*to_base64(&interface.private_key.as_ref().unwrap().to_bytes()), SECRET);
    assert_eq!((interface.listen_port, interface.fwmark, interface.mtu), (Some(51_820), Some(0xca6c), Some(1360)));
    assert_eq!(interface.more_listen_ports, [51_821]);
    assert_eq!(
        interface.listen_addresses,
        ["192.0.2.1", "2001:db8::1"].map(|address| address.parse::<IpAddr>().unwrap())
    );
    assert_eq!(interface.addresses, ["10.0.0.1/24", "fd00::1/64"].map(|net| net.parse().unwrap()));
    assert_eq!(interface.dns, ["10.0.0.53".parse::<NameServer>().unwrap()]);
    assert_eq!(interface.dns_search, ["example.com", "~corp.example"]);
    assert_eq!((interface.table, interface.save_config), (Table::Number(7), true));
    assert_eq!((interface.handshake_on_up, interface.forward), (Some(false), Some(true)));
    let home = EndpointSpec::Name("home.example".into(), 51_820);
    assert_eq!(interface.public_endpoints, [EndpointSpec::Address("203.0.113.9:4000".parse().unwrap()), home]);
    assert_eq!((interface.port_mapping, interface.nat), (Some(false), Some(true)));
    let gateway = config.gateway().unwrap();
    assert_eq!(gateway.pools, ["10.0.0.0/24", "fd00::/64"].map(|net| net.parse().unwrap()));
    assert_eq!(gateway.networks, interface.announce);
    assert_eq!(good(&to_text(&config)).interface.handshake_on_up, Some(false));
    assert_eq!(interface.routing, Routing::Babel);
    assert_eq!(interface.announce, ["192.168.1.0/24", "fd01::/64"].map(|net| net.parse().unwrap()));
    let lan = Redistribute::Within("192.168.0.0/16".parse().unwrap());
    assert_eq!(interface.redistribute, [lan, Redistribute::Default]);
    let pins = interface.pins.iter().map(|pin| format!("{} {}", pin.prefix, *to_base64(&pin.key.0)));
    assert_eq!(pins.collect::<Vec<_>>(), [format!("10.7.0.5/32 {PEER}"), format!("fd07::/64 {OTHER}")]);
    let again = good(&to_text(&config)).interface;
    assert_eq!((&again.redistribute, &again.pins), (&interface.redistribute, &interface.pins));
    assert_eq!(interface.source_check, SourceCheck::Log);
    assert_eq!(interface.node_name, NodeName::Is("gw-1".into()));
    assert_eq!(config.peers.iter().map(|peer| peer.role).collect::<Vec<_>>(), [Some(Role::Client), Some(Role::Router)]);
    assert_eq!(interface.pre_up, ["echo up # now"], "a hook keeps its #");
    assert_eq!(interface.post_up, ["a; b=c", "d"]);
    let [laptop, other] = &config.peers[..] else { panic!("two peers") };
    assert_eq!(laptop.name.as_deref(), Some("laptop of Zoë"));
    assert_eq!(laptop.preshared_key, Some(OTHER.parse().unwrap()));
    assert_eq!(laptop.endpoints, [EndpointSpec::Name("vpn.example.com".into(), 51_820).into()]);
    assert_eq!(laptop.allowed_ips.len(), 2);
    assert_eq!(laptop.persistent_keepalive, Some(Duration::from_secs(25)));
    assert_eq!(other.endpoints[1], EndpointSpec::Peer(laptop.public_key).into());
    assert_eq!((laptop.direct, other.direct), (None, Some(true)));
    assert_eq!((laptop.parity, other.parity), (None, Some(7)));
    assert!(other.name.is_none() && other.preshared_key.is_none() && other.allowed_ips.is_empty());
}

#[test]
fn what_wg_quick_tolerates() {
    let text = format!(
        "\u{feff}# a comment\r\n[INTERFACE] # here\r\n  privatekey={SECRET}#comment\r\nADDRESS = 10.0.0.1/24 10.0.0.2\r\n\
         address=,fd00::1,\r\nFwMark = off\r\n[peer]\r\npublicKEY\t=\t{PEER}\r\nAllowedIPs =\r\nallowedips = 10.1.0.0/16\r\n\
         PersistentKeepalive = off\r\nPresharedKey = AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=\r\n"
    );
    let said = said(&text);
    assert!(said.len() == 1 && said[0].contains("PresharedKey is all zeros"), "{said:?}");
    let config = parse(&text).0.expect("there is no error");
    assert_eq!(config.interface.addresses.len(), 3);
    assert_eq!(config.interface.fwmark, Some(0));
    assert_eq!(config.peers[0].allowed_ips, ["10.1.0.0/16".parse().unwrap()]);
    assert!(config.peers[0].preshared_key.is_none() && config.peers[0].persistent_keepalive.is_none());
}

#[test]
fn names_belong_to_the_peer_they_stand_at() {
    let names = |text: String| -> Vec<Option<String>> { good(&text).peers.into_iter().map(|peer| peer.name).collect() };
    let name = |name: &str| Some(name.to_owned());
    let other = format!("[Peer]\nPublicKey = {OTHER}");
    assert_eq!(names(peer(&format!("# Name = in\n\n# name=above\n{other}"))), [name("in"), name("above")]);
    assert_eq!(names(peer(&format!("# Name = in\n\n# Name = above\n\n{other}"))), [name("in"), name("above")]);
    assert_eq!(names(peer(&format!("## Name = above\n# and more\n{other}"))), [None, name("above")]);
    // Between two sections, the name belongs to the section on its side of the blank line.
    assert_eq!(names(peer(&format!("AllowedIPs =\n# Name = in\n\n{other}"))), [name("in"), None]);
    assert_eq!(names(peer(&format!("AllowedIPs =\n\n# Name = above\n\n{other}"))), [None, name("above")]);
    assert_eq!(names(peer("# Name = in\nAllowedIPs = ::1")), [name("in")]);
    assert_eq!(names(peer("# Name = last line")), [name("last line")]);
    assert_eq!(names(peer("# Name the peer = no").replace("[Peer]", "# Name =\n[Peer]")), [None]);
    assert_eq!(said(&peer("# Name = \u{1b}[31m")).len(), 1, "no escape sequence reaches a terminal");
    assert_eq!(said(&peer("# Name = a\nAllowedIPs=\n# Name = b")).len(), 1);
}

#[test]
fn what_is_no_pin_is_explained() {
    let babel = |lines: &str| said(&interface(&format!("Routing = babel\n{lines}")));
    let form = "[for example `Pin = 10.77.0.5/32 PUBLICKEY`; more of them after commas, or in lines of their own]";
    for text in ["10.7.0.5/32", PEER, &format!("{PEER} 10.7.0.5/32"), &format!("10.7.0.5/32 {PEER} {OTHER}")] {
        assert_eq!(
            babel(&format!("Pin = {text}")),
            [format!("error 4:7 Pin must be a prefix and a public key {form}")],
            "{text}"
        );
    }
    assert_eq!(
        babel("Pin = 10.7.0.5/32 xTIBA5rboUvnH4htodjb6e697QjLERt1NAB4mZqp8D"),
        [
            "error 4:19 Pin must be 32 bytes, which is 44 characters of base64; this has 42 characters [was a part of it lost \
             when it was copied?]"
        ]
    );
    assert_eq!(
        babel(&format!("Pin = 10.7.0.0/33 {PEER}, 10.8.0.0/16 AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=")),
        [
            "error 4:7 Pin has the prefix length /33 in `10.7.0.0/33` [IPv4 prefix lengths are 0 to 32]",
            "error 4:77 Pin has a key that is all zeros, which is no key",
        ]
    );
    // A prefix with host bits is the same prefix.
    assert_eq!(
        babel(&format!("Pin = 10.7.0.0/24 {PEER}\nPin = 10.7.0.9/24 {OTHER}, 10.7.0.0/24 {PEER}, 10.7.0.0/25 {OTHER}")),
        [
            "error 5:7 Pin gives 10.7.0.0/24 to another key than line 4 does [a prefix has one origin; remove one of them, or \
             pin parts of the prefix]",
            "warning 5:65 Pin of 10.7.0.0/24 is given twice, first in line 4 [remove one of them]",
        ]
    );
    assert_eq!(
        said(&interface(&format!("Pin = 10.7.0.0/24 {PEER}"))),
        ["warning 3:7 Pin has no effect without a routing protocol [`Routing = babel` in [Interface] starts one]"]
    );
}

#[test]
fn what_cannot_be_redistributed_is_explained() {
    assert_eq!(
        said(&interface("Routing = babel\nRedistribute = all, DEFAULT 10.0.0.0/33, ::/0")),
        [
            "error 4:16 Redistribute must be prefixes such as 192.168.0.0/16, or `default`, not `all`",
            "error 4:29 Redistribute has the prefix length /33 in `10.0.0.0/33` [IPv4 prefix lengths are 0 to 32]",
        ]
    );
    assert_eq!(
        said(&interface("Redistribute = default")),
        [
            "warning 3:16 Redistribute has no effect without a routing protocol [`Routing = babel` in [Interface] starts one]"
        ]
    );
}

#[test]
fn keys_of_routing_need_routing() {
    assert_eq!(
        said(&interface(&format!("Routing = ospf\nAnnounce = 10.0.0.0/33\n[Peer]\nPublicKey = {PEER}\nRole = king"))),
        [
            "error 3:11 Routing must be `static`, `members` or `babel`, not `ospf`",
            "error 4:12 Announce has the prefix length /33 in `10.0.0.0/33` [IPv4 prefix lengths are 0 to 32]",
            "warning 4:12 Announce has no effect without a routing protocol [`Routing = babel` in [Interface] starts one]",
            "error 7:8 Role must be `router` or `client`, not `king`",
            "warning 7:8 Role has no effect without a routing protocol [`Routing = babel` in [Interface] starts one]",
        ]
    );
    for engine in ["babel", "members"] {
        let two = format!(
            "Routing = {engine}\n[Peer]\nPublicKey = {PEER}\nAllowedIPs = 10.0.0.0/8\n[Peer]\nPublicKey = {OTHER}\nAllowedIPs = 10.0.0.0/8"
        );
        good(&interface(&two));
    }
    assert_eq!(
        said(&interface("SourceCheck = off\nSourceCheck = strict")),
        [
            "warning 3:15 SourceCheck has no effect without a routing protocol [`Routing = babel` in [Interface] starts one]",
            "warning 4:1 SourceCheck is given twice, first in line 3 [the last one counts; remove the other]",
            "error 4:15 SourceCheck must be `enforce`, `log` or `off`, not `strict`",
            "warning 4:15 SourceCheck has no effect without a routing protocol [`Routing = babel` in [Interface] starts one]",
        ]
    );
    let again = |line: u8| {
        format!("warning {line}:1 ListenPort is given twice, first in line 3 [the last one counts; remove the other]")
    };
    assert_eq!(said(&interface("ListenPort = 1\nListenPort = 2\nListenPort = 3")), [again(4), again(5)]);
    for (text, name) in [
        ("", NodeName::Host),
        ("NodeName = OFF", NodeName::Off),
        ("NodeName = gw-1.b_2", NodeName::Is("gw-1.b_2".into())),
    ] {
        let config = good(&interface(&format!("Routing = babel\n{text}")));
        assert_eq!(config.interface.node_name, name);
        assert_eq!(good(&to_text(&config)).interface.node_name, name);
    }
    for bad in ["Zo\u{eb}", "a b", "-a", "\u{202e}a", &*"a".repeat(64)] {
        let said = said(&interface(&format!("Routing = babel\nNodeName = {bad}")));
        assert!(
            said.len() == 1 && said[0].contains("NodeName must be `off`, or 1 to 63 of the characters"),
            "{said:?}"
        );
    }
    for (text, mode) in [
        ("", SourceCheck::Enforce),
        ("SourceCheck = ENFORCE", SourceCheck::Enforce),
        ("SourceCheck = off", SourceCheck::Off),
    ] {
        let config = good(&interface(&format!("Routing = babel\n{text}")));
        assert_eq!(config.interface.source_check, mode);
        assert_eq!(good(&to_text(&config)).interface.source_check, mode);
    }
    assert_eq!(
        said(&interface(&format!("Routing = babel\n[Peer]\nPublicKey = {PEER}\nRole = client"))),
        ["warning 4:1 a client without AllowedIPs cannot be reached and cannot send"]
    );
}

#[test]
fn a_line_that_was_meant_well_has_one_error_with_its_remedy() {
    for (line, expected) in [
        (
            format!("PrivatKey = {PRIVATE}"),
            "error 2:1 there is no key `PrivatKey` in [Interface] [did you mean `PrivateKey`?]",
        ),
        (
            format!("PrivateKey {PRIVATE}"),
            "error 2:1 neither `[Section]` nor `Key = value` [did you mean `PrivateKey = …`?]",
        ),
        (
            format!("PrivateKey = \"{PRIVATE}\""),
            "error 2:14 PrivateKey must be 32 bytes, which is 44 characters of base64; character 1 is not base64 [values have no quotation marks: leave \
             them out]",
        ),
        (
            format!("PrivateKey = {PRIVATE}\nListenPort 51820"),
            "error 3:1 neither `[Section]` nor `Key = value` [did you mean `ListenPort = …`?]",
        ),
        (
            format!("PrivateKey = {PRIVATE}\n[Peer]\nPublicKey = {PEER}\nAllowed IP = 10.0.0.0/8"),
            "error 5:1 there is no key `Allowed IP` in [Peer] [did you mean `AllowedIPs`?]",
        ),
        (
            format!("PrivateKey = {PRIVATE}\n[Peer]\nPublcKey = {PEER}"),
            "error 4:1 there is no key `PublcKey` in [Peer] [did you mean `PublicKey`?]",
        ),
        (
            format!("PrivateKey = {PRIVATE}\nAddress = '10.0.0.1/24'"),
            "error 3:11 Address must be IP addresses such as 10.0.0.1/24 or fd00::1/64, not `'10.0.0.1/24'` [values have no quotation marks: leave \
             them out]",
        ),
    ] {
        assert_eq!(said(&format!("[Interface]\n{line}\n")), [expected], "{line}");
    }
}

#[test]
fn every_mistake_is_reported_at_its_place() {
    let text = format!(
        "ListenPort = 1\nMTU = 1\n[Interface]\nListenPrt = 51820\nListenPort = 70000\nPublicKey = x\nAddress = 10.0.0.1/33, nonsense\n\
         SaveConfig = maybe\nnonsense\n[Peers]\nWhatever = 1\n[Peer]\nPublicKey = !{PEER}\nEndpoint = 192.0.2.1\nName = x\n\
         AllowedIPs = 10.0.0.0/8, +10.0.0.0/8\n[Peer]\nPersistentKeepalive = 65536\nzzzzzz = 1\n"
    );
    let expected = [
        "error 1:1 `ListenPort` is before the first section [begin the file with `[Interface]`]",
        "error 3:1 `[Interface]` has no PrivateKey [`rustguard genkey` makes one: PrivateKey = …]",
        "error 4:1 there is no key `ListenPrt` in [Interface] [did you mean `ListenPort`?]",
        "error 5:14 ListenPort must be a number from 0 to 65535, not `70000`",
        "error 6:1 there is no key `PublicKey` in [Interface] [`PublicKey` belongs to [Peer]]",
        "error 7:11 Address has the prefix length /33 in `10.0.0.1/33` [IPv4 prefix lengths are 0 to 32]",
        "error 7:24 Address must be IP addresses such as 10.0.0.1/24 or fd00::1/64, not `nonsense`",
        "error 8:14 SaveConfig must be `true` or `false`, not `maybe`",
        "error 9:1 neither `[Section]` nor `Key = value` [a comment begins with `#`; a list continues in a new line that repeats its key]",
        "error 10:1 there is no section `[Peers]` [did you mean `[Peer]`?]",
        "error 13:13 PublicKey must be 32 bytes, which is 44 characters of base64; character 1 is not base64",
        "error 14:12 Endpoint has no port in `192.0.2.1` [add it: `192.0.2.1:51820`]",
        "error 15:1 there is no key `Name` in [Peer] [a name is a comment, which wg and wg-quick skip: `# Name = …`]",
        "error 16:26 AllowedIPs must be addresses, not the change `+10.0.0.0/8` [`+` and `-` change a running device (wg set); a file says what there is: `10.0.0.0/8`]",
        "error 17:1 `[Peer]` has no PublicKey [`rustguard pubkey` prints it for the peer's private key]",
        "error 18:23 PersistentKeepalive must be `off` or seconds from 0 to 65535, not `65536` [25 keeps most NATs and firewalls open]",
        "error 19:1 there is no key `zzzzzz` in [Peer] [the keys of [Peer] are PublicKey, PresharedKey, Endpoint, AllowedIPs, PersistentKeepalive, Direct, Parity, Role]",
    ];
    assert_eq!(said(&text), expected);
    assert!(parse(&text).0.is_none());
}

#[test]
fn what_only_the_whole_shows() {
    let public = to_base64(&good(&interface("")).interface.private_key.unwrap().public_key().0);
    for (text, expected) in [
        (peer(&format!("[Peer]\nPublicKey={PEER}")), "error 6:11 the peer with this PublicKey is in line 4 already"),
        (interface(&format!("[Peer]\nPublicKey={}", *public)), "warning 4:11 this PublicKey is the interface's own"),
        (
            peer(&format!("AllowedIPs=10.0.0.0/8\n# Name = b\n[Peer]\nPublicKey={OTHER}\nAllowedIPs=::/0,10.0.0.0/8")),
            "warning 9:17 AllowedIPs 10.0.0.0/8 is another peer's, in line 5",
        ),
        (peer("AllowedIPs = 10.0.0.7/24"), "warning 5:14 AllowedIPs `10.0.0.7/24` is the network 10.0.0.0/24"),
        (
            interface("Address=10.0.0.1/8\nAddress=10.0.0.1/8"),
            "error 4:9 Address `10.0.0.1/8` is given twice, first in line 3",
        ),
        (interface("MTU = 1279\nAddress = ::1"), "warning 3:7 MTU 1279 is too small for the IPv6 address"),
        (interface("MTU = 1\n"), "error 3:7 MTU must be a number from 576 to 65535, not `1`"),
        (interface("ListenPort = 1\nlistenport = 2"), "warning 4:1 ListenPort is given twice, first in line 3"),
        (
            interface("ListenAddress = 192.0.2.1\nListenAddress = 192.0.2.2"),
            "error 4:17 ListenAddress has a second IPv4 address after 192.0.2.1: `192.0.2.2`",
        ),
        (interface("ListenPort = 5, 6, 5"), "error 3:20 ListenPort has the port 5 twice [give each port once]"),
        (interface("ListenPort = 5, 0"), "error 3:17 ListenPort has 0 among several ports"),
        (interface("ListenPort = 0, 5"), "error 3:17 ListenPort has 0 among several ports"),
        (interface("ListenPort = 1,2,3,4,5,6,7,8,9"), "error 3:30 ListenPort has more than 8 ports"),
        (interface("ListenAddress = 192.0.2.1:51820"), "error 3:17 ListenAddress must be addresses of this host"),
        (interface("ListenAddress = 224.0.0.1"), "error 3:17 ListenAddress must be addresses of this host"),
        (interface("ListenAddress = fe80::1"), "error 3:17 ListenAddress must be addresses of this host"),
        (
            interface("Nat = on"),
            "warning 3:7 Nat has no effect without a network behind this machine [`Announce = 192.168.1.0/24` names one]",
        ),
        (interface("PortMapping = maybe"), "error 3:15 PortMapping must be `on` or `off`, not `maybe`"),
        (interface("PublicEndpoint = home.example"), "error 3:18 PublicEndpoint has no port in `home.example`"),
        (
            interface("PublicEndpoint = a.b:1, a.b:2\nPublicEndpoint = a.b:3, a.b:4"),
            "error 4:25 PublicEndpoint has more than 3: `a.b:4`",
        ),
        (interface("MTU ="), "warning 3:6 MTU has no value"),
        (interface("PostUp ="), "warning 3:9 PostUp has no command"),
        (interface("").replace(SECRET, &(["A"; 43].concat() + "=")), "error 2:14 PrivateKey is all zeros"),
        (String::new(), "error 1:1 there is no `[Interface]`"),
    ] {
        let said = said(&text);
        assert!(said.len() == 1 && said[0].starts_with(expected), "{text}\n{said:#?}");
    }
    good("[Interface]\nPostUp = wg set %i private-key /etc/wireguard/%i.key");
    // Longest-prefix routing permits a prefix within another peer's prefix.
    good(&peer(&format!("AllowedIPs=10.0.0.0/8\n[Peer]\nPublicKey={OTHER}\nAllowedIPs=10.0.0.0/16")));
}

#[test]
fn no_secret_is_shown() {
    let text = format!(
        "\u{feff}[Interface]\r\nPrivateKey = {SECRET} x\nPrivatKey={SECRET}\npresharedkey = short\n{SECRET}\nPublicKey = {PEER}\n# é"
    );
    let redacted = redact(&text);
    assert!(!redacted.contains("YAnz") && !redacted.contains("short") && redacted.contains(PEER), "{redacted}");
    assert_eq!(redacted.len(), text.len());
    assert_eq!(redacted.lines().count(), text.lines().count());
    for diagnostic in parse(&text).1 {
        assert!(!diagnostic.message.contains("YAnz"), "{diagnostic:?}");
    }
}

/// A private key in the wrong line is not shown, whole or without its end. The expected value is shown.
#[test]
fn a_key_in_the_place_of_another_value_is_not_shown() {
    for key in
        ["MTU", "ListenPort", "Address", "DNS", "FwMark", "Table", "SaveConfig", "ListenAddress", "NodeName", "Pin"]
    {
        for value in [SECRET.to_owned(), SECRET[..36].to_owned(), format!("{SECRET}/24"), format!("10.0.0.1, {SECRET}")]
        {
            let text = format!("[Interface]\n{key} = {value} # {SECRET}\n");
            let (_, diagnostics) = parse(&text);
            assert!(!diagnostics.is_empty(), "{text}");
            for Diagnostic { message, help, .. } in diagnostics {
                assert!(!format!("{message}{help:?}").contains("YAnz"), "{message} {help:?}");
            }
            // Pins have public keys.
            let shown = if key == "Pin" { redact(&text).replacen("YAnz", "", 1) } else { redact(&text) };
            assert!(!shown.contains("YAnz"), "{shown}");
        }
    }
    for key in ["Endpoint", "AllowedIPs", "PersistentKeepalive", "Role"] {
        let (_, diagnostics) = parse(&peer(&format!("{key} = {SECRET}:51820")));
        let said = format!("{diagnostics:?}");
        assert!(!said.contains("YAnz") && said.contains("looks like a key"), "{said}");
    }
    let host = "d41d8cd98f00b204e9800998ecf8427e-and-more.example.org";
    let text = peer(&format!("Endpoint = {host}"));
    assert!(parse(&text).1[0].message.contains(host) && redact(&text).contains(host));
}

#[test]
fn of_two_lines_with_endpoints_the_last_one_counts() {
    let text = peer("Endpoint = 192.0.2.1:1, 192.0.2.2:2\nEndpoint = 192.0.2.3:3, 192.0.2.1:1");
    let twice = "warning 6:1 Endpoint is given twice, first in line 5 [the last one counts; remove the other]";
    assert_eq!(said(&text), [twice]);
    let endpoints = parse(&text).0.unwrap().peers.remove(0).endpoints;
    assert_eq!(endpoints.iter().map(ToString::to_string).collect::<Vec<_>>(), ["192.0.2.3:3", "192.0.2.1:1"]);
}

/// Root may check any file by mistake.
#[test]
fn nothing_of_another_file_is_shown() {
    for text in [
        "root:$6$salt$hash:20228:0:99999:7:::\n",
        "[client]\npassword = hunter2\n",
        "<html>hash</html>",
        "hunter2=hash",
    ] {
        let redacted = redact(text);
        assert!(redacted.chars().all(|c| c == '*' || c == '\n'), "{redacted}");
        let (config, diagnostics) = parse(text);
        assert!(config.is_none() && diagnostics.len() == 1, "{diagnostics:?}");
        let said = format!("{}{:?}", diagnostics[0].message, diagnostics[0].help);
        assert!(!said.contains("hash") && !said.contains("hunter2") && !said.contains("password"), "{said}");
    }
    // A misspelt section is still ours.
    assert!(parse(&format!("[Interfac]\nPrivateKey = {SECRET}\n")).1.iter().any(|d| d.message.contains("Interfac")));
}

#[test]
fn written_and_read_again() {
    let config = good(&full());
    let text = to_text(&config);
    assert_eq!(*to_text(&good(&text)), *text);
    let mut named = config.clone();
    named.peers[0].name = Some("x\nPostUp = evil".into());
    assert!(!to_text(&named).contains("evil"));
    assert_eq!(text.capacity(), to_text(&config).capacity());
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("wg0.conf");
    std::fs::write(&path, "old").unwrap();
    std::os::unix::fs::symlink(&path, directory.path().join("link")).unwrap();
    write(&directory.path().join("link"), &config).unwrap();
    assert_eq!(std::fs::read_to_string(&path).unwrap(), *text);
    assert!(!readable_by_others(&path).unwrap());
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 2, "no temporary file is left");
}

#[test]
fn saving_keeps_what_the_device_does_not_know() {
    let config = good(&full());
    let mut peer = PeerStatus::new(config.peers[0].public_key);
    peer.endpoint = Some("192.0.2.1:1".parse().unwrap());
    peer.allowed_ips = vec!["10.9.0.0/16".parse().unwrap()];
    let mut status = Status::default();
    status.peers.push(peer);
    status.listen_port = 4444;
    let secrets = Secrets::new(config.interface.private_key.clone(), []);
    let saved = config.with_device(Config::of_device(&status, &secrets));
    assert_eq!(to_text(&saved).contains("PrivateKey"), to_text(&config).contains("PrivateKey"));
    assert_eq!((saved.interface.listen_port, saved.interface.fwmark), (Some(4444), None));
    assert_eq!(saved.interface.post_up, config.interface.post_up);
    let [peer] = &saved.peers[..] else { panic!("one peer is left") };
    assert_eq!(peer.name.as_deref(), Some("laptop of Zoë"));
    assert_eq!(peer.endpoints, [EndpointSpec::Name("vpn.example.com".into(), 51_820).into()]);
    assert!(peer.preshared_key.is_none() && peer.persistent_keepalive.is_none());
    assert_eq!(peer.allowed_ips, ["10.9.0.0/16".parse().unwrap()]);
}

/// For any input: no panic, every span is within one line of the text, and an accepted file stays the same after
/// writing and reading.
fn holds(text: &str) {
    let (config, diagnostics) = parse(text);
    let redacted = redact(text);
    assert_eq!(redacted.len(), text.len());
    for diagnostic in &diagnostics {
        let Span { line, column, bytes } = &diagnostic.span;
        let piece = text.get(bytes.clone()).expect("a span on character boundaries");
        assert!(redacted.is_char_boundary(bytes.start) && redacted.is_char_boundary(bytes.end));
        assert!(*line >= 1 && *column >= 1 && !piece.contains('\n'));
        assert!(diagnostic.message.chars().all(|c| c != '\n'));
    }
    let broken = diagnostics.iter().any(|diagnostic| diagnostic.severity == Severity::Error);
    assert_eq!(config.is_none(), broken);
    if let Some(config) = config {
        let written = to_text(&config);
        let again = parse(&written).0.expect("what is written can be read");
        assert_eq!(*to_text(&again), *written);
    }
}

proptest! {
    #[test]
    fn any_text_is_answered(text in any::<String>()) {
        holds(&text);
    }

    #[test]
    fn any_bytes_are_answered(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        holds(&String::from_utf8_lossy(&bytes));
    }

    #[test]
    fn a_damaged_file_is_answered(cuts in proptest::collection::vec((any::<proptest::sample::Index>(), 0..8_usize, "[ -~\n\r\té\u{feff}]{0,6}"), 1..6)) {
        let mut text: Vec<char> = full().chars().collect();
        for (at, length, new) in cuts {
            let at = at.index(text.len());
            text.splice(at..(at + length).min(text.len()), new.chars());
        }
        holds(&String::from_iter(text));
    }
}

/// Valid settings that cannot work: one message each, at its position.
#[test]
fn what_cannot_work_is_pointed_out() {
    let far = "ListenPort = 51820\nAddress = 10.8.0.1/24";
    let with = |lines: &str, peer: &str| interface(&format!("{lines}\n[Peer]\nPublicKey = {PEER}\n{peer}"));
    for (text, expected) in [
        (
            with(far, "Endpoint = 192.0.2.1:51820"),
            "warning 5:1 a peer without AllowedIPs sends nothing and receives nothing",
        ),
        (
            with("Address = 10.8.0.1/24", "AllowedIPs = 10.8.0.2/32"),
            "warning 4:1 neither side can begin: the peer has no Endpoint, and [Interface] has no ListenPort",
        ),
        (
            with(
                "ListenPort = 0",
                &format!("AllowedIPs = 10.8.0.2/32\n[Peer]\nPublicKey = {OTHER}\nAllowedIPs = 10.8.0.3/32"),
            ),
            "warning 4:1 neither side can begin: this peer and 1 more have no Endpoint",
        ),
        (
            with(far, "AllowedIPs = 10.8.0.2/32, 10.8.0.1/32"),
            "warning 7:27 AllowedIPs 10.8.0.1/32 is this interface's own Address, in line 4",
        ),
        (
            with(far, "AllowedIPs = 192.0.2.0/24\nEndpoint = 192.0.2.1:51820"),
            "warning 8:12 Endpoint 192.0.2.1:51820 is in the peer's own AllowedIPs 192.0.2.0/24, so its route leads into the tunnel",
        ),
        (
            with(far, "AllowedIPs = 0.0.0.0/1, 128.0.0.0/1\nEndpoint = 192.0.2.1:51820"),
            "warning 8:12 Endpoint 192.0.2.1:51820 is in the peer's own AllowedIPs 128.0.0.0/1",
        ),
        (
            with(far, "AllowedIPs = 0.0.0.0/0\nEndpoint = 10.8.0.2:51820"),
            "warning 8:12 Endpoint 10.8.0.2:51820 is inside the tunnel, in the network of Address 10.8.0.1/24",
        ),
        (
            with(&format!("{far}\nDNS = 10.0.0.53, corp.example"), "AllowedIPs = 10.8.0.0/24"),
            "warning 5:7 DNS 10.0.0.53 is a private address that no peer has in its AllowedIPs",
        ),
        (
            with(far, &format!("AllowedIPs = 10.8.0.2/32\nPresharedKey = {}=", "A".repeat(43))),
            "warning 8:16 PresharedKey is all zeros, which means that there is none",
        ),
    ] {
        let said = all_said(&text);
        assert!(said.len() == 1 && said[0].starts_with(expected), "{text}\n{said:#?}");
        assert!(parse(&text).0.is_some(), "a hook or `set` may change it: {text}");
    }
}

/// Files as they are in use, which must cause no warnings.
#[test]
fn what_works_is_not_complained_about() {
    let with = |lines: &str, peer: &str| interface(&format!("{lines}\n[Peer]\nPublicKey = {PEER}\n{peer}"));
    for text in [
        // A provider's file: the endpoint is inside a default route, and the resolver inside the tunnel.
        with(
            "Address = 10.64.0.7/32, fc00:bbbb::7/128\nDNS = 10.64.0.1",
            "AllowedIPs = 0.0.0.0/0, ::/0\nEndpoint = 192.0.2.1:51820",
        ),
        // Only one network goes into the tunnel, and names are resolved by a public server.
        with("Address = 10.8.0.2/24\nDNS = 9.9.9.9", "AllowedIPs = 10.8.0.0/24\nEndpoint = vpn.example.com:51820"),
        // A hub, whose address is in its own network.
        with("Address = 10.8.0.1/24\nListenPort = 51820\nDNS = 10.8.0.1", "AllowedIPs = 10.8.0.2/32"),
        with("Address = 10.8.0.2/32", "AllowedIPs = 10.8.0.0/24\nEndpoint = 192.0.2.1:51820"),
        // A user who sets routes and marks needs no warning about them.
        with("Table = off", "AllowedIPs = 192.0.2.0/24\nEndpoint = 192.0.2.1:51820"),
        with("FwMark = 7", "AllowedIPs = 192.0.2.0/24\nEndpoint = 192.0.2.1:51820"),
        with("PostUp = ip route add 192.0.2.1 via 10.0.0.1", "AllowedIPs = 0.0.0.0/1\nEndpoint = 192.0.2.1:51820"),
        with("", "AllowedIPs = 192.0.2.0/24\nEndpoint = 192.0.2.1:51820 via eth1"),
        with("Routing = babel", "AllowedIPs = 192.0.2.0/24\nEndpoint = 192.0.2.1:51820"),
        with("PostUp = wg set %i listen-port $PORT", "AllowedIPs = 10.8.0.2/32"),
        with("PostUp = wg set %i peer X endpoint $HERE", "AllowedIPs = 10.8.0.2/32"),
        with("ListenPort = 1\nPostUp = wg set %i peer X allowed-ips $THEIRS", ""),
        // Two tunnels, one inside the other: the endpoint of one peer is behind another.
        with(
            "ListenPort = 1",
            &format!(
                "AllowedIPs = 192.0.2.0/24\n[Peer]\nPublicKey = {OTHER}\nAllowedIPs = 10.0.0.0/8\nEndpoint = 192.0.2.1:1"
            ),
        ),
    ] {
        assert_eq!(all_said(&text), [""; 0], "{text}");
    }
}

/// Input that wg and wg-quick accept beyond their documentation: wg ignores blanks, and `ip address add` accepts
/// netmasks.
#[test]
fn blanks_and_netmasks_are_read_as_wg_and_ip_do() {
    let key = "gN65BkIKy1eCE9pP1wdc8ROUtkHLF2PfAqYdyYBz6EA=";
    let text = format!(
        "[ Interface ]\nPrivate Key = {key}\nAddress = 10.0.0.1/255.255.255.0\n[ Peer ]\nPublic Key={key}\nAllowed IPs = 10.0.0.2/32 , \
         10.1.0.0/16\nEndpoint = 203.0.113.7 : 51820\nPersistent Keepalive = 25\n"
    );
    let (config, diagnostics) = parse(&text);
    assert!(diagnostics.is_empty(), "{diagnostics:?}");
    let config = config.unwrap();
    assert_eq!(config.interface.addresses, ["10.0.0.1/24".parse().unwrap()]);
    let peer = &config.peers[0];
    assert_eq!((peer.allowed_ips.len(), peer.endpoints[0].to_string()), (2, "203.0.113.7:51820".to_owned()));
    for (endpoint, expected) in [
        ("[2001:db8::1] : 51820", Some("[2001:db8::1]:51820")),
        ("vpn.example.org :51820 weight 2", Some("vpn.example.org:51820 weight 2")),
        ("203.0.113.7 : 51820, 203.0.113.8:\t51820", Some("203.0.113.7:51820 203.0.113.8:51820")),
        ("203.0.113.7 51820", None),
    ] {
        let (config, _) = parse(&text.replace("203.0.113.7 : 51820", endpoint));
        let endpoints = config
            .map(|config| config.peers[0].endpoints.iter().map(ToString::to_string).collect::<Vec<_>>().join(" "));
        assert_eq!(endpoints.as_deref(), expected, "{endpoint}");
    }
    let secret = text.replacen(key, SECRET, 1);
    assert!(secret.contains(SECRET) && !redact(&secret).contains(SECRET), "{}", redact(&secret));
    for mask in ["255.255.0.255", "255.255.255", "255.255.255.256"] {
        assert!(parse(&text.replace("255.255.255.0", mask)).0.is_none(), "{mask}");
    }
}

/// Each order of the table has every key once.
#[test]
fn the_orders_of_the_keys_have_the_same_keys() {
    fn sorted<S: keys::Section>(order: keys::Order<S>) -> Vec<&'static str> {
        let mut names: Vec<_> = keys::all(order).map(|key| key.form.name).filter(|name| *name != "Name").collect();
        names.sort_unstable();
        names
    }

    fn check<S: keys::Section>() {
        let listed = sorted(S::LISTED);
        assert!(listed.windows(2).all(|pair| pair[0] != pair[1]), "{listed:?}");
        for order in [S::PRINTED, S::TOLD, S::RESTARTED] {
            assert_eq!(sorted(order), listed);
        }
    }
    check::<Interface>();
    check::<Peer>();
}
