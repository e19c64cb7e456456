//! The client of the control socket, which asks a device for its state: RustGuard in JSON, other implementations
//! through the UAPI (<https://www.wireguard.com/xplatform/>).

mod ping;

use crate::escape::is_dangerous;
use anyhow::{Context as _, Result, anyhow, bail};
pub(crate) use ping::Pinger;
use rustguard_crypto::x25519::{PublicKey, StaticSecret};
pub(crate) use rustguard_device::uapi::{DeviceView as Device, PeerView as Peer};
use rustguard_device::{
    EndpointSpec, HostPort, PathSpec, PresharedKey, Update, interface,
    key::from_hex,
    uapi::{RoutingView, SOCKET_DIR, set_request},
};
use rustguard_quick::conf;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::{
    collections::HashMap,
    fs,
    io::{self, BufRead as _, BufReader, Read as _, Write as _},
    net::SocketAddrV6,
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    sync::mpsc::channel,
    thread,
    time::Duration,
};
use zeroize::Zeroizing;

/// The limit for an answer. A device answers in microseconds or not at all.
const PATIENCE: Duration = Duration::from_secs(5);
/// The longest line of the UAPI, in bytes. Most lines are a name and 64 digits.
const MAX_LINE: u64 = 4096;
/// The longest answer in JSON, in bytes. The state of 16,384 peers takes about 16 MB, and a thousand prefixes with the
/// announcements of all neighbours about 1 MB.
const MAX_JSON: u64 = 64 << 20;

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

/// Whether the interface's process takes requests and answers none within `patience`. A process that takes no requests
/// is ending, or about to start.
pub(crate) fn hangs(interface: &str, patience: Duration) -> bool {
    let path = socket(interface);
    let (answered, answer) = channel();
    // This needs a thread: if many requests are waiting already, `connect` blocks as long as the process hangs.
    let ask = move || {
        let asked = UnixStream::connect(path).and_then(|mut stream| {
            stream.write_all(b"get=1\n\n")?;
            stream.read(&mut [0])
        });
        // The receiver may be gone.
        let _ = answered.send(asked);
    };
    thread::Builder::new().spawn(ask).is_ok() && answer.recv_timeout(patience).is_err()
}

/// Asks for the whole state. RustGuard's answer does not contain secret keys.
pub(crate) fn get(interface: &str) -> Result<Device> {
    interface::check_name(interface)?;
    let path = socket(interface);
    // Other implementations refuse the first request with an errno, or close the connection. All answer the standard
    // request.
    let known = match ask_json::<Device>(&path, "status")? {
        Some(device) => Answer::Device(Box::new(device)),
        None => exchange(&path, "get=1\n\n")?,
    };
    match known {
        Answer::Device(mut device) => {
            for endpoint in device.peers.iter_mut().filter_map(|peer| peer.endpoint.as_mut()) {
                *endpoint = with_interface(endpoint);
            }
            Ok(*device)
        }
        Answer::Refused(errno) => bail!("{interface} refuses to report its state: errno {errno}"),
        Answer::HungUp => bail!("{interface} closed the connection without reporting its state"),
    }
}

/// As `get`, with the secret keys.
pub(crate) fn get_with_keys(interface: &str) -> Result<Device> {
    let mut device = get(interface)?;
    if device.is_rustguard() {
        let Answer::Device(known) = exchange(&socket(interface), "get=1\n\n")? else {
            bail!("{interface} does not report its keys");
        };
        add_keys(&mut device, *known);
    }
    Ok(device)
}

/// The state as a configuration that replaces the settings in a file. A RustGuard that is older than this form is
/// refused: the settings that it cannot report would count as missing.
pub(crate) fn get_to_save(interface: &str) -> Result<conf::Config> {
    let device = get_with_keys(interface)?;
    if !device.is_rustguard() && is_older(interface) {
        bail!(
            "the process of {interface} is older than this program, and does not say all that its file has: `rustguard down {interface}`, and \
             up again"
        );
    }
    Ok(configuration(device))
}

/// Whether RustGuard runs the interface, in a version that does not know the form of [`get`].
pub(crate) fn is_older(interface: &str) -> bool {
    matches!(ask_json::<Value>(&socket(interface), "routing"), Ok(Some(_)))
}

fn add_keys(device: &mut Device, known: Device) {
    device.private_key = known.private_key;
    let mut keys: HashMap<_, _> = known.peers.into_iter().map(|peer| (peer.public_key, peer.preshared_key)).collect();
    for peer in &mut device.peers {
        peer.preshared_key = keys.remove(&peer.public_key).flatten();
    }
}

/// Asks for the report of the routing engine.
pub(crate) fn routing(interface: &str) -> Result<RoutingView> {
    interface::check_name(interface)?;
    ask_json(&socket(interface), "routing")?.with_context(|| {
        format!("{interface} does not report a routing engine, so it is not an interface of RustGuard")
    })
}

