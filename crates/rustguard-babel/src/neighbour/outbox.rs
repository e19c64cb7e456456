//! The messages to send to a neighbour, and the messages that it has not acknowledged yet.
//!
//! Updates are kept as prefixes and written when they leave. They then contain the newest state, and a prefix that
//! changed ten times is sent once.
use crate::{
    params::{BATCH, BATCH_PACE, MAX_ACKS, MAX_IN_FLIGHT, UPDATE_COPIES, hold},
    table::{request::SeqnoRequest, route::Table},
    wire::types::{RouterId, Seqno},
};
use core::{ops::Bound, time::Duration};
use ipnet::IpNet;
use rustguard_core::{node::PeerId, time::Instant};
use std::collections::{BTreeMap, BTreeSet};

/// The waiting messages for one neighbour.
#[derive(Debug)]
pub(crate) struct Outbox {
    /// Number of the next Hello. Each link of a tunnel is an interface of its own, because no third node hears it. So
    /// links can have Hellos at different intervals without gaps in the numbers.
    pub(crate) hello_seqno: Seqno,
    hello_at: Instant,
    /// The interval that the last Hello announced.
    pace: Duration,
    /// How many Hellos are left until the next one with an IHU.
    pub(crate) ihu_in: u8,
    /// Prefixes whose updates have to be acknowledged, with how many copies were sent.
    pub(crate) urgent: BTreeMap<IpNet, u8>,
    pub(crate) normal: BTreeSet<IpNet>,
    /// Whether the updates contain the names of all origins.
    pub(crate) names: bool,
    pub(crate) acks: Vec<u16>,
    pub(crate) route_requests: BTreeSet<IpNet>,
    /// A pending request for all updates, with the number of copies sent before.
    pub(crate) wildcard_request: Option<u8>,
    /// Prefixes whose updates were sent as often as is permitted and never acknowledged. They are sent once more when
    /// the neighbour is heard: a missed retraction would cost it minutes.
    given_up: BTreeSet<IpNet>,
    pub(crate) seqno_requests: BTreeMap<(IpNet, RouterId), (Seqno, u8)>,
    flush_at: Option<Instant>,
    in_flight: BTreeMap<u16, InFlight>,
    resends: BTreeSet<(Instant, u16)>,
    /// A dump of all prefixes in progress.
    dump: Option<Dump>,
    next_opaque: u16,
}

/// Updates of one batch: as many as fit in its packets without address compression.
const UPDATES: usize = BATCH * 50;

/// A dump: all prefixes have to be sent. They enter the outbox in parts, as many as leave in one batch, so that
/// repeated requests for everything cost no more than one request.
#[derive(Clone, Copy, Debug)]
struct Dump {
    /// The prefix to continue with; `None`: the first.
    next: Option<IpNet>,
    /// Whether acknowledgments are requested.
    certain: bool,
    /// Whether another dump was requested meanwhile.
    again: bool,
}

/// A packet that is to be acknowledged.
#[derive(Debug)]
struct InFlight {
    prefixes: Vec<SentUpdate>,
    /// Whether it contains a request for all updates.
    wildcard: bool,
    copies: u8,
    resend_at: Instant,
}

/// The part of a packet that has to be acknowledged, and how many copies were sent at most of any update in it.
#[derive(Debug, Default)]
pub(crate) struct Reliable {
    pub(crate) prefixes: Vec<SentUpdate>,
    pub(crate) wildcard: bool,
    pub(crate) copies: u8,
}

