//! The values after `=`: one function for each type, from a text to a value or a [`Problem`].

use super::{NetworkKey, NodeName, Redistribute, Routing, Table, system_names};
use crate::NameServer;
use ipnet::IpNet;
use rustguard_core::{fec, paths::PathPolicy, routing::Role};
use rustguard_crypto::x25519::PublicKey;
use rustguard_device::{EndpointSpec, Host, HostPort, HostPortError, PathSpec, SourceCheck, interface, key};
use std::{
    fmt,
    net::IpAddr,
    ops::{Range, RangeInclusive},
    time::Duration,
};
use zeroize::Zeroizing;

/// Longest DNS name (RFC 1035, section 2.3.4).
const MAX_HOST: usize = 253;

/// Why a text is not a valid value. The message continues a sentence that begins with the key's name.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Problem {
    pub(super) message: String,
    pub(super) help: Option<String>,
    /// The bytes of the value that are wrong, if not all of them.
    pub(super) range: Option<Range<usize>>,
}

type Result<T> = std::result::Result<T, Problem>;

impl Problem {
    pub(super) fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), help: None, range: None }
    }

    pub(super) fn help(mut self, help: impl Into<String>) -> Self {
        self.help = Some(help.into());
        self
    }
}

/// 32 bytes in base64. The messages contain positions and lengths, but never the text, because it may be a secret.
pub(super) fn key(text: &str) -> Result<Zeroizing<[u8; 32]>> {
    const WHAT: &str = "must be 32 bytes, which is 44 characters of base64";
    let base64 = |c: char| c.is_ascii_alphanumeric() || "+/=".contains(c);
    let wrong = text.char_indices().enumerate().find(|&(_, (_, c))| !base64(c));
    if let Some((at, (byte, c))) = wrong {
        let mut problem = Problem::new(format!("{WHAT}; character {} is not base64", at + 1));
        problem.range = Some(byte..byte + c.len_utf8());
        return Err(problem);
    }
    key::from_base64(text).map_err(|error| match error {
        key::KeyError::Length(0) => Problem::new(format!("{WHAT}, and is empty")),
        key::KeyError::Length(n) => Problem::new(format!("{WHAT}; this has {n} characters")).help(if n < 44 {
            "was a part of it lost when it was copied?"
        } else {
            "has something been pasted twice?"
        }),
        _ => Problem::new(format!("{WHAT}; this base64 is not of 32 bytes"))
            .help("a key ends in `=`, and the bits before it are zero: copy the whole of it again"),
    })
}

/// A decimal number in `range`.
pub(super) fn number<T: TryFrom<u32>>(text: &str, range: RangeInclusive<u32>) -> Result<T> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let number = digits.then(|| text.parse().ok()).flatten().filter(|number| range.contains(number));
    number.and_then(|number| T::try_from(number).ok()).ok_or_else(|| {
        Problem::new(format!("must be a number from {} to {}, not `{text}`", range.start(), range.end()))
    })
}

/// A port, or 0 for any; by its number, or by the name of a service, as wg accepts it.
pub(super) fn listen_port(text: &str) -> Result<u16> {
    number(text, 0..=65_535).or_else(|problem| system_names::udp_service(text).ok_or(problem))
}

/// `off` (0), a decimal number, or a hexadecimal number after `0x`.
pub(super) fn fwmark(text: &str) -> Result<u32> {
    if text.eq_ignore_ascii_case("off") {
        return Ok(0);
    }
    system_names::unsigned(text)
        .ok_or_else(|| Problem::new(format!("must be `off` or a number of 32 bits, 0xca6c or 51820, not `{text}`")))
}

/// `off` or a number of seconds. 0 means `off`.
pub(super) fn keepalive(text: &str) -> Result<Option<Duration>> {
    if text.eq_ignore_ascii_case("off") {
        return Ok(None);
    }
    let seconds: u16 = number(text, 0..=65_535).map_err(|_| {
        Problem::new(format!("must be `off` or seconds from 0 to 65535, not `{text}`"))
            .help("25 keeps most NATs and firewalls open")
    })?;
    Ok((seconds > 0).then(|| Duration::from_secs(seconds.into())))
}

