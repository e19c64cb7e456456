//! The findings of `doctor`, as a list for people and as JSON.

use crate::output::words::wrapped;
use rustguard_quick::conf::Severity;
use serde::Serialize;
use std::{fmt::Write as _, path::PathBuf};

/// The column in which the texts begin: two spaces, the longest verdict and two spaces.
const INDENT: usize = 11;

/// The result of one check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Verdict {
    /// All is well.
    Fine,
    /// The check was not possible.
    Unknown,
    /// The tunnel may work, but perhaps not as intended.
    Warning,
    /// The tunnel, or a part of it, does not work.
    Wrong,
}

impl Verdict {
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Fine => "fine",
            Self::Unknown => "unknown",
            Self::Warning => "warning",
            Self::Wrong => "wrong",
        }
    }
}

impl From<Severity> for Verdict {
    fn from(severity: Severity) -> Self {
        match severity {
            Severity::Warning => Self::Warning,
            Severity::Error => Self::Wrong,
        }
    }
}

/// One check and its result.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Finding {
    pub(super) verdict: Verdict,
    /// The name of the check. It stays the same from version to version, for scripts.
    pub(super) check: &'static str,
    pub(super) text: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) remedy: Option<String>,
}

impl Finding {
    pub(super) fn fine(check: &'static str, text: impl Into<String>) -> Self {
        Self { verdict: Verdict::Fine, check, text: text.into(), remedy: None }
    }

    pub(super) fn unknown(check: &'static str, text: impl Into<String>) -> Self {
        Self { verdict: Verdict::Unknown, check, text: text.into(), remedy: None }
    }

    pub(super) fn warning(check: &'static str, text: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { verdict: Verdict::Warning, check, text: text.into(), remedy: Some(remedy.into()) }
    }

    pub(super) fn wrong(check: &'static str, text: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { verdict: Verdict::Wrong, check, text: text.into(), remedy: Some(remedy.into()) }
    }
}

/// The findings about one thing: this machine, or a tunnel.
#[derive(Debug, Serialize)]
pub(super) struct Section {
    /// `this machine`, or the name of the interface.
    pub(super) about: String,
    /// The configuration file of the tunnel, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) file: Option<PathBuf>,
    pub(super) findings: Vec<Finding>,
}

impl Section {
    /// The section as a list, so many columns wide.
    pub(super) fn page(&self, width: usize) -> String {
        let mut text = match &self.file {
            Some(file) => format!("{} ({})\n", self.about, file.display()),
            None => format!("{}\n", self.about),
        };
        for finding in &self.findings {
            let mut lines = wrapped(&finding.text, width.saturating_sub(INDENT)).into_iter();
            let first = lines.next().unwrap_or_default();
            // Writing to a String cannot fail.
            let _ = writeln!(text, "  {:<7}  {first}", finding.verdict.word());
            for line in lines.chain(
                finding.remedy.iter().flat_map(|remedy| wrapped(&format!("-> {remedy}"), width.saturating_sub(INDENT))),
            ) {
                let _ = writeln!(text, "{:INDENT$}{line}", "");
            }
        }
        text
    }

    pub(super) fn count(&self, verdict: Verdict) -> usize {
        self.findings.iter().filter(|finding| finding.verdict == verdict).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::columns::WIDTH;

    #[test]
    fn a_section_fits_the_terminal() {
        let section = Section {
            about: "wg0".to_owned(),
            file: Some("/etc/wireguard/wg0.conf".into()),
            findings: vec![
                Finding::fine("link", "the interface is up"),
                Finding::wrong("route", "word ".repeat(40), "ip route add 10.0.0.0/8 dev wg0"),
            ],
        };
        let page = section.page(WIDTH);
        assert!(
            page.starts_with("wg0 (/etc/wireguard/wg0.conf)\n  fine     the interface is up\n  wrong    word word")
        );
        assert!(page.lines().all(|line| line.len() <= WIDTH), "{page}");
        let narrow = section.page(40);
        assert!(narrow.lines().skip(1).all(|line| line.len() <= 40), "{narrow}");
        assert!(page.ends_with("\n           -> ip route add 10.0.0.0/8 dev wg0\n"), "{page}");
        assert_eq!((section.count(Verdict::Wrong), section.count(Verdict::Warning)), (1, 0));
    }

    #[test]
    fn a_file_steers_no_terminal() {
        assert_eq!(wrapped("a\u{1b}[2Jb\nc", WIDTH), [r"a\u{1b}[2Jb c"]);
    }

    #[test]
    fn a_long_word_stays_whole() {
        let key = "k".repeat(100);
        assert_eq!(wrapped(&format!("a {key} b"), WIDTH), ["a", &key, "b"]);
    }
}
