//! `rustguard join`: joins a network and writes the configuration. From then on, the tunnel is like any other.

use super::up;
use crate::{
    arguments::{self, data_path::DataPath, enrolment::Join, logging::Logging, metrics::Metrics},
    output::words::{UNEXPECTED_ANSWER, span},
    process::{log, runtime},
};
use anyhow::{Context as _, Result, bail};
use ipnet::IpNet;
use rustguard_crypto::x25519::StaticSecret;
use rustguard_device::{EndpointSpec, HostPort, PresharedKey, interface};
use rustguard_enroll::{
    client::{Joined, LocalPolicy},
    token::Token,
};
use rustguard_quick::{
    conf::{self, Accept, NetworkKey, Severity},
    host::{self, networks},
    reload::{self, Reload, Request},
    run_file,
};
use rustguard_serve::{DEFAULT_PORT, Folder, JoinOptions, Membership, Progress};
use std::{
    fs,
    io::{self, BufRead as _, IsTerminal as _, Read as _, Write as _},
    net::SocketAddr,
    os::unix::{fs::DirBuilderExt as _, process::CommandExt as _},
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};
use tokio::{
    signal::unix::{SignalKind, signal},
    time::Instant,
};

/// The folder of the configuration. `up NAME` looks there.
pub(in crate::commands) const CONFIG_DIR: &str = "/etc/rustguard";
/// The folder of stock wg-quick. `up NAME` looks there first.
const WG_QUICK_DIR: &str = "/etc/wireguard";
/// The time to answer questions. The server keeps the place of a machine for a minute (`Policy::pending`), until its
/// first handshake.
const PATIENCE: Duration = Duration::from_secs(30);
/// The first line of a file that `join` has written. `join` may overwrite such a file.
pub(super) const MARK: &str = "# Made by `rustguard join`, which writes it anew when it is run again.\n";

/// Joins, and brings the tunnel up. A running tunnel of the same network goes on.
pub(crate) fn run(arguments: &Join) -> Result<()> {
    let interface = &arguments.interface.interface;
    interface::check_name(interface)?;
    log::set_interface(interface);
    let Some(token) = arguments.token.read()? else {
        bail!(
            "a token is needed: --token, --token-file or RUSTGUARD_TOKEN; `rustguard invite new` on the server creates one"
        )
    };
    let token = Token::parse(&token)?;
    let servers = servers(arguments, &token)?;
    let endpoint = arguments.endpoint.as_deref().map(own_endpoint).transpose()?;
    let path = configuration(interface)?;
    let is_up = run_file::running(interface).is_some();
    let network = if is_up { network_of(&path) } else { None };
    if is_up && network.is_none() {
        bail!(
            "{interface} is up; `rustguard down {interface}` ends it; `--interface NAME` joins another network in addition"
        );
    }
    // The key is stored before anything is sent, because the server grants the lease to this key.
    let identity = Folder::open(interface)?.private_key()?;
    let name = arguments.name.clone().or_else(host_name);
    let runtime = runtime()?;
    let Membership { joined, endpoints, server, .. } = runtime.block_on(async {
        let shown = servers.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        let (first, others) = servers.split_first().context("there is a server")?;
        let options = JoinOptions::new(first.clone(), token, identity.clone()).with_others(others.iter().cloned());
        let options = options.with_name(name).with_ephemeral(arguments.ephemeral);
        let waiting = log::say_and_wait_for(&format!("waiting for an answer from {shown}"));
        let joining = rustguard_serve::join(options, |progress| tell(&shown, &progress, &waiting));
        let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
        tokio::select! {
            joined = joining => Ok::<_, anyhow::Error>(joined?),
            () = give_up(arguments.timeout) => bail!("the machine has not joined within {}", span(arguments.timeout.as_secs())),
            _ = interrupt.recv() => bail!("ended by SIGINT before the machine has joined"),
            _ = terminate.recv() => bail!("ended by SIGTERM before the machine has joined"),
        }
    })?;
    if is_up && joined.network.map(NetworkKey) != network {
        bail!(
            "the server is of another network than {interface}, which is up, and nothing was written; `rustguard down {interface}` ends it; \
             `--interface NAME` joins another network in addition"
        );
    }
    // The networks of the running tunnel do not count as other networks.
    let own = if is_up { interface::interface_index(interface).ok() } else { None };
    let (joined, accepted) = runtime.block_on(accept(joined, arguments, &endpoints, own))?;
    drop(runtime);
    tracing::debug!("the server answered from {}", endpoints[0]);
    let server = servers.get(server).context("one of these has answered")?;
    let mut config = config(&joined, &identity, server.clone(), accepted);
    announce(&mut config.interface, arguments);
    if let Some(endpoint) = endpoint {
        be_server(&mut config.interface, endpoint)?;
        config.interface.standby = arguments.standby.then_some(true);
    }
    if !host::ipv6_available() {
        without_ipv6(&mut config)?;
    }
    check(&config)?;
    write(&path, &config)?;
    let addresses: Vec<_> = config.interface.addresses.iter().map(|net| net.addr().to_string()).collect();
    let routes: Vec<_> = config.peers.iter().flat_map(|peer| &peer.allowed_ips).map(ToString::to_string).collect();
    tracing::info!("routes through the tunnel: {}", routes.join(", "));
    tracing::info!("joined as {}; from now on `rustguard up {interface}` brings the tunnel up", addresses.join(", "));
    if is_up {
        return take_over(interface);
    }
    if arguments.no_up {
        return Ok(());
    }
    let path = path.to_str().context("the path is not UTF-8")?;
    if arguments.detach {
        return up::run(path, true, &arguments.metrics, &arguments.data_path);
    }
    // The tunnel starts by exec, because this process has threads: they would keep rights that a tunnel gives up before
    // its first thread.
    let options = arguments::given(|id| DataPath::has(id) || Logging::has(id) || id == Metrics::ID);
    log::settle();
    let failed = Command::new(std::env::current_exe()?).arg("up").args(options).arg(path).exec();
    Err(failed).context("cannot start `rustguard up`")
}

