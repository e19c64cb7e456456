//! `rustguard check`, and the function with which `up` reads its file. Both show diagnostics in the style of a
//! compiler.

pub(super) mod place;

use crate::{arguments::tunnel::Check, output::colour::Palette, process::log};
use annotate_snippets::{AnnotationKind, Group, Level, Renderer, Snippet};
use anyhow::{Context as _, Result, bail};
use rustguard_quick::{
    conf::{self, Config, Diagnostic, Severity},
    host,
};
use serde::Serialize;
use std::{
    fmt,
    fs::File,
    io::{self, Read as _, Write as _},
    ops::Range,
    path::{Path, PathBuf},
    process::ExitCode,
};
use zeroize::Zeroizing;

/// The largest file that is read, in bytes. 100,000 peers take far less; reading `/dev/zero` ends at this limit.
const MAX_FILE: u64 = 64 << 20;
/// The most diagnostics that are shown for one file. A file with more mistakes is probably not a configuration file.
const MAX_SHOWN: usize = 20;

/// The configuration has errors, and they were already written to standard error. The process only has to exit with
/// status 1.
#[derive(Debug)]
pub(crate) struct Reported;

impl fmt::Display for Reported {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the configuration has errors, shown above")
    }
}

impl std::error::Error for Reported {}

/// Reads a configuration and shows its diagnostics on standard error.
///
/// # Errors
/// [`Reported`] if the file has errors. Other errors if it cannot be read, or if every user of this machine may change
/// it.
pub(crate) fn load(path: &Path) -> Result<(Config, conf::File)> {
    let file = open(path)?;
    let config = shown(path, file.text())?.ok_or(Reported)?;
    Ok((config, file))
}

/// Reads a configuration, which may have mistakes.
///
/// # Errors
/// As [`load`], without [`Reported`].
pub(crate) fn open(path: &Path) -> Result<conf::File> {
    let source = Source::read(path.to_owned())?;
    // wg-quick only warns if other users can read the file. A user who can change it can run commands as root.
    if conf::writable_by_others(path).unwrap_or(false) {
        bail!(
            "everybody on this machine may change {0}, and with it the commands that it runs: chmod 600 {0}",
            path.display()
        );
    }
    Ok(conf::File::new(path, source.text))
}

/// Shows the diagnostics of a text on standard error, as diagnostics of the file at `path`. Returns the configuration
/// if there is no error.
pub(crate) fn shown(path: &Path, text: &str) -> io::Result<Option<Config>> {
    let source = Source::new(path.to_owned(), Zeroizing::new(text.to_owned()));
    let (config, diagnostics) = source.parse();
    source.show(&diagnostics)?;
    Ok(config)
}

/// Runs `check`.
pub(crate) fn run(arguments: &Check) -> Result<ExitCode> {
    let mut unreadable = false;
    let mut worst = None;
    let mut reports = Vec::new();
    for target in &arguments.targets {
        let source = match conf::resolve_name(target).map_err(Into::into).and_then(|(path, _)| Source::read(path)) {
            Ok(source) => source,
            Err(error) => {
                unreadable = true;
                if arguments.json {
                    reports.push(Report {
                        file: target.clone(),
                        unreadable: Some(format!("{error:#}")),
                        diagnostics: vec![],
                        mtu: None,
                    });
                } else {
                    writeln!(io::stderr(), "rustguard: {error:#}")?;
                }
                continue;
            }
        };
        let (config, diagnostics) = conf::parse(&source.text);
        let mtu = config.as_ref().and_then(explain_mtu);
        let severities = diagnostics.iter().map(|diagnostic| diagnostic.severity);
        let remarked = (!source.remarks.is_empty()).then_some(Severity::Warning);
        worst = worst.max(severities.chain(remarked).max());
        if arguments.json {
            reports.push(source.report(&diagnostics, mtu));
        } else {
            source.show(&diagnostics)?;
            if let Some(mtu) = mtu {
                writeln!(io::stdout(), "{}: one MTU for all ways, also through a peer: {mtu}", source.path.display())?;
            }
            if let Some(note) = place::note(&source.path) {
                writeln!(io::stdout(), "{note}")?;
            }
        }
    }
    if arguments.json {
        let mut out = io::stdout().lock();
        serde_json::to_writer_pretty(&mut out, &reports)?;
        writeln!(out)?;
    }
    let fails = worst >= Some(if arguments.strict { Severity::Warning } else { Severity::Error });
    Ok(ExitCode::from(if unreadable { 2 } else { u8::from(fails) }))
}

