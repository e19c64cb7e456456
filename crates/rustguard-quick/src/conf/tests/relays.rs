//! Endpoints that lead through a peer.

use super::*;

const HUB: &str = "gN65BkIKy1eCE9pP1wdc8ROUtkHLF2PfAqYdyYBz6EA=";

/// A file with three peers and these endpoints: `far`, `office` and one without a name.
fn file(far: &str, office: &str, third: &str) -> String {
    let endpoint = |text: &str| if text.is_empty() { String::new() } else { format!("Endpoint = {text}\n") };
    interface(&format!(
        "# Name = far\n[Peer]\nPublicKey = {PEER}\n{}\n# Name = office\n[Peer]\nPublicKey = {OTHER}\n{}\n[Peer]\n\
         PublicKey = {HUB}\n{}",
        endpoint(far),
        endpoint(office),
        endpoint(third)
    ))
}

fn key(text: &str) -> PublicKey {
    PublicKey(*value::key(text).unwrap())
}

fn mtu(line: &str) -> String {
    file("via-peer office", "192.0.2.1:1", "").replace("PrivateKey", &format!("{line}\nPrivateKey"))
}

#[test]
fn a_relay_is_named_by_its_name_or_its_key_in_any_order() {
    for endpoint in ["via-peer office", "VIA-PEER  office", &format!("via-peer {OTHER}")] {
        let config = good(&file(endpoint, "192.0.2.1:1", ""));
        assert_eq!(config.peers[0].endpoints, [EndpointSpec::Peer(key(OTHER)).into()], "{endpoint}");
    }
    let config = good(&file("192.0.2.7:1", "192.0.2.1:1 via eth0, via-peer far weight 2, 192.0.2.2:1 weight 1", ""));
    let written = config.peers[1].endpoints.iter().map(ToString::to_string).collect::<Vec<_>>();
    assert_eq!(written, ["192.0.2.1:1 via eth0", &format!("via-peer {PEER} weight 2"), "192.0.2.2:1 weight 1"]);
    // A relay without an endpoint is reached at the address from which it calls. A relay with an address may have other
    // ways too.
    good(&file("via-peer office", "", ""));
    good(&file("192.0.2.7:1, via-peer office", "192.0.2.1:1, via-peer far", ""));
    good(&file("via-peer office pinned", "192.0.2.1:1", ""));
}

#[test]
fn a_name_may_have_blanks_and_options_are_no_part_of_it() {
    let named =
        |name: &str, far: &str| file(far, "192.0.2.1:1", "").replace("# Name = office", &format!("# Name = {name}"));
    for (far, policy) in [
        ("via-peer head office", PathPolicy::Best),
        ("via-peer head office  Weight 7, 192.0.2.9:1 weight 1", PathPolicy::Weighted(7)),
        ("via-peer head office PINNED", PathPolicy::Pinned),
    ] {
        let path = good(&named("head office", far)).peers[0].endpoints[0].clone();
        assert_eq!((path.endpoint, path.policy), (EndpointSpec::Peer(key(OTHER)), policy), "{far}");
    }
    // A name that ends like an option is written as the key.
    for name in ["all pinned", "pinned", "a weight 2", "shop via town"] {
        let config = good(&named(name, &format!("via-peer {OTHER}")));
        let written = to_text(&config);
        assert!(written.contains(&format!("\nEndpoint = via-peer {OTHER}\n")), "{}", *written);
        assert_eq!(good(&written).peers[0].endpoints, config.peers[0].endpoints);
    }
}

#[test]
fn a_relay_is_written_by_its_name_where_one_peer_has_it() {
    let text = file(&format!("192.0.2.9:1, via-peer {OTHER} weight 3, 192.0.2.8:1 weight 1"), "192.0.2.1:1", "");
    let config = good(&text);
    let written = to_text(&config);
    assert!(
        written.contains("\nEndpoint = 192.0.2.9:1, via-peer office weight 3, 192.0.2.8:1 weight 1\n"),
        "{}",
        *written
    );
    assert_eq!(good(&written).peers[0].endpoints, config.peers[0].endpoints);
    let mut twice = config.clone();
    twice.peers[2].name = Some("office".into());
    assert!(to_text(&twice).contains(&format!("via-peer {OTHER} weight 3")));
    let mut odd = config;
    odd.peers[1].name = Some("a, b".into());
    assert!(to_text(&odd).contains(&format!("via-peer {OTHER} weight 3")), "a name that no file can hold");
}

