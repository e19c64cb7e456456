//! Probes: the messages about paths that two RustGuards exchange inside the tunnel.
use super::locator::Locator;
use crate::{
    bytes::{field, put},
    control_message::{Header, Kind},
};
use alloc::{vec, vec::Vec};
use core::{
    net::{Ipv6Addr, SocketAddr},
    time::Duration,
};

/// The most paths to one peer. Only version 2 has numbers for all of them.
pub const MAX_PATHS: usize = 32;
/// The most paths that flows can be spread over: the first ones. Version 1 has numbers for these only.
pub const MAX_SHARES: usize = 8;
/// The path number in a request that is about no path: the peer answers such a request and remembers nothing. Version 2
/// only.
pub const NO_PATH: u8 = 255;

/// Bytes of a probe of each version.
const LEN: [usize; 2] = [32, 48];
const NONE: u8 = 255;
const RETURNS_NONCES: u8 = 1;

/// The version of a probe. A program that does not know a version drops its probes without an answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Version {
    /// Eight paths.
    #[default]
    V1,
    /// 32 paths. The reply has the source address of the request, and proves that the request has arrived there.
    V2,
}

/// A probe.
///
/// A probe is a [control message](crate::control_message). Requests and replies of a version have the same length (a
/// multiple of 16: no padding), so that a reply is never longer than its request.
///
/// ```text
/// byte   request of version 1                                      reply
///  0     1                                                         2
///  1     "RG", then the version, 1                                 the same
///  4     path: the sender's number for it, 0 to 7                  that of the request
///  5     active: the path for what is not spread; 255: none        the newest version that the sender knows; 0: this one
///  6     usable: bit n is set while path n works both ways         0
///  7     1: the sender returns nonces; 0: it does not              0
///  8     weights of paths 0 to 7, a byte each; 0: in reserve       0
/// 16     u32: milliseconds until the next request by this path     that of the request
/// 20     u64: the sender's clock                                   that of the request
/// 28     u32: the nonce of the last reply by this path, or 0       u32: a nonce for the locator of the request, or 0
///
/// byte   request of version 2                                      reply
///  0     1                                                         2
///  1     "RG", then the version, 2                                 the same
///  4     path: the sender's number for it, 0 to 31; 255: no path   that of the request
///  5     active, as above                                          0
///  6     0                                                         u16: the port that the request came from
///  8     weights of paths 0 to 7                                   u64: the token of the request
/// 16     u32: milliseconds until the next request by this path     0
/// 20     u64: the sender's clock                                   that of the request
/// 28     u32: the nonce of the last reply by this path, or 0       u32: a nonce for the locator of the request, or 0
/// 32     u32: usable, as above                                     the IPv6 or IPv4-mapped address that the request
/// 36     u64: a token                                              came from; `::` and port 0: it came through a peer
/// 44     0
/// ```
///
/// A reply goes where its request came from, and leaves from the address
/// that the request was sent to: it tells about the path both ways.
///
/// A request is authentic, but the source address of its datagram is not: an attacker on the way can forward it from
/// another address. So only replies are sent to a new locator, until a request comes from there with the nonce of a
/// reply that was sent there. Programs that do not know nonces ignore them and send 0 in byte 7; their addresses are
/// believed.
///
/// A peer could answer requests that it never got. The token of version 2 cannot be guessed and goes to one locator
/// only: a peer that returns it can be reached there.
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
    /// The version, which the answer has as well.
    pub version: Version,
    /// The sender's number of the path; [`NO_PATH`]: the request is about none.
    pub path: u8,
    /// The path by which the sender sends everything that it does not spread.
    pub active: Option<u8>,
    /// A bit for each path that works both ways. Version 1 has the lowest eight only.
    pub usable: u32,
    /// The share of the flows for each path; 0 for a path in reserve.
    pub weights: [u8; MAX_SHARES],
    /// When the next request by this path follows at the latest.
    pub interval: Duration,
    /// The sender's clock; only the sender uses it.
    pub clock: u64,
    /// The nonce of the last reply by this path, 0 for none; `None` from a program of version 1 that does not return
    /// nonces.
    pub nonce: Option<u32>,
    /// A number that the answer returns; only the sender uses it. Version 2 only.
    pub token: u64,
}

