//! Parses the text of a file to a [`Config`] and diagnostics.

mod checks;
mod connectivity;
mod layout;
mod network;
mod piece;
mod redact;
mod relays;
mod routing;

use super::{
    Config, Diagnostic, Interface, Peer, Pin, Routing, Severity, Span, Table,
    spelling::{MAX_NAME, is_name, nearest},
    value::{self, Dns, Problem},
};
use crate::NameServer;
use ipnet::IpNet;
pub(super) use layout::{EntryLayout, Layout, SectionLayout};
use piece::{Piece, lines};
pub use redact::{is_configuration, redact};
use redact::{quoted, without_keys};
use rustguard_core::routing::Role;
use rustguard_crypto::x25519::{PublicKey, StaticSecret};
use rustguard_device::{MAX_PUBLIC_ENDPOINTS, PathSpec, PresharedKey, tun::udp::MAX_PORTS};
use std::{collections::HashMap, time::Duration};

/// The keys of `[Interface]`, in the spelling of wg(8) and wg-quick(8).
pub const INTERFACE_KEYS: [&str; 26] = [
    "PrivateKey",
    "ListenPort",
    "ListenAddress",
    "FwMark",
    "Address",
    "DNS",
    "MTU",
    "Table",
    "PreUp",
    "PostUp",
    "PreDown",
    "PostDown",
    "SaveConfig",
    "HandshakeOnUp",
    "Forward",
    "PublicEndpoint",
    "PortMapping",
    "Nat",
    "Routing",
    "Announce",
    "Redistribute",
    "Pin",
    "SourceCheck",
    "NodeName",
    "Network",
    "Accept",
];

/// The keys of `[Peer]`.
pub const PEER_KEYS: [&str; 8] =
    ["PublicKey", "PresharedKey", "Endpoint", "AllowedIPs", "PersistentKeepalive", "Direct", "Parity", "Role"];

/// An IPv6 link carries 1280 bytes (RFC 8200, section 5). The kernel removes IPv6 from an interface with a smaller MTU.
const MIN_MTU_IPV6: u16 = 1280;

/// The help where a value looks like a key, which may be a secret and is not shown.
const KEY_ELSEWHERE: &str = "the value looks like a key: keys belong in PrivateKey, PublicKey and PresharedKey";

/// Parses a file. The configuration is returned if no diagnostic is an error. The diagnostics are in the order of the
/// file.
pub fn parse(text: &str) -> (Option<Config>, Vec<Diagnostic>) {
    let (config, diagnostics, _) = parse_with_layout(text);
    (config, diagnostics)
}

/// [`parse`], and where everything is in the text.
pub(super) fn parse_with_layout(text: &str) -> (Option<Config>, Vec<Diagnostic>, Layout) {
    let mut parser = Parser::new(text);
    for line in lines(text) {
        parser.line(line);
    }
    parser.finish()
}

/// The only diagnostic of a file that is no configuration.
fn no_configuration(text: &str) -> Diagnostic {
    let start = Piece { text, line: 1, line_start: 0, start: 0, end: 0 };
    Diagnostic::error(start.span(), "there is no `[Interface]`: this is no configuration file of a tunnel")
        .help("a configuration file begins with `[Interface]` and the PrivateKey")
}

/// The section of the current line.
#[derive(Clone, Copy, PartialEq)]
enum Section {
    /// Before the first section.
    None,
    Interface,
    Peer,
    /// An unknown section, already reported. Its contents are not reported again.
    Unknown,
}

