//! `Network`, `Accept` and `Announce` of a member.

use super::*;

fn member(lines: &str) -> String {
    interface(&format!("{lines}\n[Peer]\nPublicKey = {PEER}"))
}

#[test]
fn the_keys_of_a_member_are_read_and_written() {
    let text = member(&format!(
        "Network = {OTHER}\nAccept = routes, DNS\nAccept = 192.168.1.7/24 default-route, fd00::/64\nAnnounce = 192.168.1.0/24"
    ));
    let config = good(&text);
    assert_eq!(config.interface.network, Some(NetworkKey(*value::key(OTHER).unwrap())));
    let accept = &config.interface.accept;
    assert!(accept.dns && accept.default_route && accept.routes);
    assert_eq!(accept.prefixes, ["192.168.1.0/24", "fd00::/64"].map(|net| net.parse().unwrap()));
    assert_eq!(config.interface.announce, ["192.168.1.0/24".parse().unwrap()]);
    let written = to_text(&config);
    assert!(written.contains(&format!("Network = {OTHER}\n")), "{}", *written);
    assert!(written.contains("Accept = dns, default-route, routes, 192.168.1.0/24, fd00::/64\n"), "{}", *written);
    assert!(keys::same(&good(&written), &config));
    assert!(!good(&member("")).interface.accept.routes, "everything is off by default");
}

#[test]
fn edits_keep_the_order_and_wg_reads_nothing_of_it() {
    let text = member(&format!("Network = {OTHER}\nAccept = routes, 10.0.0.1/8"));
    let mut config = good(&text);
    assert_eq!(**edit(&text, &config).unwrap(), *text, "nothing to change");
    config.interface.accept.dns = true;
    let edited = edit(&text, &config).unwrap();
    assert!(good(&edited).interface.accept.dns && edited.contains("routes, 10.0.0.1/8"), "{}", *edited);
    let stripped = strip(&text).unwrap();
    assert!(!stripped.contains("Network") && !stripped.contains("Accept"), "{}", *stripped);
}

#[test]
fn wrong_values_are_explained() {
    let network = format!("Network = {OTHER}\n");
    for (lines, expected) in [
        (
            "Network = rg0".to_owned(),
            "error 3:11 Network must be 32 bytes, which is 44 characters of base64; this has 3 characters \
             [was a part of it lost when it was copied?]",
        ),
        (
            format!("Network = {}", to_base64(&[0; 32]).as_str()),
            "error 3:11 Network is all zeros, which is no key [`rustguard join` writes it]",
        ),
        (
            format!("{network}Accept = route"),
            "error 4:10 Accept must be `dns`, `default-route`, `routes` or prefixes, not `route`",
        ),
        (
            format!("{network}Accept = yes"),
            "error 4:10 Accept must be `dns`, `default-route`, `routes` or prefixes, not `yes`",
        ),
        (
            format!("{network}Accept = 0.0.0.0/0"),
            "error 4:10 Accept has 0.0.0.0/0, which is a default route [write `default-route`]",
        ),
        (
            format!("{network}Accept = 10.0.0.0/40"),
            "error 4:10 Accept has the prefix length /40 in `10.0.0.0/40` [IPv4 prefix lengths are 0 to 32]",
        ),
        (
            "Accept = dns".to_owned(),
            "warning 3:10 Accept has no effect without a network [`rustguard join` writes `Network = …`, the key of the \
             network, in [Interface]]",
        ),
        (
            format!("{network}Routing = babel"),
            "error 3:11 Network and `Routing = babel` cannot be in one file [the roster of the network says where packets \
             go; give the mesh an interface of its own]",
        ),
        (
            format!("{network}{network}"),
            "warning 4:1 Network is given twice, first in line 3 [the last one counts; remove the other]",
        ),
    ] {
        assert_eq!(said(&member(&lines)), [expected], "{lines}");
    }
    let alone = interface(&network);
    assert!(said(&alone)[0].starts_with("warning 3:11 a member of a network without a [Peer]"), "{:?}", said(&alone));
}

/// A member has a routing engine without a `Routing` line, and a server does too.
#[test]
fn what_a_member_has_by_itself_is_not_called_missing() {
    let two = |lines: &str| {
        let peer = |key: &str| format!("[Peer]\nPublicKey = {key}\nAllowedIPs = 10.0.0.0/24\n");
        interface(&format!("Network = {OTHER}\n{lines}\n{}{}", peer(PEER), peer(OTHER)))
    };
    assert_eq!(said(&two("Announce = 192.168.1.0/24")), [""; 0]);
    assert_eq!(said(&two("Forward = on\nAnnounce = 192.168.1.0/24\nNodeName = hub")), [""; 0]);
    assert_eq!(
        said(&two("NodeName = hub")),
        ["warning 4:12 NodeName has no effect without a routing protocol [only the servers of a network have one]"]
    );
}

/// The device's peers come from the roster, which is not part of the user's file.
#[test]
fn a_member_saves_no_peers() {
    let config = good(&member(&format!("Network = {OTHER}")));
    let mut status = Status::default();
    status.peers = vec![PeerStatus::new(PublicKey([7; 32]))];
    status.listen_port = 4444;
    let saved = config.with_device(Config::of_device(&status, &Secrets::new(config.interface.private_key.clone(), [])));
    assert_eq!(saved.interface.listen_port, Some(4444));
    let keys: Vec<_> = saved.peers.iter().map(|peer| peer.public_key.to_string()).collect();
    assert_eq!(keys, [PEER]);
}
