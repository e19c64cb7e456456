//! Whom to ask for a newer roster, based on the outcome of earlier requests.
//!
//! Anybody can claim to have a newer roster. Only the signed head proves that it exists, and only the parts complete
//! it. A member that claims one and delivers nothing must not block the members that have it: members with fewer
//! failures are asked first, servers before members, and a better one takes over immediately. So a liar costs time only
//! once, and a second liar does not help the first.

use rustguard_core::time::Instant;
use rustguard_crypto::x25519::PublicKey;
use std::{collections::BTreeMap, time::Duration};

/// The records of members that were asked. They outlive the sessions, because members can end and begin sessions at
/// will.
#[derive(Default)]
pub(crate) struct Trust(BTreeMap<[u8; 32], Record>);

#[derive(Default)]
struct Record {
    /// Consecutive requests without a result.
    failures: u32,
    /// It is not asked before this time.
    paused_until: Instant,
    patience: Option<Patience>,
}

/// Since when a member is asked, not counting the time in which it was not connected. Its messages do not restart this
/// period.
#[derive(Clone, Copy)]
pub(crate) struct Patience {
    /// The start of the period in which it has delivered no roster.
    pub(crate) since: Instant,
    /// The start of the period in which it has delivered no head.
    pub(crate) unproven: Option<Instant>,
    /// When its session ended.
    gone: Option<Instant>,
}

/// The order in which members are asked: the smallest rank first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Rank {
    failures: u32,
    is_member: bool,
}

impl Trust {
    pub(crate) fn rank(&self, peer: &PublicKey, is_server: bool) -> Rank {
        let failures = self.0.get(&peer.0).map_or(0, |record| record.failures);
        Rank { failures, is_member: !is_server }
    }

    /// When it may be asked again.
    pub(crate) fn paused_until(&self, peer: &PublicKey) -> Instant {
        self.0.get(&peer.0).map_or(Instant::default(), |record| record.paused_until)
    }

    /// It is asked for a head.
    pub(crate) fn asked(&mut self, peer: &PublicKey, now: Instant) -> Patience {
        let record = self.0.entry(peer.0).or_default();
        let patience = record.patience.get_or_insert(Patience { since: now, unproven: None, gone: None });
        let away = patience.gone.take().map_or(Duration::ZERO, |gone| now.since(gone));
        patience.since = patience.since + away;
        patience.unproven = Some(patience.unproven.map_or(now, |since| since + away));
        *patience
    }

    /// It has delivered a head.
    pub(crate) fn proved(&mut self, peer: &PublicKey) {
        if let Some(patience) = self.patience_mut(peer) {
            patience.unproven = None;
        }
    }

    /// Its session has ended while it was asked.
    pub(crate) fn gone(&mut self, peer: &PublicKey, now: Instant) {
        if let Some(patience) = self.patience_mut(peer) {
            patience.gone = Some(now);
        }
    }

    /// It is abandoned for a better member. The next time, its period starts anew.
    pub(crate) fn left(&mut self, peer: &PublicKey) {
        if let Some(record) = self.0.get_mut(&peer.0) {
            record.patience = None;
        }
    }

    fn patience_mut(&mut self, peer: &PublicKey) -> Option<&mut Patience> {
        self.0.get_mut(&peer.0)?.patience.as_mut()
    }

    /// It has delivered nothing, or not what was requested.
    pub(crate) fn failed(&mut self, peer: &PublicKey, paused_until: Instant) {
        let record = self.0.entry(peer.0).or_default();
        *record = Record { failures: record.failures.saturating_add(1), paused_until, patience: None };
    }

    /// It has delivered a roster.
    pub(crate) fn succeeded(&mut self, peer: &PublicKey) {
        self.0.remove(&peer.0);
    }

    /// Forgets members that are no longer in the network.
    pub(crate) fn keep(&mut self, is_kept: impl Fn(&PublicKey) -> bool) {
        self.0.retain(|key, _| is_kept(&PublicKey(*key)));
    }
}
