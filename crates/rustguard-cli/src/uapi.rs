//! The client of the UAPI, which asks a device for its state. See <https://www.wireguard.com/xplatform/>.

mod ping;

use crate::escape::is_dangerous;
use anyhow::{Context as _, Result, anyhow, bail};
use ipnet::IpNet;
pub(crate) use ping::Pinger;
use rustguard_crypto::x25519::{PublicKey, StaticSecret};
use rustguard_device::{
    EndpointSpec, HostPort, PathSpec, PresharedKey, Update, interface,
    key::{from_base64, from_hex},
    uapi::{
        ConnectionView, NotDirectView, ParityView, PathMtuView, PathView, PolicyView, ProblemView, RefusalView,
        RoutingView, SOCKET_DIR, UnresolvedView, set_request,
    },
};
use rustguard_quick::conf;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::{
    fs,
    io::{self, BufRead as _, BufReader, Read as _, Write as _},
    net::{IpAddr, SocketAddrV6},
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    sync::mpsc::channel,
    thread,
    time::Duration,
};
use zeroize::Zeroizing;

/// The limit for an answer. A device answers in microseconds or not at all.
const PATIENCE: Duration = Duration::from_secs(5);
/// The longest line of the protocol, in bytes. Most lines are a name and 64 digits. The longest describes what is wrong with a peer.
const MAX_LINE: u64 = 4096;
/// The longest answer about routing, in bytes.
const MAX_ROUTING: u64 = 64 << 20;

/// A device, from its answer to `get`.
#[derive(Default)]
pub(crate) struct Device {
    pub(crate) private_key: Option<Zeroizing<[u8; 32]>>,
    pub(crate) listen_port: u16,
    /// The ports beyond that one.
    pub(crate) more_listen_ports: Vec<u16>,
    /// The addresses at which the device listens; all addresses if there are none.
    pub(crate) listen_addresses: Vec<IpAddr>,
    pub(crate) fwmark: u32,
    /// Whether the device relays packets from peer to peer, in one word. Other implementations do not report it.
    pub(crate) relay: Option<String>,
    /// The rules of netfilter that prevent relaying.
    pub(crate) relay_rules: Option<String>,
    /// The number of packets relayed from peer to peer.
    pub(crate) relayed: u64,
    /// The number of sealed datagrams that were forwarded from peer to peer; `None` where forwarding is off.
    pub(crate) forwarded: Option<u64>,
    /// The number of packets accepted from routers with sources that they do not announce.
    pub(crate) unannounced: u64,
    /// The policy, and what it has refused; `None` without one.
    pub(crate) policy: Option<PolicyView>,
    /// The number of dropped packets, by reason. Other implementations do not report it.
    pub(crate) drops: Vec<(String, u64)>,
    /// The counters of enrolment, on a server.
    pub(crate) counters: Vec<(String, u64)>,
    pub(crate) peers: Vec<Peer>,
}

/// A peer of a device.
pub(crate) struct Peer {
    pub(crate) name: Option<String>,
    pub(crate) public_key: PublicKey,
    pub(crate) preshared_key: Option<Zeroizing<[u8; 32]>>,
    /// In the words of the device. An address may have a zone with a name, which the standard library's type cannot
    /// hold.
    pub(crate) endpoint: Option<String>,
    /// The public key of the relay through which the peer is reached.
    pub(crate) through: Option<PublicKey>,
    /// Why it is not reached directly, where direct ways are looked for.
    pub(crate) not_direct: Option<NotDirectView>,
    /// The name of the endpoint, while it has no address.
    pub(crate) unresolved: Option<UnresolvedView>,
    /// The paths, if the peer has several.
    pub(crate) paths: Vec<PathView>,
    /// Whether the peer can be talked to. Other implementations do not report it.
    pub(crate) connection: Option<ConnectionView>,
    /// What is wrong with the connection.
    pub(crate) problem: Option<ProblemView>,
    pub(crate) allowed_ips: Vec<IpNet>,
    /// Since the Unix epoch. Zero means never.
    pub(crate) last_handshake: Duration,
    pub(crate) rx_bytes: u64,
    pub(crate) tx_bytes: u64,
    /// In seconds. Zero means off.
    pub(crate) persistent_keepalive: u16,
    /// The longest packet that reaches the peer, if it is known.
    pub(crate) path_mtu: Option<PathMtuView>,
    /// Parities, where they are configured.
    pub(crate) parity: Option<ParityView>,
    /// Lanes in which several threads send to the peer.
    pub(crate) lanes: u8,
    /// The number of dropped packets from and to the peer, by reason. Other implementations do not report it.
    pub(crate) drops: Vec<(String, u64)>,
}

