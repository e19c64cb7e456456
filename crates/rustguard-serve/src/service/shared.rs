//! Decisions on a log that this server shares with others.
//!
//! A decision is staged, and its actions are kept back until the log has it. While the store takes its time, the server
//! goes on with everything that decides nothing: the exchange of rosters, figures, `status`. What comes meanwhile and
//! decides waits. When the store does not answer, decisions are refused at once, until it answers again.

use super::{CALLS, Service, commands::Result, take_part};
use crate::{
    clock::now,
    documents,
    network::Heard,
    replica::{
        ReplicaError,
        link::{Link, Reached},
    },
    request::{Answer, Request, StoreView},
    seat::{Keeper, Seat, SeatError, keys::SessionKeys},
    socket::Call,
};
use futures_util::future::BoxFuture;
use rustguard_crypto::x25519::{PublicKey, StaticSecret};
use rustguard_device::PeerUpdate;
use rustguard_enroll::{
    action::{Action, PeerConfig},
    store::LeaseStore,
};
use rustguard_store::LogError;
use std::{
    collections::{BTreeSet, VecDeque},
    sync::Arc,
    time::{Duration, Instant},
};

/// How long a decision is made again because other servers were faster.
const PATIENCE: Duration = Duration::from_secs(10);
/// The longest pause for the sake of other servers. A store that is slower than this gives them time by itself.
const GAP: Duration = Duration::from_millis(50);
/// How long the end waits for the store.
const ENDING: Duration = Duration::from_secs(2);
/// The shortest pause between two writes of the position.
const KEEP: Duration = Duration::from_secs(1);
/// The number of texts of members that may wait. Members repeat them.
const TEXTS: usize = 64;

/// The log, and what waits for it.
pub(crate) struct Shared {
    pub(super) link: Link,
    /// The key that all servers answer.
    pub(super) gateway: StaticSecret,
    keys: SessionKeys,
    keeper: Keeper,
    /// The position that was kept, and when.
    kept: (u64, Instant),
    /// The documents that were changed, and that this server does not use yet.
    pub(super) changed: BTreeSet<String>,
    /// This server is none of the network any more.
    pub(super) removed: Option<SeatError>,
    /// Ready when the log may have grown.
    grown: Option<BoxFuture<'static, ()>>,
    /// Since when the store cannot be used, in seconds since 1970, and why.
    away: Option<(u64, String)>,
    /// The actions of a decision whose fate is unknown.
    doubtful: Vec<Action>,
    /// The actions that follow from records of the log.
    followed: Vec<Action>,
    calls: VecDeque<Call>,
    heard: VecDeque<Heard>,
}

impl Shared {
    pub(crate) fn new(Seat { link, gateway, keeper }: Seat, own: PublicKey) -> Self {
        Self {
            keys: SessionKeys::new(own, gateway.public_key(), link.documents()),
            kept: (link.position().revision, Instant::now()),
            gateway,
            keeper,
            changed: BTreeSet::new(),
            removed: None,
            link,
            grown: None,
            away: None,
            doubtful: Vec::new(),
            followed: Vec::new(),
            calls: VecDeque::new(),
            heard: VecDeque::new(),
        }
    }

    /// The update that gives the device this peer; `None` if it is this server.
    pub(crate) fn update(&self, peer: PeerConfig) -> Option<PeerUpdate> {
        self.keys.update(peer)
    }

    /// Why nothing can be decided now.
    pub(super) fn problem(&self) -> Option<&str> {
        self.away.as_ref().map(|(_, why)| &**why)
    }

    /// Uses the secret of pairs and the servers that the log has now.
    pub(super) fn refresh_keys(&mut self, own: PublicKey) {
        self.keys = SessionKeys::new(own, self.gateway.public_key(), self.link.documents());
    }

    /// Keeps the position in the state folder, at most once in a while. After a crash, the rest is read again.
    fn keep(&mut self, pause: Duration) {
        let (kept, at) = self.kept;
        if self.link.position().revision != kept && at.elapsed() >= pause {
            self.kept = (self.link.position().revision, Instant::now());
            if let Err(error) = self.keeper.keep(&self.link) {
                tracing::warn!("{error}; the next start reads more of the store");
            }
        }
    }

    /// Waits until a request has an answer, or the log may have grown. The future may be dropped.
    async fn due(&mut self) -> Due {
        if !self.link.is_free() {
            return Due::Answer(Box::new(self.link.io().await));
        }
        let log = self.link.log();
        let grown = self.grown.get_or_insert_with(|| {
            let log = Arc::clone(log);
            Box::pin(async move { log.wait().await })
        });
        grown.await;
        self.grown = None;
        Due::Grown
    }
}

/// See [`Shared::due`].
pub(super) enum Due {
    Answer(Box<crate::replica::link::Done>),
    Grown,
}

