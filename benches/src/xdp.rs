//! Datagrams over a veth pair, by UDP sockets as RustGuard uses them and by AF_XDP. There is no encryption and no tunnel: what is
//! measured is what another way to the network could bring at most.
//!
//! `benches/xdp/xdp.c` sends and receives. It is compiled when the benchmark starts.

use crate::figures;
use anyhow::{Context as _, Result, ensure};
use clap::Parser;
use rustguard_tests::{Lab, Node};
use std::{
    env,
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
    process::{self, Command},
    thread,
    time::Duration,
};

/// The environment variable with the path of the compiled program, for the process inside the namespaces.
const PROGRAM: &str = "RUSTGUARD_XDP";
/// The status of the program if BPF is not permitted.
const NOT_PERMITTED: i32 = 77;
/// Bytes on the wire of a full packet, and of an inner packet of 64 bytes.
const SIZES: [usize; 2] = [1_452, 96];

/// Measures datagrams between two network namespaces on this machine, by UDP and by AF_XDP, and prints tables. It needs root, and
/// two processors. Changes nothing on the machine.
#[derive(Clone, Debug, Parser)]
#[command(name = "xdp")]
pub struct Options {
    /// How often everything is measured, in turn. The tables have the medians
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..))]
    pub rounds: u16,
    /// One short round, whose figures mean little
    #[arg(long)]
    pub quick: bool,
    /// Added by `cargo bench`
    #[arg(long, hide = true)]
    pub bench: bool,
}

/// A way of datagrams from one namespace to the other.
#[derive(Debug)]
pub struct Way {
    /// Its row in the tables.
    pub name: &'static str,
    sender: &'static str,
    receiver: &'static str,
    /// Whether datagrams cross the link one by one, as on a wire. Otherwise veth passes whole super-packets.
    divided: bool,
    /// Whether the receiving kernel joins datagrams that arrive one by one.
    joined: bool,
}

/// All ways. The second is what RustGuard does over a network card.
pub const WAYS: [Way; 7] = [
    Way::new("UDP → UDP, super-packets cross whole", "udp", "udp", false, false),
    Way::new("UDP → UDP, divided and joined", "udp", "udp", true, true),
    Way::new("UDP → AF_XDP", "udp", "xdp", true, false),
    Way::new("AF_XDP → AF_XDP", "xdp", "xdp", true, false),
    Way::new("AF_XDP → UDP", "xdp", "udp", true, true),
    Way::new("UDP without runs → UDP", "single", "udp", true, false),
    Way::new("UDP without runs → AF_XDP", "single", "xdp", true, false),
];

impl Way {
    const fn new(
        name: &'static str,
        sender: &'static str,
        receiver: &'static str,
        divided: bool,
        joined: bool,
    ) -> Self {
        Self { name, sender, receiver, divided, joined }
    }
}

/// The path of the compiled program, as environment for the process inside the namespaces.
///
/// # Errors
/// If there is no C compiler, or the program does not compile.
pub fn programs() -> Result<Vec<(&'static str, PathBuf)>> {
    Ok(vec![(PROGRAM, program()?)])
}

/// Compiles `benches/xdp/xdp.c` if it has changed, and returns the path of the program.
///
/// # Errors
/// If there is no C compiler, or it does not compile.
pub fn program() -> Result<PathBuf> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folder = here.parent().context("the workspace's folder")?.join("target/xdp");
    fs::create_dir_all(&folder)?;
    let path = folder.join("xdp");
    let source = here.join("xdp/xdp.c");
    let changed = |path: &Path| path.metadata().and_then(|metadata| metadata.modified()).ok();
    if changed(&path) > changed(&source) {
        return Ok(path);
    }
    // What is at the path is always whole, also beside another compiler, or after one that was killed.
    let unfinished = folder.join(format!("xdp.{}", process::id()));
    let compiled = Command::new("cc")
        .args(["-O2", "-Wall", "-Wextra", "-Werror", "-pthread", "-o"])
        .args([&unfinished, &source])
        .status()
        .context("cc, the C compiler")?;
    ensure!(compiled.success(), "{} does not compile", source.display());
    fs::rename(&unfinished, &path)?;
    Ok(path)
}

/// Measures inside the laboratory. Returns the description of the machine and the tables.
///
/// # Errors
/// If the program of [`programs`] fails, or is not permitted to use BPF.
pub fn run(lab: &Lab, options: &Options) -> Result<String> {
    let program = PathBuf::from(env::var_os(PROGRAM).with_context(|| format!("{PROGRAM} is not set"))?);
    run_with(lab, options, &program)?.context("the system forbids BPF: run as root, outside of containers")
}

