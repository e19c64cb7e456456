//! One test for each promise of the ledger. `model` tests their combinations.
mod adoption;
mod model;
mod prefixes;
mod shared;

use super::*;
use crate::{
    lease::{MAX_NAME, MAX_SERVERS, MAX_USES, NewInvite, Terms},
    store::MemoryStore,
};

const DAY: u64 = 24 * 3600;
const START: u64 = 1_800_000_000;

/// `seconds` after the start on both clocks.
fn at(seconds: u64) -> Now {
    stepped(seconds, i64::try_from(seconds).unwrap())
}

/// A time with different monotonic and wall clocks.
fn stepped(instant: u64, wall: i64) -> Now {
    Now {
        instant: Instant::from_nanos((1_000 + instant) * 1_000_000_000),
        unix: Duration::from_secs(START.saturating_add_signed(wall)),
    }
}

fn pools(prefixes: &[&str]) -> Pools {
    Pools::new(&prefixes.iter().map(|prefix| prefix.parse().unwrap()).collect::<Vec<_>>()).unwrap()
}

fn ledger(prefixes: &[&str]) -> Ledger<MemoryStore> {
    Ledger::open(MemoryStore::default(), pools(prefixes), Policy::default(), at(0)).unwrap()
}

fn reopened<S: LeaseStore>(ledger: Ledger<S>, now: Now) -> Ledger<S> {
    let (pools, policy) = (ledger.pools.clone(), ledger.policy.clone());
    Ledger::open(ledger.into_store(), pools, policy, now).unwrap()
}

fn key(byte: u8) -> PublicKey {
    PublicKey([byte; 32])
}

fn id(byte: u8) -> TokenId {
    TokenId([byte; 8])
}

fn new_invite(byte: u8, uses: u32) -> NewInvite {
    let lifetime = Some(Duration::from_secs(DAY));
    NewInvite { id: id(byte), public_key: key(100 + byte), lifetime, uses, terms: Terms::default() }
}

fn request(byte: u8, grant: Grant) -> Request {
    let preshared_key = PresharedKey::from_bytes(&[byte; 32]);
    Request {
        public_key: key(byte),
        name: Some(format!("host{byte}")),
        preshared_key,
        ephemeral: false,
        member: false,
        grant,
    }
}

fn by_invite(peer: u8, invite: u8) -> Request {
    request(peer, Grant::Invite(id(invite)))
}

fn admin(peer: u8) -> Request {
    request(peer, Grant::Admin(Terms::default()))
}

fn fixed(address: &str) -> Terms {
    Terms { addresses: vec![address.parse().unwrap()], ..Terms::default() }
}

fn text<T>(address: Option<T>) -> String
where
    T: ToString,
{
    address.map_or_else(String::new, |address| address.to_string())
}

#[test]
fn an_invite_gives_a_pending_lease_with_both_addresses_and_the_first_handshake_makes_it_active() {
    let mut ledger = ledger(&["10.0.0.0/24", "fd00::/64"]);
    let terms = Terms::default().with_tags(vec!["lab".to_owned()]).with_addresses(vec!["10.0.0.9".parse().unwrap()]);
    ledger.add_invite(NewInvite { terms, ..new_invite(1, 1) }, at(0)).unwrap();
    let Admission { lease, fresh, .. } = ledger.admit(by_invite(1, 1), at(1)).unwrap();
    assert!(fresh);
    assert_eq!(lease.state, LeaseState::Pending { until: START + 61 });
    assert_eq!(
        (text(lease.v4), lease.origin, &lease.tags),
        ("10.0.0.9".into(), Origin::Invite(id(1)), &vec!["lab".to_owned()])
    );
    assert_eq!(ledger.invite(&id(1)).unwrap().uses_left, 0);
    assert!(ledger.confirm(&key(1), at(2)).unwrap());
    assert!(!ledger.confirm(&key(1), at(3)).unwrap());
    assert_eq!(ledger.lease(&key(1)).unwrap().state, LeaseState::Active);
    let v6 = lease.v6.unwrap();
    for address in [IpAddr::V6(v6), "10.0.0.9".parse().unwrap()] {
        assert_eq!(ledger.by_address(address).unwrap().public_key, key(1));
    }
    assert!(ledger.by_address("10.0.0.8".parse().unwrap()).is_none());
    assert_eq!(ledger.expire(at(100)).unwrap(), []);
    let ledger = reopened(ledger, at(200));
    assert_eq!(ledger.leases().len(), 1);
    assert_eq!(ledger.lease(&key(1)).unwrap().preshared_key.as_bytes(), &[1; 32]);
}

