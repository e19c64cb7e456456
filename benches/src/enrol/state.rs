//! A ledger with nearly as many leases as a /16 has addresses: its memory, its start, and admissions to it.

use super::{Figures, Pace, exchange::now};
use crate::figures::resident;
use anyhow::{Context as _, Result, ensure};
use ipnet::IpNet;
use rand::{Rng as _, SeedableRng as _, rngs::StdRng};
use rustguard_core::time::Now;
use rustguard_crypto::x25519::PublicKey;
use rustguard_enroll::{
    lease::{Lease, PresharedKey},
    ledger::{Grant, Ledger, Policy, Request},
    pool::Pools,
    store::{Change, LeaseStore, State, StoreError},
};
use rustguard_serve::FileStore;
use std::{
    fs,
    os::unix::fs::MetadataExt as _,
    path::Path,
    time::{Duration, Instant},
};

/// The length of all journals, in bytes, at which the file store writes a new snapshot, if it read the old one at the
/// start.
const JOURNALS: u64 = 1 << 20;
/// The bytes below that length when the measurement begins. A few admissions need them.
const ROOM: u64 = 4 << 10;
/// The name of the snapshot in its folder.
const SNAPSHOT: &str = "snapshot";

/// Fills a ledger whose store keeps nothing. Returns the leases.
pub(super) fn memory(pace: &Pace, figures: &mut Figures) -> Result<Vec<Lease>> {
    let mut rng = StdRng::seed_from_u64(2);
    let mut ledger = open(Forgetful)?;
    ledger.window_opened();
    let before = resident("self")?;
    for n in 0..pace.leases {
        let key = admit(&mut ledger, n, &mut rng, start())?;
        ledger.confirm(&key, start())?;
    }
    let grown = resident("self")?.saturating_sub(before);
    figures.add("memory, bytes a lease", [grown as f64 / f64::from(pace.leases)]);
    Ok(ledger.leases().cloned().collect())
}

/// Measures the start with these leases, and admissions while a new snapshot is written.
pub(super) fn on_disk(pace: &Pace, leases: &[Lease], disk: &Path, figures: &mut Figures) -> Result<()> {
    let folder = disk.join("large");
    fill(leases, &folder)?;
    let snapshot = fs::metadata(folder.join(SNAPSHOT))?.ino();

    let mut starts = Vec::new();
    for _ in 0..pace.samples {
        let started = Instant::now();
        let ledger = open(FileStore::open(&folder)?)?;
        starts.push(millis(started.elapsed()));
        ensure!(ledger.leases().len() == leases.len(), "some leases are gone");
    }
    figures.add("start with these leases, ms", starts);

    let mut rng = StdRng::seed_from_u64(3);
    let mut ledger = open(FileStore::open(&folder)?)?;
    ledger.window_opened();
    let mut took = Vec::new();
    for n in 0..pace.admissions {
        let started = Instant::now();
        admit(&mut ledger, pace.leases + n, &mut rng, start())?;
        took.push(millis(started.elapsed()));
    }
    // The measurement has to include the writing of a snapshot.
    ensure!(fs::metadata(folder.join(SNAPSHOT))?.ino() != snapshot, "no new snapshot was written meanwhile");
    took.sort_by(f64::total_cmp);
    let at = |percent: usize| took[(took.len() * percent / 100).min(took.len() - 1)];
    figures.add("admission on the disk, median, ms", [at(50)]);
    figures.add("admission on the disk, 99th percentile, ms", [at(99)]);
    figures.add("admission on the disk, longest, ms", [at(100)]);
    Ok(())
}

/// Writes a folder whose snapshot has all leases, and whose journals are nearly long enough for the next snapshot.
fn fill(leases: &[Lease], folder: &Path) -> Result<()> {
    let change = |lease: &Lease| Change::Lease(lease.clone());
    let mut store = FileStore::open(folder)?;
    let mut state = store.load()?.unwrap_or_default();
    let mut keep = |store: &mut FileStore, leases: &[Lease]| -> Result<()> {
        let changes: Vec<_> = leases.iter().map(change).collect();
        store.commit(&changes, &state)?;
        changes.into_iter().for_each(|change| state.apply(change));
        Ok(())
    };
    for leases in leases.chunks(1_000) {
        keep(&mut store, leases)?;
    }
    // The leases are written again, which changes nothing, until the journals make the next start write a snapshot of
    // all.
    for leases in leases.chunks(100).cycle() {
        if journals(folder)? > JOURNALS {
            break;
        }
        keep(&mut store, leases)?;
    }
    drop(store);
    let mut store = FileStore::open(folder)?;
    store.load()?.context("what was written")?;
    ensure!(journals(folder)? < JOURNALS / 2, "the start should have written a snapshot");
    // Most of the length in large pieces, because each piece waits for the disk.
    for count in [100, 10] {
        let before = journals(folder)?;
        keep(&mut store, &leases[..count])?;
        let piece = journals(folder)? - before;
        for leases in leases.chunks(count).cycle() {
            if journals(folder)? + piece + ROOM > JOURNALS {
                break;
            }
            keep(&mut store, leases)?;
        }
    }
    Ok(())
}

/// The length of all journals in a folder, in bytes.
fn journals(folder: &Path) -> Result<u64> {
    let mut len = 0;
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_name().to_string_lossy().starts_with("journal-") {
            len += entry.metadata()?.len();
        }
    }
    Ok(len)
}

fn open<S: LeaseStore>(store: S) -> Result<Ledger<S>> {
    let pools: [IpNet; 2] = ["10.150.0.0/16".parse()?, "fd15::/64".parse()?];
    Ok(Ledger::open(store, Pools::new(&pools)?, Policy::default(), start())?)
}

fn admit<S: LeaseStore>(ledger: &mut Ledger<S>, n: u32, rng: &mut StdRng, now: Now) -> Result<PublicKey> {
    let (mut public_key, mut preshared_key) = ([0; 32], [0; 32]);
    rng.fill_bytes(&mut public_key);
    rng.fill_bytes(&mut preshared_key);
    let request = Request::new(PublicKey(public_key), PresharedKey::from_bytes(&preshared_key), Grant::Window)
        .with_name(format!("machine-{n}"));
    ensure!(ledger.admit(request, now)?.fresh, "two keys alike");
    Ok(PublicKey(public_key))
}

fn start() -> Now {
    now(Duration::ZERO)
}

/// A store that keeps nothing, so that only the ledger itself uses memory.
struct Forgetful;

impl LeaseStore for Forgetful {
    fn load(&mut self) -> Result<Option<State>, StoreError> {
        Ok(None)
    }

    fn commit(&mut self, _: &[Change], _: &State) -> Result<(), StoreError> {
        Ok(())
    }
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
