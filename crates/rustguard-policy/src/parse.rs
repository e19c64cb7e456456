//! The language, read line by line. A mistake ends its line, and reading continues with the next line.

use crate::{
    diagnostic::{Diagnostic, Span, similar},
    policy::{Item, MAX_GROUPS, MAX_ITEMS, MAX_POLICY, MAX_RULES, MAX_TESTS, MAX_TRAFFIC, Policy, Rule, Test},
    rules::Traffic,
};
use ipnet::IpNet;
use std::{collections::BTreeMap, net::IpAddr, ops::RangeInclusive};

/// The most mistakes that are reported. Reading stops then.
const MAX_DIAGNOSTICS: usize = 100;
/// The longest label, in bytes.
const MAX_LABEL: usize = 63;
/// The most characters of a word that are shown.
const SHOWN: usize = 40;

type Result<T> = std::result::Result<T, Box<Diagnostic>>;

/// Reads a policy. Lines with mistakes are left out of it.
pub(crate) fn parse(text: &str) -> (Policy, Vec<Diagnostic>) {
    let mut reader = Reader::default();
    if text.len() > MAX_POLICY {
        let message = format!("the policy has {} bytes; at most {MAX_POLICY} are read", text.len());
        let start = Span { line: 1, column: 1, bytes: 0..0 };
        return (reader.policy, vec![Diagnostic::error(start, message)]);
    }
    let mut diagnostics = Vec::new();
    let mut start = 0;
    for (line, number) in text.split('\n').zip(1..) {
        if let Err(mistake) = reader.line(line, number, start) {
            diagnostics.push(*mistake);
        }
        if diagnostics.len() >= MAX_DIAGNOSTICS {
            break;
        }
        start += line.len() + 1;
    }
    let room = MAX_DIAGNOSTICS.saturating_sub(diagnostics.len());
    diagnostics.extend(reader.used_too_early().take(room));
    diagnostics.sort_by_key(|diagnostic| diagnostic.span.bytes.start);
    (reader.policy, diagnostics)
}

/// Reads one rule of a sheet, which has no groups. `None` for anything else.
pub(crate) fn rule(text: &str, line: u32) -> Option<Rule> {
    let mut reader = Reader::default();
    reader.line(text, line, 0).ok()?;
    let Policy { mut rules, tests, groups, .. } = reader.policy;
    rules.pop().filter(|_| tests.is_empty() && groups.is_empty())
}

/// Reads traffic as `policy test` takes it: `tcp/5432`.
pub(crate) fn traffic(text: &str) -> Result<Traffic> {
    let mut line = Line::new(text, 1, 0);
    let traffic = line.traffic()?;
    line.end("the end")?;
    Ok(traffic)
}

#[derive(Default)]
struct Reader {
    policy: Policy,
}

impl Reader {
    fn line(&mut self, text: &str, number: u32, start: usize) -> Result<()> {
        let mut line = Line::new(text, number, start);
        let Some(verb) = line.peek() else { return Ok(()) };
        match verb.text {
            "allow" => {
                line.skip();
                let who = self.items(&mut line)?;
                line.arrow()?;
                let whom = self.items(&mut line)?;
                let traffic = if line.peek().is_some() { line.traffic()? } else { Traffic::any() };
                line.end("a rule")?;
                self.room(&line, self.policy.rules.len(), MAX_RULES, "rules")?;
                self.policy.rules.push(Rule { line: number, who, whom, traffic });
            }
            "test" => {
                line.skip();
                let from = self.items(&mut line)?;
                line.arrow()?;
                let to = self.items(&mut line)?;
                let is_end = |word: &Word<'_>| word.text == "allowed" || word.text == "refused";
                let traffic =
                    if line.peek().is_some_and(|word| !is_end(&word)) { line.traffic()? } else { Traffic::any() };
                let Some(end) = line.next().filter(is_end) else {
                    return Err(line.wrong("a test ends with `allowed` or `refused`", None));
                };
                line.end("a test")?;
                let net = from.iter().chain(&to).find(|item| matches!(item, Item::Prefix(net) if !is_address(net)));
                if let Some(net) = net {
                    let message = format!("a test names machines and addresses, and {net} is a prefix");
                    return Err(Box::new(Diagnostic::error(line.whole(), message)));
                }
                self.room(&line, self.policy.tests.len(), MAX_TESTS, "tests")?;
                let allowed = end.text == "allowed";
                self.policy.tests.push(Test { span: line.whole(), from, to, traffic, allowed });
            }
            "group" => {
                line.skip();
                let Some(name) = line.next().filter(|word| word.kind == Kind::Word) else {
                    return Err(line.wrong("a group has a name: group NAME = laptop, tag:dev", None));
                };
                label(&line, &name, name.text, "group")?;
                if let Some((_, first)) = self.policy.named_groups.iter().find(|(group, _)| group == name.text) {
                    let message = format!("there is a group {} already, in line {}", name.text, first.line);
                    let help = "write all of it in one line, or give this group another name".to_owned();
                    return Err(line.at(&name, message, Some(help)));
                }
                if line.next().is_none_or(|word| word.text != "=") {
                    return Err(line.wrong("a `=` follows the name of a group: group NAME = laptop, tag:dev", None));
                }
                let items = self.items(&mut line)?;
                line.end("a group")?;
                self.room(&line, self.policy.groups.len(), MAX_GROUPS, "groups")?;
                self.policy.named_groups.push((name.text.to_owned(), line.span(&name)));
                self.policy.groups.insert(name.text.to_owned(), items);
            }
            other => {
                let meant = similar(other, ["allow", "test", "group"]).map(|meant| format!("did you mean `{meant}`?"));
                let message = format!("a line begins with allow, test or group, and not with {}", shown(other));
                return Err(line.at(&verb, message, meant));
            }
        }
        Ok(())
    }

