//! How a roster reaches all members: a member with a newer roster says so, and a member with an older one asks for the
//! parts that differ.
//!
//! The embedder reports who is connected, hands over received messages, and sends the outputs. All messages travel
//! inside the sessions of members, so the sender of each message is known. A member trusts only the network's key, not
//! the version number that another member claims. It does not ask for a roster that is not newer than its own, and does
//! not accept one that is not signed.

mod fetching;
mod keys;
mod parts;
mod secret;
mod standby;
mod statements;

use crate::{
    fetch::{Fetch, Parts, Progress},
    head::Version,
    key::NetworkKey,
    member::Role,
    message::{Body, Message},
    pair::{PairSecret, SecretId},
    reports::Reports,
    roster::Roster,
    server_state::ServerState,
    statement::{Statement, StatementDigest},
    trust::Trust,
};
use fetching::{DISTRUST, PAUSE};
use keys::EarlyKeys;
use parts::{NONE, OF_ONE};
use rustguard_core::{
    agenda::Agenda, constants::REJECT_AFTER_TIME, limit::Bucket, preshared_key::PresharedKey, time::Instant,
};
use rustguard_crypto::x25519::PublicKey;
use secret::Server;
use standby::{Kept, Told};
use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
    time::Duration,
};
use zeroize::Zeroizing;

/// The first pause before a member is told again which roster is here. Each pause is twice as long as the one before.
const REMINDER: Duration = Duration::from_millis(250);
/// How often a member is told.
const REMINDERS: u8 = 6;
/// A member that repeats the version that is also here did not hear so from here. It gets an answer if it was told
/// nothing for this long. The time is longer than a round trip, so that two members that both know do not answer each
/// other's answers, and shorter than all reminders together take.
const UNHEARD: Duration = Duration::from_secs(5);

/// An action for the embedder.
#[derive(Debug)]
#[non_exhaustive]
pub enum Output {
    /// Send this text to the member, in its session. It may be lost.
    Send {
        /// The member.
        to: PublicKey,
        /// The text of a transport message.
        text: Zeroizing<Vec<u8>>,
    },
    /// There is a newer roster. It is here already: [`Exchange::roster`].
    Newer,
    /// A server has sent the preshared key of the pair of this member and the one here.
    PresharedKey {
        /// The other member.
        member: PublicKey,
        /// The pair secret that the key is derived from.
        of: SecretId,
        /// The key.
        key: PresharedKey,
    },
    /// A member makes a statement about itself that is not known to be stored. The embedder calls [`Exchange::stored`]
    /// once it is.
    Statement {
        /// The member.
        from: PublicKey,
        /// Its statement.
        statement: Statement,
    },
    /// The issuing server has sent the secret from which the keys of pairs are derived. The embedder stores it, and
    /// passes it to [`Exchange::for_server`] at the next start. `None`: this machine is no longer a server, and the
    /// stored secret is to be deleted.
    PairSecret(Option<PairSecret>),
    /// This standby has received the issuing server's newest state completely. The embedder replaces the stored state
    /// with it, and then calls [`Exchange::state_stored`].
    State(ServerState),
}

/// One member's part in the distribution of rosters.
pub struct Exchange {
    network: NetworkKey,
    /// The key of this machine, if it accepts rosters of others.
    own: Option<PublicKey>,
    roster: Option<Arc<Roster>>,
    /// The keys of pairs are derived from it. Only servers have it.
    pair_secret: Option<PairSecret>,
    /// How this exchange uses the pair secret.
    server: Option<Server>,
    peers: BTreeMap<[u8; 32], Peer>,
    /// When members are told again which roster is here. A server has thousands of peers and hears each of them, so no
    /// message may cause a walk over all peers.
    reminders: Agenda<[u8; 32]>,
    /// The members that claim to have a newer roster than the one here.
    newer: BTreeSet<[u8; 32]>,
    fetch: Option<Fetch>,
    trust: Trust,
    /// The members whose pair with this one has no preshared key here.
    without_key: BTreeSet<[u8; 32]>,
    /// Keys that a server has sent before they were wanted, and the secret that they are derived from.
    early_keys: Option<EarlyKeys>,
    /// When keys are asked for again, and how many questions had no answer.
    asked_keys: Option<Instant>,
    unanswered: u32,
    /// Which server is asked for keys next.
    turn: usize,
    answers: Bucket,
    answers_to_moved: Bucket,
    statements: Bucket,
    /// This member's statement about itself, and which servers have it.
    reports: Reports,
    /// Whether this exchange accepts the statements of members about themselves.
    takes_statements: bool,
    /// The state that standbys get from here, and the state that this standby keeps.
    told: Told,
    kept: Option<Kept>,
    outputs: VecDeque<Output>,
}

