//! `rustguard demo`: two nodes in separate network namespaces, and a veth pair as the cable between them. During the
//! demonstration the cable is unplugged and plugged in again.
//!
//! [`mesh`] does the same with five nodes in a ring, [`nat`] with two nodes behind routers and a relay, [`network`]
//! with the commands of a network, [`servers`] with three servers on one store.
//!
//! All but the last two run in this process. Each node is in its own network namespace and runs the same device as
//! `up`. Nothing outside the namespaces changes, and the namespaces disappear with the process.

mod course;
pub(crate) mod machine;
pub(crate) mod mesh;
pub(crate) mod nat;
pub(crate) mod network;
pub(crate) mod servers;
mod underlay;

/// `println!` that returns an error instead of a panic when the reader has gone, as in `rustguard demo | head -1`.
macro_rules! say {
    ($($words:tt)*) => {
        std::io::Write::write_fmt(&mut std::io::stdout(), format_args!("{}\n", format_args!($($words)*)))
    };
}
use crate::{netlink::links::Links, output::way::milliseconds, process::runtime};
use anyhow::{Context as _, Result, anyhow, bail};
use rustguard_crypto::x25519::StaticSecret;
use rustguard_device::{Device, Event, PeerUpdate};
use rustguard_tun::namespace;
use say;
use std::{
    fs::File,
    io::{self, ErrorKind, Read as _, Write as _},
    net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket},
    os::fd::OwnedFd,
    sync::mpsc,
    time::{Duration, Instant},
};

/// The addresses of the cable (RFC 5737) and those inside the tunnel.
const CABLE: [Ipv4Addr; 2] = [Ipv4Addr::new(192, 0, 2, 1), Ipv4Addr::new(192, 0, 2, 2)];
const CABLE_MOVED: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 77);
const TUNNEL: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 77, 0, 1), Ipv4Addr::new(10, 77, 0, 2)];
const PORT: u16 = 51820;
/// The device file through which the kernel creates tunnel interfaces.
const TUN: &str = "/dev/net/tun";
/// The port of the UDP echo service and of the TCP sink on the second node.
const SERVICE: u16 = 7777;

const PINGS: usize = 500;
const STREAM_TIME: Duration = Duration::from_secs(2);
/// The limit for each step. On a quiet machine, a step takes longer than 5 s only if something is broken.
const PATIENCE: Duration = Duration::from_secs(20);

/// Runs the demo and prints what happened.
pub(crate) fn run() -> Result<()> {
    let privileged = become_privileged()?;
    say!(
        "Two nodes, each in its own network namespace{}:\n\n\
         \u{20}  alice {:<11} {} ── cable ── {} {:>11} bob\n",
        if privileged { "" } else { " (inside a user namespace: no root needed)" },
        format!("{}", TUNNEL[0]),
        CABLE[0],
        CABLE[1],
        format!("{}", TUNNEL[1]),
    )?;
    let keys = [secret(), secret()];
    let (to_alice, from_bob) = mpsc::channel();
    let (to_bob, from_alice) = mpsc::channel();
    let bob_keys = keys.clone();
    let bob = std::thread::Builder::new().name("bob".into()).spawn(move || bob(&bob_keys, &to_alice, &from_alice))?;
    let alice = alice(&keys, &from_bob, &to_bob);
    // Bob waits for a message from Alice. Dropping her end of the channel ends his wait, also after an error.
    drop(to_bob);
    let bob = bob.join().map_err(|_| anyhow!("bob's thread panicked"))?;
    // If Alice waited for Bob in vain, his error is the cause, so it comes first.
    bob.context("bob")?;
    alice.context("alice")
}

/// Makes sure that this process may create network namespaces. Returns false if it had to enter a user namespace for
/// that.
fn become_privileged() -> Result<bool> {
    // Root inside a user namespace cannot open a file that only root outside may open.
    let tun = File::options().read(true).write(true).open(TUN);
    if tun.is_err_and(|error| error.kind() == ErrorKind::PermissionDenied) {
        bail!(
            "cannot create tunnels: this user may not open {TUN}; permit all users to open it (chmod 666 {TUN}), or run the \
             demo as root"
        );
    }
    namespace::enter_user_if_needed().context(
        "cannot create a user namespace, and this user is not root; permit user namespaces (sysctl kernel.unprivileged_userns_clone=1, \
         kernel.apparmor_restrict_unprivileged_userns=0, user.max_user_namespaces>0), or run the demo as root",
    )
}

/// A message from Bob to Alice.
enum FromBob {
    Namespace(OwnedFd),
    Listening,
    Moved(SocketAddr),
}

