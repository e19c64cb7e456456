//! What a tunnel's process gives up before its first packet: whoever takes it over from the network has then taken over little.
//!
//! | By | Given up |
//! |---|---|
//! | capabilities | all but those for networks, ports below 1024 and locked memory |
//! | no_new_privs | what a program with other rights would bring back |
//! | Landlock | writing outside of the tunnel's own folders, reading homes and data, signals to other processes |
//! | seccomp | starting programs, mounts, namespaces, modules, tracing, keys of the kernel, setuid files, unusual sockets |
//!
//! All of it holds for the threads that start later, so it has to happen before the first of them, and it cannot be taken back. Some kernels
//! and containers refuse some of it. A tunnel works without, so a refusal is logged at the level debug.

use landlock::{
    ABI, Access as _, AccessFs, BitFlags, CompatLevel, Compatible as _, Ruleset, RulesetAttr as _,
    RulesetCreatedAttr as _, RulesetStatus, Scope, path_beneath_rules,
};
use rustguard_device::{interface::RUN_DIR, uapi::SOCKET_DIR};
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, clear_ambient_capability_set, remove_capability_from_bounding_set,
    set_capabilities, set_no_new_privs,
};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen::Dword, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
    TargetArch, apply_filter,
};
use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::{DirBuilderExt as _, MetadataExt as _},
    path::{Path, PathBuf},
};

/// What a tunnel needs besides what all of them do.
#[derive(Debug, Default)]
pub(crate) struct Needs {
    /// Its configuration, which a reload reads again.
    pub(crate) file: Option<PathBuf>,
    /// The folder of its state, which is made.
    pub(crate) state: Option<PathBuf>,
    /// The folder of a socket of its own, which is made.
    pub(crate) sockets: Option<PathBuf>,
    /// Whether it uses io_uring, whose requests pass by seccomp.
    pub(crate) uring: bool,
}

/// What is read later: files of the resolver, which may be replaced and so have to be allowed by folder, its libraries, and what the
/// kernel says of networks.
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

/// Gives up what the tunnel does not need. Has to be called before the first thread starts.
pub(crate) fn process(needs: &Needs) {
    if fs::read_dir("/proc/self/task").map_or(0, Iterator::count) != 1 {
        tracing::debug!("this process is not confined: it has more than one thread, or no /proc");
        return;
    }
    this_thread(needs);
}

/// The same for the calling thread, and those that it starts.
fn this_thread(needs: &Needs) {
    tell("drop capabilities", drop_capabilities(needs));
    tell("set no_new_privs", set_no_new_privs(true));
    match confine_files(needs) {
        Ok(RulesetStatus::FullyEnforced) => {}
        Ok(status) => tracing::debug!("this kernel's Landlock confines the process to its files in part: {status:?}"),
        Err(error) => tracing::debug!("cannot confine the process to its files: {error}"),
    }
    tell("filter system calls", filter_calls(needs));
}

