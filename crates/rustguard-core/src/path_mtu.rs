//! The path MTU to a peer: whether a packet of the greatest length that the interface permits reaches the peer, and if
//! not, how long a packet may be.
//!
//! Some networks lose long datagrams silently: a router that cannot forward them whole does not report it, or a
//! firewall drops the message or the fragments. Short packets arrive, and everything looks well until a transfer
//! stalls. So a peer with traffic is asked, inside the session, with a text as long as the longest packet. It travels
//! as data does: over IPv4 routers may fragment the datagram, and if fragments arrive, nothing is wrong.
//!
//! The check is a short probe, then a long one; both are answered by short replies. Only if the short one is answered
//! and the long one is repeatedly not, the length is searched by halves, and the result is tested once more. Loss alone
//! does not lead to a wrong result: three probes in a row must be lost before a length counts as too long, at two
//! different times.
//!
//! Probes are sent without DF. With DF, they would detect whether routers have to fragment datagrams, which does no
//! harm.
//!
//! In a healthy network a check is two requests and two replies of 16 bytes, every ten minutes. A search is about forty
//! requests at most. A peer that does not answer is asked three times an hour with 16 bytes. A reply goes to the peer's
//! endpoint, and not to the source of the datagram. Requests count among the 200 probes a second that a peer may send.
//!
//! ```text
//! byte   request                                        reply
//!  0     3                                              4
//!  1     "RG", then the version, 1                      the same
//!  4     u32: the number of the request                 that of the request
//!  8     u16: the bytes of this text                    that of the request
//! 10     zeros up to that length, which is at least 16  6 zeros
//! ```
//!
//! These are [control messages](crate::control_message): stock peers and older RustGuards do not answer, and are not
//! probed further. A reply is never longer than its request.
//!
//! A short request also serves as a *ping* ([`Probe::ping`]): the answering side stores nothing. The numbers of pings
//! and of checks do not overlap.

use crate::{
    bytes::{field, put},
    control_message::{Header, Kind},
    time::Instant,
};
use alloc::{vec, vec::Vec};
use core::time::Duration;

/// Bytes of a reply, and of the shortest request.
pub const SHORT: u16 = 16;

/// The bit that the numbers of pings have, and the numbers of checks do not have.
const PING: u32 = 1 << 31;

/// From the first traffic to the first probe: a session with only a few packets is not probed.
const SETTLE: Duration = Duration::from_secs(2);
/// If there was too little traffic for a check, the time until traffic is checked again.
const LOOK_AGAIN: Duration = Duration::from_secs(10);
/// Between two checks while there is traffic.
const INTERVAL: Duration = Duration::from_secs(600);
/// Between two checks of a peer that does not answer: it is no RustGuard, or an older one.
const SILENT_INTERVAL: Duration = Duration::from_secs(3_600);
/// The pause after a check without a result, because the peer stopped answering short probes.
const RETRY: Duration = Duration::from_secs(60);
/// Probes of one length without an answer before it counts as too long.
const TRIES: u8 = 3;
/// How long an answer may take, at most and at least. In between, four times the round trip.
const PATIENCE: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(1));

/// A message about the path MTU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message {
    /// Asks whether a text of this length arrives.
    Request(Probe),
    /// The text has arrived.
    Reply(Probe),
}

/// The common fields of a request and its reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Probe {
    /// Chosen by the asking side.
    pub number: u32,
    /// The bytes of the request.
    pub len: u16,
}

impl Probe {
    /// A ping: a request of the shortest length, sent to measure the round trip. 31 bits of `number` make it
    /// recognisable. If they are random, the peer cannot answer before it is asked.
    pub const fn ping(number: u32) -> Self {
        Self { number: number | PING, len: SHORT }
    }

    /// Whether this is a ping, or the reply to one.
    pub const fn is_ping(&self) -> bool {
        self.number & PING != 0
    }
}

impl Message {
    /// Reads a text. `None` for other texts, and for a request whose length differs from the one that it states.
    pub fn parse(text: &[u8]) -> Option<Self> {
        let head = text.first_chunk::<{ SHORT as usize }>()?;
        let probe = Probe { number: u32::from_le_bytes(*field(head, 4)), len: u16::from_le_bytes(*field(head, 8)) };
        match Kind::of(head)? {
            Kind::PathMtuRequest => (text.len() == usize::from(probe.len)).then_some(Self::Request(probe)),
            Kind::PathMtuReply => Some(Self::Reply(probe)),
            _ => None,
        }
    }

    /// The text.
    pub fn to_bytes(&self) -> Vec<u8> {
        let (kind, probe, len) = match self {
            Self::Request(probe) => (Kind::PathMtuRequest, probe, probe.len.max(SHORT)),
            Self::Reply(probe) => (Kind::PathMtuReply, probe, SHORT),
        };
        let mut text = vec![0; usize::from(len)];
        Header::new(kind).put(&mut text);
        put(&mut text, 4, &probe.number.to_le_bytes());
        put(&mut text, 8, &probe.len.to_le_bytes());
        text
    }
}

/// The longest packet that is known to reach the peer. Lengths are those of packets inside the tunnel, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Known {
    /// Nothing yet.
    #[default]
    Nothing,
    /// The peer does not answer such questions: it is no RustGuard, or an older one.
    Silent,
    /// Packets of this length arrive. It is the greatest length that the interface permitted.
    Reaches(u16),
    /// Packets of this length arrive, longer ones do not.
    Limit(u16),
}