/// A row of the demonstrations with NATs: a word, a time, and what happened.
fn row(name: &str, took: Option<Duration>, what: &str) -> io::Result<()> {
    let took = took.map_or_else(String::new, |took| format!("{} ms", milliseconds(took)));
    say!("  {name:<11} {took:>9}   {what}")
}

/// A socket in the namespace of the calling thread.
fn host_socket(address: (Ipv4Addr, u16)) -> Result<tokio::net::UdpSocket> {
    let socket = UdpSocket::bind(address)?;
    socket.set_nonblocking(true)?;
    Ok(tokio::net::UdpSocket::from_std(socket)?)
}

fn secret() -> StaticSecret {
    StaticSecret::generate().expect("the system has random bytes")
}

/// Enters a new network namespace, and returns a runtime whose threads are in it.
fn enter() -> Result<tokio::runtime::Runtime> {
    namespace::enter_network().context("cannot create a network namespace")?;
    Ok(runtime()?)
}

fn links(runtime: &tokio::runtime::Runtime) -> Result<Links> {
    let _entered = runtime.enter();
    Links::here()
}

fn alice(keys: &[StaticSecret; 2], from_bob: &mpsc::Receiver<FromBob>, to_bob: &mpsc::Sender<()>) -> Result<()> {
    let runtime = enter()?;
    let FromBob::Namespace(bob) = wait(from_bob)? else { return Err(anyhow!("bob sent an unexpected message")) };
    let net = links(&runtime)?;
    runtime.block_on(net.lay("cable-alice", "cable-bob", &bob))?;
    runtime.block_on(net.address("cable-alice", CABLE[0], 24))?;
    to_bob.send(())?;
    let FromBob::Listening = wait(from_bob)? else { return Err(anyhow!("bob sent an unexpected message")) };

    let device = runtime.block_on(start(
        "alice",
        &keys[0],
        TUNNEL[0],
        PeerUpdate::new(keys[1].public_key()).name("bob").endpoint(SocketAddr::from((CABLE[1], PORT))),
    ))?;
    let mut events = device.events();

    let first = Instant::now();
    let echo = Echo::new()?;
    echo.ping(PATIENCE).context("no answer through the tunnel")?;
    let first = first.elapsed();
    let took = runtime.block_on(async {
        loop {
            if let Event::HandshakeComplete { took: Some(took), .. } = events.recv().await? {
                return anyhow::Ok(took);
            }
        }
    })?;
    say!(
        "  handshake     {took:>9.2?}   Noise_IKpsk2, one round trip; the first packet waited for it and was answered after {first:.2?}"
    )?;

    let mut times = (0..PINGS).map(|_| echo.ping(PATIENCE)).collect::<Result<Vec<_>>>()?;
    times.sort_unstable();
    say!(
        "  round trip    {:>9.2?}   median of {PINGS} (99th percentile {:.2?})",
        times[PINGS / 2],
        times[PINGS * 99 / 100]
    )?;

    let (bytes, elapsed) = stream()?;
    let mbits = bytes as f64 * 8e-6 / elapsed.as_secs_f64();
    let build = if cfg!(debug_assertions) { "; a release carries about twice as much" } else { "" };
    say!("  throughput    {mbits:>4.0} Mbit/s   one TCP stream, {:.0} MB in {elapsed:.2?}{build}", bytes as f64 / 1e6)?;

    // The cable is unplugged, and plugged in again with another address, like a laptop that moves to another network.
    runtime.block_on(net.unplug("cable-alice", CABLE[0]))?;
    let away = Instant::now();
    runtime.block_on(net.address("cable-alice", CABLE_MOVED, 24))?;
    let back = loop {
        if echo.ping(Duration::from_millis(20)).is_ok() {
            break away.elapsed();
        }
        if away.elapsed() > PATIENCE {
            return Err(anyhow!("the tunnel did not come back after the address had changed"));
        }
    };
    to_bob.send(())?;
    let FromBob::Moved(endpoint) = wait(from_bob)? else { return Err(anyhow!("bob sent an unexpected message")) };
    say!(
        "  roaming       {back:>9.2?}   alice moved to {}; bob uses the new address, and the session continues",
        endpoint.ip()
    )?;

    let status = runtime.block_on(device.status()).context("the device has ended")?;
    let peer = status.peers.first().context("alice has no peer")?;
    say!("\nalice sent {} and received {} bytes; dropped: {}", peer.tx_bytes, peer.rx_bytes, drops(&status.drops))?;
    runtime.block_on(device.shutdown());
    say!("Nothing is left behind. Next: write a configuration file, and run `rustguard up wg0.conf`.")?;
    Ok(())
}

