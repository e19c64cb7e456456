//! The cost of a batch from user space to the kernel and back, with each backend: `poll` uses plain system calls, and
//! `uring` uses io_uring. One thread does both ends.
//!
//! ```text
//! cargo bench -p rustguard-benches --bench io          (as root, in its own network namespace)
//! ```
#![forbid(unsafe_code)]

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use rustguard_tun::{
    Endpoint, Network, Segments, Span, Transmit, TunQueue, namespace,
    tun::{Tun, TunOptions},
    udp::{Udp, UdpOptions},
    uring::{UringTun, UringUdp},
};
use std::{
    error::Error,
    net::{SocketAddr, UdpSocket},
    process::Command,
};

/// Single datagrams in a batch. A worker takes this number at once.
const SINGLES: usize = 64;
/// Bytes on the wire of an inner packet of 64 bytes, and of a full packet.
const SMALL: usize = 96;
const FULL: usize = 1_452;

/// Sends a batch from one socket to the other, and receives it.
fn exchange(
    criterion: &mut Criterion,
    backend: &str,
    ours: &mut impl Network,
    theirs: &mut impl Network,
    to: SocketAddr,
) {
    let mut slab = vec![0; theirs.recv_slab_len()];
    let text = vec![7; FULL * 45];
    let to = Endpoint::new(to);
    let one = |len, count| {
        let segments = Segments { offset: 0, stride: len, count, len, last_len: len };
        Transmit { to, segments, ds: 0 }
    };
    let mut group = criterion.benchmark_group("UDP");
    for (name, batch) in [
        ("64 small datagrams", vec![one(SMALL, 1); SINGLES]),
        ("a run of 45 full ones", vec![one(FULL, 45)]),
        ("4 runs of 45 full ones", vec![one(FULL, 45); 4]),
    ] {
        let datagrams: usize = batch.iter().map(|transmit| transmit.segments.count).sum();
        group.throughput(Throughput::Elements(datagrams as u64));
        let mut received = Vec::with_capacity(datagrams);
        group.bench_function(BenchmarkId::new(name, backend), |bencher| {
            bencher.iter(|| {
                assert_eq!(ours.send(&text, &batch).sent, datagrams);
                let mut count = 0;
                while count < datagrams {
                    received.clear();
                    theirs.recv(&mut slab, &mut received).expect("the sockets are fine");
                    count += received.iter().map(|run| run.segments.count).sum::<usize>();
                }
            });
        });
    }
    group.finish();
}

/// Reads the packets of an application, and sends them back to it.
fn reflect(criterion: &mut Criterion, backend: &str, tun: &mut impl TunQueue, application: &UdpSocket) {
    let mut slab = vec![0; tun.max_read() + SINGLES * 256];
    let mut spans: Vec<Span> = Vec::with_capacity(SINGLES);
    let mut group = criterion.benchmark_group("TUN");
    group.throughput(Throughput::Elements(SINGLES as u64));
    group.bench_function(BenchmarkId::new("64 small packets out and in", backend), |bencher| {
        bencher.iter(|| {
            for _ in 0..SINGLES {
                application.send(&[7; 36]).expect("the interface is up");
            }
            spans.clear();
            let mut at = 0;
            while spans.len() < SINGLES {
                let Some(packet) = tun.read(&mut slab, at, 1_420).expect("the interface is up") else { continue };
                // The kernel's own router solicitations are IPv6.
                if slab[packet.offset] >> 4 != 4 {
                    continue;
                }
                spans.extend(packet.pieces());
                slab[packet.offset + 12..packet.offset + 20].rotate_left(4);
                slab[packet.offset + 20..packet.offset + 24].rotate_left(2);
                at += packet.count * packet.stride;
            }
            assert_eq!(tun.write(&mut slab, &spans).expect("the interface is up"), 0);
            for _ in 0..SINGLES {
                application.recv(&mut [0; 64]).expect("it is there already");
            }
        });
    });
    group.finish();
}

fn backends(criterion: &mut Criterion) {
    if let Err(error) = all(criterion) {
        println!("skipped: {error}; run as root or under `unshare -Ur`");
    }
}

fn all(criterion: &mut Criterion) -> Result<(), Box<dyn Error>> {
    namespace::enter_network()?;
    let bind = || Udp::bind(&UdpOptions::default());
    let (mut ours, mut theirs) = (bind()?, bind()?);
    let to = SocketAddr::from(([127, 0, 0, 1], theirs.port()));
    exchange(criterion, "poll", &mut ours, &mut theirs, to);
    let (mut ours, mut theirs) = (UringUdp::new(ours)?, UringUdp::new(theirs)?);
    exchange(criterion, "uring", &mut ours, &mut theirs, to);

    let mut tun = Tun::create(&TunOptions::new("rg-bench").mtu(1_420))?;
    for arguments in ["addr add 10.9.9.1/24 dev rg-bench", "link set rg-bench up"] {
        let status = Command::new("ip").args(arguments.split(' ')).status()?;
        assert!(status.success(), "ip {arguments}");
    }
    let application = UdpSocket::bind("10.9.9.1:0")?;
    application.connect("10.9.9.2:5000")?;
    reflect(criterion, "poll", &mut tun, &application);
    reflect(criterion, "uring", &mut UringTun::new(tun)?, &application);
    Ok(())
}

criterion_group!(io, backends);
criterion_main!(io);