#[test]
fn the_same_key_gets_the_same_lease_and_nothing_is_counted_twice() {
    let mut ledger = ledger(&["10.0.0.0/24", "fd00::/64"]);
    ledger.add_invite(new_invite(1, 2), at(0)).unwrap();
    ledger.add_invite(new_invite(2, 1), at(0)).unwrap();
    let first = ledger.admit(by_invite(1, 1), at(0)).unwrap().lease;
    for (now, confirm) in [(1, true), (2, false)] {
        let mut again = by_invite(1, 1);
        again.preshared_key = PresharedKey::from_bytes(&[77; 32]);
        let again = ledger.admit(again, at(now)).unwrap();
        assert!(!again.fresh);
        assert_eq!(again.lease.addresses().collect::<Vec<_>>(), first.addresses().collect::<Vec<_>>());
        assert_eq!(again.lease.preshared_key, first.preshared_key);
        if confirm {
            ledger.confirm(&key(1), at(now)).unwrap();
        }
    }
    assert_eq!(ledger.invite(&id(1)).unwrap().uses_left, 1);
    assert!(!ledger.admit(by_invite(1, 2), at(3)).unwrap().fresh, "nor does another invite");
    assert_eq!(ledger.invite(&id(2)).unwrap().uses_left, 1);
    ledger.set_preshared_key(&key(1), PresharedKey::from_bytes(&[9; 32]), at(4)).unwrap();
    assert_eq!(reopened(ledger, at(5)).lease(&key(1)).unwrap().preshared_key.as_bytes(), &[9; 32]);
}

#[test]
fn each_reason_is_a_refusal_of_its_own() {
    let mut ledger = ledger(&["10.0.0.0/24"]);
    ledger.add_invite(new_invite(1, 1), at(0)).unwrap();
    ledger.add_invite(new_invite(2, 1), at(0)).unwrap();
    ledger.add_invite(new_invite(3, 5), at(0)).unwrap();
    assert!(matches!(ledger.admit(by_invite(1, 9), at(0)), Err(Refusal::Unknown(_))));
    ledger.admit(by_invite(1, 1), at(0)).unwrap();
    assert!(matches!(ledger.admit(by_invite(2, 1), at(0)), Err(Refusal::Used(_))));
    ledger.revoke_invite(&id(2), at(0)).unwrap();
    assert!(matches!(ledger.admit(by_invite(2, 2), at(0)), Err(Refusal::Revoked(_))));
    assert!(matches!(ledger.admit(request(2, Grant::Window), at(0)), Err(Refusal::Closed)));
    ledger.admit(by_invite(3, 3), at(0)).unwrap();
    ledger.remove(&key(3), at(0)).unwrap();
    assert!(matches!(ledger.admit(by_invite(3, 3), at(0)), Err(Refusal::Removed)));
    ledger.admit(by_invite(4, 3), at(DAY - 1)).unwrap();
    assert!(matches!(ledger.admit(by_invite(4, 3), at(DAY)), Err(Refusal::Expired(_))));
    assert!(matches!(ledger.remove(&key(9), at(0)), Err(LedgerError::UnknownPeer(_))));
    assert!(matches!(ledger.confirm(&key(9), at(0)), Err(LedgerError::UnknownPeer(_))));
    assert!(matches!(ledger.revoke_invite(&id(9), at(0)), Err(LedgerError::UnknownInvite(_))));
    assert!(matches!(ledger.add_invite(new_invite(1, 1), at(0)), Err(LedgerError::InviteExists(_))));
    for uses in [0, MAX_USES + 1] {
        assert!(matches!(ledger.add_invite(new_invite(8, uses), at(0)), Err(LedgerError::Uses(_))));
    }
    let two = NewInvite { terms: fixed("10.0.0.8"), ..new_invite(8, 2) };
    assert!(matches!(ledger.add_invite(two, at(0)), Err(LedgerError::Uses(2))));
    let tag = Terms::default().with_tags(vec!["two words".to_owned()]);
    let tagged = NewInvite { terms: tag, ..new_invite(8, 1) };
    assert!(matches!(ledger.add_invite(tagged, at(0)), Err(LedgerError::Terms(Refusal::Tag(_)))));
}

/// With one server more, no roster of the network could be issued.
#[test]
fn a_network_has_so_many_servers() {
    let mut ledger = ledger(&["10.0.0.0/24"]);
    let most = u8::try_from(MAX_SERVERS).unwrap();
    let server = |byte: u8| NewInvite { terms: Terms::default().with_server(true), ..new_invite(byte, 1) };
    for byte in 1..=most {
        ledger.add_invite(server(byte), at(0)).unwrap();
    }
    // An invite counts whether it was used or not.
    ledger.admit(by_invite(1, 1), at(0)).unwrap();
    assert!(matches!(ledger.add_invite(server(100), at(0)), Err(LedgerError::Servers)));
    ledger.add_invite(new_invite(101, 1), at(0)).unwrap();
    ledger.revoke_invite(&id(2), at(0)).unwrap();
    ledger.add_invite(server(100), at(0)).unwrap();
    assert!(matches!(ledger.add_invite(server(102), at(0)), Err(LedgerError::Servers)));
    ledger.remove(&key(1), at(0)).unwrap();
    ledger.add_invite(server(102), at(0)).unwrap();
    // Unused invites expire after a day.
    ledger.add_invite(server(103), at(DAY)).unwrap();
}

