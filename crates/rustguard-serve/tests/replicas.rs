//! Several servers decide on one log: in memory, and in real stores that die and hang meanwhile.

#[path = "../../rustguard-store/tests/engines/cluster.rs"]
#[allow(dead_code, reason = "the tests of the store use the rest")]
mod cluster;
#[path = "../../rustguard-store/tests/engines/database.rs"]
#[allow(dead_code, reason = "the tests of the store use the rest")]
mod database;
#[path = "../../rustguard-store/tests/engines/process.rs"]
#[allow(dead_code, reason = "the tests of the store use the rest")]
mod process;

use futures_util::future::{BoxFuture, join_all};
use rand::{RngExt, SeedableRng, rngs::StdRng};
use rustguard_core::time::{Instant, Now};
use rustguard_crypto::x25519::PublicKey;
use rustguard_enroll::{
    lease::{NewInvite, Origin, PresharedKey, Terms, TokenId},
    ledger::{Grant, Ledger, LedgerError, Policy, Refusal, Request},
    pool::Pools,
    store::MemoryStore,
};
use rustguard_serve::replica::{Replica, ReplicaError};
use rustguard_store::{
    Log, LogError, NetworkLog,
    key::StoreKey,
    log::{Page, Snapshot},
    memory::MemoryLog,
    network::Position,
};
use std::{
    collections::{BTreeMap, BTreeSet, btree_map::Entry},
    net::Ipv4Addr,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
    time::{Duration, SystemTime, UNIX_EPOCH},
};

const SERVERS: u8 = 3;
/// The invites that all servers know from the start, and how many each admits.
const INVITES: u8 = 6;
const USES: u32 = 20;

fn now() -> Now {
    let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    Now { instant: Instant::from_nanos(u64::try_from(unix.as_nanos()).unwrap()), unix }
}

fn key() -> StoreKey {
    StoreKey::from_bytes(&[5; 32])
}

fn ledger() -> Ledger<MemoryStore> {
    let pools = Pools::new(&["10.0.0.0/16".parse().unwrap()]).unwrap();
    Ledger::open(MemoryStore::default(), pools, Policy::default(), now()).unwrap()
}

async fn replica(log: &Arc<dyn Log>, server: &str) -> Result<Replica<MemoryStore>, ReplicaError> {
    Replica::open(ledger(), NetworkLog::new(Arc::clone(log), key(), Position::START), server, now).await
}

fn peer(server: u8, number: u32) -> PublicKey {
    PublicKey(rustguard_crypto::hash::hash(&[&[server], &number.to_be_bytes()]))
}

fn request(public_key: PublicKey, grant: Grant) -> Request {
    Request::new(public_key, PresharedKey::from_bytes(&public_key.0), grant)
}

fn id(invite: u8) -> TokenId {
    TokenId([invite; 8])
}

fn new_invite(invite: u8) -> NewInvite {
    NewInvite::new(id(invite), PublicKey([invite; 32])).with_uses(USES)
}

fn memory() -> Arc<dyn Log> {
    Arc::new(MemoryLog::default())
}

/// A server's knowledge of a machine.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Known {
    /// It was told that it has this address.
    Admitted(Ipv4Addr),
    Removed,
    Refused,
    /// The store did not answer.
    Unknown,
}

