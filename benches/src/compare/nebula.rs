//! Nebula, with a lighthouse on the server that is also a relay.

use super::program::{Network, Who, find};
use anyhow::{Context as _, Result};
use rustguard_tests::{Host, Lab, Node, Process};
use std::{fs, net::Ipv4Addr, path::PathBuf, process::Command, time::Duration};

const READY: Duration = Duration::from_secs(30);
const INTERFACE: &str = "nebula1";
const PORT: u16 = 4_242;
/// The lighthouse's address inside the network.
const LIGHTHOUSE: &str = "10.42.0.1";

pub(super) struct Nebula {
    folder: PathBuf,
    server: Option<Ipv4Addr>,
}

impl Nebula {
    pub(super) fn new(lab: &Lab) -> Result<Self> {
        let folder = lab.path("nebula");
        if folder.exists() {
            fs::remove_dir_all(&folder)?;
        }
        fs::create_dir(&folder)?;
        let nebula = Self { folder, server: None };
        nebula.cert(&["ca", "-name", "lab"])?;
        Ok(nebula)
    }

    fn cert(&self, arguments: &[&str]) -> Result<()> {
        let output = Command::new(find("nebula-cert")?).args(arguments).current_dir(&self.folder).output()?;
        anyhow::ensure!(
            output.status.success(),
            "nebula-cert {arguments:?}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        Ok(())
    }

    /// Signs a certificate, and writes the configuration that Nebula's example recommends: both ends punch holes, and
    /// the lighthouse is the relay.
    fn configure(&self, name: &str, address: &str, role: &str) -> Result<()> {
        self.cert(&["sign", "-name", name, "-networks", &format!("{address}/24")])?;
        let (server, folder) = (self.server.context("join before serve")?, self.folder.display());
        fs::write(
            self.folder.join(format!("{name}.yml")),
            format!(
                "pki: {{ ca: {folder}/ca.crt, cert: {folder}/{name}.crt, key: {folder}/{name}.key }}
static_host_map: {{ '{LIGHTHOUSE}': ['{server}:{PORT}'] }}
listen: {{ host: 0.0.0.0, port: {port}, read_buffer: 10485760, write_buffer: 10485760 }}
punchy: {{ punch: true, respond: true }}
tun: {{ dev: {INTERFACE} }}
logging: {{ level: warning, format: text }}
firewall:
  outbound: [{{ port: any, proto: any, host: any }}]
  inbound: [{{ port: any, proto: any, host: any }}]
{role}
",
                port = if name == "lighthouse" { PORT } else { 0 },
            ),
        )?;
        Ok(())
    }

    fn start(&self, node: &Node, name: &str) -> Result<Process> {
        let mut command = node.command(find("nebula")?);
        command.arg("-config").arg(self.folder.join(format!("{name}.yml")));
        let mut process = node.spawn(&format!("nebula-{name}"), &mut command)?;
        process.until("the interface is there", READY, || {
            Ok(node.sh(&format!("ip -4 -o addr show dev {INTERFACE} || true"))?.contains("inet"))
        })?;
        Ok(process)
    }
}

impl Network for Nebula {
    fn serve(&mut self, _lab: &Lab, server: &Host) -> Result<Process> {
        self.server = Some(server.v4);
        self.configure(
            "lighthouse",
            LIGHTHOUSE,
            "lighthouse: { am_lighthouse: true }\nrelay: { am_relay: true, use_relays: false }",
        )?;
        self.start(&server.node, "lighthouse")
    }

    fn join(&mut self, _lab: &Lab, node: &Node, who: Who) -> Result<Process> {
        let address = match who {
            Who::Home => "10.42.0.2",
            Who::Office => "10.42.0.3",
        };
        let role = format!(
            "lighthouse: {{ am_lighthouse: false, interval: 60, hosts: ['{LIGHTHOUSE}'] }}
relay: {{ am_relay: false, use_relays: true, relays: ['{LIGHTHOUSE}'] }}"
        );
        self.configure(who.name(), address, &role)?;
        self.start(node, who.name())
    }

    fn restart(&mut self, _lab: &Lab, node: &Node, who: Who) -> Result<Process> {
        self.start(node, who.name())
    }

    fn interface(&self, _who: Who) -> String {
        INTERFACE.to_owned()
    }
}