/// The network that the file makes this machine a member of. A member that joins its own network again gets a new
/// preshared key if the server has lost the old one, and its tunnel goes on.
fn network_of(path: &Path) -> Option<NetworkKey> {
    let (config, _) = conf::parse(&fs::read_to_string(path).ok()?);
    config?.interface.network
}

/// Has the running tunnel take the file over.
fn take_over(interface: &str) -> Result<()> {
    let again = format!("rustguard down {interface}; rustguard up {interface}");
    match reload::ask(interface, &Request::Reload(Reload::new())) {
        Ok(reload::Answer::Changes { .. }) => tracing::info!("{interface} goes on with what the server said"),
        Ok(reload::Answer::Refused { error, .. }) => {
            bail!("the file is written, and {interface} did not take it over: {error}; run: {again}")
        }
        Ok(_) => bail!(UNEXPECTED_ANSWER),
        Err(error) => bail!("the file is written, and {interface} was not told: {error}; run: {again}"),
    }
    Ok(())
}

/// The addresses of servers: first that of the command line, then those of the invite.
fn servers(arguments: &Join, token: &Token) -> Result<Vec<HostPort>> {
    let given = arguments.server.as_deref();
    let invited: Vec<_> = match token {
        Token::Invite(invite) => invite.endpoints().collect(),
        _ => Vec::new(),
    };
    let known = given.into_iter().chain(invited);
    let mut servers = Vec::new();
    for server in known {
        let server = read_server(server)?;
        if !servers.contains(&server) {
            servers.push(server);
        }
    }
    if servers.is_empty() {
        bail!("the address of the server is not known; give it: rustguard join HOST:PORT --token …")
    }
    Ok(servers)
}

fn read_server(server: &str) -> Result<HostPort> {
    let cause = HostPort::parse_or(server, DEFAULT_PORT).err();
    let cause = cause.map(|cause| format!(": {cause}")).unwrap_or_default();
    parse(server).with_context(|| format!("`{server}` is not HOST, HOST:PORT or [IPv6]:PORT{cause}"))
}

/// The endpoint of this machine as a server.
fn own_endpoint(text: &str) -> Result<HostPort> {
    parse(text).with_context(|| format!("--endpoint `{text}` is not HOST, HOST:PORT or [IPv6]:PORT"))
}

/// Parses the address of a server. It has to be valid as an endpoint.
fn parse(server: &str) -> Option<HostPort> {
    HostPort::parse_or(server, DEFAULT_PORT).ok().filter(|at| at.port() > 0)
}

