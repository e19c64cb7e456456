//! Parts of a text that know where they are.

use super::Span;
use std::ops::Range;

/// A part of one line.
#[derive(Clone, Copy)]
pub(super) struct Piece<'a> {
    pub(super) text: &'a str,
    pub(super) line: usize,
    pub(super) line_start: usize,
    pub(super) start: usize,
    pub(super) end: usize,
}

/// The lines, without their ends. A byte order mark is not part of the first line.
pub(super) fn lines(text: &str) -> impl Iterator<Item = Piece<'_>> {
    let mut start = if text.starts_with('\u{feff}') { '\u{feff}'.len_utf8() } else { 0 };
    text[start..].split('\n').zip(1..).map(move |(line, number)| {
        let piece = Piece { text, line: number, line_start: start, start, end: start + line.len() };
        start = piece.end + 1;
        if line.ends_with('\r') { Piece { end: piece.end - 1, ..piece } } else { piece }
    })
}

/// Text of at least this length, in bytes, may be an incomplete key. Messages do not repeat such text where it is
/// unexpected.
pub(super) const SECRET_LENGTH: usize = 32;

/// A message without text that looks like a key, and whether there was any.
pub(super) fn without_keys(message: &str) -> (String, bool) {
    let mut out = message.to_owned();
    for key in Piece::of(message).keys() {
        out.replace_range(key.start..key.end, &"*".repeat(key.end - key.start));
    }
    let changed = out != message;
    (out, changed)
}

/// See [`Piece::word`].
pub(super) fn without_blanks(text: &str) -> String {
    text.chars().filter(|c| !c.is_whitespace()).collect()
}

impl<'a> Piece<'a> {
    /// The whole of a text of one line.
    pub(super) fn of(text: &'a str) -> Self {
        Self { text, line: 1, line_start: 0, start: 0, end: text.len() }
    }

    pub(super) fn str(self) -> &'a str {
        &self.text[self.start..self.end]
    }

    /// The given byte range of this piece.
    pub(super) fn slice(self, range: Range<usize>) -> Self {
        Self { start: self.start + range.start, end: self.start + range.end, ..self }
    }

    pub(super) fn span(self) -> Span {
        let column = self.text[self.line_start..self.start].chars().count() + 1;
        Span { line: self.line, column, bytes: self.start..self.end }
    }

    /// A key or the name of a section: wg ignores blanks in it.
    pub(super) fn word(self) -> String {
        without_blanks(self.str())
    }

    pub(super) fn trim(self) -> Self {
        let text = self.str();
        let start = text.len() - text.trim_start().len();
        self.slice(start..start.max(text.trim_end().len()))
    }

    pub(super) fn split_at_char(self, c: char) -> Option<(Self, Self)> {
        let at = self.str().find(c)?;
        Some((self.slice(0..at), self.slice(at + c.len_utf8()..self.end - self.start)))
    }

    /// The non-empty parts between separators.
    pub(super) fn words(self, separator: impl Fn(char) -> bool) -> impl Iterator<Item = Self> {
        let base = self.text.as_ptr() as usize;
        self.str().split(separator).filter(|word| !word.is_empty()).map(move |word| {
            let start = word.as_ptr() as usize - base;
            Self { start, end: start + word.len(), ..self }
        })
    }

    /// The parts that look like a key in base64, or like most of one. A path or a host name of this length without any
    /// capital letter is not treated as a key: one key in 10⁷ has no capital letter.
    pub(super) fn keys(self) -> impl Iterator<Item = Self> {
        self.words(|c| !(c.is_ascii_alphanumeric() || "+/=".contains(c))).filter(|word| {
            word.end - word.start >= SECRET_LENGTH && word.str().bytes().any(|byte| byte.is_ascii_uppercase())
        })
    }
}
