//! A tunnel inside a tokio program, with the imports of one crate: two devices in one process, without root. Their
//! packets come from the program, as from a network stack inside it, and go over UDP; `start("wg0")` in place of
//! `start_with` makes an interface of the kernel.
//!
//! ```text
//! cargo run -p rustguard-device --example two_devices
//! ```

use rustguard_device::{AsyncMemoryHost, UdpBinder, prelude::*, tun::memory};
use std::{error::Error, net::SocketAddr, time::Duration};

#[tokio::main(flavor = "current_thread")]
pub(crate) async fn main() -> Result<(), Box<dyn Error>> {
    let (alice_key, bob_key) = (StaticSecret::generate()?, StaticSecret::generate()?);

    let (bob_tun, bob_host) = memory::tun()?;
    let bob = Device::builder()
        .private_key(bob_key.clone())
        .peer(PeerUpdate::new(alice_key.public_key()).name("alice").allowed_ip(inside("10.0.0.1/32")))
        .start_with(bob_tun, UdpBinder::default())?;
    let bob_at = SocketAddr::new("127.0.0.1".parse()?, bob.status().await?.listen_port);
    // Alice has Bob's address; Bob learns Alice's address from her first handshake message.
    let (alice_tun, alice_host) = memory::tun()?;
    let alice = Device::builder()
        .private_key(alice_key)
        .peer(PeerUpdate::new(bob_key.public_key()).name("bob").endpoint(bob_at).allowed_ip(inside("10.0.0.2/32")))
        .start_with(alice_tun, UdpBinder::default())?;
    let (alice_host, bob_host) = (AsyncMemoryHost::new(alice_host)?, AsyncMemoryHost::new(bob_host)?);

    let mut events = alice.events();
    alice_host.send(&udp_packet([10, 0, 0, 1], [10, 0, 0, 2], b"hello, Bob")).await?;
    let received = payload(&bob_host).await?;
    println!("Bob's host received    {received:?}");
    assert_eq!(received, "hello, Bob");
    bob_host.send(&udp_packet([10, 0, 0, 2], [10, 0, 0, 1], b"hello, Alice")).await?;
    let received = payload(&alice_host).await?;
    println!("Alice's host received  {received:?}");
    assert_eq!(received, "hello, Alice");
    loop {
        if let Event::HandshakeComplete { took: Some(took), .. } = events.recv().await? {
            println!("the handshake took     {took:?}");
            break;
        }
    }
    alice.shutdown().await;
    bob.shutdown().await;
    Ok(())
}

fn inside(text: &str) -> IpNet {
    text.parse().expect("the example's prefixes are valid")
}

/// An IPv4 packet with UDP in it. The tunnel reads only the addresses and the length.
fn udp_packet(from: [u8; 4], to: [u8; 4], payload: &[u8]) -> Vec<u8> {
    let total = u16::try_from(28 + payload.len()).expect("a short payload");
    let mut packet = vec![0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, 17, 0, 0];
    packet[2..4].copy_from_slice(&total.to_be_bytes());
    packet.extend_from_slice(&from);
    packet.extend_from_slice(&to);
    packet.extend_from_slice(&[0x1f, 0x90, 0x1f, 0x90]);
    packet.extend_from_slice(&(total - 20).to_be_bytes());
    packet.extend_from_slice(&[0, 0]);
    packet.extend_from_slice(payload);
    packet
}

async fn payload(host: &AsyncMemoryHost) -> Result<String, Box<dyn Error>> {
    let mut buffer = [0; 2048];
    let n = tokio::time::timeout(Duration::from_secs(5), host.recv(&mut buffer)).await??;
    Ok(String::from_utf8(buffer[28..n].to_vec())?)
}
