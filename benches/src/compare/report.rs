//! The table of the comparison.

use super::{Program, Round};
use crate::figures::{self, number, spread_with_failures};
use anyhow::Result;
use std::fmt::Write as _;

/// Reads the figure of a row from a round.
type Figure = fn(&Round) -> Option<f64>;

/// The rows: the name of the figure, and its place in a round.
pub const ROWS: [(&str, Figure); 16] = [
    ("join to the first answered ping of the other member, ms", |round| round.joined_ms),
    ("from there to a direct path, ms", |round| round.direct_ms),
    ("daemon killed and started again, to the first answer, ms", |round| round.restarted_ms),
    ("router has another address, to the first answer, ms", |round| round.moved_ms),
    ("direct path blocked, to the first answer, ms", |round| round.silence_ms),
    ("ping, direct, median, µs", |round| round.ping_us),
    ("TCP, direct, one stream, Mbit/s", |round| round.direct.one_mbps),
    ("TCP, direct, four streams, Mbit/s", |round| round.direct.four_mbps),
    ("CPU of all daemons, direct, s/GB", |round| round.direct.cpu),
    ("TCP, through the server, one stream, Mbit/s", |round| round.relayed.one_mbps),
    ("TCP, through the server, four streams, Mbit/s", |round| round.relayed.four_mbps),
    ("CPU of all daemons, through the server, s/GB", |round| round.relayed.cpu),
    ("memory of a member, idle, MB", |round| round.member_idle_mb),
    ("memory of a member, after the streams, MB", |round| round.member_mb),
    ("memory of the server, idle, MB", |round| round.server_idle_mb),
    ("memory of the server, after the streams, MB", |round| round.server_mb),
];

/// A table with the median, the lowest and the highest value for each program. `–` if something did not happen.
pub(super) fn table(results: &[(Program, String, Vec<Round>)], busy: &mut [f64]) -> Result<String> {
    busy.sort_by(f64::total_cmp);
    let rounds = results.first().map_or(0, |(_, _, rounds)| rounds.len());
    let mut text = format!(
        "{}; medians (lowest–highest) of {rounds}; other programs used {} % of the processors before a round (median, at most {} %)\n\n|  |",
        figures::machine(),
        number(100.0 * figures::median(busy)),
        number(100.0 * busy.last().copied().unwrap_or_default()),
    );
    for (program, version, _) in results {
        write!(text, " {} {} |", program.heading(), version)?;
    }
    writeln!(text, "\n|---|{}", "---|".repeat(results.len()))?;
    for (name, figure) in ROWS {
        write!(text, "| {name} |")?;
        for (_, _, rounds) in results {
            write!(text, " {} |", spread_with_failures(rounds.iter().map(figure)))?;
        }
        text += "\n";
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_did_not_happen_is_not_hidden() {
        let round = |joined_ms| Round { joined_ms, ..Round::default() };
        let rounds = vec![round(Some(30.0)), round(None), round(Some(10.0))];
        let table = table(&[(Program::Nebula, "1.10.3".to_owned(), rounds)], &mut [0.5, 0.1]).unwrap();
        assert!(table.contains("other member, ms | **20.0** (10.0–30.0), 1 never |"), "{table}");
        assert!(table.contains("to a direct path, ms | – |"), "{table}");
    }
}