/// A connected peer.
#[derive(Default)]
struct Peer {
    /// A roster here contains, or contained, this member since the session began. A device also has other peers. A
    /// removed member has to learn of its removal.
    belongs: bool,
    has: Option<Version>,
    /// The same, including what it said in earlier sessions.
    said: Option<Version>,
    /// When it was last told which roster is here.
    told_at: Option<Instant>,
    /// The roster that it sends without being asked.
    sends: Option<Version>,
    reminders: u8,
    answers: Bucket,
    /// The peer counts as moved until this time.
    moved_until: Instant,
    answers_moved: Bucket,
    unasked: Bucket,
    statements: Bucket,
    /// Limits for the states that it may announce, and for the pieces of the state here that it may ask for.
    heads: Bucket,
    pieces: Bucket,
    /// Its statement that is stored.
    stored: Option<StatementDigest>,
}

impl Exchange {
    /// Begins with the roster that is on disk, if there is one.
    pub fn new(network: NetworkKey, roster: Option<Roster>) -> Self {
        Self {
            network,
            own: None,
            roster: roster.map(Arc::new),
            pair_secret: None,
            server: None,
            peers: BTreeMap::new(),
            reminders: Agenda::default(),
            newer: BTreeSet::new(),
            fetch: None,
            trust: Trust::default(),
            without_key: BTreeSet::new(),
            early_keys: None,
            asked_keys: None,
            unanswered: 0,
            turn: 0,
            answers: Bucket::default(),
            answers_to_moved: Bucket::default(),
            statements: Bucket::default(),
            reports: Reports::default(),
            takes_statements: false,
            told: Told::default(),
            kept: None,
            outputs: VecDeque::new(),
        }
    }

    /// The exchange of the member with this key. It accepts a roster only together with the sheets of the network's
    /// policy that this member has to enforce.
    #[must_use]
    pub fn for_member(self, own: PublicKey) -> Self {
        Self { own: Some(own), ..self }
    }

    /// The exchange of the server that issues the rosters. It sends members the keys of their pairs, and sends further
    /// servers the secret.
    #[must_use]
    pub fn with_pair_secret(self, secret: PairSecret) -> Self {
        Self { pair_secret: Some(secret), server: Some(Server::Issuing), ..self }
    }

    /// The exchange of a server that does not issue, with its key. It sends members the keys of their pairs once it has
    /// the secret. The secret is either stored already, or the issuing server sends it to each member with the role of
    /// a server in the roster.
    #[must_use]
    pub fn for_server(self, own: PublicKey, stored: Option<PairSecret>) -> Self {
        Self {
            own: Some(own),
            pair_secret: stored,
            server: Some(Server::Further { own, asks_at: None, asked: 0 }),
            ..self
        }
    }

    /// Replaces the pair secret on the issuing server. The next roster has to name the new one
    /// ([`Settings::pair_secret`]). Then members and servers ask anew.
    ///
    /// [`Settings::pair_secret`]: crate::settings::Settings::pair_secret
    pub fn renew_pair_secret(&mut self, secret: PairSecret) {
        self.pair_secret = Some(secret);
    }

    /// Makes it accept the statements of members about themselves ([`Output::Statement`]). The server that issues the
    /// roster uses this.
    #[must_use]
    pub fn taking_statements(self) -> Self {
        Self { takes_statements: true, ..self }
    }

    /// The newest roster here.
    pub fn roster(&self) -> Option<&Arc<Roster>> {
        self.roster.as_ref()
    }

    /// The connected peers, and the roster that each has, as far as it has said so. That information stays valid when
    /// another session begins.
    pub fn versions(&self) -> impl Iterator<Item = (PublicKey, Option<Version>)> {
        self.peers.iter().map(|(key, peer)| (PublicKey(*key), peer.said))
    }

