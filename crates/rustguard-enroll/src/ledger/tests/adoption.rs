//! Adoption of a list of members that is newer than the restored backup.
use super::*;
use proptest::prelude::*;

/// A list that agrees with all leases of the ledger.
fn as_it_is(ledger: &Ledger<impl LeaseStore>, made: u64) -> List {
    let machines = ledger.leases().map(|lease| Listed {
        old_key: lease.old_key.map(|old| old.public_key),
        lease: Some(lease.public_key),
        addresses: lease.addresses().collect(),
        member: lease.member,
        server: lease.is_server(),
        prefixes: lease.prefixes().collect(),
        endpoints: lease.endpoints.clone(),
        ..Listed::new(lease.public_key)
    });
    List::new(START + made, machines.collect())
}

fn of(list: &mut List, peer: u8) -> &mut Listed {
    list.machines.iter_mut().find(|machine| machine.public_key == key(peer)).unwrap()
}

fn joined(peer: u8, address: &str) -> Listed {
    Listed {
        name: Some(format!("host{peer}")),
        addresses: vec![address.parse().unwrap()],
        member: true,
        ..Listed::new(key(peer))
    }
}

fn net(text: &str) -> ipnet::IpNet {
    text.parse().unwrap()
}

/// Counts commits, and fails on request.
#[derive(Debug, Default)]
struct Counted {
    store: MemoryStore,
    commits: usize,
    fails: bool,
}

impl LeaseStore for Counted {
    fn load(&mut self) -> Result<Option<State>, StoreError> {
        self.store.load()
    }

    fn commit(&mut self, changes: &[Change], before: &State) -> Result<(), StoreError> {
        if self.fails {
            return Err(StoreError::new("the disk is full"));
        }
        self.commits += 1;
        self.store.commit(changes, before)
    }
}

/// Members 1 to 4, in a ledger that counts its commits.
fn four() -> Ledger<Counted> {
    let pools = pools(&["10.0.0.0/24"]);
    let mut ledger = Ledger::open(Counted::default(), pools, Policy::default(), at(0)).unwrap();
    ledger.add_invite(new_invite(1, 9), at(0)).unwrap();
    (1..=4).for_each(|peer| {
        ledger.admit(by_invite(peer, 1).with_member(true), at(0)).unwrap();
        ledger.confirm(&key(peer), at(0)).unwrap();
    });
    ledger
}

/// Until the list is decided upon, its addresses are reserved for its machines.
#[test]
fn what_a_list_gives_away_is_kept_for_its_machine() {
    let mut ledger = four();
    let v4 = |ledger: &Ledger<Counted>, peer: u8| ledger.lease(&key(peer)).unwrap().v4.unwrap().octets()[3];
    assert_eq!((1..=4).map(|peer| v4(&ledger, peer)).collect::<Vec<_>>(), [2, 3, 4, 5]);
    let kept = |last: u8, peer: u8| (IpAddr::from([10, 0, 0, last]), key(peer));
    // One leased address, one outside the pool, two free ones.
    ledger.set_listed([kept(2, 7), (IpAddr::from([10, 1, 0, 6]), key(8)), kept(6, 9), kept(8, 10)]);
    ledger.admit(by_invite(5, 1), at(1)).unwrap();
    ledger.admit(by_invite(6, 1), at(1)).unwrap();
    assert_eq!((v4(&ledger, 5), v4(&ledger, 6)), (7, 9));
    ledger.admit(by_invite(9, 1), at(1)).unwrap();
    assert_eq!(v4(&ledger, 9), 6, "its machine joins again");
    // The list is decided upon.
    ledger.set_listed([]);
    ledger.admit(by_invite(11, 1), at(1)).unwrap();
    assert_eq!(v4(&ledger, 11), 8);
    ledger.set_listed([kept(10, 12)]);
    let opened = Ledger::open(ledger.into_store(), pools(&["10.0.0.0/24"]), Policy::default(), at(2)).unwrap();
    assert_eq!(opened.leases().count(), 8);
}

