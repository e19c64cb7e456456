//! Prefixes behind members: announced by the members, and admitted by the administrator.
use crate::sim::{Sim, seconds};
use ipnet::IpNet;
use rustguard_core::host_port::HostPort;
use rustguard_crypto::x25519::PublicKey;
use rustguard_enroll::{
    audit::{AuditEvent, Reason},
    lease::{MAX_ENDPOINTS, MAX_PREFIXES, Terms},
    server::InviteOptions,
};

fn nets(texts: &[&str]) -> Vec<IpNet> {
    texts.iter().map(|text| text.parse().expect("a prefix")).collect()
}

/// `count` prefixes, which no other `group` has.
fn many(group: usize, count: usize) -> Vec<IpNet> {
    let prefix =
        |n: usize| IpNet::new([11 + (group / 256) as u8, group as u8, n as u8, 0].into(), 24).expect("a length");
    (0..count).map(prefix).collect()
}

/// A network with members, all of which are connected.
fn members(seed: u64, count: u32) -> (Sim, Vec<PublicKey>) {
    let (mut sim, keys) = Sim::with_members(seed, count);
    sim.delay = 1;
    (sim, keys)
}

fn announce(sim: &mut Sim, member: &PublicKey, prefixes: &[IpNet]) -> bool {
    sim.admin(|server, now, _, actions| server.announced(member, prefixes, now, actions))
}

fn allow(sim: &mut Sim, member: &PublicKey, prefixes: &[IpNet]) {
    sim.admin(|server, now, _, actions| server.allow_prefixes(member, prefixes, false, now, actions).expect("good"));
}

fn led(sim: &Sim, member: &PublicKey) -> Vec<IpNet> {
    sim.peers[member].allowed_ips.iter().copied().filter(|net| net.max_prefix_len() != net.prefix_len()).collect()
}

#[test]
fn an_announced_prefix_waits_until_it_is_admitted_and_ends_with_either() {
    let (mut sim, keys) = members(400, 1);
    let (office, lab) = (nets(&["192.168.1.0/24"]), nets(&["192.168.1.0/24", "10.7.0.0/16"]));
    assert!(announce(&mut sim, &keys[0], &lab));
    assert_eq!((led(&sim, &keys[0]), sim.changes), (vec![], 0), "the roster does not change by it");
    let lease = sim.server.ledger().lease(&keys[0]).expect("a lease");
    assert_eq!(lease.waiting().collect::<Vec<_>>(), nets(&["10.7.0.0/16", "192.168.1.0/24"]));
    allow(&mut sim, &keys[0], &nets(&["192.168.0.0/16"]));
    assert_eq!((led(&sim, &keys[0]), sim.changes), (office.clone(), 1));
    // The prefixes survive a restart of the server, which members need not notice.
    sim.restart_server();
    assert_eq!(led(&sim, &keys[0]), office);
    assert!(announce(&mut sim, &keys[0], &lab), "nothing new");
    assert_eq!(sim.changes, 1);
    assert!(announce(&mut sim, &keys[0], &[]));
    assert_eq!((led(&sim, &keys[0]), sim.changes), (vec![], 2));
    sim.pass(seconds(2));
    assert!(announce(&mut sim, &keys[0], &office));
    assert_eq!(led(&sim, &keys[0]), office);
    sim.admin(|server, now, _, actions| {
        server.deny_prefixes(&keys[0], &nets(&["192.168.0.0/16"]), now, actions).expect("admitted");
    });
    assert_eq!((led(&sim, &keys[0]), sim.changes), (vec![], 4));
    let events: Vec<_> = sim.audit.iter().map(|record| record.event).collect();
    assert_eq!(
        events,
        [AuditEvent::Announced, AuditEvent::PrefixesAllowed, AuditEvent::Announced, AuditEvent::PrefixesDenied]
    );
}