    /// Mistakes: groups that are used before their definition. Otherwise the lines would refer to machines with these
    /// names.
    fn used_too_early(&self) -> impl Iterator<Item = Diagnostic> {
        self.policy.mentions.iter().filter_map(|(item, span)| {
            let Item::Machine(name) = item else { return None };
            let (_, made) = self.policy.named_groups.iter().find(|(group, _)| group == name)?;
            let (message, help) = if made.line == span.line {
                (format!("the group {name} cannot be a part of itself"), format!("leave {name} out here"))
            } else {
                let message =
                    format!("the group {name} is made below, in line {}, and is known from there on", made.line);
                (message, "move that line above this one".to_owned())
            };
            Some(Diagnostic::error(span.clone(), message).help(help))
        })
    }

    fn room(&self, line: &Line<'_>, count: usize, most: usize, what: &str) -> Result<()> {
        if count < most {
            return Ok(());
        }
        Err(Box::new(Diagnostic::error(line.whole(), format!("a policy has at most {most} {what}"))))
    }

    /// One or several items, separated by commas. Groups are replaced by their contents.
    fn items(&mut self, line: &mut Line<'_>) -> Result<Vec<Item>> {
        let mut items = Vec::new();
        loop {
            let Some(word) = line.next().filter(|word| word.kind == Kind::Word) else {
                return Err(line.wrong("a machine, a tag, a group, a prefix or `*` is missing", None));
            };
            if let Some(group) = self.policy.groups.get(word.text) {
                items.extend(group.iter().cloned());
            } else {
                let item = item(line, &word, &self.policy.groups)?;
                // Not for prefixes and `*`, which do not depend on machines.
                if matches!(item, Item::Machine(_) | Item::Tag(_)) {
                    self.policy.mentions.push((item.clone(), line.span(&word)));
                }
                items.push(item);
            }
            if items.len() > MAX_ITEMS {
                let help = "give these machines a tag".to_owned();
                return Err(line.at(&word, format!("more than {MAX_ITEMS} are named here"), Some(help)));
            }
            if line.peek().is_none_or(|word| word.text != ",") {
                break;
            }
            line.skip();
        }
        let mut seen = std::collections::BTreeSet::new();
        items.retain(|item| seen.insert(item.clone()));
        Ok(items)
    }
}

fn is_address(net: &IpNet) -> bool {
    net.prefix_len() == net.max_prefix_len()
}

/// A machine, a tag, a prefix or `*`.
fn item(line: &Line<'_>, word: &Word<'_>, groups: &BTreeMap<String, Vec<Item>>) -> Result<Item> {
    let text = word.text;
    if text == "*" {
        return Ok(Item::All);
    }
    if let Some(tag) = text.strip_prefix("tag:") {
        label(line, word, tag, "tag")?;
        return Ok(Item::Tag(tag.to_owned()));
    }
    if let Ok(address) = text.parse::<IpAddr>() {
        return Ok(Item::Prefix(address.into()));
    }
    if let Ok(net) = text.parse::<IpNet>() {
        if net != net.trunc() {
            let help = format!("write {}, or {} for the one address", net.trunc(), net.addr());
            return Err(line.at(word, format!("{net} has bits behind its length"), Some(help)));
        }
        return Ok(Item::Prefix(net));
    }
    if let Some((kind, _)) = text.split_once(':').filter(|(kind, _)| !kind.is_empty() && !kind.contains(['.', '/'])) {
        let meant = similar(kind, ["tag"]).map(|_| format!("did you mean tag:{}?", &text[kind.len() + 1..]));
        return Err(line.at(word, format!("{} is no tag, no prefix and no address", shown(text)), meant));
    }
    if text.contains(['/', '.']) {
        return Err(line.at(word, format!("{} is no prefix and no address", shown(text)), None));
    }
    label(line, word, text, "machine or group").map_err(|mut wrong| {
        let meant = similar(text, groups.keys().map(String::as_str));
        wrong.help = wrong.help.take().or_else(|| meant.map(|meant| format!("did you mean {meant}?")));
        wrong
    })?;
    Ok(Item::Machine(text.to_owned()))
}

