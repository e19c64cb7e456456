//! What is wrong with a file, and where.

use std::ops::Range;

/// One thing that is wrong, or looks wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Diagnostic {
    /// Whether the file can be used all the same.
    pub severity: Severity,
    /// What is wrong, in one line that names the key and the value.
    pub message: String,
    /// The text it is about.
    pub span: Span,
    /// What to do about it.
    pub help: Option<String>,
}

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// The file works, but perhaps not as meant.
    Warning,
    /// The file cannot be used.
    Error,
}

/// A piece of the file, within one line.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Span {
    /// The line, from 1.
    pub line: usize,
    /// The column of the first character, from 1, in characters.
    pub column: usize,
    /// Its bytes in the whole text; on character boundaries.
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
