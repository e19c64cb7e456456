//! One peer as the node sees it: its configuration, handshakes both ways, and the three keypairs.
use super::{
    keypairs::Keypairs,
    retry::{Attempt, MIN_INITIATION_INTERVAL, Pending},
    timers::Armed,
};
use crate::{
    activity::Activity, cookie::Maker, noise, peer::PeerConfig, session::Sealer, sync::Arc, tai64n::Timestamp,
    time::Instant,
};
use alloc::boxed::Box;
use core::time::Duration;
use rustguard_crypto::x25519::{PublicKey, SharedSecret, StaticSecret};

pub(crate) struct Peer {
    pub(crate) config: PeerConfig,
    pub(crate) activity: Arc<Activity>,
    /// Signs handshake messages, holds the cookie.
    pub(crate) maker: Maker,
    /// We are trying to complete a handshake, with or without [`pending`](Self::pending): the first initiation may
    /// have to wait, and a change of the private key ends the handshake under way.
    pub(crate) attempt: Option<Attempt>,
    /// Our initiation that waits for its answer.
    pub(crate) pending: Option<Box<Pending>>,
    pub(crate) keypairs: Keypairs,
    /// When an initiation or a response was last sent: no initiation follows within Rekey-Timeout by itself.
    pub(crate) handshake_sent: Option<Instant>,
    /// When a handshake was last completed, by the wall clock.
    pub(crate) last_handshake: Option<Duration>,
    /// The peer's endpoint is known, so that persistent keepalive makes sense.
    pub(crate) started: bool,
    /// When the node was stopped, there was a session or an attempt, or a greeting was requested since.
    pub(crate) resumes: bool,
    pub(crate) armed: Armed,
    static_static: StaticStatic,
    timestamp_sent: Option<Timestamp>,
    timestamp_seen: Option<Timestamp>,
    initiation_seen: Option<Instant>,
    /// Initiations with timestamps older than [`timestamp_seen`](Self::timestamp_seen).
    late: Option<Box<Late>>,
    pub(crate) unconfirmed: Option<Unconfirmed>,
}

/// Initiations of a peer that were answered one after the other, while no packet came in any of the sessions. Either
/// the answers do not arrive, or the initiator cannot open them because the preshared keys differ. The responder cannot
/// tell which (Noise, section 9.3: with the modifier psk2 only the second message depends on the preshared key).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Unconfirmed {
    /// When the first one was answered.
    pub since: Instant,
    /// How many there were.
    pub count: u32,
}

impl Unconfirmed {
    pub(crate) fn after(before: Option<Self>, now: Instant) -> Self {
        let Self { since, count } = before.unwrap_or(Self { since: now, count: 0 });
        Self { since, count: count.saturating_add(1) }
    }
}

/// A row of initiations that are older than an accepted one, each newer than the one before.
struct Late {
    /// The timestamp of the last one, and when it arrived.
    last: Timestamp,
    at: Instant,
    /// How many were in step with our clock.
    in_step: u32,
}

/// How many initiations in a row prove a slow clock and not a replay. For a replay, an attacker must have recorded as
/// many initiations that the peer sent in a row without an answer.
const LATE_IN_STEP: u32 = 3;
/// The time between two initiations of such a row: an initiator tries again after Rekey-Timeout and a random delay, and
/// one or two initiations may be lost.
const LATE_STEP: core::ops::RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(16);
/// How much the clocks and the network may lengthen or shorten a step.
const LATE_TOLERANCE: Duration = Duration::from_secs(1);

/// The shared secret of both static keys. It is computed when it is first needed, so that adding ten thousand peers is
/// fast.
enum StaticStatic {
    Unknown,
    LowOrder,
    Known(SharedSecret),
}

/// Why an authentic initiation is not answered.
pub(crate) enum Stale {
    Replayed {
        /// How far the peer's clock is behind, if this initiation proves that it is: see
        /// [`Event::ClockBehind`](super::Event::ClockBehind).
        behind: Option<Duration>,
    },
    Flood,
}

