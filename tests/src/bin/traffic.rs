//! Traffic that a scenario needs and no common tool makes: a stream of which every byte is checked, a flood as fast as it goes.
#![forbid(unsafe_code)]

use anyhow::{Context, Result, bail, ensure};
use std::{
    env,
    io::{Read, Write},
    net::{Ipv6Addr, TcpListener, TcpStream, UdpSocket},
    time::{Duration, Instant},
};

/// Where streams go.
const PORT: u16 = 7_000;
/// A stream that stands still for so long is dead.
const PATIENCE: Duration = Duration::from_secs(20);

fn main() -> Result<()> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match *arguments {
        ["receive"] => receive(),
        ["send", address, bytes] => send(address, bytes.parse()?),
        ["flood", address, port, len, seconds] => flood(address, port.parse()?, len.parse()?, seconds.parse()?),
        _ => bail!("traffic receive | send ADDRESS BYTES | flood ADDRESS PORT LENGTH SECONDS"),
    }
}

/// Takes one stream, checks it and answers with its length.
fn receive() -> Result<()> {
    let listener = TcpListener::bind((Ipv6Addr::UNSPECIFIED, PORT))?;
    let (mut stream, _) = listener.accept()?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let (mut buffer, mut expected, mut received) = (vec![0; 1 << 16], Bytes::default(), 0_u64);
    loop {
        let n = stream.read(&mut buffer)?;
        if n == 0 {
            break;
        }
        for (at, &byte) in buffer[..n].iter().enumerate() {
            ensure!(byte == expected.next(), "byte {} is another", received + at as u64);
        }
        received += n as u64;
    }
    Ok(stream.write_all(&received.to_be_bytes())?)
}

/// Sends a stream and waits until the other side has checked all of it.
fn send(address: &str, bytes: usize) -> Result<()> {
    let mut stream = TcpStream::connect((address, PORT))?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut made = Bytes::default();
    let all: Vec<u8> = (0..bytes).map(|_| made.next()).collect();
    stream.write_all(&all)?;
    stream.shutdown(std::net::Shutdown::Write)?;
    let mut answer = [0; 8];
    stream.read_exact(&mut answer).context("the other side found a mistake")?;
    ensure!(u64::from_be_bytes(answer) == bytes as u64, "the other side got {} bytes", u64::from_be_bytes(answer));
    Ok(())
}

/// Bytes without a period that could hide packets in a wrong order: a linear congruential generator's high byte.
#[derive(Default)]
struct Bytes(u64);

impl Bytes {
    fn next(&mut self) -> u8 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0.to_be_bytes()[0]
    }
}

/// Sends datagrams as fast as the system takes them, and says how many that were. The first byte of each is no type of
/// WireGuard's.
fn flood(address: &str, port: u16, len: usize, seconds: u64) -> Result<()> {
    let end = Instant::now() + Duration::from_secs(seconds);
    let socket = UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 0)).or_else(|_| UdpSocket::bind("0.0.0.0:0"))?;
    connect(&socket, address, port)?;
    let (datagram, mut sent) = (vec![0xff; len], 0_u64);
    while Instant::now() < end {
        // Full queues and ICMP's answers are what a flood is about.
        sent += u64::from(socket.send(&datagram).is_ok());
    }
    println!("{sent} datagrams of {len} bytes sent in {seconds} s");
    Ok(())
}

/// Connects a socket that speaks both IP versions.
fn connect(socket: &UdpSocket, address: &str, port: u16) -> Result<()> {
    let address = match address.parse()? {
        std::net::IpAddr::V4(address) if socket.local_addr()?.is_ipv6() => address.to_ipv6_mapped().into(),
        address => address,
    };
    Ok(socket.connect((address, port))?)
}
