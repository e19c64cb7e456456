//! A machine as a member of a network: its tunnel follows the roster.

mod keys;
mod messages;
mod naming;
mod outside;
mod servers;
mod standby;
mod statement;

use crate::{
    driver::{Driver, DriverEvent},
    folder::{Folder, FolderError},
    identity::Identity,
    merge::{self, Known},
    policy::Enforced,
    report::{Report, Standing},
    state::State,
};
use futures_util::FutureExt as _;
use ipnet::IpNet;
use naming::Naming;
use outside::Outside;
use rustguard_crypto::x25519::PublicKey;
use rustguard_device::{Builder, Cause, Device, Event, Events, EventsError, Texts, Way};
use rustguard_quick::{Session, conf::Config, host::networks, reload::ReloadError};
use rustguard_roster::{exchange::Exchange, key::NetworkKey, member::Role, roster::Roster, statement::Statement};
use servers::Servers;
pub use standby::kept_state;
use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket},
    pin::pin,
    sync::Arc,
    time::{Duration, Instant},
};

/// How often this machine's networks are checked for changes.
const LOOK: Duration = Duration::from_secs(30);
/// How long a configuration that the host refused is not tried again.
const RETRY: Duration = Duration::from_secs(30);
/// How long a leaving member waits for a server, and how often it checks meanwhile.
const LEAVING: Duration = Duration::from_secs(3);
const LEAVING_LOOK: Duration = Duration::from_millis(20);
/// While keys and rosters arrive, the tunnel follows them for at most one part in this many of the time.
const SHARE: u32 = 5;

/// A machine as a member of a network. It derives the configuration of the tunnel from the file and the newest roster.
pub struct Agent {
    interface: String,
    network: NetworkKey,
    identity: Identity,
    /// The second key of the device, and the number of its preshared keys.
    second: Option<(PublicKey, usize)>,
    /// The file.
    base: Config,
    state: State,
    /// The addresses at which members were reached directly in the last run. They stay unchanged, so that no path
    /// changes because it was used.
    last: BTreeMap<[u8; 32], SocketAddr>,
    running: Running,
    standing: Standing,
    /// The role in the network that was logged last, with the `Forward` setting of the file.
    said: Option<(Role, bool)>,
    /// The roster that the tunnel was configured from last.
    applied: Option<Arc<Roster>>,
    /// The traffic that the network's policy permits to reach this device.
    enforced: Enforced,
    /// The members whose keys are asked for.
    wanted: BTreeSet<PublicKey>,
    /// The members whose handshakes fail because the keys of the pair differ. A server is asked again.
    doubted: BTreeSet<PublicKey>,
    refused: BTreeSet<String>,
    /// The part that was left out because the host refused it.
    left_out: Option<String>,
    /// The addresses outside the tunnel of the peers that are no members.
    outside: Outside,
    servers: Servers,
    networks: Vec<IpNet>,
    index: Option<u32>,
    /// Whether the configuration of the tunnel is out of date.
    changed: bool,
    not_before: Instant,
    look_at: Instant,
    report: Report,
    naming: Naming,
    /// On a standby: when the server state on its disk was made, in milliseconds since 1970.
    kept: Option<u64>,
}

/// The exchange before and after the start of the device.
enum Running {
    Not(Option<Box<Exchange>>, Option<Texts>),
    On(Box<Driver>, Events),
    Ended,
}

/// Why a tunnel cannot belong to a member.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AgentError {
    /// The state folder cannot be used.
    #[error(transparent)]
    Folder(#[from] FolderError),
    /// Without a key, it is unknown which member this is.
    #[error("{0}: the file has `Network` and no PrivateKey; a member needs both: `rustguard join` writes them")]
    NoKey(String),
}

impl Agent {
    /// Opens the member that the file of an interface describes. `None` for a file without `Network`.
    ///
    /// # Errors
    /// See [`AgentError`].
    pub fn open(interface: &str, base: &Config) -> Result<Option<Self>, AgentError> {
        match base.interface.network {
            Some(_) => Self::open_in(Folder::open(interface)?, interface, base),
            None => Ok(None),
        }
    }