/// As [`run`], with this program. `None` if BPF is not permitted.
///
/// # Errors
/// If the program fails.
pub fn run_with(lab: &Lab, options: &Options, program: &Path) -> Result<Option<String>> {
    let nodes = [lab.node("a")?, lab.node("b")?];
    let (rounds, time) =
        if options.quick { (1, Duration::from_millis(50)) } else { (options.rounds, Duration::from_secs(1)) };
    let last = thread::available_parallelism().map_or(0, |count| count.get() - 1);
    // The cores of the sender and of the receiver.
    let cores = [[0, last], [0, 0]].map(|cores| cores.map(|core| core.to_string()));
    let cases: Vec<_> = SIZES.iter().flat_map(|size| WAYS.iter().map(move |way| (*size, way))).collect();
    let mut figures = vec![<[Figures; 2]>::default(); cases.len()];
    for _ in 0..rounds {
        for ((size, way), figures) in cases.iter().zip(&mut figures) {
            for (cores, figures) in cores.iter().zip(figures) {
                connect(lab, &nodes, way.divided)?;
                let mut command = Command::new(program);
                command.args([way.sender, way.receiver, &size.to_string(), &time.as_millis().to_string()]).args(cores);
                let output = command.args(way.joined.then_some("gro")).output()?;
                if output.status.code() == Some(NOT_PERMITTED) {
                    return Ok(None);
                }
                let text = String::from_utf8_lossy(&output.stdout);
                ensure!(output.status.success(), "{}: {}", way.name, String::from_utf8_lossy(&output.stderr));
                figures.add(&text).with_context(|| format!("{}: {text}", way.name))?;
            }
        }
    }
    let mut text = format!(
        "{}; medians (lowest–highest) of {rounds} rounds of {} s{}\n",
        figures::machine(),
        time.as_secs_f64(),
        if options.quick { "; **a quick round, whose figures mean little**" } else { "" },
    );
    for (i, size) in SIZES.iter().enumerate() {
        text += &table(*size, &figures[i * WAYS.len()..(i + 1) * WAYS.len()]);
    }
    Ok(Some(text))
}

/// A new veth pair between the nodes, because a program or an option may be left over from the last measurement.
fn connect(lab: &Lab, [a, b]: &[Node; 2], divided: bool) -> Result<()> {
    a.sh("ip link del left 2>/dev/null || true")?;
    lab.link((a, "left"), (b, "right"))?;
    if divided {
        a.sh("ip link set left gso_max_segs 1")?;
    }
    a.sh("ip addr add 10.77.0.1/24 dev left")?;
    b.sh("ip addr add 10.77.0.2/24 dev right")?;
    // AF_XDP knows the other end's hardware address. UDP asks for it here, before anything is measured.
    a.reaches("10.77.0.2", 10)
}

/// What was measured with one way, one size and one choice of cores.
#[derive(Clone, Debug, Default)]
struct Figures {
    kpps: Vec<f64>,
    /// The time of all processors, including softirq, for each datagram that arrived.
    micros: Vec<f64>,
    lost: f64,
}

impl Figures {
    /// Adds the line that the program printed.
    fn add(&mut self, line: &str) -> Result<()> {
        let values: Vec<f64> = line.split_whitespace().map(str::parse).collect::<Result<_, _>>()?;
        let [received, lost, _messages, seconds, busy, ..] = values[..] else { anyhow::bail!("not seven numbers") };
        ensure!(received > 0.0, "nothing arrived");
        self.kpps.push(received / seconds / 1e3);
        self.micros.push(busy / received * 1e6);
        self.lost += lost;
        Ok(())
    }
}

fn table(size: usize, rows: &[[Figures; 2]]) -> String {
    let mut text = format!(
        "\n| {size} bytes | a core each, kpps | CPU, µs a datagram | both on one core, kpps | CPU, µs a datagram |\n|---|---|---|---|---|\n"
    );
    for (way, cores) in WAYS.iter().zip(rows) {
        // Writing to a String cannot fail.
        let _ = write!(text, "| {}", way.name);
        let lost: f64 = cores.iter().map(|figures| figures.lost).sum();
        if lost > 0.0 {
            let _ = write!(text, " ({lost} lost)");
        }
        for values in cores.iter().flat_map(|figures| [&figures.kpps, &figures.micros]) {
            let mut values = values.clone();
            values.sort_by(f64::total_cmp);
            let _ = write!(text, " | {}", figures::spread(&values));
        }
        text += " |";
        text += "\n";
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_has_throughput_and_the_time_of_all_processors() {
        let mut figures = Figures::default();
        figures.add("2000000 0 62500 2.0 3.0 1.6 1.2\n").unwrap();
        assert!(figures.add("0 5 0 1.0 1.0 0.1 0.1").is_err(), "nothing arrived");
        let text = table(96, &vec![[figures.clone(), figures]; WAYS.len()]);
        assert!(text.contains("| AF_XDP → AF_XDP | **1000** | **1.50** | **1000** | **1.50** |\n"), "{text}");
    }
}
