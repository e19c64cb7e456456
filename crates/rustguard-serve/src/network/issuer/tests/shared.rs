//! Rosters of several servers on one log.

use super::*;
use crate::{
    documents::{ROSTERS, name_document, place_document, server_document},
    replica::Documents,
};
use zeroize::Zeroizing;

const OTHER: PublicKey = PublicKey([0xbb; 32]);

fn text(text: &str) -> Zeroizing<Vec<u8>> {
    Zeroizing::new(text.as_bytes().to_vec())
}

/// The documents of a network with two servers, which had list 7 before it was put into a store.
fn documents() -> Documents {
    [(ROSTERS.to_owned(), text("7")), (server_document(&SERVER), text("a")), (server_document(&OTHER), text("b"))]
        .into()
}

/// A ledger with two servers, two machines that want one name, and a client.
fn shared_ledger() -> Ledger<MemoryStore> {
    let pools = Pools::new(&settings().pools).unwrap().without_own();
    let mut ledger = Ledger::open(MemoryStore::default(), pools, LeasePolicy::default(), start()).unwrap();
    for (server, name) in [(SERVER, "hub"), (OTHER, "second")] {
        let grant = Grant::Admin(Terms::default().with_server(true));
        let request = Request::new(server, PresharedKey::from_bytes(&[5; 32]), grant).with_member(true);
        ledger.admit(request.with_name(name.to_owned()), start()).unwrap();
    }
    join(&mut ledger, 1, "laptop", start());
    join(&mut ledger, 2, "laptop", start());
    ledger.share(start());
    ledger
}

/// Whichever server makes it, and whatever it has made before: the roster of a revision is the same, byte by byte.
#[test]
fn all_servers_make_the_same_roster_of_a_revision() {
    let (ledger, mut log) = (shared_ledger(), documents());
    log.insert(name_document(&key(1)), text("laptop-7"));
    log.insert(place_document(&key(2)), text(&rustguard_device::key::to_base64(&OTHER.0)));
    let servers = [SERVER, OTHER].map(|own| (Server::new(), own));
    let made = servers.each_ref().map(|(server, own)| {
        let mut issuer = server.issuer_with((*own, None), start());
        issuer.share(SERVER, 2, &documents());
        // The second server comes later, and has not issued the revisions before.
        if *own == SERVER {
            assert_eq!(number(issuer.issue(&settings(), &ledger, start())), Some(9));
        }
        issuer.follow(5, &log);
        issuer.issue(&settings(), &ledger, at(Duration::from_secs(if *own == SERVER { 9 } else { 99 }))).unwrap()
    });
    assert_eq!(made[0].to_bytes(), made[1].to_bytes());
    let roster = &made[0];
    assert_eq!((roster.version().number, roster.issued()), (12, ledger.state().time));
    let role = |key: &PublicKey| roster.member(key).unwrap().role;
    assert_eq!([SERVER, OTHER].map(|key| role(&key)), [Role::Server; 2]);
    assert!([SERVER, OTHER].iter().all(|key| roster.member(key).unwrap().is_gateway()));
    assert_eq!([key(1), key(2)].map(|key| role(&key)), [Role::Client(SERVER), Role::Client(OTHER)]);
    let name = |key: &PublicKey| roster.member(key).unwrap().name.to_string();
    assert_eq!([key(1), key(2)].map(|key| name(&key)), ["laptop-7", "laptop"]);
}

/// An unchanged roster is issued anew with another record. While that is not possible, nothing is due at once again.
#[test]
fn an_unchanged_roster_waits_for_another_record() {
    let (server, ledger, log) = (Server::new(), shared_ledger(), documents());
    let mut issuer = server.issuer(start());
    issuer.share(SERVER, 2, &log);
    assert_eq!(number(issuer.issue(&settings(), &ledger, start())), Some(9));
    assert!(!issuer.needs_touch(at(HOUR / 2)));
    issuer.changed();
    assert_eq!(number(issuer.issue(&settings(), &ledger, at(HOUR / 2))), None, "the number is used");
    for time in [HOUR, HOUR * 2] {
        assert!(issuer.needs_touch(at(time)));
        assert_eq!(number(issuer.issue(&settings(), &ledger, at(time))), None);
        assert!(issuer.deadline() > at(time).instant, "it would be looked at without end");
    }
    issuer.follow(3, &log);
    assert_eq!(number(issuer.issue(&settings(), &ledger, at(HOUR * 3))), Some(10));
}
