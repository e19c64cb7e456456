//! Reads the value of a key, and records its position.

use super::Form;
use crate::conf::{
    Diagnostic,
    piece::{Piece, without_keys},
    value::Problem,
};

/// The help where a value looks like a key, which may be a secret and is not shown.
const KEY_ELSEWHERE: &str = "the value looks like a key: keys belong in PrivateKey, PublicKey and PresharedKey";

/// `Key = value`.
#[derive(Clone, Copy)]
pub(in crate::conf) struct Line<'a> {
    pub(in crate::conf) key: Piece<'a>,
    pub(in crate::conf) value: Piece<'a>,
    /// The value including the text after a `#`, which does not always start a comment in a shell command.
    pub(in crate::conf) raw: Piece<'a>,
}

/// The positions of a section's values, for the checks that need the whole file.
#[derive(Default)]
pub(in crate::conf) struct Places<'a> {
    /// The values of all lines.
    pub(in crate::conf) lines: Vec<(&'static Form, Piece<'a>)>,
    /// The items that were read, of some lists.
    items: Vec<(&'static str, Piece<'a>)>,
}

/// A line with a key that is being read.
pub(in crate::conf) struct Reader<'a, 'r> {
    pub(super) form: &'static Form,
    pub(super) line: Line<'a>,
    pub(super) places: &'r mut Places<'a>,
    pub(super) diagnostics: &'r mut Vec<Diagnostic>,
}

impl<'a> Places<'a> {
    /// The values of the lines with a key.
    pub(in crate::conf) fn lines(&self, key: &str) -> impl DoubleEndedIterator<Item = Piece<'a>> {
        self.lines.iter().filter(move |(form, _)| form.name == key).map(|(_, value)| *value)
    }

    /// The items of a list.
    pub(in crate::conf) fn items(&self, key: &str) -> impl DoubleEndedIterator<Item = Piece<'a>> {
        self.items.iter().filter(move |(name, _)| *name == key).map(|(_, item)| *item)
    }

    pub(in crate::conf) fn note(&mut self, key: &'static str, item: Piece<'a>) {
        self.items.push((key, item));
    }
}

impl<'a> Reader<'a, '_> {
    /// The value of the line, or `None` and a diagnostic.
    pub(super) fn one<T>(&mut self, read: impl FnOnce(&'a str) -> Result<T, Problem>) -> Option<T> {
        self.value(self.line.value, read)
    }

    /// The items of a list, separated by commas or blanks as in wg-quick.
    pub(super) fn items(&self) -> impl Iterator<Item = Piece<'a>> + use<'a> {
        let phrases = self.form.phrases;
        let items = self.line.value.words(move |c| c == ',' || !phrases && c.is_whitespace());
        items.map(Piece::trim).filter(|item| !item.str().is_empty())
    }

    /// The values of a list, each with its position.
    pub(super) fn list<T>(&mut self, read: impl Fn(&'a str) -> Result<T, Problem>) -> Vec<(T, Piece<'a>)> {
        self.items().filter_map(|item| Some((self.value(item, &read)?, item))).collect()
    }

    /// A part of the value, or `None` and a diagnostic.
    pub(super) fn value<T>(&mut self, value: Piece<'a>, read: impl FnOnce(&'a str) -> Result<T, Problem>) -> Option<T> {
        read_value(self.form.name, value, self.diagnostics, read)
    }

    /// Records the position of an item.
    pub(super) fn note(&mut self, item: Piece<'a>) {
        self.places.note(self.form.name, item);
    }

    pub(super) fn error(&mut self, at: Piece<'a>, message: impl Into<String>, help: impl Into<String>) {
        self.diagnostics.push(Diagnostic::error(at.span(), message).help(help));
    }

    pub(super) fn warning(&mut self, at: Piece<'a>, message: impl Into<String>, help: impl Into<String>) {
        self.diagnostics.push(Diagnostic::warning(at.span(), message).help(help));
    }

    /// Whether the value is empty, with a warning. wg-quick treats such a line as a missing one.
    pub(super) fn is_empty(&mut self) -> bool {
        let is_empty = self.line.value.str().is_empty();
        if is_empty {
            self.diagnostics
                .push(Diagnostic::warning(self.line.value.span(), format!("{} has no value", self.form.name)));
        }
        is_empty
    }

    /// A shell command, with its comments.
    pub(super) fn command(&mut self) -> Option<String> {
        let command = self.line.raw.str();
        if command.is_empty() {
            let warning = Diagnostic::warning(self.line.value.span(), format!("{} has no command", self.form.name));
            self.diagnostics.push(warning);
        }
        (!command.is_empty()).then(|| command.to_owned())
    }
}

/// The parsed value of a key, or `None` and a diagnostic.
pub(in crate::conf) fn read_value<'a, T>(
    key: &str,
    value: Piece<'a>,
    diagnostics: &mut Vec<Diagnostic>,
    read: impl FnOnce(&'a str) -> Result<T, Problem>,
) -> Option<T> {
    match read(value.str()) {
        Ok(read) => Some(read),
        Err(Problem { message, help, range }) => {
            let piece = range.map_or(value, |range| value.slice(range));
            let (message, has_key) = without_keys(&format!("{key} {message}"));
            let mut error = Diagnostic::error(piece.span(), message);
            let quotes = ['"', '\'']
                .iter()
                .any(|&quote| value.str().len() > 1 && value.str().starts_with(quote) && value.str().ends_with(quote));
            error.help = match (has_key, quotes) {
                (true, _) => Some(KEY_ELSEWHERE.to_owned()),
                (false, true) => Some("values have no quotation marks: leave them out".to_owned()),
                (false, false) => help,
            };
            diagnostics.push(error);
            None
        }
    }
}
