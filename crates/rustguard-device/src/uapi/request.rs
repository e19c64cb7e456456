//! The requests of clients. A request is parsed as a whole before anything is applied, so a wrong line changes nothing.

use crate::{
    config::{AllowedIpChange, Change, EndpointSpec, PathSpec, PeerUpdate, Update},
    interface::{self, interface_index},
    key::{self, PresharedKey, push_hex},
};
use ipnet::IpNet;
use rustguard_core::{
    fec,
    host_port::{Host, HostPort},
    paths::{MAX_ENDPOINTS, PathPolicy},
    routing::Role,
};
use rustguard_crypto::x25519::{PublicKey, StaticSecret};
use std::{
    fmt::Write as _,
    net::{IpAddr, SocketAddr, SocketAddrV6},
    time::Duration,
};
use zeroize::Zeroizing;

/// A parsed request.
pub enum Request {
    /// Asks for the device's state in the form of `wg`: `get=1`.
    Get,
    /// Asks for all of the device's state, in JSON: `get=rustguard-status`.
    GetStatus,
    /// Asks for the routing engine's state, in JSON: `get=rustguard-routing`.
    GetRouting,
    /// Pings a peer: `get=rustguard-ping`, with `public_key` and `timeout_ms`.
    Ping {
        /// The peer.
        peer: PublicKey,
        /// How long to wait for the answer.
        timeout: Duration,
    },
    /// Changes the configuration: `set=1`.
    Set(Box<Update>),
}

/// An error number of errno(3). The answer contains its negation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Errno(pub i32);

impl Errno {
    /// A value or a key is not valid.
    pub const EINVAL: Self = Self(22);
    /// The request does not follow the protocol.
    pub const EPROTO: Self = Self(71);
    /// Another socket uses the port.
    pub const EADDRINUSE: Self = Self(98);
    /// The process does not have the permission.
    pub const EACCES: Self = Self(13);
    /// Any other failure.
    pub const EIO: Self = Self(5);
}

/// The longest name of a peer, in bytes.
const NAME_MAX: usize = 255;

/// The request that makes this change, without the blank line at the end. It uses RustGuard's own keys only if the keys
/// of the protocol are not sufficient: for names, roles, and endpoints other than a single plain address.
/// [`Update::announce`] has no key and is left out.
pub fn set_request(update: &Update) -> Zeroizing<String> {
    let room: usize = update.peers.iter().map(|peer| 1024 + 64 * peer.allowed_ips.len()).sum();
    let mut out = Zeroizing::new(String::with_capacity(512 + room));
    out.push_str("set=1\n");
    match &update.private_key {
        Change::Keep => {}
        Change::Set(key) => secret(&mut out, "private_key", &Zeroizing::new(key.to_bytes())),
        Change::Remove => secret(&mut out, "private_key", &[0; 32]),
    }
    line(&mut out, "listen_port", update.listen_port);
    line(&mut out, "fwmark", update.fwmark);
    line(&mut out, "rustguard_forward", update.forward);
    line(&mut out, "replace_peers", update.replace_peers.then_some(true));
    for peer in &update.peers {
        peer_request(&mut out, peer);
    }
    out
}

/// The request that pings a peer, without the blank line at the end.
pub fn ping_request(peer: &PublicKey, timeout: Duration) -> String {
    let mut out = String::from("get=rustguard-ping\n");
    secret(&mut out, "public_key", &peer.0);
    line(&mut out, "timeout_ms", Some(timeout.as_millis()));
    out
}

