//! Checks of this machine that do not depend on its tunnels.

use super::finding::Finding;
use crate::one;
use rustguard_device::interface::RUN_DIR;
use rustix::{
    fs::{Access, access},
    process::geteuid,
    system::uname,
};
use std::{
    fs::{self, File},
    io,
    path::Path,
    time::{Duration, SystemTime},
};

const TUN: &str = "/dev/net/tun";
/// The bit of CAP_NET_ADMIN (capabilities(7)).
const CAP_NET_ADMIN: u32 = 12;
/// systemd-timesyncd creates this file when it has set the clock.
const SYNCHRONIZED: &str = "/run/systemd/timesync/synchronized";
const RESOLV_CONF: &str = "/etc/resolv.conf";

/// All findings about this machine.
pub(super) fn check() -> Vec<Finding> {
    let mut findings = vec![versions(), permission(), tun(), run_folder(), clock(), name_servers()];
    findings.extend(killed_tunnels());
    findings
}

fn versions() -> Finding {
    let kernel = uname();
    let release = kernel.release().to_string_lossy();
    Finding::fine("versions", format!("rustguard {} on Linux {release}", env!("CARGO_PKG_VERSION")))
}

/// Whether this process may administer the network. Without this permission many other checks are not possible.
pub(super) fn may_administer() -> bool {
    let capabilities = fs::read_to_string("/proc/self/status").unwrap_or_default();
    effective(&capabilities).map_or(geteuid().is_root(), |set| set & (1 << CAP_NET_ADMIN) != 0)
}

/// The effective capabilities in `/proc/PID/status`.
fn effective(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"))?;
    u64::from_str_radix(line.trim(), 16).ok()
}

fn permission() -> Finding {
    if may_administer() {
        return Finding::fine("permission", "this user may administer the network");
    }
    if geteuid().is_root() {
        return Finding::wrong(
            "permission",
            "this user is root, but without CAP_NET_ADMIN, so no interface can be created or changed",
            "give the container or the unit the capability: --cap-add NET_ADMIN, AmbientCapabilities=CAP_NET_ADMIN",
        );
    }
    Finding::wrong(
        "permission",
        "this user may not administer the network, so tunnels cannot be started, and many checks are not possible",
        "run it as root: sudo rustguard doctor",
    )
}

fn tun() -> Finding {
    let remedy = match File::options().read(true).write(true).open(TUN) {
        Ok(_) => return Finding::fine("tun", format!("{TUN} can be opened")),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            (error, "load the driver: modprobe tun; in a container: --device /dev/net/tun")
        }
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            (error, "run as root; in a container, allow the device: --device /dev/net/tun")
        }
        // ENODEV or ENXIO: the file is there, and the driver is not.
        Err(error) => (error, "load the driver: modprobe tun; the kernel needs CONFIG_TUN"),
    };
    Finding::wrong("tun", format!("{TUN} cannot be opened, so no interface can be created: {}", remedy.0), remedy.1)
}

fn run_folder() -> Finding {
    let folder = Path::new(RUN_DIR);
    let existing = folder.ancestors().find(|path| path.exists()).unwrap_or(folder);
    match access(existing, Access::WRITE_OK) {
        Ok(()) => Finding::fine("run-folder", format!("{RUN_DIR} can be written")),
        Err(error) if geteuid().is_root() => Finding::wrong(
            "run-folder",
            format!("{} cannot be written, so no tunnel can start: {error}", existing.display()),
            format!("mount a writable file system there: mount -t tmpfs tmpfs {}", existing.display()),
        ),
        Err(_) => Finding::unknown("run-folder", format!("whether root can write {RUN_DIR} is not known")),
    }
}

/// A clock that was set back breaks handshakes: a peer refuses every timestamp that is not later than the last one
/// (WireGuard paper, section 5.1). Files that were written in the future show such a clock.
fn clock() -> Finding {
    let now = SystemTime::now();
    let written = std::env::current_exe().and_then(fs::metadata).and_then(|metadata| metadata.modified());
    if let Ok(written) = written
        && let Ok(behind) = written.duration_since(now)
        && behind > Duration::from_secs(60)
    {
        let by = crate::output::words::span(behind.as_secs());
        return Finding::wrong(
            "clock",
            format!(
                "the clock is behind: this program was installed {by} in the future. Peers refuse handshakes whose time is earlier than that of the last one"
            ),
            "set the clock: timedatectl set-ntp true, or chronyc makestep",
        );
    }
    let by_whom = if Path::new(SYNCHRONIZED).exists() { "is synchronised" } else { "is plausible" };
    Finding::fine("clock", format!("the clock {by_whom}"))
}

fn name_servers() -> Finding {
    let has = |text: &str| text.lines().any(|line| line.split_whitespace().next() == Some("nameserver"));
    match fs::read_to_string(RESOLV_CONF) {
        Ok(text) if has(&text) => Finding::fine("name-servers", format!("{RESOLV_CONF} has a name server")),
        Ok(_) => Finding::warning(
            "name-servers",
            format!("{RESOLV_CONF} has no name server, so endpoints with a host name cannot be found"),
            "add one (nameserver 192.0.2.1), or give addresses as endpoints",
        ),
        Err(error) => Finding::warning(
            "name-servers",
            format!("{RESOLV_CONF} cannot be read, so endpoints with a host name cannot be found: {error}"),
            "restore the file, or give addresses as endpoints",
        ),
    }
}

/// Tunnels that were killed, and left changes to the host behind.
fn killed_tunnels() -> Vec<Finding> {
    let finding = |name: String| {
        Finding::warning(
            "killed-tunnel",
            format!("the tunnel {name} was killed, and its changes to this machine are still there"),
            format!("undo them: rustguard down {name}"),
        )
    };
    one::killed().into_iter().map(finding).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capabilities_are_read_from_proc() {
        assert_eq!(effective("Name:\tx\nCapInh:\t0\nCapEff:\t0000000000001000\n"), Some(1 << CAP_NET_ADMIN));
        assert_eq!(effective("Name:\tx\n"), None);
        assert_eq!(effective("CapEff:\tx\n"), None);
    }
}