#[test]
fn who_came_went_and_changed_is_in_one_commit() {
    let mut ledger = four();
    let mut list = as_it_is(&ledger, 100);
    list.machines.retain(|machine| machine.public_key != key(2));
    (of(&mut list, 4).name, of(&mut list, 4).tags) = (Some("desk".to_owned()), Some(vec!["ci".to_owned()]));
    let rotated = of(&mut list, 3);
    (rotated.public_key, rotated.old_key) = (key(33), Some(key(3)));
    let server = Listed {
        server: true,
        endpoints: vec!["hub.example:51820".parse().unwrap()],
        prefixes: vec![net("192.168.1.0/24")],
        ..joined(6, "10.0.0.9")
    };
    list.machines.extend([joined(5, "10.0.0.8"), server]);

    let (before, commits) = (ledger.state().clone(), ledger.store.commits);
    let planned = ledger.adoption(&list, at(200)).unwrap();
    assert_eq!(*ledger.state(), before, "nothing has changed yet");
    let adoption = ledger.adopt(&list, at(200)).unwrap();
    assert_eq!((&adoption, ledger.store.commits), (&planned, commits + 1));
    let keys = |leases: &[Lease]| leases.iter().map(|lease| lease.public_key).collect::<Vec<_>>();
    assert_eq!((keys(&adoption.came), keys(&adoption.gone)), (vec![key(5), key(6)], vec![key(2)]));
    assert_eq!(adoption.changed.len(), 2);

    let mut ledger = reopened(ledger, at(201));
    assert_eq!(ledger.leases().count(), 5);
    let lease = |peer: u8| ledger.lease(&key(peer)).unwrap().clone();
    let (late, server, rotated, desk) = (lease(5), lease(6), lease(33), lease(4));
    assert!(
        late.preshared_key.is_zero() && late.member && !late.server.is_server() && late.state == LeaseState::Active
    );
    assert_eq!((late.created, late.expires), (START + 99, None));
    assert_eq!((server.is_server(), server.endpoints.len()), (true, 1));
    assert_eq!(server.prefixes().collect::<Vec<_>>(), [net("192.168.1.0/24")]);
    let old = &before.leases[&key(3)];
    let expected = Lease { public_key: key(33), old_key: rotated.old_key, ..old.clone() };
    assert_eq!(rotated, expected, "all else is that of the backup");
    assert_eq!(rotated.old_key.map(|old| (old.public_key, old.until)), Some((key(3), START + 100 + DAY)));
    assert_eq!((desk.name.as_deref(), &*desk.tags), (Some("desk"), &["ci".to_owned()][..]));
    // This is a full removal: older invites no longer admit the machine, and its address is in quarantine.
    assert!(matches!(ledger.admit(by_invite(2, 1), at(202)), Err(Refusal::Removed)));
    assert_eq!(text(ledger.admit(by_invite(7, 1), at(202)).unwrap().lease.v4), "10.0.0.6");
    let held = |ledger: &Ledger<Counted>, address: &str| {
        ledger.by_address(address.parse().unwrap()).map(|lease| lease.public_key)
    };
    assert_eq!(
        ["10.0.0.4", "10.0.0.8", "10.0.0.9"].map(|address| held(&ledger, address)),
        [33, 5, 6].map(key).map(Some)
    );

    // A list that agrees with the leases confirms the pending lease, and then changes nothing.
    let again = as_it_is(&ledger, 100);
    let commits = ledger.store.commits;
    assert_eq!(ledger.adopt(&again, at(203)).unwrap().changed.len(), 1, "the new one was pending");
    assert!(ledger.adopt(&again, at(203)).unwrap().is_empty());
    assert_eq!(ledger.store.commits, commits + 1);
}