/// The names of the interfaces whose socket has a listener, in alphabetical order.
pub(crate) fn interfaces() -> Result<Vec<String>> {
    let directory = match fs::read_dir(SOCKET_DIR) {
        Ok(directory) => directory,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(explain(error, Path::new(SOCKET_DIR))),
    };
    let mut names = Vec::new();
    for entry in directory {
        let name = entry?.file_name();
        let name = name.to_str().and_then(|name| name.strip_suffix(".sock"));
        let Some(name) = name.filter(|name| interface::check_name(name).is_ok()) else { continue };
        // A process that was killed leaves its socket behind.
        let refused = |error: io::Error| error.kind() == io::ErrorKind::ConnectionRefused;
        if !UnixStream::connect(socket(name)).is_err_and(refused) {
            names.push(name.to_owned());
        }
    }
    names.sort_unstable();
    Ok(names)
}

/// Whether the interface's process takes requests and answers none within `patience`. One that takes none is ending, or about to begin.
pub(crate) fn hangs(interface: &str, patience: Duration) -> bool {
    let path = socket(interface);
    let (answered, answer) = channel();
    // On a thread: where many have asked before, the kernel lets `connect` wait for as long as the process hangs.
    let ask = move || {
        let asked = UnixStream::connect(path).and_then(|mut stream| {
            stream.write_all(b"get=1\n\n")?;
            stream.read(&mut [0])
        });
        // Nobody waits for it any more.
        let _ = answered.send(asked);
    };
    thread::Builder::new().spawn(ask).is_ok() && answer.recv_timeout(patience).is_err()
}

/// Asks for the whole state. The answer of a RustGuard device includes names and drops.
pub(crate) fn get(interface: &str) -> Result<Device> {
    interface::check_name(interface)?;
    let path = socket(interface);
    // Other implementations refuse the first request with an errno, or close the connection. All answer the standard
    // request.
    if let Answer::Device(device) = ask(&path, "rustguard")? {
        return Ok(*device);
    }
    match ask(&path, "1")? {
        Answer::Device(device) => Ok(*device),
        Answer::Refused(errno) => bail!("{interface} refuses to report its state: errno {errno}"),
        Answer::HungUp => bail!("{interface} closed the connection without reporting its state"),
    }
}

/// Asks for the report of the routing engine.
pub(crate) fn routing(interface: &str) -> Result<RoutingView> {
    interface::check_name(interface)?;
    let path = socket(interface);
    let mut stream = UnixStream::connect(&path).map_err(|error| explain(error, &path))?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    stream.write_all(b"get=rustguard-routing\n\n")?;
    let mut line = String::new();
    // A thousand prefixes with the announcements of all neighbours are about a megabyte.
    BufReader::new(stream).take(MAX_ROUTING).read_line(&mut line).unwrap_or_default();
    let Some(json) = line.strip_prefix("rustguard_routing=") else {
        bail!("{interface} does not report a routing engine, so it is not an interface of RustGuard")
    };
    from_json(json).with_context(|| format!("cannot read the answer of {}", path.display()))
}

/// Makes a change.
pub(crate) fn set(interface: &str, update: &Update) -> Result<()> {
    interface::check_name(interface)?;
    let path = socket(interface);
    let mut request = set_request(update);
    // The buffer of the request has room, so this does not move the keys in it.
    request.push('\n');
    match exchange(&path, &request)? {
        Answer::Device(_) => Ok(()),
        Answer::Refused(errno) => {
            let errno = i32::try_from(errno.unsigned_abs()).unwrap_or_default();
            bail!("{interface} refuses the change: {}", io::Error::from_raw_os_error(errno))
        }
        Answer::HungUp => bail!("{interface} closed the connection before it answered"),
    }
}

enum Answer {
    Device(Box<Device>),
    Refused(i64),
    HungUp,
}

fn socket(interface: &str) -> PathBuf {
    Path::new(SOCKET_DIR).join(format!("{interface}.sock"))
}

