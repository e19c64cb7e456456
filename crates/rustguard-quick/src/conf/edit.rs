//! Changes a file and keeps everything else in it: comments, order, spelling, blanks, line ends.
//!
//! [`edit`] compares the present values with the new ones, key by key, and replaces only the values that differ. It is
//! the only way in which RustGuard changes a file that a user wrote.

use super::{
    Config, Diagnostic, Peer,
    keys::{self, Form, Holds, Key, Kind, Section, set},
    parse::{EntryLayout, Layout, SectionLayout, parse, parse_with_layout},
    peer_names::PeerNames,
    value,
    write::peer_text,
};
use rustguard_device::{EndpointSpec, PathSpec, key::to_base64};
use std::{
    borrow::Cow,
    collections::{HashMap, HashSet},
    ops::Range,
};
use zeroize::Zeroizing;

/// Why a text could not be changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EditError {
    /// The text is not a valid configuration.
    #[error("the file has mistakes; `rustguard check` shows them")]
    Invalid(Vec<Diagnostic>),
    /// A value has no form in which a file could hold it, for example a name or a hook with a line break.
    #[error("the new configuration has a value that a file cannot hold")]
    NotExpressible,
    /// An endpoint leads through a peer that the configuration does not have.
    #[error(
        "an Endpoint of {peer} leads through a peer that would not be in the file: save that peer too, or give {peer} another Endpoint"
    )]
    NoRelay {
        /// The name of the peer with the endpoint, or its public key.
        peer: String,
    },
}

/// Returns `text`, changed so that [`parse`] reads `config` from it.
///
/// Lines whose values stay are not touched. In a list, items are added and removed one by one. A new key comes after
/// the last one of its section, and a new peer at the end. A removed peer's comments go with it.
///
/// # Errors
/// See [`EditError`].
pub fn edit(text: &str, config: &Config) -> Result<Zeroizing<String>, EditError> {
    let (Some(before), diagnostics, layout) = parse_with_layout(text) else {
        return Err(EditError::Invalid(parse(text).1));
    };
    drop(diagnostics);
    if let Some(peer) = without_relay(config) {
        let peer = peer.name.clone().unwrap_or_else(|| to_base64(&peer.public_key.0).to_string());
        return Err(EditError::NoRelay { peer });
    }
    // If lines change between a name in a comment and its header, the comment may name another peer. The names are then
    // moved to their headers, and names at no peer are removed.
    for names in [Names::Stay, Names::MoveToHeaders] {
        let edited = Editor::new(text, config).edit(&layout, &before, config, names);
        if parse(&edited).0.is_some_and(|parsed| keys::same(&parsed, config)) {
            return Ok(edited);
        }
    }
    Err(EditError::NotExpressible)
}

/// Returns the part of a file that `wg setconf` reads, like `wg-quick strip`. Comments stay. If a peer has several
/// endpoints, only the first one with an address or a host name is left, because `wg` accepts only one.
///
/// # Errors
/// The diagnostics, if the text is not a valid configuration.
pub fn strip(text: &str) -> Result<Zeroizing<String>, Vec<Diagnostic>> {
    let (Some(_), _, layout) = parse_with_layout(text) else { return Err(parse(text).1) };
    let nothing = Config::default();
    let mut editor = Editor::new(text, &nothing);
    for entry in layout.sections.iter().flat_map(|section| &section.entries) {
        match entry.key.kind {
            _ if !entry.key.of_wg => editor.delete(entry.line.clone()),
            Kind::OneList => {
                // A port has no blanks, but an endpoint may have blanks around its colons.
                let value = value::without_blanks_around_colons(&text[entry.value.clone()]);
                let items = items(entry.key, &value);
                let mut first_words = items.iter().filter_map(|item| item.split_whitespace().next());
                match first_words.find(|word| !word.eq_ignore_ascii_case(value::VIA_PEER)) {
                    Some(first) if first != &text[entry.value.clone()] => editor.replace(entry.value.clone(), first),
                    Some(_) => {}
                    None => editor.delete(entry.line.clone()),
                }
            }
            _ => {}
        }
    }
    Ok(editor.finish(&[]))
}

/// The first peer with an endpoint through a peer that is not there.
fn without_relay(config: &Config) -> Option<&Peer> {
    let relay = |path: &PathSpec| match path.endpoint {
        EndpointSpec::Peer(relay) => Some(relay),
        _ => None,
    };
    let missing = |relay| !config.peers.iter().any(|peer| peer.public_key == relay);
    config.peers.iter().find(|peer| peer.endpoints.iter().filter_map(relay).any(missing))
}