#[test]
fn a_fixed_address_is_had_or_the_refusal_says_who_has_it() {
    let mut ledger = ledger(&["10.0.0.0/29", "fd00::/64"]);
    let with = |peer, address| request(peer, Grant::Admin(fixed(address)));
    assert_eq!(text(ledger.admit(with(1, "10.0.0.4"), at(0)).unwrap().lease.v4), "10.0.0.4");
    assert_eq!(text(ledger.admit(with(2, "fd00::4"), at(0)).unwrap().lease.v6), "fd00::4");
    let error = ledger.admit(with(3, "10.0.0.4"), at(0)).unwrap_err();
    assert!(error.to_string().contains("10.0.0.4 is leased to host1 (AQEB"), "{error}");
    for unusable in ["10.0.0.0", "10.0.0.1", "10.0.0.7", "10.0.0.8", "fd00::", "fd00::1", "fd01::2"] {
        let refused = ledger.admit(with(3, unusable), at(0));
        assert!(matches!(refused, Err(Refusal::AddressUnusable(_))), "{unusable}");
        let invite = NewInvite { terms: fixed(unusable), ..new_invite(1, 1) };
        let refused = ledger.add_invite(invite, at(0));
        assert!(matches!(refused, Err(LedgerError::Terms(Refusal::AddressUnusable(_)))), "{unusable}");
    }
    let two = Terms { addresses: vec!["10.0.0.5".parse().unwrap(), "10.0.0.6".parse().unwrap()], ..Terms::default() };
    let refused = ledger.admit(request(3, Grant::Admin(two)), at(0));
    assert!(matches!(refused, Err(Refusal::TwoAddresses(..))));

    // A fixed address can also come out of quarantine. Its former holder then gets another one.
    ledger.remove(&key(1), at(0)).unwrap();
    assert_eq!(text(ledger.admit(with(3, "10.0.0.4"), at(1)).unwrap().lease.v4), "10.0.0.4");
    let former = ledger.admit(admin(1), at(1)).unwrap().lease;
    assert_eq!(text(former.v4), "10.0.0.3");
}

#[test]
fn released_addresses_rest_for_a_day_except_for_their_former_key() {
    let mut ledger = ledger(&["10.0.0.0/24", "fd00::/64"]);
    let first = ledger.admit(admin(1), at(0)).unwrap().lease;
    ledger.remove(&key(1), at(10)).unwrap();
    assert_eq!(text(ledger.admit(admin(2), at(11)).unwrap().lease.v4), "10.0.0.3");
    let mut ledger = reopened(ledger, at(20));
    assert_eq!(text(ledger.admit(admin(3), at(21)).unwrap().lease.v4), "10.0.0.4");
    let again = ledger.admit(admin(1), at(22)).unwrap().lease;
    assert_eq!((again.v4, again.v6), (first.v4, first.v6));
    ledger.remove(&key(1), at(30)).unwrap();
    ledger.expire(at(30 + DAY - 1)).unwrap();
    assert_eq!(text(ledger.admit(admin(4), at(30 + DAY - 1)).unwrap().lease.v4), "10.0.0.5");
    assert_eq!(ledger.deadline(), Some(at(30 + DAY).instant));
    ledger.expire(at(30 + DAY)).unwrap();
    assert_eq!(text(ledger.admit(admin(5), at(30 + DAY)).unwrap().lease.v4), "10.0.0.2");
}

#[test]
fn the_last_address_goes_to_one_and_the_other_is_told_when_there_may_be_one() {
    let mut ledger = ledger(&["10.0.0.0/30"]);
    ledger.add_invite(new_invite(1, 5), at(0)).unwrap();
    let next_free = |ledger: &mut Ledger<_>, peer, now| match ledger.admit(by_invite(peer, 1), now) {
        Err(Refusal::Exhausted { next_free, .. }) => next_free,
        other => panic!("{other:?}"),
    };
    ledger.admit(by_invite(1, 1), at(5)).unwrap();
    assert_eq!(next_free(&mut ledger, 2, at(6)), Some(START + 65), "if there is no handshake");
    ledger.confirm(&key(1), at(7)).unwrap();
    assert_eq!(next_free(&mut ledger, 2, at(8)), None);
    assert_eq!(ledger.invite(&id(1)).unwrap().uses_left, 4, "refusals cost nothing");
    // The address of a removed peer is available at once, because no other is left.
    ledger.remove(&key(1), at(9)).unwrap();
    assert_eq!(text(ledger.admit(by_invite(2, 1), at(10)).unwrap().lease.v4), "10.0.0.2");
    assert_eq!(next_free(&mut ledger, 3, at(11)), Some(START + 70));
}