/// `off`, or the bytes of data for one byte of parity.
pub(super) fn parity(text: &str) -> Result<Option<u8>> {
    if text.eq_ignore_ascii_case("off") {
        return Ok(None);
    }
    let (least, most) = (u32::from(*fec::SIZES.start()), u32::from(*fec::SIZES.end()));
    number(text, least..=most).map(Some).map_err(|_| {
        Problem::new(format!("must be `off` or a number from {least} to {most}, not `{text}`"))
            .help("7 adds a seventh to what is sent, and makes up for most single losses")
    })
}

/// `auto`, `off`, a number, or the name of a table.
pub(super) fn table(text: &str) -> Result<Table> {
    match text.to_ascii_lowercase().as_str() {
        "auto" => Ok(Table::Auto),
        "off" => Ok(Table::Off),
        "main" => Ok(Table::Number(254)),
        "default" => Ok(Table::Number(253)),
        "local" => Ok(Table::Number(255)),
        number => {
            let number = system_names::unsigned(number).or_else(|| system_names::table(text));
            number.filter(|&number| number > 0).map(Table::Number).ok_or_else(|| {
                Problem::new(format!(
                    "must be `auto`, `off`, or the number or the name of a routing table, not `{text}`"
                ))
                .help("names are in /etc/iproute2/rt_tables")
            })
        }
    }
}

/// `true` or `false`.
pub(super) fn boolean(text: &str) -> Result<bool> {
    match text.to_ascii_lowercase().as_str() {
        "true" => Ok(true),
        "false" => Ok(false),
        _ => Err(Problem::new(format!("must be `true` or `false`, not `{text}`"))),
    }
}

/// `on` or `off`.
pub(super) fn switch(text: &str) -> Result<bool> {
    match text.to_ascii_lowercase().as_str() {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err(Problem::new(format!("must be `on` or `off`, not `{text}`"))),
    }
}

pub(super) fn routing(text: &str) -> Result<Routing> {
    match text.to_ascii_lowercase().as_str() {
        "static" => Ok(Routing::Static),
        "members" => Ok(Routing::Members),
        "babel" => Ok(Routing::Babel),
        _ => Err(Problem::new(format!("must be `static`, `members` or `babel`, not `{text}`"))),
    }
}

/// An entry of `Redistribute`.
pub(super) fn redistribute(text: &str) -> Result<Redistribute> {
    if text.eq_ignore_ascii_case("default") {
        return Ok(Redistribute::Default);
    }
    match net(text) {
        Ok(net) => Ok(Redistribute::Within(net.trunc())),
        Err(problem) if text.contains(['.', ':', '/']) => Err(problem),
        Err(_) => Err(Problem::new(format!("must be prefixes such as 192.168.0.0/16, or `default`, not `{text}`"))),
    }
}

/// An entry of `Accept`.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Accepted {
    Dns,
    DefaultRoute,
    Routes,
    Prefix(IpNet),
}

impl fmt::Display for Accepted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Dns => f.write_str("dns"),
            Self::DefaultRoute => f.write_str("default-route"),
            Self::Routes => f.write_str("routes"),
            Self::Prefix(net) => fmt::Display::fmt(net, f),
        }
    }
}

/// An entry of `Accept`.
pub(super) fn accept(text: &str) -> Result<Accepted> {
    let word = text.to_ascii_lowercase();
    let net = match word.as_str() {
        "dns" => return Ok(Accepted::Dns),
        "default-route" => return Ok(Accepted::DefaultRoute),
        "routes" => return Ok(Accepted::Routes),
        _ if text.contains(['.', ':', '/']) => net(text)?.trunc(),
        _ => {
            return Err(Problem::new(format!("must be `dns`, `default-route`, `routes` or prefixes, not `{text}`")));
        }
    };
    if net.prefix_len() <= 1 {
        return Err(Problem::new(format!("has {net}, which is a default route")).help("write `default-route`"));
    }
    Ok(Accepted::Prefix(net))
}

