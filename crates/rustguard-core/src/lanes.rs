//! Lanes: one session on several cores.
//!
//! All datagrams of a peer come from one address and port, so one socket receives them, and one thread opens them. If
//! two RustGuards have several threads each, a thread may have a *lane* of the session: a source port of its own,
//! counters of its own, and at the other end a replay window of its own. The highest byte of the counter is the number
//! of the lane:
//!
//! ```text
//! bit 63       0; it is set in the counters of parities only
//! bits 56-62   the lane: 0, or 1 to 8
//! bits 0-55    counts the messages of the lane
//! ```
//!
//! Lane 0 is the whole session if lanes are not used: everything without another lane is in lane 0. Handshakes,
//! keepalives and probes always are.
//!
//! The counter is the nonce. [`Lanes`] has the counters of a session, and there is at most one for each key. So no
//! nonce is used twice, however often lanes are switched off and on again.
//!
//! A datagram in a lane other than 0 is authentic, but does not show where the peer is: it comes from a port to which
//! nothing is ever sent.
//!
//! A stock peer would take a lane's counter for a jump to the end of the session, and the lane's port for a new address
//! of the sender. So no lane is used before the peer has confirmed, in this session, that it knows lanes, and that
//! messages from each lane's port arrive: [`Negotiation`], [`Message`].

mod message;
mod negotiation;

use crate::{
    constants::LANE_MESSAGES,
    session::{Reserved, Sealer},
    sync::Arc,
    time::Instant,
};
use alloc::boxed::Box;
pub use message::Message;
pub use negotiation::{Negotiation, Observation, Say};
use portable_atomic::{AtomicU64, Ordering::Relaxed};

/// The most lanes of a session beside lane 0. A lane is a thread that moves several gigabits a second, and a device has
/// at most eight threads by default.
pub const MOST: u8 = 8;
/// The number of messages for which a lane has counters.
pub const MESSAGES: u64 = LANE_MESSAGES;
const BITS: u32 = MESSAGES.trailing_zeros();

/// The lane of a counter. Counters of parities are in lane 0.
pub const fn lane_of(counter: u64) -> u8 {
    if counter >> 63 == 0 { (counter >> BITS) as u8 } else { 0 }
}

/// The counter of one lane, on cache lines of its own, because only one thread uses it. Processors fetch lines of 64
/// bytes in pairs.
#[repr(align(128))]
struct Line(AtomicU64);

/// The counters of the lanes of a session, for sealing.
pub struct Lanes {
    sealer: Arc<Sealer>,
    lines: Box<[Line]>,
}

impl Lanes {
    /// The counters of lanes 1 to `count`. `None` if they were requested before: they live as long as the key.
    pub fn of(sealer: &Arc<Sealer>, count: u8) -> Option<Self> {
        if !sealer.claim_lanes() {
            return None;
        }
        let line = |lane: u8| Line(AtomicU64::new(first(lane)));
        Some(Self { sealer: Arc::clone(sealer), lines: (1..=count.min(MOST)).map(line).collect() })
    }

    /// The sealer that the counters belong to.
    pub fn sealer(&self) -> &Arc<Sealer> {
        &self.sealer
    }

    /// How many lanes there are beside lane 0.
    pub fn count(&self) -> u8 {
        self.lines.len() as u8
    }

    /// As [`Sealer::reserve`], from a lane other than 0. Also `None` if the lane does not exist.
    pub fn reserve(&self, lane: u8, now: Instant, n: usize) -> Option<Reserved> {
        let line = self.lines.get(usize::from(lane.checked_sub(1)?))?;
        self.sealer.reserve_from(&line.0, first(lane) + MESSAGES, now, n)
    }

    /// How many counters were taken from all these lanes.
    pub fn taken(&self) -> u64 {
        (1..).zip(&self.lines).map(|(lane, line)| line.0.load(Relaxed) - first(lane)).sum()
    }
}

/// The first counter of a lane.
fn first(lane: u8) -> u64 {
    u64::from(lane) << BITS
}

#[cfg(test)]
mod tests;
