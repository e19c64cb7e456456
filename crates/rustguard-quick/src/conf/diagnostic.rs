//! Mistakes in a file, with their positions.

use std::ops::Range;

/// A mistake, or a possible mistake.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Diagnostic {
    /// Whether the file can still be used.
    pub severity: Severity,
    /// The problem, in one line that names the key and the value.
    pub message: String,
    /// The text that the message concerns.
    pub span: Span,
    /// The remedy.
    pub help: Option<String>,
}

/// The severity of a diagnostic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// The file works, but perhaps not as intended.
    Warning,
    /// The file cannot be used.
    Error,
}

/// A part of the file, within one line.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Span {
    /// The line number, starting at 1.
    pub line: usize,
    /// The column of the first character, starting at 1 and counted in characters.
    pub column: usize,
    /// The byte range in the whole text. Both ends are character boundaries.
    pub bytes: Range<usize>,
}

impl Diagnostic {
    pub(super) fn error(span: Span, message: impl Into<String>) -> Self {
        Self { severity: Severity::Error, message: message.into(), span, help: None }
    }

    pub(super) fn warning(span: Span, message: impl Into<String>) -> Self {
        Self { severity: Severity::Warning, message: message.into(), span, help: None }
    }

    pub(super) fn help(mut self, help: impl Into<String>) -> Self {
        self.help = Some(help.into());
        self
    }
}

impl Severity {
    /// `"error"` or `"warning"`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warning => "warning",
        }
    }
}