#[test]
fn a_wrong_relay_is_named_with_its_remedy() {
    for (far, office, third, expected) in [
        (
            "via-peer ofice",
            "192.0.2.1:1",
            "",
            "error 6:12 Endpoint goes through `ofice`, and no peer here has this name [did you mean `office`?]",
        ),
        (
            "via-peer somewhere else",
            "",
            "",
            "error 6:12 Endpoint goes through `somewhere else`, and no peer here has this name [the name is that of the comment \
             `# Name = …` above another [Peer]; a public key works too]",
        ),
        (
            "192.0.2.1:1, via-peer far",
            "",
            "",
            "error 6:25 Endpoint leads to the peer through the peer itself [name another peer of this file behind `via-peer`]",
        ),
        (
            "via-peer office",
            "via-peer far",
            "",
            "error 6:12 Endpoint leads in a circle: `far` through `office` through `far` [a relay is reached at an address: give \
             `office` an address among its Endpoints]",
        ),
        (
            "via-peer office",
            &format!("via-peer {HUB}"),
            "192.0.2.1:1",
            "error 6:12 Endpoint leads through `office`, which has no address itself (through the peer in line 13) [a relay is \
             reached at an address: give `office` an address among its Endpoints]",
        ),
        ("via-peer", "", "", "error 6:12 Endpoint has no peer behind `via-peer` [the name or the public key"),
        ("via-peer pinned", "", "", "error 6:12 Endpoint has no peer behind `via-peer` ["),
        (
            "via-peer office via eth0",
            "",
            "",
            "error 6:12 Endpoint has `via INTERFACE` behind `via-peer` [datagrams leave",
        ),
        (
            "via-peer office weight 0",
            "",
            "",
            "error 6:12 Endpoint has the weight `0` in `via-peer office weight 0`; weights are numbers",
        ),
        (
            "via office",
            "",
            "",
            "error 6:12 Endpoint has no address before `via` in `via office` [`via INTERFACE` goes behind an address; a way \
             through another peer is `via-peer NAME`]",
        ),
        ("via-peer office weight 1 pinned", "", "", "error 6:12 Endpoint says two things at once behind `via-peer` ["),
        (
            "via-peer office, via-peer office",
            "",
            "",
            "error 6:29 Endpoint leads through one peer twice [remove one of them]",
        ),
        (
            "192.0.2.1:1 via-peer office",
            "",
            "",
            "error 6:12 Endpoint has an address and `via-peer` in `192.0.2.1:1 via-peer office` [they are two endpoints, with a \
             comma in between: `192.0.2.1:1, via-peer NAME`]",
        ),
        ("via-peer xTIBA5rboUvnH4htodjb6e697QjLERt1NAB4mZqp8D=", "", "", "error 6:12 Endpoint must be 32 bytes"),
        (
            &format!("via-peer {}", *to_base64(&[7; 32])),
            "",
            "",
            "error 6:12 Endpoint leads through a peer that this file does not have [add a [Peer] section",
        ),
    ] {
        let said = said(&file(far, office, third));
        assert!(said.first().is_some_and(|said| said.starts_with(expected)), "{far}: {said:#?}");
    }
    let twice = file("via-peer office", "", "")
        .replace("[Peer]\nPublicKey = gN65", "# Name = office\n[Peer]\nPublicKey = gN65");
    assert_eq!(
        said(&twice),
        [
            "error 6:12 Endpoint goes through `office`, and several peers have this name [give them different names, or write the \
          public key of the one that is meant]"
        ]
    );
    let own = value::key(SECRET).unwrap();
    let own = to_base64(&StaticSecret::from_bytes(*own).public_key().0);
    assert!(said(&file(&format!("via-peer {}", *own), "", ""))[0].contains("through this interface itself"));
}

/// Peers that form a loop, and another peer that leads into the loop.
#[test]
fn a_circle_elsewhere_ends_the_search() {
    let text = file("via-peer office", &format!("via-peer {HUB}"), "via-peer office");
    let said = said(&text);
    assert_eq!(said.len(), 3, "{said:#?}");
    assert!(said[0].contains("leads through `office`, which has no address itself"), "{said:#?}");
    assert!(said[1].contains("in a circle: `office` through the peer in line 13 through `office`"), "{said:#?}");
}