/// An answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reply {
    /// As in the request.
    pub version: Version,
    /// The newest version that the sender is known to speak.
    pub newest: Version,
    /// As in the request.
    pub path: u8,
    /// As in the request.
    pub clock: u64,
    /// As in the request, in milliseconds. Version 1 only.
    interval: u32,
    /// The next request by this path has to return it, from the same locator; 0: nothing has to be returned.
    pub nonce: u32,
    /// As in the request. Version 2 only.
    pub token: u64,
    /// The source address of the request; `None`: it came through a peer, or this is version 1.
    pub seen: Option<SocketAddr>,
}

impl Request {
    /// A question that is about no path.
    pub fn about_no_path(clock: u64, token: u64) -> Self {
        Self {
            version: Version::V2,
            path: NO_PATH,
            active: None,
            usable: 0,
            weights: [0; MAX_SHARES],
            interval: Duration::ZERO,
            clock,
            nonce: Some(0),
            token,
        }
    }

    /// The answer to a request from this locator.
    pub fn reply(&self, nonce: u32, from: Locator) -> Reply {
        let seen =
            from.address().filter(|_| self.version == Version::V2 && !from.is_indirect()).map(|address| address.remote);
        Reply {
            version: self.version,
            newest: Version::V2,
            path: self.path,
            clock: self.clock,
            interval: if self.version == Version::V1 { millis(self.interval) } else { 0 },
            nonce,
            token: self.token,
            seen: seen.map(|seen| SocketAddr::new(seen.ip().to_canonical(), seen.port())),
        }
    }
}

fn millis(interval: Duration) -> u32 {
    u32::try_from(interval.as_millis()).unwrap_or(u32::MAX)
}

impl Probe {
    /// Reads a probe. `None` for other texts, and for a probe with values out of range.
    pub fn parse(text: &[u8]) -> Option<Self> {
        let Header { kind, version } = Header::parse(text)?;
        let version = if version == 1 { Version::V1 } else { Version::V2 };
        let text = text.get(..LEN[version as usize])?;
        let paths = if version == Version::V1 { MAX_SHARES } else { MAX_PATHS };
        let path = text[4];
        if usize::from(path) >= paths && (version == Version::V1 || path != NO_PATH) {
            return None;
        }
        Some(match kind {
            Kind::ProbeRequest => Self::Request(Request {
                version,
                path,
                active: match text[5] {
                    NONE => None,
                    active if usize::from(active) < paths => Some(active),
                    _ => return None,
                },
                usable: if version == Version::V1 { text[6].into() } else { u32::from_le_bytes(*field(text, 32)) },
                weights: *field(text, 8),
                interval: Duration::from_millis(u32::from_le_bytes(*field(text, 16)).into()),
                clock: u64::from_le_bytes(*field(text, 20)),
                nonce: (version > Version::V1 || text[7] == RETURNS_NONCES)
                    .then(|| u32::from_le_bytes(*field(text, 28))),
                token: if version == Version::V1 { 0 } else { u64::from_le_bytes(*field(text, 36)) },
            }),
            Kind::ProbeReply => Self::Reply(Reply::parse(version, text)),
            _ => return None,
        })
    }

    /// The text.
    pub fn to_bytes(&self) -> Vec<u8> {
        match self {
            Self::Request(request) => request.to_bytes(),
            Self::Reply(reply) => reply.to_bytes(),
        }
    }
}

/// The beginning of all probes.
fn blank(kind: Kind, version: Version, path: u8) -> Vec<u8> {
    let mut text = vec![0; LEN[version as usize]];
    Header { kind, version: version as u8 + 1 }.put(&mut text);
    text[4] = path;
    text
}

impl Request {
    fn to_bytes(self) -> Vec<u8> {
        let mut text = blank(Kind::ProbeRequest, self.version, self.path);
        text[5] = self.active.unwrap_or(NONE);
        put(&mut text, 8, &self.weights);
        put(&mut text, 16, &millis(self.interval).to_le_bytes());
        put(&mut text, 20, &self.clock.to_le_bytes());
        put(&mut text, 28, &self.nonce.unwrap_or(0).to_le_bytes());
        match self.version {
            Version::V1 => {
                text[6] = self.usable as u8;
                text[7] = if self.nonce.is_some() { RETURNS_NONCES } else { 0 };
            }
            Version::V2 => {
                put(&mut text, 32, &self.usable.to_le_bytes());
                put(&mut text, 36, &self.token.to_le_bytes());
            }
        }
        text
    }
}

