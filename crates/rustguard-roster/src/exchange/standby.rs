//! How the state of the issuing server comes to its standbys: further servers that can take its place.
//!
//! The issuer says which state it has, and says it again until the standby has it on its disk. The standby asks for the
//! list of pieces, and for those of them that it does not have. Only a state that the network's key has signed is
//! taken, and only one that is newer, so no other server can put one in its place.

use super::{Exchange, Output, REMINDER, REMINDERS};
use crate::{
    digest::{self, Digest},
    message::{Body, STATE_CHUNK},
    requests::{Inconsistent, Requests},
    server_state::{MAX_LIST, MAX_PIECE, ServerState, StateHead, entries},
};
use rustguard_core::{agenda::Agenda, limit::Rate, time::Instant};
use rustguard_crypto::x25519::PublicKey;
use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    time::Duration,
};
use zeroize::Zeroizing;

/// How often one server may say another state.
const HEADS: Rate = Rate { interval: Duration::from_millis(50), burst: 32 };
/// Pieces for one standby: a state of 3 MB at once, and a megabyte a second after that.
const PIECES: Rate = Rate { interval: Duration::from_millis(1), burst: 4_000 };
/// Another server that has the same state is asked when the one that is asked has said nothing for so long.
const QUIET: Duration = Duration::from_secs(1);
/// How often who is silent is asked for all that is missing again.
const ATTEMPTS: u8 = 8;

/// What the issuing server tells its standbys.
#[derive(Default)]
pub(super) struct Told {
    state: Option<ServerState>,
    standbys: BTreeMap<[u8; 32], Standby>,
    /// When they are told again.
    reminders: Agenda<[u8; 32]>,
}

#[derive(Default)]
struct Standby {
    /// The number and the time of what it has on its disk.
    stored: Option<(u64, u64)>,
    reminders: u8,
}

/// What a standby has of the issuing server's state.
#[derive(Default)]
pub(super) struct Kept {
    state: Option<ServerState>,
    /// Whether that is on the disk.
    is_stored: bool,
    /// Who told it.
    from: Option<PublicKey>,
    fetch: Option<StateFetch>,
}

/// A state on its way.
struct StateFetch {
    from: PublicKey,
    head: StateHead,
    list: Option<Zeroizing<Vec<u8>>>,
    requests: Requests<Digest>,
    pieces: HashMap<Digest, Zeroizing<Vec<u8>>>,
    heard: Instant,
    /// How often it has begun again without an answer.
    attempts: u8,
}

impl Kept {
    pub(super) fn new(stored: Option<ServerState>) -> Self {
        Self { is_stored: stored.is_some(), state: stored, from: None, fetch: None }
    }

    pub(super) fn deadline(&self) -> Option<Instant> {
        self.fetch.as_ref().and_then(|fetch| fetch.requests.deadline())
    }
}

impl Told {
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.reminders.deadline()
    }
}

/// On the issuing server.
impl Exchange {
    /// Sets the state of the issuing server, and the further servers that may have it: who has it can be the server.
    pub fn tell_state(&mut self, state: ServerState, standbys: impl IntoIterator<Item = PublicKey>, now: Instant) {
        let before = std::mem::take(&mut self.told);
        let mut known = before.standbys;
        let standbys = standbys.into_iter().map(|key| (key.0, known.remove(&key.0).unwrap_or_default()));
        self.told = Told { state: Some(state), standbys: standbys.collect(), reminders: Agenda::default() };
        let connected = self.told.standbys.keys().filter(|key| self.peers.contains_key(*key));
        for key in connected.copied().collect::<Vec<_>>() {
            self.tell_standby_anew(&PublicKey(key), now);
        }
    }

    /// The standbys, and when the state was made that each has on its disk, in milliseconds since 1970.
    pub fn standbys(&self) -> impl Iterator<Item = (PublicKey, Option<u64>)> {
        self.told.standbys.iter().map(|(key, standby)| (PublicKey(*key), standby.stored.map(|(_, made)| made)))
    }

    /// Tells a standby of the state, and begins to count how often.
    pub(super) fn tell_standby_anew(&mut self, to: &PublicKey, now: Instant) {
        if let Some(standby) = self.told.standbys.get_mut(&to.0) {
            standby.reminders = 0;
            self.tell_standby(to, now);
        }
    }

