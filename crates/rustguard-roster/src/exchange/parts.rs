//! How the parts of a roster are sent: as answers, and by servers also unasked, which saves the requests that would
//! follow.

use super::Exchange;
use crate::{
    fetch::lacking,
    head::Version,
    member::Role,
    message::{Body, CHUNK, KeyName, MAX_KEYS, Part, key_name},
    requests::WINDOW,
    roster::Roster,
};
use rustguard_core::{
    limit::{Bucket, Rate},
    time::Instant,
};
use rustguard_crypto::x25519::PublicKey;
use std::{borrow::Cow, collections::HashSet, time::Duration};

/// The version of members without a roster.
pub(super) const NONE: Version = Version { number: 0, digest: [0; 8] };
/// Answers to one member: a whole roster of 10,000 members at once, and then a thousand parts a second.
pub(super) const OF_ONE: Rate = Rate { interval: Duration::from_millis(1), burst: 4_000 };
/// Answers to all members.
const OF_ALL: Rate = Rate { interval: Duration::from_micros(50), burst: 20_000 };
/// Answers to one member that has moved recently ([`Exchange::moved`]), and to all such members: a whole roster of
/// 1,000 members at once, and a change among 10,000 in a second.
const OF_ONE_MOVED: Rate = Rate { interval: Duration::from_millis(20), burst: 128 };
const OF_ALL_MOVED: Rate = Rate { interval: Duration::from_millis(2), burst: 2_000 };
/// How often one member gets a whole roster unasked. It can claim repeatedly that it has none. The limit is low,
/// because its first message may have a false source, and may arrive before the report that it has moved.
const WHOLE_OF_ONE: Rate = Rate { interval: Duration::from_secs(10), burst: 2 };
/// The most messages that one member gets unasked: as many as it would request at once.
const MOST: usize = WINDOW;
/// The most messages that all members get unasked when there is a new roster. In a large network, the other members
/// ask.
const MOST_OF_ALL: usize = 1_024;
/// The most of these messages that contain keys of pairs.
const MOST_WITH_KEYS: usize = 4;

/// The requests that a member with a certain roster, or with none, would send next.
struct Unasked {
    parts: Vec<Part>,
    /// The members for whose pairs it needs keys.
    others: Vec<(PublicKey, KeyName)>,
    /// The number of messages.
    messages: usize,
}

impl Exchange {
    /// Tells a member with an older roster, or with none, of the one here.
    pub(super) fn tell_older(&mut self, to: &PublicKey, has: Version, now: Instant) {
        let whole = if has == NONE { self.unasked(None) } else { None };
        let whole = whole.filter(|_| self.whole_is_due(to, now));
        if !whole.is_some_and(|whole| self.send_unasked(to, &whole, None, now)) {
            self.send(to, Body::Have { follows: false });
        }
    }

    /// Tells all these members of the roster that is new here. Members that have announced the previous roster get the
    /// changes.
    pub(super) fn tell_all(&mut self, to: &[PublicKey], before: Option<&Roster>, now: Instant) {
        let change = before.and_then(|before| self.unasked(Some(before)));
        let whole = self.unasked(None);
        let mut left = MOST_OF_ALL;
        for peer in to {
            let has = self.peers.get(&peer.0).and_then(|peer| peer.has);
            let (lacks, had) = match has {
                Some(NONE) if self.whole_is_due(peer, now) => (&whole, None),
                Some(has) if before.is_some_and(|before| before.version() == has) => (&change, before),
                _ => (&None, None),
            };
            let lacks = lacks.as_ref().filter(|lacks| lacks.messages <= left);
            if lacks.is_some_and(|lacks| self.send_unasked(peer, lacks, had, now)) {
                left -= lacks.map_or(0, |lacks| lacks.messages);
            } else {
                // Also to the member that has told us of it, as the answer.
                self.send(peer, Body::Have { follows: false });
            }
            self.tell_later(peer, now);
        }
    }

    fn whole_is_due(&mut self, to: &PublicKey, now: Instant) -> bool {
        self.peers.get_mut(&to.0).is_some_and(|peer| peer.unasked.take(WHOLE_OF_ONE, now))
    }

    /// The requests that members with the roster `before` would send. `None` if this is no server, or if they are too
    /// many.
    fn unasked(&self, before: Option<&Roster>) -> Option<Unasked> {
        let roster = self.roster.as_ref().filter(|_| self.server.is_some())?;
        let head = roster.head();
        if before.is_none() && head.shards.len() >= MOST {
            return None;
        }
        let known: HashSet<_> = match before {
            None => HashSet::new(),
            Some(before) if before.head().bits == head.bits => {
                before.head().shards.iter().chain([&before.head().settings]).copied().collect()
            }
            Some(before) => before.parts(head.bits).into_keys().collect(),
        };
        let parts: Vec<_> = [Part::Head].into_iter().chain(lacking(head, |digest| known.contains(digest))).collect();
        let of_parts = parts.iter().filter_map(|part| bytes_of(roster, *part));
        let of_parts: usize = of_parts.map(|bytes| bytes.len().div_ceil(CHUNK).max(1)).sum();
        let has_key = |key: &PublicKey| roster.member(key).is_some_and(|it| !matches!(it.role, Role::Client(_)));
        let others: Vec<_> = match before {
            // All pairs have new keys, so members ask for them.
            Some(before) if before.settings().pair_secret != roster.settings().pair_secret => Vec::new(),
            Some(before) => roster.changes_since(before).added,
            None => roster.members().map(|member| member.public_key).collect(),
        };
        let most = MOST_WITH_KEYS * MAX_KEYS;
        let others: Vec<_> = others.into_iter().filter(has_key).take(most).map(|key| (key, key_name(&key))).collect();
        let messages = of_parts + others.len().div_ceil(MAX_KEYS);
        (messages <= MOST).then_some(Unasked { parts, others, messages })
    }