    /// The same with the state in a given folder.
    ///
    /// # Errors
    /// See [`AgentError`].
    pub fn open_in(folder: Folder, interface: &str, base: &Config) -> Result<Option<Self>, AgentError> {
        let Some(network) = base.interface.network.map(|key| NetworkKey(key.0)) else { return Ok(None) };
        let key = base.interface.private_key.clone().ok_or_else(|| AgentError::NoKey(interface.to_owned()))?;
        let (state, roster) = State::load(folder.clone(), network)?;
        let identity = Identity::load(folder, key, roster.as_ref())?;
        let own_key = identity.public_key();
        let mut exchange = Exchange::new(network, roster).for_member(own_key);
        if merge::forwards(base) {
            exchange = exchange.for_server(own_key, state.pair_secret().cloned());
        }
        let mut kept = None;
        if standby::is_wanted(base) {
            let stored = kept_state(state.folder(), &network)?;
            kept = stored.as_ref().map(|stored| stored.made());
            exchange = exchange.keeping_state(stored);
        } else {
            standby::warn_of_kept_state(state.folder());
        }
        let now = Instant::now();
        Ok(Some(Self {
            interface: interface.to_owned(),
            network,
            identity,
            second: None,
            base: base.clone(),
            last: state.addresses(),
            state,
            running: Running::Not(Some(Box::new(exchange)), None),
            standing: Standing::Waiting,
            said: None,
            applied: None,
            enforced: Enforced::Everything,
            wanted: BTreeSet::new(),
            doubted: BTreeSet::new(),
            refused: BTreeSet::new(),
            left_out: None,
            outside: Outside::default(),
            servers: Servers::default(),
            networks: Vec::new(),
            index: None,
            changed: false,
            not_before: now,
            look_at: now + LOOK,
            report: Report::default(),
            naming: Naming::new(now),
            kept,
        }))
    }

    /// Makes the device that is to be started take part in the exchange.
    ///
    /// Without `ListenPort`, it gets the port of the last run, if that is free. Other members look for it at this port
    /// when there is no server.
    pub fn prepare(&mut self, builder: Builder) -> Builder {
        let (mut builder, texts) = Driver::texts(builder);
        // Even if no server is reachable, the policy from before a reboot stays in force.
        self.follow_policy();
        builder = builder.policy(self.enforced.policy());
        let port = self.last.get(&self.own_key().0).map(SocketAddr::port);
        if let Some(port) = port.filter(|port| self.base.interface.listen_port.is_none() && is_free(*port)) {
            builder = builder.listen_port(port);
        }
        if let Running::Not(_, kept) = &mut self.running {
            *kept = Some(texts);
        }
        builder
    }

    /// Begins on a device that was started with the builder of [`prepare`](Self::prepare).
    pub async fn start(&mut self, device: &Device) {
        if let Ok(status) = device.status().await {
            let own_key = self.own_key();
            self.state.reached_at(&own_key, SocketAddr::from((Ipv6Addr::UNSPECIFIED, status.listen_port)));
        }
        self.index = device.interface().map(|interface| interface.index);
        if let Running::Not(exchange, texts) = &mut self.running
            && let (Some(exchange), Some(texts)) = (exchange.take(), texts.take())
        {
            let mut driver = Driver::new(*exchange, device.handle(), texts, device.events());
            driver.want_keys(self.wanted.iter().copied());
            self.running = Running::On(Box::new(driver), device.events());
            self.state_anew();
            self.set_second_key(device).await;
        }
        self.naming.ask().await;
        self.answer_for_names().await;
        self.write_report();
    }

    /// Whether the machine has all that a member needs to reach the others: the roster, and the keys of its pairs.
    pub fn is_complete(&self) -> bool {
        self.standing != Standing::Waiting && !self.changed && self.wanted.is_empty()
    }

    /// The tunnel's configuration: the file, and the roster as far as the file permits it.
    pub async fn config(&mut self) -> Config {
        match networks::connected(self.index).await {
            Ok(networks) => self.networks = sorted(networks),
            Err(error) => tracing::warn!("{}: cannot list this machine's networks: {error}", self.interface),
        }
        self.config_with(true)
    }

    /// Replaces the file, and returns the previous one. [`config`](Self::config) then uses the new one.
    pub fn set_file(&mut self, base: Config) -> Config {
        if base.interface.private_key.as_ref().is_some_and(|key| self.identity.file_has(key)) {
            let own_key = self.own_key();
            if let Running::On(driver, _) = &mut self.running {
                driver.set_own_key(own_key);
            }
        }
        let before = std::mem::replace(&mut self.base, base);
        self.state_anew();
        before
    }