/// Waits for the log, for ever if there is none.
pub(super) async fn due(shared: Option<&mut Shared>) -> Due {
    match shared {
        Some(shared) => shared.due().await,
        None => std::future::pending().await,
    }
}

impl<S: LeaseStore> Service<S> {
    /// Makes a decision, and returns when the log has it; at once without a log. `decide` is called again if another
    /// server was faster. After an error, none of its actions is left.
    ///
    /// # Errors
    /// A text for people. The decision was not made, or it is in doubt, which the text says.
    pub(super) async fn decided<T>(&mut self, mut decide: impl FnMut(&mut Self) -> T) -> Result<T> {
        if self.shared.is_none() {
            return Ok(decide(self));
        }
        self.settle().await;
        let (began, before) = (Instant::now(), self.actions.len());
        if let Some(why) = self.shared.as_ref().and_then(Shared::problem).map(str::to_owned) {
            // The ledger refuses, with the same words.
            let decided = decide(self);
            let has_documents = self.shared.as_mut().is_some_and(|shared| shared.link.drop_staged());
            if has_documents {
                self.actions.truncate(before);
            }
            return if has_documents { Err(why) } else { Ok(decided) };
        }
        loop {
            let decided = decide(self);
            let error = match self.append().await {
                Ok(Reached::Accepted) => return Ok(decided),
                Ok(_) if began.elapsed() < PATIENCE => {
                    self.actions.truncate(before);
                    continue;
                }
                Ok(_) => ReplicaError::Overtaken,
                Err(error) => error,
            };
            let actions = self.actions.split_off(before);
            let Some(shared) = &mut self.shared else { return Ok(decided) };
            if !shared.link.is_in_doubt() {
                return Err(error.to_string());
            }
            shared.doubtful = actions;
            return Err(format!(
                "it is not known whether this was stored, because {error}. It is found out when the store answers: look again then"
            ));
        }
    }

    /// Does what the log is ready for.
    pub(super) async fn on_log(&mut self, due: Due) {
        let Some(shared) = &mut self.shared else { return };
        let reached = match due {
            Due::Answer(done) => match shared.link.advance(*done, &mut self.server, now()) {
                Some(reached) => reached,
                None => self.reach().await,
            },
            Due::Grown => {
                if shared.link.is_in_doubt() {
                    shared.link.settle();
                } else {
                    shared.link.follow();
                }
                self.reach().await
            }
        };
        let _ = self.reached(reached).await;
    }

    /// A call or a text of a member that came while the log was busy.
    pub(super) fn next_waiting(&mut self) -> Option<Waiting> {
        let shared = self.shared.as_mut()?;
        shared.heard.pop_front().map(Waiting::Heard).or_else(|| shared.calls.pop_front().map(Waiting::Call))
    }

    /// The store, for people and programs.
    pub(super) fn store_view(&self) -> Option<StoreView> {
        let shared = self.shared.as_ref()?;
        let (since, problem) = shared.away.clone().unzip();
        Some(StoreView { store: shared.link.log().name(), revision: shared.link.revision(), since, problem })
    }

    /// Appends what is staged.
    async fn append(&mut self) -> std::result::Result<Reached, ReplicaError> {
        self.complete();
        let Some(shared) = &mut self.shared else { return Ok(Reached::Accepted) };
        if !shared.link.has_staged(&self.server) {
            return Ok(Reached::Accepted);
        }
        if let Err(error) = shared.link.check() {
            self.server.revert(now());
            return Err(error);
        }
        if let Some(gap) = shared.link.gap().filter(|gap| *gap < GAP) {
            tokio::time::sleep(gap).await;
        }
        shared.link.decide(&mut self.server, now());
        let reached = self.reach().await;
        let reached = self.reached(reached).await;
        if let (Ok(Reached::Accepted), Some(shared)) = (&reached, &mut self.shared) {
            // From time to time, in place of older records. The next request waits for it.
            shared.link.snapshot(self.server.ledger().state());
        }
        reached
    }

    /// Ends a request that is on its way, and finds out what became of a decision in doubt, if the store answers.
    async fn settle(&mut self) {
        let busy = |shared: &Shared| !shared.link.is_free();
        if self.shared.as_ref().is_some_and(busy) {
            let reached = self.reach().await;
            let _ = self.reached(reached).await;
        }
        let Some(shared) = &mut self.shared else { return };
        // Without the store, this would take seconds each time.
        if shared.link.is_in_doubt() && shared.away.is_none() {
            shared.link.settle();
            let reached = self.reach().await;
            let _ = self.reached(reached).await;
        }
    }

