//! One path: as the probing end sees it, and as the answering end sees it.
use super::{
    locator::Locator,
    timing::{ANSWERS, FIRST_PATIENCE, INDIRECT, MARGIN, MISSED, PATIENCE, RESERVE},
    types::{PathPolicy, State},
};
use crate::time::Instant;
use core::time::Duration;

/// A path that we probe.
#[derive(Debug)]
pub(super) struct OwnPath {
    pub(super) locator: Option<Locator>,
    pub(super) policy: PathPolicy,
    pub(super) state: State,
    pub(super) round_trip: Option<RoundTrip>,
    /// When the next request is due, or the last answer counts as missed.
    pub(super) due: Instant,
    /// When the last request left.
    pub(super) asked: Instant,
    /// Requests since the last answer.
    pub(super) unanswered: u32,
    /// Answers in a row, while it is down.
    pub(super) answered: u32,
    pub(super) failures: u32,
    pub(super) failed: Option<Instant>,
    /// When another address is looked for, if the path does not work.
    pub(super) elsewhere: Instant,
    /// The nonce that the peer wants returned, 0 for none, and whether a request has returned it.
    pub(super) nonce: u32,
    pub(super) returned: bool,
}

/// Smoothed as in RFC 6298.
#[derive(Clone, Copy, Debug)]
pub(super) struct RoundTrip {
    pub(super) smoothed: Duration,
    pub(super) variation: Duration,
}

/// A path that the peer probes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Theirs {
    pub(super) locator: Locator,
    pub(super) usable: bool,
    pub(super) weight: u8,
    pub(super) expires: Instant,
    /// Clock of the request: an older request that arrives later changes nothing.
    pub(super) clock: u64,
    /// The nonce that was returned from the locator; 0 if none was needed.
    pub(super) nonce: u32,
}

/// A locator that sends requests for a path, and that is not yet proven to be the peer's.
#[derive(Clone, Copy, Debug)]
pub(super) struct Challenge {
    pub(super) locator: Locator,
    /// The nonce that a request from there has to return.
    pub(super) nonce: u32,
    pub(super) expires: Instant,
}

impl OwnPath {
    pub(super) fn new(policy: PathPolicy, locator: Option<Locator>, now: Instant) -> Self {
        Self {
            locator,
            policy,
            state: State::Unknown,
            round_trip: None,
            due: now,
            asked: now,
            unanswered: 0,
            answered: 0,
            failures: 0,
            failed: None,
            elsewhere: now,
            nonce: 0,
            returned: true,
        }
    }

    pub(super) fn weight(&self) -> Option<u8> {
        match self.policy {
            // An indirect path is a reserve: flows are not spread over it.
            PathPolicy::Weighted(weight) if !self.is_indirect() => Some(weight.max(1)),
            PathPolicy::Best | PathPolicy::Weighted(_) | PathPolicy::Pinned | PathPolicy::Fallback => None,
        }
    }

    /// A path that has missed too many answers is probed now, or a moment after its last request.
    pub(super) fn hurry(&mut self, now: Instant) {
        if self.unanswered > MISSED {
            self.due = self.due.min(now.max(self.asked + RESERVE));
        }
    }

    /// How long an answer may take.
    pub(super) fn patience(&self) -> Duration {
        let usual = self.round_trip.map(|trip| trip.smoothed + 4 * trip.variation);
        usual.map_or(FIRST_PATIENCE, |usual| usual.clamp(PATIENCE[0], PATIENCE[1]))
    }

    /// How many answers in a row the path needs until it is trusted again.
    pub(super) fn answers_wanted(&self) -> u32 {
        ANSWERS << self.failures.saturating_sub(1).min(5)
    }

    pub(super) fn is_fallback(&self) -> bool {
        self.policy == PathPolicy::Fallback
    }

    /// Whether it works as far as is known, and no answer is missed. One request may be in flight.
    pub(super) fn answers(&self) -> bool {
        self.locator.is_some() && self.state != State::Down && self.unanswered <= 1
    }

    pub(super) fn is_indirect(&self) -> bool {
        self.locator.is_some_and(|locator| locator.is_indirect())
    }

    /// The round trip by which paths are compared.
    pub(super) fn length(&self) -> Duration {
        let indirect = if self.is_indirect() { INDIRECT } else { Duration::ZERO };
        self.round_trip.map_or(Duration::MAX, |trip| trip.smoothed.saturating_add(indirect))
    }

    /// Whether the other path is so much shorter that flows may move to it. Two indirect paths are compared by their
    /// round trips: the surcharge for indirect paths is the same for both.
    pub(super) fn is_clearly_longer_than(&self, other: &Self) -> bool {
        let both = if self.is_indirect() && other.is_indirect() { INDIRECT } else { Duration::ZERO };
        let [long, short] = [self, other].map(|own| own.length().saturating_sub(both));
        long * 4 / 5 > short + MARGIN
    }
}

impl RoundTrip {
    pub(super) fn update(before: Option<Self>, took: Duration) -> Self {
        match before {
            None => Self { smoothed: took, variation: took / 2 },
            Some(Self { smoothed, variation }) => {
                Self { smoothed: (7 * smoothed + took) / 8, variation: (3 * variation + smoothed.abs_diff(took)) / 4 }
            }
        }
    }
}
