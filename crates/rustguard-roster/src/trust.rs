//! Whom to ask for a newer roster, going by what became of earlier questions.
//!
//! Anybody can say to have a newer roster. Only the signed head shows that there is one, and only the parts that it is
//! here. A member that says so and delivers nothing must not keep this one from those that do: whoever has failed less
//! often is asked first, servers before members, and somebody better takes over at once. So a liar costs time once, and
//! a second liar does not help the first.

use rustguard_core::time::Instant;
use rustguard_crypto::x25519::PublicKey;
use std::{collections::BTreeMap, time::Duration};

/// What is remembered of those that were asked. It outlives their sessions, which they can end and begin as they like.
#[derive(Default)]
pub(crate) struct Trust(BTreeMap<[u8; 32], Record>);

#[derive(Default)]
struct Record {
    /// Questions in a row that brought nothing.
    failures: u32,
    /// It is not asked before.
    paused_until: Instant,
    patience: Option<Patience>,
}

/// Since when a member is asked, without the time in which it was not connected. Whatever it says meanwhile, this does
/// not begin anew.
#[derive(Clone, Copy)]
pub(crate) struct Patience {
    /// It has delivered no roster since.
    pub(crate) since: Instant,
    /// It has delivered no head since.
    pub(crate) unproven: Option<Instant>,
    /// Its session has ended.
    gone: Option<Instant>,
}

/// Who is asked first: the smallest.
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

    /// It is left for somebody better: the next time begins anew.
    pub(crate) fn left(&mut self, peer: &PublicKey) {
        if let Some(record) = self.0.get_mut(&peer.0) {
            record.patience = None;
        }
    }

    fn patience_mut(&mut self, peer: &PublicKey) -> Option<&mut Patience> {
        self.0.get_mut(&peer.0)?.patience.as_mut()
    }

    /// It has delivered nothing, or something else than was asked for.
    pub(crate) fn failed(&mut self, peer: &PublicKey, paused_until: Instant) {
        let record = self.0.entry(peer.0).or_default();
        *record = Record { failures: record.failures.saturating_add(1), paused_until, patience: None };
    }

    /// It has delivered a roster.
    pub(crate) fn succeeded(&mut self, peer: &PublicKey) {
        self.0.remove(&peer.0);
    }

    /// Forgets those that are no longer of the network.
    pub(crate) fn keep(&mut self, is_kept: impl Fn(&PublicKey) -> bool) {
        self.0.retain(|key, _| is_kept(&PublicKey(*key)));
    }
}