fn peer_request(out: &mut String, peer: &PeerUpdate) {
    secret(out, "public_key", &peer.public_key.0);
    line(out, "remove", peer.remove.then_some(true));
    line(out, "update_only", peer.update_only.then_some(true));
    line(out, "rustguard_name", peer.name.as_ref());
    let role = peer.role.map(|role| match role {
        Role::Router => "router",
        Role::Client => "client",
        Role::Member => "member",
        Role::Server => "server",
        Role::Gateway => "gateway",
    });
    line(out, "rustguard_role", role);
    line(out, "rustguard_direct", peer.direct);
    let parity = match peer.parity {
        Change::Keep => None,
        Change::Set(size) => Some(size),
        Change::Remove => Some(0),
    };
    line(out, "rustguard_parity", parity);
    match &peer.preshared_key {
        Change::Keep => {}
        Change::Set(key) => secret(out, "preshared_key", key.as_bytes()),
        Change::Remove => secret(out, "preshared_key", &[0; 32]),
    }
    match &peer.endpoints[..] {
        [PathSpec { endpoint: EndpointSpec::Address(address), via: None, policy: PathPolicy::Best }] => {
            line(out, "endpoint", Some(address));
        }
        paths => {
            for path in paths {
                line(out, "rustguard_endpoint", Some(&path.endpoint));
                line(out, "rustguard_via", path.via.as_ref());
                match path.policy {
                    PathPolicy::Best => {}
                    PathPolicy::Weighted(weight) => line(out, "rustguard_weight", Some(weight)),
                    PathPolicy::Pinned => line(out, "rustguard_pinned", Some(true)),
                    PathPolicy::Fallback => line(out, "rustguard_fallback", Some(true)),
                }
            }
        }
    }
    let keepalive = match peer.persistent_keepalive {
        Change::Keep => None,
        Change::Set(interval) => Some(interval.as_secs()),
        Change::Remove => Some(0),
    };
    line(out, "persistent_keepalive_interval", keepalive);
    line(out, "replace_allowed_ips", peer.replace_allowed_ips.then_some(true));
    for change in &peer.allowed_ips {
        match change {
            AllowedIpChange::Add(net) => line(out, "allowed_ip", Some(net)),
            AllowedIpChange::Remove(net) => line(out, "allowed_ip", Some(format_args!("-{net}"))),
        }
    }
}

fn line(out: &mut String, key: &str, value: Option<impl std::fmt::Display>) {
    if let Some(value) = value {
        writeln!(out, "{key}={value}").expect("writing to a String cannot fail");
    }
}

fn secret(out: &mut String, key: &str, value: &[u8; 32]) {
    out.push_str(key);
    out.push('=');
    push_hex(out, value);
    out.push('\n');
}

/// Parses a request. `text` has its lines, without the blank line at the end.
///
/// # Errors
/// `EPROTO` for an unknown operation or a line without `=`, `EINVAL` for an unknown key or a bad value.
pub fn parse(text: &str) -> Result<Request, Errno> {
    let mut lines = text.lines();
    match lines.next() {
        Some("get=1") => Ok(Request::Get),
        Some("get=rustguard-status") => Ok(Request::GetStatus),
        Some("get=rustguard-routing") => Ok(Request::GetRouting),
        Some("get=rustguard-ping") => parse_ping(lines),
        Some("set=1") => parse_set(lines).map(|update| Request::Set(Box::new(update))),
        _ => Err(Errno::EPROTO),
    }
}

fn parse_ping<'a>(lines: impl Iterator<Item = &'a str>) -> Result<Request, Errno> {
    let (mut peer, mut timeout) = (None, None);
    for line in lines {
        match line.split_once('=').ok_or(Errno::EPROTO)? {
            ("public_key", value) => peer = Some(PublicKey(*key::from_hex(value).ok_or(Errno::EINVAL)?)),
            ("timeout_ms", value) => timeout = value.parse().ok().map(Duration::from_millis),
            _ => return Err(Errno::EINVAL),
        }
    }
    let (Some(peer), Some(timeout)) = (peer, timeout) else { return Err(Errno::EINVAL) };
    Ok(Request::Ping { peer, timeout })
}

fn parse_set<'a>(lines: impl Iterator<Item = &'a str>) -> Result<Update, Errno> {
    let mut update = Update::default();
    for line in lines {
        let (key, value) = line.split_once('=').ok_or(Errno::EPROTO)?;
        if key == "public_key" {
            let public_key = PublicKey(*key::from_hex(value).ok_or(Errno::EINVAL)?);
            update.peers.push(PeerUpdate::new(public_key));
        } else if let Some(peer) = update.peers.last_mut() {
            peer_line(peer, key, value).ok_or(Errno::EINVAL)?;
        } else {
            device_line(&mut update, key, value).ok_or(Errno::EINVAL)?;
        }
    }
    Ok(update)
}

