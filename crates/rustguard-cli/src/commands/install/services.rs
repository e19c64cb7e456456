//! The services of systemd that run this program, while files are installed and removed.

use crate::output::escape::escape;
use anyhow::{Context as _, Result, bail};
use rustguard_device::{interface::RUN_DIR, uapi::SOCKET_DIR};
use std::{
    collections::BTreeSet,
    fs,
    path::Path,
    process::{Command, Stdio},
};

/// The templates of the units. Those that hold tunnels come first.
const TEMPLATES: [&str; 3] = ["rustguard@", "rustguard-serve@", "rustguard-hooks@"];
/// Where `systemctl enable` makes its links.
const ENABLED: &str = "/etc/systemd/system";
/// Where systemd looks below a prefix of its own accord.
const PREFIXES: [&str; 2] = ["/usr", "/usr/local"];

/// Takes installed files into use: units, the files of udev and systemd-networkd, and the program, in tunnels that run.
pub(super) fn take_over() -> Result<()> {
    if !is_running() {
        return Ok(());
    }
    systemctl(&["daemon-reload"])?;
    // These two have nothing to say about success, and may not run any more. udev by itself looks for other rules at most every three
    // seconds: a tunnel that starts at once would be networkd's.
    if Path::new("/run/udev/control").exists() {
        tell("udevadm", &["control", "--reload"]);
    }
    if Path::new("/run/systemd/netif").is_dir() {
        tell("networkctl", &["reload"]);
    }
    let tunnels = [pattern(TEMPLATES[0]), pattern(TEMPLATES[1])];
    if let Err(error) = systemctl(&["try-restart", &tunnels[0], &tunnels[1]]) {
        // What is installed is installed. A tunnel may have had a broken file before.
        println!("not all tunnels started again: {error:#}");
    }
    Ok(())
}

/// Ends the services, and takes them out of the start of the system.
pub(super) fn end() -> Result<()> {
    let mut units = enabled();
    if is_running() {
        let patterns = TEMPLATES.map(pattern);
        let arguments =
            ["list-units", "--all", "--plain", "--no-legend", "--", &patterns[0], &patterns[1], &patterns[2]];
        units.extend(
            systemctl(&arguments)?.lines().filter_map(|line| line.split_whitespace().next()).map(str::to_owned),
        );
    }
    if units.is_empty() {
        return Ok(());
    }
    let units: Vec<&str> = units.iter().map(String::as_str).collect();
    println!("stopping {}", escape(&units.join(" ")));
    let mut arguments = vec!["disable", "--quiet"];
    // Without a running systemd, as in the root of another machine, there is nothing to stop.
    arguments.extend(is_running().then_some("--now"));
    arguments.push("--");
    arguments.extend(&units);
    systemctl(&arguments)?;
    if is_running() {
        let _ = systemctl(&[&["reset-failed", "--"][..], &units].concat());
    }
    // Folders of the units, which keep them for other tunnels.
    for folder in [RUN_DIR, SOCKET_DIR] {
        let _ = fs::remove_dir(folder);
    }
    Ok(())
}

/// Makes systemd forget files that were removed.
pub(super) fn forget() {
    if is_running() {
        let _ = systemctl(&["daemon-reload"]);
    }
}

/// Names what is missing where systemd does not look below the prefix.
pub(super) fn tell_where(prefix: &Path) {
    if is_running() && !PREFIXES.iter().any(|known| prefix == Path::new(known)) {
        println!("systemd does not look there: `systemctl link {}/lib/systemd/system/*`", prefix.display());
    }
}

fn is_running() -> bool {
    // sd_booted(3)
    Path::new("/run/systemd/system").is_dir()
}

fn pattern(template: &str) -> String {
    format!("{template}*.service")
}

/// The instances of our units that the start of the system or another unit wants.
fn enabled() -> BTreeSet<String> {
    let wants = fs::read_dir(ENABLED).into_iter().flatten().flatten().map(|entry| entry.path());
    let wants = wants.filter(|path| path.extension().is_some_and(|ending| ending == "wants" || ending == "requires"));
    let links = wants.flat_map(|folder| fs::read_dir(folder).into_iter().flatten().flatten());
    links.filter_map(|link| link.file_name().into_string().ok()).filter(|name| is_instance(name)).collect()
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
