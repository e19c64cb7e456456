//! Requests for the bytes of parts: so many without an answer at a time, and once more for what is not answered.

use rustguard_core::time::Instant;
use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    time::Duration,
};
use zeroize::Zeroizing;

/// The most requests without an answer yet.
pub(crate) const WINDOW: usize = 32;
/// How long an answer is waited for at least. On a longer link it is twice the round trip; if no answer comes at all,
/// twice as long each time.
const PATIENCE: Duration = Duration::from_millis(250);
/// How often that is doubled.
const DOUBLINGS: u8 = 3;
/// While answers came within this time, requests are lost one by one, and not all.
const ANSWERING: Duration = Duration::from_secs(1);
/// Who is asked is lost after so long without any answer that brings something.
const SILENCE: Duration = Duration::from_secs(8);

/// What is asked for of parts that have such names, and what of them has come.
pub(crate) struct Requests<N> {
    /// How many bytes one answer has.
    chunk: usize,
    coming: BTreeMap<N, Coming>,
    todo: VecDeque<(N, u32)>,
    asked: BTreeMap<(N, u32), Asked>,
    last_answer: Instant,
    /// Twice the longest round trip that was seen.
    patience: Duration,
}

/// A part of which some is here.
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

/// An answer that does not agree with what has come before, or is too long.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Inconsistent;

impl<N: Copy + Ord> Requests<N> {
    /// Asks for this part first.
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

    /// Asks for these parts, and for nothing else that was not asked for yet.
    pub(crate) fn want(&mut self, parts: impl IntoIterator<Item = N>) {
        self.todo = parts.into_iter().map(|part| (part, 0)).collect();
    }

    /// The next bytes to ask for, with how often they were asked for already: what nobody was asked for yet, or what
    /// did not come. `None` for now.
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

    /// When [`next`](Self::next) has something again that did not come.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.asked.values().map(|asked| asked.until).min()
    }

    /// Whether who is asked has not answered for long.
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

    /// Whether bytes were asked for, which are asked for no longer then.
    pub(crate) fn is_answer(&mut self, place: &(N, u32), now: Instant) -> bool {
        let Some(asked) = self.asked.remove(place) else { return false };
        self.last_answer = now;
        // The answer may be to an earlier request than the last one: that is a longer round trip.
        self.patience = self.patience.max(now.since(asked.at) * 2).min(SILENCE / 4);
        true
    }

    /// Takes bytes of a part of `total` bytes, which may be as long as `most`. Returns the part if nothing of it is
    /// missing any more.
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
            // What is begun is ended before something else is begun.
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

    /// How many bytes there is room for, for what has begun to come.
    pub(crate) fn held(&self) -> usize {
        self.coming.values().map(|coming| coming.bytes.len()).sum()
    }

    /// Whether nothing is to come.
    pub(crate) fn is_empty(&self) -> bool {
        self.todo.is_empty() && self.asked.is_empty() && self.coming.is_empty()
    }
}