/// The path of the configuration. Fails if a file exists there that `join` has not written.
fn configuration(interface: &str) -> Result<PathBuf> {
    let foreign = Path::new(WG_QUICK_DIR).join(format!("{interface}.conf"));
    if foreign.exists() {
        bail!(
            "{} exists already, and `up` would read it; join as another interface: --interface NAME",
            foreign.display()
        );
    }
    let path = Path::new(CONFIG_DIR).join(format!("{interface}.conf"));
    match fs::read_to_string(&path) {
        Ok(text) if !text.starts_with(MARK) => {
            bail!(
                "{} exists already, and `join` has not written it; join as another interface: --interface NAME",
                path.display()
            )
        }
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot read {}; run as root, or with sudo", path.display()))
        }
        _ => Ok(path),
    }
}

fn host_name() -> Option<String> {
    let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    name.split('.').next().map(str::to_owned)
}

/// Reports progress to the user who waits.
fn tell(server: &str, progress: &Progress, waiting: &log::Waiting) {
    match progress {
        Progress::Unresolved(cause) => tracing::warn!("{server}: {cause}; trying again"),
        Progress::Silence => tracing::warn!(
            "{server} does not answer; `join` keeps trying. Possible causes: the server is down, or a firewall blocks UDP; the \
             invite was used, has expired or was revoked; the window for the code is closed (`rustguard open` on the server \
             opens one)"
        ),
        Progress::Waiting(code) => {
            waiting.now_for("waiting for the approval");
            tracing::info!(
                "the server's administrator has to approve this machine: `rustguard approve {code}` on the server, if `rustguard \
             status` there shows the same digits"
            );
        }
        _ => {}
    }
}

/// Waits for this time. Zero is without end.
async fn give_up(time: Duration) {
    match time {
        Duration::ZERO => std::future::pending().await,
        time => tokio::time::sleep(time).await,
    }
}

/// Accepts the server's settings as far as they are safe for this machine and its user consents. Warns of each one left
/// out.
async fn accept(joined: Joined, arguments: &Join, server: &[SocketAddr], own: Option<u32>) -> Result<(Joined, Accept)> {
    let until = Instant::now() + PATIENCE;
    let default: Vec<_> = joined.default_routes().iter().map(ToString::to_string).collect();
    let default = (!default.is_empty())
        .then(|| format!("Send all of this machine's traffic by way of the server ({})?", default.join(", ")));
    let dns: Vec<_> = joined.dns.iter().map(ToString::to_string).collect();
    let dns = (!dns.is_empty())
        .then(|| format!("Let the name servers of this network ({}) answer for every name?", dns.join(", ")));
    let endpoints = server.iter().map(SocketAddr::ip).collect();
    let here =
        LocalPolicy::new(endpoints, networks::connected(own).await.context("cannot list this machine's networks")?)
            .with_default_route(consent(arguments.accept_default_route, default, until).await?)
            .with_dns(consent(arguments.accept_dns, dns, until).await?)
            .with_routes(arguments.accept_routes.clone());
    let mut accept = Accept::default();
    (accept.dns, accept.default_route) = (here.dns, here.default_route);
    // Servers announce the prefixes of other members later. Prefixes that overlap nothing here are accepted, as the
    // routes of a star are.
    accept.routes = true;
    accept.prefixes = here.routes.iter().map(IpNet::trunc).collect();
    let unknown = |route: &&IpNet| !joined.routes.iter().any(|told| told.trunc() == route.trunc());
    for route in here.routes.iter().filter(unknown).filter(|_| joined.network.is_none()) {
        tracing::warn!("--accept-route {route} changes nothing: the server has no such route");
    }
    let accepted = joined.accept(&here)?;
    accepted.left_out.iter().for_each(|left_out| tracing::warn!("{left_out}"));
    Ok((accepted.joined, accept))
}