/// The MTU of a tunnel whose datagrams may travel through a peer, and why it fits. Without one in the file, `up` takes
/// less where a route to an endpoint is smaller.
fn explain_mtu(config: &Config) -> Option<String> {
    config.leads_through_peers().then(|| host::explain_mtu_through_peers(config.interface.mtu)).flatten()
}

/// A file that was read.
pub(crate) struct Source {
    path: PathBuf,
    text: Zeroizing<String>,
    /// Warnings about the file as a whole.
    pub(crate) remarks: Vec<Remark>,
}

/// A warning about a file as a whole.
pub(crate) struct Remark {
    pub(crate) message: String,
    pub(crate) help: String,
}

/// A mistake in a file of any language.
pub(crate) struct Shown<'d> {
    /// Whether it is more than a warning.
    pub(crate) error: bool,
    pub(crate) message: &'d str,
    pub(crate) line: usize,
    pub(crate) column: usize,
    /// The bytes in the text, within one line.
    pub(crate) bytes: Range<usize>,
    pub(crate) help: Option<&'d str>,
}

impl<'d> From<&'d Diagnostic> for Shown<'d> {
    fn from(diagnostic: &'d Diagnostic) -> Self {
        Self {
            error: diagnostic.severity == Severity::Error,
            message: &diagnostic.message,
            line: diagnostic.span.line,
            column: diagnostic.span.column,
            bytes: diagnostic.span.bytes.clone(),
            help: diagnostic.help.as_deref(),
        }
    }
}

/// Shows each mistake on standard error with its line of the text.
pub(crate) fn show_all<'d>(
    path: &Path,
    text: &str,
    diagnostics: impl ExactSizeIterator<Item = Shown<'d>>,
) -> io::Result<()> {
    let mut err = io::stderr().lock();
    let renderer = if Palette::of(&io::stderr()).is_coloured() { Renderer::styled() } else { Renderer::plain() };
    let (path, count) = (path.to_string_lossy(), diagnostics.len());
    for Shown { error, message, line, bytes, help, .. } in diagnostics.take(MAX_SHOWN) {
        let level = if error { Level::ERROR } else { Level::WARNING };
        // The renderer processes every line that it gets, so it gets only the lines of the diagnostic.
        let from = text[..bytes.start].rfind('\n').map_or(0, |at| at + 1);
        let to = text[bytes.end..].find('\n').map_or(text.len(), |at| bytes.end + at);
        let annotation = AnnotationKind::Primary.span(bytes.start - from..bytes.end - from);
        let lines = Snippet::source(&text[from..to]).line_start(line);
        let snippet = lines.path(&*path).annotation(annotation);
        let group = level.primary_title(message).element(snippet);
        let help = help.map(|help| Level::HELP.message(help));
        writeln!(err, "{}\n", renderer.render(&[group.elements(help)]))?;
    }
    if let Some(more) = count.checked_sub(MAX_SHOWN).filter(|&more| more > 0) {
        writeln!(err, "and {more} more")?;
    }
    Ok(())
}

/// One file in the output of `--json`.
#[derive(Serialize)]
pub(crate) struct Report {
    file: String,
    /// The reason why the file could not be read. In this case there are no diagnostics.
    #[serde(skip_serializing_if = "Option::is_none")]
    unreadable: Option<String>,
    diagnostics: Vec<JsonDiagnostic>,
    /// The MTU of a tunnel with ways through peers, and why it fits. Missing for others, and for one that is too
    /// large.
    #[serde(skip_serializing_if = "Option::is_none")]
    mtu: Option<String>,
}

/// A [`Diagnostic`], or a warning about the whole file, which has no line, column or length.
#[derive(Serialize)]
struct JsonDiagnostic {
    severity: &'static str,
    message: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    line: Option<usize>,
    /// From 1, in characters.
    #[serde(skip_serializing_if = "Option::is_none")]
    column: Option<usize>,
    /// In characters.
    #[serde(skip_serializing_if = "Option::is_none")]
    length: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    help: Option<String>,
}

