//! A video call: frames over UDP, without retransmission, each with a deadline.

use crate::{nanos, say, unix_time};
use anyhow::Result;
use std::{
    io::ErrorKind,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket},
    thread,
    time::{Duration, Instant},
};

/// Frames a second.
const RATE: u32 = 30;
/// Bytes of a second of video: 4 Mbit/s.
const BYTES: u32 = 4_000_000 / 8;
/// The UDP payload of a packet in bytes, with its header.
const PACKET: usize = 1_200;
/// The number of the frame, its number of packets, and the time at which it was made.
const HEADER: usize = 4 + 4 + 8;
/// Packets of a frame.
const PACKETS: usize = (BYTES / RATE) as usize / PACKET + 1;
/// A frame is useful if it is complete this long after it was made.
const DEADLINE: Duration = Duration::from_millis(50);
/// After this time without a packet, the stream has ended.
const SILENCE: Duration = Duration::from_secs(1);

/// Sends the packets of each frame at once, as encoders do.
pub(crate) fn send(to: SocketAddr, frames: u32) -> Result<Vec<u64>> {
    let own: SocketAddr =
        if to.is_ipv4() { (Ipv4Addr::UNSPECIFIED, 0).into() } else { (Ipv6Addr::UNSPECIFIED, 0).into() };
    let socket = UdpSocket::bind(own)?;
    socket.connect(to)?;
    say("ready");
    let begun = Instant::now();
    for frame in 0..frames {
        thread::sleep((begun + Duration::from_secs(1) * frame / RATE).saturating_duration_since(Instant::now()));
        let mut packet = [0; PACKET];
        packet[..4].copy_from_slice(&frame.to_be_bytes());
        packet[8..HEADER].copy_from_slice(&nanos(unix_time()).to_be_bytes());
        for part in 0..PACKETS as u32 {
            packet[4..8].copy_from_slice(&part.to_be_bytes());
            // A refused packet counts as lost.
            let _ = socket.send(&packet);
        }
    }
    Ok(vec![frames.into()])
}

/// Counts the frames that are complete in time.
pub(crate) fn receive(at: SocketAddr, frames: u32) -> Result<Vec<u64>> {
    let socket = UdpSocket::bind(at)?;
    say("ready");
    // A bit for each packet that arrived in time.
    let mut parts = vec![0_u64; frames as usize];
    let mut buffer = [0; PACKET];
    let mut first = true;
    loop {
        match socket.recv(&mut buffer) {
            Ok(PACKET) => {}
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock) => break,
            Ok(_) => continue,
            Err(error) => return Err(error.into()),
        }
        let now = nanos(unix_time());
        if std::mem::take(&mut first) {
            socket.set_read_timeout(Some(SILENCE))?;
        }
        let [frame, part] = [0, 4].map(|at| u32::from_be_bytes([0, 1, 2, 3].map(|i| buffer[at + i])) as usize);
        let made = u64::from_be_bytes([0, 1, 2, 3, 4, 5, 6, 7].map(|i| buffer[8 + i]));
        if now <= made + nanos(DEADLINE)
            && part < PACKETS
            && let Some(parts) = parts.get_mut(frame)
        {
            *parts |= 1 << part;
        }
    }
    let whole = parts.iter().filter(|parts| **parts == (1 << PACKETS) - 1).count();
    Ok(vec![whole as u64])
}
