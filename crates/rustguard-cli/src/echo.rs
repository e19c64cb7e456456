//! Echo requests (RFC 792, RFC 4443), also with a hop limit. The host at which the hop limit ends answers, and its
//! answer has its address.

use anyhow::{Context as _, Result};
use socket2::{Domain, Protocol, SockRef, Socket, Type};
use std::{
    io,
    net::{IpAddr, SocketAddr, UdpSocket},
    os::fd::OwnedFd,
    time::{Duration, Instant},
};

/// The highest hop limit. No destination is expected behind it.
pub(crate) const MAX_HOPS: u8 = 30;
/// The hop limit of an ordinary request: the default of Linux (net.ipv4.ip_default_ttl).
const FAR: u8 = 64;
/// The number of hops that are probed at once. Most paths are shorter. A host answers only a few such requests per
/// second: Linux permits a burst of six errors to one receiver (net.ipv4.icmp_ratelimit).
const GROUP: u8 = 6;
/// The time between two requests. With it, nodes with two CPUs answer in order.
const PACE: Duration = Duration::from_millis(5);
/// The time to wait for answers after each try.
const PATIENCE: Duration = Duration::from_secs(1);
/// The number of requests to a hop that does not answer.
const TRIES: u8 = 2;
/// The number of requests to such a hop after a group in which no hop has answered.
const TRIES_IN_SILENCE: u8 = 1;

/// The answer to a request with one hop limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    /// The host that answered.
    pub(crate) from: IpAddr,
    /// The time from the request to the answer.
    pub(crate) round_trip: Duration,
    /// The content of the answer.
    pub(crate) kind: Kind,
}

/// The content of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The destination was reached.
    Reached,
    /// The hop limit ended at this host.
    Hop,
    /// The destination is unreachable, with the code of RFC 792 or RFC 4443.
    Unreachable(u8),
}

/// Finds the path to `to` through an interface. Calls `each` for each hop in order, with its number and its answer.
pub(crate) fn path(interface: &str, to: IpAddr, mut each: impl FnMut(u8, Option<Answer>) -> Result<()>) -> Result<()> {
    let mut probes = Probes::open(interface, to)?;
    let (mut first, mut tries) = (1, TRIES);
    while first <= MAX_HOPS {
        let last = (first + GROUP - 1).min(MAX_HOPS);
        let answers = probes.ask(first, last, tries)?;
        tries = if answers.iter().any(Option::is_some) { TRIES } else { TRIES_IN_SILENCE };
        for (hop, answer) in (first..).zip(answers) {
            each(hop, answer)?;
            if answer.is_some_and(|answer| answer.kind != Kind::Hop) {
                return Ok(());
            }
        }
        first = last + 1;
    }
    Ok(())
}

/// Sends one echo request through an interface, and waits for its answer.
pub(crate) fn one(interface: &str, to: IpAddr, patience: Duration) -> Result<Option<Answer>> {
    let mut probes = Probes::open(interface, to)?;
    let mut answers = [None];
    probes.send(FAR)?;
    probes.receive(FAR, &mut answers, Instant::now() + patience)?;
    Ok(answers[0])
}

struct Probes {
    /// A raw socket, in a type of the standard library that can receive without unsafe code.
    socket: UdpSocket,
    to: IpAddr,
    identifier: u16,
    /// The hop limit and the time of each request. The index is the sequence number.
    sent: Vec<(u8, Instant)>,
}

impl Probes {
    fn open(interface: &str, to: IpAddr) -> Result<Self> {
        let (domain, protocol) = match to {
            IpAddr::V4(_) => (Domain::IPV4, Protocol::ICMPV4),
            IpAddr::V6(_) => (Domain::IPV6, Protocol::ICMPV6),
        };
        let socket = Socket::new(domain, Type::RAW, Some(protocol))
            .context("cannot send echo requests; run as root, or with sudo")?;
        // The probes use this interface even if the host's own routes lead elsewhere, because the user asks about the
        // mesh.
        socket.bind_device(Some(interface.as_bytes())).with_context(|| format!("cannot send through {interface}"))?;
        let socket = UdpSocket::from(OwnedFd::from(socket));
        Ok(Self { socket, to, identifier: rand::random(), sent: Vec::new() })
    }