fn device_line(update: &mut Update, key: &str, value: &str) -> Option<()> {
    match key {
        "private_key" => {
            let key = key::from_hex(value)?;
            // A key of zeros removes the private key.
            update.private_key = Change::set_or_remove((*key != [0; 32]).then(|| StaticSecret::from_bytes(*key)));
        }
        "listen_port" => update.listen_port = Some(value.parse().ok()?),
        "fwmark" => update.fwmark = Some(parse_mark(value)?),
        "replace_peers" => update.replace_peers = is_true(value)?,
        "rustguard_forward" => update.forward = Some(value.parse().ok()?),
        _ => return None,
    }
    Some(())
}

fn peer_line(peer: &mut PeerUpdate, key: &str, value: &str) -> Option<()> {
    match key {
        "remove" => peer.remove = is_true(value)?,
        "update_only" => peer.update_only = is_true(value)?,
        "preshared_key" => peer.preshared_key = Change::Set(PresharedKey::from_bytes(&*key::from_hex(value)?)),
        "endpoint" => peer.endpoints = vec![parse_endpoint(value)?.into()],
        "persistent_keepalive_interval" => {
            let seconds: u16 = value.parse().ok()?;
            peer.persistent_keepalive =
                Change::set_or_remove((seconds > 0).then(|| Duration::from_secs(seconds.into())));
        }
        "replace_allowed_ips" => peer.replace_allowed_ips = is_true(value)?,
        "allowed_ip" => {
            peer.allowed_ips.push(match value.strip_prefix('-') {
                Some(net) => AllowedIpChange::Remove(parse_net(net)?),
                None => AllowedIpChange::Add(parse_net(value)?),
            });
        }
        "protocol_version" if value == "1" => {}
        "rustguard_name" if is_name(value) => peer.name = Some(value.to_owned()),
        "rustguard_role" => {
            peer.role = Some(match value {
                "router" => Role::Router,
                "client" => Role::Client,
                "member" => Role::Member,
                "server" => Role::Server,
                "gateway" => Role::Gateway,
                _ => return None,
            });
        }
        "rustguard_direct" => peer.direct = Some(value.parse().ok()?),
        "rustguard_parity" => {
            let size: u8 = value.parse().ok()?;
            peer.parity = Change::set_or_remove((size > 0).then_some(size));
            if size > 0 && !fec::SIZES.contains(&size) {
                return None;
            }
        }
        "rustguard_endpoint" if peer.endpoints.len() < MAX_ENDPOINTS => {
            let endpoint = match value.strip_prefix("via-peer ") {
                Some(relay) => EndpointSpec::Peer(PublicKey(*key::from_base64(relay).ok()?)),
                None => EndpointSpec::from(value.parse::<HostPort>().ok()?),
            };
            peer.endpoints.push(endpoint.into());
        }
        "rustguard_via" => peer.endpoints.last_mut()?.via = Some(checked_name(value)?),
        "rustguard_weight" => {
            let weight: u8 = value.parse().ok().filter(|weight| *weight > 0)?;
            peer.endpoints.last_mut()?.policy = PathPolicy::Weighted(weight);
        }
        "rustguard_pinned" if is_true(value)? => peer.endpoints.last_mut()?.policy = PathPolicy::Pinned,
        "rustguard_fallback" if is_true(value)? => peer.endpoints.last_mut()?.policy = PathPolicy::Fallback,
        _ => return None,
    }
    Some(())
}

fn is_true(value: &str) -> Option<bool> {
    (value == "true").then_some(true)
}

fn checked_name(interface: &str) -> Option<String> {
    interface::check_name(interface).is_ok().then(|| interface.to_owned())
}

/// Names are printed on terminals, in logs and in this protocol, so they have no control characters.
fn is_name(text: &str) -> bool {
    (1..=NAME_MAX).contains(&text.len()) && !text.contains(char::is_control)
}

/// Parses a firewall mark: decimal, or hexadecimal after `0x`.
fn parse_mark(value: &str) -> Option<u32> {
    match value.strip_prefix("0x") {
        Some(hex) => u32::from_str_radix(hex, 16).ok(),
        None => value.parse().ok(),
    }
}

