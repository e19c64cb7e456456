//! The cost of a network for each of its members: a real `rustguard up` in a network namespace, and the network's
//! server in another one. The other members exist only in the roster.
//!
//! | Figure | From |
//! |---|---|
//! | memory | the resident set of the process (VmRSS), beside one with the same file without `Network` |
//! | CPU and traffic of an idle member | the scheduler's clock, and the counters of the link on which the member is alone with the server |
//! | a change | the CPU time of the member's process after the server has issued a roster in which one member has another name |

use crate::figures::{self, Figures, cpu_seconds, resident};
use anyhow::{Context as _, Result, bail, ensure};
use clap::Parser;
use ipnet::IpNet;
use rustguard_network::roster::{member::Member, settings::Settings};
use rustguard_tests::{Issuer, Lab, Members, Up, members, network_of};
use std::{
    fs,
    io::{self, Write as _},
    net::{IpAddr, Ipv4Addr},
    path::Path,
    thread,
    time::{Duration, Instant},
};

/// Measures the cost of a network for each of its members on this machine, and prints a table. Changes nothing on the
/// machine.
#[derive(Clone, Debug, Parser)]
#[command(name = "network")]
pub struct Options {
    /// For how many seconds an idle member is measured. Sessions are renewed every two minutes: a shorter time
    /// contains one renewal or none
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u16).range(1..))]
    pub idle: u16,
    /// A short run in a small network, whose figures mean little
    #[arg(long)]
    pub quick: bool,
    /// Added by `cargo bench`
    #[arg(long, hide = true)]
    pub bench: bool,
}

/// A member is idle when it uses less of a core than this.
const REST: f64 = 0.01;
/// The limit for a member to become idle.
const SOON: Duration = Duration::from_secs(60);
/// All machines have addresses of this pool.
const POOL: &str = "10.150.0.0/16";

/// The size of the measurement.
struct Pace {
    sizes: &'static [usize],
    /// The time for which an idle member is measured.
    idle: Duration,
    /// How often a member is renamed.
    changes: u64,
    /// The time of one look at a process that should become idle.
    look: Duration,
}

/// Measures inside the laboratory. Returns the table, and the description of the machine.
///
/// # Errors
/// If something does not start, or does not follow its network.
pub fn run(lab: &Lab, options: &Options) -> Result<String> {
    let pace = if options.quick {
        let short = Duration::from_millis(200);
        Pace { sizes: &[20], idle: short, changes: 1, look: short }
    } else {
        let idle = Duration::from_secs(options.idle.into());
        Pace { sizes: &[1_000, 10_000], idle, changes: 3, look: Duration::from_secs(1) }
    };
    let mut figures = Figures::default();
    let mut rows = Vec::new();
    members(lab, 1, |members| {
        say("a tunnel without a network")?;
        let alone = alone(lab, members, &pace, &mut figures)?;
        rows.push("memory of `up` without a network, MB".to_owned());
        for size in pace.sizes {
            say(&format!("a network of {size}"))?;
            rows.extend(measure(lab, members, *size, alone, &pace, &mut figures)?);
        }
        Ok(())
    })?;
    let rows: Vec<_> = rows.iter().map(|row| (row.as_str(), "")).collect();
    let heading =
        format!("{}; idle for {} s; medians (lowest–highest)\n\n", figures::machine(), pace.idle.as_secs_f64());
    Ok(heading + &figures.table("", &rows)?)
}

/// The memory of a tunnel with the same file without `Network`, in bytes.
fn alone(lab: &Lab, members: &Members<'_>, pace: &Pace, figures: &mut Figures) -> Result<u64> {
    let mut conf = members.conf(1, &[]);
    conf.lines.clear();
    let issuer = members.start()?;
    let mut up = Up::start_with(lab, members.node(1), &conf, &[("RUSTGUARD_LOG", "error".into())])?;
    let id = up.process()?.id();
    until_rest(id, pace)?;
    let bytes = resident(&id.to_string())?;
    figures.add("memory of `up` without a network, MB", [bytes as f64 / 1e6]);
    up.down()?;
    issuer.stop()?;
    Ok(bytes)
}

