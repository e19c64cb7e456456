//! Echo requests at a steady pace, whether they are answered or not.

use crate::{nanos, say};
use anyhow::Result;
use socket2::{Domain, Protocol, Socket, Type};
use std::{
    io::ErrorKind,
    net::{IpAddr, SocketAddr, UdpSocket},
    time::{Duration, Instant},
};

/// The length of the ICMP data, as in ping.
const DATA: usize = 56;
/// The time to wait for answers after the last request.
const LATE: Duration = Duration::from_secs(1);

/// Sends `count` requests, at most 65,535. An answer counts until a second after the last request.
pub(crate) fn ping(to: IpAddr, count: u16, interval: Duration) -> Result<Vec<u64>> {
    let to = SocketAddr::new(to, 0);
    let protocol = if to.is_ipv4() { Protocol::ICMPV4 } else { Protocol::ICMPV6 };
    let socket = UdpSocket::from(Socket::new(Domain::for_address(to), Type::DGRAM, Some(protocol))?);
    say("ready");
    let begun = Instant::now();
    let mut sent: Vec<Instant> = Vec::new();
    let mut times = vec![None; usize::from(count)];
    let mut buffer = [0; 8 + DATA];
    loop {
        let n = sent.len() as u32;
        let due = if n < u32::from(count) { begun + interval * n } else { begun + interval * n + LATE };
        let answered = times.iter().flatten().count() == usize::from(count);
        let left = due.saturating_duration_since(Instant::now());
        if answered || left.is_zero() && n == u32::from(count) {
            break;
        }
        if left.is_zero() {
            let mut request = [0; 8 + DATA];
            request[0] = if to.is_ipv4() { 8 } else { 128 };
            request[6..8].copy_from_slice(&(n as u16).to_be_bytes());
            sent.push(Instant::now());
            // A refused request counts as lost.
            let _ = socket.send_to(&request, to);
            continue;
        }
        socket.set_read_timeout(Some(left))?;
        match socket.recv(&mut buffer) {
            Ok(8..) => {
                let sequence = usize::from(u16::from_be_bytes([buffer[6], buffer[7]]));
                if let (Some(sent), Some(time @ None)) = (sent.get(sequence), times.get_mut(sequence)) {
                    *time = Some(nanos(sent.elapsed()));
                }
            }
            Err(error) if !matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {
                return Err(error.into());
            }
            _ => {}
        }
    }
    let mut times: Vec<u64> = times.into_iter().flatten().collect();
    anyhow::ensure!(!times.is_empty(), "no echo request was answered");
    times.sort_unstable();
    let quantile = |percent: usize| times[(times.len() * percent / 100).min(times.len() - 1)];
    Ok(vec![quantile(50), quantile(99), times.len() as u64])
}
