//! The running server. Its inputs are datagrams, handshakes and commands. Its outputs are peers and answers.

mod commands;
mod figures;
mod reload;

use crate::{
    audit::AuditLog,
    clock::now,
    counters::Counters,
    folder::{Folder, FolderError},
    peer::to_update,
    prepare::Configured,
    settings::Settings,
    socket::{self, Call, socket_path},
    store::FileStore,
};
pub use figures::{Figures, FiguresHandle};
pub use reload::Handle;
use rustguard_core::time::Instant;
use rustguard_crypto::{random::SystemRng, x25519::PublicKey};
use rustguard_device::{
    Datagram, Datagrams, Device, DeviceHandle, Event, Events, EventsError, PeerUpdate, Update, key,
    unix_socket::UnixSocket,
};
use rustguard_enroll::{action::Action, audit::AuditRecord, server::Server, store::LeaseStore, token::Passphrase};
use rustguard_tun::Endpoint;
use std::{collections::HashMap, io, net::SocketAddr, path::PathBuf, sync::Arc, time::Duration};
use tokio::sync::{mpsc, oneshot};

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
/// If events were lost, a handshake that is not older than this counts as new.
const RECENT: Duration = Duration::from_secs(180);

/// How long after a handshake the peers' endpoints are stored, and how often at most. A server that is killed calls
/// those that were stored.
const SETTLE: Duration = Duration::from_secs(5);
const STORE_EVERY: Duration = Duration::from_secs(60);

