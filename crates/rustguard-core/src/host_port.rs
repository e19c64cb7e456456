//! `HOST:PORT`, as people write it in configuration files, on command lines and in invites.
//!
//! | Text | Host |
//! |---|---|
//! | `192.0.2.1:51820` | an IPv4 address |
//! | `[2001:db8::1]:51820` | an IPv6 address, in brackets (RFC 3986, section 3.2.2) |
//! | `[fe80::1%3]:51820`, `[fe80::1%eth0]:51820` | an IPv6 address of one link (RFC 4007, section 11) |
//! | `vpn.example.org:51820` | a name |
//!
//! [`HostPort::from_str`] requires the port; [`HostPort::parse_or`] has a default port. With a default, an IPv6 address
//! without a port needs no brackets.

use alloc::{borrow::ToOwned as _, string::String};
use core::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6},
    str::FromStr,
};

/// A host and a port.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct HostPort {
    host: Host,
    port: u16,
}

/// A host.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Host {
    /// An address.
    Address(IpAddr),
    /// An IPv6 address and the link that it belongs to: the index or the name of an interface.
    Zone(Ipv6Addr, String),
    /// A name. It consists of letters, digits, `-`, `.`, `_` and characters beyond ASCII. It need not be known to any
    /// resolver.
    Name(String),
}

/// Why a text is not `HOST:PORT`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HostPortError {
    /// There is a host, and no port.
    #[error("it has no port")]
    NoPort,
    /// The text after the last colon is not a number from 0 to 65535.
    #[error("`{0}` is not a port")]
    Port(String),
    /// An IPv6 address without brackets, in which the last colon could be part of the address.
    #[error("an IPv6 address before a port needs brackets: [{address}]:{}", .port.unwrap_or(51820))]
    Brackets {
        /// The address.
        address: Ipv6Addr,
        /// The port, if the text cannot be read without one.
        port: Option<u16>,
    },
    /// It begins with a scheme, as a URL does.
    #[error("it begins with `{0}://`, which does not belong there")]
    Scheme(String),
    /// Neither an address nor a name.
    #[error("it is neither ADDRESS:PORT nor [IPv6]:PORT nor NAME:PORT")]
    Host,
}

impl HostPort {
    /// Reads a text. If it lacks the port, `port` is used.
    ///
    /// # Errors
    /// See [`HostPortError`]; never [`NoPort`](HostPortError::NoPort).
    pub fn parse_or(text: &str, port: u16) -> Result<Self, HostPortError> {
        parse(text, Some(port))
    }

    /// The host.
    pub fn host(&self) -> &Host {
        &self.host
    }

    /// The port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The same host with another port.
    #[must_use]
    pub fn with_port(self, port: u16) -> Self {
        Self { port, ..self }
    }

    /// The address, if the host is an address. If it has a zone, the zone must be an interface index.
    pub fn socket_addr(&self) -> Option<SocketAddr> {
        match &self.host {
            Host::Address(address) => Some(SocketAddr::new(*address, self.port)),
            Host::Zone(address, zone) => Some(SocketAddrV6::new(*address, self.port, 0, zone.parse().ok()?).into()),
            Host::Name(_) => None,
        }
    }
}

impl FromStr for HostPort {
    type Err = HostPortError;

    fn from_str(text: &str) -> Result<Self, HostPortError> {
        parse(text, None)
    }
}

impl fmt::Display for HostPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.host {
            Host::Address(IpAddr::V6(_)) | Host::Zone(..) => write!(f, "[{}]:{}", self.host, self.port),
            Host::Address(IpAddr::V4(_)) | Host::Name(_) => write!(f, "{}:{}", self.host, self.port),
        }
    }
}

/// Without brackets, the form that resolvers accept.
impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(address) => address.fmt(f),
            Self::Zone(address, zone) => write!(f, "{address}%{zone}"),
            Self::Name(name) => f.write_str(name),
        }
    }
}

