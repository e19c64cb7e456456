//! Why a peer cannot be reached, as far as this side can know.

use crate::key::to_base64;
use rustguard_crypto::x25519::PublicKey;
use rustguard_tun::reach::Reason;
use std::{
    fmt, io,
    net::{IpAddr, SocketAddr},
    time::Duration,
};

/// A problem between this side and a peer. `Display` writes a sentence with the likely cause and the remedy.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Problem {
    /// The likely cause.
    pub cause: Cause,
    /// When the problem began, as the time since the Unix epoch.
    pub since: Duration,
}

/// The likely cause of a [`Problem`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Cause {
    /// Initiations were sent, but no answer came. WireGuard does not answer strangers, so a wrong key looks the same.
    NoAnswer {
        /// Where they were sent.
        endpoint: SocketAddr,
        /// How the host routes to the endpoint, if it can be found out.
        route: Option<Route>,
    },
    /// Initiations were sent through a relay, and no answer came. A relay itself does not answer.
    NoAnswerThrough {
        /// The relay.
        relay: PublicKey,
        /// Its name, or the beginning of its key.
        called: String,
    },
    /// The peer is reached through a relay, and there is no session with the relay.
    RelayNotConnected {
        /// The relay.
        relay: PublicKey,
        /// Its name, or the beginning of its key.
        called: String,
    },
    /// The peer's host refuses the port by ICMP.
    PortUnreachable {
        /// Where the initiations were sent.
        endpoint: SocketAddr,
    },
    /// A router, or this host, reports by ICMP that the peer's host cannot be reached.
    HostUnreachable {
        /// Where the initiations were sent.
        endpoint: SocketAddr,
        /// How the host routes to the endpoint, if it can be found out.
        route: Option<Route>,
        /// The address of the reporting host or router.
        by: Option<IpAddr>,
    },
    /// A router, or the peer's host, reports by ICMP that it does not deliver to the endpoint, and why.
    Undelivered {
        /// Where the initiations were sent.
        endpoint: SocketAddr,
        /// The reported reason.
        reason: Reason,
        /// The address of the reporting host or router.
        by: Option<IpAddr>,
    },
    /// The system refuses to send to the peer.
    SendFailed {
        /// Where the initiations should go.
        endpoint: SocketAddr,
        /// The system's error number; `None` if it refuses only the tunnel's own datagrams.
        errno: Option<i32>,
        /// How the host routes to the endpoint, if it can be found out.
        route: Option<Route>,
    },
    /// The peer answers, but its answers fail authentication: the preshared keys differ.
    PresharedKey,
    /// The peer asks for cookies instead of answering: it is under load.
    UnderLoad,
    /// A host at the peer's endpoint initiates with a key that no peer has.
    OtherKey {
        /// The public key.
        key: PublicKey,
        /// The address of that host.
        endpoint: SocketAddr,
    },
    /// A host at the peer's endpoint sends handshake messages for another public key than ours.
    NotForUs {
        /// The address of that host.
        endpoint: SocketAddr,
    },
    /// The peer initiates repeatedly, but uses none of the sessions: our answers do not arrive, or the preshared keys
    /// differ.
    Unconfirmed,
    /// The peer's initiations have older timestamps than an earlier one: its clock was set back.
    ClockBehind {
        /// The difference.
        by: Duration,
    },
    /// The name of the peer's endpoint has no address.
    NotResolved {
        /// The name and the port.
        name: String,
        /// The resolver's error.
        error: String,
    },
    /// The peer sends from an address outside its AllowedIPs on this side, and its packets are dropped.
    SourceNotAllowed {
        /// The source of the first of these packets.
        source: IpAddr,
    },
    /// The peer's key is used alternately at two addresses, as by two machines.
    TwoPlaces {
        /// The latest address, and the one before.
        endpoints: [SocketAddr; 2],
    },
    /// Our sessions with the peer end soon after each handshake, as if another machine had our key.
    ShortSessions,
    /// Long packets do not reach the peer, but short ones do.
    PathMtu {
        /// Bytes of the longest packet inside the tunnel that reaches it.
        packet: u16,
        /// Bytes of the IP datagram that it becomes outside.
        datagram: u32,
    },
}

/// How the host would route to an endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Route {
    /// The interface.
    pub interface: String,
    /// The next router; `None` if the endpoint is on the interface's own network.
    pub gateway: Option<IpAddr>,
    /// The source address that the host uses.
    pub source: Option<IpAddr>,
}

