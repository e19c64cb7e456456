//! 60,000 leases. Figures: `cargo test --release -p rustguard-enroll --test ledger_scale -- --ignored --nocapture`.
use std::time::{Duration, Instant as Clock};

use rustguard_core::time::{Instant, Now};
use rustguard_crypto::x25519::PublicKey;
use rustguard_enroll::lease::{Lease, LeaseState, NewInvite, Origin, PresharedKey, Terms, TokenId};
use rustguard_enroll::ledger::{Grant, Ledger, Policy, Request};
use rustguard_enroll::pool::Pools;
use rustguard_enroll::store::{Change, FileStore, LeaseStore, MemoryStore, State};

const LEASES: u32 = 60_000;
const NOW: Now = Now { instant: Instant::from_nanos(0), unix: Duration::from_secs(1_800_000_000) };
const INVITE: TokenId = TokenId([7; 8]);

fn key(number: u32) -> PublicKey {
    PublicKey(rustguard_crypto::hash::hash(&[&number.to_be_bytes()]))
}

/// All of it as one commit.
fn changes() -> Vec<Change> {
    let lease = |number: u32| Lease {
        public_key: key(number),
        name: Some(format!("host-{number}")),
        v4: Some((0x0a00_0002 + number).into()),
        v6: Some(((0xfd00_u128 << 112) | u128::from(u64::from_be_bytes(*key(number).0.first_chunk().unwrap()))).into()),
        preshared_key: PresharedKey::from_bytes(&key(number).0),
        state: LeaseState::Active,
        origin: Origin::Invite(INVITE),
        tag: None,
        ephemeral: false,
        created: NOW.unix.as_secs(),
        expires: Some(NOW.unix.as_secs() + 86_400),
        last_handshake: Some(NOW.unix.as_secs()),
    };
    (0..LEASES).map(|number| Change::Lease(lease(number))).collect()
}

fn open<S: LeaseStore>(store: S) -> Ledger<S> {
    let pools = Pools::new(&["10.0.0.0/16".parse().unwrap(), "fd00::/64".parse().unwrap()]).unwrap();
    Ledger::open(store, pools, Policy::default(), NOW).unwrap()
}

fn invite() -> NewInvite {
    NewInvite { id: INVITE, public_key: key(u32::MAX), lifetime: None, uses: 5_000, terms: Terms::default() }
}

fn request(number: u32) -> Request {
    Request {
        public_key: key(number),
        name: Some(format!("host-{number}")),
        preshared_key: PresharedKey::from_bytes(&[5; 32]),
        ephemeral: false,
        grant: Grant::Invite(INVITE),
    }
}

/// Resident memory of this process, in bytes.
fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() * 1024
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

#[test]
#[ignore = "measures; needs a quiet machine and a release build"]
fn figures() {
    let folder = tempfile::tempdir_in(std::env::var("RUSTGUARD_TEST_DISK").unwrap_or("/var/tmp".to_owned())).unwrap();
    let folder = folder.path().join("state");
    let mut store = FileStore::open(&folder).unwrap();
    store.load().unwrap();
    store.commit(&changes(), &State::default()).unwrap();
    drop(store);

    let (before, clock) = (resident(), Clock::now());
    let mut ledger = open(FileStore::open(&folder).unwrap());
    println!("open with compaction  {:?}", clock.elapsed());
    let snapshot = std::fs::metadata(folder.join("snapshot")).unwrap().len();
    println!("snapshot              {snapshot} bytes, {} a lease", snapshot / u64::from(LEASES));
    println!("resident              {} bytes a lease", (resident() - before) / LEASES as usize);
    ledger.add_invite(invite(), NOW).unwrap();
    measure("admission, FileStore ", &mut ledger);

    // Until the next snapshot is through.
    let mut worst: Vec<Duration> = Vec::new();
    for round in 0..20_u8 {
        for lease in ledger.leases().take(1_000).map(|lease| lease.public_key).collect::<Vec<_>>() {
            let clock = Clock::now();
            ledger.set_preshared_key(&lease, PresharedKey::from_bytes(&[round; 32]), NOW).unwrap();
            worst.push(clock.elapsed());
        }
    }
    report("20,000 commits       ", worst);

    let mut memory = MemoryStore::default();
    memory.commit(&changes(), &State::default()).unwrap();
    let mut ledger = open(memory);
    ledger.add_invite(invite(), NOW).unwrap();
    measure("admission, bookkeeping", &mut ledger);
}

fn measure<S: LeaseStore>(what: &str, ledger: &mut Ledger<S>) {
    let times = (LEASES..LEASES + 2_000).map(|number| {
        let request = request(number);
        let clock = Clock::now();
        ledger.admit(request, NOW).unwrap();
        clock.elapsed()
    });
    let times = times.collect();
    report(what, times);
}

fn report(what: &str, mut times: Vec<Duration>) {
    let total: Duration = times.iter().sum();
    let mean = total / u32::try_from(times.len()).unwrap();
    times.sort();
    let at = |share: usize| times[(times.len() - 1) * share / 1_000];
    println!("{what} mean {mean:?}, median {:?}, 99.9 % {:?}, worst {:?}", at(500), at(999), at(1_000));
}
