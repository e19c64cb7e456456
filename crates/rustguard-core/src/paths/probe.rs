//! Probes: the messages about paths that two RustGuards exchange inside the tunnel.
use crate::bytes::{field, put};
use core::time::Duration;

/// Bytes of a probe.
pub const PROBE_LEN: usize = 32;
/// The most paths to one peer.
pub const MAX_PATHS: usize = 8;

const MAGIC: [u8; 3] = [b'R', b'G', 1];
const REQUEST: u8 = 1;
const REPLY: u8 = 2;
const NONE: u8 = 255;
const RETURNS_NONCES: u8 = 1;

/// A probe.
///
/// A probe is the text of a transport message, like a packet, but its first byte is no version of IP: a stock peer drops it without an
/// answer. The session authenticates it and rules out replays. It never reaches a host or another peer. Both kinds have 32 bytes (a
/// multiple of 16: no padding), so that a reply is never longer than its request.
///
/// ```text
/// byte   request                                                   reply
///  0     1                                                         2
///  1     "RG", then the version, 1                                 the same
///  4     path: the sender's number for it, 0 to 7                  that of the request
///  5     active: the path for what is not spread; 255: none        0
///  6     usable: bit n is set while path n works both ways         0
///  7     1: the sender returns nonces; 0: it does not             0
///  8     weights of paths 0 to 7, a byte each; 0: in reserve       0
/// 16     u32: milliseconds until the next request by this path     that of the request
/// 20     u64: the sender's clock                                   that of the request
/// 28     u32: the nonce of the last reply by this path, or 0       u32: a nonce for the place of the request, or 0
/// ```
///
/// Numbers are little-endian, as everywhere in WireGuard. A reply goes where its request came from, and leaves from the address
/// that the request was sent to: it tells about the path both ways.
///
/// A request is authentic, but the source address of its datagram is not: an attacker on the way can forward it from another address. So
/// only replies are sent to a new place until a request has come from there with the nonce of a reply that was sent there. Programs
/// that do not know nonces ignore them and send 0 in byte 7; their addresses are believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Probe {
    /// The question whether a path works.
    Request(Request),
    /// The answer that it does.
    Reply(Reply),
}

/// A question, and the sender's view of the paths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// The sender's number of the path.
    pub path: u8,
    /// The path by which the sender sends everything that it does not spread.
    pub active: Option<u8>,
    /// A bit for each path that works both ways.
    pub usable: u8,
    /// What share of the flows each path gets; 0 for one in reserve.
    pub weights: [u8; MAX_PATHS],
    /// When the next request by this path follows at the latest.
    pub interval: Duration,
    /// The sender's clock, for its own use.
    pub clock: u64,
    /// The nonce of the last reply by this path, 0 for none; `None` from a program that does not return nonces.
    pub nonce: Option<u32>,
}

/// An answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reply {
    /// As in the request.
    pub path: u8,
    /// As in the request.
    pub clock: u64,
    /// As in the request, in milliseconds.
    interval: u32,
    /// To be returned by the next request by this path, from the same place; 0: nothing is to be returned.
    pub nonce: u32,
}

impl Request {
    /// The answer.
    pub fn reply(&self, nonce: u32) -> Reply {
        Reply { path: self.path, clock: self.clock, interval: millis(self.interval), nonce }
    }
}

fn millis(interval: Duration) -> u32 {
    u32::try_from(interval.as_millis()).unwrap_or(u32::MAX)
}

/// Whether the text of a transport message is a probe of this version, going by its first bytes.
pub fn is_probe(text: &[u8]) -> bool {
    matches!(text, [REQUEST | REPLY, magic @ ..] if magic.starts_with(&MAGIC))
}

impl Probe {
    /// Reads a probe. `None` for other texts, and for a probe with values out of range.
    pub fn parse(text: &[u8]) -> Option<Self> {
        let text = text.first_chunk::<PROBE_LEN>().filter(|text| is_probe(&text[..]))?;
        let path = text[4];
        let interval = u32::from_le_bytes(*field(text, 16));
        let clock = u64::from_le_bytes(*field(text, 20));
        let nonce = u32::from_le_bytes(*field(text, 28));
        if usize::from(path) >= MAX_PATHS {
            return None;
        }
        Some(match text[0] {
            REQUEST => Self::Request(Request {
                path,
                active: match text[5] {
                    NONE => None,
                    active if usize::from(active) < MAX_PATHS => Some(active),
                    _ => return None,
                },
                usable: text[6],
                weights: *field(text, 8),
                interval: Duration::from_millis(interval.into()),
                clock,
                nonce: (text[7] == RETURNS_NONCES).then_some(nonce),
            }),
            _ => Self::Reply(Reply { path, clock, interval, nonce }),
        })
    }

