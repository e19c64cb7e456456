//! The running server. Its inputs are datagrams, handshakes and commands. Its outputs are peers and answers.

mod actions;
mod backup;
mod commands;
mod documents;
mod farewell;
mod figures;
mod leaving;
mod next_key;
mod own_key;
mod prefixes;
mod reload;
mod shared;
mod web;

use crate::{
    audit::AuditLog,
    backup::Backup,
    clock::now,
    counters::Counters,
    endpoints::{RECENT, StoredEndpoints},
    held::Held,
    network::{Heard, Network, key_before::KeyBefore, replaced::Replaced},
    policy::PolicyHandle,
    prepare::Configured,
    seat::SeatError,
    settings::Settings,
    socket::{self, Call, Caller},
    store::FileStore,
};
use farewell::Farewell;
pub use figures::{Figures, FiguresHandle};
use leaving::Leaving;
pub use reload::Handle;
use rustguard_core::time::Instant;
use rustguard_crypto::{
    random::SystemRng,
    x25519::{PublicKey, StaticSecret},
};
use rustguard_device::{
    Datagrams, Device, DeviceHandle, Event, Events, EventsError, PeerUpdate, Update, key, unix_socket::UnixSocket,
};
use rustguard_enroll::{
    action::Action,
    audit::{AuditEvent, AuditRecord},
    ledger::LedgerError,
    server::{Server, ServerError},
    store::LeaseStore,
    token::Passphrase,
};
use rustguard_network::{Folder, FolderError, Resolver, roster::statement::Statement};
use shared::{Shared, Waiting};
use std::{io, path::PathBuf, sync::Arc, time::Duration};
use tokio::sync::{mpsc, oneshot, watch};
pub use web::{StatusPage, WebLink};

/// The number of datagrams handled at a time. The resulting changes reach the device as one update, before the answers
/// are sent.
const BATCH: usize = 64;
/// The number of calls of the control socket that may wait.
const CALLS: usize = 16;
/// The number of questions for figures that may wait.
const QUESTIONS: usize = 4;
/// The runtime's timers stop while the machine sleeps, but leases continue to age. The service therefore looks for due
/// work at least this often.
const LOOK: Duration = Duration::from_secs(30);

/// Enrolment on a running device. It makes progress while [`run`](Self::run) is polled.
pub struct Service<S = FileStore> {
    interface: String,
    settings: Settings,
    /// The tunnel's present key, and the previous one.
    identity: StaticSecret,
    key_before: Option<KeyBefore>,
    server: Server<S>,
    /// The passphrase for windows, if `serve` was given one.
    passphrase: Option<Passphrase>,
    device: DeviceHandle,
    datagrams: Datagrams,
    events: Events,
    calls: mpsc::Receiver<Call>,
    /// The channel for requests for figures.
    questions: (mpsc::Sender<oneshot::Sender<Figures>>, mpsc::Receiver<oneshot::Sender<Figures>>),
    calls_in: mpsc::Sender<Call>,
    _socket: UnixSocket,
    /// The status page, if one is served.
    page: Option<Box<dyn StatusPage>>,
    folder: Folder,
    audit: AuditLog,
    counters: Arc<Counters>,
    /// The backup with which the server starts again.
    restored: Option<Backup>,
    /// The network of joined machines; `None` in a star.
    network: Option<Network>,
    /// The file of the access policy.
    policy: Option<PathBuf>,
    actions: Vec<Action>,
    /// The log that this server shares with others, if it does.
    shared: Option<Shared>,
    /// Handshakes may have been missed.
    catches_up: bool,
    leaving: Leaving,
    farewell: Farewell,
    endpoints: StoredEndpoints,
    /// The peers that are not contacted yet.
    held: Held,
}