/// The places of the comments that name peers.
#[derive(Clone, Copy, PartialEq)]
enum Names {
    Stay,
    MoveToHeaders,
}

/// Replacements in a text, which are made at the end, all at once.
struct Editor<'a> {
    text: &'a str,
    newline: &'static str,
    /// The names of the peers in the new configuration.
    names: PeerNames<'a>,
    /// Whether a name belongs to another peer than before.
    renamed: bool,
    /// Changes within lines, and deletions of lines.
    edits: Vec<(Range<usize>, Zeroizing<String>)>,
    /// New lines and their positions.
    insertions: Vec<(usize, Zeroizing<String>)>,
}

impl<'a> Editor<'a> {
    fn new(text: &'a str, after: &'a Config) -> Self {
        let crlf = text.find('\n').is_some_and(|at| text[..at].ends_with('\r'));
        Self {
            text,
            newline: if crlf { "\r\n" } else { "\n" },
            names: PeerNames::of(&after.peers),
            renamed: false,
            edits: Vec::new(),
            insertions: Vec::new(),
        }
    }

    fn edit(mut self, layout: &Layout, before: &Config, after: &Config, names: Names) -> Zeroizing<String> {
        self.renamed = self.names != PeerNames::of(&before.peers);
        let interface: Vec<_> = layout.sections.iter().filter(|section| section.peer.is_none()).collect();
        self.section(&interface, &before.interface, &after.interface);
        let mut wanted: HashMap<_, _> = after.peers.iter().map(|peer| (peer.public_key, peer)).collect();
        for section in &layout.sections {
            let Some(old) = section.peer.map(|index| &before.peers[index]) else { continue };
            match wanted.remove(&old.public_key) {
                Some(new) => {
                    self.name(section, old, new, names);
                    self.section(&[section], old, new);
                }
                None => self.remove(section),
            }
        }
        if names == Names::MoveToHeaders {
            layout.stray_names.iter().for_each(|line| self.delete(line.clone()));
        }
        let new: Vec<_> = after.peers.iter().filter(|peer| wanted.contains_key(&peer.public_key)).collect();
        self.finish(&new)
    }

    /// The text with all replacements, and more peers at its end.
    fn finish(mut self, new: &[&Peer]) -> Zeroizing<String> {
        // The last line may have no line end. A value is then extended at the place where a new line is inserted, and
        // the value comes first.
        self.edits.extend(self.insertions.into_iter().map(|(at, line)| (at..at, line)));
        // A deletion may lie within another. The order of changes at one place stays as it is.
        self.edits.sort_by_key(|(range, _)| (range.start, range.end));
        let sections: Vec<_> = new.iter().map(|peer| peer_text(peer, &self.names)).collect();
        let added: usize = self.edits.iter().map(|(_, text)| text.len()).sum();
        let lines: usize = sections.iter().map(|section| section.len() + section.matches('\n').count() + 4).sum();
        // The text has the private key, of which a reallocation would leave a copy behind.
        let mut out = Zeroizing::new(String::with_capacity(self.text.len() + added + lines));
        let mut at = 0;
        for (range, replacement) in &self.edits {
            out.push_str(&self.text[at..range.start.max(at)]);
            out.push_str(replacement);
            at = at.max(range.end);
        }
        out.push_str(&self.text[at..]);
        for section in sections {
            if !out.is_empty() && !out.ends_with('\n') {
                out.push_str(self.newline);
            }
            if !out.is_empty() && !out.ends_with("\n\n") && !out.ends_with("\n\r\n") {
                out.push_str(self.newline);
            }
            for line in section.lines() {
                out.push_str(line);
                out.push_str(self.newline);
            }
        }
        out
    }

    fn replace(&mut self, range: Range<usize>, with: &str) {
        self.edits.push((range, Zeroizing::new(with.to_owned())));
    }

    fn delete(&mut self, range: Range<usize>) {
        self.replace(range, "");
    }

    /// Changes the keys of one peer, or of all `[Interface]` sections, which count as one.
    fn section<S: Section>(&mut self, sections: &[&SectionLayout], before: &S, after: &S) {
        // The same relay may have another name.
        let renamed = self.renamed;
        let changes =
            |key: &&'static Key<S>| !key.agrees(before, after) || renamed && key.form.holds == Holds::PeerNames;
        for key in keys::all(S::PRINTED).filter(changes) {
            let entries = sections.iter().flat_map(|section| &section.entries);
            let lines: Vec<_> = entries.filter(|entry| entry.key.name == key.form.name).collect();
            let beside = sections.iter().rev().find(|section| !section.entries.is_empty()).or(sections.last());
            let Some(beside) = beside else { return };
            let new = key.values(after);
            match key.form.kind {
                Kind::One => self.one(&lines, &key.form, &new, beside),
                Kind::Lines => self.lines(&lines, &key.form, &new, beside),
                Kind::OneList | Kind::List | Kind::Set => self.list(&lines, key, &new, beside),
            }
        }
    }

