//! The cost of many idle peers: the memory of each peer, and the time to add all peers and to list them.
//!
//! ```text
//! cargo bench -p rustguard-benches --bench peers
//! ```
//!
//! Memory is the growth of the process's resident set (VmRSS), measured in a device with transports in memory.

use ipnet::Ipv4Net;
use rustguard_crypto::x25519::PublicKey;
use rustguard_device::{Device, MemoryBinder, PeerUpdate, Update};
use rustguard_tun::memory::{self, MemoryNet};
use std::{fs, net::Ipv4Addr, time::Instant};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("{:>10} {:>14} {:>12} {:>12}", "peers", "bytes a peer", "add", "status");
    for count in [10_000_u32, 100_000] {
        // The host's end has to exist as long as the device.
        let (tun, _host) = memory::tun()?;
        let binder = MemoryBinder::new(MemoryNet::default(), "192.0.2.1:51820".parse()?);
        let device = Device::builder().start_with(tun, binder)?;
        let before = resident()?;
        let start = Instant::now();
        // The peers are added in parts, as a client of the UAPI would, and each part is freed afterwards.
        for from in (0..count).step_by(1_000) {
            device.update(Update::new().peers((from..from + 1_000).map(peer))).await?;
        }
        let added = start.elapsed();
        let bytes = resident()?.saturating_sub(before) / u64::from(count);
        let start = Instant::now();
        let listed = device.status().await.ok_or("the device has ended")?.peers.len();
        assert_eq!(listed, usize::try_from(count)?);
        println!("{count:>10} {bytes:>14} {added:>12.2?} {:>12.2?}", start.elapsed());
        device.shutdown().await;
    }
    Ok(())
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