/// The key of a network.
pub(super) fn network(text: &str) -> Result<NetworkKey> {
    let key = key(text)?;
    if *key == [0; 32] {
        return Err(Problem::new("is all zeros, which is no key").help("`rustguard join` writes it"));
    }
    Ok(NetworkKey(*key))
}

pub(super) fn source_check(text: &str) -> Result<SourceCheck> {
    match text.to_ascii_lowercase().as_str() {
        "enforce" => Ok(SourceCheck::Enforce),
        "log" => Ok(SourceCheck::Log),
        "off" => Ok(SourceCheck::Off),
        _ => Err(Problem::new(format!("must be `enforce`, `log` or `off`, not `{text}`"))),
    }
}

pub(super) fn node_name(text: &str) -> Result<NodeName> {
    if text.eq_ignore_ascii_case("off") {
        return Ok(NodeName::Off);
    }
    let good = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    let begins = text.starts_with(|c: char| c.is_ascii_alphanumeric());
    if begins && text.len() <= 63 && text.chars().all(good) {
        return Ok(NodeName::Is(text.to_owned()));
    }
    Err(Problem::new(
        "must be `off`, or 1 to 63 of the characters A-Z, a-z, 0-9, `-`, `_` and `.`, beginning with a letter or digit",
    )
    .help("without the line, other nodes see this one under its host name"))
}

pub(super) fn role(text: &str) -> Result<Role> {
    match text.to_ascii_lowercase().as_str() {
        "router" => Ok(Role::Router),
        "client" => Ok(Role::Client),
        _ => Err(Problem::new(format!("must be `router` or `client`, not `{text}`"))),
    }
}

/// An address with or without a prefix length. Without a length it is a single host.
pub(super) fn net(text: &str) -> Result<IpNet> {
    let (address, prefix) = text.split_once('/').map_or((text, None), |(address, prefix)| (address, Some(prefix)));
    if let Some(rest) = text.strip_prefix(['+', '-'])
        && net(rest).is_ok()
    {
        return Err(Problem::new(format!("must be addresses, not the change `{text}`"))
            .help(format!("`+` and `-` change a running device (wg set); a file says what there is: `{rest}`")));
    }
    let Ok(address) = address.parse::<IpAddr>() else {
        return Err(Problem::new(format!("must be IP addresses such as 10.0.0.1/24 or fd00::1/64, not `{text}`")));
    };
    let most = if address.is_ipv4() { 32 } else { 128 };
    let prefix = match prefix {
        None => most,
        // A netmask, as `ip address add` accepts it.
        Some(mask) if address.is_ipv4() && mask.contains('.') => mask
            .parse()
            .ok()
            .and_then(|mask| ipnet::ip_mask_to_prefix(mask).ok())
            .ok_or_else(|| Problem::new(format!("has the netmask {mask} in `{text}`")))?,
        Some(prefix) => number(prefix, 0..=most.into()).map_err(|_| {
            Problem::new(format!("has the prefix length /{prefix} in `{text}`"))
                .help(format!("{} prefix lengths are 0 to {most}", if address.is_ipv4() { "IPv4" } else { "IPv6" }))
        })?,
    };
    Ok(IpNet::new(address, prefix).expect("the prefix length is within the family's"))
}

/// An entry of `DNS`.
pub(super) enum Dns {
    Server(NameServer),
    /// A search domain, or after `~` a domain that limits the names for which the servers are asked.
    Search(String),
}

/// An address at which sockets can listen.
pub(super) fn listen_address(text: &str) -> Result<IpAddr> {
    let own = |address: &IpAddr| match address {
        IpAddr::V4(address) => !address.is_multicast() && !address.is_broadcast(),
        // Without a zone, a link-local address belongs to no interface.
        IpAddr::V6(address) => !address.is_multicast() && !address.is_unicast_link_local(),
    };
    text.parse().ok().filter(own).ok_or_else(|| {
        Problem::new(format!("must be addresses of this host, such as 203.0.113.7 or 2001:db8::7, not `{text}`"))
            .help("the port has a key of its own: `ListenPort = 51820`")
    })
}

