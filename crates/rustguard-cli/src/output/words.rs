//! Numbers and times in words for people, and words that several commands share.

use crate::escape::escape;
use rustguard_serve::Reach;
use std::time::{Duration, SystemTime};

/// The error for an answer to another request. It does not show the answer, which may contain a secret.
pub(crate) const UNEXPECTED_ANSWER: &str = "the server gave an answer that does not belong to the request";

/// The time since the Unix epoch, by this machine's clock.
pub(crate) fn now() -> Duration {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
}

/// The time since `then`, in words.
pub(crate) fn ago(now: Duration, then: Duration) -> String {
    match now.as_secs().checked_sub(then.as_secs()) {
        None => "in the future: the clock has been set back".to_owned(),
        Some(0) => "now".to_owned(),
        Some(seconds) => format!("{} ago", span(seconds)),
    }
}

/// A length of time in words. Parts that are zero are left out.
pub(crate) fn span(seconds: u64) -> String {
    let (minutes, seconds) = (seconds / 60, seconds % 60);
    let (hours, minutes) = (minutes / 60, minutes % 60);
    let (days, hours) = (hours / 24, hours % 24);
    let parts = [(days, "day"), (hours, "hour"), (minutes, "minute"), (seconds, "second")];
    let parts = parts.into_iter().filter(|&(count, _)| count > 0);
    let words: Vec<_> = parts.map(|(n, unit)| format!("{n} {unit}{}", if n == 1 { "" } else { "s" })).collect();
    words.join(", ")
}

/// A length of time in its largest unit: `5s`, `10m`, `3h`, `80d`.
pub(crate) fn short_span(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3_600 => format!("{}m", seconds / 60),
        3_600..86_400 => format!("{}h", seconds / 3_600),
        _ => format!("{}d", seconds / 86_400),
    }
}

/// A number of bytes in at most six characters: `3`, `1.5K`, `120M`.
pub(crate) fn short_bytes(n: u64) -> String {
    const UNITS: [&str; 6] = ["K", "M", "G", "T", "P", "E"];
    if n < 1024 {
        return n.to_string();
    }
    // f64 is exact enough for two digits of any u64.
    let mut amount = n as f64 / 1024.0;
    let mut unit = 0;
    while amount >= 1000.0 && unit + 1 < UNITS.len() {
        amount /= 1024.0;
        unit += 1;
    }
    if amount < 10.0 { format!("{amount:.1}{}", UNITS[unit]) } else { format!("{amount:.0}{}", UNITS[unit]) }
}

/// A number of bytes in binary units, with two decimal places.
pub(crate) fn bytes(n: u64) -> String {
    const UNITS: [&str; 4] = ["KiB", "MiB", "GiB", "TiB"];
    if n < 1024 {
        return format!("{n} B");
    }
    // f64 is exact enough for two decimal places of any u64.
    let mut amount = n as f64 / 1024.0;
    let mut unit = 0;
    while amount >= 1024.0 && unit + 1 < UNITS.len() {
        amount /= 1024.0;
        unit += 1;
    }
    format!("{amount:.2} {}", UNITS[unit])
}

/// A table with a heading. Each column is as wide as its widest cell.
pub(crate) fn table(heading: &[&str], rows: &[Vec<String>]) -> String {
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count());
        cells.max().unwrap_or(0).max(heading[column].chars().count())
    };
    let widths: Vec<usize> = (0..heading.len()).map(width).collect();
    let line = |cells: &mut dyn Iterator<Item = &str>| {
        let cells: Vec<_> = cells.zip(&widths).map(|(cell, &width)| format!("{cell:width$}")).collect();
        cells.join("  ").trim_end().to_owned() + "\n"
    };
    let mut text = line(&mut heading.iter().copied());
    text.extend(rows.iter().map(|row| line(&mut row.iter().map(String::as_str))));
    text
}

/// Warns the user of an endpoint that is not public, before other machines are told to use it.
pub(crate) fn warn_of_reach(endpoint: Option<&str>) {
    if let Some((endpoint, reach)) = endpoint.and_then(|endpoint| Some((endpoint, Reach::of(endpoint)?))) {
        tracing::warn!("{}", reach.advice(endpoint));
    }
}

/// The text in lines of at most `width` characters, without control characters, because it may quote a file. A word
/// that is longer than a line, such as a key in a command, stays whole, so that it can be copied.
pub(crate) fn wrapped(text: &str, width: usize) -> Vec<String> {
    folded(text.split_whitespace(), width)
}

/// These parts in lines of at most `width` characters, without control characters. No part is divided.
pub(crate) fn folded<'a>(parts: impl IntoIterator<Item = &'a str>, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for part in parts {
        let word = &escape(part);
        let line = lines.last_mut().expect("there is a first line");
        if line.is_empty() {
            line.push_str(word);
        } else if line.chars().count() + 1 + word.chars().count() <= width {
            line.push(' ');
            line.push_str(word);
        } else {
            lines.push(word.clone().into_owned());
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_for_numbers() {
        assert_eq!(bytes(1023), "1023 B");
        assert_eq!(bytes(1 << 20), "1.00 MiB");
        assert_eq!(bytes(u64::MAX), "16777216.00 TiB");
        assert_eq!(
            [0, 1023, 1536, 12 << 20, 1_000 << 20, u64::MAX].map(short_bytes),
            ["0", "1023", "1.5K", "12M", "1.0G", "16E"]
        );
        assert_eq!(
            [0, 59, 60, 3_599, 3_600, 86_399, 80 * 86_400].map(short_span),
            ["0s", "59s", "1m", "59m", "1h", "23h", "80d"]
        );
        assert_eq!(span(86_400 + 1), "1 day, 1 second");
        assert_eq!(ago(Duration::from_secs(5), Duration::from_secs(5)), "now");
        assert!(ago(Duration::from_secs(5), Duration::from_secs(6)).contains("clock"));
    }

    #[test]
    fn columns_are_as_wide_as_they_must_be() {
        let rows = [vec!["a".to_owned(), "bcd".to_owned()], vec!["wide".to_owned(), String::new()]];
        assert_eq!(table(&["n", "m"], &rows), "n     m\na     bcd\nwide\n");
    }
}