/// A `[Peer]` section that is not yet complete.
struct Draft<'a> {
    header: Piece<'a>,
    name: Option<String>,
    public_key: Option<(PublicKey, Piece<'a>)>,
    preshared_key: Option<PresharedKey>,
    /// The items of `Endpoint`. They are read at the end, because they may name any peer of the file.
    endpoint_items: Vec<Piece<'a>>,
    endpoints: Vec<(PathSpec, Piece<'a>)>,
    allowed_ips: Vec<(IpNet, Piece<'a>)>,
    persistent_keepalive: Option<Duration>,
    direct: Option<bool>,
    parity: Option<u8>,
    role: Option<Role>,
}

/// A `# Name = …` comment. The next line decides which peer it belongs to.
struct PendingName<'a> {
    name: Piece<'a>,
    /// A blank line precedes it.
    apart: bool,
}

struct Parser<'a> {
    text: &'a str,
    diagnostics: Vec<Diagnostic>,
    section: Section,
    interface: Interface,
    interface_header: Option<Piece<'a>>,
    mtu: Option<Piece<'a>>,
    /// Those of `PublicEndpoint`, in the order of the interface's.
    public_endpoints: Vec<Piece<'a>>,
    addresses: Vec<(IpNet, Piece<'a>)>,
    /// The servers in `DNS`.
    dns: Vec<(NameServer, Piece<'a>)>,
    /// Each pin, with its line.
    pins: Vec<(Pin, usize)>,
    drafts: Vec<Draft<'a>>,
    layout: Layout,
    /// `Nat`.
    nat: Option<Span>,
    /// Keys that only have a meaning with a routing protocol, and their positions.
    needs_babel: Vec<(&'static str, Span)>,
    /// Where `Network` and `Accept` are.
    network: Option<Span>,
    accept: Option<Span>,
    /// The line of each key that may occur only once, for the interface section (or sections) and for the current peer.
    seen: [HashMap<&'static str, usize>; 2],
    pending: Option<PendingName<'a>>,
    /// The previous line was blank, or there was none.
    after_blank: bool,
}

impl<'a> Parser<'a> {
    fn new(text: &'a str) -> Self {
        Self {
            text,
            diagnostics: Vec::new(),
            section: Section::None,
            interface: Interface::default(),
            interface_header: None,
            mtu: None,
            public_endpoints: Vec::new(),
            addresses: Vec::new(),
            dns: Vec::new(),
            pins: Vec::new(),
            drafts: Vec::new(),
            layout: Layout::default(),
            nat: None,
            needs_babel: Vec::new(),
            network: None,
            accept: None,
            seen: Default::default(),
            pending: None,
            after_blank: true,
        }
    }

    fn line(&mut self, line: Piece<'a>) {
        let whole = line.trim();
        if whole.str().is_empty() {
            // The comment is the last line of a section, and not the first line of the next one.
            if self.pending.as_ref().is_some_and(|pending| !pending.apart) {
                self.name_current();
            }
            self.after_blank = true;
            return;
        }
        let after_blank = std::mem::replace(&mut self.after_blank, false);
        if whole.str().starts_with('#') {
            if let Some(name) = name_comment(whole) {
                self.name_current();
                self.pending = Some(PendingName { name, apart: after_blank });
            }
            return;
        }
        let stripped = line.split_at_char('#').map_or(line, |(before, _)| before).trim();
        if stripped.str().starts_with('[') {
            return self.header(stripped);
        }
        self.name_current();
        let Some((key, value)) = stripped.split_at_char('=') else {
            return self.without_sign(stripped);
        };
        // A hook is a shell command, in which `#` does not only start comments.
        let raw = line.split_at_char('=').map_or(value, |(_, raw)| raw);
        self.entry(key.trim(), value.trim(), raw.trim());
    }

    fn header(&mut self, header: Piece<'a>) {
        match header.word().to_ascii_lowercase().as_str() {
            "[interface]" => {
                self.name_current();
                self.section = Section::Interface;
                self.layout.section(header, None);
                self.interface_header.get_or_insert(header);
            }
            "[peer]" => {
                let pending = self.pending.take();
                self.section = Section::Peer;
                self.layout.section(header, Some(self.drafts.len()));
                let name = pending.and_then(|pending| self.name(pending.name));
                self.seen[1].clear();
                self.drafts.push(Draft {
                    header,
                    name,
                    public_key: None,
                    preshared_key: None,
                    endpoint_items: Vec::new(),
                    endpoints: Vec::new(),
                    allowed_ips: Vec::new(),
                    persistent_keepalive: None,
                    direct: None,
                    parity: None,
                    role: None,
                });
            }
            other => {
                self.pending = None;
                self.section = Section::Unknown;
                let nearest = nearest(other, &["[Interface]", "[Peer]"]).unwrap_or("[Interface]` or `[Peer]");
                self.diagnostics.push(
                    Diagnostic::error(header.span(), format!("there is no section {}", quoted(header)))
                        .help(format!("did you mean `{nearest}`?")),
                );
            }
        }
    }

    /// Gives a pending name to the peer of the current section.
    fn name_current(&mut self) {
        let Some(pending) = self.pending.take() else { return };
        if self.section != Section::Peer {
            self.layout.stray_name(pending.name);
            return;
        }
        let name = self.name(pending.name);
        if let Some(draft) = self.drafts.last_mut() {
            match (&draft.name, name) {
                (None, name) => draft.name = name,
                (Some(first), Some(second)) if *first != second => self.diagnostics.push(Diagnostic::warning(
                    pending.name.span(),
                    format!("a second name for the peer, which is `{first}` already"),
                )),
                _ => {}
            }
        }
    }

    fn name(&mut self, name: Piece<'a>) -> Option<String> {
        self.layout.name(name);
        let text = name.str();
        if is_name(text) {
            return Some(text.to_owned());
        }
        self.diagnostics.push(
            Diagnostic::warning(name.span(), "not usable as a peer's name")
                .help(format!("names have up to {MAX_NAME} letters, digits, blanks and -_.@+:/()'")),
        );
        None
    }

    /// The keys of the current section.
    fn keys(&self) -> &'static [&'static str] {
        match self.section {
            Section::Interface => &INTERFACE_KEYS,
            Section::Peer => &PEER_KEYS,
            Section::None | Section::Unknown => &[],
        }
    }

    /// A line without `=` between a key and its value.
    fn without_sign(&mut self, line: Piece<'a>) {
        let error = Diagnostic::error(line.span(), "neither `[Section]` nor `Key = value`");
        let error = match self.before_missing_sign(line) {
            // The value may be a secret, so it is not said.
            Some(key) => {
                self.missed(key, line);
                error.help(format!("did you mean `{key} = …`?"))
            }
            None => error.help("a comment begins with `#`; a list continues in a new line that repeats its key"),
        };
        self.diagnostics.push(error);
    }

    /// The key that such a line begins with.
    fn before_missing_sign(&self, line: Piece<'a>) -> Option<&'static str> {
        let (word, _) = line.str().split_once([' ', '\t', ':'])?;
        nearest(word, self.keys())
    }

    /// This key was meant in a line with a mistake: it is not reported as missing too.
    fn missed(&mut self, key: &'static str, line: Piece<'a>) {
        if self.section == Section::Peer && key == "PublicKey" {
            self.draft().public_key.get_or_insert((PublicKey([0; 32]), line));
        } else if self.section == Section::Interface && key == "PrivateKey" {
            self.seen[0].entry(key).or_insert(line.line);
        }
    }

    fn entry(&mut self, key: Piece<'a>, value: Piece<'a>, raw: Piece<'a>) {
        let keys = self.keys();
        match self.section {
            Section::Unknown => return,
            Section::Interface | Section::Peer => {}
            Section::None => {
                self.diagnostics.push(
                    Diagnostic::error(key.span(), format!("{} is before the first section", quoted(key)))
                        .help("begin the file with `[Interface]`"),
                );
                // Reported once only.
                self.section = Section::Unknown;
                return;
            }
        }
        let Some(&known) = keys.iter().find(|known| known.eq_ignore_ascii_case(&key.word())) else {
            // `PrivateKey …=`: what was taken for the sign is the end of a key in base64.
            let is_value = value.str().is_empty() && self.before_missing_sign(key).is_some();
            return if is_value { self.without_sign(key) } else { self.unknown_key(key, keys) };
        };
        let many = matches!(
            known,
            "Address"
                | "ListenAddress"
                | "PublicEndpoint"
                | "DNS"
                | "AllowedIPs"
                | "Announce"
                | "Accept"
                | "Redistribute"
                | "Pin"
                | "PreUp"
                | "PostUp"
                | "PreDown"
                | "PostDown"
        );
        if !many && let Some(first) = self.seen[usize::from(self.section == Section::Peer)].insert(known, key.line) {
            self.diagnostics.push(
                Diagnostic::warning(key.span(), format!("{known} is given twice, first in line {first}"))
                    .help("the last one counts; remove the other"),
            );
        }
        let hook = matches!(known, "PreUp" | "PostUp" | "PreDown" | "PostDown");
        self.layout.entry(known, if hook { raw } else { value });
        if self.section == Section::Peer {
            self.peer_entry(known, value);
        } else {
            self.interface_entry(known, value, raw);
        }
    }

    fn unknown_key(&mut self, key: Piece<'a>, keys: &'static [&'static str]) {
        let (here, other, others) = match self.section {
            Section::Peer => ("[Peer]", "[Interface]", &INTERFACE_KEYS[..]),
            _ => ("[Interface]", "[Peer]", &PEER_KEYS[..]),
        };
        let text = key.str();
        let error = Diagnostic::error(key.span(), format!("there is no key {} in {here}", quoted(key)));
        let error = if text.eq_ignore_ascii_case("Name") {
            error.help("a name is a comment, which wg and wg-quick skip: `# Name = …`")
        } else if let Some(known) = others.iter().find(|known| known.eq_ignore_ascii_case(text)) {
            error.help(format!("`{known}` belongs to {other}"))
        } else if let Some(nearest) = nearest(text, keys) {
            self.missed(nearest, key);
            error.help(format!("did you mean `{nearest}`?"))
        } else {
            error.help(format!("the keys of {here} are {}", keys.join(", ")))
        };
        self.diagnostics.push(error);
    }

    fn interface_entry(&mut self, key: &'static str, value: Piece<'a>, raw: Piece<'a>) {
        match key {
            "PrivateKey" => {
                if let Some(bytes) = self.value(key, value, value::key) {
                    if *bytes == [0; 32] {
                        self.diagnostics.push(
                            Diagnostic::error(value.span(), "PrivateKey is all zeros, which is no key")
                                .help("`rustguard genkey` makes one"),
                        );
                    }
                    self.interface.private_key = Some(StaticSecret::from_bytes(*bytes));
                }
            }
            "ListenPort" => {
                (self.interface.listen_port, self.interface.more_listen_ports) = (None, Vec::new());
                for item in value.list() {
                    self.listen_port(item);
                }
            }
            "ListenAddress" => {
                for item in value.list() {
                    self.listen_address(item);
                }
            }
            "FwMark" => self.interface.fwmark = self.value(key, value, value::fwmark),
            "Address" => {
                for item in value.list() {
                    self.address(item);
                }
            }
            "DNS" => {
                for item in value.list() {
                    match self.value(key, item, value::dns) {
                        Some(Dns::Server(server)) => {
                            self.interface.dns.push(server.clone());
                            self.dns.push((server, item));
                        }
                        Some(Dns::Search(domain)) => self.interface.dns_search.push(domain),
                        None => {}
                    }
                }
            }
            // wg-quick treats an empty value as a missing key.
            "MTU" | "Table" if value.str().is_empty() => {
                self.diagnostics.push(Diagnostic::warning(value.span(), format!("{key} has no value")));
            }
            "MTU" => {
                self.interface.mtu = self.value(key, value, |text| value::number(text, 576..=65_535));
                self.mtu = Some(value);
            }
            "Table" => self.interface.table = self.value(key, value, value::table).unwrap_or(Table::Auto),
            "SaveConfig" => self.interface.save_config = self.value(key, value, value::boolean).unwrap_or(false),
            "Forward" => self.interface.forward = self.value(key, value, value::switch),
            "PublicEndpoint" => {
                for item in value.list() {
                    self.public_endpoint(item);
                }
            }
            "PortMapping" => self.interface.port_mapping = self.value(key, value, value::switch),
            "Nat" => {
                self.nat = Some(value.span());
                self.interface.nat = self.value(key, value, value::switch);
            }
            "HandshakeOnUp" => self.interface.handshake_on_up = self.value(key, value, value::boolean),
            "Network" | "Accept" => self.network_entry(key, value),
            "Routing" | "Announce" | "Redistribute" | "Pin" | "SourceCheck" | "NodeName" => {
                self.routing_entry(key, value);
            }
            hook => {
                let hooks = match hook {
                    "PreUp" => &mut self.interface.pre_up,
                    "PostUp" => &mut self.interface.post_up,
                    "PreDown" => &mut self.interface.pre_down,
                    _ => &mut self.interface.post_down,
                };
                if raw.str().is_empty() {
                    self.diagnostics.push(Diagnostic::warning(value.span(), format!("{hook} has no command")));
                } else {
                    hooks.push(raw.str().to_owned());
                }
            }
        }
    }

    fn listen_port(&mut self, item: Piece<'a>) {
        let Some(port) = self.value("ListenPort", item, value::listen_port) else { return };
        let Interface { listen_port, more_listen_ports, .. } = &mut self.interface;
        let Some(first) = *listen_port else {
            *listen_port = Some(port);
            return;
        };
        let (problem, help) = if port == 0 || first == 0 {
            ("has 0 among several ports".to_owned(), "0 lets the system choose the only port: give numbers for several")
        } else if port == first || more_listen_ports.contains(&port) {
            (format!("has the port {port} twice"), "give each port once")
        } else if more_listen_ports.len() + 1 == MAX_PORTS {
            (format!("has more than {MAX_PORTS} ports"), "leave some of them out")
        } else {
            more_listen_ports.push(port);
            return;
        };
        self.diagnostics.push(Diagnostic::error(item.span(), format!("ListenPort {problem}")).help(help));
    }

    fn public_endpoint(&mut self, item: Piece<'a>) {
        let Some(endpoint) = self.value("PublicEndpoint", item, value::endpoint) else { return };
        if self.interface.public_endpoints.len() == MAX_PUBLIC_ENDPOINTS {
            let message = format!("PublicEndpoint has more than {MAX_PUBLIC_ENDPOINTS}: `{}`", item.str());
            let help = "the addresses of this host's interfaces are found without it";
            self.diagnostics.push(Diagnostic::error(item.span(), message).help(help));
            return;
        }
        self.interface.public_endpoints.push(endpoint);
        self.public_endpoints.push(item);
    }

    fn listen_address(&mut self, item: Piece<'a>) {
        let Some(address) = self.value("ListenAddress", item, value::listen_address) else { return };
        if let Some(first) = self.interface.listen_addresses.iter().find(|first| first.is_ipv4() == address.is_ipv4()) {
            let version = if address.is_ipv4() { "IPv4" } else { "IPv6" };
            let message = format!("ListenAddress has a second {version} address after {first}: `{}`", item.str());
            let help = "a tunnel listens at one address of each IP version, or at all addresses without ListenAddress";
            self.diagnostics.push(Diagnostic::error(item.span(), message).help(help));
            return;
        }
        self.interface.listen_addresses.push(address);
    }

    fn address(&mut self, item: Piece<'a>) {
        let Some(net) = self.value("Address", item, value::net) else { return };
        if let Some((_, first)) = self.addresses.iter().find(|(other, _)| *other == net) {
            let message = format!("Address `{}` is given twice, first in line {}", item.str(), first.line);
            self.diagnostics.push(Diagnostic::error(item.span(), message).help("remove one of them"));
            return;
        }
        self.addresses.push((net, item));
    }

    fn peer_entry(&mut self, key: &'static str, value: Piece<'a>) {
        match key {
            "PublicKey" => {
                let key = self.value(key, value, value::key).map(|bytes| PublicKey(*bytes));
                if key.is_some_and(|key| key.0 == [0; 32]) {
                    self.diagnostics.push(Diagnostic::error(value.span(), "PublicKey is all zeros, which is no key"));
                }
                // A malformed key was already reported. Zeros stand for it, so that it is not reported as missing too.
                self.draft().public_key = Some((key.unwrap_or(PublicKey([0; 32])), value));
            }
            "PresharedKey" => {
                let key = self.value(key, value, value::key).map(|bytes| PresharedKey::from_bytes(&bytes));
                if key.as_ref().is_some_and(PresharedKey::is_zero) {
                    self.diagnostics.push(
                        Diagnostic::warning(value.span(), "PresharedKey is all zeros, which means that there is none")
                            .help("remove the line, or make a key for both sides with `rustguard genpsk`"),
                    );
                }
                self.draft().preshared_key = key.filter(|key| !key.is_zero());
            }
            "Endpoint" => {
                // An endpoint's options follow it after a blank, so only commas separate endpoints.
                let items: Vec<_> = value.words(|c| c == ',').map(Piece::trim).collect();
                self.draft().endpoint_items = if items.is_empty() { vec![value] } else { items };
            }
            "PersistentKeepalive" => {
                self.draft().persistent_keepalive = self.value(key, value, value::keepalive).flatten();
            }
            "Direct" => self.draft().direct = self.value(key, value, value::switch),
            "Parity" => self.draft().parity = self.value(key, value, value::parity).flatten(),
            "Role" => {
                self.needs_babel.push((key, value.span()));
                self.draft().role = self.value(key, value, value::role);
            }
            _ => {
                for item in value.list() {
                    let Some(net) = self.value(key, item, value::net) else { continue };
                    if net != net.trunc() {
                        let message = format!("AllowedIPs `{}` is the network {}", item.str(), net.trunc());
                        let help = format!(
                            "write {}, or {}/{} for the host alone",
                            net.trunc(),
                            net.addr(),
                            net.max_prefix_len()
                        );
                        self.diagnostics.push(Diagnostic::warning(item.span(), message).help(help));
                    }
                    self.draft().allowed_ips.push((net.trunc(), item));
                }
            }
        }
    }

    fn draft(&mut self) -> &mut Draft<'a> {
        self.drafts.last_mut().expect("a header made one before its entries")
    }

    /// The parsed value, or `None` and a diagnostic.
    fn value<T>(&mut self, key: &str, value: Piece<'a>, read: impl FnOnce(&'a str) -> Result<T, Problem>) -> Option<T> {
        match read(value.str()) {
            Ok(read) => Some(read),
            Err(Problem { message, help, range }) => {
                let piece = range.map_or(value, |range| value.slice(range));
                let (message, has_key) = without_keys(&format!("{key} {message}"));
                let mut error = Diagnostic::error(piece.span(), message);
                let quotes = ['"', '\''].iter().any(|&quote| {
                    value.str().len() > 1 && value.str().starts_with(quote) && value.str().ends_with(quote)
                });
                error.help = match (has_key, quotes) {
                    (true, _) => Some(KEY_ELSEWHERE.to_owned()),
                    (false, true) => Some("values have no quotation marks: leave them out".to_owned()),
                    (false, false) => help,
                };
                self.diagnostics.push(error);
                None
            }
        }
    }

    /// Makes the checks that need the whole file.
    fn finish(mut self) -> (Option<Config>, Vec<Diagnostic>, Layout) {
        self.name_current();
        self.interface.addresses = self.addresses.iter().map(|&(net, _)| net).collect();
        self.interface.pins = self.pins.iter().map(|&(pin, _)| pin).collect();
        self.read_endpoints();
        // First: it decides about the routing of a member, on which the others depend.
        self.check_network();
        self.check_interface();
        self.check_peers();
        self.check_relays();
        if !is_configuration(self.text) {
            self.diagnostics = vec![no_configuration(self.text)];
        }
        let broken = self.diagnostics.iter().any(|diagnostic| diagnostic.severity == Severity::Error);
        if !broken {
            // A line that could not be read must not count as missing.
            self.check_connectivity();
        }
        self.diagnostics.sort_by_key(|diagnostic| diagnostic.span.bytes.start);
        let peers = self.drafts.into_iter().filter_map(|draft| {
            Some(Peer {
                name: draft.name,
                public_key: draft.public_key?.0,
                preshared_key: draft.preshared_key,
                endpoints: draft.endpoints.into_iter().map(|(path, _)| path).collect(),
                allowed_ips: draft.allowed_ips.into_iter().map(|(net, _)| net).collect(),
                persistent_keepalive: draft.persistent_keepalive,
                direct: draft.direct,
                parity: draft.parity,
                role: draft.role,
            })
        });
        let config = (!broken).then(|| Config::new(self.interface, peers.collect()));
        (config, self.diagnostics, self.layout)
    }
}

/// The name in `# Name = laptop`.
fn name_comment(comment: Piece<'_>) -> Option<Piece<'_>> {
    let hashes = comment.str().len() - comment.str().trim_start_matches('#').len();
    let (key, name) = comment.slice(hashes..comment.end - comment.start).split_at_char('=')?;
    (key.trim().str().eq_ignore_ascii_case("Name") && !name.trim().str().is_empty()).then(|| name.trim())
}
