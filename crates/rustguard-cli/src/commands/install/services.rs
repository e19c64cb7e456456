//! The services of systemd that run this program, while files are installed and removed.

use crate::{escape::escape, one, process::systemd_runs};
use anyhow::{Context as _, Result, bail};
use rustguard_device::{
    interface::{RUN_DIR, check_name},
    uapi::SOCKET_DIR,
};
use rustguard_quick::conf::DIRECTORIES;
use rustguard_serve::is_served;
use rustix::process::geteuid;
use std::{
    collections::BTreeSet,
    fs,
    path::Path,
    process::{Command, Stdio},
};

/// The templates of the units. The first two run tunnels.
const TEMPLATES: [&str; 3] = ["rustguard@", "rustguard-serve@", "rustguard-hooks@"];
/// Where `systemctl enable` makes its links.
const ENABLED: &str = "/etc/systemd/system";
/// The prefixes below which systemd looks for units.
const PREFIXES: [&str; 2] = ["/usr", "/usr/local"];

/// Takes installed files into use: units, the files of udev and systemd-networkd, and the program, in tunnels that run.
pub(super) fn take_over() -> Result<()> {
    if !systemd_runs() {
        return Ok(());
    }
    if !geteuid().is_root() {
        println!("systemd was not told, because that takes root: sudo systemctl daemon-reload");
        return Ok(());
    }
    systemctl(&["daemon-reload"])?;
    // Success does not depend on these two, which may not run. udev checks for changed rules at most every three
    // seconds: until then, networkd would manage a tunnel that starts.
    if Path::new("/run/udev/control").exists() {
        tell("udevadm", &["control", "--reload"]);
    }
    if Path::new("/run/systemd/netif").is_dir() {
        tell("networkctl", &["reload"]);
    }
    let tunnels = [pattern(TEMPLATES[0]), pattern(TEMPLATES[1])];
    if let Err(error) = systemctl(&["try-restart", &tunnels[0], &tunnels[1]]) {
        // The installation itself succeeded. A tunnel may have had a broken file before.
        println!("not all tunnels started again: {error:#}");
    }
    tell_of_others();
    Ok(())
}

/// Names the tunnels that systemd does not run, with the commands that change this.
fn tell_of_others() {
    let files = configured();
    let mut up = one::up().unwrap_or_default();
    if files.is_empty() && up.is_empty() {
        return;
    }
    // Without an answer, it is not known which tunnels systemd runs.
    let Ok(active) = instances(&["--state=active,activating,reloading"]) else { return };
    let enabled = enabled();
    up.retain(|name| !units(name).iter().any(|unit| active.contains(unit)));
    for name in &up {
        let (unit, name) = (if is_served(name) { &TEMPLATES[1] } else { &TEMPLATES[0] }, escape(name));
        println!(
            "{name} is up, but not by systemd, and still runs the program of before: `rustguard down {name}`, then `systemctl enable --now {unit}{name}`"
        );
    }
    let wants = links();
    let is_free = |name: &&String| !up.contains(name) && !units(name).iter().any(|unit| enabled.contains(unit));
    for name in files.iter().filter(is_free) {
        let (name, stock) = (escape(name), format!("wg-quick@{name}.service"));
        if wants.contains(&stock) {
            println!(
                "{name} is brought up by wg-quick at each start; to change that: `systemctl disable --now wg-quick@{name} && systemctl enable --now rustguard@{name}`"
            );
        } else {
            println!(
                "{name} has a file, and is not brought up at each start: `systemctl enable --now rustguard@{name}`"
            );
        }
    }
}

/// The names of the files that `rustguard@` finds.
fn configured() -> BTreeSet<String> {
    let entries = DIRECTORIES.iter().filter_map(|folder| fs::read_dir(folder).ok()).flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().to_str()?.strip_suffix(".conf").map(str::to_owned));
    names.filter(|name| check_name(name).is_ok()).collect()
}

/// The units that may run a tunnel.
fn units(name: &str) -> [String; 2] {
    [TEMPLATES[0], TEMPLATES[1]].map(|template| format!("{template}{name}.service"))
}

