//! The data of the pages at one moment. All browsers share it for about a second.

use crate::{round_trips::RoundTrips, text::shown};
use base64ct::{Base64UrlUnpadded, Encoding as _};
use rustguard_device::{DeviceHandle, PeerStatus, Way, core::paths::State as PathState, uapi::PolicyView};
use rustguard_serve::{
    Handle, PolicyHandle,
    request::{Answer, PeerView, PublicKey, Request, Status},
};
use std::{
    collections::HashMap,
    fmt,
    net::IpAddr,
    path::PathBuf,
    pin::Pin,
    sync::Arc,
    time::{Duration, SystemTime},
};
use tokio::{sync::Mutex, time::Instant};

/// How long a snapshot is reused for further browsers, so that they cannot cause unlimited work for the server.
const FRESH: Duration = Duration::from_millis(900);
/// The time for the server's answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// The time for a member's answer to a ping.
const PING: Duration = Duration::from_secs(2);

/// The running server whose network is shown.
pub struct Source {
    interface: String,
    ask: Ask,
    device: Device,
    ping: Ping,
    pub(crate) audit: PathBuf,
    pub(crate) policy: Option<PolicyHandle>,
}

type Answered<T> = Pin<Box<dyn Future<Output = Option<T>> + Send>>;
/// Sends a request to the service in the name of a session, or in the name of the page.
type Ask = Box<dyn Fn(Option<String>, Request) -> Answered<Answer> + Send + Sync>;
type Device = Box<dyn Fn() -> Answered<Live> + Send + Sync>;
/// The time that a member takes to answer, inside its session.
type Ping = Box<dyn Fn(PublicKey) -> Answered<Duration> + Send + Sync>;

/// The data from the device.
#[derive(Clone, Debug, Default)]
pub(crate) struct Live {
    pub(crate) peers: Vec<PeerStatus>,
    /// The policy that it enforces, and the traffic that it has refused.
    pub(crate) policy: Option<PolicyView>,
}

impl Source {
    /// The server of this interface, its device, and the file of its audit log.
    pub fn new(interface: impl Into<String>, service: Handle, device: DeviceHandle, audit: PathBuf) -> Self {
        let ask = move |session: Option<String>, request| -> Answered<Answer> {
            let service = session.map_or_else(|| service.clone(), |session| service.for_session(session));
            Box::pin(async move { service.request(request).await })
        };
        let pinged = device.clone();
        let ping = move |member: PublicKey| -> Answered<Duration> {
            let device = pinged.clone();
            Box::pin(async move { Some(device.ping(&member, PING).await.ok()?.round_trip) })
        };
        let live = move || -> Answered<Live> {
            let device = device.clone();
            Box::pin(async move {
                let status = device.status().await.ok()?;
                let policy = status.policy.as_ref().map(PolicyView::from);
                Some(Live { peers: status.peers, policy })
            })
        };
        let (ask, device, ping) = (Box::new(ask), Box::new(live), Box::new(ping));
        Self { interface: interface.into(), ask, device, ping, audit, policy: None }
    }

    /// Shows the policy as well. A star has none.
    #[must_use]
    pub fn policy(mut self, policy: Option<PolicyHandle>) -> Self {
        self.policy = policy;
        self
    }

    /// Sends a request to the service in the name of a session. `None` if the service has ended.
    pub(crate) async fn ask(&self, session: Option<String>, request: Request) -> Option<Answer> {
        (self.ask)(session, request).await
    }

    /// A source for tests.
    #[cfg(test)]
    pub(crate) fn of_functions(
        ask: impl Fn(Option<String>, Request) -> Option<Answer> + Send + Sync + 'static,
        live: Live,
        audit: PathBuf,
    ) -> Self {
        Self {
            interface: "rg0".to_owned(),
            ask: Box::new(move |session, request| Box::pin(std::future::ready(ask(session, request)))),
            device: Box::new(move || Box::pin(std::future::ready(Some(live.clone())))),
            ping: Box::new(|_| Box::pin(std::future::ready(Some(Duration::from_micros(12_345))))),
            audit,
            policy: None,
        }
    }
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Source").field("interface", &self.interface).finish_non_exhaustive()
    }
}