fn explain(error: io::Error, path: &Path) -> anyhow::Error {
    match error.kind() {
        io::ErrorKind::PermissionDenied => anyhow!("{}: {error}; run as root, or with sudo", path.display()),
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
            let up = interfaces().unwrap_or_default();
            let up = if up.is_empty() { "no interface is up".to_owned() } else { format!("up: {}", up.join(", ")) };
            anyhow!("the interface is not up, or does not run in userspace ({}: {error}); {up}", path.display())
        }
        _ => anyhow!("{}: {error}", path.display()),
    }
}

fn ask(path: &Path, what: &str) -> Result<Answer> {
    exchange(path, &format!("get={what}\n\n"))
}

fn exchange(path: &Path, request: &str) -> Result<Answer> {
    let mut stream = UnixStream::connect(path).map_err(|error| explain(error, path))?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    stream.write_all(request.as_bytes())?;
    read(BufReader::new(stream)).with_context(|| format!("cannot read the answer of {}", path.display()))
}

fn read(mut lines: impl io::BufRead) -> Result<Answer> {
    let mut device = Box::<Device>::default();
    loop {
        let mut line = Zeroizing::new(String::with_capacity(256));
        let read = lines.by_ref().take(MAX_LINE).read_line(&mut line);
        match read {
            Ok(0) => return Ok(Answer::HungUp),
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return Ok(Answer::HungUp),
            read => read?,
        };
        let Some((key, value)) = line.trim_end_matches('\n').split_once('=') else {
            bail!("a line without `=`");
        };
        if key == "errno" {
            return match value.parse().with_context(|| format!("errno `{value}`"))? {
                0 => Ok(Answer::Device(device)),
                errno => Ok(Answer::Refused(errno)),
            };
        }
        // The message does not contain the value, which may be a key.
        device.line(key, value).with_context(|| format!("the value of {key}"))?;
    }
}

impl Device {
    /// All UDP ports.
    pub(crate) fn listen_ports(&self) -> impl Iterator<Item = u16> {
        std::iter::once(self.listen_port).chain(self.more_listen_ports.iter().copied())
    }

    /// Whether this is an interface of RustGuard, and not of another implementation.
    pub(crate) fn is_rustguard(&self) -> bool {
        self.relay.is_some()
    }

    /// The configuration, as far as the device knows it.
    pub(crate) fn into_config(self) -> conf::Config {
        let mut interface = conf::Interface::default();
        interface.private_key = self.private_key.as_ref().map(|key| StaticSecret::from_bytes(**key));
        interface.listen_port = Some(self.listen_port);
        interface.fwmark = (self.fwmark != 0).then_some(self.fwmark);
        interface.forward = self.is_rustguard().then_some(self.forwarded.is_some());
        conf::Config::new(interface, self.peers.into_iter().map(Peer::into_config).collect())
    }

    /// The public half of the private key.
    pub(crate) fn public_key(&self) -> Option<PublicKey> {
        self.private_key.as_ref().map(|key| StaticSecret::from_bytes(**key).public_key())
    }

    fn line(&mut self, key: &str, value: &str) -> Result<()> {
        match key {
            "private_key" => self.private_key = secret(value)?,
            "listen_port" => self.listen_port = value.parse()?,
            "fwmark" => self.fwmark = value.parse()?,
            "rustguard_listen_port" => self.more_listen_ports.push(value.parse()?),
            "rustguard_listen_address" => self.listen_addresses.push(value.parse()?),
            "rustguard_relay" => {
                let (word, rules) = value.split_once(' ').map_or((value, None), |(word, rules)| (word, Some(rules)));
                self.relay = Some(printable(word));
                self.relay_rules = rules.map(printable);
            }
            "rustguard_relayed" => self.relayed = value.parse()?,
            "rustguard_forwarded" => self.forwarded = Some(value.parse()?),
            "rustguard_unannounced" => self.unannounced = value.parse()?,
            "rustguard_policy" => self.policy = Some(from_json(value)?),
            "rustguard_refusal" => {
                let refusal: RefusalView = from_json(value)?;
                self.policy.iter_mut().for_each(|policy| policy.refusals.push(refusal.clone()));
            }
            "public_key" => {
                let public_key = PublicKey(*from_hex(value).context("not 64 hexadecimal digits")?);
                self.peers.push(Peer::new(public_key));
            }
            key => {
                if let Some(reason) = key.strip_prefix("rustguard_drop_") {
                    // Behind a peer's key, the line is about the peer.
                    let drops = self.peers.last_mut().map_or(&mut self.drops, |peer| &mut peer.drops);
                    drops.push((printable(reason), value.parse()?));
                } else if let Some(name) = key.strip_prefix("rustguard_counter_") {
                    self.counters.push((printable(name), value.parse()?));
                } else if let Some(peer) = self.peers.last_mut() {
                    peer.line(key, value)?;
                }
            }
        }
        Ok(())
    }
}

