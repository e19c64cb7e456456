//! Traffic for scenarios that no common tool generates: a stream whose every byte is checked, a flood, and a hostile
//! router.
#![forbid(unsafe_code)]

use anyhow::{Context, Result, bail, ensure};
use rustguard_tests::{Flood, Hostile};
use std::{
    env,
    io::{Read, Write},
    net::{Ipv6Addr, TcpListener, TcpStream},
    time::Duration,
};

/// The port of streams.
const PORT: u16 = 7_000;
/// A stream without progress for this time has failed.
const PATIENCE: Duration = Duration::from_secs(20);

fn main() -> Result<()> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match *arguments {
        ["receive"] => receive(),
        ["send", address, bytes] => send(address, bytes.parse()?),
        ["flood", ref words @ ..] => flood(&Flood::from_words(words.iter().copied())?),
        ["babel", interface, "announce", seconds] => {
            let seconds = Duration::from_secs(seconds.parse()?);
            said(Hostile::new(interface)?.announce(seconds)?)
        }
        ["babel", interface, "flood", seconds, rate] => {
            let seconds = Duration::from_secs(seconds.parse()?);
            said(Hostile::new(interface)?.flood(rate.parse()?, seconds)?)
        }
        _ => bail!(
            "traffic receive | send ADDRESS BYTES | flood ADDRESS NANOSECONDS PORT RATE FIRST COUNT DATAGRAM
             | babel INTERFACE announce SECONDS | babel INTERFACE flood SECONDS RATE"
        ),
    }
}

/// Receives one stream, checks it, and answers with its length.
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

/// Sends a stream, and waits until the other side has checked all of it.
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

/// Pseudorandom bytes: the high byte of a linear congruential generator. Their period is too long to hide packets in a
/// wrong order.
#[derive(Default)]
struct Bytes(u64);

impl Bytes {
    fn next(&mut self) -> u8 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0.to_be_bytes()[0]
    }
}

/// Floods, and prints how many datagrams were sent.
fn flood(flood: &Flood) -> Result<()> {
    println!("{} datagrams of {} bytes sent in {:?}", flood.run()?, flood.datagram.len(), flood.time);
    Ok(())
}

fn said(packets: u64) -> Result<()> {
    println!("{packets} packets sent");
    Ok(())
}