/// The state at one moment.
#[derive(Debug)]
pub(crate) struct Snapshot {
    /// Seconds since the epoch.
    pub(crate) now: u64,
    pub(crate) status: Status,
    /// In the order of their addresses.
    pub(crate) members: Vec<Member>,
    /// The policy that the device enforces, and the traffic that it has refused.
    pub(crate) policy: Option<PolicyView>,
}

/// A machine of the network. Its texts are harmless.
#[derive(Debug)]
pub(crate) struct Member {
    pub(crate) view: PeerView,
    pub(crate) name: String,
    /// `member`, `server` or `client`.
    pub(crate) role: &'static str,
    pub(crate) state: State,
    /// The path to it, in words. `None` if it is unknown.
    pub(crate) way: Option<String>,
    /// The key of the relay through which it is reached.
    pub(crate) through: Option<PublicKey>,
    /// Whether its round trip is measured continuously.
    probed: bool,
    /// In words.
    pub(crate) round_trip: Option<String>,
}

/// Whether a machine can be reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum State {
    Online,
    Idle,
    Connecting,
    Offline,
    /// It was never connected.
    Never,
}

impl State {
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Online => "online",
            Self::Idle => "idle",
            Self::Connecting => "connecting",
            Self::Offline => "offline",
            Self::Never => "not yet connected",
        }
    }

    /// The class in the style sheet.
    pub(crate) fn class(self) -> &'static str {
        match self {
            Self::Online | Self::Idle => "good",
            Self::Connecting => "fair",
            Self::Offline => "bad",
            Self::Never => "none",
        }
    }

    pub(crate) fn is_connected(self) -> bool {
        matches!(self, Self::Online | Self::Idle)
    }

    fn of(peer: &PeerView) -> Self {
        match peer.connection.state.as_str() {
            "online" => Self::Online,
            "idle" => Self::Idle,
            "connecting" => Self::Connecting,
            "offline" => Self::Offline,
            _ => Self::Never,
        }
    }
}

impl Snapshot {
    pub(crate) fn of(status: Status, live: Live, now: u64, pinged: impl Fn(&PublicKey) -> Option<Duration>) -> Self {
        let Live { peers, policy } = live;
        let live: HashMap<_, _> = peers.iter().map(|peer| (peer.public_key.0, peer)).collect();
        let names: HashMap<_, _> = status.peers.iter().map(|peer| (peer.public_key.0, name(peer))).collect();
        let member = |view: &PeerView| {
            let peer = live.get(&view.public_key.0).copied();
            let state = State::of(view);
            let way = peer.and_then(PeerStatus::way).filter(|_| state.is_connected());
            let through = peer.and_then(|peer| peer.through).filter(|_| state.is_connected());
            Member {
                name: names[&view.public_key.0].clone(),
                role: match (view.server, view.member) {
                    (true, _) => "server",
                    (_, true) => "member",
                    _ => "client",
                },
                state,
                way: way.map(|way| match way {
                    Way::Direct(address) => format!("direct, {address}"),
                    Way::Relayed(relay) => {
                        format!("through {}", names.get(&relay.0).cloned().unwrap_or_else(|| relay.to_string()))
                    }
                    _ => "another transport".to_owned(),
                }),
                through,
                probed: peer.and_then(round_trip).is_some(),
                round_trip: peer
                    .and_then(round_trip)
                    .or_else(|| pinged(&view.public_key))
                    .filter(|_| state.is_connected())
                    .map(milliseconds),
                view: view.clone(),
            }
        };
        let members = status.peers.iter().map(member).collect();
        Self { now, members, status, policy }
    }

    /// The machine with this key.
    pub(crate) fn member(&self, key: &PublicKey) -> Option<&Member> {
        self.members.iter().find(|member| member.view.public_key == *key)
    }

