//! A running implementation, and what it costs.

use crate::figures;
use anyhow::{Context as _, Result, ensure};
use rustguard_tests::{Conf, Lab, Node, Process, spawn_until_ready};
use std::{
    fs,
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

/// More than a start takes on a busy machine.
const READY: Duration = Duration::from_secs(10);

/// What is measured.
pub(super) enum Implementation {
    /// `rustguard up`.
    RustGuard {
        /// The program.
        program: PathBuf,
        /// TUN offloads.
        offload: bool,
    },
    /// wireguard-go, configured by `wg` and `ip`.
    WireguardGo {
        /// The program.
        program: PathBuf,
    },
}

impl Implementation {
    /// Its name.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::RustGuard { .. } => "RustGuard",
            Self::WireguardGo { .. } => "wireguard-go",
        }
    }
}

/// One tunnel's process; killed when dropped.
pub(super) struct Daemon {
    process: Process,
}

impl Daemon {
    /// Starts it as a user has it, with nothing but errors logged, and waits until it is ready.
    pub(super) fn start(lab: &Lab, node: &Node, implementation: &Implementation, conf: &Conf) -> Result<Self> {
        let process = match implementation {
            Implementation::RustGuard { program, offload } => rustguard(lab, node, program, *offload, conf)?,
            Implementation::WireguardGo { program } => wireguard_go(lab, node, program, conf)?,
        };
        Ok(Self { process })
    }

    /// CPU time of all its threads until now, in seconds.
    pub(super) fn cpu_seconds(&self) -> Result<f64> {
        figures::cpu_seconds(self.process.id())
    }

    /// The most memory it has had resident, in MB.
    pub(super) fn peak_rss_mb(&self) -> Result<f64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.process.id()))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).context("no VmHWM in its status")?;
        let kib: u64 = line.split_whitespace().next().context("VmHWM without a number")?.parse()?;
        Ok(kib as f64 * 1024.0 / 1e6)
    }

    /// Ends it as Ctrl-C would, and waits.
    pub(super) fn stop(mut self) -> Result<()> {
        self.process.stop("TERM").map(drop)
    }
}

/// `rustguard up FILE`, until it says READY=1 as sd_notify(3) has it.
fn rustguard(lab: &Lab, node: &Node, program: &Path, offload: bool, conf: &Conf) -> Result<Process> {
    let name = &conf.interface;
    let file = lab.file(&format!("{name}.conf"), &conf.wg_quick())?;
    let mut command = node.command(program);
    command.arg("up");
    if !offload {
        command.args(["--offload", "off"]);
    }
    spawn_until_ready(lab, node, name, command.arg(file).env("RUSTGUARD_LOG", "error"))
}

/// wireguard-go, then what wg-quick would do, in as few commands as it takes: its start is measured as well.
fn wireguard_go(lab: &Lab, node: &Node, program: &Path, conf: &Conf) -> Result<Process> {
    let name = &conf.interface;
    let mut script = format!("wg setconf {name} {}\n", lab.file(&format!("{name}.wg.conf"), &conf.wg())?.display());
    let mut batch = String::new();
    for address in &conf.addresses {
        batch += &format!("address add {address} dev {name}\n");
    }
    batch += &format!("link set {name} mtu 1420 up\n");
    for allowed_ip in conf.peers.iter().flat_map(|peer| peer.allowed_ips.split(", ")) {
        batch += &format!("route replace {allowed_ip} dev {name}\n");
    }
    script += &format!("ip -batch {}\n", lab.file(&format!("{name}.batch"), &batch)?.display());

    let socket = PathBuf::from(format!("/run/wireguard/{name}.sock"));
    if socket.exists() {
        fs::remove_file(&socket)?;
    }
    let process = node.spawn(name, node.command(program).args(["-f", name]).env("LOG_LEVEL", "error"))?;
    let started = Instant::now();
    while UnixStream::connect(&socket).is_err() {
        ensure!(started.elapsed() < READY, "{name}: no control socket within {READY:?}: {}", process.log());
        thread::sleep(Duration::from_micros(500));
    }
    node.sh(&script)?;
    Ok(process)
}
