//! One peer, as far as it carries prefixes: whether it answers, how far it is, and what it is asked.
use crate::time::Instant;
use alloc::collections::BTreeSet;
use core::time::Duration;
use ipnet::IpNet;

/// Between two questions while an answer is awaited, for the first [`QUICK`] of them; then [`SLOW`], twice as long each
/// time.
const ASK_AGAIN: Duration = Duration::from_millis(150);
const QUICK: u32 = 8;
const SLOW: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(30)];
/// How long a peer may be silent after the first question, at least, before another takes over.
const PATIENCE: Duration = Duration::from_millis(450);
/// And after another peer was heard: it may be this node's own network that was lost.
const GRACE: Duration = Duration::from_millis(250);
/// The round trip decides about the patience of peers that are far away, up to this.
const MOST_PATIENCE: Duration = Duration::from_secs(3);
/// A peer that failed has to be there for so long before it is preferred again, twice as long for each failure within
/// [`REMEMBERED`].
const DOUBTFUL: Duration = Duration::from_secs(10);
const MOST_DOUBT: u32 = 5;
const REMEMBERED: Duration = Duration::from_secs(600);

/// What is known of a peer that shares prefixes.
#[derive(Clone, Debug, Default)]
pub(super) struct Carrier {
    /// Its prefixes that others have as well.
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
    /// It has failed, and is not preferred before [`end_doubt`](Self::end_doubt) has come.
    trusted: Option<Instant>,
    /// While it holds shared prefixes: there is traffic until then.
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

/// Questions that are not answered yet.
#[derive(Clone, Copy, Debug)]
struct Asking {
    /// The first one, and the next one.
    since: Instant,
    next: Instant,
    count: u32,
    /// When another peer that could take over was heard meanwhile, for the first time.
    evidence: Option<Instant>,
}

/// The order in which peers are preferred: the least first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Rank {
    tier: Tier,
    round_trip: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Tier {
    /// It answers, and has a round trip.
    Good,
    /// It answers; but it has failed a short time ago, or there is no round trip.
    Doubtful,
    Unknown,
    Dead,
}

/// A nearer peer is better by a fifth of the round trip and this.
const MARGIN: Duration = Duration::from_millis(2);

impl Rank {
    /// Whether it is so much better than another that traffic is worth moving.
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

    /// Asks it, unless it is being asked.
    pub(super) fn ask(&mut self, now: Instant) {
        self.asking.get_or_insert(Asking { since: now, next: now, count: 0, evidence: None });
    }

    /// Asks no more.
    pub(super) fn stop_asking(&mut self) {
        self.asking = None;
    }

    /// When the first of the questions was asked that have no answer.
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

    /// Nobody could take over: the next peer that is heard is the first again.
    pub(super) fn stays(&mut self) {
        if let Some(asking) = &mut self.asking {
            asking.evidence = None;
        }
    }

    /// The time until now has not passed for this machine, which was asleep: nothing follows from it.
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

    /// It has been silent for too long, although another one was heard meanwhile: somebody may take over what it holds.
    pub(super) fn is_lost(&self, now: Instant) -> bool {
        self.lost_at().is_some_and(|at| at <= now)
    }

    fn lost_at(&self) -> Option<Instant> {
        let asking = self.asking.filter(|_| self.held > 0)?;
        let far = self.round_trip.unwrap_or_default();
        let silent = asking.since + PATIENCE.max(3 * far).min(MOST_PATIENCE);
        Some(silent.max(asking.evidence? + GRACE.max(2 * far).min(MOST_PATIENCE)))
    }

    /// It does not answer. `failed`: while it held what there was traffic for.
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

    /// It is to be trusted again from now on.
    pub(super) fn end_doubt(&mut self, now: Instant) {
        self.trusted.take_if(|at| *at <= now);
    }

    /// When something is due for it.
    pub(super) fn deadline(&self) -> Option<Instant> {
        let asking = self.asking.map(|asking| asking.next);
        [asking, self.lost_at(), self.trusted, self.busy_until, self.compare].into_iter().flatten().min()
    }
}