/// Asks RustGuard for a report in one line of JSON. `None` if another implementation or an older version answers.
fn ask_json<T: DeserializeOwned>(path: &Path, what: &str) -> Result<Option<T>> {
    let mut stream = UnixStream::connect(path).map_err(|error| explain(error, path))?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    // If the other side has closed the connection, reading the answer shows it.
    let _ = stream.write_all(format!("get=rustguard-{what}\n\n").as_bytes());
    let mut line = String::new();
    match BufReader::new(stream).take(MAX_JSON).read_line(&mut line) {
        Err(error) if error.kind() != io::ErrorKind::ConnectionReset => {
            return Err(error).with_context(|| format!("cannot read the answer of {}", path.display()));
        }
        _ => {}
    }
    let answer = line.trim_end_matches('\n').strip_prefix("rustguard_");
    let Some(json) = answer.and_then(|rest| rest.strip_prefix(what)?.strip_prefix('=')) else { return Ok(None) };
    from_json(json).map(Some).with_context(|| format!("cannot read the answer of {}", path.display()))
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
        take(&mut device, key, value).with_context(|| format!("the value of {key}"))?;
    }
}

/// Reads a line of the UAPI. Unknown lines of later versions are ignored.
fn take(device: &mut Device, key: &str, value: &str) -> Result<()> {
    match (key, device.peers.last_mut()) {
        ("private_key", _) => {
            device.private_key = secret(value)?;
            let key = device.private_key.as_ref().map(|key| StaticSecret::from_bytes(**key));
            device.public_key = key.map(|key| key.public_key());
        }
        ("listen_port", _) => device.listen_port = value.parse()?,
        ("fwmark", _) => device.fwmark = value.parse()?,
        ("public_key", _) => {
            let public_key = PublicKey(*from_hex(value).context("not 64 hexadecimal digits")?);
            device.peers.push(Peer::new(public_key));
        }
        (key, Some(peer)) => take_of_peer(peer, key, value)?,
        _ => {}
    }
    Ok(())
}

fn take_of_peer(peer: &mut Peer, key: &str, value: &str) -> Result<()> {
    match key {
        "preshared_key" => {
            peer.preshared_key = secret(value)?;
            peer.has_preshared_key = peer.preshared_key.is_some();
        }
        "endpoint" => {
            peer.endpoint = Some(printable(value));
            peer.way = Some("direct".to_owned());
        }
        "allowed_ip" => peer.allowed_ips.push(value.parse()?),
        // wireguard-go uses its own clock. A time before 1970 counts as never.
        "last_handshake_time_sec" => {
            peer.last_handshake = Duration::from_secs(u64::try_from(value.parse::<i64>()?).unwrap_or(0));
        }
        "rx_bytes" => peer.rx_bytes = value.parse()?,
        "tx_bytes" => peer.tx_bytes = value.parse()?,
        "persistent_keepalive_interval" => peer.persistent_keepalive = value.parse()?,
        _ => {}
    }
    Ok(())
}

/// The configuration, as far as the device knows it.
pub(crate) fn configuration(device: Device) -> conf::Config {
    let mut interface = conf::Interface::default();
    interface.private_key = device.private_key.as_ref().map(|key| StaticSecret::from_bytes(**key));
    interface.listen_port = Some(device.listen_port);
    interface.more_listen_ports = device.all_listen_ports().skip(1).collect();
    interface.fwmark = (device.fwmark != 0).then_some(device.fwmark);
    interface.forward = device.is_rustguard().then_some(device.forwarded.is_some());
    conf::Config::new(interface, device.peers.into_iter().map(configuration_of_peer).collect())
}

fn configuration_of_peer(known: Peer) -> conf::Peer {
    let mut peer = conf::Peer::new(known.public_key);
    peer.name = known.name;
    peer.preshared_key = known.preshared_key.map(|key| PresharedKey::from_bytes(&key));
    // An endpoint with a zone that is a name can be used on this host, but it is no address.
    let endpoint = known.endpoint.and_then(|endpoint| endpoint.parse::<HostPort>().ok());
    peer.endpoints = endpoint.map(|at| PathSpec::from(EndpointSpec::from(at))).into_iter().collect();
    peer.allowed_ips = known.allowed_ips;
    peer.parity = known.parity.map(|parity| parity.size);
    let interval = Duration::from_secs(known.persistent_keepalive.into());
    peer.persistent_keepalive = (!interval.is_zero()).then_some(interval);
    peer
}

/// Writes the interface of a link-local address by its name, as `wg` does. Other endpoints stay as they are.
fn with_interface(endpoint: &str) -> String {
    match endpoint.parse::<SocketAddrV6>() {
        Ok(at) if at.scope_id() != 0 => match interface::name_of(at.scope_id()) {
            Ok(name) => format!("[{}%{name}]:{}", at.ip(), at.port()),
            Err(_) => endpoint.to_owned(),
        },
        _ => endpoint.to_owned(),
    }
}

/// Replaces characters that control a terminal, because the text is shown on one.
fn printable(value: &str) -> String {
    value.replace(is_dangerous, "?")
}