/// A server's address, a search domain, or a `~domain`, in the notation of resolved.conf(5).
pub(super) fn dns(text: &str) -> Result<Dns> {
    if let Ok(server) = text.parse() {
        return Ok(Dns::Server(server));
    }
    // wg-quick treats a text as an address if it contains a colon, or only digits and dots.
    let domain = text.strip_prefix('~').unwrap_or(text);
    let address = domain.contains(':') || domain.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    if text == "~." || !address && is_host(domain) {
        return Ok(Dns::Search(text.to_owned()));
    }
    let problem = Problem::new(format!("must be IP addresses of servers and search domains, not `{text}`"));
    Err(problem.help("`~corp.example` sends the names of that domain to the servers, `~.` all names"))
}

/// The word before a peer that relays datagrams.
pub(super) const VIA_PEER: &str = "via-peer";

/// The options after an endpoint.
const OPTIONS: &str =
    "`via INTERFACE`, `weight N` and `pinned` can stand behind an endpoint; a comma comes before the next";

/// An endpoint with its options: `203.0.113.7:51820 via eth1 weight 2`, or `via-peer office weight 2`. `named` finds
/// the peer with a name.
pub(super) fn path(text: &str, named: impl FnOnce(&str) -> Result<PublicKey>) -> Result<PathSpec> {
    let text = text.trim();
    let (first, rest) = text.split_at(text.find(char::is_whitespace).unwrap_or(text.len()));
    if first.eq_ignore_ascii_case(VIA_PEER) {
        return through_peer(rest.trim(), named);
    }
    if first.eq_ignore_ascii_case("via") {
        return Err(Problem::new(format!("has no address before `via` in `{text}`"))
            .help(format!("`via INTERFACE` goes behind an address; a way through another peer is `{VIA_PEER} NAME`")));
    }
    // wg ignores blanks: `203.0.113.7 : 51820`.
    let text = &without_blanks_around_colons(text);
    let (first, rest) = text.split_at(text.find(char::is_whitespace).unwrap_or(text.len()));
    let mut path = PathSpec::from(endpoint(first)?);
    let mut words = rest.split_whitespace();
    while let Some(word) = words.next() {
        let lower = word.to_ascii_lowercase();
        let twice = || Problem::new(format!("says two things at once in `{text}`")).help(OPTIONS);
        let mut value =
            || words.next().ok_or_else(|| Problem::new(format!("ends with `{word}` in `{text}`")).help(OPTIONS));
        match lower.as_str() {
            "via" => {
                let name = value()?;
                interface::check_name(name).map_err(|error| Problem::new(format!("in `{text}`: {error}")))?;
                if path.via.replace(name.to_owned()).is_some() {
                    return Err(twice());
                }
            }
            "weight" => {
                let number = weight(value()?, text)?;
                if std::mem::replace(&mut path.policy, PathPolicy::Weighted(number)) != PathPolicy::Best {
                    return Err(twice());
                }
            }
            "pinned" => {
                if std::mem::replace(&mut path.policy, PathPolicy::Pinned) != PathPolicy::Best {
                    return Err(twice());
                }
            }
            VIA_PEER => {
                let problem = format!("has an address and `{VIA_PEER}` in `{text}`");
                return Err(Problem::new(problem)
                    .help(format!("they are two endpoints, with a comma in between: `{first}, {VIA_PEER} NAME`")));
            }
            _ => return Err(Problem::new(format!("has `{word}` in `{text}`")).help(OPTIONS)),
        }
    }
    Ok(path)
}

pub(super) fn without_blanks_around_colons(text: &str) -> String {
    let parts: Vec<_> = text.split(':').collect();
    let last = parts.len() - 1;
    let trim = |(n, part): (usize, &&str)| match n {
        0 if last > 0 => part.trim_end().to_owned(),
        n if n == last => part.trim_start().to_owned(),
        _ => part.trim().to_owned(),
    };
    parts.iter().enumerate().map(trim).collect::<Vec<_>>().join(":")
}

