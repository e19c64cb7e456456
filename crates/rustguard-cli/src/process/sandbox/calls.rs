//! The system calls that a tunnel gives up, as seccomp filters. Numbers and arguments differ between processors.

use super::Needs;
use seccompiler::{
    BackendError, BpfProgram, Error, SeccompAction, SeccompCmpArgLen::Dword, SeccompCmpOp, SeccompCondition,
    SeccompFilter, SeccompRule, TargetArch, apply_filter,
};
use std::collections::BTreeMap;

/// System calls whose numbers are the same for all processors and that libc does not name everywhere.
const FCHMODAT2: i64 = 452;
const SETXATTRAT: i64 = 463;
const REMOVEXATTRAT: i64 = 466;
const OPEN_TREE_ATTR: i64 = 467;

/// System calls that a tunnel never makes.
const REFUSED: &[i64] = &[
    // Starting programs, and access to other processes.
    libc::SYS_execve,
    libc::SYS_execveat,
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_process_madvise,
    libc::SYS_migrate_pages,
    libc::SYS_move_pages,
    libc::SYS_pidfd_getfd,
    libc::SYS_kcmp,
    libc::SYS_tkill,
    libc::SYS_rt_sigqueueinfo,
    libc::SYS_rt_tgsigqueueinfo,
    libc::SYS_pidfd_send_signal,
    libc::SYS_setpriority,
    libc::SYS_ioprio_set,
    libc::SYS_sched_setaffinity,
    libc::SYS_sched_setattr,
    libc::SYS_sched_setparam,
    libc::SYS_sched_setscheduler,
    // Namespaces and mounts, which change the rights to files.
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
    // Loading code into the kernel, and interfaces that have often had vulnerabilities.
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
    // Calls that affect the whole machine.
    libc::SYS_reboot,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_acct,
    libc::SYS_quotactl,
    libc::SYS_quotactl_fd,
    libc::SYS_sethostname,
    libc::SYS_setdomainname,
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_clock_adjtime,
    libc::SYS_adjtimex,
    libc::SYS_syslog,
    libc::SYS_vhangup,
    // Access to files that Landlock does not check. A tunnel needs no mknod for regular files.
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
    // The owner and the mode of a file, which Landlock does not check either. A new file gets its mode from the call
    // that creates it.
    libc::SYS_fchown,
    libc::SYS_fchownat,
    libc::SYS_fchmod,
    libc::SYS_fchmodat,
    FCHMODAT2,
];

/// Calls that only x86-64 has, and that a tunnel never makes.
#[cfg(target_arch = "x86_64")]
const REFUSED_HERE: &[i64] = &[
    libc::SYS_kexec_file_load,
    libc::SYS_iopl,
    libc::SYS_ioperm,
    libc::SYS_modify_ldt,
    libc::SYS_mknod,
    libc::SYS_uselib,
    libc::SYS_chown,
    libc::SYS_lchown,
    libc::SYS_chmod,
];
/// `kexec_file_load`, which libc names only with glibc.
#[cfg(not(target_arch = "x86_64"))]
const REFUSED_HERE: &[i64] = &[294];

/// The call that always gets the mode of a new file.
#[cfg(target_arch = "x86_64")]
const CREATES: [(i64, u8); 1] = [(libc::SYS_creat, 1)];
#[cfg(not(target_arch = "x86_64"))]
const CREATES: [(i64, u8); 0] = [];

/// Calls that get a mode if their flags ask for a new file, with the positions of flags and mode among the arguments.
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

/// Marks a call of x32, the third interface of an x86-64 kernel: a filter sees the same processor, but other numbers.
const X32: i64 = 0x4000_0000;
/// The numbers that only x32 has. They include execve and ptrace.
const X32_OWN: std::ops::RangeInclusive<i64> = 512..=547;

/// Requests of ioctl that affect other processes (asm-generic/ioctls.h, sockios.h): TIOCSTI and TIOCLINUX insert input
/// into the terminal from which the tunnel was started, FIOSETOWN and SIOCSPGRP cause signals.
const REQUESTS: [u32; 4] = [0x5412, 0x541c, 0x8901, 0x8902];
/// Commands of fcntl that affect other processes (asm-generic/fcntl.h): F_SETOWN, F_SETSIG and F_SETOWN_EX cause
/// signals.
const COMMANDS: [u32; 3] = [8, 10, 15];

const ROUTES: u32 = libc::NETLINK_ROUTE.unsigned_abs();
const FIREWALL: u32 = libc::NETLINK_NETFILTER.unsigned_abs();

/// SOCK_STREAM and SOCK_SEQPACKET. The two ends of such a pair stay connected to each other. An end of SOCK_DGRAM can
/// send to any service. A type also has flags in its higher bits.
const PAIRS: [u32; 2] = [1, 5];
const KIND: u32 = 0xf;

type Rules = BTreeMap<i64, Vec<SeccompRule>>;

pub(super) fn filter(needs: &Needs) -> Result<(), Error> {
    programs(needs)?.iter().try_for_each(|program| apply_filter(program))
}