    /// Returns the answer for each hop limit from `first` to `last`, or `None` without an answer.
    fn ask(&mut self, first: u8, last: u8, tries: u8) -> Result<Vec<Option<Answer>>> {
        let mut answers = vec![None; usize::from(last - first) + 1];
        for _ in 0..tries {
            for hop in first..=last {
                if answers[usize::from(hop - first)].is_some() {
                    continue;
                }
                self.send(hop)?;
                self.receive(first, &mut answers, Instant::now() + PACE)?;
                if complete(&answers) {
                    return Ok(answers);
                }
            }
            self.receive(first, &mut answers, Instant::now() + PATIENCE)?;
            if complete(&answers) {
                break;
            }
        }
        Ok(answers)
    }

    fn send(&mut self, hop: u8) -> Result<()> {
        let sequence = u16::try_from(self.sent.len()).unwrap_or(u16::MAX);
        let request = request(self.to, self.identifier, sequence);
        match self.to {
            IpAddr::V4(_) => self.socket.set_ttl(hop.into())?,
            IpAddr::V6(_) => SockRef::from(&self.socket).set_unicast_hops_v6(hop.into())?,
        }
        self.sent.push((hop, Instant::now()));
        // A raw socket has no ports.
        match self.socket.send_to(&request, SocketAddr::new(self.to, 0)) {
            // The socket reports the answer to an earlier request once more.
            Err(error) if error.kind() == io::ErrorKind::HostUnreachable => Ok(()),
            Err(error) => Err(error).with_context(|| format!("cannot send to {}", self.to)),
            Ok(_) => Ok(()),
        }
    }

    /// Receives answers until the deadline, or until they are complete.
    fn receive(&self, first: u8, answers: &mut [Option<Answer>], deadline: Instant) -> Result<()> {
        let mut buffer = [0; 2048];
        while !complete(answers) {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            self.socket.set_read_timeout(Some(left))?;
            let (len, from) = match self.socket.recv_from(&mut buffer) {
                Ok(received) => received,
                Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {
                    continue;
                }
                Err(error) => return Err(error).context("cannot receive echo replies"),
            };
            let now = Instant::now();
            let Some((sequence, kind)) = answer(&buffer[..len], self.to, self.identifier) else { continue };
            let Some(&(hop, sent)) = self.sent.get(usize::from(sequence)) else { continue };
            let slot = hop.checked_sub(first).and_then(|index| answers.get_mut(usize::from(index)));
            if let Some(slot @ None) = slot {
                *slot = Some(Answer { from: from.ip(), round_trip: now - sent, kind });
            }
        }
        Ok(())
    }
}

/// Whether all hops up to the destination, or up to the host that reports it as unreachable, have answered.
fn complete(answers: &[Option<Answer>]) -> bool {
    for answer in answers {
        match answer {
            None => return false,
            Some(Answer { kind: Kind::Hop, .. }) => {}
            Some(_) => return true,
        }
    }
    true
}

/// An echo request without data. The kernel sets the checksum of ICMPv6, because it knows the addresses that the
/// checksum covers.
fn request(to: IpAddr, identifier: u16, sequence: u16) -> [u8; 8] {
    let kind = if to.is_ipv4() { 8 } else { 128 };
    let ([i, d], [s, q]) = (identifier.to_be_bytes(), sequence.to_be_bytes());
    let mut request = [kind, 0, 0, 0, i, d, s, q];
    if to.is_ipv4() {
        // RFC 1071: the ones' complement sum of the 16-bit words.
        let sum: u32 = request.chunks(2).map(|word| u32::from(word[0]) << 8 | u32::from(word[1])).sum();
        let folded = (sum & 0xffff) + (sum >> 16);
        let [a, b] = (!u16::try_from((folded & 0xffff) + (folded >> 16)).unwrap_or(u16::MAX)).to_be_bytes();
        (request[2], request[3]) = (a, b);
    }
    request
}