fn parse(text: &str, default: Option<u16>) -> Result<HostPort, HostPortError> {
    if let Ok(address) = text.parse::<Ipv6Addr>() {
        let host = Host::Address(address.into());
        return match default {
            Some(port) => Ok(HostPort { host, port }),
            None => Err(HostPortError::Brackets { address, port: None }),
        };
    }
    if let Some((scheme, _)) = text.split_once("://") {
        return Err(HostPortError::Scheme(scheme.to_owned()));
    }
    if let Some((inside, rest)) = text.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        let host = bracketed(inside).ok_or(HostPortError::Host)?;
        let port = match rest.strip_prefix(':') {
            Some(port) => number(port)?,
            None if rest.is_empty() => default.ok_or(HostPortError::NoPort)?,
            None => return Err(HostPortError::Host),
        };
        return Ok(HostPort { host, port });
    }
    let (host, port) = match text.rsplit_once(':') {
        Some((host, port)) => (host, number(port)?),
        None => (text, default.ok_or(HostPortError::NoPort)?),
    };
    if let Ok(address) = host.parse() {
        return Err(HostPortError::Brackets { address, port: Some(port) });
    }
    let host = match host.parse::<Ipv4Addr>() {
        Ok(address) => Host::Address(address.into()),
        Err(_) if is_name(host) => Host::Name(host.to_owned()),
        Err(_) => return Err(HostPortError::Host),
    };
    Ok(HostPort { host, port })
}

/// Reads the text inside brackets: an IPv6 address, with or without a zone.
fn bracketed(text: &str) -> Option<Host> {
    let Some((address, zone)) = text.split_once('%') else {
        return text.parse::<Ipv6Addr>().ok().map(|address| Host::Address(address.into()));
    };
    let of_an_interface = !zone.is_empty() && zone.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'%');
    let address = address.parse().ok().filter(|_| of_an_interface)?;
    Some(Host::Zone(address, zone.to_owned()))
}

fn number(text: &str) -> Result<u16, HostPortError> {
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    digits.then(|| text.parse().ok()).flatten().ok_or_else(|| HostPortError::Port(text.to_owned()))
}

/// Invisible characters that change how others are displayed (Unicode's category Cf), such as those that change the
/// direction of text. Names come from other machines and are shown on terminals.
fn is_invisible(c: char) -> bool {
    matches!(
        c,
        '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{206f}'
            | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}'
    )
}