    /// Waits until the tunnel has to follow. Then [`follow`](Self::follow) is to be called. Dropping the future loses
    /// nothing.
    pub async fn next(&mut self) {
        loop {
            let now = Instant::now();
            if self.changed && self.not_before <= now {
                return;
            }
            let change = self.changed.then_some(self.not_before);
            let due = change
                .into_iter()
                .chain(self.state.deadline())
                .chain(self.identity.change_at())
                .chain([self.look_at])
                .min()
                .unwrap_or(self.look_at);
            let timer = tokio::time::sleep(due.saturating_duration_since(now));
            match &mut self.running {
                Running::On(driver, events) => tokio::select! {
                    event = driver.next() => self.handle(event),
                    event = events.recv() => self.hear(event),
                    () = self.naming.changed() => self.changed |= self.naming.has_changed(),
                    () = timer => self.tick().await,
                },
                Running::Not(..) | Running::Ended => timer.await,
            }
        }
    }

    /// Makes the tunnel follow the roster. Parts that fail are left unchanged, logged, and tried again.
    pub async fn follow(&mut self, session: &mut Session) {
        let began = Instant::now();
        self.changed = false;
        self.follow_keys(session).await;
        let mut config = self.config().await;
        self.answer_for_names().await;
        if std::mem::take(&mut self.changed) {
            config = self.config_with(true);
        }
        let mut outcome = session.adopt(config).await;
        if let Err(error) = &outcome
            && let Some(cause) = error.of_names()
        {
            // A tunnel must not fall behind its network because of names.
            self.naming.service_failed(cause.to_string(), &session.config_mut().interface);
            outcome = session.adopt(self.config_with(true)).await;
        }
        let outcome = match outcome {
            // Another program may have a route to the same prefix.
            Err(ReloadError::Undone(cause)) => {
                let adopted = session.adopt(self.config_with(false)).await;
                if adopted.is_ok() {
                    self.leave_out(format!("all prefixes behind members, because of one: {cause}"));
                }
                adopted
            }
            outcome => {
                self.left_out.take_if(|_| outcome.is_ok());
                outcome
            }
        };
        match outcome {
            Ok(difference) => {
                // This machine's own change of its key was logged already, and ends no session.
                let lines = difference.interface_lines();
                let lines = lines.iter().filter(|line| line.setting != "PrivateKey");
                lines.for_each(|line| tracing::info!("{}: {line}", self.interface));
                difference.lines().iter().for_each(|line| tracing::debug!("{}: {line}", self.interface));
                self.not_before = Instant::now() + began.elapsed() * (SHARE - 1);
            }
            Err(error) => {
                tracing::error!("{} does not follow its network: {error}; the tunnel runs as before", self.interface);
                (self.changed, self.not_before) = (true, Instant::now() + RETRY);
            }
        }
        self.state.store(Instant::now());
        self.save_key(session);
        self.save_peer_keys(session);
        if let Some(device) = session.device() {
            self.set_second_key(device).await;
        }
        self.write_report();
    }

    /// Tells the network that this machine leaves it. Returns whether the server that issues the roster has
    /// acknowledged this within three seconds. The tunnel runs until it is ended.
    pub async fn leave(&mut self) -> bool {
        let Running::On(driver, _) = &mut self.running else { return false };
        driver.state(Statement::leaving());
        let heard = tokio::time::timeout(LEAVING, async {
            loop {
                let Running::On(driver, _) = &mut self.running else { return false };
                if driver.is_stated() {
                    return true;
                }
                // The answer is no event: the exchange processes it while it is polled.
                let event = tokio::time::timeout(LEAVING_LOOK, driver.next()).await;
                if let Ok(event) = event {
                    self.handle_one(event);
                }
            }
        });
        heard.await.unwrap_or(false)
    }

    /// Writes everything that is not on disk yet. The tunnel has ended.
    pub fn stop(mut self) {
        self.state.store_now(Instant::now());
        Report::remove(&self.interface);
    }

    /// The newest roster that may be used.
    fn roster(&self) -> Option<&Arc<Roster>> {
        let roster = match &self.running {
            Running::Not(exchange, _) => exchange.as_ref()?.roster(),
            Running::On(driver, _) => driver.roster(),
            Running::Ended => None,
        };
        roster.filter(|roster| self.state.permits(roster))
    }