impl Problem {
    /// A problem that began at a time since the Unix epoch.
    pub const fn new(cause: Cause, since: Duration) -> Self {
        Self { cause, since }
    }

    /// The kind of problem in one word that does not change between versions, in lower-case letters and `-`.
    pub const fn kind(&self) -> &'static str {
        self.cause.kind()
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.cause.fmt(f)
    }
}

impl Cause {
    /// See [`Problem::kind`].
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::NoAnswer { .. } => "no-answer",
            Self::NoAnswerThrough { .. } => "no-answer-through",
            Self::RelayNotConnected { .. } => "relay-not-connected",
            Self::NotResolved { .. } => "not-resolved",
            Self::SourceNotAllowed { .. } => "source-not-allowed",
            Self::PathMtu { .. } => "path-mtu",
            Self::PortUnreachable { .. } => "port-unreachable",
            Self::HostUnreachable { .. } => "host-unreachable",
            Self::Undelivered { reason, .. } => match reason {
                Reason::Prohibited => "prohibited",
                Reason::Network => "network-unreachable",
                Reason::HopLimit => "hop-limit",
                Reason::Scope => "source-scope",
                _ => "undelivered",
            },
            Self::SendFailed { .. } => "send-failed",
            Self::PresharedKey => "preshared-key",
            Self::UnderLoad => "under-load",
            Self::OtherKey { .. } => "other-key",
            Self::NotForUs { .. } => "not-for-us",
            Self::Unconfirmed => "unconfirmed",
            Self::ClockBehind { .. } => "clock-behind",
            Self::TwoPlaces { .. } => "two-places",
            Self::ShortSessions => "short-sessions",
        }
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoAnswer { endpoint, route } => {
                write!(f, "nothing comes back from {endpoint}{}: ", By(route.as_ref()))?;
                f.write_str(
                    "the other side is down, a firewall drops its or our UDP packets, or its address, its port or one of the public \
                     keys is wrong",
                )
            }
            Self::NoAnswerThrough { called, .. } => write!(
                f,
                "nothing comes back through {called}: the other side is down, {called} has no `Forward = on` or not both sides as its \
                 peers, or one of the public keys is wrong"
            ),
            Self::RelayNotConnected { called, .. } => {
                write!(f, "it is reached through {called}, and there is no session with {called}: see what is wrong with that peer")
            }
            Self::PortUnreachable { endpoint } => write!(
                f,
                "nobody listens on UDP port {} of {}, as that host itself reports: start WireGuard there, or correct the port. A \
                 firewall that rejects the port reports the same",
                endpoint.port(),
                endpoint.ip()
            ),
            Self::HostUnreachable { endpoint, route, by } => {
                write!(f, "{} cannot be reached{}: ", endpoint.ip(), By(route.as_ref()))?;
                let own = route.as_ref().and_then(|route| route.source);
                match (by.filter(|by| Some(*by) != own), route.as_ref().and_then(|route| route.gateway)) {
                    (Some(by), _) => write!(
                        f,
                        "the router {by} does not find that machine, which is off or not on its network, or the address of the endpoint is \
                         wrong"
                    ),
                    (None, Some(gateway)) => write!(f, "check the gateway {gateway}, and the address of the endpoint"),
                    (None, None) => {
                        f.write_str("the machine is off or not on this network, or the address of the endpoint is wrong")
                    }
                }
            }
            Self::Undelivered { endpoint, reason, by } => undelivered(*endpoint, *reason, *by, f),
            Self::SendFailed { endpoint, errno, route } => {
                write!(f, "this host refuses to send to {endpoint}{}", By(route.as_ref()))?;
                match errno {
                    Some(errno) => write!(f, ": {}; {}", io::Error::from_raw_os_error(*errno), remedy(*errno)),
                    None => f.write_str(": a firewall rule of this host for the tunnel's port may forbid it"),
                }
            }
            Self::PresharedKey => f.write_str(
                "the other side answers, but its answers do not open: the preshared keys differ; set the same PresharedKey on both \
                 sides, or none",
            ),
            Self::UnderLoad => f.write_str(
                "the other side is under load, and asks for proof of our address (a cookie) before it answers: wait, or look for a \
                 flood there",
            ),
            Self::OtherKey { key, endpoint } => write!(
                f,
                "a handshake from {endpoint} has the public key {}, which is not this peer's: if the other side confirms that this is its \
                 key, correct the PublicKey here",
                *to_base64(&key.0)
            ),
            Self::NotForUs { endpoint } => write!(
                f,
                "{endpoint} sends handshakes that are for another public key than ours: correct the PublicKey of this machine there"
            ),
            Self::Unconfirmed => f.write_str(
                "the other side begins handshakes, and uses none of our answers: they do not arrive (a firewall drops what this side \
                 sends), or the preshared keys differ",
            ),
            Self::ClockBehind { by } => write!(
                f,
                "the clock of the other side is {} behind what it was at an earlier handshake, so that its handshakes are taken for \
                 replays: set the clock there, or restart the tunnel here",
                Span(*by)
            ),
            Self::NotResolved { name, error } => {
                write!(
                    f,
                    "the endpoint {name} is not resolved: {error}; check the name, and the name servers of this machine"
                )
            }
            Self::SourceNotAllowed { source } => write!(
                f,
                "packets of this peer from {source} are dropped, because the address is not in the AllowedIPs that the peer has \
                 here: add it there, if the peer may use it; otherwise the peer has a wrong Address, or forwards for others \
                 without masquerading"
            ),
            Self::TwoPlaces { endpoints: [one, other] } => write!(
                f,
                "its key is used at {one} and at {other} in turn, so that each loses what is for the other: two machines have one key, \
                 as after a disk or a file was copied; give one of them a key of its own. A machine that changes between two networks \
                 all the time looks the same"
            ),
            Self::ShortSessions => f.write_str(
                "its answers cease soon after each handshake: another machine uses the private key of this one, as after a disk or a file \
                 was copied (give one of them a key of its own), or the link loses most packets",
            ),
            Self::PathMtu { packet, datagram } => write!(
                f,
                "packets longer than {packet} bytes do not reach this peer, shorter ones do: the path takes datagrams of \
                 {datagram} bytes, and loses longer ones; set MTU = {packet} in [Interface]"
            ),
        }
    }
}