    /// Sends a member what it would ask for. Returns false if that is not permitted: the member must not have moved
    /// since its session began, so that nobody else receives what was not requested.
    fn send_unasked(&mut self, to: &PublicKey, unasked: &Unasked, had: Option<&Roster>, now: Instant) -> bool {
        let (Some(peer), Some(roster)) = (self.peers.get_mut(&to.0), self.roster.clone()) else { return false };
        let sheet = roster.holder(to).filter(|own| {
            let had = had.and_then(|had| had.holder(to)).and_then(|own| own.sheet_digest());
            had != own.sheet_digest()
        });
        let sheet = sheet.and_then(|own| roster.sheet_number(own).zip(roster.sheet(own)));
        // A long sheet has to be requested: a receiver keeps only a few parts before it knows that it wants them, and
        // loses the rest.
        let of_sheet = sheet.map_or(0, |(_, bytes)| bytes.len().div_ceil(CHUNK));
        let sheet = sheet.filter(|_| unasked.messages + of_sheet <= MOST).map(|(number, _)| Part::Sheet(number));
        let count = (unasked.messages + if sheet.is_some() { of_sheet } else { 0 }) as u32;
        if peer.moved_until > now
            || !peer.answers.take_many(count, OF_ONE, now)
            || !self.answers.take_many(count, OF_ALL, now)
        {
            return false;
        }
        self.send(to, Body::Have { follows: true });
        for part in unasked.parts.iter().chain(&sheet) {
            let Some(whole) = bytes_of(&roster, *part) else { continue };
            let total = whole.len() as u32;
            for offset in (0..total.max(1)).step_by(CHUNK) {
                let rest = &whole[offset as usize..];
                let bytes = &rest[..rest.len().min(CHUNK)];
                self.send(to, Body::Part { part: *part, offset, total, bytes });
            }
        }
        let others = unasked.others.iter().filter(|(other, _)| other != to);
        let names: Vec<_> = others.map(|(_, name)| *name).collect();
        names.chunks(MAX_KEYS).for_each(|names| self.send_keys(to, names));
        true
    }

    /// Whether a long answer to a member is permitted: `rate` decides with its bucket and the bucket of all, unless it
    /// has moved recently.
    pub(super) fn may_answer(
        &mut self,
        to: &PublicKey,
        rate: impl FnOnce(&mut Bucket, &mut Bucket) -> bool,
        now: Instant,
    ) -> bool {
        let Some(peer) = self.peers.get_mut(&to.0) else { return false };
        if peer.moved_until > now {
            return peer.answers_moved.take(OF_ONE_MOVED, now) && self.answers_to_moved.take(OF_ALL_MOVED, now);
        }
        rate(&mut peer.answers, &mut self.answers)
    }

    /// Answers a request for bytes of a part.
    pub(super) fn answer(&mut self, from: &PublicKey, version: Version, part: Part, offset: u32, now: Instant) {
        if !self.is_told(from)
            || !self.may_answer(from, |peer, all| peer.take(OF_ONE, now) && all.take(OF_ALL, now), now)
        {
            return;
        }
        let Some(roster) = self.roster.clone().filter(|roster| roster.version() == version) else {
            self.send(from, Body::Have { follows: false });
            return;
        };
        // A sheet is only sent to members that enforce it, and to servers.
        if let Part::Sheet(number) = part
            && !roster.sheets_for(from).contains(&number)
        {
            return;
        }
        let Some(whole) = bytes_of(&roster, part) else { return };
        let total = whole.len() as u32;
        let Some(rest) = whole.get(offset as usize..) else { return };
        self.send(from, Body::Part { part, offset, total, bytes: &rest[..rest.len().min(CHUNK)] });
    }
}

/// The bytes of a part. `None` if there is no such part.
fn bytes_of(roster: &Roster, part: Part) -> Option<Cow<'_, [u8]>> {
    match part {
        Part::Head => Some(roster.head_bytes().into()),
        Part::Settings => Some(roster.settings_bytes().into()),
        Part::Sheet(number) => roster.sheet_bytes(number).map(|sheet| Cow::Borrowed(&**sheet)),
        Part::Shard(index) => roster.shard_bytes(usize::from(index)).map(|shard| Cow::Borrowed(&**shard)),
    }
}
