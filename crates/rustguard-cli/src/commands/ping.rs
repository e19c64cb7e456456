//! `rustguard ping`: sends requests to a peer, and shows the way of each answer.

mod report;

use crate::{
    arguments::ping::Ping as Arguments,
    echo::{self, Kind},
    escape::escape,
    one,
    process::{lifetime::Signals, runtime},
    uapi::{self, Device, Peer, Pinger},
};
use anyhow::{Context as _, Result, bail};
use report::{Asked, Outcome, Report};
use rustguard_crypto::x25519::PublicKey;
use rustguard_device::{
    key::from_base64,
    uapi::{PingView, WayView},
};
use rustguard_network::{Listed, Report as Network};
use std::{cell::Cell, fmt, net::IpAddr, process::ExitCode, time::Duration};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until, timeout_at};

/// The exit status of errors, as ping(8) has it: 1 says that there was no answer.
pub(crate) const ERROR: u8 = 2;
/// The time between requests, and the same with `--until-direct`.
const INTERVAL: (Duration, Duration) = (Duration::from_secs(1), Duration::from_millis(200));
/// How long `--until-direct` waits.
const UNTIL_DIRECT: Duration = Duration::from_secs(30);
/// Requests without an answer, after which a peer that answers echo requests is taken for another WireGuard.
const TRIES: u32 = 3;
/// The most names of peers in an error.
const NAMES: usize = 8;

/// Marks an error as one of `ping`, which ends with another status.
#[derive(Debug)]
pub(crate) struct Failed(String);

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot ping {}", self.0)
    }
}

/// Runs `ping`.
pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode> {
    let runtime = runtime()?;
    let ended = runtime.block_on(ping(arguments));
    // A request on another thread may still wait for its answer.
    runtime.shutdown_background();
    ended.with_context(|| Failed(escape(&arguments.peer).into_owned()))
}

async fn ping(arguments: &Arguments) -> Result<ExitCode> {
    let interface = one::tunnel_by_option(arguments.interface.as_deref())?;
    let device = uapi::get(&interface)?;
    if !device.is_rustguard() && uapi::is_older(&interface) {
        bail!(
            "the process of {interface} is older than this program, and cannot be asked: `rustguard down {interface}`, and up again"
        );
    }
    if !device.is_rustguard() {
        bail!("{interface} is an interface of another program, which sends no such requests");
    }
    let network = Network::read(&interface).ok().flatten();
    let target = chosen(&device, network.as_ref(), &interface, &arguments.peer)?;
    let peer = target.peer;
    let mut signals = Signals::new()?;
    let mut round = Round {
        pinger: Pinger::open(&interface).await?,
        key: peer.public_key,
        echo: match target.client.map(|client| client.addresses.first()) {
            Some(address) => Echo::Yes(*address.context("it has no address in the network")?),
            None => Echo::Perhaps { address: own_address(peer), tries: 0, patience: Duration::from_secs(1) },
        },
        client: target.client.is_some(),
        interface: interface.clone(),
    };
    let mut report = Report::new(arguments.json, &interface, peer, &device);
    if let Some(client) = target.client {
        report.of_client(client);
    }
    let limit = arguments.timeout.or(arguments.until_direct.then_some(UNTIL_DIRECT));
    let end = limit.map(|limit| Instant::now() + limit);
    let (pause, hasty) = INTERVAL;
    let pause = arguments.interval.unwrap_or(if arguments.until_direct { hasty } else { pause });
    let mut pace = interval(pause);
    // After a long wait for an answer, the requests must not come in a burst.
    pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let waits = Cell::new(false);
    while arguments.count.is_none_or(|count| report.sent() < count) {
        let next = async {
            pace.tick().await;
            waits.set(true);
            round.ask(arguments.wait).await
        };
        let over = async {
            match end {
                Some(end) => sleep_until(end).await,
                None => std::future::pending().await,
            }
        };
        let asked = tokio::select! {
            biased;
            _ = signals.recv() => break,
            // The end comes before the next request: a request that is sent at the end cannot be answered, and would
            // count as lost.
            () = over => break,
            asked = next => asked?,
        };
        waits.set(false);
        let direct = asked.is_direct();
        report.line(asked)?;
        if arguments.until_direct && direct {
            break;
        }
    }
    if waits.get() {
        report.given_up();
    }
    // The summary leaves it out if the device has just ended.
    let peer = if arguments.until_direct { round.peer().await.ok() } else { None };
    let why = peer.and_then(|peer| peer.not_direct).map(|why| why.text);
    report.end(arguments.until_direct, why.as_deref())
}

/// The destination of the requests.
struct Target<'a> {
    /// The peer, or the server of the client.
    peer: &'a Peer,
    /// A client of a server: it has no session with this machine.
    client: Option<&'a Listed>,
}

/// The peer with this name or key, or the member of the network with this name, key or address.
fn chosen<'a>(device: &'a Device, network: Option<&'a Network>, interface: &str, word: &str) -> Result<Target<'a>> {
    let key = from_base64(word).ok();
    let is_meant = |peer: &&Peer| peer.name.as_deref() == Some(word) || key.as_deref() == Some(&peer.public_key.0);
    let mut meant = device.peers.iter().filter(is_meant);
    let (first, second) = (meant.next(), meant.next());
    if let (None, Some(network)) = (first, network)
        && let Some(listed) = network.listed(word)
    {
        return of_network(device, network, listed);
    }
    match (first, second) {
        (Some(peer), None) => Ok(Target { peer, client: None }),
        (Some(_), Some(_)) => bail!("several peers of {interface} have this name; use the public key"),
        (None, _) if device.peers.is_empty() => bail!("{interface} has no peers"),
        (None, _) if word.parse::<IpAddr>().is_ok() => {
            bail!("it takes the name of a peer or its public key; ping(8) and `rustguard trace` take addresses")
        }
        (None, _) => {
            let names = device.peers.iter().take(NAMES).map(report::called).collect::<Vec<_>>().join(", ");
            let more = if device.peers.len() > NAMES { ", …" } else { "" };
            let what = network.map_or("name or key", |_| "name, key or address");
            bail!("{interface} has no peer of this {what}; its peers are {names}{more}")
        }
    }
}

