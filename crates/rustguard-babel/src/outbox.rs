//! What a neighbour is going to be sent, and what it has not acknowledged.
//!
//! Updates are kept as prefixes and written when they leave: whatever changed in the meantime is then in them, and a prefix
//! that changed ten times is sent once.
use crate::{
    params::{BATCH, COPIES, MAX_ACKS, MAX_IN_FLIGHT, PACING, hold},
    types::{RouterId, Seqno},
};
use core::time::Duration;
use ipnet::IpNet;
use rustguard_core::time::Instant;
use std::collections::{BTreeMap, BTreeSet};

/// All of it.
#[derive(Debug)]
pub(crate) struct Outbox {
    /// Number of the next Hello. Each link of a tunnel is an interface of its own, which no third party hears; so the
    /// pace of one does not leave gaps in the count of another.
    pub(crate) hello_seqno: Seqno,
    hello_at: Instant,
    /// From one Hello to the next, as it was told last.
    pace: Duration,
    /// Hellos until the next that has an IHU with it.
    pub(crate) ihu_in: u8,
    /// To be acknowledged, with how many copies were sent.
    pub(crate) urgent: BTreeMap<IpNet, u8>,
    pub(crate) normal: BTreeSet<IpNet>,
    pub(crate) acks: Vec<u16>,
    pub(crate) route_requests: BTreeSet<IpNet>,
    /// Ask for everything; how often that was asked before.
    pub(crate) wildcard_request: Option<u8>,
    /// What was sent as often as is permitted and never acknowledged. Once more when the neighbour is heard: a retraction
    /// that it missed would cost it minutes.
    given_up: BTreeSet<IpNet>,
    pub(crate) seqno_requests: BTreeMap<(IpNet, RouterId), (Seqno, u8)>,
    flush_at: Option<Instant>,
    in_flight: BTreeMap<u16, InFlight>,
    next_opaque: u16,
}

/// A packet that is to be acknowledged.
#[derive(Debug)]
struct InFlight {
    prefixes: Vec<Sent>,
    /// A request for everything is in it.
    wildcard: bool,
    copies: u8,
    resend_at: Instant,
}

/// What is to be acknowledged in a packet, and the most copies that any of it had.
#[derive(Debug, Default)]
pub(crate) struct InPacket {
    pub(crate) prefixes: Vec<Sent>,
    pub(crate) wildcard: bool,
    pub(crate) copies: u8,
}

/// An update that was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sent {
    pub(crate) prefix: IpNet,
    /// For a retraction, which hold it may end.
    pub(crate) hold: Option<u64>,
}

impl Outbox {
    pub(crate) fn new(first_seqno: Seqno, now: Instant) -> Self {
        Self {
            hello_seqno: first_seqno,
            hello_at: now,
            pace: Duration::ZERO,
            ihu_in: 0,
            urgent: BTreeMap::new(),
            normal: BTreeSet::new(),
            acks: Vec::new(),
            route_requests: BTreeSet::new(),
            wildcard_request: None,
            given_up: BTreeSet::new(),
            seqno_requests: BTreeMap::new(),
            flush_at: None,
            in_flight: BTreeMap::new(),
            next_opaque: first_seqno.0,
        }
    }
    /// The same without anything to send but Hellos, whose count goes on.
    pub(crate) fn fresh(&self) -> Self {
        Self { hello_at: self.hello_at, next_opaque: self.next_opaque, ..Self::new(self.hello_seqno, self.hello_at) }
    }

    /// A Hello is due at once, with an IHU.
    pub(crate) fn hello_now(&mut self, now: Instant) {
        self.hello_at = self.hello_at.min(now);
        self.ihu_in = 0;
    }
    pub(crate) fn hello_due(&self, now: Instant) -> bool {
        self.hello_at <= now
    }
    /// A Hello leaves, and the next one at `next`; it says that there is one every `pace`. Its number.
    pub(crate) fn hello_sent(&mut self, pace: Duration, next: Instant) -> Seqno {
        if core::mem::replace(&mut self.pace, pace) != pace {
            // The last IHU holds for as long as the old pace makes it.
            self.ihu_in = 0;
        }
        let seqno = self.hello_seqno;
        self.hello_seqno = seqno.plus(1);
        self.hello_at = next;
        seqno
    }