#[test]
fn a_full_pool_gives_the_address_that_was_released_first_and_never_one_that_is_leased() {
    // Five addresses besides the server's: 10.0.0.2 to 10.0.0.6 are leased to peers 1 to 5.
    let mut ledger = ledger(&["10.0.0.0/29"]);
    (1..=5).for_each(|peer| drop(ledger.admit(admin(peer), at(0)).unwrap()));
    ledger.remove(&key(3), at(10)).unwrap();
    ledger.remove(&key(1), at(20)).unwrap();
    ledger.remove(&key(5), at(30)).unwrap();
    let mut ledger = reopened(ledger, at(40));
    // A peer that comes back within its quarantine gets its own address, although another was released earlier.
    assert_eq!(text(ledger.admit(admin(1), at(41)).unwrap().lease.v4), "10.0.0.2");
    assert_eq!(text(ledger.admit(admin(6), at(42)).unwrap().lease.v4), "10.0.0.4", "released at 10");
    assert_eq!(text(ledger.admit(admin(7), at(43)).unwrap().lease.v4), "10.0.0.6", "released at 30");
    let full = ledger.admit(admin(8), at(44)).unwrap_err();
    assert!(matches!(full, Refusal::Exhausted { .. }), "{full}");
    for word in ["10.0.0.0/29", "peer rm", "--lease", "--pool"] {
        assert!(full.to_string().contains(word), "{full}");
    }
    // The former holders have no preference.
    assert!(ledger.admit(admin(3), at(45)).is_err() && ledger.admit(admin(5), at(45)).is_err());
    ledger.remove(&key(2), at(50)).unwrap();
    assert_eq!(text(reopened(ledger, at(51)).admit(admin(3), at(51)).unwrap().lease.v4), "10.0.0.3");
}

#[test]
fn quarantine_holds_while_there_are_other_addresses() {
    let mut ledger = ledger(&["10.0.0.0/29"]);
    ledger.admit(admin(1), at(0)).unwrap();
    ledger.remove(&key(1), at(1)).unwrap();
    let mut next = |peer, now| text(ledger.admit(admin(peer), at(now)).unwrap().lease.v4);
    assert_eq!([next(2, 2), next(3, 3), next(4, 4), next(5, 5)], ["10.0.0.3", "10.0.0.4", "10.0.0.5", "10.0.0.6"]);
    assert_eq!(next(6, 6), "10.0.0.2");
}

#[test]
fn both_families_or_none() {
    let mut ledger = ledger(&["10.0.0.0/24", "fd00::/127"]);
    ledger.admit(admin(1), at(0)).unwrap();
    let refused = ledger.admit(admin(2), at(0)).unwrap_err();
    assert!(matches!(&refused, Refusal::Exhausted { pool, .. } if pool.to_string() == "fd00::/127"), "{refused}");
    assert!(ledger.by_address("10.0.0.3".parse().unwrap()).is_none());
}

#[test]
fn there_is_a_bound_where_the_pool_has_none() {
    let policy = Policy { max_leases: 3, ..Policy::default() };
    let mut ledger = Ledger::open(MemoryStore::default(), pools(&["fd00::/64"]), policy, at(0)).unwrap();
    (1..=3).for_each(|peer| assert!(ledger.admit(admin(peer), at(0)).is_ok()));
    assert!(matches!(ledger.admit(admin(4), at(0)), Err(Refusal::Full(3))));
    // Quarantines have the same bound; the earliest one is dropped.
    for peer in 1..=10 {
        ledger.admit(admin(peer), at(peer.into())).unwrap();
        ledger.remove(&key(peer), at(peer.into())).unwrap();
    }
    assert_eq!(ledger.state.released.keys().copied().collect::<Vec<_>>(), [key(8), key(9), key(10)]);
}

#[test]
fn pending_leases_without_a_handshake_are_freed_and_give_the_use_back() {
    let mut ledger = ledger(&["10.0.0.0/24"]);
    ledger.add_invite(new_invite(1, 3), at(0)).unwrap();
    ledger.admit(by_invite(1, 1), at(0)).unwrap();
    ledger.admit(by_invite(2, 1), at(1)).unwrap();
    ledger.admit(by_invite(3, 1), at(2)).unwrap();
    ledger.confirm(&key(2), at(3)).unwrap();
    // Neither a repetition nor a new preshared key prolongs the wait.
    ledger.admit(by_invite(1, 1), at(50)).unwrap();
    ledger.set_preshared_key(&key(1), PresharedKey::from_bytes(&[5; 32]), at(51)).unwrap();
    assert_eq!(ledger.deadline(), Some(at(60).instant));
    assert_eq!(ledger.expire(at(59)).unwrap(), []);
    let ended = ledger.expire(at(62)).unwrap();
    assert_eq!(ended.iter().map(|lease| lease.public_key).collect::<Vec<_>>(), [key(1), key(3)]);
    assert_eq!(ledger.invite(&id(1)).unwrap().uses_left, 2);
    let mut ledger = reopened(ledger, at(63));
    assert_eq!(ledger.invite(&id(1)).unwrap().uses_left, 2);
    assert_eq!(text(ledger.admit(by_invite(4, 1), at(64)).unwrap().lease.v4), "10.0.0.2", "without quarantine");
    // An administrator's removal of a pending peer leaves a tombstone.
    ledger.remove(&key(4), at(65)).unwrap();
    assert_eq!(ledger.invite(&id(1)).unwrap().uses_left, 1);
}