    fn one(&mut self, lines: &[&EntryLayout], key: &Form, new: &[Zeroizing<String>], beside: &SectionLayout) {
        match (new.first(), lines.last()) {
            (Some(value), Some(line)) => self.replace(line.value.clone(), value),
            (Some(value), None) => self.insert(beside, key.name, value),
            (None, _) => lines.iter().for_each(|line| self.delete(line.line.clone())),
        }
    }

    fn lines(&mut self, lines: &[&EntryLayout], key: &Form, new: &[Zeroizing<String>], beside: &SectionLayout) {
        // A line without a command has no value in the configuration.
        let mut lines = lines.iter().filter(|line| !line.value.is_empty());
        for value in new {
            match lines.next() {
                Some(line) if self.text[line.value.clone()] == **value => {}
                Some(line) => self.replace(line.value.clone(), value),
                None => self.insert(beside, key.name, value),
            }
        }
        lines.for_each(|line| self.delete(line.line.clone()));
    }

    fn list<S: Section>(
        &mut self,
        lines: &[&EntryLayout],
        key: &'static Key<S>,
        new: &[Zeroizing<String>],
        beside: &SectionLayout,
    ) {
        let wanted = set(new);
        let (text, kind) = (self.text, key.form.kind);
        let lines: Vec<_> = lines
            .iter()
            .map(|line| {
                let items = items(&key.form, &text[line.value.clone()]);
                let items = items.into_iter().map(|item| (item, canonical(key, item, &self.names)));
                (*line, items.collect::<Vec<_>>())
            })
            .collect();
        let kept = || lines.iter().flat_map(|(_, items)| items).filter(|(_, item)| wanted.contains(item.as_str()));
        let present: HashSet<_> = kept().map(|(_, item)| item.as_str()).collect();
        let added: Vec<_> = new.iter().map(|value| value.as_str()).filter(|item| !present.contains(item)).collect();
        let joined = |items: &[Cow<'_, str>]| items.join(", ");

        let result = kept().map(|(_, item)| item.as_str()).chain(added.iter().copied());
        let one_line = kind == Kind::OneList && lines.len() > 1 && !new.is_empty();
        if one_line || kind != Kind::Set && !result.eq(new.iter().map(|value| value.as_str())) {
            // The order changes, so no line can stay.
            let all = joined(&new.iter().map(|value| self.names.in_file(&key.form, value)).collect::<Vec<_>>());
            if let Some(((first, _), others)) = lines.split_first() {
                self.replace(first.value.clone(), &all);
                others.iter().for_each(|(line, _)| self.delete(line.line.clone()));
            }
            return;
        }
        let added: Vec<_> = added.into_iter().map(|value| self.names.in_file(&key.form, value)).collect();
        let keeps = |items: &[(&str, String)]| items.iter().any(|(_, item)| wanted.contains(item.as_str()));
        let target = lines.iter().rposition(|(_, items)| keeps(items)).unwrap_or(0);
        for (index, (line, items)) in lines.iter().enumerate() {
            let left = items.iter().filter(|(_, item)| wanted.contains(item.as_str()));
            let mut left: Vec<_> = left.map(|(item, _)| Cow::Borrowed(*item)).collect();
            let unchanged = left.len() == items.len();
            let more = if index == target { &added[..] } else { &[] };
            match (unchanged, more) {
                (true, []) => {}
                (true, more) if !left.is_empty() => {
                    let end = line.value.end;
                    self.replace(end..end, &format!(", {}", joined(more)));
                }
                _ => {
                    left.extend(more.iter().cloned());
                    if left.is_empty() {
                        self.delete(line.line.clone());
                    } else {
                        self.replace(line.value.clone(), &joined(&left));
                    }
                }
            }
        }
        if lines.is_empty() && !added.is_empty() {
            self.insert(beside, key.form.name, &joined(&added));
        }
    }

    /// Adds a line after the last key of the section, with the same indentation and blanks around `=`.
    fn insert(&mut self, beside: &SectionLayout, key: &str, value: &str) {
        let (after, key) = match beside.entries.last() {
            Some(last) => (last.line.clone(), like(&self.text[last.line.start..last.value.start], key)),
            None => (beside.header.clone(), format!("{key} = ")),
        };
        let line = Zeroizing::new(format!("{key}{value}"));
        let line = if self.text[after.clone()].ends_with('\n') {
            Zeroizing::new(format!("{}{}", *line, self.newline))
        } else {
            Zeroizing::new(format!("{}{}", self.newline, *line))
        };
        self.insertions.push((after.end, line));
    }

    fn name(&mut self, section: &SectionLayout, old: &Peer, new: &Peer, names: Names) {
        let used = || section.names.iter().find(|name| Some(&self.text[name.value.clone()]) == old.name.as_deref());
        match (&new.name, used()) {
            (name, _) if names == Names::MoveToHeaders => {
                section.names.iter().for_each(|name| self.delete(name.line.clone()));
                self.name_above(section, name.as_deref());
            }
            // A comment that is not usable as a name stays too.
            (name, _) if *name == old.name => {}
            (Some(name), Some(used)) => {
                let value = used.value.clone();
                self.replace(value, name);
            }
            (name, _) => {
                if name.is_none() {
                    section.names.iter().for_each(|name| self.delete(name.line.clone()));
                }
                self.name_above(section, name.as_deref());
            }
        }
    }

    fn name_above(&mut self, section: &SectionLayout, name: Option<&str>) {
        if let Some(name) = name {
            let line = Zeroizing::new(format!("# Name = {name}{}", self.newline));
            self.insertions.push((section.header.start, line));
        }
    }

    /// Removes a peer's section, the comments directly above its header, and those directly below its last key.
    fn remove(&mut self, section: &SectionLayout) {
        section.names.iter().for_each(|name| self.delete(name.line.clone()));
        let mut start = section.header.start;
        while let Some(line) = self.line_before(start).filter(|line| self.is_comment(line)) {
            start = line.start;
        }
        let last = section.entries.last().map_or(section.header.end, |entry| entry.line.end);
        let mut end = last;
        while let Some(line) = self.line_after(end).filter(|line| self.is_comment(line)) {
            end = line.end;
        }
        if self.line_after(end).is_some_and(|line| self.text[line].trim_start().starts_with('[')) {
            // These comments belong to the next section.
            end = last;
        }
        // The blank lines on one of the two sides go too.
        let blank_before = self.line_before(start).is_none_or(|line| self.is_blank(&line));
        let mut after = end;
        while let Some(line) = self.line_after(after).filter(|line| self.is_blank(line)) {
            after = line.end;
        }
        if after == self.text.len() {
            while let Some(line) = self.line_before(start).filter(|line| self.is_blank(line)) {
                start = line.start;
            }
        }
        self.delete(start..if blank_before || after == self.text.len() { after } else { end });
    }

    fn line_before(&self, at: usize) -> Option<Range<usize>> {
        let before = &self.text[..at];
        let line = before.strip_suffix('\n')?;
        Some(line.rfind('\n').map_or(0, |end| end + 1)..at)
    }

    fn line_after(&self, at: usize) -> Option<Range<usize>> {
        let after = &self.text[at..];
        (!after.is_empty()).then(|| at..after.find('\n').map_or(self.text.len(), |end| at + end + 1))
    }

    fn is_comment(&self, line: &Range<usize>) -> bool {
        self.text[line.clone()].trim_start().starts_with('#')
    }

    fn is_blank(&self, line: &Range<usize>) -> bool {
        self.text[line.clone()].trim().is_empty()
    }
}

/// `key` and `=`, with the blanks that `line`, up to its value, has. An aligned `=` stays aligned.
fn like(line: &str, key: &str) -> String {
    let indent = &line[..line.len() - line.trim_start().len()];
    let (before, after) = line.split_once('=').unwrap_or((line, " "));
    let blanks = before.len() - before.trim_end().len();
    let blanks = match blanks {
        0 | 1 => blanks,
        _ => (before.chars().count() - indent.chars().count()).saturating_sub(key.len()).max(1),
    };
    format!("{indent}{key}{:blanks$}={after}", "")
}

/// The items of a list, as the parser separates them.
fn items<'t>(key: &Form, value: &'t str) -> Vec<&'t str> {
    let items = value.split(|c: char| c == ',' || !key.phrases && c.is_whitespace());
    items.map(str::trim).filter(|item| !item.is_empty()).collect()
}

/// An item as [`Key::values`] has it. Items that the parser would refuse stay as they are.
fn canonical<S: Section>(key: &'static Key<S>, item: &str, names: &PeerNames<'_>) -> String {
    let text = match key.form.holds {
        Holds::PeerNames => value::path(item, |name| names.find(name)).ok().map(|path| path.to_string()),
        _ => key.canonical(item),
    };
    text.unwrap_or_else(|| item.to_owned())
}

#[cfg(test)]
mod tests;
