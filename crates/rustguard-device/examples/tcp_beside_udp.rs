//! TCP as one more way to a peer, beside the kernel's UDP sockets, without root: while UDP is blocked, the tunnel uses
//! TCP; when UDP works, it returns to UDP. The hosts' packets are in memory; `start_with_transport("wg0", …)` makes an
//! interface of the kernel.
//!
//! ```text
//! cargo run -p rustguard-device --example tcp_beside_udp
//! ```

use rustguard_device::{
    PathState, Transport, TransportAddress, TransportEnd, UdpBinder, WithTransport,
    prelude::*,
    tun::memory::{self, MemoryHost},
};
use std::{error::Error, io, net::SocketAddr, sync::Arc, time::Duration};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
};

/// The number of the connection on both devices. A program with several connections gives each its own number.
const TCP: TransportAddress = TransportAddress::new(1);

#[tokio::main(flavor = "current_thread")]
pub(crate) async fn main() -> Result<(), Box<dyn Error>> {
    let (alice_key, bob_key) = (StaticSecret::generate()?, StaticSecret::generate()?);
    let (alice_transport, alice_end) = Transport::new()?;
    let (bob_transport, bob_end) = Transport::new()?;
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let connecting = TcpStream::connect(listener.local_addr()?).await?;
    tokio::spawn(carry(alice_end, connecting));
    tokio::spawn(carry(bob_end, listener.accept().await?.0));

    // Alice has an endpoint of Bob at a port that does not answer yet, as with a firewall that blocks UDP.
    let firewall = std::net::UdpSocket::bind("127.0.0.1:0")?;
    let bob_at: SocketAddr = firewall.local_addr()?;
    let bob = PeerUpdate::new(bob_key.public_key()).endpoint(bob_at).endpoint(TCP).allowed_ip(inside("10.0.0.2/32"));
    let (tun, alice_host) = memory::tun()?;
    let alice = Device::builder()
        .private_key(alice_key.clone())
        .peer(bob)
        .start_with(tun, WithTransport::new(UdpBinder::default(), alice_transport))?;
    // Bob learns Alice's address from her packets, on either way.
    let (tun, bob_host) = memory::tun()?;
    let bob_host = Arc::new(bob_host);
    let bob = Device::builder()
        .private_key(bob_key.clone())
        .peer(PeerUpdate::new(alice_key.public_key()).allowed_ip(inside("10.0.0.1/32")))
        .start_with(tun, WithTransport::new(UdpBinder::default(), bob_transport))?;

    send(&alice_host, &bob_host, b"UDP is blocked").await?;
    let way = way(&alice).await?;
    println!("alice reaches bob by {way}");
    assert_eq!(way, Way::Transport(TCP));

    drop(firewall);
    bob.update(Update::new().listen_port(bob_at.port())).await?;
    let returns = async {
        loop {
            let status = alice.status().await?;
            let peer = &status.peers[0];
            // TCP stays in reserve.
            if peer.way() == Some(Way::Direct(bob_at)) && peer.paths.iter().all(|path| path.state == PathState::Up) {
                return Ok::<_, Box<dyn Error>>(status);
            }
            // Ways are probed while there is traffic.
            send(&alice_host, &bob_host, b"and now it is not").await?;
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let status = tokio::time::timeout(Duration::from_secs(30), returns).await??;
    println!("alice reaches bob by {}", Way::Direct(bob_at));
    for path in &status.peers[0].paths {
        println!("  {:?}: {:?}, {:?}", path.endpoint, path.state, path.round_trip);
    }
    alice.shutdown().await;
    bob.shutdown().await;
    Ok(())
}

/// Carries datagrams between a device and a TCP connection, each behind its length, until one of them ends.
async fn carry(end: TransportEnd, connection: TcpStream) -> io::Result<()> {
    connection.set_nodelay(true)?;
    let (from_peer, to_peer) = connection.into_split();
    tokio::try_join!(to_the_peer(&end, to_peer), to_the_device(from_peer, &end)).map(drop)
}

async fn to_the_peer(end: &TransportEnd, mut to: OwnedWriteHalf) -> io::Result<()> {
    let mut frame = vec![0; 2 + 65_535];
    loop {
        let (_, len) = end.recv(&mut frame[2..]).await?;
        frame[..2].copy_from_slice(&u16::try_from(len).expect("at most 65,535").to_be_bytes());
        to.write_all(&frame[..2 + len]).await?;
    }
}

async fn to_the_device(mut from: OwnedReadHalf, end: &TransportEnd) -> io::Result<()> {
    let mut datagram = vec![0; 65_535];
    loop {
        let len = usize::from(from.read_u16().await?);
        from.read_exact(&mut datagram[..len]).await?;
        end.send(TCP, &datagram[..len]).await?;
    }
}

async fn way(device: &Device) -> Result<Way, Box<dyn Error>> {
    let status = device.status().await?;
    Ok(status.peers[0].way().ok_or("the peer is nowhere")?)
}

/// Sends a packet from Alice's host, and waits until Bob's host has received it.
async fn send(from: &MemoryHost, to: &Arc<MemoryHost>, payload: &[u8]) -> Result<(), Box<dyn Error>> {
    let total = u8::try_from(20 + payload.len())?;
    // IPv4 from 10.0.0.1 to 10.0.0.2, with a protocol for experiments (253, RFC 3692).
    let mut packet = vec![0x45, 0, 0, total, 0, 0, 0x40, 0, 64, 253, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
    packet.extend_from_slice(payload);
    from.send(&packet)?;
    let to = Arc::clone(to);
    let received = tokio::task::spawn_blocking(move || {
        to.set_timeout(Some(Duration::from_secs(20)))?;
        let mut received = vec![0; 2048];
        let len = to.recv(&mut received)?;
        received.truncate(len);
        Ok::<_, io::Error>(received)
    });
    assert_eq!(received.await??, packet);
    Ok(())
}

fn inside(text: &str) -> IpNet {
    text.parse().expect("the example's prefixes are valid")
}