#[test]
fn a_lapsed_lease_leaves_an_address_in_the_quarantine_it_came_from() {
    let mut ledger = ledger(&["10.0.0.0/24"]);
    ledger.admit(admin(1), at(0)).unwrap();
    ledger.remove(&key(1), at(0)).unwrap();
    ledger.add_invite(new_invite(1, 1), at(0)).unwrap();
    assert_eq!(text(ledger.admit(by_invite(1, 1), at(0)).unwrap().lease.v4), "10.0.0.2");
    assert_eq!(ledger.expire(at(60)).unwrap().len(), 1);
    assert_eq!(text(ledger.admit(admin(2), at(61)).unwrap().lease.v4), "10.0.0.3");
}

#[test]
fn pending_leases_keep_what_is_left_of_their_minute_over_a_restart_whatever_the_clock() {
    for (wall, ends) in [(40, 60), (0, 90), (-10_000, 90), (200, 40), (1_000_000, 40)] {
        let mut ledger = ledger(&["10.0.0.0/24"]);
        ledger.add_invite(new_invite(1, 1), at(0)).unwrap();
        ledger.admit(by_invite(1, 1), at(0)).unwrap();
        // 40 s have passed on the monotonic clock, and another time on the wall clock. The wait is never longer than
        // the last seen time permits.
        let mut ledger = reopened(ledger, stepped(40, wall));
        let ends = ends.min(100);
        let deadline = ledger.deadline().unwrap();
        let left = deadline.since(stepped(40, wall).instant).as_secs();
        assert!(left <= 60, "{wall}: {left}");
        assert_eq!(left, if wall <= 0 { 60 } else { ends - 40 }, "{wall}");
        assert_eq!(ledger.expire(Now { instant: deadline, ..stepped(40, wall) }).unwrap().len(), 1, "{wall}");
        assert_eq!(ledger.leases().len(), 0);
    }
}

#[test]
fn after_a_restart_no_lease_waits_longer_than_the_policy_of_now() {
    let mut ledger = ledger(&["10.0.0.0/24"]);
    ledger.add_invite(new_invite(1, 1), at(0)).unwrap();
    ledger.admit(by_invite(1, 1), at(0)).unwrap();
    let policy = Policy { pending: Duration::from_secs(10), ..Policy::default() };
    let ledger = Ledger::open(ledger.into_store(), pools(&["10.0.0.0/24"]), policy, at(1)).unwrap();
    assert_eq!(ledger.deadline(), Some(at(11).instant));
}

#[test]
fn a_removed_peer_comes_back_by_something_newer_only() {
    let mut ledger = ledger(&["10.0.0.0/24"]);
    ledger.add_invite(new_invite(1, 5), at(0)).unwrap();
    ledger.window_opened();
    ledger.admit(request(1, Grant::Window), at(0)).unwrap();
    ledger.confirm(&key(1), at(0)).unwrap();
    ledger.remove(&key(1), at(0)).unwrap();
    assert!(matches!(ledger.admit(by_invite(1, 1), at(0)), Err(Refusal::Removed)));
    assert!(matches!(ledger.admit(request(1, Grant::Window), at(0)), Err(Refusal::Removed)));
    ledger.admit(request(2, Grant::Window), at(0)).unwrap();
    let mut ledger = reopened(ledger, at(1));
    assert!(matches!(ledger.admit(request(1, Grant::Window), at(1)), Err(Refusal::Closed)), "not over a restart");
    assert!(matches!(ledger.admit(by_invite(1, 1), at(1)), Err(Refusal::Removed)));
    // The invite is made in the same second as the removal, on a clock that went back: the order decides.
    ledger.add_invite(new_invite(2, 1), stepped(1, -1_000)).unwrap();
    assert!(ledger.admit(by_invite(1, 2), at(1)).unwrap().fresh);
    assert!(matches!(ledger.admit(by_invite(1, 1), at(1)), Err(Refusal::Removed)), "the old one does not, even now");
    ledger.remove(&key(1), at(2)).unwrap();
    ledger.window_opened();
    assert!(ledger.admit(request(1, Grant::Window), at(2)).unwrap().fresh);
    ledger.remove(&key(1), at(3)).unwrap();
    assert!(ledger.admit(admin(1), at(3)).unwrap().fresh);
}

#[test]
fn tombstones_go_when_nothing_older_is_left() {
    let mut ledger = ledger(&["10.0.0.0/24"]);
    ledger.add_invite(new_invite(1, 5), at(0)).unwrap();
    ledger.admit(admin(1), at(0)).unwrap();
    ledger.remove(&key(1), at(1)).unwrap();
    let end = DAY + RETENTION.as_secs();
    ledger.expire(at(end - 1)).unwrap();
    assert_eq!((ledger.invites().len(), ledger.state.removed.len()), (1, 1));
    assert_eq!(ledger.deadline(), Some(at(end).instant));
    ledger.expire(at(end)).unwrap();
    assert_eq!((ledger.invites().len(), ledger.state.removed.len()), (0, 0));
    assert!(matches!(ledger.admit(by_invite(1, 1), at(end)), Err(Refusal::Unknown(_))));

    // A large leap of the clock does not let the window admit a removed peer.
    ledger.window_opened();
    ledger.admit(request(2, Grant::Window), at(end)).unwrap();
    ledger.remove(&key(2), at(end)).unwrap();
    ledger.expire(stepped(end + 1, 400 * i64::try_from(DAY).unwrap())).unwrap();
    assert!(matches!(ledger.admit(request(2, Grant::Window), at(end + 2)), Err(Refusal::Removed)));
    ledger.window_closed();
    ledger.expire(at(end + 3)).unwrap();
    assert_eq!(ledger.state.removed.len(), 0);
    // No tombstone is needed if no grant could admit the peer again.
    ledger.admit(admin(3), at(end + 3)).unwrap();
    ledger.remove(&key(3), at(end + 3)).unwrap();
    assert_eq!(ledger.state.removed.len(), 0);
}

