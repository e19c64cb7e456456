//! How the state of the issuing server reaches its standbys: further servers that can take its place.
//!
//! The issuer announces its state, and repeats this until the standby has the state on its disk. The standby asks for
//! the list of pieces, and for the pieces that it lacks. It accepts only a state that is newer and signed by the
//! network's key, so no other server can supply a different one.

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

/// How often one server may announce another state.
const HEADS: Rate = Rate { interval: Duration::from_millis(50), burst: 32 };
/// Pieces for one standby: a state of 3 MB at once, and then a megabyte a second.
const PIECES: Rate = Rate { interval: Duration::from_millis(1), burst: 4_000 };
/// If the server that is asked is silent for this long, another server with the same state is asked.
const QUIET: Duration = Duration::from_secs(1);
/// How often a silent server is asked again for all that is missing.
const ATTEMPTS: u8 = 8;

/// The state that the issuing server sends to its standbys.
#[derive(Default)]
pub(super) struct Told {
    state: Option<ServerState>,
    standbys: BTreeMap<[u8; 32], Standby>,
    /// When the standbys are told again.
    reminders: Agenda<[u8; 32]>,
}

#[derive(Default)]
struct Standby {
    /// The number and the time of the state on its disk.
    stored: Option<(u64, u64)>,
    reminders: u8,
}

/// A standby's copy of the issuing server's state.
#[derive(Default)]
pub(super) struct Kept {
    state: Option<ServerState>,
    /// Whether the state is on the disk.
    is_stored: bool,
    /// The server that sent it.
    from: Option<PublicKey>,
    fetch: Option<StateFetch>,
}

/// A state that is being fetched.
struct StateFetch {
    from: PublicKey,
    head: StateHead,
    list: Option<Zeroizing<Vec<u8>>>,
    requests: Requests<Digest>,
    pieces: HashMap<Digest, Zeroizing<Vec<u8>>>,
    heard: Instant,
    /// How many restarts had no answer.
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
    /// Sets the state of the issuing server, and the further servers that may have it. With the state, a machine can
    /// act as the server.
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

    /// The standbys, and when the state on the disk of each was made, in milliseconds since 1970.
    pub fn standbys(&self) -> impl Iterator<Item = (PublicKey, Option<u64>)> {
        self.told.standbys.iter().map(|(key, standby)| (PublicKey(*key), standby.stored.map(|(_, made)| made)))
    }

    /// Announces the state to a standby, and restarts the count of reminders.
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

    /// Answers a request for bytes of a piece.
    pub(super) fn answer_state(&mut self, from: &PublicKey, piece: Digest, offset: u32, now: Instant) {
        let may_have = self.told.standbys.contains_key(&from.0);
        let Some(peer) = self.peers.get_mut(&from.0).filter(|_| may_have) else { return };
        if !peer.pieces.take(PIECES, now) {
            return;
        }
        let Some(state) = self.told.state.clone() else { return };
        let Some(whole) = state.piece(&piece) else {
            // The piece belongs to an earlier state.
            return self.send(from, Body::State(Box::new(state.head)));
        };
        let Some(rest) = whole.get(offset as usize..) else { return };
        let bytes = &rest[..rest.len().min(STATE_CHUNK)];
        self.send(from, Body::StatePiece { piece, offset, total: whole.len() as u32, bytes });
    }

    /// A standby reports that it has a state on its disk.
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
    /// Makes this further server keep the state of the issuing server ([`Output::State`]). `stored` is the state on its
    /// disk.
    #[must_use]
    pub fn keeping_state(self, stored: Option<ServerState>) -> Self {
        Self { kept: Some(Kept::new(stored)), ..self }
    }

    /// The state of the last [`Output::State`] is on the disk: the issuing server is informed.
    pub fn state_stored(&mut self) {
        let Some(kept) = &mut self.kept else { return };
        kept.is_stored = true;
        if let (Some(state), Some(from)) = (&kept.state, kept.from) {
            let (number, made) = state.head.order();
            self.send(&from, Body::StateStored { number, made });
        }
    }

    /// A server announces its state.
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

    /// Requests the missing parts of the state that is being fetched. A silent server is given up. It announces the
    /// state again in its next session.
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

    /// The session with this server has ended.
    pub(super) fn standby_gone(&mut self, peer: &PublicKey) {
        self.told.reminders.remove(&peer.0);
        if let Some(kept) = &mut self.kept {
            kept.fetch.take_if(|fetch| fetch.from == *peer);
        }
    }
}

impl StateFetch {
    /// Takes a piece that matches its digest, or the list of pieces. False if the list is malformed.
    fn complete(&mut self, piece: Digest, whole: Zeroizing<Vec<u8>>, before: Option<&ServerState>) -> bool {
        if self.list.is_some() || piece != self.head.list {
            self.pieces.insert(piece, whole);
            return true;
        }
        let Some(entries) = entries(&whole) else { return false };
        let listed: BTreeSet<_> = entries.map(|(digest, _)| digest).collect();
        // Pieces that only an earlier state contained are useless now.
        self.pieces.retain(|digest, _| listed.contains(digest));
        self.list = Some(whole);
        self.want_missing(before);
        true
    }

    /// Requests the pieces of the list that are not here.
    fn want_missing(&mut self, before: Option<&ServerState>) {
        let listed: BTreeSet<_> =
            self.list.iter().filter_map(|list| entries(list)).flatten().map(|(digest, _)| digest).collect();
        let is_here = |digest: &Digest| {
            self.pieces.contains_key(digest) || before.is_some_and(|before| before.piece(digest).is_some())
        };
        let missing: Vec<_> = listed.into_iter().filter(|digest| !is_here(digest)).collect();
        self.requests.want(missing);
    }

    /// Requests again all that is missing. False if that was done too often.
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
