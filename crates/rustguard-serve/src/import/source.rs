//! The parts of an existing server's file that an import uses.

use super::{hooks, hooks::Hooks, names};
use ipnet::IpNet;
use jiff::Timestamp;
use rustguard_core::host_port::HostPort;
use rustguard_crypto::x25519::{PublicKey, StaticSecret};
use rustguard_device::EndpointSpec;
use rustguard_enroll::lease::PresharedKey;
use rustguard_quick::conf::{self, Severity, Table};

/// A file.
#[derive(Debug, Default)]
pub(crate) struct Source {
    /// wg-easy's own file, which has neither the port nor the hooks.
    pub(crate) easy: bool,
    pub(crate) private_key: Option<StaticSecret>,
    pub(crate) addresses: Vec<IpNet>,
    pub(crate) port: Option<u16>,
    pub(crate) mtu: Option<u16>,
    /// The endpoint of the server for clients, if a comment has it.
    pub(crate) endpoint: Option<String>,
    pub(crate) hooks: Hooks,
    /// Keys of `[Interface]` without an equivalent, with the remedy.
    pub(crate) left: Vec<(String, &'static str)>,
    /// `SaveConfig` is on.
    pub(crate) saves: bool,
    pub(crate) peers: Vec<Peer>,
    /// The names of clients that the program has disabled.
    pub(crate) disabled: Vec<String>,
    /// Their public keys, if the file has them: another file of the server may be older, and still admit them.
    pub(crate) barred: Vec<PublicKey>,
}

/// A peer of the file.
#[derive(Clone, Debug)]
pub(crate) struct Peer {
    pub(crate) name: Option<String>,
    pub(crate) public_key: PublicKey,
    /// All zeros for none.
    pub(crate) preshared_key: PresharedKey,
    pub(crate) allowed_ips: Vec<IpNet>,
    pub(crate) endpoint: Option<HostPort>,
    /// In seconds.
    pub(crate) keepalive: Option<u16>,
    /// When the program ends it.
    pub(crate) expires: Option<Timestamp>,
}

impl Peer {
    pub(crate) fn new(public_key: PublicKey) -> Self {
        let preshared_key = PresharedKey::from_bytes(&[0; 32]);
        Self {
            name: None,
            public_key,
            preshared_key,
            allowed_ips: Vec::new(),
            endpoint: None,
            keepalive: None,
            expires: None,
        }
    }
}

/// The problem with a file, in words.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Problem(pub(crate) String);

/// Reads a configuration file of wg-quick.
pub(super) fn wg_quick(text: &str, interface: &str) -> Result<Source, Problem> {
    let (config, diagnostics) = conf::parse(text);
    let comments = names::read(text);
    let Some(config) = config else {
        let errors = diagnostics.iter().filter(|diagnostic| diagnostic.severity == Severity::Error);
        let words = errors.map(|error| {
            let help = error.help.as_ref().map_or_else(String::new, |help| format!(" ({help})"));
            format!("line {}: {}{help}", error.span.line, error.message)
        });
        return Err(Problem(words.take(5).collect::<Vec<_>>().join("; ")));
    };
    let of = &config.interface;
    if of.network.is_some() {
        return Err(Problem(
            "it has the key `Network`: this machine is a member of a network, whose server is another machine"
                .to_owned(),
        ));
    }
    let ups = || of.pre_up.iter().chain(&of.post_up).map(String::as_str);
    if of.private_key.is_none() && ups().any(|hook| hook.contains("private-key")) {
        return Err(Problem(
            "a hook sets the private key, and the file does not have it; write `PrivateKey = …` into a copy, and import that".to_owned(),
        ));
    }
    let mut left = Vec::new();
    let mut leave = |what: String, remedy: &'static str| left.push((what, remedy));
    if !of.dns.is_empty() || !of.dns_search.is_empty() {
        let servers = of.dns.iter().map(ToString::to_string).chain(of.dns_search.iter().cloned());
        leave(
            format!("DNS = {}", servers.collect::<Vec<_>>().join(", ")),
            "it is what this machine itself asks: set it in its resolver; `serve --dns` tells name servers to the machines that join",
        );
    }
    match of.table {
        Table::Auto => {}
        Table::Off => leave(
            "Table = off".to_owned(),
            "`serve` makes a route for its pools and for each prefix behind a peer; what is to be routed otherwise takes rules of the host",
        ),
        table => leave(
            format!("Table = {}", number(table)),
            "`serve` has its routes in the main table: copy the rules that select this one",
        ),
    }
    if let Some(mark) = of.fwmark.filter(|mark| *mark != 0) {
        leave(
            format!("FwMark = {mark:#x}"),
            "`serve` marks no packets: rules that match the mark match the UDP port in its place",
        );
    }
    if !of.more_listen_ports.is_empty() {
        leave(
            "several ports in ListenPort".to_owned(),
            "`serve` has the first one; redirect the others to it in the firewall",
        );
    }
    if !of.listen_addresses.is_empty() {
        leave(
            "ListenAddress".to_owned(),
            "`serve` listens at all addresses: close the port for the others in the firewall",
        );
    }
    if of.routing.learns() {
        leave(
            "Routing = babel".to_owned(),
            "peers become clients of the server, or members that join with `rustguard join`",
        );
    }
    let mut names = comments.names.into_iter();
    let peers = config.peers.iter().map(|peer| {
        let name = names.next().flatten();
        let endpoint = peer.endpoints.iter().find_map(|path| match &path.endpoint {
            EndpointSpec::Address(at) => at.to_string().parse().ok(),
            EndpointSpec::Name(name, port) => format!("{name}:{port}").parse().ok(),
            _ => None,
        });
        Peer {
            name: peer.name.clone().or(name),
            public_key: peer.public_key,
            preshared_key: PresharedKey::from_bytes(peer.preshared_key.as_ref().map_or(&[0; 32], |key| key.as_bytes())),
            allowed_ips: peer.allowed_ips.clone(),
            endpoint,
            keepalive: peer.persistent_keepalive.and_then(|every| every.as_secs().try_into().ok()),
            expires: None,
        }
    });
    Ok(Source {
        easy: false,
        peers: peers.collect(),
        private_key: of.private_key.clone(),
        addresses: of.addresses.clone(),
        port: of.listen_port.filter(|port| *port != 0),
        mtu: of.mtu,
        endpoint: comments.endpoint,
        hooks: hooks::read(ups(), interface),
        saves: of.save_config,
        disabled: comments.disabled,
        barred: Vec::new(),
        left,
    })
}

fn number(table: Table) -> String {
    if let Table::Number(number) = table { number.to_string() } else { format!("{table:?}") }
}

#[cfg(test)]
mod tests {
    use super::{super::parse, *};
    use proptest::prelude::*;

