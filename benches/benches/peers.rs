//! The cost of many idle peers: the memory of each peer, and the time to add all peers and to list them.
//!
//! ```text
//! cargo bench -p rustguard-benches --bench peers
//! ```
//!
//! Memory is the growth of the process's resident set (VmRSS), measured in a device with transports in memory. A
//! *member* is a peer as a network has them: it has a name and a preshared key, it is reached through a server, and the
//! device looks for direct paths to it once there is traffic.

use ipnet::Ipv4Net;
use rustguard_crypto::x25519::PublicKey;
use rustguard_device::{Device, EndpointSpec, MemoryBinder, PeerUpdate, PresharedKey, Update};
use rustguard_tun::memory::{self, MemoryNet};
use std::{
    env, fs,
    net::{Ipv4Addr, SocketAddr},
    process::Command,
    time::Instant,
};

/// The kind of peers, their number, and a function that makes peer number `n`.
type Row = (&'static str, u32, fn(u32) -> PeerUpdate);

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let rows: [Row; 4] =
        [("plain", 10_000, peer), ("plain", 100_000, peer), ("members", 1_000, member), ("members", 10_000, member)];
    // Each row runs in its own process, because memory that an earlier row has freed would be reused and not counted.
    if let Some(row) = env::args().nth(1).and_then(|row| rows.get(row.parse::<usize>().ok()?)) {
        return tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(measure(*row));
    }
    println!("{:>10} {:>8} {:>14} {:>12} {:>12}", "peers", "are", "bytes a peer", "add", "status");
    for row in 0..rows.len() {
        let status = Command::new(env::current_exe()?).arg(row.to_string()).status()?;
        assert!(status.success(), "row {row}: {status}");
    }
    Ok(())
}

async fn measure((kind, count, peer): Row) -> Result<(), Box<dyn std::error::Error>> {
    // The host's end must exist as long as the device.
    let (tun, _host) = memory::tun()?;
    let binder = MemoryBinder::new(MemoryNet::default(), "192.0.2.1:51820".parse()?);
    let device = Device::builder().start_with(tun, binder)?;
    let server = PeerUpdate::new(SERVER).endpoint("192.0.2.2:51820".parse::<SocketAddr>()?);
    device.update(Update::new().peer(server)).await?;
    let before = resident()?;
    let start = Instant::now();
    // The peers are added in parts, as a client of the UAPI would, and each part is freed afterwards.
    for from in (0..count).step_by(250) {
        device.update(Update::new().peers((from..from + 250).map(peer))).await?;
    }
    let added = start.elapsed();
    let bytes = resident()?.saturating_sub(before) / u64::from(count);
    let start = Instant::now();
    let listed = device.status().await?.peers.len();
    assert_eq!(listed, usize::try_from(count)? + 1);
    println!("{count:>10} {kind:>8} {bytes:>14} {added:>12.2?} {:>12.2?}", start.elapsed());
    device.shutdown().await;
    Ok(())
}

/// The server through which members reach each other.
const SERVER: PublicKey = PublicKey([0xa5; 32]);

fn member(n: u32) -> PeerUpdate {
    let psk = PresharedKey::from_bytes(&[7; 32]);
    peer(n).name(format!("member-{n}")).preshared_key(psk).endpoint(EndpointSpec::Peer(SERVER))
}

fn peer(n: u32) -> PeerUpdate {
    let mut key = [0x5a; 32];
    key[..4].copy_from_slice(&n.to_be_bytes());
    PeerUpdate::new(PublicKey(key)).allowed_ip(Ipv4Net::from(Ipv4Addr::from(0x0a00_0000 + n)))
}

fn resident() -> Result<u64, Box<dyn std::error::Error>> {
    let status = fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).ok_or("no VmRSS in /proc/self/status")?;
    let kib: u64 = line.split_whitespace().nth(1).ok_or("VmRSS without a number")?.parse()?;
    Ok(kib * 1024)
}
