//! The rights that a tunnel's process gives up before its first packet. An attacker who compromises the process from
//! the network then gains little.
//!
//! | Mechanism | Given up |
//! |---|---|
//! | capabilities | all but those for networks, ports below 1024 and locked memory |
//! | no_new_privs | rights that starting a privileged program would bring back |
//! | Landlock | writing outside of the tunnel's own folders, reading homes and data, signals to other processes, their abstract sockets |
//! | seccomp (`calls.rs`) | starting programs, mounts, namespaces, modules, tracing, keys of the kernel, setuid files, unusual sockets |
//!
//! Threads inherit these limits when they start, so this has to happen before the first thread, and it cannot be
//! undone. Actions that need more rights, such as a hook, are done by the [privileged helper](rustguard_quick::helper),
//! which starts before. Some kernels and containers refuse some of these mechanisms. A tunnel works without them, and
//! reports it.

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64", target_arch = "riscv64"))]
mod calls;

use super::detach;
use landlock::{
    ABI, Access as _, AccessFs, BitFlags, CompatLevel, Compatible as _, Ruleset, RulesetAttr as _,
    RulesetCreatedAttr as _, RulesetStatus, Scope, path_beneath_rules,
};
use rustguard_device::{interface::RUN_DIR, uapi::SOCKET_DIR};
use rustguard_quick::{HookOutput, helper::Helper};
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, clear_ambient_capability_set, remove_capability_from_bounding_set,
    set_capabilities, set_no_new_privs,
};
use std::{
    fs, io,
    os::unix::fs::{DirBuilderExt as _, MetadataExt as _},
    path::{Path, PathBuf},
    process::Command,
};

/// The processors that seccompiler does not know, such as 32-bit ARM.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64", target_arch = "riscv64")))]
mod calls {
    use super::Needs;

    pub(super) fn filter(needs: &Needs) -> Result<(), &'static str> {
        // Only a filter would use it.
        let _ = needs.uring;
        Err("there are no filters for this processor")
    }
}

/// The needs of one tunnel beyond the needs of every tunnel.
#[derive(Debug, Default)]
pub(crate) struct Needs {
    /// The configuration file, which a reload reads again.
    pub(crate) file: Option<PathBuf>,
    /// The folders of its state, which are created.
    pub(crate) state: Vec<PathBuf>,
    /// The sockets that its command line names.
    pub(crate) sockets: Vec<PathBuf>,
    /// Other files that it reads again.
    pub(crate) read: Vec<PathBuf>,
    /// Whether it uses io_uring, whose requests bypass seccomp.
    pub(crate) uring: bool,
}

/// The files that are read later: files of the resolver, which may be replaced and so are allowed by folder, its
/// libraries, and the kernel's files about networks.
const READ: [&str; 13] = [
    "/etc",
    "/usr",
    "/lib",
    "/lib64",
    "/nix/store",
    "/gnu/store",
    "/run",
    "/proc",
    "/sys",
    "/dev/null",
    "/dev/random",
    "/dev/tty",
    "/dev/urandom",
];

/// The driver of the interface.
const TUN: &str = "/dev/net/tun";

/// Gives up what the tunnel does not need. Has to be called before the first thread starts. The privileged helper keeps
/// the rights, and acts for the tunnel later. It lives as long as the result. `None` if nothing was given up.
pub(crate) fn with_helper(interface: &str, needs: &Needs) -> Option<Helper> {
    if !is_single() {
        return None;
    }
    // The helper reads the file itself, and only one of the two processes could read a pipe.
    if needs.file.as_ref().is_some_and(|file| !file.is_file()) {
        tracing::warn!(
            "{interface} keeps all rights of its start: its configuration is no file that can be read again"
        );
        return None;
    }
    match command(interface, needs).and_then(Helper::start) {
        Ok(helper) => {
            this_thread(needs);
            Some(helper)
        }
        Err(error) => {
            tracing::warn!(
                "{interface} keeps all rights of its start: the process that would have them instead does not start: {error}"
            );
            None
        }
    }
}

/// The command that starts the privileged helper.
fn command(interface: &str, needs: &Needs) -> io::Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["helper", interface]);
    if detach::hook_output() == HookOutput::Stderr {
        command.arg("--stderr");
    }
    if let Some(file) = &needs.file {
        command.arg("--file").arg(std::path::absolute(file)?);
    }
    for socket in &needs.sockets {
        command.arg("--socket").arg(std::path::absolute(socket)?);
    }
    Ok(command)
}

/// Whether the process has only one thread. Other threads would keep their rights.
fn is_single() -> bool {
    let is_single = fs::read_dir("/proc/self/task").map_or(0, Iterator::count) == 1;
    if !is_single {
        tracing::warn!("this process keeps all rights of its start: it has more than one thread, or no /proc");
    }
    is_single
}