/// The two filters. The kernel runs both.
fn programs(needs: &Needs) -> Result<[BpfProgram; 2], Error> {
    let arch = TargetArch::try_from(std::env::consts::ARCH)?;
    let program = |rules: Rules, errno: libc::c_int| -> Result<BpfProgram, Error> {
        let refused = SeccompAction::Errno(errno.unsigned_abs());
        Ok(SeccompFilter::new(rules, SeccompAction::Allow, refused, arch)?.try_into()?)
    };
    // The arguments of these calls are in memory, which filters cannot read. The C library falls back to clone and
    // openat.
    let unseen = [libc::SYS_clone3, libc::SYS_openat2].map(|call| (call, Vec::new()));
    Ok([program(unseen.into(), libc::ENOSYS)?, program(refused(needs)?, libc::EPERM)?])
}

/// The refused calls by number, with any arguments or with certain arguments.
fn refused(needs: &Needs) -> Result<Rules, BackendError> {
    let mut rules: Rules = REFUSED.iter().chain(REFUSED_HERE).map(|call| (*call, Vec::new())).collect();
    if !needs.uring {
        rules.insert(libc::SYS_io_uring_setup, Vec::new());
    }
    for (call, conditions) in by_arguments(std::process::id())? {
        rules.entry(call).or_default().push(SeccompRule::new(conditions)?);
    }
    if cfg!(target_arch = "x86_64") {
        // A tunnel uses no x32. If a call is refused with certain arguments, its x32 form is refused with any.
        let same: Vec<i64> = rules.keys().copied().chain([libc::SYS_clone3, libc::SYS_openat2]).collect();
        rules.extend(same.into_iter().chain(X32_OWN).map(|call| (X32 | call, Vec::new())));
    }
    Ok(rules)
}

/// The calls that are refused to this process with certain arguments. All conditions of a line have to hold.
fn by_arguments(process: u32) -> Result<Vec<(i64, Vec<SeccompCondition>)>, BackendError> {
    let condition = |argument, operator, value: u32| SeccompCondition::new(argument, Dword, operator, value.into());
    let has = |argument, bit: u32| condition(argument, SeccompCmpOp::MaskedEq(bit.into()), bit);
    let is = |argument, value| condition(argument, SeccompCmpOp::Eq, value);
    let is_not = |argument, value| condition(argument, SeccompCmpOp::Ne, value);
    let mut refused = Vec::new();
    for namespace in NAMESPACES {
        refused.push((libc::SYS_clone, vec![has(0, namespace.unsigned_abs())?]));
    }
    // setuid and setgid.
    for bit in [0o4000, 0o2000] {
        for (call, mode) in CREATES {
            refused.push((call, vec![has(mode, bit)?]));
        }
        for (call, flags, mode) in OPENS {
            for new in [libc::O_CREAT, libc::O_TMPFILE & !libc::O_DIRECTORY] {
                refused.push((call, vec![has(flags, new.unsigned_abs())?, has(mode, bit)?]));
            }
        }
    }
    // No Unix sockets: a filter does not see their destination, and some services obey any request from uid 0.
    let families = [libc::AF_INET, libc::AF_INET6, libc::AF_NETLINK].map(libc::c_int::unsigned_abs);
    refused.push((libc::SYS_socket, families.map(|family| is_not(0, family)).into_iter().collect::<Result<_, _>>()?));
    let netlink = is(0, libc::AF_NETLINK.unsigned_abs())?;
    refused.push((libc::SYS_socket, vec![netlink, is_not(2, ROUTES)?, is_not(2, FIREWALL)?]));
    refused.push((libc::SYS_socketpair, vec![is_not(0, libc::AF_UNIX.unsigned_abs())?]));
    for kind in (0..=KIND).filter(|kind| !PAIRS.contains(kind)) {
        refused.push((libc::SYS_socketpair, vec![condition(1, SeccompCmpOp::MaskedEq(KIND.into()), kind)?]));
    }
    // The tables of iptables and arptables (from option 64 on), and of ip6tables (64 and 65): parsers in the kernel.
    let tables = condition(2, SeccompCmpOp::Ge, 64)?;
    refused.push((libc::SYS_setsockopt, vec![is(1, libc::IPPROTO_IP.unsigned_abs())?, tables]));
    for option in [64, 65] {
        refused.push((libc::SYS_setsockopt, vec![is(1, libc::IPPROTO_IPV6.unsigned_abs())?, is(2, option)?]));
    }
    // Other processes.
    for signal in [libc::SYS_kill, libc::SYS_tgkill] {
        refused.push((signal, vec![is_not(0, process)?]));
    }
    refused.push((libc::SYS_prlimit64, vec![is_not(0, 0)?, is_not(0, process)?]));
    for command in COMMANDS {
        refused.push((libc::SYS_fcntl, vec![is(1, command)?]));
    }
    for request in REQUESTS {
        refused.push((libc::SYS_ioctl, vec![is(1, request)?]));
    }
    Ok(refused)
}

#[cfg(test)]
mod tests;
