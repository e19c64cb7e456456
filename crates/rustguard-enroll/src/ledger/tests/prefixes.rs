//! Prefixes behind peers, and tags.
use super::*;
use crate::lease::{MAX_PREFIXES, MAX_TAGS};
use ipnet::IpNet;

fn net(text: &str) -> IpNet {
    text.parse().unwrap()
}

fn nets(texts: &[&str]) -> Vec<IpNet> {
    texts.iter().map(|text| net(text)).collect()
}

fn words(texts: &[&str]) -> Vec<String> {
    texts.iter().map(|&text| text.to_owned()).collect()
}

/// A ledger with one peer.
fn with_a_peer(member: bool) -> Ledger<MemoryStore> {
    let mut ledger = ledger(&["10.83.41.0/24", "fd15::/64"]);
    ledger.add_invite(new_invite(1, 1), at(0)).unwrap();
    ledger.admit(by_invite(1, 1).with_member(member), at(0)).unwrap();
    ledger
}

#[test]
fn what_cannot_be_behind_a_peer_is_refused_and_nothing_changes() {
    let mut ledger = with_a_peer(true);
    for (bad, word) in [
        ("127.0.0.0/8", "loopback"),
        ("169.254.7.0/24", "link-local"),
        ("224.0.0.0/4", "multicast"),
        ("fe80::/64", "link-local"),
        ("ff02::1/128", "multicast"),
        ("0.0.0.0/0", "--default-route"),
        ("::/0", "--default-route"),
        ("128.0.0.0/1", "--default-route"),
        ("64.0.0.0/3", "--default-route"),
        ("2000::/3", "--default-route"),
        ("10.83.41.0/24", "lies in the pool 10.83.41.0/24"),
        ("10.83.41.9/32", "lies in the pool"),
        ("fd15::7/128", "lies in the pool fd15::/64"),
    ] {
        let error = ledger.allow(&key(1), &nets(&["192.168.1.0/24", bad]), false, at(1)).unwrap_err().to_string();
        assert!(error.contains(word), "{bad}: {error}");
        assert_eq!(ledger.lease(&key(1)).unwrap().admitted, [], "{bad}");
        let terms = Terms::default().with_admitted(nets(&[bad]));
        let wide = word == "--default-route";
        assert_eq!(ledger.check_terms(&terms, None).is_ok(), wide, "{bad}: an invite's terms");
    }
    // A prefix may contain a pool: the rest of it is behind the peer. Large private networks are no default route.
    let good = nets(&["10.0.0.0/8", "fd00::/8", "192.168.1.77/24", "2001:db8::/32", "192.168.1.0/24"]);
    assert!(ledger.allow(&key(1), &good, false, at(2)).unwrap());
    let admitted = nets(&["10.0.0.0/8", "192.168.1.0/24", "2001:db8::/32", "fd00::/8"]);
    assert_eq!(ledger.lease(&key(1)).unwrap().admitted, admitted, "in order, once each, cut to their lengths");
    assert!(!ledger.allow(&key(1), &good, false, at(3)).unwrap(), "all of that was admitted");
    // An intended default route, and a prefix that is added after it.
    assert!(ledger.allow(&key(1), &nets(&["0.0.0.0/0"]), true, at(4)).unwrap());
    assert!(ledger.allow(&key(1), &nets(&["172.16.0.0/12"]), false, at(5)).unwrap());
    assert!(matches!(ledger.allow(&key(2), &good, false, at(6)), Err(LedgerError::UnknownPeer(_))));
    let many = |count: u32| (0..count).map(|n| IpNet::new((0x0b00_0000 + n * 256).to_be_bytes().into(), 24).unwrap());
    let left = MAX_PREFIXES as u32 - 6;
    let too_many = ledger.allow(&key(1), &many(left + 1).collect::<Vec<_>>(), false, at(7)).unwrap_err();
    assert!(matches!(too_many, LedgerError::Prefix(PrefixError::TooMany(count)) if count == MAX_PREFIXES + 1));
    ledger.allow(&key(1), &many(left).collect::<Vec<_>>(), false, at(8)).unwrap();
}