/// Writes the meaning of an ICMP message about the endpoint, and the remedy.
fn undelivered(endpoint: SocketAddr, reason: Reason, by: Option<IpAddr>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let (ip, port) = (endpoint.ip(), endpoint.port());
    let by = match by {
        Some(by) if by == ip => format!("{by} itself"),
        Some(by) => format!("the router {by}"),
        None => "a router".to_owned(),
    };
    match reason {
        Reason::Prohibited => {
            write!(
                f,
                "{by} forbids datagrams to UDP port {port} of {ip} (a rule of its firewall, or of its routes): allow them there"
            )
        }
        Reason::Network => {
            write!(f, "{by} has no route to {ip}: correct the routes there, or the address of the endpoint")
        }
        Reason::HopLimit => write!(
            f,
            "datagrams to {ip} go in a circle, as {by} reports (time exceeded): the routes of routers on the way contradict each other"
        ),
        Reason::Scope => write!(
            f,
            "{by} does not carry datagrams from the address of this host to {ip} (beyond its scope): give this host an address that is \
             valid there, or the peer another endpoint"
        ),
        Reason::Port => write!(
            f,
            "{by} rejects datagrams to UDP port {port} of {ip}, most likely by its firewall: allow them there"
        ),
        Reason::Other(kind, code) => write!(
            f,
            "{by} does not deliver datagrams to {ip} (ICMP type {kind}, code {code}): check the address of the endpoint, and what that host is"
        ),
        _ => write!(f, "{by} does not deliver datagrams to {ip}"),
    }
}

/// The remedy for an error of the system.
fn remedy(errno: i32) -> &'static str {
    use rustix::io::Errno;
    match Errno::from_raw_os_error(errno) {
        Errno::NETUNREACH => "there is no route: check the network of this host and the endpoint's address",
        Errno::PERM => "a firewall rule of this host forbids it",
        Errno::HOSTUNREACH | Errno::ACCESS | Errno::INVAL => "a route or rule of this host forbids it (`ip route get`)",
        Errno::AFNOSUPPORT => "this host does not have that version of IP",
        _ => "check the network of this host",
    }
}

impl fmt::Display for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "by {}", self.interface)?;
        self.gateway.map_or(Ok(()), |gateway| write!(f, ", gateway {gateway}"))?;
        self.source.map_or(Ok(()), |source| write!(f, ", from {source}"))
    }
}