impl Reply {
    fn parse(version: Version, text: &[u8]) -> Self {
        let reply = Self {
            version,
            newest: if text[5] >= 2 { Version::V2 } else { version },
            path: text[4],
            clock: u64::from_le_bytes(*field(text, 20)),
            interval: u32::from_le_bytes(*field(text, 16)),
            nonce: u32::from_le_bytes(*field(text, 28)),
            token: 0,
            seen: None,
        };
        match version {
            Version::V1 => reply,
            Version::V2 => Self {
                newest: Version::V2,
                interval: 0,
                token: u64::from_le_bytes(*field(text, 8)),
                seen: address(field(text, 32), *field(text, 6)),
                ..reply
            },
        }
    }

    fn to_bytes(self) -> Vec<u8> {
        let mut text = blank(Kind::ProbeReply, self.version, self.path);
        put(&mut text, 20, &self.clock.to_le_bytes());
        put(&mut text, 28, &self.nonce.to_le_bytes());
        match self.version {
            Version::V1 => {
                text[5] = if self.newest > self.version { self.newest as u8 + 1 } else { 0 };
                put(&mut text, 16, &self.interval.to_le_bytes());
            }
            Version::V2 => {
                put(&mut text, 8, &self.token.to_le_bytes());
                if let Some(seen) = self.seen {
                    put(&mut text, 6, &seen.port().to_le_bytes());
                    put(&mut text, 32, &octets(seen));
                }
            }
        }
        text
    }
}

/// An address as messages have it. `None` for the unspecified one and for port 0.
pub(super) fn address(octets: &[u8; 16], port: [u8; 2]) -> Option<SocketAddr> {
    let (ip, port) = (Ipv6Addr::from(*octets).to_canonical(), u16::from_le_bytes(port));
    (!ip.is_unspecified() && port != 0).then(|| SocketAddr::new(ip, port))
}

/// The 16 bytes of an address in messages.
pub(super) fn octets(address: SocketAddr) -> [u8; 16] {
    match address {
        SocketAddr::V4(address) => address.ip().to_ipv6_mapped().octets(),
        SocketAddr::V6(address) => address.ip().octets(),
    }
}

#[cfg(test)]
mod tests {
    use super::{super::locator::Address, *};
    use crate::peer::PeerId;

    const ASKED: Request = Request {
        version: Version::V1,
        path: 3,
        active: Some(1),
        usable: 0b1010,
        weights: [0, 2, 0, 1, 0, 0, 0, 0],
        interval: Duration::from_millis(200),
        clock: 0x0102_0304_0506_0708,
        nonce: Some(0x0b0c_0d0e),
        token: 0,
    };
    const ASKED_V2: Request =
        Request { version: Version::V2, path: 31, usable: 0x8000_000a, token: 0x1112_1314_1516_1718, ..ASKED };

    fn locator(text: &str) -> Locator {
        Address::new(text.parse().expect("an address")).into()
    }

    #[test]
    fn the_layout_of_version_1_is_the_documented_one() {
        let text = Probe::Request(ASKED).to_bytes();
        let mut expected = [0; 32];
        expected[..8].copy_from_slice(&[1, b'R', b'G', 1, 3, 1, 0b1010, 1]);
        expected[8..16].copy_from_slice(&[0, 2, 0, 1, 0, 0, 0, 0]);
        expected[16..28].copy_from_slice(&[200, 0, 0, 0, 8, 7, 6, 5, 4, 3, 2, 1]);
        expected[28..].copy_from_slice(&[0x0e, 0x0d, 0x0c, 0x0b]);
        assert_eq!(text, expected);
        assert_eq!(Probe::parse(&text), Some(Probe::Request(ASKED)));
        let reply = Probe::Reply(ASKED.reply(0x0102_0304, locator("192.0.2.1:5"))).to_bytes();
        let mut expected = [0; 32];
        expected[..6].copy_from_slice(&[2, b'R', b'G', 1, 3, 2]);
        expected[16..28].copy_from_slice(&[200, 0, 0, 0, 8, 7, 6, 5, 4, 3, 2, 1]);
        expected[28..].copy_from_slice(&[4, 3, 2, 1]);
        assert_eq!(reply, expected);
        let read = Probe::parse(&reply);
        assert_eq!(read, Some(Probe::Reply(ASKED.reply(0x0102_0304, locator("192.0.2.1:5")))));
        // A program that only knows version 1 sends a 0 there.
        expected[5] = 0;
        let Some(Probe::Reply(older)) = Probe::parse(&expected) else { panic!("{expected:?}") };
        assert_eq!((older.version, older.newest, older.seen), (Version::V1, Version::V1, None));
    }

