//! Colours. [`Palette::of`] a stream decides for the whole program, and clap's help follows the same rules.
//!
//! The rules come from anstream, which clap uses: `NO_COLOR` switches colours off, `CLICOLOR_FORCE` on, `CLICOLOR=0`
//! and `TERM=dumb` off, and otherwise only a terminal is coloured. `WG_COLOR_MODE` of wireguard-tools comes first,
//! because it is the more specific request.

use anstream::{AutoStream, ColorChoice, stream::RawStream};
use anstyle::{AnsiColor, Style};
use std::fmt::{self, Display};

/// Applies `WG_COLOR_MODE` (always, never, auto) to all streams of this process. Has to be called before anything is
/// written.
pub(crate) fn init() {
    match std::env::var("WG_COLOR_MODE").as_deref() {
        Ok("always") => ColorChoice::Always.write_global(),
        Ok("never") => ColorChoice::Never.write_global(),
        // wg(8) treats all other values as `auto`.
        _ => {}
    }
}

/// The colours for one stream, or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Palette {
    coloured: bool,
}

impl Palette {
    /// No colours.
    #[cfg(test)]
    pub(crate) const PLAIN: Self = Self { coloured: false };
    /// Colours in any case.
    #[cfg(test)]
    pub(crate) const COLOURED: Self = Self { coloured: true };

    /// The colours that the environment and the user allow for `stream`.
    pub(crate) fn of(stream: &impl RawStream) -> Self {
        Self { coloured: AutoStream::choice(stream) != ColorChoice::Never }
    }

    /// Whether there are colours, for libraries that colour by themselves.
    pub(crate) fn is_coloured(self) -> bool {
        self.coloured
    }

    /// Headings and keys.
    pub(crate) fn strong<T: Display>(self, text: T) -> Painted<T> {
        self.paint(Style::new().bold(), text)
    }

    /// Working things, and the names of interfaces.
    pub(crate) fn good<T: Display>(self, text: T) -> Painted<T> {
        self.paint(AnsiColor::Green.on_default(), text)
    }

    /// Things that need attention, and the names of peers.
    pub(crate) fn warning<T: Display>(self, text: T) -> Painted<T> {
        self.paint(AnsiColor::Yellow.on_default(), text)
    }

    /// Failures.
    pub(crate) fn bad<T: Display>(self, text: T) -> Painted<T> {
        self.paint(AnsiColor::Red.on_default(), text)
    }

    fn paint<T: Display>(self, style: Style, text: T) -> Painted<T> {
        Painted { style: if self.coloured { style } else { Style::new() }, text }
    }
}

/// A text in a colour. Width and alignment (`{:>8}`) count only the text.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Painted<T> {
    style: Style,
    text: T,
}

impl<T> Painted<T> {
    /// Also bold.
    pub(crate) fn bold(mut self) -> Self {
        if self.style != Style::new() {
            self.style = self.style.bold();
        }
        self
    }
}

impl<T: Display> Display for Painted<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.style.render())?;
        self.text.fmt(f)?;
        write!(f, "{}", self.style.render_reset())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_surround_the_text_and_do_not_count_as_width() {
        assert_eq!(format!("[{:>4}]", Palette::PLAIN.good("up")), "[  up]");
        assert_eq!(format!("[{:>4}]", Palette::COLOURED.bad("up")), "[\u{1b}[31m  up\u{1b}[0m]");
        assert_eq!(Palette::COLOURED.good("up").bold().to_string(), "\u{1b}[1m\u{1b}[32mup\u{1b}[0m");
        assert_eq!(Palette::PLAIN.good("up").bold().to_string(), "up");
    }
}
