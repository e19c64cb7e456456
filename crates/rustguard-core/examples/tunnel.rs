//! A WireGuard interface over a UDP socket, in one thread: an example of a program that embeds [`Tunnel`].
//!
//! Two of them run here, each in a thread of its own. Alice sends three packets, and Bob sends each of them back.
//!
//! ```sh
//! cargo run -p rustguard-core --example tunnel
//! ```
use rustguard_core::{
    node::PeerConfig,
    time::{Instant, Now},
    tunnel::{HEADROOM, Output, TAILROOM, Tunnel},
};
use rustguard_crypto::x25519::{PublicKey, StaticSecret};
use std::{
    error::Error,
    io::{self, ErrorKind},
    net::{Ipv4Addr, SocketAddr, UdpSocket},
    thread,
    time::{Duration, SystemTime},
};

/// The greatest packet, in bytes.
const MTU: usize = 1420;
const ALICE: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const BOB: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
const PACKETS: u8 = 3;

/// A tunnel and its socket.
struct Interface {
    name: &'static str,
    tunnel: Tunnel,
    socket: UdpSocket,
    started: std::time::Instant,
}

fn main() -> Result<(), Box<dyn Error>> {
    let (alice, bob) = (StaticSecret::generate()?, StaticSecret::generate()?);
    let sockets = [UdpSocket::bind("127.0.0.1:0")?, UdpSocket::bind("127.0.0.1:0")?];
    let addresses = [sockets[0].local_addr()?, sockets[1].local_addr()?];
    let [at_alice, at_bob] = sockets;
    let mut answering = Interface::new("bob", at_bob, &bob, alice.public_key(), None, ALICE)?;
    let mut asking = Interface::new("alice", at_alice, &alice, bob.public_key(), Some(addresses[1]), BOB)?;

    let bob = thread::spawn(move || -> io::Result<()> {
        for _ in 0..PACKETS {
            let packet = answering.receive()?;
            answering.send(&echo(&packet))?;
        }
        Ok(())
    });
    for number in 1..=PACKETS {
        asking.send(&packet(ALICE, BOB, number))?;
        assert_eq!(asking.receive()?, packet(BOB, ALICE, number));
        println!("alice: packet {number} came back");
    }
    bob.join().expect("the thread ends")?;
    Ok(())
}

impl Interface {
    fn new(
        name: &'static str,
        socket: UdpSocket,
        key: &StaticSecret,
        peer: PublicKey,
        endpoint: Option<SocketAddr>,
        allowed_ip: Ipv4Addr,
    ) -> Result<Self, Box<dyn Error>> {
        let started = std::time::Instant::now();
        let (now, rng) = (now(started), &mut rand::rng());
        let mut tunnel = Tunnel::new(MTU, now, rng);
        tunnel.set_private_key(Some(key.clone()), now, rng);
        let allowed_ips = [ipnet::Ipv4Net::from(allowed_ip).into()];
        tunnel.add_peer(PeerConfig::new(peer), endpoint, &allowed_ips, now, rng)?;
        Ok(Self { name, tunnel, socket, started })
    }

    /// Sends a packet, at once or when a handshake is done.
    fn send(&mut self, packet: &[u8]) -> io::Result<()> {
        // A real program reads the packet from a TUN device into this buffer.
        let mut buffer = [0; HEADROOM + MTU + TAILROOM];
        buffer[HEADROOM..HEADROOM + packet.len()].copy_from_slice(packet);
        let sealed = self.tunnel.send(&mut buffer, packet.len(), now(self.started), &mut rand::rng());
        if let Some(sealed) = sealed.map_err(io::Error::other)? {
            self.socket.send_to(sealed.datagram, sealed.to)?;
        }
        self.carry_out()
    }

    /// The next packet of the peer. Until it arrives, handshakes and timers run.
    fn receive(&mut self) -> io::Result<Vec<u8>> {
        let mut buffer = [0; 2048];
        loop {
            let wait = self.tunnel.deadline().map(|deadline| deadline.since(now(self.started).instant));
            // A timeout of zero would mean no timeout.
            self.socket.set_read_timeout(wait.map(|wait| wait.max(Duration::from_millis(1))))?;
            match self.socket.recv_from(&mut buffer) {
                Ok((len, from)) => {
                    let received = self.tunnel.receive(from, &mut buffer[..len], now(self.started), &mut rand::rng());
                    let packet = match received {
                        Ok(received) => received.map(|received| received.packet.to_vec()),
                        Err(why) => {
                            println!("{}: dropped a datagram of {from}: {why}", self.name);
                            None
                        }
                    };
                    self.carry_out()?;
                    if let Some(packet) = packet {
                        return Ok(packet);
                    }
                }
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                    self.tunnel.tick(now(self.started), &mut rand::rng());
                    self.carry_out()?;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Sends the tunnel's own messages.
    fn carry_out(&mut self) -> io::Result<()> {
        while let Some(output) = self.tunnel.poll() {
            match output {
                Output::Transmit { to, datagram } => {
                    self.socket.send_to(&datagram, to)?;
                }
                other => println!("{}: {other:?}", self.name),
            }
        }
        Ok(())
    }
}

/// The clocks. A program on a machine that sleeps uses a clock that counts the sleep (CLOCK_BOOTTIME).
fn now(started: std::time::Instant) -> Now {
    let nanos = u64::try_from(started.elapsed().as_nanos()).expect("584 years are enough");
    let unix = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("it is after 1970");
    Now { instant: Instant::from_nanos(nanos), unix }
}

/// An IPv4 packet with one byte in it.
fn packet(source: Ipv4Addr, destination: Ipv4Addr, number: u8) -> Vec<u8> {
    let mut packet = vec![0x45, 0, 0, 21, 0, 0, 0, 0, 64, 253, 0, 0];
    packet.extend(source.octets());
    packet.extend(destination.octets());
    packet.push(number);
    packet
}

/// The same packet, back to its source.
fn echo(packet: &[u8]) -> Vec<u8> {
    let mut echo = packet.to_vec();
    echo[12..20].rotate_left(4);
    echo
}