/// A route in brackets, or nothing.
struct By<'a>(Option<&'a Route>);

impl fmt::Display for By<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.map_or(Ok(()), |route| write!(f, " ({route})"))
    }
}

/// A length of time in whole units.
struct Span(Duration);

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = (self.0 + Duration::from_millis(500)).as_secs();
        let (count, unit) = match seconds {
            0..120 => (seconds, "second"),
            120..7_200 => (seconds / 60, "minute"),
            7_200..172_800 => (seconds / 3_600, "hour"),
            _ => (seconds / 86_400, "day"),
        };
        write!(f, "{count} {unit}{}", if count == 1 { "" } else { "s" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// On the control socket each is one line, and readers limit the length of lines.
    #[test]
    fn each_cause_is_one_line_that_names_what_matters() {
        let endpoint: SocketAddr = "[2001:db8::1]:51820".parse().unwrap();
        let route = Some(Route {
            interface: "eth0".to_owned(),
            gateway: Some("2001:db8::fe".parse().unwrap()),
            source: Some("2001:db8::2".parse().unwrap()),
        });
        let key = PublicKey([1; 32]);
        let router: IpAddr = "2001:db8::99".parse().unwrap();
        for (cause, words) in [
            (Cause::NoAnswer { endpoint, route: route.clone() }, &["nothing comes back", "eth0", "firewall"][..]),
            (Cause::NoAnswerThrough { relay: key, called: "x".repeat(63) }, &["nothing comes back", "Forward = on"]),
            (Cause::RelayNotConnected { relay: key, called: "office".to_owned() }, &["no session with office"]),
            (Cause::PortUnreachable { endpoint }, &["nobody listens", "51820", "2001:db8::1"]),
            (
                Cause::HostUnreachable { endpoint, route: route.clone(), by: None },
                &["cannot be reached", "gateway 2001:db8::fe"],
            ),
            (
                Cause::HostUnreachable { endpoint, route: route.clone(), by: Some(router) },
                &["router 2001:db8::99", "is off"],
            ),
            (
                Cause::Undelivered { endpoint, reason: Reason::Prohibited, by: Some(router) },
                &["router 2001:db8::99 forbids", "51820"],
            ),
            (
                Cause::Undelivered { endpoint, reason: Reason::Prohibited, by: Some(endpoint.ip()) },
                &["2001:db8::1 itself forbids"],
            ),
            (
                Cause::Undelivered { endpoint, reason: Reason::Port, by: Some(router) },
                &["router 2001:db8::99 rejects", "firewall"],
            ),
            (Cause::Undelivered { endpoint, reason: Reason::Network, by: Some(router) }, &["no route to 2001:db8::1"]),
            (Cause::Undelivered { endpoint, reason: Reason::HopLimit, by: None }, &["circle", "a router"]),
            (Cause::Undelivered { endpoint, reason: Reason::Scope, by: None }, &["beyond its scope"]),
            (Cause::Undelivered { endpoint, reason: Reason::Other(3, 2), by: None }, &["ICMP type 3, code 2"]),
            (Cause::SendFailed { endpoint, errno: Some(101), route: None }, &["Network is unreachable", "no route"]),
            (Cause::SendFailed { endpoint, errno: Some(1), route }, &["not permitted", "firewall", "by eth0"]),
            (Cause::PresharedKey, &["preshared keys differ", "PresharedKey"]),
            (Cause::UnderLoad, &["under load"]),
            (Cause::OtherKey { key, endpoint }, &["AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE=", "PublicKey"]),
            (Cause::NotForUs { endpoint }, &["another public key than ours"]),
            (Cause::Unconfirmed, &["do not arrive", "preshared keys differ"]),
            (Cause::ClockBehind { by: Duration::from_secs(7_260) }, &["clock", "2 hours behind"]),
            (Cause::TwoPlaces { endpoints: [endpoint; 2] }, &["two machines have one key", "[2001:db8::1]:51820"]),
            (Cause::ShortSessions, &["private key of this one"]),
        ] {
            let text = cause.to_string();
            assert!(words.iter().all(|word| text.contains(word)), "{text}");
            assert!(text.len() < 500 && !text.contains(char::is_control) && !text.contains("  "), "{text}");
            assert!(cause.kind().chars().all(|c| c == '-' || c.is_ascii_lowercase()));
        }
    }
}