/// The words after `via-peer`: a name, which may have blanks, or a public key; then the options.
fn through_peer(text: &str, named: impl FnOnce(&str) -> Result<PublicKey>) -> Result<PathSpec> {
    let (peer, policy) = match trailing_option(text) {
        Some((peer, Trailing::Pinned)) => (peer, PathPolicy::Pinned),
        Some((peer, Trailing::Weight(number))) => {
            (peer, PathPolicy::Weighted(weight(number, &format!("{VIA_PEER} {text}"))?))
        }
        Some((_, Trailing::Via)) => {
            return Err(Problem::new(format!("has `via INTERFACE` behind `{VIA_PEER}`")).help(
                "datagrams leave by the interface to the relay: `via INTERFACE` goes behind the relay's own Endpoint",
            ));
        }
        None => (text, PathPolicy::Best),
    };
    if peer.is_empty() {
        return Err(Problem::new(format!("has no peer behind `{VIA_PEER}`"))
            .help(format!("the name or the public key of the peer that passes datagrams on: `{VIA_PEER} office`")));
    }
    if trailing_option(peer).is_some() {
        return Err(Problem::new(format!("says two things at once behind `{VIA_PEER}`")).help(OPTIONS));
    }
    let relay = match key(peer) {
        Ok(key) => PublicKey(*key),
        Err(problem) => named(peer).map_err(|unknown| if looks_like_key(peer) { problem } else { unknown })?,
    };
    Ok(PathSpec::from(EndpointSpec::Peer(relay)).policy(policy))
}

/// An option at the end of a text.
enum Trailing<'t> {
    Pinned,
    Weight(&'t str),
    Via,
}

fn trailing_option(text: &str) -> Option<(&str, Trailing<'_>)> {
    let (before, last) = last_word(text)?;
    if last.eq_ignore_ascii_case("pinned") {
        return Some((before, Trailing::Pinned));
    }
    let (before, option) = last_word(before)?;
    match option.to_ascii_lowercase().as_str() {
        "weight" => Some((before, Trailing::Weight(last))),
        "via" => Some((before, Trailing::Via)),
        _ => None,
    }
}

/// The last word, and the text before it.
fn last_word(text: &str) -> Option<(&str, &str)> {
    let text = text.trim_end();
    let at = text.rfind(char::is_whitespace).map_or(0, |at| at + text[at..].chars().next().map_or(0, char::len_utf8));
    (!text.is_empty()).then(|| (text[..at].trim_end(), &text[at..]))
}

/// The key after `via-peer`, and the rest of the text.
pub(super) fn relay_key(path: &str) -> Option<(PublicKey, &str)> {
    let text = path.strip_prefix(VIA_PEER)?.strip_prefix(' ')?;
    let (relay, options) = text.split_at(text.find(' ').unwrap_or(text.len()));
    key(relay).ok().map(|key| (PublicKey(*key), options))
}

/// Whether this name can be used after `via-peer`: nothing at its end is an option.
pub(super) fn is_relay_name(name: &str) -> bool {
    trailing_option(name).is_none() && key(name).is_err()
}

/// A text that was meant as a key, rather than as a name.
fn looks_like_key(text: &str) -> bool {
    text.len() == 44 && !text.contains(' ') || text.ends_with('=')
}

fn weight(number: &str, text: &str) -> Result<u8> {
    self::number(number, 1..=255)
        .map_err(|_| Problem::new(format!("has the weight `{number}` in `{text}`; weights are numbers from 1 to 255")))
}