#[test]
fn a_store_that_fails_leaves_everything_as_it_was() {
    let mut ledger = four();
    let mut list = as_it_is(&ledger, 100);
    list.machines.pop();
    list.machines.push(joined(5, "10.0.0.8"));
    let before = ledger.state().clone();
    ledger.store.fails = true;
    assert!(matches!(ledger.adopt(&list, at(200)), Err(AdoptionError::Store(_))));
    assert_eq!(*ledger.state(), before);
    assert!(ledger.by_address("10.0.0.8".parse().unwrap()).is_none());
    ledger.store.fails = false;
    assert_eq!(ledger.adopt(&list, at(200)).unwrap().came.len(), 1);
}

#[test]
fn a_list_that_does_not_fit_changes_nothing() {
    let mut ledger = four();
    ledger.admit(admin(9), at(150)).unwrap();
    let (before, good) = (ledger.state().clone(), as_it_is(&ledger, 100));
    let with = |machine: Listed| {
        let mut list = good.clone();
        list.machines.retain(|machine| machine.public_key != key(9));
        list.machines.push(machine);
        list
    };
    let second = |mut machine: Listed| {
        machine.addresses.push("10.0.0.77".parse().unwrap());
        machine
    };
    let two = Listed { lease: Some(key(1)), ..joined(7, "10.0.0.8") };
    let old = Listed { old_key: Some(key(9)), ..joined(7, "10.0.0.8") };
    let tagged = |tag: &str| Listed { tags: Some(vec![tag.to_owned()]), ..joined(7, "10.0.0.8") };
    let behind = |prefix| Listed { prefixes: vec![net(prefix)], ..joined(7, "10.0.0.8") };
    for (machine, words) in [
        (joined(7, "10.1.0.8"), &["10.1.0.8", "host7", "is in no pool", "rustguard serve --pool"][..]),
        (joined(7, "10.0.0.1"), &["10.0.0.1", "reserved for the network or the server"]),
        (joined(7, "fd00::7"), &["fd00::7", "is in no pool"]),
        (second(joined(7, "10.0.0.8")), &["host7", "second address", "10.0.0.77"]),
        (joined(7, "10.0.0.6"), &["gives 10.0.0.6 to host7", "host9", "has joined since", "rustguard peer rm"]),
        (two, &["a key of host1"]),
        (old, &["a key of host9"]),
        (tagged("a b"), &["host7", "\"a b\" cannot be a tag"]),
        (behind("10.0.0.0/26"), &["host7", "10.0.0.0/26 lies in the pool"]),
        (behind("127.0.0.0/8"), &["host7", "loopback"]),
    ] {
        let error = ledger.adopt(&with(machine), at(200)).unwrap_err().to_string();
        assert!(words.iter().all(|word| error.contains(word)), "{error}");
        assert_eq!(*ledger.state(), before);
    }
    let many = (20..60).map(|peer| Listed { server: true, ..joined(peer, &format!("10.0.0.{peer}")) }).collect();
    let error = ledger.adopt(&List::new(START + 100, many), at(200)).unwrap_err();
    assert!(matches!(error, AdoptionError::Servers(40)), "{error}");
    ledger.policy.max_leases = 5;
    let error = ledger.adopt(&with(joined(7, "10.0.0.8")), at(200)).unwrap_err();
    assert!(matches!(error, AdoptionError::Full(6, 5)), "{error}");
    assert_eq!(*ledger.state(), before);
}

/// A machine that joined the restored server is in no list. A machine that was removed there after the list was made is
/// still in the list.
#[test]
fn what_has_happened_here_since_the_list_stays() {
    let mut ledger = four();
    let mut list = as_it_is(&ledger, 100);
    ledger.admit(admin(9), at(150)).unwrap();
    ledger.remove(&key(1), at(160)).unwrap();
    ledger.rotate(&key(3), key(33), at(170)).unwrap();
    of(&mut list, 1).lease = None;
    of(&mut list, 3).lease = Some(key(33));
    assert!(ledger.adoption(&list, at(200)).unwrap().is_empty());
    // A list made after the removal shows that the machine was admitted again.
    list.made = START + 165;
    assert_eq!(ledger.adoption(&list, at(200)).unwrap().came.len(), 1);
    assert_eq!(ledger.adoption(&list, at(200)).unwrap().gone.len(), 1, "the list does not have the ninth");
}