    /// The configuration. `prefixes` says whether it includes the prefixes behind members.
    fn config_with(&mut self, prefixes: bool) -> Config {
        let Some(roster) = self.roster().cloned() else { return merge::alone(&self.base) };
        let in_file = |key: &PublicKey| self.base.peers.iter().any(|peer| peer.public_key == *key);
        self.outside.keep_only(|key| roster.member(key).is_some() || in_file(key));
        let underlay = merge::underlay(&self.base, Some(&roster)).chain(self.outside.addresses());
        let mut consent = merge::consent(&self.base, self.networks.clone(), underlay);
        if !prefixes {
            (consent.prefixes, consent.accepted) = (false, Vec::new());
        }
        let host = self.naming.host();
        let own_key = self.own_key();
        self.state.follow_lost(&self.base, &own_key, &roster);
        self.servers.follow(&roster, &own_key, Instant::now());
        let here = Known { state: &self.state, last: &self.last, resting: self.servers.resting(), host: &host };
        let merged = merge::merge(&self.base, &own_key, &roster, &consent, &here);
        let before = self.applied.replace(Arc::clone(&roster));
        let changes = before.as_ref().map(|before| roster.changes_since(before));
        let Some(mut merged) = merged else {
            return self.without_me();
        };
        merged.config.interface.private_key = Some(self.identity.key().clone());
        self.is_member(&roster);
        self.compare_role(&roster);
        if let (Some(before), Some(changes)) = (&before, &changes) {
            self.tell(before, &roster, changes);
        }
        self.state.keep_only(&roster);
        self.doubted.retain(|key| roster.member(key).is_some());
        let old = merged.with_old_key.iter().chain(&self.doubted);
        self.want(merged.without_key.iter().chain(old).copied().collect(), false);
        self.naming.settle(&mut merged);
        if prefixes {
            self.take_refused(merged.refused);
        }
        self.report = Report {
            key: self.network.to_string(),
            name: Some(roster.settings().name.to_string()),
            own_key: self.own_key().to_string(),
            own_name: roster.holder(&self.own_key()).map(|member| member.name.to_string()),
            standing: self.standing,
            number: roster.version().number,
            issued: roster.issued(),
            members: roster.members().len(),
            without_key: merged.without_key.len(),
            ..Report::default()
        };
        merged.config
    }

    /// Resolves the names of the roster that the tunnel is configured from.
    async fn answer_for_names(&mut self) {
        let own_key = self.own_key();
        let roster = self.applied.as_ref().filter(|_| self.standing == Standing::Member);
        self.naming.answer_for(roster.and_then(|roster| Some((&**roster, &**roster.holder(&own_key)?)))).await;
        self.changed |= self.standing == Standing::Member && self.naming.has_changed();
    }

    /// Asks for the keys that this roster makes necessary, before the tunnel follows it: they may have arrived with it.
    /// Asks again for those that were requested before.
    fn want_keys_of(&mut self, roster: &Roster) {
        let missing = merge::without_key(&self.base, &self.own_key(), roster, &self.state);
        self.want(self.wanted.iter().copied().chain(missing).collect(), true);
    }

    /// Asks the servers for the keys of these pairs. If there is `news`, also repeats earlier requests.
    fn want(&mut self, keys: BTreeSet<PublicKey>, news: bool) {
        if let Running::On(driver, _) = &mut self.running
            && (news || !keys.is_subset(&self.wanted))
        {
            driver.want_keys(keys.iter().copied());
        }
        self.wanted = keys;
    }

    /// Handles a roster without this machine. A machine that has never been in a roster waits for the next one. So does
    /// a machine that has started with such a roster, because it may have joined again.
    fn without_me(&mut self) -> Config {
        if self.standing == Standing::Waiting {
            return merge::alone(&self.base);
        }
        if self.standing == Standing::Member {
            tracing::warn!(
                "{0}: this machine is no member of the network any more, and uses it no longer; to join again: \
                 rustguard down {0}; rustguard join … --interface {0}",
                self.interface
            );
            self.standing = Standing::Removed;
        }
        self.wanted.clear();
        self.refused.clear();
        self.left_out = None;
        self.state.forget_all();
        self.forget_kept_state();
        let (key, name) = (std::mem::take(&mut self.report.key), self.report.name.take());
        let (number, issued) = (self.report.number, self.report.issued);
        self.report = Report { key, name, standing: self.standing, number, issued, ..Report::default() };
        merge::removed(&self.base)
    }

