//! Mistakes in a policy, with their places.

use std::{fmt, ops::Range};

/// A mistake, or a possible mistake.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Diagnostic {
    /// Whether the policy can still be used.
    pub severity: Severity,
    /// The problem, in one line.
    pub message: String,
    /// The text with the mistake.
    pub span: Span,
    /// The remedy.
    pub help: Option<String>,
}

/// The severity of a diagnostic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// The policy works, but perhaps not as intended.
    Warning,
    /// The policy cannot be used.
    Error,
}

/// A part of the policy, within one line.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Span {
    /// The number of the line, from 1.
    pub line: u32,
    /// The column of the first character, from 1 and counted in characters.
    pub column: u32,
    /// The bytes in the whole text. Both ends are character boundaries.
    pub bytes: Range<usize>,
}

impl Diagnostic {
    pub(crate) fn error(span: Span, message: impl Into<String>) -> Self {
        Self { severity: Severity::Error, message: message.into(), span, help: None }
    }

    pub(crate) fn warning(span: Span, message: impl Into<String>) -> Self {
        Self { severity: Severity::Warning, message: message.into(), span, help: None }
    }

    pub(crate) fn help(mut self, help: impl Into<Option<String>>) -> Self {
        self.help = help.into();
        self
    }
}

/// In one line: `3:17: no machine is called laptpo; there is laptop`.
impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.span.line, self.span.column, self.message)?;
        self.help.iter().try_for_each(|help| write!(f, "; {help}"))
    }
}

/// The word among these that was probably meant. A short word may differ by at most one letter.
pub(crate) fn similar<'w>(word: &str, known: impl IntoIterator<Item = &'w str>) -> Option<&'w str> {
    // Longer words are not names, and a comparison costs the product of the lengths.
    let close = |known: &str| known.len() <= 63 && word.len() <= 63;
    let near = known.into_iter().filter(|known| close(known)).map(|known| (distance(word, known), known));
    near.filter(|(distance, known)| *distance <= 1 + known.len() / 5).min().map(|(_, known)| known)
}

#[cfg(feature = "suggestions")]
fn distance(word: &str, known: &str) -> usize {
    strsim::damerau_levenshtein(&word.to_ascii_lowercase(), known)
}

/// Only the same word counts as similar.
#[cfg(not(feature = "suggestions"))]
fn distance(word: &str, known: &str) -> usize {
    if word.eq_ignore_ascii_case(known) { 0 } else { usize::MAX }
}
