//! `rustguard reload`: a running tunnel takes over its edited file.

use super::check;
use crate::{arguments::Reload, output::escape::escape};
use anyhow::{Context as _, Result, bail};
use rustguard_quick::{
    conf,
    reload::{Answer, Line, Wish, ask},
};
use serde::Serialize;
use std::{
    io::{self, Write as _},
    path::Path,
};

/// The output of `--json`.
#[derive(Serialize)]
struct Report<'a> {
    interface: &'a str,
    file: &'a Path,
    /// Whether the changes were made. They were not in a dry run.
    applied: bool,
    changes: &'a [Line],
}

/// Asks the process of the tunnel, and prints the changes.
pub(crate) fn run(arguments: &Reload) -> Result<()> {
    let target = &arguments.target;
    let mut wish = Wish::new().dry_run(arguments.dry_run);
    let interface = if target.contains('/') || target.ends_with(".conf") {
        let (path, interface) = conf::resolve_name(target)?;
        // The process has another working directory, and perhaps may not read what this user may.
        check::load(&path)?;
        wish = wish.file(std::path::absolute(&path).with_context(|| format!("cannot open {}", path.display()))?);
        interface
    } else {
        rustguard_device::interface::check_name(target)?;
        target.clone()
    };
    match ask(&interface, &wish)? {
        Answer::Changes { file, changes } => print(arguments, &interface, &file, &changes),
        Answer::Refused { error, invalid } => {
            if let Some(file) = invalid {
                // Shows every mistake with its line.
                check::load(&file)?;
            }
            bail!("{error}")
        }
        _ => bail!("{interface} gave an unexpected answer; is another version of rustguard running?"),
    }
}

fn print(arguments: &Reload, interface: &str, file: &Path, changes: &[Line]) -> Result<()> {
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
            writeln!(out, "\nnothing was changed; to take {file} over: rustguard reload {}", arguments.target)?;
        }
        (false, false) => {}
    }
    Ok(())
}