impl Peer {
    /// A peer with a public key and nothing else.
    pub(crate) fn new(public_key: PublicKey) -> Self {
        Self {
            name: None,
            public_key,
            preshared_key: None,
            endpoint: None,
            through: None,
            not_direct: None,
            unresolved: None,
            paths: Vec::new(),
            connection: None,
            problem: None,
            allowed_ips: Vec::new(),
            last_handshake: Duration::ZERO,
            rx_bytes: 0,
            tx_bytes: 0,
            persistent_keepalive: 0,
            path_mtu: None,
            parity: None,
            lanes: 0,
            drops: Vec::new(),
        }
    }

    fn into_config(self) -> conf::Peer {
        let mut peer = conf::Peer::new(self.public_key);
        peer.name = self.name;
        peer.preshared_key = self.preshared_key.map(|key| PresharedKey::from_bytes(&key));
        // An endpoint with a zone that is a name can be used on this host, but it is no address.
        let endpoint = self.endpoint.and_then(|endpoint| endpoint.parse::<HostPort>().ok());
        peer.endpoints = endpoint.map(|at| PathSpec::from(EndpointSpec::from(at))).into_iter().collect();
        peer.allowed_ips = self.allowed_ips;
        peer.parity = self.parity.map(|parity| parity.size);
        let interval = Duration::from_secs(self.persistent_keepalive.into());
        peer.persistent_keepalive = (!interval.is_zero()).then_some(interval);
        peer
    }

    fn line(&mut self, key: &str, value: &str) -> Result<()> {
        match key {
            "preshared_key" => self.preshared_key = secret(value)?,
            "endpoint" => self.endpoint = Some(with_interface(&printable(value))),
            "rustguard_not_direct" => self.not_direct = Some(from_json(value)?),
            "rustguard_through" => self.through = Some(PublicKey(*from_base64(value)?)),
            "rustguard_unresolved" => self.unresolved = Some(from_json(value)?),
            "rustguard_connection" => self.connection = Some(from_json(value)?),
            "rustguard_problem" => self.problem = Some(from_json(value)?),
            "rustguard_path" => self.paths.push(from_json(value)?),
            "allowed_ip" => self.allowed_ips.push(value.parse()?),
            // wireguard-go uses its own clock. A time before 1970 counts as never.
            "last_handshake_time_sec" => {
                let seconds = u64::try_from(value.parse::<i64>()?).unwrap_or(0);
                self.last_handshake = Duration::new(seconds, self.last_handshake.subsec_nanos());
            }
            "last_handshake_time_nsec" => {
                let nanoseconds = value.parse::<u32>()?.min(999_999_999);
                self.last_handshake = Duration::new(self.last_handshake.as_secs(), nanoseconds);
            }
            "rx_bytes" => self.rx_bytes = value.parse()?,
            "tx_bytes" => self.tx_bytes = value.parse()?,
            "persistent_keepalive_interval" => self.persistent_keepalive = value.parse()?,
            "rustguard_path_mtu" => self.path_mtu = Some(from_json(value)?),
            "rustguard_parity" => self.parity = Some(from_json(value)?),
            "rustguard_lanes" => self.lanes = value.parse()?,
            "rustguard_name" => self.name = Some(printable(value)),
            // Later versions of the protocol may have more lines.
            _ => {}
        }
        Ok(())
    }
}

/// Writes the interface of an address of one link by its name, as `wg` does. Other endpoints stay as they are.
fn with_interface(endpoint: &str) -> String {
    match endpoint.parse::<SocketAddrV6>() {
        Ok(at) if at.scope_id() != 0 => match interface::name_of(at.scope_id()) {
            Ok(name) => format!("[{}%{name}]:{}", at.ip(), at.port()),
            Err(_) => endpoint.to_owned(),
        },
        _ => endpoint.to_owned(),
    }
}

