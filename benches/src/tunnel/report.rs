//! The table of the benchmark of whole tunnels.

use super::{Options, Round, daemon::Implementation};
use crate::figures::{self, median, number, spread};
use anyhow::Result;
use std::fmt::Write as _;

/// Reads the figure of a row from a round.
type Figure = fn(&Round) -> f64;

/// The rows: the name of the figure, and its place in a round.
pub const ROWS: [(&str, Figure); 14] = [
    ("TCP, Mbit/s", |round| round.tcp_mbps),
    ("TCP, CPU of both daemons, s/GB", |round| round.tcp_cpu_s_per_gb),
    ("UDP 64 bytes, flood, sent, kpps", |round| round.offered_kpps),
    ("UDP 64 bytes, flood, received, kpps", |round| round.flood_kpps),
    ("UDP 64 bytes, flood, CPU per packet received, µs", |round| round.flood_cpu_us),
    ("UDP 1,200 bytes, 350 Mbit/s, lost, %", |round| round.paced_lost_percent),
    ("UDP 1,200 bytes, 350 Mbit/s, CPU per packet received, µs", |round| round.paced_cpu_us),
    ("ping, median, µs", |round| round.ping_p50_us),
    ("ping, 99th percentile, µs", |round| round.ping_p99_us),
    ("ping under TCP load, 99th percentile, ms", |round| round.loaded_ping_p99_ms),
    ("peak memory, MB", |round| round.rss_mb),
    ("from start to first ping, ms", |round| round.first_ping_ms),
    ("relay A–B–C, TCP, Mbit/s", |round| round.relay_mbps),
    ("relay A–B–C, CPU of the daemons, s/GB", |round| round.relay_cpu_s_per_gb),
];

/// A table with the median, the lowest and the highest value for each implementation, and the ratio of the first to the
/// second.
pub(super) fn table(results: &[(Implementation, Vec<Round>)], options: &Options) -> Result<String> {
    let mut text = machine(options, results.first().map_or(0, |(_, rounds)| rounds.len()));
    text += "\n|  |";
    for (implementation, _) in results {
        write!(text, " {} |", implementation.name())?;
    }
    let compared = results.len() > 1;
    text += if compared { " ratio |\n|---|---|---|---|\n" } else { "\n|---|---|\n" };
    for (name, figure) in ROWS {
        write!(text, "| {name} |")?;
        let mut medians = Vec::new();
        for (_, rounds) in results {
            let mut values: Vec<f64> = rounds.iter().map(figure).collect();
            values.sort_by(f64::total_cmp);
            if values.is_empty() {
                continue;
            }
            medians.push(median(&values));
            write!(text, " {} |", spread(&values))?;
        }
        match *medians {
            [ours, theirs] if theirs > 0.0 => writeln!(text, " {} |", number(ours / theirs))?,
            _ if compared => text += " – |\n",
            _ => text += "\n",
        }
    }
    Ok(text)
}

/// The machine, the options and the number of rounds.
fn machine(options: &Options, rounds: usize) -> String {
    format!(
        "{}; {}{}; {}\n",
        figures::machine(),
        if options.ipv6 { "IPv6" } else { "IPv4" },
        if options.no_offload { ", RustGuard without offloads" } else { "" },
        if rounds == 1 { "one round".to_owned() } else { format!("medians of {rounds} rounds (lowest–highest)") },
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_has_medians_spread_and_ratios() {
        let rounds = |values: &[f64]| values.iter().map(|&v| Round { tcp_mbps: v, ..Round::default() }).collect();
        let go = Implementation::WireguardGo { program: "wireguard-go".into() };
        let ours = Implementation::RustGuard { program: "rustguard".into(), offload: true };
        let options = Options { rounds: 3, ipv6: false, no_offload: false, quick: false, bench: true };
        let table = table(&[(ours, rounds(&[7000.0, 6000.0, 6500.4])), (go, rounds(&[3250.0]))], &options).unwrap();
        assert!(table.contains("| TCP, Mbit/s | **6500** (6000–7000) | **3250** | 2.00 |"), "{table}");
        assert!(table.contains("| peak memory, MB | **0.00** (0.00–0.00) | **0.00** | – |"), "{table}");
    }
}
