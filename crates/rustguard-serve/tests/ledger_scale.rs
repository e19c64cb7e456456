//! 60,000 leases. Figures: `cargo bench -p rustguard-benches --bench enrol`.
use rustguard_core::time::{Instant, Now};
use rustguard_crypto::x25519::PublicKey;
use rustguard_enroll::{
    lease::{Lease, NewInvite, Origin, PresharedKey, TokenId},
    ledger::{Grant, Ledger, Policy, Request},
    pool::Pools,
    store::{Change, LeaseStore, State},
};
use rustguard_serve::FileStore;
use std::time::Duration;

const LEASES: u32 = 60_000;
const NOW: Now = Now { instant: Instant::from_nanos(0), unix: Duration::from_secs(1_800_000_000) };
const INVITE: TokenId = TokenId([7; 8]);

fn key(number: u32) -> PublicKey {
    PublicKey(rustguard_crypto::hash::hash(&[&number.to_be_bytes()]))
}

/// The whole state as one commit.
fn changes() -> Vec<Change> {
    let lease = |number: u32| Lease {
        name: Some(format!("host-{number}")),
        v4: Some((0x0a00_0002 + number).into()),
        v6: Some(((0xfd00_u128 << 112) | u128::from(u64::from_be_bytes(*key(number).0.first_chunk().unwrap()))).into()),
        origin: Origin::Invite(INVITE),
        created: NOW.unix.as_secs(),
        expires: Some(NOW.unix.as_secs() + 86_400),
        last_handshake: Some(NOW.unix.as_secs()),
        ..Lease::new(key(number), PresharedKey::from_bytes(&key(number).0))
    };
    (0..LEASES).map(|number| Change::Lease(lease(number))).collect()
}

fn open<S: LeaseStore>(store: S) -> Ledger<S> {
    let pools = Pools::new(&["10.0.0.0/16".parse().unwrap(), "fd00::/64".parse().unwrap()]).unwrap();
    Ledger::open(store, pools, Policy::default(), NOW).unwrap()
}

fn invite() -> NewInvite {
    NewInvite::new(INVITE, key(u32::MAX)).with_uses(5_000)
}

fn request(number: u32) -> Request {
    Request::new(key(number), PresharedKey::from_bytes(&[5; 32]), Grant::Invite(INVITE))
        .with_name(format!("host-{number}"))
}

#[test]
fn sixty_thousand_leases_are_kept_and_the_next_ones_get_the_next_addresses() {
    let folder = tempfile::tempdir().unwrap();
    let mut store = FileStore::open(&folder.path().join("state")).unwrap();
    store.load().unwrap();
    store.commit(&changes(), &State::default()).unwrap();
    let mut ledger = open_dropped(store, &folder.path().join("state"));
    ledger.add_invite(invite(), NOW).unwrap();
    for number in LEASES..LEASES + 100 {
        let lease = ledger.admit(request(number), NOW).unwrap().lease;
        assert_eq!(u32::from(lease.v4.unwrap()), 0x0a00_0002 + number);
    }
    let ledger = open_dropped(ledger.into_store(), &folder.path().join("state"));
    assert_eq!(ledger.leases().len(), LEASES as usize + 100);
}

/// A restart.
fn open_dropped(store: FileStore, folder: &std::path::Path) -> Ledger<FileStore> {
    drop(store);
    open(FileStore::open(folder).unwrap())
}