/// Why enrolment did not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The control socket could not be opened.
    #[error("cannot open the control socket {path}: {cause}")]
    Socket {
        /// The path of the socket.
        path: PathBuf,
        /// The cause.
        cause: io::Error,
    },
    /// The settings could not be stored.
    #[error(transparent)]
    Settings(#[from] FolderError),
    /// The audit log could not be opened.
    #[error("cannot open the audit log {path}: {cause}")]
    Audit {
        /// The path of the log.
        path: PathBuf,
        /// The cause.
        cause: io::Error,
    },
}

impl<S: LeaseStore> Service<S> {
    /// Starts to serve the device that was built with [`Prepared::configure`](crate::Prepared::configure), on the
    /// current tokio runtime. Stores the settings for the next start.
    ///
    /// # Errors
    /// See [`StartError`].
    ///
    /// # Panics
    /// Panics outside a tokio runtime.
    pub fn start(configured: Configured<S>, device: &Device) -> Result<Self, StartError> {
        let Configured {
            interface,
            settings,
            server,
            passphrase,
            folder,
            identity,
            key_before,
            datagrams,
            counters,
            network,
            policy,
            policy_is_new,
            held,
            seat,
        } = configured;
        let (calls_in, calls) = mpsc::channel(CALLS);
        let socket =
            socket::listen(&interface, calls_in.clone()).map_err(|(path, cause)| StartError::Socket { path, cause })?;
        let path = folder.path("audit.jsonl");
        let audit = AuditLog::open(&path).map_err(|cause| StartError::Audit { path, cause })?;
        // Only settings with which the tunnel started are stored: the next start without options uses what worked last.
        if Settings::load(&folder)?.as_ref() != Some(&settings) {
            settings.store(&folder)?;
        }
        let endpoints = StoredEndpoints::new(folder.clone(), now().instant);
        let mut service = Self {
            interface,
            settings,
            shared: seat.map(|seat| Shared::new(seat, identity.public_key())),
            identity,
            key_before,
            server,
            passphrase,
            device: device.handle(),
            datagrams,
            events: device.events(),
            calls,
            questions: mpsc::channel(QUESTIONS),
            calls_in,
            _socket: socket,
            page: None,
            folder,
            audit,
            counters,
            restored: None,
            network: network.map(|(network, texts)| network.start(device, texts)),
            policy,
            actions: Vec::new(),
            catches_up: false,
            leaving: Leaving::default(),
            farewell: Farewell::default(),
            endpoints,
            held,
        };
        service.tell_untold();
        if policy_is_new {
            service.actions.push(Action::Audit(AuditRecord::new(AuditEvent::PolicyChanged, now())));
        }
        Ok(service)
    }

    /// Warns about settings that members do not receive.
    fn tell_untold(&self) {
        let untold: Vec<_> = self.settings.untold_domains().filter(|_| self.network.is_some()).collect();
        if !untold.is_empty() {
            let untold = untold.join(", ");
            tracing::warn!(
                "members are not told of the search domain {untold}: a label may have letters, digits and `-` only"
            );
        }
    }

    /// A handle for requests while [`run`](Self::run) is polled.
    pub fn handle(&self) -> Handle {
        Handle { calls: self.calls_in.clone(), caller: Caller::own() }
    }

    /// The settings.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// The resolver for the network's names on this machine: its addresses and domains; `None` in a star.
    pub fn resolver(&self) -> Option<watch::Receiver<Resolver>> {
        self.network.as_ref().map(Network::resolver)
    }

    /// The policy of the network; `None` in a star, and if no policy file was given.
    pub fn policy(&self) -> Option<PolicyHandle> {
        let (network, file) = (self.network.as_ref()?, self.policy.clone()?);
        Some(PolicyHandle::new(file, network.in_force()))
    }

    /// A handle for figures, which are counted while [`run`](Self::run) is polled.
    pub fn figures(&self) -> FiguresHandle {
        FiguresHandle(self.questions.0.clone())
    }

    /// The backup that is to replace the state, if the administrator's request ended [`run`](Self::run). Restore it
    /// after the service and the device have ended, and start again.
    pub fn take_restored(&mut self) -> Option<Backup> {
        self.restored.take()
    }

