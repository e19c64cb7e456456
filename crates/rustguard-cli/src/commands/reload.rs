//! `rustguard reload`: a running tunnel takes over its edited file.

use super::check;
use crate::{arguments::tunnel::Reload, escape::escape, one, output::words::UNEXPECTED_ANSWER};
use anyhow::{Context as _, Result, bail};
use rustguard_quick::{
    conf,
    reload::{self, Answer, Request, ask},
};
use rustguard_serve::{is_served, request};
use serde::Serialize;
use std::{
    fmt::Display,
    io::{self, Write as _},
    path::Path,
};

/// The output of `--json`.
#[derive(Serialize)]
struct Report<'a, T> {
    interface: &'a str,
    file: &'a Path,
    /// Whether the changes were made. They were not in a dry run.
    applied: bool,
    changes: &'a [T],
}

/// Asks the process of the tunnel, and prints the changes.
pub(crate) fn run(arguments: &Reload) -> Result<()> {
    let target = &one::tunnel(arguments.target.as_deref())?;
    let mut request = reload::Reload::new().dry_run(arguments.dry_run);
    let interface = if target.contains('/') || target.ends_with(".conf") {
        let (path, interface) = conf::resolve_name(target)?;
        // The process has another working directory, and perhaps may not read the user's files.
        check::load(&path)?;
        request = request.file(std::path::absolute(&path).with_context(|| format!("cannot open {}", path.display()))?);
        interface
    } else {
        rustguard_device::interface::check_name(target)?;
        target.clone()
    };
    if arguments.adopt {
        return adopt(arguments, &interface);
    }
    if arguments.restored || (request.file.is_none() && is_served(&interface)) {
        return serve(arguments, &interface);
    }
    match ask(&interface, &Request::Reload(request))? {
        Answer::Changes { file, changes } => print(arguments, &interface, &file, &changes),
        Answer::Refused { error, invalid } => {
            if let Some(file) = invalid {
                // Shows every mistake with its line.
                check::load(&file)?;
            }
            bail!("{error}")
        }
        _ => bail!(UNEXPECTED_ANSWER),
    }
}

/// Asks the process of a `serve`, which has settings in place of a configuration file.
fn serve(arguments: &Reload, interface: &str) -> Result<()> {
    let request = request::Request::Reload { dry_run: arguments.dry_run, restored: arguments.restored };
    match rustguard_serve::ask(interface, &request)? {
        request::Answer::Reloaded(reloaded) => print(arguments, interface, &reloaded.file, &reloaded.changes),
        _ => bail!(UNEXPECTED_ANSWER),
    }
}

/// Has a `serve` adopt the newest list of members.
fn adopt(arguments: &Reload, interface: &str) -> Result<()> {
    let request::Answer::Adopted(adopted) =
        rustguard_serve::ask(interface, &request::Request::Adopt { dry_run: arguments.dry_run })?
    else {
        bail!(UNEXPECTED_ANSWER)
    };
    let mut out = io::stdout().lock();
    if arguments.json {
        serde_json::to_writer_pretty(&mut out, &adopted)?;
        writeln!(out)?;
        return Ok(());
    }
    for line in &adopted.changes {
        writeln!(out, "{}", escape(&line.to_string()))?;
    }
    for warning in &adopted.warnings {
        writeln!(io::stderr(), "{}", escape(warning))?;
    }
    let list = rustguard_serve::shown_number(adopted.list);
    match (adopted.adopted, adopted.changes.is_empty()) {
        (false, true) => writeln!(
            out,
            "{interface} has what list {list} says; to go on after it: rustguard reload {interface} --adopt"
        )?,
        (false, false) => {
            writeln!(out, "\nnothing was changed; to adopt list {list}: rustguard reload {interface} --adopt")?;
        }
        (true, _) => writeln!(out, "\n{interface} goes on after list {list}, and the machines are told")?,
    }
    Ok(())
}

fn print<T: Serialize + Display>(arguments: &Reload, interface: &str, file: &Path, changes: &[T]) -> Result<()> {
    let mut out = io::stdout().lock();
    if arguments.json {
        serde_json::to_writer_pretty(&mut out, &Report { interface, file, applied: !arguments.dry_run, changes })?;
        writeln!(out)?;
        return Ok(());
    }
    for line in changes {
        writeln!(out, "{}", escape(&line.to_string()))?;
    }
    let file = file.display();
    match (changes.is_empty(), arguments.dry_run) {
        (true, _) => writeln!(out, "{interface} runs as {file} says; nothing to change")?,
        (false, true) => {
            let target = arguments.target.as_deref().unwrap_or(interface);
            writeln!(out, "\nnothing was changed; to take {file} over: rustguard reload {target}")?;
        }
        (false, false) => {}
    }
    Ok(())
}
