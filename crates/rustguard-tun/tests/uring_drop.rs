//! Nothing is left of an io_uring backend once it is dropped. The test has its own process, because it counts
//! descriptors.
#![forbid(unsafe_code)]

use rustguard_tun::{
    Network, TunQueue, namespace,
    tun::{Tun, TunOptions},
    udp::{Udp, UdpOptions},
    uring::{UringTun, UringUdp},
};
use std::{fs, thread};

fn descriptors() -> usize {
    fs::read_dir("/proc/self/fd").expect("proc is mounted").count()
}

/// Pages of memory in use as the kernel counts them for us: VmSize, in KiB.
fn mapped() -> usize {
    let status = fs::read_to_string("/proc/self/status").expect("proc is mounted");
    let line = status.lines().find_map(|line| line.strip_prefix("VmSize:")).expect("it has a size");
    line.trim().trim_end_matches(" kB").parse().expect("a number")
}

/// Makes both backends, uses them, and drops them. The name and the port are free again at once.
fn round(port: u16) {
    let tun = Tun::create(&TunOptions::new("rg-drop")).expect("the name is free");
    let udp = Udp::bind(&UdpOptions::new(port)).expect("the port is free");
    let (mut tun, mut udp) = (UringTun::new(tun).expect("io_uring"), UringUdp::new(udp).expect("io_uring"));
    let mut slab = vec![0; tun.max_read().max(udp.recv_slab_len())];
    assert!(tun.read(&mut slab, 0, 1_420).expect("it is there").is_none());
    udp.recv(&mut slab, &mut Vec::new()).expect("it is there");
}

#[test]
fn dropping_frees_everything_at_once() {
    if let Err(error) = namespace::enter_network() {
        return println!("skipped: no network namespace ({error}); run as root or under `unshare -Ur`");
    }
    let udp = Udp::bind(&UdpOptions::default()).expect("a port");
    if let Err(error) = UringUdp::new(udp) {
        return println!("skipped: {error}");
    }
    round(0);
    let (fds, size) = (descriptors(), mapped());
    for _ in 0..50 {
        round(51_820);
    }
    assert_eq!(descriptors(), fds);
    // The allocator may have taken some memory, but a single ring's buffers are more than 2 MiB.
    assert!(mapped() < size + 2_048, "{size} KiB before, {} now", mapped());

    // One backend is never used. The other one is dropped by another thread than its user.
    let udp = UringUdp::new(Udp::bind(&UdpOptions::default()).expect("a port")).expect("io_uring");
    drop(udp);
    let mut udp = UringUdp::new(Udp::bind(&UdpOptions::default()).expect("a port")).expect("io_uring");
    udp.recv(&mut vec![0; udp.recv_slab_len()], &mut Vec::new()).expect("it is there");
    thread::spawn(move || drop(udp)).join().expect("dropping does not panic");
    assert_eq!(descriptors(), fds);
}