/// An update that was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SentUpdate {
    pub(crate) prefix: IpNet,
    /// For a retraction, the number of the hold that the acknowledgment may end.
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
            names: false,
            acks: Vec::new(),
            route_requests: BTreeSet::new(),
            wildcard_request: None,
            given_up: BTreeSet::new(),
            seqno_requests: BTreeMap::new(),
            flush_at: None,
            in_flight: BTreeMap::new(),
            resends: BTreeSet::new(),
            dump: None,
            next_opaque: first_seqno.0,
        }
    }

    /// An outbox with only Hellos to send. Their numbers continue.
    pub(crate) fn fresh(&self) -> Self {
        Self { hello_at: self.hello_at, next_opaque: self.next_opaque, ..Self::new(self.hello_seqno, self.hello_at) }
    }

    /// Makes a Hello due at once, with an IHU.
    pub(crate) fn hello_now(&mut self, now: Instant) {
        self.hello_at = self.hello_at.min(now);
        self.ihu_in = 0;
    }

    pub(crate) fn hello_due(&self, now: Instant) -> bool {
        self.hello_at <= now
    }

    /// A Hello leaves that announces the interval `pace`; the next one is due at `next`. Returns its number.
    pub(crate) fn hello_sent(&mut self, pace: Duration, next: Instant) -> Seqno {
        if core::mem::replace(&mut self.pace, pace) != pace {
            // The last IHU holds only for the old interval.
            self.ihu_in = 0;
        }
        let seqno = self.hello_seqno;
        self.hello_seqno = seqno.plus(1);
        self.hello_at = next;
        seqno
    }

    /// Waiting messages leave at this time at the latest.
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

    /// Asks for an update of this prefix.
    pub(crate) fn request_route(&mut self, prefix: IpNet, at: Instant) {
        self.route_requests.insert(prefix);
        self.flush_by(at);
    }

    /// Asks for everything.
    pub(crate) fn request_everything(&mut self, at: Instant) {
        self.wildcard_request = Some(0);
        self.flush_by(at);
    }

    /// Asks for a sequence number. `hop_count` nodes may pass the request on.
    pub(crate) fn request_seqno(&mut self, wanted: SeqnoRequest, hop_count: u8, at: Instant) {
        self.seqno_requests.insert((wanted.prefix, wanted.router_id), (wanted.seqno, hop_count));
        self.flush_by(at);
    }

    pub(crate) fn ack(&mut self, opaque: u16, now: Instant) {
        if self.acks.len() < MAX_ACKS {
            self.acks.push(opaque);
        }
        self.flush_by(now);
    }

    /// Schedules a dump of all announced prefixes. With `certain`, their updates have to be acknowledged.
    pub(crate) fn everything(&mut self, certain: bool, now: Instant) {
        match &mut self.dump {
            Some(dump) if dump.certain => dump.again |= certain,
            Some(_) if !certain => {}
            dump => *dump = Some(Dump { next: None, certain, again: false }),
        }
        self.flush_by(now);
    }

    /// Adds the next part of a dump to the messages that are sent now. Returns how many prefixes were looked at.
    pub(crate) fn fill(&mut self, peer: PeerId, table: &Table, now: Instant) -> u64 {
        let Some(mut dump) = self.dump.take() else { return 0 };
        let from = dump.next.map_or(Bound::Unbounded, Bound::Included);
        let mut looked = 0;
        for (&prefix, entry) in table.entries.range((from, Bound::Unbounded)) {
            if looked >= 4 * UPDATES || self.urgent.len() + self.normal.len() >= UPDATES {
                self.dump = Some(Dump { next: Some(prefix), ..dump });
                return looked as u64;
            }
            looked += 1;
            if entry.announced.is_none() || entry.via() == Some(peer) {
                continue;
            }
            if dump.certain {
                self.urgent(prefix, now);
            } else {
                self.normal(prefix, now);
            }
        }
        if core::mem::take(&mut dump.again) {
            self.dump = Some(Dump { next: None, ..dump });
        }
        looked as u64
    }

    /// The prefixes of the next batch, urgent ones first. The rest is left for [`BATCH_PACE`] later.
    pub(crate) fn take_updates(&mut self, now: Instant) -> (BTreeMap<IpNet, u8>, BTreeSet<IpNet>) {
        let (mut urgent, mut normal) = (BTreeMap::new(), BTreeSet::new());
        while urgent.len() < UPDATES
            && let Some((prefix, copies)) = self.urgent.pop_first()
        {
            urgent.insert(prefix, copies);
        }
        while urgent.len() + normal.len() < UPDATES
            && let Some(prefix) = self.normal.pop_first()
        {
            normal.insert(prefix);
        }
        let more = !self.urgent.is_empty() || !self.normal.is_empty() || self.dump.is_some();
        self.flush_at = more.then_some(now + BATCH_PACE);
        (urgent, normal)
    }

    /// A batch has left. Names remain due until the last batch of the update has left.
    pub(crate) fn names_sent(&mut self) {
        self.names &= self.dump.is_some() || !self.normal.is_empty();
    }

    /// The number and the timeout of an acknowledgment request for a packet with this content. `None` if nothing in it
    /// has to be acknowledged, or too many packets wait for an acknowledgment already.
    pub(crate) fn sent(&mut self, what: Reliable, timeout: Duration, now: Instant) -> Option<(u16, Duration)> {
        let Reliable { prefixes, wildcard, copies } = what;
        if (prefixes.is_empty() && !wildcard) || self.in_flight.len() >= MAX_IN_FLIGHT {
            return None;
        }
        let timeout = timeout * (1 << copies.min(4));
        let resend_at = now + timeout;
        self.resends.insert((resend_at, self.next_opaque));
        self.in_flight
            .insert(self.next_opaque, InFlight { prefixes, wildcard, copies: copies.saturating_add(1), resend_at });
        Some((self.opaque(), timeout))
    }

    /// A number for an acknowledgment that nothing depends on.
    pub(crate) fn opaque(&mut self) -> u16 {
        let opaque = self.next_opaque;
        self.next_opaque = opaque.wrapping_add(1);
        opaque
    }

    /// The neighbour acknowledged this packet. Returns the updates that were in it.
    pub(crate) fn acknowledged(&mut self, opaque: u16) -> Vec<SentUpdate> {
        let Some(packet) = self.in_flight.remove(&opaque) else { return Vec::new() };
        self.resends.remove(&(packet.resend_at, opaque));
        packet.prefixes
    }

    /// Queues messages without a timely acknowledgment again, as often as is permitted (§3.7.2).
    pub(crate) fn resend(&mut self, now: Instant) {
        let mut again = false;
        while let Some(&(at, opaque)) = self.resends.first().filter(|(at, _)| *at <= now) {
            self.resends.remove(&(at, opaque));
            let Some(packet) = self.in_flight.remove(&opaque) else { continue };
            if packet.wildcard {
                // Without an answer this node does not know the neighbour's routes: this request is repeated without a
                // limit.
                again = true;
                self.wildcard_request.get_or_insert(packet.copies);
            }
            if packet.copies < UPDATE_COPIES {
                again = true;
                for sent in &packet.prefixes {
                    self.urgent.entry(sent.prefix).or_insert(packet.copies);
                }
            } else {
                self.given_up.extend(packet.prefixes.iter().map(|sent| sent.prefix));
            }
        }
        if again {
            self.flush_by(now);
        }
    }

    /// A packet of the neighbour came.
    pub(crate) fn heard(&mut self, now: Instant) {
        for prefix in core::mem::take(&mut self.given_up) {
            self.normal(prefix, now);
        }
    }

    /// When something is due. A peer that is not a neighbour gets Hellos only.
    pub(crate) fn deadline(&self, acquired: bool) -> Instant {
        let flush = self.flush_at.filter(|_| acquired);
        let resend = self.resends.first().map(|&(at, _)| at);
        flush.into_iter().chain(resend).fold(self.hello_at, Instant::min)
    }
}

/// How long to wait for an acknowledgment. The time doubles with each copy. The lower bound lets the copies outlast an
/// interruption that is too short to be noticed otherwise.
pub(crate) fn ack_timeout(rtt: Option<Duration>) -> Duration {
    (rtt.unwrap_or_default() * 2).clamp(Duration::from_millis(100), Duration::from_secs(2))
}

/// How long a retracted prefix is unreachable at most: as long as other nodes keep a route from here.
pub(crate) fn longest_hold() -> Duration {
    hold(crate::params::UPDATE_INTERVAL)
}
