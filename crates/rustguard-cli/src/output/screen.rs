//! Pages that are shown anew every second.

use anyhow::Result;
use std::{
    io::{self, IsTerminal as _, Write as _},
    time::Duration,
};

/// Shows a page once, or with `watch` every second until it cannot be made or written any more.
pub(crate) fn show(watch: bool, mut page: impl FnMut() -> Result<String>) -> Result<()> {
    if !watch {
        let page = page()?;
        write!(io::stdout(), "{page}")?;
        return Ok(());
    }
    loop {
        let page = page()?;
        let mut out = io::stdout().lock();
        if out.is_terminal() {
            // From the upper left corner, each line to its end, then the rest: clearing first would flicker.
            write!(out, "\x1b[H{}\x1b[J", page.replace('\n', "\x1b[K\n"))?;
        } else {
            writeln!(out, "{page}")?;
        }
        out.flush()?;
        drop(out);
        std::thread::sleep(Duration::from_secs(1));
    }
}
