use super::*;

const KEY: &str = "AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE=";

/// The base64 of 32 bytes.
fn key_of(byte: u8) -> String {
    key::to_base64(&[byte; 32]).to_string()
}

fn plan_of(files: &[(&str, String)], options: &ImportOptions) -> Result<Plan, ImportError> {
    let read =
        |(name, text): &(&str, String)| (PathBuf::from(name), crate::import::parse(text.as_bytes(), "wg0").unwrap());
    Plan::make(files.iter().map(read).collect(), options)
}

fn server(interface: &str, peers: &[&str]) -> String {
    let peers = peers
        .iter()
        .zip(2..)
        .map(|(peer, byte)| format!("\n# Name = p{byte}\n[Peer]\nPublicKey = {}\n{peer}\n", key_of(byte)));
    format!("[Interface]\nPrivateKey = {KEY}\nListenPort = 51820\n{interface}\n{}", peers.collect::<String>())
}

fn plan(interface: &str, peers: &[&str]) -> Result<Plan, String> {
    plan_of(&[("wg0.conf", server(interface, peers))], &ImportOptions::default()).map_err(|error| error.to_string())
}

fn refused(interface: &str, peers: &[&str], words: &str) {
    match plan(interface, peers) {
        Err(error) => assert!(error.contains(words), "{error}"),
        Ok(_) => panic!("taken: {interface}, {peers:?}"),
    }
}

fn pool_of(interface: &str, peers: &[&str]) -> Vec<String> {
    plan(interface, peers)
        .unwrap_or_else(|error| panic!("{error}"))
        .settings
        .pools
        .iter()
        .map(ToString::to_string)
        .collect()
}

#[test]
fn the_pool_is_the_network_of_the_address_and_the_server_keeps_its_own() {
    assert_eq!(
        pool_of("Address = 10.8.0.1/24, fd00::7/64", &["AllowedIPs = 10.8.0.2/32"]),
        ["10.8.0.1/24", "fd00::7/64"]
    );
    // Without a prefix length, the pool contains all peers, if that is possible.
    assert_eq!(pool_of("Address = 10.8.0.1", &["AllowedIPs = 10.8.0.2/32"]), ["10.8.0.1/24"]);
    assert_eq!(pool_of("Address = 10.8.0.1", &["AllowedIPs = 10.8.3.2/32"]), ["10.8.0.1/16"]);
    assert_eq!(pool_of("Address = 10.8.0.1", &["AllowedIPs = 172.16.0.2/32"]), ["10.8.0.1/24"]);
    assert_eq!(pool_of("Address = fd00::1", &[]), ["fd00::1/64"]);
    // The first or last address of a network is a host address only in a larger network.
    assert_eq!(pool_of("Address = 10.252.1.0/24", &["AllowedIPs = 10.252.1.1/32"]), ["10.252.1.0/23"]);
    assert_eq!(pool_of("Address = 10.8.0.255/24", &[]), ["10.8.0.255/23"]);
    // Of several pools, the one that contains the peers.
    assert_eq!(pool_of("Address = 192.168.9.1/24, 10.8.0.1/24", &["AllowedIPs = 10.8.0.2/32"]), ["10.8.0.1/24"]);
    refused("", &[], "no Address");
    let options = ImportOptions { pools: vec!["10.8.0.0/16".parse().unwrap()], ..ImportOptions::default() };
    let given = plan_of(&[("wg0.conf", server("Address = 10.8.3.9/24", &[]))], &options).unwrap();
    assert_eq!(given.settings.pools, ["10.8.3.9/16".parse().unwrap()]);
}

#[test]
fn what_is_behind_a_peer_stays_behind_it() {
    let plan = plan(
        "Address = 10.8.0.1/24",
        &[
            "AllowedIPs = 10.8.0.2/32, 192.168.1.0/24, fd00::2/128",
            "AllowedIPs = 192.168.2.0/24, 224.0.0.5/32",
            "AllowedIPs = 10.8.0.3/32, 0.0.0.0/0",
            "",
        ],
    )
    .unwrap_or_else(|error| panic!("{error}"));
    let leases: Vec<_> =
        plan.leases.iter().map(|lease| (lease.v4.map(|v4| v4.to_string()), lease.v6, list(&lease.admitted))).collect();
    let own = |address: &str| Some(address.to_owned());
    assert_eq!(
        leases,
        [
            (own("10.8.0.2"), None, "192.168.1.0/24, fd00::2/128".to_owned()),
            (None, None, "192.168.2.0/24".to_owned()),
            (own("10.8.0.3"), None, "0.0.0.0/0".to_owned()),
        ]
    );
    let notes = plan.notes.join("\n");
    for words in
        ["p3 has no address in the pool", "224.0.0.5/32 of p3 are left out", "p4 has a default route", "p5 is left out"]
    {
        assert!(notes.contains(words), "{words}: {notes}");
    }
}