/// Lets machines join and leave until `is_over`, and returns what they were told.
async fn serve(
    server: u8,
    mut replica: Replica<MemoryStore>,
    seed: u64,
    is_over: impl Fn() -> bool,
) -> (Replica<MemoryStore>, BTreeMap<PublicKey, Known>, u32) {
    let mut rng = StdRng::seed_from_u64(seed + u64::from(server));
    let (mut known, mut number, mut unknown) = (BTreeMap::new(), 0, 0);
    while !is_over() {
        // Others decide in between, also where the store answers at once.
        tokio::task::yield_now().await;
        number += 1;
        let machine = match rng.random_range(0..10) {
            // One of this server's leaves.
            0..2 if number > 5 => peer(server, rng.random_range(1..number)),
            _ => peer(server, number),
        };
        if let Some(Known::Admitted(_)) = known.get(&machine) {
            let removed = replica.decide(now, |ledger, now| ledger.remove(&machine, now)).await;
            let told = match removed {
                Ok(Ok(_)) => Known::Removed,
                Ok(Err(error)) => panic!("{error}"),
                Err(ReplicaError::Log(error)) if error.is_unknown() => Known::Unknown,
                Err(ReplicaError::Overtaken) => continue,
                Err(error) => panic!("{error}"),
            };
            known.insert(machine, told);
        } else if let Entry::Vacant(unknown_yet) = known.entry(machine) {
            let grant = match rng.random_range(0..4) {
                0 => Grant::Invite(id(rng.random_range(0..INVITES))),
                _ => Grant::Admin(Terms::default()),
            };
            let admitted = replica.decide(now, |ledger, now| ledger.admit(request(machine, grant.clone()), now)).await;
            let told = match admitted {
                Ok(Ok(admission)) => Known::Admitted(admission.lease.v4.unwrap()),
                Ok(Err(Refusal::Used(_))) => Known::Refused,
                Ok(Err(error)) => panic!("{error}"),
                Err(ReplicaError::Log(error)) if error.is_unknown() => Known::Unknown,
                Err(ReplicaError::Overtaken) => continue,
                Err(error) => panic!("{error}"),
            };
            unknown_yet.insert(told);
        }
        if known.get(&machine) == Some(&Known::Unknown) {
            unknown += 1;
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
    (replica, known, unknown)
}

/// Tries until the store answers.
async fn patient<T>(mut attempt: impl AsyncFnMut() -> Result<T, ReplicaError>) -> T {
    loop {
        match attempt().await {
            Ok(done) => return done,
            Err(ReplicaError::Log(error)) if error.is_unknown() => tokio::time::sleep(Duration::from_millis(50)).await,
            Err(error) => panic!("{error}"),
        }
    }
}

/// Three servers on a log, each with a handle of its own, while `disturb` runs. Then everything is compared.
async fn history<T: Send + 'static>(handles: Vec<Arc<dyn Log>>, disturb: impl FnOnce() -> T + Send + 'static) {
    let seed: u64 = rand::rng().random();
    println!("seed {seed}");
    let mut first = patient(async || replica(&handles[0], "a").await).await;
    for invite in 0..INVITES {
        let add = |ledger: &mut Ledger<MemoryStore>, now| match ledger.add_invite(new_invite(invite), now) {
            // An attempt whose answer was lost.
            Ok(_) | Err(LedgerError::InviteExists(_)) => Ok::<_, LedgerError>(()),
            Err(error) => Err(error),
        };
        patient(async || first.decide(now, add).await).await.unwrap();
    }
    drop(first);
    let disturbance = tokio::task::spawn_blocking(disturb);
    let servers = (0..SERVERS).zip(&handles).map(async |(server, handle)| {
        let replica = patient(async || replica(handle, &format!("server {server}")).await).await;
        serve(server, replica, seed, || disturbance.is_finished()).await
    });
    let (mut known, mut replicas, mut doubts) = (BTreeMap::new(), Vec::new(), 0);
    for (replica, told, unknown) in join_all(servers).await {
        replicas.push(replica);
        known.extend(told);
        doubts += unknown;
    }
    // The store stays until all is compared.
    let _store = disturbance.await.unwrap();
    // The store works again: a decision of each server settles what was in doubt.
    for (number, replica) in (0_u8..).zip(&mut replicas) {
        let last = request(PublicKey([200 + number; 32]), Grant::Admin(Terms::default()));
        patient(async || replica.decide(now, |ledger, now| ledger.admit(last.clone(), now)).await).await.unwrap();
    }
    let end = patient(async || replica(&handles[0], "reader").await).await;
    for replica in &mut replicas {
        patient(async || replica.follow(now).await).await;
        assert!(replica.ledger().state() == end.ledger().state(), "{replica:?} has another state");
        assert_eq!(replica.position(), end.position());
    }
    let addresses: BTreeSet<_> = end.ledger().leases().flat_map(|lease| lease.addresses()).collect();
    assert_eq!(addresses.len(), end.ledger().leases().len(), "an address has two leases");
    let mut count = 0;
    for (machine, told) in &known {
        let lease = end.ledger().lease(machine);
        count += usize::from(lease.is_some());
        match told {
            Known::Admitted(address) => {
                assert_eq!(lease.and_then(|lease| lease.v4), Some(*address), "it was acknowledged");
            }
            Known::Removed | Known::Refused => assert!(lease.is_none(), "{told:?}, and it has a lease"),
            Known::Unknown => {}
        }
    }
    assert_eq!(count + usize::from(SERVERS), end.ledger().leases().len(), "a lease of nobody");
    for invite in end.ledger().invites() {
        // A machine that was removed does not give its use back.
        let by_it = end.ledger().leases().filter(|lease| lease.origin == Origin::Invite(invite.id)).count();
        assert!(by_it <= usize::try_from(USES - invite.uses_left).unwrap(), "an invite admitted more than it may");
    }
    println!("{} records, {} machines, {doubts} in doubt", end.position().revision, known.len());
}

#[tokio::test]
async fn a_snapshot_takes_the_place_of_old_records() {
    let log = memory();
    let (mut a, mut late) = (replica(&log, "a").await.unwrap(), replica(&log, "late").await.unwrap());
    let machine = peer(0, 1);
    let admit =
        |ledger: &mut Ledger<MemoryStore>, now| ledger.admit(request(machine, Grant::Admin(Terms::default())), now);
    a.decide(now, admit).await.unwrap().unwrap();
    late.follow(now).await.unwrap();
    for number in 0..2_100 {
        a.decide(now, |ledger, now| ledger.rename(&machine, &format!("host-{number}"), now)).await.unwrap().unwrap();
    }
    let snapshot = log.snapshot().await.unwrap().expect("after 1,000 records");
    assert_eq!(snapshot.revision, 2_000);
    let new = replica(&log, "new").await.unwrap();
    let followed = late.follow(now).await.unwrap();
    assert_eq!(followed.peers, BTreeSet::from([machine]));
    for replica in [&late, &new] {
        assert_eq!(replica.ledger().state(), a.ledger().state());
        assert_eq!((replica.position(), replica.position().revision), (a.position(), 2_101));
    }
}

#[tokio::test]
async fn an_error_decides_nothing() {
    let log = memory();
    let (mut a, mut b) = (replica(&log, "a").await.unwrap(), replica(&log, "b").await.unwrap());
    let nobody = peer(0, 1);
    let error = a.decide(now, |ledger, now| ledger.remove(&nobody, now)).await.unwrap().unwrap_err();
    assert!(matches!(error, LedgerError::UnknownPeer(_)));
    // Changes that were staged before the error are taken back.
    let error = a.decide(now, |ledger, now| {
        ledger.admit(request(nobody, Grant::Admin(Terms::default())), now).unwrap();
        ledger.remove(&peer(9, 9), now)
    });
    error.await.unwrap().unwrap_err();
    assert_eq!((a.ledger().leases().len(), a.position().revision), (0, 0));
    // Nothing is decided, so nothing is appended.
    a.decide(now, |_, _| Ok::<_, LedgerError>(())).await.unwrap().unwrap();
    assert_eq!(a.position().revision, 0);
    a.decide(now, |ledger, now| ledger.admit(request(nobody, Grant::Admin(Terms::default())), now))
        .await
        .unwrap()
        .unwrap();
    assert_eq!(b.follow(now).await.unwrap().peers, BTreeSet::from([nobody]));
}

/// A log behind a connection that loses the next answers to appends, or the requests. Then it may refuse some.
#[derive(Debug, Default)]
struct Far {
    log: MemoryLog,
    answers: AtomicU32,
    requests: AtomicU32,
    refusals: AtomicU32,
    /// The number of the next read that fails, counted from 1. None does at 0.
    read: AtomicU32,
}

impl Log for Far {
    fn name(&self) -> String {
        "a log far away".to_owned()
    }

    fn append<'a>(&'a self, after: u64, entry: &'a [u8]) -> BoxFuture<'a, Result<bool, LogError>> {
        let is_lost = |left: &AtomicU32| left.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1)).is_ok();
        let lost = || LogError::Unavailable { store: self.name(), cause: "the cable is cut".to_owned() };
        Box::pin(async move {
            if is_lost(&self.requests) {
                return Err(lost());
            }
            if self.answers.load(Relaxed) == 0 && is_lost(&self.refusals) {
                let (cause, remedy) = ("no right to write".to_owned(), "ask for it".to_owned());
                return Err(LogError::Refused { store: self.name(), cause, remedy });
            }
            let appended = self.log.append(after, entry).await;
            if is_lost(&self.answers) { Err(lost()) } else { appended }
        })
    }

    fn read(&self, after: u64) -> BoxFuture<'_, Result<Page, LogError>> {
        if self.read.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1)) == Ok(1) {
            let lost = LogError::Unavailable { store: self.name(), cause: "the cable is cut".to_owned() };
            return Box::pin(async { Err(lost) });
        }
        self.log.read(after)
    }

    fn snapshot(&self) -> BoxFuture<'_, Result<Option<Snapshot>, LogError>> {
        self.log.snapshot()
    }

    fn store_snapshot<'a>(&'a self, snapshot: &'a Snapshot) -> BoxFuture<'a, Result<(), LogError>> {
        self.log.store_snapshot(snapshot)
    }
}