/// One peer's checks.
#[derive(Debug, Default)]
pub struct PathMtu {
    known: Known,
    step: Step,
    /// The longest text of this check.
    longest: u16,
    waiting: Option<Waiting>,
    /// When [`tick`](Self::tick) has something to do.
    due: Option<Instant>,
    /// No other check begins before this time.
    next: Option<Instant>,
    /// The number of the last request.
    number: u32,
    /// The time from a request to its answer, if there was one.
    round_trip: Option<Duration>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Step {
    /// No check is under way.
    #[default]
    Rest,
    /// Tests whether the peer answers.
    Short,
    /// Tests whether the longest text arrives.
    Long,
    /// It did not: tests whether short ones still arrive.
    StillShort,
    /// Texts of `.0` bytes arrive, texts of `.1` do not.
    Search(u16, u16),
    /// Tests whether the longest text still does not arrive.
    StillNotLong(u16),
    /// Tests whether a text of the length found still arrives.
    Found(u16),
}

/// A request without an answer yet.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    probe: Probe,
    /// When the first try was sent.
    sent: Instant,
    tries: u8,
}

impl PathMtu {
    /// There is traffic with the peer, in either direction. `longest`: the most bytes that a text of data may have.
    pub fn traffic(&mut self, longest: u16, now: Instant) {
        let begins = self.next.is_none_or(|next| now >= next) || longest > self.longest;
        if self.step == Step::Rest && begins && longest > SHORT {
            self.longest = longest;
            self.step = Step::Short;
            self.due = Some(now + SETTLE);
        }
    }

    /// The peer has another address, or our way to it has changed. The result may be wrong now: the next traffic leads
    /// to a check.
    pub fn moved(&mut self) {
        let number = self.number;
        *self = Self { number, ..Self::default() };
    }

    /// Our own network has changed. The next traffic leads to a check, except with a peer that does not answer.
    pub fn check_again(&mut self) {
        if self.known != Known::Silent {
            self.next = None;
        }
    }

    /// The session has ended. The check continues with the traffic of the next one.
    pub fn stop(&mut self) {
        if self.step != Step::Rest {
            (self.step, self.waiting, self.due, self.next) = (Step::Rest, None, None, None);
        }
    }

    /// The result so far.
    pub fn known(&self) -> Known {
        self.known
    }

    /// When [`tick`](Self::tick) is to be called.
    pub fn deadline(&self) -> Option<Instant> {
        self.due
    }

    /// Whether [`tick`](Self::tick) begins a check, of which nothing was sent yet. [`stop`](Self::stop) cancels it, and
    /// [`postpone`](Self::postpone) delays it.
    pub fn begins(&self) -> bool {
        self.step == Step::Short && self.waiting.is_none()
    }

    /// There was too little traffic for the check that was to begin, but traffic continues: the check is postponed by
    /// 10 s.
    pub fn postpone(&mut self, now: Instant) {
        if self.begins() {
            self.due = Some(now + LOOK_AGAIN);
        }
    }

    /// The request to send now, if one is due.
    pub fn tick(&mut self, now: Instant) -> Option<Message> {
        if self.due.is_none_or(|due| now < due) {
            return None;
        }
        if let Some(waiting) = self.waiting {
            if waiting.tries < TRIES {
                return Some(self.send(Waiting { tries: waiting.tries + 1, ..waiting }, now));
            }
            self.answered(false, now);
        }
        let len = match self.step {
            Step::Rest => return None,
            Step::Short | Step::StillShort => SHORT,
            Step::Long | Step::StillNotLong(_) => self.longest,
            Step::Search(low, high) => low.midpoint(high),
            Step::Found(len) => len,
        };
        self.number = (self.number + 1) % PING;
        let probe = Probe { number: self.number, len };
        Some(self.send(Waiting { probe, sent: now, tries: 1 }, now))
    }

    /// Takes a reply of the peer.
    pub fn reply(&mut self, probe: Probe, now: Instant) {
        if let Some(waiting) = self.waiting.filter(|waiting| waiting.probe == probe) {
            self.round_trip = Some(now.since(waiting.sent));
            self.answered(true, now);
        }
    }

    fn send(&mut self, waiting: Waiting, now: Instant) -> Message {
        let (least, most) = PATIENCE;
        self.due = Some(now + self.round_trip.map_or(most, |round_trip| (round_trip * 4).clamp(least, most)));
        self.waiting = Some(waiting);
        Message::Request(waiting.probe)
    }

    /// The text of this step has arrived, or has not.
    fn answered(&mut self, arrived: bool, now: Instant) {
        self.waiting = None;
        self.due = Some(now);
        self.step = match (self.step, arrived) {
            (Step::Short, true) => Step::Long,
            (Step::Short, false) if matches!(self.known, Known::Nothing | Known::Silent) => {
                return self.rest(Known::Silent, SILENT_INTERVAL, now);
            }
            (Step::Long | Step::StillNotLong(_), true) => {
                return self.rest(Known::Reaches(self.longest), INTERVAL, now);
            }
            (Step::Long, false) => Step::StillShort,
            (Step::StillShort, true) => narrowed(SHORT, self.longest),
            (Step::Search(low, high), true) => narrowed(low.midpoint(high), high),
            (Step::Search(low, high), false) => narrowed(low, low.midpoint(high)),
            (Step::StillNotLong(found), false) => Step::Found(found),
            (Step::Found(found), true) => return self.rest(Known::Limit(found), INTERVAL, now),
            // All datagrams are lost, not only long ones.
            (Step::Rest | Step::Short | Step::StillShort | Step::Found(_), _) => {
                return self.rest(self.known, RETRY, now);
            }
        };
    }

    fn rest(&mut self, known: Known, pause: Duration, now: Instant) {
        (self.known, self.step, self.due, self.next) = (known, Step::Rest, None, Some(now + pause));
    }
}

/// The next step of a search.
fn narrowed(low: u16, high: u16) -> Step {
    if high - low > 1 { Step::Search(low, high) } else { Step::StillNotLong(low) }
}

#[cfg(test)]
mod tests;