    #[test]
    fn the_layout_of_version_2_is_the_documented_one() {
        let text = Probe::Request(ASKED_V2).to_bytes();
        let mut expected = [0; 48];
        expected[..8].copy_from_slice(&[1, b'R', b'G', 2, 31, 1, 0, 0]);
        expected[8..16].copy_from_slice(&[0, 2, 0, 1, 0, 0, 0, 0]);
        expected[16..32].copy_from_slice(&[200, 0, 0, 0, 8, 7, 6, 5, 4, 3, 2, 1, 0x0e, 0x0d, 0x0c, 0x0b]);
        expected[32..44].copy_from_slice(&[10, 0, 0, 0x80, 0x18, 0x17, 0x16, 0x15, 0x14, 0x13, 0x12, 0x11]);
        assert_eq!(text, expected);
        assert_eq!(Probe::parse(&text), Some(Probe::Request(ASKED_V2)));
        let reply = ASKED_V2.reply(0x0102_0304, locator("192.0.2.1:258"));
        let text = Probe::Reply(reply).to_bytes();
        let mut expected = [0; 48];
        expected[..8].copy_from_slice(&[2, b'R', b'G', 2, 31, 0, 2, 1]);
        expected[8..16].copy_from_slice(&[0x18, 0x17, 0x16, 0x15, 0x14, 0x13, 0x12, 0x11]);
        expected[20..32].copy_from_slice(&[8, 7, 6, 5, 4, 3, 2, 1, 4, 3, 2, 1]);
        expected[42..].copy_from_slice(&[255, 255, 192, 0, 2, 1]);
        assert_eq!(text, expected);
        assert_eq!(Probe::parse(&text), Some(Probe::Reply(reply)));
    }

    #[test]
    fn a_reply_says_where_the_request_came_from_if_that_is_an_address() {
        let seen = |from: Locator| {
            let text = Probe::Reply(ASKED_V2.reply(1, from)).to_bytes();
            let Some(Probe::Reply(reply)) = Probe::parse(&text) else { panic!("{text:?}") };
            reply.seen.map(|seen| alloc::format!("{seen}"))
        };
        assert_eq!(seen(locator("[2001:db8::1]:51820")).as_deref(), Some("[2001:db8::1]:51820"));
        assert_eq!(seen(locator("[::ffff:192.0.2.1]:51820")).as_deref(), Some("192.0.2.1:51820"));
        assert_eq!(seen(Locator::Peer(PeerId(7))), None);
    }

    #[test]
    fn a_request_about_no_path_is_one_of_version_2() {
        let request = Request::about_no_path(7, 9);
        let text = Probe::Request(request).to_bytes();
        assert_eq!(Probe::parse(&text), Some(Probe::Request(request)));
        let mut text = Probe::Request(ASKED).to_bytes();
        text[4] = NO_PATH;
        assert_eq!(Probe::parse(&text), None);
    }

    #[test]
    fn a_program_that_knows_no_nonces_is_understood() {
        let without = Request { nonce: None, ..ASKED };
        let text = Probe::Request(without).to_bytes();
        assert_eq!((text[7], &text[28..]), (0, &[0; 4][..]));
        assert_eq!(Probe::parse(&text), Some(Probe::Request(without)));
    }

    #[test]
    fn nothing_else_is_a_probe() {
        for (asked, paths) in [(ASKED, 8), (ASKED_V2, 32)] {
            let good = Probe::Request(asked).to_bytes();
            let wrong = [
                (0, 0),
                (0, 3),
                (0, 0x45),
                (0, 0x60),
                (1, 0),
                (2, 0),
                (3, 0),
                (3, 3),
                (4, paths),
                (4, 254),
                (5, paths),
            ];
            for (at, byte) in wrong {
                let mut bad = good.clone();
                bad[at] = byte;
                assert_eq!(Probe::parse(&bad), None, "byte {at} is {byte}");
            }
            for len in 0..good.len() {
                assert_eq!(Probe::parse(&good[..len]), None, "{len} bytes");
            }
            assert_eq!(Probe::parse(&[&good[..], &[0; 16]].concat()), Some(Probe::Request(asked)), "padding");
            let none = Request { active: None, ..asked };
            assert_eq!(Probe::parse(&Probe::Request(none).to_bytes()), Some(Probe::Request(none)));
            // A reply is no longer than its request.
            assert_eq!(Probe::Reply(asked.reply(1, locator("192.0.2.1:1"))).to_bytes().len(), good.len());
        }
    }
}