#[test]
fn what_is_taken_back_was_admitted_and_survives_no_restart() {
    let mut ledger = with_a_peer(false);
    ledger.allow(&key(1), &nets(&["192.168.1.0/24", "192.168.2.0/24"]), false, at(1)).unwrap();
    let error = ledger.deny(&key(1), &nets(&["192.168.1.0/24", "192.168.3.0/24"]), at(2)).unwrap_err().to_string();
    assert!(error.starts_with("192.168.3.0/24 is not admitted for host1 ("), "{error}");
    assert_eq!(ledger.lease(&key(1)).unwrap().admitted.len(), 2, "all of it or nothing");
    assert!(ledger.deny(&key(1), &nets(&["192.168.1.9/24"]), at(3)).unwrap());
    let ledger = reopened(ledger, at(4));
    assert_eq!(ledger.lease(&key(1)).unwrap().admitted, nets(&["192.168.2.0/24"]));
}

/// Which prefixes are admitted and announced, and which of them lead to the peer.
#[test]
fn a_member_has_to_announce_what_is_admitted_and_a_client_cannot() {
    let mut ledger = with_a_peer(true);
    ledger.allow(&key(1), &nets(&["192.168.0.0/16", "0.0.0.0/0"]), true, at(1)).unwrap();
    let mut lease = ledger.lease(&key(1)).unwrap().clone();
    assert_eq!(lease.prefixes().count(), 0, "nothing is announced");
    lease.announced = nets(&["192.168.7.0/24", "192.168.0.0/16", "10.7.0.0/16", "0.0.0.0/0", "192.0.0.0/8"]);
    assert_eq!(lease.prefixes().collect::<Vec<_>>(), nets(&["192.168.7.0/24", "192.168.0.0/16", "0.0.0.0/0"]));
    // An admitted default route does not admit its parts: a longer prefix would take precedence over those of others.
    assert_eq!(lease.waiting().collect::<Vec<_>>(), nets(&["10.7.0.0/16", "192.0.0.0/8"]));
    lease.member = false;
    assert_eq!(lease.prefixes().collect::<Vec<_>>(), nets(&["0.0.0.0/0", "192.168.0.0/16"]));
}

#[test]
fn tags_are_given_and_taken_and_bounded() {
    let mut ledger = with_a_peer(true);
    assert!(ledger.tag(&key(1), &words(&["lab", "ci", "lab"]), at(1)).unwrap());
    assert!(!ledger.tag(&key(1), &words(&["ci"]), at(2)).unwrap());
    for bad in ["", "two words", "\u{1b}[2J", "-a", "ü", &"x".repeat(64)] {
        let error = ledger.tag(&key(1), &words(&["good", bad]), at(3)).unwrap_err().to_string();
        assert!(error.contains("cannot be a tag") && !error.contains('\u{1b}'), "{error}");
    }
    let many: Vec<_> = (0..MAX_TAGS).map(|n| format!("t{n}")).collect();
    assert!(ledger.tag(&key(1), &many, at(4)).unwrap_err().to_string().contains("18 tags are too many"));
    assert!(ledger.untag(&key(1), &words(&["ci", "none"]), at(5)).unwrap_err().to_string().contains("\"none\""));
    assert_eq!(ledger.lease(&key(1)).unwrap().tags, ["lab", "ci"], "all of it or nothing");
    assert!(ledger.untag(&key(1), &words(&["lab"]), at(6)).unwrap());
    assert_eq!(reopened(ledger, at(7)).lease(&key(1)).unwrap().tags, ["ci"]);
}

#[test]
fn the_terms_of_an_invite_are_copied_into_the_lease() {
    let mut ledger = ledger(&["10.83.41.0/24"]);
    let terms =
        Terms::default().with_tags(words(&["site", "lab"])).with_admitted(nets(&["192.168.1.0/24"])).with_server(true);
    let twice = new_invite(2, 2).with_terms(terms.clone());
    assert!(matches!(ledger.add_invite(twice, at(0)), Err(LedgerError::Uses(2))), "a server's invite is for one");
    ledger.add_invite(new_invite(1, 1).with_terms(terms), at(0)).unwrap();
    let lease = ledger.admit(by_invite(1, 1).with_member(true), at(1)).unwrap().lease;
    assert_eq!((&*lease.tags, &*lease.admitted), (&*words(&["site", "lab"]), &*nets(&["192.168.1.0/24"])));
    assert!(lease.server.is_server() && lease.member);
}