/// Ends the services, and disables them.
pub(super) fn end() -> Result<()> {
    if !geteuid().is_root() {
        // A user who installed below a private folder has not told systemd about it.
        return Ok(());
    }
    let mut units = enabled();
    if systemd_runs() {
        units.extend(instances(&["--all"])?);
    }
    if units.is_empty() {
        return Ok(());
    }
    let units: Vec<&str> = units.iter().map(String::as_str).collect();
    println!("stopping {}", escape(&units.join(" ")));
    let mut arguments = vec!["disable", "--quiet"];
    // Without a running systemd, as in the root of another machine, there is nothing to stop.
    arguments.extend(systemd_runs().then_some("--now"));
    arguments.push("--");
    arguments.extend(&units);
    systemctl(&arguments)?;
    if systemd_runs() {
        let _ = systemctl(&[&["reset-failed", "--"][..], &units].concat());
    }
    // The units keep these folders for other tunnels.
    for folder in [RUN_DIR, SOCKET_DIR] {
        let _ = fs::remove_dir(folder);
    }
    Ok(())
}

/// Makes systemd forget files that were removed.
pub(super) fn forget() {
    if systemd_runs() {
        let _ = systemctl(&["daemon-reload"]);
    }
}

/// Names the missing steps if systemd does not look below the prefix.
pub(super) fn tell_where(prefix: &Path) {
    if systemd_runs() && !PREFIXES.iter().any(|known| prefix == Path::new(known)) {
        println!("systemd does not look there: `systemctl link {}/lib/systemd/system/*`", prefix.display());
    }
}

fn pattern(template: &str) -> String {
    format!("{template}*.service")
}

/// The instances of our units that systemd has loaded.
fn instances(which: &[&str]) -> Result<Vec<String>> {
    let patterns = TEMPLATES.map(pattern);
    let patterns = patterns.iter().map(String::as_str);
    let arguments = ["list-units"].into_iter().chain(which.iter().copied());
    let arguments: Vec<_> = arguments.chain(["--plain", "--no-legend", "--"]).chain(patterns).collect();
    let units = systemctl(&arguments)?;
    Ok(units.lines().filter_map(|line| line.split_whitespace().next()).map(str::to_owned).collect())
}

/// The enabled instances of our units.
fn enabled() -> BTreeSet<String> {
    links().into_iter().filter(|name| is_instance(name)).collect()
}

/// All enabled units.
fn links() -> BTreeSet<String> {
    let wants = fs::read_dir(ENABLED).into_iter().flatten().flatten().map(|entry| entry.path());
    let wants = wants.filter(|path| path.extension().is_some_and(|ending| ending == "wants" || ending == "requires"));
    let links = wants.flat_map(|folder| fs::read_dir(folder).into_iter().flatten().flatten());
    links.filter_map(|link| link.file_name().into_string().ok()).collect()
}

fn is_instance(unit: &str) -> bool {
    unit.ends_with(".service") && TEMPLATES.iter().any(|template| unit.starts_with(template))
}

/// Runs a program whose result does not matter.
fn tell(program: &str, arguments: &[&str]) {
    let _ = Command::new(program).args(arguments).stdout(Stdio::null()).stderr(Stdio::null()).status();
}

fn systemctl(arguments: &[&str]) -> Result<String> {
    let output = Command::new("systemctl").args(arguments).output().context("cannot start systemctl")?;
    if !output.status.success() {
        bail!("systemctl {}: {}", arguments.join(" "), escape(String::from_utf8_lossy(&output.stderr).trim()));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_instances_of_our_units_are_ended() {
        for unit in ["rustguard@wg0.service", "rustguard-serve@rg0.service", "rustguard-hooks@wg0.service"] {
            assert!(is_instance(unit), "{unit}");
        }
        for unit in
            ["rustguard.service", "wg-quick@rustguard.service", "rustguard-exporter@a.service", "rustguard@wg0.timer"]
        {
            assert!(!is_instance(unit), "{unit}");
        }
    }
}
