//! `rustguard serve take-over`: a standby takes the place of the server.

use super::backup::machines;
use crate::{
    commands::{down, join::CONFIG_DIR},
    escape::escape,
    output::words::{ago, now, span},
    uapi,
};
use anyhow::{Context as _, Result, bail};
use rustguard_device::HostPort;
use rustguard_network::roster::key::NetworkKey;
use rustguard_quick::{
    conf::{self, Config},
    free_name, left_behind, run_file,
};
use rustguard_serve::{Standby, StandbyState, is_served};
use std::{
    collections::HashMap,
    fs,
    io::{self, Write as _},
    net::SocketAddr,
    path::{Path, PathBuf},
    time::Duration,
};

/// A server that has completed a handshake within this time, in seconds, is not gone (`REJECT_AFTER_TIME` of the
/// WireGuard paper).
const ALIVE: u64 = 180;

/// Ends the tunnel of this member, and makes it the server from the next `serve` on.
pub(super) fn run(interface: &str, dry_run: bool, consent: bool) -> Result<()> {
    if is_served(interface) {
        bail!("this machine is the server of {interface} already");
    }
    let (path, config) = configuration(interface)?;
    let network = config.interface.network.map(|key| NetworkKey(key.0));
    let network = network.with_context(|| format!("{} is the file of no network (`Network`)", path.display()))?;
    let state = StandbyState::read(interface, network)?;
    let mut out = io::stdout().lock();
    writeln!(
        out,
        "{interface}: the server with the key {} has {}; its state here is of {}, and the list of members is {}",
        state.public_key()?,
        machines(state.machines()),
        ago(now(), Duration::from_secs(state.made()).min(now())),
        state.list()
    )?;
    let is_up = run_file::running(interface).is_some();
    let device = if is_up { Some(uapi::get(interface)?) } else { None };
    let server = state.public_key()?;
    let heard = device.iter().flat_map(|device| &device.peers).find(|peer| peer.public_key == server);
    let age =
        heard.filter(|peer| !peer.last_handshake.is_zero()).and_then(|peer| now().checked_sub(peer.last_handshake));
    if let Some(age) = age.filter(|age| age.as_secs() < ALIVE && !consent) {
        bail!(
            "the server has completed a handshake {} ago, and may still run: stop it first, and wait three minutes; or, if it is gone for good: \
             rustguard serve take-over --yes",
            span(age.as_secs())
        );
    }
    if dry_run {
        writeln!(out, "nothing was changed; to take its place: rustguard serve take-over --interface {interface}")?;
        return Ok(());
    }
    let endpoints = device.iter().flat_map(|device| &device.peers);
    let endpoints: HashMap<_, SocketAddr> =
        endpoints.filter_map(|peer| Some((peer.public_key, peer.endpoint.as_ref()?.parse().ok()?))).collect();
    if is_up || left_behind(interface) {
        down::run(Some(interface))?;
    }
    // The file may have changed since, for example the key of this machine.
    let (path, config) = configuration(interface)?;
    let state = StandbyState::read(interface, network)?;
    let endpoint = config.interface.public_endpoints.first().map(ToString::to_string);
    let standby = Standby {
        key: config.interface.private_key.clone().with_context(|| format!("{} has no PrivateKey", path.display()))?,
        endpoint: endpoint.and_then(|endpoint| endpoint.parse::<HostPort>().ok()),
        port: config.interface.listen_port,
        endpoints,
    };
    let again = || format!("nothing was changed; to go on as a member: rustguard up {interface}");
    let policy = state.backup().put_policy(interface).with_context(again)?;
    let taken = match state.take_over(interface, &standby) {
        Ok(taken) => taken,
        Err(error) => {
            policy.map_or(Ok(()), |policy| policy.undo()).context("the policy of before cannot be put back")?;
            return Err(error).with_context(again);
        }
    };
    let aside = free_name(&path, "before-take-over");
    fs::rename(&path, &aside).with_context(|| {
        format!(
            "cannot move {} aside: do so before `rustguard serve`, or it would come up as a member again",
            path.display()
        )
    })?;
    writeln!(out, "this machine has the place of the server; start it with: rustguard serve --interface {interface}")?;
    for line in [
        format!("let the name or the address that invites and phones know lead here{}", reached(&standby)),
        "the server of before stops by itself as soon as it hears of this from any machine; better do not let it start again".to_owned(),
        format!(
            "what this machine was as a member, with its keys, is in {} and {}: delete both when they are not needed",
            taken.before.display(),
            aside.display()
        ),
        format!("at the next boot: systemctl disable rustguard@{interface}; systemctl enable rustguard-serve@{interface}"),
    ] {
        writeln!(out, "- {}", escape(&line))?;
    }
    Ok(())
}

fn reached(standby: &Standby) -> String {
    standby.endpoint.as_ref().map(|endpoint| format!(" ({endpoint})")).unwrap_or_default()
}

/// The file of a member.
fn configuration(interface: &str) -> Result<(PathBuf, Config)> {
    let path = Path::new(CONFIG_DIR).join(format!("{interface}.conf"));
    let text = match fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            bail!("this machine has joined no network as {interface}: there is no {}", path.display())
        }
        Err(error) => {
            return Err(error).with_context(|| format!("cannot read {}; run as root, or with sudo", path.display()));
        }
    };
    let (config, _) = conf::parse(&text);
    let config = config.with_context(|| format!("{} has a mistake: rustguard check {interface}", path.display()))?;
    Ok((path, config))
}