impl Peer {
    pub(crate) fn new(config: PeerConfig) -> Self {
        Self {
            maker: Maker::new(&noise::WIREGUARD, &config.public_key),
            config,
            activity: Arc::default(),
            attempt: None,
            pending: None,
            keypairs: Keypairs::default(),
            handshake_sent: None,
            last_handshake: None,
            started: false,
            resumes: false,
            armed: Armed::default(),
            static_static: StaticStatic::Unknown,
            timestamp_sent: None,
            timestamp_seen: None,
            initiation_seen: None,
            late: None,
            unconfirmed: None,
        }
    }

    /// The interval of persistent keepalive; zero means off.
    pub(crate) fn keepalive_interval(&self) -> Option<Duration> {
        self.config.persistent_keepalive.filter(|interval| !interval.is_zero())
    }

    /// The shared secret of both static keys, or `None` if the peer's key is of low order.
    pub(crate) fn static_static(&mut self, identity: &StaticSecret) -> Option<&SharedSecret> {
        if let StaticStatic::Unknown = self.static_static {
            self.static_static = match identity.diffie_hellman(&self.config.public_key) {
                Ok(secret) => StaticStatic::Known(secret),
                Err(_) => StaticStatic::LowOrder,
            };
        }
        match &self.static_static {
            StaticStatic::Known(secret) => Some(secret),
            StaticStatic::Unknown | StaticStatic::LowOrder => None,
        }
    }

    /// The peer has another key. Timestamps continue: it is the same machine with the same clock.
    pub(crate) fn set_key(&mut self, key: PublicKey) {
        self.config.public_key = key;
        self.maker = Maker::new(&noise::WIREGUARD, &key);
        self.unconfirmed = None;
        self.forget_static_static();
    }

    /// Our private key has changed.
    pub(crate) fn forget_static_static(&mut self) {
        self.static_static = StaticStatic::Unknown;
    }

    /// The timestamp of the next initiation: greater than all before.
    pub(crate) fn next_timestamp(&mut self, unix: Duration) -> Timestamp {
        let timestamp = Timestamp::after(self.timestamp_sent, unix);
        self.timestamp_sent = Some(timestamp);
        timestamp
    }

    /// Notes the timestamp of an authentic initiation, or says why it must be dropped.
    pub(crate) fn note_initiation(&mut self, timestamp: Timestamp, now: Instant) -> Result<(), Stale> {
        if self.timestamp_seen.is_some_and(|seen| timestamp <= seen) {
            let behind = if self.note_late(timestamp, now) { self.behind() } else { None };
            return Err(Stale::Replayed { behind });
        }
        if self.initiation_seen.is_some_and(|seen| now.since(seen) < MIN_INITIATION_INTERVAL) {
            return Err(Stale::Flood);
        }
        self.timestamp_seen = Some(timestamp);
        self.initiation_seen = Some(now);
        self.late = None;
        Ok(())
    }

    /// Notes an initiation with an old timestamp. False: it is certainly a replay.
    fn note_late(&mut self, timestamp: Timestamp, now: Instant) -> bool {
        match &mut self.late {
            // A timestamp that was seen before, or was accepted, is a replay.
            Some(late) if timestamp <= late.last => false,
            _ if self.timestamp_seen == Some(timestamp) => false,
            late => {
                let step = |late: &Late| (timestamp.since(late.last), now.since(late.at));
                let in_step = late.as_ref().filter(|late| {
                    let (theirs, ours) = step(late);
                    LATE_STEP.contains(&ours) && theirs.abs_diff(ours) <= LATE_TOLERANCE
                });
                let in_step = in_step.map_or(1, |late| late.in_step.saturating_add(1));
                *late = Some(Box::new(Late { last: timestamp, at: now, in_step }));
                true
            }
        }
    }

    /// How far the peer's clock is behind its earlier value, if the last initiations prove that it is.
    fn behind(&self) -> Option<Duration> {
        let late = self.late.as_ref().filter(|late| late.in_step >= LATE_IN_STEP)?;
        let passed = late.at.since(self.initiation_seen?);
        Some(self.timestamp_seen?.since(late.last) + passed)
    }

    /// The sealer in use, if it may still be used.
    pub(crate) fn usable_sealer(&self, now: Instant) -> Option<&Arc<Sealer>> {
        self.keypairs.sealer().filter(|sealer| sealer.usable(now))
    }
}
