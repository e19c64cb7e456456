//! The tables of the benchmark of links.

use super::{Profile, Test};
use crate::figures::{self, number, spread_with_failures};
use std::fmt::Write as _;

/// All figures of one program over one profile: for each test and round, the values of its rows, or nothing if the test
/// failed.
pub(super) type Column = Vec<(Test, Vec<Option<Vec<f64>>>)>;

/// The tables of all profiles, with the programs in columns. A test that a program does not have is a dash.
pub(super) fn tables(headings: &[String], results: &[(Profile, Vec<Column>)], tests: &[Test]) -> String {
    let mut text = String::new();
    for (profile, columns) in results {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "\n|  {} | {} |", profile.heading(), headings.join(" | "));
        let _ = writeln!(text, "|---|{}", "---|".repeat(headings.len()));
        for test in tests {
            for (n, row) in test.rows().iter().enumerate() {
                let _ = write!(text, "| {row} |");
                for column in columns {
                    let rounds = column.iter().find(|(of, _)| of == test).map_or(&[][..], |(_, rounds)| rounds);
                    let values = rounds.iter().map(|values| values.as_ref().map(|values| values[n]));
                    let _ = write!(text, " {} |", spread_with_failures(values));
                }
                text += "\n";
            }
        }
    }
    text
}

/// The machine, and the settings that are common to all tables.
pub(super) fn heading(rounds: u16, seed: u64, super_packets: bool, quick: bool, busy: &mut [f64]) -> String {
    busy.sort_by(f64::total_cmp);
    format!(
        "{}; {}; {}, seed {seed}; other programs used {} % of the processors between the tests (median, at most {} %){}\n",
        figures::machine(),
        if super_packets { "super-packets are lost and delayed in one piece" } else { "each packet by itself" },
        if rounds == 1 { "one round".to_owned() } else { format!("medians (lowest–highest) of {rounds} rounds") },
        number(100.0 * figures::median(busy)),
        number(100.0 * busy.last().copied().unwrap_or_default()),
        if quick { "; **a quick round, whose figures mean little**" } else { "" },
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_has_a_row_for_each_figure_and_hides_no_failure() {
        let ping = |values: [Option<f64>; 2]| {
            vec![(Test::Ping, values.map(|value| value.map(|p50| vec![p50, 2.0 * p50, 0.0])).to_vec())]
        };
        let columns = vec![ping([Some(1.0), Some(2.0)]), ping([None, Some(4.0)]), Vec::new()];
        let headings = ["link", "RustGuard 0.1.0", "tinc"].map(str::to_owned);
        let text = tables(&headings, &[(Profile::Mild, columns)], &[Test::Ping]);
        assert!(
            text.contains("|  `mild`: 2 ± 2 ms, 0.25 % lost | link | RustGuard 0.1.0 | tinc |\n|---|---|---|---|\n"),
            "{text}"
        );
        assert!(text.contains("| ping, median, ms | **1.50** (1.00–2.00) | **4.00**, 1 never | – |"), "{text}");
        assert!(
            text.contains("| ping, 99th percentile, ms | **3.00** (2.00–4.00) | **8.00**, 1 never | – |"),
            "{text}"
        );
    }
}
