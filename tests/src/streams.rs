//! TCP streams: four at once, which must survive changes of the tunnel under them, and one whose bytes are compared.
use crate::{Node, Process};
use anyhow::{Context as _, Result, ensure};
use std::{collections::BTreeMap, time::Duration};

const SOON: Duration = Duration::from_secs(60);
const STREAMS: usize = 4;
/// More bytes than the control connection of the streams carries.
const SOME: u64 = 50_000;

/// Four TCP streams of 4 Mbit/s each, until this is dropped. Unlimited streams would take all processor time of a small
/// machine.
pub struct Streams {
    receiver: Node,
    _server: Process,
    client: Process,
}

impl Streams {
    /// Starts them from `a` to `b`, and waits until each carries data.
    pub fn start(a: &Node, b: &Node, to: &str) -> Result<Self> {
        let server = b.iperf3()?;
        let arguments = ["-c", to, "-P", "4", "-b", "4M", "-l", "8K", "-t", "3600"];
        let client = a.spawn("streams", a.command("iperf3").args(arguments))?;
        let mut streams = Self { receiver: b.clone(), _server: server, client };
        streams.go_on()?;
        Ok(streams)
    }

    /// Waits until each stream has carried more data. Fails if one of them broke.
    pub fn go_on(&mut self) -> Result<()> {
        let (receiver, before) = (&self.receiver, received(&self.receiver)?);
        let mut now = BTreeMap::new();
        let more = self.client.until("all streams carry more", SOON, || {
            now = received(receiver)?;
            let more = now.iter().filter(|(port, bytes)| **bytes > before.get(port).copied().unwrap_or(0) + SOME);
            Ok(more.count() == STREAMS)
        });
        more.with_context(|| format!("bytes by port, before: {before:?}, after: {now:?}"))
    }
}

/// The bytes that each connection has received, by the port of the other end.
fn received(node: &Node) -> Result<BTreeMap<u16, u64>> {
    let connections = node.sh("ss -HOtin state established sport = 5201")?;
    let mut bytes = BTreeMap::new();
    for line in connections.lines() {
        let words: Vec<_> = line.split_whitespace().collect();
        let port = words.get(3).and_then(|other| other.rsplit_once(':')).and_then(|(_, port)| port.parse().ok());
        let number = words.iter().find_map(|word| word.strip_prefix("bytes_received:"));
        bytes.insert(port.with_context(|| line.to_owned())?, number.map_or(Ok(0), str::parse)?);
    }
    Ok(bytes)
}

/// Sends 4 MiB over TCP and compares every byte. `traffic` is the path of this package's traffic generator.
pub fn transfer(traffic: &str, from: &Node, to: &Node, address: &str) -> Result<()> {
    let mut receiver = to.spawn("receive", to.command(traffic).arg("receive"))?;
    receiver.until("it listens", SOON, || Ok(to.run(&["ss", "-Hltn", "sport", "=", "7000"])?.contains("LISTEN")))?;
    from.run(&[traffic, "send", address, &(4 << 20).to_string()])?;
    let ended = receiver.ended(SOON)?;
    ensure!(ended.success(), "{ended}");
    Ok(())
}