/// Names are labels of domain names, as in the roster.
fn label(line: &Line<'_>, word: &Word<'_>, text: &str, what: &str) -> Result<()> {
    let of_label = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    let is_label = |text: &str| {
        (1..=MAX_LABEL).contains(&text.len())
            && text.bytes().all(of_label)
            && !text.starts_with('-')
            && !text.ends_with('-')
    };
    if is_label(text) {
        return Ok(());
    }
    let lower = text.to_ascii_lowercase();
    let help =
        if is_label(&lower) { format!("write {lower}") } else { "letters, digits and `-`, at most 63".to_owned() };
    Err(line.at(word, format!("{} is no name of a {what}", shown(text)), Some(help)))
}

/// A word for people: limited in length, and without control characters for a terminal.
fn shown(text: &str) -> String {
    let short: String = text.chars().take(SHOWN).collect();
    let more = if short.len() < text.len() { "…" } else { "" };
    format!("`{}{more}`", short.escape_debug())
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Word,
    Mark,
}

#[derive(Clone, Copy, Debug)]
struct Word<'t> {
    kind: Kind,
    text: &'t str,
    /// Where it begins in its line, in bytes.
    at: usize,
}

/// The words of a line, and how many were read.
struct Line<'t> {
    text: &'t str,
    number: u32,
    /// Where the line begins in the whole text.
    start: usize,
    words: Vec<Word<'t>>,
    next: usize,
}

impl<'t> Line<'t> {
    fn new(text: &'t str, number: u32, start: usize) -> Self {
        Self { text, number, start, words: words(text), next: 0 }
    }

