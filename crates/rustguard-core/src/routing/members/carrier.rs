//! One peer, as far as it carries prefixes: whether it answers, how far it is, and the questions to it.
use crate::time::Instant;
use alloc::collections::BTreeSet;
use core::time::Duration;
use ipnet::IpNet;

/// The time between two questions while an answer is awaited, for the first [`QUICK`] questions; then [`SLOW`], which
/// doubles each time.
const ASK_AGAIN: Duration = Duration::from_millis(150);
const QUICK: u32 = 8;
const SLOW: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(30)];
/// The least time that a peer may be silent after the first question before another one takes over.
const PATIENCE: Duration = Duration::from_millis(450);
/// The least time after another peer was heard: the failure may be in this node's own network.
const GRACE: Duration = Duration::from_millis(250);
/// For peers that are far away, the round trip determines the patience, up to this.
const MOST_PATIENCE: Duration = Duration::from_secs(3);
/// A peer that failed has to be available this long before it is preferred again, twice as long for each failure within
/// [`REMEMBERED`].
const DOUBTFUL: Duration = Duration::from_secs(10);
const MOST_DOUBT: u32 = 5;
const REMEMBERED: Duration = Duration::from_secs(600);

/// State of a peer that shares prefixes.
#[derive(Clone, Debug, Default)]
pub(super) struct Carrier {
    /// Its prefixes that other peers have as well.
    pub(super) shared: BTreeSet<IpNet>,
    /// How many of these it holds.
    pub(super) held: usize,
    liveness: Liveness,
    /// When it was last heard.
    pub(super) heard: Option<Instant>,
    round_trip: Option<Duration>,
    asking: Option<Asking>,
    failures: u32,
    failed: Option<Instant>,
    /// It has failed, and is not preferred before [`end_doubt`](Self::end_doubt) at this time.
    trusted: Option<Instant>,
    /// It holds shared prefixes, and there is traffic until this time.
    pub(super) busy_until: Option<Instant>,
    /// When the traffic began.
    pub(super) busy_since: Option<Instant>,
    /// When it is compared with others next.
    pub(super) compare: Option<Instant>,
    /// Its place in the engine's schedule.
    pub(super) scheduled: Option<Instant>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Liveness {
    #[default]
    Unknown,
    Alive,
    Dead,
}

/// Questions that have no answer yet.
#[derive(Clone, Copy, Debug)]
struct Asking {
    /// When the first one was asked, and when the next one is due.
    since: Instant,
    next: Instant,
    count: u32,
    /// When another peer that could take over was first heard meanwhile.
    evidence: Option<Instant>,
}

/// The order in which peers are preferred: the smallest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Rank {
    tier: Tier,
    round_trip: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Tier {
    /// It answers, and has a round trip.
    Good,
    /// It answers, but it has failed recently, or its round trip is unknown.
    Doubtful,
    Unknown,
    Dead,
}

/// To be preferred, a nearer peer must be better by a fifth of the round trip, and by this in addition.
const MARGIN: Duration = Duration::from_millis(2);

impl Rank {
    /// Whether it is so much better than another that moving the traffic is worth it.
    pub(super) fn is_much_better_than(self, other: Self) -> bool {
        self.tier == Tier::Good
            && (other.tier != Tier::Good || self.round_trip + other.round_trip / 5 + MARGIN < other.round_trip)
    }

    pub(super) fn is_alive(self) -> bool {
        matches!(self.tier, Tier::Good | Tier::Doubtful)
    }

    pub(super) fn is_dead(self) -> bool {
        self.tier == Tier::Dead
    }
}

impl Carrier {
    pub(super) fn rank(&self) -> Rank {
        let tier = match (self.liveness, self.round_trip) {
            (Liveness::Alive, Some(_)) if self.trusted.is_none() => Tier::Good,
            (Liveness::Alive, _) => Tier::Doubtful,
            (Liveness::Unknown, _) => Tier::Unknown,
            (Liveness::Dead, _) => Tier::Dead,
        };
        Rank { tier, round_trip: self.round_trip.unwrap_or(Duration::MAX) }
    }

    pub(super) fn round_trip(&self) -> Option<Duration> {
        self.round_trip
    }

    pub(super) fn is_busy(&self, now: Instant) -> bool {
        self.busy_until.is_some_and(|until| until > now)
    }

