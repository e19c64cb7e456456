//! Requests for the bytes of parts: a limited number without an answer at a time, repeated if there is no answer.

use rustguard_core::time::Instant;
use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    time::Duration,
};
use zeroize::Zeroizing;

/// The most requests that are waiting for an answer.
pub(crate) const WINDOW: usize = 32;
/// The minimum time to wait for an answer. On a slower link, it is twice the round trip time. If no answer comes at
/// all, it doubles each time.
const PATIENCE: Duration = Duration::from_millis(250);
/// The maximum number of doublings.
const DOUBLINGS: u8 = 3;
/// If an answer came within this time, only single requests were lost, and the waiting time does not double.
const ANSWERING: Duration = Duration::from_secs(1);
/// A peer is given up after this time without any useful answer.
const SILENCE: Duration = Duration::from_secs(8);

/// Which parts are requested, by their names, and what has arrived of them.
pub(crate) struct Requests<N> {
    /// The length of one answer, in bytes.
    chunk: usize,
    coming: BTreeMap<N, Coming>,
    todo: VecDeque<(N, u32)>,
    asked: BTreeMap<(N, u32), Asked>,
    last_answer: Instant,
    /// Twice the longest round trip that was seen.
    patience: Duration,
}

/// A part that has arrived partly.
struct Coming {
    bytes: Zeroizing<Vec<u8>>,
    missing: BTreeSet<u32>,
}

#[derive(Clone, Copy)]
struct Asked {
    at: Instant,
    until: Instant,
    tries: u8,
}

/// An answer that does not agree with earlier ones, or is too long.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Inconsistent;

impl<N: Copy + Ord> Requests<N> {
    /// Requests this part first.
    pub(crate) fn new(first: N, chunk: usize, now: Instant) -> Self {
        Self {
            chunk,
            coming: BTreeMap::new(),
            todo: [(first, 0)].into(),
            asked: BTreeMap::new(),
            last_answer: now,
            patience: PATIENCE,
        }
    }

    /// Requests these parts, and drops all others that were not requested yet.
    pub(crate) fn want(&mut self, parts: impl IntoIterator<Item = N>) {
        self.todo = parts.into_iter().map(|part| (part, 0)).collect();
    }

    /// The next bytes to ask for, with the number of earlier requests for them: bytes that were not requested yet, or
    /// whose answer is overdue. `None` for now.
    pub(crate) fn next(&mut self, now: Instant) -> Option<((N, u32), u8)> {
        let late = self.asked.iter().find(|(_, asked)| asked.until <= now);
        let (place, tries) = match late.map(|(place, asked)| (*place, asked.tries)) {
            Some(late) => late,
            None if self.asked.len() < WINDOW => (self.todo.pop_front()?, 0),
            None => return None,
        };
        let doublings = if now.since(self.last_answer) < ANSWERING { 0 } else { tries.min(DOUBLINGS) };
        let until = now + self.patience * (1 << doublings);
        self.asked.insert(place, Asked { at: now, until, tries: tries.saturating_add(1) });
        Some((place, tries))
    }

    /// When [`next`](Self::next) repeats an unanswered request.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.asked.values().map(|asked| asked.until).min()
    }

    /// Whether the peer has not answered for a long time.
    pub(crate) fn is_silent(&self, now: Instant) -> bool {
        now.since(self.last_answer) >= SILENCE
    }

    /// Whether these bytes will be asked for.
    pub(crate) fn will_ask(&self, place: &(N, u32)) -> bool {
        self.todo.contains(place)
    }

    /// These bytes are here already.
    pub(crate) fn need_not_ask(&mut self, place: &(N, u32)) {
        self.todo.retain(|wanted| wanted != place);
    }

    /// Whether these bytes were requested. The request counts as answered then.
    pub(crate) fn is_answer(&mut self, place: &(N, u32), now: Instant) -> bool {
        let Some(asked) = self.asked.remove(place) else { return false };
        self.last_answer = now;
        // The answer may be to an earlier request than the last one. The round trip was longer then.
        self.patience = self.patience.max(now.since(asked.at) * 2).min(SILENCE / 4);
        true
    }

    /// Takes bytes of a part of `total` bytes, of which at most `most` are permitted. Returns the part once it is
    /// complete.
    ///
    /// # Errors
    /// See [`Inconsistent`].
    pub(crate) fn take(
        &mut self,
        (part, offset): (N, u32),
        total: u32,
        bytes: &[u8],
        most: usize,
    ) -> Result<Option<Zeroizing<Vec<u8>>>, Inconsistent> {
        let (len, start) = (total as usize, offset as usize);
        if len > most {
            return Err(Inconsistent);
        }
        let coming = self.coming.entry(part).or_insert_with(|| {
            // A part that has begun is completed before another one begins.
            let rest = (0..total).step_by(self.chunk).skip(1);
            rest.clone().rev().for_each(|offset| self.todo.push_front((part, offset)));
            Coming { bytes: Zeroizing::new(vec![0; len]), missing: rest.chain([0]).collect() }
        });
        let same_len = coming.bytes.len() == len;
        let place = coming.bytes.get_mut(start..start + bytes.len());
        let Some(place) = place.filter(|place| same_len && place.len() == (len - start).min(self.chunk)) else {
            return Err(Inconsistent);
        };
        place.copy_from_slice(bytes);
        coming.missing.remove(&offset);
        if !coming.missing.is_empty() {
            return Ok(None);
        }
        Ok(self.coming.remove(&part).map(|coming| coming.bytes))
    }

    /// The bytes that are allocated for parts that have begun to arrive.
    pub(crate) fn held(&self) -> usize {
        self.coming.values().map(|coming| coming.bytes.len()).sum()
    }

    /// Whether nothing is left to request or to receive.
    pub(crate) fn is_empty(&self) -> bool {
        self.todo.is_empty() && self.asked.is_empty() && self.coming.is_empty()
    }
}