#[test]
fn what_cannot_be_behind_a_member_and_what_others_say_is_left_out() {
    let (mut sim, keys) = members(401, 1);
    let said = nets(&["127.0.0.0/8", "10.150.0.7/32", "10.150.0.0/24", "fe80::/64", "192.168.1.0/24", "0.0.0.0/0"]);
    assert!(announce(&mut sim, &keys[0], &said));
    let announced = &sim.server.ledger().lease(&keys[0]).expect("a lease").announced;
    assert_eq!(*announced, nets(&["0.0.0.0/0", "192.168.1.0/24"]));
    // Announcements of strangers, removed machines and clients have no effect.
    let before = sim.commits.get();
    assert!(announce(&mut sim, &PublicKey([1; 32]), &said));
    sim.members = false;
    let token = sim.invite().to_text();
    let client = sim.join(&token);
    assert!(sim.run(seconds(5)));
    let (key, commits) = (sim.public_key(client), sim.commits.get());
    assert!(announce(&mut sim, &key, &said));
    assert!(before < commits && sim.commits.get() == commits);
    assert!(sim.server.ledger().lease(&key).expect("a lease").announced.is_empty());
}

/// A change costs a commit, and a roster for everybody.
#[test]
fn a_member_that_changes_its_mind_each_second_is_heard_less_and_less_and_disturbs_nobody() {
    let (mut sim, keys) = members(402, 2);
    allow(&mut sim, &keys[0], &nets(&["10.0.0.0/8"]));
    allow(&mut sim, &keys[1], &nets(&["192.168.0.0/16"]));
    sim.changes = 0;
    let commits = sim.commits.get();
    sim.audit.clear();
    let mut last = Vec::new();
    for second in 0..4 * 3600_u32 {
        last = nets(&[if second % 2 == 0 { "10.1.0.0/16" } else { "10.2.0.0/16" }]);
        announce(&mut sim, &keys[0], &last);
        sim.pass(seconds(1));
    }
    assert!(sim.changes < 70, "{} rosters in four hours", sim.changes);
    assert!(sim.commits.get() - commits < 300, "{} commits", sim.commits.get() - commits);
    let lines = sim.audited(AuditEvent::Announced).len();
    assert!(lines < 70, "{lines} lines");
    // Changes of others are accepted at once. The member's own are accepted again after a quiet time.
    assert!(announce(&mut sim, &keys[1], &nets(&["192.168.1.0/24"])));
    assert_eq!(led(&sim, &keys[1]), nets(&["192.168.1.0/24"]));
    sim.pass(seconds(600));
    assert!(announce(&mut sim, &keys[0], &last));
    assert!(announce(&mut sim, &keys[0], &nets(&["10.3.0.0/16"])));
    assert_eq!(led(&sim, &keys[0]), nets(&["10.3.0.0/16"]));
}

#[test]
fn what_waits_is_bounded_and_what_is_admitted_always_finds_room() {
    let (mut sim, keys) = members(403, 80);
    let waiting = |sim: &Sim| sim.server.ledger().leases().map(|lease| lease.waiting().count()).sum::<usize>();
    for (group, key) in keys.iter().enumerate() {
        // Only a part of an announcement that is too long is kept.
        assert!(announce(&mut sim, key, &many(group, 2 * MAX_PREFIXES)));
        assert!(sim.server.ledger().lease(key).expect("a lease").announced.len() <= MAX_PREFIXES);
    }
    assert_eq!(waiting(&sim), 4096);
    assert_eq!(
        sim.audited(AuditEvent::Refused).iter().filter(|line| line.reason == Some(Reason::QueueFull)).count(),
        1
    );
    let last = &keys[79];
    allow(&mut sim, last, &many(79, MAX_PREFIXES));
    sim.pass(seconds(2));
    assert!(announce(&mut sim, last, &many(79, MAX_PREFIXES)));
    assert_eq!(led(&sim, last).len(), MAX_PREFIXES);
}