    /// The next action.
    pub fn next_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// When [`tick`](Self::tick) has something to do.
    pub fn deadline(&self) -> Option<Instant> {
        let reminders = self.reminders.deadline().into_iter();
        let fetch = match &self.fetch {
            Some(fetch) => fetch.deadline(),
            // Another member has a newer one, and may be asked again then.
            None => self.newer.iter().map(|key| self.trust.paused_until(&PublicKey(*key))).min(),
        };
        let secret = match &self.server {
            Some(Server::Further { asks_at, .. }) => *asks_at,
            _ => None,
        };
        let state = self.told.deadline().into_iter().chain(self.kept.as_ref().and_then(Kept::deadline));
        reminders.chain(fetch).chain(self.asked_keys).chain(self.reports.deadline()).chain(secret).chain(state).min()
    }

    /// Takes the roster that was issued here. A roster that is not newer is ignored.
    pub fn issued(&mut self, roster: impl Into<Arc<Roster>>, now: Instant) {
        let roster = roster.into();
        if self.is_newer(roster.version()) {
            self.adopt(roster, now);
        }
    }

    /// A session with this member has begun, the first or a later one. The member is told again which roster is here,
    /// because it may have been without a network meanwhile. The trust record stays, so a member cannot regain trust by
    /// another handshake.
    pub fn connected(&mut self, peer: &PublicKey, now: Instant) {
        let belongs = self.roster.as_ref().is_some_and(|roster| roster.holder(peer).is_some());
        let peer_state = self.peers.entry(peer.0).or_default();
        peer_state.belongs |= belongs;
        (peer_state.has, peer_state.reminders) = (None, 0);
        self.newer.remove(&peer.0);
        self.tell(peer, now);
        self.ask_keys(now);
        self.tell_standby_anew(peer, now);
        if self.is_server(peer) {
            self.reports.begin(peer, now);
            self.state_now(now);
            self.ask_secret_now(now);
        }
    }

    /// The datagrams of this member now come from another address. That shows that it sends them, not that it receives
    /// at that address: with a false source address, anyone with a session can direct answers to any victim. So the
    /// member gets less, at the latest until another session has begun. A sender with a false source cannot begin one.
    pub fn moved(&mut self, peer: &PublicKey, now: Instant) {
        if let Some(peer) = self.peers.get_mut(&peer.0) {
            peer.moved_until = now + REJECT_AFTER_TIME;
        }
    }

    /// The key of a member has changed. Its session continues.
    pub fn renamed(&mut self, before: &PublicKey, peer: &PublicKey) {
        let remind_at = self.reminders.get(&before.0);
        if let Some(state) = self.take_peer(before) {
            self.take_peer(peer);
            if state.has > Some(self.version()) {
                self.newer.insert(peer.0);
            }
            self.reminders.plan(peer.0, remind_at);
            self.peers.insert(peer.0, state);
        }
        self.reports.renamed(before, peer);
        if let Some(fetch) = self.fetch.as_mut().filter(|fetch| fetch.from == *before) {
            fetch.from = *peer;
        }
    }

    /// The session with this member has ended.
    pub fn gone(&mut self, peer: &PublicKey, now: Instant) {
        self.take_peer(peer);
        self.reports.end(peer);
        self.standby_gone(peer);
        if self.fetch.as_ref().is_some_and(|fetch| fetch.from == *peer) {
            self.trust.gone(peer, now);
            self.fetch_again(now);
        }
    }

    /// Sets the members whose preshared key is wanted from a server.
    pub fn want_keys(&mut self, members: impl IntoIterator<Item = PublicKey>, now: Instant) {
        self.without_key = members.into_iter().map(|key| key.0).collect();
        (self.asked_keys, self.unanswered) = (None, 0);
        self.take_early_keys();
        self.ask_keys(now);
    }