/// The sequence number that a packet answers, and the content of the answer. A raw IPv4 socket delivers the packet with
/// its IP header, a raw IPv6 socket only the ICMP message (raw(7), RFC 3542 §3).
fn answer(packet: &[u8], to: IpAddr, identifier: u16) -> Option<(u16, Kind)> {
    let v4 = to.is_ipv4();
    let message = if v4 { skip_header_v4(packet)? } else { packet };
    let (&[kind, code], rest) = (message.first_chunk::<2>()?, message.get(8..)?);
    let (echo_request, echo_reply, unreachable, exceeded) = if v4 { (8, 0, 3, 11) } else { (128, 129, 1, 3) };
    let ours = |message: &[u8]| {
        let identity = message.get(4..8)?;
        (identity[..2] == identifier.to_be_bytes()).then(|| u16::from_be_bytes([identity[2], identity[3]]))
    };
    let quoted = || {
        let (destination, message) = match to {
            IpAddr::V4(_) => {
                let destination: [u8; 4] = rest.get(16..20)?.try_into().ok()?;
                (IpAddr::from(destination), skip_header_v4(rest).filter(|_| rest[9] == 1)?)
            }
            IpAddr::V6(_) => {
                let destination: [u8; 16] = rest.get(24..40)?.try_into().ok()?;
                (IpAddr::from(destination), rest.get(40..).filter(|_| rest[6] == 58)?)
            }
        };
        (destination == to && message.first() == Some(&echo_request)).then(|| ours(message)).flatten()
    };
    match kind {
        kind if kind == echo_reply => Some((ours(message)?, Kind::Reached)),
        kind if kind == exceeded && code == 0 => Some((quoted()?, Kind::Hop)),
        kind if kind == unreachable => Some((quoted()?, Kind::Unreachable(code))),
        _ => None,
    }
}