    /// The error for the user if [`run`](Self::run) ended because another machine has taken the place of this server.
    /// The next start fails with the same error.
    pub fn replaced(&self) -> Option<Replaced> {
        self.network.as_ref()?.replaced()
    }

    /// The error for the user if [`run`](Self::run) ended because another server has removed this one from the network.
    pub fn removed(&self) -> Option<&SeatError> {
        self.shared.as_ref()?.removed.as_ref()
    }

    /// Serves until the device ends, a backup is to be restored, or another machine has taken the place of this server.
    pub async fn run(&mut self) {
        if self.key_before.is_some() {
            // Only a device that has ended refuses this.
            let _ = self.use_keys().await;
        }
        self.set_session_keys().await;
        self.settle_own_lease().await;
        // Actions from the start have no caller.
        self.carry_out(&[], None).await;
        // The previous server's peers reconnect at once, instead of after their own timeouts. See `held` about peers
        // that wait.
        self.device.handshake_now().await;
        let mut batch = Vec::with_capacity(BATCH);
        loop {
            self.end_key_before().await;
            self.use_documents().await;
            if self.network.as_ref().is_some_and(|network| network.needs_touch(now())) {
                // After an error, it is due again. An unchanged roster is no urgent matter.
                let _ = self.decided(|service| service.server.touch(now())).await;
            }
            self.issue();
            if self.removed().is_some() {
                return;
            }
            if std::mem::take(&mut self.catches_up) {
                self.catch_up().await;
            }
            while let Some(waiting) = self.next_waiting() {
                match waiting {
                    Waiting::Call(call) => self.call(call).await,
                    Waiting::Heard(Heard::Statement(member, statement)) => self.stated(&member, &statement).await,
                    Waiting::Heard(Heard::End) => return,
                    Waiting::Heard(Heard::Nothing) => {}
                }
            }
            if self.replaced().is_some() {
                return;
            }
            let held_at = self.call_held().await;
            let standbys_at = self.tell_standbys();
            let issue_at = self.network.as_ref().map(Network::deadline);
            let (leaving_at, part_at) = (self.leaving.deadline(), self.farewell.deadline());
            let own = [self.server.deadline(), self.endpoints.deadline()];
            let deadlines = own.into_iter().chain([issue_at, held_at, standbys_at, leaving_at, part_at]);
            let next = deadlines.flatten().min();
            let due = next.map_or(LOOK, |deadline| deadline.since(now().instant).min(LOOK));
            // The order matters: input from outsiders comes last.
            tokio::select! {
                biased;
                event = self.events.recv() => match event {
                    Ok(Event::HandshakeComplete { peer, .. }) => {
                        // After an error, the handshake is noted when the store answers again.
                        let _ = self.decided(|service| {
                            service.server.handshake_completed(&peer, now(), &mut service.actions);
                        }).await;
                        self.note_place(&peer).await;
                        self.endpoints.handshake(now().instant);
                        self.held.came(&peer);
                    }
                    Ok(_) => continue,
                    Err(EventsError::Lagged(_)) => self.catch_up().await,
                    Err(_) => return,
                },
                Some(call) = self.calls.recv() => self.call(call).await,
                Some(answer) = self.questions.1.recv() => {
                    // The caller may no longer wait.
                    let _ = answer.send(self.count());
                    continue;
                }
                // Texts of members. Each member has its own limit.
                heard = take_part(self.network.as_mut()) => match heard {
                    Heard::Nothing => continue,
                    Heard::Statement(member, statement) => self.stated(&member, &statement).await,
                    Heard::End => return,
                },
                due = shared::due(self.shared.as_mut()) => self.on_log(due).await,
                () = tokio::time::sleep(due) => {
                    if self.endpoints.deadline().is_some_and(|at| at <= now().instant) {
                        self.store_endpoints().await;
                    }
                    let left = self.leaving.due(now().instant);
                    self.remove_left(left).await;
                    self.carry_out(&[], None).await;
                    // After an error, it is due again.
                    let _ = self.decided(|service| service.server.tick(now(), &mut service.actions)).await;
                    self.part().await;
                    self.settle_own_lease().await;
                }
                taken = self.datagrams.recv_many(&mut batch, BATCH) => {
                    if taken == 0 {
                        return;
                    }
                    // After an error, joiners repeat their messages.
                    let _ = self.decided(|service| {
                        for datagram in &batch {
                            let (from, now) = (datagram.endpoint.remote, now());
                            service.server.handle(from, &datagram.bytes, now, &mut SystemRng, &mut service.actions);
                        }
                    }).await;
                }
            }
            self.carry_out(&batch, None).await;
            batch.clear();
            if self.restored.is_some() {
                return;
            }
        }
    }

