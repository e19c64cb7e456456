//! A running implementation, and its use of CPU and memory.

use crate::figures;
use anyhow::{Context as _, Result, ensure};
use rustguard_tests::{Conf, Lab, Node, Process, spawn_until_ready};
use std::{
    fs,
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    process::Command,
    thread,
    time::{Duration, Instant},
};

/// The limit for a start. It suffices on a busy machine.
const READY: Duration = Duration::from_secs(10);

/// The measured program.
pub(super) enum Implementation {
    /// `rustguard up`.
    RustGuard {
        /// The program.
        program: PathBuf,
        /// Whether it uses TUN offloads.
        offload: bool,
    },
    /// wireguard-go, configured by `wg` and `ip`.
    WireguardGo {
        /// The program.
        program: PathBuf,
    },
}

impl Implementation {
    /// The name of the implementation.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::RustGuard { .. } => "RustGuard",
            Self::WireguardGo { .. } => "wireguard-go",
        }
    }
}

/// The process of one tunnel. Dropping it kills the process.
pub(super) struct Daemon {
    process: Process,
}

impl Daemon {
    /// Starts the program as a user would, with only errors in the log, and waits until it is ready.
    pub(super) fn start(lab: &Lab, node: &Node, implementation: &Implementation, conf: &Conf) -> Result<Self> {
        let process = match implementation {
            Implementation::RustGuard { program, offload } => rustguard(lab, node, program, *offload, conf)?,
            Implementation::WireguardGo { program } => {
                let mut command = node.command(program);
                configured_by_wg(lab, node, command.args(["-f", &conf.interface]).env("LOG_LEVEL", "error"), conf)?
            }
        };
        Ok(Self { process })
    }

    /// The CPU time of all threads until now, in seconds.
    pub(super) fn cpu_seconds(&self) -> Result<f64> {
        figures::cpu_seconds(self.process.id())
    }

    /// The largest resident memory so far, in MB.
    pub(super) fn peak_rss_mb(&self) -> Result<f64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.process.id()))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).context("no VmHWM in its status")?;
        let kib: u64 = line.split_whitespace().next().context("VmHWM without a number")?.parse()?;
        Ok(kib as f64 * 1024.0 / 1e6)
    }

    /// Ends the process with SIGTERM, and waits.
    pub(super) fn stop(mut self) -> Result<()> {
        self.process.stop("TERM").map(drop)
    }
}

/// Starts `rustguard up FILE`, and waits until it sends READY=1 (sd_notify(3)).
pub(crate) fn rustguard(lab: &Lab, node: &Node, program: &Path, offload: bool, conf: &Conf) -> Result<Process> {
    let name = &conf.interface;
    let file = lab.file(&format!("{name}.conf"), &conf.wg_quick())?;
    let mut command = node.command(program);
    command.arg("up");
    if !offload {
        command.args(["--offload", "off"]);
    }
    spawn_until_ready(lab, node, name, command.arg(file).env("RUSTGUARD_LOG", "error"))
}

/// Starts a program that makes the interface and listens for `wg`, and does the work of wg-quick in as few commands as
/// possible, because the start is measured too.
pub(crate) fn configured_by_wg(lab: &Lab, node: &Node, command: &mut Command, conf: &Conf) -> Result<Process> {
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
    let process = node.spawn(name, command)?;
    let started = Instant::now();
    while UnixStream::connect(&socket).is_err() {
        ensure!(started.elapsed() < READY, "{name}: no control socket within {READY:?}: {}", process.log());
        thread::sleep(Duration::from_micros(500));
    }
    node.sh(&script)?;
    Ok(process)
}