#[test]
fn no_message_shows_a_key_behind_via_peer() {
    for endpoint in [format!("via-peer {SECRET}"), format!("via-peer {SECRET} x"), format!("via-peer {SECRET} via e")] {
        let text = file(&endpoint, "", "");
        let said = said(&text);
        assert!(!said.is_empty() && !said.iter().any(|said| said.contains(&SECRET[4..40])), "{said:#?}");
        assert!(!redact(&text).contains(&SECRET[4..40]));
    }
}

#[test]
fn switches_are_on_or_off() {
    let config = good(&interface("Forward = On"));
    assert_eq!(config.interface.forward, Some(true));
    assert!(to_text(&config).contains("\nForward = on\n"));
    assert_eq!(good(&peer("Direct = on")).peers[0].direct, Some(true));
    assert_eq!(said(&interface("Forward = yes")), ["error 3:11 Forward must be `on` or `off`, not `yes`"]);
    assert_eq!(
        said(&peer("Forward = on")),
        ["error 5:1 there is no key `Forward` in [Peer] [`Forward` belongs to [Interface]]"]
    );
}

#[test]
fn public_endpoints_that_nobody_is_told_or_tries_are_pointed_out() {
    let said = |endpoints: &str, far: &str| {
        let lines = format!("Address = 10.0.0.1/24\nPublicEndpoint = {endpoints}\nPrivateKey");
        said(&file(far, "192.0.2.1:1", "").replacen("PrivateKey", &lines, 1))
    };
    for (endpoint, words) in [
        ("127.0.0.1:5", "3:18 PublicEndpoint 127.0.0.1:5 is no address at which others could reach this machine"),
        ("home.example:5, 224.0.0.1:5", "3:34 PublicEndpoint 224.0.0.1:5 is no address"),
        ("[fe80::1]:5", "is no address"),
        ("0.0.0.0:5", "is no address"),
        ("10.0.0.9:5", "PublicEndpoint 10.0.0.9:5 is inside the tunnel, in the network of Address 10.0.0.1/24"),
    ] {
        let said = said(endpoint, "via-peer office");
        assert!(said.len() == 1 && said[0].starts_with("warning") && said[0].contains(words), "{said:?}");
    }
    // An office in a larger private network gives its address in that network.
    for endpoint in ["203.0.113.9:5, home.example:5", "192.168.9.9:5", "[2001:db8::9]:5"] {
        assert_eq!(said(endpoint, "via-peer office"), [""; 0], "{endpoint}");
    }
    assert_eq!(said("127.0.0.1:5", "192.0.2.7:1\nDirect = on").len(), 1);
    for far in ["192.0.2.7:1", "via-peer office\nDirect = off"] {
        let said = said("203.0.113.9:5", far);
        assert!(said.len() == 1 && said[0].contains("PublicEndpoint has no effect"), "{said:?}");
    }
}

#[test]
fn an_mtu_that_is_too_large_for_a_relay_is_pointed_out() {
    assert_eq!(
        said(&mtu("MTU = 1420")),
        [
            "warning 2:7 MTU 1420 is too large for an Endpoint through a peer: with both layers of WireGuard a packet has 1556 bytes \
          outside, and most networks carry 1500 [`MTU = 1360` fits; without the key, `up` computes it from the routes to the \
          endpoints]"
        ]
    );
    good(&mtu("MTU = 1360"));
    good(&mtu("MTU = 1364"));
    assert_eq!(said(&mtu("MTU = 1365")).len(), 1);
    good(&mtu("MTU = 1420").replace("via-peer office", "192.0.2.9:1"));
}

/// Settings that the device reports, and settings that it does not know.
#[test]
fn the_device_knows_whether_it_forwards_and_the_file_knows_the_relays() {
    let text = file("via-peer office", "192.0.2.1:1", "").replace("PrivateKey", "Forward = off\nPrivateKey");
    let config = good(&text);
    let mut device = config.clone();
    device.peers.iter_mut().for_each(|peer| peer.endpoints.clear());
    (device.peers[0].direct, device.interface.forward) = (None, Some(false));
    let saved = config.with_device(device.clone());
    assert_eq!((saved.interface.forward, &saved.peers[0].endpoints), (Some(false), &config.peers[0].endpoints));
    device.interface.forward = Some(true);
    assert_eq!(config.with_device(device.clone()).interface.forward, Some(true));
    // Another implementation does not report it.
    device.interface.forward = None;
    assert_eq!(config.with_device(device).interface.forward, Some(false));
}
