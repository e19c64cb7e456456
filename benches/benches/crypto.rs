//! The cost of one packet and of one handshake in each cryptographic backend.
//!
//! `cargo bench -p rustguard-benches --bench crypto` runs all of it. A filter such as `-- seal/aws-lc` runs a part. At
//! the end it prints how many times faster than `aws-lc` a run of packets is. `-- ratios` prints only this.

use criterion::{
    BenchmarkGroup, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main, measurement::WallTime,
};
use rustguard_crypto::{
    aead::{self, Frame, KEY_LEN, TAG_LEN},
    backend::{
        Aead, DiffieHellman, aws_lc, portable,
        simd::{self, Path},
    },
    hash,
};
use std::{
    hint::black_box,
    time::{Duration, Instant},
};

/// A padded bare ACK, a voice packet, the smallest MTU of IPv4, a full packet in a tunnel, and a packet of a jumbo
/// link.
const LENGTHS: [usize; 5] = [64, 256, 576, 1420, 8192];
/// Packets in a run. Even the largest ones fit into an L2 cache of 1 MiB.
const RUN: usize = 32;
const KEY: [u8; KEY_LEN] = [7; KEY_LEN];

criterion_group!(benches, seal, open, x25519, hashes, ratios);
criterion_main!(benches);

fn seal(c: &mut Criterion) {
    let mut group = c.benchmark_group("seal");
    for path in [Path::Avx512, Path::Avx2] {
        if let Some(key) = simd::Key::with_path(&KEY, path) {
            seal_with(&mut group, path.name(), &key);
        }
    }
    seal_with(&mut group, "aws-lc", &aws_lc::Key::new(&KEY));
    seal_with(&mut group, "portable", &portable::Key::new(&KEY));
}

fn seal_with(group: &mut BenchmarkGroup<'_, WallTime>, backend: &str, key: &impl Aead) {
    for len in LENGTHS {
        let (mut slab, frames) = run(len);
        group.throughput(Throughput::Bytes(len as u64));
        group.bench_function(BenchmarkId::new(backend, len), |b| {
            b.iter_custom(|packets| {
                per_packet(packets, || {
                    let start = Instant::now();
                    key.seal_run(black_box(&mut slab), &frames);
                    start.elapsed()
                })
            });
        });
    }
}

fn open(c: &mut Criterion) {
    let mut group = c.benchmark_group("open");
    for path in [Path::Avx512, Path::Avx2] {
        if let Some(key) = simd::Key::with_path(&KEY, path) {
            open_with(&mut group, path.name(), &key);
        }
    }
    open_with(&mut group, "aws-lc", &aws_lc::Key::new(&KEY));
    open_with(&mut group, "portable", &portable::Key::new(&KEY));
}

fn open_with(group: &mut BenchmarkGroup<'_, WallTime>, backend: &str, key: &impl Aead) {
    for len in LENGTHS {
        let (mut sealed, frames) = run(len);
        key.seal_run(&mut sealed, &frames);
        let mut slab = sealed.clone();
        let mut opened = [false; RUN];
        group.throughput(Throughput::Bytes(len as u64));
        group.bench_function(BenchmarkId::new(backend, len), |b| {
            b.iter_custom(|packets| {
                per_packet(packets, || {
                    // A copy restores the sealed packets, outside the measured time.
                    slab.copy_from_slice(&sealed);
                    let start = Instant::now();
                    key.open_run(black_box(&mut slab), &frames, &mut opened);
                    let elapsed = start.elapsed();
                    assert_eq!(opened, [true; RUN]);
                    elapsed
                })
            });
        });
    }
}

/// A slab of `RUN` packets of `len` bytes at a constant stride, with 16 bytes of room for a header before each.
fn run(len: usize) -> (Vec<u8>, Vec<Frame>) {
    let stride = 16 + len + TAG_LEN;
    let frames = (0..RUN).map(|i| Frame { offset: i * stride + 16, len, counter: i as u64 }).collect();
    (vec![0x45; RUN * stride], frames)
}

/// The time of `packets` packets. `round` returns the time of one run.
fn per_packet(packets: u64, mut round: impl FnMut() -> Duration) -> Duration {
    let runs = packets.div_ceil(RUN as u64);
    let elapsed: Duration = (0..runs).map(|_| round()).sum();
    elapsed.mul_f64(packets as f64 / (runs * RUN as u64) as f64)
}

/// The two halves of a Diffie-Hellman exchange, and two exchanges at once.
fn x25519(c: &mut Criterion) {
    let mut group = c.benchmark_group("x25519");
    x25519_with::<aws_lc::StaticSecret>(&mut group, "aws-lc");
    x25519_with::<portable::StaticSecret>(&mut group, "portable");
    // Where the processor has no AVX-512, these are the figures of aws-lc once more.
    x25519_with::<simd::StaticSecret>(&mut group, "simd");
}