#[test]
fn addresses_may_have_changed_hands() {
    let mut ledger = four();
    ledger.remove(&key(4), at(10)).unwrap();
    let mut list = as_it_is(&ledger, 100);
    let [one, two] = [1, 2].map(|peer| of(&mut list, peer).addresses.clone());
    (of(&mut list, 1).addresses, of(&mut list, 2).addresses) = (two, one);
    // The third was removed. Others have its address and the address of the fourth, whose quarantine had ended.
    list.machines.retain(|machine| machine.public_key != key(3));
    list.machines.extend([joined(5, "10.0.0.4"), joined(6, "10.0.0.5")]);
    ledger.adopt(&list, at(200)).unwrap();
    let held = |ledger: &Ledger<Counted>| {
        [2, 3, 4, 5].map(|last| ledger.by_address([10, 0, 0, last].into()).map(|lease| lease.public_key))
    };
    let expected = [2, 1, 5, 6].map(key).map(Some);
    assert_eq!(held(&ledger), expected);
    let mut ledger = reopened(ledger, at(201));
    assert_eq!(held(&ledger), expected);
    // No address is leased twice, and none is lost.
    assert_eq!(text(ledger.admit(admin(3), at(202)).unwrap().lease.v4), "10.0.0.6");
    ledger.remove(&key(5), at(203)).unwrap();
    ledger.expire(at(203 + DAY + 1)).unwrap();
    assert_eq!(text(ledger.admit(admin(8), at(204 + DAY)).unwrap().lease.v4), "10.0.0.4");
}

#[test]
fn prefixes_are_those_of_the_list() {
    for (admitted, announced, listed, (admits, announces)) in [
        // Unchanged: one prefix waits, and one is not announced.
        (
            &["192.168.1.0/24", "192.168.9.0/24"][..],
            &["172.16.0.0/16", "192.168.1.0/24"][..],
            &["192.168.1.0/24"][..],
            (&["192.168.1.0/24", "192.168.9.0/24"][..], &["172.16.0.0/16", "192.168.1.0/24"][..]),
        ),
        // Admitted since.
        (&[], &["172.16.0.0/16"], &["172.16.0.0/16"], (&["172.16.0.0/16"], &["172.16.0.0/16"])),
        // Announced since.
        (&["172.16.0.0/12"], &[], &["172.16.0.0/16"], (&["172.16.0.0/12"], &["172.16.0.0/16"])),
        // Taken back since.
        (
            &["172.16.0.0/12", "192.168.1.0/24"],
            &["172.16.0.0/16", "192.168.1.0/24"],
            &["192.168.1.0/24"],
            (&["192.168.1.0/24"], &["192.168.1.0/24"]),
        ),
        // One part of the admitted prefix is no longer announced, and another part still is.
        (
            &["172.16.0.0/12"],
            &["172.16.0.0/16", "172.17.0.0/16"],
            &["172.17.0.0/16"],
            (&["172.16.0.0/12"], &["172.17.0.0/16"]),
        ),
        // The newly admitted prefix would also admit the waiting one.
        (&[], &["172.16.0.0/16"], &["172.16.0.0/12"], (&["172.16.0.0/12"], &["172.16.0.0/12"])),
    ] {
        let nets = |texts: &[&str]| texts.iter().map(|text| net(text)).collect::<Vec<_>>();
        let mut ledger = four();
        ledger.allow(&key(1), &nets(admitted), false, at(1)).unwrap();
        ledger.announce(&key(1), nets(announced), at(1)).unwrap();
        let mut list = as_it_is(&ledger, 100);
        of(&mut list, 1).prefixes = nets(listed);
        ledger.adopt(&list, at(200)).unwrap();
        let lease = ledger.lease(&key(1)).unwrap();
        assert_eq!((&lease.admitted, &lease.announced), (&nets(admits), &nets(announces)), "{listed:?}");
        assert_eq!(lease.prefixes().collect::<Vec<_>>(), nets(listed));
    }
    // All admitted prefixes lead to a client. If they are too many, those of the list replace them.
    let mut ledger = ledger(&["10.0.0.0/24"]);
    ledger.admit(admin(1), at(0)).unwrap();
    let many: Vec<_> = (0..64).map(|n| net(&format!("192.168.{n}.0/24"))).collect();
    ledger.allow(&key(1), &many, false, at(1)).unwrap();
    let mut list = as_it_is(&ledger, 100);
    of(&mut list, 1).prefixes = vec![net("192.168.0.0/16")];
    ledger.adopt(&list, at(200)).unwrap();
    assert_eq!(ledger.lease(&key(1)).unwrap().admitted, [net("192.168.0.0/16")]);
}

