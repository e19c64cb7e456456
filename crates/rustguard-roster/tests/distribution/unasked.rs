//! Parts that servers send unasked: they save a round trip for each request, and take no more bytes than the answers
//! would.

use crate::{MS, Network, PairSecret, hostile::said, key, member, roster, secret};
use rustguard_core::time::Instant;
use rustguard_roster::{
    exchange::{Exchange, Output},
    roster::Roster,
    settings::Settings,
};
use std::{sync::Arc, time::Duration};

const SECOND: Duration = Duration::from_secs(1);

impl Network {
    /// From now on, this node wants the keys of all its pairs.
    fn want_keys_of_all(&mut self, node: usize, others: usize) {
        let now = self.now;
        self.nodes[node].want_keys((1..others).filter(|other| *other != node).map(key), now);
        self.flush(node);
    }

    fn has_all_keys(&self, node: usize, others: usize) -> bool {
        (1..others).all(|other| other == node || self.keys.contains_key(&(node, other)))
    }
}

/// The roster and the keys arrive within one round trip after the session, in any order.
#[test]
fn a_new_member_has_all_after_one_round_trip() {
    for seed in 0..20 {
        let all = roster(1, (0..20).map(member));
        let mut network = Network::new(seed, 2, |node| (node == 0).then(|| all.clone()));
        let began = network.now;
        network.connect(0, 1);
        network.run(60 * MS);
        assert_eq!(network.number(1), 1, "after {:?}", network.now.since(began));
        network.want_keys_of_all(1, 20);
        assert!(network.has_all_keys(1, 20), "the keys are here before they are wanted");
    }
}

#[test]
fn a_change_comes_with_the_keys_of_who_is_new() {
    for seed in 0..20 {
        let before = roster(1, (0..20).map(member));
        let mut network = Network::new(seed, 20, |_| Some(before.clone()));
        network.star();
        network.run(60 * SECOND);
        network.asked.fill(0);
        network.issue(roster(2, (0..21).map(member)));
        network.run(30 * MS);
        network.all_have(2);
        let now = network.now;
        for node in 1..20 {
            network.nodes[node].want_keys([key(20)], now);
            network.flush(node);
            assert!(network.keys.contains_key(&(node, 20)), "{node} has no key for who is new");
        }
        network.run(60 * SECOND);
        assert_eq!(network.asked, [0; 20], "nobody asked for anything");
    }
}

/// A member of an earlier version does not know that parts follow, and asks for them.
#[test]
fn who_asks_for_what_was_sent_gets_an_answer() {
    let mut server = server(20);
    let start = Instant::from_nanos(1_000_000_000);
    let version = server.roster().unwrap().version();
    let text = |kind: u8, rest: &[u8]| {
        [&[7, b'R', b'G', 1, kind, 0, 0, 0][..], &version.number.to_le_bytes(), &version.digest, rest].concat()
    };
    server.connected(&key(1), start);
    server.hear(&key(1), &have(0), start);
    let told = said(&mut server);
    assert_eq!(told[0][4..24], text(1, &[])[4..24], "first the word that there is a roster, as ever");
    assert!(told.len() > 2 && told[1][..8] == [7, b'R', b'G', 1, 1, 1, 0, 0], "then the same with what follows");
    let get = |part: u16| text(2, &[&part.to_le_bytes()[..], &[0; 6]].concat());
    for part in [0xffff, 0xfffe, 0, 1, 2, 3] {
        server.hear(&key(1), &get(part), start);
    }
    server.hear(&key(1), &text(4, &[&[1, 0, 0, 0][..], &key(2).0[..8]].concat()), start);
    let kinds: Vec<_> = said(&mut server).iter().map(|text| text[4]).collect();
    assert_eq!(kinds, [3, 3, 3, 3, 3, 3, 5]);
}

#[test]
fn what_is_lost_on_the_way_is_asked_for() {
    for seed in 0..50 {
        let all = roster(1, (0..100).map(member));
        let mut network = Network::new(seed, 2, |node| (node == 0).then(|| all.clone()));
        network.lost = 33;
        network.connect(0, 1);
        network.run(20 * SECOND);
        assert_eq!(network.number(1), 1);
        network.want_keys_of_all(1, 100);
        network.run(600 * SECOND);
        assert!(network.has_all_keys(1, 100));
    }
}

/// The bytes that the server sends.
fn drawn(server: &mut Exchange) -> usize {
    said(server).iter().map(Vec::len).sum()
}

/// The message with which a peer claims to have a roster, or none.
fn have(number: u64) -> Vec<u8> {
    let digest = [number as u8; 8];
    [&[7, b'R', b'G', 1, 1, 0, 0, 0][..], &number.to_le_bytes(), &digest].concat()
}

fn server(members: usize) -> Exchange {
    let all = roster(5, (0..members).map(member));
    Exchange::new(secret().public_key(), Some(all)).with_pair_secret(PairSecret::from_bytes(&[5; 32]))
}