    /// It was heard.
    pub(super) fn heard(&mut self, now: Instant) {
        self.heard = Some(now);
        self.asking = None;
        if self.liveness == Liveness::Dead && self.failures > 0 {
            self.trusted = Some(now + DOUBTFUL * (1 << (self.failures - 1).min(MOST_DOUBT)));
        }
        self.liveness = Liveness::Alive;
    }

    /// Takes a measurement: the mean moves by an eighth, as in RFC 6298.
    pub(super) fn measured(&mut self, took: Duration) {
        let took = took.min(MOST_PATIENCE);
        self.round_trip = Some(self.round_trip.map_or(took, |known| (7 * known + took) / 8));
    }

    /// Asks it, unless a question is already under way.
    pub(super) fn ask(&mut self, now: Instant) {
        self.asking.get_or_insert(Asking { since: now, next: now, count: 0, evidence: None });
    }

    /// Ends the questions.
    pub(super) fn stop_asking(&mut self) {
        self.asking = None;
    }

    /// When the first of the unanswered questions was asked.
    pub(super) fn asked_since(&self) -> Option<Instant> {
        self.asking.map(|asking| asking.since)
    }

    /// Another peer that could take over was heard. If this one is silent, it is asked at once.
    pub(super) fn other_heard(&mut self, now: Instant) {
        if let Some(asking) = &mut self.asking
            && asking.evidence.is_none()
        {
            (asking.evidence, asking.next) = (Some(now), now);
        }
    }

    /// No peer could take over: the next peer that is heard counts as the first again.
    pub(super) fn stays(&mut self) {
        if let Some(asking) = &mut self.asking {
            asking.evidence = None;
        }
    }

    /// The machine was asleep, so the time until now proves nothing.
    pub(super) fn slept(&mut self, now: Instant) {
        if let Some(asking) = &mut self.asking {
            *asking = Asking { since: now, next: now, count: 0, evidence: None };
        }
    }

    /// Whether a question is to be sent now.
    pub(super) fn take_question(&mut self, now: Instant) -> bool {
        let Some(asking) = self.asking.as_mut().filter(|asking| asking.next <= now) else { return false };
        asking.count += 1;
        let pause = match asking.count.checked_sub(QUICK) {
            None => ASK_AGAIN,
            Some(slow) => (SLOW[0] * (1 << slow.min(5))).min(SLOW[1]),
        };
        asking.next = now + pause;
        true
    }

    /// It has been silent for too long, although another peer was heard meanwhile: others may take over its prefixes.
    pub(super) fn is_lost(&self, now: Instant) -> bool {
        self.lost_at().is_some_and(|at| at <= now)
    }

    fn lost_at(&self) -> Option<Instant> {
        let asking = self.asking.filter(|_| self.held > 0)?;
        let far = self.round_trip.unwrap_or_default();
        let silent = asking.since + PATIENCE.max(3 * far).min(MOST_PATIENCE);
        Some(silent.max(asking.evidence? + GRACE.max(2 * far).min(MOST_PATIENCE)))
    }

    /// It does not answer. `failed`: it did not answer while it held prefixes with traffic.
    pub(super) fn died(&mut self, failed: bool, now: Instant) {
        if failed && self.liveness != Liveness::Dead {
            let recent = self.failed.is_some_and(|at| now.since(at) < REMEMBERED);
            self.failures = if recent { self.failures.saturating_add(1) } else { 1 };
            self.failed = Some(now);
        }
        self.liveness = Liveness::Dead;
    }

    /// It holds nothing, and has not answered.
    pub(super) fn is_silent(&self, now: Instant) -> bool {
        let far = self.round_trip.unwrap_or_default();
        self.asking.is_some_and(|asking| asking.since + PATIENCE.max(3 * far) <= now)
    }

    /// If the time has come, it is trusted again.
    pub(super) fn end_doubt(&mut self, now: Instant) {
        self.trusted.take_if(|at| *at <= now);
    }

    /// When something is due for it.
    pub(super) fn deadline(&self) -> Option<Instant> {
        let asking = self.asking.map(|asking| asking.next);
        [asking, self.lost_at(), self.trusted, self.busy_until, self.compare].into_iter().flatten().min()
    }
}