    /// Writes it.
    pub fn to_bytes(&self) -> [u8; PROBE_LEN] {
        let mut text = [0; PROBE_LEN];
        put(&mut text, 1, &MAGIC);
        let (path, interval, clock, nonce) = match self {
            Self::Request(request) => {
                text[0] = REQUEST;
                text[5] = request.active.unwrap_or(NONE);
                text[6] = request.usable;
                text[7] = if request.nonce.is_some() { RETURNS_NONCES } else { 0 };
                put(&mut text, 8, &request.weights);
                (request.path, millis(request.interval), request.clock, request.nonce.unwrap_or(0))
            }
            Self::Reply(reply) => {
                text[0] = REPLY;
                (reply.path, reply.interval, reply.clock, reply.nonce)
            }
        };
        text[4] = path;
        put(&mut text, 16, &interval.to_le_bytes());
        put(&mut text, 20, &clock.to_le_bytes());
        put(&mut text, 28, &nonce.to_le_bytes());
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ASKED: Request = Request {
        path: 3,
        active: Some(1),
        usable: 0b1010,
        weights: [0, 2, 0, 1, 0, 0, 0, 0],
        interval: Duration::from_millis(200),
        clock: 0x0102_0304_0506_0708,
        nonce: Some(0x0b0c_0d0e),
    };

    #[test]
    fn the_layout_is_the_documented_one() {
        let text = Probe::Request(ASKED).to_bytes();
        let mut expected = [0; PROBE_LEN];
        expected[..8].copy_from_slice(&[1, b'R', b'G', 1, 3, 1, 0b1010, 1]);
        expected[8..16].copy_from_slice(&[0, 2, 0, 1, 0, 0, 0, 0]);
        expected[16..28].copy_from_slice(&[200, 0, 0, 0, 8, 7, 6, 5, 4, 3, 2, 1]);
        expected[28..].copy_from_slice(&[0x0e, 0x0d, 0x0c, 0x0b]);
        assert_eq!(text, expected);
        assert_eq!(Probe::parse(&text), Some(Probe::Request(ASKED)));
        let reply = Probe::Reply(ASKED.reply(0x0102_0304)).to_bytes();
        let mut expected = [0; PROBE_LEN];
        expected[..5].copy_from_slice(&[2, b'R', b'G', 1, 3]);
        expected[16..28].copy_from_slice(&[200, 0, 0, 0, 8, 7, 6, 5, 4, 3, 2, 1]);
        expected[28..].copy_from_slice(&[4, 3, 2, 1]);
        assert_eq!(reply, expected);
        assert_eq!(Probe::parse(&reply), Some(Probe::Reply(ASKED.reply(0x0102_0304))));
    }

    #[test]
    fn a_program_that_knows_no_nonces_is_understood() {
        let without = Request { nonce: None, ..ASKED };
        let text = Probe::Request(without).to_bytes();
        assert_eq!((text[7], &text[28..]), (0, &[0; 4][..]));
        assert_eq!(Probe::parse(&text), Some(Probe::Request(without)));
    }

    #[test]
    fn nothing_else_is_a_probe_and_no_packet_is_one() {
        let good = Probe::Request(ASKED).to_bytes();
        for (at, byte) in [(0, 0), (0, 3), (0, 0x45), (0, 0x60), (1, 0), (2, 0), (3, 2), (4, 8), (4, 255), (5, 8)] {
            let mut bad = good;
            bad[at] = byte;
            assert_eq!(Probe::parse(&bad), None, "byte {at} is {byte}");
        }
        for len in 0..PROBE_LEN {
            assert_eq!(Probe::parse(&good[..len]), None, "{len} bytes");
            assert_eq!(is_probe(&good[..len]), len >= 4);
        }
        for first in 0..=255_u8 {
            let mut packet = [0; 40];
            packet[0] = first;
            assert!(!is_probe(&packet));
        }
        assert_eq!(Probe::parse(&[&good[..], &[0; 16]].concat()), Some(Probe::Request(ASKED)), "padding");
        let none = Request { active: None, ..ASKED };
        assert_eq!(Probe::parse(&Probe::Request(none).to_bytes()), Some(Probe::Request(none)));
    }
}