fn leasing(lease_time: u64, store: MemoryStore, now: Now) -> Ledger<MemoryStore> {
    let policy = Policy { lease_time: Some(Duration::from_secs(lease_time)), ..Policy::default() };
    Ledger::open(store, pools(&["10.0.0.0/24"]), policy, now).unwrap()
}

/// A ledger with a peer that came by invite and is active since second 1.
fn with_a_lease(lease_time: u64) -> Ledger<MemoryStore> {
    let mut ledger = leasing(lease_time, MemoryStore::default(), at(0));
    ledger.add_invite(new_invite(1, 5), at(0)).unwrap();
    ledger.admit(by_invite(1, 1), at(0)).unwrap();
    ledger.confirm(&key(1), at(1)).unwrap();
    ledger
}

#[test]
fn leases_end_unless_handshakes_renew_them() {
    let mut ledger = with_a_lease(16_000);
    ledger.admit(admin(2), at(1)).unwrap();
    assert_eq!(ledger.lease(&key(1)).unwrap().expires, Some(START + 16_001));
    // Too soon to be recorded.
    ledger.confirm(&key(1), at(1_000)).unwrap();
    assert_eq!(ledger.deadline(), Some(at(16_001).instant));
    ledger.confirm(&key(1), at(10_000)).unwrap();
    assert_eq!(ledger.deadline(), Some(at(10_060).instant), "when it becomes durable");
    ledger.expire(at(10_060)).unwrap();
    let lease = ledger.lease(&key(1)).unwrap();
    assert_eq!((lease.last_handshake, lease.expires), (Some(START + 10_000), Some(START + 26_000)));
    // The renewal is not durable yet at the lease's end, but it counts.
    ledger.confirm(&key(1), at(25_999)).unwrap();
    assert_eq!(ledger.expire(at(26_000)).unwrap(), []);
    let mut ledger = reopened(ledger, at(26_001));
    assert_eq!(ledger.lease(&key(1)).unwrap().expires, Some(START + 41_999));
    assert_eq!(ledger.expire(at(41_998)).unwrap(), []);
    assert_eq!(ledger.expire(at(41_999)).unwrap().len(), 1);
    assert_eq!(ledger.leases().map(|lease| lease.public_key).collect::<Vec<_>>(), [key(2)], "administrators' stay");
    assert_eq!(ledger.expire(at(42_000)).unwrap(), []);
    assert!(ledger.admit(by_invite(1, 1), at(42_000)).unwrap().fresh, "it may come again");
    assert_eq!(ledger.invite(&id(1)).unwrap().uses_left, 3);
}

#[test]
fn a_handshake_of_a_removed_peer_does_not_count_for_the_one_who_comes_after() {
    let mut ledger = with_a_lease(16_000);
    ledger.confirm(&key(1), at(10_000)).unwrap();
    ledger.remove(&key(1), at(10_001)).unwrap();
    ledger.add_invite(new_invite(2, 1), at(10_002)).unwrap();
    ledger.admit(by_invite(1, 2), at(10_003)).unwrap();
    ledger.expire(at(10_061)).unwrap();
    assert_eq!(ledger.lease(&key(1)).unwrap().last_handshake, None);
}

#[test]
fn a_quarantine_never_frees_an_address_that_is_leased() {
    let mut ledger = ledger(&["10.0.0.0/24"]);
    let v4 = ledger.admit(admin(1), at(0)).unwrap().lease.v4;
    let mut store = ledger.into_store();
    let released = Released { public_key: key(2), v4, v6: None, until: START + 10 };
    store.commit(&[Change::Released(released)], &State::default()).unwrap();
    let mut ledger = Ledger::open(store, pools(&["10.0.0.0/24"]), Policy::default(), at(1)).unwrap();
    ledger.expire(at(11)).unwrap();
    assert_eq!(text(ledger.admit(admin(3), at(12)).unwrap().lease.v4), "10.0.0.3");
}