fn x25519_with<D: DiffieHellman>(group: &mut BenchmarkGroup<'_, WallTime>, backend: &str) {
    let scalar = [0x48; 32];
    let secret = D::from_clamped(&scalar);
    let public = D::from_clamped(&[0x50; 32]).public_key();
    group.bench_function(BenchmarkId::new(backend, "new secret"), |b| b.iter(|| D::from_clamped(black_box(&scalar))));
    group.bench_function(BenchmarkId::new(backend, "diffie-hellman"), |b| {
        b.iter(|| secret.diffie_hellman(black_box(&public)).is_ok());
    });
    group.bench_function(BenchmarkId::new(backend, "pair"), |b| {
        b.iter(|| D::diffie_hellman_pair([(&secret, black_box(&public)); 2]).is_ok());
    });
}

/// The hashes of a handshake, which do not depend on the backend.
fn hashes(c: &mut Criterion) {
    let (key, initiation) = ([3; 32], [5; 148]);
    // The part of an initiation that MAC1 covers.
    c.bench_function("mac/116", |b| b.iter(|| hash::mac(black_box(&key), &[black_box(&initiation[..116])])));
    // The running hash, and a public key with its tag.
    c.bench_function("hash/32+48", |b| b.iter(|| hash::hash(&[black_box(&key), black_box(&initiation[..48])])));
    c.bench_function("kdf/2", |b| b.iter(|| hash::kdf::<2>(black_box(&key), black_box(&key))));
    c.bench_function("kdf/3", |b| b.iter(|| hash::kdf::<3>(black_box(&key), black_box(&key))));
    c.bench_function("seal_once/32", |b| {
        let mut text = [0; 32];
        b.iter(|| aead::seal_once(black_box(&key), 0, black_box(&key), black_box(&mut text)));
    });
}

/// Prints how many times faster than `aws-lc` a run is on the path that a new key selects. Both are sampled in turn, so
/// that a change of the CPU's frequency affects both.
fn ratios(c: &mut Criterion) {
    const SAMPLES: usize = 400;
    // Only Criterion knows whether a filter excludes this function.
    let mut wanted = false;
    c.bench_function("ratios", |b| {
        wanted = true;
        b.iter(|| ());
    });
    if !wanted {
        return;
    }
    println!("\nRuns of {RUN} packets on {}, ns per packet; times as fast as aws-lc", Path::detected());
    println!("{:>6} {:>5} {:>10} {:>10} {:>7} {:>7}", "", "bytes", "run", "aws-lc", "best", "median");
    let (run_key, single_key) = (<simd::Key as Aead>::new(&KEY), <aws_lc::Key as Aead>::new(&KEY));
    for (name, opening) in [("seal", false), ("open", true)] {
        for len in LENGTHS {
            // Every length takes about the same time, at least 20 microseconds with AWS-LC.
            let rounds = (40_000 / (RUN * len)).max(1);
            let (slab, frames) = run(len);
            let mut sealed = slab.clone();
            single_key.seal_run(&mut sealed, &frames);
            let mut samples: Vec<(f64, f64)> = (0..SAMPLES)
                .map(|_| {
                    let fast = sample(&run_key, &sealed, &frames, opening, rounds);
                    (fast, sample(&single_key, &sealed, &frames, opening, rounds))
                })
                .collect();
            let fast = samples.iter().map(|sample| sample.0).fold(f64::MAX, f64::min);
            let slow = samples.iter().map(|sample| sample.1).fold(f64::MAX, f64::min);
            samples.sort_by(|a, b| (a.1 / a.0).total_cmp(&(b.1 / b.0)));
            let median = samples[SAMPLES / 2].1 / samples[SAMPLES / 2].0;
            println!("{name:>6} {len:>5} {fast:>10.1} {slow:>10.1} {:>7.2} {median:>7.2}", slow / fast);
        }
    }
}

/// Nanoseconds per packet over some rounds of sealing, or of opening what has been sealed.
fn sample(key: &impl Aead, sealed: &[u8], frames: &[Frame], opening: bool, rounds: usize) -> f64 {
    let mut slab = sealed.to_vec();
    let mut opened = [false; RUN];
    let mut elapsed = Duration::ZERO;
    for _ in 0..rounds {
        slab.copy_from_slice(sealed);
        let start = Instant::now();
        if opening {
            key.open_run(black_box(&mut slab), frames, &mut opened);
        } else {
            key.seal_run(black_box(&mut slab), frames);
        }
        elapsed += start.elapsed();
    }
    assert_eq!(opened, [opening; RUN], "what was sealed opens");
    elapsed.as_secs_f64() * 1e9 / (rounds * RUN) as f64
}
