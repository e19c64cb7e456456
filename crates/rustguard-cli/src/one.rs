//! The interface for a command without a name: the only one that exists.

use crate::{arguments::enrolment::Served, escape::escape, uapi};
use anyhow::{Result, bail};
use rustguard_device::interface::{self, RUN_DIR};
use rustguard_network::{ListedRole, Report};
use rustguard_quick::{left_behind, run_file};
use rustguard_serve::{DEFAULT_INTERFACE, is_served};
use rustix::process::geteuid;
use std::{
    fs::{self, File},
    io,
    path::Path,
};

/// The name of a tunnel: `given`, or the only tunnel of this program that is up.
///
/// # Errors
/// No tunnel is up, or several are, which the error lists.
pub(crate) fn tunnel(given: Option<&str>) -> Result<String> {
    match given {
        Some(given) => Ok(given.to_owned()),
        None => only(up()?, NONE_UP, SEVERAL_UP, Choice::Argument),
    }
}

/// As [`tunnel`], for a command that takes `--interface`.
pub(crate) fn tunnel_by_option(given: Option<&str>) -> Result<String> {
    match given {
        Some(given) => Ok(given.to_owned()),
        None => only(up()?, NONE_UP, SEVERAL_UP, Choice::Option),
    }
}

/// As [`tunnel`], for `down`: if no tunnel is up, the only one that was killed.
pub(crate) fn tunnel_to_end(given: Option<&str>) -> Result<String> {
    if given.is_some() || !up()?.is_empty() {
        return tunnel(given);
    }
    only(killed(), NONE_UP, "several tunnels were killed", Choice::Argument)
}

const NONE_UP: &str = "no tunnel is up: `rustguard up NAME` starts one";
const SEVERAL_UP: &str = "several tunnels are up";

/// The names of the tunnels of this program that are up.
pub(crate) fn up() -> Result<Vec<String>> {
    let mut up = uapi::interfaces()?;
    let any = !up.is_empty();
    // `wg` also shows interfaces of other programs.
    up.retain(|name| run_file::running(name).is_some());
    if up.is_empty() && any && !geteuid().is_root() {
        bail!("this user may not see which tunnels are up: run as root, or with sudo");
    }
    Ok(up)
}

/// Whether this user may not see which process runs the tunnel. Then it is not visible either whether any process does.
pub(crate) fn is_hidden(interface: &str) -> bool {
    File::open(interface::run_file(interface, "pid"))
        .is_err_and(|error| error.kind() == io::ErrorKind::PermissionDenied)
}

/// The names of tunnels that were killed, and left changes to the host behind.
pub(crate) fn killed() -> Vec<String> {
    let Ok(entries) = fs::read_dir(RUN_DIR) else { return Vec::new() };
    let mut names: Vec<String> = entries
        .flatten()
        .filter_map(|entry| Path::new(&entry.file_name()).file_stem()?.to_str().map(str::to_owned))
        .filter(|name| left_behind(name) && !is_hidden(name) && run_file::running(name).is_none())
        .collect();
    names.sort_unstable();
    names.dedup();
    names
}

/// The name of the interface of a running server, for a command that only a server can carry out.
///
/// # Errors
/// As [`served_or_default`]; this machine is a member of the network.
pub(crate) fn served(interface: &Served) -> Result<String> {
    let name = served_or_default(interface)?;
    // If this user may not read the report, the error of the request says who may.
    let network = if is_served(&name) { None } else { Report::read(&name).ok().flatten() };
    let Some(network) = network.filter(|_| run_file::running(&name).is_some()) else { return Ok(name) };
    let servers: Vec<_> = network.list.iter().filter(|listed| listed.role == ListedRole::Server).collect();
    let servers: Vec<_> = servers.iter().map(|server| escape(&server.name)).collect();
    let (called, first) = match (&network.name, &servers[..]) {
        (None, _) | (_, []) => return Ok(name),
        (Some(called), [server]) => (called, server.to_string()),
        (Some(called), several) => (called, format!("the one of {} that runs `rustguard serve`", several.join(", "))),
    };
    bail!(
        "this machine is a member of {} and does not serve it; run the command on its server, {first}",
        escape(called)
    )
}

/// The name of the interface of a running server: the one that was given, or the only one. The default of `serve` comes
/// first.
///
/// # Errors
/// Several are served, and none of them is the default.
pub(crate) fn served_or_default(interface: &Served) -> Result<String> {
    if let Some(given) = &interface.interface {
        return Ok(given.clone());
    }
    let mut names = rustguard_serve::served();
    // A server that was killed leaves its socket behind. Only root can see that.
    if names.len() > 1 {
        names.retain(|name| run_file::running(name).is_some());
    }
    // Without a server, the request fails, and its error says what to start.
    if names.is_empty() || names.iter().any(|name| name == DEFAULT_INTERFACE) {
        return Ok(DEFAULT_INTERFACE.to_owned());
    }
    only(names, "", "several interfaces are served", Choice::Option)
}

/// How a command takes the name of an interface.
#[derive(Clone, Copy)]
pub(crate) enum Choice {
    Argument,
    /// `--interface`
    Option,
}

/// The only one of these names. The errors are `none`, or `several` with the names and a remedy.
pub(crate) fn only(mut names: Vec<String>, none: &str, several: &str, choice: Choice) -> Result<String> {
    names.sort();
    let remedy = match choice {
        Choice::Argument => "name one of them",
        Choice::Option => "choose one with --interface",
    };
    match names.len() {
        0 => bail!("{none}"),
        1 => Ok(names.remove(0)),
        _ => bail!("{several}: {}; {remedy}", names.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_only_one_needs_no_name_and_several_are_listed() {
        let chosen = |names: &[&str], choice| {
            only(names.iter().map(|&name| name.to_owned()).collect(), "start one", "several are up", choice)
                .map_err(|error| error.to_string())
        };
        let only = |names: &[&str]| chosen(names, Choice::Argument);
        assert_eq!(only(&["wg0"]), Ok("wg0".to_owned()));
        assert_eq!(only(&[]), Err("start one".to_owned()));
        assert_eq!(only(&["b", "a"]), Err("several are up: a, b; name one of them".to_owned()));
        let option = chosen(&["b", "a"], Choice::Option);
        assert_eq!(option, Err("several are up: a, b; choose one with --interface".to_owned()));
    }
}