    fn tell_standby(&mut self, to: &PublicKey, now: Instant) {
        let Some(head) = self.told.state.as_ref().map(|state| state.head) else { return };
        let Some(standby) = self.told.standbys.get_mut(&to.0) else { return };
        let is_due = standby.stored != Some(head.order()) && standby.reminders < REMINDERS;
        let at = is_due.then(|| now + REMINDER * (1 << standby.reminders));
        self.told.reminders.plan(to.0, at.filter(|_| self.peers.contains_key(&to.0)));
        if is_due {
            standby.reminders += 1;
            self.send(to, Body::State(Box::new(head)));
        }
    }

    pub(super) fn remind_standbys(&mut self, now: Instant) {
        for standby in self.told.reminders.take_all_due(now) {
            self.tell_standby(&PublicKey(standby), now);
        }
    }

    /// Answers a question for bytes of a piece.
    pub(super) fn answer_state(&mut self, from: &PublicKey, piece: Digest, offset: u32, now: Instant) {
        let may_have = self.told.standbys.contains_key(&from.0);
        let Some(peer) = self.peers.get_mut(&from.0).filter(|_| may_have) else { return };
        if !peer.pieces.take(PIECES, now) {
            return;
        }
        let Some(state) = self.told.state.clone() else { return };
        let Some(whole) = state.piece(&piece) else {
            // It is of the state before.
            return self.send(from, Body::State(Box::new(state.head)));
        };
        let Some(rest) = whole.get(offset as usize..) else { return };
        let bytes = &rest[..rest.len().min(STATE_CHUNK)];
        self.send(from, Body::StatePiece { piece, offset, total: whole.len() as u32, bytes });
    }

    /// A standby has a state on its disk.
    pub(super) fn take_stored(&mut self, from: &PublicKey, stored: (u64, u64)) {
        let present = self.told.state.as_ref().map(|state| state.head.order());
        if let Some(standby) = self.told.standbys.get_mut(&from.0).filter(|_| Some(stored) <= present) {
            standby.stored = Some(stored);
            if Some(stored) == present {
                self.told.reminders.remove(&from.0);
            }
        }
    }
}

/// On a standby.
impl Exchange {
    /// Lets this further server keep the state of the issuing server ([`Output::State`]). `stored` is the one on its
    /// disk.
    #[must_use]
    pub fn keeping_state(self, stored: Option<ServerState>) -> Self {
        Self { kept: Some(Kept::new(stored)), ..self }
    }

    /// The state of the last [`Output::State`] is on the disk: the issuing server is told so.
    pub fn state_stored(&mut self) {
        let Some(kept) = &mut self.kept else { return };
        kept.is_stored = true;
        if let (Some(state), Some(from)) = (&kept.state, kept.from) {
            let (number, made) = state.head.order();
            self.send(&from, Body::StateStored { number, made });
        }
    }

    /// A server says which state it has.
    pub(super) fn hear_of_state(&mut self, from: &PublicKey, head: StateHead, now: Instant) {
        let (network, is_server) = (self.network, self.is_server(from));
        let (Some(kept), Some(peer)) = (&mut self.kept, self.peers.get_mut(&from.0)) else { return };
        if !is_server || !peer.heads.take(HEADS, now) {
            return;
        }
        if let Some(state) = kept.state.as_ref().filter(|state| state.head.order() >= head.order()) {
            if state.head == head {
                kept.from = Some(*from);
                if kept.is_stored {
                    self.state_stored();
                } else {
                    self.outputs.push_back(Output::State(state.clone()));
                }
            }
            return;
        }
        if let Some(fetch) = &kept.fetch {
            let is_newer = head.order() > fetch.head.order();
            let replaces = head == fetch.head && fetch.from != *from && now.since(fetch.heard) >= QUIET;
            if !is_newer && !replaces {
                return;
            }
        }
        if !head.is_of(&network) {
            return;
        }
        let pieces = kept.fetch.take().map_or_else(HashMap::new, |fetch| fetch.pieces);
        let requests = Requests::new(head.list, STATE_CHUNK, now);
        kept.fetch = Some(StateFetch { from: *from, head, list: None, requests, pieces, heard: now, attempts: 0 });
        self.ask_for_state(now);
    }