#[tokio::test]
async fn what_is_in_doubt_is_found_out_and_nothing_is_decided_on_it() {
    let far = Arc::new(Far::default());
    let near: Arc<dyn Log> = Arc::new(far.log.clone());
    let log: Arc<dyn Log> = Arc::clone(&far) as _;
    let (mut a, mut b) = (replica(&log, "a").await.unwrap(), replica(&near, "b").await.unwrap());
    let machines = [1, 2, 3, 4].map(|number| peer(0, number));
    let admin = || Grant::Admin(Terms::default());
    let has = |replica: &Replica<MemoryStore>| machines.map(|machine| replica.ledger().lease(&machine).is_some());
    a.decide(now, |ledger, now| ledger.admit(request(machines[0], admin()), now)).await.unwrap().unwrap();

    // One answer is lost. The record is sent again, is found, and is not decided a second time.
    far.answers.store(1, Relaxed);
    a.decide(now, |ledger, now| ledger.remove(&machines[0], now)).await.unwrap().unwrap();
    assert_eq!(a.position().revision, 2);
    // So it is if the rest of the log cannot be read.
    far.answers.store(1, Relaxed);
    far.read.store(2, Relaxed);
    a.decide(now, |ledger, now| ledger.admit(request(machines[0], admin()), now)).await.unwrap().unwrap();
    assert_eq!((a.position().revision, far.read.load(Relaxed)), (3, 0));
    a.decide(now, |ledger, now| ledger.remove(&machines[0], now)).await.unwrap().unwrap();

    // No answer comes. The decision is visible here, and nothing else is decided.
    far.answers.store(u32::MAX, Relaxed);
    let admit = a.decide(now, |ledger, now| ledger.admit(request(machines[1], admin()), now)).await;
    assert!(matches!(admit, Err(ReplicaError::Log(error)) if error.is_unknown()));
    assert_eq!(has(&a), [false, true, false, false]);
    let error = a.ledger_mut().remove(&machines[1], now()).unwrap_err();
    assert!(error.to_string().contains("not known yet whether the store has the last decision"), "{error}");
    // It is in the log, as others see.
    b.follow(now).await.unwrap();
    assert_eq!(has(&b), [false, true, false, false]);
    far.answers.store(0, Relaxed);
    a.decide(now, |ledger, now| ledger.admit(request(machines[2], admin()), now)).await.unwrap().unwrap();
    assert_eq!(has(&a), [false, true, true, false]);

    // No request arrives, and another server decides. The decision was not made.
    far.requests.store(u32::MAX, Relaxed);
    let admit = a.decide(now, |ledger, now| ledger.admit(request(machines[3], admin()), now)).await;
    assert!(matches!(admit, Err(ReplicaError::Log(error)) if error.is_unknown()));
    b.follow(now).await.unwrap();
    b.decide(now, |ledger, now| ledger.remove(&machines[1], now)).await.unwrap().unwrap();
    let followed = a.follow(now).await.unwrap();
    assert_eq!((followed.own, followed.peers), (false, BTreeSet::from([machines[1]])));
    assert_eq!(has(&a), [false, false, true, false]);
    assert_eq!(a.ledger().state(), b.ledger().state());

    // The store refuses. Nothing was decided, unless an earlier attempt has arrived, whose answer was lost.
    far.requests.store(0, Relaxed);
    far.refusals.store(1, Relaxed);
    let admit = a.decide(now, |ledger, now| ledger.admit(request(machines[3], admin()), now)).await;
    assert!(matches!(admit, Err(ReplicaError::Log(LogError::Refused { .. }))));
    assert_eq!(has(&a), [false, false, true, false]);
    far.answers.store(1, Relaxed);
    far.refusals.store(u32::MAX, Relaxed);
    let admit = a.decide(now, |ledger, now| ledger.admit(request(machines[3], admin()), now)).await;
    let error = admit.unwrap_err();
    assert!(matches!(&error, ReplicaError::Log(error) if error.is_unknown()), "{error}");
    assert!(error.to_string().contains("no right to write"), "{error}");
    // Reading tells, while the store goes on to refuse.
    a.decide(now, |_, _| Ok::<_, LedgerError>(())).await.unwrap().unwrap();
    assert_eq!(has(&a), [false, false, true, true]);
    far.refusals.store(0, Relaxed);
    a.decide(now, |ledger, now| ledger.remove(&machines[3], now)).await.unwrap().unwrap();

    // A decision that nobody waits for any more, as when a caller is cancelled.
    drop(a.decide(now, |ledger, now| ledger.admit(request(machines[3], admin()), now)));
    assert_eq!(has(&a), [false, false, true, false], "a future that is not polled decides nothing");

    // No request arrives. The record is sent again later, and the replica says that this was its own decision.
    a.follow(now).await.unwrap();
    far.requests.store(u32::MAX, Relaxed);
    a.decide(now, |ledger, now| ledger.admit(request(machines[3], admin()), now)).await.unwrap_err();
    far.requests.store(0, Relaxed);
    a.decide(now, |_, _| Ok::<_, LedgerError>(())).await.unwrap().unwrap();
    assert!(a.follow(now).await.unwrap().own);
    assert_eq!(has(&a), [false, false, true, true]);
}

