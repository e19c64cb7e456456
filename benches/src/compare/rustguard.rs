//! RustGuard: a network made by `serve` and `join`.

use super::program::{Network, Who};
use anyhow::{Context as _, Result};
use rustguard_tests::{Host, Lab, Node, Process, spawn_until_ready};
use serde_json::Value;
use std::{fs, io::ErrorKind, path::Path, process::Command};

const SERVER: &str = "rgs";

/// A network that members join.
pub(super) struct Joined {
    token: String,
}

impl Joined {
    pub(super) fn new() -> Result<Self> {
        for interface in [SERVER.to_owned(), interface(Who::Home), interface(Who::Office)] {
            absent(fs::remove_dir_all(Path::new("/var/lib/rustguard").join(&interface)))?;
            absent(fs::remove_file(Path::new("/etc/rustguard").join(format!("{interface}.conf"))))?;
        }
        Ok(Self { token: String::new() })
    }
}

fn absent(removed: std::io::Result<()>) -> std::io::Result<()> {
    removed.or_else(|error| if error.kind() == ErrorKind::NotFound { Ok(()) } else { Err(error) })
}

fn interface(who: Who) -> String {
    format!("rg{}", who.name())
}

fn start(lab: &Lab, node: &Node, name: &str, command: &mut Command) -> Result<Process> {
    spawn_until_ready(lab, node, name, command.env("RUSTGUARD_LOG", "error"))
}

impl Network for Joined {
    fn serve(&mut self, lab: &Lab, server: &Host) -> Result<Process> {
        let process = start(lab, &server.node, SERVER, server.node.rustguard()?.args(["serve", "-i", SERVER]))?;
        let invite = ["invite", "new", "--json", "--another", "--uses", "2", "-i", SERVER];
        let ended = server.node.end_of(server.node.rustguard()?.args(invite))?;
        let invite: Value = serde_json::from_str(&ended.stdout).with_context(|| ended.to_string())?;
        self.token = invite["token"].as_str().context("a token")?.to_owned();
        Ok(process)
    }

    fn join(&mut self, lab: &Lab, node: &Node, who: Who) -> Result<Process> {
        let mut command = node.rustguard()?;
        command.args(["join", "--token", &self.token, "--name", who.name(), "-i", &interface(who)]);
        start(lab, node, &interface(who), &mut command)
    }

    fn restart(&mut self, lab: &Lab, node: &Node, who: Who) -> Result<Process> {
        start(lab, node, &interface(who), node.rustguard()?.args(["up", &interface(who)]))
    }

    fn interface(&self, who: Who) -> String {
        interface(who)
    }
}