    /// Tells members of changes. This comes after the answers, so that a joining machine brings its tunnel up
    /// meanwhile.
    fn issue(&mut self) {
        self.follow_log();
        if let Some(network) = &mut self.network {
            if let Some(listed) = network.take_listed() {
                self.server.set_listed(listed);
            }
            network.issue(&self.settings, self.server.ledger(), now());
        }
    }

    /// Contacts the waiting peers, once a member's report shows that no other machine has taken this one's place.
    /// Returns when to check again.
    async fn call_held(&mut self) -> Option<Instant> {
        if self.held.is_empty() {
            return None;
        }
        let is_newer = self.network.as_ref().and_then(Network::hears_of_newer);
        let at = self.held.waits(is_newer, now().instant);
        if at.is_none() {
            // Only a device that has ended refuses this.
            let _ = self.device.update(Update::new().peers(self.held.take())).await;
            self.device.handshake_now().await;
        }
        at
    }

    /// Tells standbys of changes, and returns when to do so again.
    fn tell_standbys(&mut self) -> Option<Instant> {
        // The store is where servers on one find it.
        let network = self.network.as_mut().filter(|_| self.shared.is_none())?;
        let (ledger, settings, instant) = (self.server.ledger(), &self.settings, now().instant);
        if network.standbys_deadline(settings, ledger, instant) <= instant {
            let make = || {
                let state = ledger.state().clone();
                let backup = Backup::for_standby(&self.interface, &self.folder, self.policy.as_deref(), state);
                backup.and_then(|backup| backup.to_bytes()).map_err(|error| error.to_string())
            };
            network.tell_standbys(settings, ledger, make, now);
        }
        Some(network.standbys_deadline(settings, ledger, instant))
    }

    /// Tells members of a command's changes before the command reports success.
    fn publish(&mut self) -> Result<(), String> {
        self.follow_log();
        let Some(network) = &mut self.network else { return Ok(()) };
        network.publish(&self.settings, self.server.ledger(), now()).map_err(|why| {
            format!(
                "this server has it, but the other machines are not told, and go on as before: {why}. It is tried again every \
                 five seconds; the command need not be repeated"
            )
        })
    }

    /// Ends the sessions of removed members that have had time to learn of their removal.
    async fn part(&mut self) {
        while let Some(member) = self.farewell.over(now().instant) {
            // An error means that the device is stopping.
            let _ = self.device.update(Update::new().peer(PeerUpdate::remove(member))).await;
        }
    }