#[tokio::test]
async fn a_record_of_a_newer_program_ends_the_replica() {
    let log = memory();
    let mut a = replica(&log, "a").await.unwrap();
    let mut newer = NetworkLog::new(Arc::clone(&log), key(), Position::START);
    assert!(newer.append(&[99, 0, 0, 0, 1, 2, 3]).await.unwrap());
    let error = a.follow(now).await.unwrap_err();
    let text = "record 1 in the log in memory has version 99, and this program knows version 3; use a newer program";
    assert_eq!(error.to_string(), text);
    // Without that record, it neither follows nor decides.
    assert!(newer.append(b"more").await.unwrap());
    for _ in 0..2 {
        assert_eq!(a.follow(now).await.unwrap_err().to_string(), text);
        let decided =
            a.decide(now, |ledger, now| ledger.admit(request(peer(0, 1), Grant::Admin(Terms::default())), now));
        assert_eq!(decided.await.unwrap_err().to_string(), text);
    }
    for (revision, wrong) in
        [&b""[..], &[3, 0, 0], &[3, 0, 0, 0, 1], &[3, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 200, 1]].iter().enumerate()
    {
        let log = memory();
        let mut a = replica(&log, "a").await.unwrap();
        let mut other = NetworkLog::new(Arc::clone(&log), key(), Position::START);
        assert!(other.append(wrong).await.unwrap());
        let error = a.follow(now).await.unwrap_err();
        assert!(matches!(error, ReplicaError::Record { revision: 1, .. }), "{revision}: {error}");
    }
    let wrong_key = NetworkLog::new(Arc::clone(&log), StoreKey::from_bytes(&[6; 32]), Position::START);
    let error = Replica::open(ledger(), wrong_key, "a", now).await.unwrap_err();
    assert!(matches!(error, ReplicaError::Log(LogError::Forged { .. })), "{error}");
}