/// Enrolment on a running device. It makes progress while [`run`](Self::run) is polled.
pub struct Service<S = FileStore> {
    interface: String,
    settings: Settings,
    public_key: PublicKey,
    server: Server<S>,
    /// The passphrase for windows, if `serve` was given one.
    passphrase: Option<Passphrase>,
    device: DeviceHandle,
    datagrams: Datagrams,
    events: Events,
    calls: mpsc::Receiver<Call>,
    /// Questions for figures, and the end for those who ask.
    questions: (mpsc::Sender<oneshot::Sender<Figures>>, mpsc::Receiver<oneshot::Sender<Figures>>),
    calls_in: mpsc::Sender<Call>,
    _socket: UnixSocket,
    folder: Folder,
    audit: AuditLog,
    counters: Arc<Counters>,
    actions: Vec<Action>,
    /// The endpoints on the disk, and when they are compared with those of the device.
    stored: HashMap<String, SocketAddr>,
    store_at: Option<Instant>,
    stored_at: Option<Instant>,
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
        let Configured { interface, settings, server, passphrase, folder, datagrams, counters } = configured;
        let (calls_in, calls) = mpsc::channel(CALLS);
        let path = socket_path(&interface);
        let socket = socket::listen(&path, calls_in.clone()).map_err(|cause| StartError::Socket { path, cause })?;
        let path = folder.path("audit.jsonl");
        let audit = AuditLog::open(&path).map_err(|cause| StartError::Audit { path, cause })?;
        // Only settings with which the tunnel started are stored: the next start without options uses what worked last.
        if folder.settings()?.as_ref() != Some(&settings) {
            folder.set_settings(&settings)?;
        }
        Ok(Self {
            interface,
            settings,
            public_key: *server.public_key(),
            server,
            passphrase,
            device: device.handle(),
            datagrams,
            events: device.events(),
            calls,
            questions: mpsc::channel(QUESTIONS),
            calls_in,
            _socket: socket,
            folder,
            audit,
            counters,
            actions: Vec::new(),
            stored: HashMap::new(),
            store_at: None,
            stored_at: None,
        })
    }

    /// A handle for requests while [`run`](Self::run) is polled.
    pub fn handle(&self) -> Handle {
        Handle { calls: self.calls_in.clone() }
    }

    /// The settings.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// A handle for figures, which are counted while [`run`](Self::run) is polled.
    pub fn figures(&self) -> FiguresHandle {
        FiguresHandle(self.questions.0.clone())
    }

    /// Serves until the device ends.
    pub async fn run(&mut self) {
        // The previous server's peers reconnect at once, instead of after their own timeouts.
        self.device.handshake_now().await;
        let mut batch = Vec::with_capacity(BATCH);
        loop {
            let next = [self.server.deadline(), self.store_at].into_iter().flatten().min();
            let due = next.map_or(LOOK, |deadline| deadline.since(now().instant).min(LOOK));
            // The order matters: input from outsiders comes last.
            tokio::select! {
                biased;
                event = self.events.recv() => match event {
                    Ok(Event::HandshakeComplete { peer, .. }) => {
                        let now = now();
                        self.server.handshake_completed(&peer, now, &mut self.actions);
                        let earliest = self.stored_at.map_or(now.instant, |at| at + STORE_EVERY);
                        self.store_at.get_or_insert((now.instant + SETTLE).max(earliest));
                    }
                    Ok(_) => continue,
                    Err(EventsError::Lagged(_)) => self.catch_up().await,
                    Err(_) => return,
                },
                Some(call) = self.calls.recv() => self.call(call).await,
                Some(answer) = self.questions.1.recv() => {
                    // Whoever asked may not wait any more.
                    let _ = answer.send(self.count());
                    continue;
                }
                () = tokio::time::sleep(due) => {
                    if self.store_at.is_some_and(|at| at <= now().instant) {
                        self.store_endpoints().await;
                    }
                    self.server.tick(now(), &mut self.actions);
                }
                taken = self.datagrams.recv_many(&mut batch, BATCH) => {
                    if taken == 0 {
                        return;
                    }
                    for datagram in &batch {
                        let (from, now) = (datagram.endpoint.remote, now());
                        self.server.handle(from, &datagram.bytes, now, &mut SystemRng, &mut self.actions);
                    }
                }
            }
            self.carry_out(&batch, None).await;
            batch.clear();
        }
    }

    /// Writes the events that the audit log lacks, and stores the peers' endpoints for the next start. Call it while
    /// the device still runs.
    pub async fn stop(&mut self) {
        self.server.stop(&mut self.actions);
        self.carry_out(&[], None).await;
        self.store_endpoints().await;
    }

    /// Stores the endpoints of the peers that are connected, one for each lease at most, if they have changed.
    async fn store_endpoints(&mut self) {
        self.store_at = None;
        let Some(status) = self.device.status().await else { return };
        let now = now();
        let here = status
            .peers
            .iter()
            .filter(|peer| peer.last_handshake.is_some_and(|at| now.unix.saturating_sub(at) < RECENT));
        let endpoints: HashMap<_, _> =
            here.filter_map(|peer| Some((key::to_base64(&peer.public_key.0).to_string(), peer.endpoint?))).collect();
        self.stored_at = Some(now.instant);
        if endpoints == self.stored {
            return;
        }
        match self.folder.set_endpoints(&endpoints) {
            Ok(()) => self.stored = endpoints,
            Err(error) => tracing::warn!("{error}"),
        }
    }

    /// Events were lost. The device knows the recent handshakes.
    async fn catch_up(&mut self) {
        let Some(status) = self.device.status().await else { return };
        let now = now();
        for peer in &status.peers {
            if peer.last_handshake.is_some_and(|at| now.unix.saturating_sub(at) < RECENT) {
                self.server.handshake_completed(&peer.public_key, now, &mut self.actions);
            }
        }
    }

    /// Carries out all actions. The device gets its peers before the answers are sent. The datagrams `caused_by` or the
    /// user `uid` caused the actions.
    async fn carry_out(&mut self, caused_by: &[Datagram], uid: Option<u32>) {
        if self.actions.is_empty() {
            return;
        }
        let (mut peers, mut answers) = (Vec::new(), Vec::new());
        for action in self.actions.drain(..) {
            match action {
                Action::SetPeer(peer) => peers.push(to_update(peer)),
                Action::RemovePeer(key) => peers.push(PeerUpdate::remove(key)),
                Action::Send { to, bytes } => {
                    // The answer's source must be the address that was asked. A client behind a strict firewall
                    // receives no other answers.
                    let from = caused_by.iter().rev().find(|datagram| datagram.endpoint.remote == to);
                    let endpoint = from.map_or(Endpoint::new(to), |datagram| datagram.endpoint);
                    answers.push(Datagram::new(endpoint, bytes));
                }
                Action::Audit(record) => {
                    let mut record = record;
                    record.uid = uid.or(record.uid);
                    self.counters.count(&record);
                    tracing::info!(target: "rustguard_serve::audit", "{}", describe(&record));
                    if let Err(error) = self.audit.write(&record) {
                        tracing::error!("the audit log cannot be written: {error}");
                    }
                }
            }
        }
        if !peers.is_empty()
            && let Err(error) = self.device.update(Update::new().peers(peers)).await
        {
            // The device is stopping. A joiner that waits for an answer will ask the next server.
            tracing::debug!("peers were not updated: {error}");
            return;
        }
        for answer in answers {
            self.device.send(answer).await;
        }
    }
}

/// Describes the record for the readable log.
fn describe(record: &AuditRecord) -> String {
    let word = |value: serde_json::Result<String>| value.unwrap_or_default().replace(['"', '-'], " ").trim().to_owned();
    let mut text = word(serde_json::to_string(&record.event));
    let addresses: Vec<_> = record.addresses.iter().map(ToString::to_string).collect();
    let who = record.name.clone().or_else(|| record.public_key.map(|key| key::to_base64(&key.0).to_string()));
    let why = record.reason.map(|reason| word(serde_json::to_string(&reason)));
    let parts = [
        who.map(|who| format!(": {who}")),
        (!addresses.is_empty()).then(|| format!(" with {}", addresses.join(", "))),
        record.source.map(|source| format!(" from {source}")),
        record.token.as_ref().map(|token| format!(", invite {token}")),
        why.map(|why| format!(" ({why})")),
        (record.count > 1).then(|| format!(", {} times", record.count)),
    ];
    text.extend(parts.into_iter().flatten());
    text
}