    /// The machine with this address.
    pub(crate) fn name_of(&self, address: IpAddr) -> Option<&str> {
        if self.status.pools.iter().any(|pool| pool.address == address) {
            return Some("this server");
        }
        self.members.iter().find(|member| member.view.addresses.contains(&address)).map(|member| &*member.name)
    }

    /// Changes that may interest the user, as a short text that rarely changes.
    pub(crate) fn news(&self) -> String {
        let connected = self.members.iter().filter(|member| member.state.is_connected()).count();
        let machines = match self.members.len() {
            0 => "No machine has joined yet.".to_owned(),
            1 => format!("{connected} of 1 machine is connected."),
            all => format!("{connected} of {all} machines are connected."),
        };
        let window = if self.status.window.is_some() { " The pairing window is open." } else { "" };
        let waiting = match self.status.waiting.len() {
            0 => String::new(),
            1 => " 1 machine waits for approval.".to_owned(),
            n => format!(" {n} machines wait for approval."),
        };
        machines + window + &waiting
    }
}

impl Member {
    /// The path of its page.
    pub(crate) fn path(&self) -> String {
        format!("/member/{}", Base64UrlUnpadded::encode_string(&self.view.public_key.0))
    }
}

/// Its name in the network, or the name that it gives itself, or its key.
fn name(peer: &PeerView) -> String {
    let name = peer.label.clone().or_else(|| peer.name.clone());
    shown(&name.unwrap_or_else(|| peer.public_key.to_string()))
}

/// The round trip time of the active path, if this side has measured it.
fn round_trip(peer: &PeerStatus) -> Option<Duration> {
    peer.paths.iter().find(|path| path.active && path.state == PathState::Up)?.round_trip
}

fn milliseconds(time: Duration) -> String {
    let ms = time.as_secs_f64() * 1e3;
    if ms < 10.0 { format!("{ms:.1} ms") } else { format!("{ms:.0} ms") }
}

/// The last snapshot.
#[derive(Debug, Default)]
pub(crate) struct Cache {
    last: Mutex<Option<(Instant, Arc<Snapshot>)>>,
    round_trips: Arc<RoundTrips>,
}

impl Cache {
    /// The present snapshot. One browser at a time triggers it, and others wait for it.
    pub(crate) async fn get(&self, source: &Source) -> Option<Arc<Snapshot>> {
        let mut known = self.last.lock().await;
        if let Some((at, snapshot)) = &*known
            && at.elapsed() < FRESH
        {
            return Some(Arc::clone(snapshot));
        }
        let asked = async {
            let Answer::Status(status) = source.ask(None, Request::Status).await? else { return None };
            let live = (source.device)().await?;
            let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
            let pinged = |member: &PublicKey| self.round_trips.of(member, Instant::now());
            Some(Snapshot::of(*status, live, now, pinged))
        };
        let snapshot = Arc::new(tokio::time::timeout(PATIENCE, asked).await.ok().flatten()?);
        *known = Some((Instant::now(), Arc::clone(&snapshot)));
        self.measure(source, &snapshot);
        Some(snapshot)
    }

    /// Pings members whose round trip nothing else measures, for later snapshots. Idle members are excluded, so that
    /// their sessions may end, and stock clients, which do not answer pings.
    fn measure(&self, source: &Source, snapshot: &Snapshot) {
        let is_asked = |member: &&Member| member.state == State::Online && member.view.member && !member.probed;
        let members: Vec<_> = snapshot.members.iter().filter(is_asked).map(|member| member.view.public_key).collect();
        for member in self.round_trips.due(&members, Instant::now()) {
            let (answer, round_trips) = ((source.ping)(member), Arc::clone(&self.round_trips));
            tokio::spawn(async move {
                if let Some(round_trip) = answer.await {
                    round_trips.answered(&member, round_trip, Instant::now());
                }
            });
        }
    }

    /// Discards the snapshot after an act, so that the next page shows the result.
    pub(crate) async fn forget(&self) {
        *self.last.lock().await = None;
    }
}