    fn peek(&self) -> Option<Word<'t>> {
        self.words.get(self.next).copied()
    }

    fn next(&mut self) -> Option<Word<'t>> {
        let word = self.peek();
        self.next += 1;
        word
    }

    fn skip(&mut self) {
        self.next += 1;
    }

    fn arrow(&mut self) -> Result<()> {
        match self.next() {
            Some(word) if word.text == "->" => Ok(()),
            Some(word) if word.kind == Kind::Word => {
                Err(self.wrong("`->` is missing here", Some("several are separated by commas".to_owned())))
            }
            _ => Err(self.wrong("`->` is missing here", None)),
        }
    }

    fn end(&mut self, of: &str) -> Result<()> {
        match self.next() {
            None => Ok(()),
            Some(_) => Err(self.wrong(&format!("this is more than {of} has"), None)),
        }
    }

    /// Reads `icmp,tcp/22,443,udp,proto/47`.
    fn traffic(&mut self) -> Result<Traffic> {
        let mut traffic: Option<Traffic> = None;
        // Ports may follow without the protocol: `tcp/22,443`.
        let (mut of_ports, mut count) = (None::<fn(RangeInclusive<u16>) -> Traffic>, 0);
        loop {
            let Some(word) = self.next().filter(|word| word.kind == Kind::Word) else {
                return Err(self.wrong("a protocol is missing: icmp, tcp/22,443, udp/53 or proto/47", None));
            };
            let (protocol, ports) = match word.text.split_once('/') {
                Some((protocol, ports)) => (protocol, Some(ports)),
                None if word.text.starts_with(|c: char| c.is_ascii_digit()) => ("", Some(word.text)),
                None => (word.text, None),
            };
            let next = match (protocol, ports) {
                ("icmp", None) => Traffic::icmp(),
                ("tcp", None) => Traffic::protocol(crate::rules::TCP),
                ("udp", None) => Traffic::protocol(crate::rules::UDP),
                ("tcp" | "udp" | "", Some(text)) => {
                    let ports = ports_of(text).ok_or_else(|| {
                        let help = "ports are numbers, as in tcp/22,443 or tcp/8000-8100".to_owned();
                        self.at(&word, format!("{} is no port from 0 to 65535", shown(text)), Some(help))
                    })?;
                    let make: fn(RangeInclusive<u16>) -> Traffic = match protocol {
                        "tcp" => |ports| Traffic::tcp([ports]),
                        "udp" => |ports| Traffic::udp([ports]),
                        _ => of_ports.ok_or_else(|| {
                            let help = "write the protocol in front of it: tcp/22".to_owned();
                            self.at(&word, format!("{} stands behind no protocol with ports", shown(text)), Some(help))
                        })?,
                    };
                    of_ports = Some(make);
                    make(ports)
                }
                ("proto", Some(number)) => match number.parse() {
                    Ok(number) if is_number(word.text.strip_prefix("proto/").unwrap_or_default()) => {
                        Traffic::protocol(number)
                    }
                    _ => return Err(self.at(&word, format!("{} is no number from 0 to 255", shown(number)), None)),
                },
                ("icmp", Some(_)) => {
                    let help = "write icmp".to_owned();
                    return Err(self.at(&word, "ICMP has no ports".to_owned(), Some(help)));
                }
                (other, _) => {
                    let meant = similar(other, ["icmp", "tcp", "udp", "proto", "allowed", "refused"]);
                    let help = meant.map(|meant| format!("did you mean {meant}?"));
                    let known = "icmp, tcp/22,443, udp/53 or proto/47";
                    return Err(self.at(&word, format!("{} is no protocol: {known}", shown(other)), help));
                }
            };
            if ports.is_none() || protocol == "proto" {
                of_ports = None;
            }
            traffic = Some(match traffic {
                None => next,
                Some(before) => before.and(next),
            });
            count += 1;
            if count > MAX_TRAFFIC {
                return Err(self.at(&word, format!("more than {MAX_TRAFFIC} ports and protocols in one line"), None));
            }
            if self.peek().is_none_or(|word| word.text != ",") {
                return Ok(traffic.unwrap_or_default());
            }
            self.skip();
        }
    }

    /// A mistake at the last word that was read, or after the end of the line.
    fn wrong(&self, message: &str, help: Option<String>) -> Box<Diagnostic> {
        let end = self.words.last().map_or(0, |word| word.at + word.text.len());
        let word = self.next.checked_sub(1).and_then(|at| self.words.get(at));
        let word = word.copied().unwrap_or(Word { kind: Kind::Mark, text: "", at: end });
        self.at(&word, message.to_owned(), help)
    }

    fn at(&self, word: &Word<'_>, message: String, help: Option<String>) -> Box<Diagnostic> {
        Box::new(Diagnostic::error(self.span(word), message).help(help))
    }

    fn span(&self, word: &Word<'_>) -> Span {
        let column = self.text[..word.at].chars().count() as u32 + 1;
        let from = self.start + word.at;
        Span { line: self.number, column, bytes: from..from + word.text.len() }
    }

    /// The span of all words of the line.
    fn whole(&self) -> Span {
        let (Some(first), Some(last)) = (self.words.first(), self.words.last()) else {
            return Span { line: self.number, column: 1, bytes: self.start..self.start };
        };
        let mut span = self.span(first);
        span.bytes.end = self.start + last.at + last.text.len();
        span
    }
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// `22` or `8000-8100`.
fn ports_of(text: &str) -> Option<RangeInclusive<u16>> {
    let number = |text: &str| text.parse::<u16>().ok().filter(|_| is_number(text));
    match text.split_once('-') {
        None => number(text).map(|port| port..=port),
        Some((first, last)) => Some(number(first)?..=number(last)?).filter(|ports| !ports.is_empty()),
    }
}

/// The words of a line without its comment. `,`, `=` and `->` need no spaces around them.
fn words(line: &str) -> Vec<Word<'_>> {
    let line = line.split('#').next().unwrap_or_default();
    let (mut words, mut at) = (Vec::new(), 0);
    while let Some(next) = line[at..].chars().next() {
        let rest = &line[at..];
        let mark = ["->", ",", "="].into_iter().find(|mark| rest.starts_with(mark));
        let len = if next.is_whitespace() {
            next.len_utf8()
        } else if let Some(mark) = mark {
            words.push(Word { kind: Kind::Mark, text: &rest[..mark.len()], at });
            mark.len()
        } else {
            let ends = |(_, c): &(usize, char)| c.is_whitespace() || *c == ',' || *c == '=';
            let end = rest.char_indices().find(ends).map_or(rest.len(), |(end, _)| end);
            let end = rest[..end].find("->").unwrap_or(end);
            words.push(Word { kind: Kind::Word, text: &rest[..end], at });
            end
        };
        at += len;
    }
    words
}