/// Replaces characters that steer a terminal, because one shows the text.
fn printable(value: &str) -> String {
    value.replace(is_dangerous, "?")
}

/// Reads JSON. Its texts are made [`printable`], and that is done after they are parsed: JSON writes a control character as `\u001b`.
fn from_json<T: DeserializeOwned>(json: &str) -> serde_json::Result<T> {
    let mut value = serde_json::from_str(json)?;
    make_printable(&mut value);
    serde_json::from_value(value)
}

/// The depth is limited by the parser.
fn make_printable(value: &mut Value) {
    match value {
        Value::String(text) => {
            if text.contains(is_dangerous) {
                *text = printable(text);
            }
        }
        Value::Array(values) => values.iter_mut().for_each(make_printable),
        // The names of fields are looked up, and not shown.
        Value::Object(fields) => fields.values_mut().for_each(make_printable),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// Parses a key. A key of all zeros means no key.
fn secret(value: &str) -> Result<Option<Zeroizing<[u8; 32]>>> {
    let key = from_hex(value).context("not 64 hexadecimal digits")?;
    Ok((*key != [0; 32]).then_some(key))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(text: &str) -> Result<Device> {
        match read(text.as_bytes())? {
            Answer::Device(device) => Ok(*device),
            Answer::Refused(errno) => bail!("refused {errno}"),
            Answer::HungUp => bail!("hung up"),
        }
    }

    #[test]
    fn an_answer_is_read() {
        let (key, zeros) = ("ab".repeat(32), "00".repeat(32));
        let device = device(&format!(
            "private_key={key}\nlisten_port=51820\nfwmark=7\nrustguard_relay=rules the chain x\nrustguard_relayed=12\nrustguard_unannounced=5\n\
             rustguard_policy={{\"rules\":5,\"connections\":6,\"capacity\":7,\"refused\":8,\"refusals\":[],\"later\":1}}\n\
             rustguard_refusal={{\"at\":9,\"peer\":\"x\",\"from\":\"10.0.0.1\",\"to\":\"10.0.0.2\",\"protocol\":6,\"port\":22,\"packets\":3,\"reason\":\"not-allowed\"}}\n\
             rustguard_drop_forged=3\nrustguard_counter_admitted=4\npublic_key={key}\npreshared_key={zeros}\n\
             protocol_version=1\nrustguard_name=lap\u{1b}top\nendpoint=[2001:db8::1]:9\n\
             rustguard_path={{\"configured\":null,\"endpoint\":\"[2001:db8::1]:9\",\"local\":null,\"state\":\"up\",\"round_trip_us\":9,\"active\":true,\"weight\":2}}\nrustguard_connection={{\"state\":\"connecting\",\"since\":5,\"attempts\":3,\"later\":1}}\n\
             rustguard_problem={{\"kind\":\"no-answer\",\"text\":\"nothing\",\"since\":5}}\nlast_handshake_time_sec=5\n\
             last_handshake_time_nsec=6\ntx_bytes=22\nrx_bytes=11\npersistent_keepalive_interval=25\nallowed_ip=10.0.0.0/8\n\
             allowed_ip=fd00::/8\nrustguard_path_mtu={{\"packet\":1340,\"datagram\":1400,\"limited\":true}}\n\
             rustguard_parity={{\"size\":7,\"accepted\":true,\"sent\":12,\"rebuilt\":3}}\nrustguard_lanes=2\nrustguard_drop_replayed=6\nfuture=x\npublic_key={zeros}\nerrno=0\n\n"
        ))
        .unwrap();
        assert_eq!((device.listen_port, device.fwmark, device.peers.len()), (51_820, 7, 2));
        assert_eq!((device.relayed, device.unannounced), (12, 5));
        let policy = device.policy.as_ref().unwrap();
        assert_eq!((policy.refused, policy.refusals.len(), policy.refusals[0].port), (8, 1, Some(22)));
        assert_eq!((device.relay.as_deref(), device.relay_rules.as_deref()), (Some("rules"), Some("the chain x")));
        assert_eq!(device.drops, [("forged".to_owned(), 3)]);
        assert_eq!(device.counters, [("admitted".to_owned(), 4)]);
        let peer = &device.peers[0];
        assert_eq!(peer.name.as_deref(), Some("lap?top"));
        assert!(peer.preshared_key.is_none() && device.private_key.is_some());
        assert_eq!(peer.last_handshake, Duration::new(5, 6));
        assert_eq!((peer.rx_bytes, peer.tx_bytes, peer.persistent_keepalive), (11, 22, 25));
        assert_eq!(peer.allowed_ips.len(), 2);
        assert_eq!(peer.path_mtu, Some(PathMtuView { packet: 1_340, datagram: 1_400, limited: true }));
        assert_eq!((peer.lanes, device.peers[1].lanes), (2, 0));
        assert_eq!(peer.parity, Some(ParityView { size: 7, accepted: true, sent: 12, rebuilt: 3 }));
        assert_eq!((&peer.drops[..], device.peers[1].drops.len()), (&[("replayed".to_owned(), 6)][..], 0));
        assert_eq!(peer.connection.as_ref().map(|it| (&*it.state, it.attempts)), Some(("connecting", Some(3))));
        assert_eq!(peer.problem.as_ref().map(|it| (&*it.kind, &*it.text)), Some(("no-answer", "nothing")));
    }

    /// In the text of a line, and in JSON's own escapes.
    #[test]
    fn no_text_steers_a_terminal() {
        let device = device(&format!(
            "rustguard_relay=r\u{1b}s the \u{1b}[2J chain\nrustguard_drop_a\u{1b}b=1\nrustguard_counter_c\u{1b}d=1\npublic_key={}\n\
             rustguard_name=a\u{202e}b\u{1b}c\nendpoint=\u{1b}[2J\n\
             rustguard_unresolved={{\"name\":\"n\\u001bm\",\"error\":\"\\u009b31m\"}}\n\
             rustguard_connection={{\"state\":\"on\\u001bline\",\"since\":5,\"attempts\":3}}\n\
             rustguard_problem={{\"kind\":\"k\\u0007\",\"text\":\"two\\n\\u202elines\\u001b[2J\",\"since\":5}}\n\
             rustguard_path={{\"configured\":\"c\\u001b\",\"endpoint\":\"e\\u001b\",\"local\":\"l\\u001b\",\"state\":\"up\",\"round_trip_us\":9,\"active\":true,\"weight\":2}}\n\
             errno=0\n\n",
            "ab".repeat(32)
        ))
        .unwrap();
        let peer = &device.peers[0];
        let (unresolved, path) = (peer.unresolved.as_ref().unwrap(), &peer.paths[0]);
        let (connection, problem) = (peer.connection.as_ref().unwrap(), peer.problem.as_ref().unwrap());
        assert_eq!((&*unresolved.name, unresolved.error.as_deref()), ("n?m", Some("?31m")));
        assert_eq!((&*connection.state, connection.since, connection.attempts), ("on?line", Some(5), Some(3)));
        assert_eq!((&*problem.kind, &*problem.text), ("k?", "two??lines?[2J"));
        let texts = (path.configured.as_deref(), path.endpoint.as_deref(), path.local.as_deref());
        assert_eq!(texts, (Some("c?"), Some("e?"), Some("l?")));
        assert_eq!((peer.name.as_deref(), peer.endpoint.as_deref()), (Some("a?b?c"), Some("?[2J")));
        assert_eq!((device.relay.as_deref(), device.relay_rules.as_deref()), (Some("r?s"), Some("the ?[2J chain")));
        assert_eq!((&*device.drops[0].0, &*device.counters[0].0), ("a?b", "c?d"));
    }

    #[test]
    fn what_is_no_answer_is_told_apart() {
        assert!(matches!(read(&b"errno=-22\n\n"[..]), Ok(Answer::Refused(-22))));
        assert!(matches!(read(&b""[..]), Ok(Answer::HungUp)));
        assert!(matches!(read(&b"listen_port=1\n"[..]), Ok(Answer::HungUp)));
        for text in ["nonsense\n", "listen_port=x\n", "private_key=abcd\n", "errno=\n", &"x".repeat(5000)] {
            let error = format!("{:#}", read(text.as_bytes()).err().expect("not an answer"));
            assert!(!error.contains("abcd"), "{error}");
        }
    }
}