    /// Handles a member's statement: its prefixes, its endpoints and its new key, or that it leaves. The member repeats
    /// the statement until it is stored.
    async fn stated(&mut self, member: &PublicKey, statement: &Statement) {
        if statement.leaves {
            self.leaving.begin(*member, now().instant);
            if let Some(network) = &mut self.network {
                network.stored(member, statement);
            }
            return;
        }
        let is_stored = self.decided(|service| {
            let (now, actions) = (now(), &mut service.actions);
            let announced = service.server.announced(member, &statement.prefixes, now, actions);
            let reached_at = service.server.reached_at(member, &statement.endpoints, now, actions);
            let rotated = match (&statement.new_key, &service.network) {
                (Some(key), Some(network)) if network.is_proven(member, key) => {
                    service.server.rotated(member, key.public_key(), now, actions)
                }
                // A key without proof is not stored. The member repeats the statement at a limited rate. If the member
                // already has this key, it requested the change under its old key.
                (Some(key), _) => key.public_key() == member,
                (None, _) => true,
            };
            announced && reached_at && rotated
        });
        if is_stored.await != Ok(true) {
            return;
        }
        // The log gets a line only if the audit log gets one, because the audit log limits the rate of members'
        // statements.
        let is_new = self.actions.iter().any(|action| {
            matches!(action, Action::Audit(record)
                if record.event == AuditEvent::Announced && record.public_key == Some(*member))
        });
        let lease = self.server.ledger().lease(member).filter(|_| is_new);
        let waiting: Vec<_> = lease.iter().flat_map(|lease| lease.waiting()).map(|net| net.to_string()).collect();
        if let Some(lease) = lease.filter(|_| !waiting.is_empty()) {
            let who = lease.name.clone().unwrap_or_else(|| key::to_base64(&member.0).to_string());
            let consent = if lease.waiting().any(|net| net.prefix_len() == 0) { " --default-route" } else { "" };
            let waiting = waiting.join(" ");
            tracing::info!(
                "{who} announces {waiting}, which nobody has admitted: rustguard peer allow {who} {waiting}{consent}"
            );
        }
        if let Some(network) = &mut self.network {
            network.stored(member, statement);
        }
    }

    /// Removes members that have left. They were already told that they are removed, so a failed removal is tried
    /// again.
    async fn remove_left(&mut self, members: Vec<PublicKey>) {
        let mut failed = None;
        for member in members {
            let left = self.decided(|service| service.server.left(&member, now(), &mut service.actions)).await;
            match left {
                // It may have been removed meanwhile.
                Ok(Ok(_) | Err(ServerError::Ledger(LedgerError::UnknownPeer(_)))) => {}
                Ok(Err(error)) => failed = Some((member, error.to_string())),
                Err(error) => failed = Some((member, error)),
            }
            self.carry_out(&[], None).await;
            if let Some((member, _)) = &failed {
                self.leaving.again(*member, now().instant);
            }
        }
        if let Some((_, error)) = failed {
            tracing::warn!("members that have left cannot be removed yet, which is tried again: {error}");
        }
    }

    /// Something has changed that members have to know.
    fn changed(&mut self) {
        if let Some(network) = &mut self.network {
            network.changed();
        }
    }

    /// Writes the events that the audit log lacks, and stores the peers' endpoints for the next start. Call it while
    /// the device still runs.
    pub async fn stop(&mut self) {
        self.end_decision().await;
        let left = self.leaving.all();
        self.remove_left(left).await;
        self.server.stop(&mut self.actions);
        self.carry_out(&[], None).await;
        self.store_endpoints().await;
        self.keep_position();
    }

    async fn store_endpoints(&mut self) {
        if let Ok(status) = self.device.status().await {
            let now = now();
            self.endpoints.store(&status.peers, now.instant, now.unix);
        }
    }

    /// Events were lost. The device knows the recent handshakes.
    async fn catch_up(&mut self) {
        let Ok(status) = self.device.status().await else { return };
        let now = now();
        let is_recent = |at| now.unix.saturating_sub(at) < RECENT;
        // After an error, they are noted with the next handshake, or when the store answers again.
        let _ = self
            .decided(|service| {
                for peer in status.peers.iter().filter(|peer| peer.last_handshake.is_some_and(is_recent)) {
                    service.server.handshake_completed(&peer.public_key, now, &mut service.actions);
                }
            })
            .await;
    }
}

/// Takes part in the exchange of rosters, if there is a network. Dropping the future loses nothing.
async fn take_part(network: Option<&mut Network>) -> Heard {
    match network {
        Some(network) => network.next().await,
        None => std::future::pending().await,
    }
}