/// The user's consent, from the command line or from a question on the terminal. Without a terminal, the answer is no.
async fn consent(said: Option<bool>, question: Option<String>, until: Instant) -> Result<bool> {
    let (None, Some(question)) = (said, question) else { return Ok(said.unwrap_or(false)) };
    if !(io::stdin().is_terminal() && io::stderr().is_terminal()) {
        return Ok(false);
    }
    // A user who did not answer the previous question in time is not asked again.
    let Some(seconds) = seconds_left(until) else { return Ok(false) };
    // Another thread writes the log. Its pending lines are written first, so that they do not interrupt the question.
    log::settle();
    write!(io::stderr(), "{question} [y/N, {seconds} s] ")?;
    // Only a blocking read can wait for a terminal, so a thread does it. The thread ends with the process.
    let (tell, told) = tokio::sync::oneshot::channel();
    std::thread::spawn(move || {
        let mut answer = String::new();
        let read = io::stdin().lock().take(64).read_line(&mut answer);
        // The receiver is gone if the time is over.
        let _ = tell.send(read.map(|_| answer));
    });
    let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    let answer = tokio::select! {
        told = tokio::time::timeout_at(until, told) => told,
        _ = interrupt.recv() => bail!("ended by SIGINT; nothing was written"),
        _ = terminate.recv() => bail!("ended by SIGTERM; nothing was written"),
    };
    match answer {
        Ok(answer) => Ok(matches!(answer??.trim().to_ascii_lowercase().as_str(), "y" | "yes")),
        Err(_) => {
            writeln!(io::stderr())?;
            tracing::warn!("no answer in time, which counts as no");
            Ok(false)
        }
    }
}

fn seconds_left(until: Instant) -> Option<u64> {
    Some(until.saturating_duration_since(Instant::now()).as_secs()).filter(|&seconds| seconds > 0)
}

/// The server's settings as a configuration. In a network, the roster sets MTU and DNS and can change them, and the
/// file has the user's consent.
fn config(joined: &Joined, identity: &StaticSecret, server: HostPort, accept: Accept) -> conf::Config {
    let port = joined.port.unwrap_or(server.port());
    // A host name is kept as a name, because the server's address may change.
    let endpoint = EndpointSpec::from(server.with_port(port));
    let mut interface = conf::Interface::default();
    interface.private_key = Some(identity.clone());
    interface.addresses = joined.addresses.clone();
    if let Some(key) = joined.network {
        interface.network = Some(NetworkKey(key));
        interface.routing = conf::Routing::Members;
        interface.accept = accept;
    } else {
        interface.dns = joined.dns.iter().copied().map(Into::into).collect();
        interface.dns_search = joined.search.clone();
        interface.mtu = joined.mtu;
    }
    let mut server = conf::Peer::new(joined.server);
    server.name = Some("server".to_owned());
    server.preshared_key = Some(PresharedKey::from_bytes(&joined.preshared_key));
    server.endpoints = vec![endpoint.into()];
    server.allowed_ips = joined.routes.clone();
    server.persistent_keepalive = joined.keepalive.map(|seconds| Duration::from_secs(seconds.into()));
    conf::Config::new(interface, vec![server])
}

/// Adds the prefixes that this machine announces to the other members.
fn announce(interface: &mut conf::Interface, arguments: &Join) {
    for net in arguments.announce.iter().map(IpNet::trunc) {
        if !interface.announce.contains(&net) {
            interface.announce.push(net);
        }
    }
    interface.nat = arguments.nat.then_some(true);
    if !interface.announce.is_empty() && interface.network.is_none() {
        tracing::warn!(
            "--announce changes nothing: the server makes a star, in which only the server has networks behind it"
        );
    }
}

/// Makes this machine a further server of the network: it listens at its endpoint, and forwards sealed datagrams.
fn be_server(interface: &mut conf::Interface, endpoint: HostPort) -> Result<()> {
    if interface.network.is_none() {
        bail!("--endpoint makes a further server of a network, and this server makes a star; nothing was written");
    }
    interface.listen_port = Some(endpoint.port());
    interface.public_endpoints = vec![endpoint.into()];
    interface.forward = Some(true);
    interface.routing = conf::Routing::of_member(true);
    Ok(())
}

/// Removes the IPv6 parts for a machine without IPv6.
fn without_ipv6(config: &mut conf::Config) -> Result<()> {
    let v4 = |net: &IpNet| matches!(net, IpNet::V4(_));
    if !config.interface.addresses.iter().all(v4) {
        tracing::warn!(
            "IPv6 is disabled on this machine: the tunnel is set up without IPv6; join again after enabling it"
        );
    }
    config.interface.addresses.retain(v4);
    config.interface.dns.retain(|server| server.address().is_ipv4());
    config.peers.iter_mut().for_each(|peer| peer.allowed_ips.retain(v4));
    if config.interface.addresses.is_empty() {
        bail!("IPv6 is disabled on this machine, and the network has no IPv4 addresses; nothing was written");
    }
    Ok(())
}