/// The peer that leads to a member of the network.
fn of_network<'a>(device: &'a Device, network: &'a Network, listed: &'a Listed) -> Result<Target<'a>> {
    let peer = |key: &str| device.peers.iter().find(|peer| peer.public_key.to_string() == key);
    if device.public_key.is_some_and(|own| own.to_string() == listed.public_key) {
        bail!("it is this machine");
    }
    if let Some(peer) = peer(&listed.public_key) {
        return Ok(Target { peer, client: None });
    }
    let server = listed.server.as_ref().and_then(|server| network.listed(server));
    match server.and_then(|server| peer(&server.public_key)) {
        Some(peer) => Ok(Target { peer, client: Some(listed) }),
        None => bail!("no server has told the preshared key of the pair yet, and without it there is no session"),
    }
}

/// The peer's own address: the first of its allowed IPs that is a single one.
fn own_address(peer: &Peer) -> Option<IpAddr> {
    let single = peer.allowed_ips.iter().find(|net| net.prefix_len() == net.max_prefix_len());
    single.map(|net| net.addr())
}

/// Whether echo requests are sent.
#[derive(Clone, Copy)]
enum Echo {
    /// The peer has answered a RustGuard request, so no echo requests are sent.
    No,
    /// It has answered no RustGuard request yet.
    Perhaps {
        /// Where an echo request would go.
        address: Option<IpAddr>,
        /// The number of RustGuard requests without an answer, while an echo request got one.
        tries: u32,
        /// The most time for the next RustGuard request.
        patience: Duration,
    },
    /// It answers echo requests only.
    Yes(IpAddr),
}

/// The state that a request needs.
struct Round {
    interface: String,
    pinger: Pinger,
    key: PublicKey,
    echo: Echo,
    /// Whether echo requests are for a client of the peer.
    client: bool,
}

impl Round {
    /// Sends one request, or an echo request if the peer answers only those.
    async fn ask(&mut self, wait: Duration) -> Result<Asked> {
        let end = Instant::now() + wait;
        let patience = match self.echo {
            Echo::No => wait,
            Echo::Perhaps { address: None, .. } => wait,
            Echo::Perhaps { patience, .. } => patience.min(wait),
            Echo::Yes(address) => return self.echo(address, end).await,
        };
        let outcome = match self.pinger.ping(&self.key, patience).await? {
            PingView::Answer { round_trip_us, asked, way } => {
                self.echo = Echo::No;
                return Ok(Asked::ours(Outcome::Answer { round_trip_us, asked, way }));
            }
            PingView::Error { kind, text } if kind == "no-session" => {
                let problem = self.peer().await?.problem;
                Outcome::Error { kind, text: problem.map_or(text, |problem| problem.text) }
            }
            PingView::Error { kind, text } => Outcome::Error { kind, text },
        };
        let no_answer = matches!(&outcome, Outcome::Error { kind, .. } if kind == "no-answer");
        match self.echo {
            Echo::Perhaps { address: Some(address), tries, .. } if no_answer => {
                let asked = self.echo(address, end).await?;
                let Outcome::Answer { round_trip_us, .. } = asked.outcome else { return Ok(Asked::ours(outcome)) };
                self.echo = if tries + 1 < TRIES {
                    // Loss alone must not make it count as another WireGuard, and must not make the user wait.
                    let patience = Duration::from_micros(round_trip_us.saturating_mul(4));
                    let patience = patience.clamp(Duration::from_millis(250), Duration::from_secs(1));
                    Echo::Perhaps { address: Some(address), tries: tries + 1, patience }
                } else {
                    Echo::Yes(address)
                };
                Ok(asked)
            }
            _ => Ok(Asked::ours(outcome)),
        }
    }

    /// An echo request to the peer's own address. The way of the answer is not known; the way in use is shown.
    async fn echo(&self, address: IpAddr, end: Instant) -> Result<Asked> {
        let interface = self.interface.clone();
        let left = end.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
        let request = tokio::task::spawn_blocking(move || echo::one(&interface, address, left));
        // The socket has the same limit.
        let answer = match timeout_at(end + Duration::from_secs(1), request).await {
            Ok(answer) => answer??,
            Err(_) => None,
        };
        let outcome = match answer {
            Some(echo::Answer { round_trip, kind: Kind::Reached, .. }) => {
                let way = match self.client {
                    true => WayView::Relayed(self.key.to_string()),
                    false => report::way(&self.peer().await?).context("the peer has no endpoint")?,
                };
                let round_trip_us = u64::try_from(round_trip.as_micros()).unwrap_or(u64::MAX);
                Outcome::Answer { round_trip_us, asked: way.clone(), way }
            }
            Some(echo::Answer { from, .. }) => Outcome::Error {
                kind: "unreachable".to_owned(),
                text: format!("{from} says that it cannot be reached"),
            },
            None => Outcome::Error { kind: "no-answer".to_owned(), text: "the peer does not answer".to_owned() },
        };
        Ok(Asked { outcome, echo: Some(address) })
    }

    /// The peer as it is now.
    async fn peer(&self) -> Result<Peer> {
        let interface = self.interface.clone();
        let device = tokio::task::spawn_blocking(move || uapi::get(&interface)).await??;
        let peer = device.peers.into_iter().find(|peer| peer.public_key == self.key);
        peer.context("the peer was removed")
    }
}