/// Parses a prefix. An address without a prefix length is a single host.
fn parse_net(value: &str) -> Option<IpNet> {
    value.parse().ok().or_else(|| value.parse::<IpAddr>().ok().map(IpNet::from))
}

/// Parses an endpoint, for example `192.0.2.1:51820`, `[2001:db8::1]:51820`, `[fe80::1%3]:51820` or
/// `[fe80::1%eth0]:51820`.
fn parse_endpoint(value: &str) -> Option<SocketAddr> {
    let at: HostPort = value.parse().ok()?;
    at.socket_addr().or_else(|| match at.host() {
        Host::Zone(address, name) => {
            Some(SocketAddrV6::new(*address, at.port(), 0, interface_index(name).ok()?).into())
        }
        Host::Address(_) | Host::Name(_) => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn set(text: &str) -> Result<Update, Errno> {
        match parse(text)? {
            Request::Set(update) => Ok(*update),
            Request::Get | Request::GetStatus | Request::GetRouting | Request::Ping { .. } => panic!("a get"),
        }
    }

    #[test]
    fn a_whole_set_as_wg_sends_it() {
        let (key, psk) = ("ab".repeat(32), "cd".repeat(32));
        let update = set(&format!(
            "set=1\nprivate_key={key}\nlisten_port=51820\nfwmark=0xca6c\nreplace_peers=true\npublic_key={key}\nremove=true\n\
             public_key={psk}\nupdate_only=true\npreshared_key={psk}\nendpoint=[2001:db8::1]:7\n\
             persistent_keepalive_interval=25\nreplace_allowed_ips=true\nallowed_ip=10.0.0.5/8\nallowed_ip=-fd00::/64\n\
             allowed_ip=192.0.2.1\nprotocol_version=1\n"
        ))
        .unwrap();
        assert_eq!(update.listen_port, Some(51820));
        assert_eq!(update.fwmark, Some(51820));
        assert!(update.replace_peers && matches!(update.private_key, Change::Set(_)));
        let [first, second] = &update.peers[..] else { panic!("two peers") };
        assert!(first.remove);
        assert!(second.update_only && second.replace_allowed_ips);
        assert_eq!(second.endpoints, [PathSpec::from("[2001:db8::1]:7".parse::<SocketAddr>().unwrap())]);
        assert_eq!(second.persistent_keepalive, Change::Set(Duration::from_secs(25)));
        let net = |text: &str| text.parse::<IpNet>().unwrap();
        assert_eq!(second.allowed_ips[1], AllowedIpChange::Remove(net("fd00::/64")));
        assert_eq!(second.allowed_ips[2], AllowedIpChange::Add(net("192.0.2.1/32")));
    }

    #[test]
    fn what_is_asked_for_is_what_is_read() {
        let key = |byte| PublicKey([byte; 32]);
        let mut everything = PeerUpdate::new(key(1))
            .name("head office")
            .role(Role::Client)
            .direct(false)
            .parity(7)
            .preshared_key(PresharedKey::from_bytes(&[9; 32]))
            .persistent_keepalive(Duration::from_secs(25))
            .endpoint(PathSpec::from(EndpointSpec::Name("a.example".into(), 5)).via("eth1"))
            .endpoint(PathSpec::from("[2001:db8::1]:7".parse::<SocketAddr>().unwrap()).policy(PathPolicy::Weighted(3)))
            .endpoint(EndpointSpec::Peer(key(4)))
            .endpoint(PathSpec::from("192.0.2.1:7".parse::<SocketAddr>().unwrap()).policy(PathPolicy::Pinned))
            .replace_allowed_ips(["10.0.0.0/8".parse().unwrap()])
            .without_allowed_ip("10.1.0.0/16".parse::<IpNet>().unwrap());
        everything.update_only = true;
        let update = Update::new()
            .private_key(StaticSecret::from_bytes([7; 32]))
            .listen_port(5)
            .fwmark(6)
            .replace_peers()
            .forward(true)
            .peer(everything)
            .peer(PeerUpdate::new(key(2)).endpoint("192.0.2.9:1".parse::<SocketAddr>().unwrap()))
            .peer(PeerUpdate::remove(key(3)));
        let text = set_request(&update);
        assert_eq!(format!("{:?}", set(&text).unwrap()), format!("{update:?}"));
        assert!(text.contains("\nendpoint=192.0.2.9:1\n"), "any implementation can read a plain address");
    }

    #[test]
    fn words_of_our_own_are_checked() {
        let peer = format!("set=1\npublic_key={}\n", "ab".repeat(32));
        for line in [
            "rustguard_name=",
            "rustguard_name=a\u{1b}b",
            "rustguard_role=x",
            "rustguard_via=eth0",
            "rustguard_weight=1",
            "rustguard_parity=1",
            "rustguard_parity=21",
            "rustguard_endpoint=a.b",
            "rustguard_endpoint=via-peer office",
            "rustguard_endpoint=a.b:1\nrustguard_via=../x",
            "rustguard_endpoint=a.b:1\nrustguard_weight=0",
        ] {
            assert_eq!(set(&format!("{peer}{line}")).err(), Some(Errno::EINVAL), "{line:?}");
        }
        let too_many = "rustguard_endpoint=a.b:1\n".repeat(MAX_ENDPOINTS + 1);
        assert_eq!(set(&format!("{peer}{too_many}")).err(), Some(Errno::EINVAL));
    }

    #[test]
    fn zeros_take_the_private_key_away_and_zero_seconds_the_keepalive() {
        let key = "00".repeat(32);
        let update =
            set(&format!("set=1\nprivate_key={key}\npublic_key={key}\npersistent_keepalive_interval=0")).unwrap();
        assert!(matches!(update.private_key, Change::Remove));
        assert_eq!(update.peers[0].persistent_keepalive, Change::Remove);
    }

    #[test]
    fn errors_are_the_ones_wg_expects() {
        for (text, errno) in [
            ("", Errno::EPROTO),
            ("get=2", Errno::EPROTO),
            ("set=1\nlisten_port", Errno::EPROTO),
            ("set=1\nlisten_port=70000", Errno::EINVAL),
            ("set=1\nprivate_key=xyz", Errno::EINVAL),
            ("set=1\nallowed_ip=10.0.0.0/8", Errno::EINVAL),
            ("set=1\nnonsense=1", Errno::EINVAL),
            ("set=1\nreplace_peers=false", Errno::EINVAL),
        ] {
            assert_eq!(set(text).err(), Some(errno), "{text:?}");
        }
    }

    #[test]
    fn a_ping_needs_a_peer_and_a_time() {
        let (peer, timeout) = (PublicKey([0xab; 32]), Duration::from_millis(1_500));
        let text = ping_request(&peer, timeout);
        assert_eq!(text, format!("get=rustguard-ping\npublic_key={}\ntimeout_ms=1500\n", "ab".repeat(32)));
        let Ok(Request::Ping { peer: parsed, timeout: time }) = parse(&text) else { panic!("{text}") };
        assert_eq!((parsed, time), (peer, timeout));
        let key = format!("public_key={}", "ab".repeat(32));
        for (lines, errno) in [
            ("timeout_ms=1", Errno::EINVAL),
            (&*key, Errno::EINVAL),
            (&*format!("{key}\ntimeout_ms=-1"), Errno::EINVAL),
            (&*format!("{key}\ntimeout_ms=1\ncount=7"), Errno::EINVAL),
            ("public_key=ab\ntimeout_ms=1", Errno::EINVAL),
            ("public_key", Errno::EPROTO),
        ] {
            let parsed = parse(&format!("get=rustguard-ping\n{lines}\n"));
            assert_eq!(parsed.err(), Some(errno), "{lines}");
        }
    }

    #[test]
    fn a_scoped_endpoint_keeps_its_interface() {
        let scoped = |text| match parse_endpoint(text) {
            Some(SocketAddr::V6(address)) => Some(address.scope_id()),
            _ => None,
        };
        assert_eq!(scoped("[fe80::1%7]:51820"), Some(7));
        assert_eq!(scoped("[fe80::1%lo]:51820"), Some(1));
        assert_eq!(scoped("[fe80::1%../lo]:51820"), None);
        assert_eq!(parse_endpoint("example.com:1"), None);
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "(set=1\n)?([a-z_]{0,12}=?[-0-9a-fx.:/%\\[\\]]{0,40}\n){0,8}") {
            let _ = parse(&text);
        }
    }
}