/// Gives up the rights of the calling thread, and of threads that it starts.
fn this_thread(needs: &Needs) {
    tell("drop capabilities", drop_capabilities(needs));
    tell("set no_new_privs", set_no_new_privs(true));
    match confine_files(needs) {
        Ok(RulesetStatus::FullyEnforced) => {}
        Ok(RulesetStatus::NotEnforced) => tracing::warn!(
            "this process keeps the right to all files of its user: the kernel has no Landlock, or it is switched off"
        ),
        Ok(status) => tracing::debug!("this kernel's Landlock confines the process to its files in part: {status:?}"),
        Err(error) => {
            tracing::warn!("privileges not dropped: cannot restrict this process to its files: {error}");
        }
    }
    tell("filter system calls", calls::filter(needs));
}

fn tell<E: std::fmt::Display>(what: &str, result: Result<(), E>) {
    if let Err(error) = result {
        tracing::warn!("privileges not dropped: cannot {what}: {error}");
    }
}

fn drop_capabilities(needs: &Needs) -> rustix::io::Result<()> {
    let mut kept = CapabilitySet::NET_ADMIN | CapabilitySet::NET_BIND_SERVICE | CapabilitySet::IPC_LOCK;
    if needs.file.as_deref().is_some_and(is_of_others) {
        kept |= CapabilitySet::DAC_READ_SEARCH;
    }
    clear_ambient_capability_set()?;
    let before = capabilities(None)?;
    if before.effective.contains(CapabilitySet::SETPCAP) {
        for capability in CapabilitySet::all().difference(kept).iter() {
            // An older kernel does not know all capabilities.
            let _ = remove_capability_from_bounding_set(capability);
        }
    }
    let kept = |set: CapabilitySet| set.intersection(kept);
    set_capabilities(
        None,
        CapabilitySets {
            effective: kept(before.effective),
            permitted: kept(before.permitted),
            inheritable: CapabilitySet::empty(),
        },
    )
}

/// Whether a file, or a folder above it, belongs to another user. Root needs a capability to read it.
fn is_of_others(file: &Path) -> bool {
    let user = rustix::process::geteuid().as_raw();
    let file = file.canonicalize().unwrap_or_else(|_| file.to_owned());
    file.ancestors().filter_map(|path| fs::metadata(path).ok()).any(|found| found.uid() != user)
}

fn confine_files(needs: &Needs) -> Result<RulesetStatus, landlock::RulesetError> {
    let make = |folder: &Path, mode| {
        // A folder that cannot be created causes an error later, where it is used.
        let _ = fs::DirBuilder::new().recursive(true).mode(mode).create(folder);
    };
    make(Path::new(RUN_DIR), 0o755);
    make(Path::new(SOCKET_DIR), 0o755);
    let of_sockets: Vec<PathBuf> = needs.sockets.iter().filter_map(|path| folder_of(path)).collect();
    of_sockets.iter().for_each(|folder| make(folder, 0o755));
    needs.state.iter().for_each(|folder| make(folder, 0o700));
    let read: BitFlags<AccessFs> = AccessFs::ReadFile | AccessFs::ReadDir;
    let sockets = AccessFs::MakeSock | AccessFs::RemoveFile;
    let write = read | sockets | AccessFs::WriteFile | AccessFs::Truncate | AccessFs::MakeReg;
    let state = write | AccessFs::MakeDir | AccessFs::RemoveDir;
    let device = AccessFs::ReadFile | AccessFs::WriteFile | AccessFs::IoctlDev;
    // Both a link and its target may be replaced.
    let files = [Path::new("/etc/resolv.conf")].into_iter();
    let files = files.chain(needs.file.as_deref()).chain(needs.read.iter().map(PathBuf::as_path));
    let read_more: Vec<PathBuf> = files
        .flat_map(|file| [folder_of(file), file.canonicalize().ok().and_then(|target| folder_of(&target))])
        .flatten()
        .collect();
    // Missing paths are left out.
    Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(ABI::V6))?
        // Requests to io_uring can create Unix sockets, but do not bypass Landlock.
        .scope(Scope::Signal | Scope::AbstractUnixSocket)?
        .create()?
        .add_rules(path_beneath_rules(READ, read))?
        .add_rules(path_beneath_rules(read_more, read))?
        .add_rules(path_beneath_rules([RUN_DIR], write))?
        .add_rules(path_beneath_rules(&needs.state, state))?
        .add_rules(path_beneath_rules([SOCKET_DIR], sockets))?
        .add_rules(path_beneath_rules(&of_sockets, sockets))?
        .add_rules(path_beneath_rules([TUN], device))?
        .restrict_self()
        .map(|status| status.ruleset)
}

/// The folder of a file.
fn folder_of(file: &Path) -> Option<PathBuf> {
    std::path::absolute(file).ok()?.parent().map(Path::to_owned)
}

#[cfg(all(test, any(target_arch = "x86_64", target_arch = "aarch64", target_arch = "riscv64")))]
mod tests;