    /// Takes the text of a transport message from a member. Other texts, and texts of peers that are not
    /// [connected](Self::connected), are ignored.
    pub fn hear(&mut self, from: &PublicKey, text: &[u8], now: Instant) {
        let Some(Message { version, body }) = Message::parse(text).filter(|_| self.peers.contains_key(&from.0)) else {
            return;
        };
        match body {
            Body::Have { follows } => self.hear_of(from, version, follows, now),
            Body::Get { part, offset } => self.answer(from, version, part, offset, now),
            Body::Part { part, offset, total, bytes } => {
                // Unasked parts may arrive before the message that announces them.
                if self.is_newer(version) && self.peers.get(&from.0).is_some_and(|peer| peer.has != Some(version)) {
                    self.hear_of(from, version, true, now);
                }
                let roster = self.roster.as_deref();
                let Some(fetch) = self.fetch.as_mut().filter(|fetch| fetch.from == *from && fetch.version == version)
                else {
                    return;
                };
                let progress = fetch.take((part, offset), total, bytes, roster, now);
                if fetch.is_proven() {
                    self.trust.proved(from);
                }
                match progress {
                    Progress::Goes => self.ask(now),
                    Progress::Failed => self.distrust(DISTRUST, now),
                    Progress::Done(roster) => {
                        self.fetch = None;
                        self.trust.succeeded(from);
                        self.adopt((*roster).into(), now);
                        self.begin_fetch(now, Parts::default());
                    }
                }
            }
            Body::WantKeys(names) => self.answer_keys(from, &names, now),
            Body::Report(statement) => self.take_statement(from, statement, now),
            Body::Acknowledge(digest) => self.reports.acknowledged(from, digest, now),
            Body::Keys { of, keys } => self.take_keys(from, version, of, keys, now),
            Body::WantSecret => self.answer_secret(from, now),
            Body::Secret(secret) => self.take_secret(from, &secret),
            Body::State(head) => self.hear_of_state(from, *head, now),
            Body::GetState { piece, offset } => self.answer_state(from, piece, offset, now),
            Body::StatePiece { piece, offset, total, bytes } => {
                self.take_piece(from, (piece, offset), total, bytes, now);
            }
            Body::StateStored { number, made } => self.take_stored(from, (number, made)),
        }
    }

    /// Performs the work that is due.
    pub fn tick(&mut self, now: Instant) {
        for peer in self.reminders.take_all_due(now) {
            self.tell(&PublicKey(peer), now);
        }
        match &self.fetch {
            Some(fetch) if fetch.is_lost(self.another_has(fetch), now) => self.distrust(PAUSE, now),
            Some(_) => self.ask(now),
            None => self.begin_fetch(now, Parts::default()),
        }
        if self.asked_keys.is_some_and(|until| until <= now) {
            self.asked_keys = None;
            self.ask_keys(now);
        }
        self.state_now(now);
        self.ask_secret(now);
        self.remind_standbys(now);
        self.ask_for_state(now);
    }

    fn version(&self) -> Version {
        self.roster.as_ref().map_or(NONE, |roster| roster.version())
    }

    fn is_newer(&self, version: Version) -> bool {
        version > self.version()
    }

    fn send(&mut self, to: &PublicKey, body: Body<'_>) {
        let text = Message { version: self.version(), body }.to_bytes();
        self.outputs.push_back(Output::Send { to: *to, text });
    }

    /// Tells a member which roster is here, and plans the next reminder.
    fn tell(&mut self, to: &PublicKey, now: Instant) {
        let (own, is_told) = (self.version(), self.is_told(to));
        let Some(peer) = self.peers.get_mut(&to.0) else { return };
        // It has this roster or a newer one, or is not to be told of it.
        if peer.has >= Some(own) || peer.reminders >= REMINDERS || !is_told {
            self.remind(to, None);
            return;
        }
        let at = now + REMINDER * (1 << peer.reminders);
        (peer.reminders, peer.told_at) = (peer.reminders + 1, Some(now));
        self.remind(to, Some(at));
        self.send(to, Body::Have { follows: false });
    }

    fn adopt(&mut self, roster: Arc<Roster>, now: Instant) {
        let before = self.roster.clone();
        // The roster issued here may be newer than the one that is being fetched.
        if let Some(fetch) = self.fetch.take_if(|fetch| fetch.version <= roster.version()) {
            self.trust.left(&fetch.from);
        }
        self.trust.keep(|key| roster.member(key).is_some() || self.peers.contains_key(&key.0));
        let old_keys: BTreeSet<_> = roster.members().filter_map(|member| member.old_key).map(|key| key.0).collect();
        for (key, peer) in &mut self.peers {
            peer.belongs |= roster.member(&PublicKey(*key)).is_some() || old_keys.contains(key);
        }
        let version = roster.version();
        self.newer.retain(|key| self.peers.get(key).is_some_and(|peer| peer.has > Some(version)));
        self.roster = Some(roster);
        self.outputs.push_back(Output::Newer);
        let peers = self.peers.keys().map(|key| PublicKey(*key));
        let peers: Vec<_> = peers.filter(|key| self.is_told(key)).collect();
        for key in &peers {
            if let Some(peer) = self.peers.get_mut(&key.0) {
                peer.reminders = 0;
            }
        }
        self.tell_all(&peers, before.as_deref(), now);
        if let Some(roster) = self.roster.clone() {
            self.reports.keep(|key| roster.holder(key).is_some_and(|member| member.role == Role::Server));
        }
        self.tell_servers(true, now);
        self.check_role();
        self.ask_secret_now(now);
    }

