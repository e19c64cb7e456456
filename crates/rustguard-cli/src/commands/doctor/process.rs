//! Checks of a tunnel's configuration file, and of the process that runs it.

use super::{finding::Finding, machine};
use crate::{commands::check::Source, one, uapi};
use rustguard_quick::{
    SaveTunnelError, TunnelFile,
    conf::{self, Config},
    run_file,
};
use std::{
    fs, io,
    path::{Path, PathBuf},
};

/// The most remarks about a file that are listed.
const MOST: usize = 5;

/// Reads and checks the file. The list has its errors and warnings.
pub(super) fn file(file: PathBuf, findings: &mut Vec<Finding>) -> Option<Config> {
    let shown = file.display().to_string();
    let source = match Source::read(file) {
        Ok(source) => source,
        // The message has the remedy.
        Err(error) if is_denied(&error) => {
            findings.push(Finding::unknown("file", format!("{error:#}")));
            return None;
        }
        Err(error) => {
            findings.push(Finding::wrong(
                "file",
                format!("{error:#}"),
                "give the path of a readable configuration file",
            ));
            return None;
        }
    };
    let (config, diagnostics) = source.parse();
    findings.extend(source.remarks.iter().map(|remark| Finding::warning("file", &*remark.message, &*remark.help)));
    if diagnostics.is_empty() {
        findings.push(Finding::fine("file", "the configuration file has no mistakes"));
    }
    for diagnostic in diagnostics.iter().take(MOST) {
        findings.push(Finding {
            verdict: diagnostic.severity.into(),
            check: "file",
            text: format!("line {}: {}", diagnostic.span.line, diagnostic.message),
            remedy: diagnostic.help.clone(),
        });
    }
    if diagnostics.len() > MOST {
        let more = diagnostics.len() - MOST;
        findings.push(Finding::unknown("file", format!("{more} more remarks: rustguard check {shown}")));
    }
    config
}

fn is_denied(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::PermissionDenied)
}

/// Asks the process that runs the tunnel.
pub(super) fn process(name: &str, file: Option<&Path>, findings: &mut Vec<Finding>) -> Option<uapi::Device> {
    let runner = run_file::running(name);
    match uapi::get(name) {
        Ok(device) => {
            findings.push(match runner {
                Some(runner) => Finding::fine("process", format!("{runner} runs the tunnel, and answers")),
                None => Finding::fine("process", "a process runs the tunnel, and answers"),
            });
            findings.extend(runner.and_then(|runner| outdated(name, runner.process?)));
            findings.extend(edited(name));
            Some(device)
        }
        Err(error) => {
            findings.push(match runner {
                Some(runner) if machine::may_administer() => {
                    let end =
                        runner.process.map_or_else(String::new, |id| format!("; if that does not end it: kill {id}"));
                    Finding::wrong(
                        "process",
                        format!("{runner} runs the tunnel, but does not answer: {error:#}"),
                        format!("start it again: rustguard down {name}{end}"),
                    )
                }
                Some(runner) => Finding::unknown("process", format!("{runner} runs the tunnel: {error:#}")),
                None if one::is_hidden(name) => {
                    Finding::unknown("process", "this user may not see whether the tunnel is up: run doctor as root")
                }
                None if let Some(file) = file => Finding::wrong("process", "the tunnel is not up", start(name, file)),
                None => Finding::wrong(
                    "process",
                    format!("there is no tunnel {name}, and no configuration file for it"),
                    "`rustguard show interfaces` lists the tunnels that are up",
                ),
            });
            None
        }
    }
}

/// The command that starts the tunnel of a file. A name stands for a file in a few folders only.
fn start(name: &str, file: &Path) -> String {
    if conf::resolve_name(name).is_ok_and(|(known, _)| known == file) {
        format!("start it: rustguard up {name}, or systemctl start rustguard@{name}")
    } else {
        format!("start it: rustguard up {}", file.display())
    }
}

/// Whether the file was edited after the tunnel had read it.
fn edited(name: &str) -> Option<Finding> {
    let error = TunnelFile::open(name).err()?;
    matches!(error, SaveTunnelError::ChangedSince { .. }).then(|| {
        Finding::warning(
            "file",
            "the file was changed after the tunnel had read it, so the tunnel runs with the old settings",
            format!("take the changes over: rustguard reload {name}"),
        )
    })
}

/// Whether the program on disk differs from the running program.
fn outdated(name: &str, process: i32) -> Option<Finding> {
    let program = fs::read_link(format!("/proc/{process}/exe")).ok()?;
    program.to_string_lossy().ends_with(" (deleted)").then(|| {
        Finding::warning(
            "version",
            "the program was replaced since the tunnel started, so an older version is running",
            format!("start it again: rustguard down {name}, then rustguard up {name}"),
        )
    })
}