/// `address:port`, `[address]:port` or `name:port`.
pub(super) fn endpoint(text: &str) -> Result<EndpointSpec> {
    let other = || Problem::new(format!("must be address:port, [address]:port or name:port, not `{text}`"));
    let wrong_port = |port: &str| {
        Problem::new(format!(
            "has the port `{port}` in `{text}`; ports are numbers from 1 to 65535, or names in /etc/services"
        ))
    };
    let named = || {
        let (host, name) = text.rsplit_once(':')?;
        format!("{host}:{}", system_names::udp_service(name)?).parse::<HostPort>().ok()
    };
    let at = text.parse::<HostPort>().or_else(|error| named().ok_or(error)).map_err(|error| match error {
        HostPortError::NoPort => {
            Problem::new(format!("has no port in `{text}`")).help(format!("add it: `{text}:51820`"))
        }
        HostPortError::Port(port) => wrong_port(&port),
        HostPortError::Brackets { address, port } => {
            let help = match port {
                None => format!("an IPv6 address goes in brackets, and then the port: `[{address}]:51820`"),
                Some(port) => format!("an IPv6 address goes in brackets: `[{address}]:{port}`"),
            };
            Problem::new(format!("must be an address and a port, not `{text}`")).help(help)
        }
        HostPortError::Scheme(scheme) => other().help(format!("leave `{scheme}://` out")),
        _ => other(),
    })?;
    if at.port() == 0 {
        return Err(wrong_port("0"));
    }
    match at.host() {
        // A name of only digits and dots is a mistyped address, because no top-level domain is a number.
        Host::Name(name) if name.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.') || !is_host(name) => {
            Err(other())
        }
        _ => Ok(at.into()),
    }
}