fn is_name(text: &str) -> bool {
    let allowed = |c: char| match c {
        '-' | '.' | '_' => true,
        c if c.is_ascii() => c.is_ascii_alphanumeric(),
        c => !c.is_whitespace() && !c.is_control() && !is_invisible(c),
    };
    !text.is_empty() && text.chars().all(allowed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::{format, string::ToString as _};
    use proptest::prelude::*;

    fn name(text: &str) -> Host {
        Host::Name(text.to_owned())
    }

    fn address(text: &str) -> Host {
        Host::Address(text.parse().unwrap())
    }

    #[test]
    fn no_name_steers_a_terminal() {
        for wrong in
            ['\u{1b}', '\u{7f}', '\u{9b}', '\u{202e}', '\u{2066}', '\u{200b}', '\u{feff}', '\n', ' ', '"', '$', '`']
        {
            assert_eq!(format!("vpn{wrong}.example:5").parse::<HostPort>(), Err(HostPortError::Host), "{wrong:?}");
        }
    }

    #[test]
    fn a_host_and_its_port() {
        for (text, host, port) in [
            ("192.0.2.1:7", address("192.0.2.1"), 7),
            ("[2001:db8::1]:51820", address("2001:db8::1"), 51_820),
            ("[fe80::1%3]:5", Host::Zone("fe80::1".parse().unwrap(), "3".to_owned()), 5),
            ("[fe80::1%eth0.7]:5", Host::Zone("fe80::1".parse().unwrap(), "eth0.7".to_owned()), 5),
            ("vpn.example.org:51820", name("vpn.example.org"), 51_820),
            ("vpn_1:0", name("vpn_1"), 0),
            ("bücher.example:65535", name("bücher.example"), 65_535),
            ("256.1.1.1:5", name("256.1.1.1"), 5),
        ] {
            assert_eq!(text.parse(), Ok(HostPort { host: host.clone(), port }), "{text}");
            assert_eq!(HostPort::parse_or(text, 1), Ok(HostPort { host, port }), "{text}");
            assert_eq!(text.parse::<HostPort>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn without_a_port_it_is_the_default_or_an_error() {
        for (text, host) in [
            ("192.0.2.1", address("192.0.2.1")),
            ("2001:db8::1", address("2001:db8::1")),
            ("[2001:db8::1]", address("2001:db8::1")),
            ("::1:5182", address("::1:5182")),
            ("vpn.example.org", name("vpn.example.org")),
        ] {
            assert_eq!(HostPort::parse_or(text, 7), Ok(HostPort { host, port: 7 }), "{text}");
            let error = text.parse::<HostPort>().unwrap_err();
            assert!(matches!(error, HostPortError::NoPort | HostPortError::Brackets { port: None, .. }), "{text}");
        }
    }

    #[test]
    fn an_error_says_which_part_is_wrong() {
        let port = |text: &str| HostPortError::Port(text.to_owned());
        let brackets = |address: &str, port| HostPortError::Brackets { address: address.parse().unwrap(), port };
        for (text, error) in [
            ("", HostPortError::NoPort),
            ("a:", port("")),
            ("a:65536", port("65536")),
            ("a:+1", port("+1")),
            ("[::1]:x", port("x")),
            ("http://a", HostPortError::Scheme("http".to_owned())),
            ("udp://[::1]:7", HostPortError::Scheme("udp".to_owned())),
            ("https://a:7/b", HostPortError::Scheme("https".to_owned())),
            ("2001:db8::1", brackets("2001:db8::1", None)),
            ("2001:db8:0:0:0:0:0:1:51820", brackets("2001:db8::1", Some(51_820))),
            (":1", HostPortError::Host),
            ("a b:1", HostPortError::Host),
            ("a/b:1", HostPortError::Host),
            ("[a]:1", HostPortError::Host),
            ("[192.0.2.1]:1", HostPortError::Host),
            ("[::1]1", HostPortError::Host),
            ("[::1:1", HostPortError::Host),
            ("[fe80::1%]:1", HostPortError::Host),
            ("[fe80::1%a b]:1", HostPortError::Host),
        ] {
            assert_eq!(text.parse::<HostPort>(), Err(error), "{text}");
        }
        assert_eq!(HostPort::parse_or("", 7), Err(HostPortError::Host));
    }

    #[test]
    fn only_a_zone_that_is_an_index_makes_an_address() {
        let of = |text: &str| text.parse::<HostPort>().unwrap().socket_addr().map(|address| address.to_string());
        assert_eq!(of("[fe80::1%3]:5").as_deref(), Some("[fe80::1%3]:5"));
        assert_eq!(of("192.0.2.1:5").as_deref(), Some("192.0.2.1:5"));
        assert_eq!((of("[fe80::1%eth0]:5"), of("a:5")), (None, None));
    }

    proptest! {
        /// Agrees with the standard library on addresses; no text panics.
        #[test]
        fn agrees_with_the_standard_library(text in "[-0-9a-f.:%\\[\\]]{0,30}") {
            if let Ok(address) = text.parse::<SocketAddr>() {
                prop_assert_eq!(text.parse::<HostPort>().ok().and_then(|at| at.socket_addr()), Some(address));
            }
            if let Ok(at) = HostPort::parse_or(&text, 1) {
                prop_assert_eq!(at.to_string().parse::<HostPort>(), Ok(at));
            }
        }

        #[test]
        fn addresses_are_written_and_read(address: SocketAddr) {
            let read = address.to_string().parse::<HostPort>().unwrap();
            let read = read.socket_addr().unwrap();
            prop_assert_eq!((read.ip(), read.port()), (address.ip(), address.port()));
        }
    }
}