impl Report {
    /// The report about a text.
    pub(crate) fn new(path: &Path, text: &str, diagnostics: &[Shown<'_>]) -> Self {
        let diagnostics = diagnostics.iter().map(|shown| JsonDiagnostic {
            severity: if shown.error { Severity::Error } else { Severity::Warning }.name(),
            message: shown.message.to_owned(),
            line: Some(shown.line),
            column: Some(shown.column),
            length: Some(text[shown.bytes.clone()].chars().count()),
            help: shown.help.map(str::to_owned),
        });
        Self {
            file: path.to_string_lossy().into_owned(),
            unreadable: None,
            diagnostics: diagnostics.collect(),
            mtu: None,
        }
    }
}

impl Source {
    /// Reads a file.
    ///
    /// # Errors
    /// The file cannot be read, or is no text.
    pub(crate) fn read(path: PathBuf) -> Result<Self> {
        let unreadable = || format!("cannot read {}", path.display());
        let mut bytes = Zeroizing::new(Vec::new());
        match File::open(&path).and_then(|file| file.take(MAX_FILE + 1).read_to_end(&mut bytes)) {
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                return Err(error).with_context(|| format!("{}; run as root, or with sudo", unreadable()));
            }
            Err(error) => return Err(error).with_context(unreadable),
        }
        if bytes.len() as u64 > MAX_FILE {
            bail!("{} is larger than {} MiB, so not a configuration file", path.display(), MAX_FILE >> 20);
        }
        let text = conf::decode(&bytes).with_context(|| path.display().to_string())?;
        Ok(Self::new(path, text))
    }

    fn new(path: PathBuf, text: Zeroizing<String>) -> Self {
        // Another file, for example `/etc/passwd`, may have to be readable.
        let exposed = conf::is_configuration(&text) && conf::readable_by_others(&path).unwrap_or(false);
        let exposure = exposed.then(|| Remark {
            message: format!("{} is readable by others and contains a private key", path.display()),
            help: format!("chmod 600 {}", path.display()),
        });
        let remarks = exposure.into_iter().chain(place::remark(&path)).collect();
        Self { path, text, remarks }
    }

    /// Shows each diagnostic on standard error with its line. Secrets in the line are replaced by stars.
    fn show(&self, diagnostics: &[Diagnostic]) -> io::Result<()> {
        if !log::is_for_people() {
            self.log(diagnostics);
            return Ok(());
        }
        let mut err = io::stderr().lock();
        let renderer = if Palette::of(&io::stderr()).is_coloured() { Renderer::styled() } else { Renderer::plain() };
        for Remark { message, help } in &self.remarks {
            let group = Group::with_title(Level::WARNING.primary_title(message)).element(Level::HELP.message(help));
            writeln!(err, "{}\n", renderer.render(&[group]))?;
        }
        drop(err);
        show_all(&self.path, &conf::redact(&self.text), diagnostics.iter().map(Shown::from))
    }

    /// The configuration, if there are no errors, and all diagnostics.
    pub(crate) fn parse(&self) -> (Option<Config>, Vec<Diagnostic>) {
        conf::parse(&self.text)
    }

    /// The same for the journal and for programs: an entry for each diagnostic.
    fn log(&self, diagnostics: &[Diagnostic]) {
        let file = self.path.to_string_lossy();
        for Remark { message, help } in &self.remarks {
            tracing::warn!(file = &*file, help, "{message}");
        }
        for Diagnostic { severity, message, span, help, .. } in diagnostics.iter().take(MAX_SHOWN) {
            let (line, column, help) = (span.line, span.column, help.as_deref());
            match severity {
                Severity::Error => tracing::error!(file = &*file, line, column, help, "{message}"),
                Severity::Warning => tracing::warn!(file = &*file, line, column, help, "{message}"),
            }
        }
    }

    fn report(&self, diagnostics: &[Diagnostic], mtu: Option<String>) -> Report {
        let remarks = self.remarks.iter().map(|Remark { message, help }| JsonDiagnostic {
            severity: Severity::Warning.name(),
            message: message.clone(),
            line: None,
            column: None,
            length: None,
            help: Some(help.clone()),
        });
        let diagnostics: Vec<_> = diagnostics.iter().map(Shown::from).collect();
        let mut report = Report { mtu, ..Report::new(&self.path, &self.text, &diagnostics) };
        report.diagnostics.splice(0..0, remarks);
        report
    }
}
