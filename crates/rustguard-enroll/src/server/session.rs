//! The server's state between the datagrams of one exchange. It lasts for seconds and its size is bounded.
use crate::{
    approval::ApprovalCode,
    lease::TokenId,
    limits::Source,
    payload::Joiner,
    schedule::{ClaimKeys, Keys, seal},
    wire::{self, Index, WELCOME},
};
use core::time::Duration;
use rand_core::CryptoRng;
use rustguard_core::{time::Instant, wire::TIMESTAMP_LEN};
use rustguard_crypto::x25519::PublicKey;
use std::{collections::BTreeMap, net::SocketAddr};

/// The largest number of sessions. Only holders of a valid invite, or the five guesses of a window, create any.
pub(crate) const MAX_SESSIONS: usize = 1024;
/// The largest number of sessions of one invite. Its holders therefore cannot keep others out.
pub(crate) const MAX_PER_INVITE: usize = 256;
/// How long a session waits for the joiner's next message. The joiner repeats messages at least every second.
pub(crate) const SESSION_TIME: Duration = Duration::from_secs(15);
/// How long a server's share waits for the proof. This limits the rate of guesses.
pub(crate) const SHARE_TIME: Duration = Duration::from_secs(10);
/// How long a joiner waits for approval.
pub(crate) const APPROVAL_TIME: Duration = Duration::from_secs(5 * 60);

/// One exchange. A repeated message gets the same answer again.
pub(crate) struct Session {
    /// The joiner's index.
    pub(crate) receiver: Index,
    /// The server's key in this exchange. The server's present key may change meanwhile.
    pub(crate) server: PublicKey,
    /// Hash of the first message.
    pub(crate) first: [u8; 32],
    /// The answer to it.
    pub(crate) answer: Vec<u8>,
    pub(crate) keys: Keys,
    pub(crate) via: Via,
    /// The joiner, once its identity is authentic.
    pub(crate) joiner: Option<Joiner>,
    pub(crate) stage: Stage,
    /// Hash of the proof, and its current answer, the welcome.
    pub(crate) welcome: Option<([u8; 32], Vec<u8>)>,
    /// The number of welcomes sealed so far. Each one uses a counter value.
    pub(crate) welcomes: u64,
    /// Computed once, because it costs a multiplication.
    pub(crate) claim_keys: Option<ClaimKeys>,
    pub(crate) until: Instant,
}

/// The entitlement of the joiner: an invite or a window.
#[derive(Clone)]
pub(crate) enum Via {
    /// The timestamp of an initiation that proved the joiner's key. An initiation of an older program has no proof.
    Invite {
        id: TokenId,
        proven: Option<[u8; TIMESTAMP_LEN]>,
    },
    Window {
        serial: u64,
        source: Source,
        commitment: [u8; 32],
        approve: bool,
    },
}

/// The progress of a session.
pub(crate) enum Stage {
    /// The share was sent, and the proof has not arrived.
    Shared,
    /// An administrator has to decide.
    Waiting { code: ApprovalCode, from: SocketAddr },
    /// The joiner may claim its lease.
    Welcomed,
    /// Refused. The session only repeats its answer.
    Refused,
    /// The lease is durable: hash of the claim, and the grant.
    Granted([u8; 32], Vec<u8>),
}

impl Session {
    /// Seals `greeting` into the welcome. From now on it answers the proof with this hash.
    pub(crate) fn answer_proof(&mut self, proof: [u8; 32], greeting: &[u8]) {
        let counter = self.welcomes;
        self.welcomes += 1;
        let mut message = wire::build(WELCOME, &[&self.receiver, &counter.to_le_bytes()]);
        seal(self.keys.to_client(), counter, &mut message, greeting);
        self.welcome = Some((proof, message));
    }

    /// Whether the session may still result in a lease by way of a window.
    pub(crate) fn needs_window(&self) -> bool {
        matches!(self.via, Via::Window { .. }) && matches!(self.stage, Stage::Waiting { .. } | Stage::Welcomed)
    }

    pub(crate) fn is_guess_of(&self, window: u64) -> bool {
        matches!(self.stage, Stage::Shared) && matches!(self.via, Via::Window { serial, .. } if serial == window)
    }

    fn is_of(&self, invite: &TokenId) -> bool {
        matches!(&self.via, Via::Invite { id, .. } if id == invite)
    }
}

/// All sessions, by the index that the server chose.
#[derive(Default)]
pub(crate) struct Sessions {
    by_index: BTreeMap<Index, Session>,
    by_first: BTreeMap<[u8; 32], Index>,
}

impl Sessions {
    /// An unused index.
    pub(crate) fn fresh_index(&self, rng: &mut impl CryptoRng) -> Index {
        loop {
            let mut index = [0; 8];
            rng.fill_bytes(&mut index);
            if !self.by_index.contains_key(&index) {
                return index;
            }
        }
    }

    pub(crate) fn is_full(&self) -> bool {
        self.by_index.len() >= MAX_SESSIONS
    }

    /// The live session of an index.
    pub(crate) fn get(&mut self, index: &Index, now: Instant) -> Option<&mut Session> {
        self.by_index.get_mut(index).filter(|session| now < session.until)
    }

    /// The answer to a first message that was already answered.
    pub(crate) fn answer(&self, first: &[u8; 32], now: Instant) -> Option<&[u8]> {
        let session = self.by_index.get(self.by_first.get(first)?)?;
        (now < session.until).then_some(&session.answer)
    }

    pub(crate) fn insert(&mut self, index: Index, session: Session) {
        self.by_first.insert(session.first, index);
        self.by_index.insert(index, session);
    }

    pub(crate) fn remove(&mut self, index: &Index) -> Option<Session> {
        let session = self.by_index.remove(index)?;
        if self.by_first.get(&session.first) == Some(index) {
            self.by_first.remove(&session.first);
        }
        Some(session)
    }

    pub(crate) fn retain(&mut self, mut keep: impl FnMut(&mut Session) -> bool) {
        self.by_index.retain(|_, session| keep(session));
        let by_index = &self.by_index;
        self.by_first.retain(|_, index| by_index.contains_key(index));
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Session> {
        self.by_index.values()
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Session> {
        self.by_index.values_mut()
    }

    /// The session, by one invite, of the machine that has proved this key, and its timestamp.
    pub(crate) fn of_machine(
        &self,
        invite: &TokenId,
        joiner: &PublicKey,
        now: Instant,
    ) -> Option<(Index, [u8; TIMESTAMP_LEN])> {
        self.by_index.iter().find_map(|(index, session)| match &session.via {
            Via::Invite { id, proven: Some(timestamp) } if id == invite && now < session.until => {
                (session.joiner.as_ref()?.public_key == *joiner).then_some((*index, *timestamp))
            }
            _ => None,
        })
    }

    /// Live sessions of one invite.
    pub(crate) fn count_of_invite(&self, invite: &TokenId, now: Instant) -> usize {
        self.iter().filter(|session| session.is_of(invite) && now < session.until).count()
    }

    /// Whether a guess from this source is in progress.
    pub(crate) fn guesses_from(&self, from: Source, now: Instant) -> bool {
        self.iter().any(|session| {
            matches!(session.stage, Stage::Shared)
                && now < session.until
                && matches!(session.via, Via::Window { source, .. } if source == from)
        })
    }

    /// When the next session ends.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.iter().map(|session| session.until).min()
    }
}
