//! TCP streams of iperf3 between two nodes.

use anyhow::{Context as _, Result, ensure};
use rustguard_tests::Node;
use serde_json::Value;

/// The duration of streams.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Length {
    Seconds(u32),
    /// Until a few megabytes were sent. iperf3 only takes whole seconds, and a quick round needs less than one.
    Quick,
}

/// The data that all streams have delivered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Received {
    pub(crate) bytes: f64,
    pub(crate) mbps: f64,
}

/// Runs so many streams at once from one node to the other one, which has this address. With `back`, the other one
/// sends.
pub(crate) fn streams(
    [here, there]: [&Node; 2],
    address: &str,
    count: u32,
    length: Length,
    back: bool,
) -> Result<Received> {
    // A new server for each client, because a server listens again only some time after its client has ended.
    let _server = there.iperf3()?;
    let length = match length {
        Length::Seconds(seconds) => format!("-t {seconds}"),
        Length::Quick => "-n 4M".to_owned(),
    };
    let direction = if back { "-R" } else { "" };
    let report = here.sh(&format!("iperf3 -c {address} -P {count} {length} -J {direction}"))?;
    let report: Value = serde_json::from_str(&report)?;
    let sum = &report["end"]["sum_received"];
    let bytes = sum["bytes"].as_f64().context("iperf3 says no sum")?;
    ensure!(bytes > 0.0, "nothing arrived");
    Ok(Received { bytes, mbps: sum["bits_per_second"].as_f64().context("iperf3 says no rate")? / 1e6 })
}
