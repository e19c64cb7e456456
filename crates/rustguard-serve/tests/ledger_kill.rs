//! SIGKILL at any moment: acknowledged changes are there afterwards.
//!
//! The test runs itself as a child, which admits and removes peers, and prints each change as soon as it is durable.
use rand::{RngExt, SeedableRng, rngs::StdRng};
use rustguard_core::time::{Instant, Now};
use rustguard_crypto::x25519::PublicKey;
use rustguard_enroll::{
    lease::{PresharedKey, Terms},
    ledger::{Grant, Ledger, Policy, Request},
    pool::Pools,
};
use rustguard_serve::FileStore;
use std::{
    collections::{BTreeMap, BTreeSet},
    io::{BufRead, BufReader, Write},
    path::Path,
    process::{Command, Stdio},
    time::Duration,
};

const FOLDER: &str = "RUSTGUARD_TEST_LEDGER";
const NOW: Now = Now { instant: Instant::from_nanos(0), unix: Duration::from_secs(1_800_000_000) };
const ROUNDS: u64 = 30;

fn ledger(folder: &Path) -> Ledger<FileStore> {
    let pools = Pools::new(&["10.0.0.0/8".parse().unwrap()]).unwrap();
    let policy = Policy::default().with_max_leases(usize::MAX);
    Ledger::open(FileStore::open(folder).unwrap(), pools, policy, NOW).unwrap()
}

fn key(number: u64) -> PublicKey {
    let mut key = [0; 32];
    key[..8].copy_from_slice(&number.to_be_bytes());
    PublicKey(key)
}

/// Only works as the child of the test below.
#[test]
fn child() {
    let Some(folder) = std::env::var_os(FOLDER) else { return };
    let mut ledger = ledger(Path::new(&folder));
    let mut out = std::io::stdout().lock();
    let next =
        ledger.leases().last().map_or(0, |lease| u64::from_be_bytes(*lease.public_key.0.first_chunk().unwrap()) + 1);
    for number in next.. {
        let request = Request::new(
            key(number),
            PresharedKey::from_bytes(&[1; 32]),
            Grant::Admin(Terms::default().with_tags(vec!["x".repeat(63)])),
        );
        let lease = ledger.admit(request, NOW).unwrap().lease;
        writeln!(out, "\n+{number} {}", lease.v4.unwrap()).unwrap();
        if number % 3 == 2 {
            ledger.remove(&key(number - 1), NOW).unwrap();
            writeln!(out, "\n-{}", number - 1).unwrap();
        }
    }
}

#[test]
fn what_was_acknowledged_survives_sigkill() {
    // The kernel keeps what a killed process has written, on a disk or in memory. In memory, the test covers more
    // moments.
    let memory = Path::new("/dev/shm");
    let base = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
    let folder = tempfile::tempdir_in(base).unwrap();
    let folder = folder.path().join("state");
    let mut rng = StdRng::seed_from_u64(4);
    let (mut there, mut gone) = (BTreeMap::new(), BTreeSet::new());
    let mut replaced = 0;
    for round in 0..ROUNDS {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["child", "--exact", "--nocapture"])
            .env(FOLDER, &folder)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        // The child is killed after this number of lines has arrived. The scheduler decides how far it has got by then.
        let lines = rng.random_range(1..1_000);
        let mut out = BufReader::new(child.stdout.take().unwrap());
        let mut seen = 0;
        let mut line = String::new();
        while out.read_line(&mut line).unwrap() > 0 {
            match line.trim_end().split_at_checked(1) {
                Some(("+", rest)) if line.ends_with('\n') => {
                    let (number, address) = rest.split_once(' ').unwrap();
                    there.insert(number.parse::<u64>().unwrap(), address.to_owned());
                    seen += 1;
                }
                Some(("-", number)) if line.ends_with('\n') => {
                    gone.insert(number.parse::<u64>().unwrap());
                    seen += 1;
                }
                _ => {}
            }
            if seen == lines {
                child.kill().unwrap();
            }
            line.clear();
        }
        let status = child.wait().unwrap();
        assert!(seen >= lines, "round {round}: the child ended by itself: {status}");

        let snapshot = std::fs::metadata(folder.join("snapshot")).is_ok();
        replaced += u32::from(snapshot);
        let ledger = ledger(&folder);
        let mut more = 0;
        for (number, address) in &there {
            match ledger.lease(&key(*number)) {
                Some(lease) => assert_eq!(&lease.v4.unwrap().to_string(), address, "round {round}"),
                None => {
                    // The peer was removed, but the line for this may not have been printed.
                    more += usize::from(!gone.contains(number));
                    gone.insert(*number);
                }
            }
        }
        assert!(gone.iter().all(|number| ledger.lease(&key(*number)).is_none()), "round {round}");
        let unsaid: Vec<_> = ledger
            .leases()
            .filter(|lease| !there.contains_key(&u64::from_be_bytes(*lease.public_key.0.first_chunk().unwrap())))
            .collect();
        assert!(more + unsaid.len() <= 1, "round {round}: at most one commit was on its way: {more}, {unsaid:?}");
        for lease in unsaid {
            let number = u64::from_be_bytes(*lease.public_key.0.first_chunk().unwrap());
            there.insert(number, lease.v4.unwrap().to_string());
        }
    }
    assert!(there.len() > 2_000, "{}", there.len());
    assert!(replaced > 0, "some of it with a snapshot");
}