/// Reads JSON. Its texts are made [`printable`] after they are parsed, because JSON writes a control character as
/// `\u001b`.
fn from_json<T: DeserializeOwned>(json: &str) -> serde_json::Result<T> {
    if !json.contains('\\') && !json.contains(is_dangerous) {
        // This is nearly always the case, and takes half the time for thousands of peers.
        return serde_json::from_str(json);
    }
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
    use serde_json::json;

    fn device(text: &str) -> Result<Device> {
        match read(text.as_bytes())? {
            Answer::Device(device) => Ok(*device),
            Answer::Refused(errno) => bail!("refused {errno}"),
            Answer::HungUp => bail!("hung up"),
        }
    }

    #[test]
    fn an_answer_of_another_implementation_is_read() {
        let (key, zeros) = ("ab".repeat(32), "00".repeat(32));
        let device = device(&format!(
            "private_key={key}\nlisten_port=51820\nfwmark=7\nfuture=x\npublic_key={key}\npreshared_key={zeros}\n\
             protocol_version=1\nendpoint=[2001:db8::1]:9\u{1b}[2J\nlast_handshake_time_sec=5\nlast_handshake_time_nsec=6\n\
             tx_bytes=22\nrx_bytes=11\npersistent_keepalive_interval=25\nallowed_ip=10.0.0.0/8\nallowed_ip=fd00::/8\n\
             future=x\npublic_key={zeros}\npreshared_key={key}\nlast_handshake_time_sec=-5\nerrno=0\n\n"
        ))
        .unwrap();
        assert!(!device.is_rustguard() && device.private_key.is_some());
        let expected = StaticSecret::from_bytes([0xab; 32]).public_key();
        assert_eq!((device.public_key, device.listen_port, device.fwmark), (Some(expected), 51_820, 7));
        let [first, second] = &*device.peers else { panic!("{} peers", device.peers.len()) };
        assert_eq!((first.endpoint.as_deref(), first.way.as_deref()), (Some("[2001:db8::1]:9?[2J"), Some("direct")));
        assert_eq!((first.last_handshake, second.last_handshake), (Duration::from_secs(5), Duration::ZERO));
        assert_eq!((first.rx_bytes, first.tx_bytes, first.persistent_keepalive), (11, 22, 25));
        assert_eq!((first.allowed_ips.len(), first.connection.is_none()), (2, true));
        assert_eq!((first.has_preshared_key, second.has_preshared_key), (false, true));
    }

    #[test]
    fn keys_come_to_the_peers_that_have_them() {
        let text = |n: u8, key: &str| format!("public_key={}\npreshared_key={key}\n", format!("{n:02x}").repeat(32));
        let (one, none) = ("cd".repeat(32), "00".repeat(32));
        let lines = text(1, &one) + &text(2, &none) + &text(3, &one);
        let known = device(&format!("private_key={}\n{lines}errno=0\n\n", "48".repeat(32))).unwrap();
        // The first peer was removed between the two requests, and the last was added.
        let peers = [4, 3, 2].map(|n| Peer::new(PublicKey([n; 32]))).to_vec();
        let mut shown = Device { version: 1, peers, ..Device::default() };
        add_keys(&mut shown, known);
        assert_eq!(shown.private_key.as_deref(), Some(&[0x48; 32]));
        let keys: Vec<_> = shown.peers.iter().map(|peer| peer.preshared_key.as_deref().copied()).collect();
        assert_eq!(keys, [None, Some([0xcd; 32]), None]);
    }

    #[test]
    fn what_is_saved_has_all_ports() {
        let ports = |listen_ports: &[u16]| {
            let device = Device { listen_port: 5, listen_ports: listen_ports.to_vec(), ..Device::default() };
            let saved = configuration(device).interface;
            (saved.listen_port, saved.more_listen_ports)
        };
        assert_eq!(ports(&[]), (Some(5), vec![]));
        assert_eq!(ports(&[5, 6, 7]), (Some(5), vec![6, 7]));
    }

    /// In plain text, and in JSON's own escapes.
    #[test]
    fn no_text_steers_a_terminal() {
        let texts = json!({
            "relay": "r\u{1b}s", "relay_rules": "the \u{1b}[2J chain", "dropped": {"forged": 1},
            "peers": [{
                "name": "a\u{202e}b\u{1b}c", "endpoint": "\u{1b}[2J", "unresolved": {"name": "n\u{1b}m", "error": "\u{9b}31m"},
                "connection": {"state": "on\u{1b}line", "since": 5, "attempts": 3},
                "problem": {"kind": "k\u{7}", "text": "two\n\u{202e}lines\u{1b}[2J", "since": 5},
                "paths": [{
                    "configured": "c\u{1b}", "endpoint": "e\u{1b}", "local": "l\u{1b}", "state": "up", "round_trip_us": 9,
                    "active": true, "weight": 2
                }]
            }]
        });
        let device: Device = from_json(&texts.to_string()).unwrap();
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
        // The character is not escaped, because JSON does not require an escape for it.
        let device: Device = from_json("{\"relay\":\"a\u{202e}b\"}").unwrap();
        assert_eq!(device.relay.as_deref(), Some("a?b"));
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