    /// Waits for the link to reach its goal. Meanwhile the server goes on with what decides nothing.
    async fn reach(&mut self) -> std::result::Result<Reached, ReplicaError> {
        loop {
            let Some(shared) = &mut self.shared else { return Ok(Reached::Followed) };
            let (has_room, hears) = (shared.calls.len() < CALLS, shared.heard.len() < TEXTS);
            tokio::select! {
                biased;
                done = shared.link.io() => {
                    if let Some(reached) = shared.link.advance(done, &mut self.server, now()) {
                        return reached;
                    }
                }
                heard = take_part(self.network.as_mut()), if hears => {
                    if !matches!(heard, Heard::Nothing) {
                        shared.heard.push_back(heard);
                    }
                }
                Some(answer) = self.questions.1.recv() => {
                    // The caller may no longer wait.
                    let _ = answer.send(self.count());
                }
                Some(call) = self.calls.recv(), if has_room => match call.request {
                    Request::Status => {
                        let answer = self.status().await.unwrap_or_else(Answer::refused);
                        let _ = call.answer.send(answer);
                    }
                    _ => shared.calls.push_back(call),
                }
            }
        }
    }

    /// Takes note of what the link has reached: records of others, and whether the store answers.
    async fn reached(
        &mut self,
        reached: std::result::Result<Reached, ReplicaError>,
    ) -> std::result::Result<Reached, ReplicaError> {
        let Some(shared) = &mut self.shared else { return reached };
        let followed = shared.link.take_followed();
        if followed.own {
            shared.followed.append(&mut shared.doubtful);
        } else if !shared.link.is_in_doubt() {
            shared.doubtful.clear();
        }
        for key in &followed.peers {
            // A peer with another key keeps its sessions.
            let lease = self.server.ledger().lease(key);
            let before = lease.and_then(|lease| lease.old_key).map(|old| old.public_key);
            if let Some(before) = before.filter(|before| followed.peers.contains(before)) {
                shared.followed.push(Action::RekeyPeer { before, after: *key });
            }
        }
        for key in &followed.peers {
            let is_rekeyed = self.server.ledger().formerly(key).is_some();
            let gone = (!is_rekeyed).then_some(Action::RemovePeer(*key));
            shared.followed.extend(self.server.peer(key).map(Action::SetPeer).or(gone));
        }
        if !followed.peers.is_empty() {
            shared.followed.push(Action::MembersChanged);
        }
        shared.followed.extend(followed.audit.into_iter().map(Action::Audit));
        if followed.documents.iter().any(|name| *name == documents::PAIR_SECRET || name.starts_with(documents::SERVER))
        {
            // Before the device gets a peer with them.
            shared.refresh_keys(self.identity.public_key());
        }
        shared.changed.extend(followed.documents);
        shared.keep(KEEP);
        match &reached {
            Ok(_) => {
                if let Some((since, _)) = shared.away.take() {
                    let seconds = now().unix.as_secs().saturating_sub(since);
                    tracing::info!("{} answers again, after {seconds} seconds", shared.link.log().name());
                    self.server.set_refusal(None);
                    self.catches_up = true;
                }
            }
            Err(error @ (ReplicaError::Log(LogError::TooLarge { .. }) | ReplicaError::Overtaken)) => {
                tracing::warn!("{error}");
            }
            Err(error) => {
                let why = error.to_string();
                if shared.away.as_ref().is_none_or(|(_, known)| *known != why) {
                    tracing::error!("nothing can be decided: {why}");
                }
                let since = shared.away.as_ref().map_or_else(|| now().unix.as_secs(), |(since, _)| *since);
                self.server.set_refusal(Some(why.clone()));
                shared.away = Some((since, why));
            }
        }
        reached
    }

    /// Tells the issuer of rosters how far the log is. Not while a decision is in doubt, which the ledger has, or
    /// documents are not used yet: all servers make the same roster of a revision.
    pub(super) fn follow_log(&mut self) {
        if let (Some(shared), Some(network)) = (&self.shared, &mut self.network)
            && shared.link.has_read()
            && !shared.link.is_in_doubt()
            && shared.changed.is_empty()
        {
            network.follow(shared.link.revision(), shared.link.documents());
        }
    }

    /// Ends a decision that was on its way when [`run`](Self::run) was dropped. Its actions are not carried out: nobody
    /// is told of a decision that may not be in the log.
    pub(super) async fn end_decision(&mut self) {
        if self.shared.as_ref().is_some_and(|shared| !shared.link.is_free()) {
            self.actions.clear();
            // The next start finds out what is not known by then.
            let _ = tokio::time::timeout(ENDING, self.settle()).await;
        }
    }

    /// Keeps the position for the next start.
    pub(super) fn keep_position(&mut self) {
        if let Some(shared) = &mut self.shared {
            shared.keep(Duration::ZERO);
        }
    }

    /// The actions that follow from records of the log.
    pub(super) fn take_followed(&mut self) -> Vec<Action> {
        self.shared.as_mut().map(|shared| std::mem::take(&mut shared.followed)).unwrap_or_default()
    }
}

/// A call or a text of a member that came while the log was busy.
pub(super) enum Waiting {
    Call(Call),
    Heard(Heard),
}