/// The bytes after an IPv4 header.
fn skip_header_v4(packet: &[u8]) -> Option<&[u8]> {
    let words = packet.first()? & 0x0f;
    (words >= 5).then(|| packet.get(usize::from(words) * 4..)).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    const V4: &str = "10.0.0.4";
    const V6: &str = "fd00::4";

    fn header_v4(to: &str, protocol: u8, words: u8) -> Vec<u8> {
        let mut header = vec![0; usize::from(words) * 4];
        (header[0], header[9]) = (0x40 | words, protocol);
        let IpAddr::V4(to) = to.parse().unwrap() else { panic!("{to}") };
        header[16..20].copy_from_slice(&to.octets());
        header
    }

    fn header_v6(to: &str, next: u8) -> Vec<u8> {
        let mut header = vec![0; 40];
        (header[0], header[6]) = (0x60, next);
        let IpAddr::V6(to) = to.parse().unwrap() else { panic!("{to}") };
        header[24..].copy_from_slice(&to.octets());
        header
    }

    fn message(kind: u8, code: u8, inner: &[u8]) -> Vec<u8> {
        [&[kind, code, 0, 0, 0, 0, 0, 0], inner].concat()
    }

    #[test]
    fn a_request_has_the_checksum_of_rfc_1071() {
        let request = request(V4.parse().unwrap(), 0xfff0, 0x1234);
        let sum: u32 = request.chunks(2).map(|word| u32::from(u16::from_be_bytes([word[0], word[1]]))).sum();
        assert_eq!((sum & 0xffff) + (sum >> 16), 0xffff);
        assert_eq!(super::request(V6.parse().unwrap(), 7, 9), [128, 0, 0, 0, 0, 7, 0, 9]);
    }

    #[test]
    fn answers_are_told_apart_and_those_to_others_are_ignored() {
        let to = V4.parse().unwrap();
        let asked = request(to, 7, 9);
        let outer = |inner: Vec<u8>| [header_v4("10.0.0.1", 1, 6), inner].concat();
        let quote = |to: &str, protocol, id| {
            [header_v4(to, protocol, 5), request(V4.parse().unwrap(), id, 9).to_vec()].concat()
        };
        let ours = quote(V4, 1, 7);
        let reply = |kind| outer(vec![kind, 0, 0, 0, 0, 7, 0, 9]);
        for (packet, expected) in [
            (reply(0), Some((9, Kind::Reached))),
            (reply(8), None),
            (outer(vec![0, 0, 0, 0, 0, 8, 0, 9]), None),
            (outer(message(11, 0, &ours)), Some((9, Kind::Hop))),
            (outer(message(11, 1, &ours)), None),
            (outer(message(3, 13, &ours)), Some((9, Kind::Unreachable(13)))),
            (outer(message(11, 0, &quote("10.0.0.5", 1, 7))), None),
            (outer(message(11, 0, &quote(V4, 17, 7))), None),
            (outer(message(11, 0, &quote(V4, 1, 8))), None),
            (outer(message(11, 0, &[header_v4(V4, 1, 5), vec![0, 0, 0, 0, 0, 7, 0, 9]].concat())), None),
            (asked.to_vec(), None),
            // A header of length 0 is invalid.
            (vec![0, 0, 0, 0, 0, 7, 0, 9], None),
        ] {
            assert_eq!(answer(&packet, to, 7), expected, "{packet:?}");
        }
    }

    #[test]
    fn the_same_for_ipv6() {
        let to = V6.parse().unwrap();
        let quote = |to: &str, next| [header_v6(to, next), request(V6.parse().unwrap(), 7, 9).to_vec()].concat();
        for (packet, expected) in [
            (vec![129, 0, 0, 0, 0, 7, 0, 9], Some((9, Kind::Reached))),
            (vec![128, 0, 0, 0, 0, 7, 0, 9], None),
            (message(3, 0, &quote(V6, 58)), Some((9, Kind::Hop))),
            (message(1, 5, &quote(V6, 58)), Some((9, Kind::Unreachable(5)))),
            (message(2, 0, &quote(V6, 58)), None),
            (message(3, 0, &quote("fd00::5", 58)), None),
            (message(3, 0, &quote(V6, 17)), None),
        ] {
            assert_eq!(answer(&packet, to, 7), expected, "{packet:?}");
        }
    }

    #[test]
    fn what_is_cut_off_answers_nothing() {
        let quote = [header_v4(V4, 1, 5), request(V4.parse().unwrap(), 7, 9).to_vec()].concat();
        let whole = [header_v4("10.0.0.1", 1, 5), message(11, 0, &quote)].concat();
        let quote = [header_v6(V6, 58), request(V6.parse().unwrap(), 7, 9).to_vec()].concat();
        let whole_v6 = message(3, 0, &quote);
        for (whole, to) in [(whole, V4), (whole_v6, V6)] {
            let to = to.parse().unwrap();
            assert!(answer(&whole, to, 7).is_some());
            for len in 0..whole.len() {
                assert_eq!(answer(&whole[..len], to, 7), None, "{len}");
            }
        }
    }

    #[test]
    fn enough_is_everything_up_to_the_destination() {
        let some = |kind| Some(Answer { from: V4.parse().unwrap(), round_trip: Duration::ZERO, kind });
        let (hop, end) = (some(Kind::Hop), some(Kind::Reached));
        assert!(complete(&[hop, end, None]) && complete(&[end, None]) && complete(&[hop, hop]));
        assert!(complete(&[hop, some(Kind::Unreachable(1)), None]));
        assert!(!complete(&[None, end]) && !complete(&[hop, None]) && !complete(&[None]));
    }
}
