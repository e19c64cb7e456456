//! The cost of a policy: one TCP stream between two members of a network, without rules and with them.
//!
//! Each round makes a new network, measures without a policy, reloads the server with one, and measures again. Both are
//! therefore measured in turn, with the same processes.

use crate::{
    figures::{self, Figures},
    iperf3::{self, Length},
};
use anyhow::{Context as _, Result, ensure};
use clap::Parser;
use rustguard_tests::{Lab, Network, eventually};
use std::{fmt::Write as _, fs, time::Duration};

const SOON: Duration = Duration::from_secs(60);
const POLICY: &str = "/etc/rustguard/rgs.policy";
/// The number of rules. Only the last one allows the stream, and all apply to the receiver.
const RULES: u16 = 23;

/// Measures the cost of a policy, and prints a table. Changes nothing on the machine.
#[derive(Clone, Debug, Parser)]
#[command(name = "policy")]
pub struct Options {
    /// How often each is measured, in turn
    #[arg(long, default_value_t = 6, value_parser = clap::value_parser!(u16).range(1..))]
    pub rounds: u16,
    /// The seconds of each stream
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..))]
    pub seconds: u32,
    /// One short round, whose figures mean little
    #[arg(long)]
    pub quick: bool,
    /// Added by `cargo bench`
    #[arg(long, hide = true)]
    pub bench: bool,
}

/// The rows.
pub const ROWS: [&str; 3] = ["TCP without a policy, Mbit/s", "TCP with 23 rules, Mbit/s", "with rules ÷ without"];

/// Measures inside the laboratory. Returns the table, and the description of the machine.
///
/// # Errors
/// If something does not start, or the policy does not come into force.
pub fn run(lab: &Lab, options: &Options) -> Result<String> {
    let network = Network::new(lab, 2)?;
    network.server.sh("sysctl -qw net.ipv4.ip_forward=1")?;
    let (rounds, length) =
        if options.quick { (1, Length::Quick) } else { (options.rounds, Length::Seconds(options.seconds)) };
    let mut rates = Vec::new();
    for _ in 0..rounds {
        rates.push(round(lab, &network, length)?);
    }
    let mut figures = Figures::default();
    figures.add(ROWS[0], rates.iter().map(|(without, _)| *without));
    figures.add(ROWS[1], rates.iter().map(|(_, with)| *with));
    figures.add(ROWS[2], rates.iter().map(|(without, with)| with / without));
    let mut text = format!("{}\n\n", figures::machine());
    text.push_str(&figures.table("", &ROWS.map(|row| (row, "")))?);
    Ok(text)
}

/// The rates without and with a policy, in Mbit/s.
fn round(lab: &Lab, network: &Network, length: Length) -> Result<(f64, f64)> {
    for folder in ["/etc/rustguard", "/var/lib/rustguard"] {
        let _ = fs::remove_dir_all(folder);
    }
    fs::create_dir_all("/etc/rustguard")?;
    let served = network.serve(lab, &["--pool", "10.150.0.0/24", "--endpoint", "10.1.0.1", "--star=off"])?;
    let mut tunnels = Vec::new();
    for n in 1..=2 {
        let (server, token) = (format!("10.{n}.0.1"), network.invite(&[])?);
        tunnels.push(network.join(lab, n, &[&server, "--token", &token, "--name", &format!("m{n}")])?);
    }
    let [sender, receiver] = [0, 1].map(|at| &network.machines[at]);
    let to = network.addresses(2)?.into_iter().next().context("m2 has no address")?;
    let direct = ["ping", "m2", "-i", "rg1", "--until-direct", "--timeout", "60"];
    let pinged = sender.end_of(sender.rustguard()?.args(direct))?;
    ensure!(pinged.success(), "{pinged}");
    let rate = || iperf3::streams([sender, receiver], &to.to_string(), 1, length, false);
    let without = rate()?.mbps;
    fs::write(POLICY, rules()?)?;
    // The names of the members are known a moment after they have joined.
    eventually("the policy is taken", SOON, || {
        let mut reload = network.server.rustguard()?;
        Ok(network.server.end_of(reload.args(["reload", "rgs"]))?.success())
    })?;
    eventually("the policy is in force", SOON, || Ok(!receiver.shown("rg2")?["policy"].is_null()))?;
    let with = rate()?.mbps;
    for mut tunnel in tunnels {
        tunnel.stop("TERM")?;
    }
    served.stop()?;
    Ok((without, with))
}

fn rules() -> Result<String> {
    let mut text = String::new();
    for port in 1..RULES {
        writeln!(text, "allow m1 -> m2 udp/{port}")?;
    }
    text.push_str("allow m1 -> m2 tcp/5201\n");
    Ok(text)
}