#[test]
fn addresses_that_cannot_be_kept_are_refused_with_what_to_do() {
    let pool = "Address = 10.8.0.1/24";
    refused(
        pool,
        &["AllowedIPs = 10.8.0.2/32", "AllowedIPs = 10.8.0.2/32"],
        "10.8.0.2/32 is among the AllowedIPs of p2 and of p3",
    );
    refused(pool, &["AllowedIPs = 192.168.0.0/24", "AllowedIPs = 192.168.0.0/24"], "of p2 and of p3");
    refused(pool, &["AllowedIPs = 10.8.0.1/32"], "the address of the server itself");
    refused(pool, &["AllowedIPs = 10.8.0.2/32, 10.8.0.3/32"], "two addresses of one pool, 10.8.0.2 and 10.8.0.3");
    refused(pool, &["AllowedIPs = 10.8.0.16/28"], "lies in the pool 10.8.0.0/24");
    refused(pool, &["AllowedIPs = 10.8.0.0/24"], "write the peer's own address");
    refused(pool, &["AllowedIPs = 10.8.0.255/32"], "shorter prefix length");
    let own = StaticSecret::from_bytes([1; 32]).public_key();
    let text = server(pool, &["AllowedIPs = 10.8.0.2/32"]).replace(&key_of(2), &own.to_string());
    let error = plan_of(&[("wg0.conf", text)], &ImportOptions::default()).map(drop).unwrap_err().to_string();
    assert!(error.contains("the public key of the server itself"), "{error}");
}

#[test]
fn a_client_is_told_from_a_server() {
    let client = |more: &str, port: &str| {
        format!(
            "[Interface]\nPrivateKey = {KEY}\nAddress = 10.8.0.2/24\n{port}\n[Peer]\nPublicKey = {}\nEndpoint = vpn.example:51820\n{more}\n",
            key_of(2)
        )
    };
    let make = |text: String, port| {
        let options = ImportOptions { port, ..ImportOptions::default() };
        plan_of(&[("wg0.conf", text)], &options).map(drop).map_err(|error| error.to_string())
    };
    for text in [client("AllowedIPs = 10.8.0.0/16", ""), client("AllowedIPs = 0.0.0.0/0, ::/0", "ListenPort = 51820")] {
        let error = make(text, None).unwrap_err();
        assert!(error.contains("is the configuration of a client: its server is vpn.example:51820"), "{error}");
    }
    assert_eq!(make(client("AllowedIPs = 192.168.7.0/24", "ListenPort = 51820"), None), Ok(()), "site to site");
    assert_eq!(make(client("AllowedIPs = 192.168.7.0/24", ""), Some(7)), Ok(()));
    let silent = server("Address = 10.8.0.1/24", &["AllowedIPs = 10.8.0.2/32"]).replace("ListenPort = 51820\n", "");
    assert!(make(silent, None).unwrap_err().contains("no ListenPort"));
}

#[test]
fn several_files_are_one_server_or_none() {
    let text = server("Address = 10.8.0.1/24", &["AllowedIPs = 10.8.0.2/32"]);
    let make = |second: String| {
        let files = [("a.conf", text.clone()), ("b.conf", second)];
        plan_of(&files, &ImportOptions::default()).map_err(|error| error.to_string())
    };
    assert_eq!(
        make(text.replace("# Name = p2", "# Name = other")).unwrap_or_else(|error| panic!("{error}")).leases.len(),
        1
    );
    let more = server("Address = 10.8.0.1/24", &["AllowedIPs = 10.8.0.2/32", "AllowedIPs = 10.8.0.3/32"]);
    assert_eq!(make(more).unwrap_or_else(|error| panic!("{error}")).leases.len(), 2);
    let error = |second: String| make(second).map(drop).unwrap_err();
    assert!(error(text.replace(KEY, &key_of(9))).contains("they are two servers"));
    assert!(error(text.replace("51820", "51821")).contains("the one that clients know"));
    assert!(error(text.replace("10.8.0.2", "10.8.0.9")).contains("says other AllowedIPs"));
    let psk = format!("PublicKey = {}\nPresharedKey = {KEY}", key_of(2));
    assert!(error(text.replace(&format!("PublicKey = {}", key_of(2)), &psk)).contains("another PresharedKey"));
}

#[test]
fn the_digest_is_of_the_server_and_not_of_the_text() {
    let digest = |text: String| plan_of(&[("wg0.conf", text)], &ImportOptions::default()).unwrap().digest();
    let text = server("Address = 10.8.0.1/24", &["AllowedIPs = 10.8.0.2/32", "AllowedIPs = 10.8.0.3/32"]);
    let same = digest(text.clone());
    assert_eq!(digest(format!("# a comment\n{}", text.replace(" = ", "="))), same);
    assert_eq!(digest(text.replace('\n', "\r\n")), same);
    for (from, to) in [
        ("10.8.0.3", "10.8.0.4"),
        ("51820", "51821"),
        ("p3", "p9"),
        (KEY, &key_of(9)),
        ("\n[Peer]", "\n[Peer]\nPersistentKeepalive = 7"),
    ] {
        assert_ne!(digest(text.replacen(from, to, 1)), same, "{from}");
    }
}

#[test]
fn names_that_programs_trust_are_not_given() {
    let text = server("Address = 10.8.0.1/24", &["AllowedIPs = 10.8.0.2/32", "AllowedIPs = 10.8.0.3/32"]);
    let text = text.replace("# Name = p2", "# Name = wpad").replace("# Name = p3", "# Name = Bob's phone");
    let plan = plan_of(&[("wg0.conf", text)], &ImportOptions::default()).unwrap();
    let names: Vec<_> = plan.leases.iter().map(|lease| lease.name.as_deref()).collect();
    assert_eq!(names, [None, Some("Bob-s-phone")]);
    let notes = plan.notes.join("\n");
    assert!(notes.contains("`wpad` is not usable") && notes.contains("`Bob's phone` is called Bob-s-phone"), "{notes}");
}
