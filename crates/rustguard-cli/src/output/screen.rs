//! Pages that are updated every second.

use super::columns::WIDTH;
use anyhow::Result;
use std::{
    io::{self, IsTerminal as _, Write as _},
    time::Duration,
};

/// The least width of a page: the width of an upright phone.
const NARROWEST: usize = 40;

/// The columns of the terminal; `None` if the output is not a terminal.
pub(crate) fn columns() -> Option<usize> {
    let columns = rustix::termios::tcgetwinsize(io::stdout()).map_or(0, |size| usize::from(size.ws_col));
    (columns > 0).then_some(columns)
}

/// The width of a page: the width of the terminal, or else 80 columns.
pub(crate) fn width() -> usize {
    columns().map_or(WIDTH, |columns| columns.max(NARROWEST))
}

/// The width of a list that scripts read as well: without a terminal it is unlimited, and nothing is cut.
pub(crate) fn width_of_list() -> usize {
    if io::stdout().is_terminal() { width() } else { usize::MAX }
}

/// The lines of the terminal, without one for the prompt. `None` if the output is not a terminal, and takes any length.
pub(crate) fn height() -> Option<usize> {
    let rows = rustix::termios::tcgetwinsize(io::stdout()).map_or(0, |size| usize::from(size.ws_row));
    (rows > 0).then(|| rows - 1)
}

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

/// Whether a terminal understands control sequences. A dumb terminal gets each page below the previous page.
pub(crate) fn can_overwrite() -> bool {
    std::env::var_os("TERM").is_some_and(|term| !term.is_empty() && term != "dumb")
}