#[test]
fn ephemeral_peers_end_soon_after_they_fall_silent() {
    let mut ledger = ledger(&["10.0.0.0/24"]);
    let terms = Terms { ephemeral: true, ..Terms::default() };
    ledger.add_invite(NewInvite { terms: terms.clone(), ..new_invite(1, 1) }, at(0)).unwrap();
    ledger.admit(by_invite(1, 1), at(0)).unwrap();
    ledger.admit(request(2, Grant::Admin(terms)), at(0)).unwrap();
    ledger.admit(Request { ephemeral: true, ..admin(3) }, at(0)).unwrap();
    ledger.admit(admin(4), at(0)).unwrap();
    ledger.confirm(&key(1), at(1)).unwrap();
    ledger.confirm(&key(2), at(1_000)).unwrap();
    let ended = ledger.expire(at(1_801)).unwrap();
    assert_eq!(ended.iter().map(|lease| lease.public_key).collect::<Vec<_>>(), [key(1), key(3)]);
    assert_eq!(ledger.expire(at(2_800)).unwrap().len(), 1);
}

#[test]
fn a_clock_that_goes_back_changes_nothing() {
    let back = -400 * i64::try_from(DAY).unwrap();
    let mut ledger = with_a_lease(10_000);
    assert_eq!(ledger.expire(stepped(2, back)).unwrap(), []);
    assert_eq!(ledger.time(stepped(100, back)), START + 100);
    // In this run and after a restart, all durations stay as intended.
    assert_eq!(ledger.deadline(), Some(at(10_001).instant));
    ledger.rename(&key(1), "noted", stepped(5_000, back)).unwrap();
    let mut ledger = reopened(ledger, stepped(5_000, back));
    assert_eq!(ledger.deadline(), Some(at(10_001).instant));
    assert_eq!(ledger.expire(stepped(10_000, back)).unwrap(), []);
    assert_eq!(ledger.expire(stepped(10_001, back)).unwrap().len(), 1);
    assert!(matches!(ledger.admit(by_invite(2, 1), stepped(DAY, back)), Err(Refusal::Expired(_))), "as do invites");
}

#[test]
fn a_clock_that_leaps_forward_ends_no_lease_of_a_peer_that_is_there_and_nothing_lives_for_ever() {
    let ahead = 3_650 * i64::try_from(DAY).unwrap();
    let mut ledger = with_a_lease(10_000);
    ledger.admit(by_invite(2, 1), at(1)).unwrap();
    ledger.confirm(&key(2), at(1)).unwrap();
    ledger.admit(by_invite(3, 1), at(1_000)).unwrap();
    assert_eq!(ledger.expire(stepped(1_001, ahead)).unwrap(), [], "not at once, and pending ones not either");
    ledger.confirm(&key(3), stepped(1_002, ahead)).unwrap();
    ledger.confirm(&key(1), stepped(1_100, ahead)).unwrap();
    assert!(matches!(ledger.admit(by_invite(4, 1), stepped(1_100, ahead)), Err(Refusal::Unknown(_))));
    let after_grace = 1_001 + GRACE.as_secs();
    let ended = ledger.expire(stepped(after_grace, ahead)).unwrap();
    assert_eq!(ended.iter().map(|lease| lease.public_key).collect::<Vec<_>>(), [key(2)], "the silent one");
    // The clock is set back again. Leases renewed in between still end.
    let mut ledger = reopened(ledger, at(after_grace + 1));
    let expires = ledger.lease(&key(1)).unwrap().expires.unwrap();
    assert!(expires > START + 3_650 * DAY);
    let deadline = ledger.deadline().unwrap();
    assert!(deadline.since(at(0).instant).as_secs() < 12_000);
    let ended = ledger.expire(Now { instant: at(12_000).instant, unix: at(12_000).unix }).unwrap();
    assert_eq!(ended.len(), 2);
}

#[test]
fn after_a_start_leases_that_ran_out_meanwhile_have_ten_minutes() {
    let ledger = with_a_lease(1_000);
    let mut ledger = reopened(ledger, at(5_000));
    assert_eq!(ledger.deadline(), Some(at(5_600).instant));
    assert_eq!(ledger.expire(at(5_599)).unwrap(), []);
    ledger.confirm(&key(1), at(5_599)).unwrap();
    assert_eq!(ledger.expire(at(5_600)).unwrap(), []);
    assert_eq!(ledger.expire(at(6_599)).unwrap().len(), 1);
}

#[test]
fn extreme_clocks_trap_nothing() {
    for unix in [Duration::ZERO, Duration::MAX] {
        for instant in [0, u64::MAX] {
            let now = Now { instant: Instant::from_nanos(instant), unix };
            let mut ledger = leasing(u64::MAX, MemoryStore::default(), now);
            ledger.add_invite(NewInvite { lifetime: Some(Duration::MAX), ..new_invite(1, 2) }, now).unwrap();
            let _ = ledger.admit(by_invite(1, 1), now);
            let _ = ledger.confirm(&key(1), now);
            ledger.admit(admin(2), now).unwrap();
            ledger.remove(&key(2), now).unwrap();
            for now in [now, at(0), Now { unix: Duration::MAX, ..at(5) }, Now { unix: Duration::ZERO, ..at(9) }] {
                let _ = ledger.deadline();
                ledger.expire(now).unwrap();
                ledger = reopened(ledger, now);
            }
        }
    }
}