/// An adopted machine has no preshared key. Joining again gives it one, only once.
#[test]
fn a_machine_without_a_preshared_key_gets_one_when_it_joins_again() {
    let mut ledger = four();
    let mut list = as_it_is(&ledger, 100);
    list.machines.push(joined(5, "10.0.0.8"));
    ledger.adopt(&list, at(200)).unwrap();
    let Admission { lease, fresh, changed } = ledger.admit(by_invite(5, 1).with_member(true), at(201)).unwrap();
    assert_eq!(
        (text(lease.v4), lease.preshared_key.as_bytes(), fresh, changed),
        ("10.0.0.8".into(), &[5; 32], false, true)
    );
    let other = Request { preshared_key: PresharedKey::from_bytes(&[77; 32]), ..by_invite(5, 1).with_member(true) };
    let again = reopened(ledger, at(202)).admit(other, at(202)).unwrap();
    assert_eq!((again.lease.preshared_key.as_bytes(), again.changed), (&[5; 32], false));
}

proptest! {
    /// No list causes a panic. An adopted list results in a state that can be opened again, with all addresses at their
    /// holders.
    #[test]
    fn any_list_is_refused_or_taken_whole(
        machines in proptest::collection::vec((1_u8..9, 0_u8..9, 0_u8..9, 1_u8..12, any::<(bool, bool)>(), 0_u8..3), 0..8),
        made in 0_u64..300,
        max in 2_usize..9,
    ) {
        let mut ledger = four();
        ledger.policy.max_leases = max;
        ledger.remove(&key(4), at(10)).unwrap();
        ledger.rotate(&key(3), key(8), at(120)).unwrap();
        let machines = machines.into_iter().map(|(peer, old, lease, last, (member, server), prefixes)| Listed {
            old_key: (old > 0).then(|| key(old)),
            lease: (lease > 0).then(|| key(lease)),
            addresses: vec![[10, 0, 0, last].into()],
            member,
            server,
            prefixes: (0..prefixes).map(|n| net(&format!("192.168.{n}.0/24"))).collect(),
            ..Listed::new(key(peer))
        });
        let list = List::new(START + made, machines.collect());
        let before = ledger.state().clone();
        match ledger.adopt(&list, at(200)) {
            Ok(_) => {
                let state = ledger.state().clone();
                let held = |ledger: &Ledger<Counted>| {
                    (2..12).map(|last| ledger.index.holder([10, 0, 0, last].into())).collect::<Vec<_>>()
                };
                let leased = held(&ledger);
                let ledger = reopened(ledger, at(201));
                prop_assert_eq!(held(&ledger), leased);
                prop_assert_eq!(ledger.state(), &state);
                for lease in ledger.leases() {
                    for address in lease.addresses() {
                        prop_assert_eq!(ledger.by_address(address).map(|other| other.public_key), Some(lease.public_key));
                    }
                }
            }
            Err(_) => prop_assert_eq!(ledger.state(), &before),
        }
    }
}