fn bob(keys: &[StaticSecret; 2], to_alice: &mpsc::Sender<FromBob>, from_alice: &mpsc::Receiver<()>) -> Result<()> {
    let runtime = enter()?;
    to_alice.send(FromBob::Namespace(namespace::current_network()?))?;
    from_alice.recv()?;
    let net = links(&runtime)?;
    runtime.block_on(net.address("cable-bob", CABLE[1], 24))?;
    let device =
        runtime.block_on(start("bob", &keys[1], TUNNEL[1], PeerUpdate::new(keys[0].public_key()).name("alice")))?;
    let mut events = device.events();
    let (udp, tcp) =
        (UdpSocket::bind((TUNNEL[1], SERVICE))?, TcpListener::bind((TUNNEL[1], SERVICE)).context("TCP listener")?);
    // Both threads end with the process. The demo does not need their errors.
    std::thread::Builder::new().name("echo".into()).spawn(move || {
        let mut buffer = [0; 64];
        while let Ok((n, from)) = udp.recv_from(&mut buffer) {
            let _ = udp.send_to(&buffer[..n], from);
        }
    })?;
    std::thread::Builder::new().name("sink".into()).spawn(move || {
        for stream in tcp.incoming().flatten() {
            drain(stream);
        }
    })?;
    to_alice.send(FromBob::Listening)?;
    if from_alice.recv().is_err() {
        // Alice has ended early. Her error says why.
        return Ok(());
    }
    let endpoint = loop {
        if let Event::PeerRoamed { endpoint, .. } = runtime.block_on(events.recv())?
            && endpoint.ip() == IpAddr::from(CABLE_MOVED)
        {
            break endpoint;
        }
    };
    to_alice.send(FromBob::Moved(endpoint))?;
    // Alice drops her end of the channel when she is done.
    let _ = from_alice.recv();
    runtime.block_on(device.shutdown());
    Ok(())
}

fn wait(from_bob: &mpsc::Receiver<FromBob>) -> Result<FromBob> {
    from_bob.recv_timeout(PATIENCE).context("bob does not answer")
}

/// The device that `up` runs, with one peer.
async fn start(name: &str, key: &StaticSecret, address: Ipv4Addr, peer: PeerUpdate) -> Result<Device> {
    let peer = peer.allowed_ip(ipnet::Ipv4Net::new(address, 24)?.trunc());
    let device =
        Device::builder().private_key(key.clone()).listen_port(PORT).peer(peer).start(&format!("wg-{name}"))?;
    Links::here()?.address(&format!("wg-{name}"), address, 24).await?;
    Ok(device)
}

/// UDP packets to Bob's echo service.
struct Echo(UdpSocket);

impl Echo {
    fn new() -> Result<Self> {
        let socket = UdpSocket::bind((TUNNEL[0], 0))?;
        socket.connect((TUNNEL[1], SERVICE))?;
        Ok(Self(socket))
    }

    /// One round trip.
    fn ping(&self, timeout: Duration) -> Result<Duration> {
        self.0.set_read_timeout(Some(timeout))?;
        let token: [u8; 16] = rand::random();
        let start = Instant::now();
        self.0.send(&token)?;
        let mut answer = [0; 64];
        loop {
            let n = self.0.recv(&mut answer)?;
            // The answer to an earlier packet may arrive first.
            if answer[..n] == token {
                return Ok(start.elapsed());
            }
        }
    }
}

/// Sends one TCP stream to Bob. Returns the number of bytes that he received, and the time that they took.
fn stream() -> Result<(u64, Duration)> {
    let mut stream = TcpStream::connect((TUNNEL[1], SERVICE))?;
    let chunk = vec![0; 128 * 1024];
    let start = Instant::now();
    while start.elapsed() < STREAM_TIME {
        stream.write_all(&chunk)?;
    }
    stream.shutdown(std::net::Shutdown::Write)?;
    let mut count = [0; 8];
    stream.read_exact(&mut count)?;
    Ok((u64::from_be_bytes(count), start.elapsed()))
}

/// Reads a stream to its end, and answers with the number of bytes.
fn drain(mut stream: TcpStream) {
    let mut buffer = vec![0; 128 * 1024];
    let mut bytes = 0_u64;
    while let Ok(n @ 1..) = stream.read(&mut buffer) {
        bytes += n as u64;
    }
    let _ = stream.write_all(&bytes.to_be_bytes());
}

fn drops(drops: &[rustguard_device::DropCount]) -> String {
    if drops.is_empty() {
        return "nothing".to_owned();
    }
    drops.iter().map(|drop| format!("{} {}", drop.packets, drop.reason.name())).collect::<Vec<_>>().join(", ")
}