/// A member can lose its roster, or claim so, as often as it likes.
#[test]
fn who_says_to_have_nothing_again_and_again_gets_it_twice() {
    let mut server = server(100);
    let start = Instant::from_nanos(1_000_000_000);
    server.connected(&key(1), start);
    server.hear(&key(1), &have(0), start);
    let whole = drawn(&mut server);
    assert!((10_000..40_000).contains(&whole), "{whole} bytes");
    let mut bytes = 0;
    for n in 0..10_000 {
        let now = start + n as u32 * MS;
        // Another session does not raise the limit.
        if n % 100 == 0 {
            server.connected(&key(1), now);
        }
        server.hear(&key(1), &have(n % 2), now);
        bytes += drawn(&mut server);
    }
    // Each such claim is answered with 24 bytes.
    assert!(bytes < 3 * whole + 11_000 * 24, "{bytes} bytes in 10 s, {whole} each time");
}

/// The member may be gone before its session has ended.
#[test]
fn who_says_nothing_more_does_not_get_each_roster() {
    let mut server = server(100);
    let start = Instant::from_nanos(1_000_000_000);
    server.connected(&key(1), start);
    server.hear(&key(1), &have(0), start);
    let whole = drawn(&mut server);
    let rosters = (6..56).map(|number| {
        server.issued(roster(number, (0..100 + number as usize % 2).map(member)), start + SECOND);
        drawn(&mut server)
    });
    let bytes: usize = rosters.sum();
    assert!(bytes < 2 * whole, "{bytes} bytes of 50 rosters, {whole} each");
}

#[test]
fn who_has_moved_lately_gets_nothing_unasked() {
    let mut server = server(100);
    let start = Instant::from_nanos(1_000_000_000);
    server.connected(&key(1), start);
    server.moved(&key(1), start);
    server.hear(&key(1), &have(0), start);
    server.issued(roster(6, (0..99).map(member)), start);
    assert!(drawn(&mut server) < 200);
}

/// Strangers get nothing, whether they have a session or only send requests.
#[test]
fn no_member_no_roster() {
    let mut server = server(100);
    let start = Instant::from_nanos(1_000_000_000);
    server.connected(&key(100), start);
    server.hear(&key(100), &have(0), start);
    server.hear(&key(101), &have(0), start);
    assert_eq!(drawn(&mut server), 0);
}

/// A new roster of a large network is not sent to thousands of members at a time.
#[test]
fn of_a_change_only_so_much_is_sent_unasked() {
    let mut server = server(4_000);
    let start = Instant::from_nanos(1_000_000_000);
    for n in 1..4_000 {
        server.connected(&key(n), start);
        let version = server.roster().unwrap().version();
        let has = [&[7, b'R', b'G', 1, 1, 0, 0, 0][..], &version.number.to_le_bytes(), &version.digest].concat();
        server.hear(&key(n), &has, start);
    }
    drawn(&mut server);
    server.issued(roster(6, (0..4_001).map(member)), start);
    let bytes = drawn(&mut server);
    assert!((500_000..1_024 * 1_136 + 4_000 * 24).contains(&bytes), "{bytes} bytes");
}

/// The key of a pair is taken only from a server, and only if it is wanted.
#[test]
fn keys_that_come_unasked_are_a_servers_and_only_used_if_they_are_wanted() {
    let pairs = PairSecret::from_bytes(&[5; 32]);
    let mut settings = Settings::new("rg0".parse().unwrap());
    settings.pair_secret = Some(pairs.id());
    let all = Roster::issue(&secret(), 1, 0, settings, (0..10).map(member).map(Arc::new)).unwrap();
    let version = all.version();
    let keys = |byte: u8| {
        let head = [&[7, b'R', b'G', 1, 5, 0, 0, 0][..], &version.number.to_le_bytes(), &version.digest].concat();
        [&head[..], &[1, 0, 0, 0], pairs.id().as_bytes(), &key(3).0[..8], &[byte; 32]].concat()
    };
    let start = Instant::from_nanos(1_000_000_000);
    let told = |from: usize, wanted: Option<usize>, overtakes: bool| {
        let mut node = Exchange::new(secret().public_key(), (!overtakes).then(|| all.clone()));
        node.connected(&key(from), start);
        node.hear(&key(from), &keys(7), start);
        node.issued(all.clone(), start);
        node.want_keys(wanted.map(key), start);
        let told = std::iter::from_fn(|| node.next_output());
        told.filter(|output| matches!(output, Output::PresharedKey { .. })).count()
    };
    for overtakes in [false, true] {
        assert_eq!(told(0, Some(3), overtakes), 1, "from the server");
        assert_eq!(told(0, Some(4), overtakes), 0, "of another pair");
        assert_eq!(told(0, None, overtakes), 0, "nobody wants it");
        assert_eq!(told(2, Some(3), overtakes), 0, "from a member");
    }
}