    /// Whether this peer is to be told of the roster here. A stock WireGuard drops such messages, and a peer that is in
    /// no roster may be anybody. Without a roster, there is nothing to keep secret, and everybody is asked.
    fn is_told(&self, key: &PublicKey) -> bool {
        let Some(roster) = &self.roster else { return true };
        let is_client = roster.member(key).is_some_and(|member| matches!(member.role, Role::Client(_)));
        !is_client && self.peers.get(&key.0).is_some_and(|peer| peer.belongs)
    }

    fn tell_later(&mut self, key: &PublicKey, now: Instant) {
        let own = self.version();
        if let Some(peer) = self.peers.get_mut(&key.0) {
            peer.reminders = 1;
            let at = (peer.has < Some(own)).then_some(now + REMINDER);
            self.remind(key, at);
        }
    }

    /// Removes a peer and its entries in the ordered sets.
    fn take_peer(&mut self, key: &PublicKey) -> Option<Peer> {
        let peer = self.peers.remove(&key.0)?;
        self.newer.remove(&key.0);
        self.reminders.remove(&key.0);
        Some(peer)
    }

    /// Plans when a connected member is told again which roster is here.
    fn remind(&mut self, key: &PublicKey, at: Option<Instant>) {
        if self.peers.contains_key(&key.0) {
            self.reminders.plan(key.0, at);
        }
    }

    /// A member announces which roster it has.
    fn hear_of(&mut self, from: &PublicKey, version: Version, follows: bool, now: Instant) {
        let (own, is_told) = (self.version(), self.is_told(from));
        let Some(peer) = self.peers.get_mut(&from.0) else { return };
        // Announcing another version may cause a request, so announcements are limited at the same rate as answers.
        if peer.has != Some(version) && !peer.answers.take(OF_ONE, now) {
            return;
        }
        let known = peer.has.replace(version);
        peer.said = Some(version);
        peer.sends = follows.then_some(version);
        let repeats = version == own && known == Some(version);
        let unheard = repeats && peer.told_at.is_none_or(|at| now.since(at) >= UNHEARD);
        if unheard && peer.answers.take(OF_ONE, now) && is_told {
            peer.told_at = Some(now);
            self.send(from, Body::Have { follows: false });
        }
        let Some(peer) = self.peers.get_mut(&from.0) else { return };
        if version > own {
            self.newer.insert(from.0);
        } else {
            self.newer.remove(&from.0);
        }
        if version >= own {
            self.remind(from, None);
        } else if known != Some(version) || self.reminders.get(&from.0).is_none() {
            // Its roster is older than the one it had, or than the one it was told of. It is told again, immediately,
            // and at most once for each of its messages.
            if is_told && peer.answers.take(OF_ONE, now) {
                self.tell_older(from, version, now);
            }
        }
        // The head may have been requested before it said so.
        let fetched = self.fetch.as_mut().filter(|fetch| follows && fetch.from == *from && fetch.version == version);
        fetched.into_iter().for_each(Fetch::follows);
        match &self.fetch {
            // The member that is asked has another roster now. The parts already received may also be in that one.
            Some(fetch) if fetch.from == *from && fetch.version != version => {
                if fetch.is_lost(self.another_has(fetch), now) {
                    self.distrust(PAUSE, now);
                } else {
                    self.fetch_again(now);
                }
            }
            Some(fetch) if self.is_better(from, version, fetch, now) => {
                self.trust.left(&fetch.from);
                self.fetch_again(now);
            }
            // `tick` decides whether somebody else may be asked again. That check walks over all of them, and every
            // peer announces its roster.
            None if self.is_newer(version) => self.begin_fetch(now, Parts::default()),
            Some(_) | None => {}
        }
    }

    /// Whether a server of the roster here has this key. Its previous key counts as well: after a change of key, the
    /// session continues under the old key until the device has followed.
    fn is_server(&self, key: &PublicKey) -> bool {
        let member = self.roster.as_ref().and_then(|roster| roster.holder(key));
        member.is_some_and(|member| member.role == Role::Server)
    }
}
