//! The server at work: datagrams, handshakes and commands go in, peers and answers come out.

mod commands;

use crate::{
    audit::AuditLog,
    clock::now,
    counters::Counters,
    folder::Folder,
    peer::to_update,
    prepare::Configured,
    settings::Settings,
    socket::{self, Call, socket_path},
    store::FileStore,
};
use rustguard_crypto::{random::SystemRng, x25519::PublicKey};
use rustguard_device::{
    Datagram, Datagrams, Device, DeviceHandle, Event, Events, EventsError, PeerUpdate, Update, key,
    unix_socket::UnixSocket,
};
use rustguard_enroll::{action::Action, audit::AuditRecord, server::Server, store::LeaseStore, token::Passphrase};
use rustguard_tun::Endpoint;
use std::{io, path::PathBuf, sync::Arc, time::Duration};
use tokio::sync::mpsc;

/// Datagrams taken at a time: what they lead to reaches the device as one update, and the answers follow.
const BATCH: usize = 64;
/// Calls of the control socket that may wait.
const CALLS: usize = 16;
/// The runtime's timers stop while the machine sleeps, but leases go on: the service looks for due work at least this often.
const LOOK: Duration = Duration::from_secs(30);
/// A handshake not older than this counts as new where events were lost.
const RECENT: Duration = Duration::from_secs(180);

/// Enrolment on a running device. It works while [`run`](Self::run) is polled.
pub struct Service<S = FileStore> {
    interface: String,
    settings: Settings,
    public_key: PublicKey,
    server: Server<S>,
    /// What `open` opens a window with, where `serve` was given one.
    passphrase: Option<Passphrase>,
    device: DeviceHandle,
    datagrams: Datagrams,
    events: Events,
    calls: mpsc::Receiver<Call>,
    _socket: UnixSocket,
    folder: Folder,
    audit: AuditLog,
    counters: Arc<Counters>,
    actions: Vec<Action>,
}

/// Why enrolment did not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// There is no control socket.
    #[error("cannot open the control socket {path}: {cause}")]
    Socket {
        /// Which.
        path: PathBuf,
        /// Why not.
        cause: io::Error,
    },
    /// There is no audit log.
    #[error("cannot open the audit log {path}: {cause}")]
    Audit {
        /// Which.
        path: PathBuf,
        /// Why not.
        cause: io::Error,
    },
}

impl<S: LeaseStore> Service<S> {
    /// Begins to serve the device that was built of [`Prepared::configure`](crate::Prepared::configure), on the current tokio
    /// runtime.
    ///
    /// # Errors
    /// See [`StartError`].
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub fn start(configured: Configured<S>, device: &Device) -> Result<Self, StartError> {
        let Configured { interface, settings, server, passphrase, folder, datagrams, counters } = configured;
        let (calls_in, calls) = mpsc::channel(CALLS);
        let path = socket_path(&interface);
        let socket = socket::listen(&path, calls_in).map_err(|cause| StartError::Socket { path, cause })?;
        let path = folder.path("audit.jsonl");
        let audit = AuditLog::open(&path).map_err(|cause| StartError::Audit { path, cause })?;
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
            _socket: socket,
            folder,
            audit,
            counters,
            actions: Vec::new(),
        })
    }

    /// Serves until the device ends.
    pub async fn run(&mut self) {
        // Peers of the previous server reconnect at once instead of by their own timeouts.
        self.device.handshake_now().await;
        let mut batch = Vec::with_capacity(BATCH);
        loop {
            let due = self.server.deadline().map_or(LOOK, |deadline| deadline.since(now().instant).min(LOOK));
            // In this order: what outsiders can send comes last.
            tokio::select! {
                biased;
                event = self.events.recv() => match event {
                    Ok(Event::HandshakeComplete { peer, .. }) => {
                        self.server.handshake_completed(&peer, now(), &mut self.actions);
                    }
                    Ok(_) => continue,
                    Err(EventsError::Lagged(_)) => self.catch_up().await,
                    Err(_) => return,
                },
                Some(call) = self.calls.recv() => self.call(call).await,
                () = tokio::time::sleep(due) => self.server.tick(now(), &mut self.actions),
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

    /// Writes what the audit log lacks, and keeps where the peers are, for the next start: to be called while the device
    /// still runs.
    pub async fn stop(&mut self) {
        self.server.stop(&mut self.actions);
        self.carry_out(&[], None).await;
        let Some(status) = self.device.status().await else { return };
        let now = now().unix;
        let here =
            status.peers.iter().filter(|peer| peer.last_handshake.is_some_and(|at| now.saturating_sub(at) < RECENT));
        let endpoints =
            here.filter_map(|peer| Some((key::to_base64(&peer.public_key.0).to_string(), peer.endpoint?))).collect();
        if let Err(error) = self.folder.set_endpoints(&endpoints) {
            tracing::warn!("{error}");
        }
    }

    /// Events were lost: which handshakes there were lately, the device knows.
    async fn catch_up(&mut self) {
        let Some(status) = self.device.status().await else { return };
        let now = now();
        for peer in &status.peers {
            if peer.last_handshake.is_some_and(|at| now.unix.saturating_sub(at) < RECENT) {
                self.server.handshake_completed(&peer.public_key, now, &mut self.actions);
            }
        }
    }

    /// Carries out all actions: the device gets its peers before the answers leave. The actions were caused by the datagrams
    /// `caused_by` or by the user `uid`.
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
                    // From the address that was asked: a client behind a strict firewall hears no other.
                    let from = caused_by.iter().rev().find(|datagram| datagram.endpoint.remote == to);
                    let endpoint = from.map_or(Endpoint { remote: to, local: None }, |datagram| datagram.endpoint);
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
            // The device is ending. A joiner that waits for an answer asks the next server.
            tracing::debug!("peers were not updated: {error}");
            return;
        }
        for answer in answers {
            self.device.send(answer).await;
        }
    }
}

/// The record for the log that people read.
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