fn tell<E: std::fmt::Display>(what: &str, result: Result<(), E>) {
    if let Err(error) = result {
        tracing::debug!("cannot {what}: {error}");
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
            // An older kernel does not know all of them.
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

/// Whether a file, or a folder on the way to it, belongs to another user: root reads it by a capability only.
fn is_of_others(file: &Path) -> bool {
    let user = rustix::process::geteuid().as_raw();
    let file = file.canonicalize().unwrap_or_else(|_| file.to_owned());
    file.ancestors().filter_map(|path| fs::metadata(path).ok()).any(|found| found.uid() != user)
}

fn confine_files(needs: &Needs) -> Result<RulesetStatus, landlock::RulesetError> {
    let make = |folder: &Path, mode| {
        // What cannot be made fails again where it is used, and says so there.
        let _ = fs::DirBuilder::new().recursive(true).mode(mode).create(folder);
    };
    make(Path::new(RUN_DIR), 0o755);
    make(Path::new(SOCKET_DIR), 0o755);
    if let Some(folder) = &needs.sockets {
        make(folder, 0o755);
    }
    if let Some(folder) = &needs.state {
        make(folder, 0o700);
    }
    let read: BitFlags<AccessFs> = AccessFs::ReadFile | AccessFs::ReadDir;
    let sockets = AccessFs::MakeSock | AccessFs::RemoveFile;
    let write = read | sockets | AccessFs::WriteFile | AccessFs::Truncate | AccessFs::MakeReg;
    let device = AccessFs::ReadFile | AccessFs::WriteFile | AccessFs::IoctlDev;
    // A link and its target may each be replaced.
    let resolver = fs::canonicalize("/etc/resolv.conf").ok();
    let file = needs.file.as_ref().and_then(|file| std::path::absolute(file).ok());
    let target = file.as_ref().and_then(|file| file.canonicalize().ok());
    let folders = [resolver, file, target].into_iter().flatten().filter_map(|file| file.parent().map(Path::to_owned));
    let read_more: Vec<PathBuf> = folders.collect();
    // Those that do not exist are left out.
    Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(ABI::V6))?
        .scope(Scope::Signal)?
        .create()?
        .add_rules(path_beneath_rules(READ, read))?
        .add_rules(path_beneath_rules(read_more, read))?
        .add_rules(path_beneath_rules([Path::new(RUN_DIR)].into_iter().chain(needs.state.as_deref()), write))?
        .add_rules(path_beneath_rules([Path::new(SOCKET_DIR)].into_iter().chain(needs.sockets.as_deref()), sockets))?
        .add_rules(path_beneath_rules([TUN], device))?
        .restrict_self()
        .map(|status| status.ruleset)
}

/// System calls whose numbers are the same for all processors and that libc does not name everywhere.
const FCHMODAT2: i64 = 452;
const SETXATTRAT: i64 = 463;
const REMOVEXATTRAT: i64 = 466;
const OPEN_TREE_ATTR: i64 = 467;

/// What a tunnel never calls.
const REFUSED: &[i64] = &[
    // Other programs, and other processes.
    libc::SYS_execve,
    libc::SYS_execveat,
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_pidfd_getfd,
    libc::SYS_kcmp,
    // Namespaces and mounts, in which files have other rights.
    libc::SYS_setns,
    libc::SYS_unshare,
    libc::SYS_chroot,
    libc::SYS_pivot_root,
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_mount_setattr,
    libc::SYS_move_mount,
    libc::SYS_open_tree,
    OPEN_TREE_ATTR,
    libc::SYS_fsopen,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fspick,
    // Code in the kernel, and what has often been a way into it.
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_kexec_load,
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
    libc::SYS_keyctl,
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_personality,
    // The whole machine.
    libc::SYS_reboot,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_acct,
    libc::SYS_quotactl,
    libc::SYS_sethostname,
    libc::SYS_setdomainname,
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_clock_adjtime,
    libc::SYS_adjtimex,
    libc::SYS_syslog,
    libc::SYS_vhangup,
    // Files past Landlock, which looks at none of these. mknod makes no regular files here.
    libc::SYS_open_by_handle_at,
    libc::SYS_name_to_handle_at,
    libc::SYS_mknodat,
    libc::SYS_setxattr,
    libc::SYS_lsetxattr,
    libc::SYS_fsetxattr,
    libc::SYS_removexattr,
    libc::SYS_lremovexattr,
    libc::SYS_fremovexattr,
    SETXATTRAT,
    REMOVEXATTRAT,
    libc::SYS_fanotify_init,
];

/// The same, where only x86-64 has the call.
#[cfg(target_arch = "x86_64")]
const REFUSED_HERE: &[i64] = &[
    libc::SYS_kexec_file_load,
    libc::SYS_iopl,
    libc::SYS_ioperm,
    libc::SYS_modify_ldt,
    libc::SYS_mknod,
    libc::SYS_uselib,
];
#[cfg(not(target_arch = "x86_64"))]
const REFUSED_HERE: &[i64] = &[];

/// Calls that get a file's mode, with the argument that has it.
const MODES: [(i64, u8); 3] = [(libc::SYS_fchmod, 1), (libc::SYS_fchmodat, 2), (FCHMODAT2, 2)];
#[cfg(target_arch = "x86_64")]
const MODES_HERE: [(i64, u8); 2] = [(libc::SYS_chmod, 1), (libc::SYS_creat, 1)];
#[cfg(not(target_arch = "x86_64"))]
const MODES_HERE: [(i64, u8); 0] = [];

/// Calls that get a mode if their flags ask for a new file, with the arguments that have flags and mode.
#[cfg(target_arch = "x86_64")]
const OPENS: [(i64, u8, u8); 2] = [(libc::SYS_openat, 2, 3), (libc::SYS_open, 1, 2)];
#[cfg(not(target_arch = "x86_64"))]
const OPENS: [(i64, u8, u8); 1] = [(libc::SYS_openat, 2, 3)];

const NAMESPACES: [libc::c_int; 7] = [
    libc::CLONE_NEWCGROUP,
    libc::CLONE_NEWIPC,
    libc::CLONE_NEWNET,
    libc::CLONE_NEWNS,
    libc::CLONE_NEWPID,
    libc::CLONE_NEWUSER,
    libc::CLONE_NEWUTS,
];

/// Marks a call of x32, the third interface of an x86-64 kernel: same processor for a filter, other numbers.
const X32: i64 = 0x4000_0000;
/// The numbers that x32 has for itself. execve and ptrace are among them.
const X32_OWN: std::ops::RangeInclusive<i64> = 512..=547;

type Rules = BTreeMap<i64, Vec<SeccompRule>>;

fn filter_calls(needs: &Needs) -> Result<(), seccompiler::Error> {
    let arch = TargetArch::try_from(std::env::consts::ARCH)?;
    let install = |rules: Rules, errno: libc::c_int| {
        let refused = SeccompAction::Errno(errno.unsigned_abs());
        let program: BpfProgram = SeccompFilter::new(rules, SeccompAction::Allow, refused, arch)?.try_into()?;
        apply_filter(&program)
    };
    // Their arguments are in memory, where no filter sees them. The C library falls back to clone and openat.
    install([libc::SYS_clone3, libc::SYS_openat2].map(|call| (call, Vec::new())).into(), libc::ENOSYS)?;
    install(refused(needs)?, libc::EPERM)
}

/// What is refused, by its number: all of it, or with certain arguments.
fn refused(needs: &Needs) -> Result<Rules, seccompiler::BackendError> {
    let mut rules: Rules = REFUSED.iter().chain(REFUSED_HERE).map(|call| (*call, Vec::new())).collect();
    if !needs.uring {
        rules.insert(libc::SYS_io_uring_setup, Vec::new());
    }
    let has = |argument, bit: libc::c_int| {
        let bit = u64::from(bit.unsigned_abs());
        SeccompCondition::new(argument, Dword, SeccompCmpOp::MaskedEq(bit), bit)
    };
    let is_not = |argument, value: libc::c_int| {
        SeccompCondition::new(argument, Dword, SeccompCmpOp::Ne, u64::from(value.unsigned_abs()))
    };
    for namespace in NAMESPACES {
        rules.entry(libc::SYS_clone).or_default().push(SeccompRule::new(vec![has(0, namespace)?])?);
    }
    // setuid and setgid.
    for bit in [0o4000, 0o2000] {
        for (call, mode) in MODES.into_iter().chain(MODES_HERE) {
            rules.entry(call).or_default().push(SeccompRule::new(vec![has(mode, bit)?])?);
        }
        for (call, flags, mode) in OPENS {
            for new in [libc::O_CREAT, libc::O_TMPFILE & !libc::O_DIRECTORY] {
                let rule = SeccompRule::new(vec![has(flags, new)?, has(mode, bit)?])?;
                rules.entry(call).or_default().push(rule);
            }
        }
    }
    let families = [libc::AF_UNIX, libc::AF_INET, libc::AF_INET6, libc::AF_NETLINK].map(|family| is_not(0, family));
    let other = SeccompRule::new(families.into_iter().collect::<Result<_, _>>()?)?;
    rules.insert(libc::SYS_socket, vec![other]);
    if cfg!(target_arch = "x86_64") {
        // Nothing that a tunnel runs is x32. A call that is refused by its arguments is refused there with any.
        let same: Vec<i64> = rules.keys().copied().chain([libc::SYS_clone3, libc::SYS_openat2]).collect();
        rules.extend(same.into_iter().chain(X32_OWN).map(|call| (X32 | call, Vec::new())));
    }
    Ok(rules)
}

#[cfg(test)]
mod tests;
