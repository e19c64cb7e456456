//! Parses the text of a file to a [`Config`] and diagnostics.

mod checks;
mod connectivity;
mod layout;
mod network;
mod redact;
mod relays;

use super::{
    Config, Diagnostic, Interface, Peer, Routing, Severity, Table,
    keys::{self, Kind, Line, Places, read_value},
    piece::{Piece, lines},
    spelling::{MAX_NAME, is_name, nearest},
    value,
};
use ipnet::IpNet;
pub(super) use layout::{EntryLayout, Layout, SectionLayout};
use redact::quoted;
pub use redact::{is_configuration, redact};
use rustguard_crypto::x25519::PublicKey;
use rustguard_device::PathSpec;

/// An IPv6 link carries 1280 bytes (RFC 8200, section 5). The kernel removes IPv6 from an interface with a smaller MTU.
const MIN_MTU_IPV6: u16 = 1280;

/// Parses a file. The configuration is returned if no diagnostic is an error. The diagnostics are in the order of the
/// file.
pub fn parse(text: &str) -> (Option<Config>, Vec<Diagnostic>) {
    let (config, diagnostics, _) = parse_with_layout(text);
    (config, diagnostics)
}

/// As [`parse`], with the positions of all parts of the text.
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
    peer: Peer,
    places: Places<'a>,
    /// The endpoints of the peer, with their positions.
    endpoints: Vec<(PathSpec, Piece<'a>)>,
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
    /// The positions of the values in the interface section (or sections).
    places: Places<'a>,
    drafts: Vec<Draft<'a>>,
    layout: Layout,
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
            places: Places::default(),
            drafts: Vec::new(),
            layout: Layout::default(),
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
        self.entry(Line { key: key.trim(), value: value.trim(), raw: raw.trim() });
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
                let mut peer = Peer::new(PublicKey([0; 32]));
                peer.name = pending.and_then(|pending| self.name(pending.name));
                self.drafts.push(Draft { header, peer, places: Places::default(), endpoints: Vec::new() });
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
            match (&draft.peer.name, name) {
                (None, name) => draft.peer.name = name,
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
    fn keys(&self) -> Vec<&'static str> {
        match self.section {
            Section::Interface => keys::names::<Interface>(),
            Section::Peer => keys::names::<Peer>(),
            Section::None | Section::Unknown => Vec::new(),
        }
    }

    /// A line without `=` between a key and its value.
    fn without_sign(&mut self, line: Piece<'a>) {
        let error = Diagnostic::error(line.span(), "neither `[Section]` nor `Key = value`");
        let error = match self.before_missing_sign(line) {
            // The value may be a secret, so it is not shown.
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
        nearest(word, &self.keys())
    }

    /// Records that a line with a mistake meant this key, so that it is not reported as missing too.
    fn missed(&mut self, key: &'static str, line: Piece<'a>) {
        match (self.section, key, self.drafts.last_mut()) {
            (Section::Peer, "PublicKey", Some(draft)) if draft.public_key().is_none() => draft.places.note(key, line),
            (Section::Interface, "PrivateKey", _) if self.places.lines(key).next().is_none() => {
                self.places.lines.extend(keys::named::<Interface>(key).map(|key| (&key.form, line)));
            }
            _ => {}
        }
    }

    fn entry(&mut self, line: Line<'a>) {
        let known = match self.section {
            Section::Unknown => return,
            Section::None => {
                self.diagnostics.push(
                    Diagnostic::error(line.key.span(), format!("{} is before the first section", quoted(line.key)))
                        .help("begin the file with `[Interface]`"),
                );
                // Reported once only.
                self.section = Section::Unknown;
                return;
            }
            Section::Interface => {
                read(&mut self.interface, line, &mut self.places, &mut self.layout, &mut self.diagnostics)
            }
            Section::Peer => {
                let draft = self.drafts.last_mut().expect("a header made one before its entries");
                read(&mut draft.peer, line, &mut draft.places, &mut self.layout, &mut self.diagnostics)
            }
        };
        if known {
            return;
        }
        // `PrivateKey …=`: the `=` is the end of a key in base64, and not the sign after the name.
        let is_value = line.value.str().is_empty() && self.before_missing_sign(line.key).is_some();
        if is_value { self.without_sign(line.key) } else { self.unknown_key(line.key) }
    }

    fn unknown_key(&mut self, key: Piece<'a>) {
        let (of_interface, of_peer) = (keys::names::<Interface>(), keys::names::<Peer>());
        let (here, keys, other, others) = match self.section {
            Section::Peer => ("[Peer]", of_peer, "[Interface]", of_interface),
            _ => ("[Interface]", of_interface, "[Peer]", of_peer),
        };
        let text = key.str();
        let error = Diagnostic::error(key.span(), format!("there is no key {} in {here}", quoted(key)));
        let error = if text.eq_ignore_ascii_case("Name") {
            error.help("a name is a comment, which wg and wg-quick skip: `# Name = …`")
        } else if let Some(known) = others.iter().find(|known| known.eq_ignore_ascii_case(text)) {
            error.help(format!("`{known}` belongs to {other}"))
        } else if let Some(nearest) = nearest(text, &keys) {
            self.missed(nearest, key);
            error.help(format!("did you mean `{nearest}`?"))
        } else {
            error.help(format!("the keys of {here} are {}", keys.join(", ")))
        };
        self.diagnostics.push(error);
    }

    /// Makes the checks that need the whole file.
    fn finish(mut self) -> (Option<Config>, Vec<Diagnostic>, Layout) {
        self.name_current();
        self.read_endpoints();
        // This comes first, because the other checks depend on a member's routing, which it decides.
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
        let peers = self.drafts.into_iter().map(|Draft { peer, endpoints, .. }| {
            let endpoints = endpoints.into_iter().map(|(path, _)| path).collect();
            Peer { endpoints, ..peer }
        });
        let config = (!broken).then(|| Config::new(self.interface, peers.collect()));
        (config, self.diagnostics, self.layout)
    }
}

impl<'a> Draft<'a> {
    /// The position of the public key, if the section has one.
    fn public_key(&self) -> Option<Piece<'a>> {
        self.places.items("PublicKey").next_back()
    }

    fn allowed_ips(&self) -> impl Iterator<Item = (&IpNet, Piece<'a>)> {
        self.peer.allowed_ips.iter().zip(self.places.items("AllowedIPs"))
    }
}

/// Reads a line with a key of this section. Returns false if there is no such key.
fn read<'a, S: keys::Section>(
    section: &mut S,
    line: Line<'a>,
    places: &mut Places<'a>,
    layout: &mut Layout,
    diagnostics: &mut Vec<Diagnostic>,
) -> bool {
    let Some(key) = keys::named::<S>(&line.key.word()) else { return false };
    let name = key.form.name;
    if let Some(first) = places.lines(name).next().filter(|_| matches!(key.form.kind, Kind::One | Kind::OneList)) {
        let message = format!("{name} is given twice, first in line {}", first.line);
        diagnostics.push(Diagnostic::warning(line.key.span(), message).help("the last one counts; remove the other"));
    }
    layout.entry(&key.form, line);
    key.read(section, line, places, diagnostics);
    true
}

/// The name in `# Name = laptop`.
fn name_comment(comment: Piece<'_>) -> Option<Piece<'_>> {
    let hashes = comment.str().len() - comment.str().trim_start_matches('#').len();
    let (key, name) = comment.slice(hashes..comment.end - comment.start).split_at_char('=')?;
    (key.trim().str().eq_ignore_ascii_case("Name") && !name.trim().str().is_empty()).then(|| name.trim())
}
