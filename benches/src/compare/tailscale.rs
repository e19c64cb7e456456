//! Tailscale, with `benches/control` on the server: Tailscale's test control server, DERP over TLS, and STUN.

use super::program::{Network, Who, find};
use anyhow::{Context as _, Result};
use rustguard_tests::{Host, Lab, Node, Process};
use std::{
    fs,
    net::Ipv4Addr,
    os::unix::net::UnixStream,
    path::PathBuf,
    time::{Duration, Instant},
};

const READY: Duration = Duration::from_secs(30);
/// The port of the control server.
const CONTROL: u16 = 9_911;

pub(super) struct Tailscale {
    folder: PathBuf,
    server: Option<Ipv4Addr>,
}

impl Tailscale {
    pub(super) fn new(lab: &Lab) -> Result<Self> {
        let folder = lab.path("tailscale");
        if folder.exists() {
            fs::remove_dir_all(&folder)?;
        }
        fs::create_dir(&folder)?;
        Ok(Self { folder, server: None })
    }

    fn socket(&self, who: Who) -> PathBuf {
        self.folder.join(format!("{}.sock", who.name()))
    }
}

impl Network for Tailscale {
    fn serve(&mut self, _lab: &Lab, server: &Host) -> Result<Process> {
        self.server = Some(server.v4);
        let mut command = server.node.command(find("tailscale-control")?);
        let mut process = server.node.spawn("control", command.arg("-address").arg(server.v4.to_string()))?;
        process.until("the control server is ready", READY, || {
            Ok(!server.node.sh(&format!("ss -Hltn sport = {CONTROL}"))?.is_empty())
        })?;
        Ok(process)
    }

    fn join(&mut self, lab: &Lab, node: &Node, who: Who) -> Result<Process> {
        let process = self.restart(lab, node, who)?;
        let server = self.server.context("join before serve")?;
        let socket = self.socket(who).display().to_string();
        let (cli, login) = (find("tailscale")?, format!("--login-server=http://{server}:{CONTROL}"));
        node.run(&[
            &cli.display().to_string(),
            "--socket",
            &socket,
            "up",
            &login,
            "--accept-dns=false",
            "--hostname",
            who.name(),
            "--timeout=30s",
        ])?;
        Ok(process)
    }

    fn restart(&mut self, _lab: &Lab, node: &Node, who: Who) -> Result<Process> {
        let (socket, state) = (self.socket(who), self.folder.join(who.name()));
        if socket.exists() {
            fs::remove_file(&socket)?;
        }
        let mut command = node.command(find("tailscaled")?);
        command.arg("--socket").arg(&socket).arg("--statedir").arg(state).args(["--tun", "tailscale0"]);
        // Without the Internet, each log line would wait for its upload.
        let mut process = node.spawn(&format!("tailscaled-{}", who.name()), command.arg("--no-logs-no-support"))?;
        let begun = Instant::now();
        while UnixStream::connect(&socket).is_err() && begun.elapsed() < READY {
            std::thread::sleep(Duration::from_millis(1));
        }
        process.until("tailscaled listens", READY, || Ok(socket.exists()))?;
        Ok(process)
    }

    fn interface(&self, _who: Who) -> String {
        "tailscale0".to_owned()
    }
}