/// Measures a network of this size. Returns the rows of its figures.
fn measure(
    lab: &Lab,
    members: &Members<'_>,
    size: usize,
    alone: u64,
    pace: &Pace,
    figures: &mut Figures,
) -> Result<Vec<String>> {
    let state = Path::new("/var/lib/rustguard/rg1");
    if state.exists() {
        fs::remove_dir_all(state)?;
    }
    let issuer = members.start()?;
    issuer.issue(1, settings()?, roster(members, &issuer, size, 1)?)?;
    let mut up = Up::start_with(lab, members.node(1), &members.conf(1, &[]), &[("RUSTGUARD_LOG", "error".into())])?;
    let id = up.process()?.id();
    let network = network_of(members.node(1), "rg1", 1)?;
    until_rest(id, pace)?;
    ensure!(network["members"] == size, "the member has to know {size}: {network}");
    let mut rows = Vec::new();
    let mut add = |what: &str, values: Vec<f64>| {
        let row = format!("{size} members: {what}");
        figures.add(&row, values);
        rows.push(row);
    };
    // Memory comes first, because `status` and each change make the process larger.
    let bytes = resident(&id.to_string())?;
    add("memory, MB", vec![bytes as f64 / 1e6]);
    add("memory for each other member, bytes", vec![bytes.saturating_sub(alone) as f64 / size as f64]);
    let (time, cpu, carried) = (Instant::now(), cpu_seconds(id)?, carried(members)?);
    thread::sleep(pace.idle);
    let seconds = time.elapsed().as_secs_f64();
    add("idle: CPU, % of a core", vec![100.0 * (cpu_seconds(id)? - cpu) / seconds]);
    add("idle: traffic in both directions, bytes a second", vec![(self::carried(members)? - carried) as f64 / seconds]);
    let mut changes = Vec::new();
    for number in 2..2 + pace.changes {
        let roster = roster(members, &issuer, size, number)?;
        let cpu = cpu_seconds(id)?;
        issuer.issue(number, settings()?, roster)?;
        thread::sleep(pace.look);
        until_rest(id, pace)?;
        changes.push(1e3 * (cpu_seconds(id)? - cpu));
        network_of(members.node(1), "rg1", number)?;
        // `status` has used processor time as well.
        until_rest(id, pace)?;
    }
    add("a member has another name: CPU, ms", changes);
    up.down()?;
    issuer.stop()?;
    Ok(rows)
}

fn settings() -> Result<Settings> {
    let mut settings = Issuer::settings()?;
    settings.pools = vec![POOL.parse::<IpNet>()?];
    Ok(settings)
}

/// The server, the running machine, and other members. One of the others has a new name in each roster.
fn roster(members: &Members<'_>, issuer: &Issuer, size: usize, number: u64) -> Result<Vec<Member>> {
    let mut roster = members.roster(issuer)?;
    for n in roster.len()..size {
        let key = rustguard_crypto::hash::hash(&[&n.to_le_bytes()]);
        let name = if n == size - 1 { format!("renamed-{number}") } else { format!("machine-{n}") };
        let address = Ipv4Addr::from(u32::from(Ipv4Addr::new(10, 150, 1, 0)) + u32::try_from(n)?);
        let member = Member::new(rustguard_crypto::x25519::PublicKey(key), name.parse()?);
        roster.push(member.with_addresses([IpAddr::from(address)]));
    }
    Ok(roster)
}

/// The bytes on the machine's link, including Ethernet headers.
fn carried(members: &Members<'_>) -> Result<u64> {
    let text = members.node(1).sh("cat /sys/class/net/uplink/statistics/[rt]x_bytes")?;
    text.split_whitespace().map(|count| Ok(count.parse::<u64>()?)).sum()
}

/// Waits until a process is nearly idle.
fn until_rest(id: u32, pace: &Pace) -> Result<()> {
    let deadline = Instant::now() + SOON;
    while Instant::now() < deadline {
        let cpu = cpu_seconds(id).context("the tunnel has ended")?;
        thread::sleep(pace.look);
        if cpu_seconds(id)? - cpu < REST * pace.look.as_secs_f64() {
            return Ok(());
        }
    }
    bail!("the tunnel does not come to rest")
}

fn say(what: &str) -> io::Result<()> {
    writeln!(io::stderr(), "measuring: {what}")
}