/// Whether the text can be resolved as a host name. Underscores are not valid in host names, but they are in use.
fn is_host(text: &str) -> bool {
    let label = |label: &str| {
        (1..=63).contains(&label.len())
            && !label.starts_with('-')
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_') || byte >= 0x80)
    };
    text.len() <= MAX_HOST && text.strip_suffix('.').unwrap_or(text).split('.').all(label)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_that_nobody_knows_says_where_names_are() {
        assert!(table("no-such-table").unwrap_err().help.is_some_and(|help| help.contains("rt_tables")));
    }

    #[test]
    fn keys_tell_what_is_wrong_with_them() {
        let good = "YAnz5TF+lXXJte14tji3zlMNq+hd2rYUIgJBgB3fBmk=";
        assert!(key(good).is_ok());
        let wrong = key(&good.replace("lXX", "l!X")).unwrap_err();
        assert!(wrong.message.contains("character 10") && wrong.message.contains("base64"), "{wrong:?}");
        assert_eq!(wrong.range, Some(9..10));
        for (text, word) in
            [("", "empty"), ("AAAA", "4 characters"), (&good[..43], "43"), (&good.replace('=', "A"), "32")]
        {
            assert!(key(text).unwrap_err().message.contains(word), "{text}: {:?}", key(text));
        }
        assert!(key("ß").is_err());
    }

    #[test]
    fn numbers_and_words() {
        assert_eq!(number::<u16>("65535", 0..=65_535), Ok(65_535));
        for text in ["65536", "-1", "+1", "", "1x", "99999999999999"] {
            assert!(number::<u16>(text, 0..=65_535).is_err(), "{text}");
        }
        for (text, mark) in [("off", 0), ("OFF", 0), ("0xCA6C", 0xca6c), ("51820", 51_820), ("0", 0)] {
            assert_eq!(fwmark(text), Ok(mark));
        }
        for text in ["0x", "0x+1", "-1", "+1", "0x100000000", "on"] {
            assert!(fwmark(text).is_err(), "{text}");
        }
        assert_eq!(keepalive("0"), Ok(None));
        assert_eq!(keepalive("Off"), Ok(None));
        assert_eq!(keepalive("25"), Ok(Some(Duration::from_secs(25))));
        assert!(keepalive("65536").is_err());
        assert_eq!(table("Auto"), Ok(Table::Auto));
        assert_eq!(table("OFF"), Ok(Table::Off));
        assert_eq!(table("main"), Ok(Table::Number(254)));
        assert_eq!(table("51820"), Ok(Table::Number(51_820)));
        assert!(table("0").is_err() && table("of").is_err());
        assert_eq!(boolean("True"), Ok(true));
        assert!(boolean("yes").is_err());
    }

    #[test]
    fn addresses() {
        assert_eq!(net("10.0.0.1").unwrap().to_string(), "10.0.0.1/32");
        assert_eq!(net("fd00::1").unwrap().to_string(), "fd00::1/128");
        assert_eq!(net("10.0.0.1/24").unwrap().to_string(), "10.0.0.1/24");
        for text in ["10.0.0.1/33", "::/129", "10.0.0/8", "1.2.3.4/", "/8", "10.0.0.1/+8", ""] {
            assert!(net(text).unwrap_err().message.contains(text), "{text}");
        }
        assert!(net("+10.0.0.1/32").unwrap_err().help.unwrap().contains("10.0.0.1/32"));
        assert!(["fd00::53", "fe80::1%eth0"].iter().all(|text| matches!(dns(text), Ok(Dns::Server(_)))));
        assert!(matches!(dns("example.com"), Ok(Dns::Search(domain)) if domain == "example.com"));
        for domain in ["~corp.example", "~."] {
            assert!(matches!(dns(domain), Ok(Dns::Search(text)) if text == domain));
        }
        assert!(
            dns("~").is_err()
                && dns("~10.0.0.1").is_err()
                && dns("~~a").is_err()
                && dns(".").is_err()
                && dns("~a..b").is_err()
        );
        assert!(dns("1.1.1").is_err() && dns("a b").is_err() && dns("").is_err() && dns("fd00::1%eth0").is_err());
    }

    #[test]
    fn endpoints() {
        for text in ["192.0.2.1:1", "[2001:db8::1]:51820", "[fe80::1%3]:5"] {
            assert!(matches!(endpoint(text), Ok(EndpointSpec::Address(_))), "{text}");
        }
        let zone = EndpointSpec::Name("fe80::1%eth0".into(), 5);
        assert_eq!((zone.to_string(), endpoint("[fe80::1%eth0]:5")), ("[fe80::1%eth0]:5".to_owned(), Ok(zone)));
        assert_eq!(endpoint("vpn.example.com:51820"), Ok(EndpointSpec::Name("vpn.example.com".into(), 51_820)));
        let path = |text| path(text, |_| Err(Problem::new("goes through nobody"))).map(|path| path.to_string());
        for text in
            ["192.0.2.1:1", "a.b:1 via eth1", "a.b:1 weight 3", "[::1]:1 via wan0.7 weight 255", "a.b:1 via e pinned"]
        {
            assert_eq!(path(text).as_deref(), Ok(text));
        }
        assert_eq!(path("a.b:1  PINNED  Via  e").as_deref(), Ok("a.b:1 via e pinned"));
        for (text, says) in [
            ("", "no port"),
            ("a.b:1 by e", "`by`"),
            ("a.b:1 c.d:2", "`c.d:2`"),
            ("a.b:1 via", "ends with `via`"),
            ("a.b:1 via e/0", "`e/0`"),
            ("a.b:1 via e via f", "two things"),
            ("a.b:1 weight 0", "`0`"),
            ("a.b:1 weight 256", "`256`"),
            ("a.b:1 weight", "ends with `weight`"),
            ("a.b:1 weight 1 pinned", "two things"),
            ("a.b:1 pinned weight 1", "two things"),
        ] {
            let problem = path(text).unwrap_err();
            assert!(problem.message.contains(says), "{text}: {problem:?}");
        }
        for text in ["2001:db8::1", "2001:db8::1:51820", "2001:db8:0:0:0:0:0:1:51820"] {
            let help = endpoint(text).unwrap_err().help.unwrap();
            assert!(help.contains('['), "{text}: {help}");
        }
        // services(5) has this name on every machine with a resolver.
        if std::path::Path::new("/etc/services").exists() {
            assert_eq!(endpoint("192.0.2.1:domain"), endpoint("192.0.2.1:53"));
            assert_eq!(endpoint("[::1]:domain"), endpoint("[::1]:53"));
        }
        for text in [
            "",
            ":1",
            "a:",
            "a:0",
            "a:65536",
            "a:no-such-service",
            "256.1.1.1:5",
            "[::1]",
            "a b:1",
            "-a:1",
            "[a]:1",
            "a..b:1",
        ] {
            assert!(endpoint(text).is_err(), "{text}");
        }
    }
}
