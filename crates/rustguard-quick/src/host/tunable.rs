//! Tunables of the kernel, below /proc/sys. Names are kept with slashes, because the names of interfaces may contain
//! dots.

use crate::helper::{self, Answer, Task, unexpected};
use std::{
    fs, io,
    path::{Path, PathBuf},
};

/// The settings for forwarding.
pub(super) const FORWARDING_V4: &str = "net/ipv4/ip_forward";
pub(super) const FORWARDING_V6: &str = "net/ipv6/conf/all/forwarding";
/// Marked answers pass the reverse path filter.
pub(super) const SRC_VALID_MARK: &str = "net/ipv4/conf/all/src_valid_mark";

pub(super) fn path(name: &str) -> PathBuf {
    Path::new("/proc/sys").join(name)
}

/// Sets a tunable.
pub(super) fn write(name: &str, value: &str) -> io::Result<()> {
    let Some(helper) = helper::get() else { return fs::write(path(name), value) };
    match helper.ask_now(Task::Sysctl { name: name.to_owned(), value: value.to_owned() }) {
        Answer::Done => Ok(()),
        Answer::Failed(failure) => Err(failure.into_io()),
        answer => Err(unexpected(&answer)),
    }
}

/// Whether a tunnel sets this tunable to such a value.
pub(crate) fn is_tunable(name: &str, value: &str) -> bool {
    let is_small = matches!(value, "" | "0" | "1" | "2");
    name == SRC_VALID_MARK && value == "1" || is_small && is_of_forwarding(name)
}

/// Whether it is a forwarding setting, or `accept_ra`, which changes with forwarding.
pub(super) fn is_of_forwarding(name: &str) -> bool {
    let plain = |text: &str| !text.is_empty() && !text.starts_with(['.', '-']) && !text.contains(['/', '\0']);
    let setting = name.strip_prefix("net/ipv4/conf/").map(|rest| (rest, false));
    let setting = setting.or_else(|| name.strip_prefix("net/ipv6/conf/").map(|rest| (rest, true)));
    match setting.and_then(|(rest, v6)| Some((rest.rsplit_once('/')?, v6))) {
        Some(((interface, "forwarding"), _) | ((interface, "accept_ra"), true)) => plain(interface),
        _ => [FORWARDING_V4, FORWARDING_V6].contains(&name),
    }
}