/// Checks the configuration as `rustguard check` does, before it is written to the disk. Reading it back has to give
/// exactly the same configuration.
fn check(config: &conf::Config) -> Result<()> {
    let text = conf::to_text(config);
    let (read, diagnostics) = conf::parse(&text);
    if let Some(error) = diagnostics.iter().find(|diagnostic| diagnostic.severity == Severity::Error) {
        bail!("the server's answer does not make a valid configuration: {}; nothing was written", error.message);
    }
    if read.is_none_or(|read| *conf::to_text(&read) != *text) {
        bail!("the server's answer does not survive in a configuration file unchanged; nothing was written");
    }
    for warning in diagnostics {
        tracing::warn!("{}", warning.message);
    }
    Ok(())
}

fn write(path: &Path, config: &conf::Config) -> Result<()> {
    let made = fs::DirBuilder::new().recursive(true).mode(0o755).create(CONFIG_DIR);
    made.and_then(|()| conf::write_with_comment(path, MARK, config))
        .with_context(|| format!("cannot write {}; run as root, or with sudo", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_as_people_write_them() {
        for (text, host, port) in [
            ("192.0.2.1", "192.0.2.1", 51_820),
            ("192.0.2.1:7", "192.0.2.1", 7),
            ("2001:db8::1", "2001:db8::1", 51_820),
            ("[2001:db8::1]", "2001:db8::1", 51_820),
            ("[2001:db8::1]:7", "2001:db8::1", 7),
            ("vpn.example.org", "vpn.example.org", 51_820),
            ("vpn_1:7", "vpn_1", 7),
            ("[fe80::1%eth0]:7", "fe80::1%eth0", 7),
        ] {
            let server = parse(text).map(|server| (server.host().to_string(), server.port()));
            assert_eq!(server, Some((host.to_owned(), port)), "{text}");
        }
        for text in ["", ":7", "host:", "host:0", "host:70000", "host:x", "ho st", "http://host", "host/path"] {
            assert_eq!(parse(text), None, "{text}");
        }
    }

    #[test]
    fn nobody_is_asked_when_the_time_is_over() {
        let now = Instant::now();
        assert_eq!(seconds_left(now), None);
        assert!(seconds_left(now + PATIENCE * 100).is_some());
    }

    /// Every configuration from a server is checked before it is written.
    #[test]
    fn what_makes_no_configuration_or_another_one_is_not_written() {
        let identity = StaticSecret::from_bytes([1; 32]);
        let server = StaticSecret::from_bytes([2; 32]).public_key();
        let mut joined = Joined::new(server, [7; 32].into());
        joined.addresses = vec!["10.150.0.2/32".parse().unwrap(), "fd15::2/128".parse().unwrap()];
        joined.routes = vec!["10.150.0.0/24".parse().unwrap(), "0.0.0.0/0".parse().unwrap()];
        joined.dns = vec!["10.150.0.1".parse().unwrap()];
        joined.search = vec!["lab.example".to_owned()];
        joined.mtu = Some(1280);
        joined.keepalive = Some(65_535);
        let checked =
            |joined: &Joined, host: &str| check(&config(joined, &identity, parse(host).unwrap(), Accept::default()));
        for host in ["vpn.example.org", "192.0.2.1", "2001:db8::1"] {
            checked(&joined, host).unwrap();
        }
        for mtu in [0, 1, 575] {
            let mut joined = joined.clone();
            joined.mtu = Some(mtu);
            assert!(checked(&joined, "vpn").is_err(), "{mtu}");
        }
        // Each of these would be read as a name server, as another line or entry, or as nothing.
        for domain in ["8.8.8.8", "::1", "a\nPostUp = id", "a, 8.8.8.8", "a#b", "", " ", "a b", "\u{1b}[2J"] {
            let mut joined = joined.clone();
            joined.search.push(domain.to_owned());
            assert!(checked(&joined, "vpn").is_err(), "{domain:?}");
        }
    }
}