#[test]
fn all_members_together_have_an_allowance() {
    let (mut sim, keys) = members(404, 250);
    let mut heard = 0;
    for (group, key) in keys.iter().enumerate() {
        heard += u32::from(announce(&mut sim, key, &many(group, 1)));
    }
    assert_eq!(heard, 200);
    for _ in 0..10 {
        sim.pass(seconds(1));
        heard = keys.iter().enumerate().map(|(group, key)| u32::from(announce(&mut sim, key, &many(group, 1)))).sum();
    }
    assert_eq!(heard, 250, "all of them are heard soon");
}

/// A failure changes nothing, not even on the device, and another attempt works.
#[test]
fn a_full_disk_changes_nothing() {
    let (mut sim, keys) = members(405, 1);
    let key = keys[0];
    let state = |sim: &Sim| {
        (sim.server.ledger().lease(&key).cloned(), sim.peers.clone(), sim.changes, sim.server.ledger().invites().len())
    };
    let (one, tags) = (nets(&["192.168.1.0/24"]), ["lab".to_owned()]);
    for step in 0..6 {
        let act = |sim: &mut Sim| match step {
            0 => sim.admin(|server, now, _, actions| server.allow_prefixes(&key, &one, false, now, actions).is_ok()),
            1 => announce(sim, &key, &one),
            2 => sim.admin(|server, now, _, actions| server.tag_peer(&key, &tags, now, actions).is_ok()),
            3 => sim.admin(|server, now, _, actions| server.untag_peer(&key, &tags, now, actions).is_ok()),
            4 => sim.admin(|server, now, _, actions| server.deny_prefixes(&key, &one, now, actions).is_ok()),
            _ => {
                let terms = Terms::default().with_server(true).with_admitted(one.clone());
                let options = InviteOptions::default().with_terms(terms);
                sim.admin(|server, now, rng, actions| server.new_invite(options, now, rng, actions).is_ok())
            }
        };
        let before = state(&sim);
        sim.broken.set(true);
        assert!(!act(&mut sim), "step {step}");
        assert_eq!(state(&sim), before, "step {step}");
        sim.broken.set(false);
        sim.pass(seconds(2));
        assert!(act(&mut sim), "step {step}");
        assert_ne!(state(&sim), before, "step {step}");
        sim.restart_server();
    }
}

/// All members connect to a server at the endpoints that it reports. So only a machine that the administrator admitted
/// as a server may report them.
#[test]
fn only_a_server_says_where_it_is_reached() {
    let (mut sim, mut keys) = members(407, 1);
    let invite = InviteOptions::default().with_terms(Terms::default().with_server(true));
    let token = sim.invite_with(invite).to_text();
    let node = sim.join(&token);
    assert!(sim.run(seconds(60)));
    sim.handshake(node);
    keys.push(sim.public_key(node));
    let at: Vec<HostPort> = vec!["192.0.2.7:51820".parse().expect("an endpoint"); MAX_ENDPOINTS + 1];
    for (key, heard) in [(keys[0], 0), (keys[1], MAX_ENDPOINTS)] {
        sim.changes = 0;
        for _ in 0..2 {
            assert!(sim.admin(|server, now, _, actions| server.reached_at(&key, &at, now, actions)));
            let lease = sim.server.ledger().lease(&key).expect("a lease");
            assert_eq!((lease.endpoints.len(), sim.peers[&key].endpoints.len()), (heard, heard));
            sim.pass(seconds(2));
        }
        assert_eq!(sim.changes, u32::from(heard > 0), "all members are told once");
    }
    sim.restart_server();
    assert_eq!(sim.peers[&keys[1]].endpoints.len(), MAX_ENDPOINTS);
    // Both parts of a statement are accepted together.
    sim.pass(seconds(600));
    let (office, elsewhere) = (nets(&["192.168.1.0/24"]), vec!["192.0.2.8:51820".parse().expect("an endpoint")]);
    let is_stored = sim.admin(|server, now, _, actions| {
        server.announced(&keys[1], &office, now, actions) && server.reached_at(&keys[1], &elsewhere, now, actions)
    });
    assert!(is_stored);
    assert_eq!(sim.peers[&keys[1]].endpoints, elsewhere);
}