    fn handle(&mut self, event: DriverEvent) {
        self.handle_one(event);
        // Events that arrived together are handled together.
        while let Some(event) = self.waiting() {
            self.handle_one(event);
        }
    }

    /// An event that is ready now.
    fn waiting(&mut self) -> Option<DriverEvent> {
        match &mut self.running {
            Running::On(driver, _) => pin!(driver.next()).now_or_never(),
            Running::Not(..) | Running::Ended => None,
        }
    }

    fn handle_one(&mut self, event: DriverEvent) {
        match event {
            DriverEvent::Newer(roster) => {
                if self.state.takes(&roster) {
                    self.changed = true;
                    // Immediately: the tunnel may follow later.
                    if self.follow_policy() {
                        self.state.is_urgent();
                        if let Running::On(driver, _) = &self.running {
                            driver.enforce(self.enforced.policy());
                        }
                    }
                    self.want_keys_of(&roster);
                } else {
                    let (interface, version) = (&self.interface, roster.version());
                    tracing::warn!("{interface}: the roster {version} is older than one before, and is not taken");
                }
            }
            DriverEvent::PairKey { member, of, key } => {
                self.state.set_key(&member, of, key);
                self.doubted.remove(&member);
                self.changed = true;
            }
            DriverEvent::PairSecret(secret) => {
                self.state.set_pair_secret(secret);
                self.changed = true;
            }
            DriverEvent::State(state) => self.keep_state(&state),
            // Only the issuing server receives statements.
            DriverEvent::Statement { .. } => {}
            DriverEvent::Ended => self.running = Running::Ended,
        }
    }

    /// Learns the addresses of servers and members.
    fn hear(&mut self, event: Result<Event, EventsError>) {
        if let Ok(event) = &event {
            self.changed |= self.servers.hear(event, Instant::now());
        }
        let (peer, at) = match event {
            Ok(Event::WayChanged { peer, now: Way::Direct(at), .. }) => (peer, at),
            Ok(Event::PeerRoamed { peer, endpoint, .. } | Event::EndpointResolved { peer, endpoint, .. }) => {
                (peer, endpoint)
            }
            // This event comes only once until the peer is reachable again.
            Ok(Event::ProblemFound { peer, problem, .. })
                if matches!(problem.cause, Cause::PresharedKey | Cause::Unconfirmed) =>
            {
                return self.doubt(peer);
            }
            _ => return,
        };
        match self.roster().and_then(|roster| roster.member(&peer)).map(|member| member.role) {
            Some(Role::Member) => self.state.reached_at(&peer, at),
            Some(Role::Client(_)) => {}
            // Routes to this address have to stay outside the tunnel.
            _ => self.changed |= self.outside.learn(peer, at.ip()),
        }
    }

    /// The handshakes with a member fail because the keys of the pair differ: one side lacks the present key.
    fn doubt(&mut self, peer: PublicKey) {
        if self.state.key(&peer).is_some() && self.doubted.insert(peer) {
            let wanted = self.wanted.iter().copied().chain([peer]).collect();
            self.want(wanted, true);
        }
    }

    /// The public key that this machine uses.
    fn own_key(&self) -> PublicKey {
        self.identity.public_key()
    }

    async fn tick(&mut self) {
        let now = Instant::now();
        self.changed |= self.identity.change_at().is_some_and(|at| at <= now);
        self.state.store(now);
        if self.look_at <= now {
            self.look_at = now + LOOK;
            if let Ok(networks) = networks::connected(self.index).await {
                let has_moved = sorted(networks) != self.networks;
                if has_moved {
                    self.servers.try_again(now);
                }
                self.changed |= has_moved;
            }
            self.changed |= self.servers.tick(now);
        }
        self.changed |= self.naming.tick(now).await;
    }
}

/// Whether a socket can bind the port.
fn is_free(port: u16) -> bool {
    // Without IPv6, the second attempt fails with another error, which is ignored.
    let taken = |address: IpAddr| {
        UdpSocket::bind((address, port)).is_err_and(|error| error.kind() == std::io::ErrorKind::AddrInUse)
    };
    !taken(Ipv4Addr::UNSPECIFIED.into()) && !taken(Ipv6Addr::UNSPECIFIED.into())
}

fn sorted(mut networks: Vec<IpNet>) -> Vec<IpNet> {
    networks.sort();
    networks.dedup();
    networks
}