    /// Asks for what is missing of the state that is on its way. Who stays silent is lost, and says it again in its
    /// next session.
    pub(super) fn ask_for_state(&mut self, now: Instant) {
        let Some(kept) = &mut self.kept else { return };
        if let Some(fetch) = kept.fetch.as_mut().filter(|fetch| fetch.requests.is_silent(now))
            && !fetch.begin_again(kept.state.as_ref(), now)
        {
            kept.fetch = None;
        }
        let mut wanted = Vec::new();
        if let Some(fetch) = &mut kept.fetch {
            while let Some((place, _)) = fetch.requests.next(now) {
                wanted.push((fetch.from, place));
            }
        }
        for (from, (piece, offset)) in wanted {
            self.send(&from, Body::GetState { piece, offset });
        }
    }

    /// Takes bytes of a piece.
    pub(super) fn take_piece(
        &mut self,
        from: &PublicKey,
        (piece, offset): (Digest, u32),
        total: u32,
        bytes: &[u8],
        now: Instant,
    ) {
        let Some(kept) = &mut self.kept else { return };
        let Some(fetch) = kept.fetch.as_mut().filter(|fetch| fetch.from == *from) else { return };
        if !fetch.requests.is_answer(&(piece, offset), now) {
            return;
        }
        (fetch.heard, fetch.attempts) = (now, 0);
        let most = if piece == fetch.head.list { MAX_LIST } else { MAX_PIECE };
        let taken = fetch.requests.take((piece, offset), total, bytes, most);
        let is_sound = match taken {
            Ok(None) => true,
            Ok(Some(whole)) => digest::of_state(&whole) == piece && fetch.complete(piece, whole, kept.state.as_ref()),
            Err(Inconsistent) => false,
        };
        if !is_sound {
            kept.fetch = None;
            return;
        }
        match fetch.assembled(kept.state.as_ref()) {
            Some(state) => {
                (kept.fetch, kept.state, kept.is_stored, kept.from) = (None, Some(state.clone()), false, Some(*from));
                self.outputs.push_back(Output::State(state));
            }
            None => self.ask_for_state(now),
        }
    }

    /// There is no session any more.
    pub(super) fn standby_gone(&mut self, peer: &PublicKey) {
        self.told.reminders.remove(&peer.0);
        if let Some(kept) = &mut self.kept {
            kept.fetch.take_if(|fetch| fetch.from == *peer);
        }
    }
}

impl StateFetch {
    /// Takes a piece that is what its digest says, or the list of pieces. False if that is none.
    fn complete(&mut self, piece: Digest, whole: Zeroizing<Vec<u8>>, before: Option<&ServerState>) -> bool {
        if self.list.is_some() || piece != self.head.list {
            self.pieces.insert(piece, whole);
            return true;
        }
        let Some(entries) = entries(&whole) else { return false };
        let listed: BTreeSet<_> = entries.map(|(digest, _)| digest).collect();
        // What is left of a state before that one is of no use any more.
        self.pieces.retain(|digest, _| listed.contains(digest));
        self.list = Some(whole);
        self.want_missing(before);
        true
    }

    /// Asks for the pieces of the list that are not here.
    fn want_missing(&mut self, before: Option<&ServerState>) {
        let listed: BTreeSet<_> =
            self.list.iter().filter_map(|list| entries(list)).flatten().map(|(digest, _)| digest).collect();
        let is_here = |digest: &Digest| {
            self.pieces.contains_key(digest) || before.is_some_and(|before| before.piece(digest).is_some())
        };
        let missing: Vec<_> = listed.into_iter().filter(|digest| !is_here(digest)).collect();
        self.requests.want(missing);
    }

    /// Asks anew for all that is missing. False where that was done often enough.
    fn begin_again(&mut self, before: Option<&ServerState>, now: Instant) -> bool {
        self.attempts += 1;
        self.requests = Requests::new(self.head.list, STATE_CHUNK, now);
        if self.list.is_some() {
            self.want_missing(before);
        }
        self.attempts <= ATTEMPTS
    }

    /// The state, if nothing is missing.
    fn assembled(&self, before: Option<&ServerState>) -> Option<ServerState> {
        let list = self.list.as_ref().filter(|_| self.requests.is_empty())?;
        let len = entries(list)?.map(|(_, len)| len).sum();
        // The capacity is exact, because a vector that grows leaves copies of keys behind.
        let mut text = Zeroizing::new(Vec::with_capacity(len));
        for (digest, _) in entries(list)? {
            let piece = self.pieces.get(&digest).map(|piece| &piece[..]);
            text.extend_from_slice(piece.or_else(|| before?.piece(&digest))?);
        }
        ServerState::assembled(self.head, list.to_vec(), text)
    }
}
