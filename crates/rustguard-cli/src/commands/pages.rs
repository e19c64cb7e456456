//! `completions` and `man`, generated from the same definition as `--help`.

use crate::arguments;
use anyhow::{Context as _, Result};
use std::{
    io::{self, Write as _},
    path::Path,
};

/// Prints a shell's completions.
pub(crate) fn completions(shell: clap_complete::Shell) -> Result<()> {
    // clap_complete panics when a write fails, so it writes into memory.
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut arguments::command(), "rustguard", &mut script);
    io::stdout().write_all(&script)?;
    Ok(())
}

/// Prints rustguard(1), or writes it and one page for each command into a folder.
pub(crate) fn man(dir: Option<&Path>) -> Result<()> {
    let command = arguments::command();
    let Some(dir) = dir else {
        clap_mangen::Man::new(command).render(&mut io::stdout())?;
        return Ok(());
    };
    std::fs::create_dir_all(dir)
        .and_then(|()| clap_mangen::generate_to(command, dir))
        .with_context(|| format!("cannot write the manual to {}", dir.display()))
}