    /// What waits leaves at this time, or before.
    pub(crate) fn flush_by(&mut self, at: Instant) {
        self.flush_at = Some(self.flush_at.map_or(at, |earlier| earlier.min(at)));
    }
    pub(crate) fn flush_due(&self, now: Instant) -> bool {
        self.flush_at.is_some_and(|at| at <= now)
    }
    pub(crate) fn urgent(&mut self, prefix: IpNet, at: Instant) {
        self.urgent.insert(prefix, 0);
        self.normal.remove(&prefix);
        self.flush_by(at);
    }
    pub(crate) fn normal(&mut self, prefix: IpNet, at: Instant) {
        if !self.urgent.contains_key(&prefix) {
            self.normal.insert(prefix);
        }
        self.flush_by(at);
    }
    pub(crate) fn ack(&mut self, opaque: u16, now: Instant) {
        if self.acks.len() < MAX_ACKS {
            self.acks.push(opaque);
        }
        self.flush_by(now);
    }

    /// The prefixes of the next batch; the rest is left for a moment later. What is urgent goes first.
    pub(crate) fn take_updates(&mut self, now: Instant) -> (BTreeMap<IpNet, u8>, BTreeSet<IpNet>) {
        // As many as fit in the packets of a batch when nothing can be left out.
        const UPDATES: usize = BATCH * 50;
        self.flush_at = None;
        let (mut urgent, mut normal) = (core::mem::take(&mut self.urgent), core::mem::take(&mut self.normal));
        if let Some((&first, _)) = urgent.iter().nth(UPDATES) {
            self.urgent = urgent.split_off(&first);
        }
        if let Some(&first) = normal.iter().nth(UPDATES - urgent.len()) {
            self.normal = normal.split_off(&first);
        }
        if !self.urgent.is_empty() || !self.normal.is_empty() {
            self.flush_at = Some(now + PACING);
        }
        (urgent, normal)
    }
    /// The number for a packet with these updates, if it is to be acknowledged: not when too many are already.
    pub(crate) fn sent(&mut self, what: InPacket, timeout: Duration, now: Instant) -> Option<(u16, Duration)> {
        let InPacket { prefixes, wildcard, copies } = what;
        if (prefixes.is_empty() && !wildcard) || self.in_flight.len() >= MAX_IN_FLIGHT {
            return None;
        }
        let timeout = timeout * (1 << copies.min(4));
        self.in_flight.insert(
            self.next_opaque,
            InFlight { prefixes, wildcard, copies: copies.saturating_add(1), resend_at: now + timeout },
        );
        Some((self.opaque(), timeout))
    }
    /// A number for an acknowledgment that nothing depends on.
    pub(crate) fn opaque(&mut self) -> u16 {
        let opaque = self.next_opaque;
        self.next_opaque = opaque.wrapping_add(1);
        opaque
    }
    /// The neighbour has this packet; what was in it.
    pub(crate) fn acknowledged(&mut self, opaque: u16) -> Vec<Sent> {
        self.in_flight.remove(&opaque).map(|packet| packet.prefixes).unwrap_or_default()
    }
    /// What was not acknowledged in time is sent again, for as often as is permitted (§3.7.2).
    pub(crate) fn resend(&mut self, now: Instant) {
        let (urgent, given_up, wildcard) = (&mut self.urgent, &mut self.given_up, &mut self.wildcard_request);
        let mut again = false;
        self.in_flight.retain(|_, packet| {
            let late = packet.resend_at <= now;
            if late && packet.wildcard {
                // Without an answer nothing is known about the neighbour's routes: this one is repeated until there is.
                again = true;
                wildcard.get_or_insert(packet.copies);
            }
            if late && packet.copies < COPIES {
                again = true;
                for sent in &packet.prefixes {
                    urgent.entry(sent.prefix).or_insert(packet.copies);
                }
            } else if late {
                given_up.extend(packet.prefixes.iter().map(|sent| sent.prefix));
            }
            !late
        });
        if again {
            self.flush_by(now);
        }
    }

    /// The neighbour is there.
    pub(crate) fn heard(&mut self, now: Instant) {
        for prefix in core::mem::take(&mut self.given_up) {
            self.normal(prefix, now);
        }
    }

    /// When something is due. A peer that is not a neighbour gets Hellos only.
    pub(crate) fn deadline(&self, acquired: bool) -> Instant {
        let flush = self.flush_at.filter(|_| acquired);
        let resend = self.in_flight.values().map(|packet| packet.resend_at).min();
        flush.into_iter().chain(resend).fold(self.hello_at, Instant::min)
    }
}

/// How long to wait for an acknowledgment. Not less than what makes the copies, each after twice the time of the one before,
/// outlast an interruption that nobody notices.
pub(crate) fn ack_timeout(rtt: Option<Duration>) -> Duration {
    (rtt.unwrap_or_default() * 2).clamp(Duration::from_millis(100), Duration::from_secs(2))
}

/// How long a retracted prefix is unreachable at most: as long as a route from here lives elsewhere.
pub(crate) fn longest_hold() -> Duration {
    hold(crate::params::UPDATE)
}