#[test]
fn a_pool_that_does_not_fit_the_leases_is_refused_and_they_are_named() {
    let mut ledger = ledger(&["10.0.0.0/24", "fd00::/64"]);
    for peer in 1..=12 {
        ledger.admit(admin(peer), at(0)).unwrap();
    }
    let store = ledger.into_store();
    let open = |prefixes: &[&str]| Ledger::open(store.clone(), pools(prefixes), Policy::default(), at(1));
    let error = open(&["10.0.0.0/29", "fd00::/64"]).unwrap_err();
    let LedgerError::OutsidePool(outside) = &error else { panic!("{error}") };
    assert_eq!(outside.len(), 7);
    assert!(
        error.to_string().starts_with("7 leases are outside of the address pool: 10.0.0.7 of host6 (BgYG"),
        "{error}"
    );
    assert!(error.to_string().ends_with("then change the pool"), "{error}");
    let error = open(&["10.0.0.5/24", "fd00::/64"]).unwrap_err().to_string();
    assert!(error.starts_with("1 lease is outside of the address pool: 10.0.0.5 of host4"), "{error}");
    let error = open(&["10.0.0.0/24"]).unwrap_err().to_string();
    assert!(error.contains("and 2 more"), "{error}");
    let mut wider = open(&["10.0.0.1/16", "fd00::/64"]).unwrap();
    assert_eq!(wider.leases().len(), 12);
    assert_eq!(text(wider.admit(admin(13), at(2)).unwrap().lease.v4), "10.0.0.14");
}

#[test]
fn one_address_leased_twice_is_refused() {
    let mut ledger = ledger(&["10.0.0.0/24"]);
    let lease = ledger.admit(admin(1), at(0)).unwrap().lease;
    let mut store = ledger.into_store();
    store.commit(&[Change::Lease(Lease { public_key: key(2), ..lease })], &State::default()).unwrap();
    let error = Ledger::open(store, pools(&["10.0.0.0/24"]), Policy::default(), at(0)).unwrap_err().to_string();
    assert!(error.contains("10.0.0.2 to both host1 (AQEB") && error.contains("and host1 (AgIC"), "{error}");
}

#[test]
fn names_are_cleaned_and_administrators_are_told() {
    for (given, kept) in [
        ("web-1.example", Some("web-1.example")),
        (" \u{1b}[31mred\u{202e} ", Some("31mred")),
        ("a\nb", Some("a-b")),
        ("…", None),
        ("", None),
    ] {
        assert_eq!(clean_name(given).as_deref(), kept, "{given:?}");
    }
    assert_eq!(clean_name(&"é".repeat(100)), None);
    assert_eq!(clean_name(&"x".repeat(100)).unwrap().len(), MAX_NAME);

    let mut ledger = ledger(&["10.0.0.0/24"]);
    ledger.admit(Request { name: Some("a b".to_owned()), ..admin(1) }, at(0)).unwrap();
    assert_eq!(ledger.lease(&key(1)).unwrap().name.as_deref(), Some("a-b"));
    assert!(matches!(ledger.rename(&key(1), "c d", at(0)), Err(LedgerError::Name(_))));
    ledger.admit(request(2, Grant::Admin(Terms::default())).with_name("b".to_owned()), at(0)).unwrap();
    assert!(
        matches!(ledger.rename(&key(1), "b", at(0)), Err(LedgerError::NameTaken(peer)) if peer.public_key == key(2))
    );
    ledger.rename(&key(1), "c-d", at(0)).unwrap();
    ledger.rename(&key(1), "c-d", at(0)).unwrap();
    assert_eq!(reopened(ledger, at(0)).lease(&key(1)).unwrap().name.as_deref(), Some("c-d"));
}

#[test]
fn preshared_keys_are_in_no_text() {
    let mut ledger = ledger(&["10.0.0.0/24"]);
    let lease = ledger.admit(request(0xab, Grant::Admin(Terms::default())), at(0)).unwrap().lease;
    let debug = format!("{lease:?} {ledger:?}");
    assert!(debug.contains("PresharedKey(..)") && !debug.contains("171, 171"), "{debug}");
    assert!(serde_json::to_string(&lease).is_err(), "nor in JSON, such as the audit log's");
}

#[test]
fn a_guest_who_does_not_come_makes_room_and_one_who_does_stays() {
    let mut ledger = ledger(&["10.0.0.0/29"]);
    for peer in [1, 2] {
        let guest = Grant::Guest(Terms::default(), Duration::from_secs(DAY));
        assert_eq!(ledger.admit(request(peer, guest), at(0)).unwrap().lease.expires, Some(ledger.time(at(0)) + DAY));
    }
    // A restart preserves both facts.
    let mut ledger = reopened(ledger, at(60));
    ledger.confirm(&key(1), at(DAY - 3600)).unwrap();
    ledger.expire(at(DAY - 3000)).unwrap();
    assert_eq!(ledger.lease(&key(1)).unwrap().expires, None);
    let gone = ledger.expire(at(DAY + 3600)).unwrap();
    assert_eq!(gone.iter().map(|lease| lease.public_key).collect::<Vec<_>>(), [key(2)]);
    assert!(ledger.expire(at(1_000 * DAY)).unwrap().is_empty());
}
