//! Pages that are updated every second.

use anyhow::Result;
use std::{
    io::{self, IsTerminal as _, Write as _},
    time::Duration,
};

/// Shows a page once. With `watch`, shows it every second until an error.
pub(crate) fn show(watch: bool, mut page: impl FnMut() -> Result<String>) -> Result<()> {
    if !watch {
        let page = page()?;
        write!(io::stdout(), "{page}")?;
        return Ok(());
    }
    loop {
        let page = page()?;
        let mut out = io::stdout().lock();
        if out.is_terminal() && can_overwrite() {
            // The page is overwritten from the upper left corner. Each line is cleared to its end, and then the rest of
            // the screen. Clearing the whole screen first would flicker.
            write!(out, "\x1b[H{}\x1b[J", page.replace('\n', "\x1b[K\n"))?;
        } else {
            writeln!(out, "{page}")?;
        }
        out.flush()?;
        drop(out);
        std::thread::sleep(Duration::from_secs(1));
    }
}

/// Whether a terminal understands control sequences. Dumb ones get each page below the one before.
pub(crate) fn can_overwrite() -> bool {
    std::env::var_os("TERM").is_some_and(|term| !term.is_empty() && term != "dumb")
}