#[tokio::test]
async fn servers_on_one_log_in_memory() {
    let log = memory();
    history(vec![log; 3], || std::thread::sleep(Duration::from_millis(500))).await;
}

/// How long stores are disturbed.
fn disturbed() -> Duration {
    let rounds: u64 = std::env::var("RUSTGUARD_ROUNDS").ok().and_then(|rounds| rounds.parse().ok()).unwrap_or(1);
    Duration::from_secs(12 * rounds)
}

#[tokio::test]
async fn servers_on_three_etcd_that_die_and_hang() {
    let Some(mut etcd) = cluster::Cluster::of_three() else { return };
    let mut handles: Vec<Arc<dyn Log>> = Vec::new();
    for _ in 0..SERVERS {
        handles.push(Arc::new(etcd.open("home").await.unwrap()));
    }
    let disturb = move || {
        let (began, mut rng) = (std::time::Instant::now(), rand::rng());
        while began.elapsed() < disturbed() {
            let member = rng.random_range(0..3);
            let pause = Duration::from_millis(rng.random_range(100..2_000));
            if rng.random_range(0..2) == 0 {
                // Killed, and started again.
                etcd.members[member] = None;
                std::thread::sleep(pause);
                etcd.spawn(member);
                etcd.listens(member);
            } else {
                let process = etcd.members[member].as_ref().unwrap();
                process.signal(rustix::process::Signal::STOP);
                std::thread::sleep(pause);
                process.signal(rustix::process::Signal::CONT);
            }
            std::thread::sleep(Duration::from_millis(rng.random_range(100..700)));
        }
        etcd
    };
    history(handles, disturb).await;
}

#[tokio::test]
async fn servers_on_a_postgresql_that_dies_and_hangs() {
    let Some(mut database) = database::plain("") else { return };
    let mut handles: Vec<Arc<dyn Log>> = Vec::new();
    for _ in 0..SERVERS {
        handles.push(Arc::new(database::open(&database.address("")).await.unwrap()));
    }
    let disturb = move || {
        let (began, mut rng) = (std::time::Instant::now(), rand::rng());
        while began.elapsed() < disturbed() {
            match rng.random_range(0..3) {
                0 => {
                    database.stop(rustix::process::Signal::QUIT);
                    database.spawn();
                    database.listens();
                }
                1 => database.cut_connections(),
                _ => {
                    // A lock stands for a database that hangs: the processes are many.
                    database.hang(Duration::from_millis(rng.random_range(100..2_000)));
                }
            }
            std::thread::sleep(Duration::from_millis(rng.random_range(100..700)));
        }
        database
    };
    history(handles, disturb).await;
}