    fn problem(bytes: &[u8]) -> String {
        parse(bytes, "wg0").map(drop).unwrap_err().0
    }

    #[test]
    fn what_is_no_server_of_a_known_kind_is_named() {
        assert!(problem(b"SQLite format 3\0rest").contains("import that file"));
        assert!(problem(&[0xff, 0xfe, 0]).contains("no text"));
        assert!(problem(b"hello").contains("no configuration file"));
        assert!(problem(b"[Interface]\nPrivateKey = x\n").contains("line 2"));
        let hook = b"[Interface]\nAddress = 10.0.0.1/24\nPostUp = wg set %i private-key /etc/key\n";
        assert!(problem(hook).contains("a hook sets the private key"));
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_source_or_a_problem(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            let _ = parse(&bytes, "wg0");
        }

        #[test]
        fn any_lines_are_a_source_or_a_problem(lines in proptest::collection::vec(
            prop_oneof![
                Just("[Interface]".to_owned()), Just("[Peer]".to_owned()), Just("### Client a".to_owned()),
                Just("PrivateKey = AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE=".to_owned()), "[ -~]{0,40}", "# ?[\\PC]{0,30}",
                "(PostUp|PublicKey|AllowedIPs|Address) ?= ?[ -~]{0,40}",
            ], 0..12)) {
            let text = lines.join("\n");
            let _ = parse(text.as_bytes(), "wg0");
            prop_assert_eq!(
                names::read(&text).names.len(),
                text.lines().filter(|line| line.split('#').next().unwrap_or_default().trim().eq_ignore_ascii_case("[peer]")).count()
            );
        }
    }
}
